//! Opening a workspace, and the handle that everybody uses.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{oneshot, watch};

use super::engine::{Command, Engine, Reply};
use super::fresh::Fresh;
use super::own::OwnObjects;
use crate::content::{Cas, CasError, Ingest, Object, Trust};
use crate::history::{History, HistoryError, HistoryReader, UnfitName};
use crate::mailbox::{Mailbox, mailbox};
use crate::place::make_private;
use crate::proto::fetch::Offer;
use crate::proto::master::INLINE_BELOW;
use crate::proto::{Author, ContentHash, Ledger, WorkspacePath};
use crate::tree::{LiveTree, Problem, Refused, Root, TrackLimits, TreeError, seen};
use crate::watch::WatchMode;

/// What a workspace is made of.
#[derive(Clone, Debug)]
pub struct WorkspaceConfig {
    /// The directory itself.
    pub dir: PathBuf,
    /// Where `history.db` is; made if need be. Not inside `dir`.
    pub state_dir: PathBuf,
    /// The content store that all workspaces share.
    pub cas_dir: PathBuf,
    /// The name under which this side's changes are recorded.
    pub author: String,
    /// How much may be tracked without being told to.
    pub limits: TrackLimits,
    /// Read the whole tree now and then instead of watching it, for this reason.
    pub poll_instead: Option<String>,
    /// How often, where it has to be read.
    pub poll_every: Duration,
    /// Smaller contents travel inside their notification. More than the
    /// protocol's 4 KiB counts as that.
    pub inline_below: u64,
}

impl WorkspaceConfig {
    /// A configuration with the usual limits.
    pub fn new(
        dir: impl Into<PathBuf>,
        state_dir: impl Into<PathBuf>,
        cas_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            dir: dir.into(),
            state_dir: state_dir.into(),
            cas_dir: cas_dir.into(),
            author: "host".to_owned(),
            limits: TrackLimits::default(),
            poll_instead: None,
            poll_every: Duration::from_secs(2),
            inline_below: INLINE_BELOW,
        }
    }
}

/// A workspace could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It is not a directory that should be tracked.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Another program has it open.
    #[error("{path} is in use by another program; stop it, or use another state folder")]
    InUse {
        /// The state folder.
        path: PathBuf,
    },
    /// The state folder lies inside the workspace, which would record itself.
    #[error("the state folder {path} is inside the workspace; choose one outside of it")]
    StateInside {
        /// The state folder.
        path: PathBuf,
    },
    /// The disk said no.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Something that every operation on a workspace can run into.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// Something that every operation on a replica can run into.
    #[error(transparent)]
    Replica(Box<crate::replica::ReplicaOpError>),
}

/// An operation on a workspace failed.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The history said no.
    #[error(transparent)]
    History(#[from] HistoryError),
    /// The content store said no.
    #[error(transparent)]
    Store(#[from] CasError),
    /// The tree said no.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Content could not be read.
    #[error(transparent)]
    Ingest(#[from] Ingest),
    /// The kernel's events could not be read.
    #[error("the tree's events could not be read: {source}")]
    Watch {
        /// What the kernel said.
        source: io::Error,
    },
    /// Its engine has ended.
    #[error("the workspace was closed")]
    Closed,
    /// The history does not reach back so far.
    #[error(
        "sequence {sequence} is older than what is kept (from {floor} on), or does not exist yet (now {current})"
    )]
    NotKept {
        /// What was asked for.
        sequence: u64,
        /// The oldest that can be shown.
        floor: u64,
        /// The newest.
        current: u64,
    },
    /// The path had nothing at that sequence.
    #[error("{path} did not exist at sequence {sequence}")]
    NoSuchVersion {
        /// The path.
        path: WorkspacePath,
        /// The sequence.
        sequence: u64,
    },
    /// A content that the history refers to is missing.
    #[error(
        "the content {hash} is missing from the store; write a file that holds it anew, or run verify to see what is affected"
    )]
    MissingContent {
        /// The content.
        hash: ContentHash,
    },
    /// Some paths could not be changed; the others are.
    #[error("{}", in_the_way(.left, *.changed, *.before))]
    InTheWay {
        /// Those that could not, and why.
        left: Vec<(WorkspacePath, String)>,
        /// How many could.
        changed: usize,
        /// Where the history was before.
        before: u64,
    },
    /// Some paths were changed, and then it went no further.
    #[error("{source}; {}", so_far(*.changed, *.before))]
    Halfway {
        /// How many.
        changed: usize,
        /// Where the history was before.
        before: u64,
        /// What happened.
        source: Box<WorkspaceError>,
    },
    /// A checkpoint of that name exists.
    #[error("there is a checkpoint {name:?} already; choose another name")]
    CheckpointExists {
        /// The name.
        name: String,
    },
    /// A checkpoint cannot have that name.
    #[error(transparent)]
    UnfitName(#[from] UnfitName),
    /// A fork's folder is not empty.
    #[error("{path} is not empty; a fork needs a new or empty folder")]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// A workspace that shares the store cannot be asked what it needs.
    #[error(
        "{history} shares the content store and cannot be read ({source}); nothing was removed. If that workspace is gone for good: quintet workspace gc --forget {}",
        .history.parent().and_then(|state| state.file_name()).unwrap_or_default().display()
    )]
    UnreadableReferrer {
        /// Its history.
        history: PathBuf,
        /// Why it cannot be read.
        source: Box<HistoryError>,
    },
    /// No workspace of that name shares the store.
    #[error("no workspace {id} shares the content store")]
    NotRegistered {
        /// The name of its state.
        id: String,
    },
    /// A workspace that should be forgotten is there.
    #[error("{history} is still there, and what it refers to stays; nothing was removed")]
    StillThere {
        /// Its history.
        history: PathBuf,
    },
    /// Writing out failed.
    #[error("writing: {0}")]
    Output(#[source] io::Error),
}

