//! The message that there are most of: a piece of a turn's text with its journal number.
//!
//! A streamed turn is nearly all `stream { chunk { content }, seq }`. The generated code goes
//! through three nested messages for it, several times the cost of everything else on the way.
//! These two functions write and read the same bytes in one go. What has any other form is left to
//! the generated code, also to say what is wrong with it.

use bytes::{BufMut, BytesMut};
use prost::encoding::encoded_len_varint;
use quintet_framing::{FrameError, HEADER_LEN};

use super::frame::FRAME_FORMAT;
use super::wire::{
    ServerMessage, StreamChunk, StreamEvent, StreamThinking, server_message::Msg,
    stream_event::Event,
};

const STREAM: u8 = 0x12;
const CHUNK: u8 = 0x12;
const THINKING: u8 = 0x1a;
const CONTENT: u8 = 0x0a;
const SEQ: [u8; 2] = [0xc0, 0x3e];

/// What comes before the text, at most: a header, three tags, three lengths.
const HEAD: usize = HEADER_LEN + 3 * (1 + MAX_VARINT);

/// What comes behind it, at most: the journal number.
const TAIL: usize = SEQ.len() + MAX_VARINT;

const MAX_VARINT: usize = 10;

/// Up to this length of the text, the frame is put together on the stack and copied once.
const SHORT: usize = 96;

/// Appends `message` as one frame if it is a piece of text; `None` if it is anything else.
#[inline]
pub(super) fn encode(
    message: &ServerMessage,
    out: &mut BytesMut,
) -> Option<Result<(), FrameError>> {
    let Some(Msg::Stream(StreamEvent { event, seq, raw })) = &message.msg else {
        return None;
    };
    let (kind, text) = match event {
        Some(Event::Chunk(chunk)) => (CHUNK, chunk.content.as_bytes()),
        Some(Event::Thinking(thinking)) => (THINKING, thinking.content.as_bytes()),
        _ => return None,
    };
    if !raw.is_empty() || text.is_empty() {
        return None;
    }
    let content_len = field_len(text.len());
    let seq_len = seq.map_or(0, |seq| SEQ.len() + encoded_len_varint(seq));
    let event_len = field_len(content_len) + seq_len;
    let payload_len = field_len(event_len);
    let header = match FRAME_FORMAT.header(payload_len) {
        Ok(header) => header,
        Err(error) => return Some(Err(error)),
    };

    let mut frame = Piece::default();
    frame.put(&header);
    frame.put_field(STREAM, event_len);
    frame.put_field(kind, content_len);
    frame.put_field(CONTENT, text.len());
    out.reserve(HEADER_LEN + payload_len);
    if text.len() <= SHORT {
        frame.put(text);
    } else {
        out.put_slice(frame.written());
        out.put_slice(text);
        frame = Piece::default();
    }
    if let Some(seq) = *seq {
        frame.put(&SEQ);
        frame.put_varint(seq);
    }
    out.put_slice(frame.written());
    Some(Ok(()))
}

/// A part of a frame while it is put together.
struct Piece {
    bytes: [u8; HEAD + SHORT + TAIL],
    len: usize,
}

impl Default for Piece {
    #[inline]
    fn default() -> Self {
        Self {
            bytes: [0; HEAD + SHORT + TAIL],
            len: 0,
        }
    }
}

impl Piece {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn put_field(&mut self, tag: u8, len: usize) {
        self.put(&[tag]);
        self.put_varint(len as u64);
    }

