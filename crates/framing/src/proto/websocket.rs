//! Messages and frames of RFC 6455, after the handshake.
//!
//! ```text
//! [fin 1 bit | reserved 3 | opcode 4] [masked 1 | length 7] [length: 0, 2 or 8] [key: 0 or 4] [payload]
//! ```
//!
//! [`Assembler`] takes messages out of bytes that arrive in any pieces. A message that came in one
//! frame is handed out in the memory that it arrived in. A length is compared with the limit as
//! soon as it is declared, and so is the sum of a message's parts; how much memory may be taken for
//! a permitted one is up to the reader ([`Assembler::missing`]).
//!
//! A client masks what it sends with a key of each frame, a server does not; each refuses the
//! other way. Extensions are not negotiated, so a reserved bit is an error. Whether a text is UTF-8
//! is left to who reads it, so that it is looked at once.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// The most bytes before a payload.
pub const MAX_HEAD: usize = 14;

/// The most bytes of a control frame's payload (5.5).
const MAX_CONTROL: usize = 125;

/// The most bytes of a reason in a close frame, behind its code.
const MAX_REASON: usize = MAX_CONTROL - 2;

/// Close codes of 7.4.1.
pub mod close {
    /// Done.
    pub const NORMAL: u16 = 1000;
    /// The program stops.
    pub const GOING_AWAY: u16 = 1001;
    /// The peer broke the protocol.
    pub const PROTOCOL: u16 = 1002;
    /// A text that is not UTF-8.
    pub const NOT_UTF8: u16 = 1007;
    /// Not allowed.
    pub const POLICY: u16 = 1008;
    /// A message over the limit.
    pub const TOO_BIG: u16 = 1009;
    /// No room now.
    pub const TRY_AGAIN_LATER: u16 = 1013;
}

/// Which end of a connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The one that dialled.
    Client,
    /// The one that was dialled.
    Server,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WsMessage {
    /// UTF-8, which its reader checks.
    Text(Bytes),
    /// Anything.
    Binary(Bytes),
    /// The end, with a code and a reason. Who receives one answers with one.
    Close(u16, String),
}

/// What comes out of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received {
    /// For the user of the connection.
    Message(WsMessage),
    /// To be answered with a pong of the same bytes.
    Ping(Bytes),
}

/// Why bytes are not messages. The connection has no known boundary any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WsFault {
    /// A message over the limit.
    #[error("a message over {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// An extension that was not agreed on.
    #[error("a frame with reserved bits, of an extension that was not agreed on")]
    Reserved,
    /// A kind of frame that there is not.
    #[error("a frame of the unknown kind {0}")]
    UnknownOpcode(u8),
    /// A client that does not mask, or a server that does.
    #[error("{}", match .0 { Role::Server => "a client's frame without a mask", Role::Client => "a server's frame with a mask" })]
    Mask(Role),
    /// A control frame that is too long or in parts.
    #[error("a control frame over {} bytes or in parts", MAX_CONTROL)]
    Control,
    /// A part of a message whose beginning never came.
    #[error("a part of no message")]
    NoBeginning,
    /// A message that begins inside another.
    #[error("a message inside another")]
    NoEnd,
    /// A close frame that does not say what it must.
    #[error("a close frame with an invalid code or reason")]
    Close,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn of(number: u8) -> Result<Self, WsFault> {
        Ok(match number {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            number => return Err(WsFault::UnknownOpcode(number)),
        })
    }

    fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// What stands before a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    last: bool,
    opcode: Opcode,
    len: u64,
    key: Option<[u8; 4]>,
}

impl Head {
    /// Takes a head from the beginning of `bytes`; `None` until all of it is there.
    fn take(bytes: &mut BytesMut) -> Result<Option<Self>, WsFault> {
        let arrived: &[u8] = bytes;
        let [first, second, rest @ ..] = arrived else {
            return Ok(None);
        };
        let (first, second) = (*first, *second);
        if first & 0x70 != 0 {
            return Err(WsFault::Reserved);
        }
        let (long, len) = match second & 0x7f {
            126 => (
                2,
                rest.first_chunk().map(|it| u16::from_be_bytes(*it).into()),
            ),
            127 => (8, rest.first_chunk().map(|it| u64::from_be_bytes(*it))),
            short => (0, Some(short.into())),
        };
        let (masked, key) = match second & 0x80 {
            0 => (0, None),
            _ => (
                4,
                rest.get(long..)
                    .and_then(|rest| rest.first_chunk().copied()),
            ),
        };
        let opcode = Opcode::of(first & 0x0f)?;
        let (Some(len), true) = (len, masked == 0 || key.is_some()) else {
            return Ok(None);
        };
        let head = Self {
            last: first & 0x80 != 0,
            opcode,
            len,
            key,
        };
        bytes.advance(2_usize.saturating_add(long).saturating_add(masked));
        Ok(Some(head))
    }

