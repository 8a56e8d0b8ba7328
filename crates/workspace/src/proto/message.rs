//! The twelve messages and their bytes.
//!
//! The encoding is positional: the order of variants and fields IS the format.
//! `tests/golden.rs` pins it with frames made by an independent encoder.

use bytes::Bytes;
use wincode::config::Configuration;
use wincode::{SchemaRead, SchemaWrite};

use super::node::ContentHash;

/// The largest payload of a frame: 100 MiB.
pub const MAX_PAYLOAD: u32 = 104_857_600;
const MAX_BYTES: usize = MAX_PAYLOAD as usize;

/// How frames of this plane look.
pub const FORMAT: quintet_framing::FrameFormat =
    quintet_framing::FrameFormat::new("workspace", quintet_framing::ByteOrder::Little, MAX_PAYLOAD);

/// Every message of the plane. "Agent" in the protocol's own words is the
/// master, "sandbox" the replica.
#[derive(Clone, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub enum WireMessage {
    /// 0, master to replica: a path changed.
    Notification {
        /// Number of the change.
        sequence: u64,
        /// The path.
        filepath: String,
        /// BLAKE3 of the content; "" for a deletion.
        content_hash: String,
        /// Length of the content.
        size: u64,
        /// Permission bits, with type bits for a directory or symlink.
        permissions: i64,
        /// Whether the path is gone.
        is_deletion: bool,
        /// The content itself when it is small.
        inline_content: Option<Vec<u8>>,
    },
    /// 1, master to replica: where the master's stream is.
    Heartbeat {
        /// The newest sequence.
        agent_sequence: u64,
        /// The same number.
        agent_iteration: i64,
    },
    /// 2, replica to master: local changes.
    WriteBack {
        /// Who wrote.
        sandbox_id: String,
        /// What changed, in order.
        entries: Vec<WriteBackEntry>,
    },
    /// 3, master to replica: what became of a write-back.
    WriteBackResult {
        /// `(local_seq, sequence)` of entries that were taken.
        accepted: Vec<(u64, i64)>,
        /// `(local_seq, reason)` of entries that were not.
        rejected: Vec<(u64, String)>,
    },
    /// 4, replica to master: has the stream reached this sequence?
    BarrierRequest {
        /// The sequence; 0 asks for "now".
        sequence: u64,
    },
    /// 5, master to replica: the answer, after all notifications up to it.
    BarrierConfirmation {
        /// Whether the stream had reached what was asked for.
        satisfied: bool,
        /// Where the stream is.
        current_sequence: u64,
    },
    /// 6, replica to master: everything up to here is in place.
    Ack {
        /// The last such sequence.
        up_to_sequence: u64,
    },
    /// 7, either way: send the content with this hash.
    ContentFetchRequest {
        /// The hash.
        content_hash: String,
    },
    /// 8, either way: content, or the list of its chunks.
    ContentFetchResponse {
        /// The hash that was asked for.
        content_hash: String,
        /// The content; empty beside a manifest.
        content: Bytes,
        /// Length of the whole content.
        size: u64,
        /// JSON of a chunk manifest, for large content.
        chunk_manifest: Option<String>,
    },
    /// 9, either way: there is no such content here.
    ContentNotFound {
        /// The hash that was asked for.
        content_hash: String,
    },
    /// 10, replica to master: send what changed after a sequence.
    CatchupRequest {
        /// Who asks.
        sandbox_id: String,
        /// The last sequence it holds; 0 for the live tree.
        since_sequence: u64,
    },
    /// 11, master to replica: that sequence is no longer kept.
    FullResyncRequired {
        /// Why.
        reason: String,
        /// Where the stream is.
        current_sequence: u64,
    },
}

/// One local change of a replica.
#[derive(Clone, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub struct WriteBackEntry {
    /// Its number at the replica, to match the answer.
    pub local_seq: u64,
    /// The path.
    pub filepath: String,
    /// What was done.
    pub operation: WriteOperation,
    /// Hash of the new content.
    pub content_hash: Option<String>,
    /// The new content, when it goes along.
    pub content_bytes: Option<Vec<u8>>,
    /// Length of the new content.
    pub size: i64,
    /// Permission bits, with type bits for a directory or symlink.
    pub permissions: i64,
    /// Whether the path is gone.
    pub is_deletion: bool,
    /// The sequence from which the replica's base of the path came.
    pub master_rowid_seen: i64,
}

