//! The list of chunks that stands for large content.

use serde::{Deserialize, Serialize};

use super::node::ContentHash;

/// The largest chunk that is accepted; ours are smaller than 1 MiB.
pub const MAX_CHUNK: u64 = 64 << 20;

/// Chunks of one content, in order, without holes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// Length of the whole content.
    pub total_size: u64,
    /// The average that the chunker aimed at.
    pub chunk_size: u64,
    /// The chunks.
    pub chunks: Vec<ChunkRef>,
}

/// One chunk of a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRef {
    /// Its hash.
    pub hash: ContentHash,
    /// Where it starts.
    pub offset: u64,
    /// Its length.
    pub size: u64,
}

/// Why a manifest was refused.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// It is not the JSON that was expected.
    #[error("a chunk manifest is not valid JSON of its kind: {0}")]
    Json(#[from] serde_json::Error),
    /// A chunk's hash is not a hash.
    #[error("chunk {index} of a manifest has the hash {hash:?}")]
    Hash {
        /// Which chunk.
        index: usize,
        /// The text as it came.
        hash: String,
    },
    /// A chunk is empty or too large.
    #[error("chunk {index} of a manifest has {size} bytes; 1 to {MAX_CHUNK} are allowed")]
    ChunkSize {
        /// Which chunk.
        index: usize,
        /// Its claimed length.
        size: u64,
    },
    /// Chunks overlap or leave a hole.
    #[error("chunk {index} of a manifest starts at {offset}, expected {expected}")]
    Offset {
        /// Which chunk.
        index: usize,
        /// Where it claims to start.
        offset: u64,
        /// Where the one before it ended.
        expected: u64,
    },
    /// The chunks do not add up to what was promised.
    #[error("the chunks of a manifest add up to {sum} bytes, expected {expected}")]
    Total {
        /// Sum of the chunks.
        sum: u64,
        /// What the manifest or the notification promised.
        expected: u64,
    },
}

#[derive(Serialize, Deserialize)]
struct WireManifest {
    chunk_size: u64,
    chunks: Vec<WireChunk>,
    total_size: u64,
}

#[derive(Serialize, Deserialize)]
struct WireChunk {
    hash: String,
    offset: u64,
    size: u64,
}

impl Manifest {
    /// Reads and checks the wire form. `expected` is the length that the
    /// response claimed.
    pub fn parse(json: &str, expected: u64) -> Result<Self, ManifestError> {
        let wire: WireManifest = serde_json::from_str(json)?;
        let mut chunks = Vec::with_capacity(wire.chunks.len());
        let mut end = 0u64;
        for (index, chunk) in wire.chunks.into_iter().enumerate() {
            let Some(hash) = ContentHash::parse(&chunk.hash) else {
                return Err(ManifestError::Hash {
                    index,
                    hash: chunk.hash,
                });
            };
            if chunk.size == 0 || chunk.size > MAX_CHUNK {
                return Err(ManifestError::ChunkSize {
                    index,
                    size: chunk.size,
                });
            }
            if chunk.offset != end {
                return Err(ManifestError::Offset {
                    index,
                    offset: chunk.offset,
                    expected: end,
                });
            }
            end = end.saturating_add(chunk.size);
            chunks.push(ChunkRef {
                hash,
                offset: chunk.offset,
                size: chunk.size,
            });
        }
        for promised in [wire.total_size, expected] {
            if end != promised {
                return Err(ManifestError::Total {
                    sum: end,
                    expected: promised,
                });
            }
        }
        Ok(Self {
            total_size: end,
            chunk_size: wire.chunk_size,
            chunks,
        })
    }

    /// The wire form.
    pub fn to_json(&self) -> String {
        let wire = WireManifest {
            chunk_size: self.chunk_size,
            total_size: self.total_size,
            chunks: self
                .chunks
                .iter()
                .map(|chunk| WireChunk {
                    hash: chunk.hash.to_string(),
                    offset: chunk.offset,
                    size: chunk.size,
                })
                .collect(),
        };
        serde_json::to_string(&wire).expect("numbers and strings always serialise")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(total: u64, chunks: &[(u64, u64)]) -> String {
        let hash = ContentHash::of(b"x");
        let chunks: Vec<_> = chunks
            .iter()
            .map(|(offset, size)| format!(r#"{{"hash":"{hash}","offset":{offset},"size":{size}}}"#))
            .collect();
        format!(
            r#"{{"chunk_size":4,"chunks":[{}],"total_size":{total}}}"#,
            chunks.join(",")
        )
    }

    #[test]
    fn a_good_manifest_comes_back_as_it_was() {
        let text = json(7, &[(0, 4), (4, 3)]);
        assert_eq!(Manifest::parse(&text, 7).unwrap().to_json(), text);
    }

    #[test]
    fn a_manifest_that_lies_is_refused() {
        for (text, expected) in [
            (json(7, &[(0, 4), (5, 3)]), 7),
            (json(7, &[(0, 4), (3, 3)]), 7),
            (json(8, &[(0, 4), (4, 3)]), 8),
            (json(7, &[(0, 4), (4, 3)]), 9),
            (json(4, &[(0, 4), (4, 0)]), 4),
            (json(MAX_CHUNK + 1, &[(0, MAX_CHUNK + 1)]), MAX_CHUNK + 1),
            (json(0, &[(0, u64::MAX), (u64::MAX, 1)]), 0),
            ("{}".to_owned(), 0),
            (json(1, &[(0, 1)]).replace('"', ""), 1),
        ] {
            assert!(Manifest::parse(&text, expected).is_err(), "{text}");
        }
    }
}
