//! The released programs of the same protocol: the server 0.2.1 and the daemon 0.0.1.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use super::bare::{ECHO, ECHO_READY};

pub(super) struct Pair {
    server: Child,
    daemon: Child,
    asked: ChildStdin,
    answers: BufReader<ChildStdout>,
    _folder: TempDir,
}

impl Pair {
    pub(super) fn start() -> anyhow::Result<Self> {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let installed = Command::new(repository.join("crates/sandbox/tests/install-peers.sh"))
            .stdout(Stdio::null())
            .status()?;
        ensure!(installed.success(), "the released sandd can't be installed");
        let cached = |path: &str| -> PathBuf { repository.join(".cache").join(path) };
        // The server takes no port 0; the daemon dials until it is there.
        let port = TcpListener::bind("127.0.0.1:0")?
            .local_addr()?
            .port()
            .to_string();
        let mut server = Command::new(cached("sandd-py/bin/python"))
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/sandd_pair.py"))
            .args([&port, &format!("{ECHO_READY}{ECHO}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let folder = TempDir::new()?;
        let daemon = Command::new(cached("sandd-daemon/bin/sandd"))
            .args(["--server-url", &format!("ws://127.0.0.1:{port}/ws")])
            .args(["--daemon-id", "d"])
            .env("SANDD_ROOT", folder.path().join("sandd"))
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let asked = server.stdin.take().context("it has a pipe")?;
        let answers = BufReader::new(server.stdout.take().context("it has a pipe")?);
        let mut this = Self {
            server,
            daemon,
            asked,
            answers,
            _folder: folder,
        };
        let ready: Vec<f64> = this.answer()?;
        ensure!(ready.is_empty(), "it is ready");
        Ok(this)
    }

    pub(super) fn execs(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        self.ask(&format!("exec {count}"))
    }

    pub(super) fn echoes(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        self.ask(&format!("echo {count}"))
    }

    /// How many seconds it took.
    pub(super) fn execs_at_once(&mut self, at_once: usize, each: usize) -> anyhow::Result<f64> {
        let took = self.ask(&format!("parallel {at_once} {each}"))?;
        Ok(took.first().context("one number")?.as_secs_f64())
    }

    fn ask(&mut self, what: &str) -> anyhow::Result<Vec<Duration>> {
        writeln!(self.asked, "{what}")?;
        let seconds = self.answer()?;
        Ok(seconds.into_iter().map(Duration::from_secs_f64).collect())
    }

    fn answer(&mut self) -> anyhow::Result<Vec<f64>> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).context("the released server answers in JSON")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for process in [&mut self.server, &mut self.daemon] {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}
