//! The whole story on three hosts: the daemon's, the sandbox's and the person's, each a network
//! namespace. It needs the right to make those (root).

use std::future::Future;
use std::path::{Path, PathBuf};
use std::process::Command as Blocking;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::StreamExt;
use quintet_control::wire::stream_event::Event;
use quintet_control::wire::{AttachMsg, ClientHello, StreamEvent, StreamMsg};
use quintet_control::{Client, TcpClient};
use quintet_models::test_server::{Reply, TestServer};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::mpsc;

use crate::harness::{Machine, Running, within};

const DAEMON: &str = "10.77.0.1";

/// Three namespaces around one bridge, which is the daemon's.
struct Hosts {
    tag: String,
}

impl Hosts {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let hosts = Self {
            tag: format!("q{}-{number}", std::process::id()),
        };
        for host in ["d", "s", "c"] {
            hosts.ip(&["netns", "add", &hosts.name(host)]);
            hosts.inside(host, &["link", "set", "lo", "up"]);
        }
        hosts.inside("d", &["link", "add", "br0", "type", "bridge"]);
        hosts.inside("d", &["addr", "add", &format!("{DAEMON}/24"), "dev", "br0"]);
        hosts.inside("d", &["link", "set", "br0", "up"]);
        for (host, address) in [("s", "10.77.0.2/24"), ("c", "10.77.0.3/24")] {
            let (near, peer) = (format!("to-{host}"), hosts.name(host));
            let pair = [
                "link", "add", &near, "type", "veth", "peer", "eth0", "netns", &peer,
            ];
            hosts.inside("d", &pair);
            hosts.inside("d", &["link", "set", &near, "master", "br0", "up"]);
            hosts.inside(host, &["addr", "add", address, "dev", "eth0"]);
            hosts.inside(host, &["link", "set", "eth0", "up"]);
        }
        hosts
    }

    fn name(&self, host: &str) -> String {
        format!("{}{host}", self.tag)
    }

    fn ip(&self, words: &[&str]) {
        let done = Blocking::new("ip").args(words).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(
            done.status.success(),
            "ip {words:?} (this story needs root): {said}"
        );
    }

    fn inside(&self, host: &str, words: &[&str]) {
        self.ip(&[&["-n", &self.name(host)], words].concat());
    }

    /// Pulls or plugs a host's cable.
    fn cable(&self, host: &str, state: &str) {
        self.inside("d", &["link", "set", &format!("to-{host}"), state]);
    }

    /// The program on a host, with the home folder of `machine`.
    fn quintet(&self, host: &str, machine: &Machine, words: &[&str]) -> Command {
        let mut command = machine.program("ip");
        command.args([
            "netns",
            "exec",
            &self.name(host),
            env!("CARGO_BIN_EXE_quintet"),
        ]);
        command.args(words);
        command
    }

    /// Runs something with sockets of a host's, on a thread of its own.
    fn on<F>(
        &self,
        host: &str,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> std::thread::JoinHandle<()>
    where
        F: Future<Output = ()>,
    {
        let path = Path::new("/run/netns").join(self.name(host));
        std::thread::spawn(move || {
            let namespace = std::fs::File::open(path).unwrap();
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime.unwrap().block_on(work());
        })
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in ["d", "s", "c"] {
            let name = self.name(host);
            drop(Blocking::new("ip").args(["netns", "del", &name]).output());
        }
    }
}

/// The rows of the journal as they come.
fn journal(machine: &Machine) -> Running {
    Running::start(machine.quintet(&["events", "--json", "--follow", "--after", "0"]))
}

async fn row(events: &mut Running, such: impl Fn(&Value) -> bool) -> Value {
    loop {
        let row: Value = serde_json::from_str(&events.line().await).unwrap();
        if such(&row) {
            return row;
        }
    }
}

/// What the person's client does: follows one turn over as many connections as it takes.
async fn follow(
    port: u16,
    token: String,
    ask: StreamMsg,
    seen: mpsc::UnboundedSender<StreamEvent>,
) {
    let mut last = None;
    let mut session = None;
    loop {
        let hello = ClientHello {
            token: token.clone(),
            ..ClientHello::default()
        };
        let dialling = TcpClient::connect((DAEMON, port), hello);
        let Ok(Ok((mut client, _))) = tokio::time::timeout(PATIENCE, dialling).await else {
            continue;
        };
        let mut events = match session {
            None => client.stream(ask.clone()).boxed(),
            Some(session) => {
                let request = AttachMsg {
                    session,
                    after_seq: last,
                    turn: None,
                };
                client.attach(request).boxed()
            }
        };
        // A connection that says nothing for so long is given up, as a phone's is.
        while let Ok(Some(Ok(event))) = tokio::time::timeout(PATIENCE, events.next()).await {
            last = event.seq.or(last);
            if let Some(Event::Start(start)) = &event.event {
                session = Some(start.session);
            }
            let ended = matches!(event.event, Some(Event::End(_)));
            if seen.send(event).is_err() || ended {
                return;
            }
        }
    }
}

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(3);

