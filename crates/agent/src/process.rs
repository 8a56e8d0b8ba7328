//! Care of agent processes: how one is started, watched and ended with everything it started.
//!
//! What is particular to a system is in one module per system ([`linux`]); the supervisor uses only
//! what is exported here. A process
//! - leads a session and a process group of its own, in a cgroup of its own where one can be made;
//! - dies with the daemon (the thread that starts processes lives as long as the supervisor, and
//!   the kernel kills its children when it ends);
//! - has file descriptors 0, 1 and 2 and no others, and exactly the environment it is given.

#[cfg(target_os = "linux")]
mod linux;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
pub(crate) use linux::{
    cgroup::{Cgroup, CgroupRoot},
    spawn::{Process, Spawner},
    tree::{Leftover, ProcessMark, boot_id, kill_leftover},
};

/// Limits of one process, and of what it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProcessLimits {
    /// Bytes of memory: of the tree where the cgroup has a memory controller, else of each process's data.
    #[serde(default)]
    pub memory_max: Option<u64>,
    /// Open files of each process.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Seconds of CPU time of each process.
    #[serde(default)]
    pub cpu_seconds: Option<u64>,
    /// Bytes of a file that a process writes.
    #[serde(default)]
    pub file_size: Option<u64>,
}

/// What to start.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    pub(crate) command: Vec<String>,
    pub(crate) cwd: PathBuf,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) limits: ProcessLimits,
}

/// Why a process can't be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The command has no program.
    #[error("the agent's command is empty; set `command` to a program and its arguments")]
    EmptyCommand,
    /// The working folder is not there.
    #[error("the working folder {} is not there", .0.display())]
    NoSuchFolder(PathBuf),
    /// The system refused.
    #[error("starting `{program}` failed: {source}")]
    Io {
        /// The program.
        program: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The supervisor is going down.
    #[error("no process is started while the daemon stops")]
    Stopping,
}
