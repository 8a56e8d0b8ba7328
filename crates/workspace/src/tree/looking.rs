//! What one look at a tree finds.

use std::collections::{HashMap, HashSet};

use super::capture::{Capture, Captured};
use super::live::{Found, LiveTree};
use super::seen::Seen;
use crate::proto::ledger::str_range;
use crate::proto::{Node, WorkspacePath};

#[derive(Default)]
pub(super) struct Looking {
    pub(super) changes: Vec<Found>,
    /// Folders that are still to be looked into.
    pub(super) later: Vec<WorkspacePath>,
    /// Whether it is a part of the first look.
    pub(super) is_first: bool,
    pub(super) refreshed: Vec<WorkspacePath>,
    pub(super) unstable: Vec<WorkspacePath>,
    pub(super) done: HashSet<WorkspacePath>,
    pub(super) moved: HashMap<WorkspacePath, WorkspacePath>,
    /// Folders among them of which only the inode is known, which may be used again.
    pub(super) guessed: HashSet<WorkspacePath>,
    /// What was read ahead.
    pub(super) captured: HashMap<WorkspacePath, Capture>,
    pub(super) departed: HashMap<u64, (WorkspacePath, Seen)>,
}

impl Looking {
    /// A part of the first look at a tree.
    pub(super) fn first() -> Self {
        Self {
            is_first: true,
            ..Self::default()
        }
    }
}

impl LiveTree {
    pub(super) fn found(
        &mut self,
        path: &WorkspacePath,
        captured: Captured,
        looking: &mut Looking,
    ) {
        let old = self.seen.get(path).map(|seen| seen.node.clone());
        let Captured { seen, small, .. } = captured;
        self.see(path, Some(seen.clone()));
        if old.as_ref() == Some(&seen.node) {
            looking.refreshed.push(path.clone());
            return;
        }
        let renamed_from = looking.moved.get(path).cloned();
        looking.changes.push(Found {
            path: path.clone(),
            old,
            new: Some(seen),
            small,
            renamed_from,
        });
    }

    /// What is not followed any more may go without a word: elsewhere it stays.
    pub(super) fn removed(&mut self, path: &WorkspacePath, looking: &mut Looking) {
        if !self.is_left_out(path) {
            self.vanish(path, looking);
        }
    }

    pub(super) fn vanish(&mut self, path: &WorkspacePath, looking: &mut Looking) {
        self.vanish_beneath(path, looking);
        self.depart(path, looking);
    }

    fn depart(&mut self, path: &WorkspacePath, looking: &mut Looking) {
        let Some(old) = self.seen.get(path).cloned() else {
            return;
        };
        self.see(path, None);
        let node = old.node.clone();
        // It may have moved: whoever has its inode now has its content.
        looking
            .departed
            .insert(old.fingerprint.inode, (path.clone(), old));
        looking.changes.push(Found {
            path: path.clone(),
            old: Some(node),
            new: None,
            small: None,
            renamed_from: None,
        });
    }

    pub(super) fn vanish_beneath(&mut self, path: &WorkspacePath, looking: &mut Looking) {
        if self
            .seen
            .get(path)
            .is_none_or(|seen| !seen.node.is_directory())
        {
            return;
        }
        let range = path.beneath_range();
        let gone: Vec<WorkspacePath> = self
            .seen
            .range::<str, _>(str_range(&range))
            .map(|(path, _)| path.clone())
            .collect();
        for child in gone {
            looking.done.insert(child.clone());
            self.depart(&child, looking);
        }
    }

    /// Drops what was found new and turned out to be ignored.
    pub(super) fn forget_ignored(&mut self, looking: &mut Looking) {
        for found in std::mem::take(&mut looking.changes) {
            let is_folder = found.node().is_some_and(Node::is_directory);
            let is_new = found.old.is_none() && found.new.is_some();
            if is_new && self.is_ignored(&found.path, is_folder) {
                self.see(&found.path, None);
            } else {
                looking.changes.push(found);
            }
        }
    }
}
