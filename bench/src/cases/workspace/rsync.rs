//! rsync: a daemon on loopback and a client.

use std::net::TcpStream;
use std::process::Command;

use anyhow::Context as _;

use super::peer::{Process, free_port, run, wait};
use super::trees::Place;

pub(super) struct Daemon {
    place: Place,
    port: u16,
    _process: Process,
}

impl Daemon {
    pub(super) fn start(place: &Place) -> anyhow::Result<Self> {
        let port = free_port()?;
        let config = place.home().join("rsyncd.conf");
        let text = format!(
            "use chroot = no\n[m]\npath = {}\nread only = yes\nuid = root\ngid = root\n",
            place.master().display()
        );
        std::fs::write(&config, text)?;
        let process = Process::start(
            Command::new("rsync")
                .args(["--daemon", "--no-detach", "--address=127.0.0.1"])
                .arg(format!("--port={port}"))
                .arg(format!("--config={}", config.display())),
        )?;
        wait(|| TcpStream::connect(("127.0.0.1", port)).is_ok())?;
        Ok(Self {
            place: place.clone(),
            port,
            _process: process,
        })
    }

    /// Makes the replica the same; returns how many bytes that took.
    pub(super) fn sync(&self, more: &[&str]) -> anyhow::Result<u64> {
        let told = run(Command::new("rsync")
            .args(["-a", "--delete", "--stats"])
            .args(more)
            .arg(format!("rsync://127.0.0.1:{}/m/", self.port))
            .arg(self.place.replica()))?;
        let number = |label: &str| -> anyhow::Result<u64> {
            let line = told.lines().find(|line| line.starts_with(label));
            let digits: String = line
                .with_context(|| format!("rsync did not say {label:?}"))?
                .chars()
                .filter(char::is_ascii_digit)
                .collect();
            Ok(digits.parse()?)
        };
        Ok(number("Total bytes sent")? + number("Total bytes received")?)
    }
}
