//! What we send, within the limit of a message.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::e2e::{ALG, E2eKey};
use super::{Code, MAX_MESSAGE};
use crate::proto::base64url;
use crate::proto::device::{AccessToken, DeviceId, Seconds};
use crate::proto::keys::PublicKey;

/// Room for the envelope, its ids and a payload's keys.
const OUTER_ROOM: usize = 2048;

/// JSON text that fits a message after encryption and base64.
const MAX_TEXT: usize = (MAX_MESSAGE - OUTER_ROOM) / 4 * 3 - 64;

/// Of a tool's name and of the name of a call, which an agent makes up. They lie beside a text that
/// is not encrypted and leaves that much room.
const MAX_NAME: usize = 2048;

/// The outer fields of what we send.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outer {
    /// As the client calls the session.
    pub session_id: String,
    /// The session's agent.
    pub agent_id: Option<String>,
}

/// An event of the conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerEvent {
    /// A piece of the answer.
    Chunk {
        /// What is added.
        text: String,
    },
    /// The whole answer; the turn is over.
    Final {
        /// All of it.
        text: String,
    },
    /// A tool begins.
    ToolCall {
        /// The call.
        request_id: String,
        /// The tool.
        name: String,
        /// What it is given.
        arguments: Map<String, Value>,
    },
    /// A tool ended.
    ToolResult {
        /// The call.
        request_id: String,
        /// What it gave, or why it failed.
        result: Result<String, String>,
    },
    /// Somebody has to approve something.
    ApprovalRequest {
        /// The approval.
        request_id: String,
        /// What would be done.
        action: String,
        /// Why.
        reason: Option<String>,
    },
    /// Something failed; ends a turn, after a `Final` where text was streamed.
    Error {
        /// For the person.
        message: String,
        /// For the program.
        code: Option<String>,
    },
}

#[derive(Serialize)]
struct Envelope<'a> {
    v: u8,
    r#type: &'static str,
    session_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    payload: Value,
}

/// What a pairing gives the client.
#[derive(Debug)]
pub struct PairingResult<'a> {
    /// The new device.
    pub device: DeviceId,
    /// Its token.
    pub token: &'a AccessToken,
    /// How long it lives unused.
    pub expires_in: Seconds,
    /// Whether plain text is refused.
    pub e2e_required: bool,
    /// Our key for this device, where it sent one.
    pub agent_pub: Option<PublicKey>,
}

/// The answer to a pairing request.
pub fn encode_pairing(
    outer: &Outer,
    request_id: Option<&str>,
    result: &PairingResult<'_>,
) -> String {
    let mut payload = json!({
        "ok": true,
        "client_id": result.device.to_string(),
        "access_token": result.token.expose(),
        "token_type": "Bearer",
        "expires_in": result.expires_in,
        "e2e_required": result.e2e_required,
    });
    if let (Some(key), Some(fields)) = (result.agent_pub, payload.as_object_mut()) {
        let e2e = json!({ "alg": ALG, "agent_pub": base64url::encode(&key.0) });
        fields.insert("e2e".to_owned(), e2e);
    }
    envelope(outer, "pairing_result", request_id, payload)
}

/// An `error` about what a client sent.
pub fn encode_error(outer: &Outer, request_id: Option<&str>, code: &str, message: &str) -> String {
    let payload = json!({ "message": prefix(message, MAX_TEXT), "code": code });
    envelope(outer, "error", request_id, payload)
}

