//! Changes of the master on their way into the replica's tree.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;

use super::{
    ApplyItem, ApplyOutcome, Barrier, Base, Comparison, ContentSource, Phase, RETRY_AFTER,
    ReplicaCore, ReplicaEffect, ReplicaError, ReplicaEvent, Waiter,
};
use crate::proto::fetch::{self, FetchStep, Finish};
use crate::proto::ledger::in_order;
use crate::proto::message::WireMessage;
use crate::proto::node::{ContentHash, Node};
use crate::proto::path::WorkspacePath;

const APPLY_AT_ONCE: usize = 512;
const APPLY_BYTES: usize = 8 << 20;
/// Content that waits to be put in place before more is asked for.
const READY_BYTES: usize = 32 << 20;

#[derive(Debug)]
pub(super) struct Incoming {
    sequence: u64,
    node: Option<Node>,
    /// Whether it is a change of the stream, and not a return to the base after
    /// a refused write.
    announced: bool,
    /// The connection that announced it: a later one announces it again, unless
    /// it is no longer so.
    connection: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The way to its content has to be found (again).
    Unresolved {
        local: bool,
    },
    /// A local change of the path waits for its answer.
    Deferred,
    Fetching,
    Ready(ContentSource),
    Applying,
    Blocked,
}

impl ReplicaCore {
    pub(super) fn begin_catch_up(&mut self, since: u64) {
        // From 0 the master sends what is there and not what is gone; something
        // may be in place already, from a first catch-up that was cut short.
        self.resyncing |= since == 0;
        self.comparison = (since == 0).then(|| Comparison {
            mentioned: HashSet::new(),
            after: None,
            is_answer: !matches!(self.phase, Phase::CatchingUp { fenced: true, .. }),
        });
        self.received = since;
        self.announced = since;
        self.acked = since;
        self.asked += 1;
        self.out.push_back(WireMessage::CatchupRequest {
            sandbox_id: self.sandbox_id.to_string(),
            since_sequence: since,
        });
    }

    fn catch_up_again(&mut self, since: u64) {
        if !matches!(self.phase, Phase::CatchingUp { fenced: true, .. }) {
            self.last_told = self.last_heard;
        }
        self.phase = Phase::CatchingUp {
            fenced: true,
            heard: false,
        };
        // Barriers that wait must go out before the fence, to be answered first.
        self.send_barriers();
        self.begin_catch_up(since);
        self.barriers.push_back(Barrier {
            waiter: Waiter::Fence,
            wanted: 0,
            sent: true,
            reached: None,
        });
        self.out
            .push_back(WireMessage::BarrierRequest { sequence: 0 });
    }

    pub(super) fn full_resync(&mut self) {
        self.resyncing = true;
        self.catch_up_again(0);
    }

    /// All that was asked for is answered, and what was sent before has arrived.
    pub(super) fn fence_passed(&mut self, current: u64) {
        let is_sure = |of: &Comparison| of.is_answer || of.mentioned.is_empty();
        if self.comparison.as_ref().is_none_or(is_sure) {
            self.end_catch_up(current);
            return;
        }
        // From here on only what is newer can cross the request.
        self.catch_up_again(0);
        if let Some(comparison) = &mut self.comparison {
            comparison.after = Some(current);
        }
    }

    /// The master has another history than the one that we followed. What it has
    /// at a path is compared whatever its number is, and what we wrote was written
    /// on nothing that it knows.
    fn forget_sequences(&mut self) {
        self.applied = 0;
        for base in self.bases.values_mut() {
            base.sequence = 0;
        }
        self.forget_journalled_sequences();
        self.effects.push_back(ReplicaEffect::ForgetSequences);
    }

    /// The master can't go on from what we hold. When that answers all that we
    /// asked for, everything that it sent before has arrived, and it sends no
    /// heartbeat until it is asked again: the next one is the end, as it is after
    /// the first request of a connection. Otherwise it may be the end of another
    /// request, and the fence has to tell.
    pub(super) fn resync_required(&mut self, current: u64) {
        if current < self.applied {
            self.forget_sequences();
        }
        if self.asked != 1 {
            self.full_resync();
            return;
        }
        self.asked = 0;
        self.resyncing = true;
        self.phase = Phase::CatchingUp {
            fenced: false,
            heard: false,
        };
        self.begin_catch_up(0);
    }

