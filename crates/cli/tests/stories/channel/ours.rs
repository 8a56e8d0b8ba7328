//! Our own version: paired by proof, encrypted to the last byte, resumed by cursor.

use std::sync::{Arc, Mutex};

use quintet_channel::client::{Client, ClientError, Identity, ServerMessage};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::browser::ws_url;
use crate::harness::{Daemon, Machine, within};

pub(super) async fn paired(machine: &Machine, daemon: &Daemon, name: &str) -> (Client, Identity) {
    let code = machine.pairing_code().await;
    let url = ws_url(daemon);
    within("it pairs", Client::pair(&url, &code, name))
        .await
        .unwrap()
}

pub(super) async fn asks(client: &mut Client, op: &str, args: Value) -> Value {
    within("it is answered", client.request(op, args))
        .await
        .unwrap()
}

pub(super) async fn refused(client: &mut Client, op: &str, args: Value) -> String {
    match within("it is answered", client.request(op, args)).await {
        Err(ClientError::Op(error)) => error.code,
        other => panic!("{other:?}"),
    }
}

async fn new_session(client: &mut Client) -> u64 {
    let made = asks(client, "sessions.create", json!({ "agent": "test" })).await;
    made["session"].as_u64().unwrap()
}

async fn says(client: &mut Client, session: u64, text: &str) -> Value {
    let message = json!({ "session": session, "content": text, "mode": "queue" });
    asks(client, "messages.send", message).await
}

/// Follows the journal until `done` holds for a row; returns all rows.
async fn follows(client: &mut Client, after: u64, done: impl Fn(&Value) -> bool) -> Vec<Value> {
    let id = client
        .ask("events.follow", json!({ "after": after }))
        .await
        .unwrap();
    let mut rows = Vec::new();
    loop {
        let message = within("a row comes", client.next()).await.unwrap();
        let ServerMessage::Json(mut message) = message else {
            continue;
        };
        if message["id"] != id {
            continue;
        }
        for item in message["items"].as_array_mut().unwrap() {
            let row = item.take();
            if row.get("caught_up").is_some() {
                continue;
            }
            let last = done(&row);
            rows.push(row);
            if last {
                client.send_json(&json!({ "cancel": id })).await.unwrap();
                return rows;
            }
        }
    }
}

fn is(kind: &'static str) -> impl Fn(&Value) -> bool {
    move |row| row["kind"] == kind
}

#[tokio::test]
async fn two_browsers_see_one_conversation_and_a_reload_loses_nothing() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let (mut phone, identity) = paired(&machine, &daemon, "phone").await;
    let (mut laptop, _) = paired(&machine, &daemon, "laptop").await;
    let hello = asks(&mut phone, "hello", json!({})).await;
    assert_eq!(hello["device"]["name"], "phone");
    assert_eq!(hello["check_words"], json!(identity.check_words));

    let session = new_session(&mut phone).await;
    assert_eq!(
        says(&mut phone, session, "say one two").await["queued"],
        false
    );
    let seen = follows(&mut laptop, 0, is("turn_ended")).await;
    let again = follows(&mut phone, 0, is("turn_ended")).await;
    assert_eq!(seen, again);
    let half = seen[seen.len() / 2]["seq"].as_u64().unwrap();
    phone.close().await;

    let mut reloaded = Client::resume(&ws_url(&daemon), &identity).await.unwrap();
    let rest = follows(&mut reloaded, half, is("turn_ended")).await;
    let expected: Vec<Value> = seen
        .into_iter()
        .filter(|row| row["seq"].as_u64().unwrap() > half)
        .collect();
    assert_eq!(rest, expected);

    // The rows are the terminal's, which adds no turn.
    let printed = machine.runs(&["events", "--json"]).await.succeeds();
    let printed: Vec<Value> = printed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for row in rest {
        let same = printed.iter().find(|it| it["seq"] == row["seq"]).unwrap();
        for key in ["seq", "at", "session", "kind", "data"] {
            assert_eq!(same[key], row[key], "{key}");
        }
    }
    let page = json!({ "session": session, "limit": 2 });
    let page = asks(&mut reloaded, "events.page", page).await;
    assert_eq!(page["events"].as_array().unwrap().len(), 2);
    assert_eq!(page["events"][1]["kind"], "turn_ended");
    let before = page["events"][0]["seq"].clone();
    let page = json!({ "session": session, "limit": 1000, "before": before });
    let page = asks(&mut reloaded, "events.page", page).await;
    assert!(
        page["events"]
            .as_array()
            .unwrap()
            .iter()
            .all(|row| row["seq"].as_u64() < before.as_u64())
    );
}

