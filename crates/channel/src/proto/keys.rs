//! Key material: zeroed on drop, never printed, compared in constant time.

use std::fmt;

use subtle::ConstantTimeEq;
use x25519_dalek::{PublicKey as DhPublic, StaticSecret};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// 32 secret bytes.
#[derive(Clone)]
pub struct Secret32([u8; 32]);

impl Drop for Secret32 {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl ZeroizeOnDrop for Secret32 {}

impl Secret32 {
    /// Takes secret bytes over.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes themselves, for arithmetic and for storage.
    pub fn expose(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for Secret32 {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for Secret32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret32(***)")
    }
}

/// An X25519 public key. Anybody may see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey(pub [u8; 32]);

/// The other side's public key adds nothing: the shared secret would be all zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the public key has a small order")]
pub struct WeakKey;

/// An X25519 key pair.
#[derive(Clone)]
pub struct KeyPair {
    secret: StaticSecret,
    public: PublicKey,
}

impl KeyPair {
    /// The pair of a random secret.
    pub fn new(secret: &Secret32) -> Self {
        let secret = StaticSecret::from(*secret.expose());
        let public = PublicKey(DhPublic::from(&secret).to_bytes());
        Self { secret, public }
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// The shared secret, unless the other key is one that makes it all zeros.
    pub fn agree(&self, other: &PublicKey) -> Result<Secret32, WeakKey> {
        let shared = self.secret.diffie_hellman(&DhPublic::from(other.0));
        if !shared.was_contributory() {
            return Err(WeakKey);
        }
        Ok(Secret32::new(shared.to_bytes()))
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair")
            .field("public", &self.public)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_printed() {
        let secret = Secret32::new([0xab; 32]);
        let pair = KeyPair::new(&secret);
        let shown = format!("{secret:?} {pair:?}");
        assert!(!shown.contains("ab, ab") && !shown.contains("171, 171"));
    }

    #[test]
    fn keys_of_small_order_are_refused() {
        let pair = KeyPair::new(&Secret32::new([7; 32]));
        let mut one = [0; 32];
        one[0] = 1;
        for weak in [[0; 32], one] {
            assert_eq!(pair.agree(&PublicKey(weak)).unwrap_err(), WeakKey);
        }
    }
}
