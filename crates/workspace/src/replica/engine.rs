//! The thread that owns a replica's tree and database.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::assembly::Assemblies;
use super::database::{self, Conflict, Durable, ReplicaDatabase};
use super::handle::ReplicaOpError;
use super::intents;
use crate::content::{Cas, CasError, Object, Trust, small};
use crate::history::{HistoryError, set_meta};
use crate::mailbox::Commands;
use crate::proto::fetch::{Finish, Offer};
use crate::proto::manifest::Manifest;
use crate::proto::replica::{
    ApplyItem, ApplyOutcome, Base, ContentSource, JournalEntry, LocalChange, Settlement,
    bases_after,
};
use crate::proto::{ContentHash, Node, Operation, WorkspacePath};
use crate::tree::seen;
use crate::tree::{
    Applied, Content, Fingerprint, Found, LiveTree, Look, Near, New, Problem, Seen, TreeError,
};
use crate::watch::WatchMode;

const RETRY_AFTER: Duration = Duration::from_secs(1);

pub(super) type Outcomes = Vec<(WorkspacePath, u64, ApplyOutcome)>;

/// What the engine can be asked for.
pub(super) enum Command {
    Apply(Vec<ApplyItem>, oneshot::Sender<Outcomes>),
    SaveProgress {
        applied: u64,
        resyncing: bool,
    },
    ForgetSequences,
    DropPlanned,
    Journal(Vec<JournalEntry>, oneshot::Sender<()>),
    Settle(Vec<Settlement>),
    /// Local changes that were handed over are in the journal's queue, or need
    /// not be.
    Taken,
    LoadInline(
        Vec<(u64, ContentHash)>,
        oneshot::Sender<Vec<(u64, Vec<u8>)>>,
    ),
    LoadContent(ContentHash, oneshot::Sender<Offer>),
    Plan {
        hash: ContentHash,
        manifest: Manifest,
        near: Vec<WorkspacePath>,
        reply: oneshot::Sender<Result<Vec<usize>, String>>,
    },
    KeepChunk {
        hash: ContentHash,
        bytes: Bytes,
        offsets: Vec<u64>,
        reply: oneshot::Sender<Result<usize, String>>,
    },
    Finish(ContentHash, oneshot::Sender<Result<Finish, String>>),
    /// The connection is lost: what was being put together has to wait.
    Reset,
    Flush(oneshot::Sender<Result<(), ReplicaOpError>>),
    Conflicts(oneshot::Sender<Result<Vec<Conflict>, ReplicaOpError>>),
    ReadConflict(u64, oneshot::Sender<Result<Kept, ReplicaOpError>>),
    TakeConflict(u64, oneshot::Sender<Result<Conflict, ReplicaOpError>>),
    DropConflict(u64, oneshot::Sender<Result<Conflict, ReplicaOpError>>),
    Report(oneshot::Sender<EngineReport>),
    Stop,
}

#[derive(Debug)]
pub(super) struct EngineReport {
    pub(super) watch: WatchMode,
    pub(super) problems: Vec<Problem>,
    pub(super) unsettled: usize,
    pub(super) failure: Option<String>,
    pub(super) conflicts: usize,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

pub(super) struct Engine {
    pub(super) tree: LiveTree,
    pub(super) db: ReplicaDatabase,
    pub(super) cas: Arc<Cas>,
    pub(super) local: mpsc::UnboundedSender<Vec<LocalChange>>,
    pub(super) assemblies: Assemblies,
    pub(super) poll_every: Duration,
    pub(super) next_poll: Instant,
    /// Findings that were handed over and are not journalled yet: nothing else
    /// says that their contents are needed.
    pub(super) handed_over: usize,
    /// Whether contents may have become unneeded meanwhile.
    pub(super) may_drop: bool,
    /// Entries that could not be written down yet; nothing behind them is.
    pub(super) unwritten: VecDeque<(Vec<JournalEntry>, oneshot::Sender<()>)>,
    pub(super) failure: Option<String>,
    pub(super) retry_at: Option<Instant>,
}

impl Engine {
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
            let polling = matches!(self.tree.watch_mode(), WatchMode::Polling { .. });
            if self.retry_at.is_none_or(|at| now >= at) {
                self.retry_at = None;
                self.write_journal();
                let ready = self.tree.next_look().is_some_and(|at| at <= now);
                if polling && now >= self.next_poll {
                    self.next_poll = now + self.poll_every;
                    self.look(Look::Whole);
                } else if ready {
                    self.look(Look::Ready);
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
            if commands.wait(self.tree.watch_fd(), until).is_err() {
                return;
            }
        }
    }

