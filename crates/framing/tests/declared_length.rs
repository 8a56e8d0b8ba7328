//! A length that is only declared costs nothing.

use quintet_framing::{ByteOrder, FrameError, FrameFormat, FrameReader, ReadError};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixStream;

const PLANES: [FrameFormat; 3] = [
    FrameFormat::new("control", ByteOrder::Big, 16 << 20),
    FrameFormat::new("agent", ByteOrder::Little, 16 << 20),
    FrameFormat::new("workspace", ByteOrder::Little, 100 << 20),
];

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm
        .split(' ')
        .nth(1)
        .and_then(|field| field.parse().ok())
        .expect("a number of pages");
    pages * 4096
}

#[tokio::test]
async fn four_gibibytes_are_an_error_at_once_and_take_no_memory() {
    for plane in PLANES {
        let (mut peer, socket) = UnixStream::pair().expect("a socket pair");
        let mut reader = FrameReader::new(socket, plane);
        peer.write_all(&[0xff; 4]).await.expect("open");
        let before = resident();
        let error = reader
            .next()
            .await
            .expect_err("refused while the peer is still connected");
        let grown = resident().saturating_sub(before);
        match error {
            ReadError::Frame(FrameError::TooLarge {
                plane: name,
                limit,
                declared,
            }) => {
                assert_eq!((name, limit), (plane.plane(), plane.max_payload()));
                assert_eq!(declared, u64::from(u32::MAX));
            }
            other => panic!("expected the limit, got {other}"),
        }
        assert!(grown < 1 << 20, "{} bytes for {}", grown, plane.plane());
    }
}

#[tokio::test]
async fn the_largest_permitted_length_takes_memory_only_as_it_arrives() {
    let plane = PLANES[2];
    let (mut peer, socket) = UnixStream::pair().expect("a socket pair");
    let mut reader = FrameReader::new(socket, plane);
    peer.write_all(&plane.max_payload().to_le_bytes())
        .await
        .expect("open");
    peer.write_all(b"a few bytes").await.expect("open");
    let before = resident();
    tokio::select! {
        biased;
        outcome = reader.next() => panic!("nothing is whole yet: {outcome:?}"),
        () = tokio::task::yield_now() => {}
    }
    assert!(reader.is_mid_frame());
    let grown = resident().saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes for a promise");
    drop(peer);
    assert!(matches!(
        reader.next().await,
        Err(ReadError::Frame(FrameError::Truncated { .. }))
    ));
}
