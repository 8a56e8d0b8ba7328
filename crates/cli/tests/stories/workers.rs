//! Commands, shells and files on workers.

use std::os::unix::fs::PermissionsExt;

use pty_process::Size;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Finished, Machine, Running, within};

/// Waits until the journal has such a row.
pub(crate) async fn row(machine: &Machine, kind: &str, such: impl Fn(&Value) -> bool) -> Value {
    let mut events =
        Running::start(machine.quintet(&["events", "--json", "--follow", "--after", "0"]));
    loop {
        let row: Value = serde_json::from_str(&events.line().await).unwrap();
        if row["kind"] == kind && such(&row["data"]) {
            return row;
        }
    }
}

async fn online(machine: &Machine, worker: &str) {
    row(machine, "worker_online", |data| data["worker"] == worker).await;
}

/// Waits until a worker is online that an earlier daemon knew: the journal can't tell.
async fn back(machine: &Machine, worker: &str) {
    within("the worker is back", async {
        loop {
            let listed = machine.runs(&["workers", "--json"]).await.json();
            let found = listed
                .as_array()
                .unwrap()
                .iter()
                .find(|it| it["id"] == worker);
            if found.is_some_and(|it| it["state"] == "online") {
                break;
            }
        }
    })
    .await;
}

/// Another worker of this machine, online.
async fn worker(machine: &Machine, id: &str, more: &[&str]) -> Running {
    let arguments = [&["worker", "--daemon-id", id], more].concat();
    let running = Running::start_with_talk(machine, &arguments);
    online(machine, id).await;
    running
}

async fn exec(machine: &Machine, arguments: &[&str]) -> Finished {
    machine.runs(&[&["exec"], arguments].concat()).await
}

#[tokio::test]
async fn commands_run_on_the_built_in_worker_and_end_with_their_own_code() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;

    let said = exec(&machine, &["local", "--", "echo out; echo err >&2; exit 3"]).await;
    assert_eq!(
        (said.code, &*said.stdout, &*said.stderr),
        (Some(3), "out\n", "err\n")
    );
    let words = exec(
        &machine,
        &["local", "--", "printf", "%s|", "a b", "$HOME", ""],
    )
    .await;
    assert_eq!(words.succeeds(), "a b|$HOME||");
    let set = [
        "local",
        "--env",
        "A=1",
        "--env",
        "B=x y",
        "--",
        "echo $A $B",
    ];
    assert_eq!(exec(&machine, &set).await.succeeds(), "1 x y\n");
    let root = machine.home().join("workers/local/root");
    assert_eq!(
        exec(&machine, &["local", "--", "pwd"])
            .await
            .succeeds()
            .trim(),
        root.to_str().unwrap()
    );
    std::fs::create_dir(root.join("sub")).unwrap();
    let sub = exec(&machine, &["local", "--cwd", "sub", "--", "basename $PWD"]).await;
    assert_eq!(sub.succeeds(), "sub\n");
    let piped = machine
        .pipes("some\ninput\n", &["exec", "local", "--", "wc -l"])
        .await;
    assert_eq!(piped.succeeds().trim(), "2");

    let slow = ["local", "--timeout", "1", "--", "echo first; sleep 60"];
    let timed_out = exec(&machine, &slow).await;
    assert_eq!((timed_out.code, &*timed_out.stdout), (Some(124), "first\n"));
    exec(&machine, &["local", "--", "kill -9 $$"])
        .await
        .fails(137);
    let unknown = exec(&machine, &["nobody", "--", "true"]).await.fails(125);
    assert!(
        unknown.contains("nobody") && unknown.contains("quintet workers"),
        "{unknown}"
    );
    exec(&machine, &["local", "--cwd", "none", "--", "true"])
        .await
        .fails(125);

    let listed = machine.runs(&["workers", "--json"]).await.json();
    assert_eq!(listed[0]["id"], "local");
    assert_eq!(listed[0]["state"], "online");
    assert_eq!(listed[0]["protocol"], "sandd.v2");
    let ended = row(&machine, "command_ended", |data| data["exit_code"] == 3).await;
    let started = row(&machine, "command_started", |data| {
        data["job"] == ended["data"]["job"]
    })
    .await;
    assert_eq!(started["data"]["command"], "echo out; echo err >&2; exit 3");
}

#[tokio::test]
async fn without_the_built_in_worker_there_is_none() {
    let machine = Machine::fresh();
    let _daemon = machine.up_with(&["--no-worker"]).await;
    assert_eq!(
        machine.runs(&["workers", "--json"]).await.json(),
        serde_json::json!([])
    );
}

