//! What a client sends, parsed.

use serde_json::{Map, Value};

use super::e2e::{ALG, Sealed};
use super::{Code, DEFAULT_SESSION};
use crate::proto::base64url;

/// Ids that a client chooses are echoed in every frame: they have to leave room for the rest.
const MAX_ID: usize = 256;

const FROM_DAEMON: [&str; 7] = [
    "pairing_result",
    "assistant_chunk",
    "assistant_final",
    "tool_call",
    "tool_result",
    "approval_request",
    "error",
];

/// A message with its outer fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Envelope {
    /// `default` means the device's current session.
    pub session_id: String,
    /// The agent for a new session.
    pub agent_id: Option<String>,
    /// Ties an answer to what it answers.
    pub request_id: Option<String>,
    /// The payload.
    pub message: ClientMessage,
}

/// The three events that a client sends.
#[derive(Debug, Clone, PartialEq)]
pub enum ClientMessage {
    /// Asks for a token with the code.
    PairingRequest {
        /// Trimmed; empty where none was sent.
        pairing_code: String,
        /// The client's public key, undecoded: its check has an error code of its own.
        client_pub: Option<String>,
    },
    /// Says something.
    UserMessage {
        /// Who speaks.
        access_token: String,
        /// What, or what is wrong with it: said only to whoever may speak.
        body: Result<Body, BadPayload>,
    },
    /// Answers an approval.
    ApprovalResponse {
        /// Who answers.
        access_token: String,
        /// Yes or no, or what is wrong with it: said only to whoever may answer.
        approved: Result<bool, BadPayload>,
        /// Why.
        reason: Option<String>,
    },
}

/// What is wrong with a payload behind its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BadPayload {
    /// The code on the wire.
    pub code: Code,
    /// For the person who wrote the client.
    pub message: &'static str,
}

/// A message's text.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// In the clear.
    Plain {
        /// The text.
        content: String,
    },
    /// Encrypted.
    Sealed(Sealed),
}

/// Why something is not taken.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Invalid {
    /// The code on the wire.
    pub code: Code,
    /// For the person who wrote the client.
    pub message: String,
    /// The envelope's `session_id`, as far as it could be read.
    pub session_id: String,
    /// Its `request_id`.
    pub request_id: Option<String>,
}

/// Parses one text frame.
pub fn parse(text: &str) -> Result<Envelope, Invalid> {
    let outer = |message: String, object: Option<&Map<String, Value>>| {
        let id = |name: &str| {
            let value = object?.get(name)?.as_str()?;
            (!value.is_empty() && value.len() <= MAX_ID).then(|| value.to_owned())
        };
        Invalid {
            code: Code::InvalidEnvelope,
            message,
            session_id: id("session_id").unwrap_or_else(|| DEFAULT_SESSION.to_owned()),
            request_id: id("request_id"),
        }
    };
    let value: Value =
        serde_json::from_str(text).map_err(|error| outer(format!("not JSON: {error}"), None))?;
    let Value::Object(object) = value else {
        return Err(outer("an envelope is an object".to_owned(), None));
    };
    if object.get("v").and_then(Value::as_f64) != Some(1.0) {
        return Err(outer("v is not 1".to_owned(), Some(&object)));
    }
    let Some(kind) = object.get("type").and_then(Value::as_str) else {
        return Err(outer("type is missing".to_owned(), Some(&object)));
    };
    let session_id = short_id(&object, "session_id")
        .ok()
        .flatten()
        .ok_or_else(|| {
            let message = format!("session_id is not a text of 1 to {MAX_ID} bytes");
            outer(message, Some(&object))
        })?;
    let agent_id = short_id(&object, "agent_id").map_err(|text| outer(text, Some(&object)))?;
    let request_id = short_id(&object, "request_id").map_err(|text| outer(text, Some(&object)))?;
    let Some(Value::Object(payload)) = object.get("payload") else {
        return Err(outer("payload is not an object".to_owned(), Some(&object)));
    };
    let message = match kind {
        "pairing_request" => pairing_request(payload),
        "user_message" => user_message(payload),
        "approval_response" => approval_response(payload),
        known if FROM_DAEMON.contains(&known) => {
            return Err(outer(
                format!("{known} is the daemon's to send"),
                Some(&object),
            ));
        }
        _ => return Err(outer("type is not known".to_owned(), Some(&object))),
    };
    Ok(Envelope {
        session_id,
        agent_id,
        request_id,
        message,
    })
}

