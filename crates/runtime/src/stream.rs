//! Journal rows as the control plane's events. Pure: the same row is the same event, live and later.
//!
//! An old client knows eight stream events. What has none of its own is shown so:
//!
//! | row | old client sees |
//! |---|---|
//! | `text_final` | a chunk, when its text was not streamed before; else nothing |
//! | `terminal_output` | a chunk with its data; nothing when it is a tool's, whose result follows |
//! | `code_block` | a chunk with a fenced block |
//! | `file_change` | a line of thinking that names the file |
//! | unknown element | nothing |
//!
//! A client that asked for raw elements gets each of them whole beside that.

use std::borrow::Cow;

use quintet_control::FRAME_FORMAT;
use quintet_control::wire::{
    AgentEventKind, AgentEventMsg, AskUser, JournalEvent, Question, QuestionOption, StreamChunk,
    StreamEnd, StreamEvent, StreamStart, StreamThinking, ToolCallInfo, ToolResult, ToolStart,
    ToolsComplete, stream_event::Event,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::journal::{Kind, Row};

/// Bytes of a row's data in one event, which leaves room for the rest of its frame.
const MAX_DATA: usize = FRAME_FORMAT.max_payload() as usize - 4096;

/// Whether a client gets elements whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Raw {
    /// It knows the eight events.
    Hide,
    /// It asked for them.
    Show,
}

/// The stream event of a row, if it has one for this client.
pub fn stream_event(row: &Row, raw: Raw) -> Option<StreamEvent> {
    let event = event(row);
    let raw = match raw {
        Raw::Show => raw_element(row),
        Raw::Hide => None,
    };
    if event.is_none() && raw.is_none() {
        return None;
    }
    Some(StreamEvent {
        event,
        seq: Some(row.seq),
        raw: raw.unwrap_or_default(),
    })
}

/// The text that a row adds to the turn's answer.
pub fn answer_text(row: &Row) -> Option<String> {
    match event(row)? {
        Event::Chunk(chunk) => Some(chunk.content),
        _ => None,
    }
}

/// How the turn ended, if this row ends it.
pub fn end_of_turn(row: &Row) -> Option<StreamEnd> {
    match event(row)? {
        Event::End(end) => Some(*end),
        _ => None,
    }
}

/// Most rows are text, so it is taken out without the rest.
#[derive(Deserialize)]
struct Text<'a> {
    #[serde(borrow)]
    text: Cow<'a, str>,
}

fn event(row: &Row) -> Option<Event> {
    let data = match row.kind {
        Kind::ToolsComplete => return Some(Event::ToolsComplete(ToolsComplete {})),
        Kind::TextDelta => {
            let text = serde_json::from_str::<Text<'_>>(&row.data).map(|it| it.text.into_owned());
            return Some(Event::Chunk(StreamChunk {
                content: text.unwrap_or_default(),
            }));
        }
        _ => row.value(),
    };
    let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
    let chunk = |content| Some(Event::Chunk(StreamChunk { content }));
    match row.kind {
        Kind::TurnStarted => Some(Event::Start(StreamStart {
            agent: text("agent"),
            session: row.session.unwrap_or_default(),
            turn: row.turn,
        })),
        Kind::TextFinal if data["streamed"] == true => None,
        Kind::TextFinal => chunk(text("text")),
        Kind::TerminalOutput if data["call"].is_string() => None,
        Kind::TerminalOutput => chunk(text("data")),
        Kind::CodeBlock => chunk(fenced(&text("language"), &text("code"))),
        Kind::Thinking => Some(Event::Thinking(StreamThinking {
            content: text("text"),
        })),
        Kind::FileChange => Some(Event::Thinking(StreamThinking {
            content: format!("{} {}\n", text("change"), text("path")),
        })),
        Kind::ToolCall => Some(Event::ToolStart(ToolStart {
            calls: vec![tool_call(&data)],
        })),
        Kind::ToolResult => Some(Event::ToolResult(Box::new(ToolResult {
            call_id: text("call_id"),
            output: output_text(&data["output"]),
            duration_ms: data["duration_ms"].as_u64().unwrap_or_default(),
            is_error: data["is_error"] == true,
        }))),
        Kind::AskUser => Some(Event::AskUser(AskUser {
            questions: questions(&data["questions"]),
            ask: data["ask"].as_u64(),
        })),
        Kind::TurnEnded => Some(Event::End(Box::new(StreamEnd {
            agent: text("agent"),
            error: text("error"),
            code: data["code"]
                .as_u64()
                .and_then(|code| u32::try_from(code).ok()),
            retryable: data["retryable"] == true,
            finish_reason: text("finish_reason"),
            cost: data["usage"]["cost"].as_str().unwrap_or("0").to_owned(),
        }))),
        Kind::MessageRemoved => Some(Event::End(Box::new(StreamEnd {
            error: format!("the message was taken out of the queue: {}", text("reason")),
            code: Some(409),
            finish_reason: "cancelled".into(),
            cost: "0".into(),
            ..StreamEnd::default()
        }))),
        _ => None,
    }
}

