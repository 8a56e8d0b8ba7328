//! One format as the other, so that a caller speaks one format to every provider.
//!
//! | Messages | Chat Completions |
//! |---|---|
//! | `system` | a `system` message |
//! | `text`, `image` | `text`, `image_url` |
//! | `tool_use`, `tool_result` | `tool_calls`, a `tool` message; images of a result follow as a user's |
//! | `thinking` in an answer | `reasoning_content` (or `reasoning`) |
//! | `thinking` in a request | left out: it is signed for its own provider |
//! | `thinking: {..}` | `reasoning_effort` or `reasoning`, where the service has it |
//! | `cache_control` | left out: these services cache by themselves |
//!
//! What one side has no word for is left out, never guessed.

mod answer;
mod request;
mod stream;

pub use answer::{chat_to_messages, messages_to_chat};
pub use request::{chat_request, messages_request};
pub use stream::{ChatToMessages, MessagesToChat, TranslateError};

use serde_json::Value;

/// Why the model stopped, in the words of the Messages format.
fn stop_reason(finish_reason: &str) -> &'static str {
    match finish_reason {
        "length" => "max_tokens",
        "tool_calls" | "function_call" => "tool_use",
        "content_filter" => "refusal",
        _ => "end_turn",
    }
}

/// Why the model stopped, in the words of Chat Completions.
fn finish_reason(stop_reason: &str) -> &'static str {
    match stop_reason {
        "max_tokens" | "model_context_window_exceeded" => "length",
        "tool_use" => "tool_calls",
        "refusal" => "content_filter",
        _ => "stop",
    }
}

fn text_at<'v>(value: &'v Value, key: &str) -> &'v str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn items<'v>(value: &'v Value, key: &str) -> &'v [Value] {
    value
        .get(key)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// The arguments of a call: an object, also where the model wrote something else.
fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(object @ Value::Object(_)) => object,
        _ if text.trim().is_empty() => Value::Object(Default::default()),
        // Kept, so that the model can be told what it wrote.
        _ => serde_json::json!({ "_unreadable_arguments": text }),
    }
}

/// The usage of a Chat Completions answer in the words of the Messages format.
fn messages_usage(usage: &super::usage::Usage) -> Value {
    serde_json::json!({
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cache_read,
        "cache_creation_input_tokens": usage.cache_write.saturating_add(usage.cache_write_hour),
    })
}

/// The usage of a Messages answer in the words of Chat Completions.
fn chat_usage(usage: &super::usage::Usage) -> Value {
    serde_json::json!({
        "prompt_tokens": usage.total_input(),
        "completion_tokens": usage.output,
        "total_tokens": usage.total_input().saturating_add(usage.output),
        "prompt_tokens_details": { "cached_tokens": usage.cache_read },
    })
}
