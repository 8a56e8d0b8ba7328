//! The master's answer to a replica that asks for a catch-up and what follows, without I/O.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use quintet_workspace::proto::master::{HEARTBEAT_EVERY, MasterEffect, MasterError, MasterSession};
use quintet_workspace::proto::{
    Author, ContentHash, Ledger, Node, WireMessage, WorkspacePath, WriteBackEntry, WriteOperation,
};

const NOW: Duration = Duration::ZERO;
/// Bytes of each file in here.
const SIZE: usize = 4_000;

/// A master's side of a connection.
struct Master {
    ledger: Ledger,
    session: MasterSession,
    /// Effects that a test answers itself.
    effects: Vec<MasterEffect>,
}

impl Master {
    fn with(names: &[&str]) -> Self {
        let mut master = Self {
            ledger: Ledger::default(),
            session: MasterSession::new(NOW),
            effects: Vec::new(),
        };
        for name in names {
            master.writes(name);
        }
        master
    }

    fn records(&mut self, name: &str, node: Option<Node>) {
        let path = WorkspacePath::parse(name).unwrap();
        let author = Author::Local("host".into());
        self.ledger.record(path, node, author);
    }

    fn writes(&mut self, name: &str) {
        self.records(name, Some(Node::file(0o644, &[7; SIZE])));
    }

    fn hears(&mut self, message: WireMessage) -> Result<(), MasterError> {
        self.session.handle_message(message, &self.ledger)
    }

    fn is_asked(&mut self, since_sequence: u64) {
        let sandbox_id = "one".to_owned();
        self.hears(WireMessage::CatchupRequest {
            sandbox_id,
            since_sequence,
        })
        .unwrap();
    }

    fn is_told(&mut self, up_to_sequence: u64) {
        self.hears(WireMessage::Ack { up_to_sequence }).unwrap();
    }

    fn announces(&mut self, now: Duration) {
        while let Some(effect) = self.session.poll_effect(now, &self.ledger) {
            let MasterEffect::Announce { epoch, changes } = effect else {
                self.effects.push(effect);
                continue;
            };
            let inline = |change| (change, Some(vec![7; SIZE]));
            let changes = changes.into_iter().map(inline).collect();
            self.session.announced(epoch, changes);
        }
    }

    /// All that it says until it has nothing more to say.
    fn says(&mut self, now: Duration) -> Vec<WireMessage> {
        let mut said = Vec::new();
        loop {
            self.announces(now);
            match self.session.poll_message(now, &self.ledger) {
                Some(message) => said.push(message),
                None => return said,
            }
        }
    }

    /// The same, as words.
    fn outline(&mut self, now: Duration) -> Vec<String> {
        let word = |message: WireMessage| match message {
            WireMessage::Notification {
                sequence,
                is_deletion: true,
                ..
            } => format!("-{sequence}"),
            WireMessage::Notification { sequence, .. } => format!("+{sequence}"),
            WireMessage::Heartbeat { agent_sequence, .. } => format!("heartbeat {agent_sequence}"),
            WireMessage::BarrierConfirmation {
                satisfied,
                current_sequence,
            } => format!("barrier {satisfied} {current_sequence}"),
            WireMessage::FullResyncRequired {
                current_sequence, ..
            } => format!("resync {current_sequence}"),
            other => other.name().to_owned(),
        };
        self.says(now).into_iter().map(word).collect()
    }
}

#[test]
fn a_replica_that_asks_again_gets_one_answer() {
    let mut master = Master::with(&["a", "b", "c"]);
    master.is_asked(0);
    master.announces(NOW);
    master.is_asked(0);
    assert_eq!(master.outline(NOW), ["+1", "+2", "+3", "heartbeat 3"]);
}

#[test]
fn a_catch_up_is_the_newest_of_each_path_ascending_and_from_0_the_live_tree() {
    let mut master = Master::with(&["a", "b", "c", "d"]);
    master.records("b", None);
    master.writes("a");
    master.is_asked(0);
    assert_eq!(master.outline(NOW), ["+3", "+4", "+6", "heartbeat 6"]);
    master.is_asked(3);
    assert_eq!(master.outline(NOW), ["+4", "-5", "+6", "heartbeat 6"]);
    // What goes while it is being sent is taken back.
    master.is_asked(0);
    master.records("c", None);
    assert_eq!(master.outline(NOW), ["+4", "+6", "-7", "heartbeat 7"]);
}