#[tokio::test]
async fn a_message_sent_again_after_a_lost_connection_is_the_same_message() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let (mut phone, identity) = paired(&machine, &daemon, "phone").await;
    let session = new_session(&mut phone).await;
    let message = json!({
        "session": session, "content": "say once", "mode": "queue", "client_key": "k1",
    });
    let first = asks(&mut phone, "messages.send", message.clone()).await;
    drop(phone);
    daemon.stops().await;
    let daemon = machine.up().await;
    let mut phone = Client::resume(&ws_url(&daemon), &identity).await.unwrap();
    let again = asks(&mut phone, "messages.send", message).await;
    assert_eq!(first, again);
    let rows = follows(&mut phone, 0, is("turn_ended")).await;
    let messages = rows.iter().filter(|row| row["kind"] == "message").count();
    assert_eq!(messages, 1);
}

#[tokio::test]
async fn queue_steer_stop_and_retry() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let (mut phone, _) = paired(&machine, &daemon, "phone").await;
    let session = new_session(&mut phone).await;
    says(&mut phone, session, "wait").await;
    follows(&mut phone, 0, is("text_delta")).await;
    let waiting = says(&mut phone, session, "say later").await;
    assert_eq!(waiting["queued"], true);
    let listed = asks(&mut phone, "queue.list", json!({ "session": session })).await;
    assert_eq!(listed["queue"][0]["text"], "say later");
    let id = &listed["queue"][0]["id"];
    asks(
        &mut phone,
        "queue.edit",
        json!({ "id": id, "text": "say edited" }),
    )
    .await;
    says(&mut phone, session, "say never").await;
    let listed = asks(&mut phone, "queue.list", json!({})).await;
    let never = &listed["queue"][1]["id"];
    asks(&mut phone, "queue.remove", json!({ "id": never })).await;
    let steer = json!({ "session": session, "content": "me", "mode": "steer", "client_key": "s" });
    asks(&mut phone, "messages.send", steer).await;
    let rows = follows(&mut phone, 0, |row| {
        row["kind"] == "text_delta" && row["data"]["text"].as_str().unwrap().contains("edited")
    })
    .await;
    let text: String = rows
        .iter()
        .filter(|row| row["kind"] == "text_delta")
        .map(|row| row["data"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(text, "waiting, steered by meedited");

    says(&mut phone, session, "wait").await;
    let after = rows.last().unwrap()["seq"].as_u64().unwrap();
    let rows = follows(&mut phone, after, is("text_delta")).await;
    asks(&mut phone, "messages.cancel", json!({ "session": session })).await;
    let after = rows.last().unwrap()["seq"].as_u64().unwrap();
    let rows = follows(&mut phone, after, is("turn_ended")).await;
    assert_eq!(rows.last().unwrap()["data"]["finish_reason"], "cancelled");

    let after = rows.last().unwrap()["seq"].as_u64().unwrap();
    says(&mut phone, session, "crash").await;
    let rows = follows(&mut phone, after, is("turn_ended")).await;
    let retried = asks(&mut phone, "messages.retry", json!({ "session": session })).await;
    assert!(retried["message_id"].as_u64().is_some());
    let after = rows.last().unwrap()["seq"].as_u64().unwrap();
    follows(&mut phone, after, is("turn_ended")).await;
}

#[tokio::test]
async fn approvals_and_questions_are_answered_from_any_device() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let (mut phone, _) = paired(&machine, &daemon, "phone").await;
    let (mut laptop, _) = paired(&machine, &daemon, "laptop").await;
    let session = new_session(&mut phone).await;
    says(&mut phone, session, "approve make clean").await;
    follows(&mut laptop, 0, is("approval_requested")).await;
    let listed = asks(&mut laptop, "approvals.list", json!({})).await;
    let approval = &listed["approvals"][0];
    assert_eq!(approval["command"], "make clean");
    assert_eq!(approval["hash"].as_str().unwrap().len(), 64);
    let answer =
        json!({ "id": approval["id"], "approved": false, "scope": "once", "reason": "later" });
    asks(&mut laptop, "approvals.answer", answer.clone()).await;
    assert_eq!(
        refused(&mut phone, "approvals.answer", answer).await,
        "conflict"
    );
    let rows = follows(&mut phone, 0, is("turn_ended")).await;
    let answered = rows
        .iter()
        .find(|row| row["kind"] == "approval_answered")
        .unwrap();
    assert_eq!(answered["data"]["by"], "laptop");

    says(&mut phone, session, "ask").await;
    let after = rows.last().unwrap()["seq"].as_u64().unwrap();
    follows(&mut phone, after, is("ask_user")).await;
    let asked = asks(&mut phone, "asks.list", json!({})).await;
    assert_eq!(
        asked["asks"][0]["questions"][0]["question"],
        "Which colour?"
    );
    asks(
        &mut phone,
        "asks.reply",
        json!({ "session": session, "text": "red" }),
    )
    .await;
    let rows = follows(&mut phone, after, is("turn_ended")).await;
    let said: String = rows
        .iter()
        .filter(|row| row["kind"] == "text_delta")
        .map(|row| row["data"]["text"].as_str().unwrap())
        .collect();
    assert_eq!(said, "you said red");
}

