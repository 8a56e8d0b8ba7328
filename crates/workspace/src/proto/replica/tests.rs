use super::*;

fn heartbeat(sequence: u64) -> WireMessage {
    WireMessage::Heartbeat {
        agent_sequence: sequence,
        agent_iteration: i64::try_from(sequence).unwrap(),
    }
}

fn removed(sequence: u64, path: &str) -> WireMessage {
    WireMessage::Notification {
        sequence,
        filepath: path.into(),
        content_hash: String::new(),
        size: 0,
        permissions: 0,
        is_deletion: true,
        inline_content: None,
    }
}

fn folder(sequence: u64, path: &str) -> WireMessage {
    WireMessage::Notification {
        sequence,
        filepath: path.into(),
        content_hash: String::new(),
        size: 0,
        permissions: 0o040_755,
        is_deletion: false,
        inline_content: None,
    }
}

fn confirmation(sequence: u64) -> WireMessage {
    WireMessage::BarrierConfirmation {
        satisfied: true,
        current_sequence: sequence,
    }
}

/// A replica that holds these folders of a master, and is asked to compare them all.
fn comparing(folders: &[&str]) -> ReplicaCore {
    let folder = |path: &&str| {
        let path = WorkspacePath::parse(path).unwrap();
        let node = Node::directory(0o755);
        (path, Base { sequence: 3, node })
    };
    let restored = Restored {
        applied: 4,
        bases: folders.iter().map(folder).collect(),
        ..Restored::default()
    };
    let mut core = ReplicaCore::restore("one".into(), restored);
    core.connected(Duration::ZERO);
    hear(&mut core, heartbeat(4));
    // The master lost its history: it is behind what is held here.
    hear(&mut core, heartbeat(3));
    core
}

/// How often the whole tree was asked for since it was last looked at.
fn asked_for_all(core: &mut ReplicaCore) -> usize {
    let is_request = |message: &WireMessage| {
        matches!(
            message,
            WireMessage::CatchupRequest {
                since_sequence: 0,
                ..
            }
        )
    };
    let messages = std::iter::from_fn(|| core.poll_message());
    messages.filter(is_request).count()
}

/// Puts everything in place, and says what was removed.
fn removals(core: &mut ReplicaCore) -> Vec<String> {
    let mut gone = Vec::new();
    while let Some(effect) = core.poll_effect() {
        let ReplicaEffect::Apply(items) = effect else {
            continue;
        };
        let removed = items.iter().filter(|item| item.node.is_none());
        gone.extend(removed.map(|item| item.path.to_string()));
        let done = items
            .into_iter()
            .map(|item| (item.path, item.sequence, ApplyOutcome::Done));
        core.applied(Duration::ZERO, done.collect());
    }
    gone
}

/// A replica that follows the stream at this sequence.
fn live(sequence: u64) -> ReplicaCore {
    let mut core = ReplicaCore::restore("one".into(), Restored::default());
    core.connected(Duration::ZERO);
    hear(&mut core, heartbeat(sequence));
    while core.poll_message().is_some() {}
    core
}

fn hear(core: &mut ReplicaCore, message: WireMessage) {
    core.handle_message(Duration::ZERO, message).unwrap();
}

#[test]
fn heartbeats_that_crossed_a_request_do_not_end_it() {
    let mut core = live(4);
    // The gap makes it ask again; what the master sent before it heard that follows.
    hear(&mut core, removed(6, "a"));
    let asked = WireMessage::CatchupRequest {
        sandbox_id: "one".into(),
        since_sequence: 4,
    };
    assert_eq!(core.poll_message(), Some(asked));
    hear(&mut core, heartbeat(6));
    hear(&mut core, removed(7, "b"));
    hear(&mut core, heartbeat(7));
    hear(&mut core, heartbeat(7));
    assert!(!core.is_current());
    // What it asked for, and its end.
    hear(&mut core, removed(5, "c"));
    hear(&mut core, removed(6, "a"));
    hear(&mut core, removed(7, "b"));
    hear(&mut core, heartbeat(7));
    hear(&mut core, confirmation(7));
    hear(&mut core, removed(8, "d"));
}