#[tokio::test]
async fn two_workers_of_one_id_do_not_take_turns() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let mut older = worker(&machine, "w", &[]).await;
    // In the same home folder it does not even start.
    let again = machine.runs(&["worker", "--daemon-id", "w"]).await;
    assert!(again.fails(1).contains("another worker works in"));
    let other = Machine::fresh();
    let dial = ["worker", "--server-url", daemon.http(), "--daemon-id", "w"];
    let _newer = Running::start_with_talk(&other, &dial);
    let said = older.prints("registered as").await;
    assert!(said.contains("--daemon-id"), "{said}");
    assert_eq!(older.ends().await.code(), Some(1));
    let said = exec(&machine, &["w", "--", "echo here"]).await;
    assert_eq!(said.succeeds(), "here\n");
}

#[tokio::test]
async fn a_label_runs_a_command_on_all_that_have_it() {
    let machine = Machine::fresh();
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let _a = worker(&machine, "a", &["--label", "kind=x", "--label", "n=1"]).await;
    let _b = worker(&machine, "b", &["--label", "kind=x", "--label", "n=2"]).await;
    let both = exec(
        &machine,
        &[
            "--label",
            "kind=x",
            "--",
            "echo hi; exit $(basename $(dirname $PWD) | tr ab 12)",
        ],
    )
    .await;
    assert_eq!(both.code, Some(2), "{both:?}");
    let mut lines: Vec<&str> = both.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[a] hi", "[b] hi"]);
    let one = ["--label", "kind=x", "--label", "n=2", "--", "echo hi"];
    assert_eq!(exec(&machine, &one).await.succeeds(), "[b] hi\n");
    let piped = [&["exec"], &one[..]].concat();
    let said = machine.pipes("input\n", &piped).await;
    assert!(said.stderr.contains("left out"), "{}", said.stderr);
    exec(&machine, &["--label", "kind=y", "--", "true"])
        .await
        .fails(125);
}

/// A worker of version 1 has no way to take input, and programs start others with a pipe that they
/// never write to.
#[tokio::test]
async fn a_worker_that_takes_no_input_is_given_none() {
    use futures_util::{SinkExt, StreamExt};
    use quintet_framing::ws::{WsDial, WsLimits, dial};
    use quintet_sandbox::socket::{TungsteniteSocket, WsMessage};

    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let url = format!("{}/ws", daemon.http().replacen("http", "ws", 1));
    let (socket, _) = dial(WsDial {
        url: &url,
        protocols: &["sandd.v1"],
        token: None,
        tls: None,
        limits: WsLimits {
            max_message: 65536,
            read_buffer: 4096,
        },
    })
    .await
    .unwrap();
    let mut socket = TungsteniteSocket::new(socket);
    let text = |message: Value| WsMessage::Text(message.to_string().into());
    let register = serde_json::json!({
        "type": "register", "daemon_id": "old",
        "metadata": {"hostname": "h", "platform": "linux", "arch": "x", "version": "t", "labels": {}},
    });
    socket.send(text(register)).await.unwrap();
    online(&machine, "old").await;
    let worker = async {
        while let Some(Ok(WsMessage::Text(said))) = socket.next().await {
            let said: Value = serde_json::from_slice(&said).unwrap();
            if said["type"] == "execute_command" {
                let output = serde_json::json!({
                    "type": "command_output", "command_id": said["command_id"],
                    "stdout": "ran\n", "stderr": "", "exit_code": 0, "duration_ms": 1,
                });
                socket.send(text(output)).await.unwrap();
            }
        }
    };
    let client = async {
        let command = ["exec", "old", "--", "cat"];
        let given = machine.pipes("unread\n", &command).await;
        assert_eq!((given.code, &*given.stdout), (Some(0), "ran\n"));
        assert!(given.stderr.contains("left out"), "{}", given.stderr);
        let silent = machine.pipes("unread\n", &["exec", "-n", "old", "--", "cat"]);
        let silent = silent.await;
        assert_eq!((silent.code, &*silent.stderr), (Some(0), ""));
    };
    tokio::select! {
        () = worker => panic!("the daemon hung up"),
        () = client => {}
    }
}

