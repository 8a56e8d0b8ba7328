//! Writing one JSON object by hand.
//!
//! A general serializer looks at every byte of a base64 payload for characters
//! to escape, of which there are none; that costs more than the transfer.

use base64::Engine as _;
use base64::engine::general_purpose::PAD;
use base64::engine::simd::Simd;
use bytes::Bytes;
use serde::Serialize;

/// An object under construction; its keys are literals that need no escaping.
pub(super) struct Object(Vec<u8>);

impl Object {
    /// Starts an object of the given message type.
    pub(super) fn new(kind: &str) -> Self {
        Self::sized(kind, 128)
    }

    fn sized(kind: &str, capacity: usize) -> Self {
        let mut out = Vec::with_capacity(capacity);
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.push(b'"');
        Self(out)
    }

    /// Starts an object that will hold `payload` bytes as base64.
    pub(super) fn carrying(kind: &str, payload: usize) -> Self {
        Self::sized(
            kind,
            payload.div_ceil(3).saturating_mul(4).saturating_add(192),
        )
    }

    fn key(&mut self, key: &str) {
        self.0.extend_from_slice(b",\"");
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// Adds any serializable value.
    pub(super) fn field(mut self, key: &str, value: &(impl Serialize + ?Sized)) -> Self {
        self.key(key);
        serde_json::to_writer(&mut self.0, value)
            .expect("strings, numbers, lists and maps with string keys always serialize");
        self
    }

    /// Adds bytes as base64, standard alphabet with padding.
    pub(super) fn base64(mut self, key: &str, data: &[u8]) -> Self {
        self.key(key);
        self.0.push(b'"');
        let start = self.0.len();
        let encoded = data.len().div_ceil(3).saturating_mul(4);
        self.0.resize(start.saturating_add(encoded), 0);
        if let Some(room) = self.0.get_mut(start..) {
            Simd::standard(PAD)
                .encode_slice(data, room)
                .expect("the room is four bytes for every three");
        }
        self.0.push(b'"');
        self
    }

    /// Ends the object.
    pub(super) fn finish(mut self) -> Bytes {
        self.0.push(b'}');
        Bytes::from(self.0)
    }
}

/// Decodes a JSON string literal that holds base64.
pub(super) fn base64_literal(literal: &str) -> Option<Bytes> {
    let inner = literal.strip_prefix('"')?.strip_suffix('"')?;
    let engine = Simd::standard(PAD);
    if memchr_backslash(inner) {
        let unescaped: String = serde_json::from_str(literal).ok()?;
        return engine.decode(unescaped).ok().map(Bytes::from);
    }
    engine.decode(inner).ok().map(Bytes::from)
}

/// A slash may be written `\/`; no other escape can stand in base64.
fn memchr_backslash(text: &str) -> bool {
    text.as_bytes().contains(&b'\\')
}
