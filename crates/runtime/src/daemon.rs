//! The daemon: built in order, announced when ready, stopped in order.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quintet_agent::{CgroupUse, Supervisor, SupervisorOptions};
use quintet_control::wire::PairingCode;
use quintet_control::{Limits, serve_tcp, serve_unix};
use quintet_framing::unix::{self, BindError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::channel::{self, Channel};
use crate::config::{ByteSize, Config, ConfigErrors, ConfigInputs, ConfigStore};
use crate::cron::{CronDriver, CronHandle};
use crate::home::{Home, write_atomically};
use crate::http;
use crate::journal::{self, Bound, Entry, Kind};
use crate::lock::{HomeLock, LockError};
use crate::metrics::Metrics;
use crate::models::{self, AgentDoor, ModelGateway};
use crate::refusal::Refusal;
use crate::service::{ControlService, CronRunner};
use crate::store::{Db, StoreError};
use crate::tools::ToolState;
use crate::turns::{Coordinator, Instances, OpenTurns, TurnObserver};
use crate::workers::{self, BuiltinError, BuiltinWorker, Dial, Workers, start_builtin};
use crate::workspaces::Workspaces;

/// How often the journal is pruned by the configured age and size.
const PRUNE_EVERY: Duration = Duration::from_secs(3600);

/// What the binary knows and the daemon needs.
pub struct DaemonOptions {
    /// The home folder.
    pub home: Home,
    /// Where the configuration comes from.
    pub config: ConfigInputs,
    /// The running version.
    pub version: &'static str,
    /// Also listens here, for clients of the original protocol.
    pub compat_socket: Option<PathBuf>,
    /// Serves non-loopback addresses without TLS.
    pub insecure: bool,
    /// This very program, to start built-in agents with.
    pub program: PathBuf,
    /// The variables that agents get from the daemon's own environment.
    pub base_env: BTreeMap<String, String>,
    /// Runs a worker named `local` in this process.
    pub worker: Option<BuiltinWorker>,
}

/// Why the daemon did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another daemon has this home folder, or the lock can't be taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The configuration is wrong; nothing was bound.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// The database can't be used.
    #[error("{}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: StoreError,
    },
    /// A port can't be bound.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// A socket can't be bound.
    #[error(transparent)]
    Socket(#[from] BindError),
    /// TLS is configured and can't be served.
    #[error(transparent)]
    Tls(#[from] http::TlsError),
    /// The built-in worker can't start.
    #[error("the built-in worker can't start: {0}; `--no-worker` leaves it out")]
    Worker(#[from] BuiltinError),
    /// The system has no random numbers to make a secret of.
    #[error("no secret can be made: {0}")]
    Secret(Refusal),
    /// Agents can't be supervised.
    #[error("agents can't be supervised: {0}")]
    Supervisor(String),
    /// A file can't be written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// `run/quintet.json`: where programs find the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFile {
    /// The daemon's process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// The control socket.
    pub control_socket: PathBuf,
    /// The HTTP address, as a URL.
    pub http: String,
    /// The SHA-256 of the certificate that it shows, in hex with colons; only with TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// When it was ready, RFC 3339.
    pub started_at: String,
}

/// What a person is told when the daemon is ready.
#[derive(Debug, Clone)]
pub struct Welcome {
    /// A code for the first browser; none once a device is paired or a code was asked for.
    pub pairing: Option<PairingCode>,
    /// The agent that answers when none is named.
    pub agent: &'static str,
    /// Whether a model provider is configured.
    pub has_provider: bool,
    /// The model that `coder` asks, where it is known before it is asked.
    pub model: Option<String>,
    /// Whether the built-in worker runs.
    pub has_worker: bool,
}

/// What the planes' servers share.
pub struct Runtime {
    pub(crate) db: Db,
    pub(crate) coordinator: Coordinator,
    pub(crate) config: Arc<ConfigStore>,
    pub(crate) home: Home,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) started: Instant,
    pub(crate) version: &'static str,
    pub(crate) crons: CronHandle,
    pub(crate) tasks: TaskTracker,
    pub(crate) workers: Arc<Workers>,
    pub(crate) channel: Channel,
    pub(crate) workspaces: Workspaces,
    pub(crate) gateway: ModelGateway,
    pub(crate) tools: ToolState,
    /// What a control client of another machine has to know; new at every start.
    pub(crate) control_token: String,
}

impl Runtime {
    /// What a stop waits for, in words; `None` when nothing runs.
    fn running(&self) -> Option<String> {
        let turns = match self.coordinator.running() {
            0 => None,
            1 => Some("1 turn".to_owned()),
            many => Some(format!("{many} turns")),
        };
        let parts: Vec<String> = [turns, self.workers.running.described()]
            .into_iter()
            .flatten()
            .collect();
        (!parts.is_empty()).then(|| parts.join(" and "))
    }

    /// Brings the gauges up to date.
    pub(crate) async fn refresh_metrics(&self) -> Result<(), Refusal> {
        let counts = self.counts().await?;
        let set = |gauge: &prometheus_client::metrics::gauge::Gauge, value: u64| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        let metrics = &self.metrics;
        let processes = self
            .coordinator
            .instances()
            .list()
            .iter()
            .flat_map(|agent| &agent.instances)
            .filter(|(_, status)| status.pid.is_some())
            .count();
        set(&metrics.agent_processes, processes as u64);
        set(&metrics.sessions_open, counts.sessions);
        set(&metrics.messages_queued, counts.queued);
        set(&metrics.asks_pending, counts.asks);
        set(&metrics.approvals_pending, counts.approvals);
        set(&metrics.journal_bytes, counts.journal_bytes);
        set(&metrics.journal_seq, self.db.tail().head());
        set(&metrics.journal_readers, self.db.tail().readers() as u64);
        for (kind, count) in self.db.tail().counts() {
            metrics.journal_rows(kind.as_str(), count);
        }
        set(&metrics.turns_running, self.coordinator.running() as u64);
        set(&metrics.workers_online, self.workers.online() as u64);
        set(&metrics.uptime_seconds, self.started.elapsed().as_secs());
        Ok(())
    }
}

/// A daemon that is ready.
pub struct Daemon {
    runtime: Arc<Runtime>,
    run_file: RunFile,
    sockets: Vec<PathBuf>,
    servers: TaskTracker,
    stop_servers: CancellationToken,
    has_worker: bool,
    _lock: HomeLock,
}

impl Daemon {
    /// Builds everything and announces it. Nothing is left behind when it fails.
    pub async fn start(options: DaemonOptions) -> Result<Self, StartError> {
        let home = options.home;
        home.create().map_err(|source| StartError::Io {
            path: home.root().to_owned(),
            source,
        })?;
        let lock = HomeLock::take(&home.lock_file(), home.root())?;
        home.sweep();
        ConfigStore::write_first_run(&options.config)?;
        let config = Arc::new(ConfigStore::open(options.config)?);
        let current = config.current();
        let listen_at = current.http.listen;
        if let Some(address) = current.control.tcp
            && !address.ip().is_loopback()
            && !options.insecure
        {
            tracing::warn!(
                "control.tcp = {address}: other machines can reach this address, and the control plane has no \
                 TLS: its token and all that is said cross the network in the clear. Where it is not your own, \
                 listen on 127.0.0.1 and dial through `ssh -L`; `--insecure` says that it is"
            );
        }
        let (tls, pinned) = match &current.http.tls {
            Some(files) => (Some(http::configured(files)?), None),
            None if listen_at.ip().is_loopback() || options.insecure => (None, None),
            None => {
                let tls = http::self_signed(&home.tls_dir(), listen_at)?;
                let fingerprint = tls.fingerprint;
                (Some(tls), Some(fingerprint))
            }
        };

        let db = Db::open(&home.database()).map_err(|source| StartError::Database {
            path: home.database(),
            source,
        })?;
        let http = listen(current.http.listen).await?;
        let control_tcp = match current.control.tcp {
            Some(address) => Some(listen(address).await?),
            None => None,
        };
        let mut sockets = vec![home.control_socket()];
        sockets.extend(options.compat_socket);
        let mut listeners = Vec::new();
        for socket in &sockets {
            listeners.push(bind_private(socket).await?);
        }

        let turns = Arc::new(OpenTurns::default());
        let observer = Arc::new(TurnObserver::new(
            db.clone(),
            turns.clone(),
            config.subscribe(),
        ));
        let supervisor = supervise(observer, &home).await?;
        let http_address = local_address(&http, listen_at)?;
        // Agents of this machine need no TLS, and could not check a certificate of our own making.
        let agents_http = match &tls {
            Some(_) => Some(listen(SocketAddr::from(([127, 0, 0, 1], 0))).await?),
            None => None,
        };
        let agents_address = match &agents_http {
            Some(listener) => local_address(listener, listen_at)?,
            None => http_address,
        };
        let door = AgentDoor::new(&models::local_url(agents_address));
        let base_env = options.base_env;
        let instances = Instances::new(
            supervisor,
            config.subscribe(),
            home.clone(),
            options.program.clone(),
            base_env.clone(),
            door.clone(),
        );
        let tools = ToolState::new(&base_env, home.root().to_owned());
        let gateway = models::gateway(db.clone(), instances.clone(), turns.clone(), door);
        let metrics = Metrics::new(options.version);
        let coordinator = Coordinator::new(db.clone(), instances, turns, metrics.clone());
        let runner = CronRunner::new(
            home.clone(),
            coordinator.clone(),
            metrics.cron_started.clone(),
        );
        let (cron_driver, crons) = CronDriver::new(
            db.clone(),
            Arc::new(runner),
            config.subscribe(),
            Arc::new(Timestamp::now),
        );
        let builtin_token = workers::tokens::mint(tls.as_ref().map(|tls| tls.fingerprint))
            .map_err(StartError::Secret)?;
        let workers = Workers::new(&db, &current.sandbox, &metrics, pinned, builtin_token);
        let known = db.write(workers::known::load).await;
        workers
            .hub
            .remember(known.map_err(|source| StartError::Database {
                path: home.database(),
                source,
            })?);
        let builtin = match options.worker {
            Some(worker) => {
                let dial = Dial {
                    address: http_address,
                    tls: tls.is_some(),
                    token: workers.builtin_token.clone(),
                };
                let sandbox = &current.sandbox;
                let program = options.program;
                let worker =
                    start_builtin(worker, &home, program, sandbox, dial, options.version).await?;
                workers.local_starts_with(worker.features());
                Some(worker)
            }
            None => None,
        };
        let identity = channel::identity(&db)
            .await
            .map_err(|source| StartError::Database {
                path: home.database(),
                source,
            })?;
        let encrypted = tls.is_some();
        let runtime = Arc::new_cyclic(|runtime| Runtime {
            channel: Channel::new(identity, http_address, encrypted, runtime.clone()),
            workers: Arc::new(workers),
            workspaces: Workspaces::new(home.clone(), current.workspace.inline_below),
            gateway,
            tools,
            coordinator,
            db,
            config,
            metrics,
            started: Instant::now(),
            version: options.version,
            crons,
            tasks: TaskTracker::new(),
            control_token: [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()]
                .map(|part| part.simple().to_string())
                .concat(),
            home,
        });

        let run_file = RunFile {
            pid: std::process::id(),
            version: options.version.to_owned(),
            control_socket: runtime.home.control_socket(),
            http: format!(
                "{}://{}",
                if tls.is_some() { "https" } else { "http" },
                http_address
            ),
            fingerprint: tls.as_ref().map(|tls| tls.fingerprint.to_string()),
            started_at: Timestamp::now().to_string(),
        };
        let mut daemon = Self {
            runtime,
            run_file,
            sockets,
            servers: TaskTracker::new(),
            stop_servers: CancellationToken::new(),
            has_worker: builtin.is_some(),
            _lock: lock,
        };
        daemon.serve_control(listeners, control_tcp, &current)?;
        daemon.serve_http(http, tls.map(|tls| tls.config));
        if let Some(listener) = agents_http {
            let stop = daemon.stop_servers.clone();
            daemon
                .servers
                .spawn(http::serve_agents(daemon.runtime.clone(), listener, stop));
        }
        let (runtime, stop) = (daemon.runtime.clone(), daemon.stop_servers.clone());
        daemon.servers.spawn(async move {
            runtime.tools.follow(runtime.config.subscribe(), stop).await;
        });
        let (runtime, stop) = (daemon.runtime.clone(), daemon.stop_servers.clone());
        daemon.servers.spawn(async move {
            let following = runtime
                .coordinator
                .follow_policy(runtime.config.subscribe());
            stop.run_until_cancelled(following).await;
        });
        daemon.announce().await?;
        daemon
            .servers
            .spawn(cron_driver.run(daemon.stop_servers.clone()));
        if let Some(worker) = builtin {
            let stop = daemon.stop_servers.clone();
            daemon.servers.spawn(async move {
                if let Err(error) = worker.run(stop).await {
                    tracing::error!(%error, "the built-in worker ended");
                }
            });
        }
        Ok(daemon)
    }

    /// What to tell the person who started it.
    pub async fn welcome(&self) -> Result<Welcome, Refusal> {
        let runtime = &self.runtime;
        let pairing = runtime.first_pairing_code().await?;
        let agent = runtime.coordinator.instances().default_agent();
        let config = runtime.config.current();
        let coder = config.agents.get("coder");
        let model = coder.and_then(|coder| coder.model.clone());
        Ok(Welcome {
            model: model.or_else(|| models::default_model(&config)),
            pairing,
            agent,
            has_provider: runtime.coordinator.instances().knows("coder"),
            has_worker: self.has_worker,
        })
    }

    /// What programs find in `run/quintet.json`.
    pub fn run_file(&self) -> &RunFile {
        &self.run_file
    }

    /// Runs until `shutdown`, then stops in order: no new turns, running turns and commands end,
    /// agents end, clients get their last words, files that say "running" go.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) {
        shutdown.await;
        let deadline = self.runtime.config.current().daemon.drain;
        if let Some(running) = self.runtime.running() {
            let text = format!("waiting for {running}, at most {deadline:?}");
            tracing::info!("{text}");
            self.note(&text).await;
        }
        let (coordinator, commands) = (&self.runtime.coordinator, &self.runtime.workers.running);
        let ended = async { tokio::join!(coordinator.drain(), commands.ended()) };
        if tokio::time::timeout(deadline, ended).await.is_err() {
            let left = self.runtime.running().unwrap_or_default();
            let text = format!("not waiting any longer after {deadline:?} for {left}");
            tracing::warn!("{text}");
            self.note(&text).await;
        }
        self.runtime.coordinator.cut(deadline).await;
        self.runtime.coordinator.drain().await;

        self.runtime.channel.shutdown().await;
        self.runtime.workers.shutdown().await;
        self.runtime.workspaces.shutdown().await;
        self.stop_servers.cancel();
        self.servers.close();
        self.servers.wait().await;
        self.runtime.gateway.shutdown().await;
        self.runtime.tasks.close();
        self.runtime.tasks.wait().await;
        let stopped = Entry::new(Kind::DaemonStopped, &json!({ "pid": self.run_file.pid }));
        if let Err(error) = self.runtime.db.append(vec![stopped]).await {
            tracing::error!(%error, "the stop could not be recorded");
        }
        let home = &self.runtime.home;
        let files = [home.run_file(), home.port_file(), home.control_token_file()];
        for path in files.iter().chain(&self.sockets) {
            if let Err(error) = std::fs::remove_file(path)
                && error.kind() != io::ErrorKind::NotFound
            {
                tracing::warn!(path = %path.display(), %error, "could not be removed");
            }
        }
    }

    async fn note(&self, text: &str) {
        let row = Entry::new(Kind::Note, &json!({ "text": text }));
        if let Err(error) = self.runtime.db.append(vec![row]).await {
            tracing::error!(%error, "a note could not be written");
        }
    }

    fn serve_control(
        &mut self,
        listeners: Vec<UnixListener>,
        tcp: Option<TcpListener>,
        config: &Config,
    ) -> Result<(), StartError> {
        let limits = Limits {
            max_connections: config.control.max_connections as usize,
            half_frame: config.control.idle_timeout,
            not_reading: config.control.idle_timeout,
            ..Limits::default()
        };
        let service = Arc::new(ControlService::new(self.runtime.clone()));
        for listener in listeners {
            let stop = self.stop_servers.clone();
            self.servers
                .spawn(serve_unix(listener, service.clone(), limits.clone(), stop));
        }
        let home = &self.runtime.home;
        // Also for `/metrics`.
        write(
            &home.control_token_file(),
            self.runtime.control_token.as_bytes(),
        )?;
        if let Some(listener) = tcp {
            let asked = config.control.tcp.unwrap_or(config.http.listen);
            let port = local_address(&listener, asked)?.port();
            write(&home.port_file(), format!("{port}\n").as_bytes())?;
            let stop = self.stop_servers.clone();
            self.servers
                .spawn(serve_tcp(listener, service, limits, stop));
        }
        Ok(())
    }

    fn serve_http(&self, listener: TcpListener, tls: Option<Arc<rustls::ServerConfig>>) {
        let stop = self.stop_servers.clone();
        self.servers
            .spawn(http::serve(self.runtime.clone(), listener, tls, stop));
        let (runtime, stop) = (self.runtime.clone(), self.stop_servers.clone());
        self.servers.spawn(async move {
            stop.run_until_cancelled(keep_pruned(runtime)).await;
        });
    }

    async fn announce(&self) -> Result<(), StartError> {
        let database = |source| StartError::Database {
            path: self.runtime.home.database(),
            source,
        };
        let started = json!({ "pid": self.run_file.pid, "version": self.run_file.version });
        self.runtime
            .db
            .append(vec![Entry::new(Kind::DaemonStarted, &started)])
            .await
            .map_err(database)?;
        if let Err(refusal) = self.runtime.end_interrupted().await {
            tracing::error!(%refusal, "commands that were cut have no row yet");
        }
        self.runtime.coordinator.recover().await.map_err(database)?;
        let text = serde_json::to_vec_pretty(&self.run_file).unwrap_or_default();
        write(&self.runtime.home.run_file(), &text)
    }
}