    fn put(self, out: &mut BytesMut) {
        let last = if self.last { 0x80 } else { 0 };
        out.put_u8(last | self.opcode as u8);
        let masked = if self.key.is_some() { 0x80 } else { 0 };
        match (u8::try_from(self.len), u16::try_from(self.len)) {
            (Ok(len @ ..126), _) => out.put_u8(masked | len),
            (_, Ok(len)) => {
                out.put_u8(masked | 126);
                out.put_u16(len);
            }
            _ => {
                out.put_u8(masked | 127);
                out.put_u64(self.len);
            }
        }
        if let Some(key) = self.key {
            out.put_slice(&key);
        }
    }
}

/// Takes messages out of bytes.
#[derive(Debug)]
pub struct Assembler {
    role: Role,
    limit: usize,
    /// Of the frame whose payload has not come whole, and that payload's length.
    head: Option<(Head, usize)>,
    /// The parts of a message so far.
    parts: Option<(Kind, BytesMut)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Binary,
}

impl Assembler {
    /// At the end that is `role`, of messages of at most `limit` bytes.
    pub fn new(role: Role, limit: usize) -> Self {
        Self {
            role,
            limit,
            head: None,
            parts: None,
        }
    }

    /// From the next frame on messages may have at most `limit` bytes.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The next message that is whole in `arrived`, which is taken from there; `None` until more
    /// bytes are appended. Must not be called after an error.
    pub fn next(&mut self, arrived: &mut BytesMut) -> Result<Option<Received>, WsFault> {
        loop {
            let (head, len) = match self.head {
                Some(head) => head,
                None => match Head::take(arrived)? {
                    Some(head) => (head, self.permitted(head)?),
                    None => return Ok(None),
                },
            };
            self.head = Some((head, len));
            if arrived.len() < len {
                return Ok(None);
            }
            self.head = None;
            let mut payload = arrived.split_to(len);
            if let Some(key) = head.key {
                mask(&mut payload, key);
            }
            if let Some(received) = self.frame(head, payload)? {
                return Ok(Some(received));
            }
        }
    }

    /// How many more bytes than the `arrived` ones the frame that has begun needs; 0 when that is
    /// not known yet.
    pub fn missing(&self, arrived: usize) -> usize {
        self.head.map_or(0, |(_, len)| len.saturating_sub(arrived))
    }

    /// Whether a message has begun and not ended, where `arrived` bytes have not been taken.
    pub fn is_inside(&self, arrived: usize) -> bool {
        arrived > 0 || self.head.is_some() || self.parts.is_some()
    }

    /// The payload's length, of a frame that may come now.
    fn permitted(&self, head: Head) -> Result<usize, WsFault> {
        if head.key.is_some() != (self.role == Role::Server) {
            return Err(WsFault::Mask(self.role));
        }
        let len = usize::try_from(head.len).unwrap_or(usize::MAX);
        let before = match (head.opcode, &self.parts) {
            (opcode, _) if opcode.is_control() => {
                return match head.last && len <= MAX_CONTROL {
                    true => Ok(len),
                    false => Err(WsFault::Control),
                };
            }
            (Opcode::Continuation, None) => return Err(WsFault::NoBeginning),
            (Opcode::Continuation, Some((_, parts))) => parts.len(),
            (_, Some(_)) => return Err(WsFault::NoEnd),
            (_, None) => 0,
        };
        if before.saturating_add(len) > self.limit {
            return Err(WsFault::TooLong { limit: self.limit });
        }
        Ok(len)
    }

    fn frame(&mut self, head: Head, payload: BytesMut) -> Result<Option<Received>, WsFault> {
        let kind = match head.opcode {
            Opcode::Text => Kind::Text,
            Opcode::Binary => Kind::Binary,
            Opcode::Continuation => {
                let Some((kind, mut parts)) = self.parts.take() else {
                    return Err(WsFault::NoBeginning);
                };
                parts.extend_from_slice(&payload);
                return Ok(self.part(head.last, kind, parts));
            }
            Opcode::Ping => return Ok(Some(Received::Ping(payload.freeze()))),
            Opcode::Pong => return Ok(None),
            Opcode::Close => return closed(&payload).map(|it| Some(Received::Message(it))),
        };
        Ok(self.part(head.last, kind, payload))
    }

