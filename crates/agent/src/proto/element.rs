//! Elements: the pieces of an agent's output.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Text of deltas that were joined, at the most.
const MAX_JOINED: usize = 16 * 1024;

/// One piece of an agent's output.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Element {
    /// More of the answer's text.
    TextDelta {
        /// The added text.
        text: String,
    },
    /// The whole text of the message.
    TextFinal {
        /// All of it.
        text: String,
    },
    /// What the model thinks.
    Thinking {
        /// The added text.
        text: String,
    },
    /// A tool is called.
    ToolCall {
        /// Matches the result.
        call_id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        arguments: Map<String, Value>,
    },
    /// A tool has answered; results come in completion order.
    ToolResult {
        /// Matches the call.
        call_id: String,
        /// What it gave.
        output: Value,
        /// Whether it failed.
        is_error: bool,
        /// How long it took.
        #[serde(skip_serializing_if = "Option::is_none")]
        duration_ms: Option<u64>,
    },
    /// Code on its own.
    CodeBlock {
        /// Its language, empty where unknown.
        language: String,
        /// The code.
        code: String,
    },
    /// A file has changed.
    FileChange {
        /// Relative to the workspace.
        path: String,
        /// How.
        change: FileChangeKind,
        /// A unified diff.
        #[serde(skip_serializing_if = "Option::is_none")]
        diff: Option<String>,
    },
    /// Output of a command.
    TerminalOutput {
        /// Which of the two.
        stream: TerminalStream,
        /// The text.
        data: String,
    },
    /// A type that this version does not know, kept as it came.
    #[serde(untagged)]
    Unknown(RawElement),
}

impl Element {
    /// The wire name of the element's type.
    pub fn kind(&self) -> &str {
        match self {
            Self::TextDelta { .. } => "text_delta",
            Self::TextFinal { .. } => "text_final",
            Self::Thinking { .. } => "thinking",
            Self::ToolCall { .. } => "tool_call",
            Self::ToolResult { .. } => "tool_result",
            Self::CodeBlock { .. } => "code_block",
            Self::FileChange { .. } => "file_change",
            Self::TerminalOutput { .. } => "terminal_output",
            Self::Unknown(raw) => raw.kind(),
        }
    }

    /// Adds `more` to this element where it is text of that kind and not too long already; `false`
    /// when it has to be an element of its own. Two deltas of one kind say the same together.
    pub fn join(&mut self, kind: TextKind, more: &str) -> bool {
        match (self, kind) {
            (Self::TextDelta { text }, TextKind::Delta)
            | (Self::Thinking { text }, TextKind::Thinking)
                if text.len() + more.len() <= MAX_JOINED =>
            {
                text.push_str(more);
                true
            }
            _ => false,
        }
    }
}

/// The texts that come in pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextKind {
    /// The answer.
    Delta,
    /// What the model thinks.
    Thinking,
}

impl TextKind {
    /// The element that a text of this kind is.
    pub fn element(self, text: String) -> Element {
        match self {
            Self::Delta => Element::TextDelta { text },
            Self::Thinking => Element::Thinking { text },
        }
    }
}

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileChangeKind {
    /// It is new.
    Created,
    /// Its content changed.
    Modified,
    /// It is gone.
    Deleted,
}

/// Which stream of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TerminalStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// An element of an unknown type: its JSON text, byte for byte.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct RawElement {
    #[serde(skip)]
    kind: String,
    json: Box<RawValue>,
}

impl RawElement {
    /// Keeps `json`, an object whose `type` is `kind`.
    pub(super) fn new(kind: String, json: Box<RawValue>) -> Self {
        Self { kind, json }
    }

    /// Makes an element from an object with a `type`; `None` where it has none.
    pub fn from_object(object: &Map<String, Value>) -> Option<Self> {
        let kind = object.get("type")?.as_str()?.to_owned();
        let json = serde_json::value::to_raw_value(object).ok()?;
        Some(Self { kind, json })
    }

    /// Its `type`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The object as JSON text.
    pub fn json(&self) -> &str {
        self.json.get()
    }
}

impl PartialEq for RawElement {
    fn eq(&self, other: &Self) -> bool {
        self.kind == other.kind && self.json() == other.json()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece() -> impl Strategy<Value = Element> {
        let text = prop_oneof![".{0,40}", Just("x".repeat(MAX_JOINED / 2))];
        (text, 0..4_u8).prop_map(|(text, kind)| match kind {
            0 => Element::Thinking { text },
            1 => Element::TextFinal { text },
            _ => Element::TextDelta { text },
        })
    }

    proptest! {
        #[test]
        fn joining_changes_neither_text_nor_order(pieces in prop::collection::vec(piece(), 0..60)) {
            let said = |elements: &[Element]| {
                let mut said: Vec<(String, String)> = Vec::new();
                for element in elements {
                    let text = match element {
                        Element::TextDelta { text }
                        | Element::Thinking { text }
                        | Element::TextFinal { text } => text,
                        other => panic!("not made here: {other:?}"),
                    };
                    match said.last_mut() {
                        Some((kind, before)) if kind == element.kind() && kind != "text_final" => {
                            before.push_str(text);
                        }
                        _ => said.push((element.kind().to_owned(), text.clone())),
                    }
                }
                said
            };
            let join = |last: &mut Element, next: &Element| match next {
                Element::TextDelta { text } => last.join(TextKind::Delta, text),
                Element::Thinking { text } => last.join(TextKind::Thinking, text),
                _ => false,
            };
            let mut joined: Vec<Element> = Vec::new();
            for piece in &pieces {
                if !joined.last_mut().is_some_and(|last| join(last, piece)) {
                    joined.push(piece.clone());
                }
            }
            prop_assert_eq!(said(&joined), said(&pieces));
            for pair in joined.windows(2) {
                prop_assert!(!join(&mut pair[0].clone(), &pair[1]));
            }
        }
    }
}
