//! Ids and messages of the plane, both directions.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::element::Element;
use super::json_text::append_json_text;
use super::usage::TokenUsage;

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}

text_id! {
    /// Names one agent instance over all its processes.
    AgentId
}
text_id! {
    /// Names one message delivered to an agent.
    MessageId
}

/// What the coordinator says to the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum CoordinatorToAgent {
    /// Sent once after the connection.
    Init(Init),
    /// One message to work on.
    Message(InboundMessage),
    /// Guidance for the message that is running.
    Steer {
        /// What the person says.
        content: String,
    },
    /// Changed configuration keys only.
    ConfigUpdate {
        /// The new values.
        changes: Map<String, Value>,
        /// Who changed them.
        source: String,
    },
    /// Asks the process to end.
    Shutdown {
        /// `idle_timeout`, `user`, `reload` or `daemon_stop`.
        reason: String,
    },
    /// Asks the agent to end the running message as cancelled.
    Cancel {
        /// The inbound message's id.
        message_id: MessageId,
    },
    /// Answers an `ask_user`.
    AskResult {
        /// The agent's id of the question.
        ask_id: String,
        /// What came of it.
        outcome: AskOutcome,
    },
    /// Answers an `approval_request`.
    ApprovalResult(ApprovalResult),
    /// A type of a newer coordinator; skipped.
    #[serde(other)]
    Unknown,
}

impl CoordinatorToAgent {
    /// Reads a payload.
    ///
    /// A message is read by its fields at once: which type it is would else be found out in a copy of
    /// all of them.
    pub fn decode(payload: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Fields<'a> {
            #[serde(rename = "type", borrow)]
            kind: Cow<'a, str>,
            id: MessageId,
            data: MessageData,
            #[serde(default)]
            origin: Origin,
        }
        match serde_json::from_slice::<Fields<'_>>(payload) {
            Ok(Fields {
                kind,
                id,
                data,
                origin,
            }) if kind == "message" => Ok(Self::Message(InboundMessage { id, data, origin })),
            _ => serde_json::from_slice(payload),
        }
    }
}

/// What a process is told first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Init {
    /// The instance.
    pub agent_id: AgentId,
    /// The configured agent's name.
    pub agent_type: String,
    /// The folder to work in.
    pub workspace: String,
    /// Its configuration.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// The folded state; null for an agent without any.
    #[serde(default)]
    pub state: Value,
}

/// One message for an agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InboundMessage {
    /// Its id.
    pub id: MessageId,
    /// What it says.
    pub data: MessageData,
    /// Where it comes from.
    #[serde(default)]
    pub origin: Origin,
}

impl InboundMessage {
    /// A plain text from a user.
    pub fn text(id: impl Into<MessageId>, text: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            data: MessageData {
                text: text.into(),
                role: "user".to_owned(),
                attachments: Vec::new(),
            },
            origin: Origin::default(),
        }
    }
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MessageData {
    /// The text.
    pub text: String,
    /// Who speaks: `user`, `system`, ..
    #[serde(default)]
    pub role: String,
    /// Attached things, as the client gave them.
    #[serde(default)]
    pub attachments: Vec<Value>,
}

/// Where a message comes from.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Origin {
    /// The tenant, where there are several.
    #[serde(default)]
    pub tenant_id: String,
    /// The sender's role.
    #[serde(default)]
    pub role: String,
    /// The way it came: `web`, `cli`, `cron`, ..
    #[serde(default)]
    pub channel: String,
}

/// What the agent says to the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum AgentToCoordinator<'a> {
    /// One piece of output.
    StreamUpdate {
        /// The agent's id of its output.
        message_id: Cow<'a, str>,
        /// The piece.
        element: Element,
    },
    /// A change of the agent's state.
    StateDelta {
        /// RFC 6902 operations.
        deltas: Vec<Value>,
    },
    /// One log entry.
    Log(LogEntry),
    /// The running message is done.
    Complete {
        /// The agent's id of its output.
        message_id: Cow<'a, str>,
        /// Why it ended.
        finish_reason: FinishReason,
        /// What it used.
        #[serde(skip_serializing_if = "Option::is_none")]
        token_usage: Option<TokenUsage>,
    },
    /// What the running message has used so far, in all: said between model calls, so that a
    /// budget can end it before the next one.
    Usage {
        /// The sum.
        token_usage: TokenUsage,
    },
    /// A question to the person.
    AskUser {
        /// The agent's id of the question.
        ask_id: String,
        /// The questions, asked together.
        questions: Vec<Question>,
    },
    /// Asks leave for one action.
    ApprovalRequest(ApprovalRequest),
    /// Guidance that came too late for its message: said before the `complete` of a turn that did
    /// not look at it, or at once when none runs. It is an ordinary message then.
    SteerUnread {
        /// The guidance, as it came.
        content: String,
    },
    /// A type that this version does not know; skipped and logged once.
    #[serde(skip)]
    Unknown {
        /// Its `type`.
        kind: String,
    },
}

impl AgentToCoordinator<'_> {
    /// Appends the message as JSON.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (message_id, kind, text) = match self {
            Self::StreamUpdate {
                message_id,
                element: Element::TextDelta { text },
            } => (message_id, "text_delta", text),
            Self::StreamUpdate {
                message_id,
                element: Element::Thinking { text },
            } => (message_id, "thinking", text),
            other => {
                // Maps with text keys always encode, and memory takes what is written to it.
                let _ = serde_json::to_writer(out, other);
                return;
            }
        };
        out.extend_from_slice(br#"{"type":"stream_update","message_id":"#);
        append_json_text(message_id, out);
        out.extend_from_slice(br#","element":{"type":""#);
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(br#"","text":"#);
        append_json_text(text, out);
        out.extend_from_slice(b"}}");
    }
}

/// One log entry of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LogEntry {
    /// `debug`, `info`, `warn`, `error`, ..
    pub level: String,
    /// What happened.
    pub message: String,
    /// The part of the agent that says so.
    #[serde(default)]
    pub module: String,
    /// The agent's clock, as it wrote it.
    #[serde(default)]
    pub timestamp: String,
}

