//! One process of an instance and the connection to it.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quintet_framing::confined::{descends_from, is_confined};
use quintet_framing::{FrameError, FrameReader, FrameWriter, ReadError, unix};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::capture::{RecentLines, capture};
use super::types::InstanceSpec;
use crate::ledger::{EntryId, Ledger, LedgerError};
use crate::logs::{InstanceLog, LogSource};
use crate::process::{Cgroup, CgroupRoot, Launch, Process, SpawnError, Spawner};
use crate::proto::FORMAT;
use crate::proto::message::CoordinatorToAgent;

/// Longest path of a Unix socket.
const MAX_SOCKET_PATH: usize = 107;

/// What may wait to be written to an agent that does not read: one frame of the largest size and some.
const MAX_QUEUED: usize = 24 * 1024 * 1024;

/// How long the output of an ended process may take to be copied.
const CAPTURE_PATIENCE: Duration = Duration::from_secs(1);

/// Things that are logged once for each process; further kinds are not logged at all.
const MAX_NOTED: usize = 256;

/// What all instances of a supervisor share.
#[derive(Debug)]
pub(super) struct Facilities {
    pub(super) spawner: Spawner,
    pub(super) ledger: Arc<Ledger>,
    pub(super) cgroups: Option<CgroupRoot>,
    pub(super) short_dir: Option<PathBuf>,
}

/// Why an instance's process does not come up.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Bind(#[from] unix::BindError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    #[error("the instance's folder {} can't be used: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
}

impl LaunchError {
    /// Whether another program would not have come up either.
    pub(super) fn is_of_the_machine(&self) -> bool {
        !matches!(self, Self::Spawn(_))
    }
}

/// What happens to a process and its connection.
#[derive(Debug)]
pub(super) enum LinkWake {
    /// Everything queued was written.
    Flushed,
    /// The process ended; what it wrote before is still to be read.
    Exited,
    /// The process ended and all that it wrote was read.
    Drained,
    /// A frame.
    Frame(Bytes),
    /// The connection ended, also in the middle of a frame.
    Closed,
    /// The bytes are no frames.
    BadFrames(FrameError),
    /// Somebody connected.
    Accepted(UnixStream),
}

/// One process and the connection to it.
#[derive(Debug)]
pub(super) struct Link {
    process: Process,
    listener: UnixListener,
    reader: Option<FrameReader<OwnedReadHalf>>,
    writer: Option<FrameWriter<OwnedWriteHalf>>,
    had_connection: bool,
    /// The process has its `init`.
    pub(super) initialized: bool,
    /// It must be initialized by then.
    pub(super) ready_by: Instant,
    /// It closed its connection and must have ended by then.
    pub(super) gone_by: Option<Instant>,
    draining: bool,
    entry: EntryId,
    captures: JoinSet<()>,
    recent: RecentLines,
    noted: BTreeSet<String>,
}