#[test]
fn a_rename_says_that_the_deletion_of_its_target_was_seen() {
    let node = Node::file(0o644, b"a");
    let path = |text: &str| WorkspacePath::parse(text).unwrap();
    let base = Base {
        sequence: 3,
        node: node.clone(),
    };
    let restored = Restored {
        applied: 4,
        bases: BTreeMap::from([(path("a"), base)]),
        ..Restored::default()
    };
    let mut core = ReplicaCore::restore("one".into(), restored);
    core.connected(Duration::ZERO);
    hear(&mut core, removed(5, "b"));
    hear(&mut core, heartbeat(5));
    let Some(ReplicaEffect::Apply(items)) = core.poll_effect() else {
        panic!("the deletion is put in place")
    };
    let done = items
        .into_iter()
        .map(|item| (item.path, 5, ApplyOutcome::Done));
    core.applied(Duration::ZERO, done.collect());
    core.local_changes(vec![LocalChange {
        path: path("b"),
        node: Some(node),
        renamed_from: Some(path("a")),
    }]);
    let journalled = std::iter::from_fn(|| core.poll_effect())
        .find_map(|effect| match effect {
            ReplicaEffect::Journal(entries) => entries.into_iter().next(),
            _ => None,
        })
        .unwrap();
    assert_eq!(journalled.operation, Operation::Rename(path("b")));
    assert_eq!(journalled.base, 5);
}

#[test]
fn a_heartbeat_that_names_nothing_removes_nothing_by_itself() {
    let base = Base {
        sequence: 3,
        node: Node::file(0o644, b"a"),
    };
    let path = WorkspacePath::parse("a").unwrap();
    let restored = Restored {
        applied: 4,
        bases: BTreeMap::from([(path, base)]),
        ..Restored::default()
    };
    let mut core = ReplicaCore::restore("one".into(), restored);
    core.connected(Duration::ZERO);
    let required = WireMessage::FullResyncRequired {
        reason: "log starts at 5".into(),
        current_sequence: 6,
    };
    hear(&mut core, required);
    // Sent before the request was heard.
    hear(&mut core, heartbeat(6));
    assert!(!core.is_current());
    assert_eq!(core.incoming_len(), 0);
    // The tree is empty indeed when the master says so behind the request.
    hear(&mut core, heartbeat(6));
    hear(&mut core, confirmation(6));
    assert_eq!(core.incoming_len(), 1);
}

#[test]
fn a_master_that_answers_no_barrier_is_left_for_a_connection_that_needs_none() {
    let mut core = live(4);
    let second = Duration::from_secs(1);
    let hear_at = |core: &mut ReplicaCore, second, message| {
        core.handle_message(Duration::from_secs(second), message)
            .unwrap();
    };
    hear_at(&mut core, 3, removed(6, "a"));
    hear_at(&mut core, 7, removed(5, "b"));
    hear_at(&mut core, 8, removed(6, "a"));
    for at in (9..28).step_by(5) {
        hear_at(&mut core, at, heartbeat(6));
        assert!(!core.is_lost(second * u32::try_from(at).unwrap()));
    }
    assert_eq!(core.poll_timeout(), Some(28 * second));
    assert!(core.is_lost(28 * second));
    core.disconnected();
    core.connected(28 * second);
    hear_at(&mut core, 29, removed(5, "b"));
    hear_at(&mut core, 29, removed(6, "a"));
    hear_at(&mut core, 29, heartbeat(6));
    // What comes next is of the stream, and only silence would end it.
    hear_at(&mut core, 30, removed(7, "c"));
    hear_at(&mut core, 45, heartbeat(7));
    assert!(!core.is_lost(50 * second));
}

#[test]
fn what_was_sent_before_a_comparison_does_not_count_as_a_part_of_it() {
    let mut core = comparing(&["gone", "there"]);
    assert_eq!(asked_for_all(&mut core), 1);
    // Sent before the request was heard; it is gone by then.
    hear(&mut core, folder(5, "gone"));
    hear(&mut core, folder(7, "there"));
    hear(&mut core, heartbeat(7));
    hear(&mut core, confirmation(7));
    // Nobody can tell, and the whole tree is asked for once more.
    assert_eq!(asked_for_all(&mut core), 1);
    assert_eq!(removals(&mut core), [""; 0]);
    // Only what is newer can have crossed that request.
    hear(&mut core, folder(8, "gone"));
    hear(&mut core, folder(7, "there"));
    hear(&mut core, heartbeat(9));
    hear(&mut core, confirmation(9));
    assert_eq!(asked_for_all(&mut core), 0);
    assert_eq!(removals(&mut core), ["gone"]);
}

