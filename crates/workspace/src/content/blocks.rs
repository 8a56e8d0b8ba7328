//! A large content, block by block: one thread reads and cuts it, and whichever
//! has time hashes and stores what was cut.

use std::io::Read;
use std::ops::Range;
use std::sync::mpsc::{self, TrySendError};
use std::sync::{Mutex, PoisonError};

use blake3::hazmat::ChainingValue;

use super::cas::{Cas, CasError};
use super::chunk::{BLOCK, CHUNK_MAX, Ingest, Known, Storing, cut, fill};
use super::whole::{self, PART};
use crate::proto::ContentHash;
use crate::proto::manifest::ChunkRef;

/// Threads that take part at most: reading and cutting is a third of the work.
const THREADS: usize = 4;

/// Chunks in their order, and the hash of all of them.
pub(super) type Taken = (Vec<ChunkRef>, (ContentHash, Vec<ChainingValue>));

/// Reads content to its end, and stores it. What `front` holds was read already:
/// more than one part.
pub(super) fn take_in(
    cas: &Cas,
    known: &Known,
    content: &mut dyn Read,
    front: Vec<u8>,
    filled: usize,
) -> Result<Taken, Ingest> {
    let storing = Storing::new(cas, known);
    let helpers = match filled < BLOCK {
        true => 0,
        false => std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    let helpers = helpers.clamp(1, THREADS) - 1;
    // What finds no room here is stored by the thread that cuts.
    let room = if helpers > 0 { helpers + 1 } else { 0 };
    let (to_store, waiting) = mpsc::sync_channel(room);
    let waiting = Mutex::new(waiting);
    let (home, used) = mpsc::channel();
    let mut cutting = Cutting {
        known,
        content,
        front,
        filled,
        offset: 0,
        hashed: 0,
        used,
    };
    let help = |home: mpsc::Sender<Vec<u8>>| {
        let mut all = Vec::new();
        loop {
            let next = waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .recv();
            let Ok(block): Result<Block, _> = next else {
                return Ok::<_, CasError>(all);
            };
            all.push(block.store(&storing)?);
            // Nobody takes it once the content is read to its end.
            let _ = home.send(block.bytes);
        }
    };
    let (mut all, size) = std::thread::scope(|scope| {
        let helping: Vec<_> = (0..helpers)
            .map(|_| {
                let home = home.clone();
                scope.spawn(|| help(home))
            })
            .collect();
        let mut all = Vec::new();
        while let Some(block) = cutting.next()? {
            match to_store.try_send(block) {
                Ok(()) => {}
                Err(TrySendError::Full(block) | TrySendError::Disconnected(block)) => {
                    all.push(block.store(&storing)?);
                    let _ = home.send(block.bytes);
                }
            }
        }
        drop(to_store);
        for thread in helping {
            let failed = |_| Ingest::Read(std::io::Error::other("a thread that stores failed"));
            all.extend(thread.join().map_err(failed)??);
        }
        Ok::<_, Ingest>((all, cutting.offset))
    })?;
    all.sort_unstable_by_key(|stored| stored.offset);
    let parts: Vec<_> = all
        .iter()
        .flat_map(|stored| &stored.parts)
        .copied()
        .collect();
    let chunks = all.into_iter().flat_map(|stored| stored.chunks).collect();
    let failed = || Ingest::Read(std::io::Error::other("a part of it was not hashed"));
    let hash = whole::whole(&parts, size).ok_or_else(failed)?;
    Ok((chunks, (hash, parts)))
}

/// Reads content, and cuts it.
struct Cutting<'a> {
    known: &'a Known,
    content: &'a mut dyn Read,
    /// The next block, as far as it is read.
    front: Vec<u8>,
    filled: usize,
    /// Where in the content it begins.
    offset: u64,
    /// How much of it was in the block before, which saw to its hash.
    hashed: usize,
    /// Memory that is not needed any more.
    used: mpsc::Receiver<Vec<u8>>,
}

impl Cutting<'_> {
    /// The next block; `None` when all is cut.
    fn next(&mut self) -> Result<Option<Block>, Ingest> {
        // Parts of the whole begin where a block's new bytes do.
        let over = usize::try_from(self.offset % PART as u64).unwrap_or_default();
        let end = BLOCK - over;
        if self.offset > 0 {
            self.filled = fill(self.content, &mut self.front, self.filled, end)?;
        }
        if self.filled == 0 {
            return Ok(None);
        }
        let bytes = self.front.get(..self.filled).unwrap_or_default();
        let at_end = self.filled < end;
        let mut chunks = Vec::new();
        let mut start = 0;
        while let Some(rest) = bytes.get(start..).filter(|rest| !rest.is_empty()) {
            if !at_end && (rest.len() as u64) < CHUNK_MAX {
                break;
            }
            let offset = self.offset + start as u64;
            let (length, hash) = match self.known.recognise(rest, offset) {
                Some((length, hash)) => (length, Some(hash)),
                None => (cut(rest).clamp(1, rest.len()), None),
            };
            chunks.push((start..start + length, hash));
            start += length;
        }
        let tail = bytes.get(start..).unwrap_or_default();
        let mut next = Vec::new();
        if !tail.is_empty() {
            next = self.used.try_recv().unwrap_or_default();
            next.resize(BLOCK, 0);
            if let Some(begin) = next.get_mut(..tail.len()) {
                begin.copy_from_slice(tail);
            }
        }
        let rest = tail.len();
        let block = Block {
            bytes: std::mem::replace(&mut self.front, next),
            offset: self.offset,
            new: self.hashed..self.filled,
            chunks,
        };
        self.offset += start as u64;
        self.filled = rest;
        self.hashed = rest;
        Ok(Some(block))
    }
}

/// Bytes that were read and cut.
struct Block {
    bytes: Vec<u8>,
    /// Where in the content it begins.
    offset: u64,
    /// What no block before it had; it begins with a part of the whole.
    new: Range<usize>,
    /// Where it was cut, with the hash of what was recognised.
    chunks: Vec<(Range<usize>, Option<ContentHash>)>,
}

/// What became of a block.
struct Stored {
    offset: u64,
    chunks: Vec<ChunkRef>,
    parts: Vec<ChainingValue>,
}

impl Block {
    /// Stores the chunks, and hashes the parts of the whole while they are in
    /// the core's cache.
    fn store(&self, storing: &Storing<'_>) -> Result<Stored, CasError> {
        let mut stored = Stored {
            offset: self.offset,
            chunks: Vec::with_capacity(self.chunks.len()),
            parts: Vec::with_capacity(self.new.len().div_ceil(PART)),
        };
        let mut hashed = self.new.start;
        for (range, hash) in &self.chunks {
            let chunk = self.bytes.get(range.clone()).unwrap_or_default();
            let offset = self.offset + range.start as u64;
            storing.keep(chunk, *hash, offset, &mut stored.chunks)?;
            while hashed + PART <= range.end {
                stored.parts.push(self.part(hashed..hashed + PART));
                hashed += PART;
            }
        }
        while hashed < self.new.end {
            let end = self.new.end.min(hashed + PART);
            stored.parts.push(self.part(hashed..end));
            hashed = end;
        }
        Ok(stored)
    }

    fn part(&self, range: Range<usize>) -> ChainingValue {
        let offset = self.offset + range.start as u64;
        whole::part(self.bytes.get(range).unwrap_or_default(), offset)
    }
}
