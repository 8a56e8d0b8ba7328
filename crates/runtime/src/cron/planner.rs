//! What to do about each occurrence. Pure: a function of what is known and now.
//!
//! Occurrences up to now that have not been decided are decided, all of them:
//!
//! - in quiet hours: skipped;
//! - *timely*, that is due while this process ran and at most [`LATE_LIMIT`]
//!   ago: skipped when it overlaps, else the newest one is started and older
//!   ones are missed;
//! - late: missed, but for the newest one when the cron's policy is to run once.
//!
//! An occurrence overlaps while a run of the same cron has not ended; when the
//! cron's policy is to queue, only while a run has not begun.
//!
//! The moment up to which everything is decided never goes back, so a clock
//! that is set back repeats nothing. A clock that is set forward, or a machine
//! that slept, makes occurrences late.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::policy::{MissedPolicy, OverlapPolicy};
use super::schedule::{QuietHours, Schedule};

/// An occurrence that is later than this is not started as if nothing were.
///
/// The driver looks at the clock at least this often.
pub const LATE_LIMIT: SignedDuration = SignedDuration::from_secs(60);

/// Occurrences of one cron that are decided at once. When a long absence has
/// more, the oldest get no row of their own.
pub const MAX_DECISIONS: usize = 1000;

/// What is known of a cron.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    /// When it happens.
    pub schedule: &'a Schedule,
    /// When it must not.
    pub quiet: Option<QuietHours>,
    /// Every occurrence up to this moment has been decided.
    pub decided: Timestamp,
    /// Its runs that have not ended.
    pub ongoing: Ongoing,
    /// What to do about late occurrences.
    pub missed: MissedPolicy,
    /// What to do while a run has not ended.
    pub overlap: OverlapPolicy,
}

/// How far the runs of a cron are that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ongoing {
    /// There are none.
    Nothing,
    /// One has begun, and none waits.
    Running,
    /// One has not begun.
    Waiting,
}

/// What holds for all crons.
#[derive(Debug, Clone, Copy)]
pub struct Rules<'a> {
    /// The zone of schedules that name none.
    pub zone: &'a TimeZone,
    /// The earliest time that this process has seen.
    pub up_since: Timestamp,
}

/// What becomes of an occurrence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is started.
    Start,
    /// It is in quiet hours.
    SkippedQuiet,
    /// A run has not ended, and this one is not to wait for it.
    SkippedOverlap,
    /// Nobody could start it in time.
    Missed,
}

/// One occurrence and what becomes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// When it was to happen.
    pub due: Timestamp,
    /// What becomes of it.
    pub outcome: Outcome,
}

/// The decisions, oldest first; at most one is [`Outcome::Start`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// One for each occurrence up to now that was not decided.
    pub decisions: Vec<Decision>,
    /// Whether there were more than [`MAX_DECISIONS`].
    pub truncated: bool,
}

/// Decides every undecided occurrence up to now.
#[must_use]
pub fn plan(cron: Known<'_>, rules: Rules<'_>, now: Timestamp) -> Plan {
    let (occurrences, truncated) = occurrences(cron, rules.zone, now);
    let zone = cron.schedule.zone(rules.zone);
    let quiet_at = |at| cron.quiet.is_some_and(|quiet| quiet.contain(at, zone));
    let timely = |due: Timestamp| due > rules.up_since && now.duration_since(due) <= LATE_LIMIT;

    let overlaps = match cron.ongoing {
        Ongoing::Nothing => false,
        Ongoing::Running => cron.overlap == OverlapPolicy::Skip,
        Ongoing::Waiting => true,
    };

    let newest = occurrences
        .iter()
        .rev()
        .copied()
        .find(|due| !quiet_at(*due));
    let decisions = occurrences
        .into_iter()
        .map(|due| {
            let may_run = timely(due) || cron.missed == MissedPolicy::RunOnce;
            let outcome = if quiet_at(due) {
                Outcome::SkippedQuiet
            } else if timely(due) && overlaps {
                Outcome::SkippedOverlap
            } else if Some(due) != newest || !may_run {
                Outcome::Missed
            } else if overlaps {
                Outcome::SkippedOverlap
            } else if !timely(due) && quiet_at(now) {
                // Made up for later, it would be now; and now is quiet.
                Outcome::SkippedQuiet
            } else {
                Outcome::Start
            };
            Decision { due, outcome }
        })
        .collect();
    Plan {
        decisions,
        truncated,
    }
}

