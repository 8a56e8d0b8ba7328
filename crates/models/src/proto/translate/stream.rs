//! Streams, both ways, event by event.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use serde_json::{Value, json};

use super::super::MAX_EVENT;
use super::super::sse;
use super::super::usage::Usage;
use super::{arguments, chat_usage, finish_reason, items, messages_usage, stop_reason, text_at};

/// Why a stream can't be translated further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TranslateError {
    /// The arguments of calls are larger than an event may be.
    #[error("the arguments of its tool calls are larger than {MAX_EVENT} bytes")]
    CallsTooLarge,
}

/// Chat Completions chunks as Messages events.
///
/// Text and thoughts pass as they come. Calls are gathered and follow at the end, since their
/// pieces may come in any order there and must not here.
#[derive(Debug, Default)]
pub struct ChatToMessages {
    started: bool,
    open: Option<Open>,
    next_index: u64,
    calls: BTreeMap<u64, Call>,
    call_bytes: usize,
    finish: Option<String>,
    usage: Usage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Text,
    Thinking,
}

#[derive(Debug, Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl ChatToMessages {
    /// A translation from its start.
    pub fn new() -> Self {
        Self::default()
    }

    /// The events of a chunk, which `data` is the JSON of.
    ///
    /// # Errors
    ///
    /// When the gathered calls are too large.
    pub fn chunk(&mut self, data: &str) -> Result<Vec<Bytes>, TranslateError> {
        let Ok(chunk) = serde_json::from_str::<Value>(data) else {
            return Ok(Vec::new());
        };
        let mut out = Vec::new();
        if !self.started {
            self.started = true;
            out.push(event(&json!({
                "type": "message_start",
                "message": {
                    "id": chunk.get("id").cloned().unwrap_or_else(|| "msg_translated".into()),
                    "type": "message", "role": "assistant", "model": chunk["model"],
                    "content": [], "stop_reason": null, "stop_sequence": null,
                    "usage": { "input_tokens": 0, "output_tokens": 0 },
                },
            })));
        }
        if let Some(usage) = chunk.get("usage").filter(|usage| usage.is_object()) {
            self.usage.take_chat(usage);
        }
        let Some(choice) = items(&chunk, "choices").first() else {
            return Ok(out);
        };
        let empty = json!({});
        let delta = choice.get("delta").unwrap_or(&empty);
        let thoughts = match text_at(delta, "reasoning_content") {
            "" => text_at(delta, "reasoning"),
            thoughts => thoughts,
        };
        self.text(Open::Thinking, thoughts, &mut out);
        self.text(Open::Text, text_at(delta, "content"), &mut out);
        for (at, piece) in items(delta, "tool_calls").iter().enumerate() {
            self.call(at as u64, piece)?;
        }
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish = Some(reason.to_owned());
        }
        Ok(out)
    }

    /// The events at the end of the stream.
    pub fn finish(&mut self) -> Vec<Bytes> {
        let mut out = Vec::new();
        self.close(&mut out);
        let calls = std::mem::take(&mut self.calls);
        let called = !calls.is_empty();
        for (at, call) in calls {
            let index = self.next_index;
            self.next_index = index.saturating_add(1);
            let id = match call.id.as_str() {
                "" => format!("call_{at}"),
                id => id.to_owned(),
            };
            out.push(event(&json!({
                "type": "content_block_start", "index": index,
                "content_block": { "type": "tool_use", "id": id, "name": call.name, "input": {} },
            })));
            let input = arguments(&call.arguments).to_string();
            out.push(event(&json!({
                "type": "content_block_delta", "index": index,
                "delta": { "type": "input_json_delta", "partial_json": input },
            })));
            out.push(event(
                &json!({ "type": "content_block_stop", "index": index }),
            ));
        }
        let stopped = match self.finish.as_deref() {
            Some("stop") | None if called => "tool_use",
            reason => stop_reason(reason.unwrap_or("stop")),
        };
        out.push(event(&json!({
            "type": "message_delta",
            "delta": { "stop_reason": stopped, "stop_sequence": null },
            "usage": messages_usage(&self.usage),
        })));
        out.push(event(&json!({ "type": "message_stop" })));
        out
    }

    fn text(&mut self, kind: Open, text: &str, out: &mut Vec<Bytes>) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(kind) {
            self.close(out);
            let block = match kind {
                Open::Text => json!({ "type": "text", "text": "" }),
                Open::Thinking => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            };
            out.push(event(&json!({
                "type": "content_block_start", "index": self.next_index, "content_block": block,
            })));
            self.open = Some(kind);
        }
        let delta = match kind {
            Open::Text => json!({ "type": "text_delta", "text": text }),
            Open::Thinking => json!({ "type": "thinking_delta", "thinking": text }),
        };
        out.push(event(&json!({
            "type": "content_block_delta", "index": self.next_index, "delta": delta,
        })));
    }

    fn close(&mut self, out: &mut Vec<Bytes>) {
        if self.open.take().is_some() {
            out.push(event(
                &json!({ "type": "content_block_stop", "index": self.next_index }),
            ));
            self.next_index = self.next_index.saturating_add(1);
        }
    }

    fn call(&mut self, at: u64, piece: &Value) -> Result<(), TranslateError> {
        let index = piece.get("index").and_then(Value::as_u64).unwrap_or(at);
        let function = piece.get("function").unwrap_or(&Value::Null);
        let more = text_at(function, "arguments");
        let parts = [more, text_at(piece, "id"), text_at(function, "name")];
        let added: usize = parts.iter().map(|part| part.len()).sum();
        // A call without content still takes memory.
        self.call_bytes = self.call_bytes.saturating_add(added).saturating_add(64);
        if self.call_bytes > MAX_EVENT {
            return Err(TranslateError::CallsTooLarge);
        }
        let call = self.calls.entry(index).or_default();
        if call.id.is_empty() {
            text_at(piece, "id").clone_into(&mut call.id);
        }
        if call.name.is_empty() {
            text_at(function, "name").clone_into(&mut call.name);
        }
        call.arguments.push_str(more);
        Ok(())
    }
}

