//! A hub in this process and a worker in another; and the same behind the daemon.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use async_trait::async_trait;
use futures_util::StreamExt as _;
use quintet_control::wire::command_ended::Outcome;
use quintet_control::wire::command_event::Event;
use quintet_control::wire::{ExecMsg, WorkerList};
use quintet_control::{Client as _, UnixClient};
use quintet_framing::ws::{Refusal, accept_socket};
use quintet_sandbox::hub::{
    AuthError, ExecOutcome, ExecRequest, Hub, HubSettings, NoObserver, PeerInfo, ShellEvent,
    TerminalSize, UploadRequest, WorkerAuth, WorkerStatus,
};
use quintet_sandbox::proto::{MAX_MESSAGE, negotiate};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bare::{ECHO, ECHO_READY, key};
use super::child;

const WORKER: &str = "w";

/// Which worker is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    V1,
    V2,
    Isolated,
}

/// A program of ours in another process, killed when dropped.
pub(in crate::cases) struct Program {
    child: Child,
    /// The first line that it printed.
    pub(in crate::cases) said: String,
}

impl Program {
    pub(in crate::cases) fn start(words: &[&str], says: bool) -> anyhow::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["child", "sandbox"])
            .args(words)
            // Held open: the child ends with it.
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut said = String::new();
        if says {
            let stdout = child.stdout.take().context("it has a pipe")?;
            BufReader::new(stdout).read_line(&mut said)?;
        }
        Ok(Self {
            child,
            said: said.trim().to_owned(),
        })
    }

    pub(in crate::cases) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As many threads as the daemon's runtime has on this machine.
fn runtime() -> anyhow::Result<Runtime> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}

/// A folder in memory where there is one.
pub(in crate::cases) fn memory_folder() -> anyhow::Result<TempDir> {
    let shm = Path::new("/dev/shm");
    Ok(if shm.is_dir() {
        TempDir::new_in(shm)?
    } else {
        TempDir::new()?
    })
}

struct Everybody;

#[async_trait]
impl WorkerAuth for Everybody {
    async fn authorize(&self, _: &PeerInfo, _: &str) -> Result<(), AuthError> {
        Ok(())
    }
}

pub(super) struct Ours {
    runtime: Runtime,
    hub: Hub,
    folder: TempDir,
    _worker: Program,
}

impl Ours {
    pub(super) fn start(variant: Variant) -> anyhow::Result<Self> {
        let runtime = runtime()?;
        let shutdown = CancellationToken::new();
        let hub = Hub::new(
            HubSettings::default(),
            Arc::new(Everybody),
            Arc::new(NoObserver),
            shutdown,
        );
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        runtime.spawn(serve(hub.clone(), listener));
        let folder = memory_folder()?;
        let worker = worker(&format!("ws://{address}/ws"), folder.path(), variant)?;
        let mut changes = hub.changes();
        runtime.block_on(async {
            while hub
                .worker(WORKER)
                .is_none_or(|info| info.state != WorkerStatus::Online)
            {
                changes.changed().await?;
            }
            anyhow::Ok(())
        })?;
        Ok(Self {
            runtime,
            hub,
            folder,
            _worker: worker,
        })
    }

    /// A file beneath the worker's root.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("root").join(name)
    }

    pub(super) fn execs(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        let hub = self.hub.clone();
        self.run(async move {
            let mut samples = Vec::with_capacity(count);
            for _ in 0..count {
                let started = Instant::now();
                exec(&hub).await?;
                samples.push(started.elapsed());
            }
            Ok(samples)
        })
    }

    pub(super) fn execs_at_once(&mut self, at_once: usize, each: usize) -> anyhow::Result<()> {
        let hub = self.hub.clone();
        self.run(async move {
            let mut tasks = JoinSet::new();
            for _ in 0..at_once {
                let hub = hub.clone();
                tasks.spawn(async move {
                    for _ in 0..each {
                        exec(&hub).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            Ok(())
        })
    }

    pub(super) fn echoes(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        let hub = self.hub.clone();
        self.run(async move {
            let size = TerminalSize { rows: 24, cols: 80 };
            let mut shell = hub.shell(WORKER, size, "xterm").await?;
            let input = shell.input();
            // The second command says it, so that the echo of the first is not taken for it.
            let line = format!("exec sh -c '{ECHO_READY}{ECHO}'\n");
            input.write(line.as_bytes()).await?;
            let mut seen = Vec::new();
            while !seen.ends_with(b"ready") {
                let ShellEvent::Output(bytes) = shell.next().await? else {
                    bail!("the shell ended");
                };
                seen.extend_from_slice(&bytes);
            }
            let mut samples = Vec::with_capacity(count);
            for n in 0..count {
                let key = key(n);
                let started = Instant::now();
                input.write(&[key]).await?;
                let event = shell.next().await?;
                samples.push(started.elapsed());
                ensure!(
                    event == ShellEvent::Output(vec![key].into()),
                    "another byte came back: {event:?}"
                );
            }
            Ok(samples)
        })
    }

    pub(super) fn upload(&mut self, source: &Path, name: &str, size: u64) -> anyhow::Result<()> {
        let (hub, source) = (self.hub.clone(), source.to_owned());
        let request = UploadRequest {
            path: name.to_owned(),
            size,
            mode: None,
            modified: None,
        };
        self.run(async move {
            let mut file = tokio::fs::File::open(source).await?;
            Ok(hub.upload(WORKER, &request, &mut file, |_| {}).await?)
        })
    }

    pub(super) fn download(&mut self, name: &str, target: &Path) -> anyhow::Result<()> {
        let (hub, target) = (self.hub.clone(), target.to_owned());
        let name = name.to_owned();
        self.run(async move {
            let mut file = tokio::fs::File::options()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(target)
                .await?;
            hub.download_to(WORKER, &name, &mut file, |_| {}).await?;
            Ok(())
        })
    }

    /// On the runtime's own threads, as the daemon's callers are.
    fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.runtime.block_on(self.runtime.spawn(work))?
    }
}

fn worker(url: &str, folder: &Path, variant: Variant) -> anyhow::Result<Program> {
    let settings = child::Settings {
        server_url: url.to_owned(),
        daemon_id: WORKER.to_owned(),
        root: folder.join("root"),
        spool: folder.join("spool"),
        v1_only: variant == Variant::V1,
        isolate: variant == Variant::Isolated,
        copies: None,
    };
    std::fs::create_dir_all(&settings.root)?;
    Program::start(&["worker", &serde_json::to_string(&settings)?], false)
}

async fn exec(hub: &Hub) -> anyhow::Result<()> {
    let request = ExecRequest {
        command: "true".to_owned(),
        ..ExecRequest::default()
    };
    let output = hub.exec(WORKER, request).await?.output(1024).await?;
    ensure!(output.outcome == ExecOutcome::Exited(0));
    Ok(())
}

async fn serve(hub: Hub, listener: TcpListener) -> anyhow::Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (socket, peer) = listener.accept().await?;
        connections.spawn(upgrade(hub.clone(), socket, peer));
    }
}