    pub(super) fn heartbeat(&mut self, sequence: u64) {
        match self.phase {
            Phase::Offline => {}
            // The master is behind what we hold: it lost its history.
            Phase::CatchingUp { fenced: false, .. } | Phase::Live if sequence < self.received => {
                self.forget_sequences();
                self.full_resync();
            }
            // It would remove everything: a heartbeat that was sent before the request was heard
            // looks the same as an empty tree, and the fence has to tell.
            Phase::CatchingUp { fenced: false, .. }
                if self.has_named_nothing() && !self.bases.is_empty() =>
            {
                self.full_resync();
            }
            Phase::CatchingUp { fenced: false, .. } => self.end_catch_up(sequence),
            // Any number of heartbeats may have been sent before this catch-up was asked for, so
            // that none can end it; the fence does.
            Phase::CatchingUp { heard: false, .. } => {
                self.phase = Phase::CatchingUp {
                    fenced: true,
                    heard: true,
                };
            }
            // A whole tree that ends with deletions, which it leaves out, or a master that can't
            // go on from what it sent and owes the fence until it is asked again: to ask is right
            // in both cases.
            Phase::CatchingUp { .. } if sequence > self.announced => {
                self.catch_up_again(if self.resyncing { 0 } else { self.applied });
            }
            Phase::CatchingUp { .. } => {}
            Phase::Live if sequence > self.received => self.catch_up_again(self.received),
            Phase::Live => {}
        }
    }

    /// Whether the whole tree was asked for, and nothing is known to be in it.
    fn has_named_nothing(&self) -> bool {
        let comparison = self.comparison.as_ref();
        comparison.is_some_and(|comparison| comparison.mentioned.is_empty())
    }

    fn end_catch_up(&mut self, sequence: u64) {
        self.phase = Phase::Live;
        self.asked = 0;
        self.received = sequence.max(self.announced);
        let Some(Comparison { mentioned, .. }) = self.comparison.take() else {
            return;
        };
        let gone: std::collections::BTreeSet<WorkspacePath> = self
            .bases
            .keys()
            // Also what an earlier connection announced and is still under way.
            .chain(self.incoming.keys())
            // And what waits for an answer: once it has one, the removal counts
            // if it is the later of the two.
            .chain(self.pending.keys())
            .filter(|path| !mentioned.contains(*path))
            .cloned()
            .collect();
        for path in gone {
            self.remove_unnamed(path);
        }
    }

    /// Removes what the master does not have, once nothing local waits there.
    fn remove_unnamed(&mut self, path: WorkspacePath) {
        self.removals.insert(path.clone());
        let removal = Incoming {
            sequence: self.received,
            node: None,
            announced: false,
            connection: self.connection,
            state: State::Unresolved { local: true },
        };
        self.receive(path, removal);
    }

    pub(super) fn notified(
        &mut self,
        sequence: u64,
        path: WorkspacePath,
        node: Option<Node>,
        inline: Option<Vec<u8>>,
    ) -> Result<(), ReplicaError> {
        match self.phase {
            Phase::Offline => return Ok(()),
            Phase::CatchingUp { fenced, .. } => {
                if !fenced && sequence <= self.received {
                    return Err(ReplicaError::Backwards {
                        sequence,
                        received: self.received,
                    });
                }
                self.announced = self.announced.max(sequence);
                if !fenced {
                    self.received = sequence;
                }
                if let Some(comparison) = &mut self.comparison {
                    comparison.named(sequence, &path, node.is_some());
                }
            }
            Phase::Live if sequence <= self.received => {
                return Err(ReplicaError::Backwards {
                    sequence,
                    received: self.received,
                });
            }
            Phase::Live if sequence == self.received + 1 => {
                self.received = sequence;
                self.announced = sequence;
            }
            Phase::Live => {
                let since = self.received;
                self.catch_up_again(since);
            }
        }
        // Our own accepted write, or one that a stale heartbeat made us ask for twice.
        if self
            .bases
            .get(&path)
            .is_some_and(|base| base.sequence >= sequence)
        {
            return Ok(());
        }
        let state = match (&node, inline) {
            (Some(node), Some(bytes))
                if bytes.len() as u64 == node.size && ContentHash::of(&bytes) == node.hash =>
            {
                State::Ready(ContentSource::Bytes(bytes))
            }
            _ => State::Unresolved { local: true },
        };
        self.outstanding.insert(sequence);
        self.receive(
            path,
            Incoming {
                sequence,
                node,
                announced: true,
                connection: self.connection,
                state,
            },
        );
        Ok(())
    }

