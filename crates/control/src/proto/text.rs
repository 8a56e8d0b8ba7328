//! The message that there are most of: a piece of a turn's text with its journal number.
//!
//! A streamed turn is nearly all `stream { chunk { content }, seq }`. The generated code goes
//! through three nested messages for it, several times the cost of everything else on the way.
//! These two functions write and read the same bytes in one go. What has any other form is left to
//! the generated code, also to say what is wrong with it.

use bytes::{BufMut, BytesMut};
use prost::encoding::{encode_varint, encoded_len_varint};
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
const SEQ_FIRST: u8 = 0xc0;
const SEQ_SECOND: u8 = 0x3e;
const SEQ: [u8; 2] = [SEQ_FIRST, SEQ_SECOND];

/// Up to this length of the text, every length in the frame is one byte.
const SHORT: usize = 96;

/// Below this, the number takes six bytes at the most, and fits in a word with its tag.
const SHORT_SEQ: u64 = 1 << (6 * 7);

/// What the frame is made of.
///
/// Kept apart until the message is needed: these few words stay in registers, where a whole message
/// that is moved right after it was written waits for its own stores.
pub(crate) struct Piece {
    kind: Kind,
    content: String,
    seq: Option<u64>,
}

#[derive(Clone, Copy)]
enum Kind {
    Chunk,
    Thinking,
}

impl Kind {
    #[inline(always)]
    fn tag(self) -> u8 {
        match self {
            Self::Chunk => CHUNK,
            Self::Thinking => THINKING,
        }
    }
}

impl From<Piece> for StreamEvent {
    #[inline(always)]
    fn from(piece: Piece) -> Self {
        let content = piece.content;
        let event = match piece.kind {
            Kind::Chunk => Event::Chunk(StreamChunk { content }),
            Kind::Thinking => Event::Thinking(StreamThinking { content }),
        };
        Self {
            event: Some(event),
            seq: piece.seq,
            raw: String::new(),
        }
    }
}

impl Piece {
    /// The piece of text that `message` is, or the message if it is anything else.
    #[inline(always)]
    pub(super) fn of(message: ServerMessage) -> Result<Self, ServerMessage> {
        match message.msg {
            Some(Msg::Stream(StreamEvent {
                event: Some(Event::Chunk(StreamChunk { content })),
                seq,
                raw,
            })) if raw.is_empty() && !content.is_empty() => Ok(Self {
                kind: Kind::Chunk,
                content,
                seq,
            }),
            Some(Msg::Stream(StreamEvent {
                event: Some(Event::Thinking(StreamThinking { content })),
                seq,
                raw,
            })) if raw.is_empty() && !content.is_empty() => Ok(Self {
                kind: Kind::Thinking,
                content,
                seq,
            }),
            msg => Err(ServerMessage { msg }),
        }
    }

    /// Appends it as one frame.
    #[inline(always)]
    pub(super) fn encode(&self, out: &mut BytesMut) -> Result<(), FrameError> {
        put(self.kind, self.content.as_bytes(), self.seq, out)
    }

    /// The piece of text in `payload`, or `None` if it is anything else.
    #[inline(always)]
    pub(crate) fn read(payload: &[u8]) -> Option<Self> {
        Self::read_short(payload).or_else(|| Self::read_any(payload))
    }

    /// The same for the form in which every length is one byte, which is told from six bytes.
    #[inline(always)]
    fn read_short(payload: &[u8]) -> Option<Self> {
        let (&[stream, event_len, tag, content_len, content, len], rest) =
            payload.split_first_chunk()?;
        let kind = match tag {
            CHUNK => Kind::Chunk,
            THINKING => Kind::Thinking,
            _ => return None,
        };
        let lengths = [event_len, content_len, len].map(usize::from);
        let nested = lengths[0] + 2 == payload.len() && lengths[1] == lengths[2] + 2;
        if stream != STREAM || content != CONTENT || lengths[0] >= 0x80 || !nested {
            return None;
        }
        let (text, tail) = rest.split_at_checked(lengths[2])?;
        let seq = match tail {
            [] => None,
            [SEQ_FIRST, SEQ_SECOND, number @ ..] => Some(short_number(number)?),
            _ => return None,
        };
        let content = std::str::from_utf8(text).ok()?.to_owned();
        Some(Self { kind, content, seq })
    }

    fn read_any(payload: &[u8]) -> Option<Self> {
        let mut rest = payload;
        if take_field(STREAM, &mut rest).is_none_or(|len| len != rest.len()) {
            return None;
        }
        let kind = match *rest.first()? {
            CHUNK => Kind::Chunk,
            THINKING => Kind::Thinking,
            _ => return None,
        };
        let content_len = take_field(kind.tag(), &mut rest)?;
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
        Some(Self { kind, content, seq })
    }
}

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
        Some(Event::Chunk(chunk)) => (Kind::Chunk, chunk.content.as_bytes()),
        Some(Event::Thinking(thinking)) => (Kind::Thinking, thinking.content.as_bytes()),
        _ => return None,
    };
    if !raw.is_empty() || text.is_empty() {
        return None;
    }
    Some(put(kind, text, *seq, out))
}

