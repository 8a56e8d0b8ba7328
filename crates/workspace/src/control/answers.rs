//! What is answered. Times are milliseconds since 1970; `mode` is as on the
//! wire (permission bits, with type bits for a folder or symlink).

use serde::{Deserialize, Serialize};

use crate::history::{Checkpoint, LogEntry};
use crate::proto::{ChangeKind, Node, WorkspacePath};
use crate::replica::Conflict;
use crate::tree::{Problem, ProblemReason};
use crate::watch::WatchMode;

/// How a workspace or replica is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusAnswer {
    /// `master` or `replica`.
    pub role: String,
    /// The newest sequence; of a replica, the one up to which all is in place.
    pub sequence: u64,
    /// Number of files and symlinks.
    pub files: u64,
    /// Sum of their sizes.
    pub bytes: u64,
    /// Connected replicas.
    pub replicas: Vec<ReplicaLine>,
    /// Changes that are not recorded, in place, or answered yet.
    pub pending: u64,
    /// Of a replica: whether the master is reached.
    pub connected: Option<bool>,
    /// Of a replica: changes of the master that are not in place yet.
    pub incoming: u64,
    /// Of a replica: local changes that the master has not answered yet.
    pub outgoing: u64,
    /// Of a replica: refused writes that are kept.
    pub conflicts: u64,
    /// Of a master: what the history takes.
    pub history: Option<SizeAnswer>,
    /// Why the tree is read now and then instead of watched, where it is.
    pub polling: Option<String>,
    /// What is not replicated, and why.
    pub problems: Vec<String>,
    /// What keeps changes from being recorded or put in place.
    pub failure: Option<String>,
}

/// A connected replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaLine {
    /// Who it is.
    pub sandbox_id: String,
    /// Everything up to here is in place there.
    pub acked: u64,
    /// How many sequences it is behind.
    pub lag: u64,
}

/// What a history takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SizeAnswer {
    /// Recorded changes that are kept.
    pub versions: u64,
    /// Distinct contents that they refer to.
    pub contents: u64,
    /// Sum of those contents, uncompressed.
    pub content_bytes: u64,
    /// The database and its write-ahead log.
    pub database_bytes: u64,
    /// What the store of all workspaces takes on the disk.
    #[serde(default)]
    pub store_bytes: u64,
    /// The oldest sequence that can be shown.
    pub floor: u64,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// Its number.
    pub sequence: u64,
    /// The path.
    pub path: String,
    /// `write`, `delete`, `rename` or `chmod`.
    pub change: String,
    /// Hash of the content; empty for a deletion.
    pub hash: String,
    /// Size of the content.
    pub size: u64,
    /// Size of the version before it.
    pub previous_size: Option<u64>,
    /// Permission bits, with type bits for a folder or symlink.
    pub mode: i64,
    /// Who made it.
    pub author: String,
    /// When.
    pub at_millis: i64,
    /// Where it came from, for a rename.
    pub renamed_from: Option<String>,
}

impl From<LogEntry> for LogLine {
    fn from(entry: LogEntry) -> Self {
        let node = entry.node.as_ref();
        Self {
            sequence: entry.sequence,
            path: entry.path.to_string(),
            change: entry.change.name().to_owned(),
            hash: node.map_or_else(String::new, |node| node.hash.to_string()),
            size: node.map_or(0, |node| node.size),
            previous_size: entry.previous_size,
            mode: node.map_or(0, Node::permissions),
            author: entry.author,
            at_millis: entry.at_millis,
            renamed_from: entry.renamed_from.map(|path| path.to_string()),
        }
    }
}

/// What was shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShowAnswer {
    /// The sequence it was shown at.
    pub sequence: u64,
    /// Hash of the content.
    pub hash: String,
    /// Its size.
    pub size: u64,
    /// Permission bits, with type bits for a folder or symlink.
    pub mode: i64,
}

/// A path that differs between two states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffLine {
    /// The path.
    pub path: String,
    /// `write`, `delete` or `chmod`.
    pub change: String,
    /// Its size before; `None` when it was not there.
    pub old_size: Option<u64>,
    /// Its size after; `None` when it is gone.
    pub new_size: Option<u64>,
    /// Its mode before.
    pub old_mode: Option<i64>,
    /// Its mode after.
    pub new_mode: Option<i64>,
    /// The difference as text, where both are text and not too large.
    pub unified: Option<String>,
}

/// A change that a restore makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeLine {
    /// The path.
    pub path: String,
    /// `write`, `delete` or `chmod`.
    pub change: String,
}

