//! A tree that is followed: what it held when it was last looked at, and where
//! it may have changed since.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use ignore::gitignore::Gitignore;
use rustix::fs::{self as sys, AtFlags, Stat};

use super::capture::{Capture, Captured, READ_AHEAD, capture_ahead, capture_in};
use super::looking::Looking;
use super::made::Made;
use super::renames::paired;
use super::root::{self, Fingerprint, Root, Unsynced};
use super::rules::IGNORE_FILE;
use super::seen::Seen;
use super::{Problem, ProblemReason, TreeError};
use crate::content::Cas;
use crate::proto::ledger::str_range;
use crate::proto::path::RESERVED;
use crate::proto::{ContentHash, Kind, Node, WorkspacePath};
use crate::watch::{Happening, Unsettled, WatchMode, Watcher};

/// A change that was found by looking.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) path: WorkspacePath,
    pub(crate) old: Option<Node>,
    pub(crate) new: Option<Seen>,
    pub(crate) small: Option<Vec<u8>>,
    pub(crate) renamed_from: Option<WorkspacePath>,
}

impl Found {
    pub(crate) fn node(&self) -> Option<&Node> {
        self.new.as_ref().map(|seen| &seen.node)
    }
}

/// How far to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// At paths that have settled.
    Ready,
    /// At everything that an event named.
    Everything,
    /// At the whole tree.
    Whole,
}

/// What looking brought.
#[derive(Debug, Default)]
pub(crate) struct Sight {
    /// Changes, in an order in which they can be made elsewhere.
    pub(crate) changes: Vec<Found>,
    /// Paths that hold the same as before and only look different.
    pub(crate) refreshed: Vec<WorkspacePath>,
}

pub(crate) struct LiveTree {
    pub(super) root: Root,
    pub(super) seen: BTreeMap<WorkspacePath, Seen>,
    by_inode: HashMap<u64, WorkspacePath>,
    pub(super) unsynced: Unsynced,
    pub(super) watcher: Option<Watcher>,
    /// Names whose making is about to be told, and is nothing new.
    pub(super) made: Made,
    mode: WatchMode,
    unsettled: Unsettled,
    pub(super) look_everywhere: bool,
    pub(super) ignore: Gitignore,
    /// How the ignore file looked when it was read; `None` when there was none.
    pub(super) ignore_file: Option<Fingerprint>,
    pub(super) problems: HashSet<Problem>,
    /// What files looked like just before the first look. One that has changed since
    /// is looked at again, like any that changes while it is read.
    pub(super) glimpsed: HashMap<WorkspacePath, Stat>,
}

impl LiveTree {
    pub(crate) fn open(root: Root) -> Self {
        let mut tree = Self {
            ignore: Gitignore::empty(),
            ignore_file: None,
            root,
            seen: BTreeMap::new(),
            by_inode: HashMap::new(),
            unsynced: Unsynced::default(),
            watcher: None,
            made: Made::default(),
            mode: WatchMode::Polling {
                reason: "it was not started yet".to_owned(),
            },
            unsettled: Unsettled::default(),
            look_everywhere: true,
            problems: HashSet::new(),
            glimpsed: HashMap::new(),
        };
        tree.read_ignore_file();
        tree
    }

    /// Goes on from what the tree held when it was last seen.
    pub(crate) fn recall(&mut self, seen: Vec<(WorkspacePath, Seen)>) {
        for (path, seen) in seen {
            self.see(&path, Some(seen));
        }
    }

    /// Starts to watch, or says why the tree has to be polled. The first look
    /// at the whole tree adds the watches, each before its folder is read.
    pub(crate) fn start_watching(&mut self, poll_instead: Option<String>) {
        self.look_everywhere = true;
        if let Some(reason) = poll_instead {
            self.mode = WatchMode::Polling { reason };
            return;
        }
        let own = self.root.path().join(RESERVED);
        match Watcher::new(self.root.path(), &own) {
            Ok(watcher) => {
                self.watcher = Some(watcher);
                self.mode = WatchMode::Events;
            }
            Err(error) => self.stop_watching(&error),
        }
    }

