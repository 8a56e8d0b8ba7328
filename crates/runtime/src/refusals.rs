//! How much of the journal somebody who is not let in can fill.

use std::collections::HashMap;
use std::net::IpAddr;

/// Since 1970.
type Seconds = u64;

/// A source has at most one row in this time.
const EVERY: Seconds = 60;

/// Sources with rows of their own; beyond them all others share one.
const MAX_SOURCES: usize = 16;

/// Browsers that are not paired and workers that are not let in, counted so that a row may stand for many.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    /// `None` is everybody beyond the first sources.
    sources: HashMap<Option<IpAddr>, Refused>,
}

#[derive(Debug)]
struct Refused {
    written: Seconds,
    unwritten: u64,
}

impl Refusals {
    /// Counts one. It gets a row when this says how many before it got none.
    pub(crate) fn count(&mut self, source: IpAddr, now: Seconds) -> Option<u64> {
        let mut source = Some(source);
        if !self.sources.contains_key(&source) && self.sources.len() >= MAX_SOURCES {
            self.sources
                .retain(|_, refused| now < refused.written.saturating_add(EVERY));
            if self.sources.len() >= MAX_SOURCES {
                source = None;
            }
        }
        let Some(refused) = self.sources.get_mut(&source) else {
            let first = Refused {
                written: now,
                unwritten: 0,
            };
            self.sources.insert(source, first);
            return Some(0);
        };
        if now < refused.written.saturating_add(EVERY) {
            refused.unwritten = refused.unwritten.saturating_add(1);
            return None;
        }
        refused.written = now;
        Some(std::mem::take(&mut refused.unwritten))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(number: u32) -> IpAddr {
        IpAddr::from(number.to_be_bytes())
    }

    #[test]
    fn a_source_has_a_row_a_minute_that_counts_the_others() {
        let mut refusals = Refusals::default();
        let rows: Vec<u64> = (0..10_000)
            .filter_map(|_| refusals.count(source(1), 1000))
            .collect();
        assert_eq!(rows, [0]);
        assert_eq!(refusals.count(source(2), 1000), Some(0));
        assert_eq!(refusals.count(source(1), 1059), None);
        assert_eq!(refusals.count(source(1), 1060), Some(10_000));
        assert_eq!(refusals.count(source(1), 1060), None);
    }

    #[test]
    fn many_sources_share_a_row() {
        let mut refusals = Refusals::default();
        let rows = (0..10_000)
            .filter_map(|number| refusals.count(source(number), 1000))
            .count();
        assert_eq!(rows, MAX_SOURCES + 1);
        let later = (0..10_000)
            .filter_map(|number| refusals.count(source(number), 1060))
            .count();
        assert_eq!(later, MAX_SOURCES + 1);
    }
}
