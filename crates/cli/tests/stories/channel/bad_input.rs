//! What a broken or hostile client sends, and what it gets.

use quintet_channel::client::{Client, ClientError, ServerMessage};
use quintet_channel::proto::v2::Refused;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::browser::{Browser, secret, upgrade_status, ws_url};
use super::v1::envelope;
use crate::harness::{Machine, within};

#[tokio::test]
async fn what_is_no_envelope_is_answered_and_the_connection_goes_on() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    for text in [
        "garbage",
        "",
        "[]",
        r#"{"v":2,"type":"user_message","session_id":"default","payload":{}}"#,
        r#"{"v":1,"type":"no_such_type","session_id":"default","payload":{}}"#,
        r#"{"v":1,"type":"tool_call","session_id":"default","payload":{}}"#,
        r#"{"v":1,"type":"user_message","session_id":"","payload":{}}"#,
        r#"{"v":1,"type":"user_message","payload":{}}"#,
    ] {
        browser.sends_text(text.to_owned()).await;
        browser.is_refused("invalid_envelope").await;
    }
    browser
        .sends_message(Message::Binary(vec![0xff, 0xfe].into()))
        .await;
    browser.is_refused("invalid_envelope").await;
    let token = browser.paired.clone().unwrap().token;
    for (payload, code) in [
        (json!({ "access_token": token }), "invalid_payload"),
        (
            json!({ "access_token": token, "content": "in the clear" }),
            "e2e_required",
        ),
        (
            json!({ "access_token": token, "e2e": { "nonce": "AA" } }),
            "invalid_e2e_payload",
        ),
        (
            json!({ "access_token": token,
                "e2e": { "alg": "none", "nonce": "AAECAwQFBgcICQoL", "ciphertext": "AAAA" } }),
            "unsupported_e2e_alg",
        ),
    ] {
        browser.sends(&envelope("user_message", payload)).await;
        browser.is_refused(code).await;
    }
    browser.says("say still here").await;
    assert_eq!(browser.hears_answer().await.1, "still here");
}

#[tokio::test]
async fn a_message_of_64_kib_is_read_and_one_byte_more_closes() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    let token = browser.paired.clone().unwrap().token;
    let padded = |length: usize| {
        let payload = json!({ "access_token": token, "pad": "" });
        let mut text = envelope("user_message", payload).to_string();
        let room = length - text.len();
        text = text.replace(r#""pad":"""#, &format!(r#""pad":"{}""#, "x".repeat(room)));
        assert_eq!(text.len(), length);
        text
    };
    browser.sends_text(padded(64 * 1024)).await;
    browser.is_refused("invalid_payload").await;
    browser.sends_text(padded(64 * 1024 + 1)).await;
    assert_eq!(browser.is_closed().await, 1009);
}

#[tokio::test]
async fn a_replayed_message_is_refused_after_a_restart_too() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    let message = browser.sealed("say once", Some("test"));
    browser.sends(&message).await;
    assert_eq!(browser.hears_answer().await.1, "once");
    browser.sends(&message).await;
    browser.is_refused("e2e_replayed").await;
    let paired = browser.paired.clone().unwrap();
    drop(browser);
    daemon.stops().await;
    let daemon = machine.up().await;
    let mut browser = Browser::returns(&daemon, &paired).await;
    browser.sends(&message).await;
    browser.is_refused("e2e_replayed").await;
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions[0]["messages"], 1);
}

/// A nonce is used up by what is said, not by what is refused.
#[tokio::test]
async fn a_message_that_was_not_said_may_come_again() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    let mut message = browser.sealed("say at last", Some("nobody"));
    for _ in 0..2 {
        browser.sends(&message).await;
        browser.is_refused("not_found").await;
    }
    message["agent_id"] = "test".into();
    browser.sends(&message).await;
    assert_eq!(browser.hears_answer().await.1, "at last");
    browser.sends(&message).await;
    browser.is_refused("e2e_replayed").await;
}

