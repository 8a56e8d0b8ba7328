//! What an ACP agent reports, as elements.
//!
//! | session/update | element |
//! |---|---|
//! | `agent_message_chunk` | `text_delta`; what is no text as `acp_content` |
//! | `agent_thought_chunk` | `thinking` |
//! | `tool_call`, `tool_call_update` | `tool_call` once its input is known, `tool_result` once it ended |
//! | a diff of a completed call | `file_change` |
//! | text of an executing call, terminal output in `_meta` | `terminal_output`, as it grows |
//! | `plan` | `plan {entries}` |
//! | others | none: they are about the agent's own interface |

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    ContentBlock, Diff, EmbeddedResourceResource, SessionUpdate, ToolCall, ToolCallContent,
    ToolCallId, ToolCallStatus, ToolCallUpdate, ToolKind,
};
use serde_json::{Map, Value, json};

use crate::proto::element::{Element, FileChangeKind, RawElement, TerminalStream};

/// Texts beyond this are reported without a diff: comparing them takes too long.
const DIFF_LIMIT: usize = 256 * 1024;

/// Tool calls remembered for one turn; further ones are not reported.
const CALL_LIMIT: usize = 4096;

/// Turns updates of one turn into elements.
#[derive(Debug)]
pub(super) struct Translator {
    workspace: PathBuf,
    calls: HashMap<ToolCallId, Call>,
    order: Vec<ToolCallId>,
}

#[derive(Debug)]
struct Call {
    call: ToolCall,
    started: Duration,
    announced: bool,
    ended: bool,
    /// Output that was already streamed.
    shown: String,
}

impl Translator {
    /// Reports paths relative to `workspace`.
    pub(super) fn new(workspace: PathBuf) -> Self {
        Self {
            workspace,
            calls: HashMap::new(),
            order: Vec::new(),
        }
    }

    /// The elements that an update becomes.
    pub(super) fn update(&mut self, update: SessionUpdate, now: Duration) -> Vec<Element> {
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => vec![message(&chunk.content)],
            SessionUpdate::AgentThoughtChunk(chunk) => match chunk.content {
                ContentBlock::Text(text) => vec![Element::Thinking { text: text.text }],
                _ => Vec::new(),
            },
            SessionUpdate::ToolCall(call) => self.merge(call.into(), now),
            SessionUpdate::ToolCallUpdate(update) => self.merge(update, now),
            SessionUpdate::Plan(plan) => raw(&json!({"type": "plan", "entries": plan.entries}))
                .into_iter()
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Takes in what a permission request says of its call, and reports that call.
    pub(super) fn permission(
        &mut self,
        update: ToolCallUpdate,
        now: Duration,
    ) -> (ToolCall, Vec<Element>) {
        let id = update.tool_call_id.clone();
        let fields = update.fields.clone();
        let mut elements = self.merge(update, now);
        match self.calls.get_mut(&id) {
            Some(call) => {
                elements.extend(call.announce());
                (call.call.clone(), elements)
            }
            None => {
                let mut call = ToolCall::new(id, "");
                call.update(fields);
                (call, elements)
            }
        }
    }

    /// Ends what is still open when the turn ends.
    pub(super) fn finish(&mut self, now: Duration) -> Vec<Element> {
        let mut elements = Vec::new();
        for id in std::mem::take(&mut self.order) {
            if let Some(mut call) = self.calls.remove(&id)
                && call.announced
                && !call.ended
            {
                elements.push(call.result(
                    Value::from("the turn ended before this call"),
                    true,
                    now,
                ));
            }
        }
        elements
    }

    fn merge(&mut self, update: ToolCallUpdate, now: Duration) -> Vec<Element> {
        let id = update.tool_call_id;
        if !self.calls.contains_key(&id) {
            if self.calls.len() >= CALL_LIMIT {
                return Vec::new();
            }
            self.order.push(id.clone());
        }
        let call = self.calls.entry(id.clone()).or_insert_with(|| Call {
            call: ToolCall::new(id, ""),
            started: now,
            announced: false,
            ended: false,
            shown: String::new(),
        });
        if call.ended {
            return Vec::new();
        }
        call.call.update(update.fields);
        let mut elements = Vec::new();
        let ended = matches!(
            call.call.status,
            ToolCallStatus::Completed | ToolCallStatus::Failed
        );
        // A pending call's input may still be streaming.
        if call.call.status != ToolCallStatus::Pending || has_input(&call.call) {
            elements.extend(call.announce());
        }
        elements.extend(call.output(update.meta.as_ref()));
        if ended {
            elements.extend(call.end(&self.workspace, now));
        }
        elements
    }
}

impl Call {
    fn announce(&mut self) -> Option<Element> {
        (!std::mem::replace(&mut self.announced, true)).then(|| Element::ToolCall {
            call_id: self.call.tool_call_id.to_string(),
            name: tool_name(&self.call),
            arguments: match &self.call.raw_input {
                Some(Value::Object(input)) if !input.is_empty() => input.clone(),
                Some(Value::Null | Value::Object(_)) | None => {
                    Map::from_iter([("title".to_owned(), Value::from(self.call.title.as_str()))])
                }
                Some(other) => Map::from_iter([("input".to_owned(), other.clone())]),
            },
        })
    }

