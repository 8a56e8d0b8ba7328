//! Answers that are not streamed, both ways.

use serde_json::{Value, json};

use super::super::Format;
use super::super::meter::of_answer;
use super::{arguments, chat_usage, finish_reason, items, messages_usage, stop_reason, text_at};

/// A Chat Completions answer as Messages.
pub fn chat_to_messages(answer: &Value) -> Value {
    let empty = json!({});
    let choice = items(answer, "choices").first().unwrap_or(&empty);
    let message = choice.get("message").unwrap_or(&empty);
    let mut content = Vec::new();
    let thoughts = match text_at(message, "reasoning_content") {
        "" => text_at(message, "reasoning"),
        thoughts => thoughts,
    };
    if !thoughts.is_empty() {
        content.push(json!({ "type": "thinking", "thinking": thoughts, "signature": "" }));
    }
    let text = text_at(message, "content");
    if !text.is_empty() {
        content.push(json!({ "type": "text", "text": text }));
    }
    let calls = items(message, "tool_calls");
    for call in calls {
        let function = &call["function"];
        content.push(json!({
            "type": "tool_use",
            "id": call["id"],
            "name": function["name"],
            "input": arguments(text_at(function, "arguments")),
        }));
    }
    let stopped = match text_at(choice, "finish_reason") {
        // Some services say `stop` beside calls.
        "stop" | "" if !calls.is_empty() => "tool_use",
        reason => stop_reason(reason),
    };
    json!({
        "id": answer.get("id").cloned().unwrap_or_else(|| "msg_translated".into()),
        "type": "message",
        "role": "assistant",
        "model": answer["model"],
        "content": content,
        "stop_reason": stopped,
        "stop_sequence": null,
        "usage": messages_usage(&of_answer(Format::Chat, answer)),
    })
}

/// A Messages answer as Chat Completions; `created` in seconds since 1970.
pub fn messages_to_chat(answer: &Value, created: u64) -> Value {
    let mut text = String::new();
    let mut thoughts = String::new();
    let mut calls = Vec::new();
    for block in items(answer, "content") {
        match text_at(block, "type") {
            "text" => text.push_str(text_at(block, "text")),
            "thinking" => thoughts.push_str(text_at(block, "thinking")),
            "tool_use" => calls.push(json!({
                "id": block["id"], "type": "function", "function": {
                    "name": block["name"],
                    "arguments": block.get("input").unwrap_or(&json!({})).to_string(),
                },
            })),
            _ => {}
        }
    }
    let content = match (text.is_empty(), calls.is_empty()) {
        (true, false) => Value::Null,
        _ => text.into(),
    };
    let mut message = json!({ "role": "assistant", "content": content });
    if !thoughts.is_empty() {
        message["reasoning_content"] = thoughts.into();
    }
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    json!({
        "id": answer["id"],
        "object": "chat.completion",
        "created": created,
        "model": answer["model"],
        "choices": [{
            "index": 0,
            "message": message,
            "finish_reason": finish_reason(text_at(answer, "stop_reason")),
        }],
        "usage": chat_usage(&of_answer(Format::Messages, answer)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_the_same_both_ways() {
        let chat = json!({
            "id": "c", "object": "chat.completion", "created": 7, "model": "m",
            "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
                "role": "assistant", "content": "on it", "reasoning_content": "hm",
                "tool_calls": [{"id": "t", "type": "function",
                    "function": {"name": "f", "arguments": "{\"x\":1}"}}]}}],
            "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
                "prompt_tokens_details": {"cached_tokens": 4}},
        });
        let messages = chat_to_messages(&chat);
        assert_eq!(
            messages,
            json!({
                "id": "c", "type": "message", "role": "assistant", "model": "m",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": ""},
                    {"type": "text", "text": "on it"},
                    {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}],
                "stop_reason": "tool_use", "stop_sequence": null,
                "usage": {"input_tokens": 6, "output_tokens": 5, "cache_read_input_tokens": 4,
                    "cache_creation_input_tokens": 0},
            })
        );
        assert_eq!(messages_to_chat(&messages, 7), chat);
    }

    #[test]
    fn an_empty_answer_is_an_answer() {
        let messages = chat_to_messages(&json!({}));
        assert_eq!(messages["content"], json!([]));
        assert_eq!(messages["stop_reason"], "end_turn");
    }
}
