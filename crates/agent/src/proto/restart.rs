//! When a lost process is started again: a doubling backoff, and a breaker that ends the series.
//!
//! `now` is any monotonic clock of the caller's, as the time since an epoch of its choice.

use std::collections::VecDeque;
use std::time::Duration;

/// Bounds of the restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// The first delay; each further crash doubles it.
    pub base: Duration,
    /// No delay is longer.
    pub cap: Duration,
    /// This many crashes ..
    pub breaker_crashes: u32,
    /// .. within this time open the breaker.
    pub breaker_window: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(60),
            breaker_crashes: 5,
            breaker_window: Duration::from_secs(600),
        }
    }
}

/// What follows a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterCrash {
    /// Start again after this delay.
    Retry(Duration),
    /// Do not start again before a person or a config change closes the breaker.
    BreakerOpen,
}

/// The crashes of one instance.
#[derive(Debug, Clone)]
pub struct Restarts {
    policy: RestartPolicy,
    recent: VecDeque<Duration>,
    in_a_row: u32,
    open: bool,
    total: u32,
}

impl Restarts {
    /// An instance without crashes.
    pub fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            recent: VecDeque::new(),
            in_a_row: 0,
            open: false,
            total: 0,
        }
    }

    /// Notes a crash at `now` and says what follows.
    pub fn crashed(&mut self, now: Duration) -> AfterCrash {
        self.total = self.total.saturating_add(1);
        self.recent.push_back(now);
        while let Some(first) = self.recent.front()
            && now.saturating_sub(*first) > self.policy.breaker_window
        {
            self.recent.pop_front();
        }
        if self.recent.len() >= self.policy.breaker_crashes as usize {
            self.open = true;
            self.recent.clear();
            return AfterCrash::BreakerOpen;
        }
        let factor = 2u32.checked_pow(self.in_a_row).unwrap_or(u32::MAX);
        self.in_a_row = self.in_a_row.saturating_add(1);
        AfterCrash::Retry(self.policy.base.saturating_mul(factor).min(self.policy.cap))
    }

    /// Says what follows when the machine kept the process from starting, as a full disk does. That is
    /// no crash: it opens no breaker, and waits no longer than after the first one.
    pub fn hindered(&self) -> AfterCrash {
        AfterCrash::Retry(self.policy.base)
    }

    /// Notes that a message ran to its end: the delays start again. The breaker's count stays.
    pub fn turn_completed(&mut self) {
        self.in_a_row = 0;
    }

    /// Closes the breaker and forgets the crashes that led to it.
    pub fn close(&mut self) {
        self.open = false;
        self.in_a_row = 0;
        self.recent.clear();
    }

    /// Whether the breaker is open.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Crashes since the instance was opened.
    pub fn total(&self) -> u32 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn delays_double_to_the_cap_and_start_again_after_a_turn() {
        let mut restarts = Restarts::new(RestartPolicy {
            breaker_crashes: 100,
            ..RestartPolicy::default()
        });
        let delays: Vec<_> = (0..8).map(|at| restarts.crashed(secs(at))).collect();
        assert_eq!(
            delays,
            [1, 2, 4, 8, 16, 32, 60, 60].map(|s| AfterCrash::Retry(secs(s)))
        );
        restarts.turn_completed();
        assert_eq!(restarts.crashed(secs(9)), AfterCrash::Retry(secs(1)));
        assert_eq!(restarts.total(), 9);
    }

    #[test]
    fn what_is_no_fault_of_the_program_is_tried_again_for_as_long_as_it_takes() {
        let mut restarts = Restarts::new(RestartPolicy::default());
        assert_eq!(restarts.crashed(secs(0)), AfterCrash::Retry(secs(1)));
        for _ in 0..100 {
            assert_eq!(restarts.hindered(), AfterCrash::Retry(secs(1)));
        }
        assert!(!restarts.is_open());
        assert_eq!(restarts.crashed(secs(100)), AfterCrash::Retry(secs(2)));
    }

    #[test]
    fn five_crashes_in_ten_minutes_open_the_breaker_and_spread_ones_do_not() {
        let mut spread = Restarts::new(RestartPolicy::default());
        for crash in 0..20 {
            assert!(matches!(
                spread.crashed(secs(crash * 151)),
                AfterCrash::Retry(_)
            ));
        }
        let mut dense = Restarts::new(RestartPolicy::default());
        for crash in 0..4 {
            assert!(matches!(dense.crashed(secs(crash)), AfterCrash::Retry(_)));
        }
        assert_eq!(dense.crashed(secs(600)), AfterCrash::BreakerOpen);
        assert!(dense.is_open());
        assert_eq!(dense.total(), 5);
        dense.close();
        assert_eq!(dense.crashed(secs(601)), AfterCrash::Retry(secs(1)));
    }
}
