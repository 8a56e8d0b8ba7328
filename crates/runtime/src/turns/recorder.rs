//! What an agent's output becomes in the journal.

use std::collections::{BTreeSet, HashSet};

use quintet_agent::proto::element::Element;
use serde::Serialize;
use serde_json::json;

use crate::journal::{Entry, Kind};

/// Text of one row at the most, when deltas that arrived together are joined.
const MAX_JOINED: usize = 16 * 1024;

/// Output messages whose deltas are remembered, to tell whether a final text was streamed.
const MAX_REMEMBERED: usize = 1024;

/// Turns the elements of one turn into journal rows.
///
/// Deltas that arrived together and follow one another become one row: the
/// text is the same, and a runaway agent costs rows by the batch and not by
/// the token. Everything else is one row an element. `tools_complete` is
/// added when every call has its result.
#[derive(Debug)]
pub(crate) struct Recorder {
    session: u64,
    turn: u64,
    pending_calls: BTreeSet<String>,
    streamed: HashSet<String>,
}

/// A run of deltas of one kind and one output message.
struct Joined {
    kind: Kind,
    message_id: String,
    text: String,
}

#[derive(Serialize)]
struct TextData<'a> {
    message_id: &'a str,
    text: &'a str,
}

impl Recorder {
    /// A recorder for a turn that begins.
    pub(crate) fn new(session: u64, turn: u64) -> Self {
        Self {
            session,
            turn,
            pending_calls: BTreeSet::new(),
            streamed: HashSet::new(),
        }
    }

    /// The rows of elements that arrived together, in order.
    pub(crate) fn record(
        &mut self,
        batch: impl IntoIterator<Item = (String, Element)>,
    ) -> Vec<Entry> {
        let mut rows = Vec::new();
        let mut joined: Option<Joined> = None;
        for (message_id, element) in batch {
            let delta = match element {
                Element::TextDelta { text } => Ok((Kind::TextDelta, text)),
                Element::Thinking { text } => Ok((Kind::Thinking, text)),
                other => Err(other),
            };
            match delta {
                Ok((kind, text)) => {
                    if kind == Kind::TextDelta && self.streamed.len() < MAX_REMEMBERED {
                        self.streamed.insert(message_id.clone());
                    }
                    match &mut joined {
                        Some(run)
                            if run.kind == kind
                                && run.message_id == message_id
                                && run.text.len() + text.len() <= MAX_JOINED =>
                        {
                            run.text.push_str(&text);
                        }
                        _ => {
                            self.close(&mut joined, &mut rows);
                            joined = Some(Joined {
                                kind,
                                message_id,
                                text,
                            });
                        }
                    }
                }
                Err(element) => {
                    self.close(&mut joined, &mut rows);
                    self.whole(&message_id, element, &mut rows);
                }
            }
        }
        self.close(&mut joined, &mut rows);
        rows
    }

    fn close(&self, joined: &mut Option<Joined>, rows: &mut Vec<Entry>) {
        if let Some(run) = joined.take() {
            let data = TextData {
                message_id: &run.message_id,
                text: &run.text,
            };
            rows.push(self.row(run.kind, &data));
        }
    }

    fn whole(&mut self, message_id: &str, element: Element, rows: &mut Vec<Entry>) {
        if let Element::Unknown(raw) = &element {
            let raw: serde_json::Value = serde_json::from_str(raw.json()).unwrap_or_default();
            let data = json!({ "message_id": message_id, "element": raw });
            rows.push(self.row(Kind::Element, &data));
            return;
        }
        let kind = Kind::of_element(element.kind());
        let mut data = serde_json::to_value(&element).unwrap_or_default();
        if let Some(fields) = data.as_object_mut() {
            fields.remove("type");
            fields.insert("message_id".into(), message_id.into());
            if kind == Kind::TextFinal {
                fields.insert("streamed".into(), self.streamed.contains(message_id).into());
            }
        }
        rows.push(self.row(kind, &data));
        match element {
            Element::ToolCall { call_id, .. } => {
                self.pending_calls.insert(call_id);
            }
            Element::ToolResult { call_id, .. }
                if self.pending_calls.remove(&call_id) && self.pending_calls.is_empty() =>
            {
                rows.push(self.row(Kind::ToolsComplete, &json!({})));
            }
            _ => {}
        }
    }