    #[inline]
    fn put_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.put(&[value as u8 | 0x80]);
            value >>= 7;
        }
        self.put(&[value as u8]);
    }

    #[inline]
    fn written(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The piece of text in `payload`, or `None` if it is anything else.
#[inline]
pub(super) fn decode(payload: &[u8]) -> Option<ServerMessage> {
    let mut rest = payload;
    if take_field(STREAM, &mut rest).is_none_or(|len| len != rest.len()) {
        return None;
    }
    let kind = *rest.first()?;
    let content_len = take_field(kind, &mut rest)?;
    let (mut content, mut rest) = rest.split_at_checked(content_len)?;
    if take_field(CONTENT, &mut content).is_none_or(|len| len != content.len()) {
        return None;
    }
    let seq = match rest {
        [] => None,
        _ => {
            rest = rest.strip_prefix(&SEQ)?;
            Some(take_varint(&mut rest)?)
        }
    };
    if !rest.is_empty() {
        return None;
    }
    let content = std::str::from_utf8(content).ok()?.to_owned();
    let event = match kind {
        CHUNK => Event::Chunk(StreamChunk { content }),
        THINKING => Event::Thinking(StreamThinking { content }),
        _ => return None,
    };
    Some(ServerMessage {
        msg: Some(Msg::Stream(StreamEvent {
            event: Some(event),
            seq,
            raw: String::new(),
        })),
    })
}

/// Bytes of a field with a one-byte tag and `len` bytes of content.
#[inline]
fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

/// Takes the tag and the length of a field off `rest`, if it is that field.
#[inline]
fn take_field(tag: u8, rest: &mut &[u8]) -> Option<usize> {
    let (&found, after) = rest.split_first()?;
    if found != tag {
        return None;
    }
    *rest = after;
    usize::try_from(take_varint(rest)?).ok()
}

/// Takes a number off `rest`, if there is one that fits.
#[inline]
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return (shift < 63 || byte < 2).then_some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn a_text() -> impl Strategy<Value = String> {
        const LENGTHS: [usize; 9] = [1, 2, 100, 120, 127, 128, 16_380, 16_384, 20_000];
        prop_oneof![
            prop::sample::select(&LENGTHS[..]).prop_map(|len| "x".repeat(len)),
            any::<String>(),
        ]
    }

    fn a_message() -> impl Strategy<Value = ServerMessage> {
        let event = (0..4, a_text()).prop_map(|(kind, content)| match kind {
            0 => None,
            1 => Some(Event::Thinking(StreamThinking { content })),
            _ => Some(Event::Chunk(StreamChunk { content })),
        });
        (
            event,
            any::<Option<u64>>(),
            prop_oneof![Just(""), Just("{}")],
        )
            .prop_map(|(event, seq, raw)| {
                let raw = raw.to_owned();
                StreamEvent { event, seq, raw }.into()
            })
    }

    proptest! {
        #[test]
        fn writes_what_the_generated_code_writes(message in a_message()) {
            let mut out = BytesMut::new();
            if let Some(outcome) = encode(&message, &mut out) {
                outcome.expect("fits");
                prop_assert_eq!(&out[HEADER_LEN..], &message.encode_to_vec()[..]);
                prop_assert_eq!(&out[..HEADER_LEN], &(out.len() as u32 - 4).to_be_bytes());
            }
        }

        #[test]
        fn reads_what_the_generated_code_reads(message in a_message()) {
            let bytes = message.encode_to_vec();
            let mut out = BytesMut::new();
            prop_assert_eq!(decode(&bytes).is_some(), encode(&message, &mut out).is_some());
            prop_assert!(decode(&bytes).is_none_or(|read| read == message));
        }

        /// Whatever it accepts, the generated code accepts too and sees the same in it.
        #[test]
        fn damaged_bytes_are_not_read_otherwise(
            message in a_message(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = message.encode_to_vec();
            prop_assume!(!bytes.is_empty());
            for (at, byte) in damage {
                // Near the front, where the tags and lengths are.
                let front = bytes.len().min(16);
                bytes[at.index(front)] = byte;
            }
            for bytes in [&bytes[..], &bytes[..cut.index(bytes.len())]] {
                if let Some(read) = decode(bytes) {
                    prop_assert_eq!(ServerMessage::decode(bytes), Ok(read));
                }
            }
        }
    }

    #[test]
    fn a_piece_of_text_does_not_take_the_general_way() {
        let chunk = StreamChunk {
            content: "a piece".into(),
        };
        let message = ServerMessage::from(StreamEvent::from(chunk).at(300));
        let mut out = BytesMut::new();
        assert_eq!(encode(&message, &mut out), Some(Ok(())));
        assert_eq!(decode(&out[HEADER_LEN..]), Some(message));
    }
}