    fn receive(&mut self, path: WorkspacePath, incoming: Incoming) {
        if let Some(old) = self.incoming.get(&path) {
            if incoming.sequence < old.sequence {
                self.drop_sequence(&incoming);
                return;
            }
            if matches!(old.state, State::Applying) {
                let (sequence, announced) = (incoming.sequence, incoming.announced);
                if let Some(older) = self.superseding.insert(path, incoming) {
                    self.drop_sequence(&older);
                }
                if announced {
                    self.outstanding.insert(sequence);
                }
                return;
            }
        }
        if let Some(old) = self.take_incoming(&path) {
            self.drop_sequence(&old);
        }
        // Two connections may have announced the same change.
        if incoming.announced {
            self.outstanding.insert(incoming.sequence);
        }
        self.place(path, incoming);
    }

    fn drop_sequence(&mut self, incoming: &Incoming) {
        if incoming.announced {
            self.outstanding.remove(&incoming.sequence);
        }
    }

    fn take_incoming(&mut self, path: &WorkspacePath) -> Option<Incoming> {
        let incoming = self.incoming.remove(path)?;
        self.unready(&incoming, path);
        Some(incoming)
    }

    fn unready(&mut self, incoming: &Incoming, path: &WorkspacePath) {
        if self
            .ready
            .remove(&(incoming.sequence, Reverse(path.clone())))
            && let State::Ready(ContentSource::Bytes(bytes)) = &incoming.state
        {
            self.ready_bytes = self.ready_bytes.saturating_sub(bytes.len());
        }
    }

    /// A local change of the path makes what is under way wait for its answer.
    pub(super) fn defer(&mut self, path: &WorkspacePath) {
        if self
            .incoming
            .get(path)
            .is_some_and(|incoming| !matches!(incoming.state, State::Applying))
        {
            self.resolve(path);
        }
    }

    /// Finds out how a change gets its content, or what it has to wait for.
    fn resolve(&mut self, path: &WorkspacePath) {
        if let Some(incoming) = self.take_incoming(path) {
            self.place(path.clone(), incoming);
        }
    }

    fn place(&mut self, path: WorkspacePath, mut incoming: Incoming) {
        let is_pending = self.pending.contains_key(&path);
        incoming.state = match incoming.state {
            State::Applying => State::Applying,
            _ if is_pending => State::Deferred,
            State::Ready(source) => State::Ready(source),
            State::Unresolved { local: false } => self.fetch(&path, incoming.node.as_ref()),
            State::Unresolved { .. } | State::Deferred | State::Fetching | State::Blocked => {
                self.locate(&path, incoming.node.as_ref())
            }
        };
        if let State::Ready(source) = &incoming.state {
            self.ready
                .insert((incoming.sequence, Reverse(path.clone())));
            if let ContentSource::Bytes(bytes) = source {
                self.ready_bytes += bytes.len();
            }
        }
        self.incoming.insert(path, incoming);
    }

    fn locate(&mut self, path: &WorkspacePath, node: Option<&Node>) -> State {
        let Some(node) = node.filter(|node| !node.is_directory()) else {
            return State::Ready(ContentSource::Keep);
        };
        if self
            .bases
            .get(path)
            .is_some_and(|base| base.node.same_content(node))
        {
            return State::Ready(ContentSource::Keep);
        }
        if node.size == 0 && node.hash == ContentHash::empty() {
            return State::Ready(ContentSource::Bytes(Vec::new()));
        }
        let other = self
            .by_hash
            .get(&node.hash)
            .and_then(|paths| paths.iter().find(|other| *other != path));
        if let Some(other) = other {
            return State::Ready(ContentSource::CopyOf(other.clone()));
        }
        self.fetch(path, Some(node))
    }

    fn fetch(&mut self, path: &WorkspacePath, node: Option<&Node>) -> State {
        let Some(node) = node else {
            return State::Ready(ContentSource::Keep);
        };
        if !self.is_connected() {
            return State::Unresolved { local: true };
        }
        self.fetches.want(node.hash, node.size);
        let waiting = self.fetching.entry(node.hash).or_default();
        if !waiting.contains(path) {
            waiting.push(path.clone());
        }
        State::Fetching
    }

