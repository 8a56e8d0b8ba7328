//! Commands and shells on workers.

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

pub(crate) async fn online(machine: &Machine, worker: &str) {
    row(machine, "worker_online", |data| data["worker"] == worker).await;
}

/// Waits until a worker is online that an earlier daemon knew: the journal can't tell.
pub(crate) async fn back(machine: &Machine, worker: &str) {
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
pub(crate) async fn worker(machine: &Machine, id: &str, more: &[&str]) -> Running {
    let arguments = [&["worker", "--daemon-id", id], more].concat();
    let running = Running::start_with_talk(machine, &arguments);
    online(machine, id).await;
    running
}

pub(crate) async fn exec(machine: &Machine, arguments: &[&str]) -> Finished {
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

    // The end of the input reaches the shell, however early it comes.
    for (typed, shown) in [
        ("", ""),
        ("echo he''re; exit 3\n", "here"),
        ("echo he''re\n", "here"),
    ] {
        let shell = machine.pipes(typed, &["shell", "local"]).await;
        assert_eq!(shell.code, Some(if typed.contains("exit") { 3 } else { 0 }));
        assert!(shell.stdout.contains(shown), "{shell:?}");
    }

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
    let b = worker(&machine, "b", &["--label", "kind=x", "--label", "n=2"]).await;
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
    // One that can't do it counts as such, and what has no line end is shown too.
    std::fs::create_dir(machine.home().join("workers/a/root/only")).unwrap();
    let half = ["--label", "kind=x", "--cwd", "only", "--", "printf here"];
    let half = exec(&machine, &half).await;
    assert_eq!((half.code, &*half.stdout), (Some(125), "[a] here\n"));
    assert!(half.stderr.contains("b: "), "{}", half.stderr);
    // One that is away is left out.
    drop(b);
    row(&machine, "worker_offline", |data| data["worker"] == "b").await;
    let rest = exec(&machine, &["--label", "kind=x", "--", "echo hi"]).await;
    assert_eq!(rest.succeeds(), "[a] hi\n");
}

/// A worker of version 1 has no way to take input, and programs start others with a pipe that they
/// never write to.
#[tokio::test]
async fn a_worker_that_takes_no_input_is_given_none() {
    use futures_util::{SinkExt, StreamExt};
    use quintet_framing::ws::{WsDial, dial_socket};
    use quintet_sandbox::socket::WsMessage;

    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let url = format!("{}/ws", daemon.http().replacen("http", "ws", 1));
    let dial = WsDial {
        url: &url,
        protocols: &["sandd.v1"],
        token: None,
        tls: None,
    };
    let (mut socket, _) = dial_socket(dial, 65536).await.unwrap();
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
    // Nobody is there to take it, yet.
    shell.types("echo down-$kept\r").await;
    shell.pty.resize(Size::new(21, 71)).unwrap();
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
    shell.sees("down-42").await;
    shell
        .types("until stty size | grep '21 71'; do :; done; echo got-$kept\r")
        .await;
    shell.sees("got-42").await;
    assert_eq!(shell.shown.matches("down-42").count(), 1);
    shell.types("exit 5\r").await;
    assert_eq!(shell.ends().await, Some(5));
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
    daemon.dies_with(command).await;
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
async fn so_many_run_at_once_as_a_worker_is_told() {
    let machine = Machine::fresh();
    machine.configure("[sandbox]\ncommands_max = 1\nshells_max = 1\n");
    let _daemon = machine.up().await;
    let _other = worker(&machine, "w", &["--commands-max", "1"]).await;
    online(&machine, "local").await;
    for id in ["local", "w"] {
        let mut first = Running::start(machine.quintet(&["exec", id, "--", "echo up; sleep 1000"]));
        assert_eq!(first.line().await, "up");
        let said = exec(&machine, &[id, "--", "true"]).await.fails(125);
        assert!(said.contains("1 commands already run"), "{id}: {said}");
    }
    let mut shell = Terminal::opens(&machine, &["shell", "local"]);
    shell.types("echo re''ady\r").await;
    shell.sees("ready").await;
    let said = machine.runs(&["shell", "local"]).await.fails(125);
    assert!(said.contains("1 shells already run"), "{said}");
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

#[tokio::test]
async fn a_copy_shows_how_far_it_is_on_a_terminal_and_nothing_in_a_pipe() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let file = std::fs::File::create(machine.path().join("big")).unwrap();
    file.set_len(8 << 20).unwrap();
    let mut copy = Terminal::opens(&machine, &["cp", "big", "local:big"]);
    copy.sees("/8.00 MiB").await;
    copy.sees("B/s").await;
    copy.sees(" left  big").await;
    assert_eq!(copy.ends().await, Some(0));
    let piped = machine.runs(&["cp", "big", "local:again"]).await;
    assert_eq!((&*piped.stdout, &*piped.stderr), ("", ""));
    assert_eq!(piped.code, Some(0));
}

#[tokio::test]
async fn a_shell_that_a_signal_ends_leaves_the_terminal_as_it_was_and_is_no_command() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let mut shell = Terminal::opens(&machine, &["shell", "local"]);
    let modes = |shell: &Terminal| rustix::termios::tcgetattr(&shell.pty).unwrap().local_modes;
    shell.types("echo re''ady\r").await;
    shell.sees("ready").await;
    assert!(!modes(&shell).contains(rustix::termios::LocalModes::ICANON));
    let pid = shell.child.id().unwrap().cast_signed();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = within("it ends", shell.child.wait()).await.unwrap();
    assert_eq!(ended.code(), Some(128 + 15));
    assert!(modes(&shell).contains(rustix::termios::LocalModes::ICANON));

    let jobs = machine.runs(&["jobs", "--json"]).await.json();
    let job = jobs[0]["id"].as_str().unwrap();
    let said = exec(&machine, &["local", "--attach", job]).await.fails(125);
    assert!(said.contains("quintet shell local --attach"), "{said}");
}

/// A person in front of a terminal, who reads everything.
pub(crate) struct Terminal {
    pty: pty_process::Pty,
    child: tokio::process::Child,
    pub(crate) shown: String,
}

impl Terminal {
    pub(crate) fn opens(machine: &Machine, arguments: &[&str]) -> Self {
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

    pub(crate) async fn sees(&mut self, text: &str) {
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
