//! The original protocol, as its real UI speaks it.

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::browser::{Browser, upgrade_status, ws_url};
use super::v1::envelope;
use crate::harness::{Machine, within};

#[tokio::test]
async fn a_browser_pairs_chats_and_sees_the_answer_stream() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;

    browser.says("say one two three").await;
    let (streamed, whole) = browser.hears_answer().await;
    assert_eq!((&*streamed, &*whole), ("one two three", "one two three"));

    // The second message goes into the same session: "default" is the device's current one.
    browser.says("say again").await;
    assert_eq!(browser.hears_answer().await.1, "again");
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions.as_array().unwrap().len(), 1);
    assert_eq!(sessions[0]["messages"], 2);
}

#[tokio::test]
async fn tools_are_shown_with_their_results() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    browser.says("tool").await;
    let call = browser.hears("tool_call").await;
    assert_eq!(call["agent_id"], "test");
    assert_eq!(
        call["payload"],
        json!({ "name": "exec", "arguments": { "command": "ls" } })
    );
    let result = browser.hears("tool_result").await;
    assert_eq!(result["request_id"], call["request_id"]);
    assert_eq!(result["payload"], json!({ "ok": true, "result": "a.txt" }));
    assert_eq!(browser.hears_answer().await.1, "there is one file");
}

#[tokio::test]
async fn approvals_reach_every_browser_and_the_first_answer_counts() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut first = Browser::pairs(&machine, &daemon).await;
    let mut second = Browser::pairs(&machine, &daemon).await;
    // A v1 client says who it is only with its first message.
    second.says("say hello").await;
    second.hears_answer().await;

    first.says("approve rm -rf build").await;
    let request = first.hears("approval_request").await;
    assert_eq!(request["payload"]["action"], "exec: rm -rf build");
    assert_eq!(request["payload"]["reason"], "a test");
    let id = request["request_id"].as_str().unwrap().to_owned();
    let other = second.hears("approval_request").await;
    assert_eq!(other["request_id"], *id);
    // "default" is each one's own session.
    assert_eq!(request["session_id"], "default");
    assert_eq!(other["session_id"], "2");

    second.answers(&id, false, "not today").await;
    assert_eq!(first.hears_answer().await.1, "denied: not today");
    first.answers(&id, true, "").await;
    let late = first.is_refused("conflict").await;
    assert!(
        late["payload"]["message"]
            .as_str()
            .unwrap()
            .contains("denied")
    );
}

#[tokio::test]
async fn what_a_browser_missed_comes_with_its_next_message() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    browser.says("approve make").await;
    let request = browser.hears("approval_request").await;
    let paired = browser.paired.clone().unwrap();
    drop(browser);

    // The approval is still there after a restart would be too; here after a reload.
    let mut reloaded = Browser::returns(&daemon, &paired).await;
    reloaded.answers("approval-999", true, "").await;
    let mut seen = Vec::new();
    for _ in 0..2 {
        seen.push(reloaded.hears_next().await);
    }
    let again = seen
        .iter()
        .find(|event| event["type"] == "approval_request")
        .unwrap();
    assert_eq!(again["request_id"], request["request_id"]);
    drop(reloaded);

    // The turn ends while nobody looks; its final is sent with the next message.
    let listed = machine.runs(&["approvals", "--json"]).await.json();
    let id = listed[0]["id"].to_string();
    machine.runs(&["approve", &id]).await.succeeds();
    machine.sees("turn_ended", 1).await;
    let mut later = Browser::returns(&daemon, &paired).await;
    later.says("say next").await;
    let missed = later.hears("assistant_final").await;
    assert_eq!(later.text(&missed), "approved");
    assert_eq!(later.hears_answer().await.1, "next");
}

#[tokio::test]
async fn a_question_is_answered_with_the_next_message() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    browser.says("ask").await;
    let (_, question) = browser.hears_answer().await;
    assert_eq!(
        question,
        "Which colour?\n- red: like fire\n- blue: like water\n"
    );
    browser.says("blue").await;
    assert_eq!(browser.hears_answer().await.1, "you said blue");
}

