//! A command in the sandbox that tries to be the person who owns it.

use serde_json::json;

use super::row;
use crate::harness::{Machine, Running};

/// Whether this kernel gives what the sandbox is made of; `quintet doctor` says the same.
async fn is_confined(machine: &Machine) -> bool {
    let doctor = machine.runs(&["doctor", "--json"]).await;
    let checks: serde_json::Value = serde_json::from_str(&doctor.stdout).unwrap();
    let given = |name: &str| {
        let mut checks = checks.as_array().unwrap().iter();
        checks.any(|it| it["check"].as_str().unwrap().contains(name) && it["ok"] == true)
    };
    given("isolate landlock") && given("isolate seccomp")
}

#[tokio::test]
async fn a_command_in_the_sandbox_does_not_command_the_daemon() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    if !is_confined(&machine).await {
        eprintln!("this kernel has no Landlock or no seccomp filters: this story is skipped");
        return;
    }
    machine.runs(&["send", "test", "say hi"]).await.succeeds();
    let program = env!("CARGO_BIN_EXE_quintet");
    let home = machine.home();
    let at_home = format!("{program} --home {}", home.display());
    let exec = |line: String| machine.begins(&["exec", "--session", "1", "--", &line]);

    // What a person does, from outside and from inside.
    machine.runs(&["sessions"]).await.succeeds();
    for command in ["sessions", "kill 1", "token create --worker evil"] {
        exec(format!("{at_home} {command}")).ends().await.fails(1);
    }
    let cut = row(&machine, "client_cut", |data| {
        data["reason"].as_str().unwrap().contains("sandbox")
    });
    cut.await;
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions[0]["closed"], false, "it was not killed");
    let tokens = machine.runs(&["token", "ls", "--json"]).await.json();
    assert_eq!(tokens, json!([]));

    // A process of this user needs no token to be a worker; one in the sandbox does.
    let url = daemon.http().replace("http", "ws") + "/ws";
    let line =
        format!("{program} --home own worker --server-url {url} --daemon-id evil --root . 2>&1");
    let mut worker = Running::start(machine.quintet(&["exec", "--session", "1", "--", &line]));
    worker.prints("a token is needed").await;

    // Neither the workspaces' sockets nor those of agents take it: it is hung up on.
    machine.runs(&["send", "test", "say hi"]).await.succeeds();
    let sockets = sockets_beneath(&home);
    for name in ["sync.sock", "ipc.sock"] {
        let socket = sockets.iter().find(|path| path.ends_with(name)).unwrap();
        let line = format!(
            "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"{socket}\"); \
             s.settimeout(20); print(s.recv(1))'"
        );
        assert_eq!(exec(line).ends().await.succeeds(), "b''\n", "{socket}");
    }
}

#[tokio::test]
async fn a_command_in_the_sandbox_reads_neither_keys_nor_other_processes() {
    let machine = Machine::with_test_agent();
    // Not /tmp, where everybody may read.
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = home.path().to_str().unwrap();
    let started = ["--home", at, "up", "--listen", "127.0.0.1:0"];
    let mut daemon = Running::start(machine.quintet(&started));
    daemon.prints("is ready at").await;
    if !is_confined(&machine).await {
        eprintln!("this kernel has no Landlock or no seccomp filters: this story is skipped");
        return;
    }
    let exec = |line: String| machine.begins(&["--home", at, "exec", "local", "--", &line]);
    exec("true".to_owned()).ends().await.succeeds();
    for file in ["quintet.db", "config.toml", "run/quintet.json"] {
        let read = exec(format!("cat {at}/{file}")).ends().await.fails(1);
        assert!(read.contains("Permission denied"), "{file}: {read}");
    }
    let pid = daemon.pid();
    for file in ["environ", "mem", "root/etc/passwd"] {
        let read = exec(format!("cat /proc/{pid}/{file}")).ends().await;
        assert!(read.stdout.is_empty(), "{file}: {read:?}");
        assert!(read.stderr.contains("denied"), "{file}: {read:?}");
    }
    let killed = exec(format!("kill -0 {pid}")).ends().await;
    assert_ne!(killed.code, Some(0), "{killed:?}");
}

#[tokio::test]
async fn a_home_folder_in_tmp_is_out_of_the_reach_of_commands() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    if !is_confined(&machine).await {
        eprintln!("this kernel has no Landlock or no seccomp filters: this story is skipped");
        return;
    }
    let home = machine.home();
    assert!(home.starts_with("/tmp"), "{}", home.display());
    let at = home.display();
    let exec = |line: String| machine.begins(&["exec", "local", "--", &line]);
    exec("true".to_owned()).ends().await.succeeds();
    for line in [
        format!("cat {at}/config.toml"),
        format!("echo evil >> {at}/config.toml"),
        format!("touch {at}/evil"),
        format!("rm {at}/quintet.db"),
        format!("mv {at} {at}-gone"),
        "echo out > /tmp/quintet-out-$$".to_owned(),
    ] {
        let refused = exec(line.clone()).ends().await;
        assert_ne!(refused.code, Some(0), "{line}: {refused:?}");
        assert!(refused.stderr.contains("denied"), "{line}: {refused:?}");
    }
    let line = r#"f=$(mktemp) && echo kept > "$f" && cat "$f" && echo "$TMPDIR""#.to_owned();
    let said = exec(line).ends().await.succeeds();
    assert_eq!(said, format!("kept\n{at}/workers/local/tmp\n"));

    let doctor = machine.runs(&["doctor", "--json"]).await;
    assert!(doctor.stdout.contains("workers/local/tmp"), "{doctor:?}");
    machine.configure("[sandbox]\nwrite = [\"/tmp\"]\n");
    let doctor = machine.runs(&["doctor", "--json"]).await;
    assert!(
        doctor.stdout.contains("home in sandbox.write"),
        "{doctor:?}"
    );
}

fn sockets_beneath(folder: &std::path::Path) -> Vec<String> {
    use std::os::unix::fs::FileTypeExt;
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            found.extend(sockets_beneath(&entry.path()));
        } else if kind.is_socket() {
            found.push(entry.path().to_str().unwrap().to_owned());
        }
    }
    found
}