async fn upgrade(hub: Hub, socket: TcpStream, peer: SocketAddr) -> anyhow::Result<()> {
    socket.set_nodelay(true)?;
    let mut protocol = None;
    let socket = accept_socket(socket, MAX_MESSAGE, |request| {
        let offered = request
            .headers()
            .get("sec-websocket-protocol")
            .and_then(|value| value.to_str().ok());
        let chosen = negotiate(offered.unwrap_or_default()).map_err(|error| Refusal {
            status: 400,
            reason: error.to_string(),
        })?;
        protocol = Some(chosen);
        Ok(Some(chosen.name().to_owned()))
    })
    .await?;
    let peer = PeerInfo {
        address: Some(peer),
        same_user: true,
        token: None,
    };
    let protocol = protocol.context("it was negotiated")?;
    hub.serve_connection(socket, peer, protocol).await;
    Ok(())
}

/// The daemon in a process, its worker in another, and clients here.
pub(super) struct ThroughDaemon {
    runtime: Runtime,
    socket: PathBuf,
    _programs: [Program; 2],
    _folders: [TempDir; 2],
}

impl ThroughDaemon {
    pub(super) fn start() -> anyhow::Result<Self> {
        // On the disk of this repository: that is where a sync costs what it costs.
        let home = TempDir::new_in(env!("CARGO_MANIFEST_DIR"))?;
        let daemon = daemon(home.path())?;
        let folder = memory_folder()?;
        let url = format!("{}/ws", daemon.said.replacen("http", "ws", 1));
        let worker = worker(&url, folder.path(), Variant::V2)?;
        let socket = home.path().join("run/quintet.sock");
        let this = Self {
            runtime: runtime()?,
            socket,
            _programs: [daemon, worker],
            _folders: [home, folder],
        };
        this.runtime.block_on(async {
            let mut client = UnixClient::connect(&this.socket).await?;
            let online = |list: WorkerList| list.workers.iter().any(|it| it.state == "online");
            while !online(client.workers().await?) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            anyhow::Ok(())
        })?;
        Ok(this)
    }

    pub(super) fn execs(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        let socket = self.socket.clone();
        let work = async move {
            let mut client = UnixClient::connect(socket).await?;
            let mut samples = Vec::with_capacity(count);
            for _ in 0..count {
                let started = Instant::now();
                exec_by(&mut client).await?;
                samples.push(started.elapsed());
            }
            Ok(samples)
        };
        self.runtime.block_on(self.runtime.spawn(work))?
    }

    pub(super) fn execs_at_once(&mut self, at_once: usize, each: usize) -> anyhow::Result<()> {
        let socket = self.socket.clone();
        let work = async move {
            let mut tasks = JoinSet::new();
            for _ in 0..at_once {
                let socket = socket.clone();
                tasks.spawn(async move {
                    let mut client = UnixClient::connect(socket).await?;
                    for _ in 0..each {
                        exec_by(&mut client).await?;
                    }
                    anyhow::Ok(())
                });
            }
            while let Some(done) = tasks.join_next().await {
                done??;
            }
            Ok(())
        };
        self.runtime.block_on(self.runtime.spawn(work))?
    }
}

pub(in crate::cases) fn daemon(home: &Path) -> anyhow::Result<Program> {
    let home = home.to_str().context("a home folder in UTF-8")?;
    Program::start(&["daemon", home], true)
}

async fn exec_by(client: &mut UnixClient) -> anyhow::Result<()> {
    let request = ExecMsg {
        worker: WORKER.to_owned(),
        command: "true".to_owned(),
        ..ExecMsg::default()
    };
    let events = client.exec(request);
    tokio::pin!(events);
    let mut outcome = None;
    while let Some(event) = events.next().await {
        if let Some(Event::Ended(ended)) = event?.event {
            outcome = ended.outcome;
        }
    }
    ensure!(outcome == Some(Outcome::Exited(0)), "{outcome:?}");
    Ok(())
}
