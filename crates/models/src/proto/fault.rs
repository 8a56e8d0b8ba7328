//! Errors: what a provider or the gateway refuses, as a sentence with what to do.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::Format;
use super::provider::Route;
use super::retry::Failure;
use super::sse;

/// A provider's words in a sentence, at the most.
const MAX_WORDS: usize = 400;

/// What else helps against a model that can't be had.
const FALL_BACK: &str =
    "name a model to go on with: `quintet config set agents.NAME.fallback '[\"PROVIDER/MODEL\"]'`";

/// How a call of a provider failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultKind {
    /// It answered with an error.
    Status {
        /// The status, or the one that an error event stands for.
        code: u16,
        /// Its words.
        message: String,
        /// What `Retry-After` asked for.
        retry_after: Option<Duration>,
    },
    /// It could not be reached, or hung up before it answered.
    Unreachable {
        /// Why.
        reason: String,
    },
    /// It said nothing for so long.
    Silent {
        /// How long.
        after: Duration,
    },
    /// The answer ended in the middle.
    CutOff,
    /// The answer can't be read.
    Unreadable {
        /// What is wrong with it.
        reason: String,
    },
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The provider's name.
    pub provider: String,
    /// Its host.
    pub host: String,
    /// The model that was asked for.
    pub model: String,
    /// What happened.
    pub kind: FaultKind,
}

impl Fault {
    /// A failed call of a route.
    pub fn new(route: &Route, kind: FaultKind) -> Self {
        Self {
            provider: route.provider.name.clone(),
            host: route.provider.host().to_owned(),
            model: route.model.clone(),
            kind,
        }
    }

    /// What a retry looks at.
    pub fn failure(&self) -> Failure {
        match &self.kind {
            FaultKind::Status {
                code, retry_after, ..
            } => Failure::Status {
                code: *code,
                retry_after: *retry_after,
            },
            FaultKind::Unreachable { .. } | FaultKind::CutOff => Failure::Unreachable,
            FaultKind::Silent { .. } => Failure::Silent,
            FaultKind::Unreadable { .. } => Failure::Unreadable,
        }
    }

    /// What the caller is answered.
    pub fn refusal(&self) -> Refusal {
        let (status, kind, retry_after) = match &self.kind {
            FaultKind::Status {
                code, retry_after, ..
            } => match code {
                // The caller's own key is fine: 401 would tell it otherwise.
                401 | 403 => (403, "permission_error", None),
                402 => (403, "billing_error", None),
                404 => (404, "not_found_error", None),
                413 => (413, "request_too_large", None),
                429 => (429, "rate_limit_error", *retry_after),
                503 | 529 => (529, "overloaded_error", *retry_after),
                400..=499 => (400, "invalid_request_error", None),
                _ => (502, "api_error", None),
            },
            FaultKind::Silent { .. } => (504, "timeout_error", None),
            _ => (502, "api_error", None),
        };
        Refusal {
            status,
            kind,
            message: self.sentence(),
            retry_after,
        }
    }

