//! A worker that can't keep up: each step of a command has an end, and the error names the step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::harness::{Machine, Running, within};
use crate::workers::row;

/// Stands between a worker and the daemon. What follows a workspace can be stalled: bytes stay
/// where they are, as on a network that is up and carries nothing.
struct Way {
    url: String,
    /// How many more bytes the daemon may send to copies of workspaces.
    budget: Arc<AtomicUsize>,
    /// Whether anything may pass at all.
    open: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Way {
    async fn to(daemon: &str, budget: usize) -> Self {
        let daemon = daemon.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let budget = Arc::new(AtomicUsize::new(budget));
        let open = watch::Sender::new(true);
        let mut tasks = JoinSet::new();
        let (left, opened) = (budget.clone(), open.subscribe());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (worker, _) = listener.accept().await.unwrap();
                let hub = TcpStream::connect(&daemon).await.unwrap();
                connections.spawn(pass(worker, hub, left.clone(), opened.clone()));
            }
        });
        Self {
            url,
            budget,
            open,
            _tasks: tasks,
        }
    }

    /// Lets everything pass again.
    fn clear(&self) {
        self.budget.store(usize::MAX / 2, Ordering::Relaxed);
        self.open.send_replace(true);
        // Whoever waits for the budget looks again.
        self.open.send_modify(|_| {});
    }

    fn stall(&self) {
        self.open.send_replace(false);
    }
}

async fn pass(
    worker: TcpStream,
    hub: TcpStream,
    budget: Arc<AtomicUsize>,
    open: watch::Receiver<bool>,
) {
    let mut start = [0; 16];
    while worker.peek(&mut start).await.unwrap() < start.len() {
        worker.readable().await.unwrap();
    }
    let follows = start.starts_with(b"GET /workspaces/");
    let (mut from_worker, mut to_worker) = worker.into_split();
    let (mut from_hub, mut to_hub) = hub.into_split();
    let mut up_open = open.clone();
    let up = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let Ok(read @ 1..) = from_worker.read(&mut buffer).await else {
                return;
            };
            if follows && up_open.wait_for(|open| *open).await.is_err() {
                return;
            }
            if to_hub.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let mut down_open = open;
    let down = async {
        let mut buffer = vec![0; 16 * 1024];
        loop {
            let Ok(read @ 1..) = from_hub.read(&mut buffer).await else {
                return;
            };
            if follows {
                let enough = |open: &bool| *open && budget.load(Ordering::Relaxed) >= read;
                if down_open.wait_for(enough).await.is_err() {
                    return;
                }
                budget.fetch_sub(read, Ordering::Relaxed);
            }
            if to_worker.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// A daemon with little patience, a worker behind a way, and a session in `project` on it.
async fn session_behind(machine: &Machine, http: &str, budget: usize) -> (Way, Running, String) {
    let way = Way::to(http, budget).await;
    let root = machine.path().join("elsewhere");
    std::fs::create_dir(&root).unwrap();
    let arguments = [
        "worker",
        "--daemon-id",
        "box",
        "--root",
        root.to_str().unwrap(),
        "--server-url",
        &way.url,
    ];
    let worker = Running::start_with_talk(machine, &arguments);
    row(machine, "worker_online", |data| data["worker"] == "box").await;
    let project = machine.path().join("project");
    let said = machine
        .runs(&[
            "send",
            "test",
            "say hello",
            "--new",
            "--json",
            "--cwd",
            project.to_str().unwrap(),
            "--worker",
            "box",
        ])
        .await
        .succeeds();
    let start: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let session = start["data"]["session"].to_string();
    (way, worker, session)
}

fn machine() -> Machine {
    let machine = Machine::with_test_agent();
    let path = machine.home().join("config.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    machine.configure(&format!("{config}[workspace]\npatience = \"1s\"\n"));
    std::fs::create_dir(machine.path().join("project")).unwrap();
    machine
}

#[tokio::test]
async fn a_worker_that_stays_behind_is_named_with_how_far() {
    let machine = machine();
    let project = machine.path().join("project");
    for file in 0..20u8 {
        // Nothing that gets smaller on its way.
        let mut state = u64::from(file) + 1;
        let bytes: Vec<u8> = (0..64 * 1024)
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                state.to_be_bytes()[0]
            })
            .collect();
        std::fs::write(project.join(format!("file-{file}")), bytes).unwrap();
    }
    let daemon = machine.up_with(&["--no-worker"]).await;
    let (way, _worker, session) = session_behind(&machine, daemon.http(), 256 * 1024).await;
    let exec = ["exec", "--session", &session, "--", "cat file-* | wc -c"];
    let refused = machine.runs(&exec).await.fails(125);
    let behind = refused
        .split("the worker is ")
        .nth(1)
        .unwrap_or_else(|| panic!("{refused}"));
    let files: u32 = behind.split(' ').next().unwrap().parse().unwrap();
    assert!((1..=20).contains(&files), "{refused}");
    assert!(behind.contains("behind after 2 s"), "{refused}");

    way.clear();
    let said = machine.runs(&exec).await.succeeds();
    assert_eq!(said.trim(), (20 * 64 * 1024).to_string());
}

#[tokio::test]
async fn files_that_do_not_come_back_are_said_and_follow_later() {
    let machine = machine();
    let project = machine.path().join("project");
    let daemon = machine.up_with(&["--no-worker"]).await;
    let (way, _worker, session) = session_behind(&machine, daemon.http(), usize::MAX / 2).await;
    let go = machine.path().join("go");
    let command = format!(
        "echo begun; while [ ! -e {} ]; do sleep 0.05; done; echo one > a; echo two > b",
        go.display()
    );
    let exec = ["exec", "--session", &session, "--", &command];
    let mut runs = Running::start_with_talk(&machine, &exec);
    assert_eq!(runs.line().await, "begun");
    way.stall();
    std::fs::write(&go, "").unwrap();
    let told = runs
        .prints("changes of the command are not at the host")
        .await;
    assert!(
        told.contains("2 changes of the command are not at the host after"),
        "{told}"
    );
    assert!(runs.ends().await.success(), "the command itself went well");
    assert!(!project.join("a").exists());
    let row = machine.sees("command", session.parse().unwrap()).await;
    assert_eq!(
        row["data"]["notes"][0].as_str(),
        told.strip_prefix("error: ")
    );

    let undo = ["undo", &session];
    let refused = machine.runs(&undo).await.fails(1);
    assert!(refused.contains("is not at the host"), "{refused}");

    way.clear();
    within("the files follow", async {
        while !(project.join("a").exists() && project.join("b").exists()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let said = machine
        .runs(&["exec", "--session", &session, "--", "cat a b"])
        .await;
    assert_eq!(said.succeeds(), "one\ntwo\n");
    machine.runs(&undo).await.succeeds();
    assert!(!project.join("a").exists() && !project.join("b").exists());
}