async fn keep_pruned(runtime: Arc<Runtime>) {
    let mut timer = tokio::time::interval(PRUNE_EVERY);
    loop {
        timer.tick().await;
        let config = runtime.config.current();
        let age = jiff::SignedDuration::try_from(config.journal.keep);
        let before = Timestamp::now().checked_sub(age.unwrap_or(jiff::SignedDuration::MAX));
        let by_age = before.ok().map(Bound::OlderThan);
        let most = config.journal.max_size.map(ByteSize::bytes);
        let by_size = most.map(Bound::BeyondSize);
        for bound in by_age.into_iter().chain(by_size) {
            if let Err(error) = journal::prune(&runtime.db, bound).await {
                tracing::error!(%error, "the journal could not be pruned");
            }
        }
        runtime.workspaces.prune(&config.workspace).await;
    }
}

/// Starts the supervisor and ends what an earlier daemon left running.
async fn supervise(
    observer: Arc<TurnObserver>,
    home: &Home,
) -> Result<Supervisor<TurnObserver>, StartError> {
    let failed = |error: &dyn std::fmt::Display| StartError::Supervisor(error.to_string());
    let options = SupervisorOptions {
        ledger: home.instances_dir().join("ledger"),
        short_dir: None,
        cgroups: CgroupUse::WherePossible,
    };
    let supervisor = Supervisor::new(options, observer).map_err(|error| failed(&error))?;
    let swept = supervisor.sweep().await.map_err(|error| failed(&error))?;
    tracing::debug!(?swept, "processes of an earlier daemon");
    Ok(supervisor)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Listen { address, source })
}

fn local_address(listener: &TcpListener, address: SocketAddr) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|source| StartError::Listen { address, source })
}

/// Binds a socket in a folder that only the user can enter.
async fn bind_private(path: &Path) -> Result<UnixListener, StartError> {
    use std::os::unix::fs::DirBuilderExt;
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .map_err(|source| StartError::Io {
                path: folder.to_owned(),
                source,
            })?;
    }
    Ok(unix::bind(path).await?)
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), StartError> {
    write_atomically(path, bytes, 0o600).map_err(|source| StartError::Io {
        path: path.to_owned(),
        source,
    })
}
