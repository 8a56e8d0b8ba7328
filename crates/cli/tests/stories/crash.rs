//! What a client was told is there after a kill -9, however often.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use quintet_control::wire::{EventsMsg, JournalEvent, SendMsg, SetTitleMsg};
use quintet_control::{Client, UnixClient};
use tokio::task::JoinSet;

use crate::harness::{Machine, within};

const KILLS: u64 = 50;
const WRITES: u64 = 1000;
const WRITERS: u64 = 8;

/// Writes titles until the daemon is gone; returns the numbers that it was told.
async fn write_titles(mut client: UnixClient, written: Arc<AtomicU64>) -> Vec<u64> {
    let mut told = Vec::new();
    while written.fetch_add(1, Ordering::Relaxed) < WRITES {
        let title = SetTitleMsg {
            session: 1,
            title: format!("title {}", told.len()),
        };
        match client.set_title(title).await {
            Ok(accepted) => told.push(accepted.seq),
            Err(_) => break,
        }
    }
    told
}

/// Follows the journal until the daemon is gone; returns what it was told.
async fn follow(mut client: UnixClient, after: u64) -> Vec<JournalEvent> {
    let request = EventsMsg {
        session: None,
        after_seq: Some(after),
        follow: true,
    };
    let events = client.events(request);
    tokio::pin!(events);
    let mut told = Vec::new();
    while let Some(Ok(event)) = events.next().await {
        told.push(event);
    }
    told
}

async fn journal(machine: &Machine, after: u64) -> BTreeMap<u64, JournalEvent> {
    let mut client = UnixClient::connect(machine.control_socket()).await.unwrap();
    let request = EventsMsg {
        session: None,
        after_seq: Some(after),
        follow: false,
    };
    let events: Vec<_> = client.events(request).collect().await;
    events
        .into_iter()
        .map(|event| event.map(|event| (event.seq, event)).unwrap())
        .collect()
}

#[tokio::test]
async fn what_was_told_survives_fifty_kills_without_a_gap() {
    let machine = Machine::with_test_agent();
    let mut daemon = machine.up().await;
    let mut client = UnixClient::connect(machine.control_socket()).await.unwrap();
    let first = SendMsg {
        agent: "test".into(),
        content: "say hello".into(),
        ..SendMsg::default()
    };
    assert_eq!(client.send(first).await.unwrap().session, 1);
    drop(client);

    let mut known = journal(&machine, 0).await;
    for kill in 0..KILLS {
        let written = Arc::new(AtomicU64::new(0));
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            let client = UnixClient::connect(machine.control_socket()).await.unwrap();
            writers.spawn(write_titles(client, written.clone()));
        }
        let last = known.len() as u64;
        let client = UnixClient::connect(machine.control_socket()).await.unwrap();
        let mut follower = JoinSet::new();
        follower.spawn(follow(client, last));
        // A different moment each time, spread over the whole burst.
        let moment = 1 + kill * 7919 % (WRITES - WRITERS);
        let reached = async {
            while written.load(Ordering::Relaxed) < moment {
                tokio::task::yield_now().await;
            }
        };
        within("enough is written", reached).await;
        daemon.dies().await;

        let accepted: Vec<u64> = writers.join_all().await.concat();
        let seen = follower.join_all().await.concat();
        daemon = machine.up().await;
        let new = journal(&machine, last).await;
        let numbers: Vec<u64> = new.keys().copied().collect();
        let expected: Vec<u64> = (last + 1..=last + new.len() as u64).collect();
        assert_eq!(numbers, expected, "kill {kill}: numbers have a gap");
        for seq in accepted {
            assert!(
                new.contains_key(&seq),
                "kill {kill}: accepted {seq} is gone"
            );
        }
        for event in &seen {
            assert_eq!(
                new.get(&event.seq),
                Some(event),
                "kill {kill}: a told event is gone"
            );
        }
        known.extend(new);
    }
    // The built-in worker may have come in since the last look.
    let mut whole = journal(&machine, 0).await;
    whole.split_off(&(known.len() as u64 + 1));
    assert_eq!(whole, known, "the past never changes");
    assert!(daemon.stops().await.success());
}
