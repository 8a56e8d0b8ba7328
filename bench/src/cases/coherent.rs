//! What coherence costs: a command in a session's workspace against the same command without one.
//!
//! The daemon is a process, its worker another, over loopback; the worker has a copy of a workspace
//! of 10,000 files of its own, and everything is on the disk of this repository, where a sync
//! costs what it costs. Both contenders go through the control socket to the same worker.
//!
//! A latency is shown as how often a second it fits; what a command costs more is the difference
//! of the two times. Where files change, the host writes ten of them right before the clock
//! starts, and the command checks the last of those and writes ten others.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use quintet_control::wire::command_ended::Outcome;
use quintet_control::wire::command_event::Event;
use quintet_control::wire::{ExecMsg, StreamMsg, stream_event};
use quintet_control::{Client as _, UnixClient};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use super::Case;
use super::sandbox::ours::{Program, daemon};
use super::sandbox::{Sampler, Shared, child, latencies};
use crate::harness::Race;

pub(crate) const CASE: Case = Case {
    name: "coherent",
    about: "exec in a workspace of 10,000 files against exec without one",
    races,
};

/// Files of the workspace.
const FILES: usize = 10_000;

/// Files that change on each side.
const CHANGES: usize = 10;

/// Commands in one round.
const EXECS: usize = 100;

const WORKER: &str = "w";

/// How a command runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Coherent,
    Plain,
}

fn races() -> anyhow::Result<Vec<Race>> {
    let host = Shared::<Host>::default();
    let contenders = |changes: usize| -> Vec<(&'static str, Sampler)> {
        [("coherent", Kind::Coherent), ("plain", Kind::Plain)]
            .into_iter()
            .map(|(name, kind)| {
                let host = host.clone();
                let sampler: Sampler =
                    Rc::new(move || host.with(Host::start, |host| host.execs(kind, changes)));
                (name, sampler)
            })
            .collect()
    };
    let mut races = latencies("exec of true, nothing changed", "execs/s", &contenders(0));
    races.extend(latencies(
        "10 files changed on each side",
        "execs/s",
        &contenders(CHANGES),
    ));
    Ok(races)
}

/// A daemon, its worker, and a session whose workspace is large.
struct Host {
    runtime: Runtime,
    socket: PathBuf,
    session: u64,
    workspace: PathBuf,
    worker_root: PathBuf,
    /// Counts commands, so that none writes what the one before has written.
    number: u64,
    _programs: [Program; 2],
    _folder: TempDir,
}

impl Host {
    fn start() -> anyhow::Result<Self> {
        let folder = TempDir::new_in(env!("CARGO_MANIFEST_DIR"))?;
        let at = |name: &str| folder.path().join(name);
        let (home, workspace, worker_root) = (at("home"), at("workspace"), at("root"));
        for made in [&home, &workspace, &worker_root] {
            fs::create_dir(made)?;
        }
        fill(&workspace)?;
        let daemon = daemon(&home)?;
        let settings = child::Settings {
            server_url: format!("{}/ws", daemon.said.replacen("http", "ws", 1)),
            daemon_id: WORKER.to_owned(),
            root: worker_root.clone(),
            spool: at("spool"),
            v1_only: false,
            isolate: false,
            copies: Some(at("copies")),
        };
        let worker = Program::start(&["worker", &serde_json::to_string(&settings)?], false)?;
        let runtime = Runtime::new()?;
        let socket = home.join("run/quintet.sock");
        let session = runtime.block_on(session(&socket, &workspace))?;
        let mut host = Self {
            runtime,
            socket,
            session,
            workspace,
            worker_root,
            number: 0,
            _programs: [daemon, worker],
            _folder: folder,
        };
        // The first copy of everything is not what is measured.
        host.execs(Kind::Coherent, 0)?;
        Ok(host)
    }

    fn execs(&mut self, kind: Kind, changes: usize) -> anyhow::Result<Vec<Duration>> {
        let folder = match kind {
            Kind::Coherent => self.workspace.clone(),
            Kind::Plain => self.worker_root.clone(),
        };
        let mut client = self.runtime.block_on(UnixClient::connect(&self.socket))?;
        let mut samples = Vec::with_capacity(EXECS);
        for _ in 0..EXECS {
            self.number += 1;
            let number = self.number;
            let mut request = ExecMsg {
                command: command(number, changes),
                ..ExecMsg::default()
            };
            match kind {
                Kind::Coherent => request.session = Some(self.session),
                Kind::Plain => request.worker = WORKER.to_owned(),
            }
            for n in 0..changes {
                fs::write(folder.join(format!("host-{n}")), format!("{number}\n"))?;
            }
            let started = Instant::now();
            self.runtime.block_on(exec(&mut client, request))?;
            samples.push(started.elapsed());
            for n in 0..changes {
                let written = fs::read_to_string(folder.join(format!("worker-{n}")))?;
                ensure!(written == format!("{number}\n"), "the host is behind");
            }
        }
        Ok(samples)
    }
}

/// The same work for both, in the shell itself: no further process is started.
fn command(number: u64, changes: usize) -> String {
    let Some(last) = changes.checked_sub(1) else {
        return "true".to_owned();
    };
    let writes: Vec<String> = (0..changes)
        .map(|n| format!("echo {number} > worker-{n}"))
        .collect();
    format!(
        "read -r seen < host-{last} && [ \"$seen\" = {number} ] && {}",
        writes.join(" && ")
    )
}

fn fill(workspace: &Path) -> anyhow::Result<()> {
    for folder in 0..100 {
        fs::create_dir(workspace.join(format!("folder-{folder:02}")))?;
    }
    for n in 0..FILES {
        let path = format!("folder-{:02}/file-{n:05}.txt", n % 100);
        let line = format!("line of file {n}, which is like no other file's\n");
        fs::write(workspace.join(path), line.repeat(1 + n % 80))?;
    }
    Ok(())
}

/// A session on the worker whose workspace is this folder.
async fn session(socket: &Path, workspace: &Path) -> anyhow::Result<u64> {
    let mut client = UnixClient::connect(socket).await?;
    while !client
        .workers()
        .await?
        .workers
        .iter()
        .any(|it| it.state == "online")
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let folder = workspace.to_str().context("a folder in UTF-8")?;
    let request = StreamMsg {
        agent: "quiet".to_owned(),
        content: "0".to_owned(),
        cwd: Some(folder.to_owned()),
        worker: Some(WORKER.to_owned()),
        ..StreamMsg::default()
    };
    let mut events = std::pin::pin!(client.stream(request));
    let mut session = None;
    while let Some(event) = events.next().await {
        if let Some(stream_event::Event::Start(start)) = event?.event {
            session = Some(start.session);
        }
    }
    session.context("the message has a session")
}

async fn exec(client: &mut UnixClient, request: ExecMsg) -> anyhow::Result<()> {
    let mut events = std::pin::pin!(client.exec(request));
    let mut outcome = None;
    while let Some(event) = events.next().await {
        if let Some(Event::Ended(ended)) = event?.event {
            outcome = ended.outcome;
        }
    }
    ensure!(outcome == Some(Outcome::Exited(0)), "{outcome:?}");
    Ok(())
}
