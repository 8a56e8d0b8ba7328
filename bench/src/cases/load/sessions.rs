//! Sessions whose agents stream without a pause, and pings beside them, over the control socket.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use quintet_control::wire::StreamMsg;
use quintet_control::wire::stream_event::Event;
use quintet_control::{Client as _, UnixClient};
use tokio::task::JoinSet;

use super::Bed;
use super::stamp::Lines;
use super::tally::Latency;

/// Elements of a turn.
pub(super) const ELEMENTS: u64 = 20;

/// Between two elements of one session.
pub(super) const EVERY: Duration = Duration::from_millis(500);

/// Connections that ping, and how often each does.
pub(super) const PINGERS: usize = 10;
pub(super) const PING_EVERY: Duration = Duration::from_millis(100);

/// Agents that are started at once.
const STARTED_AT_ONCE: usize = 8;

/// Makes the sessions with a turn of one element each; returns their numbers.
pub(super) async fn open(bed: &Bed) -> anyhow::Result<Vec<u64>> {
    let open = |number: usize| async move {
        let mut client = bed.client().await?;
        let request = StreamMsg {
            sender: Some(format!("person-{number}")),
            new_chat: true,
            ..message(1)
        };
        let (session, _) = turn(&mut client, request, 1, drop).await?;
        anyhow::Ok(session)
    };
    let opened = futures_util::stream::iter((0..bed.size.sessions).map(open));
    let opened: Vec<_> = opened.buffered(STARTED_AT_ONCE).collect().await;
    opened.into_iter().collect()
}

pub(super) fn work(bed: &Bed, sessions: &[u64], tasks: &mut JoinSet<anyhow::Result<()>>) {
    for session in sessions {
        tasks.spawn(talk(bed.clone(), *session));
    }
    for pinger in 0..PINGERS {
        tasks.spawn(ping(bed.clone(), pinger));
    }
}

/// Turn after turn.
async fn talk(bed: Bed, session: u64) -> anyhow::Result<()> {
    let mut client = bed.client().await?;
    // So that they do not all begin at once.
    let turn_length = EVERY * ELEMENTS as u32;
    let share = session as f64 / bed.size.sessions as f64;
    tokio::time::sleep(turn_length.mul_f64(share.fract())).await;
    while !bed.stop.is_cancelled() {
        let request = StreamMsg {
            session: Some(session),
            ..message(ELEMENTS)
        };
        let took = |age| bed.tally.took(Latency::ElementToClient, age);
        let (of, started) = turn(&mut client, request, ELEMENTS, took)
            .await
            .with_context(|| format!("session {session}"))?;
        ensure!(of == session, "session {session}: a turn of session {of}");
        bed.tally.took(Latency::TurnStart, started);
    }
    Ok(())
}

fn message(elements: u64) -> StreamMsg {
    StreamMsg {
        agent: "quiet".to_owned(),
        content: format!("{elements} {}", EVERY.as_millis()),
        ..StreamMsg::default()
    }
}

/// One turn, which must be complete, in order, and end once and well. Returns its session and how
/// long its first event took.
async fn turn(
    client: &mut UnixClient,
    request: StreamMsg,
    elements: u64,
    mut took: impl FnMut(Duration),
) -> anyhow::Result<(u64, Duration)> {
    let asked = Instant::now();
    let mut events = pin!(client.stream(request));
    let (mut start, mut ended, mut cursor) = (None, false, 0);
    let mut lines = Lines::default();
    while let Some(event) = events.next().await {
        let event = event?;
        ensure!(!ended, "an event after the end of a turn");
        if let Some(seq) = event.seq {
            ensure!(seq > cursor, "event {seq} came after {cursor}");
            cursor = seq;
        }
        match event.event {
            Some(Event::Start(it)) => {
                ensure!(start.is_none(), "a turn started twice");
                start = Some((it.session, asked.elapsed()));
            }
            Some(Event::Chunk(chunk)) => lines.take(&chunk.content, &mut took)?,
            Some(Event::End(end)) => {
                ensure!(end.error.is_empty(), "a turn failed: {}", end.error);
                lines.end(elements)?;
                ended = true;
            }
            _ => {}
        }
    }
    ensure!(ended, "a turn has no end");
    start.context("a turn has no start")
}

async fn ping(bed: Bed, pinger: usize) -> anyhow::Result<()> {
    let mut client = bed.client().await?;
    tokio::time::sleep(PING_EVERY.mul_f64(pinger as f64 / PINGERS as f64)).await;
    let mut ticks = tokio::time::interval(PING_EVERY);
    while bed.tick(&mut ticks).await {
        let asked = Instant::now();
        client.ping().await.context("a ping")?;
        bed.tally.took(Latency::Ping, asked.elapsed());
    }
    Ok(())
}
