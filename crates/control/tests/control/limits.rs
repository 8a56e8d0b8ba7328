//! Clients that ask for too much, and daemons that stop.

use std::time::Duration;

use futures_util::StreamExt;
use quintet_control::wire::*;
use quintet_control::{Client, ClientError, Closed, ErrorCode, Limits};
use quintet_framing::FrameError;
use tokio::task::JoinSet;

use crate::daemon::{Daemon, Seen, impatient, send_of, stream_of};

const FRAME_LIMIT: usize = 16 * 1024 * 1024;

#[tokio::test]
async fn a_frame_over_the_limit_closes_the_connection_before_its_bytes_come() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    let declared = FRAME_LIMIT as u32 + 1;
    raw.write(&declared.to_be_bytes()).await;
    raw.closed().await;
    match daemon.next_closed().await {
        Closed::BadFrame(error) => assert_eq!(
            error,
            FrameError::TooLarge {
                plane: "control",
                limit: FRAME_LIMIT as u32,
                declared: u64::from(declared),
            }
        ),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_frame_at_the_limit_is_served() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let mut client = daemon.client().await;
    // The envelope and the field have a tag and a four-byte length each.
    let config = "x".repeat(FRAME_LIMIT - 10);
    client.set_config(SetConfigMsg { config }).await.unwrap();
    assert_eq!(daemon.next_request().await.kind(), "set_config");
}

#[tokio::test]
async fn a_request_over_the_limit_is_not_sent() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut client = daemon.client().await;
    let config = "x".repeat(FRAME_LIMIT);
    assert!(matches!(
        client.set_config(SetConfigMsg { config }).await,
        Err(ClientError::Frame(FrameError::TooLarge { .. }))
    ));
    client.ping().await.unwrap();
}

#[tokio::test]
async fn an_answer_over_the_limit_is_an_error_and_the_connection_stays() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut client = daemon.client().await;
    let error = client.send(send_of("huge", "")).await.unwrap_err();
    assert_eq!(error.refusal().unwrap().code, ErrorCode::Internal);
    client.ping().await.unwrap();
}

#[tokio::test]
async fn half_a_frame_and_then_silence_is_cut_and_an_idle_client_is_not() {
    let mut daemon = Daemon::on_unix(impatient());
    let mut idle = daemon.client().await;
    idle.ping().await.unwrap();
    for half in [&b"\0\0"[..], b"\0\0\0\x05\x1a"] {
        let mut raw = daemon.raw().await;
        raw.write(half).await;
        raw.closed().await;
        assert!(matches!(
            daemon.next_closed().await,
            Closed::HalfFrame { .. }
        ));
    }
    idle.ping().await.unwrap();
}

#[tokio::test]
async fn a_client_that_never_reads_is_cut_and_nobody_else_waits() {
    let mut daemon = Daemon::on_unix(impatient());
    let mut raw = daemon.raw().await;
    raw.send(stream_of("flood", &"x".repeat(1000))).await;
    let mut other = daemon.client().await;
    loop {
        tokio::select! {
            reason = daemon.next_closed() => {
                match reason {
                    Closed::NotReading { unsent, .. } => assert!(unsent <= 128 * 1024),
                    other => panic!("{other:?}"),
                }
                break;
            }
            pong = other.ping() => { pong.unwrap(); }
        }
    }
}

#[tokio::test]
async fn a_client_that_reads_slowly_is_not_cut() {
    let limits = Limits {
        not_reading: Duration::from_millis(500),
        ..Limits::default()
    };
    let mut daemon = Daemon::on_unix(limits);
    let mut client = daemon.client().await;
    {
        let mut events = Box::pin(client.stream(stream_of("flood", &"x".repeat(100_000))));
        // Far more than the kernel's buffers hold, over more than the limit.
        for _ in 0..70 {
            for _ in 0..5 {
                events.next().await.unwrap().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    drop(client);
    assert!(matches!(daemon.next_closed().await, Closed::ByClient));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_connections_at_once_are_served_sixteen_at_a_time() {
    // Both ends of each connection are in this process.
    quintet_framing::descriptors::raise().unwrap();
    let limits = Limits {
        max_connections: 16,
        ..Limits::default()
    };
    let mut daemon = Daemon::on_unix(limits);
    let mut clients = JoinSet::new();
    for n in 0..1000 {
        let mut client = daemon.client().await;
        clients.spawn(async move {
            let text = n.to_string();
            let answer = client.send(send_of("gate", &text)).await.unwrap();
            assert_eq!(answer.content, text);
        });
    }
    for _ in 0..16 {
        daemon.next_request().await;
    }
    daemon.open_gate();
    while let Some(done) = clients.join_next().await {
        done.unwrap();
    }
    assert_eq!(daemon.most_open(), 16);
}

#[tokio::test]
async fn a_client_that_goes_away_drops_what_answers_it() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let requests: [ClientMessage; 3] = [
        stream_of("hang", "quiet").into(),
        stream_of("flood", "loud").into(),
        SubscribeEventsMsg::default().into(),
    ];
    for request in requests {
        let mut raw = daemon.raw().await;
        raw.send(request).await;
        raw.next().await;
        drop(raw);
        daemon.next_dropped().await;
        assert!(matches!(daemon.next_closed().await, Closed::ByClient));
    }
}

#[tokio::test]
async fn a_panic_ends_its_own_connection_only() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let mut other = daemon.client().await;
    let mut client = daemon.client().await;
    let outcome = client.send(send_of("panic", "")).await;
    assert!(matches!(outcome, Err(ClientError::Closed)));
    assert!(matches!(daemon.next_closed().await, Closed::Aborted));
    other.ping().await.unwrap();
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_lets_a_reply_complete() {
    let mut daemon = Daemon::on_unix(Limits {
        drain: Duration::from_secs(60),
        ..Limits::default()
    });
    let mut idle = daemon.client().await;
    idle.ping().await.unwrap();
    let mut busy = daemon.raw().await;
    busy.send(send_of("gate", "done")).await;
    while daemon.next_request().await.kind() != "send" {}
    daemon.begin_shutdown();
    assert!(matches!(daemon.next_closed().await, Closed::Shutdown));
    daemon.open_gate();
    let answer = SendResponse::try_from(busy.next().await).unwrap();
    assert_eq!(answer.content, "done");
    busy.closed().await;
    daemon.stopped().await;
    assert!(matches!(
        quintet_control::UnixClient::connect(daemon.socket()).await,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused
    ));
}

#[tokio::test]
async fn shutdown_does_not_wait_longer_than_it_says() {
    let mut daemon = Daemon::on_unix(Limits {
        drain: Duration::from_millis(20),
        ..Limits::default()
    });
    let mut raw = daemon.raw().await;
    raw.send(stream_of("hang", "x")).await;
    raw.next().await;
    daemon.begin_shutdown();
    daemon.stopped().await;
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(daemon.next_seen().await);
    }
    assert!(
        matches!(
            seen[..],
            [
                Seen::Request(_),
                Seen::Dropped,
                Seen::Closed(Closed::Aborted)
            ] | [
                Seen::Request(_),
                Seen::Closed(Closed::Aborted),
                Seen::Dropped
            ]
        ),
        "{seen:?}"
    );
}
