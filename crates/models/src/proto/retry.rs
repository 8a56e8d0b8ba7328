//! When a call is made again, and when another provider is asked instead.

use std::time::Duration;

/// How a provider failed, before anything of its answer was passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// It could not be reached, or hung up.
    Unreachable,
    /// It answered with this status, or with an error event that stands for it.
    Status {
        /// The status.
        code: u16,
        /// What `Retry-After` asked for.
        retry_after: Option<Duration>,
    },
    /// It said nothing for too long.
    Silent,
    /// What it answered can't be read.
    Unreadable,
}

/// What to do after a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Ask the same provider again after a while.
    Again(Duration),
    /// Ask the next model of the list, if there is one.
    NextModel,
    /// The request itself is at fault; nobody else would take it.
    GiveUp,
}

/// How often and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Calls of one model, the first included.
    pub attempts: u32,
    /// The first pause; each further one is twice as long.
    pub first_pause: Duration,
    /// The longest pause of ours.
    pub longest_pause: Duration,
    /// The longest that a provider's `Retry-After` is waited for.
    pub longest_retry_after: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            attempts: 4,
            first_pause: Duration::from_millis(500),
            longest_pause: Duration::from_secs(8),
            longest_retry_after: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// Decides after the failure of call number `attempt`, counted from 1.
    ///
    /// `random` spreads the pauses of callers that failed together: a pause is between half and all
    /// of its length.
    pub fn after(&self, attempt: u32, failure: Failure, random: u32) -> Next {
        let retry_after = match failure {
            Failure::Unreachable => None,
            Failure::Status { code, retry_after } => match code {
                408 | 409 | 425 | 429 | 500..=599 => retry_after,
                400 | 413 | 422 => return Next::GiveUp,
                // A refused key, an empty account, an unknown model: another one may do.
                _ => return Next::NextModel,
            },
            // It has had its time; another wait as long helps nobody.
            Failure::Silent | Failure::Unreadable => return Next::NextModel,
        };
        if attempt >= self.attempts {
            return Next::NextModel;
        }
        if let Some(asked) = retry_after {
            return if asked <= self.longest_retry_after {
                Next::Again(asked)
            } else {
                Next::NextModel
            };
        }
        let doublings = attempt.saturating_sub(1).min(16);
        let pause = self
            .first_pause
            .saturating_mul(1 << doublings)
            .min(self.longest_pause);
        let half = pause / 2;
        let spread = f64::from(random) / f64::from(u32::MAX);
        Next::Again(half + half.mul_f64(spread))
    }
}

/// Reads `Retry-After` in seconds, and `retry-after-ms`.
pub fn retry_after(seconds: Option<&str>, milliseconds: Option<&str>) -> Option<Duration> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    let from = |value: f64| Duration::try_from_secs_f64(value).ok();
    milliseconds
        .and_then(number)
        .and_then(|value| from(value / 1000.0))
        .or_else(|| seconds.and_then(number).and_then(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RetryPolicy = RetryPolicy {
        attempts: 3,
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_millis(150),
        longest_retry_after: Duration::from_secs(5),
    };

    fn status(code: u16, retry_after: Option<u64>) -> Failure {
        Failure::Status {
            code,
            retry_after: retry_after.map(Duration::from_secs),
        }
    }

    #[test]
    fn decisions() {
        let ms = |ms| Next::Again(Duration::from_millis(ms));
        for (attempt, failure, expected) in [
            (1, Failure::Unreachable, ms(50)),
            (2, Failure::Unreachable, ms(75)),
            (3, Failure::Unreachable, Next::NextModel),
            (1, status(429, Some(2)), ms(2000)),
            (1, status(429, Some(6)), Next::NextModel),
            (1, status(529, None), ms(50)),
            (1, status(500, None), ms(50)),
            (1, status(400, None), Next::GiveUp),
            (1, status(401, None), Next::NextModel),
            (1, status(404, None), Next::NextModel),
            (1, Failure::Silent, Next::NextModel),
            (1, Failure::Unreadable, Next::NextModel),
        ] {
            assert_eq!(POLICY.after(attempt, failure, 0), expected, "{failure:?}");
        }
        assert_eq!(POLICY.after(1, Failure::Unreachable, u32::MAX), ms(100));
    }

    #[test]
    fn retry_after_is_read_in_both_units() {
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(retry_after(Some("2"), None), ms(2000));
        assert_eq!(retry_after(Some("2"), Some("250")), ms(250));
        assert_eq!(retry_after(Some("1.5"), None), ms(1500));
        for wrong in ["tomorrow", "-1", "", "NaN", "1e300"] {
            assert_eq!(retry_after(Some(wrong), None), None, "{wrong}");
        }
    }
}