    fn part(&mut self, last: bool, kind: Kind, bytes: BytesMut) -> Option<Received> {
        if !last {
            self.parts = Some((kind, bytes));
            return None;
        }
        let bytes = bytes.freeze();
        Some(Received::Message(match kind {
            Kind::Text => WsMessage::Text(bytes),
            Kind::Binary => WsMessage::Binary(bytes),
        }))
    }
}

/// A close frame's payload: nothing, or a code and a reason.
fn closed(payload: &[u8]) -> Result<WsMessage, WsFault> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(WsMessage::Close(close::NORMAL, String::new())),
            _ => Err(WsFault::Close),
        };
    };
    let code = u16::from_be_bytes(*code);
    // 1004 to 1006 and 1015 are never sent; below 1000 and from 1016 to 2999 there is nothing.
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return Err(WsFault::Close);
    }
    match std::str::from_utf8(reason) {
        Ok(reason) => Ok(WsMessage::Close(code, reason.to_owned())),
        Err(_) => Err(WsFault::Close),
    }
}

/// A frame to send: its head, and its payload as it goes out behind it.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing {
    opcode: Opcode,
    key: Option<[u8; 4]>,
}

impl Outgoing {
    /// The frame of a message; `key` is new for each, and only a client has one.
    pub fn message(message: &WsMessage, key: Option<[u8; 4]>) -> Self {
        let opcode = match message {
            WsMessage::Text(_) => Opcode::Text,
            WsMessage::Binary(_) => Opcode::Binary,
            WsMessage::Close(..) => Opcode::Close,
        };
        Self { opcode, key }
    }

    /// The frame that answers a ping.
    pub fn pong(key: Option<[u8; 4]>) -> Self {
        Self {
            opcode: Opcode::Pong,
            key,
        }
    }

    /// Appends the head of a frame with `len` bytes of payload.
    pub fn head(self, len: usize, out: &mut BytesMut) {
        let head = Head {
            last: true,
            opcode: self.opcode,
            len: len as u64,
            key: self.key,
        };
        head.put(out);
    }

    /// Appends head and payload.
    pub fn whole(self, payload: &[u8], out: &mut BytesMut) {
        out.reserve(MAX_HEAD.saturating_add(payload.len()));
        self.head(payload.len(), out);
        let head = out.len();
        out.put_slice(payload);
        if let (Some(key), Some(payload)) = (self.key, out.get_mut(head..)) {
            mask(payload, key);
        }
    }
}

/// The payload of a close frame, its reason cut to what one holds.
pub fn close_payload(code: u16, reason: &str) -> Bytes {
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    let reason = reason.get(..end).unwrap_or_default();
    let mut payload = BytesMut::with_capacity(2_usize.saturating_add(reason.len()));
    payload.put_u16(code);
    payload.put_slice(reason.as_bytes());
    payload.freeze()
}

