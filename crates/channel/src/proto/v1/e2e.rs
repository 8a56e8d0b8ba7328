//! X25519, SHA-256 and ChaCha20-Poly1305 with a random nonce and no associated data.

use chacha20poly1305::aead::{Aead, KeyInit};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};
use sha2::{Digest, Sha256};

use crate::proto::keys::{KeyPair, PublicKey, Secret32, WeakKey};

/// The one algorithm of v1.
pub const ALG: &str = "x25519-chacha20poly1305-v1";

/// The key that a device and the daemon share.
#[derive(Debug, Clone, PartialEq)]
pub struct E2eKey(Secret32);

/// A nonce and what was encrypted under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// Never twice under one key.
    pub nonce: [u8; 12],
    /// With the tag at its end.
    pub ciphertext: Vec<u8>,
}

/// The ciphertext is not of this key, or was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the message does not open with this device's key")]
pub struct DecryptError;

impl E2eKey {
    /// `SHA-256("webchannel-e2e-v1" || shared secret)`.
    pub fn derive(ours: &KeyPair, theirs: &PublicKey) -> Result<Self, WeakKey> {
        let shared = ours.agree(theirs)?;
        let mut hash = Sha256::new();
        hash.update(b"webchannel-e2e-v1");
        hash.update(shared.expose());
        Ok(Self(Secret32::new(hash.finalize().into())))
    }

    /// A key from storage.
    pub fn from_stored(bytes: [u8; 32]) -> Self {
        Self(Secret32::new(bytes))
    }

    /// The bytes, for storage.
    pub fn expose(&self) -> &[u8; 32] {
        self.0.expose()
    }

    /// Encrypts under a nonce that must be random.
    pub fn seal(&self, nonce: [u8; 12], plaintext: &[u8]) -> Sealed {
        let ciphertext = self
            .cipher()
            .encrypt(&Nonce::from(nonce), plaintext)
            .expect("a message of this protocol is far below the cipher's 256 GiB");
        Sealed { nonce, ciphertext }
    }

    /// Decrypts what the other side sealed.
    pub fn open(&self, sealed: &Sealed) -> Result<Vec<u8>, DecryptError> {
        self.cipher()
            .decrypt(&Nonce::from(sealed.nonce), sealed.ciphertext.as_slice())
            .map_err(|_| DecryptError)
    }

    fn cipher(&self) -> ChaCha20Poly1305 {
        ChaCha20Poly1305::new(self.0.expose().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::base64url;
    use proptest::prelude::*;

    fn counting(from: u8) -> Secret32 {
        let mut bytes = [0; 32];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = from + at as u8;
        }
        Secret32::new(bytes)
    }

    /// The check values of the protocol's page.
    #[test]
    fn the_published_check_values_hold() {
        let client = KeyPair::new(&counting(0));
        let agent = KeyPair::new(&counting(0x20));
        let text = |key: PublicKey| base64url::encode(&key.0);
        assert_eq!(
            text(client.public()),
            "j0DFrbaPJWJK5bIU6nZ6bslNgp09e14a0bpvPiE4KF8"
        );
        assert_eq!(
            text(agent.public()),
            "NYBy1jZYgNGu6jKa35EhODhR7SGijjt16WXQ0s0WYlQ"
        );
        let ours = E2eKey::derive(&agent, &client.public()).unwrap();
        let theirs = E2eKey::derive(&client, &agent.public()).unwrap();
        assert_eq!(ours, theirs);
        assert_eq!(
            base64url::encode(ours.expose()),
            "1957xB7BOPMwR6betsLoxSCgwxV0NO7Z0LOHHT89ol4"
        );
        let nonce = base64url::decode_array("AAECAwQFBgcICQoL").unwrap();
        let plaintext = br#"{"content":"hi","sender_id":"ui-1"}"#;
        let sealed = ours.seal(nonce, plaintext);
        assert_eq!(
            base64url::encode(&sealed.ciphertext),
            "Fcexj9e-JkFV8rFr4-kIPsQAG1OZ-vgfYOiCfYEGEYcja4SQUIkhDm43g0AoZm2rV6nR"
        );
        assert_eq!(theirs.open(&sealed).unwrap(), plaintext);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let key = E2eKey::from_stored([5; 32]);
        let sealed = key.seal([1; 12], b"content");
        for at in 0..sealed.ciphertext.len() {
            for bit in 0..8 {
                let mut changed = sealed.clone();
                changed.ciphertext[at] ^= 1 << bit;
                assert_eq!(key.open(&changed), Err(DecryptError), "byte {at} bit {bit}");
            }
        }
        for at in 0..12 {
            let mut changed = sealed.clone();
            changed.nonce[at] ^= 1;
            assert_eq!(key.open(&changed), Err(DecryptError), "nonce byte {at}");
        }
    }

    #[test]
    fn an_all_zero_public_key_is_refused() {
        let pair = KeyPair::new(&counting(0));
        assert_eq!(E2eKey::derive(&pair, &PublicKey([0; 32])), Err(WeakKey));
    }

    proptest! {
        #[test]
        fn what_is_sealed_opens(key: [u8; 32], nonce: [u8; 12], text in prop::collection::vec(any::<u8>(), 0..300)) {
            let key = E2eKey::from_stored(key);
            prop_assert_eq!(key.open(&key.seal(nonce, &text)).unwrap(), text);
        }
    }
}
