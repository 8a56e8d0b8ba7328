//! The sandbox plane in the daemon: the hub, who may register, what runs for which client, and the
//! audit of all of it.
//!
//! A command belongs to the client that started it: when that goes away the command is cancelled.
//! A shell is left running instead, to be attached to. When the daemon stops, it first lets the
//! commands of sessions and of the built-in worker end ([`running`]); after that, and all others at
//! once, they are left running where the worker can keep them: their clients see a stream without
//! an end and attach again to the daemon that comes next.

mod audit;
mod builtin;
mod copy;
mod jobs;
pub(crate) mod known;
mod place;
mod running;
pub(crate) mod tokens;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quintet_sandbox::hub::{Hub, HubSettings, RequestError, WorkerStatus};
use quintet_sandbox::isolate::Feature;
use quintet_sandbox::proto::{Fingerprint, Liveness, Token};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::SandboxConfig;
use crate::metrics::Metrics;
use crate::refusal::Refusal;
use crate::store::Db;

pub use builtin::{BuiltinError, BuiltinWorker, instead_of_temp};
pub(crate) use builtin::{Dial, LOCAL, start as start_builtin};
pub(crate) use copy::copy;
pub(crate) use jobs::{CommandEvents, terminal_size};
pub(crate) use running::{Running, RunningCommand, RunningCommands};

/// How long a client waits for a worker that is on its way.
const ARRIVAL_PATIENCE: Duration = Duration::from_secs(30);

/// Everything of the sandbox plane that the daemon's servers share.
pub(crate) struct Workers {
    pub(crate) hub: Hub,
    jobs: Arc<jobs::OpenJobs>,
    /// What a stop waits for.
    pub(crate) running: RunningCommands,
    /// The self-signed certificate's, which goes into every token.
    pub(crate) fingerprint: Option<Fingerprint>,
    /// Lets the built-in worker in, whatever address it has to dial; known to this process alone.
    pub(crate) builtin_token: Token,
    /// Connections of workers, and what runs for clients.
    pub(crate) tasks: TaskTracker,
    audit: TaskTracker,
    stop: CancellationToken,
    /// There is a built-in worker.
    has_local: Arc<AtomicBool>,
    /// The built-in worker's commands can write wherever the daemon can.
    local_is_unconfined: AtomicBool,
}

impl Workers {
    pub(crate) fn new(
        db: &Db,
        config: &SandboxConfig,
        metrics: &Arc<Metrics>,
        fingerprint: Option<Fingerprint>,
        builtin_token: Token,
    ) -> Self {
        let stop = CancellationToken::new();
        let settings = HubSettings::default();
        let settings = HubSettings {
            liveness: liveness(config),
            // A heartbeat may be late, and one may be lost.
            silence: settings.silence.max(config.heartbeat * 3),
            ..settings
        };
        let audit = TaskTracker::new();
        let observer = audit::AuditObserver::new(db.clone(), metrics.clone(), audit.clone());
        let has_local = Arc::<AtomicBool>::default();
        let hash = builtin_token.hash(LOCAL);
        let auth = tokens::TokenAuth::new(db.clone(), hash, has_local.clone());
        Self {
            hub: Hub::new(settings, Arc::new(auth), Arc::new(observer), stop.clone()),
            jobs: Arc::default(),
            running: RunningCommands::default(),
            fingerprint,
            builtin_token,
            tasks: TaskTracker::new(),
            audit,
            stop,
            has_local,
            local_is_unconfined: AtomicBool::new(false),
        }
    }

    /// Notes that there is a built-in worker, and what confines its commands.
    pub(crate) fn local_starts_with(&self, features: &[Feature]) {
        self.has_local.store(true, Ordering::Relaxed);
        let confined = |it: &Feature| it.name == "landlock" && it.available;
        let unconfined = !features.iter().any(confined);
        self.local_is_unconfined
            .store(unconfined, Ordering::Relaxed);
    }

    /// Whether there is a built-in worker, whose name is its alone.
    pub(crate) fn has_local(&self) -> bool {
        self.has_local.load(Ordering::Relaxed)
    }

    /// Whether the built-in worker's commands can write in a session's own folder: then they run
    /// there, and no copy is needed.
    pub(crate) fn local_is_unconfined(&self) -> bool {
        self.local_is_unconfined.load(Ordering::Relaxed)
    }

