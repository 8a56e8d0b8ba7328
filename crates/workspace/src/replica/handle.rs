//! Opening a replica, and the handle that everybody uses.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::assembly::Assemblies;
use super::database::{self, Conflict, Durable, ReplicaDatabase};
use super::engine::{Command, Engine};
use super::intents;
use super::run::{Request, Runner};
use crate::content::{Cas, CasError};
use crate::history::HistoryError;
use crate::mailbox::{Mailbox, mailbox};
use crate::master::OpenError;
use crate::place::make_private;
use crate::proto::WorkspacePath;
use crate::proto::replica::{Base, ReplicaCore};
use crate::tree::{LiveTree, Look, Problem, Root, TrackLimits, TreeError, seen};
use crate::watch::WatchMode;

/// What a replica is made of.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The directory that holds the copy.
    pub dir: PathBuf,
    /// Where `replica.db` and kept contents are; made if need be. Not inside `dir`.
    pub state_dir: PathBuf,
    /// The name under which the master knows it. It stays the same over restarts.
    pub sandbox_id: String,
    /// Which master is followed, where it may be another one than the last time: its address,
    /// for instance. When it is, everything is compared with what the new one has.
    pub master: Option<String>,
    /// How much may be tracked without being told to.
    pub limits: TrackLimits,
    /// Read the whole tree now and then instead of watching it, for this reason.
    pub poll_instead: Option<String>,
    /// How often, where it has to be read.
    pub poll_every: Duration,
}

impl ReplicaConfig {
    /// A configuration with the usual limits.
    pub fn new(
        dir: impl Into<PathBuf>,
        state_dir: impl Into<PathBuf>,
        sandbox_id: impl Into<String>,
    ) -> Self {
        Self {
            dir: dir.into(),
            state_dir: state_dir.into(),
            sandbox_id: sandbox_id.into(),
            master: None,
            limits: TrackLimits::default(),
            poll_instead: None,
            poll_every: Duration::from_secs(2),
        }
    }
}

/// An operation on a replica failed.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaOpError {
    /// The database said no.
    #[error(transparent)]
    Database(#[from] HistoryError),
    /// The store of kept contents said no.
    #[error(transparent)]
    Store(#[from] CasError),
    /// The tree said no.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Its runner has ended.
    #[error("the replica was stopped")]
    Stopped,
    /// It took too long.
    #[error("not done within {0:?}; the master may be out of reach (see status)")]
    Timeout(Duration),
    /// There is no conflict with that number.
    #[error("there is no conflict {id}; list them to see which there are")]
    NoConflict {
        /// The number.
        id: u64,
    },
    /// A conflict's content is gone.
    #[error("the content of conflict {id} is gone")]
    ContentGone {
        /// The number.
        id: u64,
    },
    /// A path is being changed at this moment.
    #[error("{path} is being changed; try again")]
    Busy {
        /// The path.
        path: WorkspacePath,
    },
}

/// A barrier was passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BarrierOutcome {
    /// Everything up to this sequence is in place.
    pub sequence: u64,
    /// Whether the master had reached what was asked for.
    pub satisfied: bool,
}

/// What became of local changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBackReport {
    /// The newest sequence that any change of this replica got; 0 if none did.
    pub sequence: u64,
    /// Changes that were answered while waiting, with their sequence.
    pub accepted: Vec<(WorkspacePath, u64)>,
    /// Changes that were refused while waiting, with the reason. Their bytes
    /// are kept as conflict versions.
    pub rejected: Vec<(WorkspacePath, String)>,
}

/// How a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Whether the master is reached.
    pub connected: bool,
    /// Why not, when the last try failed.
    pub last_failure: Option<String>,
    /// Everything up to this sequence is in place.
    pub sequence: u64,
    /// Number of files and symlinks in the tree.
    pub files: u64,
    /// Sum of their sizes.
    pub bytes: u64,
    /// Whether everything the master announced is in place.
    pub current: bool,
    /// Changes of the master that are not in place yet.
    pub incoming: usize,
    /// Local changes that are not answered yet.
    pub outgoing: usize,
    /// Paths that changed and were not looked at yet.
    pub pending: usize,
    /// Refused writes that are kept.
    pub conflicts: usize,
    /// How changes are noticed.
    pub watch: WatchMode,
    /// What is not replicated, and why.
    pub problems: Vec<Problem>,
    /// What keeps changes from being put in place, when something does.
    pub failure: Option<String>,
}

