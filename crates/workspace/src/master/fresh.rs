//! Small contents that were just recorded: whoever follows the workspace is sent
//! them next, and they need not be read back from the history for that.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::proto::ContentHash;
use crate::proto::master::INLINE_BELOW;

/// Bytes that are held at most, for all connections of a workspace together.
const HELD: usize = 16 << 20;
/// Hashes of contents that are gone, of which the order is kept at most.
const FORGOTTEN: usize = 1_024;

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

    /// Looks contents up, all at once. Nobody else waits for what the only one who
    /// follows is sent: it need not be copied, and its memory is free soon.
    pub(super) fn of(&self, hashes: &[Option<ContentHash>]) -> Vec<Option<Vec<u8>>> {
        let mut state = self.state();
        if state.followers != 1 {
            let find = |hash: &Option<ContentHash>| state.contents.get(hash.as_ref()?).cloned();
            return hashes.iter().map(find).collect();
        }
        // Under several paths it may be wanted several times: the last one takes it.
        let mut last = HashMap::new();
        for (index, hash) in hashes.iter().enumerate() {
            last.extend(hash.map(|hash| (hash, index)));
        }
        let mut take = |(index, hash): (usize, &Option<ContentHash>)| {
            let hash = hash.as_ref()?;
            if last.get(hash) != Some(&index) {
                return state.contents.get(hash).cloned();
            }
            let bytes = state.contents.remove(hash)?;
            state.bytes = state.bytes.saturating_sub(bytes.len());
            Some(bytes)
        };
        let found = hashes.iter().enumerate().map(&mut take).collect();
        let State {
            contents, order, ..
        } = &mut *state;
        if order.len() > 2 * contents.len() + FORGOTTEN {
            order.retain(|hash| contents.contains_key(hash));
        }
        found
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
        let has = |n: u16| fresh.of(&[Some(some(n).0)])[0].is_some();
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
        assert_eq!(fresh.of(&[Some(large), None]), [None, None]);
        drop(one);
        // The only one who is left takes what it is sent.
        let (hash, bytes) = some(4_999);
        let twice = [Some(hash), None, Some(hash)];
        assert_eq!(fresh.of(&twice), [Some(bytes.clone()), None, Some(bytes)]);
        assert!(!has(4_999) && has(4_998));
        for n in 1_000..4_990 {
            has(n);
        }
        assert!(fresh.state().order.len() < 2_000);
        assert_eq!(fresh.state().bytes, (194 + 8) * 4_000);
        drop(two);
        assert!(!has(4_995));
        assert_eq!(fresh.state().bytes, 0);
    }
}
