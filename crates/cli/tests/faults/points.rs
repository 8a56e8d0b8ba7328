//! A program that is stopped, or refused, at a chosen one of the calls by which it changes files.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tokio::process::Command;

use crate::disk::Errno;
use crate::harness::Machine;

/// One of the calls: "CALL FILE", and which of those that read the same.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) label: String,
    pub(crate) nth: usize,
}

impl Point {
    /// Whether a fault makes a difference here.
    pub(crate) fn can(&self, fault: Fault) -> bool {
        fault != Fault::Tear
            || self.label.starts_with("write ")
            || self.label.starts_with("pwrite ")
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.label, self.nth)
    }
}

/// What happens at a point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// kill -9 before the call.
    Kill,
    /// kill -9 after half of a write.
    Tear,
    /// The call fails, and this one alone.
    Once(Errno),
    /// This call and all that follow fail until the disk is mended.
    Lasting(Errno),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => write!(f, "kill"),
            Self::Tear => write!(f, "tear"),
            Self::Once(errno) => write!(f, "{errno:?} once"),
            Self::Lasting(errno) => write!(f, "{errno:?}"),
        }
    }
}

/// A fault at a point, by its name.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) point: Point,
    pub(crate) fault: Fault,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.fault, self.point)
    }
}

/// Each fault at each point where it makes a difference.
pub(crate) fn plans(points: &[Point], faults: &[Fault]) -> Vec<Plan> {
    let at = |fault: &Fault| {
        let fault = *fault;
        let points = points.iter().filter(move |point| point.can(fault));
        points.map(move |point| Plan {
            point: point.clone(),
            fault,
        })
    };
    faults.iter().flat_map(at).collect()
}

/// The files by which a program under `points` is steered; outside of the folders that are watched.
#[derive(Debug)]
pub(crate) struct Steering {
    folder: tempfile::TempDir,
}

impl Steering {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program, whose every point is noted.
    pub(crate) fn records(
        &self,
        machine: &Machine,
        under: &[&Path],
        arguments: &[&str],
    ) -> Command {
        let mut command = watched(machine, under, arguments);
        command.env("POINTS_LOG", self.file("log"));
        command
    }

    /// The program, with a fault at one point.
    pub(crate) fn breaks(
        &self,
        machine: &Machine,
        under: &[&Path],
        arguments: &[&str],
        point: &Point,
        fault: Fault,
    ) -> Command {
        let mut command = watched(machine, under, arguments);
        command
            .env("POINTS_AT", &point.label)
            .env("POINTS_NTH", point.nth.to_string())
            .env("POINTS_HIT", self.file("hit"));
        let what = match fault {
            Fault::Kill => "kill".to_owned(),
            Fault::Tear => "tear".to_owned(),
            Fault::Once(errno) | Fault::Lasting(errno) => errno.number().to_string(),
        };
        command.env("POINTS_DO", what);
        if let Fault::Lasting(_) = fault {
            std::fs::write(self.file("broken"), "").unwrap();
            command.env("POINTS_WHILE", self.file("broken"));
        }
        command
    }

    /// From now on calls succeed again.
    pub(crate) fn mend(&self) {
        // Only a lasting fault has the file.
        let _ = std::fs::remove_file(self.file("broken"));
    }

    /// Whether the point was reached.
    pub(crate) fn hit(&self) -> bool {
        self.file("hit").exists()
    }

    /// The points that were recorded.
    pub(crate) fn recorded(&self) -> Vec<Point> {
        let log = std::fs::read_to_string(self.file("log")).unwrap_or_default();
        let mut seen = BTreeMap::<&str, usize>::new();
        log.lines()
            .map(|label| {
                let nth = seen.entry(label).or_default();
                *nth += 1;
                Point {
                    label: label.to_owned(),
                    nth: *nth,
                }
            })
            .collect()
    }
}

/// The program under watch, with neither a fault nor a note.
pub(crate) fn watched(machine: &Machine, under: &[&Path], arguments: &[&str]) -> Command {
    let under: Vec<&str> = under
        .iter()
        .map(|folder| folder.to_str().unwrap())
        .collect();
    let mut command = machine.program(tool("points.c", &[]).to_str().unwrap());
    command
        .arg(env!("CARGO_BIN_EXE_quintet"))
        .args(arguments)
        .env("POINTS_UNDER", under.join(":"));
    command
}

/// A tool of this folder, compiled.
pub(crate) fn tool(source: &'static str, flags: &[&str]) -> &'static Path {
    static POINTS: OnceLock<PathBuf> = OnceLock::new();
    static CLOCK: OnceLock<PathBuf> = OnceLock::new();
    let made = match source {
        "points.c" => &POINTS,
        _ => &CLOCK,
    };
    made.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/faults")
            .join(source);
        // Each test is a process, and they begin at once.
        let own = tempfile::Builder::new().tempdir_in(folder).unwrap();
        let built = own.path().join("tool");
        let done = std::process::Command::new("cc")
            .args(["-O1", "-Wall", "-Wextra", "-Werror"])
            .args(flags)
            .arg("-o")
            .args([&built, &source])
            .status()
            .unwrap();
        assert!(done.success(), "cc can't compile {}", source.display());
        let kept = folder.join(source.file_stem().unwrap());
        std::fs::rename(&built, &kept).unwrap();
        kept
    })
}