impl ChangeLine {
    pub(super) fn all(changes: Vec<(WorkspacePath, ChangeKind)>) -> Vec<Self> {
        let line = |(path, change): (WorkspacePath, ChangeKind)| Self {
            path: path.to_string(),
            change: change.name().to_owned(),
        };
        changes.into_iter().map(line).collect()
    }
}

/// A path that an undo left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkippedLine {
    /// The path.
    pub path: String,
    /// The later change that it would have thrown away.
    pub sequence: u64,
}

/// What a restore did, or would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestoreAnswer {
    /// The state that was restored.
    pub to: u64,
    /// Where the history was before: restore this to undo it.
    pub before: u64,
    /// Where it is now.
    pub sequence: u64,
    /// What was changed, in order.
    pub changes: Vec<ChangeLine>,
}

/// A named moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointLine {
    /// Its name.
    pub name: String,
    /// What it stands for.
    pub sequence: u64,
    /// When it was made.
    pub at_millis: i64,
}

impl From<Checkpoint> for CheckpointLine {
    fn from(checkpoint: Checkpoint) -> Self {
        Self {
            name: checkpoint.name,
            sequence: checkpoint.sequence,
            at_millis: checkpoint.at_millis,
        }
    }
}

/// What a fork holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkAnswer {
    /// The new folder.
    pub dir: String,
    /// The sequence it was made at.
    pub sequence: u64,
    /// Files and symlinks in it.
    pub files: u64,
}

/// What pruning forgot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PruneAnswer {
    /// Versions that were removed from the log.
    pub versions: u64,
    /// Contents that nothing refers to any more.
    pub contents: u64,
    /// Their size, uncompressed.
    pub content_bytes: u64,
    /// What is older cannot be restored any more.
    pub floor: u64,
    /// Size of all contents that are kept, uncompressed.
    pub kept_bytes: u64,
}

/// What a collection freed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GcAnswer {
    /// Objects that are in use.
    pub kept: u64,
    /// Their bytes on disk.
    pub kept_bytes: u64,
    /// Objects that were removed.
    pub removed: u64,
    /// Their bytes on disk.
    pub removed_bytes: u64,
}

/// What reading everything back brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyAnswer {
    /// Contents that are whole.
    pub contents: u64,
    /// Their size, uncompressed.
    pub bytes: u64,
    /// Contents that are not.
    pub damaged: Vec<DamageLine>,
}

/// A content that is damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DamageLine {
    /// The content.
    pub hash: String,
    /// What is wrong.
    pub reason: String,
    /// Versions that refer to it, as `PATH@SEQUENCE`.
    pub versions: Vec<String>,
}

/// A barrier was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierAnswer {
    /// Everything up to here is in place.
    pub sequence: u64,
    /// Whether the master had reached what was asked for.
    pub satisfied: bool,
}

/// What became of local changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteBackAnswer {
    /// The newest sequence that any change of this replica got.
    pub sequence: u64,
    /// How many were taken while waiting.
    pub accepted: u64,
    /// Paths whose changes were refused while waiting.
    pub rejected: Vec<String>,
}

/// A refused write that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConflictLine {
    /// Its number.
    pub id: u64,
    /// The path.
    pub path: String,
    /// Who wrote it.
    pub author: String,
    /// When it was refused.
    pub at_millis: i64,
    /// Size of what is kept; `None` when it was a removal.
    pub size: Option<u64>,
    /// Why it was refused.
    pub reason: String,
}

impl ConflictLine {
    pub(super) fn of(conflict: Conflict, author: &str) -> Self {
        Self {
            id: conflict.id,
            path: conflict.path.to_string(),
            author: author.to_owned(),
            at_millis: conflict.at_millis,
            size: conflict.node.map(|node| node.size),
            reason: conflict.reason,
        }
    }
}

pub(super) fn polling(mode: WatchMode) -> Option<String> {
    match mode {
        WatchMode::Events => None,
        WatchMode::Polling { reason } => Some(reason),
    }
}

pub(super) fn problems(problems: Vec<Problem>) -> Vec<String> {
    let line = |problem: Problem| {
        let reason = match problem.reason {
            ProblemReason::NameNotUtf8 => "its name is not UTF-8".to_owned(),
            ProblemReason::SpecialFile => "it is a socket, a pipe or a device".to_owned(),
            ProblemReason::Unreadable(error) => format!("it may not be read: {error}"),
        };
        format!("{}: {reason}", problem.path)
    };
    problems.into_iter().map(line).collect()
}
