//! An instance's life: phases, its one running message and its restarts, in any order of events.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use quintet_agent::proto::element::Element;
use quintet_agent::proto::lifecycle::{Phase, Trigger, next};
use quintet_agent::proto::message::MessageId;
use quintet_agent::proto::restart::{AfterCrash, RestartPolicy, Restarts};
use quintet_agent::proto::turn::{Completion, Turns, WaitingFor};
use serde_json::Value;

use crate::choices::Choices;

/// Fewer than the ids of ended messages that [`Turns`] remembers.
const NAMES: [&str; 6] = ["m1", "m2", "m3", "m4", "m5", ""];

/// A second `complete` comes so soon after the first, if at all.
const SECOND_WITHIN: Duration = Duration::from_millis(5);

/// Each step is one event.
pub fn agent_life(data: &[u8]) {
    let mut choices = Choices::new(data);
    match choices.below(3) {
        0 => phases_follow_the_process(&mut choices),
        1 => one_message_runs_and_ends_once(&mut choices),
        _ => restarts_wait_and_give_up(&mut choices),
    }
}

fn phases_follow_the_process(choices: &mut Choices<'_>) {
    use Trigger as T;
    const TRIGGERS: [Trigger; 10] = [
        T::Start,
        T::Spawned,
        T::Initialized,
        T::MessageSent,
        T::TurnEnded,
        T::IdleTimeout,
        T::Stop,
        T::ExitedCleanly,
        T::Lost,
        T::Retry,
    ];
    let mut phase = Phase::Terminated;
    let (mut process, mut message) = (false, false);
    while !choices.is_empty() {
        let trigger = choices.of(&TRIGGERS);
        let Some(after) = next(phase, trigger) else {
            // What can happen to a process by itself has a meaning wherever there is one.
            let befalls = matches!(trigger, T::ExitedCleanly | T::Lost);
            assert!(!(process && befalls), "{trigger:?} in {phase}");
            continue;
        };
        match trigger {
            T::Spawned | T::Retry => process = true,
            T::MessageSent => {
                assert!(process && !message, "a message in {phase}");
                message = true;
            }
            T::TurnEnded => {
                assert!(message);
                message = false;
            }
            T::ExitedCleanly | T::Lost => {
                assert!(matches!(after, Phase::Terminated | Phase::Crashed));
                // A message that was lost with its process is no clean end.
                assert!(!message || phase == Phase::ShuttingDown || after == Phase::Crashed);
                (process, message) = (false, false);
            }
            T::Start | T::Initialized | T::IdleTimeout | T::Stop => {}
        }
        phase = after;
        match phase {
            Phase::Terminated | Phase::Crashed => assert!(!process, "{phase} with a process"),
            Phase::Deploying => assert!(!process),
            Phase::Ready | Phase::ScalingDown => assert!(process && !message),
            Phase::Running => assert!(process && message),
            Phase::Initializing | Phase::ShuttingDown => assert!(process),
        }
    }
}

/// What is known of the running message, kept as plainly as possible.
struct Known {
    id: MessageId,
    since: Duration,
    outputs: BTreeSet<&'static str>,
    asks: BTreeSet<&'static str>,
    calls: BTreeSet<&'static str>,
    quiet_since: Duration,
    stall_said: bool,
    said: bool,
    cancelled: bool,
    doubtful: Option<(&'static str, Duration)>,
}

/// What is known of the ids that ended messages.
#[derive(Default)]
struct Ended {
    ids: BTreeMap<&'static str, How>,
    /// The id of the first `complete`, and when it came.
    first: Option<(&'static str, Duration)>,
    mints: bool,
}

#[derive(Clone, Copy)]
struct How {
    cancelled: bool,
    messages: u32,
}

impl Known {
    fn new(id: MessageId, now: Duration) -> Self {
        Self {
            id,
            since: now,
            outputs: BTreeSet::new(),
            asks: BTreeSet::new(),
            calls: BTreeSet::new(),
            quiet_since: now,
            stall_said: false,
            said: false,
            cancelled: false,
            doubtful: None,
        }
    }

    fn heard(&mut self, now: Duration) {
        (self.quiet_since, self.stall_said, self.said) = (now, false, true);
    }

