//! The helper process: confines itself, then starts programs for its worker.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitCode};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::wire::{Files, MAX_REQUEST, Program, Reply, SpawnRequest};
use super::{HelperCommand, HelperSettings, confine};

/// What makes a helper's second start give its program a terminal.
const TERMINAL: &str = "--terminal";

/// Half of the memory that all may have, on top of what a process has.
const FIRST_VICTIM: &[u8] = b"500";

/// Runs the helper. `args` are the arguments after those in [`HelperCommand::args`].
///
/// With one argument it serves a worker on its standard input, which is a socket, until the worker
/// is gone. It must be called before the program has started any thread, since confinement is a
/// thread's. It prints nothing: what it has to say goes to the worker.
pub fn helper_main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    let result = match args.split_first() {
        Some((first, program)) if first == TERMINAL => take_terminal(program),
        Some((settings, [])) => serve(settings),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "this command is for the worker's own use",
        )),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(126),
    }
}

/// Becomes the leader of a session whose terminal is standard input, then the program.
fn take_terminal(program: &[OsString]) -> io::Result<()> {
    let (path, args) = program
        .split_first()
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    rustix::process::setsid()?;
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin())?;
    Err(Command::new(path).args(args).exec())
}

fn serve(settings: &OsString) -> io::Result<()> {
    let settings: HelperSettings = settings
        .to_str()
        .and_then(|text| serde_json::from_str(text).ok())
        .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let socket = UnixStream::from(rustix::stdio::stdin().try_clone_to_owned()?);
    // Before Landlock, which would forbid to open it.
    let victims = Victims::new();
    let (features, group) = confine::apply(&settings.config, &settings.root);
    let mut server = Server {
        socket,
        helper: settings.config.helper,
        victims,
        children: HashMap::new(),
    };
    server.reply(&Reply::Ready { features, group })?;
    let result = server.run();
    for running in server.children.values_mut() {
        running.kill();
    }
    result
}

struct Server {
    socket: UnixStream,
    helper: HelperCommand,
    victims: Option<Victims>,
    children: HashMap<u64, Running>,
}

/// Makes what is started the first that the kernel kills for want of memory: the helper is in the
/// same group, and with it all would be lost.
struct Victims {
    /// This process's own, which what it starts begins with.
    score: File,
    own: String,
}

impl Victims {
    fn new() -> Option<Self> {
        let score = "/proc/self/oom_score_adj";
        let own = std::fs::read_to_string(score).ok()?;
        let score = File::options().write(true).open(score).ok()?;
        Some(Self { score, own })
    }

    /// Starts a program. To raise the score, and to lower it to what it was, needs no right.
    fn start(&mut self, command: &mut Command) -> io::Result<Child> {
        // A kernel that refuses it leaves the choice to chance.
        let _ = self.score.write_all(FIRST_VICTIM);
        let child = command.spawn();
        let _ = self.score.write_all(self.own.as_bytes());
        child
    }
}

struct Running {
    child: Child,
    pidfd: OwnedFd,
}

impl Running {
    fn kill(&mut self) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // The worker is gone: nobody is left to be told of a failure.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Server {
    fn run(&mut self) -> io::Result<()> {
        loop {
            let (ended, readable) = self.wait()?;
            for id in ended {
                self.reap(id)?;
            }
            if readable && !self.request()? {
                return Ok(());
            }
        }
    }

    /// Waits for a request or an exit.
    fn wait(&self) -> io::Result<(Vec<u64>, bool)> {
        let ids: Vec<u64> = self.children.keys().copied().collect();
        let mut polled = vec![PollFd::new(&self.socket, PollFlags::IN)];
        polled.extend(
            self.children
                .values()
                .map(|running| PollFd::new(&running.pidfd, PollFlags::IN)),
        );
        loop {
            match rustix::event::poll(&mut polled, None) {
                Err(rustix::io::Errno::INTR) => {}
                result => {
                    result?;
                    break;
                }
            }
        }
        let mut ready = polled.iter().map(|polled| !polled.revents().is_empty());
        let readable = ready.next().unwrap_or(false);
        let ended = ids
            .into_iter()
            .zip(ready)
            .filter_map(|(id, ready)| ready.then_some(id))
            .collect();
        Ok((ended, readable))
    }

    fn reap(&mut self, id: u64) -> io::Result<()> {
        let Some(mut running) = self.children.remove(&id) else {
            return Ok(());
        };
        let status = running.child.wait()?;
        let reply = match (status.code(), status.signal()) {
            (Some(code), _) => Reply::Exited { id, code },
            (None, signal) => Reply::Killed {
                id,
                signal: signal.unwrap_or_default(),
            },
        };
        self.reply(&reply)
    }

    /// Serves one request; false at the end of the connection.
    fn request(&mut self) -> io::Result<bool> {
        let mut length = [0; 4];
        let Some(fds) = receive(&self.socket, &mut length)? else {
            return Ok(false);
        };
        let length = u32::from_be_bytes(length) as usize;
        if length > MAX_REQUEST {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let mut body = vec![0; length];
        self.socket.read_exact(&mut body)?;
        let request = SpawnRequest::decode(&body)
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let id = request.id;
        let reply = match self.start(request, fds) {
            Ok(pid) => Reply::Started { id, pid },
            Err(error) => Reply::Failed {
                id,
                errno: error.raw_os_error().unwrap_or(libc::EIO),
            },
        };
        self.reply(&reply)?;
        Ok(true)
    }

    fn start(&mut self, request: SpawnRequest, fds: Vec<OwnedFd>) -> io::Result<i32> {
        let [stdin, stdout, stderr]: [OwnedFd; 3] = fds
            .try_into()
            .map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?;
        let Program {
            path,
            args,
            env,
            cwd,
        } = request.program;
        let mut command = match request.files {
            Files::Pipes => {
                let mut command = Command::new(path);
                command.process_group(0);
                command
            }
            Files::Terminal => {
                let mut command = Command::new(&self.helper.program);
                command
                    .args(self.helper.arguments())
                    .arg(TERMINAL)
                    .arg(path);
                command
            }
        };
        command
            .args(args)
            .env_clear()
            .envs(env)
            .current_dir(cwd)
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr);
        let mut child = match &mut self.victims {
            Some(victims) => victims.start(&mut command)?,
            None => command.spawn()?,
        };
        let pid = i32::try_from(child.id()).unwrap_or_default();
        let pidfd = Pid::from_raw(pid)
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()));
        match pidfd {
            Ok(pidfd) => {
                self.children.insert(request.id, Running { child, pidfd });
                Ok(pid)
            }
            Err(errno) => {
                child.kill()?;
                child.wait()?;
                Err(errno.into())
            }
        }
    }

    fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        let body = serde_json::to_vec(reply)?;
        let mut message = u32::try_from(body.len())
            .unwrap_or(u32::MAX)
            .to_be_bytes()
            .to_vec();
        message.extend_from_slice(&body);
        self.socket.write_all(&message)
    }
}

/// Fills `buffer` and returns the file descriptors that came with it; `None` at the end.
fn receive(socket: &UnixStream, buffer: &mut [u8; 4]) -> io::Result<Option<Vec<OwnedFd>>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match rustix::net::recvmsg(
            socket,
            &mut [IoSliceMut::new(buffer)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Err(rustix::io::Errno::INTR) => {}
            result => break result?.bytes,
        }
    };
    if received == 0 {
        return Ok(None);
    }
    let fds = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    let mut rest = socket;
    rest.read_exact(&mut buffer[received..])?;
    Ok(Some(fds))
}