    /// Takes over changed settings; a worker's own take effect at its next start.
    pub(crate) fn configure(&self, config: &SandboxConfig) {
        self.hub.set_liveness(liveness(config));
    }

    /// The names of the workers that came since the daemon's start, and of the built-in one.
    pub(crate) fn named(&self) -> BTreeSet<String> {
        let came = self.hub.workers().into_iter().map(|info| info.id);
        came.chain(self.has_local().then(|| LOCAL.to_owned()))
            .collect()
    }

    /// Workers that are online.
    pub(crate) fn online(&self) -> usize {
        let workers = self.hub.workers();
        let online = workers.iter().filter(|it| it.state == WorkerStatus::Online);
        online.count()
    }

    /// Leaves commands and shells to their workers, closes every connection, and writes the last
    /// rows of the audit.
    pub(crate) async fn shutdown(&self) {
        self.jobs.release_all();
        self.jobs.released().await;
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.audit.close();
        self.audit.wait().await;
    }

    /// Waits for the built-in worker, which dials as any other does and so comes a moment after
    /// the daemon's first clients. Others are there or they are not.
    pub(crate) async fn dialled(&self, worker: &str) {
        if worker == LOCAL && self.has_local.load(Ordering::Relaxed) {
            self.arrived(worker).await;
        }
    }

    /// Waits, for a client that attaches, until its worker is there: after a restart of the
    /// daemon the client is often back first.
    pub(crate) async fn arrived(&self, worker: &str) {
        let mut changes = self.hub.changes();
        let online = async {
            while self
                .hub
                .worker(worker)
                .is_none_or(|info| info.state != WorkerStatus::Online)
            {
                if changes.changed().await.is_err() {
                    break;
                }
            }
        };
        // Whoever asks next says what is wrong.
        let _ = tokio::time::timeout(ARRIVAL_PATIENCE, online).await;
    }
}

/// The worker of a session: the one that it names, else the only one that is online, else `local`.
pub fn session_worker<'a>(named: &str, online: impl IntoIterator<Item = &'a str>) -> String {
    if !named.is_empty() {
        return named.to_owned();
    }
    let mut online = online.into_iter();
    match (online.next(), online.next()) {
        (Some(only), None) => only.to_owned(),
        _ => LOCAL.to_owned(),
    }
}

fn liveness(config: &SandboxConfig) -> Liveness {
    Liveness {
        stale_after: config.stale_after,
        check_every: config.stale_check,
    }
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        let text = error.to_string();
        match error {
            RequestError::UnknownWorker { .. } => Self::NotFound(text),
            RequestError::NotOnline { .. } | RequestError::Dismissed { .. } => Self::Conflict(text),
            RequestError::NeedsV2 { .. } | RequestError::Failed { .. } | RequestError::Local(_) => {
                Self::Bad(text)
            }
            RequestError::Lost { .. }
            | RequestError::Restarted { .. }
            | RequestError::NoAnswer { .. }
            | RequestError::Overdue { .. }
            | RequestError::NotKept(_) => Self::Internal(text),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use quintet_sandbox::isolate::{Limits, Network};

    use super::*;
    use crate::config::ByteSize;

    #[tokio::test]
    async fn the_built_in_worker_is_waited_for_and_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let config = SandboxConfig {
            heartbeat: Duration::from_secs(30),
            stale_after: Duration::from_secs(90),
            stale_check: Duration::from_secs(30),
            output_quota: ByteSize::from_bytes(1 << 20),
            isolate: true,
            network: Network::On,
            read: Vec::new(),
            write: Vec::new(),
            limits: Limits::default(),
            commands_max: 1,
            shells_max: 1,
            transfers_max: 1,
        };
        let token = tokens::mint(None).expect("random");
        let workers = Workers::new(&db, &config, &Metrics::new("0"), None, token);
        let mut now = Context::from_waker(Waker::noop());
        assert_eq!(pin!(workers.dialled(LOCAL)).poll(&mut now), Poll::Ready(()));
        workers.local_starts_with(&[]);
        assert_eq!(pin!(workers.dialled(LOCAL)).poll(&mut now), Poll::Pending);
        assert_eq!(pin!(workers.dialled("box")).poll(&mut now), Poll::Ready(()));
    }
}