#[test]
fn a_gap_behind_a_comparison_compares_nothing() {
    let mut core = comparing(&["a", "b"]);
    for _ in 0..2 {
        assert_eq!(asked_for_all(&mut core), 1);
        for (sequence, path) in [(1, "a"), (2, "b"), (3, "c")] {
            hear(&mut core, folder(sequence, path));
        }
        hear(&mut core, heartbeat(3));
        hear(&mut core, confirmation(3));
    }
    assert_eq!(asked_for_all(&mut core), 0);
    // What was compared is not in place yet, and the stream goes on with a gap.
    hear(&mut core, heartbeat(5));
    assert_eq!(asked_for_all(&mut core), 0);
    hear(&mut core, folder(4, "d"));
    hear(&mut core, folder(5, "e"));
    hear(&mut core, heartbeat(5));
    hear(&mut core, confirmation(5));
    assert_eq!(asked_for_all(&mut core), 0);
    assert_eq!(removals(&mut core), [""; 0]);
}

#[test]
fn twenty_silent_seconds_are_a_lost_master() {
    let second = Duration::from_secs(1);
    let mut core = live(4);
    assert_eq!(core.poll_timeout(), Some(20 * second));
    assert!(!core.is_lost(20 * second - Duration::from_millis(1)));
    assert!(core.is_lost(20 * second));
    core.handle_message(15 * second, heartbeat(4)).unwrap();
    assert!(!core.is_lost(34 * second) && core.is_lost(35 * second));
    // A master that never says anything is no better.
    core.disconnected();
    assert!(!core.is_lost(100 * second), "nobody is waited for");
    core.connected(100 * second);
    assert!(!core.is_lost(119 * second) && core.is_lost(120 * second));
}

#[test]
fn a_heartbeat_shows_what_was_missed() {
    for (sequence, since_sequence) in [(6, 4), (3, 0)] {
        let mut core = live(4);
        hear(&mut core, heartbeat(4));
        assert_eq!(core.poll_message(), None);
        // Ahead of what came, or of a master that lost its history.
        hear(&mut core, heartbeat(sequence));
        let sandbox_id = "one".into();
        let asked = WireMessage::CatchupRequest {
            sandbox_id,
            since_sequence,
        };
        assert_eq!(core.poll_message(), Some(asked), "{sequence}");
    }
}

/// The next changes to put in place.
fn items(core: &mut ReplicaCore) -> Option<Vec<ApplyItem>> {
    std::iter::from_fn(|| core.poll_effect()).find_map(|effect| match effect {
        ReplicaEffect::Apply(items) => Some(items),
        _ => None,
    })
}

#[test]
fn only_what_is_in_place_is_acknowledged_and_passes_a_barrier() {
    let second = Duration::from_secs(1);
    let mut core = live(4);
    core.request_barrier(1, 0);
    let asked = WireMessage::BarrierRequest { sequence: 0 };
    assert_eq!(core.poll_message(), Some(asked));
    hear(&mut core, removed(5, "a"));
    hear(&mut core, removed(6, "b"));
    let confirmed = WireMessage::BarrierConfirmation {
        satisfied: true,
        current_sequence: 6,
    };
    hear(&mut core, confirmed);
    let both = items(&mut core).unwrap();
    assert_eq!((core.poll_message(), core.poll_event()), (None, None));
    let full = || ApplyOutcome::Blocked("full".into());
    let blocked = |event| matches!(event, Some(ReplicaEvent::Blocked { .. }));
    let up_to = |up_to_sequence| Some(WireMessage::Ack { up_to_sequence });
    let ended = |item: ApplyItem, outcome| (item.path, item.sequence, outcome);
    let outcomes = both.into_iter().zip([ApplyOutcome::Done, full()]);
    let outcomes = outcomes.map(|(item, outcome)| ended(item, outcome));
    core.applied(Duration::ZERO, outcomes.collect());
    // The first may have made room for the other.
    let [again] = items(&mut core).unwrap().try_into().unwrap();
    assert_eq!(core.poll_message(), up_to(5));
    core.applied(Duration::ZERO, vec![ended(again, full())]);
    assert!(blocked(core.poll_event()) && blocked(core.poll_event()));
    assert_eq!(core.poll_event(), None, "the barrier waits");
    assert_eq!((items(&mut core), core.poll_message()), (None, None));
    assert_eq!(core.poll_timeout(), Some(second));
    core.handle_timeout(second);
    let [again] = items(&mut core).unwrap().try_into().unwrap();
    core.applied(second, vec![ended(again, ApplyOutcome::Done)]);
    assert_eq!(core.poll_message(), up_to(6));
    let passed = ReplicaEvent::BarrierPassed {
        id: 1,
        satisfied: true,
        sequence: 6,
    };
    assert_eq!(core.poll_event(), Some(passed));
}

