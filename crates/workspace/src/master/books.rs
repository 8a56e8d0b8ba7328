//! Writing down what changed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::Connection as Database;
use tokio::sync::watch;

use super::fresh::Fresh;
use super::workspace::WorkspaceError;
use crate::content::{Cas, small};
use crate::history::{self, History, Record};
use crate::proto::{Author, ChangeKind, ContentHash, Ledger, Node, WorkspacePath};
use crate::tree::{Found, Seen, seen};

/// Where changes are recorded, apart from the tree that they were found in.
pub(super) struct Books<'a> {
    pub(super) history: &'a mut History,
    pub(super) cas: &'a Cas,
    pub(super) ledger: &'a mut Ledger,
    pub(super) published: &'a Mutex<Ledger>,
    pub(super) current: &'a watch::Sender<u64>,
    pub(super) fresh: &'a Fresh,
}

impl Books<'_> {
    /// Commits changes and what the tree looked like then, and only after that
    /// shows them to connections.
    pub(super) fn record<'s>(
        &mut self,
        records: &[Record],
        contents: HashMap<ContentHash, Vec<u8>>,
        more: impl FnOnce(&Database) -> rusqlite::Result<()>,
        seen: impl Iterator<Item = (&'s WorkspacePath, Option<&'s Seen>)>,
    ) -> Result<(), WorkspaceError> {
        self.cas.sync()?;
        // In a commit the private ledger is ahead by just these records.
        let first = lock(self.published).current() + 1;
        // In the order of their index, which is then written from end to end.
        let mut in_order: Vec<_> = contents.iter().collect();
        in_order.sort_unstable_by_key(|(hash, _)| *hash.as_bytes());
        self.history.transact(|db| {
            for (hash, bytes) in in_order {
                small::put(db, hash, bytes)?;
            }
            let at = history::time_of_next(db, history::wall_clock())?;
            for (sequence, record) in (first..).zip(records) {
                history::put_version(db, sequence, at, record)?;
            }
            for (path, seen) in seen {
                seen::put(db, path, seen)?;
            }
            more(db)
        })?;
        // Whoever is told of them looks for their contents at once.
        self.fresh.keep(contents);
        let mut published = lock(self.published);
        for record in records {
            let sequence = published.record(
                record.path.clone(),
                record.node.clone(),
                record.author.clone(),
            );
            if self.ledger.current() < sequence {
                self.ledger.record(
                    record.path.clone(),
                    record.node.clone(),
                    record.author.clone(),
                );
            }
        }
        let current = published.current();
        drop(published);
        if !records.is_empty() {
            self.current.send_replace(current);
        }
        Ok(())
    }
}

/// What was found as it is recorded, and its small contents. It is this side's
/// own; but a change that was put in place for a replica and not recorded,
/// because the program was killed or the disk full, is that replica's.
pub(super) fn to_record(
    found: &mut [Found],
    author: &Author,
    intents: &HashMap<WorkspacePath, (Option<Node>, String)>,
) -> (Vec<Record>, HashMap<ContentHash, Vec<u8>>) {
    let mut contents = HashMap::new();
    let mut records = Vec::with_capacity(found.len());
    for found in found {
        let change = match found.renamed_from {
            Some(_) => ChangeKind::Rename,
            None => ChangeKind::between(found.old.as_ref(), found.node()),
        };
        let author = match intents.get(&found.path) {
            Some((node, sandbox)) if node.as_ref() == found.node() => {
                Author::Sandbox(sandbox.as_str().into())
            }
            _ => author.clone(),
        };
        records.push(Record {
            path: found.path.clone(),
            node: found.node().cloned(),
            change,
            from: found.renamed_from.clone(),
            author,
        });
        if let (Some(small), Some(node)) = (found.small.take(), found.node()) {
            contents.insert(node.hash, small);
        }
    }
    (records, contents)
}

pub(super) fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}
