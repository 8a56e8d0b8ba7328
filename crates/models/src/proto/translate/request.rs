//! Requests, both ways.

use serde_json::{Map, Value, json};

use super::super::provider::{Dialect, Route};
use super::{arguments, items, text_at};

/// Output tokens of a Messages request whose caller set no limit: the format needs one.
const DEFAULT_MAX_TOKENS: u64 = 16_384;

/// A Messages request as Chat Completions.
pub fn chat_request(request: &Value, route: &Route) -> Value {
    let mut out = Map::new();
    out.insert("model".into(), route.model.clone().into());
    out.insert("messages".into(), Value::Array(chat_messages(request)));
    let dialect = route.provider.dialect();
    if let Some(limit) = request.get("max_tokens") {
        let key = match dialect {
            Dialect::OpenAi => "max_completion_tokens",
            Dialect::OpenRouter | Dialect::Plain => "max_tokens",
        };
        out.insert(key.into(), limit.clone());
    }
    let thinks = thinking_budget(request);
    for (from, to) in [
        ("temperature", "temperature"),
        ("top_p", "top_p"),
        ("stop_sequences", "stop"),
        ("stream", "stream"),
    ] {
        if let Some(value) = request.get(from) {
            out.insert(to.into(), value.clone());
        }
    }
    if request.get("stream") == Some(&Value::Bool(true)) {
        out.insert("stream_options".into(), json!({ "include_usage": true }));
    }
    match (dialect, thinks) {
        (Dialect::OpenRouter, Some(Some(budget))) => {
            out.insert("reasoning".into(), json!({ "max_tokens": budget }));
        }
        (Dialect::OpenRouter, Some(None)) => {
            out.insert("reasoning".into(), json!({ "enabled": true }));
        }
        (Dialect::OpenAi, Some(budget)) if reasons(&route.model) => {
            let effort = match budget {
                Some(0..4096) => "low",
                Some(16_384..) => "high",
                _ => "medium",
            };
            out.insert("reasoning_effort".into(), effort.into());
        }
        _ => {}
    }
    if dialect == Dialect::OpenRouter {
        out.insert("usage".into(), json!({ "include": true }));
    }
    let tools: Vec<Value> = items(request, "tools")
        .iter()
        // Tools that the provider itself runs have a type of their own and no schema.
        .filter(|tool| tool.get("input_schema").is_some())
        .map(|tool| {
            json!({ "type": "function", "function": {
                "name": tool["name"],
                "description": text_at(tool, "description"),
                "parameters": tool["input_schema"],
            }})
        })
        .collect();
    if !tools.is_empty() {
        out.insert("tools".into(), Value::Array(tools));
        if let Some(choice) = request.get("tool_choice") {
            let chosen = match text_at(choice, "type") {
                "any" => json!("required"),
                "none" => json!("none"),
                "tool" => json!({ "type": "function", "function": { "name": choice["name"] } }),
                _ => json!("auto"),
            };
            out.insert("tool_choice".into(), chosen);
            if choice.get("disable_parallel_tool_use") == Some(&Value::Bool(true)) {
                out.insert("parallel_tool_calls".into(), false.into());
            }
        }
    }
    if let Some(user) = request.pointer("/metadata/user_id") {
        out.insert("user".into(), user.clone());
    }
    Value::Object(out)
}

/// `None`: no thinking. `Some(None)`: as much as the model likes.
fn thinking_budget(request: &Value) -> Option<Option<u64>> {
    let thinking = request.get("thinking")?;
    match text_at(thinking, "type") {
        "enabled" => Some(thinking.get("budget_tokens").and_then(Value::as_u64)),
        "adaptive" => Some(None),
        _ => None,
    }
}

/// Whether OpenAI's model takes an effort.
fn reasons(model: &str) -> bool {
    ["o1", "o3", "o4", "gpt-5", "gpt-6"]
        .iter()
        .any(|prefix| model.starts_with(prefix))
}

fn chat_messages(request: &Value) -> Vec<Value> {
    let mut messages = Vec::new();
    let system = match request.get("system") {
        Some(Value::String(text)) => text.clone(),
        Some(_) => joined_text(items(request, "system")),
        None => String::new(),
    };
    if !system.is_empty() {
        messages.push(json!({ "role": "system", "content": system }));
    }
    for message in items(request, "messages") {
        let owned;
        let blocks = match message.get("content") {
            Some(Value::String(text)) => {
                owned = [json!({ "type": "text", "text": text })];
                owned.as_slice()
            }
            _ => items(message, "content"),
        };
        match text_at(message, "role") {
            "assistant" => messages.extend(chat_assistant(blocks)),
            _ => chat_user(blocks, &mut messages),
        }
    }
    messages
}

