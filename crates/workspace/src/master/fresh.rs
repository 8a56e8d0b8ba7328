//! Small contents that were just recorded: whoever follows the workspace is sent
//! them next, and they need not be read back from the history for that.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::proto::ContentHash;
use crate::proto::master::INLINE_BELOW;

/// Bytes that are held at most, for all connections of a workspace together.
const HELD: usize = 16 << 20;

#[derive(Debug, Default)]
pub(super) struct Fresh {
    /// Held only to add, look up and clear.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    followers: usize,
    contents: HashMap<ContentHash, Vec<u8>>,
    /// The oldest goes first.
    order: VecDeque<ContentHash>,
    bytes: usize,
}

impl Fresh {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds contents of which the hash was computed, as long as anybody follows.
    pub(super) fn keep(&self, contents: HashMap<ContentHash, Vec<u8>>) {
        let mut state = self.state();
        if state.followers == 0 {
            return;
        }
        for (hash, bytes) in contents {
            let length = bytes.len();
            if length as u64 >= INLINE_BELOW || state.contents.contains_key(&hash) {
                continue;
            }
            state.bytes += length;
            state.contents.insert(hash, bytes);
            state.order.push_back(hash);
        }
        while state.bytes > HELD {
            let Some(oldest) = state.order.pop_front() else {
                return;
            };
            let dropped = state
                .contents
                .remove(&oldest)
                .map_or(0, |bytes| bytes.len());
            state.bytes = state.bytes.saturating_sub(dropped);
        }
    }

    /// Looks contents up, all at once.
    pub(super) fn of<'a>(
        &self,
        hashes: impl Iterator<Item = Option<&'a ContentHash>>,
    ) -> Vec<Option<Vec<u8>>> {
        let state = self.state();
        let find = |hash: Option<&ContentHash>| state.contents.get(hash?).cloned();
        hashes.map(find).collect()
    }

    /// Somebody follows from now on.
    pub(super) fn follow(self: &Arc<Self>) -> Following {
        self.state().followers += 1;
        Following(Arc::clone(self))
    }
}

/// While it lives, fresh contents are held.
pub(super) struct Following(Arc<Fresh>);

impl Drop for Following {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.followers = state.followers.saturating_sub(1);
        if state.followers == 0 {
            *state = State::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_held_while_somebody_follows_and_not_too_many() {
        let fresh = Arc::new(Fresh::default());
        let some = |n: u16| {
            let bytes = vec![u8::try_from(n % 251).unwrap(); 4_000];
            let mut hash = [0; 32];
            hash[..2].copy_from_slice(&n.to_le_bytes());
            (ContentHash::from_bytes(hash), bytes)
        };
        let has = |n: u16| fresh.of([Some(&some(n).0)].into_iter())[0].is_some();
        fresh.keep(HashMap::from([some(0)]));
        assert!(!has(0), "nobody follows");
        let (one, two) = (fresh.follow(), fresh.follow());
        for n in 0..5_000 {
            fresh.keep(HashMap::from([some(n)]));
        }
        assert!(has(4_999) && has(1_000) && !has(0));
        assert!(fresh.state().bytes <= HELD);
        let large = ContentHash::of(b"large");
        fresh.keep(HashMap::from([(large, vec![0; 4_096])]));
        assert_eq!(fresh.of([Some(&large), None].into_iter()), [None, None]);
        drop(one);
        assert!(has(4_999));
        drop(two);
        assert!(!has(4_999));
        assert_eq!(fresh.state().bytes, 0);
    }
}