/// Writes a marker when it runs, and its report when it is let go on.
const SCRIPT: &str = "touch running; while [ ! -e /tmp/GATE ]; do sleep 0.05; done; echo 3 passed > report; cat report\n";

#[tokio::test]
async fn an_agent_here_a_sandbox_there_a_person_elsewhere_and_the_cables_are_pulled() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("no network namespaces can be made here: this story needs root");
        return;
    }
    let machine = Machine::fresh();
    let elsewhere = Machine::fresh();
    let hosts = Hosts::new();
    let gate = machine.path().join("gate");
    let script = SCRIPT.replace("/tmp/GATE", gate.to_str().unwrap());

    let (told, models) = tokio::sync::oneshot::channel();
    let (stop_models, stopped) = tokio::sync::oneshot::channel::<()>();
    let provider = hosts.on("d", move || async move {
        let server = TestServer::start(vec![
            Reply::tool(
                "t1",
                "write_file",
                json!({ "path": "test.sh", "content": script }),
            ),
            Reply::tool("t2", "exec", json!({ "command": "sh test.sh" })),
            Reply::text("All three tests pass."),
        ])
        .await;
        told.send(server.url()).unwrap();
        let _ = stopped.await;
    });
    let url = models.await.unwrap();
    machine.configure(&format!(
        "[control]\ntcp = \"{DAEMON}:0\"\n\
         [sandbox]\nheartbeat = \"500ms\"\nstale_after = \"3s\"\nstale_check = \"1s\"\n\
         [providers.local]\nkind = \"anthropic\"\nbase_url = {url:?}\napi_key = \"secret-key\"\n"
    ));
    let listen = format!("{DAEMON}:0");
    let up = ["up", "--no-worker", "--listen", &listen];
    let mut daemon = Running::start(hosts.quintet("d", &machine, &up));
    daemon.prints("is ready at").await;
    let run: Value = serde_json::from_slice(&std::fs::read(machine.run_file()).unwrap()).unwrap();
    let address = run["http"].as_str().unwrap().to_owned();
    assert!(
        address.starts_with("https://"),
        "over the network it is TLS: {address}"
    );

    let token = machine
        .runs(&["token", "create", "--worker", "box"])
        .await
        .succeeds();
    let root = elsewhere.path().join("root");
    std::fs::create_dir(&root).unwrap();
    let worker = [
        "worker",
        "--server-url",
        &address,
        "--daemon-id",
        "box",
        "--token",
        token.trim(),
        "--root",
        root.to_str().unwrap(),
    ];
    let _worker = Running::start(hosts.quintet("s", &elsewhere, &worker));
    let mut events = journal(&machine);
    row(&mut events, |row| row["kind"] == "worker_online").await;

    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("README"), "the project\n").unwrap();
    let ask = StreamMsg {
        agent: "coder".into(),
        content: "write the tests and run them".into(),
        cwd: Some(project.to_str().unwrap().into()),
        worker: Some("box".into()),
        ..StreamMsg::default()
    };
    let port = std::fs::read_to_string(machine.home().join("run/quintet.port")).unwrap();
    let port: u16 = port.trim().parse().unwrap();
    let control = std::fs::read_to_string(machine.home().join("run/control.token")).unwrap();
    let (seen, mut answer) = mpsc::unbounded_channel();
    let person = hosts.on("c", move || follow(port, control, ask, seen));

    // In the middle of the command, both cables are pulled.
    let started = row(&mut events, |row| row["kind"] == "command_started").await;
    assert_eq!(started["data"]["command"], "sh test.sh");
    let copy = within("the command to run", running_in(root.join("workspaces"))).await;
    hosts.cable("s", "down");
    hosts.cable("c", "down");
    row(&mut events, |row| row["kind"] == "worker_stale").await;
    std::fs::write(&gate, "").unwrap();
    within("the report in the sandbox", exists(copy.join("report"))).await;
    assert!(
        !project.join("report").exists(),
        "the host can't have it yet"
    );
    hosts.cable("s", "up");
    hosts.cable("c", "up");

    let (mut text, mut numbers, mut end) = (String::new(), Vec::new(), None);
    while let Some(event) = within("the rest of the answer", answer.recv()).await {
        numbers.extend(event.seq);
        match event.event {
            Some(Event::Chunk(chunk)) => text.push_str(&chunk.content),
            Some(Event::End(ended)) => end = Some(ended),
            _ => {}
        }
    }
    let end = end.unwrap();
    assert_eq!(
        (end.error.as_str(), text.as_str()),
        ("", "All three tests pass.")
    );
    assert!(
        numbers.is_sorted_by(|a, b| a < b),
        "nothing is told twice: {numbers:?}"
    );
    for folder in [&project, &copy] {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        assert!(read("test.sh").contains("3 passed"));
        assert_eq!(read("report"), "3 passed\n");
        assert_eq!(read("README"), "the project\n");
    }
    let command = row(&mut events, |row| row["kind"] == "command").await;
    let data = &command["data"];
    assert_eq!(
        (&data["exit_code"], &data["worker"]),
        (&json!(0), &json!("box"))
    );
    assert!(data["after"].as_u64() > data["before"].as_u64(), "{data}");
    let changed = data["changed"].as_array().unwrap();
    assert!(changed.iter().any(|it| it["path"] == "report"), "{data}");

    let session = command["session"].to_string();
    let listed = ["events", "--json", "--session", &session];
    let rows = machine.runs(&listed).await.succeeds();
    let rows: Vec<Value> = rows
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let commands: Vec<&Value> = rows.iter().filter(|row| row["kind"] == "command").collect();
    assert_eq!(commands.len(), 2, "{commands:?}");
    assert_eq!(commands[0]["data"]["tool"], "write_file");
    for command in commands {
        let data = &command["data"];
        assert!(data["after"].as_u64() > data["before"].as_u64(), "{data}");
    }

    machine.runs(&["undo", &session]).await.succeeds();
    assert!(!project.join("report").exists());
    assert!(project.join("test.sh").exists());
    within("the sandbox has no report", is_gone(copy.join("report"))).await;
    machine.runs(&["undo", &session]).await.succeeds();
    assert!(!project.join("test.sh").exists());
    within("the sandbox has no test", is_gone(copy.join("test.sh"))).await;
    for folder in [&project, &copy] {
        assert!(folder.join("README").exists());
    }

    person.join().unwrap();
    drop(stop_models);
    provider.join().unwrap();
}

