//! A message as a frame.

use bytes::{BufMut, BytesMut};
use prost::Message;
use quintet_framing::{ByteOrder, FrameError, FrameFormat, HEADER_LEN};

/// Frames of this plane: big-endian length, at most 16 MiB of payload.
pub const FRAME_FORMAT: FrameFormat = FrameFormat::new("control", ByteOrder::Big, 16 * 1024 * 1024);

/// Appends `message` as one frame. A message over the limit changes nothing and takes no memory.
pub fn encode_frame(message: &impl Message, out: &mut BytesMut) -> Result<(), FrameError> {
    let len = message.encoded_len();
    let header = FRAME_FORMAT.header(len)?;
    out.reserve(HEADER_LEN.saturating_add(len));
    out.put_slice(&header);
    message
        .encode(out)
        .expect("room for the whole frame was reserved above");
    Ok(())
}