    fn failed(&mut self, error: &str) {
        if self.failure.as_deref() != Some(error) {
            tracing::error!(root = %self.tree.root().path().display(), "{error}");
            self.failure = Some(error.to_owned());
        }
        self.retry_at = Some(Instant::now() + RETRY_AFTER);
    }

    fn handle(&mut self, command: Command) {
        // A caller that no longer waits is not an error.
        match command {
            Command::Apply(items, reply) => {
                // It may find local changes.
                self.handed_over += 1;
                drop(reply.send(self.apply(items)));
            }
            Command::Taken => self.taken(),
            Command::SaveProgress { applied, resyncing } => {
                let saved = self.db.transact(Durable::No, |db| {
                    set_meta(db, "applied", applied.cast_signed())?;
                    set_meta(db, "resyncing", i64::from(resyncing))
                });
                // Forgotten progress only means that more is sent again.
                if let Err(error) = saved {
                    self.failed(&error.to_string());
                }
            }
            Command::ForgetSequences => {
                let forgotten = self.db.transact(Durable::Yes, database::forget_sequences);
                // After the next start it is found out again.
                if let Err(error) = forgotten {
                    self.failed(&error.to_string());
                }
            }
            Command::DropPlanned => self.assemblies.drop_all(),
            Command::Journal(entries, reply) => {
                self.unwritten.push_back((entries, reply));
                self.write_journal();
            }
            Command::Settle(settlements) => self.settle(&settlements),
            Command::LoadInline(wanted, reply) => drop(reply.send(self.load_inline(wanted))),
            Command::LoadContent(hash, reply) => drop(reply.send(self.load_content(&hash))),
            Command::Plan {
                hash,
                manifest,
                near,
                reply,
            } => {
                let missing = self
                    .assemblies
                    .plan(&self.tree, &self.db, hash, manifest, &near);
                drop(reply.send(self.told(missing)));
            }
            Command::KeepChunk {
                hash,
                bytes,
                offsets,
                reply,
            } => {
                let kept = self.assemblies.keep(&hash, &bytes, &offsets);
                drop(reply.send(self.told(kept.map(|()| offsets.len()))));
            }
            Command::Finish(hash, reply) => drop(reply.send(self.finish(&hash))),
            Command::Reset => self.assemblies.suspend(),
            Command::Flush(reply) => drop(reply.send(self.flush())),
            Command::Conflicts(reply) => drop(reply.send(self.db.conflicts().map_err(Into::into))),
            Command::ReadConflict(id, reply) => drop(reply.send(self.read_conflict(id))),
            Command::TakeConflict(id, reply) => drop(reply.send(self.take_conflict(id))),
            Command::DropConflict(id, reply) => drop(reply.send(self.drop_conflict(id))),
            Command::Report(reply) => drop(reply.send(self.report())),
            Command::Stop => {}
        }
    }

    fn report(&self) -> EngineReport {
        let (files, bytes) = self.tree.size();
        EngineReport {
            watch: self.tree.watch_mode().clone(),
            problems: self.tree.problems(),
            unsettled: self.tree.unsettled_len(),
            failure: self.failure.clone(),
            conflicts: self.db.conflicts().map_or(0, |all| all.len()),
            files,
            bytes,
        }
    }

    fn flush(&mut self) -> Result<(), ReplicaOpError> {
        self.tree.catch_up_with_events()?;
        let changes = self.find(Look::Everything)?;
        if !changes.is_empty() {
            self.hand_over(changes);
        }
        Ok(())
    }

    fn hand_over(&mut self, changes: Vec<LocalChange>) {
        self.handed_over += 1;
        drop(self.local.send(changes));
    }

    fn taken(&mut self) {
        self.handed_over = self.handed_over.saturating_sub(1);
        if self.may_drop
            && let Err(error) = self.drop_unneeded()
        {
            self.failed(&error.to_string());
        }
    }

    fn look(&mut self, how: Look) {
        match self.find(how) {
            Ok(changes) if changes.is_empty() => {}
            Ok(changes) => {
                self.failure = None;
                self.hand_over(changes);
            }
            Err(error) => self.failed(&error.to_string()),
        }
    }