impl WriteBackEntry {
    /// The sequence of its base; 0 for what is none.
    pub fn base(&self) -> u64 {
        u64::try_from(self.master_rowid_seen).unwrap_or(0)
    }

    /// Stands for what the entry asks for, however its content travels: an entry
    /// that is sent again has the same one.
    pub fn digest(&self) -> ContentHash {
        let (operation, new_path) = match &self.operation {
            WriteOperation::Write => ("write", ""),
            WriteOperation::Delete => ("delete", ""),
            WriteOperation::Rename { new_path } => ("rename", new_path.as_str()),
            WriteOperation::Chmod => ("chmod", ""),
        };
        let operation = match self.is_deletion {
            true => "delete",
            false => operation,
        };
        let hash = match (&self.content_hash, &self.content_bytes) {
            (Some(hash), _) => hash.clone(),
            (None, Some(bytes)) => ContentHash::of(bytes).to_string(),
            (None, None) => String::new(),
        };
        let mut text = Vec::new();
        for part in [operation, &self.filepath, new_path, &hash] {
            text.extend_from_slice(&(part.len() as u64).to_le_bytes());
            text.extend_from_slice(part.as_bytes());
        }
        text.extend_from_slice(&self.permissions.to_le_bytes());
        ContentHash::of(&text)
    }
}

/// What a replica did to a path.
#[derive(Clone, Debug, PartialEq, Eq, SchemaRead, SchemaWrite)]
pub enum WriteOperation {
    /// 0: it was created or its content changed.
    Write,
    /// 1: it was removed.
    Delete,
    /// 2: it moved.
    Rename {
        /// Where to.
        new_path: String,
    },
    /// 3: only its permission bits changed.
    Chmod,
}

/// The bytes of a payload are not a message.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// They do not follow the encoding, or bytes are left over.
    #[error("a payload of {len} bytes is not a workspace message: {source}")]
    Malformed {
        /// Length of the payload.
        len: usize,
        /// What did not fit.
        source: wincode::ReadError,
    },
    /// A list claims more entries than its bytes can hold.
    #[error("a payload of {len} bytes claims a list of {claimed} entries")]
    ImpossibleCount {
        /// Length of the payload.
        len: usize,
        /// The count it claims.
        claimed: u64,
    },
}

/// A message is larger than a frame may be.
#[derive(Debug, thiserror::Error)]
#[error("a message does not fit in a frame of {MAX_PAYLOAD} bytes: {source}")]
pub struct EncodeError {
    source: wincode::WriteError,
}

type WireConfig = Configuration<
    true,
    MAX_BYTES,
    wincode::len::BincodeLen,
    wincode::int_encoding::LittleEndian,
    wincode::int_encoding::FixInt,
    u32,
    MAX_BYTES,
>;

const CONFIG: WireConfig = Configuration::new();

/// The tag of [`WireMessage::ContentFetchResponse`].
const CONTENT: u32 = 8;
/// Content from this size on is neither copied into a payload nor out of one.
const SHARE_FROM: usize = 64 << 10;

/// Such a message where it lies: its tag and its fields.
type BorrowedContent<'a> = (u32, &'a str, &'a [u8], u64, Option<&'a str>);

fn deserialize<'a, T: SchemaRead<'a, WireConfig, Dst = T>>(
    payload: &'a [u8],
) -> Result<T, DecodeError> {
    wincode::config::deserialize_exact(payload, CONFIG).map_err(|source| DecodeError::Malformed {
        len: payload.len(),
        source,
    })
}

impl WireMessage {
    /// The payload of the frame that carries this message.
    pub fn encode(&self) -> Result<Bytes, EncodeError> {
        wincode::config::serialize(self, CONFIG)
            .map(Bytes::from)
            .map_err(|source| EncodeError { source })
    }

