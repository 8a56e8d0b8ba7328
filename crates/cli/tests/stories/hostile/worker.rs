//! A worker that says what it should not, on the daemon's own port.

use futures_util::{SinkExt, StreamExt};
use quintet_framing::ws::{DialledSocket, WsDial, dial_socket};
use quintet_sandbox::proto::frame::{
    Body, End, FailureCode, Frame, Mirror, Mirrored, Open, Outcome,
};
use quintet_sandbox::socket::WsMessage;
use serde_json::{Value, json};

use super::row;
use crate::harness::{Daemon, Machine, Running, within};
use crate::workers::Terminal;

/// A worker of this user that does as the story says.
pub(super) struct BadWorker(DialledSocket);

impl BadWorker {
    pub(super) async fn registers(daemon: &Daemon, id: &str, token: Option<&str>) -> (Self, Value) {
        let url = daemon.http().replacen("http", "ws", 1) + "/ws";
        let dial = WsDial {
            url: &url,
            protocols: &["sandd.v2"],
            token,
            tls: None,
        };
        let answered = within("an answer", dial_socket(dial, 16 << 20)).await;
        let mut worker = Self(answered.unwrap().0);
        let register = json!({
            "type": "register", "daemon_id": id,
            "metadata": {
                "hostname": "h", "platform": "linux", "arch": "x86_64", "version": "1",
                "labels": {"isolation": "none"},
            },
        });
        worker
            .sends(WsMessage::Text(register.to_string().into()))
            .await;
        let Some(WsMessage::Text(text)) = worker.next().await else {
            panic!("no answer");
        };
        (worker, serde_json::from_slice(&text).unwrap())
    }

    async fn sends(&mut self, message: WsMessage) {
        self.0.send(message).await.unwrap();
    }

    pub(super) async fn says(&mut self, stream: u32, body: Body) {
        let frame = Frame::new(stream, body).encode();
        self.sends(WsMessage::Binary(frame)).await;
    }

    /// The next message; `None` when the daemon hung up.
    async fn next(&mut self) -> Option<WsMessage> {
        match within("a message", self.0.next()).await {
            Some(Ok(WsMessage::Close(..)) | Err(_)) | None => None,
            Some(Ok(message)) => Some(message),
        }
    }

    /// The next stream and what it is for.
    async fn is_asked(&mut self) -> (u32, Open) {
        loop {
            let message = self.next().await.expect("the daemon is there");
            let WsMessage::Binary(bytes) = message else {
                continue;
            };
            let frame = Frame::decode(&bytes).unwrap();
            if let Body::Open(open) = frame.body {
                return (frame.stream, *open);
            }
        }
    }

    /// The stream and the workspace of the next command.
    pub(super) async fn is_given(&mut self) -> (u32, Option<Mirror>) {
        loop {
            if let (stream, Open::Exec { mirror, .. }) = self.is_asked().await {
                return (stream, mirror);
            }
        }
    }

    pub(super) async fn ends(&mut self, stream: u32, mirrored: Option<Mirrored>) {
        let end = End {
            outcome: Outcome::Exited { code: 0 },
            duration_ms: 1,
            mirrored,
        };
        self.says(stream, Body::End(Box::new(end))).await;
    }
}

#[tokio::test]
async fn a_worker_answers_for_no_other() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let good = Running::start_with_talk(&machine, &["worker", "--daemon-id", "good"]);
    row(&machine, "worker_online", |data| data["worker"] == "good").await;
    let (mut bad, answer) = BadWorker::registers(&daemon, "bad", None).await;
    assert_eq!(answer["success"], true, "{answer}");

    let line = "read word; echo good $word";
    let mut command = machine.quintet(&["exec", "good", "--", line]);
    command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let mut running = command.spawn().unwrap();
    row(&machine, "command_started", |data| data["worker"] == "good").await;
    for stream in 0..16 {
        bad.says(stream, Body::Out("bad\n".into())).await;
        bad.ends(stream, None).await;
    }
    let mut stdin = running.stdin.take().unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stdin, b"word\n")
        .await
        .unwrap();
    drop(stdin);
    let output = within("it ends", running.wait_with_output()).await.unwrap();
    assert_eq!(output.stdout, b"good word\n");

    // More than it was given credit for ends that command and nothing else.
    let flooded = machine.begins(&["exec", "bad", "--", "true"]);
    let (stream, _) = bad.is_given().await;
    for _ in 0..200 {
        bad.says(stream, Body::Out(vec![b'x'; 60_000].into())).await;
    }
    let flooded = flooded.ends().await;
    assert_ne!(flooded.code, Some(0), "{}", flooded.stderr);
    // What is no frame ends its connection.
    bad.sends(WsMessage::Binary(vec![99, 0, 0, 0, 1].into()))
        .await;
    while bad.next().await.is_some() {}
    let alive = machine.runs(&["exec", "good", "--", "echo alive"]).await;
    assert_eq!(alive.succeeds(), "alive\n");
    drop(good);
}

