//! A master and a replica that each meet a peer which says anything at any time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use quintet_workspace::proto::fetch::{Finish, Offer};
use quintet_workspace::proto::manifest::{ChunkRef, Manifest};
use quintet_workspace::proto::master::{MasterEffect, MasterSession, WriteBackOutcome};
use quintet_workspace::proto::replica::{
    ApplyOutcome, ContentSource, LocalChange, ReplicaCore, ReplicaEffect, ReplicaEvent, Restored,
};
use quintet_workspace::proto::{
    Author, ContentHash, Ledger, Node, WireMessage, WorkspacePath, WriteBackEntry, WriteOperation,
};

use crate::choices::Choices;

const PATHS: [&str; 6] = ["a", "a/b", "a/b/c", "d", "../x", ""];
/// Contents by their number; 0 is empty.
const CONTENTS: usize = 5;
const CHUNK: usize = 8;

/// Byte 0 picks who is honest.
pub fn workspace_peers(data: &[u8]) {
    let mut choices = Choices::new(data);
    match choices.flag() {
        true => a_master_stands_any_replica(&mut choices),
        false => a_replica_stands_any_master(&mut choices),
    }
}

/// The last one is long enough to be sent in chunks, two of which are equal.
fn content(number: usize) -> Vec<u8> {
    match number % CONTENTS {
        0 => Vec::new(),
        4 => [[1; CHUNK], [2; CHUNK], [1; CHUNK]].concat(),
        number => vec![number as u8; number],
    }
}

fn hash(number: usize) -> ContentHash {
    ContentHash::of(&content(number))
}

fn manifest(number: usize) -> Manifest {
    let content = content(number);
    let chunks = content
        .chunks(CHUNK)
        .enumerate()
        .map(|(at, chunk)| ChunkRef {
            hash: ContentHash::of(chunk),
            offset: (at * CHUNK) as u64,
            size: chunk.len() as u64,
        });
    Manifest {
        total_size: content.len() as u64,
        chunk_size: CHUNK as u64,
        chunks: chunks.collect(),
    }
}

fn any_hash(choices: &mut Choices<'_>) -> String {
    match choices.below(8) {
        0 => "not a hash".to_owned(),
        1 => ContentHash::of(&[1; CHUNK]).to_string(),
        2 => ContentHash::of(&[2; CHUNK]).to_string(),
        number => hash(number).to_string(),
    }
}

fn any_message(choices: &mut Choices<'_>) -> WireMessage {
    match choices.below(12) {
        0 => {
            let number = choices.below(CONTENTS);
            let right = choices.flag();
            WireMessage::Notification {
                sequence: choices.number(),
                filepath: choices.of(&PATHS).to_owned(),
                content_hash: if right {
                    hash(number).to_string()
                } else {
                    any_hash(choices)
                },
                size: if right {
                    content(number).len() as u64
                } else {
                    choices.number()
                },
                permissions: choices.of(&[0o644, 0o755, 0o040_755, 0o120_777, 0o060_000, -1]),
                is_deletion: choices.below(4) == 0,
                inline_content: choices.flag().then(|| content(number)),
            }
        }
        1 => WireMessage::Heartbeat {
            agent_sequence: choices.number(),
            agent_iteration: 0,
        },
        2 => WireMessage::WriteBack {
            sandbox_id: choices.of(&["box", "box", "box", "other"]).to_owned(),
            entries: (0..choices.below(4)).map(|_| any_entry(choices)).collect(),
        },
        3 => WireMessage::WriteBackResult {
            accepted: (0..choices.below(3))
                .map(|_| (choices.number(), choices.number().cast_signed()))
                .collect(),
            rejected: (0..choices.below(3))
                .map(|_| (choices.number(), "no".to_owned()))
                .collect(),
        },
        4 => WireMessage::BarrierRequest {
            sequence: choices.number(),
        },
        5 => WireMessage::BarrierConfirmation {
            satisfied: choices.flag(),
            current_sequence: choices.number(),
        },
        6 => WireMessage::Ack {
            up_to_sequence: choices.number(),
        },
        7 => WireMessage::ContentFetchRequest {
            content_hash: any_hash(choices),
        },
        8 => any_response(choices),
        9 => WireMessage::ContentNotFound {
            content_hash: any_hash(choices),
        },
        10 => WireMessage::CatchupRequest {
            sandbox_id: choices.of(&["box", "box", "box", "other"]).to_owned(),
            since_sequence: choices.number(),
        },
        _ => WireMessage::FullResyncRequired {
            reason: String::new(),
            current_sequence: choices.number(),
        },
    }
}

