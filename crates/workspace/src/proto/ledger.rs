//! The master's view of every path's newest change, and the rule by which a
//! replica's write is taken or refused.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::message::{WriteBackEntry, WriteOperation};
use super::node::{ContentHash, Kind, Node, kind_of};
use super::path::WorkspacePath;

/// How many recent changes are kept one by one, superseded ones too, so that a
/// replica that keeps up sees a contiguous stream.
const RECENT: usize = 8_192;

/// Who made a change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Author {
    /// The master's own side, under its configured name.
    Local(Arc<str>),
    /// A replica.
    Sandbox(Arc<str>),
}

impl Author {
    /// The name, whichever side it is of.
    pub fn name(&self) -> &str {
        match self {
            Self::Local(name) | Self::Sandbox(name) => name,
        }
    }

    /// Whether it is this replica.
    pub fn is_sandbox(&self, id: &str) -> bool {
        matches!(self, Self::Sandbox(name) if &**name == id)
    }
}

/// What was done to a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// Created, or other content.
    Write,
    /// Removed.
    Delete,
    /// Came here from another path.
    Rename,
    /// Only permission bits changed.
    Chmod,
}

impl ChangeKind {
    /// The name used in listings and in the database.
    pub fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Delete => "delete",
            Self::Rename => "rename",
            Self::Chmod => "chmod",
        }
    }

    /// Reads the name back.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Write, Self::Delete, Self::Rename, Self::Chmod]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// What turns `old` into `new`.
    pub fn between(old: Option<&Node>, new: Option<&Node>) -> Self {
        match (old, new) {
            (_, None) => Self::Delete,
            (Some(old), Some(new)) if old.same_content(new) => Self::Chmod,
            _ => Self::Write,
        }
    }
}

/// A recorded change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its sequence.
    pub sequence: u64,
    /// The path.
    pub path: WorkspacePath,
    /// What the path holds since; `None` when it is gone.
    pub node: Option<Node>,
}

/// The newest change of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latest {
    /// Its sequence.
    pub sequence: u64,
    /// What the path holds; `None` when it is gone.
    pub node: Option<Node>,
    /// Who made it.
    pub author: Author,
}

/// One step of an accepted write-back entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The path to change.
    pub path: WorkspacePath,
    /// What it will hold.
    pub node: Option<Node>,
    /// How the history names it.
    pub change: ChangeKind,
    /// Where it came from, for a rename.
    pub from: Option<WorkspacePath>,
}

/// A write-back entry whose fields have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckedEntry {
    /// Its number at the replica.
    pub local_seq: u64,
    /// The path.
    pub path: WorkspacePath,
    /// What was done.
    pub operation: Operation,
    /// The base that the replica had.
    pub base: u64,
    /// What a rename or chmod was done to, where the replica says so: it may
    /// have been a write of its own that was refused.
    pub done_to: Option<(Kind, ContentHash)>,
}

/// A checked operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The path now holds this.
    Write(Node),
    /// The path is gone.
    Delete,
    /// It moved.
    Rename(WorkspacePath),
    /// Its permission bits are now these.
    Chmod(u32),
}

impl CheckedEntry {
    /// Checks an entry as it came. The error is the reason for its rejection.
    pub fn check(entry: &WriteBackEntry) -> Result<Self, String> {
        let path = WorkspacePath::parse(&entry.filepath).map_err(|error| error.to_string())?;
        let operation = match &entry.operation {
            _ if entry.is_deletion => Operation::Delete,
            WriteOperation::Delete => Operation::Delete,
            WriteOperation::Write => Operation::Write(checked_node(entry)?),
            WriteOperation::Rename { new_path } => {
                let to = WorkspacePath::parse(new_path).map_err(|error| error.to_string())?;
                if to == path || to.is_beneath(&path) || path.is_beneath(&to) {
                    return Err(format!("{path} cannot be renamed to {to}"));
                }
                Operation::Rename(to)
            }
            WriteOperation::Chmod => {
                kind_of(entry.permissions).map_err(|error| error.to_string())?;
                Operation::Chmod(u32::try_from(entry.permissions & 0o777).unwrap_or_default())
            }
        };
        let hash = entry.content_hash.as_deref().and_then(ContentHash::parse);
        let done_to = hash.and_then(|hash| Some((kind_of(entry.permissions).ok()?, hash)));
        Ok(Self {
            local_seq: entry.local_seq,
            path,
            operation,
            base: entry.base(),
            done_to,
        })
    }