/// Why an agent ended a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// Done.
    EndTurn,
    /// The model's output limit was reached.
    MaxTokens,
    /// It was asked to stop.
    Cancelled,
    /// It failed; the output says how.
    Error,
    /// A budget was used up.
    Budget,
    /// A reason that this version does not know.
    #[serde(untagged)]
    Other(String),
}

impl FinishReason {
    /// The reason of this name.
    pub fn named(name: &str) -> Self {
        match name {
            "end_turn" => Self::EndTurn,
            "max_tokens" => Self::MaxTokens,
            "cancelled" => Self::Cancelled,
            "error" => Self::Error,
            "budget" => Self::Budget,
            other => Self::Other(other.to_owned()),
        }
    }
}

/// One question to the person.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Question {
    /// The question.
    pub question: String,
    /// A short title.
    #[serde(default)]
    pub header: String,
    /// What can be chosen; none means free text.
    #[serde(default)]
    pub options: Vec<AskOption>,
    /// Whether several may be chosen.
    #[serde(default)]
    pub multi_select: bool,
}

/// One choice of a question.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AskOption {
    /// What is chosen.
    pub label: String,
    /// What it means.
    #[serde(default)]
    pub description: String,
}

/// What came of a question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub enum AskOutcome {
    /// Answered: for each question the chosen labels, or the text.
    Answered {
        /// In the order of the questions.
        answers: Vec<Vec<String>>,
    },
    /// Nobody will answer.
    Withdrawn {
        /// Why.
        reason: String,
    },
}

/// Asks leave for one action.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ApprovalRequest {
    /// The agent's id of the request.
    pub request_id: String,
    /// What it wants to do.
    pub action: String,
    /// The exact command, where it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The folder it would run in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer to an [`ApprovalRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ApprovalResult {
    /// The agent's id of the request.
    pub request_id: String,
    /// Whether it may.
    pub approved: bool,
    /// Why or why not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Who answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// How far it reaches: `once`, `session`, ..
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    proptest! {
        #[test]
        fn what_is_encoded_is_what_serde_writes(id in ".*", text in "(?s).*", kind in 0..3_u8) {
            let element = match kind {
                0 => Element::TextDelta { text },
                1 => Element::Thinking { text },
                _ => Element::TextFinal { text },
            };
            let message = AgentToCoordinator::StreamUpdate { message_id: id.into(), element };
            let mut encoded = b"before".to_vec();
            message.encode(&mut encoded);
            let expected = [b"before".to_vec(), serde_json::to_vec(&message).unwrap()].concat();
            prop_assert_eq!(encoded, expected);
        }
    }

    #[test]
    fn messages_to_the_agent_are_the_seeds_json() {
        let init = CoordinatorToAgent::Init(Init {
            agent_id: "agent_abc123".into(),
            agent_type: "claude-agent".to_owned(),
            workspace: "/w".to_owned(),
            config: json!({"model": "m"}).as_object().unwrap().clone(),
            state: Value::Null,
        });
        let message = CoordinatorToAgent::Message(InboundMessage {
            origin: Origin {
                tenant_id: "tenant_abc".to_owned(),
                role: "admin".to_owned(),
                channel: "web".to_owned(),
            },
            ..InboundMessage::text("msg_123", "Fix the failing test")
        });
        for (typed, wire) in [
            (
                init,
                json!({"type": "init", "agent_id": "agent_abc123", "agent_type": "claude-agent",
                       "workspace": "/w", "config": {"model": "m"}, "state": null}),
            ),
            (
                message,
                json!({"type": "message", "id": "msg_123",
                       "data": {"text": "Fix the failing test", "role": "user", "attachments": []},
                       "origin": {"tenant_id": "tenant_abc", "role": "admin", "channel": "web"}}),
            ),
            (
                CoordinatorToAgent::Steer {
                    content: "c".to_owned(),
                },
                json!({"type": "steer", "content": "c"}),
            ),
            (
                CoordinatorToAgent::ConfigUpdate {
                    changes: json!({"temperature": 0.3}).as_object().unwrap().clone(),
                    source: "user".to_owned(),
                },
                json!({"type": "config_update", "changes": {"temperature": 0.3}, "source": "user"}),
            ),
            (
                CoordinatorToAgent::Shutdown {
                    reason: "idle_timeout".to_owned(),
                },
                json!({"type": "shutdown", "reason": "idle_timeout"}),
            ),
            (
                CoordinatorToAgent::AskResult {
                    ask_id: "q".to_owned(),
                    outcome: AskOutcome::Answered {
                        answers: vec![vec!["yes".to_owned()]],
                    },
                },
                json!({"type": "ask_result", "ask_id": "q",
                       "outcome": {"status": "answered", "answers": [["yes"]]}}),
            ),
        ] {
            assert_eq!(serde_json::to_value(&typed).unwrap(), wire);
            assert_eq!(
                CoordinatorToAgent::decode(wire.to_string().as_bytes()).unwrap(),
                typed
            );
            assert_eq!(
                serde_json::from_value::<CoordinatorToAgent>(wire).unwrap(),
                typed
            );
        }
        assert_eq!(
            serde_json::from_value::<CoordinatorToAgent>(json!({"type": "later", "x": 1})).unwrap(),
            CoordinatorToAgent::Unknown
        );
    }
}
