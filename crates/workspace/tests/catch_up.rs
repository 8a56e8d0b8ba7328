//! The master's answer to a replica that asks for a catch-up, without I/O.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use quintet_workspace::proto::master::{MasterEffect, MasterSession};
use quintet_workspace::proto::{Author, Ledger, Node, WireMessage, WorkspacePath};

const NOW: Duration = Duration::ZERO;

fn asks(session: &mut MasterSession, ledger: &Ledger) {
    let request = WireMessage::CatchupRequest {
        sandbox_id: "one".into(),
        since_sequence: 0,
    };
    session.handle_message(request, ledger).unwrap();
}

fn announce(session: &mut MasterSession, ledger: &Ledger) {
    while let Some(effect) = session.poll_effect(NOW, ledger) {
        if let MasterEffect::Announce { epoch, changes } = effect {
            let changes = changes.into_iter().map(|change| (change, None));
            session.announced(epoch, changes.collect());
        }
    }
}

#[test]
fn a_replica_that_asks_again_gets_one_answer() {
    let mut ledger = Ledger::default();
    for name in ["a", "b", "c"] {
        let path = WorkspacePath::parse(name).unwrap();
        let node = Node::directory(0o755);
        ledger.record(path, Some(node), Author::Local("host".into()));
    }
    let mut session = MasterSession::new(NOW);
    asks(&mut session, &ledger);
    announce(&mut session, &ledger);
    asks(&mut session, &ledger);
    announce(&mut session, &ledger);
    let mut sequences = Vec::new();
    while let Some(message) = session.poll_message(NOW, &ledger) {
        if let WireMessage::Notification { sequence, .. } = message {
            sequences.push(sequence);
        }
    }
    assert_eq!(sequences, [1, 2, 3]);
}
