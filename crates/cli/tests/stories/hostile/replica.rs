//! A replica that wants more of a workspace than its worker was given, on the daemon's own port.

use std::path::Path;

use futures_util::{SinkExt, StreamExt};
use quintet_framing::ws::{DialError, DialledWs};
use quintet_workspace::proto::{ContentHash, FORMAT, WireMessage, WriteBackEntry, WriteOperation};
use serde_json::json;
use tokio_tungstenite::tungstenite::Message;

use super::worker::BadWorker;
use super::{dialled, row};
use crate::harness::{Daemon, Machine, within};

struct BadReplica {
    socket: DialledWs,
    decoder: quintet_framing::Decoder,
}

impl BadReplica {
    async fn follows(daemon: &Daemon, id: &str, token: &str) -> Result<Self, u16> {
        let ws = daemon.http().replacen("http", "ws", 1);
        match dialled(&format!("{ws}/workspaces/{id}"), &[], Some(token)).await {
            Ok(socket) => Ok(Self {
                socket,
                decoder: quintet_framing::Decoder::new(FORMAT),
            }),
            Err(DialError::Refused { status, reason, .. }) => {
                let says_which = reason.contains("that the daemon gave a worker");
                assert!(status != 401 || says_which, "{reason}");
                Err(status)
            }
            Err(error) => panic!("{error}"),
        }
    }

    async fn sends(&mut self, message: WireMessage) {
        let payload = message.encode().unwrap();
        let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
        let frame = [&length[..], &payload[..]].concat();
        drop(self.socket.send(Message::Binary(frame.into())).await);
    }

    /// The next message; `None` when the daemon hung up.
    async fn next(&mut self) -> Option<WireMessage> {
        loop {
            if let Some(frame) = self.decoder.next_frame().unwrap() {
                return Some(WireMessage::decode(&frame).unwrap());
            }
            match within("a message", self.socket.next()).await {
                Some(Ok(Message::Binary(bytes))) => self.decoder.feed(bytes),
                Some(Ok(Message::Close(_)) | Err(_)) | None => return None,
                Some(Ok(_)) => {}
            }
        }
    }

    async fn sees_the_connection_closed(mut self) {
        while self.next().await.is_some() {}
    }

    /// Writes back under a name, and returns the numbers that were taken.
    async fn writes(&mut self, name: &str, entries: Vec<WriteBackEntry>) -> Option<Vec<u64>> {
        let (sandbox_id, count) = (name.to_owned(), entries.len());
        self.sends(WireMessage::WriteBack {
            sandbox_id,
            entries,
        })
        .await;
        let (mut taken, mut answered) = (Vec::new(), 0);
        while answered < count {
            if let WireMessage::WriteBackResult { accepted, rejected } = self.next().await? {
                answered += accepted.len() + rejected.len();
                taken.extend(accepted.into_iter().map(|(local, _)| local));
            }
        }
        Some(taken)
    }
}

fn write(local_seq: u64, path: &str, content: &[u8]) -> WriteBackEntry {
    WriteBackEntry {
        local_seq,
        filepath: path.to_owned(),
        operation: WriteOperation::Write,
        content_hash: Some(ContentHash::of(content).to_string()),
        content_bytes: Some(content.to_vec()),
        size: i64::try_from(content.len()).unwrap(),
        permissions: 0o644,
        is_deletion: false,
        master_rowid_seen: 0,
    }
}

/// A daemon with two sessions, each in a folder of its own and on the worker `bad`.
async fn stage(machine: &Machine) -> Daemon {
    let daemon = machine.up_with(&["--no-worker"]).await;
    // A session takes no worker that nobody knows.
    let known = ["token", "create", "--worker", "bad"];
    machine.runs(&known).await.succeeds();
    for name in ["one", "two"] {
        let space = machine.path().join(name);
        std::fs::create_dir(&space).unwrap();
        std::fs::write(space.join("host.txt"), name).unwrap();
        let at = space.to_str().unwrap();
        let send = [
            "send", "test", "say hi", "--new", "--cwd", at, "--worker", "bad",
        ];
        machine.runs(&send).await.succeeds();
    }
    daemon
}