#[tokio::test]
async fn files_and_folders_go_both_ways_with_mode_and_time() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let tree = machine.path().join("tree");
    std::fs::create_dir_all(tree.join("a/empty")).unwrap();
    let content: Vec<u8> = (0..300_000u32).map(|n| (n * 7 % 251) as u8).collect();
    std::fs::write(tree.join("a/data"), &content).unwrap();
    std::fs::write(tree.join("run.sh"), "#!/bin/sh\n").unwrap();
    let script = std::fs::File::open(tree.join("run.sh")).unwrap();
    script
        .set_permissions(std::fs::Permissions::from_mode(0o750))
        .unwrap();
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    script.set_modified(then).unwrap();
    for folder in ["a/empty", "a"] {
        let folder = std::fs::File::open(tree.join(folder)).unwrap();
        let mode = std::fs::Permissions::from_mode(0o700);
        folder.set_permissions(mode).unwrap();
        folder.set_modified(then).unwrap();
    }

    machine
        .runs(&["cp", "tree", "local:there"])
        .await
        .succeeds();
    let root = machine.home().join("workers/local/root");
    assert_eq!(std::fs::read(root.join("there/a/data")).unwrap(), content);
    assert!(root.join("there/a/empty").is_dir());
    let sent = root.join("there/run.sh").metadata().unwrap();
    assert_eq!(sent.permissions().mode() & 0o777, 0o750);
    assert_eq!(sent.modified().unwrap(), then);
    let kept = |folder: &std::path::Path| {
        let folder = folder.metadata().unwrap();
        assert_eq!(folder.permissions().mode() & 0o777, 0o700);
        assert_eq!(folder.modified().unwrap(), then);
    };
    kept(&root.join("there/a"));
    kept(&root.join("there/a/empty"));
    // A file goes into a folder that is there.
    let script = ["cp", "tree/run.sh", "local:there/a"];
    machine.runs(&script).await.succeeds();
    assert!(root.join("there/a/run.sh").is_file());
    std::fs::remove_file(root.join("there/a/run.sh")).unwrap();
    machine
        .runs(&["cp", "tree", "local:there"])
        .await
        .succeeds();
    kept(&root.join("there/a"));

    machine
        .runs(&["cp", "local:there", "back"])
        .await
        .succeeds();
    let back = machine.path().join("back");
    assert_eq!(std::fs::read(back.join("a/data")).unwrap(), content);
    kept(&back.join("a"));
    kept(&back.join("a/empty"));
    assert_eq!(
        back.join("run.sh").metadata().unwrap().modified().unwrap(),
        then
    );

    // The beginning of it is here from an attempt that was cut.
    std::fs::write(
        machine.path().join(".data.quintet-partial"),
        &content[..200_000],
    )
    .unwrap();
    machine
        .runs(&["cp", "local:there/a/data", "."])
        .await
        .succeeds();
    assert_eq!(std::fs::read(machine.path().join("data")).unwrap(), content);
    assert!(!machine.path().join(".data.quintet-partial").exists());
    // Only the rest was sent.
    row(&machine, "transfer_ended", |data| {
        data["path"] == "there/a/data" && data["bytes"] == 100_000
    })
    .await;

    let outside = machine
        .runs(&["cp", "local:../../quintet.db", "stolen"])
        .await;
    outside.fails(1);
    assert!(!machine.path().join("stolen").exists());
    let escaped = ["cp", "tree/a/empty", "local:../escaped"];
    machine.runs(&escaped).await.fails(1);
    assert!(!root.join("../escaped").exists());
}

#[tokio::test]
async fn a_token_lets_a_worker_in_and_its_end_throws_it_out() {
    let machine = Machine::fresh();
    let daemon = machine
        .up_with(&["--listen", "0.0.0.0:0", "--no-worker"])
        .await;
    // Not loopback, so that being the same user does not count.
    let Some(address) = own_address() else {
        return;
    };
    let port = daemon.http().rsplit(':').next().unwrap();
    let url = format!("wss://{address}:{port}/ws");
    let made = machine
        .runs(&["token", "create", "--worker", "w"])
        .await
        .succeeds();
    let token = made.trim();
    assert_eq!(made.lines().count(), 1);

    let dial = ["worker", "--server-url", &url, "--daemon-id"];
    let mut other =
        Running::start_with_talk(&machine, &[&dial[..], &["x", "--token", token]].concat());
    other.prints("not valid for x").await;
    let mut worker =
        Running::start_with_talk(&machine, &[&dial[..], &["w", "--token", token]].concat());
    worker.prints("online as w").await;
    assert_eq!(
        exec(&machine, &["w", "--", "echo in"]).await.succeeds(),
        "in\n"
    );

    let listed = machine.runs(&["token", "ls", "--json"]).await.json();
    assert_eq!(listed[0]["worker"], "w");
    machine.runs(&["token", "revoke", "1"]).await.succeeds();
    worker.prints("not connected").await;
    worker.prints("not valid for w").await;
    exec(&machine, &["w", "--", "true"]).await.fails(125);
}