    /// The same in parts, of which some may be empty: large content is not copied.
    pub fn encode_in_parts(self) -> Result<[Bytes; 3], EncodeError> {
        let serialize_error = |source| EncodeError { source };
        match self {
            Self::ContentFetchResponse {
                content_hash,
                content,
                size,
                chunk_manifest,
            } if content.len() >= SHARE_FROM => {
                let before = (CONTENT, content_hash, content.len() as u64);
                let before =
                    wincode::config::serialize(&before, CONFIG).map_err(serialize_error)?;
                let behind = (size, chunk_manifest);
                let behind =
                    wincode::config::serialize(&behind, CONFIG).map_err(serialize_error)?;
                Ok([before.into(), content, behind.into()])
            }
            other => Ok([other.encode()?, Bytes::new(), Bytes::new()]),
        }
    }

    /// Reads the payload of a frame.
    pub fn decode(payload: &[u8]) -> Result<Self, DecodeError> {
        check_counts(payload)?;
        deserialize(payload)
    }

    /// The same, with large content as a part of the payload's memory.
    pub fn decode_shared(payload: &Bytes) -> Result<Self, DecodeError> {
        if !payload.starts_with(&CONTENT.to_le_bytes()) {
            return Self::decode(payload);
        }
        let (_, content_hash, content, size, chunk_manifest): BorrowedContent<'_> =
            deserialize(payload)?;
        Ok(Self::ContentFetchResponse {
            content_hash: content_hash.to_owned(),
            content: match content.len() < SHARE_FROM {
                true => Bytes::copy_from_slice(content),
                false => payload.slice_ref(content),
            },
            size,
            chunk_manifest: chunk_manifest.map(str::to_owned),
        })
    }

    /// A name for logs.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Notification { .. } => "Notification",
            Self::Heartbeat { .. } => "Heartbeat",
            Self::WriteBack { .. } => "WriteBack",
            Self::WriteBackResult { .. } => "WriteBackResult",
            Self::BarrierRequest { .. } => "BarrierRequest",
            Self::BarrierConfirmation { .. } => "BarrierConfirmation",
            Self::Ack { .. } => "Ack",
            Self::ContentFetchRequest { .. } => "ContentFetchRequest",
            Self::ContentFetchResponse { .. } => "ContentFetchResponse",
            Self::ContentNotFound { .. } => "ContentNotFound",
            Self::CatchupRequest { .. } => "CatchupRequest",
            Self::FullResyncRequired { .. } => "FullResyncRequired",
        }
    }
}

/// The fewest bytes that one `WriteBackEntry` takes on the wire.
const MIN_ENTRY: u64 = 8 + 8 + 4 + 1 + 1 + 8 + 8 + 1 + 8;

/// The bytes of an accepted write of a `WriteBackResult`, and the fewest of a rejected one.
const MIN_ANSWER: u64 = 8 + 8;