    /// Looks, and keeps the contents of what changed.
    pub(super) fn find(&mut self, how: Look) -> Result<Vec<LocalChange>, ReplicaOpError> {
        let sight = self.tree.look(how, &self.cas)?;
        if sight.changes.is_empty() && sight.refreshed.is_empty() {
            return Ok(Vec::new());
        }
        let tree = &self.tree;
        let kept = self.db.transact(Durable::No, |db| {
            for found in &sight.changes {
                if let (Some(bytes), Some(node)) = (&found.small, found.node()) {
                    small::put(db, &node.hash, bytes)?;
                }
            }
            // Only how they look: what they hold is written with the journal.
            sight
                .refreshed
                .iter()
                .try_for_each(|path| seen::refresh(db, path, tree.seen(path)))
        });
        if let Err(error) = kept {
            self.tree.unsee(sight.changes, Instant::now());
            return Err(error.into());
        }
        Ok(sight.changes.into_iter().map(local_change).collect())
    }

    fn write_journal(&mut self) {
        while let Some((entries, _)) = self.unwritten.front() {
            let tree = &self.tree;
            let written = self
                .cas
                .sync()
                .map_err(ReplicaOpError::from)
                .and_then(|()| {
                    Ok(self.db.transact(Durable::Yes, |db| {
                        for entry in entries {
                            database::put_journal(db, entry)?;
                            for (path, node) in bases_after(entry) {
                                // When the path changed again meanwhile, that must be
                                // found after a crash: only this entry is written.
                                let now = tree
                                    .seen(&path)
                                    .filter(|seen| Some(&seen.node) == node.as_ref());
                                let journalled = node.map(|node| Seen {
                                    node,
                                    fingerprint: now
                                        .map_or(Fingerprint::UNTRUSTED, |seen| seen.fingerprint),
                                });
                                seen::put(db, &path, journalled.as_ref())?;
                            }
                        }
                        Ok(())
                    })?)
                });
            if let Err(error) = written {
                self.failed(&error.to_string());
                return;
            }
            if let Some((_, reply)) = self.unwritten.pop_front() {
                let _ = reply.send(());
            }
        }
    }

    fn settle(&mut self, settlements: &[Settlement]) {
        let mut refused = Vec::new();
        for Settlement { entry, result } in settlements {
            let Err(reason) = result else { continue };
            if let Some(node) = &entry.node
                && !node.is_directory()
                && !self.is_kept(&node.hash)
            {
                self.keep_from_tree(&node.hash);
                // It moved, was not read, and then was changed: what it held is the
                // master's, where it has its old name, and what it holds is an entry of
                // its own.
                if matches!(entry.operation, Operation::Rename(_)) && !self.is_kept(&node.hash) {
                    continue;
                }
            }
            refused.push((entry, reason));
        }
        let settled = self.db.transact(Durable::Yes, |db| {
            settlements
                .iter()
                .try_for_each(|settlement| database::settle(db, settlement))?;
            refused
                .iter()
                .try_for_each(|(entry, reason)| database::put_conflict(db, entry, reason))
        });
        // When it cannot be written down, the entries stay in the journal and
        // are sent again after the next start: the master gives the same answer.
        if let Err(error) = settled.and_then(|()| self.drop_unneeded()) {
            self.failed(&error.to_string());
        }
    }

    /// Frees contents once nothing waits for an answer.
    pub(super) fn drop_unneeded(&mut self) -> Result<(), HistoryError> {
        let needed = self.db.needed_contents()?;
        let waiting: i64 = self
            .db
            .read(|db| db.query_row("SELECT count(*) FROM journal", [], |row| row.get(0)))?;
        self.may_drop = waiting > 0 || !self.unwritten.is_empty() || self.handed_over > 0;
        if self.may_drop {
            return Ok(());
        }
        self.db
            .transact(Durable::No, |db| database::drop_unneeded(db))?;
        if let Err(error) = self
            .cas
            .collect::<crate::content::CasError>(|| Ok(needed.clone()))
        {
            tracing::warn!(%error, "contents that are no longer needed could not be removed");
        }
        Ok(())
    }

    fn load_inline(&self, wanted: Vec<(u64, ContentHash)>) -> Vec<(u64, Vec<u8>)> {
        let load = |hash: ContentHash| self.db.read(|db| small::get(db, &hash)).ok().flatten();
        wanted
            .into_iter()
            .filter_map(|(number, hash)| Some((number, load(hash)?)))
            .collect()
    }

