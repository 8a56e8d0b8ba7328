//! The frame codec: any cuts give the same frames, and memory follows what arrived.

use bytes::{Bytes, BytesMut};
use quintet_framing::{ByteOrder, Decoder, FrameError, FrameFormat, HEADER_LEN};

/// What the decoder may hold beyond the bytes that arrived: its read buffer and one growth step.
const SLACK: usize = 3 << 20;

/// Byte 0 picks the format, byte 1 how many bytes of cut sizes follow; the rest is the stream.
pub fn framing(data: &[u8]) {
    let [choice, cut_count, rest @ ..] = data else {
        return;
    };
    let (cuts, stream) = rest.split_at((*cut_count as usize).min(rest.len()));
    let order = if choice & 1 == 0 {
        ByteOrder::Little
    } else {
        ByteOrder::Big
    };
    let limit = [0, 64, 1 << 16, 100 << 20][usize::from(choice >> 1) % 4];
    let format = FrameFormat::new("fuzz", order, limit);
    cuts_do_not_matter(format, cuts, stream);
    frames_come_back(format, cuts, stream);
}

/// A hostile stream in pieces ends as it does in one piece.
fn cuts_do_not_matter(format: FrameFormat, cuts: &[u8], stream: &[u8]) {
    let whole = decode(format, &[], stream);
    let pieces = decode(format, cuts, stream);
    assert_eq!(whole, pieces, "the cuts changed the outcome");
    let (frames, _) = whole;
    let limit = format.max_payload() as usize;
    assert!(
        frames.iter().all(|frame| frame.len() <= limit),
        "a frame over the limit"
    );
    let carried: usize = frames.iter().map(|frame| frame.len() + HEADER_LEN).sum();
    assert!(carried <= stream.len(), "more came out than went in");
}

/// The stream, cut into payloads and encoded, decodes to the same payloads.
fn frames_come_back(format: FrameFormat, cuts: &[u8], stream: &[u8]) {
    let limit = format.max_payload() as usize;
    let payloads: Vec<&[u8]> = pieces(cuts, stream)
        .map(|piece| &piece[..piece.len().min(limit)])
        .collect();
    let mut wire = BytesMut::new();
    for payload in &payloads {
        format.encode(payload, &mut wire).expect("within the limit");
    }
    let reversed: Vec<u8> = cuts.iter().rev().copied().collect();
    let (frames, end) = decode(format, &reversed, &wire);
    assert_eq!(end, Ok(()));
    assert_eq!(frames, payloads);
}

/// All frames of the stream, and how it ended.
fn decode(format: FrameFormat, cuts: &[u8], stream: &[u8]) -> (Vec<Bytes>, Result<(), FrameError>) {
    let mut decoder = Decoder::new(format);
    let mut frames = Vec::new();
    for (turn, piece) in pieces(cuts, stream).enumerate() {
        // Both ways in, in turns: a read into the decoder's buffer, and a message in memory.
        if turn % 2 == 0 {
            decoder.feed(Bytes::copy_from_slice(piece));
        } else {
            let room = decoder.spare();
            assert!(
                room.capacity() <= stream.len() + SLACK,
                "memory for bytes that never came"
            );
            room.extend_from_slice(piece);
        }
        loop {
            match decoder.next_frame() {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(decoder.next_frame(), Err(error.clone()), "it stays failed");
                    return (frames, Err(error));
                }
            }
        }
    }
    let end = decoder.finish();
    (frames, end)
}

/// The stream in pieces of the sizes in `cuts`, over and over; in one piece without cuts.
pub(crate) fn pieces<'a>(cuts: &'a [u8], mut stream: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut sizes = cuts.iter().map(|cut| usize::from(*cut) + 1).cycle();
    std::iter::from_fn(move || {
        let size = sizes.next().unwrap_or(stream.len()).min(stream.len());
        let (piece, rest) = stream.split_at(size);
        stream = rest;
        (!piece.is_empty()).then_some(piece)
    })
}
