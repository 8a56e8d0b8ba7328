//! Keeps agent instances: starts, feeds, watches and ends their processes.
//!
//! One task owns one instance with its process, connection, timers and turn; everybody else holds an
//! [`InstanceHandle`]. What happens goes to the [`Observer`], in order, and the agent's socket is not
//! read further until the observer is done.

mod actor;
mod capture;
mod handle;
mod link;
mod outbox;
mod types;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

pub use handle::InstanceHandle;
pub use types::{
    CancelCause, FailReason, InstanceEvent, InstanceSpec, InstanceStatus, Observer, Steered,
    Timings, TurnEnd,
};

use crate::ledger::{Ledger, LedgerError, SweepReport};
use crate::logs::InstanceLog;
use crate::process::{CgroupRoot, Spawner};
use crate::proto::lifecycle::Phase;
use crate::proto::message::AgentId;
use crate::state::{StateError, StateStore};
use actor::Actor;
use link::{Facilities, make_folder};

/// Where a supervisor keeps what is not of one instance.
#[derive(Debug, Clone)]
pub struct SupervisorOptions {
    /// The durable list of started processes.
    pub ledger: PathBuf,
    /// A folder with a short path, for sockets of instances whose own path is too long; without one
    /// such an instance does not start.
    pub short_dir: Option<PathBuf>,
    /// Whether process trees get a cgroup.
    pub cgroups: CgroupUse,
}

/// Whether process trees get a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CgroupUse {
    /// Where the daemon can make one.
    WherePossible,
    /// Never; trees are found in `/proc`.
    Never,
}

/// Why a supervisor does not come up.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// The ledger can't be used.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The thread that starts processes can't be started.
    #[error("the thread that starts agents can't be started: {0}")]
    Thread(#[source] io::Error),
}

/// Why an instance can't be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is open already.
    #[error("the instance {0} is open already")]
    AlreadyOpen(AgentId),
    /// Its folder can't be made.
    #[error("the instance's folder {} can't be made: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its state can't be read.
    #[error(transparent)]
    State(#[from] StateError),
    /// The supervisor was shut down.
    #[error("no instance is opened while the daemon stops")]
    Stopping,
}

/// All instances of a daemon.
///
/// Dropping it kills their processes at once; [`shutdown_all`](Self::shutdown_all) asks them first.
#[derive(Debug)]
pub struct Supervisor<O> {
    observer: Arc<O>,
    facilities: Arc<Facilities>,
    /// For short sections without await.
    instances: Mutex<Instances>,
}

#[derive(Debug, Default)]
struct Instances {
    handles: BTreeMap<AgentId, InstanceHandle>,
    tasks: JoinSet<()>,
    stopping: bool,
}

impl<O: Observer> Supervisor<O> {
    /// A supervisor without instances.
    pub fn new(options: SupervisorOptions, observer: Arc<O>) -> Result<Self, SupervisorError> {
        let cgroups = match options.cgroups {
            CgroupUse::WherePossible => CgroupRoot::detect(),
            CgroupUse::Never => None,
        };
        Ok(Self {
            observer,
            facilities: Arc::new(Facilities {
                ledger: Arc::new(Ledger::open(options.ledger)?),
                spawner: Spawner::new().map_err(SupervisorError::Thread)?,
                cgroups,
                short_dir: options.short_dir,
            }),
            instances: Mutex::default(),
        })
    }

    /// Ends what an earlier daemon left running. To be called before any instance is opened.
    pub async fn sweep(&self) -> Result<SweepReport, LedgerError> {
        self.facilities.ledger.sweep().await
    }

    /// Whether process trees get a cgroup.
    pub fn uses_cgroups(&self) -> bool {
        self.facilities.cgroups.is_some()
    }

    /// Opens an instance with its stored state. Its process starts with its first message.
    pub async fn open(&self, spec: InstanceSpec) -> Result<InstanceHandle, OpenError> {
        let agent_id = spec.agent_id.clone();
        make_folder(&spec.instance_dir).map_err(|source| OpenError::Folder {
            path: spec.instance_dir.clone(),
            source,
        })?;
        if self.get(&agent_id).is_some() {
            return Err(OpenError::AlreadyOpen(agent_id));
        }
        let path = spec.instance_dir.join("state.db");
        let opened = tokio::task::spawn_blocking(move || StateStore::open(&path)).await;
        let state = match opened {
            Ok(state) => state?,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        };
        let log = InstanceLog::new(spec.instance_dir.join("logs"));
        let (commands, inbox) = mpsc::channel(handle::COMMAND_QUEUE);
        let (status, status_rx) = watch::channel(InstanceStatus {
            phase: Phase::Terminated,
            pid: None,
            restarts: 0,
            waiting_for: None,
            breaker_open: false,
        });
        let handle = InstanceHandle {
            agent_id: agent_id.clone(),
            commands,
            status: status_rx,
            state: state.clone(),
            log: log.clone(),
        };
        let actor = Actor::new(
            spec,
            Arc::clone(&self.facilities),
            Arc::clone(&self.observer),
            state,
            log,
            inbox,
            status,
        );
        let mut instances = self.lock();
        if instances.stopping {
            return Err(OpenError::Stopping);
        }
        if instances.handles.contains_key(&agent_id) {
            return Err(OpenError::AlreadyOpen(agent_id));
        }
        while instances.tasks.try_join_next().is_some() {}
        instances.tasks.spawn(actor.run());
        instances.handles.insert(agent_id, handle.clone());
        Ok(handle)
    }

    /// An open instance.
    pub fn get(&self, agent_id: &AgentId) -> Option<InstanceHandle> {
        self.lock().handles.get(agent_id).cloned()
    }

    /// All open instances and how they stand.
    pub fn list(&self) -> Vec<(AgentId, InstanceStatus)> {
        let instances = self.lock();
        let with_status = |(id, handle): (&AgentId, &InstanceHandle)| (id.clone(), handle.status());
        instances.handles.iter().map(with_status).collect()
    }

    /// Shuts an instance down and forgets it; its folder stays.
    pub async fn close(&self, agent_id: &AgentId, reason: &str) {
        if let Some(handle) = self.get(agent_id) {
            handle.shutdown(reason).await;
            handle.kill().await;
            self.lock().handles.remove(agent_id);
        }
    }

    /// Asks all processes to end (`daemon_stop`), and kills those that have not after `deadline`.
    ///
    /// Nothing is left running when this returns, and no instance starts again.
    pub async fn shutdown_all(&self, deadline: Duration) {
        let handles: Vec<InstanceHandle> = {
            let mut instances = self.lock();
            instances.stopping = true;
            instances.handles.values().cloned().collect()
        };
        let mut ending = JoinSet::new();
        for handle in &handles {
            let handle = handle.clone();
            ending.spawn(async move { handle.shutdown("daemon_stop").await });
        }
        let graceful = async { while ending.join_next().await.is_some() {} };
        if tokio::time::timeout(deadline, graceful).await.is_err() {
            tracing::warn!("agents that did not end in time are killed");
        }
        let mut killing = JoinSet::new();
        for handle in handles {
            killing.spawn(async move { handle.kill().await });
        }
        while killing.join_next().await.is_some() {}
        let mut tasks = std::mem::take(&mut self.lock().tasks);
        while tasks.join_next().await.is_some() {}
    }

    fn lock(&self) -> MutexGuard<'_, Instances> {
        self.instances
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