/// An open replica. Clones are the same replica.
#[derive(Clone)]
pub struct Replica {
    inner: Arc<Inner>,
}

struct Inner {
    requests: mpsc::Sender<Request>,
    engine: Mailbox<Command>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.engine.send(Command::Stop);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            drop(thread.join());
        }
    }
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").finish_non_exhaustive()
    }
}

impl Replica {
    /// Opens a replica: finds what changed while it was stopped, and starts to
    /// watch. The runner does the rest when it is run. Blocks; call it off the
    /// async threads.
    pub fn open(config: &ReplicaConfig) -> Result<(Self, Runner), OpenError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| OpenError::Io { path, source }
        };
        std::fs::create_dir_all(&config.dir).map_err(io(&config.dir))?;
        let dir = config.dir.canonicalize().map_err(io(&config.dir))?;
        config.limits.check_place(&dir)?;
        make_private(&config.state_dir).map_err(io(&config.state_dir))?;
        let state_dir = config
            .state_dir
            .canonicalize()
            .map_err(io(&config.state_dir))?;
        if state_dir.starts_with(&dir)
            && !state_dir.starts_with(dir.join(crate::proto::path::RESERVED))
        {
            return Err(OpenError::StateInside { path: state_dir });
        }
        let lock = crate::master::lock_state(&state_dir)?;
        let name = state_dir.join(crate::place::SANDBOX_ID);
        std::fs::write(&name, &config.sandbox_id).map_err(io(&name))?;
        let failed = |error: ReplicaOpError| OpenError::Replica(Box::new(error));
        let mut tree = LiveTree::open(Root::open(&dir).map_err(io(&dir))?);
        let database = state_dir.join("replica.db");
        // Before anything is made that says the folder is a copy: what is one was allowed.
        if !database.exists() {
            tree.check_size(&config.limits)?;
        }
        let cas = Cas::open(&state_dir.join("cas")).map_err(|error| failed(error.into()))?;
        let mut db = ReplicaDatabase::open(&database).map_err(|error| failed(error.into()))?;
        finish_interrupted(&mut db, tree.root(), &cas).map_err(failed)?;
        if let Some(master) = &config.master {
            let file = state_dir.join(crate::place::MASTER);
            let followed = match std::fs::read_to_string(&file) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                read => Some(read.map_err(io(&file))?),
            };
            if followed.is_some_and(|followed| followed != *master) {
                tracing::info!(%master, "another master than before: everything is compared");
                db.transact(Durable::Yes, database::begin_anew)
                    .map_err(|error| failed(error.into()))?;
            }
            // After that: a crash in between only has it compared again.
            std::fs::write(&file, master).map_err(io(&file))?;
        }
        let was_seen = db.read(seen::load).map_err(|error| failed(error.into()))?;
        let nodes: HashMap<_, _> = was_seen
            .iter()
            .map(|(path, seen)| (path.clone(), seen.node.clone()))
            .collect();
        let restored = db.restore(&nodes).map_err(|error| failed(error.into()))?;
        tree.recall(was_seen);
        tree.start_watching(config.poll_instead.clone());
        let mut core = ReplicaCore::restore(config.sandbox_id.as_str().into(), restored);
        let (local, found) = mpsc::unbounded_channel();
        let mut engine = Engine {
            tree,
            db,
            cas: Arc::new(cas),
            local,
            assemblies: Assemblies::default(),
            poll_every: config.poll_every,
            next_poll: Instant::now() + config.poll_every,
            // What is found below; the runner takes it when it starts.
            handed_over: 1,
            may_drop: false,
            unwritten: VecDeque::new(),
            failure: None,
            retry_at: None,
        };
        engine
            .drop_unneeded()
            .map_err(|error| failed(error.into()))?;
        core.local_changes(engine.find(Look::Whole).map_err(failed)?);
        let (mailbox, commands) = mailbox().map_err(io(&state_dir))?;
        let thread = std::thread::Builder::new()
            .name("replica".to_owned())
            .spawn(move || {
                engine.run(&commands);
                drop(lock);
            })
            .map_err(io(&state_dir))?;
        let (requests, asked) = mpsc::channel(64);
        let inner = Inner {
            requests,
            engine: mailbox.clone(),
            thread: Mutex::new(Some(thread)),
        };
        Ok((
            Self {
                inner: Arc::new(inner),
            },
            Runner::new(core, mailbox, found, asked),
        ))
    }

    /// Waits until everything is in place here that was finished on the master's
    /// disk when this was called.
    pub async fn barrier(&self, timeout: Duration) -> Result<BarrierOutcome, ReplicaOpError> {
        self.barrier_at(0, timeout).await
    }

    /// The same, and says whether the master had reached a sequence.
    pub async fn barrier_at(
        &self,
        sequence: u64,
        timeout: Duration,
    ) -> Result<BarrierOutcome, ReplicaOpError> {
        self.request(timeout, |reply| Request::Barrier { sequence, reply })
            .await
    }

    /// Waits until every change that was finished on this side's disk when this
    /// was called is answered by the master.
    pub async fn write_back_and_wait(
        &self,
        timeout: Duration,
    ) -> Result<WriteBackReport, ReplicaOpError> {
        self.request(timeout, |reply| Request::WriteBack { reply })
            .await?
    }

    /// How the replica is.
    pub async fn status(&self) -> Result<ReplicaStatus, ReplicaOpError> {
        let (reply, answer) = oneshot::channel();
        self.inner
            .requests
            .send(Request::Status { reply })
            .await
            .map_err(|_| ReplicaOpError::Stopped)?;
        let status = answer.await.map_err(|_| ReplicaOpError::Stopped)?;
        let report = self.engine(Command::Report).await?;
        Ok(ReplicaStatus {
            connected: status.connected,
            last_failure: status.last_failure,
            sequence: status.sequence,
            files: report.files,
            bytes: report.bytes,
            current: status.current,
            incoming: status.incoming,
            outgoing: status.outgoing,
            pending: report.unsettled,
            conflicts: report.conflicts,
            watch: report.watch,
            problems: report.problems,
            failure: report.failure.or(status.blocked),
        })
    }

    /// Refused writes that are kept.
    pub async fn conflicts(&self) -> Result<Vec<Conflict>, ReplicaOpError> {
        self.engine(Command::Conflicts).await?
    }

    /// Writes out the bytes of a refused write, and gives back where to.
    pub async fn conflict_content<W: io::Write + Send + 'static>(
        &self,
        id: u64,
        mut out: W,
    ) -> Result<W, ReplicaOpError> {
        let kept = self
            .engine(|reply| Command::ReadConflict(id, reply))
            .await??;
        let written = tokio::task::spawn_blocking(move || kept.write_to(&mut out).map(|()| out));
        Ok(written.await.map_err(|_| ReplicaOpError::Stopped)??)
    }

    /// Puts a refused write back at its path, on top of what is there now; it is
    /// written back like any local change, and the conflict is settled.
    pub async fn take_conflict(&self, id: u64) -> Result<Conflict, ReplicaOpError> {
        self.engine(|reply| Command::TakeConflict(id, reply))
            .await?
    }

    /// Throws a refused write away.
    pub async fn drop_conflict(&self, id: u64) -> Result<Conflict, ReplicaOpError> {
        self.engine(|reply| Command::DropConflict(id, reply))
            .await?
    }

    async fn request<T>(
        &self,
        timeout: Duration,
        request: impl FnOnce(oneshot::Sender<T>) -> Request,
    ) -> Result<T, ReplicaOpError> {
        let (reply, answer) = oneshot::channel();
        let asking = async {
            self.inner
                .requests
                .send(request(reply))
                .await
                .map_err(|_| ReplicaOpError::Stopped)?;
            answer.await.map_err(|_| ReplicaOpError::Stopped)
        };
        tokio::time::timeout(timeout, asking)
            .await
            .map_err(|_| ReplicaOpError::Timeout(timeout))?
    }

    async fn engine<T>(
        &self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
    ) -> Result<T, ReplicaOpError> {
        let (reply, answer) = oneshot::channel();
        self.inner.engine.send(command(reply));
        answer.await.map_err(|_| ReplicaOpError::Stopped)
    }
}

/// Changes of the master that were put in place when the program was killed,
/// before it could write that down: they are no local changes.
fn finish_interrupted(
    db: &mut ReplicaDatabase,
    root: &Root,
    cas: &Cas,
) -> Result<(), ReplicaOpError> {
    for (path, node, sequence) in intents::take(db)? {
        let now = root.capture_seen(&path, cas)?;
        if now.as_ref().map(|seen| &seen.node) == node.as_ref() {
            db.transact(Durable::No, |db| {
                database::put_base(
                    db,
                    &path,
                    node.clone().map(|node| Base { sequence, node }).as_ref(),
                )?;
                seen::put(db, &path, now.as_ref())
            })?;
        }
    }
    Ok(())
}
