//! The released programs' own bytes, and the seed's examples.

use quintet_sandbox::proto::parse::{self, Fault};
use quintet_sandbox::proto::{Dialect, HubToWorker, IdKey, Names, WorkerToHub};
use serde_json::{Value, json};

const RECORDING: &str = include_str!("../vectors/sandd-released-peers.jsonl");

#[test]
fn every_recorded_message_is_read_and_written_back_to_the_byte() {
    let mut hub = 0;
    let mut worker = 0;
    for line in RECORDING.lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        if record["kind"] != "text" {
            continue;
        }
        let raw = record["raw"].as_str().unwrap();
        let again = if record["dir"] == "s>c" {
            hub += 1;
            let incoming = parse::hub_to_worker(raw).unwrap();
            assert_ne!(incoming.dialect, Some(Dialect::Seed), "{raw}");
            incoming.message.encode(Names::Only(Dialect::Released))
        } else {
            worker += 1;
            let incoming = parse::worker_to_hub(raw).unwrap();
            assert_ne!(incoming.dialect, Some(Dialect::Seed), "{raw}");
            incoming.message.encode(Dialect::Released)
        };
        assert_eq!(std::str::from_utf8(&again).unwrap(), raw);
    }
    assert_eq!((hub, worker), (30, 32), "messages in the recording");
}

/// The seed's examples, as it writes them.
fn seed_examples() -> (Vec<Value>, Vec<Value>) {
    let id = "550e8400-e29b-41d4-a716-446655440000";
    let hub = vec![
        json!({"type": "register_ack", "success": true, "message": "Successfully registered"}),
        json!({"type": "pong"}),
        json!({"type": "execute_command", "command_id": id, "command": "python script.py",
               "timeout_secs": 300, "env": {"MY_VAR": "value"}, "cwd": "/opt/app"}),
        json!({"type": "execute_command", "command_id": id, "command": "ls -la",
               "timeout_secs": 300, "env": {}, "cwd": null}),
        json!({"type": "start_shell", "session_id": id, "rows": 24, "cols": 80, "term": "xterm-256color"}),
        json!({"type": "shell_input", "session_id": id, "data": "bHMgLWxhCg=="}),
        json!({"type": "shell_resize", "session_id": id, "rows": 50, "cols": 120}),
        json!({"type": "file_upload_start", "transfer_id": id, "path": "/etc/app/config.yaml",
               "total_size": 4096, "mode": 420}),
        json!({"type": "file_upload_chunk", "transfer_id": id, "data": "Y29udGVudCBoZXJl", "offset": 0}),
        json!({"type": "file_download_start", "transfer_id": id, "path": "/var/log/app.log"}),
        json!({"type": "error", "message": "connection lost", "recoverable": false}),
    ];
    let worker = vec![
        json!({"type": "register", "daemon_id": "worker-1", "metadata": {
            "hostname": "worker-01", "platform": "linux", "arch": "x86_64", "version": "0.1.0",
            "labels": {"env": "prod", "region": "us-west"}}}),
        json!({"type": "heartbeat"}),
        json!({"type": "command_output", "command_id": id, "stdout": "output text...", "stderr": "",
               "exit_code": 0, "duration_ms": 1234}),
        json!({"type": "command_error", "command_id": id, "error": "command not found"}),
        json!({"type": "shell_started", "session_id": id, "success": true, "error": null}),
        json!({"type": "shell_output", "session_id": id, "data": "ZmlsZTEgIGZpbGUyICBmaWxlMwo="}),
        json!({"type": "shell_exit", "session_id": id, "exit_code": 0}),
        json!({"type": "file_upload_complete", "transfer_id": id, "success": true, "error": null}),
        json!({"type": "file_download_chunk", "transfer_id": id, "data": "bG9nIGRhdGEgaGVyZQ==",
               "offset": 0, "is_last": false}),
        json!({"type": "file_download_error", "transfer_id": id, "error": "file not found"}),
        json!({"type": "error", "message": "connection lost", "recoverable": false}),
    ];
    (hub, worker)
}