    /// The content that must be at hand before the entry can be applied.
    pub fn content(&self) -> Option<&Node> {
        match &self.operation {
            Operation::Write(node) if !node.is_directory() => Some(node),
            _ => None,
        }
    }
}

fn checked_node(entry: &WriteBackEntry) -> Result<Node, String> {
    if kind_of(entry.permissions).map_err(|error| error.to_string())? == Kind::Directory {
        return Node::from_wire(entry.permissions, "", 0).map_err(|error| error.to_string());
    }
    let size = u64::try_from(entry.size).map_err(|_| format!("a size of {} bytes", entry.size))?;
    let hash = match (&entry.content_hash, &entry.content_bytes) {
        (Some(hash), _) => hash.clone(),
        (None, Some(bytes)) => ContentHash::of(bytes).to_string(),
        (None, None) => return Err("a write without content and without its hash".to_owned()),
    };
    let node =
        Node::from_wire(entry.permissions, &hash, size).map_err(|error| error.to_string())?;
    if node.kind == Kind::Symlink && size == 0 {
        return Err("a symlink without a target".to_owned());
    }
    if node.hash == ContentHash::empty() && size != 0 {
        return Err(format!("{size} bytes were announced with the hash of none"));
    }
    if let Some(bytes) = &entry.content_bytes {
        if bytes.len() as u64 != size {
            return Err(format!(
                "{size} bytes were announced and {} came",
                bytes.len()
            ));
        }
        let actual = ContentHash::of(bytes);
        if actual != node.hash {
            return Err(format!(
                "the content has the hash {actual}, not {}",
                node.hash
            ));
        }
    }
    Ok(node)
}

/// What becomes of a write-back entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The path already is so, since this sequence.
    AlreadySo(u64),
    /// Make these changes, in order.
    Apply(Vec<Step>),
    /// Refused, with the reason.
    Refuse(String),
}

/// The newest change of every path.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    current: u64,
    floor: u64,
    paths: BTreeMap<WorkspacePath, Latest>,
    by_sequence: BTreeMap<u64, WorkspacePath>,
    recent: VecDeque<Change>,
    files: u64,
    bytes: u64,
    is_partial: bool,
}

impl Ledger {
    /// A ledger that continues a history. `floor` is the sequence through which
    /// deletions have been forgotten.
    pub fn new(current: u64, floor: u64) -> Self {
        Self {
            current,
            floor,
            ..Self::default()
        }
    }

    /// Puts back a path's newest change when a history is opened.
    pub fn load(&mut self, path: WorkspacePath, latest: Latest) {
        self.place(path, latest);
    }

    /// The newest sequence.
    pub fn current(&self) -> u64 {
        self.current
    }

    /// Whether the tree is still being read for the first time: what is not in
    /// here yet may be there all the same.
    pub fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Says whether that is so.
    pub fn set_partial(&mut self, is_partial: bool) {
        self.is_partial = is_partial;
    }

    /// The sequence through which deletions have been forgotten.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Number of existing paths that are not directories.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Sum of their sizes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The newest change of a path.
    pub fn latest(&self, path: &WorkspacePath) -> Option<&Latest> {
        self.paths.get(path)
    }

    /// What a path holds now.
    pub fn node(&self, path: &WorkspacePath) -> Option<&Node> {
        self.paths.get(path)?.node.as_ref()
    }

