//! Reconnect backoff: exponential, capped, with 50-100 % jitter.
//!
//! Pure: the caller brings the randomness and the clock. The plane pages ask
//! for a base of 1 s and a cap of 30 s, which is the default.

use std::time::Duration;

/// Bounds of the delays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// The first delay before jitter.
    pub base: Duration,
    /// No delay is longer than this.
    pub cap: Duration,
    /// A connection that lasted this long starts the series again when it is lost.
    ///
    /// Without it, a peer that accepts and closes at once would be dialled at the base rate for ever.
    pub stable_after: Duration,
}

impl Default for BackoffPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(30),
            stable_after: Duration::from_secs(30),
        }
    }
}

/// Where one connection stands in its series of delays.
///
/// `now` is any monotonic clock of the caller's, as the time since an epoch of its choice.
#[derive(Debug, Clone)]
pub struct Backoff {
    policy: BackoffPolicy,
    failures: u32,
    connected_at: Option<Duration>,
}

impl Backoff {
    /// A series at its start.
    pub const fn new(policy: BackoffPolicy) -> Self {
        Self {
            policy,
            failures: 0,
            connected_at: None,
        }
    }

    /// Notes that the connection stands.
    pub fn connected(&mut self, now: Duration) {
        self.connected_at = Some(now);
    }

    /// The delay after a lost connection or a failed dial at `now`.
    pub fn lost(&mut self, now: Duration, random: f64) -> Duration {
        if let Some(since) = self.connected_at.take()
            && now.saturating_sub(since) >= self.policy.stable_after
        {
            self.reset();
        }
        self.next_delay(random)
    }

    /// The next delay; `random` is uniform in `0.0..1.0` and gives the jitter.
    pub fn next_delay(&mut self, random: f64) -> Duration {
        let factor = 2u32.checked_pow(self.failures).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_add(1);
        let full = self.policy.base.saturating_mul(factor).min(self.policy.cap);
        let random = if random.is_finite() {
            random.clamp(0.0, 1.0)
        } else {
            1.0
        };
        full.mul_f64(0.5 + random / 2.0)
    }

    /// Starts the series again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }

    /// How many delays have been given out since the start of the series.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn doubles_from_base_to_cap() {
        let mut backoff = Backoff::new(BackoffPolicy::default());
        let full: Vec<_> = (0..7).map(|_| backoff.next_delay(1.0).as_secs()).collect();
        assert_eq!(full, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn a_stable_connection_starts_again_and_a_short_one_does_not() {
        let mut backoff = Backoff::new(BackoffPolicy::default());
        backoff.lost(SECOND, 1.0);
        backoff.connected(2 * SECOND);
        assert_eq!(backoff.lost(3 * SECOND, 1.0), 2 * SECOND);
        backoff.connected(10 * SECOND);
        assert_eq!(backoff.lost(40 * SECOND, 1.0), SECOND);
    }

    proptest! {
        #[test]
        fn stays_within_half_and_full_of_the_capped_delay(
            failures in 0u32..100,
            random in any::<f64>(),
        ) {
            let policy = BackoffPolicy::default();
            let mut backoff = Backoff::new(policy);
            for _ in 0..failures {
                backoff.next_delay(0.5);
            }
            let full = policy.base.saturating_mul(1u32.checked_shl(failures).unwrap_or(u32::MAX).max(1)).min(policy.cap);
            let full = if failures >= 32 { policy.cap } else { full };
            let delay = backoff.next_delay(random);
            prop_assert!(delay >= full / 2 && delay <= full);
        }
    }
}