fn in_the_way(left: &[(WorkspacePath, String)], changed: usize, before: u64) -> String {
    const NAMED: usize = 3;
    let name = |(path, reason): &(WorkspacePath, String)| format!("{path} ({reason})");
    let mut named: Vec<String> = left.iter().take(NAMED).map(name).collect();
    if left.len() > NAMED {
        named.push(format!("{} more", left.len() - NAMED));
    }
    format!(
        "these could not be changed: {}; {}",
        named.join(", "),
        so_far(changed, before)
    )
}

fn so_far(changed: usize, before: u64) -> String {
    match changed {
        0 => "nothing was changed".to_owned(),
        1 => format!("1 path is changed; what was before is sequence {before}"),
        count => format!("{count} paths are changed; what was before is sequence {before}"),
    }
}

/// How far a replica is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// Who it is.
    pub sandbox_id: String,
    /// Everything up to here is in place there.
    pub acked: u64,
    /// How many sequences it is behind.
    pub lag: u64,
}

/// How a workspace is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceStatus {
    /// The newest sequence.
    pub sequence: u64,
    /// Number of files and symlinks.
    pub files: u64,
    /// Sum of their sizes.
    pub bytes: u64,
    /// Connected replicas.
    pub replicas: Vec<ReplicaStatus>,
    /// Paths that changed and are not recorded yet.
    pub pending: usize,
    /// How changes are noticed.
    pub watch: WatchMode,
    /// What is not replicated, and why.
    pub problems: Vec<Problem>,
    /// What keeps changes from being recorded, when something does.
    pub failure: Option<String>,
}

/// A workspace that is looked at as a whole for the first time since it was started.
#[derive(Debug)]
pub struct Opening(oneshot::Receiver<Result<(), WorkspaceError>>);

impl Opening {
    /// Waits until everything is recorded.
    pub async fn done(self) -> Result<(), WorkspaceError> {
        self.0.await.map_err(|_| WorkspaceError::Closed)?
    }
}

/// An open workspace. Clones are the same workspace; it is closed when the last
/// one is dropped, or by [`close`](Self::close).
#[derive(Clone)]
pub struct Workspace {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) mailbox: Mailbox<Command>,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    pub(super) current: watch::Receiver<u64>,
    pub(super) cas: Arc<Cas>,
    pub(super) history: PathBuf,
    /// Held while a blocking thread looks something up in it.
    pub(super) own: Mutex<OwnObjects>,
    pub(super) fresh: Arc<Fresh>,
    pub(super) inline_below: u64,
    /// Readers that are not in use; held only to push and pop.
    readers: Mutex<Vec<HistoryReader>>,
    /// Connected replicas; held only to insert, update and list.
    pub(super) replicas: Mutex<HashMap<u64, (String, u64)>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    /// Ends a first look at the tree, which hears no commands.
    stopping: Arc<AtomicBool>,
}

impl Inner {
    fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.mailbox.send(Command::Stop);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop();
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

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workspace")
            .field("history", &self.inner.history)
            .finish_non_exhaustive()
    }
}

