//! The end that gives work: workers register here, and callers reach them by name.
//!
//! [`Hub::serve_connection`] is run for every connection by whoever owns the listener. Everything
//! else is for callers: [`Hub::exec`], [`Hub::shell`], [`Hub::upload`], [`Hub::download`] and so
//! on return handles that survive, under v2, the loss of the worker's connection: while it is gone
//! they wait, and when it is back they continue where they were.
//!
//! What waits for a slow reader is bounded: by credit under v2, which stops only that stream; under
//! v1 by a short queue, which stops the worker's connection, until the reader has stood still for
//! [`HubSettings::slow_reader`] and loses its stream.

pub mod auth;
mod conn;
mod exec;
mod folders;
mod input;
pub mod loopback;
mod observer;
mod opening;
mod registry;
mod serve;
mod shell;
mod transfer;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub use auth::{AuthError, PeerInfo, WorkerAuth};
use conn::{Conn, Registration, StreamEvent};
pub use exec::{ExecEvent, ExecHandle, ExecInput, ExecOutcome, ExecOutput, ExecRequest};
pub use folders::FolderRequest;
pub use observer::{Direction, HubEvent, HubObserver, NoObserver, NotKept, Receipt};
use registry::Registry;
pub use registry::{WorkerInfo, WorkerStatus};
pub use shell::{ShellEvent, ShellHandle, ShellInput, ShellPlace, TerminalSize};
pub use transfer::{DownloadHandle, Have, RemoteFile, UploadRequest};

use crate::proto::frame::{FailureCode, JobInfo, Open, Outcome};
use crate::proto::{Liveness, Protocol};
use crate::socket::close;

/// Connections whose worker has not registered that are read at once; further ones wait.
const UNREGISTERED: usize = 1024;
/// Bytes that a worker reads in a second, at the least.
const SLOW_DISK: u64 = 16 << 20;

/// How long an authorization may take.
const AUTHORIZE: Duration = Duration::from_secs(10);

/// A hub's clockwork.
#[derive(Debug, Clone, Copy)]
pub struct HubSettings {
    /// When a worker is stale.
    pub liveness: Liveness,
    /// How long a v2 command or shell waits for its worker to come back.
    pub reattach: Duration,
    /// How long a v1 reader may stand still.
    pub slow_reader: Duration,
    /// How long a v1 transfer, a listing or the start of anything but a command may stay without an
    /// answer.
    pub patience: Duration,
    /// How long a connection may take to register its worker.
    pub registration: Duration,
    /// How long a worker may say nothing at all while a command of it is over its time; longer than
    /// between two heartbeats.
    pub silence: Duration,
}

impl Default for HubSettings {
    fn default() -> Self {
        Self {
            liveness: Liveness::default(),
            reattach: Duration::from_secs(60),
            slow_reader: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            registration: Duration::from_secs(10),
            silence: Duration::from_secs(30),
        }
    }
}

/// Why a worker did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No worker of that name has ever registered.
    #[error("there is no worker {worker:?}; `quintet workers` lists them")]
    UnknownWorker {
        /// The name.
        worker: String,
    },
    /// It is stale or offline.
    #[error("the worker {worker:?} is {}; it will be back by itself if its machine is up", status_word(*.status))]
    NotOnline {
        /// Its name.
        worker: String,
        /// How it is.
        status: WorkerStatus,
    },
    /// The connection broke and, under v2, did not come back in time.
    #[error("the connection to the worker {worker:?} was lost")]
    Lost {
        /// Its name.
        worker: String,
    },
    /// It is no longer let in.
    #[error(
        "the worker {worker:?} was sent away: {reason}; what it ran was cancelled, and to come back it \
         needs a token of `quintet token create --worker {worker}`"
    )]
    Dismissed {
        /// Its name.
        worker: String,
        /// Why.
        reason: String,
    },
    /// What was asked for ended with the worker's program, which is another one now.
    #[error(
        "the worker {worker:?} was started anew while its connection was lost: the {what} ended with \
         it, after some of its work or all of it, and is not sent again; see what it did, then start \
         it again"
    )]
    Restarted {
        /// Its name.
        worker: String,
        /// `command` or `shell`.
        what: &'static str,
    },
    /// Something that only v2 can do.
    #[error("the worker {worker:?} speaks only sandd.v1, which can't {what}")]
    NeedsV2 {
        /// Its name.
        worker: String,
        /// What was asked.
        what: &'static str,
    },
    /// The worker could not do it.
    #[error("{error}")]
    Failed {
        /// What kind of failure; none from a v1 worker.
        code: Option<FailureCode>,
        /// The worker's words.
        error: String,
    },
    /// No answer in time.
    #[error("the worker {worker:?} did not answer in {} s", .waited.as_secs())]
    NoAnswer {
        /// Its name.
        worker: String,
        /// How long.
        waited: Duration,
    },
    /// A command's time is over, and its worker has not been heard of since.
    #[error(
        "the worker {worker:?} does not answer: the command's {} s are over, and nothing came from \
         its worker for {} s; what it may have begun is ended when it is back, `quintet workers` \
         says if it is", .allowed.as_secs_f32(), .silent.as_secs()
    )]
    Overdue {
        /// Its name.
        worker: String,
        /// The command's own timeout.
        allowed: Duration,
        /// How long.
        silent: Duration,
    },
    /// It may have been done, and can't be told: the audit can't be written.
    #[error(transparent)]
    NotKept(#[from] NotKept),
    /// The caller's own file failed.
    #[error("the local file can't be used: {0}")]
    Local(String),
}

