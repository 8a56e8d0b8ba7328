//! The end that does the work: commands, shells and files on one machine.
//!
//! [`Worker::start`] opens the root and starts the isolation helper; [`Worker::run`] dials the hub
//! and, whenever the connection is lost, dials again. What v2 started runs on meanwhile.
//!
//! The connection and all jobs share one thread of the worker's own, see [`core`]; files have
//! threads of theirs.

mod config;
mod connection;
mod copy;
mod core;
mod delivery;
mod download;
mod git;
mod job;
mod jobs;
mod load;
mod partials;
mod process;
mod spool;
mod state;
mod transfer;
mod tree;
mod upload;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quintet_framing::backoff::Backoff;
use quintet_framing::ws::{WsDial, dial_socket};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use config::{KEPT_VARIABLES, Mirrors, Quotas, Snapshots, WorkerConfig, scrub_environment};
use connection::Ended;
use core::Core;
use job::JobCommand;
use jobs::{JobLimits, Jobs};
use partials::Partials;
use process::Spawner;
use spool::SpoolQuota;
use state::WorkerState;
use upload::Names;

use crate::isolate::{Feature, ISOLATION_LABEL, IsolationClient, TEMP};
use crate::paths::{PathError, Root};
use crate::proto::{MAX_MESSAGE, Protocol, chosen};

/// How long a dial may take.
const DIAL: Duration = Duration::from_secs(20);

/// How long commands get to die when the worker stops.
const DRAIN: Duration = Duration::from_secs(5);

/// How often leftovers are looked for.
const SWEEP: Duration = Duration::from_secs(60 * 60);

/// Why a worker can't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The daemon id is empty.
    #[error("a worker needs an id; give one with --daemon-id")]
    NoId,
    /// The root can't be used.
    #[error("the root can't be used: {0}")]
    Root(#[from] PathError),
    /// Another worker uses the spool folder.
    #[error("another worker works in {}; give this one another --daemon-id or --home", path.display())]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// The spool folder can't be used.
    #[error("the spool folder {path} can't be used: {source}")]
    Spool {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The helper that confines commands can't be started.
    #[error("isolation can't be set up: {0}")]
    Isolation(#[source] io::Error),
    /// The system gives the worker no thread.
    #[error("the worker's thread can't be started: {0}")]
    Thread(#[source] io::Error),
    /// The fingerprint in the token can't be used.
    #[error("TLS can't be set up: {0}")]
    Tls(#[from] rustls::Error),
}

/// Why a worker ended that was not told to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// Two that dialled again and again would take the name from each other for ever.
    #[error(
        "another worker registered as {id:?} and took this one's place; give each its own --daemon-id"
    )]
    Replaced {
        /// The name.
        id: String,
    },
    /// Its own thread failed.
    #[error("the worker's thread ended: {0}")]
    Thread(String),
}

/// Where a worker stands with its hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConnectionState {
    /// Dialling, or waiting to dial again.
    Connecting,
    /// Registered.
    Online(Protocol),
    /// The last try failed, for this reason; another follows.
    Failed(String),
}

/// A worker.
pub struct Worker {
    inner: Inner,
    core: Core,
}

impl Worker {
    /// Opens the root, tidies the spool folder and starts the isolation helper.
    pub async fn start(config: WorkerConfig) -> Result<Self, StartError> {
        if config.daemon_id.trim().is_empty() {
            return Err(StartError::NoId);
        }
        let core = Core::new().map_err(StartError::Thread)?;
        let (core, inner) = core
            .drive(Inner::start(config))
            .await
            .map_err(StartError::Thread)?;
        Ok(Self {
            inner: inner?,
            core,
        })
    }

    /// Which means of isolation are in force; empty without isolation.
    pub fn features(&self) -> &[Feature] {
        &self.inner.features
    }

    /// Follows the connection.
    pub fn connection(&self) -> watch::Receiver<ConnectionState> {
        self.inner.connection.subscribe()
    }

    /// Works until `shutdown`, until this future is dropped, or until another worker has taken its
    /// place, then kills what still runs.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), RunError> {
        let stop = shutdown.child_token();
        let _stopped_when_dropped = stop.clone().drop_guard();
        match self.core.drive(self.inner.run(stop)).await {
            Ok((_, ended)) => ended,
            Err(error) => Err(RunError::Thread(error.to_string())),
        }
    }
}

