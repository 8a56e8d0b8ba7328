//! unison between two folders of this machine.
//!
//! `-repeat watch` asks a program beside unison what changed and ends without one. Debian has none,
//! so the released `unison-fsmonitor` is built, which tells of the kernel's events without a delay.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::peer::{Peer, Process, run, visible};
use super::trees::Place;

const MONITOR: &str = "unison-fsmonitor";
const MONITOR_VERSION: &str = "0.3.9";

struct Unison {
    _process: Process,
}

impl Peer for Unison {
    fn changes(&self) -> usize {
        40
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

pub(super) fn first(place: &Place) -> anyhow::Result<()> {
    run(&mut command(place))?;
    Ok(())
}

pub(super) fn start(place: Place) -> anyhow::Result<Box<dyn Peer>> {
    first(&place)?;
    let mut path = OsString::from(monitor()?);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut following = command(&place);
    following.env("PATH", path).args(["-repeat", "watch"]);
    let process = Process::start(&mut following)?;
    // The first is found by its look at the start, the second by following.
    for word in ["looks", "follows"] {
        std::fs::write(place.master().join("probe"), word)?;
        visible(&place.replica().join("probe"), word.as_bytes())?;
    }
    Ok(Box::new(Unison { _process: process }))
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