#[tokio::test]
async fn devices_are_listed_renamed_and_revoked_with_words_on_both_screens() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let (mut phone, identity) = paired(&machine, &daemon, "phone\u{1b}[31m").await;
    let (mut laptop, other) = paired(&machine, &daemon, "laptop").await;
    let listed = machine.runs(&["devices", "--json"]).await.json();
    let id = identity.device.to_string();
    let row = |listed: &Value| -> Value {
        let rows = listed.as_array().unwrap();
        rows.iter().find(|row| row["id"] == *id).unwrap().clone()
    };
    assert_eq!(row(&listed)["name"], "phone[31m");
    assert_eq!(row(&listed)["check_words"], json!(identity.check_words));
    let table = machine.runs(&["devices"]).await.succeeds();
    assert!(table.contains(&identity.check_words.join(" ")), "{table}");

    let renamed = json!({ "id": id, "name": "kitchen" });
    asks(&mut laptop, "devices.rename", renamed).await;
    let listed = asks(&mut laptop, "devices.list", json!({})).await;
    assert_eq!(row(&listed["devices"])["name"], "kitchen");
    assert_eq!(listed["current"], other.device.to_string());
    asks(&mut laptop, "devices.revoke", json!({ "id": id })).await;
    let ServerMessage::Json(told) = within("it is told", phone.next()).await.unwrap() else {
        panic!("no JSON")
    };
    assert_eq!(told["error"]["code"], "unauthorized");
}

