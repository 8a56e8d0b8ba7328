//! Memory that objects are read to, again and again: to take it anew from the
//! system for each chunk costs as much as to read the chunk.

use std::sync::{Arc, Mutex, PoisonError};

use super::chunk::CHUNK_MAX;

/// How many are kept.
const KEPT: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Spare {
    /// Held only to push and take.
    all: Mutex<Vec<Vec<u8>>>,
}

impl Spare {
    /// Memory that holds whatever it held.
    pub(super) fn take(&self) -> Vec<u8> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.pop().unwrap_or_default()
    }

    fn give(&self, bytes: Vec<u8>) {
        // What holds more than a chunk of ours is seldom needed.
        if bytes.capacity() as u64 > 2 * CHUNK_MAX {
            return;
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < KEPT {
            all.push(bytes);
        }
    }
}

/// Bytes in memory that is given back.
pub(super) struct Lent {
    pub(super) bytes: Vec<u8>,
    pub(super) home: Arc<Spare>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_all_let_go_of_it_and_not_too_much_is_kept() {
        let home = Arc::new(Spare::default());
        let lend = |length: usize| {
            let mut bytes = home.take();
            bytes.resize(length, 7);
            let at = bytes.as_ptr();
            let home = Arc::clone(&home);
            (at, bytes::Bytes::from_owner(Lent { bytes, home }))
        };
        let (first, bytes) = lend(300_000);
        let part = bytes.slice(100..200);
        drop(bytes);
        assert!(home.take().is_empty(), "a part of it is needed");
        assert_eq!(part, [7u8; 100][..]);
        drop(part);
        let (second, bytes) = lend(200_000);
        assert_eq!(first, second, "it is used again");
        assert_eq!(bytes.len(), 200_000);
        let many: Vec<_> = (0..2 * KEPT).map(|_| lend(1_000).1).collect();
        drop(many);
        drop(lend(50 << 20));
        let all = home.all.lock().unwrap();
        assert_eq!(all.len(), KEPT - 1, "the one that became too large is gone");
        assert!(
            all.iter()
                .all(|bytes| bytes.capacity() as u64 <= 2 * CHUNK_MAX)
        );
    }
}
