//! Clients come and go without losing a word.

use futures_util::StreamExt;
use quintet_control::Client;
use quintet_control::wire::{AttachMsg, EventsMsg, StreamEvent, SubscribeEventsMsg};

use crate::harness::{TestDaemon, run, script, session_of, streamed, text_of};

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
            if let Some(quintet_control::wire::stream_event::Event::Start(start)) = &mut event.event
            {
                start.session = 0;
            }
            format!("{event:?}")
        })
        .collect()
}

#[tokio::test]
async fn a_turn_is_whole_when_the_client_is_cut_at_every_frame() {
    let daemon = TestDaemon::start().await;
    let whole = run(&mut daemon.client().await, script(TURN)).await;
    let count = whole.len();
    assert!(count >= 12, "{count} events");
    for cut in 1..=count {
        let mut first = daemon.client().await;
        let mut seen: Vec<StreamEvent> = first
            .stream(streamed(script(TURN)))
            .take(cut)
            .map(|event| event.expect("streams"))
            .collect()
            .await;
        drop(first);
        let last = seen.last().and_then(|event| event.seq).expect("a number");
        if cut < count {
            let request = AttachMsg {
                session: session_of(&seen),
                after_seq: Some(last),
            };
            let mut second = daemon.client().await;
            let rest: Vec<_> = second.attach(request).collect().await;
            seen.extend(rest.into_iter().map(|event| event.expect("streams")));
        }
        assert_eq!(shape(&seen), shape(&whole), "cut after event {cut}");
        let numbers: Vec<_> = seen.iter().filter_map(|event| event.seq).collect();
        assert!(
            numbers.is_sorted_by(|a, b| a < b),
            "each event once: {numbers:?}"
        );
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
    let steer = quintet_control::wire::SteerMsg {
        session,
        content: "go".into(),
    };
    let mut third = daemon.client().await;
    let attached = second.attach(AttachMsg {
        session,
        after_seq: None,
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
