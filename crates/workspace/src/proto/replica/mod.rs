//! The replica's side, without I/O.
//!
//! One [`ReplicaCore`] lives as long as the replica does, over many
//! connections. The owner feeds in messages, local changes and finished
//! effects, and polls for messages, effects and events. What must survive a
//! crash is written by effects; [`ReplicaCore::restore`] starts from it.
//!
//! Three positions in the master's stream:
//! - *received*: everything up to it has been announced to us;
//! - *applied*: everything up to it is in place; a catch-up resumes here;
//! - *acknowledged*: what the master was told, for its flow control.

mod incoming;
mod outgoing;

pub use outgoing::bases_after;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::fetch::{self, Chunks, FetchError, Fetches, Offer};
use super::ledger::Operation;
use super::manifest::Manifest;
use super::message::WireMessage;
use super::node::{ContentHash, Node, NodeError};
use super::path::{PathError, WorkspacePath};
use incoming::Incoming;
use outgoing::{Journalled, Pending};

/// A master that is silent for so long is lost.
pub const SILENCE: Duration = Duration::from_secs(20);
/// How long a change that could not be put in place waits for another try.
const RETRY_AFTER: Duration = Duration::from_secs(1);
const MAX_REQUESTS: usize = 65_536;

/// What the master last had at a path, as far as it is in place here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// The sequence it came from.
    pub sequence: u64,
    /// What it holds.
    pub node: Node,
}

/// A local change, as the tree's watcher found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalChange {
    /// The path.
    pub path: WorkspacePath,
    /// What it holds now; its content is kept.
    pub node: Option<Node>,
    /// The path it was moved from, when that is known.
    pub renamed_from: Option<WorkspacePath>,
}

/// A local change with its number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Gapless per replica, and never used twice.
    pub local_seq: u64,
    /// The path.
    pub path: WorkspacePath,
    /// What was done.
    pub operation: Operation,
    /// What the path (or the new path of a rename) holds since.
    pub node: Option<Node>,
    /// The sequence of the base it was made on.
    pub base: u64,
}

/// What became of a journal entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The entry.
    pub entry: JournalEntry,
    /// Its sequence at the master, or why it was refused.
    pub result: Result<u64, String>,
}

/// A change of the master to put in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyItem {
    /// The path.
    pub path: WorkspacePath,
    /// Its sequence.
    pub sequence: u64,
    /// What it will hold.
    pub node: Option<Node>,
    /// Where the content comes from.
    pub content: ContentSource,
}

/// Where the content of a change comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentSource {
    /// The path already has it, or there is none.
    Keep,
    /// Here it is, verified.
    Bytes(Vec<u8>),
    /// It was put together from chunks.
    Assembled(ContentHash),
    /// Another path has it.
    CopyOf(WorkspacePath),
}

/// What became of an [`ApplyItem`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApplyOutcome {
    /// It is in place.
    Done,
    /// It is in place, but this remains beside it (a folder that still holds
    /// local files).
    DoneBut(LocalChange),
    /// The path holds a local change; nothing was touched.
    Diverged(LocalChange),
    /// The content is not where it was expected.
    NeedContent,
    /// It cannot be done now: something is in the way, or the disk is full.
    Blocked(String),
}

/// What the owner has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaEffect {
    /// Put changes in place, in order; answer with [`ReplicaCore::applied`].
    Apply(Vec<ApplyItem>),
    /// Remember where we are. Not answered.
    SaveProgress {
        /// A catch-up resumes here.
        applied: u64,
        /// Whether the whole tree is being compared.
        resyncing: bool,
    },
    /// Remember no longer from which sequences bases came: the master has another
    /// history. Not answered.
    ForgetSequences,
    /// Drop what was planned and not put in place: nothing wants it any more. Not
    /// answered.
    DropPlanned,
    /// Write entries to the journal; answer with [`ReplicaCore::journalled`].
    Journal(Vec<JournalEntry>),
    /// Remember what became of entries: move bases, keep refused bytes as
    /// conflict versions. Not answered.
    Settle(Vec<Settlement>),
    /// Read small contents; answer with [`ReplicaCore::inline_loaded`].
    LoadInline(Vec<(u64, ContentHash)>),
    /// Read a content for the master; answer with [`ReplicaCore::content_loaded`].
    LoadContent {
        /// The hash as it was asked for.
        content_hash: String,
    },
    /// Start to put a large content together; answer with [`ReplicaCore::planned`].
    Plan {
        /// The content.
        hash: ContentHash,
        /// Its chunks.
        manifest: Manifest,
        /// Paths whose present content may hold some of them.
        near: Vec<WorkspacePath>,
    },
    /// Keep a verified chunk; answer with [`ReplicaCore::chunk_kept`].
    KeepChunk {
        /// The content it is a part of.
        hash: ContentHash,
        /// Its bytes.
        bytes: Bytes,
        /// Where it belongs.
        offsets: Vec<u64>,
    },
    /// Verify a content put together; answer with [`ReplicaCore::content_finished`].
    FinishContent {
        /// The content.
        hash: ContentHash,
    },
}