fn event(data: &Value) -> Bytes {
    sse::encode(Some(text_at(data, "type")), &data.to_string())
}

/// Messages events as Chat Completions chunks.
#[derive(Debug)]
pub struct MessagesToChat {
    id: Value,
    model: Value,
    created: u64,
    with_usage: bool,
    /// The place of a call among the calls, by its block.
    calls: HashMap<u64, u64>,
    usage: Usage,
}

impl MessagesToChat {
    /// A translation from its start; `created` in seconds since 1970.
    pub fn new(created: u64, with_usage: bool) -> Self {
        Self {
            id: Value::Null,
            model: Value::Null,
            created,
            with_usage,
            calls: HashMap::new(),
            usage: Usage::default(),
        }
    }

    /// The chunks of an event, which `data` is the JSON of.
    pub fn event(&mut self, data: &str) -> Vec<Bytes> {
        let Ok(data) = serde_json::from_str::<Value>(data) else {
            return Vec::new();
        };
        let index = data.get("index").and_then(Value::as_u64).unwrap_or(0);
        match text_at(&data, "type") {
            "message_start" => {
                let message = &data["message"];
                self.id = message["id"].clone();
                self.model = message["model"].clone();
                self.usage.take_messages(&message["usage"]);
                vec![self.delta(&json!({ "role": "assistant", "content": "" }))]
            }
            "content_block_start" => {
                let block = &data["content_block"];
                if text_at(block, "type") != "tool_use" {
                    return Vec::new();
                }
                let place = self.calls.len() as u64;
                self.calls.insert(index, place);
                vec![self.delta(&json!({ "tool_calls": [{
                    "index": place, "id": block["id"], "type": "function",
                    "function": { "name": block["name"], "arguments": "" },
                }]}))]
            }
            "content_block_delta" => {
                let delta = &data["delta"];
                match text_at(delta, "type") {
                    "text_delta" => vec![self.delta(&json!({ "content": delta["text"] }))],
                    "thinking_delta" => {
                        vec![self.delta(&json!({ "reasoning_content": delta["thinking"] }))]
                    }
                    "input_json_delta" => {
                        let place = self.calls.get(&index).copied().unwrap_or(0);
                        vec![self.delta(&json!({ "tool_calls": [{
                            "index": place, "function": { "arguments": delta["partial_json"] },
                        }]}))]
                    }
                    _ => Vec::new(),
                }
            }
            "message_delta" => {
                self.usage.take_messages(&data["usage"]);
                let stopped = data.pointer("/delta/stop_reason").and_then(Value::as_str);
                let reason = finish_reason(stopped.unwrap_or_default());
                vec![self.chunk(&json!([{ "index": 0, "delta": {}, "finish_reason": reason }]))]
            }
            "message_stop" => {
                let mut out = Vec::new();
                if self.with_usage {
                    let mut last = self.base(&json!([]));
                    last["usage"] = chat_usage(&self.usage);
                    out.push(sse::encode(None, &last.to_string()));
                }
                out.push(sse::encode(None, "[DONE]"));
                out
            }
            _ => Vec::new(),
        }
    }

    fn delta(&self, delta: &Value) -> Bytes {
        self.chunk(&json!([{ "index": 0, "delta": delta, "finish_reason": null }]))
    }

    fn chunk(&self, choices: &Value) -> Bytes {
        sse::encode(None, &self.base(choices).to_string())
    }

