//! The control plane's messages: the short cut for streamed text is the same protocol.

use bytes::BytesMut;
use prost::Message;
use quintet_control::proto::{
    ReplyShape, ServerError, decode_reply, decode_request, encode_reply, encode_request,
};
use quintet_control::wire::{ServerMessage, server_message};
use quintet_framing::HEADER_LEN;

/// Any payload, as a request and as a reply.
pub fn control(payload: &[u8]) {
    if let Ok(request) = decode_request(payload) {
        let mut frame = BytesMut::new();
        encode_request(&request, &mut frame).expect("not longer than what it was read from");
        assert_eq!(decode_request(&frame[HEADER_LEN..]).as_ref(), Ok(&request));
        assert!(!request.kind().is_empty());
        a_reply_ends(ReplyShape::of(&request));
    }
    let plain = ServerMessage::decode(payload);
    assert_eq!(decode_reply(payload).ok(), plain.clone().ok());
    if let Ok(reply) = plain {
        let mut frame = BytesMut::new();
        encode_reply(&reply, &mut frame).expect("not longer than what it was read from");
        assert_eq!(&frame[HEADER_LEN..], reply.encode_to_vec());
        both_ends_agree_on_the_last(&reply);
    }
}

/// Whatever a handler leaves out, its client is told that the reply is over.
fn a_reply_ends(shape: ReplyShape) {
    assert!(shape.is_last(&shape.closing()));
    assert!(shape.is_last(&ServerError::internal("lost").into()));
}

fn both_ends_agree_on_the_last(reply: &ServerMessage) {
    let is_error = matches!(reply.msg, Some(server_message::Msg::Error(_)));
    let last = |shape: ReplyShape| shape.is_last(reply);
    assert!(last(ReplyShape::One), "one message is the last one");
    assert_eq!(last(ReplyShape::Endless), is_error);
    assert!(is_error || !(last(ReplyShape::UntilEnd) && last(ReplyShape::UntilDone)));
    assert!(!reply.kind().is_empty());
}