#[tokio::test]
async fn a_worker_that_lies_about_sequences_has_nothing_of_others_undone() {
    let machine = Machine::with_test_agent();
    let space = machine.path().join("space");
    std::fs::create_dir(&space).unwrap();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let (mut bad, _) = BadWorker::registers(&daemon, "bad", None).await;
    let at = space.to_str().unwrap();
    let first = ["send", "test", "say hi", "--cwd", at, "--worker", "bad"];
    machine.runs(&first).await.succeeds();
    std::fs::write(space.join("mine.txt"), "mine").unwrap();

    let running = machine.begins(&["exec", "--session", "1", "--", "true"]);
    let (stream, _) = bad.is_given().await;
    let lie = Mirrored {
        before: 0,
        after: u64::MAX,
        ..Mirrored::default()
    };
    bad.ends(stream, Some(lie)).await;
    running.ends().await.succeeds();
    let told = row(&machine, "command", |_| true).await;
    assert!(told["data"]["after"].as_u64().unwrap() < 1000, "{told}");
    assert_eq!(told["data"]["changed"], json!([]));
    machine.runs(&["undo", "1"]).await;
    assert_eq!(std::fs::read(space.join("mine.txt")).unwrap(), b"mine");
}

#[tokio::test]
async fn an_approval_holds_for_the_worker_that_it_was_given_for() {
    let machine = Machine::fresh();
    let peers = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
    machine.configure(&format!(
        "[agents.hands]\ncommand = [\"python3\", {:?}]\n\
         [policy]\nrules = [{{ tool = \"exec\", action = \"ask\" }}]\n",
        peers.join("mcp_agent.py")
    ));
    let daemon = machine.up_with(&["--no-worker"]).await;
    let (first, _) = BadWorker::registers(&daemon, "first", None).await;
    let text = format!("call exec {}", json!({"command": "touch ran"}));
    let waits = machine.begins(&["send", "hands", &text]);
    let asked = row(&machine, "approval_requested", |_| true).await;
    assert_eq!(asked["data"]["worker"], "first", "{asked}");

    drop(first);
    row(&machine, "worker_offline", |data| data["worker"] == "first").await;
    let second = Running::start_with_talk(&machine, &["worker", "--daemon-id", "second"]);
    row(&machine, "worker_online", |data| data["worker"] == "second").await;
    let waiting = machine.runs(&["approvals", "--json"]).await.json();
    let id = waiting[0]["id"].to_string();
    machine.runs(&["approve", &id]).await.succeeds();
    let said = waits.ends().await.succeeds();
    assert!(said.contains("\"first\" is offline"), "{said}");
    drop(second);
}

#[tokio::test]
async fn a_copy_from_a_worker_ends_and_stays_where_it_goes() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let (mut bad, answer) = BadWorker::registers(&daemon, "bad", None).await;
    assert_eq!(answer["success"], true, "{answer}");

    let copy = machine.begins(&["cp", "bad:src", "here"]);
    let (stream, open) = bad.is_asked().await;
    assert!(matches!(open, Open::List { .. }), "{open:?}");
    // One name that never ends.
    for _ in 0..3 {
        bad.says(stream, Body::Out("x".repeat(30 << 10).into()))
            .await;
    }
    let stderr = copy.ends().await.fails(1);
    assert!(stderr.contains("listing has no end"), "{stderr}");

    for path in ["../out", "/tmp/out", "a/../../out"] {
        let copy = machine.begins(&["cp", "bad:src", "here"]);
        let (stream, _) = bad.is_asked().await;
        let folder =
            |path| json!({"path": path, "kind": "folder", "size": 0, "mode": 0o755, "mtime_ms": 0});
        let listing = format!("{}\n{}\n", folder(""), folder(path));
        bad.says(stream, Body::Out(listing.into())).await;
        let end = End {
            outcome: Outcome::Complete,
            duration_ms: 1,
            mirrored: None,
        };
        bad.says(stream, Body::End(Box::new(end))).await;
        let stderr = copy.ends().await.fails(1);
        assert!(stderr.contains("not beneath its folder"), "{stderr}");
        assert!(!machine.path().join("out").exists());
    }
}

/// Titles, the clipboard and the cursor are the person's.
#[tokio::test]
async fn what_a_worker_says_is_no_more_than_text_on_a_terminal() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let (mut bad, answer) = BadWorker::registers(&daemon, "bad", None).await;
    assert_eq!(answer["success"], true, "{answer}");
    let evil = "\u{1b}]0;evil\u{7}";

    let mut copy = Terminal::opens(&machine, &["cp", "bad:src", "here"]);
    let (stream, _) = bad.is_asked().await;
    let entry = |path: &str, kind: &str| json!({"path": path, "kind": kind, "size": 0, "mode": 0o755, "mtime_ms": 0});
    let link = entry(&format!("{evil}a link"), "link");
    let listing = format!("{}\n{link}\n", entry("", "folder"));
    bad.says(stream, Body::Out(listing.into())).await;
    let end = |outcome| {
        Body::End(Box::new(End {
            outcome,
            duration_ms: 1,
            mirrored: None,
        }))
    };
    bad.says(stream, end(Outcome::Complete)).await;
    copy.sees("left out: a link").await;
    assert!(!copy.shown.contains("evil"), "{:?}", copy.shown);

    let mut command = Terminal::opens(&machine, &["exec", "bad", "--", "true"]);
    let (stream, _) = bad.is_asked().await;
    let refused = Outcome::Failed {
        code: FailureCode::Spawn,
        error: format!("{evil}not today"),
    };
    bad.says(stream, end(refused)).await;
    command.sees("not today").await;
    assert!(!command.shown.contains("evil"), "{:?}", command.shown);
}
