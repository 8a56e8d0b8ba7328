//! What the daemon takes before it does anything: the binary's size, the time from its start until
//! it is ready, and its memory when nothing happens.

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Starts of each kind; the middle one counts.
const STARTS: usize = 20;

/// What an idle daemon may take, with everything that it has started.
const MEMORY_GOAL: u64 = 40 * 1000 * 1000;

/// Until the line that says it is ready.
const READY_GOAL: Duration = Duration::from_millis(150);

/// Until everything that a first run has to say is printed, the code for a browser with it.
const TOLD_GOAL: Duration = Duration::from_secs(1);

/// What was measured.
pub(crate) struct Measured {
    binary: PathBuf,
    size: u64,
    /// As in a package: without line tables.
    stripped: Option<u64>,
    first: Starts,
    told: Starts,
    again: Starts,
    memory: Vec<Process>,
}

/// Times of starts, sorted.
struct Starts(Vec<Duration>);

impl Starts {
    fn median(&self) -> Duration {
        self.0[self.0.len() / 2]
    }
}

/// A process of an idle daemon.
struct Process {
    name: String,
    /// Its own pages, and its part of those that it shares.
    pss: u64,
}

/// Measures `binary`.
///
/// # Errors
/// When the daemon does not start, or `/proc` can't be read.
pub(crate) fn measure(binary: &Path) -> io::Result<Measured> {
    let size = fs::metadata(binary)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", binary.display())))?
        .len();
    let folder = TempDir::new_in("/tmp")?;
    let home = |index: usize| folder.path().join(format!("home-{index}"));
    let mut first = Vec::new();
    let mut told = Vec::new();
    for index in 0..STARTS {
        let (mut daemon, took) = Daemon::start(binary, &home(index))?;
        first.push(took);
        told.push(daemon.until_told()?);
        daemon.stop()?;
    }
    let mut again = Vec::new();
    for _ in 0..STARTS {
        let (daemon, took) = Daemon::start(binary, &home(0))?;
        daemon.stop()?;
        again.push(took);
    }
    let (daemon, _) = Daemon::start(binary, &home(0))?;
    daemon.until_its_worker_is_online(binary, &home(0))?;
    let memory = daemon.processes()?;
    daemon.stop()?;
    first.sort();
    told.sort();
    again.sort();
    Ok(Measured {
        binary: binary.to_owned(),
        size,
        stripped: stripped_size(binary, folder.path()),
        first: Starts(first),
        told: Starts(told),
        again: Starts(again),
        memory,
    })
}

fn stripped_size(binary: &Path, folder: &Path) -> Option<u64> {
    let copy = folder.join("stripped");
    let strip = Command::new("strip")
        .arg("--strip-debug")
        .arg("-o")
        .arg(&copy)
        .arg(binary)
        .status();
    strip.ok().filter(std::process::ExitStatus::success)?;
    fs::metadata(copy).ok().map(|file| file.len())
}

/// A daemon that has said that it is ready.
struct Daemon {
    started: Instant,
    process: Child,
    stdout: BufReader<ChildStdout>,
}

