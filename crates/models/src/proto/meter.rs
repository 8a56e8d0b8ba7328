//! What a stream used, read off the events as they pass.

use serde_json::Value;

use super::Format;
use super::fault::is_unpaid;
use super::sse::Event;
use super::usage::Usage;

/// Characters of text for a token, where nobody says how many tokens there were.
const BYTES_PER_TOKEN: u64 = 4;

/// What an event is to the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// A part of the answer.
    Part,
    /// Nothing of the answer: a comment, a ping, what can't be read.
    Quiet,
    /// Only the usage, which a Chat Completions caller gets when it asked for it.
    UsageOnly,
    /// The last event.
    End,
    /// The provider's error instead of the rest.
    Error {
        /// The status that it stands for.
        code: u16,
        /// The provider's words.
        message: String,
    },
}

/// Reads the usage off a stream.
#[derive(Debug)]
pub struct Meter {
    format: Format,
    usage: Usage,
    /// What was asked, estimated.
    asked: u64,
    text_bytes: u64,
    /// The provider said how many output tokens there were in all.
    counted: bool,
    finished: bool,
}

impl Meter {
    /// For a stream of that format, in answer to this request.
    pub fn new(format: Format, request: &[u8]) -> Self {
        Self {
            format,
            usage: Usage::default(),
            asked: estimated(request),
            text_bytes: 0,
            counted: false,
            finished: false,
        }
    }

    /// What was used so far. What nobody has counted yet is estimated from its length: a caller that
    /// hangs up before the count, which Chat Completions have at the end, has used it all the same.
    pub fn usage(&self) -> Usage {
        let mut usage = self.usage;
        if !self.counted {
            usage.output = usage.output.max(self.text_bytes.div_ceil(BYTES_PER_TOKEN));
            if usage.total_input() == 0 {
                usage.input = self.asked;
            }
        }
        usage
    }

    /// Whether the answer came to its end, also where the stream's last word is missing.
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Looks at an event.
    pub fn observe(&mut self, event: &Event) -> Seen {
        match self.format {
            Format::Messages => self.messages(event),
            Format::Chat => self.chat(event),
        }
    }

    fn messages(&mut self, event: &Event) -> Seen {
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else {
            return Seen::Quiet;
        };
        match data.get("type").and_then(Value::as_str).unwrap_or_default() {
            "message_start" => {
                if let Some(usage) = data.pointer("/message/usage") {
                    self.usage.take_messages(usage);
                }
                Seen::Part
            }
            "content_block_delta" => {
                for text in ["text", "thinking", "partial_json"] {
                    self.count(data.pointer(&format!("/delta/{text}")));
                }
                Seen::Part
            }
            "message_delta" => {
                if let Some(usage) = data.get("usage") {
                    self.usage.take_messages(usage);
                    self.counted = true;
                }
                self.finished = true;
                Seen::Part
            }
            "message_stop" => {
                self.finished = true;
                Seen::End
            }
            "error" => error(data.get("error")),
            "ping" | "" => Seen::Quiet,
            _ => Seen::Part,
        }
    }

    fn chat(&mut self, event: &Event) -> Seen {
        if event.data.trim() == "[DONE]" {
            self.finished = true;
            return Seen::End;
        }
        let Ok(data) = serde_json::from_str::<Value>(&event.data) else {
            return Seen::Quiet;
        };
        if let Some(failed) = data.get("error").filter(|error| !error.is_null()) {
            return error(Some(failed));
        }
        let usage = data.get("usage").filter(|usage| usage.is_object());
        if let Some(usage) = usage {
            self.usage.take_chat(usage);
            self.counted = true;
        }
        let choices = data.get("choices").and_then(Value::as_array);
        for choice in choices.into_iter().flatten() {
            for text in ["content", "reasoning_content", "reasoning"] {
                self.count(choice.pointer(&format!("/delta/{text}")));
            }
            let calls = choice
                .pointer("/delta/tool_calls")
                .and_then(Value::as_array);
            for call in calls.into_iter().flatten() {
                self.count(call.pointer("/function/arguments"));
            }
            if choice.get("finish_reason").is_some_and(Value::is_string) {
                self.finished = true;
            }
        }
        match (usage, choices) {
            (Some(_), Some(choices)) if choices.is_empty() => Seen::UsageOnly,
            (None, None) => Seen::Quiet,
            _ => Seen::Part,
        }
    }

    fn count(&mut self, text: Option<&Value>) {
        if let Some(text) = text.and_then(Value::as_str) {
            self.text_bytes = self.text_bytes.saturating_add(text.len() as u64);
        }
    }
}

/// The tokens of a request. Data of pictures and the like is no text: it counts as one picture.
pub fn estimated(request: &[u8]) -> u64 {
    const PICTURE: u64 = 1600;
    const LONGEST_WORD: usize = 4096;
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=_-".contains(byte);
    let runs = request.chunk_by(|a, b| is_word(a) == is_word(b));
    runs.map(|run| match run.first().is_some_and(is_word) {
        true if run.len() > LONGEST_WORD => PICTURE.saturating_mul(BYTES_PER_TOKEN),
        _ => run.len() as u64,
    })
    .fold(0, u64::saturating_add)
    .div_ceil(BYTES_PER_TOKEN)
}

