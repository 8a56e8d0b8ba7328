//! Local changes on their way to the master.

use super::{
    Base, JournalEntry, LocalChange, ReplicaCore, ReplicaEffect, ReplicaEvent, Settlement,
};
use crate::proto::ledger::Operation;
use crate::proto::master::INLINE_BELOW;
use crate::proto::message::{WireMessage, WriteBackEntry, WriteOperation};
use crate::proto::node::{ContentHash, Node};
use crate::proto::path::WorkspacePath;

const SEND_AT_ONCE: usize = 256;
const MAX_UNANSWERED: usize = 1_024;

#[derive(Debug)]
pub(super) struct Journalled {
    pub(super) entry: JournalEntry,
    state: EntryState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    Unsaved,
    Saved,
    Sent,
}

/// Unanswered local changes of one path.
#[derive(Debug, Default)]
pub(super) struct Pending {
    entries: usize,
    /// What the path holds after the last of them.
    node: Option<Node>,
}

impl Pending {
    pub(super) fn is_folder(&self) -> bool {
        self.node.as_ref().is_some_and(Node::is_directory)
    }
}

impl ReplicaCore {
    /// Takes local changes, in an order in which they can be made.
    pub fn local_changes(&mut self, changes: Vec<LocalChange>) {
        let mut entries = Vec::new();
        for change in changes {
            if let Some(from) = &change.renamed_from
                && let Some(entry) = self.rename_entry(from, &change)
            {
                entries.push(entry);
                continue;
            }
            entries.extend(self.entry(change));
        }
        if !entries.is_empty() {
            self.effects.push_back(ReplicaEffect::Journal(entries));
        }
        self.settle_positions();
    }

    fn holds(&self, path: &WorkspacePath) -> Option<&Node> {
        match self.pending.get(path) {
            Some(pending) => pending.node.as_ref(),
            None => self.bases.get(path).map(|base| &base.node),
        }
    }

    /// Where the base of a path came from: of one that does not exist, we know
    /// so up to what is in place.
    fn base_of(&self, path: &WorkspacePath) -> u64 {
        self.bases
            .get(path)
            .map_or(self.applied, |base| base.sequence)
    }

    fn entry(&mut self, change: LocalChange) -> Option<JournalEntry> {
        let LocalChange { path, node, .. } = change;
        let held = self.holds(&path);
        if held == node.as_ref() {
            if !self.pending.contains_key(&path) {
                // Changed and changed back: what waits may now be put in place.
                self.revert_if_waiting(&path);
            }
            return None;
        }
        let operation = match (held, &node) {
            (_, None) => Operation::Delete,
            (Some(held), Some(node)) if held.same_content(node) => Operation::Chmod(node.mode),
            (_, Some(node)) => Operation::Write(node.clone()),
        };
        let base = self.base_of(&path);
        Some(self.number(path, operation, node, base))
    }

    /// A rename carries one base for both paths, so it is used only where that
    /// is true; otherwise it is a write and a removal. Both are as they are here
    /// through everything that is in place.
    fn rename_entry(&mut self, from: &WorkspacePath, change: &LocalChange) -> Option<JournalEntry> {
        let node = change.node.as_ref()?;
        let plain = !node.is_directory()
            && !self.resyncing
            && self.holds(from) == Some(node)
            && self.holds(&change.path).is_none()
            && !self.pending.contains_key(&change.path)
            && !self.incoming.contains_key(&change.path)
            && !self.incoming.contains_key(from);
        if !plain {
            return None;
        }
        let base = self.base_of(from).max(self.applied);
        Some(self.number(
            from.clone(),
            Operation::Rename(change.path.clone()),
            Some(node.clone()),
            base,
        ))
    }

    fn number(
        &mut self,
        path: WorkspacePath,
        operation: Operation,
        node: Option<Node>,
        base: u64,
    ) -> JournalEntry {
        let entry = JournalEntry {
            local_seq: self.next_local_seq,
            path,
            operation,
            node,
            base,
        };
        self.remember(entry.clone(), EntryState::Unsaved);
        entry
    }

    pub(super) fn remember(&mut self, entry: JournalEntry, state: EntryState) {
        self.next_local_seq = self.next_local_seq.max(entry.local_seq + 1);
        let effects: Vec<(WorkspacePath, Option<Node>)> = match &entry.operation {
            Operation::Rename(to) => {
                vec![(entry.path.clone(), None), (to.clone(), entry.node.clone())]
            }
            _ => vec![(entry.path.clone(), entry.node.clone())],
        };
        for (path, node) in effects {
            let pending = self.pending.entry(path.clone()).or_default();
            pending.entries += 1;
            pending.node = node;
            self.defer(&path);
        }
        self.journal
            .insert(entry.local_seq, Journalled { entry, state });
    }

    /// Entries up to this number are in the journal for good.
    pub fn journalled(&mut self, through: u64) {
        for (_, journalled) in self.journal.range_mut(..=through) {
            if journalled.state == EntryState::Unsaved {
                journalled.state = EntryState::Saved;
            }
        }
    }

    pub(super) fn forget_journalled_sequences(&mut self) {
        for journalled in self.journal.values_mut() {
            journalled.entry.base = 0;
        }
    }

    pub(super) fn suspend_journal(&mut self) {
        self.loading_inline.clear();
        self.unanswered = 0;
        for journalled in self.journal.values_mut() {
            if journalled.state == EntryState::Sent {
                journalled.state = EntryState::Saved;
            }
        }
    }

