//! The master's side of one connection, without I/O.
//!
//! The owner feeds messages and finished effects in, and polls for messages to
//! send and effects to carry out. Notifications are not queued: they are read
//! from the [`Ledger`] when the transport can take more, so a replica that
//! falls behind costs nothing and is sent a catch-up later.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::fetch::{self, Chunks, FetchError, FetchStep, Fetches, Finish, Offer};
use super::ledger::{Change, Ledger};
use super::manifest::Manifest;
use super::message::{WireMessage, WriteBackEntry};
use super::node::ContentHash;

/// How often the master says where its stream is.
pub const HEARTBEAT_EVERY: Duration = Duration::from_secs(5);
/// Content under this length travels inside the message that announces it.
pub const INLINE_BELOW: u64 = 4_096;
/// Notifications that may be unacknowledged, and their inline bytes: what a
/// replica has to hold that reads faster than it puts in place. Most trees fit,
/// so that one which acknowledges only at the end is not kept waiting.
const WINDOW: usize = 32_768;
const WINDOW_BYTES: usize = 32 << 20;
/// A replica that acknowledges nothing for so long is given another window: one
/// that acknowledges only at the end of a catch-up must not wait for ever.
const WINDOW_GRACE: Duration = Duration::from_secs(2);
const ANNOUNCE_AT_ONCE: usize = 512;
/// Contents that a replica may have asked for and not yet received.
const MAX_REQUESTS: usize = 65_536;
/// Bytes of write-backs that may wait for their turn.
const MAX_QUEUED_WRITE_BACK: usize = 256 << 20;

/// A change with its content, where that is small enough to go along.
pub type Announcement = (Change, Option<Vec<u8>>);

/// What the owner of a session has to do; each is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MasterEffect {
    /// Read small contents and answer with [`MasterSession::announced`].
    Announce {
        /// Goes back with the answer.
        epoch: u64,
        /// Changes whose content may be wanted inline.
        changes: Vec<Change>,
    },
    /// Bring everything on the disk into the ledger; answer with
    /// [`MasterSession::flushed`].
    Flush {
        /// Goes back with the answer.
        barrier: u64,
    },
    /// Read a content; answer with [`MasterSession::content_loaded`].
    LoadContent {
        /// The hash as it was asked for.
        content_hash: String,
    },
    /// Say which contents of these entries are not at hand, with
    /// [`MasterSession::prepared`].
    Prepare {
        /// Who wrote.
        sandbox_id: Arc<str>,
        /// The entries.
        entries: Arc<Vec<WriteBackEntry>>,
    },
    /// Keep a verified content for the write-back; answer with
    /// [`MasterSession::content_kept`].
    KeepContent {
        /// Its hash.
        hash: ContentHash,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Find chunks that are at hand; answer with [`MasterSession::planned`].
    Plan {
        /// The content.
        hash: ContentHash,
        /// Its chunks.
        manifest: Manifest,
    },
    /// Keep a verified chunk; answer with [`MasterSession::chunk_kept`].
    KeepChunk {
        /// The content it is a part of.
        hash: ContentHash,
        /// The chunk.
        chunk: ContentHash,
        /// Its bytes.
        bytes: Bytes,
        /// Where it belongs.
        offsets: Vec<u64>,
    },
    /// Verify a content put together from chunks; answer with
    /// [`MasterSession::content_finished`].
    FinishContent {
        /// The content.
        hash: ContentHash,
    },
    /// Decide, apply and record; answer with [`MasterSession::committed`].
    Commit {
        /// Who wrote.
        sandbox_id: Arc<str>,
        /// The entries.
        entries: Arc<Vec<WriteBackEntry>>,
        /// Contents that the replica could not give.
        unavailable: HashSet<ContentHash>,
    },
}

/// What became of a batch of entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteBackOutcome {
    /// `(local_seq, sequence)`.
    pub accepted: Vec<(u64, u64)>,
    /// `(local_seq, reason)`.
    pub rejected: Vec<(u64, String)>,
}

