//! When: schedules and quiet hours. Pure; time comes in as an argument.

use std::str::FromStr;

use croner::parser::{CronParser, Seconds, Year};
use croner::{Cron as Pattern, YEAR_UPPER_LIMIT};
use jiff::civil::{DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan as _, Unit, Zoned};

/// A schedule's text may not be longer.
const MAX_LENGTH: usize = 200;

/// The occurrences that are looked at to find one outside of quiet hours: more
/// than a year of days.
const QUIET_LOOKAHEAD: usize = 400;

/// The changes of a zone's offset that a search goes on behind: two a year.
const TRANSITIONS: usize = 16;

/// 400 years before the pattern's search ends. The calendar with its days of the week repeats after
/// as many, so what does not happen from here on never does, whatever the zone.
const LAST_CYCLE: DateTime = DateTime::constant(YEAR_UPPER_LIMIT as i16 - 400, 1, 1, 0, 0, 0, 0);

/// A schedule: 5 fields, 6 with seconds first, or `@daily` and the like.
///
/// With `TZ=Europe/Berlin ` in front it has a time zone of its own.
///
/// On the day when clocks go forward, a time that does not exist happens at the
/// first moment after the gap. On the day when they go back, a fixed time
/// happens once and an interval (`*/10`) goes on through both hours.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    pattern: Pattern,
    zone: Option<TimeZone>,
}

/// Why a schedule was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// It does not parse.
    #[error(
        "{text:?} is not a schedule ({reason}); write 5 fields (\"0 9 * * 1-5\"), 6 with seconds first, or @hourly, @daily, @weekly, @monthly, @yearly"
    )]
    Syntax {
        /// What was written.
        text: String,
        /// The parser's words.
        reason: String,
    },
    /// It parses and never happens, such as the 30th of February.
    #[error("{text:?} never happens; check its day and month")]
    Impossible {
        /// What was written.
        text: String,
    },
    /// Its time zone is not known.
    #[error(
        "{name:?} is not in the time zone database; write it like \"TZ=Europe/Berlin 0 9 * * *\""
    )]
    UnknownZone {
        /// What was written.
        name: String,
    },
    /// It is too long to be one.
    #[error("a schedule has at most {MAX_LENGTH} characters, this one has {length}")]
    TooLong {
        /// Its length.
        length: usize,
    },
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        if text.len() > MAX_LENGTH {
            return Err(ScheduleError::TooLong { length: text.len() });
        }
        let syntax = |reason: &str| ScheduleError::Syntax {
            text: text.to_owned(),
            reason: reason.to_owned(),
        };
        let (zone, fields) = match text.trim().strip_prefix("TZ=") {
            Some(rest) => {
                let (name, fields) = rest
                    .split_once(char::is_whitespace)
                    .ok_or_else(|| syntax("there is nothing after the time zone"))?;
                let zone = TimeZone::get(name).map_err(|_| ScheduleError::UnknownZone {
                    name: name.to_owned(),
                })?;
                (Some(zone), fields.trim())
            }
            None => (None, text.trim()),
        };
        let fields = match fields.to_ascii_lowercase().as_str() {
            "@yearly" | "@annually" | "@monthly" | "@weekly" | "@daily" | "@hourly" => fields,
            "@midnight" => "@daily",
            other if other.contains('@') => return Err(syntax("that name is not known")),
            _ => fields,
        };
        let pattern = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build()
            .parse(fields)
            .map_err(|error| syntax(&error.to_string()))?;
        // A list such as "," has no value, and a search for it would go from minute to minute
        // through centuries.
        let Pattern { pattern: parts } = &pattern;
        if [&parts.seconds, &parts.minutes, &parts.hours]
            .iter()
            .any(|part| part.values().is_empty())
        {
            return Err(syntax("a field has no value"));
        }
        let schedule = Self { pattern, zone };
        if schedule
            .pattern
            .find_next_occurrence(&LAST_CYCLE, true)
            .is_err()
        {
            return Err(ScheduleError::Impossible {
                text: text.to_owned(),
            });
        }
        Ok(schedule)
    }
}

impl Schedule {
    /// The first occurrence strictly after a moment.
    ///
    /// `zone` is used where the schedule names none.
    #[must_use]
    pub fn next_after(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let zone = self.zone(zone);
        let next = self.search(after, zone, false).or_else(|| {
            // Where the date line moves, a zone leaves out a whole day, and the
            // search ends in front of it. It goes on behind it.
            let mut transitions = zone.following(after).take(TRANSITIONS);
            transitions.find_map(|transition| self.search(transition.timestamp(), zone, true))
        });
        next.filter(|next| *next > after)
    }