#[inline(always)]
fn put(kind: Kind, text: &[u8], seq: Option<u64>, out: &mut BytesMut) -> Result<(), FrameError> {
    if text.len() > SHORT || seq.is_some_and(|seq| seq >= SHORT_SEQ) {
        return put_any(kind, text, seq, out);
    }
    let (tail, tail_len) = seq.map_or((0, 0), short_tail);
    let content_len = 2 + text.len();
    let event_len = 2 + content_len + tail_len;
    let payload_len = 2 + event_len;
    let header = u32::from_le_bytes(FRAME_FORMAT.header(payload_len)?);
    let head = u64::from(header)
        | u64::from(STREAM) << 32
        | (event_len as u64) << 40
        | u64::from(kind.tag()) << 48
        | (content_len as u64) << 56;
    // With a whole word behind the text, of which what the number does not take is cut off.
    out.reserve(HEADER_LEN + payload_len + size_of_val(&tail));
    out.put_u64_le(head);
    out.put_u16_le(u16::from(CONTENT) | (text.len() as u16) << 8);
    out.put_slice(text);
    let end = out.len() + tail_len;
    out.put_u64_le(tail);
    out.truncate(end);
    Ok(())
}

/// The number with its tag, first byte lowest, and how many bytes that are.
#[inline(always)]
fn short_tail(mut seq: u64) -> (u64, usize) {
    let mut tail = u64::from(u16::from_le_bytes(SEQ));
    let mut len = SEQ.len();
    while seq >= 0x80 {
        tail |= ((seq & 0x7f) | 0x80) << (8 * len);
        len += 1;
        seq >>= 7;
    }
    (tail | (seq << (8 * len)), len + 1)
}

/// The number that `bytes` are, of those that fit in a word.
#[inline(always)]
fn short_number(bytes: &[u8]) -> Option<u64> {
    let (&last, before) = bytes.split_last()?;
    if last >= 0x80 || before.len() > 7 {
        return None;
    }
    let mut value = u64::from(last);
    for &byte in before.iter().rev() {
        if byte < 0x80 {
            return None;
        }
        value = value << 7 | u64::from(byte & 0x7f);
    }
    Some(value)
}

/// The same for a text and a number of any length.
fn put_any(
    kind: Kind,
    text: &[u8],
    seq: Option<u64>,
    out: &mut BytesMut,
) -> Result<(), FrameError> {
    let content_len = field_len(text.len());
    let seq_len = seq.map_or(0, |seq| SEQ.len() + encoded_len_varint(seq));
    let event_len = field_len(content_len) + seq_len;
    let payload_len = field_len(event_len);
    let header = FRAME_FORMAT.header(payload_len)?;
    out.reserve(HEADER_LEN + payload_len);
    out.put_slice(&header);
    for (tag, len) in [
        (STREAM, event_len),
        (kind.tag(), content_len),
        (CONTENT, text.len()),
    ] {
        out.put_u8(tag);
        encode_varint(len as u64, out);
    }
    out.put_slice(text);
    if let Some(seq) = seq {
        out.put_slice(&SEQ);
        encode_varint(seq, out);
    }
    Ok(())
}

/// The piece of text in `payload`, or `None` if it is anything else.
#[inline]
pub(super) fn decode(payload: &[u8]) -> Option<ServerMessage> {
    let event = Piece::read(payload)?.into();
    Some(ServerMessage {
        msg: Some(Msg::Stream(event)),
    })
}

/// Bytes of a field with a one-byte tag and `len` bytes of content.
#[inline]
fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

/// Takes the tag and the length of a field off `rest`, if it is that field.
#[inline(always)]
fn take_field(tag: u8, rest: &mut &[u8]) -> Option<usize> {
    let (&found, after) = rest.split_first()?;
    if found != tag {
        return None;
    }
    *rest = after;
    usize::try_from(take_varint(rest)?).ok()
}

/// Takes a number off `rest`, if there is one that fits.
#[inline(always)]
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
        const LENGTHS: [usize; 11] = [
            1,
            2,
            SHORT,
            SHORT + 1,
            100,
            120,
            127,
            128,
            16_380,
            16_384,
            20_000,
        ];
        prop_oneof![
            prop::sample::select(&LENGTHS[..]).prop_map(|len| "x".repeat(len)),
            any::<String>(),
        ]
    }

    fn a_number() -> impl Strategy<Value = Option<u64>> {
        let power =
            (0..64u32, -1..=1i64).prop_map(|(bits, by)| (1u64 << bits).wrapping_add_signed(by));
        prop::option::of(prop_oneof![any::<u64>(), power])
    }

    fn a_message() -> impl Strategy<Value = ServerMessage> {
        let event = (0..4, a_text()).prop_map(|(kind, content)| match kind {
            0 => None,
            1 => Some(Event::Thinking(StreamThinking { content })),
            _ => Some(Event::Chunk(StreamChunk { content })),
        });
        (event, a_number(), prop_oneof![Just(""), Just("{}")]).prop_map(|(event, seq, raw)| {
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
            let mut taken = BytesMut::new();
            match Piece::of(message.clone()) {
                Ok(piece) => piece.encode(&mut taken).expect("fits"),
                Err(left) => prop_assert_eq!(&left, &message),
            }
            prop_assert_eq!(taken, out);
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