/// Something that somebody may wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaEvent {
    /// A barrier was passed: everything up to `sequence` is in place.
    BarrierPassed {
        /// The number it was asked with.
        id: u64,
        /// Whether the master had reached what was asked for.
        satisfied: bool,
        /// Where the master was.
        sequence: u64,
    },
    /// A journal entry was answered.
    Settled(Settlement),
    /// A change of the master cannot be put in place for now.
    Blocked {
        /// The path.
        path: WorkspacePath,
        /// Why.
        reason: String,
    },
}

/// The master broke the protocol; the connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// It sent what only a replica sends.
    #[error("the master sent {name}, which only a replica sends")]
    WrongDirection {
        /// The message.
        name: &'static str,
    },
    /// A path in a notification is not acceptable.
    #[error("the master announced a path that is not acceptable: {0}")]
    Path(#[from] PathError),
    /// A notification describes something that is not replicated.
    #[error("the master announced something that is not acceptable: {0}")]
    Node(#[from] NodeError),
    /// The stream went backwards.
    #[error("the master announced sequence {sequence} after {received}")]
    Backwards {
        /// What it announced.
        sequence: u64,
        /// What it had announced before.
        received: u64,
    },
    /// A barrier was confirmed that nobody asked for.
    #[error("the master confirmed a barrier that was not asked for")]
    UnaskedBarrier,
    /// Its content is wrong.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It asks for more than it takes.
    #[error("more than {MAX_REQUESTS} contents were asked for and not taken")]
    TooManyRequests,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Offline,
    /// The first catch-up of a connection ends with the first heartbeat, and so
    /// does the one that a master demands instead of it. A later one may be
    /// crossed by heartbeats that were sent before it was asked for: it ends with
    /// a fence, a barrier of our own behind the request.
    CatchingUp {
        fenced: bool,
        /// Whether a heartbeat came since it was asked for.
        heard: bool,
    },
    Live,
}

/// What the master named of its whole tree. It leaves out what is gone, so that what
/// it sent before it heard the request must not count: a path may be gone since.
#[derive(Debug)]
struct Comparison {
    mentioned: HashSet<WorkspacePath>,
    /// What may have been sent before is later than this; `None` where it may be
    /// anything.
    after: Option<u64>,
    /// Whether all that is mentioned belongs to the answer.
    is_answer: bool,
}

impl Comparison {
    fn named(&mut self, sequence: u64, path: &WorkspacePath, is_there: bool) {
        if !self.is_answer && self.after.is_some_and(|after| sequence <= after) {
            self.is_answer = true;
            self.mentioned.clear();
        }
        if is_there {
            self.mentioned.insert(path.clone());
        } else {
            self.mentioned.remove(path);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiter {
    Fence,
    User(u64),
}

#[derive(Debug)]
struct Barrier {
    waiter: Waiter,
    wanted: u64,
    sent: bool,
    reached: Option<(bool, u64)>,
}

/// What a replica starts from.
#[derive(Clone, Debug, Default)]
pub struct Restored {
    /// A catch-up resumes here.
    pub applied: u64,
    /// Whether the whole tree was being compared.
    pub resyncing: bool,
    /// What the master had at each path.
    pub bases: BTreeMap<WorkspacePath, Base>,
    /// Paths that hold something else than their base, as it was last seen.
    pub differing: Vec<WorkspacePath>,
    /// Unanswered journal entries.
    pub journal: Vec<JournalEntry>,
    /// The next number of a journal entry.
    pub next_local_seq: u64,
}

/// The state of a replica.
#[derive(Debug)]
pub struct ReplicaCore {
    sandbox_id: Arc<str>,
    phase: Phase,
    /// Counts connections.
    connection: u64,
    received: u64,
    applied: u64,
    saved: (u64, bool),
    acked: u64,
    announced: u64,
    /// Catch-ups that were asked for over this connection since the last one
    /// that ended.
    asked: u64,
    resyncing: bool,
    /// While a catch-up from 0 is answered.
    comparison: Option<Comparison>,
    removals: HashSet<WorkspacePath>,
    bases: BTreeMap<WorkspacePath, Base>,
    by_hash: HashMap<ContentHash, BTreeSet<WorkspacePath>>,
    incoming: HashMap<WorkspacePath, Incoming>,
    superseding: HashMap<WorkspacePath, Incoming>,
    /// What can be put in place. Removals of a full comparison share one sequence: what
    /// is in a folder goes before it, in whatever batch.
    ready: BTreeSet<(u64, Reverse<WorkspacePath>)>,
    ready_bytes: usize,
    outstanding: BTreeSet<u64>,
    fetching: HashMap<ContentHash, Vec<WorkspacePath>>,
    /// Whether something was planned since nothing was wanted.
    has_planned: bool,
    /// Batches that are being put in place.
    applying: usize,
    journal: BTreeMap<u64, Journalled>,
    pending: HashMap<WorkspacePath, Pending>,
    /// Paths that hold a refused write, until the master's version takes them.
    refused: HashSet<WorkspacePath>,
    /// Paths that got the master's version while a local change waits.
    overwritten: HashSet<WorkspacePath>,
    next_local_seq: u64,
    loading_inline: Vec<u64>,
    unanswered: usize,
    barriers: VecDeque<Barrier>,
    requests: VecDeque<String>,
    loading: usize,
    last_heard: Duration,
    /// The last message that was no heartbeat, or the first question that a fence follows.
    last_told: Duration,
    retry_at: Option<Duration>,
    fetches: Fetches,
    out: VecDeque<WireMessage>,
    effects: VecDeque<ReplicaEffect>,
    events: VecDeque<ReplicaEvent>,
}

impl ReplicaCore {
    /// Continues from what was saved. Local changes made while it was stopped
    /// come in afterwards, before the first connection.
    pub fn restore(sandbox_id: Arc<str>, restored: Restored) -> Self {
        let mut core = Self {
            sandbox_id,
            phase: Phase::Offline,
            connection: 0,
            received: restored.applied,
            applied: restored.applied,
            saved: (restored.applied, restored.resyncing),
            acked: 0,
            announced: 0,
            asked: 0,
            resyncing: restored.resyncing,
            comparison: None,
            removals: HashSet::new(),
            bases: BTreeMap::new(),
            by_hash: HashMap::new(),
            incoming: HashMap::new(),
            superseding: HashMap::new(),
            ready: BTreeSet::new(),
            ready_bytes: 0,
            outstanding: BTreeSet::new(),
            fetching: HashMap::new(),
            has_planned: false,
            applying: 0,
            journal: BTreeMap::new(),
            pending: HashMap::new(),
            refused: HashSet::new(),
            overwritten: HashSet::new(),
            next_local_seq: restored.next_local_seq.max(1),
            loading_inline: Vec::new(),
            unanswered: 0,
            barriers: VecDeque::new(),
            requests: VecDeque::new(),
            loading: 0,
            last_heard: Duration::ZERO,
            last_told: Duration::ZERO,
            retry_at: None,
            fetches: Fetches::new(Chunks::AsPartsOfTheWhole),
            out: VecDeque::new(),
            effects: VecDeque::new(),
            events: VecDeque::new(),
        };
        for (path, base) in restored.bases {
            core.set_base(&path, Some(base));
        }
        for entry in restored.journal {
            core.remember(entry, outgoing::EntryState::Saved);
        }
        for path in restored.differing {
            core.revert(&path);
        }
        core
    }

    /// A connection was made.
    pub fn connected(&mut self, now: Duration) {
        self.phase = Phase::CatchingUp {
            fenced: false,
            heard: false,
        };
        self.connection += 1;
        self.asked = 0;
        self.last_heard = now;
        self.last_told = now;
        let since = if self.resyncing { 0 } else { self.applied };
        self.begin_catch_up(since);
        for barrier in &mut self.barriers {
            barrier.sent = false;
            barrier.reached = None;
        }
        self.resume_incoming();
    }

    /// The connection was lost.
    pub fn disconnected(&mut self) {
        self.phase = Phase::Offline;
        self.out.clear();
        self.requests.clear();
        self.loading = 0;
        self.fetches.clear();
        self.barriers
            .retain(|barrier| barrier.waiter != Waiter::Fence);
        self.effects.retain(|effect| {
            !matches!(
                effect,
                ReplicaEffect::LoadContent { .. }
                    | ReplicaEffect::LoadInline(_)
                    | ReplicaEffect::Plan { .. }
                    | ReplicaEffect::KeepChunk { .. }
                    | ReplicaEffect::FinishContent { .. }
            )
        });
        self.suspend_incoming();
        self.suspend_journal();
    }

    /// Whether a connection is up.
    pub fn is_connected(&self) -> bool {
        self.phase != Phase::Offline
    }

    /// Whether the master has been silent for too long, or says no more than where it
    /// is and does not answer the fence that ends a catch-up. The first catch-up of
    /// the next connection needs none.
    pub fn is_lost(&self, now: Duration) -> bool {
        self.lost_at().is_some_and(|at| now >= at)
    }

    fn lost_at(&self) -> Option<Duration> {
        let since = match self.phase {
            Phase::Offline => return None,
            Phase::CatchingUp { fenced: true, .. } => self.last_told,
            Phase::CatchingUp { .. } | Phase::Live => self.last_heard,
        };
        Some(since + SILENCE)
    }

    /// Everything up to here is in place.
    pub fn applied_through(&self) -> u64 {
        self.applied
    }

    /// Whether the stream is followed live, with nothing left to put in place.
    pub fn is_current(&self) -> bool {
        self.phase == Phase::Live && self.applied == self.received && self.incoming.is_empty()
    }

    /// Number of changes of the master that are not in place yet.
    pub fn incoming_len(&self) -> usize {
        self.incoming.len()
    }

    /// Number of local changes that are not answered yet.
    pub fn journal_len(&self) -> usize {
        self.journal.len()
    }

    /// Whether every entry up to this number was answered.
    pub fn is_settled_through(&self, local_seq: u64) -> bool {
        self.journal
            .first_key_value()
            .is_none_or(|(first, _)| *first > local_seq)
    }

    /// The number of the newest journal entry.
    pub fn last_local_seq(&self) -> u64 {
        self.next_local_seq.saturating_sub(1)
    }

    /// Asks for a barrier; a [`ReplicaEvent::BarrierPassed`] with this `id`
    /// follows, over reconnects if need be. It waits behind a first catch-up.
    pub fn request_barrier(&mut self, id: u64, sequence: u64) {
        self.barriers.push_back(Barrier {
            waiter: Waiter::User(id),
            wanted: sequence,
            sent: false,
            reached: None,
        });
    }

    /// Nobody waits for this barrier any more. One that was sent stays in the
    /// queue, because its answer will come.
    pub fn forget_barrier(&mut self, id: u64) {
        self.barriers
            .retain(|barrier| barrier.sent || barrier.waiter != Waiter::User(id));
    }

    /// Takes a message of the master.
    pub fn handle_message(
        &mut self,
        now: Duration,
        message: WireMessage,
    ) -> Result<(), ReplicaError> {
        self.last_heard = now;
        if !matches!(message, WireMessage::Heartbeat { .. }) {
            self.last_told = now;
        }
        match message {
            WireMessage::Notification {
                sequence,
                filepath,
                content_hash,
                size,
                permissions,
                is_deletion,
                inline_content,
            } => {
                let path = WorkspacePath::parse(&filepath)?;
                let node = match is_deletion {
                    true => None,
                    false => Some(Node::from_wire(permissions, &content_hash, size)?),
                };
                self.notified(sequence, path, node, inline_content)?;
            }
            WireMessage::Heartbeat { agent_sequence, .. } => self.heartbeat(agent_sequence),
            WireMessage::WriteBackResult { accepted, rejected } => {
                self.answered(&accepted, rejected);
            }
            WireMessage::BarrierConfirmation {
                satisfied,
                current_sequence,
            } => {
                self.confirmed(satisfied, current_sequence)?;
            }
            WireMessage::ContentFetchRequest { content_hash } => {
                if self.requests.len() >= MAX_REQUESTS {
                    return Err(ReplicaError::TooManyRequests);
                }
                self.requests.push_back(content_hash);
            }
            WireMessage::ContentFetchResponse {
                content_hash,
                content,
                size,
                chunk_manifest,
            } => {
                self.fetches
                    .response(&content_hash, content, size, chunk_manifest.as_deref())?;
            }
            WireMessage::ContentNotFound { content_hash } => self.fetches.not_found(&content_hash),
            WireMessage::FullResyncRequired {
                current_sequence, ..
            } => self.resync_required(current_sequence),
            WireMessage::WriteBack { .. }
            | WireMessage::BarrierRequest { .. }
            | WireMessage::Ack { .. }
            | WireMessage::CatchupRequest { .. } => {
                return Err(ReplicaError::WrongDirection {
                    name: message.name(),
                });
            }
        }
        self.settle_positions();
        Ok(())
    }

    /// A content was read for the master.
    pub fn content_loaded(&mut self, content_hash: String, offer: Offer) {
        self.loading = self.loading.saturating_sub(1);
        if self.is_connected() {
            self.out.push_back(fetch::answer(content_hash, offer));
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) should be called.
    pub fn poll_timeout(&self) -> Option<Duration> {
        [self.lost_at(), self.retry_at].into_iter().flatten().min()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.retry_at.is_some_and(|at| now >= at) {
            self.retry_blocked();
        }
        self.settle_positions();
    }

    /// The next thing that somebody may wait for.
    pub fn poll_event(&mut self) -> Option<ReplicaEvent> {
        self.events.pop_front()
    }

    /// The next effect to carry out.
    pub fn poll_effect(&mut self) -> Option<ReplicaEffect> {
        self.drive_fetches();
        self.drive_write_back();
        if self.loading < 4
            && self.out.len() < 256
            && let Some(content_hash) = self.requests.pop_front()
        {
            self.loading += 1;
            self.effects
                .push_back(ReplicaEffect::LoadContent { content_hash });
        }
        if self.effects.is_empty() {
            self.drive_apply();
        }
        if self.has_planned && self.is_current() && self.fetching.is_empty() {
            self.has_planned = false;
            self.effects.push_back(ReplicaEffect::DropPlanned);
        }
        if self.effects.is_empty() && self.saved != (self.applied, self.resyncing) {
            self.saved = (self.applied, self.resyncing);
            return Some(ReplicaEffect::SaveProgress {
                applied: self.applied,
                resyncing: self.resyncing,
            });
        }
        self.effects.pop_front()
    }

    /// The next message to send. Call it only when the transport takes more.
    pub fn poll_message(&mut self) -> Option<WireMessage> {
        if !self.is_connected() {
            return None;
        }
        self.drive_fetches();
        self.send_barriers();
        if let Some(message) = self.out.pop_front() {
            return Some(message);
        }
        let in_place = self.in_place();
        // Acknowledge when the stream pauses, or often enough to keep it going.
        if in_place > self.acked && (self.ready.is_empty() || in_place - self.acked >= 1_024) {
            self.acked = in_place;
            return Some(WireMessage::Ack {
                up_to_sequence: in_place,
            });
        }
        None
    }

    fn send_barriers(&mut self) {
        for barrier in self.barriers.iter_mut().filter(|barrier| !barrier.sent) {
            barrier.sent = true;
            self.out.push_back(WireMessage::BarrierRequest {
                sequence: barrier.wanted,
            });
        }
    }

    fn confirmed(&mut self, satisfied: bool, current: u64) -> Result<(), ReplicaError> {
        let first = self
            .barriers
            .iter_mut()
            .find(|barrier| barrier.sent && barrier.reached.is_none());
        let barrier = first.ok_or(ReplicaError::UnaskedBarrier)?;
        barrier.reached = Some((satisfied, current));
        if barrier.waiter == Waiter::Fence {
            self.barriers
                .retain(|barrier| barrier.waiter != Waiter::Fence || barrier.reached.is_none());
            let pending_fence = self
                .barriers
                .iter()
                .any(|barrier| barrier.waiter == Waiter::Fence);
            if let (Phase::CatchingUp { fenced: true, .. }, false) = (self.phase, pending_fence) {
                self.fence_passed(current);
            }
        }
        Ok(())
    }

    fn pass_barriers(&mut self) {
        let (applied, events) = (self.applied, &mut self.events);
        // What has to be removed is known only at the end of a full comparison.
        let live = self.phase == Phase::Live && !self.resyncing;
        self.barriers
            .retain(|barrier| match (barrier.waiter, barrier.reached) {
                (Waiter::User(id), Some((satisfied, sequence))) if live && applied >= sequence => {
                    events.push_back(ReplicaEvent::BarrierPassed {
                        id,
                        satisfied,
                        sequence,
                    });
                    false
                }
                _ => true,
            });
    }

    fn set_base(&mut self, path: &WorkspacePath, base: Option<Base>) {
        let indexed = |base: &Base| !base.node.is_directory() && base.node.size > 0;
        let new = base
            .as_ref()
            .filter(|base| indexed(base))
            .map(|base| base.node.hash);
        let old = match base {
            Some(base) => self.bases.insert(path.clone(), base),
            None => self.bases.remove(path),
        };
        let old = old.filter(indexed).map(|base| base.node.hash);
        if old == new {
            return;
        }
        if let Some(hash) = old
            && let Some(paths) = self.by_hash.get_mut(&hash)
        {
            paths.remove(path);
            if paths.is_empty() {
                self.by_hash.remove(&hash);
            }
        }
        if let Some(hash) = new {
            self.by_hash.entry(hash).or_default().insert(path.clone());
        }
    }
}

#[cfg(test)]
mod tests;
