//! Starts processes from one thread, and watches them.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread::JoinHandle;

use quintet_framing::descriptors::inherited;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal};
use tokio::io::unix::AsyncFd;
use tokio::sync::oneshot;

use super::cgroup::Cgroup;
use super::sys::{self, Isolation};
use super::tree::{Leftover, ProcessMark, census, kill_leftover};
use crate::process::{Launch, ProcessLimits, SpawnError};

/// Starts that wait for the thread; a caller beyond that waits for its turn in `spawn`.
const QUEUE: usize = 64;

struct Job {
    launch: Launch,
    cgroup: Option<Cgroup>,
    reply: oneshot::Sender<Result<Started, SpawnError>>,
}

struct Started {
    child: Child,
    pidfd: OwnedFd,
    mark: ProcessMark,
}

/// The thread that starts processes.
///
/// The parent-death signal follows the thread that forked, not the process. A thread of the async
/// runtime may end at any time; this one ends with the supervisor.
#[derive(Debug)]
pub(crate) struct Spawner {
    jobs: Option<mpsc::SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Spawner {
    pub(crate) fn new() -> io::Result<Self> {
        let (jobs, inbox) = mpsc::sync_channel::<Job>(QUEUE);
        let thread = std::thread::Builder::new()
            .name("agent-spawner".to_owned())
            .spawn(move || {
                for job in inbox {
                    let started = start(&job.launch, job.cgroup.as_ref());
                    if let Err(Ok(mut unwanted)) = job.reply.send(started) {
                        // Nobody waits any more; the kill can only fail if it is dead already.
                        let _ = unwanted.child.kill();
                        let _ = unwanted.child.wait();
                    }
                }
            })?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
        })
    }

    /// Starts a process in `cgroup`.
    pub(crate) async fn spawn(
        &self,
        launch: Launch,
        cgroup: Option<Cgroup>,
        variable: String,
    ) -> Result<Process, SpawnError> {
        let (reply, started) = oneshot::channel();
        let mut job = Job {
            launch,
            cgroup: cgroup.clone(),
            reply,
        };
        let jobs = self.jobs.as_ref().ok_or(SpawnError::Stopping)?;
        loop {
            match jobs.try_send(job) {
                Ok(()) => break,
                Err(mpsc::TrySendError::Full(back)) => job = back,
                Err(mpsc::TrySendError::Disconnected(_)) => return Err(SpawnError::Stopping),
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        let mut started = started.await.map_err(|_| SpawnError::Stopping)??;
        let stdout = started.child.stdout.take();
        let stderr = started.child.stderr.take();
        let pidfd = sys::register_pidfd(started.pidfd).map_err(|source| SpawnError::Io {
            program: "the new process".to_owned(),
            source,
        })?;
        Ok(Process {
            child: started.child,
            pidfd,
            mark: started.mark,
            cgroup,
            variable,
            seen: BTreeSet::new(),
            stdout,
            stderr,
        })
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

fn start(launch: &Launch, cgroup: Option<&Cgroup>) -> Result<Started, SpawnError> {
    let (program, arguments) = launch
        .command
        .split_first()
        .ok_or(SpawnError::EmptyCommand)?;
    if !launch.cwd.is_dir() {
        return Err(SpawnError::NoSuchFolder(launch.cwd.clone()));
    }
    let io_error = |source: io::Error| SpawnError::Io {
        program: program.clone(),
        source,
    };
    let mut limits = rlimits(&launch.limits);
    if let (Some(cgroup), Some(bytes)) = (cgroup, launch.limits.memory_max)
        && cgroup.limit_memory(bytes)
    {
        limits.retain(|(resource, _)| *resource != Resource::Data);
    }
    let mut command = Command::new(program);
    command
        .args(arguments)
        .current_dir(&launch.cwd)
        .env_clear()
        .envs(&launch.env)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    sys::isolate(
        &mut command,
        Isolation {
            parent: rustix::process::getpid(),
            limits,
            cgroup_procs: cgroup
                .map(Cgroup::open_procs)
                .transpose()
                .map_err(io_error)?,
        },
    );
    let mut child = command.spawn().map_err(io_error)?;
    let watched = watch(&child);
    match watched {
        Ok((pidfd, mark)) => Ok(Started { child, pidfd, mark }),
        Err(error) => {
            // It must not run unwatched; the kill can only fail if it is dead already.
            let _ = child.kill();
            let _ = child.wait();
            Err(io_error(error))
        }
    }
}

/// The child is not reaped yet, so its number is still its own.
fn watch(child: &Child) -> io::Result<(OwnedFd, ProcessMark)> {
    let gone = || io::Error::from(io::ErrorKind::NotFound);
    let raw = i32::try_from(child.id()).map_err(|_| gone())?;
    let pid = Pid::from_raw(raw).ok_or_else(gone)?;
    let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let mark = ProcessMark::of(raw).ok_or_else(gone)?;
    Ok((pidfd, mark))
}

fn rlimits(limits: &ProcessLimits) -> Vec<(Resource, Rlimit)> {
    let both = |value: u64| Rlimit {
        current: Some(value),
        maximum: Some(value),
    };
    let mut list = vec![(Resource::Core, both(0))];
    list.extend(inherited().map(|limit| (Resource::Nofile, limit)));
    // Address space is no measure: runtimes reserve far more of it than they use.
    for (resource, value) in [
        (Resource::Data, limits.memory_max),
        (Resource::Nofile, limits.open_files),
        (Resource::Cpu, limits.cpu_seconds),
        (Resource::Fsize, limits.file_size),
    ] {
        list.extend(value.map(|value| (resource, both(value))));
    }
    list
}

/// A process of an agent, and the head of its tree.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pidfd: AsyncFd<OwnedFd>,
    mark: ProcessMark,
    cgroup: Option<Cgroup>,
    variable: String,
    seen: BTreeSet<ProcessMark>,
    stdout: Option<ChildStdout>,
    stderr: Option<ChildStderr>,
}

impl Process {
    pub(crate) fn mark(&self) -> ProcessMark {
        self.mark
    }

    pub(crate) fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.stdout.take()
    }

    pub(crate) fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.stderr.take()
    }

    /// Waits until the process has ended; it stays a zombie, so its numbers stay its own.
    pub(crate) async fn exited(&self) {
        if let Err(error) = self.pidfd.readable().await {
            // Only a runtime that goes down takes the registration away.
            tracing::debug!(%error, "a pidfd is no longer watched");
            std::future::pending::<()>().await;
        }
    }

    /// Asks the whole process group to end.
    pub(crate) fn terminate(&self) {
        if let Some(group) = Pid::from_raw(self.mark.pid)
            && let Err(error) = rustix::process::kill_process_group(group, Signal::TERM)
        {
            tracing::debug!(pid = self.mark.pid, %error, "SIGTERM was not taken");
        }
    }

    /// Remembers who is in the tree while the process, which is asked to end next, still adopts its
    /// orphans: afterwards one that left its session and its environment is a stranger.
    pub(crate) async fn remember_tree(&mut self) {
        if self.cgroup.is_none() {
            let (mark, variable) = (self.mark, self.variable.clone());
            let seen = tokio::task::spawn_blocking(move || census(mark, variable)).await;
            self.seen.extend(seen.unwrap_or_default());
        }
    }

    /// Kills the whole tree and reaps the process; no member is left afterwards.
    pub(crate) async fn end(mut self) -> Option<ExitStatus> {
        kill_leftover(Leftover {
            leader: Some(self.mark),
            variable: self.variable,
            cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
            seen: self.seen,
        })
        .await;
        self.child.try_wait().ok().flatten()
    }
}