#[tokio::test]
async fn a_flipped_bit_in_every_byte_of_a_message_is_noticed() {
    use quintet_channel::proto::base64url;
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    let message = browser.sealed("say nothing", Some("test"));
    for field in ["nonce", "ciphertext"] {
        let text = message["payload"]["e2e"][field].as_str().unwrap();
        let bytes = base64url::decode(text).unwrap();
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1 << (at % 8);
            let mut sent = message.clone();
            sent["payload"]["e2e"][field] = base64url::encode(&changed).into();
            browser.sends(&sent).await;
            browser.is_refused("e2e_decrypt_failed").await;
        }
    }
}

#[tokio::test]
async fn a_token_of_another_device_opens_nothing() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut first = Browser::pairs(&machine, &daemon).await;
    let second = Browser::pairs(&machine, &daemon).await;
    let mut message = first.sealed("say stolen", Some("test"));
    message["payload"]["access_token"] = second.paired.unwrap().token.into();
    first.sends(&message).await;
    first.is_refused("e2e_decrypt_failed").await;
    let mut unknown = first.sealed("say x", None);
    unknown["payload"]["access_token"] = "no such token".into();
    first.sends(&unknown).await;
    first.is_refused("unauthorized").await;
    assert_eq!(first.is_closed().await, 1000);
}

#[tokio::test]
async fn a_public_key_of_zeros_is_refused_before_the_code_is_used_up() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let code = machine.pairing_code().await;
    for (key, expected) in [
        (json!("A".repeat(43)), "pairing_invalid_client_pub"),
        (json!("short"), "pairing_invalid_client_pub"),
        (Value::Null, "pairing_e2e_required"),
    ] {
        let mut browser = Browser::opens(&daemon).await;
        let payload = json!({ "pairing_code": code, "client_pub": key });
        browser.sends(&envelope("pairing_request", payload)).await;
        browser.is_refused(expected).await;
        assert_eq!(browser.is_closed().await, 1000);
    }
    let paired = Client::pair(&ws_url(&daemon), &code, "after all").await;
    assert!(paired.is_ok());
}

#[tokio::test]
async fn five_wrong_codes_lock_pairing_the_right_one_included() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let code = machine.pairing_code().await;
    let wrong = if code == "000000" { "000001" } else { "000000" };
    let tries = |code: String| {
        let daemon = &daemon;
        async move {
            let mut browser = Browser::opens(daemon).await;
            let payload = json!({ "pairing_code": code, "client_pub": "j0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8" });
            browser.sends(&envelope("pairing_request", payload)).await;
            let refused = browser.hears("error").await["payload"]["code"].clone();
            assert_eq!(browser.is_closed().await, 1000);
            refused
        }
    };
    assert_eq!(tries(String::new()).await, "pairing_missing_code");
    // The two versions count together.
    for _ in 0..3 {
        assert_eq!(tries(wrong.to_owned()).await, "pairing_invalid_code");
    }
    for _ in 0..2 {
        let failed = Client::pair(&ws_url(&daemon), wrong, "guess").await;
        let refused = matches!(failed, Err(ClientError::Refused(Refused::InvalidCode, _)));
        assert!(refused);
    }
    assert_eq!(tries(code.clone()).await, "pairing_locked_out");
    let failed = Client::pair(&ws_url(&daemon), &code, "right").await;
    assert!(matches!(
        failed,
        Err(ClientError::Refused(Refused::LockedOut, _))
    ));
    for _ in 0..100 {
        assert_eq!(tries(wrong.to_owned()).await, "pairing_locked_out");
    }
    let locked = machine.runs(&["pair"]).await.fails(1);
    assert!(locked.contains("locked"), "{locked}");
    let devices = machine.runs(&["devices", "--json"]).await.json();
    assert_eq!(devices, json!([]));
    // A hundred tries are no hundred rows: when it locked, and one in a minute.
    let journal = machine.runs(&["events", "--json"]).await.succeeds();
    let cuts: Vec<Value> = journal
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|row| row["kind"] == "client_cut")
        .collect();
    let locked = |row: &&Value| row["data"]["reason"] == "pairing is locked after 5 wrong codes";
    assert_eq!(cuts.iter().filter(locked).count(), 1, "{cuts:?}");
    assert!(cuts.len() < 10, "{cuts:?}");
}