fn error(error: Option<&Value>) -> Seen {
    let text = |key: &str| error.and_then(|error| error.get(key)?.as_str());
    let number = error.and_then(|error| error.get("code")?.as_u64());
    let code = match text("type").or_else(|| text("code")).unwrap_or_default() {
        "overloaded_error" => 529,
        "rate_limit_error" | "rate_limit_exceeded" => 429,
        "invalid_request_error" => 400,
        "authentication_error" => 401,
        "permission_error" => 403,
        "not_found_error" => 404,
        "request_too_large" => 413,
        name if is_unpaid(name) => 402,
        _ => number
            .and_then(|code| u16::try_from(code).ok())
            .filter(|code| (400..600).contains(code))
            .unwrap_or(500),
    };
    let message = text("message")
        .or_else(|| error.and_then(Value::as_str))
        .unwrap_or("it gave no reason");
    Seen::Error {
        code,
        message: message.to_owned(),
    }
}

/// What an answer that was not streamed used.
pub fn of_answer(format: Format, answer: &Value) -> Usage {
    let mut usage = Usage::default();
    if let Some(reported) = answer.get("usage") {
        match format {
            Format::Messages => usage.take_messages(reported),
            Format::Chat => usage.take_chat(reported),
        }
    }
    usage
}

#[cfg(test)]
mod tests {
    use super::super::sse::Splitter;
    use super::*;
    use proptest::prelude::*;

    const MESSAGES: &str = concat!(
        "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":12,\"cache_read_input_tokens\":5,\"output_tokens\":1}}}\n\n",
        "event: ping\ndata: {\"type\":\"ping\"}\n\n",
        "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
        "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hello, world\"}}\n\n",
        "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":2}}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
    );

    const CHAT: &str = concat!(
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"Hel\"}}]}\n\n",
        "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"lo\"},\"finish_reason\":\"stop\"}]}\n\n",
        "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":4}}\n\n",
        "data: [DONE]\n\n",
    );

    fn metered(format: Format, parts: &[&[u8]]) -> (Usage, Vec<Seen>) {
        let mut splitter = Splitter::new(4096);
        let mut meter = Meter::new(format, b"");
        let mut seen = Vec::new();
        for part in parts {
            splitter.push(part);
            while let Some(event) = splitter.next_event().unwrap() {
                seen.push(meter.observe(&event));
            }
        }
        (meter.usage(), seen)
    }

    #[test]
    fn both_formats_are_metered_at_every_split() {
        for (format, stream, usage) in [
            (
                Format::Messages,
                MESSAGES,
                Usage {
                    input: 12,
                    cache_read: 5,
                    output: 2,
                    ..Usage::default()
                },
            ),
            (
                Format::Chat,
                CHAT,
                Usage {
                    input: 9,
                    output: 4,
                    ..Usage::default()
                },
            ),
        ] {
            let bytes = stream.as_bytes();
            let whole = metered(format, &[bytes]);
            assert_eq!(whole.0, usage);
            assert_eq!(whole.1.last(), Some(&Seen::End));
            for at in 0..bytes.len() {
                assert_eq!(metered(format, &[&bytes[..at], &bytes[at..]]), whole);
            }
        }
    }

    #[test]
    fn a_stream_that_is_cut_off_is_estimated() {
        let cut = MESSAGES.find("event: message_delta").unwrap();
        let (usage, _) = metered(Format::Messages, &[&MESSAGES.as_bytes()[..cut]]);
        assert_eq!((usage.input, usage.output), (12, 3));
        let cut = CHAT.find("data: {\"id\":\"c\",\"choices\":[]").unwrap();
        let (usage, _) = metered(Format::Chat, &[&CHAT.as_bytes()[..cut]]);
        assert_eq!(usage.output, 2);
    }

    #[test]
    fn errors_are_seen_with_their_status() {
        let event = |data: &str| Event {
            raw: Default::default(),
            name: String::new(),
            data: data.to_owned(),
        };
        let overloaded =
            r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
        assert_eq!(
            Meter::new(Format::Messages, b"").observe(&event(overloaded)),
            Seen::Error {
                code: 529,
                message: "Overloaded".to_owned()
            }
        );
        let limited = r#"{"error":{"code":429,"message":"slow down"}}"#;
        assert_eq!(
            Meter::new(Format::Chat, b"").observe(&event(limited)),
            Seen::Error {
                code: 429,
                message: "slow down".to_owned()
            }
        );
    }

    #[test]
    fn a_request_is_estimated_without_its_pictures() {
        assert_eq!(estimated(b""), 0);
        assert_eq!(estimated("{\"text\": \"four words of it\"}".as_bytes()), 7);
        let picture = format!("{{\"data\": \"{}\"}}", "iVBORw0K/+".repeat(100_000));
        assert_eq!(estimated(picture.as_bytes()), 1603);
        let meter = Meter::new(Format::Chat, b"{\"messages\": []}");
        assert_eq!(meter.usage().input, 4);
    }

    proptest! {
        /// Garbage neither panics nor counts.
        #[test]
        fn garbage_is_quiet(data in ".{0,200}") {
            let event = Event { raw: Default::default(), name: String::new(), data };
            for format in [Format::Messages, Format::Chat] {
                let mut meter = Meter::new(format, b"");
                meter.observe(&event);
                prop_assert_eq!(meter.usage().input, 0);
            }
        }

        #[test]
        fn random_parts_are_metered_alike(cuts in prop::collection::vec(0usize..CHAT.len(), 0..8)) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let bytes = CHAT.as_bytes();
            let mut parts = Vec::new();
            let mut at = 0;
            for cut in cuts {
                parts.push(&bytes[at..cut]);
                at = cut;
            }
            parts.push(&bytes[at..]);
            prop_assert_eq!(metered(Format::Chat, &parts), metered(Format::Chat, &[bytes]));
        }
    }
}
