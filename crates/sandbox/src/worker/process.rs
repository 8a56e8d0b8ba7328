//! One running program: its pipes or terminal, its end, its death.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::ExitStatus;
use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use pty_process::{OwnedReadPty, OwnedWritePty, Size};
use quintet_framing::descriptors::give_back;
use rustix::fs::OFlags;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::sync::oneshot;

use super::spool::MAX_RECORD;
use crate::isolate::client::IsolatedExit;
use crate::isolate::{Files, IsolationClient, Program};

/// How much of a pipe is asked for before it is known that there is more. Most commands print little,
/// and a large piece of memory, taken and given back for each, is what the allocator is slow at.
const FIRST_READ: usize = 4 * 1024;

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExitKind {
    Code(i32),
    Signal(i32),
}

/// How programs are started on this worker.
#[derive(Debug, Clone)]
pub(crate) enum Spawner {
    Direct,
    Isolated(IsolationClient),
}

/// A started program.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) stdin: Option<Input>,
    pub(crate) stdout: Option<Output>,
    pub(crate) stderr: Option<Output>,
    pub(crate) exit: Exit,
}

/// Where a program's input goes.
#[derive(Debug)]
pub(crate) enum Input {
    Pipe(pipe::Sender),
    Pty(OwnedWritePty),
}

/// Where its output comes from.
#[derive(Debug)]
pub(crate) enum Output {
    Pipe {
        pipe: pipe::Receiver,
        /// Bytes to ask for at the next read.
        want: usize,
    },
    Pty(OwnedReadPty),
}

/// Waits for its end.
#[derive(Debug)]
pub(crate) enum Exit {
    Child(Box<Child>),
    Helper(oneshot::Receiver<IsolatedExit>),
}

impl Spawner {
    /// Starts a program on pipes. `alone` says that nothing else waits for this thread.
    ///
    /// The start of a program blocks until the kernel has loaded it. Alone that is the fastest way;
    /// beside others it would let them wait for each other, so that threads of their own do it.
    pub(crate) async fn pipes(
        &self,
        program: &Program,
        stdin: bool,
        alone: bool,
    ) -> io::Result<Process> {
        let (out_read, out_write) = io::pipe()?;
        let (err_read, err_write) = io::pipe()?;
        let (input, child_stdin) = if stdin {
            let (read, write) = io::pipe()?;
            let sender = pipe::Sender::from_owned_fd(write.into())?;
            (Some(Input::Pipe(sender)), OwnedFd::from(read))
        } else {
            (None, no_input()?)
        };
        let (pid, exit) = match self {
            Self::Direct => {
                let mut command = tokio::process::Command::new(&program.path);
                // Nothing here may need code between fork and exec: this way the standard library
                // uses posix_spawn, which does not copy page tables.
                command
                    .args(&program.args)
                    .env_clear()
                    .envs(program.env.iter().map(|(key, value)| (key, value)))
                    .current_dir(&program.cwd)
                    .stdin(child_stdin)
                    .stdout(OwnedFd::from(out_write))
                    .stderr(OwnedFd::from(err_write))
                    .process_group(0);
                let child = match alone {
                    true => command.spawn()?,
                    false => tokio::task::spawn_blocking(move || command.spawn())
                        .await
                        .map_err(io::Error::other)??,
                };
                give_back(child.id());
                (child_pid(&child)?, Exit::Child(Box::new(child)))
            }
            Self::Isolated(client) => {
                let fds = [child_stdin.as_fd(), out_write.as_fd(), err_write.as_fd()];
                let (pid, exit) = client.spawn(program.clone(), Files::Pipes, &fds).await?;
                (pid, Exit::Helper(exit))
            }
        };
        // What can be done while the program already runs is done then.
        Ok(Process {
            pid,
            stdin: input,
            stdout: Some(Output::of_pipe(out_read)?),
            stderr: Some(Output::of_pipe(err_read)?),
            exit,
        })
    }