fn joined_text(blocks: &[Value]) -> String {
    let texts: Vec<&str> = blocks
        .iter()
        .filter(|block| text_at(block, "type") == "text")
        .map(|block| text_at(block, "text"))
        .collect();
    texts.join("\n\n")
}

fn chat_assistant(blocks: &[Value]) -> Option<Value> {
    let text: String = blocks
        .iter()
        .filter(|block| text_at(block, "type") == "text")
        .map(|block| text_at(block, "text"))
        .collect();
    let calls: Vec<Value> = blocks
        .iter()
        .filter(|block| text_at(block, "type") == "tool_use")
        .map(|block| {
            let input = block.get("input").cloned().unwrap_or_else(|| json!({}));
            json!({ "id": block["id"], "type": "function", "function": {
                "name": block["name"], "arguments": input.to_string(),
            }})
        })
        .collect();
    let mut message = Map::new();
    message.insert("role".into(), "assistant".into());
    let content = match (text.is_empty(), calls.is_empty()) {
        // Only thoughts, which stay with their own provider.
        (true, true) => return None,
        (true, false) => Value::Null,
        (false, _) => text.into(),
    };
    message.insert("content".into(), content);
    if !calls.is_empty() {
        message.insert("tool_calls".into(), Value::Array(calls));
    }
    Some(Value::Object(message))
}

/// Results first, each a message of its own; then everything else as the user's.
fn chat_user(blocks: &[Value], messages: &mut Vec<Value>) {
    let mut parts = Vec::new();
    for block in blocks {
        if text_at(block, "type") != "tool_result" {
            parts.extend(chat_part(block));
            continue;
        }
        let content = match block.get("content") {
            Some(Value::String(text)) => text.clone(),
            _ => {
                let inner = items(block, "content");
                parts.extend(
                    inner
                        .iter()
                        .filter(|part| text_at(part, "type") == "image")
                        .filter_map(chat_part),
                );
                joined_text(inner)
            }
        };
        let content = match block.get("is_error") {
            Some(Value::Bool(true)) => format!("error: {content}"),
            _ => content,
        };
        messages.push(json!({
            "role": "tool", "tool_call_id": block["tool_use_id"], "content": content,
        }));
    }
    let only_text = parts.iter().all(|part| text_at(part, "type") == "text");
    match (parts.is_empty(), only_text) {
        (true, _) => {}
        (false, true) => {
            messages.push(json!({ "role": "user", "content": joined_text(&parts) }));
        }
        (false, false) => messages.push(json!({ "role": "user", "content": parts })),
    }
}

fn chat_part(block: &Value) -> Option<Value> {
    match text_at(block, "type") {
        "text" => Some(json!({ "type": "text", "text": block["text"] })),
        "image" => {
            let source = block.get("source")?;
            let url = match text_at(source, "type") {
                "base64" => format!(
                    "data:{};base64,{}",
                    text_at(source, "media_type"),
                    text_at(source, "data")
                ),
                "url" => text_at(source, "url").to_owned(),
                _ => return None,
            };
            Some(json!({ "type": "image_url", "image_url": { "url": url } }))
        }
        _ => None,
    }
}

