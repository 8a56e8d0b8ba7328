//! Worker tokens.
//!
//! A token is opaque text: `qw1.SECRET` or `qw1.SECRET.FINGERPRINT`, both parts 32 bytes in
//! unpadded URL-safe base64. The fingerprint is the SHA-256 of the daemon's certificate, so that a
//! worker can check a self-signed one with nothing installed. At rest there is only a hash that
//! binds the secret to a daemon id: a stolen database opens nothing, and a token for one id is
//! worthless for another.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// The SHA-256 of a certificate in DER.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Of a certificate in DER.
    pub fn of_der(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl FromStr for Fingerprint {
    type Err = BadFingerprint;

    fn from_str(text: &str) -> Result<Self, BadFingerprint> {
        let mut bytes = text.split(':').map(|part| u8::from_str_radix(part, 16));
        let mut fingerprint = [0; 32];
        for byte in &mut fingerprint {
            *byte = bytes.next().and_then(Result::ok).ok_or(BadFingerprint)?;
        }
        match bytes.next() {
            None => Ok(Self(fingerprint)),
            Some(_) => Err(BadFingerprint),
        }
    }
}

/// Text that is not 32 bytes in hex with colons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a fingerprint: 32 bytes in hex with colons between them")]
pub struct BadFingerprint;

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{byte:02X}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// A worker's token. `Debug` shows nothing of the secret, and it is zeroed when dropped.
#[derive(Clone)]
pub struct Token {
    secret: Zeroizing<[u8; 32]>,
    fingerprint: Option<Fingerprint>,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Token")
            .field("secret", &"***")
            .field("fingerprint", &self.fingerprint)
            .finish()
    }
}

/// Why text is not a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a worker token; make one with `quintet token create --worker ID`")]
pub struct BadToken;

impl Token {
    /// A token with the given random secret.
    pub fn mint(secret: [u8; 32], fingerprint: Option<Fingerprint>) -> Self {
        Self {
            secret: Zeroizing::new(secret),
            fingerprint,
        }
    }

    /// Reads a token.
    pub fn parse(text: &str) -> Result<Self, BadToken> {
        let mut parts = text.trim().split('.');
        if parts.next() != Some("qw1") {
            return Err(BadToken);
        }
        let bytes = |part: &str| -> Result<[u8; 32], BadToken> {
            URL_SAFE_NO_PAD
                .decode(part)
                .ok()
                .and_then(|bytes| bytes.try_into().ok())
                .ok_or(BadToken)
        };
        let secret = bytes(parts.next().ok_or(BadToken)?)?;
        let fingerprint = parts.next().map(bytes).transpose()?.map(Fingerprint);
        if parts.next().is_some() {
            return Err(BadToken);
        }
        Ok(Self::mint(secret, fingerprint))
    }

    /// The text to hand to a worker. Whoever has it can register as that worker.
    pub fn expose(&self) -> String {
        let secret = URL_SAFE_NO_PAD.encode(self.secret.as_slice());
        match self.fingerprint {
            Some(fingerprint) => {
                format!("qw1.{secret}.{}", URL_SAFE_NO_PAD.encode(fingerprint.0))
            }
            None => format!("qw1.{secret}"),
        }
    }

    /// The certificate that the daemon will show.
    pub const fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// What is stored: the secret bound to `daemon_id`.
    pub fn hash(&self, daemon_id: &str) -> TokenHash {
        let mut hasher = Sha256::new();
        hasher.update(b"quintet worker token\0");
        hasher.update(
            u64::try_from(daemon_id.len())
                .unwrap_or(u64::MAX)
                .to_be_bytes(),
        );
        hasher.update(daemon_id.as_bytes());
        hasher.update(self.secret.as_slice());
        TokenHash(hasher.finalize().into())
    }
}

/// A token as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// From a database.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// For a database.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether two hashes are equal, in a time that does not depend on where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_text_and_hides_its_secret() {
        for fingerprint in [None, Some(Fingerprint([9; 32]))] {
            let token = Token::mint([7; 32], fingerprint);
            let text = token.expose();
            let read = Token::parse(&format!("{text}\n")).unwrap();
            assert_eq!(read.expose(), text);
            assert_eq!(read.fingerprint(), fingerprint);
            assert!(!format!("{token:?}").contains(&text[4..]));
        }
    }

    #[test]
    fn a_token_opens_one_worker_only() {
        let token = Token::mint([7; 32], None);
        assert!(token.hash("a").matches(&token.hash("a")));
        assert!(!token.hash("a").matches(&token.hash("b")));
        assert!(
            !token
                .hash("a")
                .matches(&Token::mint([8; 32], None).hash("a"))
        );
        let pinned = Token::mint([7; 32], Some(Fingerprint([1; 32])));
        assert!(token.hash("a").matches(&pinned.hash("a")));
    }

    #[test]
    fn a_fingerprint_survives_its_text() {
        let fingerprint = Fingerprint::of_der(b"a certificate");
        let text = fingerprint.to_string();
        assert_eq!(text.parse(), Ok(fingerprint));
        for wrong in [
            "",
            "00",
            &text[3..],
            &format!("{text}:00"),
            &text.replace(':', " "),
        ] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(BadFingerprint), "{wrong}");
        }
    }

    #[test]
    fn other_text_is_refused() {
        for text in [
            "", "qw1", "qw1.", "qw1.AAAA", "qw2.AAAA", "qw1.!!", "Bearer x",
        ] {
            assert_eq!(Token::parse(text).unwrap_err(), BadToken, "{text}");
        }
        let good = Token::mint([7; 32], None).expose();
        assert!(Token::parse(&format!("{good}.AAAA")).is_err());
        assert!(Token::parse(&format!("{good}.{}.x", &good[4..])).is_err());
    }
}