    pub(super) fn drive_fetches(&mut self) {
        while let Some(step) = self.fetches.poll_unless(self.ready_bytes > READY_BYTES) {
            match step {
                FetchStep::Request(hash) => self.out.push_back(fetch::request(&hash)),
                FetchStep::Plan { hash, manifest } => {
                    let near = self.fetching.get(&hash).cloned().unwrap_or_default();
                    self.has_planned = true;
                    self.effects.push_back(ReplicaEffect::Plan {
                        hash,
                        manifest,
                        near,
                    });
                }
                FetchStep::KeepChunk {
                    hash,
                    bytes,
                    offsets,
                    ..
                } => {
                    self.effects.push_back(ReplicaEffect::KeepChunk {
                        hash,
                        bytes,
                        offsets,
                    });
                }
                FetchStep::Finish(hash) => self
                    .effects
                    .push_back(ReplicaEffect::FinishContent { hash }),
                FetchStep::Ready(hash, bytes) => self.fetched(hash, bytes.as_deref()),
                FetchStep::NotFound(hash) => {
                    // It was superseded or pruned meanwhile; what replaced it
                    // is announced, or a later try finds it.
                    for path in self.fetching.remove(&hash).unwrap_or_default() {
                        let reason = "the master no longer has the content".to_owned();
                        self.block(self.last_heard, &path, reason);
                    }
                }
            }
        }
    }

    fn fetched(&mut self, hash: ContentHash, bytes: Option<&[u8]>) {
        let mut assembled = bytes.is_none();
        for path in self.fetching.remove(&hash).unwrap_or_default() {
            let Some(incoming) = self.incoming.get_mut(&path) else {
                continue;
            };
            let wants = incoming.node.as_ref().is_some_and(|node| node.hash == hash);
            if !wants || !matches!(incoming.state, State::Fetching) {
                continue;
            }
            incoming.state = match bytes {
                Some(bytes) => State::Ready(ContentSource::Bytes(bytes.to_vec())),
                // The first one takes what was put together; others copy from it.
                None if std::mem::take(&mut assembled) => {
                    State::Ready(ContentSource::Assembled(hash))
                }
                None => State::Blocked,
            };
            if matches!(incoming.state, State::Ready(_)) {
                self.resolve(&path);
            }
        }
    }

    /// Chunks of a planned content that are not at hand.
    pub fn planned(&mut self, hash: &ContentHash, missing: &[usize]) {
        self.fetches.planned(hash, missing);
    }

    /// A chunk was kept.
    pub fn chunk_kept(&mut self, hash: &ContentHash, count: usize) {
        self.fetches.chunk_kept(hash, count);
    }

    /// Whether a content put together from chunks is right.
    pub fn content_finished(
        &mut self,
        hash: &ContentHash,
        finish: &Finish,
    ) -> Result<(), ReplicaError> {
        Ok(self.fetches.finished(hash, finish)?)
    }

    /// A content cannot be kept here now, because the disk is full for instance;
    /// what needs it waits.
    pub fn content_not_kept(&mut self, now: Duration, hash: &ContentHash, reason: &str) {
        self.fetches.give_up(hash);
        for path in self.fetching.remove(hash).unwrap_or_default() {
            self.block(now, &path, reason.to_owned());
        }
    }

    pub(super) fn drive_apply(&mut self) {
        let is_whole = self.ready.len() >= APPLY_AT_ONCE || self.ready_bytes >= APPLY_BYTES;
        let may_apply = match self.applying {
            0 => !self.ready.is_empty(),
            // It waits there, so that nobody waits for it.
            1 => is_whole,
            _ => false,
        };
        if !may_apply {
            return;
        }
        let mut items = Vec::new();
        let mut bytes = 0;
        while items.len() < APPLY_AT_ONCE && bytes < APPLY_BYTES {
            let Some((sequence, Reverse(path))) = self.ready.pop_first() else {
                break;
            };
            let Some(incoming) = self.incoming.get_mut(&path) else {
                continue;
            };
            let State::Ready(content) = std::mem::replace(&mut incoming.state, State::Applying)
            else {
                continue;
            };
            if let ContentSource::Bytes(content) = &content {
                bytes += content.len();
                self.ready_bytes = self.ready_bytes.saturating_sub(content.len());
            }
            items.push(ApplyItem {
                path,
                sequence,
                node: incoming.node.clone(),
                content,
            });
        }
        // Removals of a full comparison share one sequence: children go first.
        if items
            .windows(2)
            .any(|pair| matches!(pair, [a, b] if a.sequence == b.sequence))
        {
            items = in_order(items, |item| &item.path, |item| item.node.clone());
        }
        self.applying += 1;
        self.effects.push_back(ReplicaEffect::Apply(items));
    }