/// The undecided occurrences up to now, the newest ones if there are too many.
///
/// From now back in spans that grow, so that a long absence costs as much as what is kept of it.
fn occurrences(cron: Known<'_>, zone: &TimeZone, now: Timestamp) -> (Vec<Timestamp>, bool) {
    let mut newest_first = Vec::new();
    // No schedule has more than one a second, so this one is never too long.
    let mut length = SignedDuration::from_secs(MAX_DECISIONS as i64);
    let mut to = now;
    while to > cron.decided && newest_first.len() <= MAX_DECISIONS {
        let from = to.checked_sub(length).unwrap_or(cron.decided);
        let from = from.max(cron.decided);
        match between(cron.schedule, zone, from, to) {
            Some(span) => {
                newest_first.extend(span.into_iter().rev());
                (to, length) = (from, length * 2);
            }
            None => length /= 2,
        }
    }
    let truncated = newest_first.len() > MAX_DECISIONS;
    newest_first.truncate(MAX_DECISIONS);
    newest_first.reverse();
    (newest_first, truncated)
}

/// The occurrences after `from`, up to and with `to`; `None` when they are too many.
fn between(
    schedule: &Schedule,
    zone: &TimeZone,
    from: Timestamp,
    to: Timestamp,
) -> Option<Vec<Timestamp>> {
    let mut found = Vec::new();
    let mut last = from;
    while let Some(due) = schedule.next_after(last, zone)
        && due <= to
    {
        if found.len() == MAX_DECISIONS {
            return None;
        }
        found.push(due);
        last = due;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(text: &str) -> Timestamp {
        format!("2026-{text}Z").parse().unwrap()
    }

    /// A world in which to plan; fields are changed by the test.
    struct World {
        schedule: Schedule,
        quiet: Option<QuietHours>,
        decided: Timestamp,
        ongoing: Ongoing,
        missed: MissedPolicy,
        overlap: OverlapPolicy,
        zone: TimeZone,
        up_since: Timestamp,
    }

    fn world(schedule: &str, decided: &str) -> World {
        World {
            schedule: schedule.parse().unwrap(),
            quiet: None,
            decided: at(decided),
            ongoing: Ongoing::Nothing,
            missed: MissedPolicy::Skip,
            overlap: OverlapPolicy::Skip,
            zone: TimeZone::UTC,
            up_since: at(decided),
        }
    }

    impl World {
        fn plan(&self, now: Timestamp) -> Plan {
            plan(
                Known {
                    schedule: &self.schedule,
                    quiet: self.quiet,
                    decided: self.decided,
                    ongoing: self.ongoing,
                    missed: self.missed,
                    overlap: self.overlap,
                },
                Rules {
                    zone: &self.zone,
                    up_since: self.up_since,
                },
                now,
            )
        }

        fn outcomes(&self, now: &str) -> Vec<(String, Outcome)> {
            let plan = self.plan(at(now));
            assert!(!plan.truncated);
            plan.decisions
                .iter()
                .map(|decision| {
                    let local = decision.due.to_zoned(self.zone.clone());
                    (local.strftime("%d %H:%M:%S").to_string(), decision.outcome)
                })
                .collect()
        }
    }

    fn rows(expected: &[(&str, Outcome)]) -> Vec<(String, Outcome)> {
        expected
            .iter()
            .map(|(due, outcome)| ((*due).to_owned(), *outcome))
            .collect()
    }

    use Outcome::{Missed, SkippedOverlap, SkippedQuiet, Start};

    #[test]
    fn nothing_is_decided_before_it_is_due() {
        let world = world("0 10 * * *", "03-10T09:00:00");
        assert_eq!(world.outcomes("03-10T09:59:59"), []);
        assert_eq!(
            world.outcomes("03-10T10:00:00"),
            rows(&[("10 10:00:00", Start)])
        );
    }

    #[test]
    fn a_little_late_is_started_and_later_is_missed() {
        let mut world = world("0 10 * * *", "03-10T09:00:00");
        assert_eq!(
            world.outcomes("03-10T10:01:00"),
            rows(&[("10 10:00:00", Start)])
        );
        assert_eq!(
            world.outcomes("03-10T10:01:01"),
            rows(&[("10 10:00:00", Missed)])
        );
        world.missed = MissedPolicy::RunOnce;
        assert_eq!(
            world.outcomes("03-10T10:01:01"),
            rows(&[("10 10:00:00", Start)])
        );
    }

    #[test]
    fn what_came_while_down_is_missed_also_when_it_was_just_now() {
        let mut world = world("0 * * * *", "03-10T09:00:00");
        world.up_since = at("03-10T12:00:10");
        assert_eq!(
            world.outcomes("03-10T12:00:10"),
            rows(&[
                ("10 10:00:00", Missed),
                ("10 11:00:00", Missed),
                ("10 12:00:00", Missed)
            ])
        );
        world.missed = MissedPolicy::RunOnce;
        assert_eq!(
            world.outcomes("03-10T12:00:10"),
            rows(&[
                ("10 10:00:00", Missed),
                ("10 11:00:00", Missed),
                ("10 12:00:00", Start)
            ])
        );
    }

    #[test]
    fn a_run_that_has_not_ended_is_not_overlapped() {
        let mut world = world("*/10 * * * * *", "03-10T10:00:00");
        for ongoing in [Ongoing::Running, Ongoing::Waiting] {
            world.ongoing = ongoing;
            world.missed = MissedPolicy::Skip;
            world.up_since = world.decided;
            assert_eq!(
                world.outcomes("03-10T10:00:20"),
                rows(&[
                    ("10 10:00:10", SkippedOverlap),
                    ("10 10:00:20", SkippedOverlap)
                ])
            );
            // Also not by one that is made up for.
            world.missed = MissedPolicy::RunOnce;
            world.up_since = at("03-10T10:00:20");
            assert_eq!(
                world.outcomes("03-10T10:00:20"),
                rows(&[("10 10:00:10", Missed), ("10 10:00:20", SkippedOverlap)])
            );
        }
    }

    #[test]
    fn one_may_wait_for_a_run_to_end_and_a_second_may_not() {
        let mut world = world("*/10 * * * * *", "03-10T10:00:00");
        world.overlap = OverlapPolicy::Queue;
        world.ongoing = Ongoing::Running;
        assert_eq!(
            world.outcomes("03-10T10:00:20"),
            rows(&[("10 10:00:10", Missed), ("10 10:00:20", Start)])
        );
        world.ongoing = Ongoing::Waiting;
        assert_eq!(
            world.outcomes("03-10T10:00:20"),
            rows(&[
                ("10 10:00:10", SkippedOverlap),
                ("10 10:00:20", SkippedOverlap)
            ])
        );
        // What is made up for waits likewise.
        world.missed = MissedPolicy::RunOnce;
        world.up_since = at("03-10T10:00:20");
        for (ongoing, outcome) in [
            (Ongoing::Running, Start),
            (Ongoing::Waiting, SkippedOverlap),
        ] {
            world.ongoing = ongoing;
            assert_eq!(
                world.outcomes("03-10T10:00:20"),
                rows(&[("10 10:00:10", Missed), ("10 10:00:20", outcome)])
            );
        }
    }

    #[test]
    fn a_short_stall_starts_the_newest_only() {
        let world = world("* * * * * *", "03-10T10:00:00");
        assert_eq!(
            world.outcomes("03-10T10:00:03"),
            rows(&[
                ("10 10:00:01", Missed),
                ("10 10:00:02", Missed),
                ("10 10:00:03", Start)
            ])
        );
    }

    #[test]
    fn quiet_hours_are_skipped_and_their_end_is_not() {
        let mut world = world("0 * * * *", "03-10T20:30:00");
        world.quiet = QuietHours::parse("22:00", "00:00").unwrap();
        for (now, decided, outcome) in [
            ("03-10T21:00:00", "10 21:00:00", Start),
            ("03-10T22:00:00", "10 22:00:00", SkippedQuiet),
            ("03-10T23:00:00", "10 23:00:00", SkippedQuiet),
            ("03-11T00:00:00", "11 00:00:00", Start),
        ] {
            assert_eq!(world.outcomes(now), rows(&[(decided, outcome)]));
            world.decided = at(now);
        }
    }

    #[test]
    fn quiet_hours_hold_for_what_is_made_up_for() {
        let mut world = world("0 8,23 * * *", "03-10T07:00:00");
        world.quiet = QuietHours::parse("22:00", "06:00").unwrap();
        world.missed = MissedPolicy::RunOnce;
        world.up_since = at("03-10T23:30:00");
        assert_eq!(
            world.outcomes("03-10T23:30:00"),
            rows(&[("10 08:00:00", SkippedQuiet), ("10 23:00:00", SkippedQuiet)])
        );
        world.up_since = at("03-11T06:30:00");
        assert_eq!(
            world.outcomes("03-11T06:30:00"),
            rows(&[("10 08:00:00", Start), ("10 23:00:00", SkippedQuiet)])
        );
    }

    #[test]
    fn a_clock_set_back_repeats_nothing() {
        let mut world = world("*/15 * * * *", "03-10T11:00:00");
        // It was 12:00 and an hour is taken back: decided stays.
        world.decided = at("03-10T12:00:00");
        for now in ["03-10T11:00:00", "03-10T11:15:00", "03-10T12:00:00"] {
            assert_eq!(world.outcomes(now), []);
        }
        assert_eq!(
            world.outcomes("03-10T12:15:00"),
            rows(&[("10 12:15:00", Start)])
        );
    }

    #[test]
    fn a_clock_set_forward_makes_the_hour_missed() {
        let mut world = world("*/30 * * * *", "03-10T10:00:00");
        assert_eq!(
            world.outcomes("03-10T11:10:00"),
            rows(&[("10 10:30:00", Missed), ("10 11:00:00", Missed)])
        );
        world.missed = MissedPolicy::RunOnce;
        assert_eq!(
            world.outcomes("03-10T11:10:00"),
            rows(&[("10 10:30:00", Missed), ("10 11:00:00", Start)])
        );
    }

    #[test]
    fn days_with_daylight_saving_have_each_occurrence_once() {
        let mut world = world("30 2 * * *", "03-28T12:00:00");
        world.zone = TimeZone::get("Europe/Berlin").unwrap();
        // The gap: 02:30 happens at 03:00, which is 01:00 UTC.
        assert_eq!(world.outcomes("03-29T00:59:59"), []);
        assert_eq!(
            world.outcomes("03-29T01:00:00"),
            rows(&[("29 03:00:00", Start)])
        );
        // The repeated hour: the second 02:30 is none.
        world.decided = at("10-24T12:00:00");
        world.up_since = world.decided;
        assert_eq!(
            world.outcomes("10-25T00:30:00"),
            rows(&[("25 02:30:00", Start)])
        );
        world.decided = at("10-25T00:30:00");
        assert_eq!(world.outcomes("10-25T02:00:00"), []);
    }

    #[test]
    fn a_long_absence_is_bounded_and_keeps_the_newest() {
        let mut world = world("* * * * * *", "03-10T10:00:00");
        world.up_since = at("06-10T10:00:00");
        let now = at("06-10T10:00:00");
        let plan = world.plan(now);
        assert!(plan.truncated);
        let due: Vec<Timestamp> = plan.decisions.iter().map(|decision| decision.due).collect();
        let newest: Vec<Timestamp> = (0..MAX_DECISIONS as i64)
            .rev()
            .map(|ago| now - SignedDuration::from_secs(ago))
            .collect();
        assert_eq!(due, newest);
        assert!(
            plan.decisions
                .iter()
                .all(|decision| decision.outcome == Missed)
        );
    }

    /// Every second of Mondays alone: nothing for days, and then too many.
    #[test]
    fn an_absence_that_ends_long_after_the_last_occurrence_is_decided_too() {
        let world = world("* * * * * 1", "03-01T00:00:00");
        let plan = world.plan(at("03-15T12:00:00"));
        assert!(plan.truncated);
        assert_eq!(plan.decisions.len(), MAX_DECISIONS);
        let last = plan.decisions.last().unwrap().due;
        assert_eq!(last, at("03-09T23:59:59"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever the clock does between looks, over any number of them: no
        /// occurrence is decided twice, decisions go forward, at most one is
        /// started at a time, none is started in quiet hours, and none that is
        /// more than a minute late under "skip".
        #[test]
        fn no_clock_starts_an_occurrence_twice(
            schedule in prop_oneof![
                Just("*/20 * * * * *"), Just("*/7 * * * *"), Just("30 2 * * *"), Just("0 * * * *"),
            ],
            zone in prop_oneof![Just("UTC"), Just("Europe/Berlin"), Just("Australia/Lord_Howe")],
            run_once in any::<bool>(),
            queue in any::<bool>(),
            quiet in prop_oneof![Just(("", "")), Just(("22:00", "03:00")), Just(("01:15", "02:45"))],
            start in 1_774_700_000i64..1_774_900_000,
            steps in proptest::collection::vec(
                (
                    prop_oneof![1i64..120, -3700i64..-3500, 3500i64..3700, Just(20_000i64)],
                    prop_oneof![Just(Ongoing::Nothing), Just(Ongoing::Running), Just(Ongoing::Waiting)],
                ),
                1..40,
            ),
        ) {
            let mut now = Timestamp::from_second(start).unwrap();
            let mut world = world(schedule, "03-10T10:00:00");
            world.zone = TimeZone::get(zone).unwrap();
            world.quiet = QuietHours::parse(quiet.0, quiet.1).unwrap();
            world.missed = if run_once { MissedPolicy::RunOnce } else { MissedPolicy::Skip };
            world.overlap = if queue { OverlapPolicy::Queue } else { OverlapPolicy::Skip };
            world.decided = now;
            world.up_since = now;
            let mut seen = std::collections::BTreeSet::new();
            for (step, ongoing) in steps {
                now += SignedDuration::from_secs(step);
                world.up_since = world.up_since.min(now);
                world.ongoing = ongoing;
                let plan = world.plan(now);
                let starts: Vec<_> = plan.decisions.iter().filter(|d| d.outcome == Start).collect();
                let may_start = match ongoing {
                    Ongoing::Nothing => true,
                    Ongoing::Running => queue,
                    Ongoing::Waiting => false,
                };
                prop_assert!(starts.len() <= usize::from(may_start));
                for decision in &plan.decisions {
                    prop_assert!(decision.due > world.decided && decision.due <= now);
                    prop_assert!(seen.insert(decision.due));
                    world.decided = decision.due;
                }
                for start in starts {
                    let quiet_then = world.quiet.is_some_and(|q| q.contain(start.due, &world.zone));
                    prop_assert!(!quiet_then);
                    prop_assert!(run_once || now.duration_since(start.due) <= LATE_LIMIT);
                }
                if !plan.truncated {
                    prop_assert!(world.schedule.next_after(world.decided, &world.zone).unwrap() > now);
                }
            }
        }
    }
}