#[tokio::test]
async fn a_worker_of_the_daemon_s_own_home_needs_no_token_with_tls_either() {
    let machine = Machine::fresh();
    let daemon = machine
        .up_with(&["--listen", "0.0.0.0:0", "--no-worker"])
        .await;
    let mut own = Running::start_with_talk(&machine, &["worker", "--daemon-id", "own"]);
    own.prints("online as own").await;
    assert_eq!(
        exec(&machine, &["own", "--", "echo in"]).await.succeeds(),
        "in\n"
    );
    // Whoever does not have the home at hand is told what to do.
    let other = Machine::fresh();
    let port = daemon.http().rsplit(':').next().unwrap();
    let url = format!("wss://127.0.0.1:{port}/ws");
    let dial = ["worker", "--server-url", &url, "--daemon-id", "foreign"];
    let mut foreign = Running::start_with_talk(&other, &dial);
    foreign
        .prints("quintet token create --worker foreign")
        .await;
}

#[tokio::test]
async fn a_token_may_come_in_the_address_and_a_wrong_one_opens_nothing() {
    use futures_util::{SinkExt, StreamExt};
    use quintet_framing::ws::{WsDial, WsLimits, dial};
    use quintet_sandbox::socket::{TungsteniteSocket, WsMessage};

    let machine = Machine::fresh();
    let listen = ["--listen", "0.0.0.0:0", "--insecure", "--no-worker"];
    let daemon = machine.up_with(&listen).await;
    let Some(address) = own_address() else {
        return;
    };
    let port = daemon.http().rsplit(':').next().unwrap();
    let made = machine
        .runs(&["token", "create", "--worker", "w"])
        .await
        .succeeds();
    let token = made.trim();
    let wrong = format!("qw1.{}", "A".repeat(43));
    // The token in the address, the one in the header, and whether that lets `w` in.
    for (query, header, success) in [
        (format!("?token={token}"), None, true),
        (format!("?token={wrong}"), None, false),
        (String::new(), Some(wrong.as_str()), false),
        (String::new(), Some(token), true),
        (String::new(), None, false),
    ] {
        let url = format!("ws://{address}:{port}/ws{query}");
        let (socket, _) = dial(WsDial {
            url: &url,
            protocols: &["sandd.v1"],
            token: header,
            tls: None,
            limits: WsLimits {
                max_message: 65536,
                read_buffer: 4096,
            },
        })
        .await
        .unwrap();
        let mut socket = TungsteniteSocket::new(socket);
        let register = serde_json::json!({
            "type": "register", "daemon_id": "w",
            "metadata": {
                "hostname": "h", "platform": "linux", "arch": "x86_64", "version": "1", "labels": {},
            },
        });
        let text = WsMessage::Text(register.to_string().into());
        socket.send(text).await.unwrap();
        let answer = within("an answer", socket.next()).await.unwrap().unwrap();
        let WsMessage::Text(text) = answer else {
            panic!("{answer:?}");
        };
        let answer: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(answer["success"], success, "{query} {header:?} {answer}");
    }
}

/// An address of this machine that is not loopback; none on a machine without a network, where the
/// story is skipped, which is said.
fn own_address() -> Option<std::net::IpAddr> {
    let asked = || {
        let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
        // Nothing is sent: this asks the routing table.
        socket.connect("192.0.2.1:9").ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    let address = asked().filter(|ip| !ip.is_loopback());
    if address.is_none() {
        eprintln!("skipped: this machine has no address but loopback");
    }
    address
}

#[tokio::test]
async fn a_command_outlives_the_daemon_and_its_output_is_whole() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let address = daemon.http().strip_prefix("http://").unwrap().to_owned();
    let _worker = worker(&machine, "w", &[]).await;
    let go = machine.path().join("go");
    let line = format!(
        "for n in 1 2 3; do echo $n; done; while [ ! -e {} ]; do sleep 0.05; done; echo 4; exit 6",
        go.display()
    );
    let mut command = Running::start(machine.quintet(&["exec", "w", "--", &line]));
    assert_eq!(command.line().await, "1");
    daemon.dies().await;
    let _daemon = machine
        .up_with(&["--no-worker", "--listen", &address])
        .await;
    std::fs::write(go, "").unwrap();
    for n in ["2", "3", "4"] {
        assert_eq!(command.line().await, n);
    }
    assert_eq!(command.ends().await.code(), Some(6));
}

/// Answers of `/ws` to a request with these headers: the status line.
async fn upgrade(address: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let mut request = format!(
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
    );
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        let count = within("an answer", socket.read_buf(&mut answer))
            .await
            .unwrap();
        assert!(count > 0, "the connection ended");
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer.lines().next().unwrap().to_owned()
}

#[tokio::test]
async fn a_web_page_and_an_unknown_version_are_not_let_in() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let address = daemon.http().strip_prefix("http://").unwrap().to_owned();
    let version = "Sec-WebSocket-Protocol";
    for (headers, status) in [
        (&[(version, "sandd.v1")][..], "101"),
        (&[(version, "sandd.v9, sandd.v2")], "101"),
        (&[(version, "sandd.v9")], "400"),
        (
            &[(version, "sandd.v1"), ("Origin", "http://evil.example")],
            "403",
        ),
    ] {
        let answer = upgrade(&address, "/ws", headers).await;
        assert!(answer.contains(status), "{headers:?}: {answer}");
    }
}

