//! What the journal tells of a session, as the conversation needs it.
//!
//! A row of a kind that this version does not know, or whose data has another shape, becomes
//! [`What::Other`]: it moves the cursor and shows nothing.

use jiff::Timestamp;
use quintet_control::wire::JournalEvent;
use rust_decimal::Decimal;
use serde::Deserialize;
use serde_json::Value;

/// One row of the journal.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Event {
    pub(crate) seq: u64,
    pub(crate) at: Timestamp,
    pub(crate) what: What,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum What {
    Message(Message),
    MessageEdited(Message),
    MessageRemoved {
        message: u64,
    },
    Steer {
        text: String,
    },
    Cancel,
    /// The message that waited longest is with the agent.
    TurnStarted,
    TurnEnded(TurnEnd),
    Text {
        text: String,
    },
    /// The whole text of one output message, which was not streamed before.
    WholeText {
        text: String,
    },
    Thinking {
        text: String,
    },
    ToolCall {
        call_id: String,
        name: String,
        arguments: String,
    },
    ToolResult(ToolResult),
    Code {
        language: String,
        code: String,
    },
    File(FileChange),
    Terminal {
        data: String,
        /// Output of a tool's call that runs, with the agent's id of it where that is known.
        tool: Option<String>,
    },
    Ask(Ask),
    AskOver {
        ask: u64,
        answer: Option<String>,
    },
    Approval(Approval),
    ApprovalOver {
        approval: u64,
        approved: Option<bool>,
    },
    Titled {
        title: String,
    },
    Closed,
    Compacted {
        summary: String,
    },
    CompactionUndone,
    /// The turn has been quiet for long; the text says what it waits for.
    Stalled {
        text: String,
    },
    /// A remark of the daemon's.
    Remark {
        text: String,
    },
    Other,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Message {
    pub(crate) id: u64,
    pub(crate) text: String,
    #[serde(default)]
    pub(crate) sender: String,
    #[serde(default)]
    pub(crate) purpose: Purpose,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Purpose {
    /// Somebody says something.
    #[default]
    Message,
    /// The daemon asks for a summary.
    Compaction,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct TurnEnd {
    pub(crate) error: String,
    pub(crate) retryable: bool,
    pub(crate) finish_reason: String,
    pub(crate) usage: Usage,
}

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) cost: Decimal,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct ToolResult {
    pub(crate) call_id: String,
    #[serde(default)]
    pub(crate) output: Value,
    #[serde(default)]
    pub(crate) is_error: bool,
    #[serde(default)]
    pub(crate) duration_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct FileChange {
    pub(crate) path: String,
    #[serde(default)]
    pub(crate) change: String,
    #[serde(default)]
    pub(crate) diff: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Ask {
    #[serde(rename = "ask")]
    pub(crate) id: u64,
    pub(crate) questions: Vec<Question>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Question {
    pub(crate) question: String,
    #[serde(default)]
    pub(crate) header: String,
    #[serde(default)]
    pub(crate) options: Vec<Choice>,
    #[serde(default)]
    pub(crate) multi_select: bool,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Choice {
    pub(crate) label: String,
    #[serde(default)]
    pub(crate) description: String,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Approval {
    #[serde(rename = "approval")]
    pub(crate) id: u64,
    #[serde(default)]
    pub(crate) action: String,
    #[serde(default)]
    pub(crate) command: String,
    #[serde(default)]
    pub(crate) cwd: String,
    #[serde(default)]
    pub(crate) worker: String,
    #[serde(default)]
    pub(crate) reason: String,
    /// What "always" would write; empty when no rule can say it.
    #[serde(default)]
    pub(crate) rule: String,
    /// Where it would stand, in words.
    #[serde(default)]
    pub(crate) rule_place: String,
}

impl From<&JournalEvent> for Event {
    fn from(row: &JournalEvent) -> Self {
        Self {
            seq: row.seq,
            at: row.at.parse().unwrap_or(Timestamp::UNIX_EPOCH),
            what: read(&row.kind, &row.data).unwrap_or(What::Other),
        }
    }
}

fn read(kind: &str, data: &str) -> Option<What> {
    let data: Value = serde_json::from_str(data).ok()?;
    let text = |key: &str| data.get(key).and_then(Value::as_str).map(str::to_owned);
    let number = |key: &str| data.get(key).and_then(Value::as_u64);
    let what = match kind {
        "message" => What::Message(whole(&data)?),
        "message_edited" => What::MessageEdited(whole(&data)?),
        "message_removed" => What::MessageRemoved {
            message: number("id")?,
        },
        "steer" => What::Steer {
            text: text("text")?,
        },
        "cancel" => What::Cancel,
        "turn_started" => What::TurnStarted,
        "turn_ended" => What::TurnEnded(whole(&data)?),
        "text_delta" => What::Text {
            text: text("text")?,
        },
        "text_final" if data.get("streamed") == Some(&Value::Bool(true)) => What::Other,
        "text_final" => What::WholeText {
            text: text("text")?,
        },
        "thinking" => What::Thinking {
            text: text("text")?,
        },
        "tool_call" => What::ToolCall {
            call_id: text("call_id")?,
            name: text("name")?,
            arguments: data
                .get("arguments")
                .map(Value::to_string)
                .unwrap_or_default(),
        },
        "tool_result" => What::ToolResult(whole(&data)?),
        "code_block" => What::Code {
            language: text("language").unwrap_or_default(),
            code: text("code")?,
        },
        "file_change" => What::File(whole(&data)?),
        "terminal_output" => What::Terminal {
            data: text("data")?,
            tool: text("call").map(|_| text("call_id").unwrap_or_default()),
        },
        "ask_user" => What::Ask(whole(&data)?),
        "ask_answered" => What::AskOver {
            ask: number("ask")?,
            answer: Some(text("answer").unwrap_or_default()),
        },
        "ask_withdrawn" => What::AskOver {
            ask: number("ask")?,
            answer: None,
        },
        "approval_requested" => What::Approval(whole(&data)?),
        "approval_answered" => What::ApprovalOver {
            approval: number("approval")?,
            approved: data.get("approved").and_then(Value::as_bool),
        },
        "approval_withdrawn" => What::ApprovalOver {
            approval: number("approval")?,
            approved: None,
        },
        "session_titled" => What::Titled {
            title: text("title")?,
        },
        "session_closed" => What::Closed,
        "compacted" => What::Compacted {
            summary: text("summary").unwrap_or_default(),
        },
        "compaction_undone" => What::CompactionUndone,
        "agent_stalled" => What::Stalled {
            text: format!(
                "the agent makes no progress{}",
                text("waiting_for")
                    .map(|what| format!("; it waits for {what}"))
                    .unwrap_or_default()
            ),
        },
        "note" => What::Remark {
            text: text("text").or_else(|| text("message"))?,
        },
        _ => What::Other,
    };
    Some(what)
}

fn whole<T: for<'de> Deserialize<'de>>(data: &Value) -> Option<T> {
    T::deserialize(data).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn what(kind: &str, data: &Value) -> What {
        let row = JournalEvent {
            seq: 1,
            at: "2026-01-02T03:04:05.678901Z".into(),
            session: Some(1),
            kind: kind.into(),
            data: data.to_string(),
        };
        Event::from(&row).what
    }

    #[test]
    fn rows_are_read_as_the_journal_writes_them() {
        assert_eq!(
            what(
                "message",
                &json!({"id": 4, "sender": "user", "text": "hi", "purpose": "message"})
            ),
            What::Message(Message {
                id: 4,
                text: "hi".into(),
                sender: "user".into(),
                purpose: Purpose::Message
            })
        );
        assert_eq!(
            what(
                "turn_ended",
                &json!({
                    "finish_reason": "error", "error": "crashed", "code": 500, "retryable": true,
                    "usage": {"input_tokens": 1, "output_tokens": 2, "cost": "0.25"}, "agent": "shell",
                })
            ),
            What::TurnEnded(TurnEnd {
                error: "crashed".into(),
                retryable: true,
                finish_reason: "error".into(),
                usage: Usage {
                    cost: "0.25".parse().unwrap()
                },
            })
        );
        assert_eq!(
            what("text_final", &json!({"text": "a", "streamed": true})),
            What::Other
        );
        assert_eq!(
            what("text_final", &json!({"text": "a", "streamed": false})),
            What::WholeText { text: "a".into() }
        );
        assert_eq!(
            what(
                "approval_answered",
                &json!({"approval": 3, "approved": false, "by": "user"})
            ),
            What::ApprovalOver {
                approval: 3,
                approved: Some(false)
            }
        );
    }

    #[test]
    fn what_is_not_understood_shows_nothing() {
        assert_eq!(what("from_the_future", &json!({})), What::Other);
        assert_eq!(what("tool_call", &json!({"name": 7})), What::Other);
        assert_eq!(what("text_delta", &json!([])), What::Other);
    }
}