/// Refuses a list that claims more than its payload can hold, before the
/// decoder takes memory for it: a 28-byte frame must not cost 100 MiB.
fn check_counts(payload: &[u8]) -> Result<(), DecodeError> {
    let u64_at = |at: usize| {
        payload
            .get(at..)?
            .first_chunk::<8>()
            .map(|bytes| u64::from_le_bytes(*bytes))
    };
    let Some(tag) = payload
        .first_chunk::<4>()
        .map(|tag| u32::from_le_bytes(*tag))
    else {
        return Ok(());
    };
    let length_at = |at| {
        let length = u64_at(at).and_then(|length| usize::try_from(length).ok());
        length.unwrap_or(usize::MAX)
    };
    let fits = |count_at: usize, min_size: u64| {
        let Some(claimed) = u64_at(count_at) else {
            return Ok(());
        };
        let rest = (payload.len() as u64)
            .saturating_sub(count_at as u64)
            .saturating_sub(8);
        if claimed.saturating_mul(min_size) > rest {
            return Err(DecodeError::ImpossibleCount {
                len: payload.len(),
                claimed,
            });
        }
        Ok(())
    };
    match tag {
        2 => fits(length_at(4).saturating_add(12), MIN_ENTRY),
        3 => {
            fits(4, MIN_ANSWER)?;
            // The rejected ones are behind the accepted ones, which do fit.
            let accepted = length_at(4).saturating_mul(16);
            fits(accepted.saturating_add(12), MIN_ANSWER)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_its_payload_cannot_hold_is_refused_before_memory_is_taken() {
        let mut payload = WireMessage::WriteBack {
            sandbox_id: "s".into(),
            entries: vec![],
        }
        .encode()
        .unwrap()
        .to_vec();
        let count_at = payload.len() - 8;
        payload[count_at..].copy_from_slice(&500_000u64.to_le_bytes());
        assert!(matches!(
            WireMessage::decode(&payload),
            Err(DecodeError::ImpossibleCount {
                claimed: 500_000,
                ..
            })
        ));
    }

    #[test]
    fn both_lists_of_an_answer_are_checked_before_memory_is_taken() {
        let answer = WireMessage::WriteBackResult {
            accepted: vec![(1, 42), (2, 43)],
            rejected: vec![(3, "conflict".into())],
        };
        let payload = answer.encode().unwrap().to_vec();
        assert_eq!(WireMessage::decode(&payload).unwrap(), answer);
        for count_at in [4, 4 + 8 + 2 * 16] {
            let mut lying = payload.clone();
            lying[count_at..count_at + 8].copy_from_slice(&500_000u64.to_le_bytes());
            assert!(
                matches!(
                    WireMessage::decode(&lying),
                    Err(DecodeError::ImpossibleCount {
                        claimed: 500_000,
                        ..
                    })
                ),
                "{count_at}"
            );
        }
    }

    #[test]
    fn trailing_bytes_unknown_tags_and_garbage_are_errors() {
        let mut payload = WireMessage::Ack { up_to_sequence: 5 }
            .encode()
            .unwrap()
            .to_vec();
        payload.push(0);
        assert!(WireMessage::decode(&payload).is_err());
        assert!(WireMessage::decode(&12u32.to_le_bytes()).is_err());
        assert!(WireMessage::decode(&[]).is_err());
        assert!(WireMessage::decode(&[0xff; 64]).is_err());
    }

    #[test]
    fn large_content_is_copied_neither_into_a_frame_nor_out_of_it() {
        for (length, manifest) in [
            (5, Some("{}".to_owned())),
            (6, None),
            (SHARE_FROM - 1, None),
            (SHARE_FROM, None),
            (300_000, Some("{}".to_owned())),
        ] {
            let content = Bytes::from(vec![7; length]);
            let message = WireMessage::ContentFetchResponse {
                content_hash: "0".repeat(64),
                content: content.clone(),
                size: length as u64,
                chunk_manifest: manifest,
            };
            let payload = message.encode().unwrap();
            let parts = message.clone().encode_in_parts().unwrap();
            assert_eq!(parts.concat(), payload, "{length}");
            let is_large = length >= SHARE_FROM;
            assert_eq!(parts[1].as_ptr() == content.as_ptr(), is_large, "{length}");
            let decoded = WireMessage::decode_shared(&payload).unwrap();
            assert_eq!(decoded, message, "{length}");
            let WireMessage::ContentFetchResponse { content, .. } = decoded else {
                panic!("another message");
            };
            assert_eq!(
                payload.as_ptr_range().contains(&content.as_ptr()),
                is_large,
                "{length}"
            );
            for cut in [0, 3, 4, 11, 40, payload.len().saturating_sub(1)] {
                assert!(WireMessage::decode_shared(&payload.slice(..cut)).is_err());
            }
            let longer = Bytes::from([&payload[..], &[0]].concat());
            assert!(WireMessage::decode_shared(&longer).is_err());
        }
        let other = WireMessage::Ack { up_to_sequence: 5 };
        let payload = other.encode().unwrap();
        assert_eq!(WireMessage::decode_shared(&payload).unwrap(), other);
        assert_eq!(other.encode_in_parts().unwrap().concat(), payload);
    }

    #[test]
    fn content_of_almost_a_whole_frame_passes() {
        let message = WireMessage::ContentFetchResponse {
            content_hash: "0".repeat(64),
            content: vec![7; 90 << 20].into(),
            size: 90 << 20,
            chunk_manifest: None,
        };
        assert_eq!(
            WireMessage::decode(&message.encode().unwrap()).unwrap(),
            message
        );
    }
}
