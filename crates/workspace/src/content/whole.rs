//! The hash of a content from the hashes of its parts.
//!
//! BLAKE3 is a tree: the hash of the whole follows from the chaining values of
//! its aligned parts, wherever and in whatever order these were computed. So
//! parts are hashed by several threads, and the parts of a new version that have
//! the chaining values they had before are known to be the same bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use blake3::Hasher;
use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};

use crate::proto::ContentHash;

/// The length of a part, a power of two; the last one of a content may be shorter.
pub(crate) const PART: usize = 64 << 10;

/// The chaining value of one part that begins at `offset` of a content that is
/// longer than one part.
pub(crate) fn part(bytes: &[u8], offset: u64) -> ChainingValue {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(offset);
    hasher.update(bytes);
    hasher.finalize_non_root()
}

/// The hash of a content of `size` bytes, which is longer than one part, from
/// the chaining values of all its parts. `None` when that is not their number.
pub(crate) fn whole(parts: &[ChainingValue], size: u64) -> Option<ContentHash> {
    if size <= PART as u64 || parts.len() as u64 != size.div_ceil(PART as u64) {
        return None;
    }
    let (left, right, left_size) = halves(parts, size)?;
    let hash = merge_subtrees_root(
        &subtree(left, left_size)?,
        &subtree(right, size - left_size)?,
        Mode::Hash,
    );
    Some(ContentHash::from_bytes(*hash.as_bytes()))
}

fn subtree(parts: &[ChainingValue], size: u64) -> Option<ChainingValue> {
    if let [one] = parts {
        return Some(*one);
    }
    let (left, right, left_size) = halves(parts, size)?;
    Some(merge_subtrees_non_root(
        &subtree(left, left_size)?,
        &subtree(right, size - left_size)?,
        Mode::Hash,
    ))
}

fn halves(parts: &[ChainingValue], size: u64) -> Option<(&[ChainingValue], &[ChainingValue], u64)> {
    let left_size = left_subtree_len(size);
    let count = usize::try_from(left_size / PART as u64).ok()?;
    let (left, right) = parts.split_at_checked(count)?;
    Some((left, right, left_size))
}

/// Hashes a content from its beginning to its end, and keeps the chaining
/// values of its parts.
#[derive(Debug, Default)]
pub(crate) struct WholeHasher {
    parts: Vec<ChainingValue>,
    /// The part that is not complete, or may be the only one.
    hasher: Hasher,
    filled: usize,
}

impl WholeHasher {
    pub(crate) fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filled == PART {
                // More follows, so it is not the root.
                self.parts.push(self.hasher.finalize_non_root());
                self.hasher = Hasher::new();
                self.hasher
                    .set_input_offset(self.parts.len() as u64 * PART as u64);
                self.filled = 0;
            }
            let some = bytes.len().min(PART - self.filled);
            let (now, later) = bytes.split_at(some);
            self.hasher.update(now);
            self.filled += some;
            bytes = later;
        }
    }

    /// How much was hashed.
    pub(crate) fn length(&self) -> u64 {
        self.parts.len() as u64 * PART as u64 + self.filled as u64
    }

    /// The hash, and the chaining values when there is more than one part.
    pub(crate) fn finish(mut self) -> (ContentHash, Vec<ChainingValue>) {
        let size = self.length();
        if !self.parts.is_empty() {
            self.parts.push(self.hasher.finalize_non_root());
            if let Some(hash) = whole(&self.parts, size) {
                return (hash, self.parts);
            }
        }
        let hash = ContentHash::from_bytes(*self.hasher.finalize().as_bytes());
        (hash, Vec::new())
    }
}

/// The parts of large contents that were taken in last, so that a change inside
/// one of them is found without hashing each of its chunks too.
#[derive(Debug, Default)]
pub(crate) struct RecentParts {
    all: VecDeque<(ContentHash, Arc<[ChainingValue]>)>,
    count: usize,
}

/// Parts that are remembered at most, of all contents: 4 MiB, for 8 GiB of them.
const REMEMBERED: usize = 128 << 10;
/// Content below this is read and cut as if it were new.
const WORTH_IT: usize = (8 << 20) / PART;

impl RecentParts {
    pub(crate) fn of(&self, hash: &ContentHash) -> Option<Arc<[ChainingValue]>> {
        let found = self.all.iter().find(|(known, _)| known == hash);
        found.map(|(_, parts)| Arc::clone(parts))
    }

    pub(crate) fn remember(&mut self, hash: ContentHash, parts: Vec<ChainingValue>) {
        if parts.len() < WORTH_IT || parts.len() > REMEMBERED || self.of(&hash).is_some() {
            return;
        }
        self.count += parts.len();
        self.all.push_back((hash, parts.into()));
        while self.count > REMEMBERED {
            let Some((_, oldest)) = self.all.pop_front() else {
                return;
            };
            self.count = self.count.saturating_sub(oldest.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        Hasher::new().finalize_xof().fill(&mut bytes);
        bytes
    }

    #[test]
    fn the_hash_of_the_whole_is_the_hash_of_the_whole() {
        let bytes = noise(40 * PART);
        let lengths = (0..40)
            .flat_map(|parts| [0, 1, 1_023, 1_024, 1_025, PART - 1].map(|more| parts * PART + more))
            .chain([40 * PART]);
        for length in lengths {
            let bytes = &bytes[..length];
            let expected = ContentHash::of(bytes);
            for step in [length.max(1), PART, 100_001] {
                let mut hasher = WholeHasher::default();
                for some in bytes.chunks(step) {
                    hasher.update(some);
                }
                assert_eq!(hasher.length(), length as u64);
                let (hash, parts) = hasher.finish();
                assert_eq!(hash, expected, "{length} by {step}");
                assert_eq!(parts.is_empty(), length <= PART, "{length}");
            }
            let parts: Vec<_> = bytes
                .chunks(PART)
                .enumerate()
                .map(|(index, bytes)| part(bytes, (index * PART) as u64))
                .collect();
            if length > PART {
                assert_eq!(whole(&parts, length as u64), Some(expected), "{length}");
                assert_eq!(whole(&parts[1..], length as u64), None);
            }
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_oldest_goes_first() {
        let mut recent = RecentParts::default();
        let hash = |n: u8| ContentHash::from_bytes([n; 32]);
        recent.remember(hash(0), vec![[0; 32]; WORTH_IT - 1]);
        assert!(recent.of(&hash(0)).is_none());
        for n in 1..=5 {
            recent.remember(hash(n), vec![[n; 32]; REMEMBERED / 4]);
        }
        assert!(recent.of(&hash(1)).is_none());
        assert!((2..=5).all(|n| recent.of(&hash(n)).is_some()));
        assert_eq!(recent.count, REMEMBERED);
    }
}