#[tokio::test]
async fn a_code_pairs_one_device_and_is_forgotten_with_the_daemon() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let code = machine.pairing_code().await;
    let url = ws_url(&daemon);
    Client::pair(&url, &code, "first").await.unwrap();
    let second = Client::pair(&url, &code, "second").await;
    assert!(matches!(
        second,
        Err(ClientError::Refused(Refused::AlreadyUsed, _))
    ));
    daemon.stops().await;
    // With a device paired, `up` makes no code of its own.
    let daemon = machine.up().await;
    let later = Client::pair(&ws_url(&daemon), &code, "later").await;
    assert!(matches!(
        later,
        Err(ClientError::Refused(Refused::CodeExpired, _))
    ));
}

#[tokio::test]
async fn other_pages_and_unknown_protocols_are_refused() {
    let machine = Machine::fresh();
    machine.configure("[http]\nallowed_origins = [\"https://ui.example\"]\n");
    let daemon = machine.up().await;
    let v2 = ("Sec-WebSocket-Protocol", "quintet.channel.v2");
    let status = async |headers: &[(&str, &str)]| upgrade_status(&daemon, "/ws", headers).await;
    let own = daemon.http().to_owned();
    assert_eq!(status(&[("Origin", "https://evil.example")]).await, 403);
    assert_eq!(status(&[("Origin", "https://evil.example"), v2]).await, 403);
    assert_eq!(status(&[("Origin", "null"), v2]).await, 403);
    // A name that an attacker points at this machine is its own origin, and still not ours.
    let rebound = [("Origin", "http://evil.example"), ("Host", "evil.example")];
    assert_eq!(status(&rebound).await, 403);
    assert_eq!(status(&[("Origin", &own), v2]).await, 101);
    assert_eq!(status(&[("Origin", "https://ui.example")]).await, 101);
    assert_eq!(status(&[("Sec-WebSocket-Protocol", "mqtt")]).await, 400);
    assert_eq!(
        status(&[("Sec-WebSocket-Protocol", "mqtt, sandd.v9")]).await,
        400
    );
}

#[tokio::test]
async fn a_revoked_device_is_told_and_closed_at_once() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let mut old = Browser::pairs(&machine, &daemon).await;
    old.says("say hello").await;
    old.hears_answer().await;
    let (mut ours, identity) =
        Client::pair(&ws_url(&daemon), &machine.pairing_code().await, "tablet")
            .await
            .unwrap();
    ours.request("hello", json!({})).await.unwrap();

    let id = old.paired.clone().unwrap().client_id;
    machine.runs(&["devices", "revoke", &id]).await.succeeds();
    old.is_refused("unauthorized").await;
    assert_eq!(old.is_closed().await, 1000);
    let paired = old.paired.clone().unwrap();
    let mut returned = Browser::returns(&daemon, &paired).await;
    returned.says("say again").await;
    returned.is_refused("unauthorized").await;
    assert_eq!(returned.is_closed().await, 1000);

    let short = identity.device.to_string()[..6].to_owned();
    machine
        .runs(&["devices", "revoke", &short])
        .await
        .succeeds();
    let told = within("the device is told", ours.next()).await.unwrap();
    let ServerMessage::Json(told) = told else {
        panic!("{told:?}")
    };
    assert_eq!(told["error"]["code"], "unauthorized");
    let closed = within("it is closed", ours.next()).await.unwrap_err();
    assert!(
        matches!(closed, ClientError::Closed(Some((1000, _)))),
        "{closed:?}"
    );
    // Later it learns the same, from the daemon alone.
    let mut later = Client::resume(&ws_url(&daemon), &identity).await.unwrap();
    let ServerMessage::Json(told) = later.next().await.unwrap() else {
        panic!("no JSON")
    };
    assert_eq!(told["error"]["code"], "unauthorized");
    machine
        .runs(&["devices", "revoke", "nobody"])
        .await
        .fails(1);
}