/// The frames of an event, each within the limit. Chat text is encrypted where there is a key.
///
/// `nonce` gives random bytes, new ones for each call.
pub fn encode(
    event: &ServerEvent,
    outer: &Outer,
    key: Option<&E2eKey>,
    mut nonce: impl FnMut() -> [u8; 12],
) -> Vec<String> {
    match event {
        ServerEvent::Chunk { text } => pieces(text, MAX_TEXT)
            .map(|piece| {
                let payload = chat(piece, key, &mut nonce);
                envelope(outer, "assistant_chunk", None, payload)
            })
            .collect(),
        ServerEvent::Final { text } => {
            // Empty leaves what was streamed standing.
            let text = if escaped_len(text) <= MAX_TEXT {
                text.as_str()
            } else {
                ""
            };
            let payload = chat(text, key, &mut nonce);
            vec![envelope(outer, "assistant_final", None, payload)]
        }
        ServerEvent::ToolCall {
            request_id,
            name,
            arguments,
        } => {
            let name = prefix(name, MAX_NAME);
            let payload = json!({ "name": name, "arguments": fitted(arguments) });
            let request_id = prefix(request_id, MAX_NAME);
            vec![envelope(outer, "tool_call", Some(request_id), payload)]
        }
        ServerEvent::ToolResult { request_id, result } => {
            let payload = match result {
                Ok(result) => json!({ "ok": true, "result": prefix(result, MAX_TEXT) }),
                Err(error) => json!({ "ok": false, "error": prefix(error, MAX_TEXT) }),
            };
            // Cut as in the call, so that the two stay together.
            let request_id = prefix(request_id, MAX_NAME);
            vec![envelope(outer, "tool_result", Some(request_id), payload)]
        }
        ServerEvent::ApprovalRequest {
            request_id,
            action,
            reason,
        } => {
            let mut payload = json!({ "action": prefix(action, MAX_TEXT / 2) });
            if let (Some(reason), Some(fields)) = (reason, payload.as_object_mut()) {
                fields.insert("reason".to_owned(), prefix(reason, MAX_TEXT / 2).into());
            }
            vec![envelope(
                outer,
                "approval_request",
                Some(request_id),
                payload,
            )]
        }
        ServerEvent::Error { message, code } => {
            let mut payload = json!({ "message": prefix(message, MAX_TEXT) });
            if let (Some(code), Some(fields)) = (code, payload.as_object_mut()) {
                fields.insert("code".to_owned(), code.as_str().into());
            }
            vec![envelope(outer, "error", None, payload)]
        }
    }
}

impl Code {
    /// The `error` event of this code.
    pub fn encode(self, outer: &Outer, request_id: Option<&str>, message: &str) -> String {
        encode_error(outer, request_id, self.as_str(), message)
    }
}

fn envelope(outer: &Outer, kind: &'static str, request_id: Option<&str>, payload: Value) -> String {
    let envelope = Envelope {
        v: 1,
        r#type: kind,
        session_id: &outer.session_id,
        agent_id: outer.agent_id.as_deref(),
        request_id,
        payload,
    };
    serde_json::to_string(&envelope).expect("an envelope has string keys only")
}

fn chat(text: &str, key: Option<&E2eKey>, nonce: &mut impl FnMut() -> [u8; 12]) -> Value {
    let Some(key) = key else {
        return json!({ "content": text });
    };
    let plaintext = json!({ "content": text }).to_string();
    let sealed = key.seal(nonce(), plaintext.as_bytes());
    json!({ "e2e": {
        "nonce": base64url::encode(&sealed.nonce),
        "ciphertext": base64url::encode(&sealed.ciphertext),
        "alg": ALG,
    } })
}

/// Arguments whole, or their beginning as a text where they are too long.
fn fitted(arguments: &Map<String, Value>) -> Value {
    let text = serde_json::to_string(arguments).unwrap_or_default();
    if text.len() <= MAX_TEXT {
        return Value::Object(arguments.clone());
    }
    json!({ "truncated": prefix(&text, MAX_TEXT) })
}

/// The bytes of a character inside a JSON string, as serde_json writes it.
fn escaped_width(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => c.len_utf8(),
    }
}

fn escaped_len(text: &str) -> usize {
    text.chars().map(escaped_width).sum()
}

/// The longest beginning that takes at most `max` bytes in JSON.
fn prefix(text: &str, max: usize) -> &str {
    let mut taken = 0_usize;
    for (at, c) in text.char_indices() {
        taken = taken.saturating_add(escaped_width(c));
        if taken > max {
            return text.get(..at).unwrap_or_default();
        }
    }
    text
}