fn status_word(status: WorkerStatus) -> &'static str {
    match status {
        WorkerStatus::Online => "online",
        WorkerStatus::Stale => "stale",
        WorkerStatus::Offline => "offline",
    }
}

/// The hub. Clones share everything.
#[derive(Clone)]
pub struct Hub {
    inner: Arc<Inner>,
}

struct Inner {
    settings: HubSettings,
    /// The settings' at first.
    liveness: Mutex<Liveness>,
    auth: Arc<dyn WorkerAuth>,
    observer: Arc<dyn HubObserver>,
    /// Short sections without an await.
    registry: Mutex<Registry>,
    changes: watch::Sender<()>,
    links: AtomicU64,
    /// Of connections whose worker has not registered.
    unregistered: Arc<Semaphore>,
    epoch: Instant,
    shutdown: CancellationToken,
}

impl Hub {
    /// A hub without workers. When `shutdown` is cancelled, every connection is closed.
    pub fn new(
        settings: HubSettings,
        auth: Arc<dyn WorkerAuth>,
        observer: Arc<dyn HubObserver>,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                settings,
                liveness: Mutex::new(settings.liveness),
                auth,
                observer,
                registry: Mutex::default(),
                changes: watch::Sender::new(()),
                links: AtomicU64::new(0),
                unregistered: Arc::new(Semaphore::new(UNREGISTERED)),
                epoch: Instant::now(),
                shutdown,
            }),
        }
    }

    /// Lists workers that an earlier hub knew, as offline, until they come back. At most as many as
    /// are listed of those that go.
    pub fn remember(&self, workers: impl IntoIterator<Item = WorkerInfo>) {
        self.inner.registry().remember(workers);
    }

    /// Changes when a worker is stale, from its next check on.
    pub fn set_liveness(&self, liveness: Liveness) {
        *lock(&self.inner.liveness) = liveness;
    }

    /// All workers, by name.
    pub fn workers(&self) -> Vec<WorkerInfo> {
        self.select(&BTreeMap::new())
    }

    /// One worker.
    pub fn worker(&self, id: &str) -> Option<WorkerInfo> {
        self.inner.registry().info(id)
    }

    /// The workers that carry all of `labels`, by name, whatever their state.
    pub fn select(&self, labels: &BTreeMap<String, String>) -> Vec<WorkerInfo> {
        self.inner.registry().select(labels)
    }

    /// Changes whenever a worker comes, goes, or becomes stale.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.changes.subscribe()
    }

    /// Asks again whether a worker may be here; called after one of its tokens was revoked. One that
    /// may not is sent away with `reason`: what it runs for this hub is cancelled, and who waits for
    /// it is told at once. True when it may stay.
    pub async fn recheck(&self, worker: &str, reason: &str) -> bool {
        let conn = self.inner.registry().conn(worker).cloned();
        let Some(conn) = conn else {
            return false;
        };
        match self.inner.authorize(conn.peer(), worker).await {
            Ok(()) => return true,
            // It is asked for its token again when it comes back.
            Err(AuthError::Unavailable(_)) => conn.close(close::POLICY, reason.to_owned()),
            Err(_) => self.inner.dismiss(worker, &conn, reason),
        }
        false
    }

    /// Closes a worker's connection. It comes back by itself.
    pub fn disconnect(&self, worker: &str, reason: &str) {
        let registry = self.inner.registry();
        if let Some(conn) = registry.conn(worker) {
            conn.close(close::POLICY, reason.to_owned());
        }
    }

    /// The commands and shells that a worker keeps, its own restarts excepted.
    pub async fn jobs(&self, worker: &str) -> Result<Vec<JobInfo>, RequestError> {
        let conn = self.inner.online_v2(worker, "list its commands")?;
        let opened = conn.open(Open::Jobs, 0).await;
        let mut stream = opened.map_err(|_| self.inner.lost(worker))?;
        loop {
            match self.inner.answered(worker, stream.next(), 0).await? {
                StreamEvent::End(end) => match end.outcome {
                    Outcome::Jobs { jobs } => return Ok(jobs),
                    outcome => return Err(failure(outcome)),
                },
                StreamEvent::Opened(_) | StreamEvent::Out(_) | StreamEvent::Err(_) => {}
            }
        }
    }
}