    fn row(&self, kind: Kind, data: &impl Serialize) -> Entry {
        Entry::new(kind, data).in_turn(self.session, self.turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn delta(text: &str) -> (String, Element) {
        ("m".into(), Element::TextDelta { text: text.into() })
    }

    fn shown(rows: &[Entry]) -> Vec<(String, String)> {
        rows.iter()
            .map(|row| (row.kind.as_str().to_owned(), row.data.to_string()))
            .collect()
    }

    fn call(id: &str) -> (String, Element) {
        let element = Element::ToolCall {
            call_id: id.into(),
            name: "t".into(),
            arguments: serde_json::Map::new(),
        };
        ("m".into(), element)
    }

    fn result(id: &str) -> (String, Element) {
        let element = Element::ToolResult {
            call_id: id.into(),
            output: "o".into(),
            is_error: false,
            duration_ms: Some(3),
        };
        ("m".into(), element)
    }

    #[test]
    fn deltas_that_arrive_together_are_one_row_and_order_is_kept() {
        let mut recorder = Recorder::new(1, 2);
        let thinking = ("m".to_owned(), Element::Thinking { text: "t".into() });
        let rows = recorder.record([delta("a"), delta("b"), thinking, delta("c")]);
        assert_eq!(
            shown(&rows),
            [
                ("text_delta", r#"{"message_id":"m","text":"ab"}"#),
                ("thinking", r#"{"message_id":"m","text":"t"}"#),
                ("text_delta", r#"{"message_id":"m","text":"c"}"#),
            ]
            .map(|(kind, data)| (kind.to_owned(), data.to_owned()))
        );
        assert!(
            rows.iter()
                .all(|row| (row.session, row.turn) == (Some(1), Some(2)))
        );
    }

    #[test]
    fn tools_complete_comes_when_the_last_result_is_in() {
        let mut recorder = Recorder::new(1, 2);
        let kinds = |rows: &[Entry]| -> Vec<String> {
            rows.iter()
                .map(|row| row.kind.as_str().to_owned())
                .collect()
        };
        assert_eq!(
            kinds(&recorder.record([call("a"), call("b"), result("b")])),
            ["tool_call", "tool_call", "tool_result"]
        );
        assert_eq!(
            kinds(&recorder.record([result("a"), result("stray")])),
            ["tool_result", "tools_complete", "tool_result"]
        );
    }

    #[test]
    fn a_final_text_says_whether_it_was_streamed() {
        let mut recorder = Recorder::new(1, 2);
        let last = |id: &str| (id.to_owned(), Element::TextFinal { text: "ab".into() });
        let rows = recorder.record([delta("ab"), last("m"), last("other")]);
        let streamed: Vec<bool> = rows[1..]
            .iter()
            .map(|row| row.data.contains(r#""streamed":true"#))
            .collect();
        assert_eq!(streamed, [true, false]);
    }

    proptest! {
        #[test]
        fn joining_never_changes_the_text(texts in prop::collection::vec(".{0,40}", 0..200)) {
            let mut recorder = Recorder::new(1, 2);
            let rows = recorder.record(texts.iter().map(|text| delta(text)));
            let joined: String = rows
                .iter()
                .map(|row| {
                    let data: serde_json::Value = serde_json::from_str(&row.data).expect("JSON");
                    data["text"].as_str().expect("text").to_owned()
                })
                .collect();
            prop_assert_eq!(joined, texts.concat());
        }
    }
}
