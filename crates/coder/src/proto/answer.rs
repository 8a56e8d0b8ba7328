//! A model's answer, put together from the events of its stream.

use std::collections::HashMap;

use quintet_models::Usage;
use serde_json::{Map, Value, json};

/// An answer may be as large as this; the stream is left beyond it.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Something to show at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// More of the text.
    Text(String),
    /// More of what the model thinks.
    Thinking(String),
}

/// Why a stream is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The gateway ended it with an error, in a sentence.
    #[error("{0}")]
    Told(String),
    /// It ended in the middle.
    #[error("the answer ended in the middle; try again")]
    CutOff,
    /// It is too large.
    #[error("the answer is larger than {MAX_ANSWER} bytes")]
    TooLarge,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Matches the result.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub input: Map<String, Value>,
}

/// A whole answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Its blocks, as they go back to the model.
    pub content: Vec<Value>,
    /// The tools that it calls.
    pub calls: Vec<Call>,
    /// Why it ended.
    pub stop_reason: String,
    /// Whether its room ended in a thought or in calls, which are not made then.
    pub cut_in_work: bool,
    /// What it used.
    pub usage: Usage,
}

impl Answer {
    /// Its text.
    pub fn text(&self) -> String {
        self.content
            .iter()
            .filter(|block| block["type"] == "text")
            .filter_map(|block| block["text"].as_str())
            .collect()
    }
}

/// Puts an answer together.
#[derive(Debug, Default)]
pub struct Assembly {
    blocks: Vec<Value>,
    arguments: HashMap<usize, String>,
    stop_reason: Option<String>,
    usage: Usage,
    size: usize,
    stopped: bool,
}

impl Assembly {
    /// Takes an event, which `data` is the JSON of.
    ///
    /// # Errors
    ///
    /// When the event is an error, or the answer is too large.
    pub fn event(&mut self, data: &str) -> Result<Option<Piece>, AnswerError> {
        let Ok(event) = serde_json::from_str::<Value>(data) else {
            return Ok(None);
        };
        self.size = self.size.saturating_add(data.len());
        if self.size > MAX_ANSWER {
            return Err(AnswerError::TooLarge);
        }
        let index = event["index"]
            .as_u64()
            .and_then(|index| usize::try_from(index).ok())
            .unwrap_or_default();
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.usage.take_messages(&event["message"]["usage"]),
            // Blocks come one after the other; anything else is not this format.
            "content_block_start" if index == self.blocks.len() => {
                self.blocks.push(event["content_block"].clone());
            }
            "content_block_delta" => return Ok(self.delta(index, &event["delta"])),
            "content_block_stop" => self.close(index),
            "message_delta" => {
                self.usage.take_messages(&event["usage"]);
                let reason = event.pointer("/delta/stop_reason").and_then(Value::as_str);
                self.stop_reason = reason.map(str::to_owned);
            }
            "message_stop" => self.stopped = true,
            "error" => {
                let told = event.pointer("/error/message").and_then(Value::as_str);
                let told = told.unwrap_or("the model's provider failed without a word");
                return Err(AnswerError::Told(told.to_owned()));
            }
            _ => {}
        }
        Ok(None)
    }

    /// Whether something of it has been shown that can't be taken back.
    pub fn has_text(&self) -> bool {
        self.blocks
            .iter()
            .any(|block| block["type"] == "text" && block["text"] != "")
    }

    /// Whether the last event has come.
    pub fn is_whole(&self) -> bool {
        self.stopped
    }

    /// The whole answer.
    ///
    /// # Errors
    ///
    /// When its end has not come.
    pub fn finish(self) -> Result<Answer, AnswerError> {
        if !self.stopped {
            return Err(AnswerError::CutOff);
        }
        let stop_reason = self.stop_reason.unwrap_or_else(|| "end_turn".to_owned());
        // Calls of an answer that ran out of room may be cut in their arguments.
        let with_calls = stop_reason != "max_tokens";
        let cut_in_work = !with_calls && !is_text_alone(&self.blocks);
        let content = kept_blocks(self.blocks, with_calls);
        let calls = content
            .iter()
            .filter(|block| block["type"] == "tool_use")
            .map(|block| Call {
                id: block["id"].as_str().unwrap_or_default().to_owned(),
                name: block["name"].as_str().unwrap_or_default().to_owned(),
                input: block["input"].as_object().cloned().unwrap_or_default(),
            })
            .collect();
        Ok(Answer {
            content,
            calls,
            stop_reason,
            cut_in_work,
            usage: self.usage,
        })
    }

    /// What can be kept of an answer that was broken off: its text.
    pub fn partial(self) -> Vec<Value> {
        kept_blocks(self.blocks, false)
    }

    fn delta(&mut self, index: usize, delta: &Value) -> Option<Piece> {
        let block = self.blocks.get_mut(index)?;
        let text = |key: &str| delta[key].as_str().unwrap_or_default();
        let (key, added) = match delta["type"].as_str()? {
            "text_delta" => ("text", text("text")),
            "thinking_delta" => ("thinking", text("thinking")),
            "signature_delta" => ("signature", text("signature")),
            "input_json_delta" => {
                let arguments = self.arguments.entry(index).or_default();
                arguments.push_str(text("partial_json"));
                return None;
            }
            _ => return None,
        };
        match block.get_mut(key) {
            Some(Value::String(so_far)) => so_far.push_str(added),
            _ => {
                block.as_object_mut()?.insert(key.to_owned(), added.into());
            }
        }
        match key {
            "text" if !added.is_empty() => Some(Piece::Text(added.to_owned())),
            "thinking" if !added.is_empty() => Some(Piece::Thinking(added.to_owned())),
            _ => None,
        }
    }

    fn close(&mut self, index: usize) {
        let Some(text) = self.arguments.remove(&index) else {
            return;
        };
        let Some(Value::Object(block)) = self.blocks.get_mut(index) else {
            return;
        };
        let input = match serde_json::from_str(&text) {
            Ok(input @ Value::Object(_)) => input,
            _ if text.trim().is_empty() => json!({}),
            _ => json!({ "_unreadable_arguments": text }),
        };
        block.insert("input".to_owned(), input);
    }
}

