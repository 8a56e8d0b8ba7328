//! The pairing code: six digits, a few minutes, once, and five wrong tries.
//!
//! A code exists only in memory and only as the hash that both versions of the
//! channel work with: v1 compares hashes in constant time, v2 uses the hash as
//! the password of its key exchange. Tries are counted per source and in all.
//! The fifth wrong one ends the code and locks pairing, the right code included.

use core::net::IpAddr;
use std::collections::HashMap;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::device::Seconds;
use super::keys::Secret32;

/// Wrong tries after which pairing is locked.
pub const MAX_WRONG: u32 = 5;

/// How long it is locked.
pub const LOCKED_FOR: Seconds = 300;

/// Sources whose tries are remembered; with more, each new one counts as locked out.
const MAX_SOURCES: usize = 1024;

/// Six digits, each equally likely, from random bytes.
pub fn digits(random: [u8; 8]) -> String {
    // 2^64 / 10^6: what is uneven is below 1 in 10^13.
    format!("{:06}", u64::from_le_bytes(random) % 1_000_000)
}

/// The hash of a code: what is kept, and the password of the key exchange.
pub fn verifier(code: &str) -> Secret32 {
    let mut hash = Sha256::new();
    hash.update(b"quintet pairing code");
    hash.update(code.trim().as_bytes());
    Secret32::new(hash.finalize().into())
}

/// Why a try to pair is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PairError {
    /// No code was sent.
    #[error("the pairing code is missing")]
    Missing,
    /// A wrong one was.
    #[error("the pairing code is wrong")]
    Invalid,
    /// Too many wrong ones were.
    #[error("too many wrong codes; pairing is locked for {retry_after} s")]
    LockedOut {
        /// Seconds until tries are heard again.
        retry_after: Seconds,
    },
    /// There is no code, or its time is over.
    #[error("there is no valid pairing code; make one with `quintet pair`")]
    Expired,
    /// The code has paired a device.
    #[error("the pairing code was used; make another with `quintet pair`")]
    AlreadyUsed,
}

impl PairError {
    /// The code on the wire.
    pub fn code(self) -> &'static str {
        match self {
            Self::Missing => "pairing_missing_code",
            Self::Invalid => "pairing_invalid_code",
            Self::LockedOut { .. } => "pairing_locked_out",
            Self::Expired => "pairing_code_expired",
            Self::AlreadyUsed => "pairing_already_used",
        }
    }
}

/// Which code a key exchange was begun with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u64);

#[derive(Debug)]
struct Code {
    verifier: Secret32,
    expires_at: Seconds,
    used: bool,
}

#[derive(Debug)]
struct Tries {
    wrong: u32,
    last: Seconds,
}

/// The one code that may be open, and who has tried it.
#[derive(Debug, Default)]
pub struct Pairing {
    code: Option<Code>,
    generation: u64,
    wrong: u32,
    sources: HashMap<IpAddr, Tries>,
    locked_until: Seconds,
}

impl Pairing {
    /// Opens a code in place of any earlier one. Refused while pairing is locked.
    pub fn open(&mut self, code: &str, now: Seconds, ttl: Seconds) -> Result<(), PairError> {
        self.unlocked(now)?;
        self.code = Some(Code {
            verifier: verifier(code),
            expires_at: now.saturating_add(ttl),
            used: false,
        });
        self.generation = self.generation.wrapping_add(1);
        self.wrong = 0;
        Ok(())
    }

    /// Opens a code where there never was one; false when somebody asked for one before.
    pub fn open_first(
        &mut self,
        code: &str,
        now: Seconds,
        ttl: Seconds,
    ) -> Result<bool, PairError> {
        if self.generation > 0 {
            return Ok(false);
        }
        self.open(code, now, ttl)?;
        Ok(true)
    }

    /// v1: compares the code that was sent, and uses ours up when they are equal.
    pub fn try_code(&mut self, sent: &str, source: IpAddr, now: Seconds) -> Result<(), PairError> {
        self.check_code(sent, source, now)?;
        self.use_up(source)
    }

    /// v1: compares the code that was sent. A wrong one counts; the right one stays open.
    pub fn check_code(
        &mut self,
        sent: &str,
        source: IpAddr,
        now: Seconds,
    ) -> Result<(), PairError> {
        self.heard(source, now)?;
        if sent.trim().is_empty() {
            return Err(PairError::Missing);
        }
        let sent = verifier(sent);
        let Some(code) = &self.code else {
            return Err(PairError::Expired);
        };
        let equal: bool = code.verifier.expose().ct_eq(sent.expose()).into();
        self.judge(equal, source, now)
    }