impl Link {
    /// Listens, then starts the process.
    pub(super) async fn launch(
        spec: &InstanceSpec,
        facilities: &Facilities,
        log: &InstanceLog,
    ) -> Result<Self, LaunchError> {
        let folder = |source| LaunchError::Folder {
            path: spec.instance_dir.clone(),
            source,
        };
        make_folder(&spec.instance_dir).map_err(folder)?;
        let socket =
            socket_path(&spec.instance_dir, facilities.short_dir.as_deref()).map_err(folder)?;
        let listener = unix::bind(&socket).await?;
        let mut env = spec.env.clone();
        let socket = socket.to_string_lossy().into_owned();
        let variable = format!("QUINTET_IPC_SOCKET={socket}");
        env.insert("QUINTET_IPC_SOCKET".to_owned(), socket);
        env.insert("AGENT_ID".to_owned(), spec.agent_id.to_string());
        let workspace = spec.workspace.to_string_lossy().into_owned();
        env.insert("AGENT_WORKSPACE".to_owned(), workspace);
        let launch = Launch {
            command: spec.command.clone(),
            cwd: spec.cwd.clone(),
            env,
            limits: spec.limits,
        };
        let cgroup = facilities
            .cgroups
            .as_ref()
            .and_then(|root| root.create("quintet-agent").ok());
        let cgroup_path = cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
        let intended = {
            let (agent_id, variable) = (spec.agent_id.clone(), variable.clone());
            on_ledger(facilities, move |ledger| {
                ledger.intend(agent_id, variable, cgroup_path)
            })
            .await
        };
        let entry = match intended {
            Ok(entry) => entry,
            Err(error) => {
                cgroup.as_ref().inspect(|cgroup| Cgroup::remove(cgroup));
                return Err(error.into());
            }
        };
        let spawned = facilities
            .spawner
            .spawn(launch, cgroup.clone(), variable)
            .await;
        let mut process = match spawned {
            Ok(process) => process,
            Err(error) => {
                cgroup.as_ref().inspect(|cgroup| Cgroup::remove(cgroup));
                strike_out(facilities, entry).await;
                return Err(error.into());
            }
        };
        let mark = process.mark();
        if let Err(error) = on_ledger(facilities, move |ledger| ledger.started(entry, mark)).await {
            process.end().await;
            strike_out(facilities, entry).await;
            return Err(error.into());
        }
        let recent = RecentLines::default();
        let mut captures = JoinSet::new();
        if let Some(stdout) = process
            .take_stdout()
            .and_then(|pipe| tokio::process::ChildStdout::from_std(pipe).ok())
        {
            captures.spawn(capture(
                stdout,
                LogSource::Stdout,
                log.clone(),
                recent.clone(),
            ));
        }
        if let Some(stderr) = process
            .take_stderr()
            .and_then(|pipe| tokio::process::ChildStderr::from_std(pipe).ok())
        {
            captures.spawn(capture(
                stderr,
                LogSource::Stderr,
                log.clone(),
                recent.clone(),
            ));
        }
        Ok(Self {
            process,
            listener,
            reader: None,
            writer: None,
            had_connection: false,
            initialized: false,
            ready_by: Instant::now() + spec.timings.ready_timeout,
            gone_by: None,
            draining: false,
            entry,
            captures,
            recent,
            noted: BTreeSet::new(),
        })
    }

    pub(super) fn pid(&self) -> Option<u32> {
        u32::try_from(self.process.mark().pid).ok()
    }

    /// Waits for the next thing to happen. Cancel safe.
    ///
    /// Frames are only read while `may_read`: that is the backpressure to the agent.
    pub(super) async fn wait(&mut self, may_read: bool) -> LinkWake {
        loop {
            if self.draining {
                // A fresh budget, so that a read that is pending has nothing to read.
                tokio::task::yield_now().await;
            }
            let queued = self
                .writer
                .as_ref()
                .is_some_and(|writer| writer.queued_bytes() > 0);
            tokio::select! {
                biased;
                flushed = flush(&mut self.writer), if queued => match flushed {
                    Ok(()) => return LinkWake::Flushed,
                    // The process is going; its end says more than a broken pipe.
                    Err(_) => self.writer = None,
                },
                () = self.process.exited(), if !self.draining => {
                    self.draining = true;
                    return LinkWake::Exited;
                }
                read = read(&mut self.reader), if may_read && self.reader.is_some() => {
                    match read {
                        Ok(Some(frame)) => return LinkWake::Frame(frame),
                        Err(ReadError::Frame(error @ FrameError::TooLarge { .. })) => {
                            return LinkWake::BadFrames(error);
                        }
                        Ok(None) | Err(_) => {
                            self.reader = None;
                            return LinkWake::Closed;
                        }
                    }
                }
                () = std::future::ready(()), if may_read && self.draining => {
                    return LinkWake::Drained;
                }
                accepted = self.listener.accept(), if !self.draining => {
                    if let Ok((stream, _)) = accepted {
                        return LinkWake::Accepted(stream);
                    }
                }
                // Drained, but the observer is busy: its end wakes the owner, who asks again.
                else => std::future::pending().await,
            }
        }
    }

