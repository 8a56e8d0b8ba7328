//! lsyncd with its direct mode: it copies on this machine, without a socket between.

use std::process::Command;

use super::peer::{Peer, Process, peak, tell, wait};
use super::trees::{self, Place};

struct Lsyncd(Process);

impl Peer for Lsyncd {
    fn memory(&self) {
        tell(&format!("  lsyncd: {} MiB", peak(self.0.0.id())));
    }
}

fn launch(place: &Place) -> anyhow::Result<Process> {
    let config = place.home().join("lsyncd.conf");
    let text = format!(
        "settings {{ nodaemon = true, insist = true }}\n\
         sync {{ default.direct, source = {:?}, target = {:?}, delay = 0, maxProcesses = 2 }}\n",
        place.master(),
        place.replica()
    );
    std::fs::write(&config, text)?;
    Process::start(Command::new("lsyncd").arg(&config))
}

pub(super) fn start(place: Place) -> anyhow::Result<Box<dyn Peer>> {
    let process = launch(&place)?;
    wait(|| trees::same(&place).is_ok())?;
    Ok(Box::new(Lsyncd(process)))
}

pub(super) fn first(place: &Place) -> anyhow::Result<Option<Box<dyn Peer>>> {
    let process = launch(place)?;
    super::ours::wait_for_last(place)?;
    Ok(Some(Box::new(Lsyncd(process))))
}