/// The replica broke the protocol; the connection is closed.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// It sent what only a master sends.
    #[error("a replica sent {name}, which only a master sends")]
    WrongDirection {
        /// The message.
        name: &'static str,
    },
    /// It changed its name, or took another's.
    #[error("the replica is {first:?} and said that it is {second:?}")]
    OtherSandbox {
        /// Its name.
        first: String,
        /// The name it used now.
        second: String,
    },
    /// Its content is wrong.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// It asks for more than it takes.
    #[error("more than {MAX_REQUESTS} contents were asked for and not taken")]
    TooManyRequests,
    /// It writes more than may wait.
    #[error("more than {MAX_QUEUED_WRITE_BACK} bytes of write-backs are waiting")]
    TooMuchWriteBack,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No catch-up was asked for yet, or a full one must be.
    Idle,
    CatchingUp {
        live_until: u64,
    },
    Live,
    /// The replica was told where we are and will ask for a catch-up.
    Behind,
}

#[derive(Debug)]
struct Batch {
    entries: Arc<Vec<WriteBackEntry>>,
    bytes: usize,
    missing: HashSet<ContentHash>,
    unavailable: HashSet<ContentHash>,
    state: BatchState,
}

#[derive(Debug, PartialEq, Eq)]
enum BatchState {
    New,
    Preparing,
    Fetching,
    Committing,
}

#[derive(Debug)]
struct Barrier {
    id: u64,
    wanted: u64,
    reached: Option<u64>,
    owed: bool,
}

/// The state of one connection.
#[derive(Debug)]
pub struct MasterSession {
    sandbox: Option<Arc<str>>,
    phase: Phase,
    epoch: u64,
    cursor: u64,
    acked: u64,
    announcing: bool,
    unacked: BTreeMap<u64, usize>,
    unacked_bytes: usize,
    window_full_since: Option<Duration>,
    next_heartbeat: Duration,
    barriers: VecDeque<Barrier>,
    next_barrier: u64,
    requests: VecDeque<String>,
    loading: usize,
    batches: VecDeque<Batch>,
    queued_bytes: usize,
    fetches: Fetches,
    out: VecDeque<WireMessage>,
    effects: VecDeque<MasterEffect>,
}

impl MasterSession {
    /// A connection that was just made.
    pub fn new(now: Duration) -> Self {
        Self {
            sandbox: None,
            phase: Phase::Idle,
            epoch: 0,
            cursor: 0,
            acked: 0,
            announcing: false,
            unacked: BTreeMap::new(),
            unacked_bytes: 0,
            window_full_since: None,
            next_heartbeat: now + HEARTBEAT_EVERY,
            barriers: VecDeque::new(),
            next_barrier: 0,
            requests: VecDeque::new(),
            loading: 0,
            batches: VecDeque::new(),
            queued_bytes: 0,
            fetches: Fetches::new(Chunks::Verified),
            out: VecDeque::new(),
            effects: VecDeque::new(),
        }
    }

    /// A connection that was just made and on which nobody but `sandbox` may speak.
    pub fn with(sandbox: &str, now: Duration) -> Self {
        Self {
            sandbox: Some(sandbox.into()),
            ..Self::new(now)
        }
    }

    /// Who is connected, once it has said so or where it is known.
    pub fn sandbox_id(&self) -> Option<&Arc<str>> {
        self.sandbox.as_ref()
    }

    /// The last sequence that the replica has in place.
    pub fn acked(&self) -> u64 {
        self.acked
    }

