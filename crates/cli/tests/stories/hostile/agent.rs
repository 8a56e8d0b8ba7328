//! An agent that wants more than its session, with the keys that it was given.
//!
//! It is a process of the user's and could read what the user can; these stories are about what a
//! model gets that an honest agent serves, and about what a key opens that got out.

use std::path::Path;

use serde_json::{Value, json};

use super::asks;
use crate::harness::{Daemon, Machine};

/// A machine with two sessions of the agent that uses tools, each in its own folder.
async fn stage(machine: &Machine) -> Daemon {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
    machine.configure(&format!(
        "[agents.hands]\ncommand = [\"python3\", {:?}]\n",
        peers.join("mcp_agent.py")
    ));
    let daemon = machine.up_with(&["--no-worker"]).await;
    for name in ["one", "two"] {
        let space = machine.path().join(name);
        std::fs::create_dir(&space).unwrap();
        std::fs::write(space.join("whose.txt"), name).unwrap();
        let at = space.to_str().unwrap();
        let send = ["send", "hands", "tools", "--new", "--cwd", at];
        machine.runs(&send).await.succeeds();
    }
    daemon
}

/// What the agent of a session answers.
async fn says(machine: &Machine, session: &str, text: &str) -> String {
    let send = ["send", "hands", text, "--session", session];
    let said = machine.runs(&send).await.succeeds();
    said.trim_end().to_owned()
}

async fn key(machine: &Machine, session: &str) -> String {
    let said = says(machine, session, "token").await;
    let (_, token): (String, String) = serde_json::from_str(&said).unwrap();
    token
}

async fn calls(daemon: &Daemon, token: &str, tool: &str, arguments: &Value) -> String {
    let head = format!(
        "POST /mcp HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\
         Content-Type: application/json\r\nAccept: application/json, text/event-stream",
        daemon.http().split_once("://").unwrap().1
    );
    let body = json!({
        "jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": tool, "arguments": arguments},
    });
    asks(daemon.http(), &head, &body.to_string()).await
}

#[tokio::test]
async fn a_key_opens_its_own_session_and_nothing_else() {
    let machine = Machine::fresh();
    let daemon = stage(&machine).await;
    let (one, two) = (key(&machine, "1").await, key(&machine, "2").await);
    assert_ne!(one, two);
    let read = json!({"path": "whose.txt"});
    assert!(
        calls(&daemon, &one, "read_file", &read)
            .await
            .contains("one")
    );
    assert!(
        calls(&daemon, &two, "read_file", &read)
            .await
            .contains("two")
    );
    for arguments in [
        json!({"path": "whose.txt", "session": 2}),
        json!({"path": "whose.txt", "instance": "hands-2"}),
    ] {
        let answer = calls(&daemon, &one, "read_file", &arguments).await;
        assert!(answer.contains("unknown field"), "{answer}");
    }
    // The `shell` agent's door asks no policy: it is for the person's own lines.
    let head = format!(
        "POST /exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {one}\r\nContent-Type: application/json"
    );
    let answer = asks(daemon.http(), &head, r#"{"command":"touch ran"}"#).await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    // Nor is it a worker's, a replica's or a browser's.
    for path in ["/workspaces/0000000000000000", "/ws"] {
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {one}\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
        );
        // As `asks` closes the connection, so the upgrade can't succeed; the token is refused first.
        let answer = asks(daemon.http(), &head, "").await;
        assert!(!answer.starts_with("HTTP/1.1 101"), "{path}: {answer}");
    }
    machine.runs(&["kill", "1"]).await.succeeds();
    let dead = calls(&daemon, &one, "read_file", &read).await;
    assert!(dead.starts_with("HTTP/1.1 401"), "{dead}");
    assert!(
        calls(&daemon, &two, "read_file", &read)
            .await
            .contains("two")
    );
}

#[tokio::test]
async fn no_path_of_a_tool_leaves_the_workspace_unasked() {
    let machine = Machine::fresh();
    let daemon = stage(&machine).await;
    let (one, token) = (machine.path().join("one"), key(&machine, "1").await);
    std::os::unix::fs::symlink("../two", one.join("way")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", one.join("users")).unwrap();
    let outside = machine.path().join("two/whose.txt");
    // No turn runs in which a person could be asked: whatever asks is refused.
    for path in [
        "../two/whose.txt",
        "way/whose.txt",
        "users",
        "/etc/passwd",
        "./../two/whose.txt",
        "../../../../../../etc/passwd",
        outside.to_str().unwrap(),
    ] {
        for (tool, arguments) in [
            ("read_file", json!({"path": path})),
            ("write_file", json!({"path": path, "content": "x"})),
            ("edit_file", json!({"path": path, "old": "two", "new": "x"})),
            ("list_files", json!({"path": path})),
            ("search", json!({"path": path, "pattern": "."})),
            ("exec", json!({"command": "true", "cwd": path})),
        ] {
            let answer = calls(&daemon, &token, tool, &arguments).await;
            assert!(
                answer.contains("\"isError\":true"),
                "{tool} {path}: {answer}"
            );
            assert!(!answer.contains("root:"), "{tool} {path}: {answer}");
        }
    }
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "two");
    assert!(one.join("users").is_symlink());
}

#[tokio::test]
async fn an_agent_that_sends_too_much_is_cut_and_the_others_go_on() {
    let machine = Machine::fresh();
    let daemon = stage(&machine).await;
    let token = key(&machine, "1").await;
    let much = json!({"path": "big.txt", "content": "x".repeat(17 << 20)});
    let answer = calls(&daemon, &token, "write_file", &much).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{}", &answer[..100]);
    assert!(!machine.path().join("one/big.txt").exists());
    let read = json!({"path": "whose.txt"}).to_string();
    let said = says(&machine, "2", &format!("call read_file {read}")).await;
    assert_eq!(said, "two");
}
