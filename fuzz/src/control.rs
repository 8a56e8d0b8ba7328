//! The control plane's messages: the short cut for streamed text is the same protocol.

use bytes::BytesMut;
use prost::Message;
use quintet_control::proto::{decode_reply, decode_request, encode_reply, encode_request};
use quintet_control::wire::ServerMessage;
use quintet_framing::HEADER_LEN;

/// Any payload, as a request and as a reply.
pub fn control(payload: &[u8]) {
    if let Ok(request) = decode_request(payload) {
        let mut frame = BytesMut::new();
        encode_request(&request, &mut frame).expect("not longer than what it was read from");
        assert_eq!(decode_request(&frame[HEADER_LEN..]), Ok(request));
    }
    let plain = ServerMessage::decode(payload);
    assert_eq!(decode_reply(payload).ok(), plain.clone().ok());
    if let Ok(reply) = plain {
        let mut frame = BytesMut::new();
        encode_reply(&reply, &mut frame).expect("not longer than what it was read from");
        assert_eq!(&frame[HEADER_LEN..], reply.encode_to_vec());
    }
}