/// A code block that its own backticks can't break out of.
fn fenced(language: &str, code: &str) -> String {
    let longest = code
        .split(|c| c != '`')
        .map(str::len)
        .max()
        .unwrap_or_default();
    let fence = "`".repeat(longest.max(2) + 1);
    format!(
        "\n{fence}{language}\n{}\n{fence}\n",
        code.trim_end_matches('\n')
    )
}

fn tool_call(data: &Value) -> ToolCallInfo {
    ToolCallInfo {
        name: data["name"].as_str().unwrap_or_default().to_owned(),
        arguments: data["arguments"].to_string(),
        call_id: data["call_id"].as_str().unwrap_or_default().to_owned(),
    }
}

/// A tool's output as text: a string as it is, anything else as JSON.
fn output_text(output: &Value) -> String {
    match output {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Questions as the journal keeps them.
pub fn questions(value: &Value) -> Vec<Question> {
    let text = |value: &Value, key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    list(value)
        .iter()
        .map(|question| Question {
            question: text(question, "question"),
            header: text(question, "header"),
            options: list(&question["options"])
                .iter()
                .map(|option| QuestionOption {
                    label: text(option, "label"),
                    description: text(option, "description"),
                })
                .collect(),
            multi_select: question["multi_select"] == true,
        })
        .collect()
}

/// The agent's element of a row, as it came, with the output message that it belongs to.
fn raw_element(row: &Row) -> Option<String> {
    match row.kind {
        Kind::Element => Some(row.value()["element"].to_string()),
        Kind::TextDelta
        | Kind::TextFinal
        | Kind::Thinking
        | Kind::ToolCall
        | Kind::ToolResult
        | Kind::CodeBlock
        | Kind::FileChange
        | Kind::TerminalOutput => {
            let fields = row.data.strip_prefix('{')?;
            Some(format!(r#"{{"type":"{}",{fields}"#, row.kind.as_str()))
        }
        _ => None,
    }
}

/// The monitoring event of a row of `agent`, if it has one.
pub fn agent_event(row: &Row, agent: &str) -> Option<AgentEventMsg> {
    let event = event(row)?;
    let mut message = AgentEventMsg {
        agent: agent.to_owned(),
        session: row.session?,
        timestamp: row.rfc3339(),
        seq: Some(row.seq),
        ..AgentEventMsg::default()
    };
    let kind = match event {
        Event::Chunk(chunk) => {
            message.content = chunk.content;
            AgentEventKind::TextDelta
        }
        Event::Thinking(thinking) => {
            message.content = thinking.content;
            AgentEventKind::ThinkingDelta
        }
        Event::ToolStart(start) => {
            message.content = start
                .calls
                .iter()
                .map(|call| call.name.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            message.tool_calls = start.calls;
            AgentEventKind::ToolStart
        }
        Event::ToolResult(result) => {
            message.content = result.call_id.clone();
            message.call_id = result.call_id;
            message.tool_output = result.output;
            message.tool_is_error = result.is_error;
            AgentEventKind::ToolResult
        }
        Event::ToolsComplete(_) => AgentEventKind::ToolsComplete,
        Event::End(end) if row.kind == Kind::TurnEnded => {
            message.content = end.error;
            AgentEventKind::Done
        }
        Event::Start(_) | Event::AskUser(_) | Event::End(_) => return None,
    };
    message.kind = kind.into();
    Some(message)
}

/// The row itself.
///
/// A row that no frame can hold says only how long it is, so that the rows behind it can be read.
pub fn journal_event(row: &Row) -> JournalEvent {
    let data = match row.data.len() {
        len if len > MAX_DATA => json!({ "truncated": len }).to_string(),
        _ => row.data.to_string(),
    };
    JournalEvent {
        seq: row.seq,
        at: row.rfc3339(),
        session: row.session,
        kind: row.kind.as_str().to_owned(),
        data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(kind: Kind, data: &Value) -> Row {
        Row {
            seq: 7,
            at: 0,
            session: Some(3),
            turn: Some(4),
            kind,
            data: data.to_string().into(),
        }
    }

    fn old(kind: Kind, data: &Value) -> Option<Event> {
        stream_event(&row(kind, data), Raw::Hide).and_then(|event| event.event)
    }

    fn chunk(content: &str) -> Option<Event> {
        Some(Event::Chunk(StreamChunk {
            content: content.into(),
        }))
    }

    #[test]
    fn every_element_has_its_place_for_an_old_client() {
        let final_text = |streamed| json!({"text": "whole", "streamed": streamed});
        assert_eq!(old(Kind::TextDelta, &json!({"text": "a"})), chunk("a"));
        assert_eq!(old(Kind::TextFinal, &final_text(true)), None);
        assert_eq!(old(Kind::TextFinal, &final_text(false)), chunk("whole"));
        assert_eq!(
            old(
                Kind::TerminalOutput,
                &json!({"stream": "stdout", "data": "x\n"})
            ),
            chunk("x\n")
        );
        assert_eq!(
            old(
                Kind::CodeBlock,
                &json!({"language": "rust", "code": "a```b"})
            ),
            chunk("\n````rust\na```b\n````\n")
        );
        assert_eq!(
            old(
                Kind::FileChange,
                &json!({"path": "a.rs", "change": "modified"})
            ),
            Some(Event::Thinking(StreamThinking {
                content: "modified a.rs\n".into()
            }))
        );
        assert_eq!(
            old(Kind::Element, &json!({"element": {"type": "plan"}})),
            None
        );
        assert_eq!(old(Kind::Note, &json!({})), None);
    }

    #[test]
    fn a_new_client_gets_the_element_whole() {
        let data = json!({"code": "x", "language": "rust", "message_id": "m"});
        let event = stream_event(&row(Kind::CodeBlock, &data), Raw::Show).expect("shown");
        let raw: Value = serde_json::from_str(&event.raw).expect("JSON");
        assert_eq!(
            raw,
            json!({"type": "code_block", "code": "x", "language": "rust", "message_id": "m"})
        );
        let plan = json!({"message_id": "m", "element": {"type": "plan", "entries": []}});
        let event = stream_event(&row(Kind::Element, &plan), Raw::Show).expect("shown");
        assert_eq!(event.event, None);
        assert_eq!(
            serde_json::from_str::<Value>(&event.raw).expect("JSON"),
            plan["element"]
        );
    }

    #[test]
    fn a_failed_turn_ends_with_its_error() {
        let data = json!({
            "agent": "shell", "error": "crashed", "code": 500, "retryable": true,
            "finish_reason": "error", "usage": {"cost": "0.5"},
        });
        assert_eq!(
            end_of_turn(&row(Kind::TurnEnded, &data)),
            Some(StreamEnd {
                agent: "shell".into(),
                error: "crashed".into(),
                code: Some(500),
                retryable: true,
                finish_reason: "error".into(),
                cost: "0.5".into(),
            })
        );
    }

    #[test]
    fn a_row_that_no_frame_can_hold_is_an_event_that_fits() {
        let large = row(
            Kind::WorkerRefused,
            &json!({ "worker": "A".repeat(20 << 20) }),
        );
        let whole = row(
            Kind::WorkerRefused,
            &json!({ "worker": "A".repeat(15 << 20) }),
        );
        assert_eq!(
            journal_event(&large).data,
            json!({ "truncated": large.data.len() }).to_string()
        );
        assert_eq!(journal_event(&whole).data, *whole.data);
    }
}