    fn sentence(&self) -> String {
        let Self {
            provider, model, ..
        } = self;
        match &self.kind {
            FaultKind::Status {
                code,
                message,
                retry_after,
            } => {
                let words = clip(message);
                let again = |otherwise: &str| match retry_after {
                    Some(after) => format!("Try again in {} s", after.as_secs_f32().ceil()),
                    None => otherwise.to_owned(),
                };
                match code {
                    401 | 403 => format!(
                        "{provider} refused the key ({code}): {words}. Set another with `quintet config set providers.{provider}.api_key KEY`"
                    ),
                    402 => format!(
                        "{provider} says that the account can't pay for this ({code}): {words}. Add credit there, or set another model for the agent"
                    ),
                    404 => format!(
                        "{provider} does not know {model} ({code}): {words}. Set another with `quintet config set agents.NAME.model MODEL`"
                    ),
                    413 => format!(
                        "the conversation is too large for {provider} ({code}): {words}. `quintet compact` makes it shorter"
                    ),
                    429 => format!(
                        "{provider} limits how much may be asked at a time ({code}): {words}. {}, or {FALL_BACK}",
                        again("Wait a little")
                    ),
                    503 | 529 => format!(
                        "{provider} is overloaded ({code}): {words}. {}, or {FALL_BACK}",
                        again("Try again later")
                    ),
                    400 if words.contains("credit") || words.contains("billing") => format!(
                        "{provider} says that the account can't pay for this: {words}. Add credit there, or set another model for the agent"
                    ),
                    400 if is_too_long(&words) => {
                        format!(
                            "the conversation is too long for {model}: {words}. `quintet compact` makes it shorter"
                        )
                    }
                    400..=499 => format!("{provider} refused the request ({code}): {words}"),
                    _ => format!("{provider} failed ({code}): {words}. Try again, or {FALL_BACK}"),
                }
            }
            FaultKind::Unreachable { reason } => format!(
                "{provider} can't be reached at {}: {}. Check the network and providers.{provider}.base_url",
                self.host,
                clip(reason)
            ),
            FaultKind::Silent { after } => format!(
                "{provider} sent nothing for {} s. Try again, or {FALL_BACK}",
                after.as_secs_f32()
            ),
            FaultKind::CutOff => {
                format!("{provider} ended its answer in the middle. Try again")
            }
            FaultKind::Unreadable { reason } => format!(
                "what {provider} answered can't be read: {}. Check that providers.{provider}.kind and base_url fit the service",
                clip(reason)
            ),
        }
    }
}

fn clip(words: &str) -> String {
    let words = words.trim().trim_end_matches('.');
    let mut clipped: String = words.chars().take(MAX_WORDS).collect();
    if clipped.len() < words.len() {
        clipped.push('\u{2026}');
    }
    clipped
}

/// An error as a caller gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// The error's type, in the words of the Messages format.
    pub kind: &'static str,
    /// A sentence with what to do.
    pub message: String,
    /// When to come again.
    pub retry_after: Option<Duration>,
}

/// The `type` of a refusal because a budget is used up; its status is 402.
pub const BUDGET_KIND: &str = "budget_error";

impl Refusal {
    /// A refusal of the gateway's own.
    pub fn new(status: u16, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: message.into(),
            retry_after: None,
        }
    }

    /// The same, with the agent that it is told to where the settings of one are named.
    pub fn to_agent(mut self, agent: &str) -> Self {
        let settings = format!("agents.{agent}.");
        self.message = self.message.replace("agents.NAME.", &settings);
        self
    }

    /// The error in the caller's format.
    pub fn body(&self, format: Format) -> Value {
        match format {
            Format::Messages => json!({
                "type": "error",
                "error": { "type": self.kind, "message": self.message },
            }),
            Format::Chat => json!({
                "error": { "message": self.message, "type": self.kind, "param": null, "code": null },
            }),
        }
    }

    /// The error as the last event of a stream.
    pub fn event(&self, format: Format) -> Bytes {
        let body = self.body(format).to_string();
        match format {
            Format::Messages => sse::encode(Some("error"), &body),
            Format::Chat => sse::encode(None, &body),
        }
    }
}

/// A provider's own words in the body of an error.
pub fn provider_words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let found = serde_json::from_str::<Value>(&text).ok().and_then(|json| {
        [
            "/error/message",
            "/message",
            "/error",
            "/detail",
            "/0/error/message",
        ]
        .iter()
        .find_map(|pointer| json.pointer(pointer)?.as_str().map(str::to_owned))
    });
    let words = found.unwrap_or_else(|| match text.trim() {
        "" => "it gave no reason".to_owned(),
        page if page.starts_with('<') => "it answered with a web page".to_owned(),
        text => text.to_owned(),
    });
    clip(&words.replace(['\n', '\r'], " "))
}

/// Whether an error of that type or code is about an account without money.
pub fn is_unpaid(name: &str) -> bool {
    matches!(name, "insufficient_quota" | "billing_error")
}

