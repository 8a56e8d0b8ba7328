//! The daemon's life: up, status, a second one, kill -9, an orderly stop.

use std::os::unix::fs::PermissionsExt;

use quintet_control::wire::ClientHello;
use quintet_control::{Client, ErrorCode, TcpClient, UnixClient};
use quintet_framing::descriptors;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{Finished, Machine, Running, within};

#[tokio::test]
async fn it_comes_up_on_a_free_port_and_says_where() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let status = machine.runs(&["status", "--json"]).await.json();
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["http"], daemon.http());
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(
        status["control_socket"],
        machine.control_socket().to_str().unwrap()
    );
    assert!(status["started_at"].is_string());
    assert!(!daemon.http().ends_with(":0"));

    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&machine.home()), 0o700);
    assert_eq!(mode(&machine.control_socket()), 0o600);
    for path in ["/healthz", "/metrics"] {
        let answer = http_get(daemon.http(), path).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
    }
    machine.runs(&["doctor"]).await.succeeds();
    let pong = machine.runs(&["ping"]).await.succeeds();
    assert!(pong.starts_with("pong in "), "{pong}");
}

#[tokio::test]
async fn the_first_run_says_what_runs_who_answers_and_how_to_go_on() {
    let machine = Machine::fresh();
    let mut up = Running::start(machine.quintet(&["up", "--listen", "127.0.0.1:0"]));
    let ready = up.prints("is ready at http://127.0.0.1:").await;
    let url = ready.rsplit(' ').next().unwrap();
    // In this order, each in a line of its own.
    for part in [
        machine.home().to_str().unwrap(),
        "worker  local",
        "shell is ready: it runs what you type and needs no key",
        "for coder, set a key",
        "quintet config set providers.anthropic.api_key KEY",
        "quintet send shell",
        "quintet chat",
        "Ctrl-C",
    ] {
        up.prints(part).await;
    }
    let code = up
        .prints("Code:")
        .await
        .replace(|c: char| !c.is_ascii_digit(), "");
    let link = up.prints("Link:").await;
    assert!(link.ends_with(&format!("{url}/#pair={code}")), "{link}");
    up.prints("▄▄▄▄▄").await;
    let answer = machine.runs(&["send", "shell", "echo hello"]).await;
    assert_eq!(answer.succeeds(), "hello\n", "as it says to try");
}

/// How long that takes is stated by `cargo xtask measure`. That it can't take long is shown here: on
/// a machine without any network, on which nobody can be reached and the built-in worker never comes
/// online, all of it is said, so none of it waits for them.
#[tokio::test]
async fn what_the_first_run_says_waits_for_nobody() {
    let machine = Machine::fresh();
    let alone: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["--net"],
        false => &["--net", "--map-root-user"],
    };
    let tried = machine.program("unshare").args(alone).arg("true").status();
    if !tried.await.is_ok_and(|status| status.success()) {
        eprintln!("no network namespace can be made here: this story is skipped");
        return;
    }
    // A key and its provider, and a tool server: all of them could be asked.
    machine.configure(
        "[providers.anthropic]\napi_key = \"sk-story\"\nbase_url = \"http://127.0.0.1:9\"\n\
         [mcps.far]\nurl = \"http://127.0.0.1:9/mcp\"\n",
    );
    let mut up = machine.program("unshare");
    up.args(alone)
        .arg(env!("CARGO_BIN_EXE_quintet"))
        .args(["up", "--listen", "0.0.0.0:0"]);
    let mut up = Running::start(up);
    for part in [
        "is ready at https://0.0.0.0:",
        machine.home().to_str().unwrap(),
        "worker  local",
        "coder is ready with anthropic/claude-sonnet-5-5 (anthropic: the key of the configuration)",
        "quintet send coder",
        "Ctrl-C",
        "Code:",
        "Link:",
        "▀▀▀▀▀",
    ] {
        up.prints(part).await;
    }
    let workers = machine.runs(&["workers", "--json"]).await.succeeds();
    assert!(!workers.contains("\"online\""), "{workers}");
    up.signal(rustix::process::Signal::TERM);
    assert!(up.ends().await.success());
}

