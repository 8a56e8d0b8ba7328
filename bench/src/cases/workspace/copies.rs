//! What copies a folder once.

use std::process::Command;

use super::peer::{Peer, run};
use super::trees::Place;

pub(super) fn tar(place: &Place) -> anyhow::Result<Option<Box<dyn Peer>>> {
    let line = "set -o pipefail; tar -C \"$0\" -cf - . | tar -C \"$1\" -xf -";
    run(Command::new("bash")
        .args(["-c", line])
        .arg(place.master())
        .arg(place.replica()))?;
    Ok(None)
}

pub(super) fn cp(place: &Place) -> anyhow::Result<Option<Box<dyn Peer>>> {
    run(Command::new("cp")
        .args(["-r", "--reflink=never"])
        .arg(place.master().join("."))
        .arg(place.replica()))?;
    Ok(None)
}