    /// Every existing path, in order.
    pub fn live(&self) -> impl Iterator<Item = (&WorkspacePath, &Node)> {
        self.paths
            .iter()
            .filter_map(|(path, latest)| latest.node.as_ref().map(|node| (path, node)))
    }

    /// Every existing path beneath a folder, in order.
    pub fn live_beneath(
        &self,
        folder: &WorkspacePath,
    ) -> impl Iterator<Item = (&WorkspacePath, &Latest)> {
        self.paths
            .range::<str, _>(str_range(&folder.beneath_range()))
            .filter(|(_, latest)| latest.node.is_some())
    }

    /// Records a change and gives it the next sequence.
    pub fn record(&mut self, path: WorkspacePath, node: Option<Node>, author: Author) -> u64 {
        self.current += 1;
        let sequence = self.current;
        self.recent.push_back(Change {
            sequence,
            path: path.clone(),
            node: node.clone(),
        });
        if self.recent.len() > RECENT {
            self.recent.pop_front();
        }
        self.place(
            path,
            Latest {
                sequence,
                node,
                author,
            },
        );
        sequence
    }

    fn place(&mut self, path: WorkspacePath, latest: Latest) {
        let counted = |latest: &Latest| {
            latest
                .node
                .as_ref()
                .filter(|node| !node.is_directory())
                .map(|node| node.size)
        };
        if let Some(size) = counted(&latest) {
            self.files += 1;
            self.bytes = self.bytes.saturating_add(size);
        }
        self.by_sequence.insert(latest.sequence, path.clone());
        if let Some(old) = self.paths.insert(path, latest) {
            self.by_sequence.remove(&old.sequence);
            if let Some(size) = counted(&old) {
                self.files = self.files.saturating_sub(1);
                self.bytes = self.bytes.saturating_sub(size);
            }
        }
    }

    /// Forgets deletions up to `floor`: a replica that is older needs everything.
    pub fn forget_through(&mut self, floor: u64) {
        self.floor = self.floor.max(floor.min(self.current));
        let gone: Vec<u64> = self
            .by_sequence
            .range(..=self.floor)
            .filter(|(_, path)| {
                self.paths
                    .get(*path)
                    .is_some_and(|latest| latest.node.is_none())
            })
            .map(|(sequence, _)| *sequence)
            .collect();
        for sequence in gone {
            if let Some(path) = self.by_sequence.remove(&sequence) {
                self.paths.remove(&path);
            }
        }
        while self
            .recent
            .front()
            .is_some_and(|change| change.sequence <= self.floor)
        {
            self.recent.pop_front();
        }
    }

    /// Newest changes of paths after `cursor`, ascending. Deletions up to
    /// `live_until` are left out.
    pub fn newest_after(&self, cursor: u64, live_until: u64, limit: usize) -> Vec<Change> {
        self.by_sequence
            .range(cursor.saturating_add(1)..)
            .filter_map(|(sequence, path)| {
                let node = self.paths.get(path)?.node.clone();
                (node.is_some() || *sequence > live_until).then(|| Change {
                    sequence: *sequence,
                    path: path.clone(),
                    node,
                })
            })
            .take(limit)
            .collect()
    }

    /// Every change after `cursor`, without holes; `None` when they are no
    /// longer all at hand and only a catch-up helps.
    pub fn stream_after(&self, cursor: u64, limit: usize) -> Option<Vec<Change>> {
        if cursor >= self.current {
            return Some(Vec::new());
        }
        let first = self.recent.front()?.sequence;
        let skip = usize::try_from((cursor + 1).checked_sub(first)?).ok()?;
        Some(self.recent.iter().skip(skip).take(limit).cloned().collect())
    }

