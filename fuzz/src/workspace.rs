//! The workspace plane's messages: what decodes has exactly one encoding, the one it came in.

use quintet_workspace::proto::WireMessage;

/// Any payload of a frame.
pub fn workspace(payload: &[u8]) {
    if let Ok(message) = WireMessage::decode(payload) {
        let encoded = message.encode().expect("what was decoded can be encoded");
        assert_eq!(encoded, payload);
    }
}
