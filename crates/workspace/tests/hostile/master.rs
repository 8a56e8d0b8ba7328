//! Masters that send what they should not to our replica.

use std::fs;

use bytes::Bytes;
use quintet_workspace::proto::manifest::{ChunkRef, Manifest};
use quintet_workspace::proto::{ContentHash, MAX_PAYLOAD, WireMessage};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use super::Peer;
use super::harness::{LONG, Mirror, noise, temporary_files, tree};

/// A master that says what it is told to, for one connection after another.
struct FalseMaster {
    home: tempfile::TempDir,
    listener: UnixListener,
}

impl FalseMaster {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(home.path().join("master.sock")).unwrap();
        Self { home, listener }
    }

    async fn accept(&self) -> (Peer, u64) {
        let (stream, _) = tokio::time::timeout(LONG, self.listener.accept())
            .await
            .unwrap()
            .unwrap();
        let mut peer = Peer::new(stream);
        match peer.next().await {
            Some(WireMessage::CatchupRequest { since_sequence, .. }) => (peer, since_sequence),
            other => panic!("a replica's first message is a CatchupRequest, not {other:?}"),
        }
    }
}

fn notification(sequence: u64, path: &str, content: &[u8], inline: bool) -> WireMessage {
    WireMessage::Notification {
        sequence,
        filepath: path.into(),
        content_hash: ContentHash::of(content).to_string(),
        size: content.len() as u64,
        permissions: 0o644,
        is_deletion: false,
        inline_content: inline.then(|| content.to_vec()),
    }
}

