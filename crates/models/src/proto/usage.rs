//! Tokens of one call, as both formats report them.

use rust_decimal::Decimal;
use serde_json::Value;

/// What one call used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Input that was neither read from the cache nor written to it.
    pub input: u64,
    /// Input read from the provider's cache.
    pub cache_read: u64,
    /// Input written to the cache for five minutes.
    pub cache_write: u64,
    /// Input written to the cache for an hour.
    pub cache_write_hour: u64,
    /// Output.
    pub output: u64,
    /// What the provider itself says that it cost.
    pub stated_cost: Option<Decimal>,
}

impl Usage {
    /// All input, cached or not.
    pub fn total_input(&self) -> u64 {
        self.input
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
            .saturating_add(self.cache_write_hour)
    }

    /// Takes the `usage` of a Messages answer or event; a field that is absent stays as it is.
    pub fn take_messages(&mut self, usage: &Value) {
        let number = |key: &str| usage.get(key).and_then(Value::as_u64);
        if let Some(input) = number("input_tokens") {
            self.input = input;
        }
        if let Some(read) = number("cache_read_input_tokens") {
            self.cache_read = read;
        }
        if let Some(written) = number("cache_creation_input_tokens") {
            let hour = usage
                .pointer("/cache_creation/ephemeral_1h_input_tokens")
                .and_then(Value::as_u64)
                .unwrap_or(0)
                .min(written);
            self.cache_write_hour = hour;
            self.cache_write = written.saturating_sub(hour);
        }
        if let Some(output) = number("output_tokens") {
            self.output = self.output.max(output);
        }
    }

    /// Takes the `usage` of a Chat Completions answer or chunk.
    pub fn take_chat(&mut self, usage: &Value) {
        let number = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
        if let Some(prompt) = number("/prompt_tokens") {
            let read = number("/prompt_tokens_details/cached_tokens")
                .unwrap_or(0)
                .min(prompt);
            self.cache_read = read;
            self.input = prompt.saturating_sub(read);
        }
        if let Some(output) = number("/completion_tokens") {
            self.output = output;
        }
        // The digits as they were written; a number that is no decimal is no price.
        if let Some(Value::Number(cost)) = usage.get("cost") {
            let text = cost.to_string();
            self.stated_cost = Decimal::from_str_exact(&text)
                .or_else(|_| Decimal::from_scientific(&text))
                .ok()
                .filter(|cost| !cost.is_sign_negative());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_formats_are_read() {
        let mut usage = Usage::default();
        usage.take_messages(&json!({
            "input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 100,
            "cache_creation_input_tokens": 50,
            "cache_creation": {"ephemeral_5m_input_tokens": 30, "ephemeral_1h_input_tokens": 20},
        }));
        usage.take_messages(&json!({"output_tokens": 42}));
        assert_eq!(
            usage,
            Usage {
                input: 10,
                cache_read: 100,
                cache_write: 30,
                cache_write_hour: 20,
                output: 42,
                stated_cost: None
            }
        );
        assert_eq!(usage.total_input(), 160);
        let mut usage = Usage::default();
        usage.take_chat(&json!({
            "prompt_tokens": 100, "completion_tokens": 7, "cost": 0.00012,
            "prompt_tokens_details": {"cached_tokens": 64},
        }));
        assert_eq!(
            usage,
            Usage {
                input: 36,
                cache_read: 64,
                output: 7,
                stated_cost: Some("0.00012".parse().unwrap()),
                ..Usage::default()
            }
        );
    }
}