#[tokio::test]
async fn a_question_that_a_browser_never_saw_is_not_answered_by_its_next_message() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    browser.says("ask").await;
    let paired = browser.closes().await;
    machine.sees("ask_user", 1).await;

    let mut returned = Browser::returns(&daemon, &paired).await;
    returned.says("say what did I miss").await;
    let (_, question) = returned.hears_answer().await;
    assert!(question.starts_with("Which colour?"), "{question}");
    // Another connection of the device that was asked gives the answer.
    let paired = returned.closes().await;
    let mut later = Browser::returns(&daemon, &paired).await;
    later.says("blue").await;
    assert_eq!(later.hears_answer().await.1, "you said blue");
    assert_eq!(later.hears_answer().await.1, "what did I miss");
}

#[tokio::test]
async fn an_answer_comes_once_to_a_browser_that_leaves_when_it_has_it() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    for word in ["one", "two", "three"] {
        browser.says(&format!("say {word}")).await;
        assert_eq!(browser.hears_answer().await.1, word);
        let paired = browser.closes().await;
        browser = Browser::returns(&daemon, &paired).await;
    }
}

#[tokio::test]
async fn browsers_and_terminals_in_one_session_hear_each_other() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut first = Browser::pairs(&machine, &daemon).await;
    let mut second = Browser::pairs(&machine, &daemon).await;
    first.says("say mine").await;
    assert_eq!(first.hears_answer().await.1, "mine");

    // By its number the other one joins the session, each under its own name and key.
    second.says_in("1", "say ours").await;
    for (browser, name) in [(&mut first, "default"), (&mut second, "1")] {
        let chunk = browser.hears("assistant_chunk").await;
        assert_eq!(
            (&chunk["session_id"], &chunk["agent_id"]),
            (&json!(name), &json!("test"))
        );
        assert_eq!(browser.text(&chunk), "ours");
        assert_eq!(browser.hears_answer().await.1, "ours");
    }
    let sent = ["send", "test", "say theirs", "--session", "1"];
    machine.runs(&sent).await.succeeds();
    for browser in [&mut first, &mut second] {
        assert_eq!(browser.hears_answer().await.1, "theirs");
    }
    // A summary, here of four messages, is nobody's answer; what comes after it is.
    machine.runs(&["compact", "1"]).await.succeeds();
    first.says("say after").await;
    for browser in [&mut first, &mut second] {
        assert_eq!(browser.hears_answer().await.1, "summary of 1 messages");
    }
}

/// Who comes into a session while something runs in it hears the whole answer, and its question.
#[tokio::test]
async fn a_browser_that_joins_a_session_is_told_what_it_waits_for() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut first = Browser::pairs(&machine, &daemon).await;
    first.says("ask").await;
    let (_, question) = first.hears_answer().await;
    let mut second = Browser::pairs(&machine, &daemon).await;
    second.says_in("1", "say hello").await;
    assert_eq!(second.hears_answer().await.1, question);
    second.says_in("1", "red").await;
    for browser in [&mut first, &mut second] {
        assert_eq!(browser.hears_answer().await.1, "you said red");
        assert_eq!(browser.hears_answer().await.1, "hello");
    }
}

#[tokio::test]
async fn a_turn_that_fails_ends_its_text_and_then_with_an_error() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    browser.says("crash").await;
    // Of an error the real UI shows the sentence and keeps its input closed: the text ends before it.
    assert_eq!(
        browser.hears_answer().await,
        ("about to".to_owned(), "about to".to_owned())
    );
    browser.is_refused("turn_failed").await;
    let mut unknown = browser.sealed("say x", Some("nobody"));
    unknown["session_id"] = "other".into();
    browser.sends(&unknown).await;
    browser.is_refused("not_found").await;
}

#[tokio::test]
async fn each_device_has_a_key_and_a_row_of_its_own() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let first = Browser::pairs(&machine, &daemon).await;
    let second = Browser::pairs(&machine, &daemon).await;
    let (one, two) = (first.paired.unwrap(), second.paired.unwrap());
    assert_ne!(one.key, two.key);
    assert_ne!(one.token, two.token);
    let listed = machine.runs(&["devices", "--json"]).await.json();
    let mut ids: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect();
    ids.sort_unstable();
    let mut paired = [one.client_id.as_str(), two.client_id.as_str()];
    paired.sort_unstable();
    assert_eq!(ids, paired);
    // Nothing that opens anything is in the list or in the database's files.
    let database = std::fs::read(machine.home().join("quintet.db")).unwrap();
    let wal = std::fs::read(machine.home().join("quintet.db-wal")).unwrap_or_default();
    for token in [&one.token, &two.token] {
        let holds = |bytes: &[u8]| bytes.windows(43).any(|window| window == token.as_bytes());
        assert!(!holds(&database) && !holds(&wal));
    }
}