/// What runs on the worker's own thread.
struct Inner {
    state: Arc<WorkerState>,
    features: Vec<Feature>,
    connection: watch::Sender<ConnectionState>,
    tls: Option<Arc<rustls::ClientConfig>>,
    /// Held for as long as it works.
    _spool: OwnedFd,
}

impl Inner {
    async fn start(mut config: WorkerConfig) -> Result<Self, StartError> {
        let root = Root::open(&config.root)?;
        let unusable = |source| StartError::Spool {
            path: config.spool_dir.clone(),
            source,
        };
        let spool = lock_spool(&config.spool_dir).map_err(unusable)?;
        let spool = spool.ok_or_else(|| StartError::InUse {
            path: config.spool_dir.clone(),
        })?;
        prepare_spool(&config, &root).map_err(unusable)?;
        let tasks = TaskTracker::new();
        if let Some(isolation) = &config.isolation
            && isolation.confine
            && isolation.temp != Path::new(TEMP)
        {
            let temp = isolation.temp.clone();
            make_temp(&temp).map_err(StartError::Isolation)?;
            config.env.retain(|(name, _)| name != "TMPDIR");
            config.env.push(("TMPDIR".into(), temp.into()));
        }
        if let Some(isolation) = config.isolation.as_mut().filter(|it| it.confine) {
            let folder = config.spool_dir.with_file_name("git");
            if let Err(error) = git::hand_over(folder, &mut config.env, isolation).await {
                tracing::warn!(%error, "git's settings are not copied; commands have none");
            }
        }
        let (spawner, features) = match &config.isolation {
            Some(isolation) => {
                let root = root.path().to_owned();
                let (client, features) = IsolationClient::start(isolation.clone(), root)
                    .await
                    .map_err(StartError::Isolation)?;
                let lacking = |feature: &&Feature| !feature.available || !feature.fix.is_empty();
                for feature in features.iter().filter(lacking) {
                    tracing::warn!(
                        feature = feature.name,
                        detail = feature.detail,
                        "this kernel does not give all of the isolation that was asked for"
                    );
                }
                let confined = |it: &Feature| it.name == "landlock" && it.available;
                let isolation = match features.iter().any(confined) {
                    true => "on",
                    false => "off",
                };
                // What the hub's policy goes by: what is so, and not what was asked for.
                config
                    .labels
                    .insert(ISOLATION_LABEL.to_owned(), isolation.to_owned());
                (Spawner::Isolated(client), features)
            }
            None => (Spawner::Direct, Vec::new()),
        };
        let pin = config.token.as_ref().and_then(|token| token.fingerprint());
        let tls = match pin {
            Some(fingerprint) => Some(crate::tls::pinned_client(fingerprint)?),
            None => config.tls.clone(),
        };
        let quotas = config.quotas;
        let state = WorkerState {
            root,
            spawner,
            jobs: Arc::new(Jobs::new(JobLimits {
                commands: quotas.commands,
                shells: quotas.shells,
            })),
            spool: Arc::new(SpoolQuota::new(quotas.spool_bytes)),
            tasks,
            transfers: Arc::new(Semaphore::new(quotas.transfers)),
            uploading: Names::default(),
            run: uuid::Uuid::new_v4(),
            former: Mutex::default(),
            config,
        };
        Ok(Self {
            state: Arc::new(state),
            features,
            connection: watch::Sender::new(ConnectionState::Connecting),
            tls,
            _spool: spool,
        })
    }