#[tokio::test]
async fn an_isolated_worker_writes_only_beneath_its_root() {
    let machine = Machine::fresh();
    let _daemon = machine.up_with(&["--no-worker"]).await;
    // Neither /tmp, where everybody may write, nor the root.
    let outside = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let _plain = worker(&machine, "plain", &[]).await;
    let _isolated = worker(&machine, "isolated", &["--isolate"]).await;
    let file = outside.path().join("file");
    let line = format!("echo in > here && echo out > {}", file.display());
    let doctor = machine.runs(&["doctor", "--json"]).await;
    let checks: Value = serde_json::from_str(&doctor.stdout).unwrap();
    let landlock = checks
        .as_array()
        .unwrap()
        .iter()
        .find(|check| check["check"].as_str().unwrap().contains("landlock"))
        .unwrap();
    let refused = exec(&machine, &["isolated", "--", &line]).await;
    let root = machine.home().join("workers/isolated/root");
    assert_eq!(std::fs::read_to_string(root.join("here")).unwrap(), "in\n");
    // Where the kernel has no means to confine, doctor says so and nothing is pretended.
    assert_eq!(
        refused.code != Some(0),
        landlock["ok"] == true,
        "{refused:?}"
    );
    assert_eq!(!file.exists(), landlock["ok"] == true);
    exec(&machine, &["plain", "--", &line]).await.succeeds();
    assert!(file.exists());
}

#[tokio::test]
async fn the_network_and_the_memory_of_commands_can_be_limited() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let connect = format!("bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}'");
    // A buffer of that size, at once.
    let take = "dd if=/dev/zero of=/dev/null bs=600M count=1";
    let machine = Machine::fresh();
    machine.configure("[sandbox]\nnetwork = false\nmemory_max = \"300MiB\"\n");
    let _daemon = machine.up().await;
    let _free = worker(&machine, "free", &["--isolate"]).await;
    let limits = ["--isolate", "--no-network", "--memory-max", "300MiB"];
    let _limited = worker(&machine, "limited", &limits).await;
    online(&machine, "local").await;
    for id in ["local", "limited"] {
        let said = exec(&machine, &[id, "--", &connect]).await;
        assert_ne!(said.code, Some(0), "{id} reached the network");
        assert!(said.stderr.contains("not permitted"), "{}", said.stderr);
        let said = exec(&machine, &[id, "--", take]).await;
        assert_eq!(said.code, Some(1), "{id}: {}", said.stderr);
        assert!(said.stderr.contains("memory exhausted"), "{}", said.stderr);
        exec(&machine, &[id, "--", "echo works"]).await.succeeds();
    }
    let seccomp = async |machine: &Machine| {
        let checks = machine.runs(&["doctor", "--json"]).await;
        let checks: Value = serde_json::from_str(&checks.stdout).unwrap();
        let mut checks = checks.as_array().unwrap().iter();
        let found = checks.find(|it| it["check"] == "isolate seccomp").unwrap();
        found["detail"].as_str().unwrap().to_owned()
    };
    // It speaks of what `local` really uses.
    assert!(seccomp(&machine).await.contains("and the network"));
    assert!(!seccomp(&Machine::fresh()).await.contains("network"));
    exec(&machine, &["free", "--", &connect]).await.succeeds();
    exec(&machine, &["free", "--", take]).await.succeeds();
}

