//! The one message that is running: what belongs to it, when it ends, what it waits for.
//!
//! `now` is any monotonic clock of the caller's, as the time since an epoch of its choice.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::element::Element;
use super::message::MessageId;

/// Output ids of ended messages that are remembered, to tell a second `complete` from a first one.
const REMEMBERED_IDS: usize = 32;

/// Things a running message waits for that are kept by name; more are only not named.
const MAX_OPEN: usize = 256;

/// Within this time after a message's end a second `complete` of it comes, if one does: it was sent
/// right behind the first.
const SECOND_COMPLETE_WITHIN: Duration = Duration::from_millis(5);

/// Keeps the running message of one instance.
///
/// It is that of one process: another one may mint the same ids again.
#[derive(Debug, Default)]
pub struct Turns {
    running: Option<Running>,
    ended: VecDeque<Ended>,
    first: Option<FirstEnd>,
    /// Messages ended by different ids, so that an id seen before is an earlier message's.
    mints: bool,
}

/// The first `complete`, which does not tell yet whether the agent mints its ids or has only one.
#[derive(Debug)]
struct FirstEnd {
    output_id: String,
    at: Duration,
    /// Nothing but the `complete` was said in its message.
    silent: bool,
}

/// An output id of an ended message.
#[derive(Debug)]
struct Ended {
    id: String,
    /// Its message was cancelled: whatever worked on it may still say that it is done.
    cancelled: bool,
    /// More than one message ended by it, so that it says nothing about which.
    shared: bool,
}

#[derive(Debug)]
struct Running {
    id: MessageId,
    since: Duration,
    output_ids: Vec<String>,
    quiet_since: Duration,
    stall_reported: bool,
    calls: BTreeMap<String, String>,
    asks: BTreeMap<String, Asked>,
    /// Whether the agent has said anything since it got the message.
    said: bool,
    cancelled: bool,
    doubtful: Option<Doubtful>,
}

/// A `complete` under the id of an ended message that may be that one's second.
#[derive(Debug)]
struct Doubtful {
    output_id: String,
    since: Duration,
}

#[derive(Debug, Clone, Copy)]
enum Asked {
    Person,
    Approval,
}

/// What a quiet agent waits for, as far as it said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WaitingFor {
    /// The person's answer to a question.
    Answer {
        /// The agent's id of it.
        ask_id: String,
    },
    /// Leave for an action.
    Approval {
        /// The agent's id of it.
        request_id: String,
    },
    /// A tool's result.
    Tool {
        /// The call.
        call_id: String,
        /// The tool.
        name: String,
    },
    /// Nothing that it named: output or `complete` is due from the agent.
    Agent,
}

impl fmt::Display for WaitingFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Answer { ask_id } => write!(f, "an answer to the question {ask_id}"),
            Self::Approval { request_id } => write!(f, "approval of {request_id}"),
            Self::Tool { call_id, name } => write!(f, "the tool {name} (call {call_id})"),
            Self::Agent => f.write_str("output or `complete` from the agent"),
        }
    }
}

/// A running message that has been quiet for long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stall {
    /// What it waits for.
    pub waiting_for: WaitingFor,
    /// When it was last heard of.
    pub since: Duration,
}

/// What a `complete` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completion {
    /// It ends this message.
    Ends(MessageId),
    /// It may be the second one of an ended message; see [`Turns::settle`].
    Doubtful,
    /// It ends nothing: no message runs.
    Nothing,
}

/// A message is running already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message {running} is running; one message runs at a time")]
pub struct Busy {
    /// The one that runs.
    pub running: MessageId,
}

impl Turns {
    /// When the next message may begin; `None` is at once.
    ///
    /// An agent that said nothing but one `complete` may use one id for every message. Once its second
    /// `complete` would have come, an end of the next message by that id is no other message's.
    pub fn begins_at(&self) -> Option<Duration> {
        let first = self.first.as_ref()?;
        let is_known = self.mints || self.ended.iter().any(|ended| ended.shared);
        (first.silent && !is_known).then(|| first.at.saturating_add(SECOND_COMPLETE_WITHIN))
    }

