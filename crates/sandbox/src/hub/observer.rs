//! What the hub tells its owner: for the journal, the audit and the metrics.

use std::net::SocketAddr;
use std::time::Duration;

use super::registry::WorkerInfo;

/// Which way a file went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the worker.
    Upload,
    /// From the worker.
    Download,
}

/// Something that happened on the hub.
#[derive(Debug, Clone, PartialEq)]
pub enum HubEvent {
    /// A worker registered, or came back from being stale.
    WorkerOnline(WorkerInfo),
    /// A worker has been silent too long; its connection still stands.
    WorkerStale {
        /// Which.
        worker: String,
    },
    /// A worker's connection ended.
    WorkerOffline {
        /// Which.
        worker: String,
        /// Why.
        reason: String,
    },
    /// A worker was not let in.
    WorkerRefused {
        /// The name it wanted.
        worker: String,
        /// Where it dialled from.
        address: Option<SocketAddr>,
        /// Why.
        reason: String,
    },
    /// A command was sent to a worker.
    CommandStarted {
        /// Which worker.
        worker: String,
        /// The job's id.
        job: String,
        /// The shell line.
        command: String,
        /// The folder, where one was named.
        cwd: Option<String>,
    },
    /// A command's result is known, or nobody waits for it any more.
    CommandEnded {
        /// Which worker.
        worker: String,
        /// The job's id.
        job: String,
        /// The result in words: `exited 0`, `signal 9`, `timed out`, `cancelled`, or the error.
        result: String,
        /// How long it took.
        duration: Duration,
        /// Bytes of output that arrived.
        output: u64,
    },
    /// A shell was started.
    ShellStarted {
        /// Which worker.
        worker: String,
        /// The job's id.
        job: String,
    },
    /// A shell ended, or was left.
    ShellEnded {
        /// Which worker.
        worker: String,
        /// The job's id.
        job: String,
        /// The result in words.
        result: String,
        /// How long it was attached.
        duration: Duration,
    },
    /// A transfer was started.
    TransferStarted {
        /// Which worker.
        worker: String,
        /// Which way.
        direction: Direction,
        /// The file on the worker.
        path: String,
    },
    /// A transfer ended.
    TransferEnded {
        /// Which worker.
        worker: String,
        /// Which way.
        direction: Direction,
        /// The file on the worker.
        path: String,
        /// Bytes that went over the wire.
        bytes: u64,
        /// `complete`, or the error.
        result: String,
        /// How long it took.
        duration: Duration,
    },
}

/// Is told of everything that happens. Called from the hub's own tasks, so it must not block.
pub trait HubObserver: Send + Sync {
    /// Takes note.
    fn observe(&self, event: &HubEvent);
}

/// Takes no note.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl HubObserver for NoObserver {
    fn observe(&self, _event: &HubEvent) {}
}