#[tokio::test]
async fn the_released_daemon_works_under_the_daemon() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let program = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.cache/sandd-daemon/bin/sandd");
    assert!(
        program.exists(),
        "run crates/sandbox/tests/install-peers.sh"
    );
    let url = format!("{}/ws", daemon.http().replacen("http", "ws", 1));
    let mut command = machine.program(program.to_str().unwrap());
    command
        .args([
            "--server-url",
            &url,
            "--daemon-id",
            "old",
            "--label",
            "age=old",
        ])
        .env("SANDD_ROOT", machine.path().join("sandd"))
        .stderr(std::process::Stdio::null());
    let _old = Running::start(command);
    online(&machine, "old").await;
    let listed = machine.runs(&["workers", "--json"]).await.json();
    assert_eq!(listed[0]["protocol"], "sandd.v1");
    let said = exec(&machine, &["old", "--env", "A=1", "--", "echo $A; exit 3"]).await;
    assert_eq!((said.code, &*said.stdout), (Some(3), "1\n"));
    // It can't be given input, which a program that starts another has often nothing of.
    let piped = machine
        .pipes("unread\n", &["exec", "old", "--", "cat; echo ran"])
        .await;
    assert_eq!((piped.code, &*piped.stdout), (Some(0), "ran\n"));
    assert!(piped.stderr.contains("left out"), "{}", piped.stderr);
    let empty = machine.pipes("", &["exec", "old", "--", "echo ran"]).await;
    assert_eq!((empty.code, &*empty.stdout), (Some(0), "ran\n"));
    // It does not name signals.
    exec(&machine, &["old", "--", "kill -9 $$"])
        .await
        .fails(255);
    exec(&machine, &["old", "--timeout", "1", "--", "sleep 9"])
        .await
        .fails(124);
    let by_label = exec(&machine, &["--label", "age=old", "--", "echo hi"]).await;
    assert_eq!(by_label.succeeds(), "[old] hi\n");
    std::fs::write(machine.path().join("there"), "content").unwrap();
    let from = format!("old:{}", machine.path().join("there").display());
    machine.runs(&["cp", &from, "here"]).await.succeeds();
    let here = std::fs::read_to_string(machine.path().join("here")).unwrap();
    assert_eq!(here, "content");
    let mut shell = Terminal::opens(&machine, &["shell", "old"]);
    shell.types("echo sess-$((40+2))\r").await;
    shell.sees("sess-42").await;
    shell.types("exit\r").await;
    assert_eq!(shell.ends().await, Some(0));
}

#[tokio::test]
async fn a_worker_that_is_away_is_known_to_the_next_daemon() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    drop(worker(&machine, "w", &["--label", "kind=x"]).await);
    row(&machine, "worker_offline", |data| data["worker"] == "w").await;
    daemon.stops().await;
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let listed = machine.runs(&["workers", "--json"]).await.json();
    let seen = ["id", "state", "protocol"].map(|key| listed[0][key].as_str().unwrap());
    assert_eq!(seen, ["w", "offline", "sandd.v2"]);
    assert_eq!(listed[0]["labels"]["kind"], "x");
    let said = exec(&machine, &["w", "--", "true"]).await.fails(125);
    assert!(said.contains("offline"), "{said}");
    let _back = worker(&machine, "w", &[]).await;
    back(&machine, "w").await;
    let listed = machine.runs(&["workers", "--json"]).await.json();
    assert_eq!(listed.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn everything_outlives_a_daemon_that_stops_in_order() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let address = daemon.http().strip_prefix("http://").unwrap().to_owned();
    let _worker = worker(&machine, "w", &[]).await;
    // Fed from a pipe that stays open over the restart.
    let mut fed = machine.quintet(&["exec", "w", "--", "echo up; cat; echo all"]);
    let mut fed = fed
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = fed.stdin.take().unwrap();
    let mut output = tokio::io::BufReader::new(fed.stdout.take().unwrap());
    let mut line = String::new();
    tokio::io::AsyncBufReadExt::read_line(&mut output, &mut line)
        .await
        .unwrap();
    assert_eq!(line, "up\n");
    input.write_all(b"before\n").await.unwrap();
    line.clear();
    tokio::io::AsyncBufReadExt::read_line(&mut output, &mut line)
        .await
        .unwrap();
    assert_eq!(line, "before\n");
    let mut shell = Terminal::opens(&machine, &["shell", "w"]);
    shell.types("kept=$((6*7)); echo re''ady\r").await;
    shell.sees("ready").await;

    assert!(daemon.stops().await.success());
    let _daemon = machine
        .up_with(&["--no-worker", "--listen", &address])
        .await;
    back(&machine, "w").await;
    input.write_all(b"after\n").await.unwrap();
    drop(input);
    let mut rest = String::new();
    within("the rest", output.read_to_string(&mut rest))
        .await
        .unwrap();
    assert_eq!(rest, "after\nall\n");
    assert_eq!(within("the end", fed.wait()).await.unwrap().code(), Some(0));
    // Keys are taken again once the shell is attached, which its screen shows.
    shell.types("echo got-$kept\r").await;
    shell.sees("got-42").await;
    shell.types("exit 5\r").await;
    assert_eq!(shell.ends().await, Some(5));
}

