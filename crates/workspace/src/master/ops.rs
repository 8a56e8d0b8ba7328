//! Looking at the past of a workspace, and going back to it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use super::engine::Command;
use super::workspace::{Workspace, WorkspaceError, write_content};
use crate::content::{Cas, GcReport};
use crate::history::{
    Checkpoint, Child, HistoryReader, LogEntry, LogQuery, PrunePolicy, PruneReport, SizeReport,
};
use crate::place::make_private;
use crate::proto::ledger::in_order;
use crate::proto::{ChangeKind, ContentHash, Kind, Node, WorkspacePath};

/// Content above this size is not compared line by line.
const DIFF_BELOW: u64 = 4 << 20;

/// One path that differs between two sequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffEntry {
    /// The path.
    pub path: WorkspacePath,
    /// What it held before.
    pub old: Option<Node>,
    /// What it holds after.
    pub new: Option<Node>,
    /// The difference as text, where both are text and not too large.
    pub unified: Option<String>,
}

/// What a restore did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// Changes, in the order they are made.
    pub changes: Vec<(WorkspacePath, ChangeKind)>,
    /// Where the history is afterwards; the same as before for a dry run.
    pub sequence: u64,
}

/// What to take back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UndoRange {
    /// Changes after this sequence,
    pub after: u64,
    /// up to this one,
    pub through: u64,
    /// by this author; by all when there is none.
    pub author: Option<String>,
    /// Of these paths; of all when there are none.
    pub only: Option<BTreeSet<WorkspacePath>>,
    /// But for these sequences, which are somebody else's.
    pub except: Vec<RangeInclusive<u64>>,
    /// Sequences that do not stand in the way: what earlier undos took back, and made.
    pub settled: BTreeSet<u64>,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// What an undo did, or would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoReport {
    /// Changes, in the order they are made.
    pub changes: Vec<(WorkspacePath, ChangeKind)>,
    /// Paths that were left alone, with the later change that stands there.
    pub skipped: Vec<(WorkspacePath, u64)>,
    /// The sequences that were taken back and the ones that this made, for a later undo.
    pub settled: BTreeSet<u64>,
    /// Where the history is afterwards.
    pub sequence: u64,
}

/// What a fork holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForkReport {
    /// The sequence it was made at.
    pub sequence: u64,
    /// Files and symlinks that were written.
    pub files: u64,
}

/// What reading everything back brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Contents that are whole.
    pub contents: u64,
    /// Their size, uncompressed.
    pub bytes: u64,
    /// Contents that are damaged or missing, with the reason.
    pub damaged: Vec<(ContentHash, String)>,
}

impl VerifyReport {
    /// Whether nothing is damaged.
    pub fn is_clean(&self) -> bool {
        self.damaged.is_empty()
    }
}

impl Workspace {
    /// Lines of the log, ascending.
    pub async fn log(&self, query: LogQuery) -> Result<Vec<LogEntry>, WorkspaceError> {
        self.read(move |reader, _| Ok(reader.log(&query)?)).await
    }

    /// What a path held right after a sequence.
    pub async fn node_at(
        &self,
        path: WorkspacePath,
        sequence: u64,
    ) -> Result<Option<Node>, WorkspaceError> {
        self.check_kept(sequence).await?;
        self.read(move |reader, _| Ok(reader.node_at(&path, sequence)?))
            .await
    }

    /// What was directly in a folder right after a sequence; in the root without one.
    pub async fn list(
        &self,
        folder: Option<WorkspacePath>,
        sequence: u64,
    ) -> Result<Vec<Child>, WorkspaceError> {
        self.check_kept(sequence).await?;
        self.read(move |reader, _| Ok(reader.children_at(sequence, folder.as_ref())?))
            .await
    }

    /// Writes out what a path held right after a sequence; of a symlink, its target.
    pub async fn show(
        &self,
        path: WorkspacePath,
        sequence: u64,
        mut out: impl Write + Send + 'static,
    ) -> Result<Node, WorkspaceError> {
        self.check_kept(sequence).await?;
        self.read(move |reader, cas| {
            let node = reader.node_at(&path, sequence)?;
            let node = node.ok_or(WorkspaceError::NoSuchVersion { path, sequence })?;
            if !node.is_directory() {
                write_content(reader, cas, &node.hash, &mut out)?;
            }
            Ok(node)
        })
        .await
    }

