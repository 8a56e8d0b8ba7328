//! Memory that large payloads are read into, again and again.
//!
//! A payload is handed out as a slice of the block that it arrived in. The block can be used again
//! once every such slice is dropped, which spares the page faults of fresh memory: they cost as much
//! as the copy.

use std::collections::VecDeque;

use bytes::BytesMut;

/// After so many small payloads in a row the memory is given back.
pub(super) const KEPT_UNUSED: u8 = 16;

/// Blocks of one size.
#[derive(Debug)]
pub(crate) struct Blocks {
    size: usize,
    most: usize,
    pub(super) kept: VecDeque<BytesMut>,
    /// Payloads since the last large one.
    small: u8,
}

impl Blocks {
    /// Blocks of `size` bytes, of which `most` are kept. Takes no memory yet.
    pub(crate) fn new(size: usize, most: usize) -> Self {
        Self {
            size,
            most,
            kept: VecDeque::new(),
            small: 0,
        }
    }

    /// The size of a block.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// A block that begins with `bytes`, which fit.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> BytesMut {
        let free = |old: &mut BytesMut| {
            old.clear();
            old.try_reclaim(self.size)
        };
        // What was used last may still be in a cache.
        let found = self.kept.iter_mut().rposition(free);
        let found = found.and_then(|index| self.kept.remove(index));
        let mut block = found.unwrap_or_else(|| BytesMut::with_capacity(self.size));
        block.extend_from_slice(bytes);
        block
    }

    /// Keeps a block whose slices may still be in use.
    pub(crate) fn keep(&mut self, block: BytesMut) {
        if self.kept.len() < self.most {
            self.kept.push_back(block);
        }
    }

    /// Notes a payload, and gives the memory back when no large one comes any more. Returns whether
    /// it did.
    pub(crate) fn note(&mut self, large: bool) -> bool {
        if large {
            self.small = 0;
            return false;
        }
        self.small = self.small.saturating_add(1);
        if self.small < KEPT_UNUSED || self.kept.capacity() == 0 {
            return false;
        }
        self.kept = VecDeque::new();
        true
    }
}