/// A text in pieces that take at most `max` bytes each in JSON; an empty text is one empty piece.
fn pieces(text: &str, max: usize) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let now = rest?;
        let piece = prefix(now, max);
        rest = now.get(piece.len()..).filter(|rest| !rest.is_empty());
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn outer() -> Outer {
        Outer {
            session_id: "s".repeat(256),
            agent_id: Some("a".repeat(256)),
        }
    }

    fn value(frame: &str) -> Value {
        serde_json::from_str(frame).unwrap()
    }

    fn content(frame: &str, key: Option<&E2eKey>) -> String {
        let payload = value(frame)["payload"].take();
        let Some(key) = key else {
            return payload["content"].as_str().unwrap().to_owned();
        };
        let bytes = |name: &str| base64url::decode(payload["e2e"][name].as_str().unwrap()).unwrap();
        let sealed = super::super::Sealed {
            nonce: bytes("nonce").try_into().unwrap(),
            ciphertext: bytes("ciphertext"),
        };
        let inner: Value = serde_json::from_slice(&key.open(&sealed).unwrap()).unwrap();
        inner["content"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_pairing_result_is_what_the_real_ui_reads() {
        let token = AccessToken::new([1; 32]);
        let frame = encode_pairing(
            &Outer {
                session_id: "default".into(),
                agent_id: None,
            },
            None,
            &PairingResult {
                device: DeviceId([2; 16]),
                token: &token,
                expires_in: 2_592_000,
                e2e_required: true,
                agent_pub: Some(PublicKey([3; 32])),
            },
        );
        assert_eq!(
            value(&frame),
            json!({
                "v": 1,
                "type": "pairing_result",
                "session_id": "default",
                "payload": {
                    "ok": true,
                    "client_id": "AgICAgICAgICAgICAgICAg",
                    "access_token": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE",
                    "token_type": "Bearer",
                    "expires_in": 2_592_000,
                    "e2e_required": true,
                    "e2e": {
                        "alg": "x25519-chacha20poly1305-v1",
                        "agent_pub": "AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM",
                    },
                },
            })
        );
    }

    #[test]
    fn events_have_the_names_of_the_seed() {
        let outer = Outer {
            session_id: "s".into(),
            agent_id: Some("coder".into()),
        };
        let one = |event: &ServerEvent| value(&encode(event, &outer, None, || [0; 12])[0]);
        let mut arguments = Map::new();
        arguments.insert("command".into(), "ls".into());
        assert_eq!(
            one(&ServerEvent::ToolCall {
                request_id: "c".into(),
                name: "exec".into(),
                arguments
            }),
            json!({"v":1,"type":"tool_call","session_id":"s","agent_id":"coder","request_id":"c",
                   "payload":{"name":"exec","arguments":{"command":"ls"}}})
        );
        assert_eq!(
            one(&ServerEvent::ToolResult {
                request_id: "c".into(),
                result: Err("no".into())
            })["payload"],
            json!({"ok":false,"error":"no"})
        );
        assert_eq!(
            one(&ServerEvent::ApprovalRequest {
                request_id: "7".into(),
                action: "rm".into(),
                reason: None
            })["payload"],
            json!({"action":"rm"})
        );
        assert_eq!(
            one(&ServerEvent::Error {
                message: "m".into(),
                code: None
            }),
            json!({"v":1,"type":"error","session_id":"s","agent_id":"coder","payload":{"message":"m"}})
        );
    }

    #[test]
    fn a_whole_text_that_does_not_fit_is_sent_empty() {
        let text = "x".repeat(MAX_MESSAGE);
        let frames = encode(&ServerEvent::Final { text }, &outer(), None, || [0; 12]);
        assert_eq!(content(&frames[0], None), "");
    }

    #[test]
    fn long_results_arguments_and_names_are_cut() {
        let mut arguments = Map::new();
        arguments.insert("a".into(), "\u{1}".repeat(MAX_MESSAGE).into());
        let long = "\u{1}\"".repeat(MAX_MESSAGE);
        let call = ServerEvent::ToolCall {
            request_id: long.clone(),
            name: long.clone(),
            arguments,
        };
        let result = ServerEvent::ToolResult {
            request_id: long.clone(),
            result: Ok(long),
        };
        let of = |event| value(&encode(event, &outer(), None, || [0; 12])[0])["request_id"].take();
        assert_eq!(of(&call), of(&result));
        for event in [
            call,
            result,
            ServerEvent::ApprovalRequest {
                request_id: "r".into(),
                action: "\n".repeat(MAX_MESSAGE),
                reason: Some("\"".repeat(MAX_MESSAGE)),
            },
            ServerEvent::Error {
                message: "\0".repeat(MAX_MESSAGE),
                code: None,
            },
        ] {
            let frames = encode(&event, &outer(), None, || [0; 12]);
            assert!(frames[0].len() <= MAX_MESSAGE, "{}", frames[0].len());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn pieces_fit_and_join_to_the_text(
            unit in prop::sample::select(vec!["a", "ä", "\u{1}", "\"\\", "🦀", "\n"]),
            count in 0_usize..60_000,
            encrypted: bool,
        ) {
            let text = unit.repeat(count);
            let key = encrypted.then(|| E2eKey::from_stored([9; 32]));
            let event = ServerEvent::Chunk { text: text.clone() };
            let frames = encode(&event, &outer(), key.as_ref(), || [1; 12]);
            prop_assert!(frames.iter().all(|frame| frame.len() <= MAX_MESSAGE));
            let joined: String = frames.iter().map(|frame| content(frame, key.as_ref())).collect();
            prop_assert_eq!(joined, text);
        }

        #[test]
        fn the_width_of_escapes_is_serde_jsons(text in "\\PC{0,40}[\\x00-\\x7f]{0,40}") {
            prop_assert_eq!(escaped_len(&text) + 2, serde_json::to_string(&text).unwrap().len());
        }
    }
}
