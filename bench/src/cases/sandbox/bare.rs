//! The limits: what the machine takes for the same work with nothing in between.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;
use pty_process::blocking::Pty;

/// What every shell of the echo races runs: each byte goes through a program and comes back.
pub(super) const ECHO: &str = "stty raw -echo; exec cat";

pub(super) fn execs(count: usize) -> anyhow::Result<Vec<Duration>> {
    (0..count)
        .map(|_| {
            let started = Instant::now();
            exec()?;
            Ok(started.elapsed())
        })
        .collect()
}

pub(super) fn execs_at_once(at_once: usize, each: usize) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..at_once)
            .map(|_| scope.spawn(move || execs(each).map(drop)))
            .collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        }
        Ok(())
    })
}

/// With pipes for its output, as everybody else's command has.
pub(super) fn exec() -> anyhow::Result<()> {
    let output = Command::new("/bin/sh")
        .args(["-c", "true"])
        .stdin(Stdio::null())
        .output()?;
    ensure!(output.status.success() && output.stdout.is_empty());
    Ok(())
}

pub(super) fn echoes(count: usize) -> anyhow::Result<Vec<Duration>> {
    let (mut pty, mut child) = echo_terminal()?;
    let mut seen = Vec::new();
    let mut buffer = [0; 256];
    while !seen.ends_with(b"ready") {
        let count = pty.read(&mut buffer)?;
        seen.extend_from_slice(&buffer[..count]);
    }
    let samples = (0..count)
        .map(|n| {
            let key = key(n);
            let started = Instant::now();
            pty.write_all(&[key])?;
            let count = pty.read(&mut buffer)?;
            let took = started.elapsed();
            ensure!(buffer[..count] == [key], "another byte came back");
            Ok(took)
        })
        .collect();
    child.kill()?;
    child.wait()?;
    samples
}

/// A terminal whose program gives back what it gets, once it has said `ready`.
pub(super) fn echo_terminal() -> anyhow::Result<(Pty, Child)> {
    let (pty, pts) = pty_process::blocking::open()?;
    let child = pty_process::blocking::Command::new("/bin/sh")
        .args(["-c", &format!("{ECHO_READY}{ECHO}")])
        .spawn(pts)?;
    Ok((pty, child))
}

/// Says that the terminal is raw, before the program runs.
pub(super) const ECHO_READY: &str = "stty raw -echo; printf ready; ";

/// The key of a round.
pub(super) fn key(n: usize) -> u8 {
    b"abcdefghijklmnopqrstuvwxyz"[n % 26]
}
