//! What a client of the original protocol sends and reads, whatever carries it.

use quintet_channel::proto::base64url;
use quintet_channel::proto::keys::{KeyPair, PublicKey};
use quintet_channel::proto::v1::{E2eKey, Sealed};
use serde_json::{Value, json};

/// What a v1 client holds after it has paired.
#[derive(Clone)]
pub(crate) struct Paired {
    pub(crate) token: String,
    pub(crate) client_id: String,
    pub(crate) key: E2eKey,
}

pub(crate) fn envelope(kind: &str, payload: Value) -> Value {
    let mut envelope = json!({ "v": 1, "type": kind, "session_id": "default" });
    envelope["payload"] = payload;
    envelope
}

/// Asks to pair, as the UI does: with a key of its own.
pub(crate) fn pairing_request(code: &str, keys: &KeyPair) -> Value {
    envelope(
        "pairing_request",
        json!({
            "pairing_code": code,
            "client_pub": base64url::encode(&keys.public().0),
        }),
    )
}

impl Paired {
    /// What a `pairing_result` gives; nothing when it is none.
    pub(crate) fn by(result: &Value, keys: &KeyPair) -> Option<Self> {
        let payload = &result["payload"];
        let is_result = payload["ok"] == true
            && payload["token_type"] == "Bearer"
            && payload["e2e"]["alg"] == "x25519-chacha20poly1305-v1";
        let text = |value: &Value| value.as_str().filter(|_| is_result).map(str::to_owned);
        let theirs = text(&payload["e2e"]["agent_pub"])?;
        let theirs = PublicKey(base64url::decode_array(&theirs)?);
        Some(Self {
            token: text(&payload["access_token"])?,
            client_id: text(&payload["client_id"])?,
            key: E2eKey::derive(keys, &theirs).ok()?,
        })
    }

    /// An encrypted message.
    pub(crate) fn sealed(&self, nonce: [u8; 12], text: &str, agent: Option<&str>) -> Value {
        let plaintext = json!({ "content": text, "sender_id": "ui-1" }).to_string();
        let sealed = self.key.seal(nonce, plaintext.as_bytes());
        let mut message = envelope(
            "user_message",
            json!({
                "access_token": self.token,
                "e2e": {
                    "nonce": base64url::encode(&sealed.nonce),
                    "ciphertext": base64url::encode(&sealed.ciphertext),
                },
            }),
        );
        if let Some(agent) = agent {
            message["agent_id"] = agent.into();
        }
        message
    }

    /// The chat text of an event, decrypted; nothing when it does not open.
    pub(crate) fn text(&self, event: &Value) -> Option<String> {
        let e2e = &event["payload"]["e2e"];
        let bytes = |name: &str| base64url::decode(e2e[name].as_str()?);
        let sealed = Sealed {
            nonce: bytes("nonce")?.try_into().ok()?,
            ciphertext: bytes("ciphertext")?,
        };
        let inner: Value = serde_json::from_slice(&self.key.open(&sealed).ok()?).ok()?;
        inner["content"].as_str().map(str::to_owned)
    }
}