    /// Decides about one entry of a replica.
    ///
    /// Refused if the path changed after the replica's base, unless that change
    /// came from the same replica or left the path exactly as the entry wants
    /// it. Nothing that the replica has not seen is ever overwritten.
    pub fn decide(&self, sandbox: &str, entry: &CheckedEntry) -> Decision {
        let path = &entry.path;
        let now = self.paths.get(path);
        let node = now.and_then(|latest| latest.node.as_ref());
        let sequence = now.map_or(0, |latest| latest.sequence);
        // What is ahead of this history was seen in another one, which is lost.
        let base = if entry.base > self.current {
            0
        } else {
            entry.base
        };
        let unseen = |latest: &Latest| latest.sequence > base && !latest.author.is_sandbox(sandbox);
        let conflict = |path: &WorkspacePath, latest: &Latest| {
            Decision::Refuse(format!(
                "conflict: {path} is at iteration {}, you saw {}",
                latest.sequence, entry.base
            ))
        };
        let done_to_another = |node: &Node| {
            entry
                .done_to
                .is_some_and(|(kind, hash)| kind != node.kind || hash != node.hash)
        };
        match &entry.operation {
            Operation::Write(wanted) => {
                if node == Some(wanted) {
                    return Decision::AlreadySo(sequence);
                }
                if let Some(latest) = now.filter(|latest| unseen(latest)) {
                    return conflict(path, latest);
                }
                if let Some(refusal) = self.blocked(path, Some(wanted)) {
                    return Decision::Refuse(refusal);
                }
                let mut steps = self.missing_parents(path);
                steps.push(Step {
                    path: path.clone(),
                    node: Some(wanted.clone()),
                    change: ChangeKind::between(node, Some(wanted)),
                    from: None,
                });
                Decision::Apply(steps)
            }
            Operation::Delete => {
                let Some(latest) = now.filter(|latest| latest.node.is_some()) else {
                    return Decision::AlreadySo(sequence);
                };
                if unseen(latest) {
                    return conflict(path, latest);
                }
                let mut steps = vec![Step {
                    path: path.clone(),
                    node: None,
                    change: ChangeKind::Delete,
                    from: None,
                }];
                for (child, latest) in self.live_beneath(path) {
                    if unseen(latest) {
                        return conflict(child, latest);
                    }
                    steps.push(Step {
                        path: child.clone(),
                        node: None,
                        change: ChangeKind::Delete,
                        from: None,
                    });
                }
                steps.reverse();
                Decision::Apply(steps)
            }
            Operation::Chmod(mode) => {
                let (Some(latest), Some(node)) = (now, node) else {
                    return Decision::Refuse(format!("{path} does not exist"));
                };
                if done_to_another(node) {
                    return conflict(path, latest);
                }
                let wanted = node.with_mode(*mode);
                if *node == wanted {
                    return Decision::AlreadySo(sequence);
                }
                if unseen(latest) {
                    return conflict(path, latest);
                }
                Decision::Apply(vec![Step {
                    path: path.clone(),
                    node: Some(wanted),
                    change: ChangeKind::Chmod,
                    from: None,
                }])
            }
            Operation::Rename(to) => {
                let (Some(latest), Some(node)) = (now, node) else {
                    return Decision::Refuse(format!("{path} does not exist"));
                };
                if unseen(latest) || done_to_another(node) {
                    return conflict(path, latest);
                }
                if let Some(target) = self.paths.get(to).filter(|target| unseen(target)) {
                    return conflict(to, target);
                }
                // Nor does a folder take the place of one that is not empty, as on a disk.
                let held = self.holder(to).or_else(|| self.blocked(to, Some(node)));
                if let Some(refusal) = held {
                    return Decision::Refuse(refusal);
                }
                let steps = self.rename_steps(path, node, to);
                if let Some(step) = steps.iter().find(|step| step.path.is_too_long()) {
                    let length = step.path.as_str().len();
                    return Decision::Refuse(format!(
                        "a file in {path} would get a path of {length} bytes, which is too long"
                    ));
                }
                Decision::Apply(steps)
            }
        }
    }