    /// Takes a connection, or says why not.
    pub(super) fn connect(&mut self, stream: UnixStream) -> Result<(), &'static str> {
        let Ok(peer) = stream.peer_cred() else {
            return Err("a connection of an unknown user was refused");
        };
        if peer.uid() != rustix::process::geteuid().as_raw() {
            return Err("a connection of another user was refused");
        }
        // An agent may confine itself; what a sandbox runs may not pose as one.
        let leader = self.process.mark().pid;
        let Ok(confined) = is_confined(peer.pid()) else {
            return Err("a connection was closed for want of descriptors");
        };
        if confined && !peer.pid().is_some_and(|pid| descends_from(pid, leader)) {
            return Err("a connection from a sandbox was refused");
        }
        if self.had_connection {
            return Err("a second connection was closed");
        }
        self.had_connection = true;
        let (read, write) = stream.into_split();
        self.reader = Some(FrameReader::new(read, FORMAT));
        self.writer = Some(FrameWriter::new(write, FORMAT));
        Ok(())
    }

    /// A frame that has arrived already.
    pub(super) fn buffered(&mut self) -> Result<Option<Bytes>, FrameError> {
        match &mut self.reader {
            Some(reader) => reader.buffered(),
            None => Ok(None),
        }
    }

    /// Queues a message; `Ok(false)` when nobody will read it.
    pub(super) fn send(&mut self, message: &CoordinatorToAgent) -> Result<bool, FrameError> {
        let Some(writer) = &mut self.writer else {
            return Ok(false);
        };
        if writer.queued_bytes() > MAX_QUEUED {
            return Ok(false);
        }
        // Maps with text keys always encode.
        let payload = serde_json::to_vec(message).unwrap_or_default();
        writer.queue(payload.into())?;
        Ok(true)
    }

    /// Whether everything sent was written.
    pub(super) fn is_flushed(&self) -> bool {
        self.writer
            .as_ref()
            .is_some_and(|writer| writer.queued_bytes() == 0)
    }

    /// Whether `kind` has not been noted for this process yet.
    pub(super) fn note_once(&mut self, kind: &str) -> bool {
        self.noted.len() < MAX_NOTED && self.noted.insert(kind.to_owned())
    }

    /// To be called before the process is asked to end.
    pub(super) async fn remember_tree(&mut self) {
        self.process.remember_tree().await;
    }

    /// Sends SIGTERM to the process group.
    pub(super) fn terminate(&self) {
        self.process.terminate();
    }

    /// Kills the whole tree and waits until nothing of it is left.
    pub(super) async fn end(self, facilities: &Facilities) -> (Option<ExitStatus>, String) {
        let Self {
            process,
            mut captures,
            recent,
            entry,
            ..
        } = self;
        let status = process.end().await;
        let rest = async { while captures.join_next().await.is_some() {} };
        if tokio::time::timeout(CAPTURE_PATIENCE, rest).await.is_err() {
            tracing::debug!("the output of an ended process is still open");
        }
        strike_out(facilities, entry).await;
        (status, recent.text())
    }
}

async fn flush(writer: &mut Option<FrameWriter<OwnedWriteHalf>>) -> io::Result<()> {
    match writer {
        Some(writer) => writer.flush().await,
        None => std::future::pending().await,
    }
}

async fn read(reader: &mut Option<FrameReader<OwnedReadHalf>>) -> Result<Option<Bytes>, ReadError> {
    match reader {
        Some(reader) => reader.next().await,
        None => std::future::pending().await,
    }
}

async fn strike_out(facilities: &Facilities, entry: EntryId) {
    if let Err(error) = on_ledger(facilities, move |ledger| ledger.ended(entry)).await {
        // Until the next write; a sweep that comes before finds nothing of it.
        tracing::warn!(%error, "an ended process stays in the ledger");
    }
}

async fn on_ledger<T: Send + 'static>(
    facilities: &Facilities,
    work: impl FnOnce(&Ledger) -> Result<T, LedgerError> + Send + 'static,
) -> Result<T, LedgerError> {
    let ledger = Arc::clone(&facilities.ledger);
    match tokio::task::spawn_blocking(move || work(&ledger)).await {
        Ok(result) => result,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Makes the instance's folder, readable by its owner only.
pub(super) fn make_folder(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}

/// The path that agents dial.
///
/// The kernel takes 107 bytes. A longer folder is reached through a short link in `short_dir`, whose
/// name follows from the folder, so that a restarted daemon finds its own.
fn socket_path(instance_dir: &Path, short_dir: Option<&Path>) -> io::Result<PathBuf> {
    let plain = instance_dir.join("ipc.sock");
    let (true, Some(short_dir)) = (plain.as_os_str().len() > MAX_SOCKET_PATH, short_dir) else {
        return Ok(plain);
    };
    let instance_dir = instance_dir.canonicalize()?;
    let mut hasher = DefaultHasher::new();
    instance_dir.hash(&mut hasher);
    let link = short_dir.join(format!("quintet-{:016x}", hasher.finish()));
    match std::os::unix::fs::symlink(&instance_dir, &link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let own =
                std::fs::symlink_metadata(&link)?.uid() == rustix::process::geteuid().as_raw();
            if !own || std::fs::read_link(&link)? != instance_dir {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    format!("{} is in the way; remove it", link.display()),
                ));
            }
        }
        other => other?,
    }
    Ok(link.join("ipc.sock"))
}