/// A Chat Completions request as Messages.
pub fn messages_request(request: &Value, route: &Route) -> Value {
    let mut out = Map::new();
    out.insert("model".into(), route.model.clone().into());
    let mut system = Vec::new();
    let mut messages: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in items(request, "messages") {
        let (role, blocks) = match text_at(message, "role") {
            "system" | "developer" => {
                system.extend(messages_blocks(message));
                continue;
            }
            "assistant" => ("assistant", messages_assistant(message)),
            "tool" => ("user", vec![messages_result(message)]),
            _ => ("user", messages_blocks(message)),
        };
        if blocks.is_empty() {
            continue;
        }
        match messages.last_mut() {
            // Results of parallel calls are one message there.
            Some((last, all)) if *last == role => all.extend(blocks),
            _ => messages.push((role, blocks)),
        }
    }
    if !system.is_empty() {
        out.insert("system".into(), Value::Array(system));
    }
    let messages = messages
        .into_iter()
        .map(|(role, content)| json!({ "role": role, "content": content }))
        .collect();
    out.insert("messages".into(), Value::Array(messages));
    let limit = ["max_completion_tokens", "max_tokens"]
        .iter()
        .find_map(|key| request.get(*key)?.as_u64());
    let thinking = match text_at(request, "reasoning_effort") {
        "low" => Some(2048),
        "medium" => Some(8192),
        "high" | "xhigh" => Some(16_384),
        _ => None,
    };
    let mut max_tokens = limit.unwrap_or(DEFAULT_MAX_TOKENS);
    if let Some(budget) = thinking {
        // The limit there counts the thoughts too.
        max_tokens = max_tokens.saturating_add(budget);
        let thinking = json!({ "type": "enabled", "budget_tokens": budget });
        out.insert("thinking".into(), thinking);
    } else {
        for key in ["temperature", "top_p"] {
            if let Some(value) = request.get(key).filter(|value| !value.is_null()) {
                out.insert(key.into(), value.clone());
            }
        }
    }
    out.insert("max_tokens".into(), max_tokens.into());
    if let Some(stream) = request.get("stream") {
        out.insert("stream".into(), stream.clone());
    }
    match request.get("stop") {
        Some(Value::String(stop)) => {
            out.insert("stop_sequences".into(), json!([stop]));
        }
        Some(list @ Value::Array(_)) => {
            out.insert("stop_sequences".into(), list.clone());
        }
        _ => {}
    }
    let tools: Vec<Value> = items(request, "tools")
        .iter()
        .filter_map(|tool| tool.get("function"))
        .map(|function| {
            let schema = function
                .get("parameters")
                .cloned()
                .unwrap_or_else(|| json!({ "type": "object", "properties": {} }));
            json!({
                "name": function["name"],
                "description": text_at(function, "description"),
                "input_schema": schema,
            })
        })
        .collect();
    if !tools.is_empty() {
        out.insert("tools".into(), Value::Array(tools));
        let mut choice = match request.get("tool_choice") {
            Some(Value::String(word)) if word == "required" => json!({ "type": "any" }),
            Some(Value::String(word)) if word == "none" => json!({ "type": "none" }),
            Some(Value::Object(one)) => json!({
                "type": "tool",
                "name": one.get("function").map_or("", |function| text_at(function, "name")),
            }),
            _ => json!({ "type": "auto" }),
        };
        if request.get("parallel_tool_calls") == Some(&Value::Bool(false)) {
            choice["disable_parallel_tool_use"] = true.into();
        }
        out.insert("tool_choice".into(), choice);
    }
    if let Some(user) = request.get("user").filter(|user| user.is_string()) {
        out.insert("metadata".into(), json!({ "user_id": user }));
    }
    Value::Object(out)
}

fn messages_blocks(message: &Value) -> Vec<Value> {
    match message.get("content") {
        Some(Value::String(text)) if !text.is_empty() => {
            vec![json!({ "type": "text", "text": text })]
        }
        _ => items(message, "content")
            .iter()
            .filter_map(messages_part)
            .collect(),
    }
}

fn messages_part(part: &Value) -> Option<Value> {
    match text_at(part, "type") {
        "text" if !text_at(part, "text").is_empty() => {
            Some(json!({ "type": "text", "text": part["text"] }))
        }
        "image_url" => {
            let url = part.pointer("/image_url/url")?.as_str()?;
            let inline = url
                .strip_prefix("data:")
                .and_then(|rest| rest.split_once(";base64,"));
            let source = match inline {
                Some((media_type, data)) => {
                    json!({ "type": "base64", "media_type": media_type, "data": data })
                }
                None => json!({ "type": "url", "url": url }),
            };
            Some(json!({ "type": "image", "source": source }))
        }
        _ => None,
    }
}

fn messages_assistant(message: &Value) -> Vec<Value> {
    let mut blocks = messages_blocks(message);
    for call in items(message, "tool_calls") {
        let function = &call["function"];
        blocks.push(json!({
            "type": "tool_use",
            "id": call["id"],
            "name": function["name"],
            "input": arguments(text_at(function, "arguments")),
        }));
    }
    blocks
}

