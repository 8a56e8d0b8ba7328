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
    let end = WireMessage::BarrierConfirmation {
        satisfied: true,
        current_sequence: 7,
    };
    hear(&mut core, end);
    hear(&mut core, removed(8, "d"));
}
