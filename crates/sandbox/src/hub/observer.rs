//! What the hub tells its owner: for the journal, the audit and the metrics.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
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
///
/// What depends on an event is told to nobody before its receipt has come: whoever reads a
/// command's result can rely on the command's rows being kept.
pub trait HubObserver: Send + Sync {
    /// Takes note, in the order of the calls, whether or not anybody waits for the receipt.
    fn observe(&self, event: HubEvent) -> Receipt;
}

/// An event could not be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("it can't be recorded: {0}")]
pub struct NotKept(pub String);

/// Comes when an event is safe.
#[must_use = "what depends on the event has to wait for it"]
pub struct Receipt(Option<Kept>);

type Kept = Pin<Box<dyn Future<Output = Result<(), NotKept>> + Send + Sync>>;

impl Receipt {
    /// Nothing to wait for.
    pub const fn given() -> Self {
        Self(None)
    }

    /// Comes when `kept` does.
    pub fn when(kept: impl Future<Output = Result<(), NotKept>> + Send + Sync + 'static) -> Self {
        Self(Some(Box::pin(kept)))
    }

    /// Waits for it. Cancel safe; a second call returns at once.
    pub async fn come(&mut self) -> Result<(), NotKept> {
        let Some(kept) = &mut self.0 else {
            return Ok(());
        };
        let result = kept.await;
        self.0 = None;
        result
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt")
            .field("given", &self.0.is_none())
            .finish()
    }
}

/// Takes no note.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl HubObserver for NoObserver {
    fn observe(&self, _event: HubEvent) -> Receipt {
        Receipt::given()
    }
}