#[tokio::test]
async fn files_are_seen_in_all_their_versions_and_taken_back() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let (mut phone, _) = paired(&machine, &daemon, "phone").await;
    let folder = machine.path().join("project");
    std::fs::create_dir_all(folder.join("src")).unwrap();
    std::fs::write(folder.join("src/a.txt"), "one\n").unwrap();
    std::fs::write(folder.join("data.bin"), [0, 159, 146, 150]).unwrap();
    let made = json!({ "agent": "test", "cwd": folder });
    let session = asks(&mut phone, "sessions.create", made).await["session"].clone();
    let of = |more: Value| {
        let mut args = json!({ "session": session });
        args.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        args
    };

    let tree = asks(&mut phone, "workspace.tree", of(json!({ "path": "" }))).await;
    let names: Vec<(&str, &str)> = tree["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["name"].as_str().unwrap(),
                entry["kind"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(names, [("data.bin", "file"), ("src", "dir")]);
    let first = tree["sequence"].as_u64().unwrap();
    let binary = asks(
        &mut phone,
        "workspace.file",
        of(json!({ "path": "data.bin" })),
    )
    .await;
    assert_eq!(
        (&binary["binary"], &binary["size"]),
        (&json!(true), &json!(4))
    );

    std::fs::write(folder.join("src/a.txt"), "one\ntwo\n").unwrap();
    let file = asks(
        &mut phone,
        "workspace.file",
        of(json!({ "path": "src/a.txt" })),
    )
    .await;
    assert_eq!(file["text"], "one\ntwo\n");
    let second = file["sequence"].as_u64().unwrap();
    assert!(second > first);
    let old = of(json!({ "path": "src/a.txt", "at": first }));
    assert_eq!(
        asks(&mut phone, "workspace.file", old).await["text"],
        "one\n"
    );
    let log = asks(
        &mut phone,
        "workspace.log",
        of(json!({ "path": "src/a.txt", "limit": 10 })),
    )
    .await;
    assert_eq!(log["entries"].as_array().unwrap().len(), 2);
    let between = of(json!({ "from": first, "to": second }));
    let diff = asks(&mut phone, "workspace.diff", between).await;
    assert_eq!(diff["files"][0]["path"], "src/a.txt");
    assert!(
        diff["files"][0]["unified"]
            .as_str()
            .unwrap()
            .contains("+two")
    );

    let id = phone
        .ask("workspace.download", of(json!({ "path": "src/a.txt" })))
        .await
        .unwrap();
    let mut bytes = Vec::new();
    loop {
        match within("the file comes", phone.next()).await.unwrap() {
            ServerMessage::Bytes {
                stream,
                bytes: piece,
            } => {
                assert_eq!(u64::from(stream), id);
                bytes.extend(piece);
            }
            ServerMessage::Json(answer) => {
                assert_eq!(answer["ok"]["size"], 8, "{answer}");
                break;
            }
        }
    }
    assert_eq!(bytes, b"one\ntwo\n");

    let dry = of(json!({ "to": first, "dry_run": true }));
    let preview = asks(&mut phone, "workspace.restore", dry).await;
    assert_eq!(
        preview["changes"],
        json!([{ "path": "src/a.txt", "change": "write" }])
    );
    let untouched = std::fs::read_to_string(folder.join("src/a.txt")).unwrap();
    assert_eq!(untouched, "one\ntwo\n");
    let back = of(json!({ "to": first, "dry_run": false }));
    asks(&mut phone, "workspace.restore", back).await;
    let restored = std::fs::read_to_string(folder.join("src/a.txt")).unwrap();
    assert_eq!(restored, "one\n");
    let outside = of(json!({ "path": "../secret" }));
    assert_eq!(
        refused(&mut phone, "workspace.file", outside).await,
        "bad_request"
    );
    let missing = of(json!({ "path": "no/such" }));
    assert_eq!(
        refused(&mut phone, "workspace.file", missing).await,
        "not_found"
    );
}

#[tokio::test]
async fn everything_else_that_the_ui_asks_for() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let (mut phone, _) = paired(&machine, &daemon, "phone").await;
    let session = new_session(&mut phone).await;
    says(&mut phone, session, "say hello").await;
    follows(&mut phone, 0, is("turn_ended")).await;
    let title = json!({ "session": session, "title": "Greeting" });
    asks(&mut phone, "sessions.title", title).await;
    let listed = asks(&mut phone, "sessions.list", json!({})).await;
    assert_eq!(listed["sessions"][0]["title"], "Greeting");
    assert_eq!(listed["sessions"][0]["cost"], "0.01");
    let agents = asks(&mut phone, "agents.list", json!({})).await;
    let names: Vec<&str> = agents["agents"]
        .as_array()
        .unwrap()
        .iter()
        .map(|agent| agent["name"].as_str().unwrap())
        .collect();
    assert!(names.contains(&"test"));
    for by in ["day", "agent", "session"] {
        let report = asks(&mut phone, "usage.report", json!({ "by": by, "days": 7 })).await;
        let row = &report["rows"][0];
        assert_eq!(
            (&row["input_tokens"], &row["cost"]),
            (&json!(10), &json!("0.01"))
        );
    }
    let stats = asks(&mut phone, "stats", json!({})).await;
    assert_eq!(stats["active_sessions"], 1);
    let config = asks(&mut phone, "config.get", json!({})).await;
    assert_eq!(config["config"]["channel"]["e2e_required"], true);
    machine.has_skill("clock");
    let cron = json!({ "schedule": "0 0 1 1 *", "skill": "clock", "session": session });
    let added = asks(&mut phone, "cron.add", cron).await;
    let listed = asks(&mut phone, "cron.list", json!({})).await;
    assert_eq!(listed["crons"][0], added["cron"]);
    assert_eq!(
        asks(&mut phone, "cron.runs", json!({})).await["runs"],
        json!([])
    );
    let id = &added["cron"]["id"];
    asks(&mut phone, "cron.remove", json!({ "id": id })).await;
    let compacted = asks(
        &mut phone,
        "sessions.compact",
        json!({ "session": session }),
    )
    .await;
    assert_eq!(compacted["summary"], "summary of 2 messages");
    asks(
        &mut phone,
        "compactions.undo",
        json!({ "session": session }),
    )
    .await;
    asks(&mut phone, "sessions.kill", json!({ "session": session })).await;

    assert_eq!(
        refused(&mut phone, "no.such", json!({})).await,
        "unknown_op"
    );
    assert_eq!(
        refused(&mut phone, "sessions.kill", json!({})).await,
        "bad_request"
    );
    let unknown = json!({ "session": 999, "content": "x", "mode": "queue" });
    assert_eq!(
        refused(&mut phone, "messages.send", unknown).await,
        "not_found"
    );
    let nowhere = json!({ "agent": "test", "cwd": "/no/such/folder" });
    assert_eq!(
        refused(&mut phone, "sessions.create", nowhere).await,
        "bad_request"
    );
}

