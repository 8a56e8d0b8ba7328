//! The limit of anything that is elsewhere: the same bare work behind one loopback connection, with
//! blocking calls and nothing else.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};

use super::bare;
use super::ours::Program;

pub(super) struct Relay {
    stream: TcpStream,
    _program: Program,
}

impl Relay {
    /// `work` is what [`serve_child`] knows.
    fn start(work: &str) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let program = Program::start(&["relay", work, &address], false)?;
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            _program: program,
        })
    }

    pub(super) fn of_execs() -> anyhow::Result<Self> {
        Self::start("exec")
    }

    pub(super) fn of_a_terminal() -> anyhow::Result<Self> {
        let mut relay = Self::start("echo")?;
        let mut seen = Vec::new();
        while !seen.ends_with(b"ready") {
            let mut byte = [0];
            relay.stream.read_exact(&mut byte)?;
            seen.extend(byte);
        }
        Ok(relay)
    }

    /// Sends a byte and waits for the one that comes back.
    pub(super) fn trips(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        (0..count)
            .map(|n| {
                let (sent, mut back) = ([bare::key(n)], [0]);
                let started = Instant::now();
                self.stream.write_all(&sent)?;
                self.stream.read_exact(&mut back)?;
                let took = started.elapsed();
                ensure!(back == sent, "another byte came back");
                Ok(took)
            })
            .collect()
    }
}

/// The other end: each byte is a command to run, or a key press.
pub(super) fn serve_child(work: &str, address: &str) -> anyhow::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    match work {
        "exec" => {
            let mut byte = [0];
            while stream.read(&mut byte)? > 0 {
                bare::exec()?;
                stream.write_all(&byte)?;
            }
            Ok(())
        }
        "echo" => {
            let (pty, _child) = bare::echo_terminal()?;
            let (mut output, mut back) = (&pty, stream.try_clone()?);
            std::thread::scope(|scope| {
                scope.spawn(move || std::io::copy(&mut output, &mut back));
                std::io::copy(&mut stream, &mut &pty).map(drop)
            })?;
            Ok(())
        }
        other => bail!("unknown work {other}"),
    }
}