/// Whether an answer calls nothing and ends in text.
fn is_text_alone(blocks: &[Value]) -> bool {
    let ends_in_text = blocks.last().is_some_and(|block| block["type"] == "text");
    ends_in_text && blocks.iter().all(|block| block["type"] != "tool_use")
}

/// Blocks that the model may be given back: no empty text, no call without an end; and what a
/// provider would refuse the whole conversation for: a thought without its signature or at the end.
fn kept_blocks(blocks: Vec<Value>, with_calls: bool) -> Vec<Value> {
    let mut kept: Vec<Value> = blocks
        .into_iter()
        .filter(|block| match block["type"].as_str().unwrap_or_default() {
            "text" => block["text"]
                .as_str()
                .is_some_and(|text| !text.trim().is_empty()),
            "thinking" => block["signature"].as_str().is_some_and(|s| !s.is_empty()),
            "tool_use" => with_calls && block["input"].is_object(),
            _ => with_calls,
        })
        .collect();
    while kept.last().is_some_and(is_thought) {
        kept.pop();
    }
    kept
}

fn is_thought(block: &Value) -> bool {
    block["type"] == "thinking" || block["type"] == "redacted_thinking"
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use quintet_models::proto::sse::Splitter;
    use quintet_models::test_server::{Block, Message, messages_stream};

    fn assemble(stream: &[u8]) -> (Assembly, Vec<Piece>) {
        let mut assembly = Assembly::default();
        let mut splitter = Splitter::new(1 << 20);
        splitter.push(stream);
        let mut pieces = Vec::new();
        while let Some(event) = splitter.next_event().unwrap() {
            pieces.extend(assembly.event(&event.data).unwrap());
        }
        (assembly, pieces)
    }

    fn message() -> Message {
        Message::new(vec![
            Block::Thinking("hm".into(), "sig+/=".into()),
            Block::Text("Hello".into()),
            Block::Tool {
                id: "t".into(),
                name: "exec".into(),
                input: json!({"command": "ls -l"}),
            },
        ])
    }

    #[test]
    fn a_stream_becomes_an_answer() {
        let (assembly, pieces) = assemble(&messages_stream(&message(), "m").concat());
        let piece = |text: &str| Piece::Text(text.into());
        assert_eq!(
            pieces,
            [
                Piece::Thinking("h".into()),
                Piece::Thinking("m".into()),
                piece("He"),
                piece("llo")
            ]
        );
        let answer = assembly.finish().unwrap();
        assert_eq!(
            answer.content,
            [
                json!({"type": "thinking", "thinking": "hm", "signature": "sig+/="}),
                json!({"type": "text", "text": "Hello"}),
                json!({"type": "tool_use", "id": "t", "name": "exec", "input": {"command": "ls -l"}}),
            ]
        );
        assert_eq!(answer.calls[0].name, "exec");
        assert_eq!(
            (answer.stop_reason.as_str(), answer.usage.output),
            ("tool_use", 10)
        );
    }

    #[test]
    fn what_is_broken_off_keeps_its_text() {
        let events = messages_stream(&message(), "m");
        let (assembly, _) = assemble(&events[..events.len() - 3].concat());
        assert!(assembly.has_text());
        assert_eq!(
            assembly.partial(),
            [
                json!({"type": "thinking", "thinking": "hm", "signature": "sig+/="}),
                json!({"type": "text", "text": "Hello"}),
            ]
        );
        let (assembly, _) = assemble(&events[..4].concat());
        assert_eq!(
            assembly.partial(),
            [] as [Value; 0],
            "a thought without its signature"
        );
    }

    #[test]
    fn a_cut_answer_calls_nothing() {
        let mut message = message();
        message.stop_reason = "max_tokens".into();
        let (assembly, _) = assemble(&messages_stream(&message, "m").concat());
        let answer = assembly.finish().unwrap();
        assert!(answer.calls.is_empty());
        assert!(answer.cut_in_work);
        assert_eq!(answer.content.last().unwrap()["text"], "Hello");
    }

    #[test]
    fn a_thought_is_never_the_end_of_what_is_kept() {
        let thought = || Block::Thinking("hm".into(), "sig".into());
        let text = || Block::Text("Hello".into());
        for (blocks, kept, cut_in_work) in [
            (vec![thought()], 0, true),
            (vec![text(), thought(), thought()], 1, true),
            (vec![thought(), text()], 2, false),
        ] {
            let mut message = Message::new(blocks);
            message.stop_reason = "max_tokens".into();
            let (assembly, _) = assemble(&messages_stream(&message, "m").concat());
            let answer = assembly.finish().unwrap();
            assert_eq!(
                (answer.content.len(), answer.cut_in_work),
                (kept, cut_in_work)
            );
        }
        let (assembly, _) =
            assemble(&messages_stream(&Message::new(vec![thought()]), "m").concat());
        let answer = assembly.finish().unwrap();
        assert!(
            answer.content.is_empty() && !answer.cut_in_work,
            "{answer:?}"
        );
    }

    #[test]
    fn an_error_is_told() {
        let told = r#"{"type":"error","error":{"type":"x","message":"no credit"}}"#;
        assert_eq!(
            Assembly::default().event(told),
            Err(AnswerError::Told("no credit".into()))
        );
    }

    proptest! {
        #[test]
        fn odd_events_do_no_harm(kind in "[a-z_]{0,20}", index in 0u64..4, text in ".{0,20}") {
            let mut assembly = Assembly::default();
            for event in [
                json!({"type": kind, "index": index, "delta": text}),
                json!({"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}),
                json!({"type": "content_block_start", "index": index, "content_block": text}),
                json!({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}),
                json!({"type": "content_block_stop", "index": index}),
            ] {
                let _ = assembly.event(&event.to_string());
            }
            let _ = assembly.partial();
        }
    }
}