    /// Takes a message of the replica.
    pub fn handle_message(
        &mut self,
        message: WireMessage,
        ledger: &Ledger,
    ) -> Result<(), MasterError> {
        match message {
            WireMessage::CatchupRequest {
                sandbox_id,
                since_sequence,
            } => {
                self.identify(&sandbox_id)?;
                self.catch_up(since_sequence, ledger);
            }
            WireMessage::WriteBack {
                sandbox_id,
                entries,
            } => {
                self.identify(&sandbox_id)?;
                self.write_back(entries)?;
            }
            WireMessage::BarrierRequest { sequence } => {
                let owed = self.phase != Phase::Idle;
                let id = self.next_barrier;
                self.next_barrier += 1;
                self.barriers.push_back(Barrier {
                    id,
                    wanted: sequence,
                    reached: None,
                    owed,
                });
                self.effects.push_back(MasterEffect::Flush { barrier: id });
            }
            WireMessage::Ack { up_to_sequence } => self.acknowledge(up_to_sequence),
            WireMessage::ContentFetchRequest { content_hash } => {
                if self.requests.len() >= MAX_REQUESTS {
                    return Err(MasterError::TooManyRequests);
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
            WireMessage::Notification { .. }
            | WireMessage::Heartbeat { .. }
            | WireMessage::WriteBackResult { .. }
            | WireMessage::BarrierConfirmation { .. }
            | WireMessage::FullResyncRequired { .. } => {
                return Err(MasterError::WrongDirection {
                    name: message.name(),
                });
            }
        }
        Ok(())
    }

    fn identify(&mut self, id: &str) -> Result<(), MasterError> {
        match &self.sandbox {
            None => self.sandbox = Some(id.into()),
            Some(known) if **known == *id => {}
            Some(known) => {
                return Err(MasterError::OtherSandbox {
                    first: known.to_string(),
                    second: id.to_owned(),
                });
            }
        }
        Ok(())
    }

    fn catch_up(&mut self, since: u64, ledger: &Ledger) {
        self.epoch += 1;
        self.announcing = false;
        self.unacked.clear();
        self.unacked_bytes = 0;
        self.window_full_since = None;
        // What of the last answer was not sent yet comes again in this one.
        self.out
            .retain(|message| !matches!(message, WireMessage::Notification { .. }));
        for barrier in &mut self.barriers {
            barrier.owed = true;
        }
        let reason = if since > ledger.current() {
            Some(format!(
                "you are at {since}, the log ends at {}",
                ledger.current()
            ))
        } else if since != 0 && since < ledger.floor() {
            Some(format!("log starts at {}", ledger.floor()))
        } else {
            None
        };
        if let Some(reason) = reason {
            self.require_resync(reason, ledger);
            return;
        }
        self.cursor = since;
        self.acked = since;
        // From 0 the live tree is sent, without deletions; but a path that
        // vanishes while it is being sent has to be taken back.
        self.phase = Phase::CatchingUp {
            live_until: if since == 0 { ledger.current() } else { 0 },
        };
    }

    fn require_resync(&mut self, reason: String, ledger: &Ledger) {
        // Nothing that is still being read belongs to what it will ask for.
        self.epoch += 1;
        self.announcing = false;
        self.phase = Phase::Idle;
        self.out.push_back(WireMessage::FullResyncRequired {
            reason,
            current_sequence: ledger.current(),
        });
    }

    fn acknowledge(&mut self, up_to: u64) {
        self.acked = self.acked.max(up_to.min(self.cursor));
        let later = self.unacked.split_off(&up_to.saturating_add(1));
        let freed: usize = self.unacked.values().sum();
        self.unacked = later;
        self.unacked_bytes = self.unacked_bytes.saturating_sub(freed);
        if self.window_open() {
            self.window_full_since = None;
        }
    }

    fn window_open(&self) -> bool {
        self.unacked.len() < WINDOW && self.unacked_bytes < WINDOW_BYTES
    }

    fn write_back(&mut self, entries: Vec<WriteBackEntry>) -> Result<(), MasterError> {
        let bytes = entries
            .iter()
            .map(|entry| {
                128 + entry.filepath.len() + entry.content_bytes.as_ref().map_or(0, Vec::len)
            })
            .sum();
        self.queued_bytes += bytes;
        // One batch alone is bounded by the frame; the limit is for those behind it.
        if self.queued_bytes > MAX_QUEUED_WRITE_BACK && !self.batches.is_empty() {
            return Err(MasterError::TooMuchWriteBack);
        }
        self.batches.push_back(Batch {
            entries: Arc::new(entries),
            bytes,
            missing: HashSet::new(),
            unavailable: HashSet::new(),
            state: BatchState::New,
        });
        Ok(())
    }

    /// Notifications were completed with their inline contents.
    pub fn announced(&mut self, epoch: u64, changes: Vec<Announcement>) {
        if epoch != self.epoch || !self.announcing {
            return;
        }
        self.announcing = false;
        for (change, inline) in changes {
            let bytes = inline.as_ref().map_or(0, Vec::len);
            self.cursor = self.cursor.max(change.sequence);
            self.unacked.insert(change.sequence, bytes);
            self.unacked_bytes += bytes;
            self.out.push_back(notification(change, inline));
        }
    }

    /// A flush brought the ledger to this sequence.
    pub fn flushed(&mut self, barrier: u64, sequence: u64) {
        if let Some(barrier) = self
            .barriers
            .iter_mut()
            .find(|waiting| waiting.id == barrier)
        {
            barrier.reached = Some(sequence);
        }
    }

    /// A content was read.
    pub fn content_loaded(&mut self, content_hash: String, offer: Offer) {
        self.loading = self.loading.saturating_sub(1);
        self.out.push_back(fetch::answer(content_hash, offer));
    }

    /// Contents of the first batch that are not at hand.
    pub fn prepared(&mut self, missing: Vec<(ContentHash, u64)>) {
        let Some(batch) = self.batches.front_mut() else {
            return;
        };
        batch.state = BatchState::Fetching;
        for (hash, size) in missing {
            batch.missing.insert(hash);
            self.fetches.want(hash, size);
        }
    }

    /// A content of the first batch is at hand.
    pub fn content_kept(&mut self, hash: &ContentHash) {
        if let Some(batch) = self.batches.front_mut() {
            batch.missing.remove(hash);
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
    ) -> Result<(), MasterError> {
        Ok(self.fetches.finished(hash, finish)?)
    }

    /// The first batch was decided and recorded.
    pub fn committed(&mut self, outcome: WriteBackOutcome) {
        if let Some(batch) = self.batches.pop_front() {
            self.queued_bytes = self.queued_bytes.saturating_sub(batch.bytes);
        }
        self.out.push_back(WireMessage::WriteBackResult {
            accepted: outcome
                .accepted
                .into_iter()
                .map(|(local, sequence)| (local, i64::try_from(sequence).unwrap_or(i64::MAX)))
                .collect(),
            rejected: outcome.rejected,
        });
    }

    /// When [`poll_message`](Self::poll_message) should be called again though
    /// nothing happened.
    pub fn poll_timeout(&self) -> Duration {
        match self.window_full_since {
            Some(since) => self.next_heartbeat.min(since + WINDOW_GRACE),
            None => self.next_heartbeat,
        }
    }

    /// The next effect to carry out.
    pub fn poll_effect(&mut self, now: Duration, ledger: &Ledger) -> Option<MasterEffect> {
        self.announce(now, ledger);
        self.drive_fetches();
        self.drive_batches();
        // A few contents at a time: the rest waits as 64-byte names.
        if self.loading < 4
            && self.out.len() < ANNOUNCE_AT_ONCE
            && let Some(content_hash) = self.requests.pop_front()
        {
            self.loading += 1;
            self.effects
                .push_back(MasterEffect::LoadContent { content_hash });
        }
        self.effects.pop_front()
    }

    /// The next message to send. Call it only when the transport takes more.
    pub fn poll_message(&mut self, now: Duration, ledger: &Ledger) -> Option<WireMessage> {
        self.drive_fetches();
        if let Some(message) = self.out.pop_front() {
            return Some(message);
        }
        if let Phase::CatchingUp { live_until } = self.phase
            && ledger.floor() > live_until.max(self.cursor)
        {
            // A deletion that this replica needs was forgotten meanwhile.
            self.require_resync(format!("log starts at {}", ledger.floor()), ledger);
            return self.out.pop_front();
        }
        let idle = !self.announcing && self.phase != Phase::Idle;
        if let Phase::CatchingUp { live_until } = self.phase
            && idle
            // Its end says what else the replica has to remove.
            && !ledger.is_partial()
            && ledger.newest_after(self.cursor, live_until, 1).is_empty()
        {
            self.phase = Phase::Live;
            self.cursor = ledger.current();
            return Some(self.heartbeat(now, ledger));
        }
        if let Some(message) = self.poll_barrier() {
            return Some(message);
        }
        if self.phase == Phase::Live && idle && ledger.stream_after(self.cursor, 1).is_none() {
            // What the replica lacks is no longer at hand one by one. The
            // heartbeat shows it the gap, and it will ask for a catch-up.
            self.phase = Phase::Behind;
            return Some(self.heartbeat(now, ledger));
        }
        // Elsewhere it could be taken for the end of a catch-up, or for a gap ahead of notifications.
        let is_live = self.phase == Phase::Live;
        let periodic = is_live && !self.announcing && self.cursor == ledger.current();
        if now >= self.next_heartbeat {
            if periodic {
                return Some(self.heartbeat(now, ledger));
            }
            self.next_heartbeat = now + HEARTBEAT_EVERY;
        }
        None
    }

    fn heartbeat(&mut self, now: Duration, ledger: &Ledger) -> WireMessage {
        self.next_heartbeat = now + HEARTBEAT_EVERY;
        WireMessage::Heartbeat {
            agent_sequence: ledger.current(),
            agent_iteration: i64::try_from(ledger.current()).unwrap_or(i64::MAX),
        }
    }

    fn poll_barrier(&mut self) -> Option<WireMessage> {
        let barrier = self.barriers.front()?;
        let reached = barrier.reached?;
        let sent = self.phase == Phase::Live && self.cursor >= reached && !self.announcing;
        if barrier.owed && !sent {
            return None;
        }
        let satisfied = reached >= barrier.wanted;
        self.barriers.pop_front();
        Some(WireMessage::BarrierConfirmation {
            satisfied,
            current_sequence: reached,
        })
    }

    fn announce(&mut self, now: Duration, ledger: &Ledger) {
        if self.announcing || self.out.len() >= ANNOUNCE_AT_ONCE {
            return;
        }
        if !self.window_open() {
            let since = *self.window_full_since.get_or_insert(now);
            if now < since + WINDOW_GRACE {
                return;
            }
            self.unacked.clear();
            self.unacked_bytes = 0;
            self.window_full_since = None;
        }
        let changes = match self.phase {
            Phase::CatchingUp { live_until } if ledger.floor() > live_until.max(self.cursor) => {
                return;
            }
            Phase::CatchingUp { live_until } => {
                ledger.newest_after(self.cursor, live_until, ANNOUNCE_AT_ONCE)
            }
            Phase::Live => ledger
                .stream_after(self.cursor, ANNOUNCE_AT_ONCE)
                .unwrap_or_default(),
            Phase::Idle | Phase::Behind => return,
        };
        if !changes.is_empty() {
            self.announcing = true;
            self.effects.push_back(MasterEffect::Announce {
                epoch: self.epoch,
                changes,
            });
        }
    }

    fn drive_fetches(&mut self) {
        while let Some(step) = self.fetches.poll() {
            match step {
                FetchStep::Request(hash) => self.out.push_back(fetch::request(&hash)),
                FetchStep::Plan { hash, manifest } => {
                    self.effects
                        .push_back(MasterEffect::Plan { hash, manifest });
                }
                FetchStep::KeepChunk {
                    hash,
                    chunk,
                    bytes,
                    offsets,
                } => {
                    self.effects.push_back(MasterEffect::KeepChunk {
                        hash,
                        chunk,
                        bytes,
                        offsets,
                    });
                }
                FetchStep::Finish(hash) => {
                    self.effects.push_back(MasterEffect::FinishContent { hash });
                }
                FetchStep::Ready(hash, Some(bytes)) => {
                    self.effects
                        .push_back(MasterEffect::KeepContent { hash, bytes });
                }
                FetchStep::Ready(hash, None) => self.content_kept(&hash),
                FetchStep::NotFound(hash) => {
                    if let Some(batch) = self.batches.front_mut() {
                        batch.missing.remove(&hash);
                        batch.unavailable.insert(hash);
                    }
                }
            }
        }
    }

    fn drive_batches(&mut self) {
        let (Some(batch), Some(sandbox)) = (self.batches.front_mut(), &self.sandbox) else {
            return;
        };
        match batch.state {
            BatchState::New => {
                batch.state = BatchState::Preparing;
                self.effects.push_back(MasterEffect::Prepare {
                    sandbox_id: Arc::clone(sandbox),
                    entries: Arc::clone(&batch.entries),
                });
            }
            BatchState::Fetching if batch.missing.is_empty() => {
                batch.state = BatchState::Committing;
                self.effects.push_back(MasterEffect::Commit {
                    sandbox_id: Arc::clone(sandbox),
                    entries: Arc::clone(&batch.entries),
                    unavailable: std::mem::take(&mut batch.unavailable),
                });
            }
            BatchState::Preparing | BatchState::Fetching | BatchState::Committing => {}
        }
    }
}

/// The message that announces a change.
fn notification(change: Change, inline_content: Option<Vec<u8>>) -> WireMessage {
    let Change {
        sequence,
        path,
        node,
    } = change;
    let filepath = path.to_string();
    match node {
        Some(node) => WireMessage::Notification {
            sequence,
            filepath,
            content_hash: node.hash.to_string(),
            size: node.size,
            permissions: node.permissions(),
            is_deletion: false,
            inline_content,
        },
        None => WireMessage::Notification {
            sequence,
            filepath,
            content_hash: String::new(),
            size: 0,
            permissions: 0,
            is_deletion: true,
            inline_content: None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::ledger::Author;
    use crate::proto::node::Node;
    use crate::proto::path::WorkspacePath;

    #[test]
    fn a_catch_up_does_not_end_while_the_tree_is_read_for_the_first_time() {
        let mut ledger = Ledger::default();
        ledger.set_partial(true);
        let node = Node::directory(0o755);
        let record = |ledger: &mut Ledger, path: &str| {
            let path = WorkspacePath::parse(path).unwrap();
            ledger.record(path, Some(node.clone()), Author::Local("host".into()))
        };
        let mut session = MasterSession::new(Duration::ZERO);
        let request = WireMessage::CatchupRequest {
            sandbox_id: "one".into(),
            since_sequence: 0,
        };
        session.handle_message(request, &ledger).unwrap();
        let mut told = |ledger: &Ledger, now: Duration| {
            while let Some(effect) = session.poll_effect(now, ledger) {
                if let MasterEffect::Announce { epoch, changes } = effect {
                    let inline = |change| (change, Some(Vec::new()));
                    session.announced(epoch, changes.into_iter().map(inline).collect());
                }
            }
            let messages = std::iter::from_fn(|| session.poll_message(now, ledger));
            messages.map(|message| message.name()).collect::<Vec<_>>()
        };
        assert_eq!(told(&ledger, Duration::ZERO), [""; 0]);
        record(&mut ledger, "a");
        assert_eq!(told(&ledger, Duration::ZERO), ["Notification"]);
        assert_eq!(told(&ledger, 3 * HEARTBEAT_EVERY), [""; 0]);
        record(&mut ledger, "b");
        ledger.set_partial(false);
        assert_eq!(
            told(&ledger, 3 * HEARTBEAT_EVERY),
            ["Notification", "Heartbeat"]
        );
    }

    #[test]
    fn a_replica_that_acknowledges_only_at_the_end_is_not_kept_waiting() {
        let mut ledger = Ledger::default();
        let node = Node::file(0o644, &[7; 3_000]);
        for number in 0..10_000 {
            let path = WorkspacePath::parse(&number.to_string()).unwrap();
            ledger.record(path, Some(node.clone()), Author::Local("host".into()));
        }
        let mut session = MasterSession::new(Duration::ZERO);
        let request = WireMessage::CatchupRequest {
            sandbox_id: "one".into(),
            since_sequence: 0,
        };
        session.handle_message(request, &ledger).unwrap();
        let mut notified = 0;
        loop {
            while let Some(effect) = session.poll_effect(Duration::ZERO, &ledger) {
                if let MasterEffect::Announce { epoch, changes } = effect {
                    let inline = |change| (change, Some(vec![7; 3_000]));
                    session.announced(epoch, changes.into_iter().map(inline).collect());
                }
            }
            match session.poll_message(Duration::ZERO, &ledger) {
                Some(WireMessage::Notification { .. }) => notified += 1,
                end => {
                    assert!(matches!(end, Some(WireMessage::Heartbeat { .. })));
                    break;
                }
            }
        }
        assert_eq!(notified, 10_000);
    }
}
