//! Two syncthings on loopback, without discovery and relays, told to look at once.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context as _;

use super::peer::{Peer, Process, free_port, peak, run, tell, wait};
use super::trees::{self, Place};

struct Pair {
    a: Process,
    b: Process,
}

impl Peer for Pair {
    fn changes(&self) -> usize {
        12
    }

    fn memory(&self) {
        let both = peak(self.a.0.id()) + peak(self.b.0.id());
        tell(&format!("  syncthing: {both} MiB, both"));
    }
}

struct Side {
    home: PathBuf,
    folder: PathBuf,
    id: String,
    port: u16,
    gui: u16,
}

impl Side {
    fn make(place: &Place, name: &str, folder: PathBuf) -> anyhow::Result<Self> {
        let home = place.home().join(format!("syncthing-{name}"));
        run(Command::new("syncthing")
            .args(["generate", "--no-default-folder", "--skip-port-probing"])
            .arg(format!("--home={}", home.display())))?;
        let id = run(Command::new("syncthing")
            .arg("--device-id")
            .arg(format!("--home={}", home.display())))?;
        Ok(Self {
            home,
            folder,
            id: id.trim().to_owned(),
            port: free_port()?,
            gui: free_port()?,
        })
    }

    fn configure(&self, other: &Self) -> anyhow::Result<()> {
        let device = |side: &Self| {
            format!(
                "<device id=\"{}\" name=\"x\" compression=\"never\"><address>tcp://127.0.0.1:{}</address></device>",
                side.id, side.port
            )
        };
        let text = format!(
            "<configuration version=\"36\"><folder id=\"f\" path=\"{}\" type=\"sendreceive\" \
             rescanIntervalS=\"3600\" fsWatcherEnabled=\"true\" fsWatcherDelayS=\"1\">\
             <device id=\"{}\"/><device id=\"{}\"/></folder>{}{}\
             <gui enabled=\"true\"><address>127.0.0.1:{}</address><apikey>k</apikey></gui>\
             <options><listenAddress>tcp://127.0.0.1:{}</listenAddress>\
             <globalAnnounceEnabled>false</globalAnnounceEnabled>\
             <localAnnounceEnabled>false</localAnnounceEnabled><relaysEnabled>false</relaysEnabled>\
             <natEnabled>false</natEnabled><urAccepted>-1</urAccepted>\
             <autoUpgradeIntervalH>0</autoUpgradeIntervalH><startBrowser>false</startBrowser>\
             <crashReportingEnabled>false</crashReportingEnabled></options></configuration>",
            self.folder.display(),
            self.id,
            other.id,
            device(self),
            device(other),
            self.gui,
            self.port
        );
        std::fs::write(self.home.join("config.xml"), text)?;
        std::fs::create_dir_all(self.folder.join(".stfolder"))?;
        Ok(())
    }

    fn start(&self) -> anyhow::Result<Process> {
        Process::start(
            Command::new("syncthing")
                .args(["serve", "--no-browser", "--no-restart", "--no-upgrade"])
                .arg(format!("--home={}", self.home.display())),
        )
    }
}

fn launch(place: &Place) -> anyhow::Result<Pair> {
    let a = Side::make(place, "a", place.master())?;
    let b = Side::make(place, "b", place.replica())?;
    a.configure(&b)?;
    b.configure(&a)?;
    Ok(Pair {
        a: a.start().context("syncthing")?,
        b: b.start()?,
    })
}

pub(super) fn start(place: Place) -> anyhow::Result<Box<dyn Peer>> {
    let pair = launch(&place)?;
    wait(|| is_whole(&place))?;
    Ok(Box::new(pair))
}

pub(super) fn first(place: &Place) -> anyhow::Result<Option<Box<dyn Peer>>> {
    let pair = launch(place)?;
    super::ours::wait_for_last(place)?;
    Ok(Some(Box::new(pair)))
}

fn is_whole(place: &Place) -> bool {
    let has_temporary = |folder: &Path| {
        std::fs::read_dir(folder).is_ok_and(|mut entries| {
            entries.any(|entry| {
                entry.is_ok_and(|entry| entry.file_name().to_string_lossy().contains(".syncthing."))
            })
        })
    };
    !has_temporary(&place.replica()) && trees::same(place).is_ok()
}
