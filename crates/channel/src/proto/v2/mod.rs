//! Version 2: every byte inside an authenticated encryption.
//!
//! WebSocket subprotocol [`SUBPROTOCOL`], binary messages only. One message is
//! one frame. A frame of the handshake begins with its type; after the
//! handshake every message is one [`record`] and nothing else.
//!
//! | type | from | body | bytes |
//! |---|---|---|---|
//! | `01` pair start | device | SPAKE2 element X (32), commitment (32) | 65 |
//! | `02` pair reply | daemon | SPAKE2 element Y (32), daemon nonce (16), daemon key (32) | 81 |
//! | `03` pair prove | device | confirmation (32), box of device nonce (16), device key (32), name (0..256) | 97..353 |
//! | `04` pair done | daemon | confirmation (32), box of device id (16) | 65 |
//! | `10` resume | device | Noise IK message 1, empty payload (96) | 97 |
//! | `11` resumed | daemon | Noise IK message 2, empty payload (48) | 49 |
//! | `7f` refused | daemon | code (1), reason in UTF-8 (0..200) | 2..202 |
//!
//! A connection is `10 11` then records, or `01 02 03 04 10 11` then records.
//! A device that pairs goes on with the resume, whose Noise prologue then holds
//! the hash of the pairing: one way leads to the records, and it is bound to
//! everything before it. See [`pair`] and [`noise`] for what is computed.
//!
//! A `refused` frame is not authenticated and tells only of a handshake that
//! can't be finished. A device that was revoked is told so in its first record,
//! which nobody but the daemon can make.

pub mod message;
pub mod noise;
pub mod pair;
pub mod record;
pub mod words;

/// What a client offers in `Sec-WebSocket-Protocol`.
pub const SUBPROTOCOL: &str = "quintet.channel.v2";

/// The longest plaintext of a record.
pub const MAX_PLAINTEXT: usize = 1 << 20;

/// The longest message on the socket.
pub const MAX_FRAME: usize = MAX_PLAINTEXT + record::TAG;

/// The longest message before the records begin.
pub const MAX_HANDSHAKE: usize = 512;

/// Frame types of the handshake. A removed one stays listed.
pub mod frame {
    /// The device begins a pairing.
    pub const PAIR_START: u8 = 0x01;
    /// The daemon answers.
    pub const PAIR_REPLY: u8 = 0x02;
    /// The device proves that it knows the code.
    pub const PAIR_PROVE: u8 = 0x03;
    /// The daemon does too.
    pub const PAIR_DONE: u8 = 0x04;
    /// A paired device comes back.
    pub const RESUME: u8 = 0x10;
    /// The daemon knows it.
    pub const RESUMED: u8 = 0x11;
    /// The handshake ends here.
    pub const REFUSED: u8 = 0x7f;
}

/// Why the daemon does not finish a handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refused {
    /// The code was wrong.
    InvalidCode = 1,
    /// Too many were.
    LockedOut = 2,
    /// There is no code.
    CodeExpired = 3,
    /// The code has paired a device.
    AlreadyUsed = 4,
    /// The frame is not one of this protocol.
    BadFrame = 5,
    /// The frame is for another daemon, or of no key at all.
    WrongDaemon = 6,
    /// The daemon can't serve it now.
    Unavailable = 7,
}

impl Refused {
    const ALL: [Self; 7] = [
        Self::InvalidCode,
        Self::LockedOut,
        Self::CodeExpired,
        Self::AlreadyUsed,
        Self::BadFrame,
        Self::WrongDaemon,
        Self::Unavailable,
    ];

    /// The frame.
    pub fn encode(self, reason: &str) -> Vec<u8> {
        let reason = reason.get(..reason.floor_char_boundary(200));
        let mut frame = vec![frame::REFUSED, self as u8];
        frame.extend_from_slice(reason.unwrap_or_default().as_bytes());
        frame
    }

    /// Reads a whole frame, if it is a refusal.
    pub fn parse(bytes: &[u8]) -> Option<(Self, String)> {
        let [frame::REFUSED, code, reason @ ..] = bytes else {
            return None;
        };
        let refused = Self::ALL.into_iter().find(|known| *known as u8 == *code)?;
        Some((refused, String::from_utf8_lossy(reason).into_owned()))
    }
}

impl From<crate::proto::pairing::PairError> for Refused {
    fn from(error: crate::proto::pairing::PairError) -> Self {
        use crate::proto::pairing::PairError;
        match error {
            PairError::Missing | PairError::Invalid => Self::InvalidCode,
            PairError::LockedOut { .. } => Self::LockedOut,
            PairError::Expired => Self::CodeExpired,
            PairError::AlreadyUsed => Self::AlreadyUsed,
        }
    }
}

/// Why a handshake frame is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// Wrong type or length.
    #[error("not a frame of this point of the handshake")]
    Malformed,
    /// A key that adds nothing.
    #[error("a public key of small order")]
    WeakKey,
    /// A tag does not fit: another key, or changed bytes.
    #[error("the frame does not open")]
    Unauthentic,
    /// The code was another one.
    #[error("the other side does not know the code")]
    WrongCode,
    /// The device showed other values than it had committed to.
    #[error("the commitment does not fit")]
    BrokenCommitment,
}

impl From<crate::proto::keys::WeakKey> for HandshakeError {
    fn from(_: crate::proto::keys::WeakKey) -> Self {
        Self::WeakKey
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_read_as_written() {
        for refused in Refused::ALL {
            let frame = refused.encode("why");
            assert_eq!(Refused::parse(&frame), Some((refused, "why".to_owned())));
        }
        assert_eq!(Refused::parse(&[frame::REFUSED, 99]), None);
        assert_eq!(Refused::parse(&[frame::REFUSED]), None);
        assert_eq!(Refused::BadFrame.encode(&"ä".repeat(300)).len(), 202);
    }
}
