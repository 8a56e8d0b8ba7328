//! Clients come and go without losing a word.

use futures_util::StreamExt;
use quintet_control::Client;
use quintet_control::wire::stream_event::Event;
use quintet_control::wire::{
    AttachMsg, EventsMsg, QueueListMsg, QueueRemoveMsg, SteerMsg, StreamEvent, SubscribeEventsMsg,
};

use crate::harness::{
    TestDaemon, again, code, error_of, run, script, session_of, streamed, text_of,
};

const TURN: &[&str] = &[
    r#"{"think": "hm"}"#,
    r#"{"say": "one "}"#,
    r#"{"element": {"type": "tool_call", "call_id": "c1", "name": "t", "arguments": {"a": 1}}}"#,
    r#"{"element": {"type": "tool_call", "call_id": "c2", "name": "t", "arguments": {}}}"#,
    r#"{"element": {"type": "tool_result", "call_id": "c2", "output": "fast", "is_error": false}}"#,
    r#"{"element": {"type": "tool_result", "call_id": "c1", "output": "slow", "is_error": true}}"#,
    r#"{"element": {"type": "code_block", "language": "sh", "code": "ls"}}"#,
    r#"{"element": {"type": "file_change", "path": "a", "change": "created"}}"#,
    r#"{"element": {"type": "terminal_output", "stream": "stdout", "data": "out\n"}}"#,
    r#"{"say": "two"}"#,
    r#"{"final": "one two"}"#,
    r#"{"usage": "0.25"}"#,
];

/// What must be equal between two runs of the same script: everything but numbers and sessions.
fn shape(events: &[StreamEvent]) -> Vec<String> {
    events
        .iter()
        .map(|event| {
            let mut event = event.clone();
            event.seq = None;
            if let Some(Event::Start(start)) = &mut event.event {
                (start.session, start.turn) = (0, None);
            }
            format!("{event:?}")
        })
        .collect()
}

/// The number of the turn that a stream shows.
fn turn_of(events: &[StreamEvent]) -> Option<u64> {
    events.iter().find_map(|event| match &event.event {
        Some(Event::Start(start)) => start.turn,
        _ => None,
    })
}

#[tokio::test]
async fn a_turn_is_whole_when_the_client_is_cut_at_every_frame() {
    let daemon = TestDaemon::start().await;
    let whole = run(&mut daemon.client().await, script(TURN)).await;
    let count = whole.len();
    assert!(count >= 12, "{count} events");
    for cut in 1..=count {
        let mut first = daemon.client().await;
        let seen: Vec<StreamEvent> = first
            .stream(streamed(script(TURN)))
            .take(cut)
            .map(|event| event.expect("streams"))
            .collect()
            .await;
        drop(first);
        let last = seen.last().and_then(|event| event.seq).expect("a number");
        // It comes back to the session, or to the turn by its number.
        for turn in [None, turn_of(&seen)] {
            let mut seen = seen.clone();
            if cut < count {
                let request = AttachMsg {
                    session: session_of(&seen),
                    after_seq: Some(last),
                    turn,
                };
                let mut second = daemon.client().await;
                let rest: Vec<_> = second.attach(request).collect().await;
                seen.extend(rest.into_iter().map(|event| event.expect("streams")));
            }
            let place = format!("cut after event {cut}, turn {turn:?}");
            assert_eq!(shape(&seen), shape(&whole), "{place}");
            let numbers: Vec<_> = seen.iter().filter_map(|event| event.seq).collect();
            assert!(
                numbers.is_sorted_by(|a, b| a < b),
                "{place}: each event once: {numbers:?}"
            );
        }
    }
    daemon.stop().await;
}

