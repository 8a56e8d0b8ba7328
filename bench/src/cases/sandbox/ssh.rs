//! OpenSSH over one multiplexed connection to a private server on loopback.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

use super::bare::{ECHO, ECHO_READY, key};

const SERVER: &str = "/usr/sbin/sshd";

pub(super) struct Ssh {
    folder: TempDir,
    port: u16,
    processes: Vec<Child>,
}

impl Ssh {
    /// Makes keys, starts a server and one master connection to it.
    pub(super) fn start() -> anyhow::Result<Self> {
        install()?;
        let folder = TempDir::new()?;
        let at = |name: &str| folder.path().join(name);
        for name in ["host", "user"] {
            run(Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(at(name)))?;
        }
        // A server started by root wants its folder.
        let _ = std::fs::create_dir_all("/run/sshd");
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let config = format!(
            "ListenAddress 127.0.0.1\nPort {port}\nHostKey {host}\nAuthorizedKeysFile {user}\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n\
             PidFile none\nSetEnv HOME={home}\nMaxSessions 256\nMaxStartups 256\nSubsystem sftp internal-sftp\n",
            host = at("host").display(),
            // The user's own shell startup is no part of the protocol.
            home = folder.path().display(),
            user = at("user.pub").display(),
        );
        std::fs::write(at("sshd_config"), config)?;
        let server = Command::new(SERVER)
            .args(["-D", "-q", "-f"])
            .arg(at("sshd_config"))
            .stdin(Stdio::null())
            .spawn()?;
        let mut this = Self {
            folder,
            port,
            processes: vec![server],
        };
        let master = this
            .client()
            .args(["-M", "-N", "-o", "ConnectionAttempts=50", "bench"])
            .stdin(Stdio::null())
            .spawn()?;
        this.processes.push(master);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !this
            .client()
            .args(["-O", "check", "bench"])
            .stderr(Stdio::null())
            .status()?
            .success()
        {
            ensure!(Instant::now() < deadline, "the ssh server did not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(this)
    }

    fn options(&self, command: &mut Command) {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        for option in [
            "StrictHostKeyChecking=no".to_owned(),
            "UserKnownHostsFile=/dev/null".to_owned(),
            "LogLevel=QUIET".to_owned(),
            "HostName=127.0.0.1".to_owned(),
            format!("Port={}", self.port),
            format!("IdentityFile={}", at("user")),
            format!("ControlPath={}", at("control")),
        ] {
            command.arg("-o").arg(option);
        }
        command.args(["-F", "/dev/null"]);
    }

    fn client(&self) -> Command {
        let mut command = Command::new("ssh");
        self.options(&mut command);
        command
    }

    pub(super) fn execs(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        (0..count / 4)
            .map(|_| {
                let started = Instant::now();
                self.exec()?;
                Ok(started.elapsed())
            })
            .collect()
    }

    fn exec(&self) -> anyhow::Result<()> {
        run(self.client().args(["bench", "true"]).stdin(Stdio::null()))
    }

    pub(super) fn execs_at_once(&mut self, at_once: usize, each: usize) -> anyhow::Result<()> {
        let this = &*self;
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..at_once)
                .map(|_| scope.spawn(move || (0..each).try_for_each(|_| this.exec())))
                .collect();
            for thread in threads {
                thread
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            }
            Ok(())
        })
    }

    pub(super) fn echoes(&mut self, count: usize) -> anyhow::Result<Vec<Duration>> {
        let mut child = self
            .client()
            .args(["-tt", "bench", &format!("{ECHO_READY}{ECHO}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut input = child.stdin.take().context("it has a pipe")?;
        let mut output = child.stdout.take().context("it has a pipe")?;
        let mut buffer = [0; 256];
        let mut seen = Vec::new();
        while !seen.ends_with(b"ready") {
            let count = output.read(&mut buffer)?;
            ensure!(count > 0, "the shell ended");
            seen.extend_from_slice(&buffer[..count]);
        }
        let samples = (0..count)
            .map(|n| {
                let key = key(n);
                let started = Instant::now();
                input.write_all(&[key])?;
                let count = output.read(&mut buffer)?;
                let took = started.elapsed();
                ensure!(buffer[..count] == [key], "another byte came back");
                Ok(took)
            })
            .collect();
        child.kill()?;
        child.wait()?;
        samples
    }

    /// Copies a file over the same connection.
    pub(super) fn copy(&mut self, from: &Path, to: &Path, upload: bool) -> anyhow::Result<()> {
        let mut command = Command::new("scp");
        self.options(&mut command);
        let remote = |path: &Path| format!("bench:{}", path.display());
        let local = |path: &Path| path.display().to_string();
        let words = match upload {
            true => [local(from), remote(to)],
            false => [remote(from), local(to)],
        };
        run(command.arg("-q").args(words).stdin(Stdio::null()))
    }
}

impl Drop for Ssh {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command
        .status()
        .with_context(|| format!("{command:?} can't be started"))?;
    ensure!(status.success(), "{command:?} failed: {status}");
    Ok(())
}

/// Installs both ends with apt where one is missing.
fn install() -> anyhow::Result<()> {
    let there = |program: &str| Path::new(program).exists();
    if there(SERVER) && there("/usr/bin/ssh") {
        return Ok(());
    }
    let root = Command::new("id").arg("-u").output()?.stdout == b"0\n";
    let mut command = Command::new(if root { "env" } else { "sudo" });
    if !root {
        command.args(["-n", "env"]);
    }
    run(command
        .arg("DEBIAN_FRONTEND=noninteractive")
        .args(["apt-get", "install", "-q", "-y", "--no-install-recommends"])
        .args(["openssh-server", "openssh-client"])
        .stdout(Stdio::null()))
}