    /// What differs between the tree after `from` and the tree after `to`.
    pub async fn diff(
        &self,
        from: u64,
        to: u64,
        path: Option<WorkspacePath>,
    ) -> Result<Vec<DiffEntry>, WorkspaceError> {
        self.check_kept(from).await?;
        self.check_kept(to).await?;
        self.read(move |reader, cas| {
            let old = reader.tree_at(from, path.as_ref())?;
            let new = reader.tree_at(to, path.as_ref())?;
            differences(&old, &new)
                .into_iter()
                .map(|(path, old, new)| {
                    let unified = unified(reader, cas, &path, old.as_ref(), new.as_ref())?;
                    Ok(DiffEntry {
                        path,
                        old,
                        new,
                        unified,
                    })
                })
                .collect()
        })
        .await
    }

    /// Paths that changed after `after` and up to `through`.
    pub async fn changed_between(
        &self,
        after: u64,
        through: u64,
    ) -> Result<Vec<WorkspacePath>, WorkspaceError> {
        self.read(move |reader, _| Ok(reader.changed_between(after, through)?))
            .await
    }

    /// The last sequence recorded at or before a time, in milliseconds since 1970.
    pub async fn sequence_at(&self, at_millis: i64) -> Result<Option<u64>, WorkspaceError> {
        self.read(move |reader, _| Ok(reader.sequence_at(at_millis)?))
            .await
    }

    /// Makes the tree, or a part of it, hold what it held right after `to`. Each
    /// change is a new sequence; a dry run only says what they would be.
    pub async fn restore(
        &self,
        to: u64,
        path: Option<WorkspacePath>,
        dry_run: bool,
    ) -> Result<RestoreReport, WorkspaceError> {
        let now = self.flush().await?;
        self.check_kept(to).await?;
        let wanted = self
            .read(move |reader, _| {
                let (old, mut new) = (
                    reader.tree_at(now, path.as_ref())?,
                    reader.tree_at(to, path.as_ref())?,
                );
                if let Some(path) = &path {
                    // A restored path needs the folders that it was in.
                    for ancestor in path.ancestors() {
                        let missing = reader
                            .node_at(&ancestor, now)?
                            .is_none_or(|node| !node.is_directory());
                        if let Some(node) = reader
                            .node_at(&ancestor, to)?
                            .filter(|_| missing && !new.is_empty())
                        {
                            new.insert(ancestor, node);
                        }
                    }
                }
                Ok(differences(&old, &new))
            })
            .await?;
        let wanted = in_order(wanted, |change| &change.0, |change| change.2.clone());
        let changes = kinds(&wanted);
        if dry_run || wanted.is_empty() {
            return Ok(RestoreReport {
                changes,
                sequence: now,
            });
        }
        let sequence = self.put(wanted).await?;
        Ok(RestoreReport { changes, sequence })
    }

    /// Gives the present state a name. What a checkpoint shows is never pruned.
    pub async fn checkpoint(&self, name: String) -> Result<u64, WorkspaceError> {
        self.ask(|reply| Command::Checkpoint { name, reply }).await
    }

    /// Every checkpoint, oldest first.
    pub async fn checkpoints(&self) -> Result<Vec<Checkpoint>, WorkspaceError> {
        self.read(|reader, _| Ok(reader.checkpoints()?)).await
    }