    /// Changes were put in place, or not.
    pub fn applied(&mut self, now: Duration, outcomes: Vec<(WorkspacePath, u64, ApplyOutcome)>) {
        self.applying = self.applying.saturating_sub(1);
        let mut progress = false;
        for (path, sequence, outcome) in outcomes {
            let Some(mut incoming) = self.incoming.remove(&path) else {
                continue;
            };
            match outcome {
                ApplyOutcome::Done | ApplyOutcome::DoneBut(_) => {
                    progress = true;
                    let base = incoming.node.clone().map(|node| Base { sequence, node });
                    self.set_base(&path, base);
                    if incoming.node.is_some() {
                        self.imply_folders(&path);
                    }
                    self.removals.remove(&path);
                    self.refused.remove(&path);
                    self.drop_sequence(&incoming);
                    if self.pending.contains_key(&path) {
                        // It was found to have changed just before.
                        self.overwritten.insert(path.clone());
                    }
                    if let ApplyOutcome::DoneBut(change) = outcome {
                        self.local_changes(vec![change]);
                    }
                    if let Some(next) = self.superseding.remove(&path) {
                        self.receive(path, next);
                    }
                    continue;
                }
                outcome if incoming.announced && !self.is_from_now(&incoming) => {
                    self.drop_sequence(&incoming);
                    // Announced again already: what follows must not take it for in place.
                    if let Some(next) = self.superseding.get(&path)
                        && next.announced
                    {
                        self.outstanding.insert(next.sequence);
                    }
                    if let ApplyOutcome::Diverged(change) = outcome {
                        self.local_changes(vec![change]);
                    }
                    if self.refused.contains(&path) {
                        self.revert(&path);
                    }
                }
                ApplyOutcome::Diverged(change) => {
                    incoming.state = State::Deferred;
                    self.incoming.insert(path.clone(), incoming);
                    self.local_changes(vec![change]);
                }
                ApplyOutcome::NeedContent => {
                    incoming.state = State::Unresolved { local: false };
                    self.incoming.insert(path.clone(), incoming);
                }
                ApplyOutcome::Blocked(reason) => {
                    incoming.state = State::Blocked;
                    self.incoming.insert(path.clone(), incoming);
                    self.events.push_back(ReplicaEvent::Blocked {
                        path: path.clone(),
                        reason,
                    });
                    self.retry_at = Some(now + RETRY_AFTER);
                }
            }
            if let Some(next) = self.superseding.remove(&path) {
                self.receive(path, next);
            } else if !self
                .incoming
                .get(&path)
                .is_some_and(|incoming| matches!(incoming.state, State::Blocked))
            {
                self.resolve(&path);
            }
        }
        if progress {
            self.retry_blocked();
        }
        self.settle_positions();
    }

    fn is_from_now(&self, incoming: &Incoming) -> bool {
        self.is_connected() && incoming.connection == self.connection
    }

    /// Folders that had to be made for a path, before the master named them,
    /// are its all the same: a full comparison must be able to remove them.
    fn imply_folders(&mut self, path: &WorkspacePath) {
        for folder in path.ancestors() {
            if let Some(pending) = self.pending.get(&folder) {
                if !pending.is_folder() {
                    self.overwritten.insert(folder);
                }
            } else if !self.bases.contains_key(&folder) {
                let node = Node::directory(0o755);
                self.set_base(&folder, Some(Base { sequence: 0, node }));
                // Whatever is there by now has been named: this one was made
                // for something that an earlier connection announced.
                if self.phase == Phase::Live && !self.incoming.contains_key(&folder) {
                    self.remove_unnamed(folder);
                }
            }
        }
    }

