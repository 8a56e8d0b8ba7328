//! Peers that send what they should not. Nothing of it changes a file.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod harness;
#[path = "hostile/master.rs"]
mod master;

use std::fs;

use bytes::Bytes;
use harness::{Host, LONG, noise, tree};
use quintet_framing::{FrameReader, FrameWriter};
use quintet_workspace::proto::manifest::{ChunkRef, Manifest};
use quintet_workspace::proto::{
    ContentHash, FORMAT, MAX_PAYLOAD, WireMessage, WriteBackEntry, WriteOperation,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

struct Peer {
    reader: FrameReader<OwnedReadHalf>,
    writer: FrameWriter<OwnedWriteHalf>,
}

impl Peer {
    fn new(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            reader: FrameReader::new(read, FORMAT),
            writer: FrameWriter::new(write, FORMAT),
        }
    }

    async fn send(&mut self, message: WireMessage) {
        self.writer.send(message.encode().unwrap()).await.unwrap();
    }

    /// The next message; `None` when the other side closed.
    async fn next(&mut self) -> Option<WireMessage> {
        let frame = tokio::time::timeout(LONG, self.reader.next())
            .await
            .unwrap();
        Some(WireMessage::decode(&frame.ok()??).unwrap())
    }

    async fn until(&mut self, mut wanted: impl FnMut(&WireMessage) -> bool) -> WireMessage {
        loop {
            let message = self.next().await.expect("the connection is still open");
            if wanted(&message) {
                return message;
            }
        }
    }

    /// Asks for a content; `None` when it is not available.
    async fn asks(&mut self, hash: &ContentHash) -> Option<WireMessage> {
        let content_hash = hash.to_string();
        self.send(WireMessage::ContentFetchRequest { content_hash })
            .await;
        let answer = self
            .until(|message| {
                matches!(
                    message,
                    WireMessage::ContentFetchResponse { .. } | WireMessage::ContentNotFound { .. }
                )
            })
            .await;
        Some(answer).filter(|answer| !matches!(answer, WireMessage::ContentNotFound { .. }))
    }

    /// Writes an entry back, and returns what comes of it.
    async fn writes(&mut self, entry: WriteBackEntry) -> WireMessage {
        self.send(WireMessage::WriteBack {
            sandbox_id: "odd".into(),
            entries: vec![entry],
        })
        .await;
        self.until(|message| {
            matches!(
                message,
                WireMessage::ContentFetchRequest { .. } | WireMessage::WriteBackResult { .. }
            )
        })
        .await
    }

    async fn is_closed(&mut self) -> bool {
        while let Some(message) = self.next().await {
            assert!(
                matches!(
                    message,
                    WireMessage::Heartbeat { .. } | WireMessage::ContentFetchRequest { .. }
                ),
                "{message:?}"
            );
        }
        true
    }
}

fn entry(local_seq: u64, path: &str, content: &[u8]) -> WriteBackEntry {
    WriteBackEntry {
        local_seq,
        filepath: path.into(),
        operation: WriteOperation::Write,
        content_hash: Some(ContentHash::of(content).to_string()),
        content_bytes: Some(content.to_vec()),
        size: i64::try_from(content.len()).unwrap(),
        permissions: 0o644,
        is_deletion: false,
        master_rowid_seen: 0,
    }
}

