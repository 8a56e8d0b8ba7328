//! 24 hours of traffic in simulated time, on the parts that take the time as an argument.
//!
//! The workspace plane has its own day beside its model (`crates/workspace/tests/model.rs`).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use quintet_framing::backoff::{Backoff, BackoffPolicy};
use quintet_runtime::cron::planner::{self, Known, Ongoing, Outcome, Rules};
use quintet_runtime::cron::schedule::Schedule;
use quintet_runtime::cron::{MissedPolicy, OverlapPolicy};
use quintet_sandbox::proto::{
    HubEvent, HubSession, Liveness, Metadata, Names, Protocol, Pulse, WorkerEvent, WorkerSession,
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The same for the same seed.
struct Dice(u64);

impl Dice {
    fn seeded() -> Self {
        let asked = std::env::var("QUINTET_FAULTS_SEED").ok();
        let seed = asked.and_then(|seed| seed.parse().ok()).unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.unwrap().subsec_nanos().into()
        });
        eprintln!("QUINTET_FAULTS_SEED={seed}");
        Self(seed)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// A worker, the hub's end of its connection, and what is under way between them.
struct Wire {
    hub: HubSession,
    worker: WorkerSession,
    up: VecDeque<(Duration, String)>,
    down: VecDeque<(Duration, String)>,
    /// Nothing passes any more, and nobody was told.
    silent: bool,
}

impl Wire {
    fn new(now: Duration) -> Self {
        Self {
            hub: HubSession::new(Protocol::V1, now),
            worker: WorkerSession::new(Pulse::default(), "far".into(), Metadata::default(), now),
            up: VecDeque::new(),
            down: VecDeque::new(),
            silent: false,
        }
    }

    /// Moves what is due; false when the worker gives the hub up.
    fn moves(&mut self, now: Duration, dice: &mut Dice, heard: &mut usize) -> bool {
        let text = |frame: Vec<u8>| String::from_utf8(frame).unwrap();
        if self.worker.poll_timeout() <= now
            && matches!(self.worker.handle_timeout(now), WorkerEvent::Dead)
        {
            return false;
        }
        while let Some((message, dialect)) = self.worker.poll_send() {
            let late = now + Duration::from_millis(dice.roll(5_000));
            self.up
                .push_back((late, text(message.encode(dialect).to_vec())));
        }
        while let Some((_, message)) = self.up.pop_front_if(|(at, _)| *at <= now) {
            if self.silent {
                continue;
            }
            *heard += 1;
            match self.hub.handle_text(&message, now) {
                HubEvent::Register { daemon_id, .. } => self.hub.accept(daemon_id),
                HubEvent::None | HubEvent::Load(_) => {}
                HubEvent::Reply(reply) => panic!("{reply:?} to nothing"),
                HubEvent::Fault { error: fault, .. } => panic!("{fault}"),
            }
        }
        while let Some(message) = self.hub.poll_send() {
            let late = now + Duration::from_millis(dice.roll(5_000));
            self.down
                .push_back((late, text(message.encode(Names::Both).to_vec())));
        }
        while let Some((_, message)) = self.down.pop_front_if(|(at, _)| *at <= now) {
            if !self.silent {
                self.worker.handle_text(&message, now);
            }
        }
        assert!(self.up.len() < 10 && self.down.len() < 10, "a queue grows");
        true
    }
}

#[test]
fn a_day_of_heartbeats_on_a_network_that_is_cut_and_silent() {
    let mut dice = Dice::seeded();
    let mut now = Duration::ZERO;
    let mut backoff = Backoff::new(BackoffPolicy::default());
    let (mut heard, mut faults, mut dials) = (0, 0, 0);
    let (mut wire, mut dial_at) = (None::<Wire>, now);
    // Since when the network is as it should be.
    let mut sound = now;
    while now < DAY {
        now += Duration::from_millis(500);
        let Some(connected) = &mut wire else {
            if now >= dial_at {
                wire = Some(Wire::new(now));
                backoff.connected(now);
                dials += 1;
            }
            continue;
        };
        let fault = dice.roll(1_500);
        if fault == 0 && !connected.silent {
            connected.silent = true;
            faults += 1;
            sound = Duration::MAX;
        }
        let stale = connected.hub.is_stale(Liveness::default(), now);
        let gives_up = !connected.moves(now, &mut dice, &mut heard);
        if stale || gives_up || (fault == 1 && !connected.silent) {
            // One that nothing is wrong with is kept.
            assert!(fault == 1 || connected.silent, "given up at {now:?}");
            faults += usize::from(fault == 1);
            let random = dice.roll(1 << 20) as f64 / f64::from(1 << 20);
            dial_at = now + backoff.lost(now, random);
            (wire, sound) = (None, dial_at);
        } else if now.saturating_sub(sound) > Duration::from_secs(30) {
            assert!(connected.hub.registered().is_some(), "not there at {now:?}");
        }
    }
    assert!(
        dials > faults / 2 && heard > 5_000,
        "{dials} {faults} {heard}"
    );
    eprintln!("faults: 24 h of a worker: {heard} messages, {faults} faults, {dials} connections");
}

#[test]
fn a_day_of_schedules_under_a_clock_that_jumps() {
    let mut dice = Dice::seeded();
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    // The night in which clocks go forward.
    let start: Timestamp = "2026-03-28T18:00:00Z".parse().unwrap();
    let (mut decided_all, mut jumps) = (0, 0);
    for text in ["*/5 * * * *", "30 2 * * *", "0 * * * *", "15 */3 * * *"] {
        let schedule: Schedule = text.parse().unwrap();
        let (mut now, mut up_since, mut decided) = (start, start, start);
        let mut runs = BTreeMap::<Timestamp, Outcome>::new();
        let end = start + SignedDuration::from_hours(24);
        while now < end {
            now += SignedDuration::from_secs(1 + dice.roll(60).cast_signed());
            match dice.roll(200) {
                0 => now += SignedDuration::from_hours(1),
                1 => now -= SignedDuration::from_hours(1),
                // The daemon is started again.
                2 => up_since = now,
                _ => jumps -= 1,
            }
            jumps += 1;
            up_since = up_since.min(now);
            let known = Known {
                schedule: &schedule,
                quiet: None,
                decided,
                ongoing: Ongoing::Nothing,
                missed: MissedPolicy::RunOnce,
                overlap: OverlapPolicy::Skip,
            };
            let rules = Rules {
                zone: &zone,
                up_since,
            };
            for decision in planner::plan(known, rules, now).decisions {
                let earlier = runs.insert(decision.due, decision.outcome);
                assert_eq!(earlier, None, "{text}: {} twice", decision.due);
                decided = decision.due;
            }
        }
        let mut due = start;
        while let Some(next) = schedule.next_after(due, &zone).filter(|next| *next <= now) {
            assert!(runs.contains_key(&next), "{text}: {next} was left out");
            due = next;
        }
        assert!(
            runs.values().any(|outcome| *outcome == Outcome::Start),
            "{text}"
        );
        decided_all += runs.len();
    }
    eprintln!("faults: 24 h of schedules: {decided_all} occurrences, {jumps} jumps and restarts");
}
