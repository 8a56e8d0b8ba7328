//! Schedules that people wrote, and the planner under any clock.

// The pure half takes nothing of the runtime, so the fuzzer builds it by itself.
#[path = "../../crates/runtime/src/cron"]
#[expect(dead_code, reason = "the runtime uses what the fuzzer does not")]
mod core {
    pub(super) mod planner;
    pub(super) mod policy;
    pub(super) mod schedule;
}

use core::planner::{self, Decision, Known, MAX_DECISIONS, Ongoing, Outcome, Rules};
use core::policy::{MissedPolicy, OverlapPolicy};
use core::schedule::{QuietHours, Schedule};

use std::sync::LazyLock;

use jiff::civil::Time;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::choices::Choices;

/// With and without daylight saving, of half an hour too, and far from Greenwich.
static ZONES: LazyLock<[TimeZone; 6]> = LazyLock::new(|| {
    [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Asia/Kathmandu",
    ]
    .map(|name| TimeZone::get(name).expect("in the database"))
});
static QUIET: LazyLock<[Option<QuietHours>; 4]> = LazyLock::new(|| {
    [
        ("", ""),
        ("22:00", "06:00"),
        ("01:15", "02:45"),
        ("00:00", "23:59"),
    ]
    .map(|(start, end)| QuietHours::parse(start, end).expect("times of day"))
});
/// What the planner is run with.
static SCHEDULES: LazyLock<[Schedule; 6]> = LazyLock::new(|| {
    [
        "*/20 * * * * *",
        "*/7 * * * *",
        "30 2 * * *",
        "0 * * * *",
        "TZ=Europe/Berlin 15 2,3 * * *",
        "0 0 29 2 *",
    ]
    .map(|text| text.parse().expect("a schedule"))
});

/// A zone, a moment, quiet hours, and a schedule as text or as choices.
pub fn cron(data: &[u8]) {
    let mut choices = Choices::new(data);
    let kind = choices.below(4);
    let zone = &ZONES[choices.below(ZONES.len())];
    let quiet = choices.of(&*QUIET);
    // Any second from 1970 to 2106, and a fraction.
    let seconds = choices
        .take(4)
        .iter()
        .fold(0, |n, byte| n << 8 | i64::from(*byte));
    let after = Timestamp::new(seconds, i32::from(choices.byte()) * 1_000_000).expect("in range");
    match kind {
        0 => any_text_is_a_schedule_or_an_error(choices.rest(), after, quiet, zone),
        1 => a_time_of_day_is_that_of_its_zone(&mut choices, after, zone),
        2 => no_clock_starts_an_occurrence_twice(&mut choices, after, quiet, zone),
        _ => any_text_is_quiet_hours_or_an_error(choices.rest()),
    }
}

fn any_text_is_a_schedule_or_an_error(
    text: &[u8],
    after: Timestamp,
    quiet: Option<QuietHours>,
    zone: &TimeZone,
) {
    let text = String::from_utf8_lossy(text);
    let schedule: Schedule = match text.parse() {
        Ok(schedule) => schedule,
        Err(error) => {
            assert!(!core::schedule::ScheduleError::to_string(&error).is_empty());
            return;
        }
    };
    let mut last = after;
    for _ in 0..4 {
        let Some(next) = schedule.next_after(last, zone) else {
            break;
        };
        assert!(next > last, "{text:?}: {next} is not after {last}");
        assert_eq!(next.subsec_nanosecond(), 0);
        // Nothing was left out: from a moment in between, the same one is next.
        let between = last + next.duration_since(last) / 2;
        assert_eq!(
            schedule.next_after(between, zone),
            Some(next),
            "{text:?} after {between}"
        );
        last = next;
    }
    if let Some(next) = schedule.next_outside(after, quiet, zone) {
        assert!(next > after);
        let is_quiet = |at| quiet.is_some_and(|quiet| quiet.contain(at, schedule.zone(zone)));
        assert!(!is_quiet(next), "{text:?}: {next} is in quiet hours");
        let mut skipped = after;
        for _ in 0..16 {
            match schedule.next_after(skipped, zone) {
                Some(due) if due < next => {
                    assert!(is_quiet(due), "{text:?}: {due} was left out");
                    skipped = due;
                }
                due => {
                    assert_eq!(due, Some(next), "{text:?}");
                    break;
                }
            }
        }
    }
}

