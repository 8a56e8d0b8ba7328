//! Devices and their access tokens.

use std::fmt;

use sha2::{Digest, Sha256};

use super::base64url;
use super::keys::Secret32;

/// Seconds since 1970; the clock is the caller's.
pub type Seconds = u64;

/// A device's use is written down at most this often, or four times in the life of a short pairing.
pub const SEEN_EVERY: Seconds = 60;

/// A device's number: 16 random bytes, `client_id` on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(pub [u8; 16]);

impl DeviceId {
    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Self> {
        base64url::decode_array(text).map(Self)
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64url::encode(&self.0))
    }
}

/// A v1 access token: 256 random bits. Only its hash is kept.
#[derive(Debug, Clone)]
pub struct AccessToken(Secret32);

impl AccessToken {
    /// A token of random bytes.
    pub fn new(random: [u8; 32]) -> Self {
        Self(Secret32::new(random))
    }

    /// The token as the device sends it.
    pub fn expose(&self) -> String {
        base64url::encode(self.0.expose())
    }

    /// What is stored.
    pub fn hash(&self) -> TokenHash {
        TokenHash::of(&self.expose())
    }
}

/// SHA-256 of an access token's text. A lookup by it tells nothing about the token by its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// The hash of what a device sent, whatever that is.
    pub fn of(token: &str) -> Self {
        let mut hash = Sha256::new();
        hash.update(b"quintet access token");
        hash.update(token.as_bytes());
        Self(hash.finalize().into())
    }
}

/// A paired device, as it is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Its number.
    pub id: DeviceId,
    /// What its person calls it.
    pub name: String,
    /// The last time it was heard of.
    pub last_seen: Seconds,
    /// When the pairing ends unless it is used.
    pub expires_at: Seconds,
}

/// A device's pairing is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device was not used for too long; pair it again")]
pub struct Expired;

/// A use that is worth writing down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// When.
    pub at: Seconds,
    /// The new end of the pairing.
    pub expires_at: Seconds,
}

impl Device {
    /// Notes a use: refuses after the end, and slides the end otherwise.
    pub fn used(&mut self, now: Seconds, ttl: Seconds) -> Result<Option<Seen>, Expired> {
        if now >= self.expires_at {
            return Err(Expired);
        }
        let every = SEEN_EVERY.min(ttl / 4);
        if now < self.last_seen.saturating_add(every) {
            return Ok(None);
        }
        self.last_seen = now;
        self.expires_at = now.saturating_add(ttl);
        Ok(Some(Seen {
            at: now,
            expires_at: self.expires_at,
        }))
    }
}

/// A device's name, as long as a list can show it and without what could deceive in a terminal.
pub fn clean_name(name: &str) -> String {
    let name: String = name
        .chars()
        .filter(|c| !c.is_control() && !('\u{202a}'..='\u{202e}').contains(c))
        .take(64)
        .collect();
    match name.trim() {
        "" => "browser".to_owned(),
        name => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> Device {
        Device {
            id: DeviceId([1; 16]),
            name: "phone".into(),
            last_seen: 1000,
            expires_at: 2000,
        }
    }

    #[test]
    fn a_pairing_slides_with_its_use_and_ends_without() {
        let mut device = device();
        assert_eq!(device.used(1059, 1000), Ok(None));
        let seen = Seen {
            at: 1999,
            expires_at: 2999,
        };
        assert_eq!(device.used(1999, 1000), Ok(Some(seen)));
        assert_eq!(device.used(2999, 1000), Err(Expired));
    }

    #[test]
    fn ids_and_tokens_have_one_text() {
        let id = DeviceId([9; 16]);
        assert_eq!(DeviceId::parse(&id.to_string()), Some(id));
        assert_eq!(DeviceId::parse("short"), None);
        let token = AccessToken::new([3; 32]);
        assert_eq!(token.hash(), TokenHash::of(&token.expose()));
        assert_eq!(token.expose().len(), 43);
        assert!(!format!("{token:?}").contains(&token.expose()));
    }

    #[test]
    fn names_are_short_and_plain() {
        assert_eq!(clean_name("  "), "browser");
        assert_eq!(clean_name("a\u{1b}[31m\u{202e}b"), "a[31mb");
        assert_eq!(clean_name(&"x".repeat(100)).len(), 64);
    }
}
