//! Every message of the plane, as domain types without names or encodings.
//!
//! One enum a direction. What the two dialects call things is
//! [`super::parse`]'s and [`super::encode`]'s business.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Whose names a peer uses. The subprotocol string is the same for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `command_id`, `transfer_id`, `start_shell`, `shell_*`.
    Seed,
    /// `request_id`, `new_session`, `session_*`.
    Released,
}

/// The key under which a message carries its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IdKey {
    /// The seed's id of a command.
    Command,
    /// The seed's id of a transfer.
    Transfer,
    /// The released programs' id of a command, a transfer or a snapshot request.
    Request,
    /// The id of a shell in both dialects.
    Session,
}

impl IdKey {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Command => "command_id",
            Self::Transfer => "transfer_id",
            Self::Request => "request_id",
            Self::Session => "session_id",
        }
    }
}

/// What a worker says about its machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// The machine's name.
    pub hostname: String,
    /// `linux`, `macos`, ...
    pub platform: String,
    /// `x86_64`, `aarch64`, ...
    pub arch: String,
    /// The worker program's version.
    #[serde(default)]
    pub version: String,
    /// What a user selects workers by.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Kinds of v2 streams that it knows beyond the first ones, see [`super::frame`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub opens: Vec<String>,
    /// The name of this connection, unique over all workers; v2 only, see [`super::frame`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<String>,
    /// The connection that this worker had before; absent when it has just started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub former: Option<FormerConnection>,
    /// The folder beneath which its copies of workspaces are, each under its workspace's id; empty
    /// when it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub copies: String,
}

/// What a worker got of a connection that is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerConnection {
    /// Its name.
    pub connection: String,
    /// The highest number of a stream that the hub opened on it, as far as that arrived; 0 when
    /// none did.
    pub last_stream: u32,
}

/// How busy a worker's machine is, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Of all processors together, since the heartbeat before.
    pub cpu: u8,
    /// Of the memory, what no program could have.
    pub memory: u8,
}

/// One snapshot of the released programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotInfo {
    /// Its id.
    pub id: String,
    /// Seconds since 1970.
    pub created_at: u64,
    /// What its maker wrote.
    pub message: String,
    /// Names it can be found by.
    pub tags: Vec<String>,
    /// Files in it.
    pub file_count: u64,
    /// Their bytes.
    pub total_size: u64,
}

/// A request about snapshots, which only the released programs know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotRequest {
    /// Take one.
    Create {
        /// The folder.
        workspace: String,
        /// A description.
        message: Option<String>,
        /// Names to find it by.
        tags: Option<Vec<String>>,
    },
    /// Put one back.
    Restore {
        /// Which.
        snapshot_id: String,
        /// Where to.
        destination: String,
    },
    /// All, or those that carry one of `tags`.
    List {
        /// Filter.
        tags: Option<Vec<String>>,
    },
    /// The one that carries `tag`.
    FindByTag {
        /// The name.
        tag: String,
    },
    /// One by id.
    Get {
        /// Which.
        snapshot_id: String,
    },
    /// Remove one.
    Delete {
        /// Which.
        snapshot_id: String,
    },
}

/// The answer to a [`SnapshotRequest`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotReply {
    /// Taken.
    Created {
        /// Its id.
        snapshot_id: String,
        /// Files in it.
        file_count: u64,
        /// Their bytes.
        total_size: u64,
    },
    /// Put back.
    Restored {
        /// Files written.
        file_count: u64,
    },
    /// The list, newest first.
    List(Vec<SnapshotInfo>),
    /// One, or none of that tag.
    Details(Option<SnapshotInfo>),
    /// Removed.
    Deleted,
    /// Refused or failed.
    Error(String),
}

