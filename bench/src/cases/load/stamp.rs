//! What an agent says: a line with its number and when it was sent.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, ensure};

/// One line.
#[derive(Clone, Copy)]
pub(in crate::cases) struct Stamp {
    number: u64,
    /// Since 1970: another process reads it.
    nanos: u64,
}

impl Stamp {
    pub(in crate::cases) fn now(number: u64) -> Self {
        Self {
            number,
            nanos: nanos(),
        }
    }

    pub(in crate::cases) fn line(self) -> String {
        format!("{} {}\n", self.number, self.nanos)
    }

    fn parse(line: &str) -> Option<Self> {
        let (number, nanos) = line.split_once(' ')?;
        Some(Self {
            number: number.parse().ok()?,
            nanos: nanos.parse().ok()?,
        })
    }

    fn age(self) -> Duration {
        Duration::from_nanos(nanos().saturating_sub(self.nanos))
    }
}

fn nanos() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(now.map_or(0, |since| since.as_nanos())).unwrap_or(u64::MAX)
}

/// Checks that the lines of a turn come complete and in order.
#[derive(Default)]
pub(super) struct Lines {
    next: u64,
}

impl Lines {
    /// Takes a piece of text, which is one or more whole lines; calls `took` with the age of each.
    pub(super) fn take(
        &mut self,
        text: &str,
        mut took: impl FnMut(Duration),
    ) -> anyhow::Result<()> {
        for line in text.lines() {
            let stamp = Stamp::parse(line).with_context(|| format!("{line:?} is no line"))?;
            let (number, next) = (stamp.number, self.next);
            ensure!(number == next, "element {number} came instead of {next}");
            self.next += 1;
            took(stamp.age());
        }
        Ok(())
    }

    /// The turn is over: they must have been so many.
    pub(super) fn end(&mut self, count: u64) -> anyhow::Result<()> {
        let came = std::mem::take(&mut self.next);
        ensure!(came == count, "{came} of {count} elements came");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(numbers: &[u64]) -> String {
        numbers.iter().map(|n| Stamp::now(*n).line()).collect()
    }

    #[test]
    fn lines_are_whole_in_order_and_counted() {
        let mut lines = Lines::default();
        let mut count = 0;
        lines.take(&text(&[0]), |_| count += 1).unwrap();
        lines.take(&text(&[1, 2]), |_| count += 1).unwrap();
        lines.end(3).unwrap();
        assert_eq!(count, 3);
        lines.take(&text(&[0]), drop).unwrap();
        assert!(lines.end(2).is_err());
    }

    #[test]
    fn what_is_lost_or_doubled_is_said() {
        for wrong in [&[0, 2][..], &[0, 0], &[1]] {
            assert!(Lines::default().take(&text(wrong), drop).is_err());
        }
        assert!(Lines::default().take("0", drop).is_err());
    }
}