#[tokio::test]
async fn a_second_daemon_names_the_pid_of_the_first() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let stderr = machine
        .runs(&["up", "--listen", "127.0.0.1:0"])
        .await
        .fails(1);
    assert!(
        stderr.contains(&format!("pid {}", daemon.pid())),
        "{stderr}"
    );
    assert!(stderr.contains("hint: stop it with"), "{stderr}");
    machine.runs(&["ping"]).await.succeeds();
}

#[tokio::test]
async fn a_port_that_is_taken_is_explained() {
    let machine = Machine::fresh();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let stderr = machine.runs(&["up", "--listen", &address]).await.fails(1);
    assert!(
        stderr.contains(&address) && stderr.contains("--listen 127.0.0.1:0"),
        "{stderr}"
    );
}

#[tokio::test]
async fn an_address_for_everybody_has_tls_unless_told_otherwise() {
    let machine = Machine::fresh();
    let everywhere = ["--listen", "0.0.0.0:0"];
    let daemon = machine.up_with(&everywhere).await;
    assert!(daemon.http().starts_with("https://"), "{}", daemon.http());
    assert!(daemon.stops().await.success());
    let key = machine.home().join("tls/key.pem");
    let mode = std::os::unix::fs::PermissionsExt::mode(&key.metadata().unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    let daemon = machine
        .up_with(&[&everywhere[..], &["--insecure"]].concat())
        .await;
    assert!(daemon.http().starts_with("http://"), "{}", daemon.http());
    assert!(daemon.stops().await.success());
}

#[tokio::test]
async fn sigterm_ends_it_in_order_and_leaves_nothing_that_says_running() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    assert!(daemon.stops().await.success());
    assert!(!machine.run_file().exists());
    assert!(!machine.control_socket().exists());
    machine.runs(&["status"]).await.fails(1);
}

#[tokio::test]
async fn after_kill_9_the_next_one_starts_and_knows_everything() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    machine
        .runs(&["send", "test", "say before"])
        .await
        .succeeds();
    let before = machine.runs(&["events", "--json"]).await.succeeds();
    daemon.dies().await;
    assert!(machine.run_file().exists(), "it had no time to tidy up");
    machine.runs(&["status"]).await.fails(1);

    let _daemon = machine.up().await;
    let after = machine.runs(&["events", "--json"]).await.succeeds();
    assert!(after.starts_with(&before), "what was told is still there");
    assert_eq!(
        machine
            .runs(&["send", "test", "say after"])
            .await
            .succeeds(),
        "after\n"
    );
    assert_eq!(
        machine.runs(&["sessions", "--json"]).await.json()[0]["messages"],
        2
    );
}

#[tokio::test]
async fn a_turn_that_was_cut_by_kill_9_ends_with_an_error_and_can_be_retried() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up().await;
    let send = machine.begins(&["send", "test", "wait"]);
    machine.sees("text_delta", 1).await;
    daemon.dies().await;
    let _daemon = machine.up().await;
    // The client found the new daemon by itself, went on from its cursor and saw the end.
    let finished = send.ends().await;
    assert_eq!(finished.stdout, "waiting\n");
    let stderr = finished.fails(1);
    assert!(
        stderr.contains("hint: run it again with `quintet retry 1`"),
        "{stderr}"
    );
}

#[tokio::test]
async fn after_kill_9_what_waited_is_answered_and_what_was_approved_is_approved() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let asks = machine.begins(&["send", "test", "approve make"]);
    let id = machine.sees("approval_requested", 1).await["data"]["approval"].to_string();
    machine
        .runs(&["approve", &id, "--scope", "session"])
        .await
        .succeeds();
    assert_eq!(asks.ends().await.succeeds(), "approved\n");
    let _waits = machine.begins(&["send", "test", "wait"]);
    let follow = ["events", "--json", "--follow", "--after", "0"];
    Running::start(machine.quintet(&follow))
        .prints("\"text\":\"waiting\"")
        .await;
    let next = machine.begins(&["send", "test", "say next"]);
    machine.queue_reaches(1).await;
    drop(next);
    daemon.dies().await;

    let _daemon = machine.up_with(&["--no-worker"]).await;
    Running::start(machine.quintet(&follow))
        .prints("\"text\":\"next\"")
        .await;
    let again = ["send", "test", "approve make"];
    assert_eq!(machine.runs(&again).await.succeeds(), "approved\n");
    let open = machine.runs(&["approvals", "--json"]).await.json();
    assert_eq!(open.as_array().unwrap().len(), 0);
}