/// What the hub sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubToWorker {
    /// Answers `register`; always the first message.
    RegisterAck {
        /// Whether the worker is registered.
        success: bool,
        /// Why not, or a greeting.
        message: String,
    },
    /// The original answer to a heartbeat.
    Pong,
    /// The released answer to a heartbeat; failure means: register again on this connection.
    HeartbeatAck {
        /// Whether the worker is registered.
        success: bool,
        /// Why not.
        reason: String,
    },
    /// Run a shell line.
    ExecuteCommand {
        /// Chosen by the hub.
        id: String,
        /// The line.
        command: String,
        /// Seconds; absent means [`super::DEFAULT_TIMEOUT_SECS`].
        timeout_secs: Option<u64>,
        /// Added to the worker's own environment.
        env: BTreeMap<String, String>,
        /// Absent means the worker's root.
        cwd: Option<String>,
    },
    /// Start a shell on a PTY.
    StartShell {
        /// Chosen by the hub.
        id: String,
        /// Lines.
        rows: u16,
        /// Columns.
        cols: u16,
        /// `TERM`.
        term: String,
    },
    /// Bytes typed.
    ShellInput {
        /// Which shell.
        id: String,
        /// The bytes.
        data: Bytes,
    },
    /// The window changed.
    ShellResize {
        /// Which shell.
        id: String,
        /// Lines.
        rows: u16,
        /// Columns.
        cols: u16,
    },
    /// Hang up; only the released programs send it.
    ShellClose {
        /// Which shell.
        id: String,
    },
    /// A file will follow.
    FileUploadStart {
        /// Chosen by the hub.
        id: String,
        /// Beneath the root.
        path: String,
        /// Its length. Signed, since a peer may send anything.
        total_size: i64,
        /// Permission bits.
        mode: Option<u32>,
    },
    /// A part of it.
    FileUploadChunk {
        /// Which upload.
        id: String,
        /// The bytes.
        data: Bytes,
        /// Where they belong.
        offset: i64,
    },
    /// Send a file.
    FileDownloadStart {
        /// Chosen by the hub.
        id: String,
        /// Beneath the root.
        path: String,
    },
    /// About snapshots.
    Snapshot {
        /// Chosen by the hub.
        id: String,
        /// What is asked.
        request: SnapshotRequest,
    },
    /// Something the worker sent could not be used.
    Error(ErrorMessage),
}

/// What a worker sends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerToHub {
    /// The first message of a connection.
    Register {
        /// Its name.
        daemon_id: String,
        /// Its machine.
        metadata: Metadata,
    },
    /// Still here.
    Heartbeat {
        /// Only said in v2.
        load: Option<Load>,
    },
    /// A command ended.
    CommandOutput {
        /// Which.
        id: String,
        /// What it printed.
        stdout: String,
        /// What it printed to stderr.
        stderr: String,
        /// Its exit code, -1 when a signal ended it.
        exit_code: i32,
        /// How long it ran.
        duration_ms: u64,
    },
    /// A command could not be run or was stopped.
    CommandError {
        /// Which.
        id: String,
        /// Why.
        error: String,
    },
    /// Answers a shell's start.
    ShellStarted {
        /// Which.
        id: String,
        /// Whether it runs.
        success: bool,
        /// Why not.
        error: Option<String>,
    },
    /// What a shell printed.
    ShellOutput {
        /// Which.
        id: String,
        /// The bytes.
        data: Bytes,
    },
    /// A shell ended.
    ShellExit {
        /// Which.
        id: String,
        /// Its exit code.
        exit_code: i32,
    },
    /// An upload ended, well or not.
    FileUploadComplete {
        /// Which.
        id: String,
        /// Whether the file is there.
        success: bool,
        /// Why not.
        error: Option<String>,
    },
    /// A part of a file.
    FileDownloadChunk {
        /// Which download.
        id: String,
        /// The bytes.
        data: Bytes,
        /// Where they belong.
        offset: i64,
        /// Nothing follows.
        is_last: bool,
    },
    /// A download failed.
    FileDownloadError {
        /// Which.
        id: String,
        /// Why.
        error: String,
    },
    /// Answers a snapshot request.
    Snapshot {
        /// Which.
        id: String,
        /// The answer.
        reply: SnapshotReply,
    },
    /// Something the hub sent could not be used.
    Error(ErrorMessage),
}

/// `error`, with the id of the message it is about where that had one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorMessage {
    /// What was wrong.
    pub message: String,
    /// Whether the connection goes on.
    pub recoverable: bool,
    /// The id of the message it is about, under the key it came with.
    pub id: Option<(IdKey, String)>,
}
