//! What every peer needs.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// Far beyond what anything here takes.
pub(super) const LONG: Duration = Duration::from_secs(180);
const LOOK: Duration = Duration::from_micros(50);

/// Something that follows a folder; it ends when it is dropped.
pub(super) trait Peer {
    /// How many changes are worth measuring.
    fn changes(&self) -> usize {
        usize::MAX
    }

    /// Returns once it is at rest and waits for the next change.
    fn at_rest(&self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Says how much memory it took.
    fn memory(&self) {}
}

/// A process that ends with its owner.
pub(super) struct Process(pub(super) Child);

impl Process {
    pub(super) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{command:?}"))?;
        Ok(Self(child))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Installs what is missing of these Debian packages.
pub(super) fn install(packages: &[&str]) -> anyhow::Result<()> {
    let is_there = |name: &str| {
        std::env::var_os("PATH").is_some_and(|path| {
            std::env::split_paths(&path).any(|folder| folder.join(name).exists())
        })
    };
    let missing: Vec<&str> = packages
        .iter()
        .copied()
        .filter(|name| !is_there(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let done = Command::new("apt-get")
        .args(["install", "-y", "--no-install-recommends"])
        .args(&missing)
        .stdout(Stdio::null())
        .status()?;
    anyhow::ensure!(done.success(), "apt-get could not install {missing:?}");
    Ok(())
}

pub(super) fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    anyhow::ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub(super) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits until a file holds this.
pub(super) fn visible(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    wait(|| std::fs::read(path).is_ok_and(|found| found == content))
        .with_context(|| format!("{} was never the same", path.display()))
}

pub(super) fn wait(mut done: impl FnMut() -> bool) -> anyhow::Result<()> {
    let deadline = Instant::now() + LONG;
    while !done() {
        anyhow::ensure!(Instant::now() < deadline, "waited {LONG:?} in vain");
        std::thread::sleep(LOOK);
    }
    Ok(())
}

pub(super) fn moved(who: &str, bytes: u64, taken: Duration) {
    tell(&format!(
        "  {who}: {:.2} MiB moved in {:.0} ms",
        bytes as f64 / f64::from(1 << 20),
        taken.as_secs_f64() * 1e3
    ));
}

pub(super) fn tell(line: &str) {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// The processor time that a process has used, in the kernel's ticks.
pub(super) fn cpu_time(pid: u32) -> anyhow::Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Its name, which may hold anything, is in parentheses.
    let (_, fields) = stat.rsplit_once(')').context("a process's stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks.map(|ticks| Ok(ticks.parse::<u64>()?)).sum()
}

/// The most memory that a process has used, in MiB.
pub(super) fn peak(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .map_or(0, |kib| kib >> 10)
}
