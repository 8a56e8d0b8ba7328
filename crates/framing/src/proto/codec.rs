//! The frame codec.
//!
//! ```text
//! [4 bytes: payload length, byte order of the plane] [payload]
//! ```
//!
//! A declared length is compared with the plane's limit as soon as its four
//! bytes are there, before any memory is taken for it. Even a permitted length
//! takes memory only as its bytes arrive: a peer that announces 100 MiB and
//! sends nothing costs one read buffer.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::blocks::Blocks;

/// Bytes of the length prefix.
pub const HEADER_LEN: usize = 4;

/// What one read may fill when no larger payload is awaited.
const READ_CHUNK: usize = 64 * 1024;

/// The most that is reserved ahead of the bytes that have arrived of a large payload.
const GROWTH_STEP: usize = 1024 * 1024;

/// A payload from this size on is read into memory that an earlier one had, where that is free.
const LARGE: usize = 128 * 1024;

/// The memory that large payloads are read into; several fit, and few straddle two.
const BLOCK: usize = 2 * GROWTH_STEP;

/// Blocks that are kept.
const KEPT: usize = 12;

/// Byte order of the length prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first: the agent and workspace planes.
    Little,
    /// Most significant byte first: the control plane.
    Big,
}

/// How one plane frames its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameFormat {
    plane: &'static str,
    order: ByteOrder,
    max_payload: u32,
}

impl FrameFormat {
    /// States a plane's byte order and its largest payload.
    pub const fn new(plane: &'static str, order: ByteOrder, max_payload: u32) -> Self {
        Self {
            plane,
            order,
            max_payload,
        }
    }

    /// The plane's name, as errors show it.
    pub const fn plane(&self) -> &'static str {
        self.plane
    }

    /// The largest payload in bytes.
    pub const fn max_payload(&self) -> u32 {
        self.max_payload
    }

    /// The prefix of a payload of `len` bytes, or the limit that it breaks.
    pub fn header(&self, len: usize) -> Result<[u8; HEADER_LEN], FrameError> {
        match u32::try_from(len) {
            Ok(len) if len <= self.max_payload => Ok(match self.order {
                ByteOrder::Little => len.to_le_bytes(),
                ByteOrder::Big => len.to_be_bytes(),
            }),
            _ => Err(self.too_large(len as u64)),
        }
    }

    /// Appends one whole frame to `out`.
    pub fn encode(&self, payload: &[u8], out: &mut BytesMut) -> Result<(), FrameError> {
        let header = self.header(payload.len())?;
        out.reserve(HEADER_LEN.saturating_add(payload.len()));
        out.put_slice(&header);
        out.put_slice(payload);
        Ok(())
    }

    /// The payload length that `header` declares, checked against the limit.
    #[inline]
    fn declared(&self, header: [u8; HEADER_LEN]) -> Result<usize, FrameError> {
        let declared = match self.order {
            ByteOrder::Little => u32::from_le_bytes(header),
            ByteOrder::Big => u32::from_be_bytes(header),
        };
        if declared > self.max_payload {
            return Err(self.too_large(u64::from(declared)));
        }
        Ok(declared as usize)
    }

    fn too_large(&self, declared: u64) -> FrameError {
        FrameError::TooLarge {
            plane: self.plane,
            limit: self.max_payload,
            declared,
        }
    }
}

/// Why bytes are not a frame of a plane.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The declared length is over the plane's limit.
    #[error(
        "{plane} frame declares {declared} bytes of payload; the limit of this plane is {limit}"
    )]
    TooLarge {
        /// The plane whose limit it is.
        plane: &'static str,
        /// The limit in bytes.
        limit: u32,
        /// What the peer declared, or the sender asked for.
        declared: u64,
    },
    /// The stream ended inside a frame.
    #[error("{plane} stream ended inside a frame: {have} of {want} bytes arrived")]
    Truncated {
        /// The plane of the stream.
        plane: &'static str,
        /// Bytes of the frame that arrived, prefix included.
        have: usize,
        /// Bytes that the frame has, as far as is known, prefix included.
        want: usize,
    },
}

