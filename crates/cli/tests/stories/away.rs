//! A worker that is away for a while.

use std::path::Path;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::harness::{Machine, Running, within};
use crate::workers::{online, row};

/// The way from a worker to its daemon, which can be closed for a while.
struct Way {
    address: String,
    open: watch::Sender<bool>,
    _tasks: JoinSet<()>,
}

impl Way {
    async fn to(http: &str) -> Self {
        let daemon = http.strip_prefix("http://").unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let open = watch::Sender::new(true);
        let gate = open.subscribe();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (worker, _) = listener.accept().await.unwrap();
                if *gate.borrow() {
                    connections.spawn(pass(worker, daemon.clone(), gate.clone()));
                }
            }
        });
        Self {
            address,
            open,
            _tasks: tasks,
        }
    }
}

/// Passes bytes on until either side ends it or the way is closed.
async fn pass(mut worker: TcpStream, daemon: String, mut gate: watch::Receiver<bool>) {
    let mut daemon = TcpStream::connect(daemon).await.unwrap();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut worker, &mut daemon) => {}
        _ = gate.wait_for(|open| !open) => {}
    }
}

/// Nobody is left to ask for its result, and nobody would stop it.
#[tokio::test]
async fn a_command_whose_client_goes_while_its_worker_is_away_is_ended_when_that_is_back() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let way = Way::to(daemon.http()).await;
    let url = format!("ws://{}/ws", way.address);
    let dial = ["worker", "--server-url", &url, "--daemon-id", "w"];
    let _worker = Running::start_with_talk(&machine, &dial);
    online(&machine, "w").await;
    let mut client = Running::start(machine.quintet(&["exec", "w", "--", "echo $$; sleep 1000"]));
    let process = format!("/proc/{}", client.line().await);
    way.open.send_replace(false);
    row(&machine, "worker_offline", |data| data["worker"] == "w").await;
    client.signal(rustix::process::Signal::KILL);
    client.ends().await;
    assert!(Path::new(&process).exists());
    way.open.send_replace(true);
    within("the command is ended", async {
        while Path::new(&process).exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let ended = row(&machine, "command_ended", |data| data["worker"] == "w").await;
    assert_eq!(ended["data"]["result"], "cancelled");
}