#[tokio::test]
async fn control_over_tcp_needs_the_token() {
    let machine = Machine::fresh();
    let _daemon = machine.up_with(&["--control-tcp", "127.0.0.1:0"]).await;
    let read = |name: &str| std::fs::read_to_string(machine.home().join("run").join(name)).unwrap();
    let address = format!("127.0.0.1:{}", read("quintet.port").trim());
    let hello = |token: &str| ClientHello {
        token: token.to_owned(),
        ..ClientHello::default()
    };
    let refused = TcpClient::connect(&address, hello("a guess"))
        .await
        .unwrap_err();
    assert_eq!(refused.refusal().unwrap().code, ErrorCode::Unauthorized);
    let (mut client, _) = TcpClient::connect(&address, hello(read("control.token").trim()))
        .await
        .unwrap();
    client.ping().await.unwrap();
}

#[tokio::test]
async fn a_control_plane_that_other_machines_reach_is_said_to_be_in_the_clear() {
    let machine = Machine::fresh();
    let exposed = [
        "up",
        "--control-tcp",
        "0.0.0.0:0",
        "--listen",
        "127.0.0.1:0",
    ];
    let mut warned = Running::start_with_talk(&machine, &exposed);
    warned.prints("cross the network in the clear").await;
    warned.prints("is ready at").await;
    warned.signal(rustix::process::Signal::TERM);
    assert!(warned.ends().await.success());
    let mut knows = Running::start_with_talk(&machine, &[&exposed[..], &["--insecure"]].concat());
    let first = knows.line().await;
    assert!(first.contains("is ready at"), "{first}");
    knows.signal(rustix::process::Signal::TERM);
    assert!(knows.ends().await.success());
}

#[tokio::test]
async fn a_mistake_is_to_be_mended_where_it_was_made() {
    let machine = Machine::fresh();
    let said = machine.runs(&["up", "--listen", "bad"]).await.fails(2);
    assert!(said.contains("hint: `quintet up --help`"), "{said}");
    let mut up = machine.quintet(&["up"]);
    up.env("QUINTET_LISTEN", "bad");
    let said = Finished::of(up).await.fails(64);
    assert!(said.contains("hint: set that variable"), "{said}");
    machine.configure("[http]\nlisten = \"bad\"\n");
    let said = machine.runs(&["up"]).await.fails(64);
    assert!(said.contains("config.toml; `quintet doctor`"), "{said}");
}

#[tokio::test]
async fn a_request_that_never_ends_does_not_keep_it_from_stopping() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let address = daemon.http().split_once("://").unwrap().1;
    let mut clients = Vec::new();
    for half in [
        "GET /healthz HTTP/1.1\r\nHost: x\r\nX-a: ",
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 1900000\r\n\r\n{",
        "",
    ] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(half.as_bytes()).await.unwrap();
        clients.push(client);
    }
    assert!(http_get(daemon.http(), "/healthz").await.contains("200"));
    assert!(daemon.stops().await.success());
    assert!(!machine.run_file().exists());
}

#[tokio::test]
async fn it_runs_on_when_nobody_reads_what_it_prints() {
    let machine = Machine::fresh();
    let mut command = machine.quintet(&["up", "--listen", "127.0.0.1:0"]);
    let full = std::fs::File::options().write(true).open("/dev/full");
    command.stdout(full.unwrap());
    let mut daemon = command.spawn().unwrap();
    let ready = async {
        while !machine.run_file().exists() {
            tokio::task::yield_now().await;
        }
    };
    within("it is ready", ready).await;
    machine.runs(&["send", "shell", "true"]).await.succeeds();
    let pid = rustix::process::Pid::from_raw(daemon.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(within("it ends", daemon.wait()).await.unwrap().success());
    assert!(!machine.run_file().exists());
}

#[tokio::test]
async fn log_lines_can_be_json() {
    let machine = Machine::fresh();
    let arguments = ["up", "--listen", "127.0.0.1:0", "--log", "json"];
    let mut daemon = Running::start_with_talk(&machine, &arguments);
    daemon.prints("is ready at").await;
    daemon.signal(rustix::process::Signal::TERM);
    let line: serde_json::Value = serde_json::from_str(&daemon.prints("stopping").await).unwrap();
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["signal"], "SIGTERM");
    assert!(daemon.ends().await.success());
}