/// Takes frames out of bytes that arrive in any pieces.
///
/// Bytes come in through [`spare`](Self::spare) (a read fills it in place) or
/// [`feed`](Self::feed) (a message that is already in memory). A payload is
/// handed out as a slice of the memory that it arrived in; it is moved at most
/// once, when its frame straddles two reads.
///
/// After an error the stream has no known frame boundary any more: the decoder
/// keeps returning that error.
#[derive(Debug)]
pub struct Decoder {
    format: FrameFormat,
    buffer: BytesMut,
    /// A fed message that has not been taken apart yet; used only while `buffer` is empty.
    fed: Bytes,
    /// Payload length of the frame whose prefix has been consumed.
    pending: Option<usize>,
    failed: Option<FrameError>,
    /// Memory of large payloads.
    blocks: Option<Blocks>,
    /// Whether `buffer` is one of them.
    in_block: bool,
}

impl Decoder {
    /// A decoder at a frame boundary. Takes no memory until bytes arrive.
    pub fn new(format: FrameFormat) -> Self {
        Self {
            format,
            buffer: BytesMut::new(),
            fed: Bytes::new(),
            pending: None,
            failed: None,
            blocks: None,
            in_block: false,
        }
    }

    /// The buffer that the next read appends to, with room in it.
    ///
    /// The room follows what has arrived, not what was declared.
    pub fn spare(&mut self) -> &mut BytesMut {
        self.absorb_fed();
        let missing = self
            .pending
            .map_or(0, |want| want.saturating_sub(self.buffer.len()));
        let room = missing.clamp(READ_CHUNK, GROWTH_STEP.max(self.buffer.len()));
        let enough = match missing {
            0 => READ_CHUNK / 4,
            missing => missing.min(room),
        };
        if self.buffer.capacity().saturating_sub(self.buffer.len()) < enough {
            match missing >= LARGE || self.blocks.is_some() {
                true => self.renew(room),
                false => self.buffer.reserve(room),
            }
        }
        &mut self.buffer
    }

    /// Goes on in memory that has room for more: that of earlier payloads, where it is free.
    fn renew(&mut self, room: usize) {
        if self.buffer.len() + room > BLOCK {
            self.buffer.reserve(room);
            self.in_block = false;
            return;
        }
        let blocks = self.blocks.get_or_insert_with(|| Blocks::new(BLOCK, KEPT));
        let next = blocks.take(&self.buffer);
        let before = std::mem::replace(&mut self.buffer, next);
        if std::mem::replace(&mut self.in_block, true) {
            blocks.keep(before);
        }
    }

    /// Gives memory back that was kept for large payloads when none comes any more.
    fn note_size(&mut self, payload: usize) {
        if let Some(blocks) = &mut self.blocks
            && blocks.note(payload >= LARGE)
        {
            self.blocks = None;
            self.in_block = false;
        }
    }

    /// Takes in bytes that are already in memory, without copying where they hold whole frames.
    pub fn feed(&mut self, bytes: Bytes) {
        if self.buffer.is_empty() && self.fed.is_empty() {
            self.fed = bytes;
        } else {
            self.absorb_fed();
            self.buffer.extend_from_slice(&bytes);
        }
    }

    /// The next whole frame's payload, or `None` until more bytes arrive.
    #[inline]
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, FrameError> {
        let Some(want) = self.next_len()? else {
            return Ok(None);
        };
        self.note_size(want);
        Ok(Some(if self.fed.is_empty() {
            self.buffer.split_to(want).freeze()
        } else {
            self.fed.split_to(want)
        }))
    }

