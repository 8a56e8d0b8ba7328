//! A day of a whole daemon, and then a search for its secrets in everything that is left of it.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use quintet_models::test_server::{Reply, TestServer};
use serde_json::{Value, json};

use super::row;
use crate::channel::browser::Browser;
use crate::harness::{Machine, Running};

const OF_CONFIG: &str = "sk-config-0f9e8d7c6b5a";
const OF_ENVIRONMENT: &str = "sk-environment-1a2b3c4d5e";
const OF_TOOL_SERVER: &str = "tool-server-variable-66f0";
const OF_HEADER: &str = "tool-server-header-77a1b2";

/// A machine on which every plane is used, with a secret in each place that takes one.
async fn day(machine: &Machine, models: &TestServer) -> (Running, BTreeMap<&'static str, String>) {
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/peers/server.py");
    machine.configure(&format!(
        "[control]\ntcp = \"127.0.0.1:0\"\n\
         [policy]\nrules = [{{ tool = \"exec\", action = \"allow\" }}]\n\
         [agents.hands]\ncommand = [\"python3\", {:?}]\n\
         [providers.local]\nkind = \"openai\"\nbase_url = {:?}\napi_key = \"{OF_CONFIG}\"\n\
         [mcps.peer]\ncommand = [\"python3\", {server:?}]\nenv = {{ KEY = \"{OF_TOOL_SERVER}\" }}\n\
         [mcps.web]\nurl = \"http://127.0.0.1:1/mcp\"\nheaders = {{ Authorization = \"Bearer {OF_HEADER}\" }}\n",
        peers.join("mcp_agent.py"),
        models.url(),
    ));
    let mut up = machine.program("sh");
    up.args(["-c", "exec \"$0\" up --listen 127.0.0.1:0 2>\"$1\""])
        .arg(env!("CARGO_BIN_EXE_quintet"))
        .arg(machine.path().join("stderr"))
        .env("RUST_LOG", "debug")
        .env("ANTHROPIC_BASE_URL", models.url())
        .env("ANTHROPIC_API_KEY", OF_ENVIRONMENT);
    let mut daemon = Running::start(up);
    let ready = daemon.prints("is ready at").await;
    let http = ready.rsplit(' ').next().unwrap();

    let worker = machine.runs(&["token", "create", "--worker", "box"]).await;
    let worker = worker.succeeds().trim().to_owned();
    let mut dials = machine.program("sh");
    dials
        .args(["-c", "exec \"$0\" worker --daemon-id box 2>\"$1\""])
        .arg(env!("CARGO_BIN_EXE_quintet"))
        .arg(machine.path().join("stderr-of-box"))
        .env("QUINTET_TOKEN", &worker);
    let boxed = Running::start(dials);
    row(machine, "worker_online", |data| data["worker"] == "box").await;

    let asks = ["send", "coder", "write it", "--worker", "box"];
    machine.runs(&asks).await.succeeds();
    // The file is gone at the end, and in the history for ever.
    for command in ["env | tee variables; cat a.txt", "rm variables"] {
        let exec = ["exec", "--session", "1", "--", command];
        machine.runs(&exec).await.succeeds();
    }
    machine.runs(&["send", "shell", "env"]).await.succeeds();
    let kept = machine.path().join("init.json");
    let keep = format!("keep {}", kept.display());
    machine.runs(&["send", "hands", &keep]).await.succeeds();
    let calls = format!("call peer__echo {}", json!({"text": "hi"}));
    machine.runs(&["send", "hands", &calls]).await.succeeds();
    let ws = format!("{}/ws", http.replacen("http", "ws", 1));
    let mut browser = Browser::pairs_at(machine, &ws).await;
    let message = browser.sealed("env", Some("shell"));
    browser.sends(&message).await;
    browser.hears_answer().await;
    // What clients are shown is searched like everything else that is left of the day.
    for (at, shown) in [
        &["config", "get"][..],
        &["config", "get", "--json"],
        &["config", "get", "providers"],
        &["doctor"],
        &["doctor", "--json"],
        &["agents", "--json"],
        &["policy", "ls", "--json"],
    ]
    .iter()
    .enumerate()
    {
        let said = machine.runs(shown).await;
        let text = said.stdout + &said.stderr;
        assert!(!text.is_empty(), "{shown:?}");
        std::fs::write(machine.path().join(format!("shown-{at}")), text).unwrap();
    }

    let init: Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    std::fs::remove_file(kept).unwrap();
    let told = init.to_string();
    for secret in [OF_CONFIG, OF_ENVIRONMENT, OF_TOOL_SERVER, OF_HEADER] {
        assert!(!told.contains(secret), "an agent is told {secret}");
    }
    let text = |key: &str| init[key].as_str().unwrap().to_owned();
    let control = std::fs::read_to_string(machine.home().join("run/control.token")).unwrap();
    let secrets = BTreeMap::from([
        ("the provider's key in the configuration", OF_CONFIG.into()),
        (
            "the provider's key in the environment",
            OF_ENVIRONMENT.into(),
        ),
        ("a tool server's variable", OF_TOOL_SERVER.into()),
        ("a tool server's header", OF_HEADER.into()),
        ("the worker's token", worker),
        ("the instance's key for tools", text("mcp_token")),
        ("the instance's key for models", text("ensemble_api_key")),
        ("the control token", control.trim().to_owned()),
        ("a browser's token", browser.paired.unwrap().token),
    ]);
    drop(boxed);
    (daemon, secrets)
}