impl Workspace {
    /// Opens a workspace: takes its lock, reads its history, looks at the whole
    /// tree and starts to watch it. Blocks; call it off the async threads.
    pub fn open(config: &WorkspaceConfig) -> Result<Self, OpenError> {
        let (tell, told) = std::sync::mpsc::channel();
        let workspace = Self::begin(config, move |opened| drop(tell.send(opened)))?;
        told.recv().map_err(|_| WorkspaceError::Closed)??;
        Ok(workspace)
    }

    /// The same, without waiting for the look at the whole tree: replicas can be
    /// served from now on, and are sent what is recorded as it is recorded. All
    /// else waits until the look is over. When it fails, the workspace is closed.
    pub fn start(config: &WorkspaceConfig) -> Result<(Self, Opening), OpenError> {
        let (tell, told) = oneshot::channel();
        let workspace = Self::begin(config, move |opened| drop(tell.send(opened)))?;
        Ok((workspace, Opening(told)))
    }

    fn begin(
        config: &WorkspaceConfig,
        tell: impl FnOnce(Result<(), WorkspaceError>) + Send + 'static,
    ) -> Result<Self, OpenError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| OpenError::Io { path, source }
        };
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
        let lock = lock_state(&state_dir)?;
        let history_path = state_dir.join("history.db");
        let mut tree = LiveTree::open(Root::open(&dir).map_err(io(&dir))?);
        // Before anything is made that says the folder is a workspace: what is one was allowed.
        if !history_path.exists() {
            tree.check_size(&config.limits)?;
        }
        let cas = Arc::new(Cas::open(&config.cas_dir).map_err(WorkspaceError::from)?);
        let mut history = History::open(&history_path).map_err(WorkspaceError::from)?;
        cas.register(&history_path).map_err(WorkspaceError::from)?;
        let mut ledger = history.load_ledger().map_err(WorkspaceError::from)?;
        ledger.set_partial(true);
        let was_seen = seen::load(history.db())
            .map_err(|source| WorkspaceError::from(history.error(source)))?;
        let intents = history.take_intents().map_err(WorkspaceError::from)?;
        let is_new = was_seen.is_empty() && ledger.current() == 0;
        tree.recall(was_seen);
        tree.start_watching(config.poll_instead.clone());
        let published = Arc::new(Mutex::new(ledger.clone()));
        let fresh = Arc::new(Fresh::default());
        let stopping = Arc::new(AtomicBool::new(false));
        let (current, watching) = watch::channel(ledger.current());
        let mut engine = Engine {
            tree,
            history,
            cas: Arc::clone(&cas),
            ledger,
            published: Arc::clone(&published),
            current,
            fresh: Arc::clone(&fresh),
            author: Author::Local(config.author.as_str().into()),
            intents,
            poll_every: config.poll_every,
            next_poll: Instant::now() + config.poll_every,
            failure: None,
            retry_at: None,
            told_of_leap: false,
        };
        let (mailbox, commands) = mailbox().map_err(io(&state_dir))?;
        let stop = Arc::clone(&stopping);
        let thread = std::thread::Builder::new()
            .name("workspace".to_owned())
            .spawn(move || {
                let opened = engine.open(is_new, &stop);
                let is_open = opened.is_ok();
                if !is_open {
                    // Whoever is told may open it again at once.
                    drop((engine, commands, lock));
                    tell(opened);
                    return;
                }
                tell(opened);
                engine.run(&commands);
                drop(lock);
            })
            .map_err(io(&state_dir))?;
        Ok(Self {
            inner: Arc::new(Inner {
                mailbox,
                ledger: published,
                current: watching,
                cas,
                history: history_path,
                own: Mutex::default(),
                fresh,
                inline_below: config.inline_below.min(INLINE_BELOW),
                readers: Mutex::default(),
                replicas: Mutex::default(),
                thread: Mutex::new(Some(thread)),
                stopping,
            }),
        })
    }

    /// Asks the engine, and waits for its answer.
    pub(super) async fn ask<T>(
        &self,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, WorkspaceError> {
        let (reply, answer) = oneshot::channel();
        self.inner.mailbox.send(command(reply));
        answer.await.map_err(|_| WorkspaceError::Closed)?
    }

    /// Brings everything that finished on the disk into the history, and says
    /// where that is.
    pub async fn flush(&self) -> Result<u64, WorkspaceError> {
        self.ask(Command::Flush).await
    }

    /// The newest sequence.
    pub fn sequence(&self) -> u64 {
        *self.inner.current.borrow()
    }

    /// Changes whenever something is recorded.
    pub fn watch_sequence(&self) -> watch::Receiver<u64> {
        self.inner.current.clone()
    }

    /// How the workspace is.
    pub async fn status(&self) -> Result<WorkspaceStatus, WorkspaceError> {
        let (reply, answer) = oneshot::channel();
        self.inner.mailbox.send(Command::Report(reply));
        let report = answer.await.map_err(|_| WorkspaceError::Closed)?;
        let ledger = self.ledger();
        let (sequence, files, bytes) = (ledger.current(), ledger.files(), ledger.bytes());
        drop(ledger);
        let mut replicas: Vec<ReplicaStatus> = self
            .inner
            .replicas
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(|(sandbox_id, acked)| ReplicaStatus {
                sandbox_id: sandbox_id.clone(),
                acked: *acked,
                lag: sequence.saturating_sub(*acked),
            })
            .collect();
        replicas.sort_by(|a, b| a.sandbox_id.cmp(&b.sandbox_id));
        Ok(WorkspaceStatus {
            sequence,
            files,
            bytes,
            replicas,
            pending: report.unsettled,
            watch: report.watch,
            problems: report.problems,
            failure: report.failure,
        })
    }

    pub(super) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.inner
            .ledger
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs something that reads the history, off the async threads.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&HistoryReader, &Cas) -> Result<T, WorkspaceError> + Send + 'static,
    ) -> Result<T, WorkspaceError> {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || {
            let idle = inner
                .readers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            let reader = match idle {
                Some(reader) => reader,
                None => HistoryReader::open(&inner.history)?,
            };
            let result = work(&reader, &inner.cas);
            inner
                .readers
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(reader);
            result
        });
        done.await.map_err(|_| WorkspaceError::Closed)?
    }

    /// Ends the engine and waits for it. Connections end too.
    pub async fn close(self) {
        self.inner.stop();
        let thread = self
            .inner
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            drop(tokio::task::spawn_blocking(move || thread.join()).await);
        }
    }
}

