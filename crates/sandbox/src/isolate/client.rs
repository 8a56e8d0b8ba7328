//! The worker's end of its helper.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quintet_framing::descriptors::give_back;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tokio::io::{AsyncReadExt as _, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::wire::{Files, MAX_REQUEST, Program, Reply, SpawnRequest};
use super::{Feature, HelperSettings, IsolationConfig, cgroup};

/// How long a helper may take to confine itself.
const START: Duration = Duration::from_secs(10);

/// How long a cgroup may take to become empty, and how often that is tried.
const REMOVE: Duration = Duration::from_secs(1);
const REMOVE_AGAIN: Duration = Duration::from_millis(10);

/// The longest reply of a helper.
const MAX_REPLY: usize = 64 * 1024;

/// How a program of the helper's ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IsolatedExit {
    Code(i32),
    Signal(i32),
}

/// Starts programs through a helper, and a new helper when the old one died.
#[derive(Debug, Clone)]
pub(crate) struct IsolationClient {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: IsolationConfig,
    root: PathBuf,
    /// Held while a request is written: its bytes and descriptors must stay together.
    helper: tokio::sync::Mutex<Option<Helper>>,
}

#[derive(Debug)]
struct Helper {
    writer: tokio::net::unix::OwnedWriteHalf,
    next: u64,
    waiting: Waiting,
    /// Reads its replies; ends with the helper.
    _reader: JoinSet<()>,
    /// Killed when dropped; it ends by itself when its socket closes.
    process: Child,
    /// The cgroup that it and what it started are in.
    group: Option<PathBuf>,
}

/// Short sections without an await, hence a plain mutex. `None` once the helper is gone.
type Waiting = Arc<Mutex<Option<HashMap<u64, Pending>>>>;

#[derive(Debug)]
struct Pending {
    started: Option<oneshot::Sender<io::Result<i32>>>,
    exited: oneshot::Sender<IsolatedExit>,
}

impl IsolationClient {
    /// Starts a helper and returns what it could put in force.
    pub(crate) async fn start(
        config: IsolationConfig,
        root: PathBuf,
    ) -> io::Result<(Self, Vec<Feature>)> {
        let client = Self {
            inner: Arc::new(Inner {
                config,
                root,
                helper: tokio::sync::Mutex::new(None),
            }),
        };
        let (helper, features) = client.inner.launch().await?;
        *client.inner.helper.lock().await = Some(helper);
        Ok((client, features))
    }

    /// Ends the helper and removes the cgroup of its commands. What can't be removed, since a process
    /// is still in it, is removed by the next helper there.
    pub(crate) async fn close(&self) {
        let Some(mut helper) = self.inner.helper.lock().await.take() else {
            return;
        };
        // One that is gone needs no killing.
        let _ = helper.process.kill().await;
        let Some(group) = helper.group else { return };
        cgroup::kill(&group);
        let removed = async {
            while std::fs::remove_dir(&group)
                .is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy)
            {
                tokio::time::sleep(REMOVE_AGAIN).await;
            }
        };
        let _ = tokio::time::timeout(REMOVE, removed).await;
    }

    /// Starts a program with the given standard input, output and error.
    pub(crate) async fn spawn(
        &self,
        program: Program,
        files: Files,
        fds: &[BorrowedFd<'_>; 3],
    ) -> io::Result<(i32, oneshot::Receiver<IsolatedExit>)> {
        let (started_tx, started) = oneshot::channel();
        let (exited_tx, exited) = oneshot::channel();
        {
            let mut slot = self.inner.helper.lock().await;
            if slot.as_ref().is_none_or(Helper::is_gone) {
                // A command may have killed it with everything else of its user.
                *slot = Some(self.inner.launch().await?.0);
            }
            let helper = slot.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            let id = helper.next;
            helper.next += 1;
            let request = SpawnRequest { id, files, program }.encode();
            if request.len() > MAX_REQUEST {
                // A helper that is sent it ends, and with it all that it started. No kernel takes as
                // much either.
                return Err(io::Error::from_raw_os_error(libc::E2BIG));
            }
            let pending = Pending {
                started: Some(started_tx),
                exited: exited_tx,
            };
            if let Some(waiting) = &mut *lock(&helper.waiting) {
                waiting.insert(id, pending);
            }
            if let Err(error) = send(&helper.writer, &request, fds).await {
                *slot = None;
                return Err(error);
            }
        }
        let pid = started
            .await
            .map_err(|_| io::Error::other("the isolation helper died"))??;
        Ok((pid, exited))
    }
}