#[test]
fn every_example_of_the_seed_is_read_and_written_back() {
    let (hub, worker) = seed_examples();
    for example in hub {
        let incoming = parse::hub_to_worker(&example.to_string()).unwrap();
        assert_ne!(incoming.dialect, Some(Dialect::Released), "{example}");
        let again = incoming.message.encode(Names::Only(Dialect::Seed));
        assert_eq!(serde_json::from_slice::<Value>(&again).unwrap(), example);
    }
    for example in worker {
        let incoming = parse::worker_to_hub(&example.to_string()).unwrap();
        assert_ne!(incoming.dialect, Some(Dialect::Released), "{example}");
        let again = incoming.message.encode(Dialect::Seed);
        assert_eq!(serde_json::from_slice::<Value>(&again).unwrap(), example);
    }
}

#[test]
fn a_request_of_the_hub_can_be_read_by_both_dialects() {
    let message = HubToWorker::ExecuteCommand {
        id: "x".to_owned(),
        command: "true".to_owned(),
        timeout_secs: Some(5),
        env: Default::default(),
        cwd: None,
    };
    let text: Value = serde_json::from_slice(&message.encode(Names::Both)).unwrap();
    assert_eq!(text["command_id"], "x");
    assert_eq!(text["request_id"], "x");
}

#[test]
fn absent_optional_fields_have_the_stated_defaults() {
    let text = r#"{"type":"execute_command","request_id":"x","command":"c","future":[1]}"#;
    let HubToWorker::ExecuteCommand {
        timeout_secs,
        env,
        cwd,
        ..
    } = parse::hub_to_worker(text).unwrap().message
    else {
        panic!("another message");
    };
    assert_eq!((timeout_secs, env.len(), cwd), (None, 0, None));
    let text = r#"{"type":"start_shell","session_id":"x","rows":1,"cols":2}"#;
    let HubToWorker::StartShell { term, .. } = parse::hub_to_worker(text).unwrap().message else {
        panic!("another message");
    };
    assert_eq!(term, "xterm-256color");
}

#[test]
fn a_fault_names_itself_and_the_id_of_its_message() {
    let id = |key| Some((key, "x".to_owned()));
    for (text, fault, expected) in [
        ("{", None, None),
        ("[]", None, None),
        (r#"{"type":7}"#, None, None),
        (
            r#"{"type":"nonsense","request_id":"x"}"#,
            Some(Fault::UnknownType("nonsense".to_owned())),
            id(IdKey::Request),
        ),
        (
            r#"{"type":"execute_command","command_id":"x"}"#,
            Some(Fault::Missing {
                kind: "execute_command".to_owned(),
                field: "command",
            }),
            id(IdKey::Command),
        ),
        (
            r#"{"type":"shell_input","session_id":"x","data":"!!"}"#,
            Some(Fault::NotBase64),
            id(IdKey::Session),
        ),
        (
            r#"{"type":"file_upload_start","transfer_id":"x","path":"p","total_size":"big"}"#,
            None,
            id(IdKey::Transfer),
        ),
    ] {
        let error = parse::hub_to_worker(text).unwrap_err();
        match fault {
            Some(fault) => assert_eq!(error.fault, fault, "{text}"),
            None => assert!(matches!(error.fault, Fault::Malformed(_)), "{text}"),
        }
        assert_eq!(error.id, expected, "{text}");
        assert_eq!(error.answer().is_some(), expected.is_some());
    }
}

#[test]
fn an_escaped_slash_in_base64_is_read() {
    let text = r#"{"type":"shell_output","session_id":"x","data":"\/\/\/\/"}"#;
    let WorkerToHub::ShellOutput { data, .. } = parse::worker_to_hub(text).unwrap().message else {
        panic!("another message");
    };
    assert_eq!(data.as_ref(), [0xff, 0xff, 0xff]);
}