fn any_response(choices: &mut Choices<'_>) -> WireMessage {
    let number = choices.below(CONTENTS);
    let content = content(number);
    let right = choices.below(4) != 0;
    WireMessage::ContentFetchResponse {
        content_hash: any_hash(choices),
        size: if right {
            content.len() as u64
        } else {
            choices.number()
        },
        chunk_manifest: choices.flag().then(|| manifest(number).to_json()),
        content: content.into(),
    }
}

fn any_entry(choices: &mut Choices<'_>) -> WriteBackEntry {
    let number = choices.below(CONTENTS);
    WriteBackEntry {
        local_seq: choices.number(),
        filepath: choices.of(&PATHS).to_owned(),
        operation: match choices.below(5) {
            0 | 1 => WriteOperation::Write,
            2 => WriteOperation::Delete,
            3 => WriteOperation::Rename {
                new_path: choices.of(&PATHS).to_owned(),
            },
            _ => WriteOperation::Chmod,
        },
        content_hash: choices.flag().then(|| any_hash(choices)),
        content_bytes: choices.flag().then(|| content(number)),
        size: content(number).len() as i64,
        permissions: choices.of(&[0o644, 0o040_755, 0o120_777, 0o060_000, -1]),
        is_deletion: choices.below(8) == 0,
        master_rowid_seen: choices.number().cast_signed(),
    }
}

/// What the answer to a question for content may be: true, in parts, or nothing.
fn any_offer(choices: &mut Choices<'_>) -> Offer {
    match choices.below(3) {
        0 => Offer::Nothing,
        1 => Offer::Chunks(manifest(choices.below(CONTENTS))),
        _ => Offer::Whole(content(choices.below(CONTENTS)).into()),
    }
}

fn any_finish(choices: &mut Choices<'_>) -> Finish {
    match choices.below(4) {
        0 => Finish::Wrong,
        1 => Finish::Missing(vec![choices.below(4), choices.below(4)]),
        _ => Finish::Right,
    }
}

fn a_master_stands_any_replica(choices: &mut Choices<'_>) {
    let mut ledger = Ledger::default();
    let mut session = MasterSession::new(Duration::ZERO);
    let mut now = Duration::ZERO;
    let mut effects: VecDeque<MasterEffect> = VecDeque::new();
    let mut owed = Owed::default();
    for _ in 0..96 {
        if choices.is_empty() {
            break;
        }
        match choices.below(8) {
            0 | 1 => {
                let message = any_message(choices);
                owed.note(&message);
                // What is no longer taken closes the connection.
                if session.handle_message(message, &ledger).is_err() {
                    return;
                }
            }
            2 => now += Duration::from_millis(u64::from(choices.byte()) * 40),
            3 => {
                let path = choices.of(&PATHS[..4]);
                let path = WorkspacePath::parse(path).expect("a good path");
                let node = choices
                    .flag()
                    .then(|| Node::file(0o644, &content(choices.below(CONTENTS))));
                ledger.record(path, node, Author::Local("host".into()));
            }
            4 if choices.below(8) == 0 => ledger.forget_through(ledger.current().saturating_sub(3)),
            _ => {
                if let Some(effect) = effects.pop_front()
                    && carried_out(&mut session, effect, &ledger, choices).is_err()
                {
                    return;
                }
            }
        }
        while let Some(effect) = session.poll_effect(now, &ledger) {
            effects.push_back(effect);
        }
        for _ in 0..choices.below(16) {
            let Some(message) = session.poll_message(now, &ledger) else {
                assert!(session.poll_timeout() > now, "busy with nothing");
                break;
            };
            owed.paid(&message, &ledger);
            message.encode().expect("a message fits into a frame");
        }
        assert!(session.acked() <= ledger.current());
    }
}

/// Questions of a replica, each of which is answered at most once.
#[derive(Default)]
struct Owed {
    results: usize,
    barriers: usize,
    contents: usize,
    catch_ups: usize,
    last: u64,
}

impl Owed {
    fn note(&mut self, message: &WireMessage) {
        match message {
            WireMessage::WriteBack { .. } => self.results += 1,
            WireMessage::BarrierRequest { .. } => self.barriers += 1,
            WireMessage::ContentFetchRequest { .. } => self.contents += 1,
            WireMessage::CatchupRequest { .. } => {
                self.catch_ups += 1;
                self.last = 0;
            }
            _ => {}
        }
    }

