//! Replicas of a workspace of the daemon, which is written to on both sides.
//!
//! The workspace is on the disk, the replicas are in memory where there is a folder for that.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use futures_util::StreamExt as _;
use quintet_control::Client as _;
use quintet_control::wire::command_ended::Outcome;
use quintet_control::wire::{ExecMsg, StreamMsg, command_event, stream_event};
use quintet_workspace::replica::UnixDial;
use quintet_workspace::{Place, Replica, ReplicaConfig};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::super::sandbox::ours::memory_folder;
use super::super::workspace::trees::holds;
use super::Bed;
use super::tally::Latency;

/// Between two writes of the host, and into how many files they go.
pub(super) const HOST_EVERY: Duration = Duration::from_millis(100);
const FILES: u64 = 200;

/// One replica in so many writes back, as often as this.
pub(super) const WRITERS: usize = 5;
pub(super) const WRITER_EVERY: Duration = Duration::from_secs(5);

/// Bytes of a file.
pub(super) const BYTES: usize = 2000;

/// Between two looks at a file that is waited for.
const LOOK: Duration = Duration::from_millis(2);

/// After which a write is lost.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) struct Replicas {
    host: PathBuf,
    each: Vec<(PathBuf, Replica)>,
    /// They end with it.
    _running: JoinSet<()>,
    _folder: TempDir,
}

impl Replicas {
    /// Has the daemon open the workspace, and replicas follow it.
    pub(super) async fn start(bed: &Bed, host: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir(host)?;
        std::fs::write(host.join("first"), "there before any replica\n")?;
        open_workspace(bed, host).await?;
        let socket = Place::of(&bed.home, host)?.state_dir.join("sync.sock");
        let folder = memory_folder()?;
        let mut running = JoinSet::new();
        let mut each = Vec::new();
        for number in 0..bed.size.replicas {
            let at = |what: &str| folder.path().join(format!("{what}-{number}"));
            let config =
                ReplicaConfig::new(at("replica"), at("state"), format!("replica-{number}"));
            let opened = tokio::task::spawn_blocking(move || Replica::open(&config));
            let (replica, runner) = opened.await??;
            let (dial, tally) = (
                UnixDial {
                    path: socket.clone(),
                },
                Arc::clone(&bed.tally),
            );
            running.spawn(async move {
                let ran = runner.run(dial, CancellationToken::new()).await;
                tally.note(ran.with_context(|| format!("replica {number}")));
            });
            replica.barrier(PATIENCE).await?;
            each.push((at("replica"), replica));
        }
        Ok(Self {
            host: host.to_owned(),
            each,
            _running: running,
            _folder: folder,
        })
    }

    pub(super) fn work(&self, bed: &Bed, tasks: &mut JoinSet<anyhow::Result<()>>) {
        let replicas = self.each.iter().map(|(folder, _)| folder.clone()).collect();
        let host = Writes {
            folder: self.host.clone(),
            readers: replicas,
            every: HOST_EVERY,
            latency: Latency::WriteToReplica,
        };
        tasks.spawn(host.run(bed.clone(), |number| format!("host-{}", number % FILES)));
        for (writer, (folder, _)) in self.each.iter().enumerate().step_by(WRITERS) {
            let back = Writes {
                folder: folder.clone(),
                readers: vec![self.host.clone()],
                every: WRITER_EVERY,
                latency: Latency::ReplicaToHost,
            };
            tasks.spawn(back.run(bed.clone(), move |_| format!("replica-{writer}")));
        }
    }