    fn stop_watching(&mut self, error: &crate::watch::WatchError) {
        let watched = self.watcher.as_ref().map_or(0, Watcher::watched);
        let reason = error.advice(watched);
        tracing::warn!(root = %self.root.path().display(), "{reason}");
        self.watcher = None;
        self.made = Made::default();
        self.mode = WatchMode::Polling { reason };
        self.look_everywhere = true;
    }

    pub(crate) fn watch_mode(&self) -> &WatchMode {
        &self.mode
    }

    pub(crate) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watcher.as_ref().map(AsFd::as_fd)
    }

    pub(crate) fn root(&self) -> &Root {
        &self.root
    }

    pub(crate) fn seen(&self, path: &WorkspacePath) -> Option<&Seen> {
        self.seen.get(path)
    }

    /// A file that was last seen to hold this content.
    pub(crate) fn file_with(&self, hash: &ContentHash) -> Option<&WorkspacePath> {
        self.seen
            .iter()
            .find(|(_, seen)| seen.node.kind == Kind::File && seen.node.hash == *hash)
            .map(|(path, _)| path)
    }

    /// Number of files and symlinks, and the sum of their sizes.
    pub(crate) fn size(&self) -> (u64, u64) {
        let files = self.seen.values().filter(|seen| !seen.node.is_directory());
        files.fold((0, 0), |(count, bytes), seen| {
            (count + 1, bytes + seen.node.size)
        })
    }

    pub(crate) fn unsettled_len(&self) -> usize {
        self.unsettled.len()
    }

    /// When a settled path should be looked at.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        if self.look_everywhere && self.watcher.is_some() {
            Some(Instant::now())
        } else {
            self.unsettled.next_ready()
        }
    }

    /// Makes everything that was put in place survive a power cut.
    pub(crate) fn sync(&mut self) -> Result<(), TreeError> {
        let path = self.root.path().to_owned();
        self.root
            .sync(&mut self.unsynced)
            .map_err(|source| TreeError::Io { path, source })
    }

    /// Remembers what a path holds.
    pub(super) fn see(&mut self, path: &WorkspacePath, seen: Option<Seen>) {
        if let Some(old) = self.seen.get(path)
            && self.by_inode.get(&old.fingerprint.inode) == Some(path)
        {
            self.by_inode.remove(&old.fingerprint.inode);
        }
        match seen {
            Some(seen) => {
                let may_move = seen.node.kind != Kind::Symlink;
                if may_move && seen.fingerprint != Fingerprint::UNTRUSTED {
                    self.by_inode.insert(seen.fingerprint.inode, path.clone());
                }
                self.seen.insert(path.clone(), seen);
            }
            None => {
                self.seen.remove(path);
            }
        }
    }

    /// Remembers what a path turned out to hold when it was to be changed.
    pub(crate) fn accept(&mut self, path: &WorkspacePath, seen: Option<Seen>) {
        self.see(path, seen);
    }

    /// Takes back what was found, when it could not be recorded.
    pub(crate) fn unsee(&mut self, found: Vec<Found>, now: Instant) {
        for found in found {
            let old = found.old.map(|node| Seen {
                node,
                fingerprint: Fingerprint::UNTRUSTED,
            });
            self.see(&found.path, old);
            self.unsettled.again(found.path, now);
        }
    }

    /// Has a path looked at, though no event named it.
    pub(crate) fn look_again(&mut self, path: WorkspacePath, now: Instant) {
        self.unsettled.again(path, now);
    }

    /// Takes in the kernel's events, without waiting. Returns cookies.
    pub(crate) fn read_events(&mut self) -> io::Result<Vec<String>> {
        let Some(watcher) = &mut self.watcher else {
            return Ok(Vec::new());
        };
        let events = watcher.read()?;
        if events.overflow {
            self.look_everywhere = true;
            self.made = Made::default();
        }
        let now = Instant::now();
        for event in events.events {
            if self.made.takes(&event) {
                continue;
            }
            if event.path.as_str() == IGNORE_FILE {
                // Before anything that was made after it is looked at.
                self.read_ignore_file();
            }
            // A folder that appears is read whole when it is looked at.
            let is_known = self.seen.contains_key(&event.path)
                || event.is_folder && event.happening == Happening::Settled;
            self.unsettled.add(&event, is_known, now);
        }
        Ok(events.cookies)
    }

    /// Takes in every event of what finished before this call: a name that is
    /// made now comes out of the kernel's queue after all of them.
    pub(crate) fn catch_up_with_events(&mut self) -> Result<(), TreeError> {
        let path = self.root.path().join(RESERVED);
        let io = |source| TreeError::Io {
            path: path.clone(),
            source,
        };
        if self.watcher.is_none() {
            self.look_everywhere = true;
            return Ok(());
        }
        let cookie = match self.root.drop_cookie() {
            Ok(cookie) => cookie,
            // A full disk takes no cookie, and the tree can still be read.
            Err(error) => {
                tracing::debug!(%error, "no cookie could be made; the whole tree is read");
                self.read_events().map_err(io)?;
                self.look_everywhere = true;
                return Ok(());
            }
        };
        let deadline = Instant::now() + std::time::Duration::from_secs(5);
        loop {
            if self.read_events().map_err(io)?.contains(&cookie) {
                return Ok(());
            }
            if Instant::now() >= deadline || self.look_everywhere {
                self.look_everywhere = true;
                return Ok(());
            }
            let Some(watcher) = &self.watcher else {
                return Ok(());
            };
            let mut poll = [rustix::event::PollFd::new(
                watcher,
                rustix::event::PollFlags::IN,
            )];
            let timeout = rustix::event::Timespec {
                tv_sec: 0,
                tv_nsec: 100_000_000,
            };
            let _ = rustix::event::poll(&mut poll, Some(&timeout));
        }
    }

    /// Looks at what may have changed.
    pub(crate) fn look(&mut self, how: Look, cas: &Cas) -> Result<Sight, TreeError> {
        let now = Instant::now();
        let paths = match how {
            Look::Ready => self.unsettled.take_ready(now),
            Look::Everything | Look::Whole => self.unsettled.take_all(),
        };
        let whole = how == Look::Whole || self.look_everywhere;
        if paths.is_empty() && !whole {
            return Ok(Sight::default());
        }
        if !self.root.is_in_place() {
            return Err(TreeError::Gone {
                path: self.root.path().to_owned(),
            });
        }
        let mut looking = Looking::default();
        if self.reread_ignore_file() || paths.iter().any(|path| path.as_str() == IGNORE_FILE) {
            self.look_everywhere = true;
        }
        let result = if whole || self.look_everywhere {
            self.look_everywhere = false;
            self.examine_folder(None, cas, &mut looking)
                .and_then(|()| self.examine_later(cas, &mut looking))
        } else {
            self.examine_paths(&paths, cas, &mut looking)
        };
        if let Err(error) = result {
            // What was found so far was not recorded; look again later.
            self.unsee(looking.changes, now);
            for path in paths {
                self.unsettled.again(path, now);
            }
            self.look_everywhere |= whole;
            return Err(error);
        }
        Ok(self.seen_all(looking, now))
    }

    /// What looking brought, once it is over.
    pub(super) fn seen_all(&mut self, mut looking: Looking, now: Instant) -> Sight {
        for path in &looking.unstable {
            self.unsettled.again(path.clone(), now);
        }
        // What was made after the rules were written is in sight only after them,
        // so rules that are still the same now hold for all that was found.
        if self.reread_ignore_file() {
            self.look_everywhere = true;
            self.forget_ignored(&mut looking);
        }
        Sight {
            changes: paired(looking.changes, &looking.guessed),
            refreshed: looking.refreshed,
        }
    }

    /// Looks at paths; those of one folder follow each other and share its
    /// descriptor. A folder that is moved meanwhile is named by an event of its own.
    fn examine_paths(
        &mut self,
        paths: &BTreeSet<WorkspacePath>,
        cas: &Cas,
        looking: &mut Looking,
    ) -> Result<(), TreeError> {
        let mut open: Option<(Option<WorkspacePath>, OwnedFd)> = None;
        for path in paths {
            if looking.done.contains(path) {
                continue;
            }
            let parent = path.parent();
            if open.as_ref().is_none_or(|(folder, _)| *folder != parent) {
                open = match self.root.folder(parent.as_ref()) {
                    Ok(folder) => Some((parent, folder)),
                    // A path whose folder is gone, or is a symlink now, is gone itself.
                    Err(error) if root::is_absence(&error) => {
                        self.removed(path, looking);
                        None
                    }
                    Err(error) => {
                        self.report(path.as_str(), ProblemReason::Unreadable(error.to_string()));
                        None
                    }
                };
            }
            if let Some((_, folder)) = &open {
                self.examine(folder.as_fd(), path, cas, looking)?;
                self.examine_later(cas, looking)?;
            }
        }
        Ok(())
    }

    fn examine(
        &mut self,
        folder: BorrowedFd<'_>,
        path: &WorkspacePath,
        cas: &Cas,
        looking: &mut Looking,
    ) -> Result<(), TreeError> {
        looking.done.insert(path.clone());
        let stat = match sys::statat(folder, path.name(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(rustix::io::Errno::NOENT) => {
                self.removed(path, looking);
                return Ok(());
            }
            Err(errno) => {
                self.report(path.as_str(), ProblemReason::Unreadable(errno.to_string()));
                return Ok(());
            }
        };
        let kind = root::kind(&stat);
        if self.is_ignored(path, kind == Some(Kind::Directory)) {
            return Ok(());
        }
        let Some(kind) = kind else {
            self.report(path.as_str(), ProblemReason::SpecialFile);
            self.vanish(path, looking);
            return Ok(());
        };
        let mode = root::mode(&stat);
        if kind == Kind::Directory {
            let same = self
                .seen
                .get(path)
                .is_some_and(|seen| seen.node == Node::directory(mode));
            if !same {
                let fingerprint = Fingerprint::of(&stat);
                let was_folder = |seen: &Seen| seen.node.is_directory();
                if !self.seen.get(path).is_some_and(was_folder)
                    && let Some((from, seen)) = self.inode_was_at(fingerprint.inode, kind, looking)
                {
                    if !seen.fingerprint.resembles(fingerprint) {
                        looking.guessed.insert(path.clone());
                    }
                    looking.moved.insert(path.clone(), from);
                }
                let seen = Seen {
                    node: Node::directory(mode),
                    fingerprint,
                };
                self.found(path, Captured { seen, small: None }, looking);
            }
            looking.later.push(path.clone());
            return Ok(());
        }
        self.vanish_beneath(path, looking);
        let fingerprint = Fingerprint::of(&stat);
        let is_as_seen = |seen: &Seen| {
            seen.node.kind == kind && seen.node.mode == mode && seen.fingerprint == fingerprint
        };
        if self.seen.get(path).is_some_and(is_as_seen) {
            return Ok(());
        }
        let was_here = |seen: &Seen| seen.fingerprint.inode == fingerprint.inode;
        let came_here = kind == Kind::File && !self.seen.get(path).is_some_and(was_here);
        let moved = self
            .inode_was_at(fingerprint.inode, kind, looking)
            .filter(|(_, seen)| came_here && seen.fingerprint.resembles(fingerprint));
        if let Some((from, seen)) = moved {
            // It was not read: before anything takes its place, it will be.
            let seen = Seen {
                node: seen.node.with_mode(mode),
                fingerprint: fingerprint.unproven(),
            };
            looking.moved.insert(path.clone(), from);
            self.found(path, Captured { seen, small: None }, looking);
            return Ok(());
        }
        self.read(folder, path, &stat, cas, looking)
    }

    /// The path that an inode had, and what it held.
    fn inode_was_at(
        &self,
        inode: u64,
        kind: Kind,
        looking: &Looking,
    ) -> Option<(WorkspacePath, Seen)> {
        let found = looking.departed.get(&inode).cloned().or_else(|| {
            let from = self.by_inode.get(&inode)?;
            Some((from.clone(), self.seen.get(from)?.clone()))
        });
        found.filter(|(_, seen)| seen.node.kind == kind)
    }

    fn read(
        &mut self,
        folder: BorrowedFd<'_>,
        path: &WorkspacePath,
        stat: &Stat,
        cas: &Cas,
        looking: &mut Looking,
    ) -> Result<(), TreeError> {
        let earlier = self.seen.get(path).map(|seen| &seen.node);
        let captured = match looking.captured.remove(path) {
            Some(captured) => captured,
            None => capture_in(folder, path.name(), earlier, cas)?,
        };
        match captured {
            Capture::Is(captured) if captured.seen.node.is_directory() => {
                looking.unstable.push(path.clone());
            }
            Capture::Is(captured) => {
                self.readable_again(path.as_str());
                self.found(path, captured, looking);
            }
            Capture::Absent => self.vanish(path, looking),
            Capture::Special => self.report(path.as_str(), ProblemReason::SpecialFile),
            Capture::Unstable => looking.unstable.push(path.clone()),
            // What it held is kept: it cannot be read, which is not a deletion.
            Capture::Unreadable(error) => {
                self.report(path.as_str(), ProblemReason::Unreadable(error.to_string()));
                self.closed(path, stat, looking);
            }
        }
        Ok(())
    }

    /// A file that may no longer be read: its mode is followed as long as nothing
    /// says that its content changed too.
    fn closed(&mut self, path: &WorkspacePath, stat: &Stat, looking: &mut Looking) {
        let fingerprint = Fingerprint::of(stat).unproven();
        let as_before =
            |seen: &&Seen| seen.node.kind == Kind::File && seen.fingerprint.resembles(fingerprint);
        if let Some(seen) = self.seen.get(path).filter(as_before) {
            let node = seen.node.with_mode(root::mode(stat));
            let seen = Seen { node, fingerprint };
            self.found(path, Captured { seen, small: None }, looking);
        }
    }

    /// Looks into the folders that were found, each when those before it are done:
    /// how deep a tree is, is not up to this program.
    fn examine_later(&mut self, cas: &Cas, looking: &mut Looking) -> Result<(), TreeError> {
        while let Some(path) = looking.later.pop() {
            let known = looking.later.len();
            self.examine_folder(Some(&path), cas, looking)?;
            if let Some(new) = looking.later.get_mut(known..) {
                new.reverse();
            }
        }
        Ok(())
    }

    /// Looks at a folder's entries, and not yet into the folders among them.
    fn examine_folder(
        &mut self,
        path: Option<&WorkspacePath>,
        cas: &Cas,
        looking: &mut Looking,
    ) -> Result<(), TreeError> {
        let Some((folder, children)) = self.open_folder(path, looking) else {
            return Ok(());
        };
        for some in children.chunks(READ_AHEAD) {
            self.examine_some(folder.as_fd(), some, cas, looking)?;
        }
        let here: BTreeSet<WorkspacePath> = children.into_iter().collect();
        for child in self.seen_children(path) {
            if !here.contains(&child) {
                self.removed(&child, looking);
            }
        }
        Ok(())
    }

    /// Watches a folder and reads the names in it; `None` when that cannot be done.
    pub(super) fn open_folder(
        &mut self,
        path: Option<&WorkspacePath>,
        looking: &mut Looking,
    ) -> Option<(OwnedFd, Vec<WorkspacePath>)> {
        if let (Some(watcher), Some(path)) = (&mut self.watcher, path) {
            let absolute = self.root.absolute(Some(path));
            match watcher.watch(path, &absolute) {
                Ok(()) => {}
                Err(crate::watch::WatchError::Io(error))
                    if root::is_absence(&error)
                        // When it may be read again, its own folder's watch says so.
                        || error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => self.stop_watching(&error),
            }
        }
        let mut odd = Vec::new();
        let names = self.root.folder(path).and_then(|folder| {
            let names = self.root.names(&folder, path.is_none(), &mut |name| {
                odd.push(name.to_string_lossy().into_owned());
            })?;
            Ok((folder, names))
        });
        let (folder, names) = match names {
            Ok(found) => found,
            Err(error) if root::is_absence(&error) => {
                looking.unstable.extend(path.cloned());
                return None;
            }
            Err(error) => {
                let name = path.map_or(".", WorkspacePath::as_str);
                self.report(name, ProblemReason::Unreadable(error.to_string()));
                return None;
            }
        };
        self.readable_again(path.map_or(".", WorkspacePath::as_str));
        let prefix = path.map_or_else(String::new, |path| format!("{path}/"));
        for name in odd {
            self.report(&format!("{prefix}{name}"), ProblemReason::NameNotUtf8);
        }
        let children = names
            .iter()
            .filter_map(|name| WorkspacePath::parse(&format!("{prefix}{name}")).ok())
            .collect();
        Some((folder, children))
    }

    /// Looks at some entries of a folder; small ones that are new are read ahead.
    pub(super) fn examine_some(
        &mut self,
        folder: BorrowedFd<'_>,
        some: &[WorkspacePath],
        cas: &Cas,
        looking: &mut Looking,
    ) -> Result<(), TreeError> {
        let is_new =
            |path: &&WorkspacePath| !self.seen.contains_key(*path) && !self.is_ignored(path, false);
        let new: Vec<WorkspacePath> = some.iter().filter(is_new).cloned().collect();
        // While a first look goes on, what it found is being recorded.
        let busy = usize::from(looking.is_first);
        let captured = capture_ahead(folder, &new, &self.glimpsed, busy, cas);
        looking.captured.extend(captured);
        for child in some {
            let captured = looking.captured.remove(child);
            match captured {
                Some(Capture::Is(captured)) if self.is_here_first(&captured, looking) => {
                    looking.done.insert(child.clone());
                    self.readable_again(child.as_str());
                    self.found(child, captured, looking);
                }
                captured => {
                    looking
                        .captured
                        .extend(captured.map(|captured| (child.clone(), captured)));
                    self.examine(folder, child, cas, looking)?;
                    looking.captured.remove(child);
                }
            }
        }
        Ok(())
    }

    /// Whether a file that was read is known by no other name, so that nothing is
    /// left to find out about it.
    fn is_here_first(&self, captured: &Captured, looking: &Looking) -> bool {
        let Seen { node, fingerprint } = &captured.seen;
        node.kind == Kind::File
            && *fingerprint != Fingerprint::UNTRUSTED
            && self
                .inode_was_at(fingerprint.inode, node.kind, looking)
                .is_none()
    }

    /// Direct children that were there when the folder was last read.
    fn seen_children(&self, folder: Option<&WorkspacePath>) -> Vec<WorkspacePath> {
        let Some(folder) = folder else {
            return self
                .seen
                .keys()
                .filter(|path| path.parent().is_none())
                .cloned()
                .collect();
        };
        let range = folder.beneath_range();
        let depth = folder.as_str().len() + 1;
        self.seen
            .range::<str, _>(str_range(&range))
            .filter(|(path, _)| {
                path.as_str()
                    .get(depth..)
                    .is_some_and(|rest| !rest.contains('/'))
            })
            .map(|(path, _)| path.clone())
            .collect()
    }
}

#[cfg(test)]
mod tests;
