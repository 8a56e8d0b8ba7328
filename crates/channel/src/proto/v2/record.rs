//! Records: ChaCha20-Poly1305 with a counter for a nonce, one key each way.
//!
//! ```text
//! nonce      00 00 00 00, then the counter as u64 little-endian
//! message    ciphertext, then the 16-byte tag; no associated data
//! plaintext  00, then JSON in UTF-8
//!            01, then a stream's number as u32 big-endian, then its bytes
//! ```
//!
//! The counter is not sent: it begins at 0 and grows by one a record, so that a
//! record that is repeated, left out or moved does not open. After every 2^16
//! records a side replaces its key by Noise's `REKEY` (the first 32 bytes of 32
//! zeros encrypted under nonce 2^64 - 1); the counter goes on.

use std::fmt;

use chacha20poly1305::aead::{AeadInOut, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};

use super::MAX_PLAINTEXT;
use crate::proto::keys::Secret32;

/// Bytes that encryption adds.
pub const TAG: usize = 16;

/// Records under one key.
pub const REKEY_EVERY: u64 = 1 << 16;

/// Why a record can't be made or opened. The connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// Its tag does not fit.
    #[error("a record does not open")]
    Unauthentic,
    /// Over the limit.
    #[error("a record over {MAX_PLAINTEXT} bytes")]
    TooLong,
    /// 2^64 - 1 records were made.
    #[error("the counter is at its end")]
    Exhausted,
}

/// One direction: its key and how many records it has seen.
pub struct RecordKey {
    cipher: ChaCha20Poly1305,
    counter: u64,
}

impl fmt::Debug for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordKey")
            .field("counter", &self.counter)
            .finish_non_exhaustive()
    }
}

impl RecordKey {
    /// A direction at its beginning.
    pub fn new(key: &Secret32) -> Self {
        Self {
            cipher: ChaCha20Poly1305::new(key.expose().into()),
            counter: 0,
        }
    }

    /// Encrypts in place and appends the tag.
    pub fn seal(&mut self, buffer: &mut Vec<u8>) -> Result<(), RecordError> {
        if buffer.len() > MAX_PLAINTEXT {
            return Err(RecordError::TooLong);
        }
        let nonce = self.next()?;
        self.cipher
            .encrypt_in_place(&nonce, b"", buffer)
            .map_err(|_| RecordError::TooLong)?;
        self.step();
        Ok(())
    }

    /// Decrypts in place and removes the tag.
    pub fn open(&mut self, buffer: &mut Vec<u8>) -> Result<(), RecordError> {
        let nonce = self.next()?;
        self.cipher
            .decrypt_in_place(&nonce, b"", buffer)
            .map_err(|_| RecordError::Unauthentic)?;
        self.step();
        Ok(())
    }

    fn next(&self) -> Result<Nonce, RecordError> {
        if self.counter == u64::MAX {
            return Err(RecordError::Exhausted);
        }
        Ok(nonce(self.counter))
    }

    fn step(&mut self) {
        self.counter = self.counter.saturating_add(1);
        if self.counter.is_multiple_of(REKEY_EVERY) {
            let mut next = zeroize::Zeroizing::new(vec![0; 32]);
            self.cipher
                .encrypt_in_place(&nonce(u64::MAX), b"", &mut *next)
                .expect("32 bytes can be encrypted");
            next.truncate(32);
            self.cipher = ChaCha20Poly1305::new_from_slice(&next).expect("a key has 32 bytes");
        }
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    if let Some(low) = bytes.last_chunk_mut() {
        *low = counter.to_le_bytes();
    }
    Nonce::from(bytes)
}

/// Both directions of a connection.
#[derive(Debug)]
pub struct Transport {
    /// What we send.
    pub sending: RecordKey,
    /// What we receive.
    pub receiving: RecordKey,
    /// The hash of the whole handshake, the same on both sides.
    pub transcript: [u8; 32],
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pair() -> (RecordKey, RecordKey) {
        let key = Secret32::new([3; 32]);
        (RecordKey::new(&key), RecordKey::new(&key))
    }

    fn sealed(key: &mut RecordKey, text: &[u8]) -> Vec<u8> {
        let mut buffer = text.to_vec();
        key.seal(&mut buffer).unwrap();
        buffer
    }

    #[test]
    fn a_flipped_bit_in_every_byte_is_noticed() {
        let (mut sender, _) = pair();
        let record = sealed(&mut sender, b"every word");
        for at in 0..record.len() {
            for bit in 0..8 {
                let (_, mut receiver) = pair();
                let mut changed = record.clone();
                changed[at] ^= 1 << bit;
                assert_eq!(receiver.open(&mut changed), Err(RecordError::Unauthentic));
            }
        }
    }

    #[test]
    fn repeated_reordered_and_missing_records_do_not_open() {
        let (mut sender, mut receiver) = pair();
        let records: Vec<_> = (0..3_u8).map(|n| sealed(&mut sender, &[n])).collect();
        receiver.open(&mut records[0].clone()).unwrap();
        let unauthentic = Err(RecordError::Unauthentic);
        assert_eq!(receiver.open(&mut records[0].clone()), unauthentic);
        assert_eq!(receiver.open(&mut records[2].clone()), unauthentic);
        receiver.open(&mut records[1].clone()).unwrap();
        receiver.open(&mut records[2].clone()).unwrap();
    }

    #[test]
    fn a_record_sent_back_does_not_open() {
        let (mut sender, _) = pair();
        let mut other_way = RecordKey::new(&Secret32::new([4; 32]));
        let mut record = sealed(&mut sender, b"mine");
        assert_eq!(other_way.open(&mut record), Err(RecordError::Unauthentic));
    }

    #[test]
    fn keys_change_every_65536_records_on_both_sides() {
        let (mut sender, mut receiver) = pair();
        for _ in 0..REKEY_EVERY {
            let mut record = sealed(&mut sender, b"");
            receiver.open(&mut record).unwrap();
        }
        let mut record = sealed(&mut sender, b"after");
        let mut late = RecordKey::new(&Secret32::new([3; 32]));
        late.counter = REKEY_EVERY;
        assert_eq!(
            late.open(&mut record.clone()),
            Err(RecordError::Unauthentic),
            "the first key does not open what follows"
        );
        receiver.open(&mut record).unwrap();
        assert_eq!(record, b"after");
    }

    #[test]
    fn the_limit_and_the_end_of_the_counter() {
        let (mut sender, mut receiver) = pair();
        assert_eq!(
            sender.seal(&mut vec![0; MAX_PLAINTEXT + 1]),
            Err(RecordError::TooLong)
        );
        sender.counter = u64::MAX;
        assert_eq!(sender.seal(&mut Vec::new()), Err(RecordError::Exhausted));
        for short in 0..TAG {
            let cut = receiver.open(&mut vec![0; short]);
            assert_eq!(cut, Err(RecordError::Unauthentic));
        }
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens(texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20)) {
            let (mut sender, mut receiver) = pair();
            for text in texts {
                let mut record = sealed(&mut sender, &text);
                receiver.open(&mut record).unwrap();
                prop_assert_eq!(record, text);
            }
        }

        #[test]
        fn no_bytes_open_by_chance(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (_, mut receiver) = pair();
            prop_assert!(receiver.open(&mut bytes).is_err());
        }
    }
}