    fn paid(&mut self, message: &WireMessage, ledger: &Ledger) {
        let spend = |owed: &mut usize| {
            *owed = owed
                .checked_sub(1)
                .unwrap_or_else(|| panic!("{message:?} unasked"));
        };
        match message {
            WireMessage::Notification { sequence, .. } => {
                assert!(self.catch_ups > 0 && *sequence <= ledger.current());
                assert!(*sequence > self.last, "{sequence} after {}", self.last);
                self.last = *sequence;
            }
            WireMessage::WriteBackResult { .. } => spend(&mut self.results),
            WireMessage::BarrierConfirmation { .. } => spend(&mut self.barriers),
            WireMessage::ContentFetchResponse { .. } | WireMessage::ContentNotFound { .. } => {
                spend(&mut self.contents);
            }
            WireMessage::Heartbeat { agent_sequence, .. } => {
                assert!(self.catch_ups > 0);
                assert_eq!(*agent_sequence, ledger.current());
            }
            WireMessage::FullResyncRequired { .. } => assert!(self.catch_ups > 0),
            WireMessage::ContentFetchRequest { content_hash } => {
                assert!(ContentHash::parse(content_hash).is_some());
            }
            _ => panic!("a master sent {}", message.name()),
        }
    }
}

fn carried_out(
    session: &mut MasterSession,
    effect: MasterEffect,
    ledger: &Ledger,
    choices: &mut Choices<'_>,
) -> Result<(), ()> {
    match effect {
        MasterEffect::Announce { epoch, changes } => {
            session.announced(
                epoch,
                changes.into_iter().map(|change| (change, None)).collect(),
            );
        }
        MasterEffect::Flush { barrier } => session.flushed(barrier, ledger.current()),
        MasterEffect::LoadContent { content_hash } => {
            session.content_loaded(content_hash, any_offer(choices));
        }
        MasterEffect::Prepare { .. } => {
            let missing = (0..choices.below(4)).map(|_| choices.below(CONTENTS));
            let missing: BTreeSet<usize> = missing.collect();
            let sized = |number: usize| (hash(number), content(number).len() as u64);
            session.prepared(missing.into_iter().map(sized).collect());
        }
        MasterEffect::KeepContent { hash, bytes } => {
            assert_eq!(ContentHash::of(&bytes), hash, "unverified content");
            session.content_kept(&hash);
        }
        MasterEffect::Plan { hash, manifest } => {
            session.planned(&hash, &some_of(&manifest, choices));
        }
        MasterEffect::KeepChunk {
            hash,
            chunk,
            bytes,
            offsets,
        } => {
            assert_eq!(ContentHash::of(&bytes), chunk, "an unverified chunk");
            session.chunk_kept(&hash, offsets.len());
        }
        MasterEffect::FinishContent { hash } => {
            session
                .content_finished(&hash, &any_finish(choices))
                .map_err(drop)?;
        }
        MasterEffect::Commit { entries, .. } => {
            let answer = |entry: &WriteBackEntry| (entry.local_seq, 1);
            session.committed(WriteBackOutcome {
                accepted: entries.iter().map(answer).collect(),
                rejected: Vec::new(),
            });
        }
    }
    Ok(())
}

fn some_of(manifest: &Manifest, choices: &mut Choices<'_>) -> Vec<usize> {
    (0..manifest.chunks.len())
        .filter(|_| choices.flag())
        .collect()
}

