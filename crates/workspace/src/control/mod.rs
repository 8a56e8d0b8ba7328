//! Asking an open workspace or replica from another program on the same machine.
//!
//! Whoever has a folder open holds its state folder's lock, and answers on
//! `control.sock` there ([`serve`]). Another program asks through
//! [`ask`]; when nobody has the folder open, it opens it itself and lets
//! [`answer`] do the same work in its own process.
//!
//! **Bytes.** One connection carries one request: a line of JSON ([`Request`]).
//! Lines of JSON come back ([`Said`]): progress, pieces of content (a line that
//! names their length, and then the bytes), and at last what was done or why it
//! failed. The socket is private to its user.
//!
//! **Limits.** A request is at most 64 KiB; at most 32 are answered at once and
//! more wait to be accepted; a reader that takes nothing for 30 s is dropped.

mod answers;
mod client;
mod server;

use serde::{Deserialize, Serialize};

pub use answers::{
    BarrierAnswer, ChangeLine, CheckpointLine, ConflictLine, DamageLine, DiffLine, ForkAnswer,
    GcAnswer, LogLine, PruneAnswer, ReplicaLine, RestoreAnswer, ShowAnswer, SizeAnswer,
    SkippedLine, StatusAnswer, VerifyAnswer, WriteBackAnswer,
};
pub use client::{AskError, ask};
pub use server::{NotDialled, Open, Refused, answer, serve};

/// The socket's name in a state folder.
pub const SOCKET: &str = "control.sock";

/// A moment of a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Point {
    /// After everything that is on the disk now.
    Now,
    /// Right after this sequence.
    Sequence(u64),
    /// At a checkpoint.
    Checkpoint(String),
    /// At a time, in milliseconds since 1970.
    AtMillis(i64),
}

/// What can be asked. The first group is for masters, the second for replicas;
/// `Status` is for both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Request {
    /// [`StatusAnswer`].
    Status,

    /// [`LogLine`]s, ascending.
    Log {
        /// Only this path and what is beneath it.
        path: Option<String>,
        /// Only after this sequence.
        after: u64,
        /// At most so many, the newest ones.
        limit: Option<u32>,
    },
    /// The content as pieces, then [`ShowAnswer`].
    Show {
        /// The path.
        path: String,
        /// When.
        at: Point,
    },
    /// [`DiffLine`]s.
    Diff {
        /// From this.
        from: Point,
        /// To that.
        to: Point,
        /// Only this path and what is beneath it.
        path: Option<String>,
    },
    /// [`RestoreAnswer`].
    Restore {
        /// To which state.
        to: Point,
        /// Only this path and what is beneath it.
        path: Option<String>,
        /// Only say what would be done.
        dry_run: bool,
    },
    /// [`CheckpointLine`].
    Checkpoint {
        /// Its name.
        name: String,
    },
    /// [`CheckpointLine`]s.
    Checkpoints,
    /// [`ForkAnswer`].
    Fork {
        /// The new folder.
        dir: String,
        /// The new state folder.
        state_dir: String,
    },
    /// [`PruneAnswer`].
    Prune {
        /// Forget what was replaced longer ago than this.
        older_than_secs: Option<u64>,
        /// Forget the oldest until contents are no larger than this.
        larger_than: Option<u64>,
    },
    /// [`GcAnswer`].
    Gc {
        /// Before that, forget this workspace of the same store, which is gone for good.
        #[serde(default)]
        forget: Option<String>,
    },
    /// [`VerifyAnswer`], with progress.
    Verify,

    /// [`BarrierAnswer`].
    Barrier {
        /// Has the master reached this? 0 asks for "now".
        sequence: u64,
        /// How long to wait.
        timeout_millis: u64,
    },
    /// [`WriteBackAnswer`].
    WriteBack {
        /// How long to wait.
        timeout_millis: u64,
    },
    /// [`ConflictLine`]s.
    Conflicts,
    /// The content as pieces, then its [`ConflictLine`].
    ShowConflict {
        /// Its number.
        id: u64,
    },
    /// [`ConflictLine`].
    TakeConflict {
        /// Its number.
        id: u64,
    },
    /// [`ConflictLine`].
    DropConflict {
        /// Its number.
        id: u64,
    },
}

/// How far long work is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// What is done.
    pub done: u64,
    /// Of how much.
    pub total: u64,
}

/// One line of an answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Progress(Progress),
    /// So many raw bytes follow.
    Bytes(u64),
    Done(serde_json::Value),
    Failed(String),
}