    /// What a command has printed since the last update.
    fn output(&mut self, meta: Option<&Map<String, Value>>) -> Option<Element> {
        // Display-only terminals of common adapters carry their bytes in `_meta`.
        let streamed = meta
            .and_then(|meta| meta.get("terminal_output")?.get("data")?.as_str())
            .map(str::to_owned);
        let data = match streamed {
            Some(data) => data,
            None if self.call.kind == ToolKind::Execute => {
                let text = text_of(&self.call.content);
                // Content is replaced as a whole with each update; only growth is new.
                let new = text
                    .strip_prefix(self.shown.as_str())
                    .unwrap_or(&text)
                    .to_owned();
                if !text.is_empty() {
                    self.shown = text;
                }
                new
            }
            None => String::new(),
        };
        (!data.is_empty()).then_some(Element::TerminalOutput {
            stream: TerminalStream::Stdout,
            data,
        })
    }

    fn end(&mut self, workspace: &Path, now: Duration) -> Vec<Element> {
        let failed = self.call.status == ToolCallStatus::Failed;
        let text = text_of(&self.call.content);
        let output = match self.call.raw_output.take() {
            Some(Value::Null) | None => Value::from(text),
            Some(output) => output,
        };
        let mut elements: Vec<_> = self
            .call
            .content
            .iter()
            .filter_map(|content| match content {
                // A failed call's diff was never made.
                ToolCallContent::Diff(diff) if !failed => Some(file_change(diff, workspace)),
                _ => None,
            })
            .collect();
        elements.push(self.result(output, failed, now));
        // An ended call is only remembered by its id.
        self.call.content.clear();
        self.shown.clear();
        elements
    }