    /// What `read` makes of the next whole frame's payload, or `None` until more bytes arrive.
    ///
    /// For a payload that is not kept: its memory is not shared, so that nothing is counted and
    /// the buffer is used again.
    #[inline]
    pub fn read_frame<T>(
        &mut self,
        read: impl FnOnce(&[u8]) -> T,
    ) -> Result<Option<T>, FrameError> {
        if let Some(payload) = self.whole_frame() {
            let len = payload.len();
            let value = read(payload);
            self.skip_frame(len);
            return Ok(Some(value));
        }
        let Some(want) = self.next_len()? else {
            return Ok(None);
        };
        Ok(Some(if self.fed.is_empty() {
            let value = read(&self.buffer[..want]);
            self.buffer.advance(want);
            value
        } else {
            read(&self.fed.split_to(want))
        }))
    }

    /// The next payload where its frame lies whole in the read buffer, as nearly all of a burst do:
    /// prefix and payload are then consumed in one step, by [`skip_frame`](Self::skip_frame).
    ///
    /// `None` says nothing: [`read_frame`](Self::read_frame) does.
    #[inline]
    pub fn whole_frame(&self) -> Option<&[u8]> {
        if self.pending.is_some() || self.failed.is_some() || !self.fed.is_empty() {
            return None;
        }
        let (header, rest) = self.buffer.split_first_chunk()?;
        rest.get(..self.format.declared(*header).ok()?)
    }

    /// Consumes the frame whose payload of `len` bytes [`whole_frame`](Self::whole_frame) returned.
    #[inline]
    pub fn skip_frame(&mut self, len: usize) {
        self.buffer.advance(HEADER_LEN.saturating_add(len));
    }