    fn search(&self, from: Timestamp, zone: &TimeZone, inclusive: bool) -> Option<Timestamp> {
        let mut start = from.to_zoned(zone.clone());
        let mut inclusive = inclusive;
        for _ in 0..TRANSITIONS {
            let next = self.pattern.find_next_occurrence(&start, inclusive).ok()?;
            // On its way over a gap the pattern's search stops behind it, also for
            // a time of day that is not in it.
            if self.pattern.is_time_matching(&next).ok()? || self.is_in_gap_before(&next) {
                // Whole seconds: a moment's fraction is not part of an occurrence.
                return next.timestamp().round(Unit::Second).ok();
            }
            (start, inclusive) = (next, false);
        }
        None
    }

    /// Whether a time of the pattern is left out by the clocks that go forward
    /// at this moment.
    fn is_in_gap_before(&self, moment: &Zoned) -> bool {
        let Ok(before) = moment.timestamp().checked_sub(1.nanosecond()) else {
            return false;
        };
        let old = moment.time_zone().to_offset(before);
        // Nothing is left out in UTC, so there the pattern has the times that are not here.
        let gap = old.to_datetime(moment.timestamp()).to_zoned(TimeZone::UTC);
        gap.is_ok_and(|gap| {
            let first = self.pattern.find_next_occurrence(&gap, true);
            first.is_ok_and(|first| first.datetime() < moment.datetime())
        })
    }

    /// The zone that the schedule is read in: its own, else `zone`.
    #[must_use]
    pub fn zone<'z>(&'z self, zone: &'z TimeZone) -> &'z TimeZone {
        self.zone.as_ref().unwrap_or(zone)
    }

    /// The first occurrence strictly after a moment that is not in quiet hours;
    /// `None` when there is none in sight.
    #[must_use]
    pub fn next_outside(
        &self,
        after: Timestamp,
        quiet: Option<QuietHours>,
        zone: &TimeZone,
    ) -> Option<Timestamp> {
        let mut after = after;
        for _ in 0..QUIET_LOOKAHEAD {
            let next = self.next_after(after, zone)?;
            match quiet {
                Some(quiet) if quiet.contain(next, self.zone(zone)) => {
                    // An occurrence at the end itself is outside.
                    let end = quiet.end_after(next, self.zone(zone))?;
                    after = next.max(end.checked_sub(1.nanosecond()).ok()?);
                }
                _ => return Some(next),
            }
        }
        None
    }
}

/// Hours of the day in which nothing is started: from the start, up to and
/// without the end; past midnight when the end is before the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QuietHours {
    start: Time,
    end: Time,
}

/// Why quiet hours were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuietHoursError {
    /// Not a time of day.
    #[error("{text:?} is not a time of day; write it like \"22:00\"")]
    NotATime {
        /// What was written.
        text: String,
    },
    /// A start without an end, or the other way round.
    #[error("quiet hours need a start and an end")]
    HalfOpen,
    /// The start is the end.
    #[error("quiet hours that end at {text} when they start are empty; leave both out")]
    Empty {
        /// The time.
        text: String,
    },
}

impl QuietHours {
    /// Reads `"HH:MM"` twice; two empty texts are no quiet hours.
    ///
    /// # Errors
    ///
    /// When one is missing, is not a time of day, or both are the same.
    pub fn parse(start: &str, end: &str) -> Result<Option<Self>, QuietHoursError> {
        match (start, end) {
            ("", "") => Ok(None),
            ("", _) | (_, "") => Err(QuietHoursError::HalfOpen),
            (start, end) => {
                let quiet = Self {
                    start: time_of_day(start)?,
                    end: time_of_day(end)?,
                };
                if quiet.start == quiet.end {
                    return Err(QuietHoursError::Empty {
                        text: start.to_owned(),
                    });
                }
                Ok(Some(quiet))
            }
        }
    }

    /// Whether a moment lies in them.
    #[must_use]
    pub fn contain(self, at: Timestamp, zone: &TimeZone) -> bool {
        let time = at.to_zoned(zone.clone()).time();
        if self.start < self.end {
            self.start <= time && time < self.end
        } else {
            self.start <= time || time < self.end
        }
    }

