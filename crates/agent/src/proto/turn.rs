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

/// Keeps the running message of one instance.
#[derive(Debug, Default)]
pub struct Turns {
    running: Option<Running>,
    ended: VecDeque<String>,
}

#[derive(Debug)]
struct Running {
    id: MessageId,
    output_ids: Vec<String>,
    quiet_since: Duration,
    stall_reported: bool,
    calls: BTreeMap<String, String>,
    asks: BTreeMap<String, Asked>,
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

/// A message is running already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("message {running} is running; one message runs at a time")]
pub struct Busy {
    /// The one that runs.
    pub running: MessageId,
}

impl Turns {
    /// Begins a message.
    pub fn begin(&mut self, id: MessageId, now: Duration) -> Result<(), Busy> {
        if let Some(running) = &self.running {
            return Err(Busy {
                running: running.id.clone(),
            });
        }
        self.running = Some(Running {
            id,
            output_ids: Vec::new(),
            quiet_since: now,
            stall_reported: false,
            calls: BTreeMap::new(),
            asks: BTreeMap::new(),
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
        running.heard(now);
        if running
            .output_ids
            .last()
            .is_none_or(|last| last != output_id)
        {
            running.output_ids.retain(|known| known != output_id);
            if running.output_ids.len() >= REMEMBERED_IDS {
                running.output_ids.remove(0);
            }
            running.output_ids.push(output_id.to_owned());
        }
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

    /// Ends the running message by the agent's `complete`; `None` when it ends nothing.
    ///
    /// A second `complete` of an ended message may arrive while the next one runs. It is told apart by
    /// its id: one that belonged to an ended message counts only after output under it in this one.
    pub fn complete(&mut self, output_id: &str) -> Option<MessageId> {
        let running = self.running.as_ref()?;
        if self.ended.iter().any(|id| id == output_id)
            && !running.output_ids.iter().any(|id| id == output_id)
        {
            return None;
        }
        let ended = self.end()?;
        self.remember(output_id.to_owned());
        Some(ended)
    }

    /// Ends the running message for any other reason.
    pub fn end(&mut self) -> Option<MessageId> {
        let running = self.running.take()?;
        for id in running.output_ids {
            self.remember(id);
        }
        Some(running.id)
    }

    fn remember(&mut self, id: String) {
        self.ended.retain(|known| *known != id);
        if self.ended.len() >= REMEMBERED_IDS {
            self.ended.pop_front();
        }
        self.ended.push_back(id);
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Map, Value};

    const T0: Duration = Duration::ZERO;

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
        assert_eq!(turns.complete("out"), None);
        turns.begin(id("m1"), T0).unwrap();
        assert_eq!(turns.output("out", &text(), T0), Some(&id("m1")));
        assert_eq!(turns.output("other", &text(), T0), Some(&id("m1")));
        assert_eq!(turns.begin(id("m2"), T0), Err(Busy { running: id("m1") }));
        assert_eq!(turns.complete("out"), Some(id("m1")));
        assert_eq!(turns.complete("out"), None);
    }

    #[test]
    fn a_second_complete_does_not_end_the_next_message() {
        let mut turns = Turns::default();
        turns.begin(id("m1"), T0).unwrap();
        turns.output("out_1", &text(), T0);
        assert_eq!(turns.complete("out_1"), Some(id("m1")));
        turns.begin(id("m2"), T0).unwrap();
        assert_eq!(turns.complete("out_1"), None);
        assert_eq!(turns.running(), Some(&id("m2")));
        assert_eq!(turns.complete("out_2"), Some(id("m2")));
    }

    #[test]
    fn an_agent_that_always_uses_one_id_still_completes() {
        let mut turns = Turns::default();
        for message in ["m1", "m2", "m3"] {
            turns.begin(id(message), T0).unwrap();
            turns.output("out", &text(), T0);
            assert_eq!(turns.complete("out"), Some(id(message)));
        }
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