    /// Begins a message.
    pub fn begin(&mut self, id: MessageId, now: Duration) -> Result<(), Busy> {
        if let Some(running) = &self.running {
            return Err(Busy {
                running: running.id.clone(),
            });
        }
        self.running = Some(Running {
            id,
            since: now,
            output_ids: Vec::new(),
            quiet_since: now,
            stall_reported: false,
            calls: BTreeMap::new(),
            asks: BTreeMap::new(),
            said: false,
            cancelled: false,
            doubtful: None,
        });
        Ok(())
    }

    /// The message that runs.
    pub fn running(&self) -> Option<&MessageId> {
        self.running.as_ref().map(|running| &running.id)
    }

    /// The message that an element belongs to; `None` is output for no message.
    pub fn output(
        &mut self,
        output_id: &str,
        element: &Element,
        now: Duration,
    ) -> Option<&MessageId> {
        let running = self.running.as_mut()?;
        running.spoke(output_id, now);
        match element {
            Element::ToolCall { call_id, name, .. } if running.calls.len() < MAX_OPEN => {
                running.calls.insert(call_id.clone(), name.clone());
            }
            Element::ToolResult { call_id, .. } => {
                running.calls.remove(call_id);
            }
            _ => {}
        }
        Some(&running.id)
    }

    /// The message that a piece of text belongs to; `None` is output for no message.
    pub fn text(&mut self, output_id: &str, now: Duration) -> Option<&MessageId> {
        let running = self.running.as_mut()?;
        running.spoke(output_id, now);
        Some(&running.id)
    }

    /// Notes a question of the running message; `false` when none runs.
    pub fn asked(&mut self, ask_id: &str, now: Duration) -> bool {
        self.opened(ask_id, Asked::Person, now)
    }

    /// Notes an approval request of the running message; `false` when none runs.
    pub fn approval_requested(&mut self, request_id: &str, now: Duration) -> bool {
        self.opened(request_id, Asked::Approval, now)
    }

    fn opened(&mut self, id: &str, asked: Asked, now: Duration) -> bool {
        let Some(running) = &mut self.running else {
            return false;
        };
        running.heard(now);
        running.doubtful = None;
        if running.asks.len() < MAX_OPEN {
            running.asks.insert(id.to_owned(), asked);
        }
        true
    }

    /// Notes an answer to a question or request: the agent has its time again from `now` on.
    pub fn answered(&mut self, id: &str, now: Duration) {
        if let Some(running) = &mut self.running
            && running.asks.remove(id).is_some()
        {
            running.heard(now);
        }
    }

    /// Notes a sign of life that is no output: a log entry, a state change.
    pub fn heard(&mut self, now: Duration) {
        if let Some(running) = &mut self.running {
            running.heard(now);
        }
    }

    /// Notes that the running message was asked to end.
    pub fn cancelled(&mut self) {
        if let Some(running) = &mut self.running {
            running.cancelled = true;
        }
    }

    /// Takes the agent's `complete`.
    ///
    /// A second `complete` of an ended message may arrive while the next one runs, and an agent may use
    /// one id for every message. An id that ended a message before counts at once where it can't be the
    /// former: after output under it in this message, when several messages ended by it, or, in a message
    /// without output and where the earlier one was not cancelled, when the agent spoke in it, or ended
    /// no other message so far and this one began well after that. Elsewhere it is doubtful.
    pub fn complete(&mut self, output_id: &str, now: Duration) -> Completion {
        let Some(running) = &mut self.running else {
            return Completion::Nothing;
        };
        if let Some(ended) = self.ended.iter().find(|ended| ended.id == output_id) {
            let begun_well_after = !self.mints
                && self.first.as_ref().is_some_and(|first| {
                    let second_by = first.at.saturating_add(SECOND_COMPLETE_WITHIN);
                    first.output_id == output_id && running.since >= second_by
                });
            let is_own = running.output_ids.iter().any(|id| id == output_id);
            let is_no_other = !ended.cancelled
                && running.output_ids.is_empty()
                && (running.said || begun_well_after);
            if !(is_own || ended.shared || is_no_other) {
                running.doubtful = Some(Doubtful {
                    output_id: output_id.to_owned(),
                    since: now,
                });
                return Completion::Doubtful;
            }
        }
        self.end_by(output_id, now)
            .map_or(Completion::Nothing, Completion::Ends)
    }