/// Masks, or unmasks, a whole payload (5.3).
pub fn mask(payload: &mut [u8], key: [u8; 4]) {
    let [a, b, c, d] = key;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = payload.as_chunks_mut();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1 << 20;
    const KEY: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

    /// Everything that comes out of `stream`, which arrives in pieces of `sizes`, over and over.
    fn received(role: Role, stream: &[u8], sizes: &[usize]) -> (Vec<Received>, Option<WsFault>) {
        let mut assembler = Assembler::new(role, LIMIT);
        let mut arrived = BytesMut::new();
        let mut received = Vec::new();
        let mut rest = stream;
        for size in sizes.iter().cycle() {
            let (piece, later) = rest.split_at((*size).min(rest.len()));
            arrived.extend_from_slice(piece);
            rest = later;
            loop {
                match assembler.next(&mut arrived) {
                    Ok(Some(it)) => received.push(it),
                    Ok(None) => break,
                    Err(fault) => return (received, Some(fault)),
                }
            }
            let missing = assembler.missing(arrived.len());
            assert!(missing == 0 || assembler.is_inside(arrived.len()));
            if rest.is_empty() {
                break;
            }
        }
        (received, None)
    }

    fn whole(role: Role, stream: &[u8]) -> (Vec<Received>, Option<WsFault>) {
        received(role, stream, &[usize::MAX])
    }

    fn text(text: &'static str) -> Received {
        Received::Message(WsMessage::Text(Bytes::from_static(text.as_bytes())))
    }

    fn binary(bytes: Vec<u8>) -> Received {
        Received::Message(WsMessage::Binary(bytes.into()))
    }

    /// The frame of a message as a peer sends it.
    fn frame(opcode: Opcode, last: bool, payload: &[u8], key: Option<[u8; 4]>) -> BytesMut {
        let mut out = BytesMut::new();
        let head = Head {
            last,
            opcode,
            len: payload.len() as u64,
            key,
        };
        head.put(&mut out);
        let at = out.len();
        out.put_slice(payload);
        if let Some(key) = key {
            mask(&mut out[at..], key);
        }
        out
    }

    /// The examples of RFC 6455, 5.7.
    #[test]
    fn the_examples_of_the_standard() {
        let hello = [0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
        assert_eq!(whole(Role::Client, &hello), (vec![text("Hello")], None));
        let masked = [
            0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58,
        ];
        assert_eq!(whole(Role::Server, &masked), (vec![text("Hello")], None));
        let parts = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
        assert_eq!(whole(Role::Client, &parts), (vec![text("Hello")], None));
        let ping = [0x89, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
        let answer = Received::Ping(Bytes::from_static(b"Hello"));
        assert_eq!(whole(Role::Client, &ping), (vec![answer], None));

        let mut out = BytesMut::new();
        let message = WsMessage::Text(Bytes::from_static(b"Hello"));
        Outgoing::message(&message, None).whole(b"Hello", &mut out);
        assert_eq!(out, hello.as_slice());
        out.clear();
        Outgoing::message(&message, Some(KEY)).whole(b"Hello", &mut out);
        assert_eq!(out, masked.as_slice());
        out.clear();
        Outgoing::pong(Some(KEY)).whole(b"Hello", &mut out);
        assert_eq!(out[..], [&[0x8a][..], &masked[1..]].concat());
        for (len, head) in [
            (125, &[0x82, 0x7d][..]),
            (126, &[0x82, 0x7e, 0x00, 0x7e]),
            (256, &[0x82, 0x7e, 0x01, 0x00]),
            (65535, &[0x82, 0x7e, 0xff, 0xff]),
            (65536, &[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            out.clear();
            Outgoing::message(&WsMessage::Binary(Bytes::new()), None).head(len, &mut out);
            assert_eq!(out, head, "{len}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_reason() {
        use Opcode::{Binary, Continuation, Ping, Text};
        let server = Role::Server;
        let key = Some(KEY);
        let joined = |frames: &[BytesMut]| frames.concat();
        let close = |payload: &[u8]| frame(Opcode::Close, true, payload, key).to_vec();
        for (stream, fault) in [
            (vec![0xc1, 0x80], WsFault::Reserved),
            (vec![0x83, 0x80], WsFault::UnknownOpcode(3)),
            (vec![0x8f, 0x80], WsFault::UnknownOpcode(15)),
            (vec![0x82, 0x01, 7], WsFault::Mask(server)),
            (joined(&[frame(Ping, false, b"", key)]), WsFault::Control),
            (
                joined(&[frame(Ping, true, &[0; 126], key)]),
                WsFault::Control,
            ),
            (
                joined(&[frame(Continuation, true, b"x", key)]),
                WsFault::NoBeginning,
            ),
            (
                joined(&[
                    frame(Text, false, b"a", key),
                    frame(Binary, true, b"b", key),
                ]),
                WsFault::NoEnd,
            ),
            (close(&[3]), WsFault::Close),
            (close(&[3, 231]), WsFault::Close),
            (close(&[3, 237]), WsFault::Close),
            (close(&[3, 248]), WsFault::Close),
            (close(&[3, 232, 0xff]), WsFault::Close),
        ] {
            assert_eq!(whole(server, &stream), (vec![], Some(fault.clone())));
            assert_eq!(received(server, &stream, &[1]), (vec![], Some(fault)));
        }
        let masked = frame(Text, true, b"x", key);
        let fault = WsFault::Mask(Role::Client);
        assert_eq!(whole(Role::Client, &masked), (vec![], Some(fault)));
    }

    #[test]
    fn a_length_over_the_limit_is_refused_by_its_head_alone() {
        let too_long = Some(WsFault::TooLong { limit: LIMIT });
        for len in [LIMIT as u64 + 1, u64::from(u32::MAX) + 1, u64::MAX] {
            let mut head = vec![0x82, 0xff];
            head.extend_from_slice(&len.to_be_bytes());
            head.extend_from_slice(&KEY);
            assert_eq!(whole(Role::Server, &head), (vec![], too_long.clone()));
        }
        // And in parts, each of which is short enough.
        let half = vec![0; LIMIT / 2 + 1];
        let mut parts = frame(Opcode::Binary, false, &half, None);
        parts.extend_from_slice(&[0x00, 127]);
        parts.extend_from_slice(&(half.len() as u64).to_be_bytes());
        assert_eq!(whole(Role::Client, &parts), (vec![], too_long));
        let most = vec![7; LIMIT];
        let frame = frame(Opcode::Binary, true, &most, None);
        assert_eq!(whole(Role::Client, &frame), (vec![binary(most)], None));
    }

    #[test]
    fn a_ping_comes_between_the_parts_of_a_message() {
        let stream = [
            frame(Opcode::Text, false, b"He", None),
            frame(Opcode::Ping, true, b"?", None),
            frame(Opcode::Pong, true, b"!", None),
            frame(Opcode::Continuation, false, b"", None),
            frame(Opcode::Continuation, true, b"llo", None),
        ]
        .concat();
        let expected = vec![Received::Ping(Bytes::from_static(b"?")), text("Hello")];
        assert_eq!(whole(Role::Client, &stream), (expected, None));
    }

    #[test]
    fn a_close_has_a_code_and_a_reason_that_fits() {
        let received = |payload: &[u8]| {
            let stream = frame(Opcode::Close, true, payload, None);
            whole(Role::Client, &stream)
        };
        let closed = |code, reason: &str| {
            let message = WsMessage::Close(code, reason.to_owned());
            (vec![Received::Message(message)], None)
        };
        assert_eq!(received(b""), closed(close::NORMAL, ""));
        let short = close_payload(4001, "replaced");
        assert_eq!(received(&short), closed(4001, "replaced"));
        // 124 bytes, of which the last letter would be cut.
        let long = "é".repeat(62);
        let cut = close_payload(close::POLICY, &long);
        assert_eq!(received(&cut), closed(close::POLICY, &long[..122]));
    }

    #[test]
    fn the_missing_bytes_are_known_once_the_head_is() {
        let stream = frame(Opcode::Binary, true, &[1; 70_000], Some(KEY));
        let mut assembler = Assembler::new(Role::Server, LIMIT);
        let mut arrived = BytesMut::from(&stream[..13]);
        assert_eq!(assembler.next(&mut arrived), Ok(None));
        assert_eq!(assembler.missing(arrived.len()), 0);
        assert!(assembler.is_inside(arrived.len()));
        arrived.extend_from_slice(&stream[13..1014]);
        assert_eq!(assembler.next(&mut arrived), Ok(None));
        assert_eq!(arrived.len(), 1000);
        assert_eq!(assembler.missing(arrived.len()), 69_000);
    }

    proptest! {
        #[test]
        fn messages_come_back_whatever_the_parts_and_the_cuts(
            messages in prop::collection::vec(
                (any::<bool>(), prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 1..4)),
                0..6,
            ),
            key in prop::option::of(any::<[u8; 4]>()),
            sizes in prop::collection::vec(1_usize..400, 1..8),
        ) {
            let mut stream = BytesMut::new();
            let mut expected = Vec::new();
            for (is_text, parts) in &messages {
                for (number, part) in parts.iter().enumerate() {
                    let opcode = match (number, is_text) {
                        (0, true) => Opcode::Text,
                        (0, false) => Opcode::Binary,
                        _ => Opcode::Continuation,
                    };
                    stream.extend_from_slice(&frame(opcode, number + 1 == parts.len(), part, key));
                }
                let bytes = Bytes::from(parts.concat());
                expected.push(Received::Message(match is_text {
                    true => WsMessage::Text(bytes),
                    false => WsMessage::Binary(bytes),
                }));
            }
            let role = match key {
                Some(_) => Role::Server,
                None => Role::Client,
            };
            prop_assert_eq!(received(role, &stream, &sizes), (expected, None));
        }

        #[test]
        fn masking_twice_is_nothing_and_follows_the_standard(
            mut payload in prop::collection::vec(any::<u8>(), 0..100),
            key in any::<[u8; 4]>(),
        ) {
            let plain = payload.clone();
            mask(&mut payload, key);
            for (number, (masked, plain)) in payload.iter().zip(&plain).enumerate() {
                prop_assert_eq!(*masked, plain ^ key[number % 4]);
            }
            mask(&mut payload, key);
            prop_assert_eq!(payload, plain);
        }
    }
}
