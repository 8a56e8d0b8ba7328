//! WebSocket frames: any cuts give the same messages, nothing over the limit comes out, and what is
//! written is read.

use bytes::{Bytes, BytesMut};
use quintet_framing::proto::websocket::{
    Assembler, Outgoing, Received, Role, WsFault, WsMessage, close_payload,
};

use crate::framing::pieces;

/// Byte 0 picks the end and the limit, byte 1 how many bytes of cut sizes follow, four bytes are a
/// key; the rest is the stream.
pub fn websocket(data: &[u8]) {
    let [choice, cut_count, a, b, c, d, rest @ ..] = data else {
        return;
    };
    let (cuts, stream) = rest.split_at((*cut_count as usize).min(rest.len()));
    let role = match choice & 1 {
        0 => Role::Client,
        _ => Role::Server,
    };
    let limit = [0, 64, 1 << 16, 16 << 20][usize::from(choice >> 1) % 4];
    cuts_do_not_matter(role, limit, cuts, stream);
    messages_come_back(role, limit, [*a, *b, *c, *d], cuts, stream);
}

/// A hostile stream in pieces ends as it does in one piece.
fn cuts_do_not_matter(role: Role, limit: usize, cuts: &[u8], stream: &[u8]) {
    let whole = assemble(role, limit, &[], stream);
    assert_eq!(
        whole,
        assemble(role, limit, cuts, stream),
        "the cuts changed the outcome"
    );
    let mut carried = 0;
    for received in &whole.0 {
        let (len, most) = match received {
            Received::Ping(bytes) => (bytes.len(), 125),
            Received::Message(WsMessage::Text(bytes) | WsMessage::Binary(bytes)) => {
                (bytes.len(), limit)
            }
            Received::Message(WsMessage::Close(_, reason)) => (reason.len(), 123),
        };
        assert!(len <= most, "{len} bytes where {most} are the most");
        carried += len;
    }
    assert!(carried <= stream.len(), "more came out than went in");
}

/// The pieces of the stream, sent as messages of every kind by the other end, arrive as they are.
fn messages_come_back(role: Role, limit: usize, key: [u8; 4], cuts: &[u8], stream: &[u8]) {
    let key = (role == Role::Server).then_some(key);
    let mut wire = BytesMut::new();
    let mut expected = Vec::new();
    for (number, piece) in pieces(cuts, stream).enumerate() {
        let payload = Bytes::copy_from_slice(&piece[..piece.len().min(limit)]);
        let message = match number % 3 {
            0 => WsMessage::Text(payload.clone()),
            1 => WsMessage::Binary(payload.clone()),
            _ => {
                let reason: String = String::from_utf8_lossy(piece).chars().take(30).collect();
                WsMessage::Close(1000, reason)
            }
        };
        let frame = Outgoing::message(&message, key);
        match &message {
            WsMessage::Close(code, reason) => {
                frame.whole(&close_payload(*code, reason), &mut wire);
            }
            WsMessage::Text(_) | WsMessage::Binary(_) => {
                // Both ways out, in turns: gathered, and as it lies, which no key does.
                if number % 2 == 0 || key.is_some() {
                    frame.whole(&payload, &mut wire);
                } else {
                    frame.head(payload.len(), &mut wire);
                    wire.extend_from_slice(&payload);
                }
            }
        }
        expected.push(Received::Message(message));
    }
    let reversed: Vec<u8> = cuts.iter().rev().copied().collect();
    assert_eq!(assemble(role, limit, &reversed, &wire), (expected, None));
}

/// Everything that comes out of the stream, and the fault that ended it.
fn assemble(
    role: Role,
    limit: usize,
    cuts: &[u8],
    stream: &[u8],
) -> (Vec<Received>, Option<WsFault>) {
    let mut assembler = Assembler::new(role, limit);
    let mut arrived = BytesMut::new();
    let mut received = Vec::new();
    for piece in pieces(cuts, stream) {
        arrived.extend_from_slice(piece);
        loop {
            match assembler.next(&mut arrived) {
                Ok(Some(it)) => received.push(it),
                Ok(None) => break,
                Err(fault) => return (received, Some(fault)),
            }
        }
        let missing = assembler.missing(arrived.len());
        assert!(
            missing <= limit.max(125),
            "memory for what is over the limit"
        );
        assert!(missing == 0 || assembler.is_inside(arrived.len()));
    }
    (received, None)
}
