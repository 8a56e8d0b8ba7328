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
