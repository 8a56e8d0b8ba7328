//! Cutting content into chunks while it is read.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc;

use blake3::hazmat::ChainingValue;
use fastcdc::v2020::FastCDC;

use super::cas::{Cas, CasError};
use super::whole::WholeHasher;
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
const SPLIT: usize = 32 << 20;

/// How much is read at once.
pub(super) const BLOCK: usize = 2 << 20;
/// Blocks that go round between the thread that cuts and those that hash and
/// store.
const BLOCKS: usize = 6;

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
        let filled = fill(&mut content, &mut block, 0)?;
        if filled as u64 <= SMALL {
            block.truncate(filled);
            return Ok(Ingested::small(block));
        }
        let (home, used) = mpsc::channel();
        let mut cutting = Cutting {
            known: &known,
            content: &mut content,
            home,
            used,
            made: 1,
        };
        let mut storing = Storing::new(self, &known);
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if filled < BLOCK || threads < 2 {
            let mut whole = WholeHasher::default();
            let mut failure = None;
            cutting.run(
                block,
                filled,
                &mut |part: Part| whole.update(part.bytes()),
                &mut |part: Part, hash| match storing.keep(part.bytes(), hash) {
                    Ok(()) => true,
                    Err(error) => {
                        failure = Some(error);
                        false
                    }
                },
            )?;
            return match failure {
                Some(error) => Err(error.into()),
                None => self.ingested(storing.chunks, whole.finish()),
            };
        }
        let (chunks, whole) = std::thread::scope(|scope| {
            let (to_hash, hashing) = mpsc::channel::<Part>();
            let (to_store, keeping) = mpsc::channel::<(Part, Option<ContentHash>)>();
            let hashing = scope.spawn(move || {
                let mut whole = WholeHasher::default();
                while let Ok(part) = hashing.recv() {
                    whole.update(part.bytes());
                }
                whole.finish()
            });
            let keeping = scope.spawn(move || {
                while let Ok((part, hash)) = keeping.recv() {
                    storing.keep(part.bytes(), hash)?;
                }
                Ok::<_, CasError>(storing.chunks)
            });
            let cut = cutting.run(
                block,
                filled,
                &mut |part| drop(to_hash.send(part)),
                // It has failed when it takes no more, and says why at its end.
                &mut |part, hash| to_store.send((part, hash)).is_ok(),
            );
            drop(to_hash);
            drop(to_store);
            let failed = |_| Ingest::Read(io::Error::other("a thread that hashes failed"));
            let whole = hashing.join().map_err(failed)?;
            let chunks = keeping.join().map_err(failed)??;
            cut.map(|()| (chunks, whole))
        })?;
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

/// Bytes that go round between the thread that reads and cuts and those that
/// hash and store. They are used again once nobody needs them.
struct Block {
    bytes: Vec<u8>,
    home: mpsc::Sender<Vec<u8>>,
}

impl Drop for Block {
    fn drop(&mut self) {
        // Nobody takes it once the content is read to its end.
        let _ = self.home.send(std::mem::take(&mut self.bytes));
    }
}

/// A part of a block.
struct Part {
    block: Arc<Block>,
    range: Range<usize>,
}

impl Part {
    fn bytes(&self) -> &[u8] {
        let bytes = self.block.bytes.get(self.range.clone());
        bytes.unwrap_or_default()
    }
}

/// Reads content block by block, and cuts it.
struct Cutting<'a> {
    known: &'a Known,
    content: &'a mut dyn Read,
    home: mpsc::Sender<Vec<u8>>,
    used: mpsc::Receiver<Vec<u8>>,
    made: usize,
}