/// The status that an error stands for: an empty account also comes as too many requests, which no
/// wait helps against.
pub fn meant_by(status: u16, body: &[u8]) -> u16 {
    let json: Value = serde_json::from_slice(body).unwrap_or_default();
    let names = ["/error/type", "/error/code"];
    let mut names = names.iter().filter_map(|it| json.pointer(it)?.as_str());
    match names.any(is_unpaid) {
        true => 402,
        false => status,
    }
}

/// A key that is shorter is none: servers of one's own are given words such as `x` or `none`, and
/// an answer without those would be no answer.
const SHORTEST_SECRET: usize = 8;

/// Text without a secret.
pub fn without_secret<'t>(text: &'t str, secret: Option<&str>) -> Cow<'t, str> {
    match secret {
        Some(secret) if secret.len() >= SHORTEST_SECRET && text.contains(secret) => {
            Cow::Owned(text.replace(secret, "***"))
        }
        _ => Cow::Borrowed(text),
    }
}

/// Whether these words of a provider say that the conversation does not fit into its model.
fn is_too_long(words: &str) -> bool {
    let said = [
        "too long",
        "context length",
        "context window",
        "context size",
    ];
    said.iter().any(|part| words.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(kind: FaultKind) -> Fault {
        Fault {
            provider: "anthropic".to_owned(),
            host: "api.anthropic.com".to_owned(),
            model: "claude-x".to_owned(),
            kind,
        }
    }

    fn status(code: u16, message: &str) -> Refusal {
        fault(FaultKind::Status {
            code,
            message: message.to_owned(),
            retry_after: None,
        })
        .refusal()
    }

    #[test]
    fn every_error_says_what_to_do() {
        for (refusal, code, part) in [
            (
                status(401, "invalid x-api-key"),
                403,
                "config set providers.anthropic.api_key",
            ),
            (status(404, "model: claude-x"), 404, "agents.NAME.model"),
            (status(429, "slow"), 429, "fallback"),
            (status(529, "Overloaded"), 529, "later"),
            (status(500, "oops"), 502, "Try again"),
            (
                status(400, "Your credit balance is too low"),
                400,
                "Add credit",
            ),
            (status(400, "prompt is too long: 9 > 8"), 400, "compact"),
            (
                status(400, "This model's maximum context length is 8 tokens"),
                400,
                "compact",
            ),
            (
                status(400, "Your input exceeds the context window of this model"),
                400,
                "compact",
            ),
            (
                status(400, "the request exceeds the available context size"),
                400,
                "compact",
            ),
        ] {
            assert_eq!(refusal.status, code);
            assert!(refusal.message.contains(part), "{}", refusal.message);
        }
        let limited = fault(FaultKind::Status {
            code: 429,
            message: "slow".to_owned(),
            retry_after: Some(Duration::from_millis(89_500)),
        });
        let message = limited.refusal().to_agent("coder").message;
        assert!(message.contains("Try again in 90 s"), "{message}");
        assert!(
            message.contains("quintet config set agents.coder.fallback"),
            "{message}"
        );
        let unreachable = fault(FaultKind::Unreachable {
            reason: "connection refused".to_owned(),
        });
        let message = unreachable.refusal().message;
        assert!(message.contains("base_url"), "{message}");
    }

    #[test]
    fn words_are_found_in_every_kind_of_body() {
        for (body, words) in [
            (
                r#"{"type":"error","error":{"type":"x","message":"a"}}"#,
                "a",
            ),
            (r#"{"error":"b"}"#, "b"),
            (r#"{"detail":"c"}"#, "c"),
            ("<html>..", "it answered with a web page"),
            ("", "it gave no reason"),
            ("plain\ntext", "plain text"),
        ] {
            assert_eq!(provider_words(body.as_bytes()), words);
        }
        assert!(provider_words("\u{e9}".repeat(5000).as_bytes()).len() < 1000);
    }

    #[test]
    fn a_key_that_a_provider_echoes_is_taken_out() {
        assert_eq!(
            without_secret("key sk-12345 wrong", Some("sk-12345")),
            "key *** wrong"
        );
        assert_eq!(without_secret("nothing", Some("")), "nothing");
        assert_eq!(without_secret("a blank key", Some("k")), "a blank key");
    }
}