#[tokio::test]
async fn two_clients_see_the_same_events_with_the_same_numbers() {
    let daemon = TestDaemon::start().await;
    let (mut a, mut b, mut talker) =
        tokio::join!(daemon.client(), daemon.client(), daemon.client());
    let request = EventsMsg {
        session: None,
        after_seq: Some(0),
        follow: true,
    };
    let until_end = |event: &Result<quintet_control::wire::JournalEvent, _>| {
        std::future::ready(event.as_ref().is_ok_and(|event| event.kind != "turn_ended"))
    };
    let (from_a, from_b, _) = tokio::join!(
        a.events(request).take_while(until_end).collect::<Vec<_>>(),
        b.events(request).take_while(until_end).collect::<Vec<_>>(),
        run(&mut talker, script(TURN)),
    );
    let seen = |events: Vec<Result<quintet_control::wire::JournalEvent, _>>| -> Vec<_> {
        events
            .into_iter()
            .map(|event: Result<_, quintet_control::ClientError>| event.expect("readable"))
            .collect()
    };
    let (from_a, from_b) = (seen(from_a), seen(from_b));
    assert!(from_a.len() > 12);
    assert_eq!(from_a, from_b);
    let numbers: Vec<u64> = from_a.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    daemon.stop().await;
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_slows_nobody_and_loses_nothing() {
    let daemon = TestDaemon::start().await;
    let mut slow = daemon.client().await;
    let subscription = slow.subscribe_events(SubscribeEventsMsg {
        session: None,
        after_seq: Some(0),
    });
    tokio::pin!(subscription);
    let text = "x".repeat(2000);
    let flood = format!(r#"{{"repeat": 20000, "say": "{text}"}}"#);
    let mut talker = daemon.client().await;
    // The subscription is polled once, so that it stands, and then left alone.
    assert!(futures_util::poll!(subscription.next()).is_pending());
    let events = run(&mut talker, script(&[&flood])).await;
    assert_eq!(text_of(&events).len(), 20_000 * 2000);

    let mut seen = 0;
    while seen < 20_000 * 2000 {
        let event = subscription
            .next()
            .await
            .expect("goes on")
            .expect("nothing is lost");
        seen += event.content.len();
    }
    assert_eq!(seen, 20_000 * 2000);
    daemon.stop().await;
}

#[tokio::test]
async fn an_attach_without_a_cursor_starts_with_the_running_turn() {
    let daemon = TestDaemon::start().await;
    let mut first = daemon.client().await;
    let message = script(&[r#"{"say": "before"}"#, r#"{"await": "steer"}"#]);
    let begun: Vec<_> = first.stream(streamed(message)).take(2).collect().await;
    drop(first);
    let begun: Vec<_> = begun
        .into_iter()
        .map(|event| event.expect("streams"))
        .collect();
    let session = session_of(&begun);

    let mut second = daemon.client().await;
    let steer = SteerMsg {
        session,
        content: "go".into(),
    };
    let mut third = daemon.client().await;
    let attached = second.attach(AttachMsg {
        session,
        after_seq: None,
        turn: None,
    });
    let (events, steered) = tokio::join!(attached.collect::<Vec<_>>(), third.steer(steer));
    steered.expect("a turn runs");
    let events: Vec<_> = events
        .into_iter()
        .map(|event| event.expect("streams"))
        .collect();
    assert_eq!(text_of(&events), "beforesteered: go");
    daemon.stop().await;
}

fn ends(events: &[StreamEvent]) -> usize {
    let is_end = |event: &&StreamEvent| matches!(event.event, Some(Event::End(_)));
    events.iter().filter(is_end).count()
}

#[tokio::test]
async fn an_attached_stream_does_not_end_with_a_message_that_was_removed() {
    let daemon = TestDaemon::start().await;
    let mut first = daemon.client().await;
    let message = script(&[r#"{"say": "before"}"#, r#"{"await": "steer"}"#]);
    let begun: Vec<_> = first.stream(streamed(message)).take(2).collect().await;
    drop(first);
    let begun: Vec<_> = begun
        .into_iter()
        .map(|event| event.expect("streams"))
        .collect();
    let session = session_of(&begun);
    let after_seq = begun.last().and_then(|event| event.seq);

    let mut waiter = daemon.client().await;
    let mut waiting = std::pin::pin!(waiter.stream(streamed(again(session, &["hi"]))));
    assert!(futures_util::poll!(waiting.next()).is_pending());
    let mut other = daemon.client().await;
    let id = loop {
        let queue = other
            .queue_list(QueueListMsg::default())
            .await
            .expect("lists");
        if let Some(message) = queue.messages.first() {
            break message.id;
        }
    };
    let remove = QueueRemoveMsg { id };
    let removed = other.queue_remove(remove).await.expect("waits").seq;
    let told = waiting.next().await.expect("ends").expect("streams");
    assert_eq!(told.seq, Some(removed));
    assert!(error_of(&[told]).contains("taken out of the queue"));

    for turn in [None, turn_of(&begun)] {
        let mut second = daemon.client().await;
        let mut attached = std::pin::pin!(second.attach(AttachMsg {
            session,
            after_seq,
            turn,
        }));
        assert!(futures_util::poll!(attached.next()).is_pending());
        if turn.is_none() {
            continue;
        }
        let steer = SteerMsg {
            session,
            content: "go".into(),
        };
        other.steer(steer).await.expect("a turn runs");
        let rest: Vec<_> = attached
            .map(|event| event.expect("streams"))
            .collect()
            .await;
        assert_eq!(
            (text_of(&rest).as_str(), error_of(&rest).as_str()),
            ("steered: go", "")
        );
    }
    daemon.stop().await;
}

#[tokio::test]
async fn an_attach_reads_over_turns_that_are_over_to_the_end_of_the_one_that_runs() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let one = run(&mut client, script(&[r#"{"say": "1"}"#])).await;
    let session = session_of(&one);
    run(&mut client, again(session, &[r#"{"say": "2"}"#])).await;
    let from_the_start = AttachMsg {
        session,
        after_seq: Some(0),
        turn: None,
    };
    let all = |events: Vec<Result<StreamEvent, quintet_control::ClientError>>| -> Vec<_> {
        events
            .into_iter()
            .map(|event| event.expect("streams"))
            .collect()
    };
    let idle = all(client.attach(from_the_start).collect().await);
    assert_eq!((text_of(&idle).as_str(), ends(&idle)), ("12", 2));

    let mut third = daemon.client().await;
    let lines = [r#"{"say": "3"}"#, r#"{"await": "steer"}"#];
    let held: Vec<_> = third
        .stream(streamed(again(session, &lines)))
        .take(2)
        .collect()
        .await;
    let running = turn_of(&all(held));
    drop(third);

    // A client that was away while its turn ended gets that end, and nothing of what runs now.
    let (seen, missed) = one.split_at(2);
    let mine = AttachMsg {
        session,
        after_seq: seen.last().and_then(|event| event.seq),
        turn: turn_of(&one),
    };
    assert_eq!(all(client.attach(mine).collect().await), missed);
    // Also without having said which turn is its own.
    let unnamed = AttachMsg { turn: None, ..mine };
    let next: Vec<_> = client.attach(unnamed).take(missed.len()).collect().await;
    assert_eq!(all(next), missed);
    // What was told is not told again.
    let told = AttachMsg {
        after_seq: missed.last().and_then(|event| event.seq),
        ..mine
    };
    let mut client = daemon.client().await;
    assert_eq!(all(client.attach(told).collect().await), []);

    let steer = SteerMsg {
        session,
        content: "go".into(),
    };
    let mut other = daemon.client().await;
    let (events, steered) = tokio::join!(
        client.attach(from_the_start).collect::<Vec<_>>(),
        other.steer(steer)
    );
    steered.expect("a turn runs");
    let events = all(events);
    assert_eq!(
        (text_of(&events).as_str(), ends(&events)),
        ("123steered: go", 3)
    );
    assert_eq!(running, Some(3));

    let nobodys = AttachMsg {
        turn: Some(99),
        ..from_the_start
    };
    let refused = other.attach(nobodys).next().await.expect("an answer");
    assert_eq!(code(refused), 404);
    daemon.stop().await;
}
