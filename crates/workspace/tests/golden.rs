//! Frames made with an independent encoder: encoding and decoding match them.

#![expect(clippy::unwrap_used, reason = "tests")]

use quintet_workspace::proto::{FORMAT, WireMessage, WriteBackEntry, WriteOperation};
use serde::Deserialize;

#[derive(Deserialize)]
struct Vector {
    name: String,
    frame_hex: String,
    message: Message,
}

#[derive(Deserialize)]
enum Message {
    Notification {
        sequence: u64,
        filepath: String,
        content_hash: String,
        size: u64,
        permissions: i64,
        is_deletion: bool,
        inline_content: Option<Vec<u8>>,
    },
    Heartbeat {
        agent_sequence: u64,
        agent_iteration: i64,
    },
    WriteBack {
        sandbox_id: String,
        entries: Vec<Entry>,
    },
    WriteBackResult {
        accepted: Vec<(u64, i64)>,
        rejected: Vec<(u64, String)>,
    },
    BarrierRequest {
        sequence: u64,
    },
    BarrierConfirmation {
        satisfied: bool,
        current_sequence: u64,
    },
    Ack {
        up_to_sequence: u64,
    },
    ContentFetchRequest {
        content_hash: String,
    },
    ContentFetchResponse {
        content_hash: String,
        content: Vec<u8>,
        size: u64,
        chunk_manifest: Option<String>,
    },
    ContentNotFound {
        content_hash: String,
    },
    CatchupRequest {
        sandbox_id: String,
        since_sequence: u64,
    },
    FullResyncRequired {
        reason: String,
        current_sequence: u64,
    },
}

#[derive(Deserialize)]
struct Entry {
    local_seq: u64,
    filepath: String,
    operation: Operation,
    content_hash: Option<String>,
    content_bytes: Option<Vec<u8>>,
    size: i64,
    permissions: i64,
    is_deletion: bool,
    master_rowid_seen: i64,
}

#[derive(Deserialize)]
enum Operation {
    Write,
    Delete,
    Rename { new_path: String },
    Chmod,
}

impl From<Entry> for WriteBackEntry {
    fn from(entry: Entry) -> Self {
        let Entry {
            local_seq,
            filepath,
            content_hash,
            content_bytes,
            size,
            permissions,
            ..
        } = entry;
        let operation = match entry.operation {
            Operation::Write => WriteOperation::Write,
            Operation::Delete => WriteOperation::Delete,
            Operation::Rename { new_path } => WriteOperation::Rename { new_path },
            Operation::Chmod => WriteOperation::Chmod,
        };
        let (is_deletion, master_rowid_seen) = (entry.is_deletion, entry.master_rowid_seen);
        Self {
            local_seq,
            filepath,
            operation,
            content_hash,
            content_bytes,
            size,
            permissions,
            is_deletion,
            master_rowid_seen,
        }
    }
}

impl From<Message> for WireMessage {
    fn from(message: Message) -> Self {
        use Message as M;
        match message {
            M::Notification {
                sequence,
                filepath,
                content_hash,
                size,
                permissions,
                is_deletion,
                inline_content,
            } => Self::Notification {
                sequence,
                filepath,
                content_hash,
                size,
                permissions,
                is_deletion,
                inline_content,
            },
            M::Heartbeat {
                agent_sequence,
                agent_iteration,
            } => Self::Heartbeat {
                agent_sequence,
                agent_iteration,
            },
            M::WriteBack {
                sandbox_id,
                entries,
            } => Self::WriteBack {
                sandbox_id,
                entries: entries.into_iter().map(Into::into).collect(),
            },
            M::WriteBackResult { accepted, rejected } => {
                Self::WriteBackResult { accepted, rejected }
            }
            M::BarrierRequest { sequence } => Self::BarrierRequest { sequence },
            M::BarrierConfirmation {
                satisfied,
                current_sequence,
            } => Self::BarrierConfirmation {
                satisfied,
                current_sequence,
            },
            M::Ack { up_to_sequence } => Self::Ack { up_to_sequence },
            M::ContentFetchRequest { content_hash } => Self::ContentFetchRequest { content_hash },
            M::ContentFetchResponse {
                content_hash,
                content,
                size,
                chunk_manifest,
            } => Self::ContentFetchResponse {
                content_hash,
                content: content.into(),
                size,
                chunk_manifest,
            },
            M::ContentNotFound { content_hash } => Self::ContentNotFound { content_hash },
            M::CatchupRequest {
                sandbox_id,
                since_sequence,
            } => Self::CatchupRequest {
                sandbox_id,
                since_sequence,
            },
            M::FullResyncRequired {
                reason,
                current_sequence,
            } => Self::FullResyncRequired {
                reason,
                current_sequence,
            },
        }
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

#[test]
fn every_frame_matches_in_both_directions() {
    let vectors: Vec<Vector> =
        serde_json::from_str(include_str!("vectors/workspace.json")).unwrap();
    assert_eq!(vectors.len(), 20);
    for Vector {
        name,
        frame_hex,
        message,
    } in vectors
    {
        let message = WireMessage::from(message);
        let expected = unhex(&frame_hex);
        let mut frame = bytes::BytesMut::new();
        FORMAT
            .encode(&message.encode().unwrap(), &mut frame)
            .unwrap();
        assert_eq!(frame, expected, "{name}");
        assert_eq!(
            WireMessage::decode(&expected[4..]).unwrap(),
            message,
            "{name}"
        );
        let shared = WireMessage::decode_shared(&bytes::Bytes::copy_from_slice(&expected[4..]));
        assert_eq!(shared.unwrap(), message, "{name}");
        for cut in 4..expected.len() {
            assert!(
                WireMessage::decode(&expected[4..cut]).is_err(),
                "{name} cut at {cut}"
            );
        }
    }
}
