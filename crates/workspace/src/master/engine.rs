//! The thread that owns a workspace's tree and history.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use rusqlite::Connection as Database;
use tokio::sync::{oneshot, watch};

use super::books::{Books, lock, to_record};
use super::fresh::Fresh;
use super::workspace::WorkspaceError;
use crate::content::{Cas, small};
use crate::history::{self, Checkpoint, History, PrunePolicy, PruneReport, Record};
use crate::mailbox::Commands;
use crate::proto::master::WriteBackOutcome;
use crate::proto::{Author, ContentHash, Ledger, Node, WorkspacePath, WriteBackEntry};
use crate::tree::{FirstLook, LiveTree, Look, Problem, Seen};
use crate::watch::WatchMode;

/// How long after a failure to record changes it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) type Reply<T> = oneshot::Sender<Result<T, WorkspaceError>>;

/// What the engine can be asked for.
pub(super) enum Command {
    Flush(Reply<u64>),
    Commit(CommitRequest, Reply<WriteBackOutcome>),
    Put {
        changes: Vec<(WorkspacePath, Option<Node>)>,
        reply: Reply<u64>,
    },
    Checkpoint {
        name: String,
        reply: Reply<u64>,
    },
    Prune(PrunePolicy, Reply<PruneReport>),
    Backup {
        to: PathBuf,
        reply: Reply<u64>,
    },
    Report(oneshot::Sender<EngineReport>),
    /// What ended a connection, and was no fault of the replica.
    Failed(String),
    Stop,
}

pub(super) struct CommitRequest {
    pub(super) sandbox: Arc<str>,
    pub(super) entries: Arc<Vec<WriteBackEntry>>,
    pub(super) unavailable: HashSet<ContentHash>,
    /// Small contents that came from the replica by hash.
    pub(super) contents: HashMap<ContentHash, Vec<u8>>,
}

#[derive(Debug)]
pub(super) struct EngineReport {
    pub(super) watch: WatchMode,
    pub(super) problems: Vec<Problem>,
    pub(super) unsettled: usize,
    pub(super) failure: Option<String>,
}

pub(super) struct Engine {
    pub(super) tree: LiveTree,
    pub(super) history: History,
    pub(super) cas: Arc<Cas>,
    /// Everything that is recorded, a commit that is under way included.
    pub(super) ledger: Ledger,
    /// What connections may see: only what is committed.
    pub(super) published: Arc<Mutex<Ledger>>,
    pub(super) current: watch::Sender<u64>,
    /// Small contents that connections are about to be sent.
    pub(super) fresh: Arc<Fresh>,
    pub(super) author: Author,
    pub(super) intents: HashMap<WorkspacePath, (Option<Node>, String)>,
    pub(super) poll_every: Duration,
    pub(super) next_poll: Instant,
    pub(super) failure: Option<String>,
    pub(super) retry_at: Option<Instant>,
    /// Whether it was said that versions are not forgotten because of the clock.
    pub(super) told_of_leap: bool,
}

/// A change that is in place and has to be recorded.
pub(super) struct Done {
    pub(super) record: Record,
    pub(super) old: Option<Node>,
    pub(super) small: Option<Vec<u8>>,
}

impl Engine {
    /// Runs until it is told to stop or nobody is left to tell it.
    pub(super) fn run(mut self, commands: &Commands<Command>) {
        loop {
            while let Some(command) = commands.try_next() {
                if matches!(command, Command::Stop) {
                    return;
                }
                self.handle(command);
            }
            if let Err(error) = self.tree.read_events() {
                self.failed(&error.to_string());
            }
            let now = Instant::now();
            if self.retry_at.is_none_or(|at| now >= at) {
                self.retry_at = None;
                let polling = matches!(self.tree.watch_mode(), WatchMode::Polling { .. });
                let result = if polling && now >= self.next_poll {
                    self.next_poll = now + self.poll_every;
                    self.record_local(Look::Whole)
                } else {
                    self.record_local(Look::Ready)
                };
                if let Err(error) = result {
                    self.failed(&error.to_string());
                }
            }
            let polling = matches!(self.tree.watch_mode(), WatchMode::Polling { .. });
            let until = match self.retry_at {
                Some(at) => Some(at),
                None => [self.tree.next_look(), polling.then_some(self.next_poll)]
                    .into_iter()
                    .flatten()
                    .min(),
            };
            if let Err(error) = commands.wait(self.tree.watch_fd(), until) {
                self.failed(&error.to_string());
                return;
            }
        }
    }