    fn result(&mut self, output: Value, is_error: bool, now: Duration) -> Element {
        self.ended = true;
        let took = now.saturating_sub(self.started).as_millis();
        Element::ToolResult {
            call_id: self.call.tool_call_id.to_string(),
            output,
            is_error,
            duration_ms: u64::try_from(took).ok(),
        }
    }
}

fn has_input(call: &ToolCall) -> bool {
    match &call.raw_input {
        Some(Value::Object(input)) => !input.is_empty(),
        Some(Value::Null) | None => false,
        Some(_) => true,
    }
}

/// A tool's name: its own, else its kind, else what it says it does.
pub(super) fn tool_name(call: &ToolCall) -> String {
    let kind = match serde_json::to_value(call.kind) {
        Ok(Value::String(kind)) if call.kind != ToolKind::Other => Some(kind),
        _ => None,
    };
    call.name
        .clone()
        .or(kind)
        .unwrap_or_else(|| match call.title.as_str() {
            "" => "tool".to_owned(),
            title => title.to_owned(),
        })
}

/// The text among a call's content.
pub(super) fn text_of(content: &[ToolCallContent]) -> String {
    let texts: Vec<&str> = content
        .iter()
        .filter_map(|content| match content {
            ToolCallContent::Content(content) => block_text(&content.content),
            _ => None,
        })
        .collect();
    texts.join("\n")
}

fn block_text(block: &ContentBlock) -> Option<&str> {
    match block {
        ContentBlock::Text(text) => Some(&text.text),
        ContentBlock::Resource(resource) => match &resource.resource {
            EmbeddedResourceResource::TextResourceContents(text) => Some(&text.text),
            _ => None,
        },
        _ => None,
    }
}

fn message(content: &ContentBlock) -> Element {
    match content {
        ContentBlock::ResourceLink(link) => Element::TextDelta {
            text: format!("[{}]({})", link.name, link.uri),
        },
        block => match block_text(block) {
            Some(text) => Element::TextDelta {
                text: text.to_owned(),
            },
            None => raw(&json!({"type": "acp_content", "content": block})).unwrap_or(
                Element::TextDelta {
                    text: String::new(),
                },
            ),
        },
    }
}

fn raw(object: &Value) -> Option<Element> {
    RawElement::from_object(object.as_object()?).map(Element::Unknown)
}

fn file_change(diff: &Diff, workspace: &Path) -> Element {
    let path = diff.path.strip_prefix(workspace).unwrap_or(&diff.path);
    let path = path.to_string_lossy().into_owned();
    let old = diff.old_text.as_deref().unwrap_or_default();
    let small = old.len().saturating_add(diff.new_text.len()) <= DIFF_LIMIT;
    let text = small.then(|| {
        similar::TextDiff::from_lines(old, &diff.new_text)
            .unified_diff()
            .header(&format!("a/{path}"), &format!("b/{path}"))
            .to_string()
    });
    Element::FileChange {
        change: match diff.old_text {
            Some(_) => FileChangeKind::Modified,
            None => FileChangeKind::Created,
        },
        path,
        diff: text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_client_protocol_schema::v1::SessionNotification;

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Feeds updates as an agent writes them, 10 ms apart, and returns the elements as JSON.
    fn translate(updates: &[Value]) -> (Translator, Vec<Value>) {
        let mut translator = Translator::new(PathBuf::from("/w"));
        let mut elements = Vec::new();
        let mut now = 0;
        for update in updates {
            let notification: SessionNotification =
                serde_json::from_value(json!({"sessionId": "s", "update": update})).unwrap();
            elements.extend(translator.update(notification.update, at(now)));
            now += 10;
        }
        (translator, json_of(&elements))
    }

    fn json_of(elements: &[Element]) -> Vec<Value> {
        elements
            .iter()
            .map(|element| serde_json::to_value(element).unwrap())
            .collect()
    }

    #[test]
    fn text_thoughts_and_plans_become_elements() {
        let (_, elements) = translate(&[
            json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "Hi"}}),
            json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": "hm"}}),
            json!({"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "me"}}),
            json!({"sessionUpdate": "agent_message_chunk",
                   "content": {"type": "resource_link", "name": "a.rs", "uri": "file:///w/a.rs"}}),
            json!({"sessionUpdate": "agent_message_chunk",
                   "content": {"type": "image", "data": "AA==", "mimeType": "image/png"}}),
            json!({"sessionUpdate": "plan", "entries":
                   [{"content": "look", "priority": "high", "status": "in_progress"}]}),
            json!({"sessionUpdate": "available_commands_update", "availableCommands": []}),
        ]);
        assert_eq!(
            elements,
            [
                json!({"type": "text_delta", "text": "Hi"}),
                json!({"type": "thinking", "text": "hm"}),
                json!({"type": "text_delta", "text": "[a.rs](file:///w/a.rs)"}),
                json!({"type": "acp_content",
                       "content": {"type": "image", "data": "AA==", "mimeType": "image/png"}}),
                json!({"type": "plan", "entries":
                       [{"content": "look", "priority": "high", "status": "in_progress"}]}),
            ]
        );
    }

    #[test]
    fn a_call_is_reported_once_its_input_is_known_and_once_it_ended() {
        let (_, elements) = translate(&[
            json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "Read", "kind": "read",
                   "status": "pending", "rawInput": {}}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "rawInput": {"path": "a.rs"}}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress"}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed",
                   "content": [{"type": "content", "content": {"type": "text", "text": "fn main"}}]}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "failed"}),
        ]);
        assert_eq!(
            elements,
            [
                json!({"type": "tool_call", "call_id": "c", "name": "read", "arguments": {"path": "a.rs"}}),
                json!({"type": "tool_result", "call_id": "c", "output": "fn main", "is_error": false,
                       "duration_ms": 30}),
            ]
        );
    }

    #[test]
    fn a_completed_edit_is_a_file_change_and_a_failed_one_is_not() {
        let edit = |id: &str, status: &str| {
            json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": "Edit", "kind": "edit",
                   "status": status, "name": "edit_file", "rawInput": {"p": 1}, "rawOutput": {"ok": true},
                   "content": [
                       {"type": "diff", "path": "/w/src/a.rs", "oldText": "a\nb\n", "newText": "a\nc\n"},
                       {"type": "diff", "path": "/elsewhere/new", "newText": "x"}]})
        };
        let (_, elements) = translate(&[edit("c", "completed"), edit("d", "failed")]);
        assert_eq!(
            elements,
            [
                json!({"type": "tool_call", "call_id": "c", "name": "edit_file", "arguments": {"p": 1}}),
                json!({"type": "file_change", "path": "src/a.rs", "change": "modified",
                       "diff": "--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"}),
                json!({"type": "file_change", "path": "/elsewhere/new", "change": "created",
                       "diff": "--- a//elsewhere/new\n+++ b//elsewhere/new\n@@ -0,0 +1 @@\n+x\n\\ No newline at end of file\n"}),
                json!({"type": "tool_result", "call_id": "c", "output": {"ok": true}, "is_error": false,
                       "duration_ms": 0}),
                json!({"type": "tool_call", "call_id": "d", "name": "edit_file", "arguments": {"p": 1}}),
                json!({"type": "tool_result", "call_id": "d", "output": {"ok": true}, "is_error": true,
                       "duration_ms": 0}),
            ]
        );
    }

    #[test]
    fn a_commands_output_is_streamed_as_it_grows() {
        let text =
            |text: &str| json!([{"type": "content", "content": {"type": "text", "text": text}}]);
        let (_, elements) = translate(&[
            json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "ls", "kind": "execute",
                   "status": "in_progress", "rawInput": {"command": "ls"}, "content": text("a\n")}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "content": text("a\nb\n")}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "c",
                   "_meta": {"terminal_output": {"terminal_id": "t", "data": "raw"}}}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed"}),
        ]);
        let outputs: Vec<_> = elements
            .iter()
            .filter(|element| element["type"] == "terminal_output")
            .map(|element| element["data"].as_str().unwrap())
            .collect();
        assert_eq!(outputs, ["a\n", "b\n", "raw"]);
        assert_eq!(elements.last().unwrap()["output"], "a\nb\n");
    }

    #[test]
    fn a_call_that_the_turn_leaves_open_is_ended() {
        let (mut translator, _) = translate(&[
            json!({"sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "status": "in_progress"}),
            json!({"sessionUpdate": "tool_call", "toolCallId": "never said", "title": "t"}),
        ]);
        assert_eq!(
            json_of(&translator.finish(at(50))),
            [
                json!({"type": "tool_result", "call_id": "c", "output": "the turn ended before this call",
                    "is_error": true, "duration_ms": 50})
            ]
        );
        assert_eq!(translator.finish(at(60)), []);
    }

    #[test]
    fn calls_beyond_the_limit_are_not_kept() {
        let mut translator = Translator::new(PathBuf::from("/w"));
        for n in 0..CALL_LIMIT + 10 {
            let call = ToolCall::new(format!("c{n}"), "t").status(ToolCallStatus::InProgress);
            let elements = translator.update(SessionUpdate::ToolCall(call), at(0));
            assert_eq!(elements.len(), usize::from(n < CALL_LIMIT));
        }
        assert_eq!(translator.calls.len(), CALL_LIMIT);
    }
}