fn a_time_of_day_is_that_of_its_zone(choices: &mut Choices<'_>, after: Timestamp, zone: &TimeZone) {
    let (hour, minute) = (choices.below(24) as i8, choices.below(60) as i8);
    let own = choices.flag();
    let text = match zone.iana_name().filter(|_| own) {
        Some(name) => format!("TZ={name} {minute} {hour} * * *"),
        None => format!("{minute} {hour} * * *"),
    };
    let schedule: Schedule = text.parse().expect("a daily schedule");
    // A schedule's own zone is stronger than the daemon's.
    let given = if own { &TimeZone::UTC } else { zone };
    let time = Time::new(hour, minute, 0, 0).expect("a time of day");
    let mut last = after;
    for _ in 0..4 {
        let next = schedule.next_after(last, given).expect("every day");
        let local = next.to_zoned(zone.clone());
        let wanted = local.date().to_datetime(time);
        let exists = zone.to_ambiguous_timestamp(wanted).offset();
        match exists {
            jiff::tz::AmbiguousOffset::Gap { before, after } => {
                // It happens at the first moment that exists.
                let gap = zone.to_timestamp(wanted).expect("in range");
                assert!(
                    local.time() > time,
                    "{text:?} {local} {before} {after} {gap}"
                );
            }
            _ => assert_eq!(local.time(), time, "{text:?} after {last}"),
        }
        // Once a day, and no day is left out, but for those that a zone itself leaves out.
        let hours = next.duration_since(last).as_hours();
        assert!(hours <= 24 + 25, "{text:?}: nothing from {last} to {next}");
        last = next;
    }
}

fn no_clock_starts_an_occurrence_twice(
    choices: &mut Choices<'_>,
    start: Timestamp,
    quiet: Option<QuietHours>,
    zone: &TimeZone,
) {
    let schedule = &SCHEDULES[choices.below(SCHEDULES.len())];
    let missed = choices.of(&[MissedPolicy::Skip, MissedPolicy::RunOnce]);
    let overlap = choices.of(&[OverlapPolicy::Skip, OverlapPolicy::Queue]);
    let (mut now, mut decided, mut up_since) = (start, start, start);
    let mut decisions = 0;
    for _ in 0..24 {
        // A second absence as long as the first says nothing new, and takes as long.
        if choices.is_empty() || decisions >= MAX_DECISIONS {
            break;
        }
        let step = match choices.byte() {
            0 => -3_600,
            1 => 3_600,
            2 => 86_400 * 3,
            3 => -1,
            seconds => i64::from(seconds),
        };
        now += SignedDuration::from_secs(step);
        up_since = up_since.min(now);
        let ongoing = choices.of(&[Ongoing::Nothing, Ongoing::Running, Ongoing::Waiting]);
        let known = Known {
            schedule,
            quiet,
            decided,
            ongoing,
            missed,
            overlap,
        };
        let plan = planner::plan(known, Rules { zone, up_since }, now);
        assert!(plan.decisions.len() <= MAX_DECISIONS);
        decisions += plan.decisions.len();
        let starts: Vec<&Decision> = plan
            .decisions
            .iter()
            .filter(|decision| decision.outcome == Outcome::Start)
            .collect();
        let may_start = match ongoing {
            Ongoing::Nothing => 1,
            Ongoing::Running => usize::from(overlap == OverlapPolicy::Queue),
            Ongoing::Waiting => 0,
        };
        assert!(starts.len() <= may_start);
        for start in starts {
            let own_zone = schedule.zone(zone);
            assert!(!quiet.is_some_and(|quiet| quiet.contain(start.due, own_zone)));
            let late = now.duration_since(start.due) > planner::LATE_LIMIT;
            assert!(!late || missed == MissedPolicy::RunOnce);
        }
        for decision in &plan.decisions {
            assert!(
                decision.due > decided && decision.due <= now,
                "{decision:?}"
            );
            decided = decision.due;
        }
        if !plan.truncated {
            let next = schedule.next_after(decided, zone);
            assert!(
                next.is_none_or(|next| next > now),
                "{next:?} was not decided"
            );
        }
    }
}

fn any_text_is_quiet_hours_or_an_error(text: &[u8]) {
    let text = String::from_utf8_lossy(text);
    let (start, end) = text.split_once('-').unwrap_or((&text, "06:00"));
    match QuietHours::parse(start, end) {
        Ok(None) => assert!(start.is_empty() && end.is_empty()),
        Ok(Some(quiet)) => {
            assert!(start.len() == 5 && end.len() == 5 && start != end);
            let at = |text: &str| -> Timestamp {
                format!("2026-03-10T{text}:00Z")
                    .parse()
                    .expect("a time of day")
            };
            assert!(quiet.contain(at(start), &TimeZone::UTC));
            assert!(!quiet.contain(at(end), &TimeZone::UTC));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