fn a_replica_stands_any_master(choices: &mut Choices<'_>) {
    let mut core = ReplicaCore::restore(Arc::from("box"), Restored::default());
    let mut now = Duration::ZERO;
    let mut effects: VecDeque<ReplicaEffect> = VecDeque::new();
    let (mut announced, mut barriers, mut local) = (0, BTreeSet::new(), BTreeMap::new());
    for step in 0..96 {
        if choices.is_empty() {
            break;
        }
        match choices.below(10) {
            0..=2 => {
                let message = any_message(choices);
                if let WireMessage::Notification { .. } = message {
                    announced += 1;
                }
                if core.handle_message(now, message).is_err() {
                    core.disconnected();
                }
            }
            3 if !core.is_connected() => core.connected(now),
            3 if choices.below(8) == 0 => core.disconnected(),
            4 => now += Duration::from_millis(u64::from(choices.byte()) * 40),
            5 => {
                let path = WorkspacePath::parse(choices.of(&PATHS[..4])).expect("a good path");
                let node = choices
                    .flag()
                    .then(|| Node::file(0o644, &content(choices.below(CONTENTS))));
                core.local_changes(vec![LocalChange {
                    path,
                    node,
                    renamed_from: None,
                }]);
            }
            6 => {
                core.request_barrier(step, choices.number());
                barriers.insert(step);
            }
            _ => {
                if let Some(effect) = effects.pop_front()
                    && done(&mut core, effect, now, choices, &mut local).is_err()
                {
                    core.disconnected();
                }
            }
        }
        if core.poll_timeout().is_some_and(|at| at <= now) {
            core.handle_timeout(now);
        }
        for _ in 0..64 {
            match core.poll_effect() {
                Some(effect) => effects.push_back(effect),
                None => break,
            }
        }
        while let Some(event) = core.poll_event() {
            if let ReplicaEvent::BarrierPassed { id, sequence, .. } = event {
                assert!(barriers.remove(&id), "a barrier was passed twice");
                assert!(core.applied_through() >= sequence);
            }
        }
        while let Some(message) = core.poll_message() {
            let to_master = matches!(
                message,
                WireMessage::WriteBack { .. }
                    | WireMessage::BarrierRequest { .. }
                    | WireMessage::Ack { .. }
                    | WireMessage::ContentFetchRequest { .. }
                    | WireMessage::ContentFetchResponse { .. }
                    | WireMessage::ContentNotFound { .. }
                    | WireMessage::CatchupRequest { .. }
            );
            assert!(to_master, "a replica sent {}", message.name());
        }
        // Beside what was announced there are only removals and returns to what was.
        assert!(core.incoming_len() <= announced + PATHS.len());
        assert!(core.journal_len() as u64 <= core.last_local_seq());
    }
}

fn done(
    core: &mut ReplicaCore,
    effect: ReplicaEffect,
    now: Duration,
    choices: &mut Choices<'_>,
    journal: &mut BTreeMap<u64, ()>,
) -> Result<(), ()> {
    match effect {
        ReplicaEffect::Apply(items) => {
            let outcomes = items.into_iter().map(|item| {
                if let (ContentSource::Bytes(bytes), Some(node)) = (&item.content, &item.node) {
                    assert_eq!(ContentHash::of(bytes), node.hash, "unverified content");
                }
                let change = || LocalChange {
                    path: item.path.clone(),
                    node: None,
                    renamed_from: None,
                };
                let outcome = match choices.below(8) {
                    0 => ApplyOutcome::DoneBut(change()),
                    1 => ApplyOutcome::Diverged(change()),
                    2 => ApplyOutcome::NeedContent,
                    3 => ApplyOutcome::Blocked("in the way".to_owned()),
                    _ => ApplyOutcome::Done,
                };
                (item.path.clone(), item.sequence, outcome)
            });
            let outcomes = outcomes.collect();
            core.applied(now, outcomes);
        }
        ReplicaEffect::SaveProgress { .. }
        | ReplicaEffect::ForgetSequences
        | ReplicaEffect::DropPlanned => {}
        ReplicaEffect::Journal(entries) => {
            for entry in &entries {
                let new = journal.insert(entry.local_seq, ()).is_none();
                assert!(new, "the number {} was used twice", entry.local_seq);
            }
            core.journalled(entries.last().expect("an entry").local_seq);
        }
        ReplicaEffect::Settle(settlements) => assert!(!settlements.is_empty()),
        ReplicaEffect::LoadInline(wanted) => {
            let found = wanted.into_iter().filter(|_| choices.below(4) != 0);
            let found = found.map(|(number, _)| (number, content(1))).collect();
            core.inline_loaded(found);
        }
        ReplicaEffect::LoadContent { content_hash } => {
            core.content_loaded(content_hash, any_offer(choices));
        }
        ReplicaEffect::Plan { hash, manifest, .. } => {
            core.planned(&hash, &some_of(&manifest, choices));
        }
        ReplicaEffect::KeepChunk { hash, .. } if choices.below(8) == 0 => {
            core.chunk_kept(&hash, 0);
            core.content_not_kept(now, &hash, "the disk is full");
        }
        ReplicaEffect::KeepChunk { hash, offsets, .. } => core.chunk_kept(&hash, offsets.len()),
        ReplicaEffect::FinishContent { hash } => {
            core.content_finished(&hash, &any_finish(choices))
                .map_err(drop)?;
        }
    }
    Ok(())
}