    /// When a doubtful `complete` will count; `None` without one, or while a tool or a person is awaited.
    pub fn settles_at(&self, after: Duration) -> Option<Duration> {
        let running = self.running.as_ref()?;
        let doubtful = running.doubtful.as_ref()?;
        let is_waiting = !running.calls.is_empty() || !running.asks.is_empty();
        (!is_waiting).then(|| doubtful.since.saturating_add(after))
    }

    /// Ends the running message by a doubtful `complete` that no output or question followed for
    /// `after`: were it the message's own, no other one would come, and the message would never end.
    pub fn settle(&mut self, now: Duration, after: Duration) -> Option<MessageId> {
        if self.settles_at(after)? > now {
            return None;
        }
        let doubtful = self.running.as_mut()?.doubtful.take()?;
        self.end_by(&doubtful.output_id, now)
    }

    fn end_by(&mut self, output_id: &str, now: Duration) -> Option<MessageId> {
        let shared = self.ended.iter().any(|ended| ended.id == output_id);
        let running = self.running.as_ref()?;
        let cancelled = running.cancelled;
        match &self.first {
            Some(first) => self.mints |= first.output_id != output_id,
            None => {
                self.first = Some(FirstEnd {
                    output_id: output_id.to_owned(),
                    at: now,
                    silent: !running.said,
                });
            }
        }
        let message = self.end()?;
        self.remember(Ended {
            id: output_id.to_owned(),
            cancelled,
            shared,
        });
        Some(message)
    }

    /// Ends the running message for any other reason.
    pub fn end(&mut self) -> Option<MessageId> {
        let running = self.running.take()?;
        for id in running.output_ids {
            self.remember(Ended {
                id,
                cancelled: running.cancelled,
                shared: false,
            });
        }
        Some(running.id)
    }

    fn remember(&mut self, mut ended: Ended) {
        if let Some(at) = self.ended.iter().position(|known| known.id == ended.id)
            && let Some(known) = self.ended.remove(at)
        {
            ended.shared |= known.shared;
        }
        if self.ended.len() >= REMEMBERED_IDS {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }

    /// What the running message waits for.
    pub fn waiting_for(&self) -> Option<WaitingFor> {
        let running = self.running.as_ref()?;
        Some(
            match (
                running.asks.first_key_value(),
                running.calls.first_key_value(),
            ) {
                (Some((id, Asked::Person)), _) => WaitingFor::Answer { ask_id: id.clone() },
                (Some((id, Asked::Approval)), _) => WaitingFor::Approval {
                    request_id: id.clone(),
                },
                (None, Some((call_id, name))) => WaitingFor::Tool {
                    call_id: call_id.clone(),
                    name: name.clone(),
                },
                (None, None) => WaitingFor::Agent,
            },
        )
    }

    /// When the running message will count as stalled; `None` when that was said or none runs.
    pub fn stalls_at(&self, after: Duration) -> Option<Duration> {
        let running = self.running.as_ref()?;
        (!running.stall_reported).then(|| running.quiet_since.saturating_add(after))
    }

    /// The stall of the running message, said once for each quiet spell longer than `after`.
    pub fn stalled(&mut self, now: Duration, after: Duration) -> Option<Stall> {
        if self.stalls_at(after)? > now {
            return None;
        }
        let waiting_for = self.waiting_for()?;
        let running = self.running.as_mut()?;
        running.stall_reported = true;
        Some(Stall {
            waiting_for,
            since: running.quiet_since,
        })
    }
}

impl Running {
    fn heard(&mut self, now: Duration) {
        self.quiet_since = now;
        self.stall_reported = false;
        self.said = true;
    }