/// A relay that keeps every byte, as anybody between could.
async fn recording(daemon: &Daemon) -> (String, Arc<Mutex<[Vec<u8>; 2]>>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/ws", listener.local_addr().unwrap());
    let to = daemon.http().split("//").nth(1).unwrap().to_owned();
    let kept: Arc<Mutex<[Vec<u8>; 2]>> = Arc::default();
    let mut tasks = JoinSet::new();
    let keeping = kept.clone();
    tasks.spawn(async move {
        let mut pumps = JoinSet::new();
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&to).await.unwrap();
            let (near_read, near_write) = near.into_split();
            let (far_read, far_write) = far.into_split();
            for (way, mut from, mut into) in [(0, near_read, far_write), (1, far_read, near_write)]
            {
                let keeping = keeping.clone();
                pumps.spawn(async move {
                    let mut buffer = vec![0; 65536];
                    while let Ok(length @ 1..) = from.read(&mut buffer).await {
                        keeping.lock().unwrap()[way].extend_from_slice(&buffer[..length]);
                        if into.write_all(&buffer[..length]).await.is_err() {
                            break;
                        }
                    }
                });
            }
        }
    });
    (url, kept, tasks)
}

/// The payloads of WebSocket frames after the HTTP head, unmasked.
fn payloads(bytes: &[u8]) -> Vec<u8> {
    let head = bytes
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap()
        + 4;
    let mut rest = &bytes[head..];
    let mut payloads = Vec::new();
    while rest.len() >= 2 {
        let (masked, short) = (rest[1] & 0x80 != 0, usize::from(rest[1] & 0x7f));
        let (length, mut at) = match short {
            126 => (usize::from(u16::from_be_bytes([rest[2], rest[3]])), 4),
            127 => (
                u64::from_be_bytes(rest[2..10].try_into().unwrap()) as usize,
                10,
            ),
            short => (short, 2),
        };
        let mask: [u8; 4] = match masked {
            true => rest[at..at + 4].try_into().unwrap(),
            false => [0; 4],
        };
        at += if masked { 4 } else { 0 };
        let Some(payload) = rest.get(at..at + length) else {
            break;
        };
        payloads.extend(
            payload
                .iter()
                .zip(mask.iter().cycle())
                .map(|(byte, key)| byte ^ key),
        );
        payloads.extend_from_slice(b"\n--\n");
        rest = &rest[at + length..];
    }
    payloads
}

#[tokio::test]
async fn a_recording_of_the_whole_session_holds_no_word_of_it() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let (url, kept, _relay) = recording(&daemon).await;
    let code = machine.pairing_code().await;
    let (mut phone, _) = Client::pair(&url, &code, "livingroom").await.unwrap();
    let session = new_session(&mut phone).await;
    says(&mut phone, session, "say pineapple submarine").await;
    let rows = follows(&mut phone, 0, is("turn_ended")).await;
    says(&mut phone, session, "tool").await;
    let after = rows.last().unwrap()["seq"].as_u64().unwrap();
    let rows = follows(&mut phone, after, is("turn_ended")).await;
    says(&mut phone, session, "approve rm -rf watermelon").await;
    let after = rows.last().unwrap()["seq"].as_u64().unwrap();
    follows(&mut phone, after, is("approval_requested")).await;
    let listed = asks(&mut phone, "approvals.list", json!({})).await;
    assert_eq!(listed["approvals"][0]["command"], "rm -rf watermelon");
    phone.close().await;

    let kept = kept.lock().unwrap();
    let words = [
        code.as_str(),
        "livingroom",
        "pineapple",
        "submarine",
        "watermelon",
        "exec",
        "a.txt",
        "tool_call",
        "approval",
        "sessions.create",
        "messages.send",
        "session",
        "text_delta",
        "items",
        "\"id\"",
        "hello",
        "test",
    ];
    for way in kept.iter() {
        let seen = payloads(way);
        assert!(seen.len() > 300);
        for word in words {
            let found = seen
                .windows(word.len())
                .any(|window| window == word.as_bytes());
            assert!(!found, "{word:?} was on the wire");
        }
    }
}