/// A content or chunk that this workspace refers to, wherever it is stored.
pub(super) fn read_content(
    reader: &HistoryReader,
    cas: &Cas,
    own: &Mutex<OwnObjects>,
    hash: &ContentHash,
    trust: Trust,
) -> Result<Option<Offer>, WorkspaceError> {
    if *hash == ContentHash::empty() {
        return Ok(Some(Offer::Whole(Bytes::new())));
    }
    let own = || own.lock().unwrap_or_else(PoisonError::into_inner);
    let stored = || match crate::content::offer(cas, hash, trust)? {
        Offer::Nothing => Ok(None),
        offer => Ok(Some(offer)),
    };
    // Of a large content many chunks are asked for, one after the other.
    if own().is_chunk(hash)
        && let Some(offer) = stored()?
    {
        return Ok(Some(offer));
    }
    if let Some(bytes) = reader.small_content(hash)? {
        return Ok(Some(Offer::Whole(bytes.into())));
    }
    match own().has(reader, cas, hash)? {
        true => stored(),
        false => Ok(None),
    }
}

/// Writes out a content, however large.
pub(super) fn write_content(
    reader: &HistoryReader,
    cas: &Cas,
    hash: &ContentHash,
    out: &mut dyn io::Write,
) -> Result<(), WorkspaceError> {
    if *hash == ContentHash::empty() {
        return Ok(());
    }
    if let Some(bytes) = reader.small_content(hash)? {
        return out.write_all(&bytes).map_err(WorkspaceError::Output);
    }
    match cas.read(hash)? {
        None => Err(WorkspaceError::MissingContent { hash: *hash }),
        Some(Object::Bytes(bytes)) => out.write_all(&bytes).map_err(WorkspaceError::Output),
        Some(Object::Chunks(manifest)) => Ok(cas.copy_chunks(hash, &manifest, out)?),
    }
}

/// Takes the lock of a state folder; it is held as long as the file lives.
pub(crate) fn lock_state(state_dir: &Path) -> Result<std::fs::File, OpenError> {
    let path = state_dir.join("lock");
    let file = std::fs::File::create(&path).map_err(|source| OpenError::Io { path, source })?;
    match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(_) => Err(OpenError::InUse {
            path: state_dir.to_owned(),
        }),
    }
}
