//! A caller's request: looked into, and passed on as the bytes it was.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::Format;
use super::meter::estimated;
use super::provider::{Dialect, Route};
use super::usage::Usage;

/// Tokens of an answer to a request that does not say how long it may be.
const USUAL_OUTPUT: u64 = 4096;

/// Why a body can't be taken.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// It is no JSON object.
    #[error("the request is not a JSON object: {0}")]
    NotJson(#[from] serde_json::Error),
    /// `model` is something else.
    #[error("`model` is not a string")]
    Model,
    /// `stream` is something else.
    #[error("`stream` is neither true nor false")]
    Stream,
}

/// A request body.
#[derive(Debug)]
pub struct Request {
    bytes: Bytes,
    fields: Fields,
    /// The model that it names.
    pub model: Option<String>,
    /// Whether the answer is to be streamed.
    pub stream: bool,
    /// Whether a Chat Completions caller asked for the usage at the end of a stream.
    pub wants_usage: bool,
}

impl Request {
    /// Looks into a body.
    ///
    /// # Errors
    ///
    /// When it is no JSON object, or `model` or `stream` has a wrong type.
    pub fn read(bytes: Bytes) -> Result<Self, RequestError> {
        let fields: Fields = serde_json::from_slice(&bytes)?;
        let model = match fields.value("model") {
            None | Some(Value::Null) => None,
            Some(Value::String(model)) => Some(model),
            Some(_) => return Err(RequestError::Model),
        };
        let stream = match fields.value("stream") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(stream)) => stream,
            Some(_) => return Err(RequestError::Stream),
        };
        let wants_usage = fields
            .value("stream_options")
            .is_some_and(|options| options.get("include_usage") == Some(&Value::Bool(true)));
        Ok(Self {
            model,
            stream,
            wants_usage,
            fields,
            bytes,
        })
    }

    /// The whole as a value, for a translation.
    ///
    /// # Errors
    ///
    /// When some part of it is no JSON that fits into a value.
    pub fn value(&self) -> Result<Value, RequestError> {
        Ok(serde_json::from_slice(&self.bytes)?)
    }

    /// The body for a provider of the same format: every byte as it was, but for the model's name
    /// and what asks for the usage.
    pub fn body_for(&self, route: &Route, format: Format) -> Bytes {
        let mut replaced = Vec::new();
        if self.model.as_deref() != Some(route.model.as_str()) {
            replaced.push(("model", Value::from(route.model.as_str()).to_string()));
        }
        if format == Format::Chat {
            if self.stream && !self.wants_usage {
                replaced.push(("stream_options", self.options_with_usage()));
            }
            if route.provider.dialect() == Dialect::OpenRouter && !self.fields.has("usage") {
                replaced.push(("usage", r#"{"include":true}"#.to_owned()));
            }
        }
        if replaced.is_empty() {
            return self.bytes.clone();
        }
        self.fields.with(&replaced).into()
    }

    /// What a call with it is expected to use at the most.
    pub fn at_most(&self) -> Usage {
        let said = ["max_completion_tokens", "max_tokens"]
            .iter()
            .find_map(|name| self.fields.value(name)?.as_u64());
        Usage {
            input: estimated(&self.bytes),
            output: said.unwrap_or(USUAL_OUTPUT),
            ..Usage::default()
        }
    }

    fn options_with_usage(&self) -> String {
        let mut options = match self.fields.value("stream_options") {
            Some(Value::Object(options)) => options,
            _ => serde_json::Map::new(),
        };
        options.insert("include_usage".to_owned(), Value::Bool(true));
        Value::Object(options).to_string()
    }
}

/// The members of an object in their order, each value as the text it was.
#[derive(Debug)]
struct Fields(Vec<(String, Box<RawValue>)>);

impl Fields {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    fn value(&self, name: &str) -> Option<Value> {
        // The last of several counts, as for everybody who reads JSON.
        let (_, raw) = self.0.iter().rev().find(|(key, _)| key == name)?;
        serde_json::from_str(raw.get()).ok()
    }

    fn with(&self, replaced: &[(&str, String)]) -> String {
        let of = |name: &str| replaced.iter().find(|(key, _)| *key == name);
        let kept = self
            .0
            .iter()
            .filter(|(key, _)| of(key).is_none())
            .map(|(key, raw)| (key.as_str(), raw.get()));
        let new = replaced.iter().map(|(key, text)| (*key, text.as_str()));
        let mut text = String::from("{");
        for (key, value) in kept.chain(new) {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&Value::from(key).to_string());
            text.push(':');
            text.push_str(value);
        }
        text.push('}');
        text
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    fields.push(entry);
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

#[cfg(test)]
mod tests {
    use super::super::provider::{Provider, ProviderKind};
    use super::*;

    fn route(base_url: &str) -> Route {
        Route {
            model: "m".to_owned(),
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

    fn read(text: &str) -> Request {
        Request::read(Bytes::from(text.to_owned())).unwrap()
    }

    /// A number that no float holds, escapes, odd spaces, a signature: none of them changes.
    const MESSAGES: &str = r#"[{"role":"assistant","content":[{"type":"thinking","thinking":"\u00e9 a","signature":"EqQB+/=="},{ "x":1.10e2,"y":123456789012345678901234567890 }]}]"#;

    #[test]
    fn what_is_passed_on_is_what_came() {
        let text = format!(r#"{{ "model":"m", "messages": {MESSAGES}, "later": [1 , 2] }}"#);
        let request = read(&text);
        assert_eq!(request.body_for(&route("http://h"), Format::Messages), text);
        let text = format!(r#"{{"model":"p/m","messages": {MESSAGES} ,"later": [1 , 2]}}"#);
        let request = read(&text);
        assert_eq!(
            request.body_for(&route("http://h"), Format::Messages),
            format!(r#"{{"messages":{MESSAGES},"later":[1 , 2],"model":"m"}}"#)
        );
    }

    #[test]
    fn a_chat_stream_is_asked_for_its_usage() {
        let request = read(r#"{"model":"m","stream":true,"stream_options":{"x":1}}"#);
        assert!(!request.wants_usage);
        let body = request.body_for(&route("http://h"), Format::Chat);
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            body["stream_options"],
            serde_json::json!({"include_usage": true, "x": 1})
        );
        let text = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true}}"#;
        assert_eq!(read(text).body_for(&route("http://h"), Format::Chat), text);
        assert_eq!(
            read(r#"{"model":"m"}"#).body_for(&route("https://openrouter.ai/api/v1"), Format::Chat),
            r#"{"model":"m","usage":{"include":true}}"#
        );
    }

    #[test]
    fn wrong_bodies_are_refused() {
        for wrong in ["", "[]", "{", r#"{"model":1}"#, r#"{"stream":"yes"}"#] {
            assert!(Request::read(Bytes::from_static(wrong.as_bytes())).is_err());
        }
    }
}