fn short_id(object: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) if !id.is_empty() && id.len() <= MAX_ID => Ok(Some(id.clone())),
        Some(_) => Err(format!("{name} is not a text of 1 to {MAX_ID} bytes")),
    }
}

fn text(payload: &Map<String, Value>, name: &str) -> Option<String> {
    payload.get(name)?.as_str().map(str::to_owned)
}

fn pairing_request(payload: &Map<String, Value>) -> ClientMessage {
    ClientMessage::PairingRequest {
        pairing_code: text(payload, "pairing_code")
            .map(|code| code.trim().to_owned())
            .unwrap_or_default(),
        client_pub: text(payload, "client_pub"),
    }
}

fn bad<T>(code: Code, message: &'static str) -> Result<T, BadPayload> {
    Err(BadPayload { code, message })
}

fn user_message(payload: &Map<String, Value>) -> ClientMessage {
    ClientMessage::UserMessage {
        access_token: text(payload, "access_token").unwrap_or_default(),
        body: body(payload),
    }
}

fn body(payload: &Map<String, Value>) -> Result<Body, BadPayload> {
    match payload.get("e2e") {
        Some(Value::Object(e2e)) => sealed(e2e).map(Body::Sealed),
        Some(Value::Null) | None => match text(payload, "content") {
            Some(content) => Ok(Body::Plain { content }),
            None => bad(Code::InvalidPayload, "content is not a text"),
        },
        Some(_) => bad(Code::InvalidE2ePayload, "e2e is not an object"),
    }
}

fn sealed(e2e: &Map<String, Value>) -> Result<Sealed, BadPayload> {
    match e2e.get("alg") {
        None | Some(Value::Null) => {}
        Some(Value::String(alg)) if alg == ALG => {}
        Some(_) => return bad(Code::UnsupportedE2eAlg, "e2e.alg is not known"),
    }
    let bytes = |name| text(e2e, name).and_then(|text| base64url::decode(&text));
    let Some(nonce) = bytes("nonce").and_then(|nonce| nonce.try_into().ok()) else {
        return bad(Code::InvalidE2ePayload, "e2e.nonce is not 12 bytes");
    };
    let Some(ciphertext) = bytes("ciphertext") else {
        return bad(Code::InvalidE2ePayload, "e2e.ciphertext is not base64url");
    };
    Ok(Sealed { nonce, ciphertext })
}

