//! Times of change as the wire has them: milliseconds since 1970, which came first, and the
//! nanoseconds beyond them.

use std::time::{Duration, SystemTime};

const NANOS_PER_MILLI: i128 = 1_000_000;

/// A time in its two parts. The second is below a million, also before 1970.
pub fn split(time: SystemTime) -> (i64, u32) {
    let nanos = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => i128::try_from(after.as_nanos()).unwrap_or(i128::MAX),
        Err(before) => -i128::try_from(before.duration().as_nanos()).unwrap_or(i128::MAX),
    };
    let millis = i64::try_from(nanos.div_euclid(NANOS_PER_MILLI)).unwrap_or(i64::MAX);
    let rest = u32::try_from(nanos.rem_euclid(NANOS_PER_MILLI)).unwrap_or(0);
    (millis, rest)
}

/// The time of two parts, if this machine can hold it. A peer that knows no nanoseconds has none.
pub fn join(millis: i64, nanos: Option<u32>) -> Option<SystemTime> {
    let whole = Duration::from_millis(millis.unsigned_abs());
    let time = if millis < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    time?.checked_add(Duration::from_nanos(nanos.unwrap_or(0).into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_the_same_after_the_wire_on_both_sides_of_1970() {
        let distance = Duration::new(1_600_000_000, 123_456_789);
        for time in [
            SystemTime::UNIX_EPOCH,
            SystemTime::UNIX_EPOCH + distance,
            SystemTime::UNIX_EPOCH - distance,
        ] {
            let (millis, nanos) = split(time);
            assert!(nanos < 1_000_000);
            assert_eq!(join(millis, Some(nanos)), Some(time));
        }
        let (millis, nanos) = split(SystemTime::UNIX_EPOCH - Duration::from_nanos(1));
        assert_eq!((millis, nanos), (-1, 999_999));
    }
}
