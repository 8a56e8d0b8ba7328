//! Cutting content into chunks while it is read.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::sync::atomic::{AtomicIsize, Ordering};

use blake3::hazmat::ChainingValue;
use fastcdc::v2020::FastCDC;

use super::blocks::take_in;
use super::cas::{Cas, CasError};
use crate::proto::ContentHash;
use crate::proto::manifest::{ChunkRef, Manifest};

/// Content up to this size lives in the database of its workspace.
pub const SMALL: u64 = 64 << 10;
/// The smallest chunk, but for the last of a content and for pieces.
pub const CHUNK_MIN: u64 = 128 << 10;
/// The average that is aimed at: with it the list of a 1 GiB file is under half
/// a megabyte, and a small change moves about as much.
pub const CHUNK_AVERAGE: u64 = 256 << 10;
/// The largest chunk. Under 1 MiB, so that content which is answered with a list
/// always has more than one and is never its own chunk.
pub const CHUNK_MAX: u64 = 768 << 10;

/// A changed chunk of a content whose earlier version is known is stored in
/// pieces of this size: those without a change are found where they were.
const PIECE: usize = 64 << 10;
/// How much of a content is stored in pieces at most; of one that was written
/// anew they would only make the list longer.
const SPLIT: isize = 32 << 20;

/// How much is read at once.
pub(super) const BLOCK: usize = 2 << 20;

/// What became of content that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Ingested {
    /// Its hash.
    pub hash: ContentHash,
    /// Its length.
    pub size: u64,
    /// The bytes, when they are too few for the store.
    pub small: Option<Vec<u8>>,
    /// The list of chunks otherwise.
    pub chunks: Option<Manifest>,
}

impl Ingested {
    /// Content that is too little for the store.
    pub(crate) fn small(bytes: Vec<u8>) -> Self {
        Self {
            hash: ContentHash::of(&bytes),
            size: bytes.len() as u64,
            small: Some(bytes),
            chunks: None,
        }
    }
}