    /// v2: the password of a key exchange that begins.
    pub fn password(
        &mut self,
        source: IpAddr,
        now: Seconds,
    ) -> Result<(Secret32, Generation), PairError> {
        self.heard(source, now)?;
        match &self.code {
            Some(code) if code.used => Err(PairError::AlreadyUsed),
            Some(code) if now < code.expires_at => {
                Ok((code.verifier.clone(), Generation(self.generation)))
            }
            _ => Err(PairError::Expired),
        }
    }

    /// v2: whether the other side proved that it knows the code. The code is used up when it did.
    pub fn proved(
        &mut self,
        knows: bool,
        generation: Generation,
        source: IpAddr,
        now: Seconds,
    ) -> Result<(), PairError> {
        self.heard(source, now)?;
        if generation.0 != self.generation {
            return Err(PairError::Expired);
        }
        self.judge(knows, source, now)?;
        self.use_up(source)
    }

    /// Whether every try is refused, whoever makes it.
    pub fn is_locked(&self, now: Seconds) -> bool {
        self.unlocked(now).is_err()
    }

    fn judge(&mut self, equal: bool, source: IpAddr, now: Seconds) -> Result<(), PairError> {
        let Some(code) = &self.code else {
            return Err(PairError::Expired);
        };
        if !equal {
            self.count_wrong(source, now);
            return Err(PairError::Invalid);
        }
        if code.used {
            return Err(PairError::AlreadyUsed);
        }
        if now >= code.expires_at {
            return Err(PairError::Expired);
        }
        Ok(())
    }

    fn use_up(&mut self, source: IpAddr) -> Result<(), PairError> {
        let code = self.code.as_mut().ok_or(PairError::Expired)?;
        code.used = true;
        self.sources.remove(&source);
        Ok(())
    }

    fn unlocked(&self, now: Seconds) -> Result<(), PairError> {
        match self.locked_until.saturating_sub(now) {
            0 => Ok(()),
            retry_after => Err(PairError::LockedOut { retry_after }),
        }
    }

    fn heard(&mut self, source: IpAddr, now: Seconds) -> Result<(), PairError> {
        self.unlocked(now)?;
        self.sources
            .retain(|_, tries| now < tries.last.saturating_add(LOCKED_FOR));
        match self.sources.get(&source) {
            Some(tries) if tries.wrong >= MAX_WRONG => Err(PairError::LockedOut {
                retry_after: tries.last.saturating_add(LOCKED_FOR).saturating_sub(now),
            }),
            None if self.sources.len() >= MAX_SOURCES => Err(PairError::LockedOut {
                retry_after: LOCKED_FOR,
            }),
            _ => Ok(()),
        }
    }