impl Inner {
    async fn launch(&self) -> io::Result<(Helper, Vec<Feature>)> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let settings = serde_json::to_string(&HelperSettings {
            config: self.config.clone(),
            root: self.root.clone(),
        })?;
        let process = Command::new(&self.config.helper.program)
            .args(self.config.helper.arguments())
            .arg(settings)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            // Ctrl-C in the worker's terminal must not take the helper first.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| {
                let program = self.config.helper.program.display();
                io::Error::new(
                    error.kind(),
                    format!("the isolation helper {program} can't be started: {error}"),
                )
            })?;
        // Before it is asked for anything: what it starts has its limits.
        give_back(process.id());
        let (mut reader, writer) = UnixStream::from_std(ours)?.into_split();
        let ready = tokio::time::timeout(START, read_reply(&mut reader)).await;
        let Ok(Ok(Reply::Ready { features, group })) = ready else {
            return Err(io::Error::other(
                "the isolation helper did not come up; is isolate-exec the right command?",
            ));
        };
        let waiting = Waiting::new(Mutex::new(Some(HashMap::new())));
        let mut replies = JoinSet::new();
        replies.spawn(read_replies(reader, waiting.clone(), group.clone()));
        let helper = Helper {
            writer,
            next: 0,
            waiting,
            _reader: replies,
            process,
            group,
        };
        Ok((helper, features))
    }
}

impl Helper {
    fn is_gone(&self) -> bool {
        lock(&self.waiting).is_none()
    }
}

/// Routes replies until the helper is gone; whoever still waits then is told by the drop.
async fn read_replies(mut reader: OwnedReadHalf, waiting: Waiting, group: Option<PathBuf>) {
    while let Ok(reply) = read_reply(&mut reader).await {
        let mut waiting = lock(&waiting);
        let Some(map) = &mut *waiting else { return };
        match reply {
            Reply::Ready { .. } => {}
            Reply::Started { id, pid } => {
                if let Some(started) = map.get_mut(&id).and_then(|entry| entry.started.take()) {
                    let _ = started.send(Ok(pid));
                }
            }
            Reply::Failed { id, errno } => {
                if let Some(started) = map.remove(&id).and_then(|entry| entry.started) {
                    let _ = started.send(Err(io::Error::from_raw_os_error(errno)));
                }
            }
            Reply::Exited { id, code } => finish(map, id, IsolatedExit::Code(code)),
            Reply::Killed { id, signal } => finish(map, id, IsolatedExit::Signal(signal)),
        }
    }
    // What it started would go on beyond its limits, which a new helper's group counts anew.
    if let Some(group) = group {
        cgroup::kill(&group);
    }
    *lock(&waiting) = None;
}

fn finish(map: &mut HashMap<u64, Pending>, id: u64, exit: IsolatedExit) {
    if let Some(pending) = map.remove(&id) {
        // A job that no longer waits was given up.
        let _ = pending.exited.send(exit);
    }
}

async fn read_reply(reader: &mut OwnedReadHalf) -> io::Result<Reply> {
    let length = reader.read_u32().await? as usize;
    if length > MAX_REPLY {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Writes a message whose first byte carries the descriptors.
async fn send(
    writer: &tokio::net::unix::OwnedWriteHalf,
    mut message: &[u8],
    fds: &[BorrowedFd<'_>; 3],
) -> io::Result<()> {
    let stream: &UnixStream = writer.as_ref();
    let mut sent_fds = false;
    while !message.is_empty() {
        let sent = stream
            .async_io(Interest::WRITABLE, || {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                if !sent_fds {
                    control.push(SendAncillaryMessage::ScmRights(fds));
                }
                rustix::net::sendmsg(
                    stream,
                    &[IoSlice::new(message)],
                    &mut control,
                    SendFlags::NOSIGNAL,
                )
                .map_err(io::Error::from)
            })
            .await?;
        sent_fds = true;
        message = &message[sent..];
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
