//! From a frame's payload to a message of the agent.
//!
//! Text deltas are most of the traffic, and every turn waits for its end: both have a way of their own,
//! one pass over the bytes and no allocation, and where nothing is escaped not even a parser. Whatever
//! does not fit that exact shape takes the general way, which knows every message and names what is
//! wrong.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::element::{Element, RawElement, TextKind};
use super::json_text::is_plain;
use super::message::{AgentToCoordinator, ApprovalRequest, FinishReason, LogEntry};
use super::usage::TokenUsage;

/// Why a payload is not a message of this plane. The agent is at fault and the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// The payload is not JSON.
    #[error("the payload is not JSON: {detail}")]
    NotJson {
        /// What the parser says.
        detail: String,
    },
    /// The payload is JSON, but not an object.
    #[error("the payload is JSON but not an object")]
    NotAnObject,
    /// A field of a known type is missing or has the wrong shape.
    #[error("`{message}` has a wrong field `{field}`: {detail}")]
    WrongField {
        /// The message's or element's type.
        message: String,
        /// The field.
        field: String,
        /// What is wrong with it.
        detail: String,
    },
}

/// A message and what was skipped in it.
#[derive(Debug, PartialEq)]
pub struct Decoded<'a> {
    /// The message.
    pub message: AgentToCoordinator<'a>,
    /// Fields that this version does not know, as `type.field`; to be logged once.
    pub unknown_fields: Vec<String>,
}

/// More text of one kind, still where it arrived unless it had to be unescaped.
#[derive(Debug, PartialEq, Eq)]
pub struct TextUpdate<'a> {
    /// The agent's id of its output.
    pub message_id: Cow<'a, str>,
    /// Which text it adds to.
    pub kind: TextKind,
    /// The added text.
    pub text: Cow<'a, str>,
}

/// What a payload holds.
#[derive(Debug, PartialEq)]
pub enum Payload<'a> {
    /// A piece of text.
    Text(TextUpdate<'a>),
    /// Any message.
    Message(Decoded<'a>),
}

/// Decodes one payload.
pub fn decode(payload: &[u8]) -> Result<Decoded<'_>, BadFrame> {
    Ok(match decode_payload(payload)? {
        Payload::Text(update) => Decoded {
            message: AgentToCoordinator::StreamUpdate {
                message_id: update.message_id,
                element: update.kind.element(update.text.into_owned()),
            },
            unknown_fields: Vec::new(),
        },
        Payload::Message(decoded) => decoded,
    })
}

/// Decodes one payload without a copy of the text that it adds.
pub fn decode_payload(payload: &[u8]) -> Result<Payload<'_>, BadFrame> {
    if let Some(update) = plain(payload) {
        return Ok(Payload::Text(update));
    }
    match short(payload) {
        Some(payload) => Ok(payload),
        None => general(payload).map(Payload::Message),
    }
}