#[tokio::test]
async fn a_thousand_clients_are_served_where_the_usual_limit_is_1024_descriptors() {
    descriptors::raise().unwrap();
    let machine = Machine::with_test_agent();
    let _daemon = machine.up_limited("-Sn 1024", &[]).await;
    let mut clients = Vec::new();
    // One place is left for the commands below.
    for _ in 0..999 {
        clients.push(UnixClient::connect(machine.control_socket()).await.unwrap());
    }
    for client in &mut clients {
        within("each is served", client.ping()).await.unwrap();
    }
    let limit = machine.runs(&["send", "shell", "ulimit -Sn"]).await;
    assert_eq!(
        limit.succeeds().trim(),
        "1024",
        "commands get the limit back"
    );
    drop(clients.split_off(500));
    machine.runs(&["send", "test", "say hi"]).await.succeeds();
    let agents = machine.runs(&["agents", "--json"]).await.json();
    let of_test = agents
        .as_array()
        .unwrap()
        .iter()
        .find(|agent| agent["name"] == "test");
    let pid = of_test.unwrap()["instances"][0]["pid"].as_u64().unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
    let open_files = limits
        .lines()
        .find(|line| line.starts_with("Max open files"));
    assert_eq!(open_files.unwrap().split_whitespace().nth(3), Some("1024"));
}

#[tokio::test]
async fn a_client_waits_for_a_descriptor_and_is_never_taken_for_confined() {
    let machine = Machine::fresh();
    let daemon = machine.up_limited("-n 160", &["--no-worker"]).await;
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(UnixClient::connect(machine.control_socket()).await.unwrap());
    }
    let open = format!("/proc/{}/fd", daemon.pid());
    within("the daemon has no descriptor left", async {
        while std::fs::read_dir(&open).unwrap().count() < 160 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // They are served in the order in which they came: this one is not among them yet.
    let mut last = clients.pop().unwrap();
    let others_leave = async { drop(clients) };
    let (answered, ()) = within("the others made room", async {
        tokio::join!(last.ping(), others_leave)
    })
    .await;
    answered.unwrap();
    let rows = machine.runs(&["events", "--json"]).await.succeeds();
    assert!(!rows.contains("client_cut"), "{rows}");
}

async fn http_get(url: &str, path: &str) -> String {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("the page is read", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    answer
}

#[tokio::test]
async fn a_change_of_the_configuration_says_what_changed() {
    let machine = Machine::fresh();
    let first = machine
        .runs(&["config", "set", "journal.keep", "20d"])
        .await;
    assert_eq!((first.code, &*first.stdout), (Some(0), ""), "{first:?}");
    assert!(first.stderr.contains("journal.keep: "), "{}", first.stderr);
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let config = machine.home().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replace("20d", "30d")).unwrap();
    let reloaded = machine.runs(&["reload"]).await;
    assert_eq!(reloaded.code, Some(0));
    assert!(
        reloaded
            .stderr
            .contains("journal.keep: \"20d\" -> \"30d\"\n"),
        "{}",
        reloaded.stderr
    );
    let nothing = machine.runs(&["reload", "--json"]).await.json();
    assert_eq!(nothing, serde_json::json!([]));
    let later = machine
        .runs(&["config", "set", "control.tcp", "127.0.0.1:0"])
        .await;
    assert!(
        later.stderr.contains("control.tcp: ") && later.stderr.contains("restarted"),
        "{}",
        later.stderr
    );
    let key = "sk-not-to-be-shown";
    let set = ["config", "set", "providers.anthropic.api_key", key];
    let secret = machine.runs(&set).await;
    assert!(
        secret.stderr.contains("providers.anthropic.api_key")
            && secret.stderr.contains("***")
            && !secret.stderr.contains(key),
        "{}",
        secret.stderr
    );
}