#[test]
fn what_the_history_cannot_tell_has_to_be_compared() {
    let mut master = Master::with(&["a", "b", "c"]);
    // It is ahead of a history that was lost, or behind one that was pruned.
    master.is_asked(4);
    assert_eq!(master.outline(NOW), ["resync 3"]);
    master.records("a", None);
    master.writes("d");
    master.ledger.forget_through(4);
    master.is_asked(3);
    assert_eq!(master.outline(NOW), ["resync 5"]);
    master.is_asked(4);
    assert_eq!(master.outline(NOW), ["+5", "heartbeat 5"]);
    // It is pruned while it is being sent.
    master.is_asked(4);
    master.records("b", None);
    master.writes("e");
    master.ledger.forget_through(6);
    assert_eq!(master.outline(NOW), ["resync 7"]);
}

#[test]
fn a_replica_that_is_up_to_date_hears_a_heartbeat_every_five_seconds() {
    let mut master = Master::with(&["a"]);
    master.is_asked(0);
    assert_eq!(master.outline(NOW), ["+1", "heartbeat 1"]);
    assert_eq!(HEARTBEAT_EVERY, Duration::from_secs(5));
    for beat in 1..4 {
        let at = beat * HEARTBEAT_EVERY;
        assert_eq!(master.session.poll_timeout(), at);
        let before = at - Duration::from_millis(1);
        assert!(master.says(before).is_empty());
        assert_eq!(master.outline(at), ["heartbeat 1"]);
    }
}

#[test]
fn an_acknowledgement_counts_for_all_before_it_and_for_nothing_that_was_not_sent() {
    let mut master = Master::with(&["a", "b", "c"]);
    master.is_asked(0);
    assert_eq!(master.says(NOW).len(), 4);
    assert_eq!(master.session.acked(), 0);
    for (told, acked) in [(2, 2), (1, 2), (99, 3)] {
        master.is_told(told);
        assert_eq!(master.session.acked(), acked);
    }
}

#[test]
fn a_replica_that_falls_behind_is_sent_more_when_it_acknowledges_or_after_a_while() {
    let names: Vec<String> = (0..30_000).map(|number| number.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let window = 32 << 20;
    let mut master = Master::with(&names);
    master.is_asked(0);
    let first = master.says(NOW).len();
    // No more than fits, but for the last batch.
    assert!(
        (window / SIZE..window / SIZE + 512).contains(&first),
        "{first}"
    );
    assert!(master.says(NOW).is_empty());
    master.is_told(first as u64);
    let second = master.says(NOW).len();
    assert_eq!(second, first, "one acknowledgement frees all before it");
    // It says nothing until it has everything.
    let grace = Duration::from_secs(2);
    assert_eq!(master.session.poll_timeout(), grace);
    assert!(master.says(grace - Duration::from_millis(1)).is_empty());
    let third = master.says(grace).len();
    assert_eq!(third, first);
    let rest = master.says(3 * grace).len();
    assert_eq!(first + second + third + rest, names.len() + 1);
}

#[test]
fn a_barrier_is_answered_behind_what_came_before_it() {
    let mut master = Master::with(&["a"]);
    master.is_asked(0);
    for sequence in [0, 2, 3] {
        master
            .hears(WireMessage::BarrierRequest { sequence })
            .unwrap();
    }
    assert_eq!(
        master.outline(NOW),
        ["+1", "heartbeat 1"],
        "nothing was flushed"
    );
    // The flushes find something.
    master.writes("b");
    for effect in std::mem::take(&mut master.effects) {
        let MasterEffect::Flush { barrier } = effect else {
            panic!("{effect:?}")
        };
        master.session.flushed(barrier, 2);
    }
    assert_eq!(master.session.poll_message(NOW, &master.ledger), None);
    let answers = ["+2", "barrier true 2", "barrier true 2", "barrier false 2"];
    assert_eq!(master.outline(NOW), answers);
}

#[test]
fn who_asks_or_writes_more_than_may_wait_is_cut_off() {
    let mut master = Master::with(&[]);
    master.is_asked(0);
    let content_hash = ContentHash::of(b"x").to_string();
    let asked = (0..70_000).find_map(|count: u32| {
        let content_hash = content_hash.clone();
        let asked = master.hears(WireMessage::ContentFetchRequest { content_hash });
        asked.err().map(|error| (count, error))
    });
    assert!(matches!(
        asked,
        Some((65_536, MasterError::TooManyRequests))
    ));

    let mut master = Master::with(&[]);
    let mut writes = |megabytes: usize| {
        let entry = WriteBackEntry {
            local_seq: 1,
            filepath: "f".into(),
            operation: WriteOperation::Write,
            content_hash: None,
            content_bytes: Some(vec![0; megabytes << 20]),
            size: 0,
            permissions: 0o644,
            is_deletion: false,
            master_rowid_seen: 0,
        };
        let (sandbox_id, entries) = ("one".to_owned(), vec![entry]);
        master.hears(WireMessage::WriteBack {
            sandbox_id,
            entries,
        })
    };
    for megabytes in [99, 99, 57] {
        writes(megabytes).unwrap();
    }
    assert!(matches!(writes(1), Err(MasterError::TooMuchWriteBack)));
}