/// Text as [`AgentToCoordinator::encode`] and most encoders write it, with nothing escaped.
fn plain(payload: &[u8]) -> Option<TextUpdate<'_>> {
    let rest = payload.strip_prefix(br#"{"type":"stream_update","message_id":""#)?;
    let (id, rest) = rest.split_at(rest.iter().position(|byte| *byte == b'"')?);
    let rest = rest.strip_prefix(br#"","element":{"type":""#)?;
    let (kind, rest) = match rest.strip_prefix(br#"text_delta","text":""#) {
        Some(rest) => (TextKind::Delta, rest),
        None => {
            let rest = rest.strip_prefix(br#"thinking","text":""#)?;
            (TextKind::Thinking, rest)
        }
    };
    let text = rest.strip_suffix(br#""}}"#)?;
    if !(is_plain(id) && is_plain(text)) {
        return None;
    }
    Some(TextUpdate {
        message_id: Cow::Borrowed(std::str::from_utf8(id).ok()?),
        kind,
        text: Cow::Borrowed(std::str::from_utf8(text).ok()?),
    })
}

/// What the two messages that every turn has consist of: text and its end.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShortFields<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    message_id: Cow<'a, str>,
    #[serde(borrow)]
    element: Option<TextFields<'a>>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
    token_usage: Option<TokenUsage>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextFields<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

fn short(payload: &[u8]) -> Option<Payload<'_>> {
    // Of bytes, a parser would not look at the text in fields that it skips.
    let payload = std::str::from_utf8(payload).ok()?;
    let fields: ShortFields<'_> = serde_json::from_str(payload).ok()?;
    match fields {
        ShortFields {
            kind: "stream_update",
            message_id,
            element: Some(element),
            finish_reason: None,
            token_usage: None,
        } => {
            let kind = match element.kind {
                "text_delta" => TextKind::Delta,
                "thinking" => TextKind::Thinking,
                _ => return None,
            };
            Some(Payload::Text(TextUpdate {
                message_id,
                kind,
                text: element.text,
            }))
        }
        ShortFields {
            kind: "complete",
            message_id,
            element: None,
            finish_reason: Some(finish_reason),
            token_usage,
        } => Some(Payload::Message(Decoded {
            message: AgentToCoordinator::Complete {
                message_id,
                finish_reason: FinishReason::named(&finish_reason),
                token_usage,
            },
            unknown_fields: Vec::new(),
        })),
        _ => None,
    }
}

fn general(payload: &[u8]) -> Result<Decoded<'_>, BadFrame> {
    let mut fields = Fields::parse(payload)?;
    let mut unknown_fields = Vec::new();
    let message = match fields.kind.as_str() {
        "stream_update" => AgentToCoordinator::StreamUpdate {
            message_id: Cow::Owned(fields.required("message_id")?),
            element: element(fields.raw("element")?, &mut unknown_fields)?,
        },
        "state_delta" => AgentToCoordinator::StateDelta {
            deltas: fields.required("deltas")?,
        },
        "log" => AgentToCoordinator::Log(LogEntry {
            level: fields.required("level")?,
            message: fields.required("message")?,
            module: fields.optional("module")?.unwrap_or_default(),
            timestamp: fields.optional("timestamp")?.unwrap_or_default(),
        }),
        "complete" => AgentToCoordinator::Complete {
            message_id: Cow::Owned(fields.required("message_id")?),
            finish_reason: fields.required("finish_reason")?,
            token_usage: fields.optional("token_usage")?,
        },
        "usage" => AgentToCoordinator::Usage {
            token_usage: fields.required("token_usage")?,
        },
        "ask_user" => AgentToCoordinator::AskUser {
            ask_id: fields.required("ask_id")?,
            questions: fields.required("questions")?,
        },
        "approval_request" => AgentToCoordinator::ApprovalRequest(ApprovalRequest {
            request_id: fields.required("request_id")?,
            action: fields.required("action")?,
            command: fields.optional("command")?,
            cwd: fields.optional("cwd")?,
            reason: fields.optional("reason")?,
        }),
        "steer_unread" => AgentToCoordinator::SteerUnread {
            content: fields.required("content")?,
        },
        _ => {
            return Ok(Decoded {
                message: AgentToCoordinator::Unknown { kind: fields.kind },
                unknown_fields,
            });
        }
    };
    fields.note_rest(&mut unknown_fields);
    Ok(Decoded {
        message,
        unknown_fields,
    })
}

fn element(raw: &RawValue, unknown_fields: &mut Vec<String>) -> Result<Element, BadFrame> {
    let mut fields = Fields::parse(raw.get().as_bytes()).map_err(|error| match error {
        BadFrame::WrongField { .. } => error,
        BadFrame::NotJson { detail } => wrong("stream_update", "element", detail),
        BadFrame::NotAnObject => wrong("stream_update", "element", "not an object".to_owned()),
    })?;
    let element = match fields.kind.as_str() {
        "text_delta" => Element::TextDelta {
            text: fields.required("text")?,
        },
        "text_final" => Element::TextFinal {
            text: fields.required("text")?,
        },
        "thinking" => Element::Thinking {
            text: fields.required("text")?,
        },
        "tool_call" => Element::ToolCall {
            call_id: fields.required("call_id")?,
            name: fields.required("name")?,
            arguments: fields.required("arguments")?,
        },
        "tool_result" => Element::ToolResult {
            call_id: fields.required("call_id")?,
            output: fields.required("output")?,
            is_error: fields.optional("is_error")?.unwrap_or_default(),
            duration_ms: fields.optional("duration_ms")?,
        },
        "code_block" => Element::CodeBlock {
            language: fields.optional("language")?.unwrap_or_default(),
            code: fields.required("code")?,
        },
        "file_change" => Element::FileChange {
            path: fields.required("path")?,
            change: fields.required("change")?,
            diff: fields.optional("diff")?,
        },
        "terminal_output" => Element::TerminalOutput {
            stream: fields.required("stream")?,
            data: fields.required("data")?,
        },
        _ => {
            return Ok(Element::Unknown(RawElement::new(
                fields.kind,
                raw.to_owned(),
            )));
        }
    };
    fields.note_rest(unknown_fields);
    Ok(element)
}

fn wrong(message: &str, field: &str, detail: String) -> BadFrame {
    BadFrame::WrongField {
        message: message.to_owned(),
        field: field.to_owned(),
        detail,
    }
}

/// An object's fields as the text they came in, taken out one by one.
struct Fields<'a> {
    kind: String,
    rest: BTreeMap<String, &'a RawValue>,
}