fn approval_response(payload: &Map<String, Value>) -> ClientMessage {
    ClientMessage::ApprovalResponse {
        access_token: text(payload, "access_token").unwrap_or_default(),
        approved: match payload.get("approved") {
            Some(Value::Bool(approved)) => Ok(*approved),
            _ => bad(Code::InvalidPayload, "approved is not true or false"),
        },
        reason: text(payload, "reason"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn refused(text: &str) -> Code {
        parse(text).unwrap_err().code
    }

    #[test]
    fn the_three_events_of_a_client() {
        let pairing = parse(
            r#"{"v":1,"type":"pairing_request","session_id":"default","payload":{"pairing_code":" 123456 ","client_pub":"x"}}"#,
        );
        assert_eq!(
            pairing.unwrap().message,
            ClientMessage::PairingRequest {
                pairing_code: "123456".into(),
                client_pub: Some("x".into())
            }
        );
        let message = parse(
            r#"{"v":1,"type":"user_message","session_id":"s","agent_id":"a","request_id":"r","payload":{"access_token":"t","content":"hi","sender_id":"ui"}}"#,
        )
        .unwrap();
        assert_eq!(message.agent_id.as_deref(), Some("a"));
        assert_eq!(message.request_id.as_deref(), Some("r"));
        let body = Body::Plain {
            content: "hi".into(),
        };
        assert_eq!(
            message.message,
            ClientMessage::UserMessage {
                access_token: "t".into(),
                body: Ok(body)
            }
        );
        let answer = parse(
            r#"{"v":1,"type":"approval_response","session_id":"s","request_id":"r","payload":{"access_token":"t","approved":false,"reason":"no"}}"#,
        );
        assert_eq!(
            answer.unwrap().message,
            ClientMessage::ApprovalResponse {
                access_token: "t".into(),
                approved: Ok(false),
                reason: Some("no".into())
            }
        );
    }

    #[test]
    fn what_is_no_envelope_says_so() {
        for text in [
            "",
            "garbage",
            "[]",
            "{}",
            r#"{"v":2,"type":"user_message","session_id":"s","payload":{}}"#,
            r#"{"v":"1","type":"user_message","session_id":"s","payload":{}}"#,
            r#"{"v":1,"type":"unknown","session_id":"s","payload":{}}"#,
            r#"{"v":1,"type":"tool_call","session_id":"s","payload":{}}"#,
            r#"{"v":1,"type":"user_message","session_id":"","payload":{}}"#,
            r#"{"v":1,"type":"user_message","payload":{}}"#,
            r#"{"v":1,"type":"user_message","session_id":7,"payload":{}}"#,
            r#"{"v":1,"type":"user_message","session_id":"s"}"#,
            r#"{"v":1,"type":"user_message","session_id":"s","payload":[]}"#,
        ] {
            assert_eq!(refused(text), Code::InvalidEnvelope, "{text}");
        }
        let long = format!(
            r#"{{"v":1,"type":"user_message","session_id":"{}","payload":{{}}}}"#,
            "s".repeat(257)
        );
        assert_eq!(refused(&long), Code::InvalidEnvelope);
    }

    #[test]
    fn a_bad_body_has_its_own_code_and_keeps_the_token() {
        for (body, (code, message)) in [
            (
                r#""pad":1"#,
                (Code::InvalidPayload, "content is not a text"),
            ),
            (
                r#""content":7"#,
                (Code::InvalidPayload, "content is not a text"),
            ),
            (
                r#""e2e":7"#,
                (Code::InvalidE2ePayload, "e2e is not an object"),
            ),
            (
                r#""e2e":{}"#,
                (Code::InvalidE2ePayload, "e2e.nonce is not 12 bytes"),
            ),
            (
                r#""e2e":{"nonce":"AA","ciphertext":"AA"}"#,
                (Code::InvalidE2ePayload, "e2e.nonce is not 12 bytes"),
            ),
            (
                r#""e2e":{"nonce":"AAECAwQFBgcICQoL","ciphertext":"*"}"#,
                (Code::InvalidE2ePayload, "e2e.ciphertext is not base64url"),
            ),
            (
                r#""e2e":{"alg":"rot13","nonce":"AAECAwQFBgcICQoL","ciphertext":"AA"}"#,
                (Code::UnsupportedE2eAlg, "e2e.alg is not known"),
            ),
        ] {
            let parsed = parse(&format!(
                r#"{{"v":1,"type":"user_message","session_id":"s","payload":{{"access_token":"t",{body}}}}}"#
            ));
            let expected = ClientMessage::UserMessage {
                access_token: "t".into(),
                body: Err(BadPayload { code, message }),
            };
            assert_eq!(parsed.unwrap().message, expected);
        }
        let parsed = parse(
            r#"{"v":1,"type":"approval_response","session_id":"s","payload":{"access_token":"t"}}"#,
        );
        let expected = ClientMessage::ApprovalResponse {
            access_token: "t".into(),
            approved: Err(BadPayload {
                code: Code::InvalidPayload,
                message: "approved is not true or false",
            }),
            reason: None,
        };
        assert_eq!(parsed.unwrap().message, expected);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(text in ".{0,300}") {
            let _ = parse(&text);
        }
    }
}
