//! Which changed paths are ready to be looked at.
//!
//! A program that saves a file makes several events: looking at the first one
//! would record half a file, or a temporary one that is about to be renamed. A
//! path waits until it is whole and quiet, never longer than a limit; a flush
//! takes everything at once.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use super::inotify::{Event, Happening};
use crate::proto::WorkspacePath;

/// Quiet time after which a path that is whole is looked at.
const QUIET: Duration = Duration::from_millis(1);
/// The same for a path that is new: a temporary file is renamed soon.
const QUIET_NEW: Duration = Duration::from_millis(3);
/// Quiet time for a file that is still open.
const QUIET_OPEN: Duration = Duration::from_millis(100);
/// The longest that anything waits.
const LIMIT: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Waiting {
    since: Instant,
    last: Instant,
    quiet: Duration,
}

/// Paths that changed and were not looked at yet.
#[derive(Debug, Default)]
pub(crate) struct Unsettled {
    paths: BTreeMap<WorkspacePath, Waiting>,
    /// Old names whose new ones did not come yet.
    renamed: HashMap<u32, WorkspacePath>,
}

impl Unsettled {
    /// Takes an event. `is_known` says whether the path was there before.
    pub(crate) fn add(&mut self, event: &Event, is_known: bool, now: Instant) {
        let quiet = match event.happening {
            Happening::Made | Happening::Written => QUIET_OPEN,
            Happening::Settled if is_known => QUIET,
            // Its new name comes right behind it, when it has one.
            Happening::Settled | Happening::Gone => QUIET_NEW,
        };
        match event.rename {
            Some(rename) if event.happening == Happening::Gone => {
                self.renamed.insert(rename, event.path.clone());
            }
            // Both names of a rename are looked at together.
            Some(rename) => {
                let old = self.renamed.remove(&rename);
                if let Some(old) = old.and_then(|path| self.paths.get_mut(&path)) {
                    old.last = now;
                    old.quiet = quiet;
                }
            }
            None => {}
        }
        let waiting = self.paths.entry(event.path.clone()).or_insert(Waiting {
            since: now,
            last: now,
            quiet,
        });
        waiting.last = now;
        waiting.quiet = quiet;
    }

    /// A path that was not stable when it was looked at.
    pub(crate) fn again(&mut self, path: WorkspacePath, now: Instant) {
        self.paths.insert(
            path,
            Waiting {
                since: now,
                last: now,
                quiet: QUIET_OPEN,
            },
        );
    }

    pub(crate) fn len(&self) -> usize {
        self.paths.len()
    }

    /// When the next path is ready.
    pub(crate) fn next_ready(&self) -> Option<Instant> {
        self.paths.values().map(Waiting::ready_at).min()
    }

    /// Takes the paths that are ready.
    pub(crate) fn take_ready(&mut self, now: Instant) -> BTreeSet<WorkspacePath> {
        let ready: BTreeSet<WorkspacePath> = self
            .paths
            .iter()
            .filter(|(_, waiting)| waiting.ready_at() <= now)
            .map(|(path, _)| path.clone())
            .collect();
        for path in &ready {
            self.paths.remove(path);
        }
        self.renamed.retain(|_, path| self.paths.contains_key(path));
        ready
    }

    /// Takes everything.
    pub(crate) fn take_all(&mut self) -> BTreeSet<WorkspacePath> {
        self.renamed.clear();
        std::mem::take(&mut self.paths).into_keys().collect()
    }
}

impl Waiting {
    fn ready_at(&self) -> Instant {
        (self.last + self.quiet).min(self.since + LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(path: &str, happening: Happening) -> Event {
        Event {
            path: WorkspacePath::parse(path).unwrap(),
            happening,
            is_folder: false,
            is_made: false,
            rename: None,
        }
    }

    fn renamed(path: &str, happening: Happening) -> Event {
        Event {
            rename: Some(7),
            ..event(path, happening)
        }
    }

    #[test]
    fn an_open_file_waits_and_a_closed_one_does_not() {
        let start = Instant::now();
        let mut unsettled = Unsettled::default();
        unsettled.add(&event("f", Happening::Made), false, start);
        assert_eq!(unsettled.next_ready(), Some(start + QUIET_OPEN));
        unsettled.add(&event("f", Happening::Settled), true, start);
        assert_eq!(unsettled.next_ready(), Some(start + QUIET));
        assert_eq!(unsettled.take_ready(start + QUIET).len(), 1);
        assert_eq!(unsettled.len(), 0);
    }

    #[test]
    fn both_names_of_a_rename_are_looked_at_together() {
        let start = Instant::now();
        let later = start + Duration::from_micros(30);
        for is_known in [false, true] {
            let mut unsettled = Unsettled::default();
            unsettled.add(&renamed("old", Happening::Gone), true, start);
            unsettled.add(&renamed("new", Happening::Settled), is_known, later);
            let ready = unsettled.next_ready().unwrap();
            assert_eq!(unsettled.take_ready(ready).len(), 2);
            assert!(unsettled.renamed.is_empty());
        }
        let mut unsettled = Unsettled::default();
        unsettled.add(&renamed("moved away", Happening::Gone), true, start);
        assert_eq!(unsettled.take_ready(start + QUIET_NEW).len(), 1);
        assert!(unsettled.renamed.is_empty());
    }

    #[test]
    fn a_file_that_is_always_written_is_looked_at_all_the_same() {
        let start = Instant::now();
        let mut unsettled = Unsettled::default();
        for step in 0..20u32 {
            unsettled.add(
                &event("log", Happening::Written),
                true,
                start + step * Duration::from_millis(50),
            );
        }
        assert_eq!(unsettled.take_ready(start + LIMIT).len(), 1);
    }
}