    fn failed(&mut self, error: &str) {
        self.tell_failure(error);
        self.retry_at = Some(Instant::now() + RETRY_AFTER);
    }

    /// Says it once, and keeps it for whoever asks how the workspace is.
    fn tell_failure(&mut self, error: &str) {
        if self.failure.as_deref() != Some(error) {
            tracing::error!(root = %self.tree.root().path().display(), "{error}");
            self.failure = Some(error.to_owned());
        }
    }

    fn handle(&mut self, command: Command) {
        // A caller that no longer waits is not an error.
        match command {
            Command::Flush(reply) => drop(reply.send(self.flush())),
            Command::Commit(request, reply) => drop(reply.send(self.commit(&request))),
            Command::Put { changes, reply } => drop(reply.send(self.put(changes))),
            Command::Checkpoint { name, reply } => drop(reply.send(self.checkpoint(&name))),
            Command::Prune(policy, reply) => drop(reply.send(self.prune(&policy))),
            Command::Backup { to, reply } => drop(reply.send(self.backup(&to))),
            Command::Report(reply) => drop(reply.send(EngineReport {
                watch: self.tree.watch_mode().clone(),
                problems: self.tree.problems(),
                unsettled: self.tree.unsettled_len(),
                failure: self.failure.clone(),
            })),
            Command::Failed(error) => self.tell_failure(&error),
            Command::Stop => {}
        }
    }

    /// Brings everything that finished on the disk into the history.
    pub(super) fn flush(&mut self) -> Result<u64, WorkspaceError> {
        self.tree.catch_up_with_events()?;
        self.record_local(Look::Everything)?;
        Ok(self.ledger.current())
    }

    /// Looks, and records what changed as this side's own.
    pub(super) fn record_local(&mut self, how: Look) -> Result<(), WorkspaceError> {
        if how == Look::Ready && self.tree.next_look().is_none_or(|at| at > Instant::now()) {
            return Ok(());
        }
        let guard = self.cas.writing()?;
        let sight = self.tree.look(how, &self.cas)?;
        if sight.changes.is_empty() && sight.refreshed.is_empty() {
            return Ok(());
        }
        let mut changes = sight.changes;
        let (done, contents) = to_record(&mut changes, &self.author, &self.intents);
        let result = self.record(&done, contents, |_| Ok(()), &sight.refreshed);
        drop(guard);
        match result {
            Ok(()) => {
                self.failure = None;
                Ok(())
            }
            Err(error) => {
                self.tree.unsee(changes, Instant::now());
                Err(error)
            }
        }
    }

    /// Looks at the whole tree and records it before anybody's command is heard.
    /// One that is new is recorded part by part, each while the next one is read.
    pub(super) fn open(
        &mut self,
        is_new: bool,
        stopping: &AtomicBool,
    ) -> Result<(), WorkspaceError> {
        if is_new {
            self.record_new(stopping)?;
        } else {
            self.record_local(Look::Whole)?;
        }
        self.intents = HashMap::new();
        let mut published = lock(&self.published);
        published.set_partial(false);
        let current = published.current();
        drop(published);
        self.ledger.set_partial(false);
        self.current.send_replace(current);
        Ok(())
    }

