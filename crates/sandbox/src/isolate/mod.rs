//! Confinement of what a worker runs, on Linux.
//!
//! # How it is applied
//!
//! Never between fork and exec: Landlock and seccomp need memory and locks there. A *helper*
//! process, the same program started again with [`helper_main`], confines itself once and then
//! starts every command and shell of its worker, which inherit the confinement. The worker sends
//! it a program and three file descriptors over a socket and gets back the process id and, later,
//! the exit status. When the worker dies, the helper kills what it started and ends.
//!
//! # What it gives
//!
//! - no new privileges: a setuid program gains nothing, and root has no power over other
//!   processes, devices and the network;
//! - Landlock: writing only beneath the root, the folder for temporary files and what the config
//!   adds, reading also the system's folders; no signals or abstract sockets to the outside where
//!   the kernel can. Temporary files are in `/tmp`, or in a folder of the worker's own where `/tmp`
//!   holds what commands must not touch ([`temp_beside`]);
//! - seccomp: the calls in [`seccomp`] fail with EPERM, and with the network off every socket that
//!   is not a Unix socket;
//! - resource limits for each process, and cgroup v2 limits for all together where a writable
//!   hierarchy with controllers exists.
//!
//! Every part reports whether it is in force ([`Feature`]). What the kernel does not give is in
//! that list and never skipped in silence.

pub(crate) mod cgroup;
pub(crate) mod client;
mod confine;
mod helper;
pub mod seccomp;
mod wire;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub(crate) use client::IsolationClient;
pub use confine::probe;
pub use helper::helper_main;
pub(crate) use wire::{Files, Program};

/// The label by which a worker with a helper says whether it keeps commands in their folders: `on`
/// or `off`.
pub const ISOLATION_LABEL: &str = "isolation";

/// How to start the helper: a program and its leading arguments, such as
/// `quintet isolate-exec`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperCommand {
    /// The program, as an absolute path.
    pub program: PathBuf,
    /// What comes before the helper's own arguments.
    pub args: Vec<String>,
}

/// Whether commands may use the network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// As the machine does.
    #[default]
    On,
    /// Unix sockets only.
    Off,
}

/// Limits of what commands may use. Absent means unlimited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory: all commands together under cgroup v2, else each process.
    pub memory_bytes: Option<u64>,
    /// Processes: all commands together under cgroup v2, else all of this user.
    pub processes: Option<u64>,
    /// Hundredths of a CPU for all commands together; needs cgroup v2.
    pub cpu_percent: Option<u64>,
    /// Seconds of CPU time of each process.
    pub cpu_secs: Option<u64>,
    /// Open files of each process.
    pub open_files: Option<u64>,
    /// Bytes of the largest file a process may write.
    pub file_bytes: Option<u64>,
}

impl Limits {
    /// Whether anything is limited at all.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What to confine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationConfig {
    /// How to start the helper.
    pub helper: HelperCommand,
    /// Landlock, seccomp and no new privileges; without it only [`Limits`] apply.
    pub confine: bool,
    /// Whether commands may use the network.
    pub network: Network,
    /// Folders that commands may read beside the system's.
    pub read: Vec<PathBuf>,
    /// Folders that commands may write beside the root and the one for temporary files.
    pub write: Vec<PathBuf>,
    /// The folder for temporary files; any but `/tmp` is made, and is the `TMPDIR` of commands.
    pub temp: PathBuf,
    /// Limits.
    pub limits: Limits,
}

/// One means of isolation and whether it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Feature {
    /// `landlock`, `seccomp`, `no_new_privs`, `rlimits`, `cgroup.memory`, ...
    pub name: String,
    /// Whether it is, or would be, in force.
    pub available: bool,
    /// What exactly, or why not.
    pub detail: String,
    /// What to do about it, also where only a part is in force; empty where nothing is needed.
    pub fix: String,
}

impl Feature {
    fn given(name: &str, detail: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            available: true,
            detail: detail.into(),
            fix: String::new(),
        }
    }

    fn missing(name: &str, detail: impl Into<String>, fix: &str) -> Self {
        Self {
            name: name.to_owned(),
            available: false,
            detail: detail.into(),
            fix: fix.to_owned(),
        }
    }
}

/// Where everybody's temporary files are.
pub const TEMP: &str = "/tmp";

/// The folder for temporary files of commands that must not touch `guarded`: `/tmp`, or `own` where
/// that is in `/tmp`. Landlock can't take a folder out of one that may be written.
pub fn temp_beside(guarded: &Path, own: &Path) -> PathBuf {
    let real = guarded.canonicalize();
    let real = real.as_deref().unwrap_or(guarded);
    let temp = Path::new(TEMP).canonicalize();
    match real.starts_with(temp.as_deref().unwrap_or(Path::new(TEMP))) {
        true => own.to_owned(),
        false => PathBuf::from(TEMP),
    }
}

/// What the helper is told at its start, as its one argument.
#[derive(Debug, Serialize, Deserialize)]
struct HelperSettings {
    config: IsolationConfig,
    root: PathBuf,
}

impl HelperCommand {
    fn arguments(&self) -> impl Iterator<Item = OsString> {
        self.args.iter().map(OsString::from)
    }
}
