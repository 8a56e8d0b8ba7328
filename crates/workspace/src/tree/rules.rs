//! What of a tree is followed: rules of `.quintetignore`, and how much there may be.

use std::os::fd::AsFd;

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use rustix::fs::{self as sys, AtFlags};

use super::live::LiveTree;
use super::root::{self, Fingerprint};
use super::{Refused, TrackLimits};
use crate::proto::{Kind, WorkspacePath};

pub(super) const IGNORE_FILE: &str = ".quintetignore";

/// Files whose looks are remembered until they are read, at most.
const GLIMPSED: usize = 16_384;

impl LiveTree {
    pub(super) fn is_ignored(&self, path: &WorkspacePath, is_folder: bool) -> bool {
        !self.ignore.is_empty()
            && self
                .ignore
                .matched_path_or_any_parents(path.as_str(), is_folder)
                .is_ignore()
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
        let path = self.root.path().to_owned();
        let (mut entries, mut bytes) = (0u64, 0u64);
        let mut folders = vec![None];
        while let Some(folder) = folders.pop() {
            let Ok(opened) = self.root.folder(folder.as_ref()) else {
                continue;
            };
            let Ok(names) = self.root.names(&opened, folder.is_none(), &mut |_| {}) else {
                continue;
            };
            for name in names {
                let child = folder
                    .as_ref()
                    .map_or_else(|| name.clone(), |folder| format!("{folder}/{name}"));
                let (Ok(child), Ok(stat)) = (
                    WorkspacePath::parse(&child),
                    sys::statat(&opened, &name, AtFlags::SYMLINK_NOFOLLOW),
                ) else {
                    continue;
                };
                let is_folder = root::kind(&stat) == Some(Kind::Directory);
                if self.is_ignored(&child, is_folder) {
                    continue;
                }
                entries += 1;
                if is_folder {
                    folders.push(Some(child));
                } else {
                    bytes = bytes.saturating_add(Fingerprint::of(&stat).size);
                    if self.glimpsed.len() < GLIMPSED {
                        self.glimpsed.insert(child, stat);
                    }
                }
                if entries > limits.max_entries {
                    return Err(Refused::TooMany {
                        path,
                        limit: limits.max_entries,
                    });
                }
                if bytes > limits.max_bytes {
                    return Err(Refused::TooLarge {
                        path,
                        limit: limits.max_bytes,
                    });
                }
            }
        }
        Ok(())
    }
}