    async fn run(self, shutdown: CancellationToken) -> Result<(), RunError> {
        let epoch = Instant::now();
        let mut backoff = Backoff::new(self.state.config.backoff);
        let mut links = 0;
        self.state
            .tasks
            .spawn(sweep_regularly(self.state.clone(), shutdown.clone()));
        let mut result = Ok(());
        while !shutdown.is_cancelled() {
            links += 1;
            let mut online_at = None;
            let ended = self
                .connect_once(links, &mut || online_at = Some(epoch.elapsed()), &shutdown)
                .await;
            if let Some(at) = online_at {
                backoff.connected(at);
            }
            let reason = match ended {
                Ended::Shutdown => break,
                Ended::Replaced => {
                    result = Err(RunError::Replaced {
                        id: self.state.config.daemon_id.clone(),
                    });
                    // What else runs for this worker ends as if it had been told to.
                    shutdown.cancel();
                    break;
                }
                Ended::Refused(reason) => format!("the hub refused this worker: {reason}"),
                Ended::Lost(reason) => reason,
            };
            let delay = backoff.lost(epoch.elapsed(), random());
            tracing::info!(reason, ?delay, "not connected");
            self.connection
                .send_replace(ConnectionState::Failed(reason));
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = shutdown.cancelled() => {}
            }
        }
        self.state.jobs.tell_all(|| JobCommand::Shutdown);
        self.state.tasks.close();
        if tokio::time::timeout(DRAIN, self.state.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("some commands did not end in time");
        }
        if let Spawner::Isolated(client) = &self.state.spawner {
            client.close().await;
        }
        result
    }

    async fn connect_once(
        &self,
        link: u64,
        online: &mut (dyn FnMut() + Send),
        shutdown: &CancellationToken,
    ) -> Ended {
        let config = &self.state.config;
        let token = config.token.as_ref().map(|token| token.expose());
        let names: Vec<&str> = config.protocols.iter().map(|p| p.name()).collect();
        let dial = WsDial {
            url: &config.server_url,
            protocols: &names,
            token: token.as_deref(),
            tls: self.tls.clone(),
        };
        let dialled = tokio::select! {
            () = shutdown.cancelled() => return Ended::Shutdown,
            dialled = tokio::time::timeout(DIAL, dial_socket(dial, MAX_MESSAGE)) => dialled,
        };
        let (socket, echo) = match dialled {
            Ok(Ok(dialled)) => dialled,
            Ok(Err(error)) => return Ended::Lost(self.why_not_dialled(&error)),
            Err(_) => return Ended::Lost(format!("{} did not answer", config.server_url)),
        };
        let Some(protocol) = chosen(echo.as_deref()) else {
            return Ended::Lost(format!(
                "{} is not a sandbox hub: it chose no sandd version",
                config.server_url
            ));
        };
        let registered = || {
            online();
            self.connection
                .send_replace(ConnectionState::Online(protocol));
        };
        connection::serve(
            self.state.clone(),
            socket,
            protocol,
            link,
            registered,
            shutdown,
        )
        .await
    }

    fn why_not_dialled(&self, error: &(dyn std::error::Error + 'static)) -> String {
        let config = &self.state.config;
        match crate::tls::refused_certificate(error) {
            Some(rustls::CertificateError::UnknownIssuer) => format!(
                "{error}; nobody that this machine trusts signed its certificate: make a token with \
                 `quintet token create --worker {}` on its machine, which names it",
                config.daemon_id
            ),
            Some(rustls::CertificateError::ApplicationVerificationFailure) => format!(
                "{} shows another certificate than the one that the token names: it is another \
                 daemon, or has a new one; make a new token with `quintet token create --worker {}` \
                 on its machine",
                config.server_url, config.daemon_id
            ),
            _ => error.to_string(),
        }
    }
}

/// Removes what no upload will continue, while the worker runs.
async fn sweep_regularly(state: Arc<WorkerState>, shutdown: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(SWEEP) => {}
            () = shutdown.cancelled() => return,
        }
        let worker = state.clone();
        let swept = tokio::task::spawn_blocking(move || worker.partials().sweep_old(&worker.root));
        if let Ok(Err(error)) = swept.await {
            tracing::warn!(%error, "old partial uploads can't be removed");
        }
    }
}

/// Makes the folder for temporary files, without what earlier commands left there.
fn make_temp(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    match std::fs::remove_dir_all(folder) {
        // Commands can make folders that are not easily removed; no worker stays away for that.
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, folder = %folder.display(), "temporary files stay");
        }
        Ok(()) | Err(_) => {}
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

/// Makes the spool folder and takes it for this worker alone; `None` when another has it.
fn lock_spool(folder: &Path) -> io::Result<Option<OwnedFd>> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let folder = OwnedFd::from(std::fs::File::open(folder)?);
    match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(folder)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Empties the spool folder of what an earlier run left.
fn prepare_spool(config: &WorkerConfig, root: &Root) -> io::Result<()> {
    for entry in std::fs::read_dir(&config.spool_dir)? {
        let entry = entry?;
        // The jobs of an earlier run died with it.
        if entry.file_name().to_string_lossy().starts_with("job-") {
            std::fs::remove_file(entry.path())?;
        }
    }
    Partials::new(&config.spool_dir).sweep_at_start(root)
}

/// Uniform in 0..1, for the jitter that keeps a restarted hub's workers apart.
fn random() -> f64 {
    let (_, low) = uuid::Uuid::new_v4().as_u64_pair();
    // The top two bits of this half are the variant and always the same.
    ((low << 2) >> 11) as f64 / (1u64 << 53) as f64
}