    /// Takes back what was recorded after `after` and up to `through`, by one
    /// author or by all: each of those paths gets what it held right before
    /// the first of that, as a new sequence. A path that changed again later is left alone
    /// and named, so that nothing newer is lost.
    pub async fn undo(&self, range: UndoRange) -> Result<UndoReport, WorkspaceError> {
        let now = self.flush().await?;
        self.check_kept(range.after).await?;
        let dry_run = range.dry_run;
        let settled_before = range.settled.clone();
        let (wanted, skipped, mut settled) = self
            .read(move |reader, _| {
                let mut log = reader.log(&LogQuery {
                    after: range.after,
                    through: Some(range.through),
                    author: range.author.clone(),
                    ..LogQuery::default()
                })?;
                if let Some(only) = &range.only {
                    log.retain(|entry| only.contains(&entry.path));
                }
                let excepted =
                    |sequence| range.except.iter().any(|range| range.contains(&sequence));
                log.retain(|entry| !excepted(entry.sequence));
                let mut settled: BTreeSet<u64> = log.iter().map(|entry| entry.sequence).collect();
                let mut first = BTreeMap::new();
                for entry in log {
                    let sequence = first.entry(entry.path).or_insert(entry.sequence);
                    *sequence = entry.sequence.min(*sequence);
                }
                settled.extend(&range.settled);
                let (mut wanted, mut skipped) = (Vec::new(), Vec::new());
                for (path, first) in first {
                    let old = reader.node_at(&path, now)?;
                    let new = reader.node_at(&path, first.saturating_sub(1))?;
                    if old == new {
                        continue;
                    }
                    let later = LogQuery {
                        path: Some(path.clone()),
                        after: range.through,
                        ..LogQuery::default()
                    };
                    let mut later = reader.log(&later)?.into_iter();
                    let stands = |entry: &LogEntry| {
                        entry.path == path && !range.settled.contains(&entry.sequence)
                    };
                    match later.rfind(stands) {
                        Some(entry) => skipped.push((path, entry.sequence)),
                        None => wanted.push((path, old, new)),
                    }
                }
                Ok((wanted, skipped, settled))
            })
            .await?;
        let wanted = in_order(wanted, |change| &change.0, |change| change.2.clone());
        let changes = kinds(&wanted);
        let sequence = if dry_run || wanted.is_empty() {
            now
        } else {
            let put: BTreeMap<WorkspacePath, Option<Node>> = wanted
                .iter()
                .map(|(path, _, new)| (path.clone(), new.clone()))
                .collect();
            let sequence = self.put(wanted).await?;
            let since = LogQuery {
                after: now,
                through: Some(sequence),
                ..LogQuery::default()
            };
            let made = self.log(since).await?.into_iter();
            let made = made.filter(|entry| put.get(&entry.path) == Some(&entry.node));
            settled.extend(made.map(|entry| entry.sequence));
            sequence
        };
        settled.retain(|sequence| !settled_before.contains(sequence));
        Ok(UndoReport {
            changes,
            skipped,
            settled,
            sequence,
        })
    }

    async fn put(&self, wanted: Vec<Difference>) -> Result<u64, WorkspaceError> {
        let changes = wanted
            .into_iter()
            .map(|(path, _, new)| (path, new))
            .collect();
        self.ask(|reply| Command::Put { changes, reply }).await
    }

    /// Writes the present tree to a new or empty folder, and its whole history
    /// to a new state folder: a workspace of its own from here on.
    pub async fn fork(
        &self,
        dir: PathBuf,
        state_dir: PathBuf,
    ) -> Result<ForkReport, WorkspaceError> {
        self.fork_telling(dir, state_dir, |_, _| {}).await
    }