#[test]
fn another_history_is_compared_whatever_its_numbers_are() {
    let (old, new) = (Node::file(0o644, b"old"), Node::file(0o644, b"new"));
    let path = WorkspacePath::parse("f").unwrap();
    let entry = JournalEntry {
        local_seq: 1,
        path: WorkspacePath::parse("mine").unwrap(),
        operation: Operation::Delete,
        node: None,
        base: 19,
    };
    let base = Base {
        sequence: 20,
        node: old,
    };
    let restored = Restored {
        applied: 20,
        bases: BTreeMap::from([(path.clone(), base)]),
        journal: vec![entry],
        ..Restored::default()
    };
    let mut core = ReplicaCore::restore("one".into(), restored);
    core.connected(Duration::ZERO);
    core.request_barrier(1, 0);
    let required = WireMessage::FullResyncRequired {
        reason: "you are at 20, the log ends at 3".into(),
        current_sequence: 3,
    };
    hear(&mut core, required);
    assert_eq!(core.poll_effect(), Some(ReplicaEffect::ForgetSequences));
    assert_eq!(core.journal[&1].entry.base, 0);
    let changed = WireMessage::Notification {
        sequence: 1,
        filepath: "f".into(),
        content_hash: new.hash.to_string(),
        size: 3,
        permissions: 0o644,
        is_deletion: false,
        inline_content: Some(b"new".to_vec()),
    };
    hear(&mut core, changed);
    hear(&mut core, heartbeat(3));
    while core.poll_message().is_some() {}
    let confirmed = WireMessage::BarrierConfirmation {
        satisfied: true,
        current_sequence: 3,
    };
    hear(&mut core, confirmed);
    let [item] = items(&mut core).unwrap().try_into().unwrap();
    assert_eq!((&item.path, item.node), (&path, Some(new)));
    assert_eq!(core.poll_event(), None, "it is not in place");
    let done = (item.path, item.sequence, ApplyOutcome::Done);
    core.applied(Duration::ZERO, vec![done]);
    // What waits for an answer may have to go.
    assert_eq!(core.poll_event(), None);
    let answer = WireMessage::WriteBackResult {
        accepted: vec![(1, 3)],
        rejected: vec![],
    };
    hear(&mut core, answer);
    let events: Vec<_> = std::iter::from_fn(|| core.poll_event()).collect();
    assert!(
        matches!(
            events[..],
            [
                ReplicaEvent::Settled(_),
                ReplicaEvent::BarrierPassed { id: 1, .. }
            ]
        ),
        "{events:?}"
    );
}

#[test]
fn a_barrier_of_an_empty_history_waits_until_what_it_lacks_is_gone() {
    let base = Base {
        sequence: 20,
        node: Node::file(0o644, b"old"),
    };
    let path = WorkspacePath::parse("f").unwrap();
    let restored = Restored {
        applied: 20,
        bases: BTreeMap::from([(path.clone(), base)]),
        ..Restored::default()
    };
    let mut core = ReplicaCore::restore("one".into(), restored);
    core.connected(Duration::ZERO);
    core.request_barrier(1, 0);
    let required = WireMessage::FullResyncRequired {
        reason: "you are at 20, the log ends at 0".into(),
        current_sequence: 0,
    };
    hear(&mut core, required);
    // It says so twice, and is believed behind the fence.
    hear(&mut core, heartbeat(0));
    hear(&mut core, heartbeat(0));
    while core.poll_message().is_some() {}
    for _ in 0..2 {
        let confirmed = WireMessage::BarrierConfirmation {
            satisfied: true,
            current_sequence: 0,
        };
        hear(&mut core, confirmed);
    }
    assert_eq!(core.poll_event(), None);
    let [item] = items(&mut core).unwrap().try_into().unwrap();
    assert_eq!((&item.path, item.node), (&path, None));
    let done = (item.path, item.sequence, ApplyOutcome::Done);
    core.applied(Duration::ZERO, vec![done]);
    let passed = core.poll_event();
    assert!(matches!(
        passed,
        Some(ReplicaEvent::BarrierPassed { id: 1, .. })
    ));
}
