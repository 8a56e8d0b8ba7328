//! Durations and sizes as people write them: `"90s"`, `"64MiB"`.
//!
//! One whole number and one unit; no fractions and no sums, so that a value
//! has one obvious reading. What is formatted parses back to the same value.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Units of durations in milliseconds, largest first.
const DURATION_UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1_000),
    ("ms", 1),
];

/// Units of sizes in bytes, largest first.
const SIZE_UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Why a duration or a size could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// There is no whole number at the start.
    #[error("{text:?} does not start with a whole number; write it like {example:?}")]
    NoNumber {
        /// What was written.
        text: String,
        /// A value that would be accepted.
        example: &'static str,
    },
    /// The number is there, its unit is missing or unknown.
    #[error("{text:?} has no unit that is known here; use one of {units}")]
    UnknownUnit {
        /// What was written.
        text: String,
        /// The units that are accepted.
        units: &'static str,
    },
    /// The value does not fit.
    #[error("{text:?} is too large")]
    TooLarge {
        /// What was written.
        text: String,
    },
}

/// Reads a duration such as `"500ms"`, `"90s"`, `"10m"`, `"24h"` or `"90d"`.
///
/// # Errors
///
/// When the text is not one whole number and one of those units.
pub fn parse_duration(text: &str) -> Result<Duration, UnitError> {
    let (number, unit) = split(text, "90s")?;
    let scale = DURATION_UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, scale)| *scale)
        .ok_or_else(|| UnitError::UnknownUnit {
            text: text.to_owned(),
            units: "ms, s, m, h, d",
        })?;
    number
        .checked_mul(scale)
        .map(Duration::from_millis)
        .ok_or_else(|| UnitError::TooLarge {
            text: text.to_owned(),
        })
}

/// Writes a duration in its largest whole unit, down to milliseconds.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if millis == 0 {
        return "0s".to_owned();
    }
    DURATION_UNITS
        .iter()
        .find(|(_, scale)| millis.is_multiple_of(*scale))
        .map(|(unit, scale)| format!("{}{unit}", millis / scale))
        .unwrap_or_default()
}

/// A number of bytes, written `"4KiB"`, `"64MiB"`, `"1GiB"` or as a bare number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(u64);

impl ByteSize {
    /// The size of so many bytes.
    #[must_use]
    pub const fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for ByteSize {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split(text, "64MiB")?;
        let scale = if unit.is_empty() {
            1
        } else {
            SIZE_UNITS
                .iter()
                .find(|(name, _)| *name == unit)
                .map(|(_, scale)| *scale)
                .ok_or_else(|| UnitError::UnknownUnit {
                    text: text.to_owned(),
                    units: "B, KiB, MiB, GiB, TiB",
                })?
        };
        number
            .checked_mul(scale)
            .map(Self)
            .ok_or_else(|| UnitError::TooLarge {
                text: text.to_owned(),
            })
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0B");
        }
        match SIZE_UNITS
            .iter()
            .find(|(_, scale)| self.0.is_multiple_of(*scale))
        {
            Some((unit, scale)) => write!(f, "{}{unit}", self.0 / scale),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// Splits a text into its leading number and the unit after it.
fn split<'t>(text: &'t str, example: &'static str) -> Result<(u64, &'t str), UnitError> {
    let trimmed = text.trim();
    let digits = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    if number.is_empty() {
        return Err(UnitError::NoNumber {
            text: text.to_owned(),
            example,
        });
    }
    let number = number.parse().map_err(|_| UnitError::TooLarge {
        text: text.to_owned(),
    })?;
    Ok((number, unit.trim_start()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_of_the_contract_are_read() {
        let table = [
            ("500ms", Duration::from_millis(500)),
            ("90s", Duration::from_secs(90)),
            ("10m", Duration::from_secs(600)),
            ("24h", Duration::from_secs(86_400)),
            ("90d", Duration::from_secs(90 * 86_400)),
            ("0s", Duration::ZERO),
            (" 5 m ", Duration::from_secs(300)),
        ];
        for (text, expected) in table {
            assert_eq!(parse_duration(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn sizes_of_the_contract_are_read() {
        let table = [
            ("64MiB", 64 << 20),
            ("4KiB", 4096),
            ("1GiB", 1 << 30),
            ("2TiB", 2 << 40),
            ("10B", 10),
            ("123", 123),
        ];
        for (text, expected) in table {
            assert_eq!(text.parse(), Ok(ByteSize::from_bytes(expected)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_value_says_what_is_wrong() {
        for text in ["", "s", "-5s", "fast", ".5s"] {
            assert!(
                matches!(parse_duration(text), Err(UnitError::NoNumber { .. })),
                "{text}"
            );
        }
        for text in ["5", "5 weeks", "1h30m", "1.5h", "5S"] {
            assert!(
                matches!(parse_duration(text), Err(UnitError::UnknownUnit { .. })),
                "{text}"
            );
        }
        for text in ["64MB", "64 mib", "1.5GiB", "1GiB 2"] {
            assert!(
                matches!(text.parse::<ByteSize>(), Err(UnitError::UnknownUnit { .. })),
                "{text}"
            );
        }
        for text in ["99999999999999999999s", "18446744073709551615d"] {
            assert!(
                matches!(parse_duration(text), Err(UnitError::TooLarge { .. })),
                "{text}"
            );
        }
        assert!(matches!(
            "18446744073709551615KiB".parse::<ByteSize>(),
            Err(UnitError::TooLarge { .. })
        ));
    }

    #[test]
    fn values_are_written_in_their_largest_whole_unit() {
        assert_eq!(format_duration(Duration::from_secs(90)), "90s");
        assert_eq!(format_duration(Duration::from_secs(120)), "2m");
        assert_eq!(format_duration(Duration::from_secs(90 * 86_400)), "90d");
        assert_eq!(ByteSize::from_bytes(10 << 30).to_string(), "10GiB");
        assert_eq!(ByteSize::from_bytes(1500).to_string(), "1500B");
    }

    proptest! {
        #[test]
        fn durations_round_trip(millis in any::<u64>()) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
        }

        #[test]
        fn sizes_round_trip(bytes in any::<u64>()) {
            let size = ByteSize::from_bytes(bytes);
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,24}") {
            let _ = parse_duration(&text);
            let _ = text.parse::<ByteSize>();
        }
    }
}
