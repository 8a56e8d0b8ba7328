//! The newest rows, in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::{Kind, Row};

/// Rows and bytes kept at the most; readers behind them read from disk.
const MAX_ROWS: usize = 8192;
const MAX_BYTES: usize = 16 << 20;

/// Rows handed to a reader at once, and bytes: a row beyond them is the last of its batch.
pub(super) const BATCH_ROWS: usize = 512;
pub(super) const BATCH_BYTES: usize = 4 << 20;

#[derive(Debug)]
pub(crate) struct Tail {
    /// Held to copy handles in and out, never across an await or a query.
    recent: Mutex<Recent>,
    head: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Recent {
    rows: VecDeque<Arc<Row>>,
    bytes: usize,
    /// How many rows of each kind there were since the start.
    counts: HashMap<Kind, u64>,
}

impl Tail {
    pub(crate) fn new(head: u64) -> Self {
        Self {
            recent: Mutex::default(),
            head: watch::Sender::new(head),
        }
    }

    /// Makes durable rows visible.
    pub(crate) fn publish(&self, rows: Vec<Arc<Row>>) {
        let Some(head) = rows.last().map(|row| row.seq) else {
            return;
        };
        {
            let mut recent = self.lock();
            for row in rows {
                recent.bytes += row.weight();
                match recent.counts.get_mut(&row.kind) {
                    Some(count) => *count += 1,
                    None => drop(recent.counts.insert(row.kind.clone(), 1)),
                }
                recent.rows.push_back(row);
            }
            while recent.rows.len() > MAX_ROWS || recent.bytes > MAX_BYTES {
                let Some(oldest) = recent.rows.pop_front() else {
                    break;
                };
                recent.bytes -= oldest.weight();
            }
        }
        self.head.send_replace(head);
    }

    /// Up to a batch of the rows after `after`, and the number up to which they are all there are.
    ///
    /// `None` when older rows are needed than are kept here.
    pub(crate) fn after(&self, after: u64) -> Option<(Vec<Arc<Row>>, u64)> {
        let recent = self.lock();
        let first = recent.rows.front()?.seq;
        let skip = usize::try_from((after + 1).checked_sub(first)?).ok()?;
        let mut bytes = 0;
        let rows: Vec<_> = recent
            .rows
            .iter()
            .skip(skip)
            .take(BATCH_ROWS)
            .take_while(|row| {
                let has_room = bytes < BATCH_BYTES;
                bytes += row.weight();
                has_room
            })
            .cloned()
            .collect();
        let upto = rows.last().map_or(after, |row| row.seq);
        Some((rows, upto))
    }

    /// The number of the newest durable row.
    pub(crate) fn head(&self) -> u64 {
        *self.head.borrow()
    }

    /// How many rows of each kind were published since the start.
    pub(crate) fn counts(&self) -> HashMap<Kind, u64> {
        self.lock().counts.clone()
    }

    /// How many readers there are, behind or not.
    pub(crate) fn readers(&self) -> usize {
        self.head.receiver_count()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Entry;

    #[test]
    fn what_is_kept_is_bounded_by_rows_and_by_bytes() {
        for (data, most) in [("x".into(), MAX_ROWS), ("x".repeat(1 << 20), 16)] {
            let tail = Tail::new(0);
            let row = |seq| Arc::new(Row::new(seq, 0, Entry::raw(Kind::Note, data.clone())));
            let last = 3 * most as u64;
            (1..=last).for_each(|seq| tail.publish(vec![row(seq)]));
            let kept = tail.lock().rows.len();
            assert!(kept <= most, "{kept}");
            assert!(tail.after(0).is_none(), "what is gone is not left out");
            let (rows, upto) = tail.after(last - 2).expect("kept");
            assert_eq!((rows.len(), upto), (2, last));
        }
    }
}