    fn count_wrong(&mut self, source: IpAddr, now: Seconds) {
        let tries = self.sources.entry(source).or_insert(Tries {
            wrong: 0,
            last: now,
        });
        tries.wrong = tries.wrong.saturating_add(1);
        tries.last = now;
        self.wrong = self.wrong.saturating_add(1);
        if self.wrong >= MAX_WRONG {
            self.code = None;
            self.locked_until = now.saturating_add(LOCKED_FOR);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TTL: Seconds = 300;

    fn source(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn open(code: &str) -> Pairing {
        let mut pairing = Pairing::default();
        pairing.open(code, 0, TTL).unwrap();
        pairing
    }

    #[test]
    fn the_right_code_pairs_once() {
        let mut pairing = open("012345");
        assert_eq!(pairing.try_code(" 012345 ", source(1), 1), Ok(()));
        assert_eq!(
            pairing.try_code("012345", source(1), 2),
            Err(PairError::AlreadyUsed)
        );
        assert_eq!(
            pairing.password(source(1), 2).unwrap_err(),
            PairError::AlreadyUsed
        );
    }

    #[test]
    fn a_code_that_is_only_compared_stays_open_and_wrong_ones_count() {
        let mut pairing = open("012345");
        for _ in 0..3 {
            assert_eq!(pairing.check_code("012345", source(1), 1), Ok(()));
        }
        for _ in 0..MAX_WRONG {
            assert!(!pairing.is_locked(1));
            assert_eq!(
                pairing.check_code("000000", source(1), 1),
                Err(PairError::Invalid)
            );
        }
        assert!(pairing.is_locked(1));
        let locked = PairError::LockedOut { retry_after: 300 };
        assert_eq!(pairing.check_code("012345", source(1), 1), Err(locked));
    }

    #[test]
    fn no_code_an_old_code_and_an_empty_one() {
        let mut none = Pairing::default();
        assert_eq!(
            none.try_code("012345", source(1), 1),
            Err(PairError::Expired)
        );
        let mut pairing = open("012345");
        assert_eq!(
            pairing.try_code("  ", source(1), 1),
            Err(PairError::Missing)
        );
        assert_eq!(
            pairing.try_code("012345", source(1), TTL),
            Err(PairError::Expired)
        );
    }

    #[test]
    fn five_wrong_tries_lock_the_right_code_out_too_whoever_made_them() {
        let mut pairing = open("012345");
        for from in 1..=5 {
            assert_eq!(
                pairing.try_code("000000", source(from), 10),
                Err(PairError::Invalid)
            );
        }
        let locked = |retry_after| Err(PairError::LockedOut { retry_after });
        assert_eq!(pairing.try_code("012345", source(9), 11), locked(299));
        assert_eq!(pairing.open("555555", 11, TTL), locked(299));
        assert_eq!(
            pairing.try_code("012345", source(9), 310),
            Err(PairError::Expired)
        );
    }

    #[test]
    fn a_first_code_takes_the_place_of_none() {
        let mut pairing = Pairing::default();
        assert_eq!(pairing.open_first("012345", 0, TTL), Ok(true));
        assert_eq!(pairing.open_first("543210", 1, TTL), Ok(false));
        assert_eq!(pairing.try_code("012345", source(1), 2), Ok(()));
        let mut pairing = open("012345");
        assert_eq!(pairing.open_first("543210", 1, TTL), Ok(false));
        assert_eq!(pairing.try_code("012345", source(1), 2), Ok(()));
    }

    #[test]
    fn a_source_is_locked_over_several_codes() {
        let mut pairing = open("012345");
        for round in 0..2 {
            for _ in 0..3 - round {
                assert_eq!(
                    pairing.try_code("000000", source(1), 10),
                    Err(PairError::Invalid)
                );
            }
            pairing.open("012345", 10, TTL).unwrap();
        }
        let locked = Err(PairError::LockedOut { retry_after: 300 });
        assert_eq!(pairing.try_code("012345", source(1), 10), locked);
        assert_eq!(pairing.try_code("012345", source(2), 10), Ok(()));
    }

    #[test]
    fn an_exchange_begun_with_an_old_code_does_not_use_up_the_new_one() {
        let mut pairing = open("012345");
        let (_, old) = pairing.password(source(1), 1).unwrap();
        pairing.open("543210", 2, TTL).unwrap();
        assert_eq!(
            pairing.proved(true, old, source(1), 3),
            Err(PairError::Expired)
        );
        let (password, new) = pairing.password(source(1), 3).unwrap();
        assert_eq!(password, verifier("543210"));
        assert_eq!(pairing.proved(true, new, source(1), 3), Ok(()));
    }

    #[test]
    fn ten_thousand_tries_hear_nothing_after_the_fifth() {
        let mut pairing = open("999999");
        let heard = (0..10_000_u32)
            .filter(|n| {
                let tried = pairing.try_code(&format!("{n:06}"), source((n % 200) as u8), 1);
                tried == Err(PairError::Invalid)
            })
            .count();
        assert_eq!(heard, 5);
        assert!(pairing.code.is_none());
    }

    #[test]
    fn many_sources_take_bounded_memory() {
        let mut pairing = Pairing::default();
        for n in 0..5000_u32 {
            // Opened again each time, so that only the per-source count is at work.
            let _ = pairing.open("012345", 1, TTL);
            let _ = pairing.try_code("1", IpAddr::from(n.to_be_bytes()), 1);
        }
        assert_eq!(pairing.sources.len(), MAX_SOURCES);
    }

    proptest! {
        #[test]
        fn codes_have_six_digits(random: [u8; 8]) {
            let code = digits(random);
            prop_assert_eq!(code.len(), 6);
            prop_assert!(code.bytes().all(|byte| byte.is_ascii_digit()));
        }
    }
}
