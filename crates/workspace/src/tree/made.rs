//! Names that were made here. The kernel tells of them like of anybody's, and of
//! the ten thousand of a first sync each would be looked at once more.

use std::collections::HashSet;

use super::live::LiveTree;
use super::rules::IGNORE_FILE;
use crate::proto::WorkspacePath;
use crate::watch::{Event, Happening, Watcher};

/// Names whose making is about to be told. Each takes one event and no more:
/// whatever else happens to the name is told behind it, or was before, and then
/// one more event says that it was made.
#[derive(Debug, Default)]
pub(super) struct Made(HashSet<WorkspacePath>);

impl Made {
    /// Whether an event tells no more than that.
    pub(super) fn takes(&mut self, event: &Event) -> bool {
        if event.is_folder && event.happening == Happening::Gone {
            // Of what was made in there nothing may be told any more.
            self.0.clear();
        }
        self.0.remove(&event.path) && event.is_made
    }
}

impl LiveTree {
    /// A file was put under a name that nothing had.
    pub(super) fn file_made(&mut self, path: &WorkspacePath) {
        let is_told = |watcher: &Watcher| watcher.watches_folder_of(path);
        // The rules are read when their event comes.
        if path.as_str() != IGNORE_FILE && self.watcher.as_ref().is_some_and(is_told) {
            self.made.0.insert(path.clone());
        }
    }

    /// A folder was made. It is watched from now on; what somebody put into it
    /// before that is found when its own event is looked at.
    pub(super) fn folder_made(&mut self, path: &WorkspacePath) {
        let Some(watcher) = &mut self.watcher else {
            return;
        };
        // What goes wrong here is told when the event is looked at.
        if !watcher.watches_folder_of(path)
            || watcher
                .watch(path, &self.root.absolute(Some(path)))
                .is_err()
        {
            return;
        }
        if self.root.is_empty(path).is_ok_and(|is_empty| is_empty) {
            self.made.0.insert(path.clone());
        }
    }
}