    /// Starts a program on a terminal of its own.
    pub(crate) async fn terminal(
        &self,
        program: &Program,
        rows: u16,
        cols: u16,
    ) -> io::Result<Process> {
        let (pty, pts) = pty_process::open().map_err(pty_error)?;
        pty.resize(Size::new(rows, cols)).map_err(pty_error)?;
        let (pid, exit) = match self {
            Self::Direct => {
                let command = pty_process::Command::new(&program.path)
                    .args(&program.args)
                    .env_clear()
                    .envs(program.env.iter().map(|(key, value)| (key, value)))
                    .current_dir(&program.cwd);
                let child = command.spawn(pts).map_err(pty_error)?;
                give_back(child.id());
                (child_pid(&child)?, Exit::Child(Box::new(child)))
            }
            Self::Isolated(client) => {
                let fds = [pts.as_fd(), pts.as_fd(), pts.as_fd()];
                let (pid, exit) = client.spawn(program.clone(), Files::Terminal, &fds).await?;
                (pid, Exit::Helper(exit))
            }
        };
        let (read, write) = pty.into_split();
        Ok(Process {
            pid,
            stdin: Some(Input::Pty(write)),
            stdout: Some(Output::Pty(read)),
            stderr: None,
            exit,
        })
    }
}

impl Output {
    /// Of a pipe that was just made: there is nothing to find out about it.
    fn of_pipe(read: io::PipeReader) -> io::Result<Self> {
        let fd = OwnedFd::from(read);
        rustix::fs::fcntl_setfl(&fd, OFlags::NONBLOCK)?;
        Ok(Self::Pipe {
            pipe: pipe::Receiver::from_owned_fd_unchecked(fd)?,
            want: FIRST_READ,
        })
    }

    /// The next bytes, or `None` at the end. Cancel safe.
    ///
    /// Memory for the bytes is taken only once there are some: an idle command holds none.
    pub(crate) async fn read(&mut self) -> Option<Bytes> {
        match self {
            Self::Pipe { pipe, want } => loop {
                pipe.readable().await.ok()?;
                let mut buffer = BytesMut::with_capacity(*want);
                match pipe.try_read_buf(&mut buffer) {
                    Ok(0) => return None,
                    Ok(read) => {
                        *want = match read < *want {
                            true => FIRST_READ,
                            false => MAX_RECORD,
                        };
                        return Some(buffer.freeze());
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return None,
                }
            },
            Self::Pty(pty) => {
                // The kernel gives a terminal's output in pieces of at most 4 KiB.
                let mut buffer = BytesMut::with_capacity(4096);
                match pty.read_buf(&mut buffer).await {
                    Ok(0) => None,
                    Ok(_) => Some(buffer.freeze()),
                    // EIO is how Linux says that nobody has the terminal open any more.
                    Err(_) => None,
                }
            }
        }
    }
}

impl Input {
    /// Writes some of `bytes`. Cancel safe.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Pipe(pipe) => pipe.write(bytes).await,
            Self::Pty(pty) => pty.write(bytes).await,
        }
    }

    /// Tells the program that its window changed; nothing for a pipe.
    pub(crate) fn resize(&self, rows: u16, cols: u16) -> io::Result<()> {
        match self {
            Self::Pipe(_) => Ok(()),
            Self::Pty(pty) => pty.resize(Size::new(rows, cols)).map_err(pty_error),
        }
    }
}

impl Exit {
    /// How the program ended. Cancel safe; must not be called again after it has returned.
    pub(crate) async fn wait(&mut self) -> io::Result<ExitKind> {
        match self {
            Self::Child(child) => child.wait().await.map(exit_kind),
            Self::Helper(receiver) => match receiver.await {
                Ok(IsolatedExit::Code(code)) => Ok(ExitKind::Code(code)),
                Ok(IsolatedExit::Signal(signal)) => Ok(ExitKind::Signal(signal)),
                Err(_) => Err(io::Error::other("the isolation helper is gone")),
            },
        }
    }
}

/// What a program reads that is given nothing.
fn no_input() -> io::Result<OwnedFd> {
    static NULL: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(null) = NULL.get() {
        return null.try_clone();
    }
    let null = OwnedFd::from(std::fs::File::open("/dev/null")?);
    NULL.get_or_init(|| null).try_clone()
}

fn exit_kind(status: ExitStatus) -> ExitKind {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitKind::Code(code),
        (None, signal) => ExitKind::Signal(signal.unwrap_or_default()),
    }
}

fn child_pid(child: &Child) -> io::Result<i32> {
    child
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .ok_or_else(|| io::Error::other("the program ended before it had a process id"))
}

fn pty_error(error: pty_process::Error) -> io::Error {
    match error {
        pty_process::Error::Io(error) => error,
        error => io::Error::other(error),
    }
}