    /// The length of the next payload if it has arrived whole, with its prefix consumed.
    #[inline]
    fn next_len(&mut self) -> Result<Option<usize>, FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let want = match self.pending {
            Some(want) => want,
            None => match self.take_header() {
                Ok(Some(want)) => want,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            },
        };
        if self.available() < want {
            self.pending = Some(want);
            return Ok(None);
        }
        self.pending = None;
        Ok(Some(want))
    }

    /// Checks at the end of the stream that it did not end inside a frame.
    pub fn finish(&self) -> Result<(), FrameError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let left = self.available();
        let (have, want) = match self.pending {
            Some(payload) => (
                HEADER_LEN.saturating_add(left),
                HEADER_LEN.saturating_add(payload),
            ),
            None if left == 0 => return Ok(()),
            None => (left, HEADER_LEN),
        };
        Err(FrameError::Truncated {
            plane: self.format.plane,
            have,
            want,
        })
    }

    /// Whether a frame has begun to arrive and is not whole yet.
    pub fn is_mid_frame(&self) -> bool {
        self.pending.is_some() || self.available() > 0
    }

    fn available(&self) -> usize {
        self.buffer.len().max(self.fed.len())
    }

    fn take_header(&mut self) -> Result<Option<usize>, FrameError> {
        let header = if self.fed.is_empty() {
            let Some(header) = self.buffer.first_chunk() else {
                return Ok(None);
            };
            let header = *header;
            self.buffer.advance(HEADER_LEN);
            header
        } else {
            let Some(header) = self.fed.first_chunk() else {
                return Ok(None);
            };
            let header = *header;
            self.fed.advance(HEADER_LEN);
            header
        };
        self.format.declared(header).map(Some)
    }

    fn absorb_fed(&mut self) {
        if !self.fed.is_empty() {
            let fed = std::mem::take(&mut self.fed);
            self.buffer.extend_from_slice(&fed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CONTROL: FrameFormat = FrameFormat::new("control", ByteOrder::Big, 16 << 20);
    const AGENT: FrameFormat = FrameFormat::new("agent", ByteOrder::Little, 16 << 20);
    const WORKSPACE: FrameFormat = FrameFormat::new("workspace", ByteOrder::Little, 100 << 20);

    fn drain(decoder: &mut Decoder) -> Vec<Bytes> {
        std::iter::from_fn(|| decoder.next_frame().expect("valid frames")).collect()
    }

    fn drain_in_place(decoder: &mut Decoder) -> Vec<Bytes> {
        let mut read = || decoder.read_frame(Bytes::copy_from_slice);
        std::iter::from_fn(|| read().expect("valid frames")).collect()
    }

    #[test]
    fn prefix_is_written_in_the_planes_byte_order() {
        for (format, expected) in [(CONTROL, b"\0\0\0\x03abc"), (AGENT, b"\x03\0\0\0abc")] {
            let mut out = BytesMut::new();
            format.encode(b"abc", &mut out).expect("fits");
            assert_eq!(&out[..], expected);
        }
    }

    #[test]
    fn four_gibibytes_are_refused_on_every_plane_before_memory_is_taken() {
        for format in [CONTROL, AGENT, WORKSPACE] {
            let mut decoder = Decoder::new(format);
            decoder.feed(Bytes::from_static(&[0xff; HEADER_LEN]));
            let expected = FrameError::TooLarge {
                plane: format.plane(),
                limit: format.max_payload(),
                declared: u64::from(u32::MAX),
            };
            assert_eq!(decoder.next_frame(), Err(expected.clone()));
            assert_eq!(
                decoder.next_frame(),
                Err(expected.clone()),
                "it stays failed"
            );
            assert_eq!(decoder.finish(), Err(expected));
            assert_eq!(decoder.buffer.capacity(), 0);
        }
    }

    #[test]
    fn a_permitted_length_takes_memory_only_as_bytes_arrive() {
        let mut decoder = Decoder::new(WORKSPACE);
        decoder
            .spare()
            .extend_from_slice(&(100u32 << 20).to_le_bytes());
        assert_eq!(decoder.next_frame(), Ok(None));
        assert!(decoder.spare().capacity() <= 2 * GROWTH_STEP);
    }

    #[test]
    fn a_whole_fed_frame_is_not_copied() {
        let mut frame = BytesMut::new();
        AGENT.encode(&[7; 100], &mut frame).expect("fits");
        let frame = frame.freeze();
        let mut decoder = Decoder::new(AGENT);
        decoder.feed(frame.clone());
        let payload = decoder.next_frame().expect("valid").expect("whole");
        assert_eq!(payload.as_ptr(), frame[HEADER_LEN..].as_ptr());
    }

    #[test]
    fn an_end_inside_a_frame_names_what_is_missing() {
        let mut decoder = Decoder::new(AGENT);
        decoder.feed(Bytes::from_static(b"\x05\0"));
        assert_eq!(decoder.next_frame(), Ok(None));
        let truncated = |have, want| {
            Err(FrameError::Truncated {
                plane: "agent",
                have,
                want,
            })
        };
        assert_eq!(decoder.finish(), truncated(2, 4));
        decoder.feed(Bytes::from_static(b"\0\0abc"));
        assert_eq!(decoder.next_frame(), Ok(None));
        assert_eq!(decoder.finish(), truncated(7, 9));
        decoder.feed(Bytes::from_static(b"de"));
        assert_eq!(drain(&mut decoder), [Bytes::from_static(b"abcde")]);
        assert_eq!(decoder.finish(), Ok(()));
    }

    #[test]
    fn an_empty_payload_is_a_frame() {
        let mut decoder = Decoder::new(CONTROL);
        decoder.feed(Bytes::from_static(&[0; 8]));
        assert_eq!(drain(&mut decoder), [Bytes::new(), Bytes::new()]);
    }

    fn read_whole(decoder: &mut Decoder, payload: &[u8]) -> Bytes {
        let mut frame = BytesMut::new();
        WORKSPACE.encode(payload, &mut frame).expect("fits");
        loop {
            if let Some(payload) = decoder.next_frame().expect("valid") {
                return payload;
            }
            let spare = decoder.spare();
            let room = (spare.capacity() - spare.len()).min(frame.len());
            spare.extend_from_slice(&frame.split_to(room));
        }
    }

    #[test]
    fn the_memory_of_large_payloads_is_used_again_once_they_are_dropped() {
        let mut decoder = Decoder::new(WORKSPACE);
        let mut held = std::collections::VecDeque::new();
        let mut places = std::collections::HashSet::new();
        for round in 0..200u8 {
            let payload = vec![round; 300_000 + usize::from(round) * 1_000];
            let read = read_whole(&mut decoder, &payload);
            assert_eq!(read, payload);
            places.insert(read.as_ptr() as usize / BLOCK);
            held.push_back((round, read));
            if held.len() > 4 {
                let (round, oldest) = held.pop_front().expect("one");
                assert!(
                    oldest.iter().all(|byte| *byte == round),
                    "it was overwritten"
                );
            }
        }
        assert!(places.len() < 30, "{} for 200 payloads", places.len());
        assert!(decoder.blocks.as_ref().expect("memory").kept.len() <= KEPT);
    }

    #[test]
    fn the_memory_of_large_payloads_is_given_back_when_no_more_come() {
        let mut decoder = Decoder::new(WORKSPACE);
        for _ in 0..50 {
            read_whole(&mut decoder, &[7; 500_000]);
        }
        assert!(decoder.blocks.is_some());
        for _ in 0..crate::proto::blocks::KEPT_UNUSED {
            read_whole(&mut decoder, b"small");
        }
        assert!(decoder.blocks.is_none());
        assert_eq!(read_whole(&mut decoder, &[8; 3 << 20]), vec![8u8; 3 << 20]);
    }

    #[test]
    fn the_memory_of_one_very_large_payload_is_not_kept() {
        let mut decoder = Decoder::new(WORKSPACE);
        for size in [10 << 20, 500_000, 20 << 20, 500_000, 500_000, 500_000] {
            assert_eq!(read_whole(&mut decoder, &vec![9; size]), vec![9u8; size]);
        }
        let blocks = decoder.blocks.as_mut().expect("memory");
        for old in &mut blocks.kept {
            old.clear();
            assert!(!old.try_reclaim(2 * BLOCK));
        }
    }

    proptest! {
        #[test]
        fn any_frames_cut_anywhere_come_out_the_same(
            frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..20),
            cuts in prop::collection::vec((1usize..400, any::<bool>()), 1..40),
            big_endian in any::<bool>(),
            in_place in any::<bool>(),
        ) {
            let drain = if in_place { drain_in_place } else { drain };
            let format = if big_endian { CONTROL } else { AGENT };
            let mut wire = BytesMut::new();
            for frame in &frames {
                format.encode(frame, &mut wire).expect("fits");
            }
            let mut wire = wire.freeze();
            let mut decoder = Decoder::new(format);
            let mut seen = Vec::new();
            let mut cuts = cuts.iter().cycle();
            while !wire.is_empty() {
                let (cut, fed) = cuts.next().expect("cycles");
                let piece = wire.split_to((*cut).min(wire.len()));
                if *fed {
                    decoder.feed(piece);
                } else {
                    decoder.spare().extend_from_slice(&piece);
                }
                seen.extend(drain(&mut decoder));
            }
            prop_assert_eq!(decoder.finish(), Ok(()));
            prop_assert_eq!(seen.iter().map(|b| b.to_vec()).collect::<Vec<_>>(), frames);
        }

        #[test]
        fn arbitrary_bytes_never_panic_and_never_exceed_the_limit(
            bytes in prop::collection::vec(any::<u8>(), 0..2000),
        ) {
            let small = FrameFormat::new("test", ByteOrder::Little, 64);
            let mut decoder = Decoder::new(small);
            decoder.feed(Bytes::from(bytes));
            while let Ok(Some(payload)) = decoder.next_frame() {
                prop_assert!(payload.len() <= 64);
            }
        }
    }
}
