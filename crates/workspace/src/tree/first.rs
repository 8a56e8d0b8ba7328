//! The first look at a tree, part by part: what was found in one is recorded and
//! sent while the next one is read.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::TreeError;
use super::capture::READ_AHEAD;
use super::live::{LiveTree, Sight};
use super::looking::Looking;
use crate::content::Cas;
use crate::proto::WorkspacePath;

/// How much is found before it is handed on: entries, and bytes of small files. The
/// first parts have fewer entries, because somebody may be waiting for them.
const FIRST_PART: usize = 128;
const DOUBLED: u32 = 3;
const PART_BYTES: usize = 4 << 20;

/// How far a first look has come.
#[derive(Default)]
pub(crate) struct FirstLook {
    /// Parts that were handed on.
    parts: u32,
    /// The last one is gone on with. What is in a folder comes after it.
    folders: Vec<Folder>,
}

enum Folder {
    Closed(WorkspacePath),
    Open(OwnedFd, std::vec::IntoIter<WorkspacePath>),
}

impl LiveTree {
    /// Looks on at a tree of which nothing was known; `None` at its end.
    pub(crate) fn look_on(
        &mut self,
        first: &mut FirstLook,
        cas: &Cas,
    ) -> Result<Option<Sight>, TreeError> {
        let mut looking = Looking::first();
        let part = FIRST_PART << first.parts.min(DOUBLED);
        let is_first = first.parts == 0;
        first.parts = first.parts.saturating_add(1);
        if is_first {
            if !self.root.is_in_place() {
                return Err(TreeError::Gone {
                    path: self.root.path().to_owned(),
                });
            }
            self.look_everywhere = false;
            first.open(self, None, &mut looking);
        }
        if first.folders.is_empty() {
            self.glimpsed = HashMap::new();
            return Ok(None);
        }
        let (mut counted, mut bytes) = (0, 0);
        while counted < part && bytes < PART_BYTES {
            let (folder, mut children) = match first.folders.pop() {
                Some(Folder::Open(folder, children)) => (folder, children),
                Some(Folder::Closed(path)) => {
                    first.open(self, Some(&path), &mut looking);
                    continue;
                }
                None => break,
            };
            let some: Vec<WorkspacePath> = children.by_ref().take(READ_AHEAD).collect();
            self.examine_some(folder.as_fd(), &some, cas, &mut looking)?;
            if !children.as_slice().is_empty() {
                first.folders.push(Folder::Open(folder, children));
            }
            let later = looking.later.drain(..).rev();
            first.folders.extend(later.map(Folder::Closed));
            let new = looking.changes.get(counted..).unwrap_or_default();
            bytes += new
                .iter()
                .filter_map(|found| Some(found.small.as_ref()?.len()))
                .sum::<usize>();
            counted = looking.changes.len();
        }
        Ok(Some(self.seen_all(looking, Instant::now())))
    }
}

impl FirstLook {
    fn open(&mut self, tree: &mut LiveTree, path: Option<&WorkspacePath>, looking: &mut Looking) {
        if let Some((folder, children)) = tree.open_folder(path, looking) {
            let children = children.into_iter();
            self.folders.push(Folder::Open(folder, children));
        }
    }
}
