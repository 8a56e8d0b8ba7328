//! unison between two folders of this machine.

use std::process::Command;

use super::peer::{Peer, Process, run};
use super::trees::Place;

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
    let process = Process::start(command(&place).args(["-repeat", "watch"]))?;
    Ok(Box::new(Unison { _process: process }))
}