    fn block(&mut self, now: Duration, path: &WorkspacePath, reason: String) {
        let Some(incoming) = self.incoming.get_mut(path) else {
            return;
        };
        if matches!(incoming.state, State::Fetching) {
            incoming.state = State::Blocked;
            self.retry_at = Some(now + RETRY_AFTER);
            self.events.push_back(ReplicaEvent::Blocked {
                path: path.clone(),
                reason,
            });
        }
    }

    pub(super) fn retry_blocked(&mut self) {
        self.retry_at = None;
        self.resolve_all(|state| matches!(state, State::Blocked));
    }

    pub(super) fn resume_incoming(&mut self) {
        self.resolve_all(|state| matches!(state, State::Unresolved { .. }));
    }

    fn resolve_all(&mut self, which: impl Fn(&State) -> bool) {
        let paths: Vec<_> = self
            .incoming
            .iter()
            .filter(|(_, incoming)| which(&incoming.state))
            .map(|(path, _)| path.clone())
            .collect();
        for path in paths {
            self.resolve(&path);
        }
    }

    /// Whatever the stream announced is announced again by the next catch-up;
    /// only returns to a base are ours to remember.
    pub(super) fn suspend_incoming(&mut self) {
        self.fetching.clear();
        self.superseding.clear();
        self.ready.clear();
        self.ready_bytes = 0;
        self.comparison = None;
        let removals = std::mem::take(&mut self.removals);
        self.incoming.retain(|path, incoming| {
            if matches!(incoming.state, State::Applying) {
                return true;
            }
            incoming.state = State::Unresolved { local: true };
            // The next full comparison finds what to remove anew.
            !incoming.announced && !removals.contains(path)
        });
        self.outstanding.clear();
        let applying: Vec<u64> = self
            .incoming
            .values()
            .filter(|incoming| incoming.announced)
            .map(|incoming| incoming.sequence)
            .collect();
        self.outstanding.extend(applying);
        let refused: Vec<_> = self.refused.iter().cloned().collect();
        for path in refused {
            if !self.incoming.contains_key(&path) {
                self.revert(&path);
            }
        }
    }

    /// A refused write gives way to the master's version: the one that waits,
    /// or the base.
    pub(super) fn revert(&mut self, path: &WorkspacePath) {
        self.refused.insert(path.clone());
        if self.pending.contains_key(path) {
            return;
        }
        if self.incoming.contains_key(path) {
            self.resolve(path);
            return;
        }
        let base = self.bases.get(path).cloned();
        let sequence = base.as_ref().map_or(0, |base| base.sequence);
        let node = base.map(|base| base.node);
        self.incoming.insert(
            path.clone(),
            Incoming {
                sequence,
                node,
                announced: false,
                connection: self.connection,
                // What the path holds is not the base: its content must be found.
                state: State::Unresolved { local: true },
            },
        );
        self.resolve(path);
    }

    /// An accepted write makes what was announced before it stale.
    pub(super) fn overtake(&mut self, path: &WorkspacePath, sequence: u64) {
        let stale = |incoming: &Incoming| {
            incoming.sequence <= sequence && !matches!(incoming.state, State::Applying)
        };
        if self.incoming.get(path).is_some_and(stale) {
            if let Some(incoming) = self.take_incoming(path) {
                self.drop_sequence(&incoming);
                self.removals.remove(path);
            }
        } else if !self.pending.contains_key(path) {
            self.resolve(path);
        }
    }

    /// The sequence up to which everything announced is in place.
    pub(super) fn in_place(&self) -> u64 {
        match self.outstanding.first() {
            Some(first) => first.saturating_sub(1).min(self.announced),
            None => self.announced.max(self.received),
        }
    }

    pub(super) fn settle_positions(&mut self) {
        // A removal that something newer replaced is done with.
        let incoming = &self.incoming;
        self.removals.retain(|path| incoming.contains_key(path));
        let fenced = matches!(self.phase, Phase::CatchingUp { fenced: true, .. });
        if self.phase == Phase::Live
            && self.resyncing
            && self.removals.is_empty()
            && self.outstanding.is_empty()
        {
            self.resyncing = false;
            self.applied = self.received;
        }
        if self.phase != Phase::Offline && !fenced && !self.resyncing {
            self.applied = self.applied.max(self.in_place().min(self.received));
        }
        self.pass_barriers();
    }
}