/// The copy of the workspace, once the script runs in it.
async fn running_in(copies: PathBuf) -> PathBuf {
    loop {
        let found = std::fs::read_dir(&copies).ok().and_then(|mut it| it.next());
        if let Some(Ok(copy)) = found
            && copy.path().join("running").exists()
        {
            return copy.path();
        }
        tokio::task::yield_now().await;
    }
}

async fn exists(path: PathBuf) {
    while !path.exists() {
        tokio::task::yield_now().await;
    }
}

async fn is_gone(path: PathBuf) {
    while path.exists() {
        tokio::task::yield_now().await;
    }
}

/// What was begun over the network of a host: TCP connections dialled, and UDP datagrams.
fn sent(hosts: &Hosts, host: &str) -> u64 {
    let words = ["netns", "exec", &hosts.name(host), "cat"];
    let files = ["/proc/net/snmp", "/proc/net/snmp6"];
    let read = Blocking::new("ip")
        .args(words)
        .args(files)
        .output()
        .unwrap();
    let text = String::from_utf8(read.stdout).unwrap();
    let of = |protocol: &str, counter: &str| -> u64 {
        let mut lines = text.lines().filter(|line| line.starts_with(protocol));
        let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
        let mut both = names.split(' ').zip(values.split(' '));
        both.find(|(name, _)| *name == counter)
            .unwrap()
            .1
            .parse()
            .unwrap()
    };
    let datagrams6 = text
        .lines()
        .find_map(|line| line.strip_prefix("Udp6OutDatagrams"));
    let datagrams6: u64 = datagrams6.unwrap().trim().parse().unwrap();
    of("Tcp:", "ActiveOpens") + of("Udp:", "OutDatagrams") + datagrams6
}

/// A first run, with nothing configured, dials nobody but itself.
#[tokio::test]
async fn nothing_is_sent_that_was_not_configured() {
    let hosts = Hosts::new();
    // There is a way to everywhere: without one nothing would be sent, whatever is tried.
    hosts.inside("s", &["route", "add", "default", "via", DAEMON]);
    let machine = Machine::fresh();
    let up = ["up", "--listen", "127.0.0.1:0"];
    let mut daemon =
        Running::start(hosts.quintet("s", &machine, &[&up[..], &["--no-worker"]].concat()));
    daemon.prints("is ready at").await;
    machine.runs(&["sessions"]).await.succeeds();
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.ends().await.success());
    assert_eq!(sent(&hosts, "s"), 0);

    // The built-in worker dials the daemon, over loopback, once.
    let mut daemon = Running::start(hosts.quintet("s", &machine, &up));
    daemon.prints("is ready at").await;
    machine
        .runs(&["exec", "local", "--", "true"])
        .await
        .succeeds();
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.ends().await.success());
    assert_eq!(sent(&hosts, "s"), 1);
}
