//! Tools and their results, apart from the protocol that carries them.

use serde_json::{Map, Value};

/// The most that a result may hold, in bytes of its JSON.
pub const MAX_RESULT: usize = 4 << 20;

/// A tool as an agent sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSpec {
    /// Its name.
    pub name: String,
    /// What it does, for a model.
    pub description: String,
    /// The JSON schema of its arguments.
    pub schema: Map<String, Value>,
}

/// A call.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// Its arguments.
    pub arguments: Map<String, Value>,
    /// The agent's own id of the call: `quintet/call_id` of the request's `_meta`.
    pub agents_id: Option<String>,
}

/// A piece of a result.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Text.
    Text(String),
    /// A block of another kind, as the protocol has it.
    Block(Value),
}

/// What a call came to. A failure is for the model to read, not an error of the protocol.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ToolOutcome {
    /// What it says.
    pub content: Vec<Content>,
    /// The same as data, where there is such a form.
    pub structured: Option<Value>,
    /// Whether it failed.
    pub failed: bool,
}

impl ToolOutcome {
    /// A result that is a text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            content: vec![Content::Text(text.into())],
            ..Self::default()
        }
    }

    /// A failure, with what went wrong and what to do.
    pub fn failure(text: impl Into<String>) -> Self {
        Self {
            failed: true,
            ..Self::text(text)
        }
    }

    /// Adds the result as data.
    pub fn with_structured(mut self, value: Value) -> Self {
        self.structured = Some(value);
        self
    }

    /// The texts of the result, one after the other.
    pub fn to_text(&self) -> String {
        self.content
            .iter()
            .map(|content| match content {
                Content::Text(text) => text.clone(),
                Content::Block(block) => block.to_string(),
            })
            .collect::<Vec<_>>()
            .join("\n")
    }

    /// The bytes that it holds, about.
    pub(crate) fn size(&self) -> usize {
        let structured = self
            .structured
            .as_ref()
            .map_or(0, |it| it.to_string().len());
        let content: usize = self
            .content
            .iter()
            .map(|content| match content {
                Content::Text(text) => text.len(),
                Content::Block(block) => block.to_string().len(),
            })
            .sum();
        structured.saturating_add(content)
    }
}
