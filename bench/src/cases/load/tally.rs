//! What is counted while the load runs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::task::JoinSet;

/// A latency that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Latency {
    Ping,
    TurnStart,
    ElementToClient,
    Exec,
    WriteToReplica,
    ReplicaToHost,
    ElementToBrowser,
    ElementToWatcher,
}

/// Everything that happened.
#[derive(Default)]
pub(super) struct Tally {
    /// Short sections without an await.
    latencies: Mutex<BTreeMap<Latency, Histogram>>,
    /// How often each was seen. Short sections without an await.
    errors: Mutex<BTreeMap<String, u64>>,
}

impl Tally {
    pub(super) fn took(&self, what: Latency, time: Duration) {
        lock(&self.latencies).entry(what).or_default().add(time);
    }

    pub(super) fn histogram(&self, what: Latency) -> Histogram {
        lock(&self.latencies)
            .get(&what)
            .cloned()
            .unwrap_or_default()
    }

    pub(super) fn note(&self, outcome: anyhow::Result<()>) {
        if let Err(error) = outcome {
            let error = format!("{error:#}");
            tell(&format!("ERROR    {error}"));
            *lock(&self.errors).entry(error).or_default() += 1;
        }
    }

    /// Waits for all of them.
    pub(super) async fn all(&self, tasks: &mut JoinSet<anyhow::Result<()>>) {
        while let Some(ended) = tasks.join_next().await {
            self.note(ended.unwrap_or_else(|error| Err(error.into())));
        }
    }

    /// A sentence for each kind of error.
    pub(super) fn errors(&self) -> Vec<String> {
        lock(&self.errors)
            .iter()
            .map(|(error, count)| match count {
                1 => error.clone(),
                _ => format!("{error} ({count} times)"),
            })
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says how it goes.
pub(super) fn tell(line: &str) {
    use std::io::Write as _;
    // Nobody may be listening.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Times in classes of 2 %, so that a long run takes no more memory than a short one.
#[derive(Clone, Default)]
pub(super) struct Histogram {
    classes: BTreeMap<u32, u64>,
    count: u64,
    max: Duration,
}

/// The natural logarithm's steps.
const CLASSES: f64 = 50.0;

impl Histogram {
    fn add(&mut self, time: Duration) {
        let micros = time.as_secs_f64() * 1e6;
        let class = (micros.max(1.0).ln() * CLASSES) as u32;
        *self.classes.entry(class).or_default() += 1;
        self.count += 1;
        self.max = self.max.max(time);
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// The largest, exactly.
    pub(super) fn max(&self) -> Duration {
        self.max
    }

    /// What this share of them does not exceed.
    pub(super) fn at(&self, share: f64) -> Duration {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (class, count) in &self.classes {
            seen += count;
            if seen >= wanted {
                let micros = (f64::from(class + 1) / CLASSES).exp();
                return Duration::from_secs_f64(micros / 1e6).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_is_right_within_two_percent() {
        let mut histogram = Histogram::default();
        for millis in 1..=1000 {
            histogram.add(Duration::from_millis(millis));
        }
        for (share, millis) in [(0.5, 500.0), (0.99, 990.0)] {
            let found = histogram.at(share).as_secs_f64() * 1e3;
            assert!((found / millis - 1.0).abs() < 0.021, "{found} for {millis}");
        }
        assert_eq!(histogram.max(), Duration::from_secs(1));
        assert_eq!(histogram.at(1.0), Duration::from_secs(1));
    }

    #[test]
    fn errors_are_counted_by_what_they_say() {
        let tally = Tally::default();
        for _ in 0..2 {
            tally.note(Err(anyhow::anyhow!("twice")));
        }
        tally.note(Err(anyhow::anyhow!("cause").context("once")));
        tally.note(Ok(()));
        assert_eq!(tally.errors(), ["once: cause", "twice (2 times)"]);
    }
}