    /// Whether a `complete` may be the second one of an ended message.
    fn doubts(&self, name: &str, ended: &Ended) -> bool {
        let Some(how) = ended.ids.get(name) else {
            return false;
        };
        let is_late = ended.first.is_some_and(|(first, at)| {
            first == name && !ended.mints && self.since >= at + SECOND_WITHIN
        });
        match () {
            () if self.outputs.contains(name) || how.messages > 1 => false,
            () if how.cancelled || !self.outputs.is_empty() => true,
            () => !self.said && !is_late,
        }
    }
}

fn one_message_runs_and_ends_once(choices: &mut Choices<'_>) {
    let mut turns = Turns::default();
    let mut running: Option<Known> = None;
    let mut ended = Ended::default();
    let (mut now, mut begun) = (Duration::ZERO, 0_u32);
    while !choices.is_empty() {
        let step = choices.below(13);
        let name = choices.of(&NAMES);
        match step {
            0 => {
                begun += 1;
                let id = MessageId::from(format!("message {begun}"));
                let outcome = turns.begin(id.clone(), now);
                match &running {
                    None => {
                        assert_eq!(outcome, Ok(()));
                        running = Some(Known::new(id, now));
                    }
                    Some(known) => {
                        assert_eq!(outcome.map_err(|e| e.running), Err(known.id.clone()))
                    }
                }
            }
            1..=3 => {
                let element = element(step, name);
                let output = choices.of(&NAMES);
                let owner = turns.output(output, &element, now).cloned();
                assert_eq!(owner.as_ref(), running.as_ref().map(|known| &known.id));
                if let Some(known) = &mut running {
                    known.heard(now);
                    known.doubtful = None;
                    known.outputs.insert(output);
                    match step {
                        2 => drop(known.calls.insert(name)),
                        3 => drop(known.calls.remove(name)),
                        _ => {}
                    }
                }
            }
            4 => {
                let heard = match choices.flag() {
                    true => turns.asked(name, now),
                    false => turns.approval_requested(name, now),
                };
                assert_eq!(heard, running.is_some());
                if let Some(known) = &mut running {
                    known.heard(now);
                    known.doubtful = None;
                    known.asks.insert(name);
                }
            }
            5 => {
                turns.answered(name, now);
                if let Some(known) = &mut running
                    && known.asks.remove(name)
                {
                    known.heard(now);
                }
            }
            6 => {
                now += match choices.flag() {
                    true => Duration::from_secs(choices.byte().into()),
                    false => Duration::from_millis(choices.below(20) as u64),
                }
            }
            7 => {
                let end = turns.complete(name, now);
                match &mut running {
                    Some(known) if known.doubts(name, &ended) => {
                        assert_eq!(end, Completion::Doubtful, "{name:?} may be another's end");
                        known.doubtful = Some((name, now));
                    }
                    Some(_) => {
                        let id = end_of(&mut running, &mut ended, Some((name, now)));
                        assert_eq!(id.map(Completion::Ends), Some(end));
                    }
                    None => assert_eq!(end, Completion::Nothing),
                }
            }
            8 => assert_eq!(turns.end(), end_of(&mut running, &mut ended, None)),
            10 => {
                turns.cancelled();
                if let Some(known) = &mut running {
                    known.cancelled = true;
                }
            }
            11 => {
                turns.heard(now);
                if let Some(known) = &mut running {
                    known.heard(now);
                }
            }
            12 => doubt_ends_with_silence(&mut turns, &mut running, &mut ended, now),
            _ => a_stall_is_said_once(&mut turns, &mut running, now),
        }
        assert_eq!(turns.running(), running.as_ref().map(|known| &known.id));
        what_it_waits_for_was_said(&turns, running.as_ref());
    }
}

fn element(step: usize, name: &str) -> Element {
    match step {
        1 => Element::TextDelta {
            text: "text".to_owned(),
        },
        2 => Element::ToolCall {
            call_id: name.to_owned(),
            name: "exec".to_owned(),
            arguments: serde_json::Map::new(),
        },
        _ => Element::ToolResult {
            call_id: name.to_owned(),
            output: Value::Null,
            is_error: false,
            duration_ms: None,
        },
    }
}

fn end_of(
    running: &mut Option<Known>,
    ended: &mut Ended,
    by: Option<(&'static str, Duration)>,
) -> Option<MessageId> {
    let known = running.take()?;
    let cancelled = known.cancelled;
    if let Some(end) = by {
        let (first, _) = *ended.first.get_or_insert(end);
        ended.mints |= first != end.0;
    }
    let by = by.map(|(name, _)| name);
    let mut names = known.outputs;
    names.extend(by);
    for name in names {
        let before = ended.ids.get(name).map_or(0, |how| how.messages);
        // Being an output's id tells nothing of a second message; ending it does.
        let messages = match by == Some(name) {
            true => before + 1,
            false => before.max(1),
        };
        let how = How {
            cancelled,
            messages,
        };
        ended.ids.insert(name, how);
    }
    Some(known.id)
}

fn doubt_ends_with_silence(
    turns: &mut Turns,
    running: &mut Option<Known>,
    ended: &mut Ended,
    now: Duration,
) {
    const AFTER: Duration = Duration::from_secs(10);
    let due = running.as_ref().and_then(|known| {
        let (name, since) = known.doubtful?;
        let waits = !known.asks.is_empty() || !known.calls.is_empty();
        (!waits && now >= since + AFTER).then_some(name)
    });
    let end = turns.settle(now, AFTER);
    match due {
        Some(name) => assert_eq!(end, end_of(running, ended, Some((name, now)))),
        None => assert_eq!(end, None),
    }
}

fn a_stall_is_said_once(turns: &mut Turns, running: &mut Option<Known>, now: Duration) {
    const AFTER: Duration = Duration::from_secs(60);
    let stall = turns.stalled(now, AFTER);
    let due = running
        .as_ref()
        .is_some_and(|known| !known.stall_said && now >= known.quiet_since + AFTER);
    assert_eq!(stall.is_some(), due);
    if let (Some(stall), Some(known)) = (stall, running) {
        assert_eq!(stall.since, known.quiet_since);
        known.stall_said = true;
        assert_eq!(turns.stalls_at(AFTER), None);
    }
}

fn what_it_waits_for_was_said(turns: &Turns, running: Option<&Known>) {
    match (turns.waiting_for(), running) {
        (None, None) => {}
        (
            Some(WaitingFor::Answer { ask_id: id } | WaitingFor::Approval { request_id: id }),
            Some(known),
        ) => {
            assert!(known.asks.contains(id.as_str()));
        }
        (Some(WaitingFor::Tool { call_id, .. }), Some(known)) => {
            assert!(known.asks.is_empty() && known.calls.contains(call_id.as_str()));
        }
        (Some(WaitingFor::Agent), Some(known)) => {
            assert!(known.asks.is_empty() && known.calls.is_empty());
        }
        (waiting, _) => panic!("{waiting:?}"),
    }
}

fn restarts_wait_and_give_up(choices: &mut Choices<'_>) {
    let policy = RestartPolicy {
        base: Duration::from_millis(choices.number()),
        cap: Duration::from_millis(choices.number()),
        breaker_crashes: choices.below(8) as u32,
        breaker_window: Duration::from_secs(choices.number()),
    };
    let mut restarts = Restarts::new(policy);
    let mut now = Duration::ZERO;
    let mut recent: VecDeque<Duration> = VecDeque::new();
    let (mut total, mut longest) = (0, Duration::ZERO);
    while !choices.is_empty() {
        match choices.below(6) {
            0 => {
                restarts.turn_completed();
                longest = Duration::ZERO;
            }
            1 => {
                restarts.close();
                assert!(!restarts.is_open());
                recent.clear();
                longest = Duration::ZERO;
            }
            2 => now += Duration::from_secs(choices.byte().into()),
            _ => {
                total += 1;
                recent.push_back(now);
                recent.retain(|crash| now - *crash <= policy.breaker_window);
                let too_often = recent.len() >= policy.breaker_crashes as usize;
                match restarts.crashed(now) {
                    AfterCrash::BreakerOpen => {
                        assert!(too_often && restarts.is_open());
                        recent.clear();
                    }
                    AfterCrash::Retry(delay) => {
                        assert!(!too_often);
                        assert!(delay <= policy.cap && delay >= longest);
                        assert!(delay >= policy.base.min(policy.cap));
                        longest = delay;
                    }
                }
            }
        }
        assert_eq!(restarts.total(), total);
    }
}