impl<'a> Fields<'a> {
    fn parse(payload: &'a [u8]) -> Result<Self, BadFrame> {
        let rest: BTreeMap<String, &'a RawValue> =
            serde_json::from_slice(payload).map_err(|error| {
                // A data error comes before the rest is looked at, so the text may still be garbage.
                match serde_json::from_slice::<Value>(payload) {
                    Ok(_) if error.is_data() => BadFrame::NotAnObject,
                    Ok(_) => BadFrame::NotJson {
                        detail: error.to_string(),
                    },
                    Err(error) => BadFrame::NotJson {
                        detail: error.to_string(),
                    },
                }
            })?;
        let mut fields = Self {
            kind: "message".to_owned(),
            rest,
        };
        fields.kind = fields.required("type")?;
        Ok(fields)
    }

    fn raw(&mut self, field: &str) -> Result<&'a RawValue, BadFrame> {
        self.rest
            .remove(field)
            .ok_or_else(|| wrong(&self.kind, field, "it is missing".to_owned()))
    }

    fn required<T: Deserialize<'a>>(&mut self, field: &str) -> Result<T, BadFrame> {
        let raw = self.raw(field)?;
        serde_json::from_str(raw.get()).map_err(|error| wrong(&self.kind, field, error.to_string()))
    }

    fn optional<T: Deserialize<'a>>(&mut self, field: &str) -> Result<Option<T>, BadFrame> {
        match self.rest.contains_key(field) {
            true => self.required::<Option<T>>(field),
            false => Ok(None),
        }
    }

    fn note_rest(self, unknown_fields: &mut Vec<String>) {
        unknown_fields.extend(
            self.rest
                .keys()
                .map(|field| format!("{}.{field}", self.kind)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::element::{FileChangeKind, TerminalStream};
    use super::super::message::{AskOption, Question};
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn roundtrip(message: &AgentToCoordinator<'_>) {
        let bytes = serde_json::to_vec(message).unwrap();
        let decoded = decode(&bytes).unwrap();
        assert_eq!(&decoded.message, message);
        assert_eq!(decoded.unknown_fields, Vec::<String>::new());
    }

    #[test]
    fn every_message_comes_back_as_it_was() {
        let elements = [
            Element::TextDelta {
                text: "a \"quoted\"\n\u{1F600}".to_owned(),
            },
            Element::TextFinal {
                text: String::new(),
            },
            Element::Thinking {
                text: "hm".to_owned(),
            },
            Element::ToolCall {
                call_id: "c".to_owned(),
                name: "exec".to_owned(),
                arguments: json!({"command": "ls"}).as_object().unwrap().clone(),
            },
            Element::ToolResult {
                call_id: "c".to_owned(),
                output: json!(["x", 1]),
                is_error: true,
                duration_ms: Some(12),
            },
            Element::CodeBlock {
                language: "rust".to_owned(),
                code: "fn main() {}".to_owned(),
            },
            Element::FileChange {
                path: "a.txt".to_owned(),
                change: FileChangeKind::Deleted,
                diff: None,
            },
            Element::TerminalOutput {
                stream: TerminalStream::Stderr,
                data: "no\n".to_owned(),
            },
        ];
        for element in elements {
            roundtrip(&AgentToCoordinator::StreamUpdate {
                message_id: "m".into(),
                element,
            });
        }
        roundtrip(&AgentToCoordinator::StateDelta {
            deltas: vec![json!({"op": "replace", "path": "/count", "value": 5})],
        });
        roundtrip(&AgentToCoordinator::Log(LogEntry {
            level: "info".to_owned(),
            message: "m".to_owned(),
            module: "a.b".to_owned(),
            timestamp: "2025-01-15T10:30:00Z".to_owned(),
        }));
        roundtrip(&AgentToCoordinator::Usage {
            token_usage: super::super::usage::TokenUsage::default(),
        });
        roundtrip(&AgentToCoordinator::SteerUnread {
            content: "later".to_owned(),
        });
        roundtrip(&AgentToCoordinator::Complete {
            message_id: "m".into(),
            finish_reason: FinishReason::EndTurn,
            token_usage: Some(TokenUsage {
                input_tokens: 1250,
                output_tokens: 3400,
                cost: "0.055".parse().unwrap(),
            }),
        });
        roundtrip(&AgentToCoordinator::AskUser {
            ask_id: "q".to_owned(),
            questions: vec![Question {
                question: "which?".to_owned(),
                header: "h".to_owned(),
                options: vec![AskOption {
                    label: "a".to_owned(),
                    description: "b".to_owned(),
                }],
                multi_select: true,
            }],
        });
        roundtrip(&AgentToCoordinator::ApprovalRequest(ApprovalRequest {
            request_id: "r".to_owned(),
            action: "run".to_owned(),
            command: Some("rm -r build".to_owned()),
            cwd: None,
            reason: None,
        }));
    }

    /// A state is written and read again with every turn: its numbers stay what they are.
    #[test]
    fn a_number_of_a_state_is_the_one_that_was_sent() {
        for number in [11E50, 1.2000000000000001e51, 0.1 + 0.2, f64::MIN_POSITIVE] {
            let payload = format!(r#"{{"type":"state_delta","deltas":[{number:e}]}}"#);
            let decoded = decode(payload.as_bytes()).unwrap();
            let deltas = vec![json!(number)];
            assert_eq!(decoded.message, AgentToCoordinator::StateDelta { deltas });
        }
    }

    #[test]
    fn an_unknown_element_keeps_its_bytes() {
        let payload = br#"{"type":"stream_update","message_id":"m","element":{"type":"plan", "entries":[1,  2]}}"#;
        let Ok(Decoded {
            message: AgentToCoordinator::StreamUpdate { element, .. },
            ..
        }) = decode(payload)
        else {
            panic!("not a stream update");
        };
        let Element::Unknown(raw) = &element else {
            panic!("known: {element:?}");
        };
        assert_eq!(raw.kind(), "plan");
        assert_eq!(raw.json(), r#"{"type":"plan", "entries":[1,  2]}"#);
        assert_eq!(serde_json::to_string(&element).unwrap(), raw.json());
    }

    #[test]
    fn unknown_types_and_fields_are_named_and_skipped() {
        assert_eq!(
            decode(br#"{"type":"metrics","x":1}"#).unwrap().message,
            AgentToCoordinator::Unknown {
                kind: "metrics".to_owned()
            }
        );
        let decoded = decode(
            br#"{"type":"stream_update","message_id":"m","later":1,"element":{"type":"text_delta","text":"t","lang":"en"}}"#,
        )
        .unwrap();
        assert_eq!(
            decoded.unknown_fields,
            ["text_delta.lang", "stream_update.later"]
        );
    }

    #[test]
    fn each_wrong_input_says_what_is_wrong() {
        let field = |payload: &str| match decode(payload.as_bytes()) {
            Err(BadFrame::WrongField { message, field, .. }) => format!("{message}.{field}"),
            other => panic!("{payload}: {other:?}"),
        };
        for not_json in ["", "{", "\u{0}\u{1}", "{\"type\":\"log\"", "[1", "nonsense"] {
            assert!(
                matches!(decode(not_json.as_bytes()), Err(BadFrame::NotJson { .. })),
                "{not_json:?}"
            );
        }
        for not_text in [
            b"{\"type\":\"log\xff\"}".as_slice(),
            b"{\"type\":\"complete\",\"message_id\":\"m\",\"finish_reason\":\"end_turn\",\
              \"token_usage\":{\"x\":\"\x87\"}}",
        ] {
            let decoded = decode(not_text);
            assert!(
                matches!(decoded, Err(BadFrame::NotJson { .. })),
                "{decoded:?}"
            );
        }
        for not_object in ["[]", "1", "null", "\"log\""] {
            assert_eq!(decode(not_object.as_bytes()), Err(BadFrame::NotAnObject));
        }
        for (payload, expected) in [
            ("{}", "message.type"),
            (r#"{"type":7}"#, "message.type"),
            (
                r#"{"type":"complete","message_id":"m"}"#,
                "complete.finish_reason",
            ),
            (
                r#"{"type":"state_delta","deltas":{}}"#,
                "state_delta.deltas",
            ),
            (
                r#"{"type":"log","level":"info","message":5}"#,
                "log.message",
            ),
            (
                r#"{"type":"complete","message_id":"m","finish_reason":"end_turn","token_usage":{"input_tokens":1,"output_tokens":1,"cost":0.1}}"#,
                "complete.token_usage",
            ),
            (
                r#"{"type":"stream_update","message_id":"m","element":"text"}"#,
                "stream_update.element",
            ),
            (
                r#"{"type":"stream_update","message_id":"m","element":{"type":"text_delta","text":5}}"#,
                "text_delta.text",
            ),
            (
                r#"{"type":"stream_update","message_id":"m","element":{"type":"tool_call","call_id":"c","name":"n","arguments":"{}"}}"#,
                "tool_call.arguments",
            ),
        ] {
            assert_eq!(field(payload), expected, "{payload}");
        }
    }

    #[test]
    fn plain_text_is_read_where_it_is_and_any_other_is_not() {
        let payload = |id: &str, text: &str| {
            format!(
                r#"{{"type":"stream_update","message_id":"{id}","element":{{"type":"text_delta","text":"{text}"}}}}"#
            )
        };
        let plain_one = payload("out_1", "a \u{1F600}");
        let update = plain(plain_one.as_bytes()).unwrap();
        assert_eq!(
            (&*update.message_id, &*update.text),
            ("out_1", "a \u{1F600}")
        );
        for (id, text) in [
            ("o\\u0041", "t"),
            ("o", r#"\""#),
            ("o", "\n"),
            ("o", r#"t","more":""#),
            ("o", r#"t"},"more":{"x":"y"#),
        ] {
            assert_eq!(plain(payload(id, text).as_bytes()), None, "{id} {text}");
        }
        let mut not_utf8 = payload("o", "t").into_bytes();
        let text = not_utf8.len() - br#"t"}}"#.len();
        not_utf8[text] = 0xff;
        assert_eq!(plain(&not_utf8), None);
        assert!(decode(&not_utf8).is_err());
    }

    proptest! {
        #[test]
        fn the_short_way_and_the_general_way_agree(text in ".*", id in ".*", thinks: bool) {
            let kind = if thinks { TextKind::Thinking } else { TextKind::Delta };
            let update = TextUpdate { message_id: id.into(), kind, text: text.into() };
            let message = AgentToCoordinator::StreamUpdate {
                message_id: update.message_id.clone(),
                element: kind.element(update.text.to_string()),
            };
            let bytes = serde_json::to_vec(&message).unwrap();
            prop_assert_eq!(&general(&bytes).unwrap().message, &message);
            prop_assert_eq!(&decode(&bytes).unwrap().message, &message);
            prop_assert!(plain(&bytes).is_none_or(|plain| plain == update));
            prop_assert_eq!(short(&bytes), Some(Payload::Text(update)));
        }

        #[test]
        fn both_ways_agree_on_an_end(id in ".*", reason in "[a-z_]*|end_turn|budget", tokens: Option<u64>) {
            let message = AgentToCoordinator::Complete {
                message_id: id.into(),
                finish_reason: FinishReason::named(&reason),
                token_usage: tokens.map(|input_tokens| TokenUsage { input_tokens, ..TokenUsage::default() }),
            };
            let bytes = serde_json::to_vec(&message).unwrap();
            let decoded = Decoded { message, unknown_fields: Vec::new() };
            prop_assert_eq!(&general(&bytes).unwrap(), &decoded);
            prop_assert_eq!(short(&bytes), Some(Payload::Message(decoded)));
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