/// Where a secret may be: in the file in which the user or the daemon keeps it.
fn is_kept_in(secret: &str, file: &Path) -> bool {
    match secret {
        "the provider's key in the configuration"
        | "a tool server's variable"
        | "a tool server's header" => file.ends_with(".quintet/config.toml"),
        "the control token" => file.ends_with("run/control.token"),
        _ => false,
    }
}

fn everything_in(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        found.push(entry.path());
        if entry.file_type().unwrap().is_dir() {
            everything_in(&entry.path(), found);
        }
    }
}

fn holds(bytes: &[u8], secret: &str) -> bool {
    bytes
        .windows(secret.len())
        .any(|part| part == secret.as_bytes())
}

/// Contents of files that were, which are compressed: those of a store, and the small ones that are
/// in a history.
fn unpacked(file: &Path, bytes: &[u8]) -> Vec<Vec<u8>> {
    let unpack = |packed: &[u8]| zstd::bulk::decompress(packed, 16 << 20).unwrap();
    if file.ends_with("history.db") {
        let history = rusqlite::Connection::open(file).unwrap();
        let mut rows = history.prepare("SELECT packed, data FROM content").unwrap();
        let rows = rows
            .query_map([], |row| {
                Ok((row.get::<_, bool>(0)?, row.get::<_, Vec<u8>>(1)?))
            })
            .unwrap();
        rows.map(|row| match row.unwrap() {
            (true, packed) => unpack(&packed),
            (false, plain) => plain,
        })
        .collect()
    } else if file.components().any(|part| part.as_os_str() == "cas") && bytes.first() == Some(&1) {
        vec![unpack(&bytes[5..])]
    } else {
        Vec::new()
    }
}

fn search(machine: &Machine, secrets: &BTreeMap<&'static str, String>) {
    let mut paths = Vec::new();
    everything_in(machine.path(), &mut paths);
    let named = |name: &str| paths.iter().any(|path| path.ends_with(name));
    for name in ["quintet.db", "history.db", "stderr", "stderr-of-box"] {
        assert!(named(name), "{name} is there to be searched");
    }
    let mut remembers = false;
    for path in paths.iter().filter(|path| path.is_file()) {
        let bytes = std::fs::read(path).unwrap();
        let before = unpacked(path, &bytes);
        remembers |= before.iter().any(|bytes| holds(bytes, "PATH="));
        for (name, secret) in secrets {
            let found = std::iter::once(&bytes)
                .chain(&before)
                .any(|bytes| holds(bytes, secret));
            let may = is_kept_in(name, path);
            assert!(!found || may, "{name} is in {}", path.display());
        }
    }
    assert!(remembers, "what was in the file that is gone was searched");
}