async fn write_back(peer: &mut Peer, entries: Vec<WriteBackEntry>) -> (Vec<u64>, Vec<u64>) {
    peer.send(WireMessage::WriteBack {
        sandbox_id: "odd".into(),
        entries,
    })
    .await;
    let answer = peer
        .until(|message| matches!(message, WireMessage::WriteBackResult { .. }))
        .await;
    let WireMessage::WriteBackResult { accepted, rejected } = answer else {
        unreachable!()
    };
    (
        accepted.into_iter().map(|a| a.0).collect(),
        rejected.into_iter().map(|r| r.0).collect(),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_refuses_bad_entries_one_by_one() {
    let host = Host::new().await;
    fs::write(host.dir().join("f"), "kept").unwrap();
    host.workspace.flush().await.unwrap();
    let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
    let mut wrong_hash = entry(1, "x", b"right");
    wrong_hash.content_bytes = Some(b"wrong".to_vec());
    let mut wrong_size = entry(2, "x", b"right");
    wrong_size.size = 4;
    let mut special = entry(3, "x", b"right");
    special.permissions = 0o010_644;
    let mut nothing = entry(4, "x", b"");
    (nothing.content_hash, nothing.content_bytes) = (None, None);
    let mut rename = entry(5, "f", b"kept");
    rename.operation = WriteOperation::Rename {
        new_path: "../f".into(),
    };
    let long = entry(6, &"n".repeat(300), b"the name is too long");
    let bad_paths = [".quintet/x", "../x", "/etc/x", "a//b", "a/./b", "nul\0", ""];
    let mut entries = vec![wrong_hash, wrong_size, special, nothing, rename];
    entries.extend(
        (10u64..)
            .zip(bad_paths)
            .map(|(number, path)| entry(number, path, b"x")),
    );
    entries.push(long);
    entries.push(entry(100, "good", b"good"));
    // The newest change of `f` was not seen.
    entries.push(entry(101, "f", b"overwritten"));
    let expected: Vec<u64> = (1..=5).chain(10..17).chain([6, 101]).collect();
    assert_eq!(
        write_back(&mut peer, entries.clone()).await,
        (vec![100], expected.clone())
    );
    // Sent again, every entry gets the same answer and nothing happens twice.
    let sequence = host.workspace.sequence();
    assert_eq!(write_back(&mut peer, entries).await, (vec![100], expected));
    assert_eq!(host.workspace.sequence(), sequence);
    assert_eq!(fs::read_to_string(host.dir().join("f")).unwrap(), "kept");
    assert_eq!(tree(&host.dir()).len(), 2);
}

/// A peer need not count on where it stopped: the number only tells answers apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_is_used_again_for_what_was_made_later_is_another_entry() {
    let host = Host::new().await;
    fs::write(host.dir().join("g"), "theirs").unwrap();
    host.workspace.flush().await.unwrap();
    let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
    let both = |base: u64| {
        let entries = [entry(1, "f", b"mine"), entry(2, "g", b"mine")];
        let on = |entry| WriteBackEntry {
            master_rowid_seen: base.cast_signed(),
            ..entry
        };
        entries.map(on).to_vec()
    };
    assert_eq!(write_back(&mut peer, both(0)).await, (vec![1], vec![2]));
    fs::remove_file(host.dir().join("f")).unwrap();
    let seen = host.workspace.flush().await.unwrap();
    assert_eq!(
        write_back(&mut peer, both(seen)).await,
        (vec![1, 2], vec![])
    );
    for name in ["f", "g"] {
        assert_eq!(fs::read_to_string(host.dir().join(name)).unwrap(), "mine");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_is_sent_again_gets_the_same_answer_after_a_restart_too() {
    let mut host = Host::new().await;
    fs::write(host.dir().join("f"), "base").unwrap();
    fs::write(host.dir().join("g"), "theirs").unwrap();
    let base = host.workspace.flush().await.unwrap();
    let taken = WriteBackEntry {
        master_rowid_seen: base.cast_signed(),
        ..entry(1, "f", b"mine")
    };
    let refused = entry(2, "g", b"late");
    for is_restarted in [false, false, true] {
        if is_restarted {
            let home = host.stop().await;
            host = Host::open(home).await;
        }
        let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
        peer.send(WireMessage::WriteBack {
            sandbox_id: "odd".into(),
            entries: vec![taken.clone(), refused.clone()],
        })
        .await;
        let answer = peer
            .until(|message| matches!(message, WireMessage::WriteBackResult { .. }))
            .await;
        let WireMessage::WriteBackResult { accepted, rejected } = answer else {
            unreachable!()
        };
        assert_eq!(accepted, [(1, base.cast_signed() + 1)]);
        assert_eq!(rejected.len(), 1);
        // Whoever decided anew would now refuse the first, and take the second.
        for (name, text) in [("f", "theirs"), ("g", "late")] {
            // At once: a file that is written in place is empty before.
            let beside = host.dir().with_file_name("beside");
            fs::write(&beside, text).unwrap();
            fs::rename(beside, host.dir().join(name)).unwrap();
        }
        assert_eq!(host.workspace.flush().await.unwrap(), base + 3);
    }
    assert_eq!(fs::read_to_string(host.dir().join("f")).unwrap(), "theirs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_number_with_another_entry_is_not_answered_as_before() {
    let host = Host::new().await;
    let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
    let first = entry(1, "a", b"first");
    assert_eq!(write_back(&mut peer, vec![first]).await, (vec![1], vec![]));
    // A replica that forgot everything counts from the start again.
    let other = entry(1, "b", b"other");
    let by_hash = WriteBackEntry {
        content_bytes: None,
        ..other.clone()
    };
    for again in [other, by_hash] {
        assert_eq!(write_back(&mut peer, vec![again]).await, (vec![1], vec![]));
        assert_eq!(fs::read_to_string(host.dir().join("b")).unwrap(), "other");
        assert_eq!(host.workspace.sequence(), 2);
    }
    // In one batch it is the same: twice the same entry is one, another is its own.
    let second = entry(2, "c", b"c");
    let batch = vec![second.clone(), second, entry(2, "d", b"d")];
    assert_eq!(write_back(&mut peer, batch).await, (vec![2, 2, 2], vec![]));
    assert_eq!(host.workspace.sequence(), 4);
    assert_eq!(fs::read_to_string(host.dir().join("d")).unwrap(), "d");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_that_is_not_the_contents_is_refused() {
    let host = Host::new().await;
    let (small, large) = (noise("small", 1_000), noise("large", 100_000));
    fs::write(host.dir().join("small"), &small).unwrap();
    fs::write(host.dir().join("large"), &large).unwrap();
    let before = host.workspace.flush().await.unwrap();
    let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
    let lie = |number: u64, content: &[u8], size: i64| WriteBackEntry {
        content_bytes: None,
        size,
        ..entry(number, &format!("copy-{number}"), content)
    };
    let entries = vec![
        lie(1, &small, 999),
        lie(2, &large, 100_001),
        lie(3, b"", 1),
        lie(4, &small, 1_000),
        lie(5, &large, 100_000),
    ];
    assert_eq!(
        write_back(&mut peer, entries).await,
        (vec![4, 5], vec![1, 2, 3])
    );
    assert_eq!(host.workspace.sequence(), before + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_file_needs_no_bytes_and_an_empty_link_is_refused() {
    let host = Host::new().await;
    let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
    let by_hash = WriteBackEntry {
        content_bytes: None,
        ..entry(1, "empty", b"")
    };
    let link = WriteBackEntry {
        permissions: 0o120_777,
        ..entry(2, "link", b"")
    };
    assert_eq!(
        write_back(&mut peer, vec![by_hash, link]).await,
        (vec![1], vec![2])
    );
    assert_eq!(fs::read(host.dir().join("empty")).unwrap(), b"");
    assert!(host.workspace.verify().await.unwrap().is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_closes_on_what_is_no_message() {
    let host = Host::new().await;
    let mut headers: Vec<Vec<u8>> = vec![
        (MAX_PAYLOAD + 1).to_le_bytes().to_vec(),
        u32::MAX.to_le_bytes().to_vec(),
        [&4u32.to_le_bytes()[..], &99u32.to_le_bytes()].concat(),
        [&3u32.to_le_bytes()[..], b"abc"].concat(),
    ];
    let mut trailing = WireMessage::Ack { up_to_sequence: 1 }
        .encode()
        .unwrap()
        .to_vec();
    trailing.push(0);
    headers.push(
        [
            &u32::try_from(trailing.len()).unwrap().to_le_bytes()[..],
            &trailing,
        ]
        .concat(),
    );
    let wrong_way = WireMessage::Heartbeat {
        agent_sequence: 1,
        agent_iteration: 1,
    }
    .encode()
    .unwrap();
    headers.push(
        [
            &u32::try_from(wrong_way.len()).unwrap().to_le_bytes()[..],
            &wrong_way,
        ]
        .concat(),
    );
    for bytes in headers {
        let mut stream = UnixStream::connect(host.socket()).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut rest = Vec::new();
        tokio::time::timeout(LONG, stream.read_to_end(&mut rest))
            .await
            .unwrap()
            .unwrap();
    }
    assert!(host.workspace.flush().await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_asks_for_wrong_content_once_more_and_then_closes() {
    let host = Host::new().await;
    let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
    let mut promised = entry(1, "big", &[1; 10_000]);
    promised.content_bytes = None;
    let content_hash = promised.content_hash.clone().unwrap();
    peer.send(WireMessage::WriteBack {
        sandbox_id: "odd".into(),
        entries: vec![promised],
    })
    .await;
    for _ in 0..2 {
        peer.until(|message| matches!(message, WireMessage::ContentFetchRequest { .. }))
            .await;
        let content = Bytes::from(vec![2; 10_000]);
        peer.send(WireMessage::ContentFetchResponse {
            content_hash: content_hash.clone(),
            content,
            size: 10_000,
            chunk_manifest: None,
        })
        .await;
    }
    assert!(peer.is_closed().await);
    assert!(tree(&host.dir()).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn contents_go_along_below_the_configured_length_and_the_protocols() {
    for (below, expected) in [(100, [true, false, false]), (1 << 20, [true, true, false])] {
        let host = Host::open_with(tempfile::tempdir().unwrap(), |config| {
            config.inline_below = below;
        })
        .await;
        for (name, length) in [("a", 99), ("b", 4_095), ("c", 4_096)] {
            fs::write(host.dir().join(name), noise(name, length)).unwrap();
        }
        host.workspace.flush().await.unwrap();
        let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
        peer.send(WireMessage::CatchupRequest {
            sandbox_id: "odd".into(),
            since_sequence: 0,
        })
        .await;
        let mut inline = std::collections::BTreeMap::new();
        while let Some(WireMessage::Notification {
            filepath,
            inline_content,
            ..
        }) = peer.next().await
        {
            inline.insert(filepath, inline_content.is_some());
        }
        assert_eq!(inline.into_values().collect::<Vec<_>>(), expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_another_workspace_of_the_store_is_not_available() {
    let host = Host::new().await;
    let shared = host.home.path().join("cas");
    let other = Host::open_with(tempfile::tempdir().unwrap(), |config| {
        config.cas_dir = shared;
    })
    .await;
    let whole = noise("theirs", 100_000);
    let large = noise("theirs too", 2_000_000);
    fs::write(other.dir().join("whole"), &whole).unwrap();
    fs::write(other.dir().join("large"), &large).unwrap();
    other.workspace.flush().await.unwrap();
    let ours = noise("ours", 2_000_000);
    fs::write(host.dir().join("ours"), &ours).unwrap();
    host.workspace.flush().await.unwrap();

    let mut peer = Peer::new(UnixStream::connect(other.socket()).await.unwrap());
    peer.send(WireMessage::CatchupRequest {
        sandbox_id: "honest".into(),
        since_sequence: 0,
    })
    .await;
    let Some(WireMessage::ContentFetchResponse { chunk_manifest, .. }) =
        peer.asks(&ContentHash::of(&large)).await
    else {
        panic!("its own replica gets it")
    };
    let theirs = Manifest::parse(&chunk_manifest.unwrap(), 2_000_000).unwrap();
    let chunk = theirs.chunks[1];
    assert!(peer.asks(&chunk.hash).await.is_some(), "and its chunks");

    let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
    peer.send(WireMessage::CatchupRequest {
        sandbox_id: "odd".into(),
        since_sequence: 0,
    })
    .await;
    assert!(peer.asks(&ContentHash::of(&ours)).await.is_some());
    for hash in [ContentHash::of(&whole), ContentHash::of(&large), chunk.hash] {
        assert_eq!(peer.asks(&hash).await, None);
    }

    // Nor can it be had by writing it: the writer has to have it.
    let mut stolen = entry(1, "stolen", &whole);
    stolen.content_bytes = None;
    let WireMessage::ContentFetchRequest { content_hash } = peer.writes(stolen).await else {
        panic!("it is asked for what it writes")
    };
    peer.send(WireMessage::ContentNotFound { content_hash })
        .await;
    let answer = peer
        .until(|message| matches!(message, WireMessage::WriteBackResult { .. }))
        .await;
    assert!(
        matches!(&answer, WireMessage::WriteBackResult { accepted, rejected }
            if accepted.is_empty() && rejected.len() == 1),
        "{answer:?}"
    );
    // Nor by way of a list that names a chunk of it.
    let range = usize::try_from(chunk.offset).unwrap()..;
    let part = &large[range][..usize::try_from(chunk.size).unwrap()];
    let pieced = [part, part].concat();
    let mut stolen = entry(2, "stolen", &pieced);
    stolen.content_bytes = None;
    let WireMessage::ContentFetchRequest { content_hash } = peer.writes(stolen).await else {
        panic!("it is asked for what it writes")
    };
    let manifest = Manifest {
        total_size: 2 * chunk.size,
        chunk_size: chunk.size,
        chunks: vec![
            ChunkRef { offset: 0, ..chunk },
            ChunkRef {
                offset: chunk.size,
                ..chunk
            },
        ],
    };
    peer.send(WireMessage::ContentFetchResponse {
        content_hash,
        content: Bytes::new(),
        size: manifest.total_size,
        chunk_manifest: Some(manifest.to_json()),
    })
    .await;
    let asked = peer
        .until(|message| !matches!(message, WireMessage::Heartbeat { .. }))
        .await;
    let content_hash = chunk.hash.to_string();
    assert_eq!(asked, WireMessage::ContentFetchRequest { content_hash });
    assert!(!host.dir().join("stolen").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_small_content_that_came_in_chunks_can_be_fetched_by_others() {
    let host = Host::new().await;
    let mut peer = Peer::new(UnixStream::connect(host.socket()).await.unwrap());
    let (head, tail) = (noise("head", 12_000), noise("tail", 8_000));
    let whole = [&head[..], &tail[..]].concat();
    let chunk = |bytes: &[u8], offset| ChunkRef {
        hash: ContentHash::of(bytes),
        offset,
        size: bytes.len() as u64,
    };
    let manifest = Manifest {
        total_size: 20_000,
        chunk_size: 10_000,
        chunks: vec![chunk(&head, 0), chunk(&tail, 12_000)],
    };
    let mut asked = peer
        .writes(WriteBackEntry {
            content_bytes: None,
            ..entry(1, "f", &whole)
        })
        .await;
    while let WireMessage::ContentFetchRequest { content_hash } = asked {
        let part = [&head, &tail]
            .into_iter()
            .find(|part| ContentHash::of(part).to_string() == content_hash);
        let content = part.cloned().unwrap_or_default();
        peer.send(WireMessage::ContentFetchResponse {
            content_hash,
            size: part.map_or(20_000, |part| part.len() as u64),
            content: content.into(),
            chunk_manifest: part.is_none().then(|| manifest.to_json()),
        })
        .await;
        asked = peer
            .until(|message| !matches!(message, WireMessage::Heartbeat { .. }))
            .await;
    }
    let WireMessage::WriteBackResult { accepted, .. } = asked else {
        panic!("{asked:?}")
    };
    assert_eq!(accepted, [(1, 1)]);
    let two = host.mirror("two").await;
    two.replica.barrier(LONG).await.unwrap();
    assert_eq!(fs::read(two.dir.join("f")).unwrap(), whole);
    assert!(host.workspace.verify().await.unwrap().is_clean());
}
