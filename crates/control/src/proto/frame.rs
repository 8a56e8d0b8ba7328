//! A message as a frame.

use bytes::{BufMut, BytesMut};
use prost::{DecodeError, Message};
use quintet_framing::{ByteOrder, FrameError, FrameFormat, HEADER_LEN};

use super::text::{self, Piece};
use super::wire::{ClientMessage, ServerMessage};

/// Frames of this plane: big-endian length, at most 16 MiB of payload.
pub const FRAME_FORMAT: FrameFormat = FrameFormat::new("control", ByteOrder::Big, 16 * 1024 * 1024);

/// Appends a request as one frame. A message over the limit changes nothing and takes no memory.
pub fn encode_request(request: &ClientMessage, out: &mut BytesMut) -> Result<(), FrameError> {
    encode(request, out)
}

/// Reads the request in a frame's payload.
pub fn decode_request(payload: &[u8]) -> Result<ClientMessage, DecodeError> {
    ClientMessage::decode(payload)
}

/// Appends a reply as one frame. A message over the limit changes nothing and takes no memory.
#[inline]
pub fn encode_reply(reply: &ServerMessage, out: &mut BytesMut) -> Result<(), FrameError> {
    text::encode(reply, out).unwrap_or_else(|| encode(reply, out))
}

/// The same for a reply that is not needed any more, which is faster for a piece of text.
#[inline(always)]
pub(crate) fn append_reply(reply: ServerMessage, out: &mut BytesMut) -> Result<(), FrameError> {
    match Piece::of(reply) {
        Ok(piece) => piece.encode(out),
        Err(reply) => encode(&reply, out),
    }
}

/// Reads the reply in a frame's payload.
#[inline]
pub fn decode_reply(payload: &[u8]) -> Result<ServerMessage, DecodeError> {
    text::decode(payload).map_or_else(|| ServerMessage::decode(payload), Ok)
}

fn encode(message: &impl Message, out: &mut BytesMut) -> Result<(), FrameError> {
    let len = message.encoded_len();
    let header = FRAME_FORMAT.header(len)?;
    out.reserve(HEADER_LEN.saturating_add(len));
    out.put_slice(&header);
    message
        .encode(out)
        .expect("room for the whole frame was reserved above");
    Ok(())
}