#[tokio::test]
async fn an_expired_token_is_refused_on_an_open_connection() {
    let machine = Machine::with_test_agent();
    let config = std::fs::read_to_string(machine.home().join("config.toml")).unwrap();
    machine.configure(&format!("{config}\n[channel]\ntoken_ttl = \"4s\"\n"));
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    let (mut ours, identity) =
        Client::pair(&ws_url(&daemon), &machine.pairing_code().await, "tablet")
            .await
            .unwrap();
    // A list without them is the fact that their time is over.
    loop {
        let devices = machine.runs(&["devices", "--json"]).await.json();
        if devices == json!([]) {
            break;
        }
    }
    browser.says("say hello").await;
    browser.is_refused("unauthorized").await;
    assert_eq!(browser.is_closed().await, 1000);
    let asked = ours.request("hello", json!({})).await;
    assert!(
        matches!(asked, Err(ClientError::Closed(Some((1000, _))))),
        "{asked:?}"
    );
    let mut later = Client::resume(&ws_url(&daemon), &identity).await.unwrap();
    let ServerMessage::Json(told) = later.next().await.unwrap() else {
        panic!("no JSON")
    };
    assert_eq!(told["error"]["code"], "unauthorized");
}

/// A device that `quintet devices` no longer lists hears nothing more.
#[tokio::test]
async fn a_pairing_that_ends_closes_connections_that_only_listen() {
    let machine = Machine::with_test_agent();
    let config = std::fs::read_to_string(machine.home().join("config.toml")).unwrap();
    machine.configure(&format!("{config}\n[channel]\ntoken_ttl = \"4s\"\n"));
    let daemon = machine.up().await;
    let mut browser = Browser::pairs(&machine, &daemon).await;
    browser.says("say hello").await;
    browser.hears_answer().await;
    let (mut ours, _) = Client::pair(&ws_url(&daemon), &machine.pairing_code().await, "tablet")
        .await
        .unwrap();
    ours.ask("events.follow", json!({ "after": 0 }))
        .await
        .unwrap();
    browser.is_refused("unauthorized").await;
    assert_eq!(browser.is_closed().await, 1000);
    let closed = loop {
        match within("the device is told", ours.next()).await {
            Ok(ServerMessage::Json(told)) if told["error"]["code"] == "unauthorized" => {
                break within("it is closed", ours.next()).await.unwrap_err();
            }
            Ok(_) => {}
            Err(error) => panic!("{error:?}"),
        }
    };
    assert!(
        matches!(closed, ClientError::Closed(Some((1000, _)))),
        "{closed:?}"
    );
    let devices = machine.runs(&["devices", "--json"]).await.json();
    assert_eq!(devices, json!([]));
}

#[tokio::test]
async fn a_flipped_bit_in_every_byte_of_a_record_ends_the_connection() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let url = ws_url(&daemon);
    let (mut client, identity) = Client::pair(&url, &machine.pairing_code().await, "phone")
        .await
        .unwrap();
    let plaintext = b"\0{\"id\":1,\"op\":\"hello\"}".to_vec();
    let length = client.seal(plaintext.clone()).unwrap().len();
    for at in 0..length {
        let mut client = Client::resume(&url, &identity).await.unwrap();
        let mut record = client.seal(plaintext.clone()).unwrap();
        record[at] ^= 1 << (at % 8);
        client.send_raw(record).await.unwrap();
        let closed = within("it is closed", client.next()).await.unwrap_err();
        assert!(
            matches!(closed, ClientError::Closed(Some((1002, _)))),
            "{at}: {closed:?}"
        );
    }
}

