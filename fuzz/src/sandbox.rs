//! The sandbox plane's messages: JSON text of v1 in both directions, binary frames of v2.

use bytes::Bytes;
use quintet_sandbox::proto::{frame::Frame, parse};

/// Any WebSocket message.
pub fn sandbox(message: &[u8]) {
    if let Ok(text) = std::str::from_utf8(message) {
        let _ = parse::hub_to_worker(text);
        let _ = parse::worker_to_hub(text);
    }
    if let Ok(frame) = Frame::decode(&Bytes::copy_from_slice(message)) {
        assert_eq!(Frame::decode(&frame.encode()), Ok(frame));
    }
}