    /// When the quiet hours that a moment lies in end.
    fn end_after(self, at: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let local = at.to_zoned(zone.clone());
        let date = if local.time() < self.end {
            local.date()
        } else {
            local.date().tomorrow().ok()?
        };
        let end = zone.to_ambiguous_timestamp(date.to_datetime(self.end));
        match end.offset() {
            // The clocks leave it out: they are over when the clocks have gone forward.
            AmbiguousOffset::Gap { .. } => {
                let transition = zone.following(end.earlier().ok()?).next()?;
                Some(transition.timestamp())
            }
            _ => end.compatible().ok(),
        }
    }
}

fn time_of_day(text: &str) -> Result<Time, QuietHoursError> {
    let parts = |text: &str| -> Option<Time> {
        let (hours, minutes) = text.split_once(':')?;
        let number = |digits: &str| {
            (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()))
                .then(|| digits.parse::<i8>().ok())
                .flatten()
        };
        Time::new(number(hours)?, number(minutes)?, 0, 0).ok()
    };
    parts(text).ok_or_else(|| QuietHoursError::NotATime {
        text: text.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn schedule(text: &str) -> Schedule {
        text.parse().unwrap()
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).unwrap()
    }

    /// The next occurrences after a moment, in local time.
    fn next(text: &str, after: &str, name: &str, count: usize) -> Vec<String> {
        let (schedule, zone) = (schedule(text), zone(name));
        let mut after = at(after);
        (0..count)
            .map(|_| {
                after = schedule.next_after(after, &zone).unwrap();
                after
                    .to_zoned(zone.clone())
                    .strftime("%m-%d %H:%M:%S %Z")
                    .to_string()
            })
            .collect()
    }

    #[test]
    fn fields_seconds_and_names_are_read() {
        let after = "2026-03-10T10:00:30Z";
        let table = [
            ("* * * * *", "03-10 10:01:00 UTC"),
            ("*/10 * * * * *", "03-10 10:00:40 UTC"),
            ("30 0 11 * * *", "03-10 11:00:30 UTC"),
            ("0 9 * * 1-5", "03-11 09:00:00 UTC"),
            ("0 9 * * MON", "03-16 09:00:00 UTC"),
            ("15 14 1 * *", "04-01 14:15:00 UTC"),
            ("0 0 29 2 *", "02-29 00:00:00 UTC"),
            ("@hourly", "03-10 11:00:00 UTC"),
            ("@daily", "03-11 00:00:00 UTC"),
            ("@midnight", "03-11 00:00:00 UTC"),
            ("@Weekly", "03-15 00:00:00 UTC"),
            ("@monthly", "04-01 00:00:00 UTC"),
            ("@yearly", "01-01 00:00:00 UTC"),
            ("  0 12 * * *  ", "03-10 12:00:00 UTC"),
            ("TZ=Europe/Berlin 0 12 * * *", "03-10 11:00:00 UTC"),
        ];
        for (text, expected) in table {
            assert_eq!(next(text, after, "UTC", 1), [expected], "{text}");
        }
    }

    #[test]
    fn an_occurrence_is_strictly_after() {
        assert_eq!(
            next("0 * * * * *", "2026-03-10T10:00:00Z", "UTC", 1),
            ["03-10 10:01:00 UTC"]
        );
        assert_eq!(
            next("0 * * * * *", "2026-03-10T09:59:59.999999Z", "UTC", 1),
            ["03-10 10:00:00 UTC"]
        );
    }

    #[test]
    fn a_time_in_the_gap_happens_right_after_it() {
        // In Berlin, 2026-03-29 has no 02:00 to 03:00.
        assert_eq!(
            next("30 2 * * *", "2026-03-28T00:00:00Z", "Europe/Berlin", 3),
            [
                "03-28 02:30:00 CET",
                "03-29 03:00:00 CEST",
                "03-30 02:30:00 CEST"
            ]
        );
        assert_eq!(
            next("*/30 * * * *", "2026-03-29T00:00:00Z", "Europe/Berlin", 3),
            [
                "03-29 01:30:00 CET",
                "03-29 03:00:00 CEST",
                "03-29 03:30:00 CEST"
            ]
        );
    }

    #[test]
    fn a_repeated_hour_has_a_fixed_time_once_and_an_interval_twice() {
        // In Berlin, 2026-10-25 has 02:00 to 03:00 twice.
        assert_eq!(
            next("30 2 * * *", "2026-10-24T12:00:00Z", "Europe/Berlin", 2),
            ["10-25 02:30:00 CEST", "10-26 02:30:00 CET"]
        );
        assert_eq!(
            next("*/30 * * * *", "2026-10-24T23:59:00Z", "Europe/Berlin", 5),
            [
                "10-25 02:00:00 CEST",
                "10-25 02:30:00 CEST",
                "10-25 02:00:00 CET",
                "10-25 02:30:00 CET",
                "10-25 03:00:00 CET",
            ]
        );
    }

    #[test]
    fn a_time_before_the_gap_happens_once_that_day() {
        assert_eq!(
            next("30 1 * * *", "2026-03-28T12:00:00Z", "Europe/Berlin", 2),
            ["03-29 01:30:00 CET", "03-30 01:30:00 CEST"]
        );
        // Half an hour, from 02:00 to 02:30.
        assert_eq!(
            next(
                "1 1 4,5 10 *",
                "2026-10-01T00:00:00Z",
                "Australia/Lord_Howe",
                2
            ),
            ["10-04 01:01:00 +1030", "10-05 01:01:00 +11"]
        );
        assert_eq!(
            next(
                "15 2 * * *",
                "2026-10-03T12:00:00Z",
                "Australia/Lord_Howe",
                2
            ),
            ["10-04 02:30:00 +11", "10-05 02:15:00 +11"]
        );
    }

    #[test]
    fn a_day_that_a_zone_leaves_out_ends_no_schedule() {
        // Samoa had no 30 December 2011; it is noon there on the 28th.
        for (text, expected) in [
            ("0 9 * * *", ["12-29 09:00", "12-31 09:00", "01-01 09:00"]),
            ("0 0 * * *", ["12-29 00:00", "12-31 00:00", "01-01 00:00"]),
            ("0 9 30 12 *", ["12-30 09:00", "12-30 09:00", "12-30 09:00"]),
        ] {
            let local = next(text, "2011-12-28T22:00:00Z", "Pacific/Apia", 3);
            let local: Vec<&str> = local.iter().map(|at| &at[..11]).collect();
            assert_eq!(local, expected, "{text}");
        }
    }

    #[test]
    fn what_is_not_a_schedule_is_refused() {
        for text in [
            "",
            "* * * *",
            "* * * * * * *",
            "61 * * * *",
            "* 25 * * *",
            "every day",
            "@reboot",
            "@dailyish",
            "TZ=Europe/Berlin",
            "a b c d e",
            "-1 * * * *",
            ", * * * * *",
            ",, 9 * * *",
            "0 , * * *",
        ] {
            assert!(
                matches!(text.parse::<Schedule>(), Err(ScheduleError::Syntax { .. })),
                "{text}"
            );
        }
        for text in ["0 0 30 2 *", "0 0 31 4,6,9,11 *"] {
            assert!(
                matches!(
                    text.parse::<Schedule>(),
                    Err(ScheduleError::Impossible { .. })
                ),
                "{text}"
            );
        }
        assert!(matches!(
            "TZ=Mars/Olympus * * * * *".parse::<Schedule>(),
            Err(ScheduleError::UnknownZone { .. })
        ));
        assert!(matches!(
            "1".repeat(201).parse::<Schedule>(),
            Err(ScheduleError::TooLong { length: 201 })
        ));
    }

    #[test]
    fn quiet_hours_have_their_start_and_not_their_end() {
        let table: [(&str, &str, &[&str], &[&str]); 3] = [
            (
                "09:00",
                "17:30",
                &["09:00:00", "12:00:00", "17:29:59"],
                &["08:59:59", "17:30:00", "00:00:00"],
            ),
            (
                "22:00",
                "06:00",
                &["22:00:00", "23:59:59", "00:00:00", "05:59:59"],
                &["21:59:59", "06:00:00", "12:00:00"],
            ),
            (
                "00:00",
                "23:59",
                &["00:00:00", "23:58:59"],
                &["23:59:00", "23:59:59"],
            ),
        ];
        for (start, end, inside, outside) in table {
            let quiet = QuietHours::parse(start, end).unwrap().unwrap();
            for (times, expected) in [(inside, true), (outside, false)] {
                for time in times {
                    let moment = at(&format!("2026-03-10T{time}Z"));
                    assert_eq!(
                        quiet.contain(moment, &TimeZone::UTC),
                        expected,
                        "{start}-{end} {time}"
                    );
                }
            }
        }
        // They are read in the zone: 23:00 in Berlin is 22:00 UTC.
        let quiet = QuietHours::parse("23:00", "23:30").unwrap().unwrap();
        assert!(quiet.contain(at("2026-03-10T22:10:00Z"), &zone("Europe/Berlin")));
    }

    #[test]
    fn bad_quiet_hours_are_refused() {
        assert_eq!(QuietHours::parse("", ""), Ok(None));
        assert_eq!(
            QuietHours::parse("22:00", ""),
            Err(QuietHoursError::HalfOpen)
        );
        assert_eq!(
            QuietHours::parse("", "22:00"),
            Err(QuietHoursError::HalfOpen)
        );
        assert!(matches!(
            QuietHours::parse("22:00", "22:00"),
            Err(QuietHoursError::Empty { .. })
        ));
        for text in [
            "24:00", "9:00", "09:60", "0900", "09:00:00", "-1:00", "+1:00", "nine", "09:5",
        ] {
            assert!(
                matches!(
                    QuietHours::parse(text, "10:00"),
                    Err(QuietHoursError::NotATime { .. })
                ),
                "{text}"
            );
        }
    }

    #[test]
    fn the_next_start_is_outside_of_quiet_hours() {
        let quiet = QuietHours::parse("22:00", "06:00").unwrap();
        let after = at("2026-03-10T21:59:59Z");
        let next = |text: &str| schedule(text).next_outside(after, quiet, &TimeZone::UTC);
        assert_eq!(next("* * * * * *"), Some(at("2026-03-11T06:00:00Z")));
        assert_eq!(next("30 * * * *"), Some(at("2026-03-11T06:30:00Z")));
        assert_eq!(next("0 3,12 * * *"), Some(at("2026-03-11T12:00:00Z")));
        assert_eq!(next("0 3 * * *"), None);
    }

    #[test]
    fn quiet_hours_that_end_in_a_gap_end_with_it() {
        // In Berlin, 2026-03-29 has no 02:00 to 03:00.
        let quiet = QuietHours::parse("01:00", "02:45").unwrap();
        let after = at("2026-03-29T00:00:00Z");
        for (text, expected) in [
            ("30 * * * *", "2026-03-29T01:30:00Z"),
            ("*/10 * * * *", "2026-03-29T01:00:00Z"),
        ] {
            let next = schedule(text).next_outside(after, quiet, &zone("Europe/Berlin"));
            assert_eq!(next, Some(at(expected)), "{text}");
        }
    }

    const SAMPLES: [&str; 8] = [
        "* * * * * *",
        "*/7 * * * *",
        "30 2 * * *",
        "0 0 1 * *",
        "15 1-3 * * 0",
        "0,30 2 * * *",
        "@hourly",
        "5 59 23 * * 5L",
    ];
    const ZONES: [&str; 6] = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Asia/Kathmandu",
        "America/St_Johns",
    ];

    proptest! {
        /// Always later, never two at one moment, and nothing between: asking
        /// from any moment before an occurrence gives that occurrence.
        #[test]
        fn occurrences_go_forward_and_none_is_skipped(
            seconds in 1_700_000_000i64..1_900_000_000,
            nanos in 0i32..1_000_000_000,
            sample in 0usize..SAMPLES.len(),
            name in 0usize..ZONES.len(),
            part in 0.0f64..1.0,
        ) {
            let (schedule, zone) = (schedule(SAMPLES[sample]), zone(ZONES[name]));
            let start = Timestamp::new(seconds, nanos).unwrap();
            let first = schedule.next_after(start, &zone).unwrap();
            prop_assert!(first > start);
            prop_assert_eq!(first.subsec_nanosecond(), 0);
            let between = start.as_second() + ((first.as_second() - start.as_second()) as f64 * part) as i64;
            let between = Timestamp::from_second(between).unwrap();
            if between < first {
                prop_assert_eq!(schedule.next_after(between, &zone), Some(first));
            }
            let second = schedule.next_after(first, &zone).unwrap();
            prop_assert!(second > first);
        }

        #[test]
        fn no_text_panics(text in "[0-9*/,@a-zA-Z#?+: -]{0,30}", start in "\\PC{0,8}") {
            let _ = text.parse::<Schedule>();
            let _ = QuietHours::parse(&start, &text);
        }
    }
}