impl Cutting<'_> {
    /// `whole` is given all bytes once, `store` each chunk, with its hash where
    /// it was recognised; it ends early when `store` takes no more.
    fn run(
        &mut self,
        mut block: Vec<u8>,
        mut filled: usize,
        whole: &mut dyn FnMut(Part),
        store: &mut dyn FnMut(Part, Option<ContentHash>) -> bool,
    ) -> Result<(), Ingest> {
        let mut offset = 0;
        let mut tail = Vec::new();
        loop {
            let at_end = filled < BLOCK;
            let data = Arc::new(Block {
                bytes: block,
                home: self.home.clone(),
            });
            let part = |range: Range<usize>| Part {
                block: Arc::clone(&data),
                range,
            };
            whole(part(tail.len()..filled));
            let mut start = 0;
            while let Some(rest) = data
                .bytes
                .get(start..filled)
                .filter(|rest| !rest.is_empty())
            {
                if !at_end && (rest.len() as u64) < CHUNK_MAX {
                    break;
                }
                let (length, hash) = match self.known.recognise(rest, offset) {
                    Some((length, hash)) => (length, Some(hash)),
                    None => (cut(rest).clamp(1, rest.len()), None),
                };
                if !store(part(start..start + length), hash) {
                    return Ok(());
                }
                start += length;
                offset += length as u64;
            }
            if at_end {
                return Ok(());
            }
            tail.clear();
            tail.extend_from_slice(data.bytes.get(start..filled).unwrap_or_default());
            drop(data);
            block = self.next_block();
            block.resize(BLOCK, 0);
            if let Some(front) = block.get_mut(..tail.len()) {
                front.copy_from_slice(&tail);
            }
            filled = fill(self.content, &mut block, tail.len())?;
        }
    }

    fn next_block(&mut self) -> Vec<u8> {
        if let Ok(block) = self.used.try_recv() {
            return block;
        }
        if self.made < BLOCKS {
            self.made += 1;
            return Vec::new();
        }
        self.used.recv().unwrap_or_default()
    }
}

/// Stores chunks in the order in which they come.
pub(super) struct Storing<'a> {
    cas: &'a Cas,
    known: &'a Known,
    may_split: usize,
    pub(super) chunks: Vec<ChunkRef>,
    pub(super) offset: u64,
}

impl<'a> Storing<'a> {
    pub(super) fn new(cas: &'a Cas, known: &'a Known) -> Self {
        Self {
            cas,
            known,
            may_split: if known.is_empty() { 0 } else { SPLIT },
            chunks: Vec::new(),
            offset: 0,
        }
    }

    pub(super) fn keep(&mut self, chunk: &[u8], hash: Option<ContentHash>) -> Result<(), CasError> {
        let hash = hash.unwrap_or_else(|| ContentHash::of(chunk));
        if self.may_split > 0 && !self.known.has(&hash) {
            self.may_split = self.may_split.saturating_sub(chunk.len());
            return chunk
                .chunks(PIECE)
                .try_for_each(|piece| self.put(piece, ContentHash::of(piece)));
        }
        self.put(chunk, hash)
    }

    fn put(&mut self, bytes: &[u8], hash: ContentHash) -> Result<(), CasError> {
        self.cas.put_bytes(&hash, bytes)?;
        self.refer(hash, bytes.len() as u64);
        Ok(())
    }

    /// A chunk that is stored already comes next.
    pub(super) fn refer(&mut self, hash: ContentHash, size: u64) {
        let offset = self.offset;
        self.chunks.push(ChunkRef { hash, offset, size });
        self.offset += size;
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

    fn recognise(&self, data: &[u8], offset: u64) -> Option<(usize, ContentHash)> {
        let chunk = self.at(offset)?;
        let bytes = data.get(..usize::try_from(chunk.size).ok()?)?;
        (ContentHash::of(bytes) == chunk.hash).then_some((bytes.len(), chunk.hash))
    }

    pub(super) fn at(&self, offset: u64) -> Option<&ChunkRef> {
        self.by_offset.get(&offset).filter(|chunk| chunk.size > 0)
    }
}

/// Reads until the block is full or the content ends; returns how far it got.
fn fill(content: &mut dyn Read, block: &mut Vec<u8>, from: usize) -> Result<usize, Ingest> {
    let mut filled = from;
    // Most files are small: begin with what they need.
    let mut room = if from == 0 { 8 << 10 } else { BLOCK };
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
        if room == BLOCK {
            return Ok(filled);
        }
        room = (room * 8).min(BLOCK);
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