    fn record_new(&mut self, stopping: &AtomicBool) -> Result<(), WorkspaceError> {
        let _guard = self.cas.writing()?;
        let Self {
            tree,
            history,
            cas,
            ledger,
            published,
            current,
            fresh,
            author,
            intents,
            ..
        } = self;
        let cas: &Cas = cas;
        let mut books = Books {
            history,
            cas,
            ledger,
            published,
            current,
            fresh,
        };
        std::thread::scope(|scope| {
            let (send, parts) = mpsc::sync_channel(1);
            scope.spawn(move || {
                let mut first = FirstLook::default();
                while let Some(part) = tree.look_on(&mut first, cas).transpose() {
                    let failed = part.is_err();
                    // Nobody waits for more when one could not be recorded.
                    if send.send(part).is_err() || failed {
                        break;
                    }
                }
            });
            for part in parts {
                if stopping.load(Ordering::Relaxed) {
                    return Err(WorkspaceError::Closed);
                }
                let mut changes = part?.changes;
                let (records, contents) = to_record(&mut changes, author, intents);
                let seen = changes
                    .iter()
                    .map(|found| (&found.path, found.new.as_ref()));
                books.record(&records, contents, |_| Ok(()), seen)?;
            }
            Ok(())
        })
    }

    /// Commits changes, and only then shows them to connections.
    pub(super) fn record(
        &mut self,
        records: &[Record],
        contents: HashMap<ContentHash, Vec<u8>>,
        more: impl FnOnce(&Database) -> rusqlite::Result<()>,
        refreshed: &[WorkspacePath],
    ) -> Result<(), WorkspaceError> {
        let tree = &self.tree;
        let paths = records.iter().map(|record| &record.path).chain(refreshed);
        let seen = paths.map(|path| (path, tree.seen(path)));
        let mut books = Books {
            history: &mut self.history,
            cas: &self.cas,
            ledger: &mut self.ledger,
            published: &self.published,
            current: &self.current,
            fresh: &self.fresh,
        };
        books.record(records, contents, more, seen)
    }

    fn checkpoint(&mut self, name: &str) -> Result<u64, WorkspaceError> {
        Checkpoint::check_name(name)?;
        let sequence = self.flush()?;
        let at = history::wall_clock();
        let made = self.history.transact(|db| {
            db.execute(
                "INSERT OR IGNORE INTO checkpoints VALUES (?1, ?2, ?3)",
                rusqlite::params![name, sequence.cast_signed(), at],
            )
        })?;
        if made == 0 {
            return Err(WorkspaceError::CheckpointExists {
                name: name.to_owned(),
            });
        }
        Ok(sequence)
    }

    fn prune(&mut self, policy: &PrunePolicy) -> Result<PruneReport, WorkspaceError> {
        let report = self.history.prune(policy)?;
        if report.leapt && !std::mem::replace(&mut self.told_of_leap, true) {
            tracing::warn!(
                root = %self.tree.root().path().display(),
                "the clock is far past the last changes, or leapt between them; \
                 versions from before that are not forgotten for their age"
            );
        }
        self.ledger.forget_through(report.floor);
        lock(&self.published).forget_through(report.floor);
        Ok(report)
    }

    fn backup(&mut self, to: &std::path::Path) -> Result<u64, WorkspaceError> {
        let sequence = self.flush()?;
        let history = &self.history;
        history
            .db()
            .backup("main", to, None)
            .map_err(|source| history.error(source))?;
        Ok(sequence)
    }

    /// Writes a content to a file that is being made.
    pub(super) fn write_content(
        history: &History,
        cas: &Cas,
        hash: &ContentHash,
        file: &std::fs::File,
    ) -> io::Result<()> {
        let mut file = file;
        if let Some(bytes) = small::get(history.db(), hash).map_err(io::Error::other)? {
            return io::Write::write_all(&mut file, &bytes);
        }
        let missing = || {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("the content {hash} is not stored"),
            )
        };
        match cas
            .read(hash)
            .map_err(io::Error::other)?
            .ok_or_else(missing)?
        {
            crate::content::Object::Bytes(bytes) => io::Write::write_all(&mut file, &bytes),
            crate::content::Object::Chunks(manifest) => cas
                .copy_chunks(hash, &manifest, &mut file)
                .map_err(|error| match error {
                    crate::content::CasError::Io { source, .. } => source,
                    other => io::Error::other(other),
                }),
        }
    }

    /// What a path was last seen to hold.
    pub(super) fn held(&self, path: &WorkspacePath) -> Option<Node> {
        self.tree.seen(path).map(|seen: &Seen| seen.node.clone())
    }
}