    /// A file that only moved is not in the store; before the master's version
    /// takes its path, or when the master asks for it, it is put there.
    fn keep_from_tree(&self, hash: &ContentHash) {
        let Some(path) = self.tree.file_with(hash) else {
            return;
        };
        let keep = || -> Result<(), Box<dyn std::error::Error>> {
            let ingested = self.cas.ingest(self.tree.root().open_file(path)?)?;
            if let Some(bytes) = ingested.small.filter(|_| ingested.hash == *hash) {
                self.db.read(|db| small::put(db, hash, &bytes))?;
            }
            Ok(())
        };
        if let Err(error) = keep() {
            tracing::error!(%error, %path, "a content could not be kept");
        }
    }

    fn is_kept(&self, hash: &ContentHash) -> bool {
        *hash == ContentHash::empty()
            || self.cas.has(hash)
            || self.db.read(|db| small::has(db, hash)).unwrap_or(false)
    }

    fn load_content(&self, hash: &ContentHash) -> Offer {
        if *hash == ContentHash::empty() {
            return Offer::Whole(Bytes::new());
        }
        if !self.is_kept(hash) {
            self.keep_from_tree(hash);
        }
        if let Ok(Some(bytes)) = self.db.read(|db| small::get(db, hash)) {
            return Offer::Whole(bytes.into());
        }
        crate::content::offer(&self.cas, hash, Trust::Verify).unwrap_or_else(|error| {
            tracing::error!(%error, "a content cannot be given to the master");
            Offer::Nothing
        })
    }

    fn finish(&mut self, hash: &ContentHash) -> Result<Finish, String> {
        let finished = self.assemblies.finish(hash);
        let (finish, manifest) = self.told(finished)?;
        if let Some(manifest) = manifest {
            let kept = self.db.transact(Durable::No, |db| {
                database::put_manifest(db, hash, &manifest)
            });
            if let Err(error) = kept {
                tracing::debug!(%error, "the chunks of a content are not remembered");
            }
        }
        Ok(finish)
    }

    /// Has an error told to whoever asks how it goes, and returns it as text.
    fn told<T>(&mut self, result: io::Result<T>) -> Result<T, String> {
        result.map_err(|error| {
            let error = error.to_string();
            self.failed(&error);
            error
        })
    }

    fn apply(&mut self, items: Vec<ApplyItem>) -> Outcomes {
        let all_blocked = |items: &[ApplyItem], reason: &str| {
            let blocked = |item: &ApplyItem| {
                (
                    item.path.clone(),
                    item.sequence,
                    ApplyOutcome::Blocked(reason.to_owned()),
                )
            };
            items.iter().map(blocked).collect()
        };
        let intended = self.db.transact(Durable::No, |db| intents::put(db, &items));
        if let Err(error) = intended {
            self.failed(&error.to_string());
            return all_blocked(&items, &error.to_string());
        }
        let mut outcomes = Vec::with_capacity(items.len());
        let mut nodes = Vec::with_capacity(items.len());
        let mut near = Near::default();
        let mut items = items.into_iter().peekable();
        while items.peek().is_some() {
            let is_new = |item: &ApplyItem| as_new(item).is_some_and(|new| self.tree.is_new(&new));
            let mut some: Vec<_> = std::iter::from_fn(|| items.next_if(is_new)).collect();
            let new: Vec<New<'_>> = some.iter().filter_map(as_new).collect();
            let mut made = self.tree.create_all(&new);
            if some.is_empty() {
                some.extend(items.next());
                made.push(false);
            }
            for (item, is_made) in some.into_iter().zip(made) {
                let is_made =
                    is_made || as_new(&item).is_some_and(|new| self.tree.create(&mut near, &new));
                let ApplyItem {
                    path,
                    sequence,
                    node,
                    content,
                } = item;
                let outcome = if is_made {
                    ApplyOutcome::Done
                } else {
                    // It may put another folder in the place of the one that is open.
                    near = Near::default();
                    self.apply_one(&path, node.as_ref(), content)
                        .unwrap_or_else(|error| {
                            self.failed(&error.to_string());
                            ApplyOutcome::Blocked(error.to_string())
                        })
                };
                outcomes.push((path, sequence, outcome));
                nodes.push(node);
            }
        }
        let synced = self.tree.sync().map_err(ReplicaOpError::from);
        let tree = &self.tree;
        let recorded = synced.and_then(|()| {
            Ok(self.db.transact(Durable::No, |db| {
                let mut implied = HashSet::new();
                for ((path, sequence, outcome), node) in outcomes.iter().zip(&nodes) {
                    if matches!(outcome, ApplyOutcome::Done | ApplyOutcome::DoneBut(_)) {
                        let base = node.clone().map(|node| Base {
                            sequence: *sequence,
                            node,
                        });
                        database::put_base(db, path, base.as_ref())?;
                        seen::put(db, path, tree.seen(path))?;
                        let folder = path.parent().filter(|_| node.is_some());
                        if folder.is_some_and(|folder| implied.insert(folder)) {
                            for folder in path.ancestors() {
                                database::put_implied(db, &folder, tree.seen(&folder))?;
                            }
                        }
                    }
                }
                intents::clear(db)
            })?)
        });
        if let Err(error) = recorded {
            self.failed(&error.to_string());
            for (_, _, outcome) in &mut outcomes {
                if matches!(outcome, ApplyOutcome::Done) {
                    *outcome = ApplyOutcome::Blocked(error.to_string());
                }
            }
        } else if self.unwritten.is_empty() {
            self.failure = None;
        }
        outcomes
    }

