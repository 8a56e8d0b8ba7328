//! Peers that send what they should not. Nothing of it changes a file.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod harness;

use std::fs;

use bytes::Bytes;
use harness::{Host, LONG, Mirror, noise, tree};
use quintet_framing::{FrameReader, FrameWriter};
use quintet_workspace::proto::manifest::{ChunkRef, Manifest};
use quintet_workspace::proto::{
    ContentHash, FORMAT, MAX_PAYLOAD, WireMessage, WriteBackEntry, WriteOperation,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

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
    let mut answered = 0;
    loop {
        match peer.next().await {
            Some(WireMessage::ContentFetchRequest {
                content_hash: wanted,
            }) => {
                answered += 1;
                assert!(answered < 10);
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
            Some(_) => {}
            None => break,
        }
    }
    assert_eq!(answered, 4, "the whole and its one chunk, twice");
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
