//! unison between two folders of this machine.
//!
//! `-repeat watch` asks a program beside unison what changed and ends without one. Debian has none,
//! so the released `unison-fsmonitor` is built, which tells of the kernel's events without a delay.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::peer::{Peer, Process, cpu_time, run, visible, wait};
use super::trees::Place;

const MONITOR: &str = "unison-fsmonitor";
const MONITOR_VERSION: &str = "0.3.9";

/// How long it does nothing once it waits for the kernel's events.
const REST: Duration = Duration::from_millis(300);

struct Unison(Process);

impl Peer for Unison {
    fn changes(&self) -> usize {
        40
    }

    /// It tidies up behind a change, and is not told of what happens meanwhile.
    fn at_rest(&self) -> anyhow::Result<()> {
        let mut before = cpu_time(self.0.0.id())?;
        let mut since = Instant::now();
        wait(|| {
            let now = cpu_time(self.0.0.id()).unwrap_or_default();
            if now != before {
                (before, since) = (now, Instant::now());
            }
            since.elapsed() >= REST
        })
    }
}

fn command(place: &Place) -> Command {
    let mut command = Command::new("unison");
    command
        .env("UNISON", place.home().join("unison"))
        .env("HOME", place.home())
        .arg(place.master())
        .arg(place.replica())
        .args(["-batch", "-silent", "-ui", "text", "-fastcheck", "true"])
        .args(["-ignore", "Path .quintet", "-confirmbigdel=false"]);
    command
}

pub(super) fn first(place: &Place) -> anyhow::Result<Option<Box<dyn Peer>>> {
    run(&mut command(place))?;
    Ok(None)
}

pub(super) fn start(place: Place) -> anyhow::Result<Box<dyn Peer>> {
    first(&place)?;
    let mut path = OsString::from(monitor()?);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut following = command(&place);
    following.env("PATH", path).args(["-repeat", "watch"]);
    let process = Process::start(&mut following)?;
    let unison = Unison(process);
    // The first is found by its look at the start, the second by following.
    for word in ["looks", "follows"] {
        std::fs::write(place.master().join("probe"), word)?;
        visible(&place.replica().join("probe"), word.as_bytes())?;
        unison.at_rest()?;
    }
    Ok(Box::new(unison))
}

/// The folder of the program that tells unison what changed, which is built where it is missing.
fn monitor() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../.cache")
        .join(MONITOR);
    let folder = root.join("bin");
    if !folder.join(MONITOR).exists() {
        let built = Command::new("cargo")
            .args(["install", "-q", MONITOR, "--version", MONITOR_VERSION])
            .args(["--locked", "--root"])
            .arg(&root)
            .stdout(Stdio::null())
            .status()?;
        anyhow::ensure!(built.success(), "{MONITOR} can't be built");
    }
    Ok(folder)
}