#[tokio::test]
async fn a_copy_that_was_cut_goes_on_where_it_was() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let address = daemon.http().strip_prefix("http://").unwrap().to_owned();
    let _worker = worker(&machine, "w", &[]).await;
    let content: Vec<u8> = (0..24_000_000u32).map(|n| (n / 5 % 251) as u8).collect();
    std::fs::write(machine.path().join("big"), &content).unwrap();
    // What an attempt left that was cut in the middle: its first bytes, and the note of it.
    let copying = machine.begins(&["cp", "big", "w:big"]);
    row(&machine, "transfer_started", |data| data["path"] == "big").await;
    daemon.dies().await;
    copying.ends().await;
    let _daemon = machine
        .up_with(&["--no-worker", "--listen", &address])
        .await;
    back(&machine, "w").await;
    machine.runs(&["cp", "big", "w:big"]).await.succeeds();
    let root = machine.home().join("workers/w/root");
    assert!(std::fs::read(root.join("big")).unwrap() == content);
    let left = std::fs::read_dir(&root).unwrap().count();
    assert_eq!(left, 1, "nothing but the file is left");
}

#[tokio::test]
async fn a_copy_whose_client_was_killed_can_be_made_again_at_once() {
    let machine = Machine::fresh();
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let running = worker(&machine, "w", &[]).await;
    let root = machine.home().join("workers/w/root");
    let file = std::fs::File::create(machine.path().join("big")).unwrap();
    file.set_len(1 << 30).unwrap();
    let copying = Running::start(machine.quintet(&["cp", "big", "w:big"]));
    within("the worker begins with it", async {
        while std::fs::read_dir(&root).unwrap().next().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A worker that stands still does not end it.
    running.signal(rustix::process::Signal::STOP);
    copying.signal(rustix::process::Signal::INT);
    copying.ends().await;
    row(&machine, "transfer_ended", |data| {
        data["result"] == "given up"
    })
    .await;
    running.signal(rustix::process::Signal::CONT);
    file.set_len(1 << 20).unwrap();
    machine.runs(&["cp", "big", "w:big"]).await.succeeds();
    assert!(std::fs::read(root.join("big")).unwrap() == vec![0; 1 << 20]);
}

#[tokio::test]
async fn what_runs_without_a_reader_is_listed_and_gone_on_with() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let address = daemon.http().strip_prefix("http://").unwrap().to_owned();
    let _worker = worker(&machine, "w", &[]).await;
    let go = machine.path().join("go");
    let line = format!(
        "echo one; while [ ! -e {} ]; do sleep 0.05; done; exit 9",
        go.display()
    );
    let mut command = Running::start(machine.quintet(&["exec", "w", "--", &line]));
    assert_eq!(command.line().await, "one");
    // The client dies with the daemon: nobody cancels, nobody reads.
    command.signal(rustix::process::Signal::STOP);
    daemon.dies().await;
    command.signal(rustix::process::Signal::KILL);
    command.ends().await;
    let _daemon = machine
        .up_with(&["--no-worker", "--listen", &address])
        .await;
    back(&machine, "w").await;
    let jobs = machine.runs(&["jobs", "--json"]).await.json();
    let job = jobs[0]["id"].as_str().unwrap();
    assert_eq!(
        (&jobs[0]["worker"], &jobs[0]["kind"], &jobs[0]["running"]),
        (&"w".into(), &"exec".into(), &true.into())
    );
    assert_eq!(jobs[0]["attached"], false);
    std::fs::write(go, "").unwrap();
    let said = exec(&machine, &["w", "--attach", job]).await;
    assert_eq!((said.code, &*said.stdout), (Some(9), "one\n"));
    exec(&machine, &["w", "--attach", "none"]).await.fails(125);
}

#[tokio::test]
async fn workers_are_counted_and_changed_settings_are_taken_over() {
    let machine = Machine::fresh();
    machine.configure("[sandbox]\nstale_check = \"100ms\"\n");
    let daemon = machine.up().await;
    online(&machine, "local").await;
    exec(&machine, &["local", "--", "true"]).await.succeeds();
    std::fs::write(machine.path().join("file"), "12345").unwrap();
    machine.runs(&["cp", "file", "local:"]).await.succeeds();
    let address = daemon.http().strip_prefix("http://").unwrap();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut metrics = String::new();
    within("metrics", socket.read_to_string(&mut metrics))
        .await
        .unwrap();
    for line in [
        "quintet_workers_online 1",
        "quintet_worker_commands_total 1",
        "quintet_worker_bytes_up_total 5",
        "quintet_audit_lost_total 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    // The worker that runs keeps its heartbeat of 10 s, which is too seldom for this.
    let quick = "stale_check = \"100ms\"\nstale_after = \"200ms\"\nheartbeat = \"100ms\"\n";
    machine.configure(&format!("[sandbox]\n{quick}"));
    machine.runs(&["reload"]).await.succeeds();
    row(&machine, "worker_stale", |data| data["worker"] == "local").await;
}

#[tokio::test]
async fn a_certificate_that_the_machine_trusts_needs_no_fingerprint() {
    let machine = Machine::fresh();
    // The daemon's own certificate, made by a first start, serves as one from an authority.
    let first = machine
        .up_with(&["--listen", "0.0.0.0:0", "--no-worker"])
        .await;
    assert!(first.stops().await.success());
    let tls = machine.home().join("tls");
    let (cert, key) = (
        machine.path().join("cert.pem"),
        machine.path().join("key.pem"),
    );
    std::fs::copy(tls.join("cert.pem"), &cert).unwrap();
    std::fs::copy(tls.join("key.pem"), &key).unwrap();
    machine.configure(&format!("[http]\ntls_cert = {cert:?}\ntls_key = {key:?}\n"));
    let daemon = machine.up_with(&["--no-worker"]).await;
    let port = daemon.http().rsplit(':').next().unwrap();
    let url = format!("wss://localhost:{port}/ws");
    let made = machine
        .runs(&["token", "create", "--worker", "w"])
        .await
        .succeeds();
    assert_eq!(made.matches('.').count(), 1, "no fingerprint is in it");
    let dial = [
        "worker",
        "--server-url",
        &url,
        "--daemon-id",
        "w",
        "--token",
    ];
    let dial = [&dial[..], &[made.trim()]].concat();
    let mut stranger = Running::start_with_talk(&machine, &dial);
    stranger.prints("ertificate").await;
    drop(stranger);
    let mut trusting = machine.program("sh");
    trusting
        .args([
            "-c",
            "exec \"$0\" \"$@\" 2>&1",
            env!("CARGO_BIN_EXE_quintet"),
        ])
        .args(&dial)
        .env("SSL_CERT_FILE", &cert);
    let mut trusting = Running::start(trusting);
    trusting.prints("online as w").await;
    assert_eq!(
        exec(&machine, &["w", "--", "echo in"]).await.succeeds(),
        "in\n"
    );
}

#[tokio::test]
async fn ctrl_c_ends_the_remote_tree() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let mut command =
        Running::start(machine.quintet(&["exec", "local", "--", "echo $$; sleep 300 & wait"]));
    let pid: i32 = command.line().await.parse().unwrap();
    command.signal(rustix::process::Signal::INT);
    assert_eq!(command.ends().await.code(), Some(130));
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn a_shell_is_a_terminal_that_can_be_left_and_found_again() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let mut first = Terminal::opens(&machine, &["shell", "local"]);
    first.types("stty size; echo mark-$((40+2))\r").await;
    first.sees("mark-42").await;
    assert!(first.shown.contains("30 80"), "{}", first.shown);
    first.pty.resize(Size::new(20, 70)).unwrap();
    first
        .types("until stty size | grep '20 70'; do :; done; echo resized-$((1+1))\r")
        .await;
    first.sees("resized-2").await;
    first.types("\x1dd").await;
    first.sees("--attach ").await;
    first.sees("` goes on").await;
    let after = first.shown.rsplit_once("--attach ").unwrap().1;
    let job = after.split('`').next().unwrap().trim().to_owned();
    assert_eq!(first.ends().await, Some(0));

    let mut second = Terminal::opens(&machine, &["shell", "local", "--attach", &job]);
    second.sees("mark-42").await;
    second.types("exit 7\r").await;
    assert_eq!(second.ends().await, Some(7));
}

/// A person in front of a terminal, who reads everything.
struct Terminal {
    pty: pty_process::Pty,
    child: tokio::process::Child,
    shown: String,
}

impl Terminal {
    fn opens(machine: &Machine, arguments: &[&str]) -> Self {
        let (pty, pts) = pty_process::open().unwrap();
        pty.resize(Size::new(30, 80)).unwrap();
        let child = pty_process::Command::new(env!("CARGO_BIN_EXE_quintet"))
            .args(arguments)
            .env_clear()
            .env("HOME", machine.path())
            .env("TERM", "xterm-256color")
            .current_dir(machine.path())
            .kill_on_drop(true)
            .spawn(pts)
            .unwrap();
        Self {
            pty,
            child,
            shown: String::new(),
        }
    }

    async fn types(&mut self, keys: &str) {
        self.pty.write_all(keys.as_bytes()).await.unwrap();
    }

    async fn sees(&mut self, text: &str) {
        let mut buffer = [0; 4096];
        while !self.shown.contains(text) {
            let read = within(text, self.pty.read(&mut buffer)).await;
            let count = read.unwrap_or(0);
            assert!(count > 0, "it ended before {text:?}: {}", self.shown);
            self.shown
                .push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }

    async fn ends(mut self) -> Option<i32> {
        let mut buffer = [0; 4096];
        // The terminal is closed by the last process that has it.
        while matches!(within("it ends", self.pty.read(&mut buffer)).await, Ok(count) if count > 0)
        {
        }
        within("it ends", self.child.wait()).await.unwrap().code()
    }
}