    fn spoke(&mut self, output_id: &str, now: Duration) {
        self.heard(now);
        self.doubtful = None;
        if self.output_ids.last().is_none_or(|last| last != output_id) {
            self.output_ids.retain(|known| known != output_id);
            if self.output_ids.len() >= REMEMBERED_IDS {
                self.output_ids.remove(0);
            }
            self.output_ids.push(output_id.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value};

    const T0: Duration = Duration::ZERO;
    const GRACE: Duration = Duration::from_secs(10);
    const LATER: Duration = Duration::from_secs(100);

    fn ends(text: &str) -> Completion {
        Completion::Ends(id(text))
    }

    fn text() -> Element {
        Element::TextDelta {
            text: "t".to_owned(),
        }
    }

    fn id(text: &str) -> MessageId {
        text.into()
    }

    #[test]
    fn all_output_belongs_to_the_running_message_and_none_to_nobody() {
        let mut turns = Turns::default();
        assert_eq!(turns.output("out", &text(), T0), None);
        assert_eq!(turns.complete("out", T0), Completion::Nothing);
        turns.begin(id("m1"), T0).unwrap();
        assert_eq!(turns.output("out", &text(), T0), Some(&id("m1")));
        assert_eq!(turns.output("other", &text(), T0), Some(&id("m1")));
        assert_eq!(turns.begin(id("m2"), T0), Err(Busy { running: id("m1") }));
        assert_eq!(turns.complete("out", T0), ends("m1"));
        assert_eq!(turns.complete("out", T0), Completion::Nothing);
    }

    #[test]
    fn a_second_complete_does_not_end_the_next_message() {
        let mut turns = Turns::default();
        turns.begin(id("m1"), T0).unwrap();
        turns.output("out_1", &text(), T0);
        assert_eq!(turns.complete("out_1", T0), ends("m1"));
        turns.begin(id("m2"), T0).unwrap();
        assert_eq!(turns.complete("out_1", T0), Completion::Doubtful);
        assert_eq!(turns.running(), Some(&id("m2")));
        turns.output("out_2", &text(), T0);
        assert_eq!(turns.settle(LATER, GRACE), None, "it went on");
        assert_eq!(turns.complete("out_1", T0), Completion::Doubtful);
        assert_eq!(turns.complete("out_2", T0), ends("m2"));
    }

    #[test]
    fn an_agent_that_always_uses_one_id_still_completes() {
        let mut turns = Turns::default();
        for message in ["m1", "m2", "m3"] {
            turns.begin(id(message), T0).unwrap();
            turns.output("out", &text(), T0);
            assert_eq!(turns.complete("out", T0), ends(message));
        }
    }

    #[test]
    fn an_agent_of_one_id_that_changes_its_state_alone_completes_at_once() {
        let mut turns = Turns::default();
        for message in ["m1", "m2", "m3"] {
            turns.begin(id(message), T0).unwrap();
            turns.heard(T0);
            assert_eq!(turns.complete("out", T0), ends(message));
        }
    }

    #[test]
    fn an_agent_of_one_id_that_says_nothing_completes_at_once() {
        let mut turns = Turns::default();
        turns.begin(id("m1"), T0).unwrap();
        assert_eq!(turns.complete("out", T0), ends("m1"));
        assert_eq!(turns.begins_at(), Some(SECOND_COMPLETE_WITHIN));
        assert_eq!(turns.complete("out", T0), Completion::Nothing);
        let at = SECOND_COMPLETE_WITHIN;
        for message in ["m2", "m3"] {
            turns.begin(id(message), at).unwrap();
            assert_eq!(turns.complete("out", at), ends(message));
            assert_eq!(turns.begins_at(), None, "its ids are known");
        }
    }

    #[test]
    fn an_agent_that_mints_its_ids_never_ends_a_message_by_an_earlier_one() {
        let mut turns = Turns::default();
        for (message, output) in [("m1", "out_1"), ("m2", "out_2")] {
            turns.begin(id(message), T0).unwrap();
            assert_eq!(turns.complete(output, T0), ends(message));
        }
        assert_eq!(turns.begins_at(), None);
        turns.begin(id("m3"), LATER).unwrap();
        assert_eq!(turns.complete("out_1", LATER), Completion::Doubtful);
        assert_eq!(turns.complete("out_2", LATER), Completion::Doubtful);
        assert_eq!(turns.complete("out_3", LATER), ends("m3"));
    }

    #[test]
    fn an_agent_of_one_id_that_is_given_the_next_message_too_soon_completes_late_once() {
        let mut turns = Turns::default();
        turns.begin(id("m1"), T0).unwrap();
        turns.output("out", &text(), T0);
        assert_eq!(turns.complete("out", T0), ends("m1"));
        assert_eq!(turns.begins_at(), None, "what speaks is not kept waiting");
        turns.begin(id("m2"), T0).unwrap();
        assert_eq!(turns.complete("out", T0), Completion::Doubtful);
        assert_eq!(turns.settles_at(GRACE), Some(GRACE));
        assert_eq!(turns.settle(T0, GRACE), None);
        assert_eq!(turns.settle(GRACE, GRACE), Some(id("m2")));
        turns.begin(id("m3"), LATER).unwrap();
        assert_eq!(turns.complete("out", LATER), ends("m3"));
    }

    #[test]
    fn the_late_complete_of_a_cancelled_message_does_not_end_one_that_speaks() {
        let mut turns = Turns::default();
        turns.begin(id("m1"), T0).unwrap();
        turns.cancelled();
        assert_eq!(turns.complete("out_1", T0), ends("m1"));
        turns.begin(id("m2"), T0).unwrap();
        turns.heard(T0);
        assert_eq!(turns.complete("out_1", T0), Completion::Doubtful);
        assert!(turns.asked("q", T0));
        assert_eq!(turns.complete("out_1", T0), Completion::Doubtful);
        assert_eq!(turns.settle(LATER, GRACE), None, "a person is asked");
        turns.answered("q", LATER);
        assert_eq!(turns.complete("out_2", LATER), ends("m2"));
    }

    #[test]
    fn a_stall_is_said_once_a_quiet_spell_and_names_what_it_waits_for() {
        let after = Duration::from_secs(60);
        let at = Duration::from_secs;
        let mut turns = Turns::default();
        assert_eq!(turns.stalled(at(1000), after), None);
        turns.begin(id("m"), at(1)).unwrap();
        assert_eq!(turns.stalls_at(after), Some(at(61)));
        assert_eq!(turns.stalled(at(60), after), None);
        assert_eq!(
            turns.stalled(at(61), after),
            Some(Stall {
                waiting_for: WaitingFor::Agent,
                since: at(1)
            })
        );
        assert_eq!(turns.stalled(at(500), after), None);

        let call = Element::ToolCall {
            call_id: "c".to_owned(),
            name: "exec".to_owned(),
            arguments: Map::new(),
        };
        turns.output("o", &call, at(501));
        let tool = WaitingFor::Tool {
            call_id: "c".to_owned(),
            name: "exec".to_owned(),
        };
        assert_eq!(turns.stalled(at(561), after).unwrap().waiting_for, tool);
        assert!(turns.approval_requested("a", at(562)));
        assert_eq!(
            turns.waiting_for(),
            Some(WaitingFor::Approval {
                request_id: "a".to_owned()
            })
        );
        turns.answered("a", at(563));
        assert_eq!(turns.waiting_for(), Some(tool));
        let result = Element::ToolResult {
            call_id: "c".to_owned(),
            output: Value::Null,
            is_error: false,
            duration_ms: None,
        };
        turns.output("o", &result, at(564));
        assert_eq!(turns.waiting_for(), Some(WaitingFor::Agent));
        assert!(turns.asked("q", at(565)));
        assert_eq!(
            turns.stalled(at(625), after).unwrap().waiting_for,
            WaitingFor::Answer {
                ask_id: "q".to_owned()
            }
        );
    }
}