impl Inner {
    /// What a worker says next, which it has to within the patience. Before that it may have to
    /// read `bytes` of a file.
    async fn answered(
        &self,
        worker: &str,
        next: impl Future<Output = Option<StreamEvent>>,
        bytes: u64,
    ) -> Result<StreamEvent, RequestError> {
        let waited = self.settings.patience + Duration::from_secs(bytes / SLOW_DISK);
        match tokio::time::timeout(waited, next).await {
            Ok(event) => event.ok_or_else(|| self.lost(worker)),
            Err(_) => Err(RequestError::NoAnswer {
                worker: worker.to_owned(),
                waited,
            }),
        }
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    fn liveness(&self) -> Liveness {
        *lock(&self.liveness)
    }

    fn next_link(&self) -> u64 {
        self.links.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn changed(&self) {
        self.changes.send_replace(());
    }

    fn observe(&self, event: HubEvent) -> Receipt {
        self.observer.observe(event)
    }

    fn online(&self, worker: &str) -> Result<Conn, RequestError> {
        let registry = self.registry();
        if let Some(reason) = registry.dismissed(worker) {
            return Err(dismissed(worker, reason));
        }
        match (registry.status(worker), registry.conn(worker)) {
            (Some(WorkerStatus::Online), Some(conn)) => Ok(conn.clone()),
            (Some(status), _) => Err(RequestError::NotOnline {
                worker: worker.to_owned(),
                status,
            }),
            (None, _) => Err(RequestError::UnknownWorker {
                worker: worker.to_owned(),
            }),
        }
    }

    fn online_v2(&self, worker: &str, what: &'static str) -> Result<Conn, RequestError> {
        let conn = self.online(worker)?;
        match conn.protocol() {
            Protocol::V2 => Ok(conn),
            Protocol::V1 => Err(RequestError::NeedsV2 {
                worker: worker.to_owned(),
                what,
            }),
        }
    }

    /// Why a request ends whose connection is gone.
    fn lost(&self, worker: &str) -> RequestError {
        match self.registry().dismissed(worker) {
            Some(reason) => dismissed(worker, reason),
            None => RequestError::Lost {
                worker: worker.to_owned(),
            },
        }
    }

    async fn authorize(&self, peer: &PeerInfo, worker: &str) -> Result<(), AuthError> {
        let answer = self.auth.authorize(peer, worker);
        match tokio::time::timeout(AUTHORIZE, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(AuthError::Unavailable("no answer in time".to_owned())),
        }
    }

    /// Sends a worker away that may not come back as it is.
    fn dismiss(&self, worker: &str, conn: &Conn, reason: &str) {
        self.registry().dismiss(worker, conn.id(), reason);
        conn.cancel_streams();
        conn.close(close::POLICY, reason.to_owned());
        self.changed();
    }

    /// Waits until something is overdue that a worker had until `due` for, which is never while
    /// anything comes from it; returns for how long nothing did.
    async fn overdue(&self, worker: &str, due: Instant) -> Duration {
        loop {
            let conn = self.registry().conn(worker).cloned();
            let heard = conn.map_or(due, |conn| conn.heard());
            let given_up = heard.max(due) + self.settings.silence;
            if given_up <= Instant::now() {
                return heard.elapsed();
            }
            tokio::time::sleep_until(given_up).await;
        }
    }

    /// Waits for a worker to be online under another registration than `lost`.
    async fn returned(&self, worker: &str, lost: Registration) -> Result<Conn, RequestError> {
        let mut changes = self.changes.subscribe();
        let found = async {
            loop {
                match self.online_v2(worker, "continue") {
                    Ok(conn) if conn.registration() != lost => return Ok(conn),
                    Err(error @ RequestError::Dismissed { .. }) => return Err(error),
                    Ok(_) | Err(_) => {}
                }
                if changes.changed().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            found = tokio::time::timeout(self.settings.reattach, found) => {
                found.unwrap_or_else(|_| Err(self.lost(worker)))
            }
            () = self.shutdown.cancelled() => Err(self.lost(worker)),
        }
    }
}

fn dismissed(worker: &str, reason: &str) -> RequestError {
    RequestError::Dismissed {
        worker: worker.to_owned(),
        reason: reason.to_owned(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An outcome that is not what the request was for.
fn failure(outcome: Outcome) -> RequestError {
    let (code, error) = match outcome {
        Outcome::Failed { code, error } => (Some(code), error),
        Outcome::Cancelled => (None, "cancelled".to_owned()),
        outcome => (
            Some(FailureCode::Protocol),
            format!("the worker answered with {outcome:?}"),
        ),
    };
    RequestError::Failed { code, error }
}