#[tokio::test]
async fn a_replica_has_one_workspace_one_name_and_no_path_out() {
    let machine = Machine::with_test_agent();
    let daemon = stage(&machine).await;
    let (mut bad, answer) = BadWorker::registers(&daemon, "bad", None).await;
    assert_eq!(answer["success"], true, "{answer}");
    let one = machine.begins(&["exec", "--session", "1", "--", "true"]);
    let (first, mirror) = bad.is_given().await;
    let two = machine.begins(&["exec", "--session", "2", "--", "true"]);
    let (second, other) = bad.is_given().await;
    let (mirror, other) = (mirror.unwrap(), other.unwrap());
    assert_ne!(mirror.token, other.token);

    let refused = [
        (mirror.workspace.as_str(), other.token.as_str()),
        (mirror.workspace.as_str(), "guess"),
        (mirror.workspace.as_str(), ""),
        ("0000000000000000", mirror.token.as_str()),
        ("..%2f..", mirror.token.as_str()),
    ];
    for (id, token) in refused {
        let answer = BadReplica::follows(&daemon, id, token).await.err();
        assert_eq!(answer, Some(401), "{id}");
    }

    // Under another's name nothing is taken, and what others did stays theirs.
    for name in ["host", "local", "good"] {
        let mut replica = BadReplica::follows(&daemon, &mirror.workspace, &mirror.token)
            .await
            .unwrap();
        let taken = replica.writes(name, vec![write(1, "as.txt", b"x")]).await;
        assert_eq!(taken, None, "{name}");
    }
    assert!(!machine.path().join("one/as.txt").exists());

    let mut replica = BadReplica::follows(&daemon, &mirror.workspace, &mirror.token)
        .await
        .unwrap();
    let paths = [
        "../out.txt",
        "/tmp/quintet-out.txt",
        "a/../../out.txt",
        ".quintet/out.txt",
        "",
        ".",
        "..",
        "a\0b",
        "fine.txt",
    ];
    let entries = (1..).zip(paths).map(|(at, path)| write(at, path, b"out"));
    let taken = replica.writes("bad", entries.collect()).await;
    assert_eq!(taken, Some(vec![paths.len() as u64]), "only the last one");
    // Through a link that it made itself it comes no further.
    let link = WriteBackEntry {
        permissions: 0o120_777,
        ..write(20, "way", b"..")
    };
    let through = write(21, "way/out.txt", b"out");
    replica.writes("bad", vec![link]).await.unwrap();
    let taken = replica.writes("bad", vec![through]).await.unwrap();
    assert!(taken.is_empty() || !machine.path().join("out.txt").exists());
    for outside in ["out.txt", "two/out.txt", "one/.quintet/out.txt"] {
        assert!(!machine.path().join(outside).exists(), "{outside}");
    }
    assert!(!Path::new("/tmp/quintet-out.txt").exists());
    assert_eq!(read(&machine, "one/fine.txt"), "out");

    // Content that is not what its hash says is not taken, however often it is sent.
    let lie = WriteBackEntry {
        content_bytes: Some(b"another".to_vec()),
        ..write(30, "fine.txt", b"out!")
    };
    replica.writes("bad", vec![lie]).await;
    assert_eq!(read(&machine, "one/fine.txt"), "out");

    for stream in [first, second] {
        bad.ends(stream, None).await;
    }
    one.ends().await;
    two.ends().await;
}

#[tokio::test]
async fn a_revoked_worker_follows_nothing_any_more() {
    let machine = Machine::with_test_agent();
    let daemon = stage(&machine).await;
    let made = machine.runs(&["token", "create", "--worker", "bad"]).await;
    let token = made.succeeds();
    let (mut bad, answer) = BadWorker::registers(&daemon, "bad", Some(token.trim())).await;
    assert_eq!(answer["success"], true, "{answer}");
    let running = machine.begins(&["exec", "--session", "1", "--", "true"]);
    let (_, mirror) = bad.is_given().await;
    let mirror = mirror.unwrap();
    let mut replica = BadReplica::follows(&daemon, &mirror.workspace, &mirror.token)
        .await
        .unwrap();
    let taken = replica.writes("bad", vec![write(1, "a.txt", b"a")]).await;
    assert_eq!(taken, Some(vec![1]));

    // The second of this worker, which it came with.
    machine.runs(&["token", "revoke", "2"]).await.succeeds();
    row(&machine, "worker_offline", |data| data["worker"] == "bad").await;
    replica.sees_the_connection_closed().await;
    let again = BadReplica::follows(&daemon, &mirror.workspace, &mirror.token).await;
    assert_eq!(again.err(), Some(401));
    let (_, answer) = BadWorker::registers(&daemon, "bad", Some(token.trim())).await;
    assert_eq!(answer["success"], json!(false), "{answer}");
    drop(running);
}

fn read(machine: &Machine, path: &str) -> String {
    std::fs::read_to_string(machine.path().join(path)).unwrap()
}