fn heartbeat(sequence: u64) -> WireMessage {
    WireMessage::Heartbeat {
        agent_sequence: sequence,
        agent_iteration: sequence.cast_signed(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_closes_on_paths_that_escape() {
    for path in ["../x", "/x", ".quintet/x", "a/../../x"] {
        let master = FalseMaster::new();
        let mirror = Mirror::start(master.home.path(), "one").await;
        let (mut peer, _) = master.accept().await;
        peer.send(notification(1, path, b"evil", true)).await;
        assert!(peer.is_closed().await, "{path}");
        assert!(tree(&mirror.dir).is_empty());
        assert!(!master.home.path().join("x").exists());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_never_shows_wrong_content_and_closes_the_second_time() {
    let master = FalseMaster::new();
    let mirror = Mirror::start(master.home.path(), "one").await;
    let (mut peer, _) = master.accept().await;
    let right = vec![1; 10_000];
    let content_hash = ContentHash::of(&right).to_string();
    peer.send(notification(1, "f", &right, false)).await;
    peer.send(heartbeat(1)).await;
    for attempt in 0..2 {
        peer.until(|message| matches!(message, WireMessage::ContentFetchRequest { .. }))
            .await;
        let (content, size) = if attempt == 0 {
            (vec![2; 10_000], 10_000)
        } else {
            (right.clone(), 9_999)
        };
        let content_hash = content_hash.clone();
        peer.send(WireMessage::ContentFetchResponse {
            content_hash,
            content: content.into(),
            size,
            chunk_manifest: None,
        })
        .await;
    }
    assert!(peer.is_closed().await);
    assert!(tree(&mirror.dir).is_empty());
    // An honest connection repairs it.
    let (mut peer, since) = master.accept().await;
    assert_eq!(since, 0);
    peer.send(notification(1, "f", &right, false)).await;
    peer.send(heartbeat(1)).await;
    peer.until(|message| matches!(message, WireMessage::ContentFetchRequest { .. }))
        .await;
    peer.send(WireMessage::ContentFetchResponse {
        content_hash,
        content: right.clone().into(),
        size: 10_000,
        chunk_manifest: None,
    })
    .await;
    peer.until(|message| *message == WireMessage::Ack { up_to_sequence: 1 })
        .await;
    assert_eq!(fs::read(mirror.dir.join("f")).unwrap(), right);
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_content_beside_a_notification_is_asked_for_instead() {
    let master = FalseMaster::new();
    let mirror = Mirror::start(master.home.path(), "one").await;
    let (mut peer, _) = master.accept().await;
    for (sequence, wrong) in [(1, &b"wrong"[..]), (2, b"rightly"), (3, b"")] {
        let path = format!("f{sequence}");
        let mut lie = notification(sequence, &path, b"right", true);
        if let WireMessage::Notification { inline_content, .. } = &mut lie {
            *inline_content = Some(wrong.to_vec());
        }
        peer.send(lie).await;
    }
    peer.send(heartbeat(3)).await;
    let asked = peer
        .until(|message| matches!(message, WireMessage::ContentFetchRequest { .. }))
        .await;
    let content_hash = ContentHash::of(b"right").to_string();
    assert_eq!(
        asked,
        WireMessage::ContentFetchRequest {
            content_hash: content_hash.clone()
        }
    );
    assert!(tree(&mirror.dir).is_empty());
    peer.send(WireMessage::ContentFetchResponse {
        content_hash,
        content: Bytes::from_static(b"right"),
        size: 5,
        chunk_manifest: None,
    })
    .await;
    peer.until(|message| *message == WireMessage::Ack { up_to_sequence: 3 })
        .await;
    for path in ["f1", "f2", "f3"] {
        assert_eq!(fs::read(mirror.dir.join(path)).unwrap(), b"right");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_closes_on_what_is_no_message() {
    let frame = |payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_le_bytes();
        [&length[..], payload].concat()
    };
    let mut trailing = heartbeat(1).encode().unwrap().to_vec();
    trailing.push(0);
    let wrong_way = WireMessage::Ack { up_to_sequence: 1 }.encode().unwrap();
    let unasked = WireMessage::BarrierConfirmation {
        satisfied: true,
        current_sequence: 1,
    }
    .encode()
    .unwrap();
    for bytes in [
        (MAX_PAYLOAD + 1).to_le_bytes().to_vec(),
        frame(b"abc"),
        frame(&99u32.to_le_bytes()),
        frame(&trailing),
        frame(&wrong_way),
        frame(&unasked),
    ] {
        let master = FalseMaster::new();
        let mirror = Mirror::start(master.home.path(), "one").await;
        let (stream, _) = master.listener.accept().await.unwrap();
        let mut stream = stream;
        stream.write_all(&bytes).await.unwrap();
        let mut rest = Vec::new();
        // What it had not read when it closed is an error here.
        let closed = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
        assert!(closed.is_ok(), "{bytes:?}");
        assert!(tree(&mirror.dir).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_does_not_believe_a_manifest_that_lies() {
    let master = FalseMaster::new();
    let mirror = Mirror::start(master.home.path(), "one").await;
    let (mut peer, _) = master.accept().await;
    let whole = vec![1; 10_000];
    let content_hash = ContentHash::of(&whole).to_string();
    peer.send(notification(1, "f", &whole, false)).await;
    peer.send(heartbeat(1)).await;
    // Its chunks are true and make another content of the same length.
    let part = vec![3; 5_000];
    let chunk = |offset| ChunkRef {
        hash: ContentHash::of(&part),
        offset,
        size: 5_000,
    };
    let manifest = Manifest {
        total_size: 10_000,
        chunk_size: 5_000,
        chunks: vec![chunk(0), chunk(5_000)],
    };
    // The whole and its one chunk, twice.
    for _ in 0..4 {
        let asked = peer
            .until(|message| matches!(message, WireMessage::ContentFetchRequest { .. }))
            .await;
        let WireMessage::ContentFetchRequest {
            content_hash: wanted,
        } = asked
        else {
            unreachable!()
        };
        let is_whole = wanted == content_hash;
        peer.send(WireMessage::ContentFetchResponse {
            content_hash: wanted,
            content: if is_whole {
                Bytes::new()
            } else {
                part.clone().into()
            },
            size: if is_whole { 10_000 } else { 5_000 },
            chunk_manifest: is_whole.then(|| manifest.to_json()),
        })
        .await;
    }
    // It is not silence that ends the connection.
    let beat = heartbeat(1).encode().unwrap();
    let beating = async { while peer.writer.send(beat.clone()).await.is_ok() {} };
    let ended = tokio::time::timeout(LONG, beating).await;
    assert!(ended.is_ok(), "the second lie closes the connection");
    assert!(tree(&mirror.dir).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_chunk_is_found_by_the_whole_and_is_all_that_is_asked_for_again() {
    let parts: Vec<Vec<u8>> = (0..4)
        .map(|number| noise(&number.to_string(), 20_000))
        .collect();
    let whole = parts.concat();
    let hashes: Vec<String> = parts
        .iter()
        .map(|part| ContentHash::of(part).to_string())
        .collect();
    let chunks = (0..).zip(&parts).map(|(index, part)| ChunkRef {
        hash: ContentHash::of(part),
        offset: index * 20_000,
        size: 20_000,
    });
    let manifest = Manifest {
        total_size: 80_000,
        chunk_size: 20_000,
        chunks: chunks.collect(),
    };
    // How often the third chunk comes wrong, and how often it is asked for.
    for (lies, asked) in [(1, 2), (2, 3), (3, 3)] {
        let master = FalseMaster::new();
        let mirror = Mirror::start(master.home.path(), "one").await;
        let (mut peer, _) = master.accept().await;
        peer.send(notification(1, "f", &whole, false)).await;
        peer.send(heartbeat(1)).await;
        let mut times = [0; 4];
        let taken = loop {
            let content_hash = match peer.next().await {
                Some(WireMessage::ContentFetchRequest { content_hash }) => content_hash,
                Some(WireMessage::Ack { up_to_sequence: 1 }) => break true,
                Some(_) => continue,
                None => break false,
            };
            let index = hashes.iter().position(|hash| *hash == content_hash);
            let mut content = index.map_or(Vec::new(), |index| parts[index].clone());
            if let Some(index) = index {
                times[index] += 1;
                if index == 2 && times[2] <= lies {
                    content[0] ^= 1;
                }
            }
            peer.send(WireMessage::ContentFetchResponse {
                content_hash,
                size: if index.is_some() { 20_000 } else { 80_000 },
                chunk_manifest: index.is_none().then(|| manifest.to_json()),
                content: content.into(),
            })
            .await;
        };
        assert_eq!((taken, times), (lies < 3, [1, 1, asked, 1]));
        match taken {
            true => assert_eq!(fs::read(mirror.dir.join("f")).unwrap(), whole),
            false => assert!(tree(&mirror.dir).is_empty()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_that_was_cut_is_gone_on_with() {
    let master = FalseMaster::new();
    let mirror = Mirror::start(master.home.path(), "one").await;
    let parts: Vec<Vec<u8>> = (0..100)
        .map(|number| noise(&number.to_string(), 20_000))
        .collect();
    let whole = parts.concat();
    let by_hash = |wanted: &str| {
        parts
            .iter()
            .find(|part| ContentHash::of(part).to_string() == wanted)
    };
    let chunks = (0..).zip(&parts).map(|(index, part)| ChunkRef {
        hash: ContentHash::of(part),
        offset: index * 20_000,
        size: 20_000,
    });
    let manifest = Manifest {
        total_size: 2_000_000,
        chunk_size: 20_000,
        chunks: chunks.collect(),
    };
    // The first connection ends after 90 chunks; only the rest is asked for over the second.
    let mut given = std::collections::HashSet::new();
    for limit in [90, 100] {
        let (mut peer, _) = master.accept().await;
        peer.send(notification(1, "f", &whole, false)).await;
        peer.send(heartbeat(1)).await;
        while given.len() < limit {
            let asked = peer
                .until(|message| matches!(message, WireMessage::ContentFetchRequest { .. }))
                .await;
            let WireMessage::ContentFetchRequest { content_hash } = asked else {
                unreachable!()
            };
            let part = by_hash(&content_hash).cloned();
            if part.is_some() {
                assert!(given.insert(content_hash.clone()), "asked for twice");
            }
            peer.send(WireMessage::ContentFetchResponse {
                content_hash,
                size: part.as_ref().map_or(2_000_000, |part| part.len() as u64),
                chunk_manifest: part.is_none().then(|| manifest.to_json()),
                content: part.unwrap_or_default().into(),
            })
            .await;
        }
        if limit == 100 {
            peer.until(|message| *message == WireMessage::Ack { up_to_sequence: 1 })
                .await;
        }
    }
    assert_eq!(fs::read(mirror.dir.join("f")).unwrap(), whole);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_that_nobody_wants_any_more_takes_no_room() {
    let master = FalseMaster::new();
    let mirror = Mirror::start(master.home.path(), "one").await;
    let parts = ["one", "two"].map(|seed| noise(seed, 600_000));
    let whole = parts.concat();
    let chunks = (0..).zip(&parts).map(|(index, part)| ChunkRef {
        hash: ContentHash::of(part),
        offset: index * 600_000,
        size: 600_000,
    });
    let manifest = Manifest {
        total_size: 1_200_000,
        chunk_size: 600_000,
        chunks: chunks.collect(),
    };
    let (mut peer, _) = master.accept().await;
    peer.send(notification(1, "f", &whole, false)).await;
    peer.send(heartbeat(1)).await;
    let response = |bytes: &[u8], size: u64, chunk_manifest| WireMessage::ContentFetchResponse {
        content_hash: match size {
            1_200_000 => ContentHash::of(&whole).to_string(),
            _ => ContentHash::of(bytes).to_string(),
        },
        content: bytes.to_vec().into(),
        size,
        chunk_manifest,
    };
    let is_request =
        |message: &WireMessage| matches!(message, WireMessage::ContentFetchRequest { .. });
    peer.until(is_request).await;
    peer.send(response(&[], 1_200_000, Some(manifest.to_json())))
        .await;
    peer.until(is_request).await;
    peer.send(response(&parts[0], 600_000, None)).await;
    let begun = async {
        let written = || {
            temporary_files(&mirror.dir)
                .into_iter()
                .any(|file| fs::read(file).is_ok_and(|bytes| bytes.starts_with(&parts[0])))
        };
        while !written() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, begun).await.unwrap();
    drop(peer);
    // The next connection tells that the file is gone.
    let (mut peer, _) = master.accept().await;
    peer.send(notification(2, "other", b"other", true)).await;
    peer.send(heartbeat(2)).await;
    let dropped = async {
        while !temporary_files(&mirror.dir).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, dropped).await.unwrap();
    assert_eq!(tree(&mirror.dir).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_comparison_ends_with_the_heartbeat() {
    let master = FalseMaster::new();
    let mirror = Mirror::start(master.home.path(), "one").await;
    let (mut peer, _) = master.accept().await;
    peer.send(notification(1, "kept", b"1", true)).await;
    peer.send(notification(2, "gone", b"2", true)).await;
    peer.send(heartbeat(2)).await;
    peer.until(|message| *message == WireMessage::Ack { up_to_sequence: 2 })
        .await;
    drop(peer);
    let (mut peer, since) = master.accept().await;
    assert_eq!(since, 2);
    peer.send(WireMessage::FullResyncRequired {
        reason: "log starts at 5".into(),
        current_sequence: 6,
    })
    .await;
    let again = peer
        .until(|message| matches!(message, WireMessage::CatchupRequest { .. }))
        .await;
    let from_0 = WireMessage::CatchupRequest {
        sandbox_id: "one".into(),
        since_sequence: 0,
    };
    assert_eq!(again, from_0);
    peer.send(notification(1, "kept", b"1", true)).await;
    peer.send(notification(6, "new", b"6", true)).await;
    peer.send(heartbeat(6)).await;
    // No barrier is answered. A change that follows shows that all is in place.
    peer.until(|message| *message == WireMessage::Ack { up_to_sequence: 6 })
        .await;
    peer.send(notification(7, "last", b"7", true)).await;
    peer.until(|message| *message == WireMessage::Ack { up_to_sequence: 7 })
        .await;
    let paths: Vec<String> = tree(&mirror.dir).into_keys().collect();
    assert_eq!(paths, ["kept", "last", "new"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_are_asked_for_again_and_going_backwards_closes() {
    let master = FalseMaster::new();
    let mirror = Mirror::start(master.home.path(), "one").await;
    let (mut peer, _) = master.accept().await;
    peer.send(notification(1, "a", b"1", true)).await;
    peer.send(heartbeat(1)).await;
    peer.until(|message| *message == WireMessage::Ack { up_to_sequence: 1 })
        .await;
    peer.send(notification(4, "d", b"4", true)).await;
    let again = peer
        .until(|message| matches!(message, WireMessage::CatchupRequest { .. }))
        .await;
    assert_eq!(
        again,
        WireMessage::CatchupRequest {
            sandbox_id: "one".into(),
            since_sequence: 1
        }
    );
    peer.send(notification(3, "c", b"3", true)).await;
    peer.send(notification(4, "d", b"4", true)).await;
    peer.send(heartbeat(4)).await;
    peer.until(|message| matches!(message, WireMessage::BarrierRequest { .. }))
        .await;
    peer.send(WireMessage::BarrierConfirmation {
        satisfied: true,
        current_sequence: 4,
    })
    .await;
    peer.until(|message| *message == WireMessage::Ack { up_to_sequence: 4 })
        .await;
    assert_eq!(tree(&mirror.dir).len(), 3);
    peer.send(notification(2, "a", b"back", true)).await;
    assert!(peer.is_closed().await);
    let (_peer, since) = master.accept().await;
    assert_eq!(since, 4);
    assert_eq!(fs::read_to_string(mirror.dir.join("a")).unwrap(), "1");
}