fn messages_result(message: &Value) -> Value {
    json!({
        "type": "tool_result",
        "tool_use_id": message["tool_call_id"],
        "content": messages_blocks(message),
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::provider::{Provider, ProviderKind};
    use super::*;
    use proptest::prelude::*;

    fn route(base_url: &str, model: &str) -> Route {
        Route {
            model: model.to_owned(),
            provider: std::sync::Arc::new(Provider {
                name: "p".to_owned(),
                kind: ProviderKind::OpenAi,
                base_url: base_url.to_owned(),
                key: None,
                models: Vec::new(),
                prices: Default::default(),
            }),
        }
    }

    #[test]
    fn a_conversation_with_tools_thoughts_and_images_becomes_chat() {
        let request = json!({
            "model": "x", "max_tokens": 100, "stream": true,
            "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
            "thinking": {"type": "enabled", "budget_tokens": 9000},
            "tools": [{"name": "exec", "description": "d", "input_schema": {"type": "object"}},
                      {"type": "web_search_1", "name": "web_search"}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
            "messages": [
                {"role": "user", "content": "look"},
                {"role": "assistant", "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "looking"},
                    {"type": "tool_use", "id": "t1", "name": "exec", "input": {"command": "ls"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "is_error": true, "content": [
                        {"type": "text", "text": "no"},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                    ]},
                    {"type": "text", "text": "and now?"},
                ]},
            ],
        });
        assert_eq!(
            chat_request(&request, &route("https://api.openai.com/v1", "gpt-5")),
            json!({
                "model": "gpt-5", "max_completion_tokens": 100, "stream": true,
                "stream_options": {"include_usage": true},
                "reasoning_effort": "medium",
                "tools": [{"type": "function", "function":
                    {"name": "exec", "description": "d", "parameters": {"type": "object"}}}],
                "tool_choice": "required", "parallel_tool_calls": false,
                "messages": [
                    {"role": "system", "content": "be brief"},
                    {"role": "user", "content": "look"},
                    {"role": "assistant", "content": "looking", "tool_calls": [
                        {"id": "t1", "type": "function",
                         "function": {"name": "exec", "arguments": "{\"command\":\"ls\"}"}}]},
                    {"role": "tool", "tool_call_id": "t1", "content": "error: no"},
                    {"role": "user", "content": [
                        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
                        {"type": "text", "text": "and now?"}]},
                ],
            })
        );
        let plain = chat_request(&request, &route("http://127.0.0.1/v1", "llama"));
        assert_eq!(plain["max_tokens"], 100);
        assert_eq!(plain.get("reasoning_effort"), None);
    }

    #[test]
    fn chat_becomes_a_conversation() {
        let request = json!({
            "model": "x", "max_completion_tokens": 50, "stop": "END", "temperature": 0.5,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "messages": [
                {"role": "system", "content": "s"},
                {"role": "user", "content": [{"type": "text", "text": "hi"},
                    {"type": "image_url", "image_url": {"url": "https://h/i.png"}}]},
                {"role": "assistant", "content": null, "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
                    {"id": "b", "type": "function", "function": {"name": "f", "arguments": "oops"}}]},
                {"role": "tool", "tool_call_id": "a", "content": "1"},
                {"role": "tool", "tool_call_id": "b", "content": "2"},
            ],
        });
        assert_eq!(
            messages_request(&request, &route("https://api.anthropic.com", "claude-x")),
            json!({
                "model": "claude-x", "max_tokens": 50, "temperature": 0.5,
                "stop_sequences": ["END"],
                "system": [{"type": "text", "text": "s"}],
                "tools": [{"name": "f", "description": "", "input_schema": {"type": "object"}}],
                "tool_choice": {"type": "auto"},
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "hi"},
                        {"type": "image", "source": {"type": "url", "url": "https://h/i.png"}}]},
                    {"role": "assistant", "content": [
                        {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                        {"type": "tool_use", "id": "b", "name": "f",
                         "input": {"_unreadable_arguments": "oops"}}]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}]},
                        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}]}]},
                ],
            })
        );
    }

    fn block() -> impl Strategy<Value = Value> {
        prop_oneof![
            "[a-z ]{1,12}".prop_map(|text| json!({"type": "text", "text": text})),
            ("[a-z]{1,4}", "[a-z]{0,6}").prop_map(|(name, value)| json!({
                "type": "tool_use", "id": format!("id_{name}"), "name": name, "input": {"v": value},
            })),
        ]
    }

    proptest! {
        /// There and back: the texts and calls of an assistant are the same.
        #[test]
        fn an_assistant_survives_both_ways(blocks in prop::collection::vec(block(), 1..6)) {
            let request = json!({"messages": [{"role": "assistant", "content": blocks}], "max_tokens": 1});
            let at = route("http://h/v1", "m");
            let back = messages_request(&chat_request(&request, &at), &at);
            let content = back.pointer("/messages/0/content").cloned().unwrap_or_default();
            let of = |kind: &str, list: &[Value]| -> Vec<Value> {
                list.iter().filter(|b| text_at(b, "type") == kind).cloned().collect()
            };
            let text = |list: &[Value]| -> String {
                of("text", list).iter().map(|b| text_at(b, "text").to_owned()).collect()
            };
            let content = content.as_array().cloned().unwrap_or_default();
            prop_assert_eq!(of("tool_use", &content), of("tool_use", &blocks));
            prop_assert_eq!(text(&content), text(&blocks));
        }

        /// A request of any shape is translated without a panic.
        #[test]
        fn odd_requests_do_no_harm(text in "[\\[\\]{}:,\"a-z0-9]{0,60}") {
            let odd: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!(text));
            let at = route("http://h/v1", "m");
            for request in [odd.clone(), json!({"messages": odd}), json!({"messages": [odd]}),
                            json!({"messages": [{"role": "user", "content": odd}], "tools": odd})] {
                chat_request(&request, &at);
                messages_request(&request, &at);
            }
        }
    }
}
