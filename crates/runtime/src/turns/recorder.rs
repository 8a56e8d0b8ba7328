//! What an agent's output becomes in the journal.

use std::collections::{BTreeSet, HashSet};

use quintet_agent::proto::element::Element;
use quintet_agent::proto::json_text::append_json_text;
use serde::Serialize;
use serde_json::json;

use crate::journal::{Entry, Kind};

/// Output messages whose deltas are remembered, to tell whether a final text was streamed.
const MAX_REMEMBERED: usize = 1024;

/// Turns the elements of one turn into journal rows.
///
/// One row an element (the supervisor has joined deltas that arrived together).
/// `tools_complete` is added when every call has its result.
#[derive(Debug)]
pub(crate) struct Recorder {
    session: u64,
    turn: u64,
    pending_calls: BTreeSet<String>,
    streamed: HashSet<String>,
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

    /// Whether a call was told of and has no result yet.
    pub(crate) fn is_pending(&self, call_id: &str) -> bool {
        self.pending_calls.contains(call_id)
    }

    /// The rows of elements that arrived together, in order.
    pub(crate) fn record(
        &mut self,
        batch: impl IntoIterator<Item = (String, Element)>,
    ) -> Vec<Entry> {
        let mut rows = Vec::new();
        for (message_id, element) in batch {
            let (kind, text) = match &element {
                Element::TextDelta { text } => (Kind::TextDelta, text),
                Element::Thinking { text } => (Kind::Thinking, text),
                _ => {
                    self.whole(&message_id, element, &mut rows);
                    continue;
                }
            };
            let row = Entry::raw(kind, text_data(&message_id, text));
            rows.push(row.in_turn(self.session, self.turn));
            if matches!(element, Element::TextDelta { .. }) && self.streamed.len() < MAX_REMEMBERED
            {
                self.streamed.insert(message_id);
            }
        }
        rows
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

/// The data of a row of text, which is most of the journal.
fn text_data(message_id: &str, text: &str) -> String {
    let mut data = Vec::with_capacity(message_id.len() + text.len() + text.len() / 16 + 32);
    data.extend_from_slice(br#"{"message_id":"#);
    append_json_text(message_id, &mut data);
    data.extend_from_slice(br#","text":"#);
    append_json_text(text, &mut data);
    data.push(b'}');
    String::from_utf8(data).expect("text between ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn text_is_written_as_serde_writes_it() {
        for text in ["", "plain", "\"", "\\", "a\nb", "\u{7f}\u{1F600}ä", "\0"] {
            assert_eq!(
                text_data(text, text),
                format!(r#"{{"message_id":{0},"text":{0}}}"#, json!(text))
            );
        }
    }

    #[test]
    fn every_delta_is_a_row_and_order_is_kept() {
        let mut recorder = Recorder::new(1, 2);
        let thinking = ("m".to_owned(), Element::Thinking { text: "t".into() });
        let rows = recorder.record([delta("ab"), thinking, delta("c")]);
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
}