#[tokio::test]
async fn replayed_and_reordered_records_end_the_connection() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let url = ws_url(&daemon);
    let (_, identity) = Client::pair(&url, &machine.pairing_code().await, "phone")
        .await
        .unwrap();
    let ask = |id: u8| format!("\0{{\"id\":{id},\"op\":\"hello\"}}").into_bytes();

    let mut replaying = Client::resume(&url, &identity).await.unwrap();
    let record = replaying.seal(ask(1)).unwrap();
    replaying.send_raw(record.clone()).await.unwrap();
    within("it is answered", replaying.next()).await.unwrap();
    replaying.send_raw(record).await.unwrap();
    let closed = within("it is closed", replaying.next()).await.unwrap_err();
    assert!(matches!(closed, ClientError::Closed(Some((1002, _)))));

    let mut reordering = Client::resume(&url, &identity).await.unwrap();
    let (first, second) = (reordering.seal(ask(1)), reordering.seal(ask(2)));
    reordering.send_raw(second.unwrap()).await.unwrap();
    reordering.send_raw(first.unwrap()).await.unwrap();
    let closed = within("it is closed", reordering.next()).await.unwrap_err();
    assert!(matches!(closed, ClientError::Closed(Some((1002, _)))));

    let mut other = Client::resume(&url, &identity).await.unwrap();
    let mut thief = Client::resume(&url, &identity).await.unwrap();
    thief.send_raw(other.seal(ask(1)).unwrap()).await.unwrap();
    let closed = within("it is closed", thief.next()).await.unwrap_err();
    assert!(matches!(closed, ClientError::Closed(Some((1002, _)))));
}

#[tokio::test]
async fn a_key_that_was_never_paired_is_told_nothing_else() {
    use quintet_channel::proto::keys::{KeyPair, Secret32};
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let url = ws_url(&daemon);
    let (_, identity) = Client::pair(&url, &machine.pairing_code().await, "phone")
        .await
        .unwrap();
    let mut stranger = identity.clone();
    stranger.keys = KeyPair::new(&Secret32::new(secret()));
    let mut client = Client::resume(&url, &stranger).await.unwrap();
    client.ask("sessions.list", json!({})).await.unwrap();
    let ServerMessage::Json(told) = client.next().await.unwrap() else {
        panic!("no JSON")
    };
    assert_eq!(told["error"]["code"], "unauthorized");
    assert!(matches!(client.next().await, Err(ClientError::Closed(_))));

    // A daemon with another key can't be taken for this one.
    let mut wrong = identity;
    wrong.daemon = KeyPair::new(&Secret32::new(secret())).public();
    let refused = Client::resume(&url, &wrong).await;
    assert!(matches!(
        refused,
        Err(ClientError::Refused(Refused::WrongDaemon, _))
    ));
}

#[tokio::test]
async fn five_hundred_browsers_are_served_at_once() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let url = ws_url(&daemon);
    let (mut first, identity) = Client::pair(&url, &machine.pairing_code().await, "phone")
        .await
        .unwrap();
    let mut clients = Vec::new();
    for _ in 0..500 {
        let mut client = Client::resume(&url, &identity).await.unwrap();
        client
            .ask("events.follow", json!({ "after": 0 }))
            .await
            .unwrap();
        clients.push(client);
    }
    let session = first
        .request("sessions.create", json!({ "agent": "test" }))
        .await
        .unwrap()["session"]
        .clone();
    let sent = json!({ "session": session, "content": "say to everybody", "mode": "queue" });
    first.request("messages.send", sent).await.unwrap();
    for client in &mut clients {
        loop {
            let message = within("the turn ends for each", client.next())
                .await
                .unwrap();
            let ServerMessage::Json(message) = message else {
                continue;
            };
            let items = message["items"].as_array().cloned().unwrap_or_default();
            if items.iter().any(|item| item["kind"] == "turn_ended") {
                break;
            }
        }
    }
}