impl Daemon {
    fn start(binary: &Path, home: &Path) -> io::Result<(Self, Duration)> {
        let mut command = Command::new(binary);
        command
            .arg("--home")
            .arg(home)
            .args(["up", "--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let started = Instant::now();
        let mut process = command.spawn()?;
        let stdout = process.stdout.take().expect("it is piped");
        let mut stdout = BufReader::new(stdout);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let took = started.elapsed();
        if !line.contains(" is ready at ") {
            return Err(io::Error::other(format!(
                "`{} up` says {line:?} and not that it is ready",
                binary.display()
            )));
        }
        let daemon = Self {
            started,
            process,
            stdout,
        };
        Ok((daemon, took))
    }

    /// Reads what a first run has to say to its last line, which is that of the QR code.
    fn until_told(&mut self) -> io::Result<Duration> {
        let mut line = String::new();
        while !line.starts_with('▀') {
            line.clear();
            if self.stdout.read_line(&mut line)? == 0 {
                return Err(io::Error::other("it ended before its QR code did"));
            }
        }
        Ok(self.started.elapsed())
    }

    /// Asks until the built-in worker has dialled in: what is idle is a daemon that is complete.
    fn until_its_worker_is_online(&self, binary: &Path, home: &Path) -> io::Result<()> {
        let asked = Instant::now();
        while asked.elapsed() < Duration::from_secs(30) {
            let listed = Command::new(binary)
                .arg("--home")
                .arg(home)
                .args(["workers", "--json"])
                .output()?;
            if String::from_utf8_lossy(&listed.stdout).contains("\"online\"") {
                return Ok(());
            }
        }
        Err(io::Error::other("the built-in worker is not online"))
    }

    /// The daemon and all that descends from it.
    fn processes(&self) -> io::Result<Vec<Process>> {
        let mut pids = vec![self.process.id()];
        let mut found = Vec::new();
        while let Some(pid) = pids.pop() {
            let folder = PathBuf::from(format!("/proc/{pid}"));
            let rollup = fs::read_to_string(folder.join("smaps_rollup"))?;
            let arguments = fs::read(folder.join("cmdline"))?;
            let words: Vec<String> = arguments
                .split(|byte| *byte == 0)
                .map(|word| String::from_utf8_lossy(word).into_owned())
                .filter(|word| ["up", "isolate-exec", "agent-run"].contains(&word.as_str()))
                .collect();
            found.push(Process {
                name: words.join(" "),
                pss: pss(&rollup).ok_or_else(|| io::Error::other("no Pss in smaps_rollup"))?,
            });
            for task in fs::read_dir(folder.join("task"))? {
                let children = fs::read_to_string(task?.path().join("children"))?;
                pids.extend(
                    children
                        .split(' ')
                        .filter_map(|pid| pid.parse::<u32>().ok()),
                );
            }
        }
        Ok(found)
    }

    fn stop(mut self) -> io::Result<()> {
        let pid = self.process.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status()?;
        // Else it would wait for room in a full pipe.
        io::copy(&mut self.stdout.by_ref(), &mut io::sink())?;
        match self.process.wait()?.success() {
            true => Ok(()),
            false => Err(io::Error::other("the daemon did not stop in order")),
        }
    }
}

/// The `Pss:` of a rollup, in bytes.
fn pss(rollup: &str) -> Option<u64> {
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, what: &str, value: String, goal: &str| {
            writeln!(f, "{what:<39} {value:>9}  {goal}")
        };
        writeln!(f, "{}", self.binary.display())?;
        row(f, "size of the binary", megabytes(self.size), "")?;
        if let Some(stripped) = self.stripped {
            row(f, "  without line tables", megabytes(stripped), "")?;
        }
        for (what, starts, goal) in [
            ("start to ready, first run", &self.first, READY_GOAL),
            ("start to all said, first run", &self.told, TOLD_GOAL),
            ("start to ready, used home", &self.again, READY_GOAL),
        ] {
            let met = met(starts.median() <= goal);
            let goal = format!("goal {}: {met}", milliseconds(goal));
            row(
                f,
                &format!("{what}, p50 of {STARTS}"),
                milliseconds(starts.median()),
                &goal,
            )?;
            let (least, most) = (starts.0.first(), starts.0.last());
            row(
                f,
                "  smallest",
                least.copied().map(milliseconds).unwrap_or_default(),
                "",
            )?;
            row(
                f,
                "  largest",
                most.copied().map(milliseconds).unwrap_or_default(),
                "",
            )?;
        }
        let all: u64 = self.memory.iter().map(|process| process.pss).sum();
        let goal = format!(
            "goal {}: {}",
            megabytes(MEMORY_GOAL),
            met(all <= MEMORY_GOAL)
        );
        row(f, "memory of the idle daemon (PSS)", megabytes(all), &goal)?;
        for process in &self.memory {
            row(
                f,
                &format!("  {}", process.name),
                megabytes(process.pss),
                "",
            )?;
        }
        Ok(())
    }
}

fn met(met: bool) -> &'static str {
    match met {
        true => "met",
        false => "MISSED",
    }
}

fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

fn milliseconds(time: Duration) -> String {
    let tenths = time.as_micros() / 100;
    format!("{}.{} ms", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollup_is_read_in_bytes() {
        let rollup = "7f00-7fff ---p 00000000 00:00 0 [rollup]\nRss:   100 kB\nPss:    12 kB\n";
        assert_eq!(pss(rollup), Some(12 * 1024));
        assert_eq!(pss("Rss: 1 kB\n"), None);
    }

    #[test]
    fn what_misses_its_goal_is_said() {
        let measured = Measured {
            binary: "quintet".into(),
            size: 12_340_000,
            stripped: None,
            first: Starts(vec![Duration::from_micros(149_900)]),
            told: Starts(vec![Duration::from_millis(1200)]),
            again: Starts(vec![Duration::from_millis(151)]),
            memory: vec![Process {
                name: "up".to_owned(),
                pss: MEMORY_GOAL + 100_000,
            }],
        };
        let said = measured.to_string();
        for line in [
            "size of the binary                        12.3 MB",
            "1200.0 ms  goal 1000.0 ms: MISSED",
            "149.9 ms  goal 150.0 ms: met",
            "151.0 ms  goal 150.0 ms: MISSED",
            "40.1 MB  goal 40.0 MB: MISSED",
        ] {
            assert!(said.contains(line), "{line}\n{said}");
        }
    }
}