    fn base(&self, choices: &Value) -> Value {
        json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created,
            "model": self.model, "choices": choices,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn data(events: &[Bytes]) -> Vec<String> {
        let mut splitter = sse::Splitter::new(MAX_EVENT);
        let mut out = Vec::new();
        for event in events {
            splitter.push(event);
            while let Some(event) = splitter.next_event().unwrap() {
                out.push(event.data);
            }
        }
        out
    }

    fn chunk(delta: &Value) -> String {
        json!({"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta}]}).to_string()
    }

    /// The blocks that a reader of Messages events ends up with.
    fn blocks(events: &[String]) -> Vec<Value> {
        let mut blocks: Vec<Value> = Vec::new();
        for event in events {
            let event: Value = serde_json::from_str(event).unwrap();
            match text_at(&event, "type") {
                "content_block_start" => {
                    assert_eq!(event["index"], blocks.len(), "one block after the other");
                    blocks.push(event["content_block"].clone());
                }
                "content_block_delta" => {
                    let block = blocks.last_mut().unwrap();
                    let (from, to) = match text_at(&event["delta"], "type") {
                        "text_delta" => ("text", "text"),
                        "thinking_delta" => ("thinking", "thinking"),
                        _ => ("partial_json", "json"),
                    };
                    let text = format!("{}{}", text_at(block, to), text_at(&event["delta"], from));
                    block[to] = text.into();
                }
                _ => {}
            }
        }
        blocks
    }

    #[test]
    fn chunks_become_blocks_one_after_the_other() {
        let mut translation = ChatToMessages::new();
        let mut out = Vec::new();
        for delta in [
            json!({"role": "assistant", "content": ""}),
            json!({"reasoning_content": "hm"}),
            json!({"content": "Hel"}),
            json!({"content": "lo"}),
            json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"x\""}}]}),
            json!({"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        ] {
            out.extend(translation.chunk(&chunk(&delta)).unwrap());
        }
        let last = json!({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": 3}});
        out.extend(translation.chunk(&last.to_string()).unwrap());
        out.extend(translation.finish());
        let events = data(&out);
        let found = blocks(&events);
        let kinds: Vec<&str> = found.iter().map(|block| text_at(block, "type")).collect();
        assert_eq!(kinds, ["thinking", "text", "tool_use", "tool_use"]);
        assert_eq!(found[1]["text"], "Hello");
        assert_eq!(found[2]["json"], "{\"x\":1}");
        assert_eq!(found[3]["json"], "{}");
        let end: Value = serde_json::from_str(&events[events.len() - 2]).unwrap();
        assert_eq!(end["delta"]["stop_reason"], "tool_use");
        assert_eq!(end["usage"]["input_tokens"], 8);
        assert_eq!(events.last().unwrap(), r#"{"type":"message_stop"}"#);
    }

    #[test]
    fn endless_calls_are_refused() {
        let mut translation = ChatToMessages::new();
        let piece = chunk(
            &json!({"tool_calls": [{"index": 0, "function": {"arguments": "x".repeat(1 << 20)}}]}),
        );
        let outcome = (0..10).try_for_each(|_| translation.chunk(&piece).map(drop));
        assert_eq!(outcome, Err(TranslateError::CallsTooLarge));
    }

    proptest! {
        /// Text through both translations is the same text, in pieces of any size.
        #[test]
        fn text_survives_both_ways(
            texts in prop::collection::vec(".{1,20}", 1..20),
            called in prop::collection::vec("[a-z]{1,8}", 0..4),
        ) {
            let mut there = ChatToMessages::new();
            let mut events = Vec::new();
            for text in &texts {
                events.extend(there.chunk(&chunk(&json!({"content": text}))).unwrap());
            }
            for (index, name) in called.iter().enumerate() {
                let call = json!({"tool_calls": [{"index": index, "id": name,
                    "function": {"name": name, "arguments": "{}"}}]});
                events.extend(there.chunk(&chunk(&call)).unwrap());
            }
            events.extend(there.finish());
            let mut back = MessagesToChat::new(0, true);
            let mut text = String::new();
            let mut names = Vec::new();
            let mut done = false;
            for event in data(&events) {
                for chunk in data(&back.event(&event)) {
                    if chunk == "[DONE]" {
                        done = true;
                        continue;
                    }
                    let chunk: Value = serde_json::from_str(&chunk).unwrap();
                    let delta = chunk.pointer("/choices/0/delta").cloned().unwrap_or_default();
                    text.push_str(text_at(&delta, "content"));
                    for call in items(&delta, "tool_calls") {
                        let name = call.pointer("/function/name").and_then(Value::as_str);
                        names.extend(name.map(str::to_owned));
                    }
                }
            }
            prop_assert!(done);
            prop_assert_eq!(text, texts.concat());
            prop_assert_eq!(names, called);
        }
    }
}
