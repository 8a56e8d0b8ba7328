//! Memory that contents are read to, again and again: to take it anew from the system for each piece
//! costs as much as to read the piece.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

/// Memory that nobody uses at the moment.
#[derive(Debug)]
pub struct Spare {
    kept: usize,
    largest: usize,
    /// Held only to push and take.
    all: Mutex<Vec<Vec<u8>>>,
}

impl Spare {
    /// Keeps at most `kept` pieces of memory, none of them over `largest` bytes.
    pub fn new(kept: usize, largest: usize) -> Arc<Self> {
        Arc::new(Self {
            kept,
            largest,
            all: Mutex::default(),
        })
    }

    /// Memory that holds whatever it held.
    pub fn take(&self) -> Vec<u8> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.pop().unwrap_or_default()
    }

    /// `bytes` to share; their memory comes back when all have let go of it.
    pub fn lend(self: &Arc<Self>, bytes: Vec<u8>) -> Bytes {
        let home = Arc::clone(self);
        Bytes::from_owner(Lent { bytes, home })
    }

    fn give(&self, bytes: Vec<u8>) {
        if bytes.capacity() > self.largest {
            return;
        }
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() < self.kept {
            all.push(bytes);
        }
    }
}

struct Lent {
    bytes: Vec<u8>,
    home: Arc<Spare>,
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
        let home = Spare::new(4, 500_000);
        let lend = |length: usize| {
            let mut bytes = home.take();
            bytes.resize(length, 7);
            let at = bytes.as_ptr();
            (at, home.lend(bytes))
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
        let many: Vec<_> = (0..8).map(|_| lend(1_000).1).collect();
        drop(many);
        drop(lend(500_001));
        let all = home.all.lock().unwrap();
        assert_eq!(all.len(), 3, "the one that became too large is gone");
        assert!(all.iter().all(|bytes| bytes.capacity() <= 500_000));
    }
}
