//! Our master and replica, each in a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

use super::peer::{Peer, peak, tell, wait};
use super::trees::{self, Place};

/// This program again, as one end.
fn child(role: &str, place: &Place) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["child", "workspace", role]).arg(place.home());
    Ok(command)
}

struct Talking {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talking {
    fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        Ok(Self {
            input: child.stdin.take().context("stdin")?,
            output: BufReader::new(child.stdout.take().context("stdout")?),
            child,
        })
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        anyhow::ensure!(!line.is_empty(), "it ended without a word");
        Ok(line)
    }
}

impl Drop for Talking {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) struct Master(Talking);

impl Master {
    /// Opens the master's folder; it is ready when this returns.
    pub(super) fn start(place: &Place) -> anyhow::Result<Self> {
        let mut talking = Talking::start(&mut child("master", place)?)?;
        talking.line()?;
        Ok(Self(talking))
    }
}

pub(super) struct Replica(Talking);

/// Both sides agree.
#[derive(Clone, Copy)]
pub(super) struct Agreed {
    /// What was sent and received since the start.
    pub(super) bytes: u64,
}

impl Replica {
    pub(super) fn start(place: &Place) -> anyhow::Result<Self> {
        Ok(Self(Talking::start(&mut child("replica", place)?)?))
    }

    /// Waits until everything of each side is on the other.
    pub(super) fn agree(&mut self) -> anyhow::Result<Agreed> {
        self.0.input.write_all(b"\n")?;
        let bytes = self.0.line()?.trim().parse()?;
        Ok(Agreed { bytes })
    }
}

/// Barriers that nothing else runs beside, one after the other.
pub(super) fn barriers(place: &Place, count: usize) -> anyhow::Result<Vec<Duration>> {
    let mut pair = pair(place)?;
    let barrier = |_| -> anyhow::Result<Duration> {
        let talking = &mut pair.replica.0;
        talking.input.write_all(b"barrier\n")?;
        Ok(Duration::from_nanos(talking.line()?.trim().parse()?))
    };
    (0..count).map(barrier).collect()
}

struct Pair {
    master: Master,
    replica: Replica,
}

impl Peer for Pair {
    fn memory(&self) {
        tell(&format!(
            "  quintet workspace: master {} MiB, replica {} MiB",
            peak(self.master.0.child.id()),
            peak(self.replica.0.child.id())
        ));
    }
}

fn pair(place: &Place) -> anyhow::Result<Pair> {
    // Both at once: the replica dials until the master listens.
    let mut opening = Talking::start(&mut child("master", place)?)?;
    let mut replica = Replica::start(place)?;
    opening.line()?;
    replica.agree()?;
    Ok(Pair {
        master: Master(opening),
        replica,
    })
}

pub(super) fn start(place: Place) -> anyhow::Result<Box<dyn Peer>> {
    Ok(Box::new(pair(&place)?))
}

pub(super) fn first(place: &Place) -> anyhow::Result<Option<Box<dyn Peer>>> {
    Ok(Some(Box::new(pair(place)?)))
}

pub(super) fn store_on_one_core(place: &Place) -> anyhow::Result<Duration> {
    let mut command = Command::new("taskset");
    command
        .args(["-c", "0"])
        .arg(std::env::current_exe()?)
        .args(["child", "workspace", "store"])
        .arg(place.home());
    let mut storing = Talking::start(&mut command)?;
    let micros: u64 = storing.line()?.trim().parse()?;
    Ok(Duration::from_micros(micros))
}

/// Waits until a peer that says nothing has made both folders the same. Looking costs time, so the
/// files are looked at one after the other and each only until it is there.
pub(super) fn wait_for_last(place: &Place) -> anyhow::Result<()> {
    let started = Instant::now();
    for folder in std::fs::read_dir(place.master())? {
        let folder = folder?;
        let name = folder.file_name();
        if name.to_string_lossy().starts_with(".st") {
            continue;
        }
        let (here, there) = (folder.path(), place.replica().join(&name));
        if !folder.file_type()?.is_dir() {
            let size = folder.metadata()?.len();
            wait(|| there.metadata().is_ok_and(|found| found.len() == size))?;
            continue;
        }
        for file in std::fs::read_dir(&here)? {
            let file = file?;
            let (size, target) = (file.metadata()?.len(), there.join(file.file_name()));
            wait(|| target.metadata().is_ok_and(|found| found.len() == size))?;
        }
    }
    wait(|| trees::same(place).is_ok())?;
    tell(&format!("  in {:.1} s", started.elapsed().as_secs_f64()));
    Ok(())
}
