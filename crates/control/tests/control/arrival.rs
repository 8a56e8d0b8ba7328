//! Bytes as they may arrive: in pieces, many at once, too early, damaged.

use quintet_control::wire::*;
use quintet_control::{Closed, Limits};
use quintet_framing::FrameError;

use crate::daemon::{Daemon, error_code, frame, send_of, stream_of};

#[tokio::test]
async fn a_request_may_arrive_byte_by_byte() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    for byte in frame(send_of("echo", "slowly")) {
        raw.write(&[byte]).await;
        // Lets the daemon read before the next byte is there.
        tokio::task::yield_now().await;
    }
    assert_eq!(raw.next().await.kind(), "response");
}

#[tokio::test]
async fn a_request_may_arrive_in_two_pieces_cut_anywhere() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    let bytes = frame(stream_of("echo", "hi"));
    for cut in 0..=bytes.len() {
        raw.write(&bytes[..cut]).await;
        tokio::task::yield_now().await;
        raw.write(&bytes[cut..]).await;
        for kind in ["start", "chunk", "end"] {
            let event = StreamEvent::try_from(raw.next().await).unwrap();
            assert_eq!(event.kind(), kind);
        }
    }
}

#[tokio::test]
async fn many_requests_may_arrive_at_once() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    let mut bytes = Vec::new();
    for n in 0..500 {
        bytes.extend_from_slice(&frame(send_of("echo", &n.to_string())));
    }
    raw.write(&bytes).await;
    for n in 0..500 {
        let answer = SendResponse::try_from(raw.next().await).unwrap();
        assert_eq!(answer.content, n.to_string());
    }
}

#[tokio::test]
async fn an_early_request_waits_its_turn() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    raw.send(stream_of("gate", "first")).await;
    assert_eq!(raw.next().await.kind(), "stream");
    // The turn is under way; these two come before its end.
    raw.send(send_of("echo", "second")).await;
    raw.send(PingMsg {}).await;
    assert_eq!(daemon.next_request().await.kind(), "stream");
    daemon.open_gate();
    for kind in ["chunk", "end"] {
        let event = StreamEvent::try_from(raw.next().await).unwrap();
        assert_eq!(event.kind(), kind);
    }
    assert_eq!(raw.next().await.kind(), "response");
    assert_eq!(raw.next().await.kind(), "pong");
    assert_eq!(daemon.next_request().await.kind(), "send");
    assert_eq!(daemon.next_request().await.kind(), "ping");
}

#[tokio::test]
async fn more_early_requests_than_are_read_ahead_are_answered_too() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    let mut bytes = frame(stream_of("gate", "x"));
    let large = "y".repeat(30_000);
    for _ in 0..20 {
        bytes.extend_from_slice(&frame(send_of("echo", &large)));
    }
    let (early, rest) = bytes.split_at(100_000);
    raw.write(early).await;
    assert_eq!(raw.next().await.kind(), "stream");
    daemon.open_gate();
    let replies = raw.exchange(rest, 22).await;
    let kinds: Vec<_> = replies.iter().map(ServerMessage::kind).collect();
    assert_eq!(kinds[..2], ["stream"; 2]);
    assert_eq!(kinds[2..], ["response"; 20]);
}

#[tokio::test]
async fn what_is_not_known_is_refused_and_the_connection_stays() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    let unknown: [&[u8]; 4] = [
        // Nothing at all.
        b"\0\0\0\0",
        // Request 99, of a newer original protocol.
        b"\0\0\0\x03\x9a\x06\0",
        // An extension without a request in it.
        b"\0\0\0\x03\xc2\x3e\0",
        // Request 250 of the extension, of a newer daemon.
        b"\0\0\0\x06\xc2\x3e\x03\xd2\x0f\0",
    ];
    for bytes in unknown {
        raw.write(bytes).await;
        assert_eq!(error_code(&raw.next().await), 400);
        raw.send(PingMsg {}).await;
        assert_eq!(raw.next().await.kind(), "pong");
    }
}

#[tokio::test]
async fn an_unknown_field_is_skipped() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    // kill {session 1, and a field 77}
    raw.write(b"\0\0\0\x07\x2a\x05\x08\x01\xe8\x04\x05").await;
    assert_eq!(raw.next().await.kind(), "pong");
    assert_eq!(daemon.next_request().await, KillMsg { session: 1 }.into());
}

#[tokio::test]
async fn garbage_closes_the_connection() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let undecodable: [&[u8]; 4] = [
        // No such wire type.
        b"\0\0\0\x04\xff\xff\xff\xff",
        // A length inside that reaches past the frame.
        b"\0\0\0\x02\x0a\x05",
        // A number where a message belongs.
        b"\0\0\0\x02\x18\x01",
        // send {content: two bytes that are no UTF-8}
        b"\0\0\0\x06\x0a\x04\x12\x02\xc3\x28",
    ];
    for bytes in undecodable {
        let mut raw = daemon.raw().await;
        raw.write(bytes).await;
        raw.closed().await;
        assert!(matches!(daemon.next_closed().await, Closed::Undecodable(_)));
    }
}

#[tokio::test]
async fn an_end_inside_a_frame_is_told_from_an_end_between_frames() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    raw.write(&frame(stream_of("echo", "hi"))[..7]).await;
    drop(raw);
    assert!(matches!(
        daemon.next_closed().await,
        Closed::BadFrame(FrameError::Truncated { have: 7, .. })
    ));
    drop(daemon.raw().await);
    assert!(matches!(daemon.next_closed().await, Closed::ByClient));
}