#[tokio::test]
async fn plain_text_is_taken_where_the_configuration_says_so() {
    let machine = Machine::with_test_agent();
    let config = std::fs::read_to_string(machine.home().join("config.toml")).unwrap();
    machine.configure(&format!("{config}\n[channel]\ne2e_required = false\n"));
    let daemon = machine.up().await;
    let mut browser = Browser::opens(&daemon).await;
    let request = json!({ "pairing_code": machine.pairing_code().await });
    browser.sends(&envelope("pairing_request", request)).await;
    let result = browser.hears("pairing_result").await;
    assert_eq!(result["payload"]["e2e_required"], false);
    assert_eq!(result["payload"]["e2e"], Value::Null);
    let token = &result["payload"]["access_token"];
    let mut message = envelope(
        "user_message",
        json!({ "access_token": token, "content": "say plain words" }),
    );
    message["agent_id"] = "test".into();
    browser.sends(&message).await;
    loop {
        let event = browser.hears_next().await;
        if event["type"] == "assistant_final" {
            assert_eq!(event["payload"]["content"], "plain words");
            break;
        }
    }
    let e2e = json!({ "nonce": "AAECAwQFBgcICQoL", "ciphertext": "AAAA" });
    let sealed = json!({ "access_token": token, "e2e": e2e });
    browser.sends(&envelope("user_message", sealed)).await;
    browser.is_refused("e2e_not_initialized").await;
}

#[tokio::test]
async fn long_answers_arrive_in_pieces_and_nothing_is_sent_unasked() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    let word = "ü\"".repeat(12_000);
    browser.says(&format!("say {word}")).await;
    let (streamed, whole) = browser.hears_answer().await;
    assert_eq!(streamed, word);
    // It does not fit one message: the empty one leaves what was streamed standing.
    assert_eq!(whole, "");

    let mut silent = Browser::opens(&daemon).await;
    silent.sends_message(Message::Ping(bytes_of(b"p"))).await;
    // The answer to the ping is the first thing that comes.
    let first = within("the pong comes", silent.next_message()).await;
    assert!(matches!(first, Message::Pong(_)));
}

fn bytes_of(bytes: &'static [u8]) -> tokio_tungstenite::tungstenite::Bytes {
    tokio_tungstenite::tungstenite::Bytes::from_static(bytes)
}

#[tokio::test]
async fn another_machine_needs_the_token_of_the_address() {
    let machine = Machine::with_test_agent();
    let daemon = machine
        .up_with(&["--listen", "0.0.0.0:0", "--insecure"])
        .await;
    let made = machine.runs(&["pair", "--json"]).await.json();
    let dialled = made["ws"].as_str().unwrap();
    // A person finds it too.
    let shown = machine.runs(&["pair"]).await.succeeds();
    assert!(
        shown.contains(&format!("Other clients: {dialled}\n")),
        "{shown}"
    );
    let query = dialled.split_once('?').unwrap().1;
    assert_eq!(upgrade_status(&daemon, "/ws", &[]).await, 401);
    assert_eq!(upgrade_status(&daemon, "/ws?token=wrong", &[]).await, 401);
    assert_eq!(
        upgrade_status(&daemon, &format!("/ws?{query}"), &[]).await,
        101
    );
    let token = query.strip_prefix("token=").unwrap();
    let encoded: String = token.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let path = format!("/ws?token={encoded}");
    assert_eq!(upgrade_status(&daemon, &path, &[]).await, 101);
    let bearer = format!("Bearer {token}");
    let header = [("Authorization", bearer.as_str())];
    assert_eq!(upgrade_status(&daemon, "/ws", &header).await, 101);
}

#[tokio::test]
async fn a_wrong_token_is_refused_on_this_machine_too() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    assert_eq!(upgrade_status(&daemon, "/ws", &[]).await, 101);
    assert_eq!(upgrade_status(&daemon, "/ws?token=wrong", &[]).await, 401);
    let v2 = [("Sec-WebSocket-Protocol", "quintet.channel.v2")];
    assert_eq!(upgrade_status(&daemon, "/ws?token=wrong", &v2).await, 401);
    assert!(ws_url(&daemon).starts_with("ws://127.0.0.1:"));
    let shown = machine.runs(&["pair"]).await.succeeds();
    assert!(!shown.contains("Other clients"), "{shown}");
}
