//! What of a tree is followed: rules of `.quintetignore`, and how much there may be.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{self as sys, AtFlags, Stat};

use super::capture::cores;
use super::live::LiveTree;
use super::root::{self, Fingerprint, Root};
use super::seen::Seen;
use super::{Refused, TrackLimits};
use crate::proto::{Kind, WorkspacePath};

pub(super) const IGNORE_FILE: &str = ".quintetignore";

/// Files whose looks are remembered until they are read, at most.
const GLIMPSED: usize = 16_384;
/// Folders that a thread looks into at least.
const SHARE: usize = 8;

impl LiveTree {
    pub(super) fn is_ignored(&self, path: &WorkspacePath, is_folder: bool) -> bool {
        ignores(&self.ignore, path, is_folder)
    }

    /// Whether a path that was followed is so no longer.
    pub(crate) fn is_left_out(&self, path: &WorkspacePath) -> bool {
        let was_folder = |seen: &Seen| seen.node.is_directory();
        self.is_ignored(path, self.seen.get(path).is_some_and(was_folder))
    }

    /// Reads the rules again if they may have changed since; says whether.
    pub(super) fn reread_ignore_file(&mut self) -> bool {
        let changed = self.ignore_file != self.stat_ignore_file();
        if changed {
            self.read_ignore_file();
        }
        changed
    }

    fn stat_ignore_file(&self) -> Option<Fingerprint> {
        let folder = self.root.folder(None).ok()?;
        let stat = root::stat_in(folder.as_fd(), IGNORE_FILE).ok()??;
        (root::kind(&stat) == Some(Kind::File)).then(|| Fingerprint::of(&stat))
    }

    pub(super) fn read_ignore_file(&mut self) {
        // Before it is read: a change in between is then noticed.
        self.ignore_file = self.stat_ignore_file();
        let mut builder = GitignoreBuilder::new("");
        let path = self.root.path().join(IGNORE_FILE);
        if self.ignore_file.is_some()
            && let Some(error) = builder.add(&path)
        {
            tracing::warn!(%error, "a line of {IGNORE_FILE} was not understood");
        }
        self.ignore = builder.build().unwrap_or_else(|_| Gitignore::empty());
    }

    /// Refuses a tree that is larger than allowed, before anything is read. What its
    /// files look like is remembered for the first look, as far as that is little.
    pub(crate) fn check_size(&mut self, limits: &TrackLimits) -> Result<(), Refused> {
        if limits.allow_anything {
            return Ok(());
        }
        let walk = Walk {
            root: &self.root,
            ignore: &self.ignore,
            limits,
            entries: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        let mut glimpsed = HashMap::new();
        let mut folders = vec![None];
        while !folders.is_empty() {
            let walked = walk.all(&folders);
            folders.clear();
            for Walked { below, files } in walked {
                folders.extend(below.into_iter().map(Some));
                let room = GLIMPSED.saturating_sub(glimpsed.len());
                glimpsed.extend(files.into_iter().take(room));
            }
            walk.within_limits()?;
        }
        self.glimpsed = glimpsed;
        Ok(())
    }
}

/// A look at how much a tree holds.
struct Walk<'a> {
    root: &'a Root,
    ignore: &'a Gitignore,
    limits: &'a TrackLimits,
    entries: AtomicU64,
    bytes: AtomicU64,
}

/// What some folders hold.
#[derive(Default)]
struct Walked {
    below: Vec<WorkspacePath>,
    files: Vec<(WorkspacePath, Stat)>,
}

impl Walk<'_> {
    /// Looks into folders, this thread and others: nobody can be served before.
    fn all(&self, folders: &[Option<WorkspacePath>]) -> Vec<Walked> {
        let threads = cores().min(4).min(folders.len() / SHARE).max(1);
        let mut shares = folders.chunks(folders.len().div_ceil(threads).max(1));
        let own = shares.next().unwrap_or_default();
        std::thread::scope(|scope| {
            let others: Vec<_> = shares
                .map(|share| scope.spawn(|| self.some(share)))
                .collect();
            let mut all = vec![self.some(own)];
            all.extend(others.into_iter().filter_map(|other| other.join().ok()));
            all
        })
    }

    fn some(&self, folders: &[Option<WorkspacePath>]) -> Walked {
        let mut walked = Walked::default();
        for folder in folders {
            let folder = folder.as_ref();
            let Ok(opened) = self.root.folder(folder) else {
                continue;
            };
            let Ok(names) = self.root.names(&opened, folder.is_none(), &mut |_| {}) else {
                continue;
            };
            for name in names {
                self.entry(&opened, folder, &name, &mut walked);
                if self.within_limits().is_err() {
                    return walked;
                }
            }
        }
        walked
    }

    fn entry(
        &self,
        opened: &OwnedFd,
        folder: Option<&WorkspacePath>,
        name: &str,
        walked: &mut Walked,
    ) {
        let child = match folder {
            Some(folder) => WorkspacePath::parse(&format!("{folder}/{name}")),
            None => WorkspacePath::parse(name),
        };
        let (Ok(child), Ok(stat)) = (child, sys::statat(opened, name, AtFlags::SYMLINK_NOFOLLOW))
        else {
            return;
        };
        let is_folder = root::kind(&stat) == Some(Kind::Directory);
        if ignores(self.ignore, &child, is_folder) {
            return;
        }
        self.entries.fetch_add(1, Ordering::Relaxed);
        if is_folder {
            walked.below.push(child);
        } else {
            let size = Fingerprint::of(&stat).size;
            let add = |bytes: u64| Some(bytes.saturating_add(size));
            let _ = self
                .bytes
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
            if walked.files.len() < GLIMPSED {
                walked.files.push((child, stat));
            }
        }
    }

    fn within_limits(&self) -> Result<(), Refused> {
        let TrackLimits {
            max_entries,
            max_bytes,
            ..
        } = *self.limits;
        let path = self.root.path();
        if self.entries.load(Ordering::Relaxed) > max_entries {
            return Err(Refused::TooMany {
                path: path.to_owned(),
                limit: max_entries,
            });
        }
        if self.bytes.load(Ordering::Relaxed) > max_bytes {
            return Err(Refused::TooLarge {
                path: path.to_owned(),
                limit: max_bytes,
            });
        }
        Ok(())
    }
}

fn ignores(rules: &Gitignore, path: &WorkspacePath, is_folder: bool) -> bool {
    !rules.is_empty()
        && rules
            .matched_path_or_any_parents(path.as_str(), is_folder)
            .is_ignore()
}