    /// New paths first, so that a replica still has the content under the old
    /// name when it learns of the new one.
    fn rename_steps(&self, from: &WorkspacePath, node: &Node, to: &WorkspacePath) -> Vec<Step> {
        let mut steps = self.missing_parents(to);
        let mut moved = vec![(from.clone(), node.clone())];
        moved.extend(
            self.live_beneath(from).filter_map(|(child, latest)| {
                latest.node.clone().map(|node| (child.clone(), node))
            }),
        );
        for (old, node) in &moved {
            if let Some(new) = old.rebased(from, to) {
                steps.push(Step {
                    path: new,
                    node: Some(node.clone()),
                    change: ChangeKind::Rename,
                    from: Some(old.clone()),
                });
            }
        }
        steps.extend(moved.into_iter().rev().map(|(old, _)| Step {
            path: old,
            node: None,
            change: ChangeKind::Delete,
            from: None,
        }));
        steps
    }

    /// Why `wanted` cannot stand at `path` in the tree as it is.
    fn blocked(&self, path: &WorkspacePath, wanted: Option<&Node>) -> Option<String> {
        for ancestor in path.ancestors() {
            if self
                .node(&ancestor)
                .is_some_and(|node| !node.is_directory())
            {
                return Some(format!("conflict: {ancestor} is not a directory here"));
            }
        }
        if wanted.is_some_and(|node| !node.is_directory()) {
            return self.holder(path);
        }
        None
    }

    /// Why nothing can take the place of a folder: something is in it.
    fn holder(&self, path: &WorkspacePath) -> Option<String> {
        let (child, latest) = self.live_beneath(path).next()?;
        Some(format!(
            "conflict: {path} holds {child} since iteration {}",
            latest.sequence
        ))
    }

    fn missing_parents(&self, path: &WorkspacePath) -> Vec<Step> {
        path.ancestors()
            .into_iter()
            .filter(|ancestor| self.node(ancestor).is_none())
            .map(|ancestor| Step {
                path: ancestor,
                node: Some(Node::directory(0o755)),
                change: ChangeKind::Write,
                from: None,
            })
            .collect()
    }
}

/// A range of owned text as a range of borrowed text.
pub fn str_range(
    range: &std::ops::Range<String>,
) -> (std::ops::Bound<&str>, std::ops::Bound<&str>) {
    (
        std::ops::Bound::Included(range.start.as_str()),
        std::ops::Bound::Excluded(range.end.as_str()),
    )
}

/// Puts changes to a tree in an order in which each can be made: what is in the
/// way goes first, parents come before children, and what is left to remove
/// goes last, children before parents, so that content that moved is still
/// under its old name when it appears under its new one.
pub fn in_order<T>(
    changes: Vec<T>,
    path: impl Fn(&T) -> &WorkspacePath,
    node: impl Fn(&T) -> Option<Node>,
) -> Vec<T> {
    // Of use only where something goes.
    let goes = changes.iter().any(|change| node(change).is_none());
    let solid: std::collections::BTreeSet<WorkspacePath> = changes
        .iter()
        .filter(|change| goes && node(change).is_some_and(|node| !node.is_directory()))
        .map(|change| path(change).clone())
        .collect();
    let mut ranked: Vec<(u8, T)> = changes
        .into_iter()
        .map(|change| {
            let rank = match node(&change) {
                Some(_) => 1,
                None if path(&change)
                    .ancestors()
                    .iter()
                    .any(|ancestor| solid.contains(ancestor)) =>
                {
                    0
                }
                None => 2,
            };
            (rank, change)
        })
        .collect();
    ranked.sort_by(|(a_rank, a), (b_rank, b)| {
        let by_path = || {
            if *a_rank == 1 {
                path(a).cmp(path(b))
            } else {
                path(b).cmp(path(a))
            }
        };
        a_rank.cmp(b_rank).then_with(by_path)
    });
    ranked.into_iter().map(|(_, change)| change).collect()
}

#[cfg(test)]
mod tests;