/// Content could not be taken in.
#[derive(Debug, thiserror::Error)]
pub enum Ingest {
    /// It could not be read.
    #[error("reading: {0}")]
    Read(#[source] io::Error),
    /// It could not be stored.
    #[error(transparent)]
    Store(#[from] CasError),
}

/// Cuts the front of `data`, which is at least [`CHUNK_MAX`] long or the end of
/// the content.
pub(super) fn cut(data: &[u8]) -> usize {
    let (min, average, max) = (
        CHUNK_MIN as usize,
        CHUNK_AVERAGE as usize,
        CHUNK_MAX as usize,
    );
    let window = data.get(..max).unwrap_or(data);
    let (_, end) = FastCDC::new(window, min, average, max).cut(0, window.len());
    end
}

/// Where content would be cut, without storing it.
pub(crate) fn cut_points(mut content: impl Read) -> io::Result<Vec<ChunkRef>> {
    let mut chunks = Vec::new();
    let mut block = Vec::new();
    let (mut start, mut filled, mut offset) = (0, 0, 0u64);
    loop {
        if filled - start < CHUNK_MAX as usize {
            block.copy_within(start..filled, 0);
            filled -= start;
            start = 0;
            block.resize(BLOCK, 0);
            while let Some(free) = block.get_mut(filled..).filter(|free| !free.is_empty()) {
                match content.read(free) {
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
        }
        let rest = block.get(start..filled).unwrap_or_default();
        if rest.is_empty() {
            return Ok(chunks);
        }
        let end = cut(rest);
        let chunk = rest.get(..end).unwrap_or(rest);
        chunks.push(ChunkRef {
            hash: ContentHash::of(chunk),
            offset,
            size: chunk.len() as u64,
        });
        offset += chunk.len() as u64;
        start += chunk.len();
    }
}

impl Cas {
    /// Reads content to its end, and stores it unless it is small. The hash is
    /// computed on the way.
    pub fn ingest(&self, content: impl Read + Send) -> Result<Ingested, Ingest> {
        self.ingest_like(content, None)
    }

    /// The same for content that is expected to resemble an earlier one: chunks
    /// that are where they were are recognised by their hash and not cut anew.
    pub fn ingest_like(
        &self,
        mut content: impl Read + Send,
        earlier: Option<&Manifest>,
    ) -> Result<Ingested, Ingest> {
        let known = earlier.map(Known::new).unwrap_or_default();
        let mut block = Vec::new();
        let filled = fill(&mut content, &mut block, 0, BLOCK)?;
        if filled as u64 <= SMALL {
            block.truncate(filled);
            return Ok(Ingested::small(block));
        }
        let (chunks, whole) = take_in(self, &known, &mut content, block, filled)?;
        self.ingested(chunks, whole)
    }

    pub(super) fn ingested(
        &self,
        chunks: Vec<ChunkRef>,
        (hash, parts): (ContentHash, Vec<ChainingValue>),
    ) -> Result<Ingested, Ingest> {
        let size = chunks.last().map_or(0, |chunk| chunk.offset + chunk.size);
        let manifest = Manifest {
            total_size: size,
            chunk_size: CHUNK_AVERAGE,
            chunks,
        };
        // A content of one chunk is stored as that chunk: they share their name.
        if manifest.chunks.len() > 1 {
            self.put_manifest(&hash, &manifest)?;
        }
        self.remember_parts(hash, parts);
        Ok(Ingested {
            hash,
            size,
            small: None,
            chunks: Some(manifest),
        })
    }
}

/// Stores chunks, from as many threads as there are.
pub(super) struct Storing<'a> {
    cas: &'a Cas,
    known: &'a Known,
    /// How much more may be stored in pieces; less than nothing is nothing.
    may_split: AtomicIsize,
}

impl<'a> Storing<'a> {
    pub(super) fn new(cas: &'a Cas, known: &'a Known) -> Self {
        let may_split = if known.is_empty() { 0 } else { SPLIT };
        Self {
            cas,
            known,
            may_split: AtomicIsize::new(may_split),
        }
    }

    /// Stores the chunk at an offset, and adds it to the list.
    pub(super) fn keep(
        &self,
        chunk: &[u8],
        hash: Option<ContentHash>,
        offset: u64,
        list: &mut Vec<ChunkRef>,
    ) -> Result<(), CasError> {
        let hash = hash.unwrap_or_else(|| ContentHash::of(chunk));
        let length = isize::try_from(chunk.len()).unwrap_or(isize::MAX);
        if self.known.has(&hash) || self.may_split.fetch_sub(length, Ordering::Relaxed) <= 0 {
            return self.put(chunk, hash, offset, list);
        }
        chunk
            .chunks(PIECE)
            .zip((offset..).step_by(PIECE))
            .try_for_each(|(piece, offset)| self.put(piece, ContentHash::of(piece), offset, list))
    }

    fn put(
        &self,
        bytes: &[u8],
        hash: ContentHash,
        offset: u64,
        list: &mut Vec<ChunkRef>,
    ) -> Result<(), CasError> {
        self.cas.put_bytes(&hash, bytes)?;
        list.push(ChunkRef {
            hash,
            offset,
            size: bytes.len() as u64,
        });
        Ok(())
    }
}

/// The chunks of an earlier content, by where they start. A cut depends only on
/// the bytes before it, so a chunk that is the same would be cut the same; but
/// for the last one, which ends where the content did.
#[derive(Default)]
pub(super) struct Known {
    by_offset: HashMap<u64, ChunkRef>,
    hashes: HashSet<ContentHash>,
}

impl Known {
    pub(super) fn new(earlier: &Manifest) -> Self {
        let inner = earlier
            .chunks
            .split_last()
            .map_or(&[][..], |(_, inner)| inner);
        let by_offset = inner.iter().map(|chunk| (chunk.offset, *chunk));
        Self {
            by_offset: by_offset.collect(),
            hashes: earlier.chunks.iter().map(|chunk| chunk.hash).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    fn has(&self, hash: &ContentHash) -> bool {
        self.hashes.contains(hash)
    }

    /// The chunk that is where it was.
    pub(super) fn recognise(&self, data: &[u8], offset: u64) -> Option<(usize, ContentHash)> {
        let chunk = self.at(offset)?;
        let bytes = data.get(..usize::try_from(chunk.size).ok()?)?;
        (ContentHash::of(bytes) == chunk.hash).then_some((bytes.len(), chunk.hash))
    }

    pub(super) fn at(&self, offset: u64) -> Option<&ChunkRef> {
        self.by_offset.get(&offset).filter(|chunk| chunk.size > 0)
    }
}

/// Reads until the block is filled up to `end` or the content ends; returns how
/// far it got.
pub(super) fn fill(
    content: &mut dyn Read,
    block: &mut Vec<u8>,
    from: usize,
    end: usize,
) -> Result<usize, Ingest> {
    let mut filled = from;
    // Most files are small: begin with what they need.
    let mut room = if from == 0 { 8 << 10 } else { end };
    loop {
        if block.len() < room {
            block.resize(room, 0);
        }
        while filled < room {
            let Some(free) = block.get_mut(filled..room) else {
                break;
            };
            match content.read(free) {
                Ok(0) => return Ok(filled),
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Ingest::Read(error)),
            }
        }
        if room == end {
            return Ok(filled);
        }
        room = (room * 8).min(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Object;

    /// Bytes that look random and are the same everywhere.
    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        blake3::Hasher::new()
            .update(b"quintet")
            .finalize_xof()
            .fill(&mut bytes);
        bytes
    }

    #[test]
    fn cut_points_are_frozen() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let bytes = noise(3 << 20);
        let ingested = cas.ingest(&bytes[..]).unwrap();
        let chunks = ingested.chunks.unwrap().chunks;
        let sizes: Vec<u64> = chunks.iter().map(|chunk| chunk.size).collect();
        assert_eq!(sizes.iter().sum::<u64>(), 3 << 20);
        assert_eq!(
            sizes, GOLDEN,
            "another way of cutting would move every large file again"
        );
        assert_eq!(ingested.hash, ContentHash::of(&bytes));
    }

    const GOLDEN: [u64; 8] = [
        295_834, 408_984, 387_272, 447_989, 487_736, 423_735, 343_601, 350_577,
    ];

    #[test]
    fn a_change_in_place_is_stored_in_pieces_and_the_rest_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let mut bytes = noise(12 << 20);
        let earlier = cas.ingest(&bytes[..]).unwrap().chunks.unwrap();
        let before = bytes.clone();
        bytes[6_000_000..6_100_000].fill(7);
        let ingested = cas.ingest_like(&bytes[..], Some(&earlier)).unwrap();
        let later = ingested.chunks.unwrap();
        assert_eq!(ingested.hash, ContentHash::of(&bytes));
        let known: HashSet<_> = earlier.chunks.iter().map(|chunk| chunk.hash).collect();
        let moved: u64 = later
            .chunks
            .iter()
            .filter(|chunk| {
                let range = chunk.offset as usize..(chunk.offset + chunk.size) as usize;
                !known.contains(&chunk.hash) && before[range.clone()] != bytes[range]
            })
            .map(|chunk| chunk.size)
            .sum();
        assert!(moved <= 100_000 + 2 * PIECE as u64, "{moved}");
        let mut back = Vec::new();
        cas.copy_chunks(&ingested.hash, &later, &mut back).unwrap();
        assert!(back == bytes);
        // An insertion shifts everything, and is found all the same.
        bytes.splice(100..100, *b"inserted");
        let shifted = cas.ingest_like(&bytes[..], Some(&later)).unwrap();
        let known: HashSet<_> = later.chunks.iter().map(|chunk| chunk.hash).collect();
        let moved: u64 = shifted
            .chunks
            .unwrap()
            .chunks
            .iter()
            .filter(|chunk| !known.contains(&chunk.hash))
            .map(|chunk| chunk.size)
            .sum();
        assert!(moved <= 2 * CHUNK_MAX, "{moved}");
    }

    #[test]
    fn blocks_do_not_change_where_content_is_cut() {
        /// Gives a few bytes at a time.
        struct Slow<'a>(&'a [u8]);
        impl Read for Slow<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let some = buffer.len().min(70_001).min(self.0.len());
                buffer[..some].copy_from_slice(&self.0[..some]);
                self.0 = &self.0[some..];
                Ok(some)
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        for length in [
            0,
            1,
            SMALL as usize,
            SMALL as usize + 1,
            (1 << 20) + 5,
            BLOCK - 1,
            BLOCK,
            BLOCK + 1,
            13 << 20,
        ] {
            let bytes = noise(length);
            let (fast, slow) = (
                cas.ingest(&bytes[..]).unwrap(),
                cas.ingest(Slow(&bytes)).unwrap(),
            );
            assert_eq!(fast, slow, "{length}");
            assert_eq!(
                (fast.hash, fast.size),
                (ContentHash::of(&bytes), length as u64)
            );
            assert_eq!(fast.small.is_some(), length as u64 <= SMALL);
            let Some(manifest) = fast.chunks else {
                continue;
            };
            if length as u64 >= 1 << 20 {
                assert!(manifest.chunks.len() > 1);
                assert_eq!(
                    cas.read(&fast.hash).unwrap(),
                    Some(Object::Chunks(manifest.clone()))
                );
            }
            let mut back = Vec::new();
            cas.copy_chunks(&fast.hash, &manifest, &mut back).unwrap();
            assert!(back == bytes);
        }
    }

    #[test]
    fn a_change_in_the_middle_leaves_the_other_chunks_alone() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let mut bytes = noise(8 << 20);
        let before = cas.ingest(&bytes[..]).unwrap().chunks.unwrap();
        bytes.splice(4_000_000..4_000_000, *b"inserted");
        let after = cas.ingest(&bytes[..]).unwrap().chunks.unwrap();
        let known: std::collections::HashSet<_> =
            before.chunks.iter().map(|chunk| chunk.hash).collect();
        let new = after
            .chunks
            .iter()
            .filter(|chunk| !known.contains(&chunk.hash))
            .count();
        assert!((1..=3).contains(&new), "{new} chunks are new");
    }
}