    /// The same, and tells how many of how many paths are written.
    pub async fn fork_telling(
        &self,
        dir: PathBuf,
        state_dir: PathBuf,
        tell: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<ForkReport, WorkspaceError> {
        std::fs::create_dir_all(&dir).map_err(WorkspaceError::Output)?;
        make_private(&state_dir).map_err(WorkspaceError::Output)?;
        let check_empty = |path: &Path| {
            let empty = std::fs::read_dir(path)
                .map_err(WorkspaceError::Output)?
                .next()
                .is_none();
            if empty {
                Ok(())
            } else {
                Err(WorkspaceError::NotEmpty {
                    path: path.to_owned(),
                })
            }
        };
        check_empty(&dir)?;
        check_empty(&state_dir)?;
        let history = state_dir.join("history.db");
        let sequence = self
            .ask(|reply| Command::Backup {
                to: history.clone(),
                reply,
            })
            .await?;
        self.read(move |_, cas| {
            // From now on the fork's history keeps its contents from being collected.
            let history = history.canonicalize().map_err(WorkspaceError::Output)?;
            cas.register(&history)?;
            let reader = HistoryReader::open(&history)?;
            let tree = reader.tree_at(sequence, None)?;
            let files = write_tree(&reader, cas, &tree, &dir, tell)?;
            Ok(ForkReport { sequence, files })
        })
        .await
    }

    /// Forgets old versions; [`gc`](Self::gc) then frees what only they needed.
    pub async fn prune(&self, policy: PrunePolicy) -> Result<PruneReport, WorkspaceError> {
        self.ask(|reply| Command::Prune(policy, reply)).await
    }

    /// Removes content that no workspace of the store refers to.
    pub async fn gc(&self) -> Result<GcReport, WorkspaceError> {
        self.read(|_, cas| collect_garbage(cas)).await
    }

    /// Forgets that a workspace shares the store, when its history is gone: the
    /// next [`gc`](Self::gc) removes what only it referred to.
    pub async fn forget(&self, id: String) -> Result<(), WorkspaceError> {
        self.read(move |_, cas| {
            let name = |history: &Path| history.parent()?.file_name().map(ToOwned::to_owned);
            let all = cas.registered()?;
            let Some(history) = all.into_iter().find(|it| name(it) == Some((*id).into())) else {
                return Err(WorkspaceError::NotRegistered { id });
            };
            match history.try_exists() {
                Ok(false) => Ok(cas.unregister(&history)?),
                _ => Err(WorkspaceError::StillThere { history }),
            }
        })
        .await
    }

    /// What the history takes.
    pub async fn sizes(&self) -> Result<SizeReport, WorkspaceError> {
        self.read(|reader, _| Ok(reader.sizes()?)).await
    }

    /// What the store of all workspaces takes on the disk.
    pub async fn store_bytes(&self) -> Result<u64, WorkspaceError> {
        self.read(|_, cas| Ok(cas.disk_bytes()?)).await
    }

    /// Versions that refer to a content, as `PATH@SEQUENCE`; a hundred at most.
    pub async fn versions_with(&self, hash: ContentHash) -> Result<Vec<String>, WorkspaceError> {
        self.read(move |reader, _| Ok(reader.versions_with(&hash, 100)?))
            .await
    }

    /// Reads every content that the history refers to.
    pub async fn verify(&self) -> Result<VerifyReport, WorkspaceError> {
        self.verify_telling(|_, _| {}).await
    }

    /// The same, and tells how many of how many contents are read.
    pub async fn verify_telling(
        &self,
        tell: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<VerifyReport, WorkspaceError> {
        self.read(move |reader, cas| {
            let mut report = VerifyReport::default();
            let mut hashes: Vec<_> = reader.references()?.into_iter().collect();
            hashes.sort_unstable();
            let total = hashes.len() as u64;
            for (done, hash) in (1..).zip(hashes) {
                let mut counter = Counter(0);
                match write_content(reader, cas, &hash, &mut counter) {
                    Ok(()) => {
                        report.contents += 1;
                        report.bytes += counter.0;
                    }
                    Err(error) => report.damaged.push((hash, error.to_string())),
                }
                tell_now_and_then(&tell, done, total);
            }
            Ok(report)
        })
        .await
    }

    async fn check_kept(&self, sequence: u64) -> Result<(), WorkspaceError> {
        let current = self.sequence();
        let (floor, named) = self
            .read(move |reader, _| {
                let named = reader
                    .checkpoints()?
                    .iter()
                    .any(|checkpoint| checkpoint.sequence == sequence);
                Ok((reader.floor()?, named))
            })
            .await?;
        if (sequence < floor && !named) || sequence > current {
            return Err(WorkspaceError::NotKept {
                sequence,
                floor,
                current,
            });
        }
        Ok(())
    }
}

/// Removes what none of the registered histories refers to.
pub(crate) fn collect_garbage(cas: &Cas) -> Result<GcReport, WorkspaceError> {
    cas.collect(|| {
        let mut needed = HashSet::new();
        for history in cas.registered()? {
            let references = HistoryReader::open(&history).and_then(|reader| reader.references());
            let references = references.map_err(|source| WorkspaceError::UnreadableReferrer {
                history,
                source: Box::new(source),
            })?;
            needed.extend(references);
        }
        Ok(needed)
    })
}

struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A listener is told often enough to see it move, and no more.
fn tell_now_and_then(tell: &impl Fn(u64, u64), done: u64, total: u64) {
    if done == total || done.is_multiple_of(64) {
        tell(done, total);
    }
}

fn kinds(wanted: &[Difference]) -> Vec<(WorkspacePath, ChangeKind)> {
    let kind = |(path, old, new): &Difference| {
        let kind = ChangeKind::between(old.as_ref(), new.as_ref());
        (path.clone(), kind)
    };
    wanted.iter().map(kind).collect()
}

type Difference = (WorkspacePath, Option<Node>, Option<Node>);

fn differences(
    old: &BTreeMap<WorkspacePath, Node>,
    new: &BTreeMap<WorkspacePath, Node>,
) -> Vec<Difference> {
    let paths: BTreeSet<&WorkspacePath> = old.keys().chain(new.keys()).collect();
    paths
        .into_iter()
        .filter(|path| old.get(*path) != new.get(*path))
        .map(|path| (path.clone(), old.get(path).cloned(), new.get(path).cloned()))
        .collect()
}

fn unified(
    reader: &HistoryReader,
    cas: &Cas,
    path: &WorkspacePath,
    old: Option<&Node>,
    new: Option<&Node>,
) -> Result<Option<String>, WorkspaceError> {
    let text = |node: Option<&Node>| -> Result<Option<String>, WorkspaceError> {
        let Some(node) = node.filter(|node| !node.is_directory()) else {
            return Ok(Some(String::new()));
        };
        if node.size > DIFF_BELOW {
            return Ok(None);
        }
        let mut bytes = Vec::new();
        write_content(reader, cas, &node.hash, &mut bytes)?;
        Ok(String::from_utf8(bytes)
            .ok()
            .filter(|text| !text.contains('\0')))
    };
    let (Some(before), Some(after)) = (text(old)?, text(new)?) else {
        return Ok(None);
    };
    if before == after {
        return Ok(None);
    }
    let name = |node: Option<&Node>, side: &str| match node {
        Some(_) => format!("{side}/{path}"),
        None => "/dev/null".to_owned(),
    };
    let diff = similar::TextDiff::from_lines(&before, &after);
    Ok(Some(
        diff.unified_diff()
            .header(&name(old, "a"), &name(new, "b"))
            .to_string(),
    ))
}

/// Writes a tree to an empty folder that nobody else uses yet.
fn write_tree(
    reader: &HistoryReader,
    cas: &Cas,
    tree: &BTreeMap<WorkspacePath, Node>,
    dir: &Path,
    tell: impl Fn(u64, u64),
) -> Result<u64, WorkspaceError> {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    let mut files = 0;
    for (done, (path, node)) in (1..).zip(tree) {
        tell_now_and_then(&tell, done, tree.len() as u64);
        let target = dir.join(path.as_str());
        if let Some(parent) = target.parent() {
            std::fs::create_dir_all(parent).map_err(WorkspaceError::Output)?;
        }
        match node.kind {
            Kind::Directory => std::fs::create_dir_all(&target).map_err(WorkspaceError::Output)?,
            Kind::Symlink => {
                let mut link = Vec::new();
                write_content(reader, cas, &node.hash, &mut link)?;
                let link = OsStr::from_bytes(&link);
                std::os::unix::fs::symlink(link, &target).map_err(WorkspaceError::Output)?;
                files += 1;
            }
            Kind::File => {
                let mut file =
                    std::fs::File::create_new(&target).map_err(WorkspaceError::Output)?;
                write_content(reader, cas, &node.hash, &mut file)?;
                let mode = std::fs::Permissions::from_mode(node.mode);
                file.set_permissions(mode).map_err(WorkspaceError::Output)?;
                files += 1;
            }
        }
    }
    // Folders last: one that may not be written to must first be filled.
    for (path, node) in tree.iter().rev().filter(|(_, node)| node.is_directory()) {
        let mode = std::fs::Permissions::from_mode(node.mode);
        std::fs::set_permissions(dir.join(path.as_str()), mode).map_err(WorkspaceError::Output)?;
    }
    Ok(files)
}