    fn apply_one(
        &mut self,
        path: &WorkspacePath,
        node: Option<&Node>,
        content: ContentSource,
    ) -> Result<ApplyOutcome, ReplicaOpError> {
        let applied = match content {
            ContentSource::Keep => self.tree.apply(path, node, Content::Keep, &self.cas)?,
            ContentSource::Bytes(bytes) => {
                self.tree
                    .apply(path, node, Content::Bytes(&bytes), &self.cas)?
            }
            ContentSource::Assembled(hash) => match self.assemblies.take(&hash) {
                Some(temporary) => {
                    self.tree
                        .apply(path, node, Content::Temporary(temporary), &self.cas)?
                }
                None => return Ok(ApplyOutcome::NeedContent),
            },
            ContentSource::CopyOf(other) => match self.copy_of(&other, node)? {
                Some(bytes) => self.tree.apply(path, node, bytes.content(), &self.cas)?,
                None => return Ok(ApplyOutcome::NeedContent),
            },
        };
        Ok(match applied {
            Applied::Done => ApplyOutcome::Done,
            Applied::LeftFolder(node) => ApplyOutcome::DoneBut(LocalChange {
                path: path.clone(),
                node: Some(node),
                renamed_from: None,
            }),
            Applied::NeedContent => ApplyOutcome::NeedContent,
            Applied::InTheWay(reason) => ApplyOutcome::Blocked(reason),
            Applied::Diverged(captured) => {
                if let Some((bytes, node)) = captured
                    .as_ref()
                    .and_then(|is| Some((is.small.as_ref()?, &is.seen.node)))
                {
                    self.db
                        .transact(Durable::No, |db| small::put(db, &node.hash, bytes))?;
                }
                let seen = captured.map(|captured| captured.seen);
                let node = seen.as_ref().map(|seen| seen.node.clone());
                self.tree.accept(path, seen);
                ApplyOutcome::Diverged(LocalChange {
                    path: path.clone(),
                    node,
                    renamed_from: None,
                })
            }
        })
    }

    /// The content of another file of the tree, if it is still what it was.
    fn copy_of(
        &self,
        other: &WorkspacePath,
        node: Option<&Node>,
    ) -> Result<Option<Copied>, ReplicaOpError> {
        let (Some(node), Some(seen)) = (node, self.tree.seen(other)) else {
            return Ok(None);
        };
        if !seen.node.same_content(node) {
            return Ok(None);
        }
        let error = |source| TreeError::Io {
            path: self.tree.root().absolute(Some(other)),
            source,
        };
        if node.kind == crate::proto::Kind::Symlink {
            let target = self.tree.root().read_link(other).unwrap_or_default();
            return Ok((ContentHash::of(&target) == node.hash).then_some(Copied::Bytes(target)));
        }
        let Ok(file) = self.tree.root().open_file(other) else {
            return Ok(None);
        };
        let temporary = self.tree.root().temporary().map_err(error)?;
        let mut hasher = blake3::Hasher::new();
        let mut reader = io::BufReader::with_capacity(1 << 20, &file);
        let mut out = temporary.file().map_err(error)?;
        loop {
            let bytes = io::BufRead::fill_buf(&mut reader).map_err(error)?;
            if bytes.is_empty() {
                break;
            }
            hasher.update(bytes);
            io::Write::write_all(&mut out, bytes).map_err(error)?;
            let length = bytes.len();
            io::BufRead::consume(&mut reader, length);
        }
        Ok((hasher.finalize().as_bytes() == node.hash.as_bytes())
            .then_some(Copied::File(temporary)))
    }