    /// Fails unless every replica is what the host is, without a conflict.
    pub(super) async fn are_equal(&self) -> anyhow::Result<()> {
        for (folder, replica) in &self.each {
            let name = folder.display();
            let back = replica.write_back_and_wait(PATIENCE).await?;
            ensure!(back.rejected.is_empty(), "{name}: {:?}", back.rejected);
        }
        for (folder, replica) in &self.each {
            let name = folder.display();
            replica.barrier(PATIENCE).await?;
            let conflicts = replica.conflicts().await?;
            ensure!(conflicts.is_empty(), "{name}: {conflicts:?}");
            holds(folder, &self.host).with_context(|| format!("{name} lacks something"))?;
            holds(&self.host, folder).with_context(|| format!("{name} has too much"))?;
        }
        Ok(())
    }
}

/// A session in the folder, and a first command: that is what opens a workspace.
async fn open_workspace(bed: &Bed, folder: &Path) -> anyhow::Result<()> {
    let mut client = bed.client().await?;
    let request = StreamMsg {
        agent: "quiet".to_owned(),
        content: "0".to_owned(),
        cwd: Some(folder.to_str().context("a folder in UTF-8")?.to_owned()),
        worker: Some("worker-0".to_owned()),
        new_chat: true,
        ..StreamMsg::default()
    };
    let mut session = None;
    {
        let mut events = pin!(client.stream(request));
        while let Some(event) = events.next().await {
            if let Some(stream_event::Event::Start(start)) = event?.event {
                session = Some(start.session);
            }
        }
    }
    let request = ExecMsg {
        session: Some(session.context("the message has a session")?),
        command: "cat first".to_owned(),
        ..ExecMsg::default()
    };
    let mut events = pin!(client.exec(request));
    while let Some(event) = events.next().await {
        if let Some(command_event::Event::Ended(ended)) = event?.event {
            ensure!(ended.outcome == Some(Outcome::Exited(0)), "{ended:?}");
        }
    }
    Ok(())
}

/// Writes into one folder that have to come to others.
struct Writes {
    folder: PathBuf,
    readers: Vec<PathBuf>,
    every: Duration,
    latency: Latency,
}

/// A write that a reader does not have yet.
#[derive(Clone)]
struct Waited {
    number: u64,
    file: String,
    written: Instant,
}

impl Writes {
    /// Writes number after number into the file that `name` says, until the load stops and every
    /// reader has all of them.
    async fn run(self, bed: Bed, name: impl Fn(u64) -> String) -> anyhow::Result<()> {
        let mut waiting = vec![VecDeque::<Waited>::new(); self.readers.len()];
        let (mut next, mut number) = (Instant::now(), 0);
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let stopping = bed.stop.is_cancelled();
            if stopping && waiting.iter().all(VecDeque::is_empty) {
                return Ok(());
            }
            if !stopping && Instant::now() >= next {
                let file = name(number);
                std::fs::write(self.folder.join(&file), content(number))?;
                let written = Instant::now();
                for queue in &mut waiting {
                    let file = file.clone();
                    queue.push_back(Waited {
                        number,
                        file,
                        written,
                    });
                }
                number += 1;
                next += self.every;
            }
            for (reader, queue) in self.readers.iter().zip(&mut waiting) {
                while let Some(first) = queue.front() {
                    let age = first.written.elapsed();
                    if number_in(&reader.join(&first.file)) < Some(first.number) {
                        if age > PATIENCE {
                            let (file, reader) = (&first.file, reader.display());
                            bail!("{file} is not at {reader} after {PATIENCE:?}");
                        }
                        break;
                    }
                    bed.tally.took(self.latency, age);
                    queue.pop_front();
                }
            }
            if waiting.iter().all(VecDeque::is_empty) {
                tokio::select! {
                    () = bed.stop.cancelled() => {}
                    () = tokio::time::sleep_until(next.into()) => {}
                }
            } else {
                looks.tick().await;
            }
        }
    }
}

fn content(number: u64) -> String {
    format!("{number}\n{}", "x".repeat(BYTES))
}

/// The number in a file; nothing while it is not there or half there.
fn number_in(path: &Path) -> Option<u64> {
    let content = std::fs::read_to_string(path).ok()?;
    content.split_once('\n')?.0.parse().ok()
}