    pub(super) fn drive_write_back(&mut self) {
        if !self.is_connected()
            || !self.loading_inline.is_empty()
            || self.unanswered >= MAX_UNANSWERED
        {
            return;
        }
        let mut wanted = Vec::new();
        // In order: an entry that is not saved yet holds up those behind it.
        let unsent = self
            .journal
            .values_mut()
            .skip_while(|journalled| journalled.state == EntryState::Sent);
        for journalled in unsent
            .take_while(|journalled| journalled.state == EntryState::Saved)
            .take(SEND_AT_ONCE)
        {
            journalled.state = EntryState::Sent;
            self.unanswered += 1;
            self.loading_inline.push(journalled.entry.local_seq);
            if let Some(hash) = inline_content(&journalled.entry) {
                wanted.push((journalled.entry.local_seq, hash));
            }
        }
        if self.loading_inline.is_empty() {
            return;
        }
        if wanted.is_empty() {
            self.inline_loaded(Vec::new());
        } else {
            self.effects.push_back(ReplicaEffect::LoadInline(wanted));
        }
    }

    /// Small contents were read; a content that is missing here is left for the
    /// master to ask for.
    pub fn inline_loaded(&mut self, contents: Vec<(u64, Vec<u8>)>) {
        let mut contents: std::collections::HashMap<u64, Vec<u8>> = contents.into_iter().collect();
        let entries: Vec<WriteBackEntry> = std::mem::take(&mut self.loading_inline)
            .into_iter()
            .filter_map(|local_seq| {
                let journalled = self.journal.get(&local_seq)?;
                Some(wire_entry(&journalled.entry, contents.remove(&local_seq)))
            })
            .collect();
        if !entries.is_empty() && self.is_connected() {
            self.out.push_back(WireMessage::WriteBack {
                sandbox_id: self.sandbox_id.to_string(),
                entries,
            });
        }
    }

    pub(super) fn answered(&mut self, accepted: &[(u64, i64)], rejected: Vec<(u64, String)>) {
        let accepted = accepted.iter().map(|(local_seq, sequence)| {
            (*local_seq, Ok(u64::try_from(*sequence).unwrap_or_default()))
        });
        let rejected = rejected
            .into_iter()
            .map(|(local_seq, reason)| (local_seq, Err(reason)));
        let mut answers: Vec<_> = accepted.chain(rejected).collect();
        answers.sort_by_key(|(local_seq, _)| *local_seq);
        let mut settlements = Vec::new();
        for (local_seq, result) in answers {
            // An answer to what was never sent, or a second one, changes nothing.
            if self
                .journal
                .get(&local_seq)
                .is_none_or(|entry| entry.state != EntryState::Sent)
            {
                continue;
            }
            let Some(Journalled { entry, .. }) = self.journal.remove(&local_seq) else {
                continue;
            };
            self.unanswered = self.unanswered.saturating_sub(1);
            let settlement = Settlement { entry, result };
            self.settle(&settlement);
            self.events
                .push_back(ReplicaEvent::Settled(settlement.clone()));
            settlements.push(settlement);
        }
        if !settlements.is_empty() {
            self.effects.push_back(ReplicaEffect::Settle(settlements));
        }
    }

    fn settle(&mut self, settlement: &Settlement) {
        let entry = &settlement.entry;
        let mut paths = vec![entry.path.clone()];
        if let Operation::Rename(to) = &entry.operation {
            paths.push(to.clone());
        }
        for path in &paths {
            if let Some(pending) = self.pending.get_mut(path) {
                pending.entries -= 1;
                if pending.entries == 0 {
                    self.pending.remove(path);
                }
            }
        }
        match settlement.result {
            Ok(sequence) => {
                for (path, node) in bases_after(entry) {
                    let base = node.map(|node| Base { sequence, node });
                    self.set_base(&path, base);
                    self.refused.remove(&path);
                    self.overtake(&path, sequence);
                    if !self.pending.contains_key(&path) && self.overwritten.remove(&path) {
                        self.revert(&path);
                    }
                }
            }
            Err(_) => {
                for path in &paths {
                    if !self.pending.contains_key(path) {
                        self.overwritten.remove(path);
                    }
                    self.revert(path);
                }
            }
        }
    }

    fn revert_if_waiting(&mut self, path: &WorkspacePath) {
        if self.incoming.contains_key(path) {
            self.revert(path);
        }
    }
}

/// What the master has after it accepted an entry.
pub fn bases_after(entry: &JournalEntry) -> Vec<(WorkspacePath, Option<Node>)> {
    match &entry.operation {
        Operation::Rename(to) => vec![(entry.path.clone(), None), (to.clone(), entry.node.clone())],
        _ => vec![(entry.path.clone(), entry.node.clone())],
    }
}

fn inline_content(entry: &JournalEntry) -> Option<ContentHash> {
    match &entry.operation {
        Operation::Write(node) if !node.is_directory() && node.size < INLINE_BELOW => {
            Some(node.hash)
        }
        _ => None,
    }
}

fn wire_entry(entry: &JournalEntry, content_bytes: Option<Vec<u8>>) -> WriteBackEntry {
    let node = entry.node.as_ref();
    let is_write = matches!(entry.operation, Operation::Write(_));
    WriteBackEntry {
        local_seq: entry.local_seq,
        filepath: entry.path.to_string(),
        operation: match &entry.operation {
            Operation::Write(_) => WriteOperation::Write,
            Operation::Delete => WriteOperation::Delete,
            Operation::Rename(to) => WriteOperation::Rename {
                new_path: to.to_string(),
            },
            Operation::Chmod(_) => WriteOperation::Chmod,
        },
        content_hash: node.map(|node| node.hash.to_string()),
        content_bytes: content_bytes.filter(|_| is_write),
        size: node.map_or(0, |node| i64::try_from(node.size).unwrap_or(i64::MAX)),
        permissions: node.map_or(0, Node::permissions),
        is_deletion: entry.operation == Operation::Delete,
        master_rowid_seen: i64::try_from(entry.base).unwrap_or(i64::MAX),
    }
}