    fn conflict(&self, id: u64) -> Result<Conflict, ReplicaOpError> {
        let all = self.db.conflicts()?;
        all.into_iter()
            .find(|conflict| conflict.id == id)
            .ok_or(ReplicaOpError::NoConflict { id })
    }

    fn read_conflict(&self, id: u64) -> Result<Kept, ReplicaOpError> {
        let conflict = self.conflict(id)?;
        let Some(node) = conflict.node.filter(|node| !node.is_directory()) else {
            return Ok(Kept::Bytes(Vec::new()));
        };
        self.kept_content(&node.hash)?
            .ok_or(ReplicaOpError::ContentGone { id })
    }

    fn kept_content(&self, hash: &ContentHash) -> Result<Option<Kept>, ReplicaOpError> {
        if *hash == ContentHash::empty() {
            return Ok(Some(Kept::Bytes(Vec::new())));
        }
        if let Some(bytes) = self.db.read(|db| small::get(db, hash))? {
            return Ok(Some(Kept::Bytes(bytes)));
        }
        Ok(self.cas.read(hash)?.map(|object| match object {
            Object::Bytes(bytes) => Kept::Bytes(bytes.into()),
            Object::Chunks(manifest) => Kept::Chunks {
                cas: Arc::clone(&self.cas),
                hash: *hash,
                manifest,
            },
        }))
    }

    /// Puts a refused version back at its path, as a new local change.
    fn take_conflict(&mut self, id: u64) -> Result<Conflict, ReplicaOpError> {
        self.flush()?;
        let conflict = self.conflict(id)?;
        let kept = self.read_conflict(id)?;
        let mut write = |mut file: &std::fs::File| {
            let written = kept.write_to(&mut file);
            written.map_err(|error| match error {
                CasError::Io { source, .. } => source,
                other => io::Error::other(other),
            })
        };
        let content = match &kept {
            Kept::Bytes(bytes) => Content::Bytes(bytes),
            Kept::Chunks { .. } => Content::Write(&mut write),
        };
        let node = conflict.node.as_ref();
        match self.tree.apply(&conflict.path, node, content, &self.cas)? {
            Applied::Done => {}
            _ => {
                return Err(ReplicaOpError::Busy {
                    path: conflict.path,
                });
            }
        }
        let change = LocalChange {
            path: conflict.path.clone(),
            node: conflict.node.clone(),
            renamed_from: None,
        };
        self.hand_over(vec![change]);
        self.forget_conflict(id)?;
        Ok(conflict)
    }

    fn drop_conflict(&mut self, id: u64) -> Result<Conflict, ReplicaOpError> {
        let conflict = self.conflict(id)?;
        self.forget_conflict(id)?;
        self.drop_unneeded()?;
        Ok(conflict)
    }

    fn forget_conflict(&mut self, id: u64) -> Result<(), ReplicaOpError> {
        self.db.transact(Durable::Yes, |db| {
            db.execute("DELETE FROM conflicts WHERE id = ?1", [id.cast_signed()])
        })?;
        Ok(())
    }
}

/// The content of a refused write. What is large is read from the store piece
/// by piece, and off the engine's thread where somebody waits for each of them.
#[derive(Debug)]
pub(super) enum Kept {
    Bytes(Vec<u8>),
    Chunks {
        cas: Arc<Cas>,
        hash: ContentHash,
        manifest: Manifest,
    },
}

impl Kept {
    pub(super) fn write_to(&self, out: &mut dyn io::Write) -> Result<(), CasError> {
        match self {
            Self::Bytes(bytes) => out.write_all(bytes).map_err(|source| CasError::Io {
                path: PathBuf::from("(output)"),
                source,
            }),
            Self::Chunks {
                cas,
                hash,
                manifest,
            } => cas.copy_chunks(hash, manifest, out),
        }
    }
}

enum Copied {
    Bytes(Vec<u8>),
    File(crate::tree::Temporary),
}

impl Copied {
    fn content(self) -> Content<'static> {
        match self {
            Self::Bytes(bytes) => Content::Owned(bytes),
            Self::File(file) => Content::Temporary(file),
        }
    }
}

/// A change that may be a new file of which the content came along.
fn as_new(item: &ApplyItem) -> Option<New<'_>> {
    let (Some(node), ContentSource::Bytes(bytes)) = (&item.node, &item.content) else {
        return None;
    };
    Some(New {
        path: &item.path,
        node,
        bytes,
    })
}

pub(super) fn local_change(found: Found) -> LocalChange {
    let node = found.node().cloned();
    LocalChange {
        path: found.path,
        node,
        renamed_from: found.renamed_from,
    }
}