/// Every process that the daemon has started, with theirs.
fn children(pid: u32) -> Vec<u32> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let mut found: Vec<u32> = Vec::new();
    let lists = tasks
        .flatten()
        .flatten()
        .filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    for list in lists.chain(listed) {
        found.extend(
            list.split_whitespace()
                .filter_map(|it| it.parse::<u32>().ok()),
        );
    }
    found.sort_unstable();
    found.dedup();
    let theirs: Vec<u32> = found.iter().flat_map(|child| children(*child)).collect();
    found.extend(theirs);
    found
}

#[tokio::test]
async fn no_secret_is_where_it_should_not_be() {
    let machine = Machine::fresh();
    let models = TestServer::start(vec![
        Reply::tool("t1", "write_file", json!({"path": "a.txt", "content": "a"})),
        Reply::tool("t2", "exec", json!({"command": "env; ls -a"})),
        Reply::text("done"),
    ])
    .await;
    let (daemon, secrets) = day(&machine, &models).await;
    assert_eq!(models.received()[0].header("x-api-key"), OF_ENVIRONMENT);

    let started = children(daemon.pid());
    let mut agents = 0;
    for pid in started {
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else {
            continue;
        };
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_tool_server = holds(&command, "server.py");
        agents += u32::from(holds(&environment, "QUINTET_IPC_SOCKET"));
        for (name, secret) in &secrets {
            let is_its_own = is_tool_server && *name == "a tool server's variable";
            assert!(!holds(&command, secret), "{name} is in a command line");
            assert!(
                !holds(&environment, secret) || is_its_own,
                "{name} is in the environment of {}",
                String::from_utf8_lossy(&command)
            );
        }
    }
    assert!(agents >= 2, "agents were looked at");
    search(&machine, &secrets);
    daemon.signal(rustix::process::Signal::TERM);
    daemon.ends().await;
    search(&machine, &secrets);
}

#[tokio::test]
async fn what_a_run_leaves_is_its_users_alone() {
    let machine = Machine::fresh();
    let models = TestServer::start(vec![
        Reply::tool("t1", "exec", json!({"command": "echo a > a.txt"})),
        Reply::text("done"),
    ])
    .await;
    let (_daemon, _) = day(&machine, &models).await;
    let home = machine.home();
    let mode = |path: &Path| path.symlink_metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&home), 0o700);
    let mut paths = Vec::new();
    everything_in(&home, &mut paths);
    let mut sockets = 0;
    for path in &paths {
        let kind = path.symlink_metadata().unwrap().file_type();
        let shown = path.strip_prefix(&home).unwrap().display();
        if kind.is_socket() {
            sockets += 1;
            assert_eq!(mode(path), 0o600, "{shown}");
        }
        let is_at_the_top = path.parent() == Some(&home);
        if kind.is_dir() && is_at_the_top {
            assert_eq!(mode(path), 0o700, "{shown}");
        }
        let is_told = path.ends_with("config.toml");
        if kind.is_file() && !is_told && (is_at_the_top || path.starts_with(home.join("run"))) {
            assert_eq!(mode(path), 0o600, "{shown}");
        }
    }
    assert!(sockets >= 3, "control, an agent's and a workspace's");
}

#[tokio::test]
async fn what_a_worker_keeps_is_its_users_alone() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let token = machine.runs(&["token", "create", "--worker", "box"]).await;
    let elsewhere = Machine::fresh();
    // As it is on most machines: what is made is open to read.
    let mut dials = elsewhere.program("sh");
    dials
        .args([
            "-c",
            "umask 022; exec \"$0\" worker --daemon-id box --server-url \"$1\"",
        ])
        .arg(env!("CARGO_BIN_EXE_quintet"))
        .arg(daemon.http())
        .env("QUINTET_TOKEN", token.succeeds().trim());
    let _boxed = Running::start(dials);
    row(&machine, "worker_online", |data| data["worker"] == "box").await;
    machine
        .runs(&["send", "shell", "echo mine > a.txt", "--worker", "box"])
        .await
        .succeeds();
    let mut paths = Vec::new();
    everything_in(&elsewhere.home(), &mut paths);
    assert!(
        paths.iter().any(|path| path.ends_with("a.txt")),
        "{paths:?}"
    );
    let mode = elsewhere.home().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