/// What a camera reads off a dark terminal.
fn scanned(shown: &str) -> Option<String> {
    const ZOOM: usize = 4;
    let drawn: Vec<Vec<char>> = shown
        .lines()
        .filter(|line| !line.is_empty() && line.chars().all(|c| " ▀▄█".contains(c)))
        .map(|line| line.chars().collect())
        .collect();
    let width = drawn.iter().map(Vec::len).max()?;
    let mut image = rqrr::PreparedImage::prepare_from_greyscale(
        width * ZOOM,
        drawn.len() * 2 * ZOOM,
        |x, y| {
            let (column, row) = (x / ZOOM, y / ZOOM);
            let cell = drawn[row / 2].get(column).copied().unwrap_or(' ');
            let half = if row % 2 == 0 { '▀' } else { '▄' };
            if cell == '█' || cell == half {
                255
            } else {
                0
            }
        },
    );
    let (_, text) = image.detect_grids().first()?.decode().ok()?;
    Some(text)
}

#[tokio::test]
async fn the_terminal_shows_code_link_and_something_to_scan() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let made = machine.runs(&["pair", "--json"]).await.json();
    let code = made["code"].as_str().unwrap();
    assert_eq!(code.len(), 6);
    assert_eq!(made["expires_in"], 300);
    assert_eq!(made["url"], format!("{}/#pair={code}", daemon.http()));
    let shown = machine.runs(&["pair"]).await.succeeds();
    let link = shown.split_whitespace().find(|it| it.contains("/#pair="));
    assert!(shown.contains("Code:"), "{shown}");
    assert_eq!(scanned(&shown).as_deref(), link);
    let none = machine.runs(&["devices"]).await;
    assert!(format!("{}{}", none.stdout, none.stderr).contains("quintet pair"));
}

/// Asks for a path over HTTP: the status, the head in lower case, and the body's length.
async fn gets(daemon: &Daemon, path: &str, more: &str) -> (u16, String, usize) {
    let address = daemon.http().split("//").nth(1).unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    within("it is answered", stream.read_to_end(&mut answer))
        .await
        .unwrap();
    let end = answer
        .windows(4)
        .position(|window| window == b"\r\n\r\n")
        .unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, answer.len() - end - 4)
}

#[tokio::test]
async fn the_page_is_served_under_a_strict_policy() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let (status, head, plain) = gets(&daemon, "/", "").await;
    assert_eq!(status, 200, "{head}");
    for expected in [
        "content-type: text/html",
        "default-src 'none'",
        "script-src 'self';",
        "connect-src 'self';",
        "frame-ancestors 'none'",
        "x-content-type-options: nosniff",
        "cache-control: no-cache",
    ] {
        assert!(head.contains(expected), "{expected}: {head}");
    }
    assert!(!head.contains("unsafe"), "{head}");
    let tag = head
        .split("etag: ")
        .nth(1)
        .unwrap()
        .split("\r\n")
        .next()
        .unwrap();
    let (status, _, body) = gets(&daemon, "/", &format!("If-None-Match: {tag}\r\n")).await;
    assert_eq!((status, body), (304, 0));
    let (status, head, small) = gets(&daemon, "/", "Accept-Encoding: gzip, br\r\n").await;
    assert_eq!(status, 200);
    assert!(
        head.contains("content-encoding: br") && small < plain,
        "{head}"
    );
    assert_eq!(gets(&daemon, "/no/such/page", "").await.0, 404);
    assert_eq!(gets(&daemon, "/../Cargo.toml", "").await.0, 404);
}
