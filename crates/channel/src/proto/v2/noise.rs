//! `Noise_IK_25519_ChaChaPoly_SHA256`, both sides: how a paired device comes back.
//!
//! ```text
//! <- s                       the device knows the daemon's key from the pairing
//! -> e, es, s, ss            e (32), the device's key encrypted (48), payload encrypted (16 + n)
//! <- e, ee, se               e (32), payload encrypted (16 + n)
//! ```
//!
//! Static keys authenticate both sides, ephemeral ones give forward secrecy,
//! and the device's key is not seen on the wire. Message 1 can be replayed by
//! whoever recorded it: the daemon does nothing for a device before a record of
//! it opens, which a replay can't bring about. Payloads are empty in v2.
//!
//! Beyond the specification, a Diffie-Hellman result of all zeros is refused.
//! The tests run the published vectors of the cacophony library.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};

use super::HandshakeError;
use super::record::{RecordKey, TAG, Transport};
use crate::proto::keys::{KeyPair, PublicKey, Secret32};

const NAME: &[u8; 32] = b"Noise_IK_25519_ChaChaPoly_SHA256";

/// The prologue of this protocol, before the hash of a pairing.
pub const PROLOGUE: &[u8] = b"quintet.channel.v2";

/// The prologue of a resume, which a pairing on the same connection is part of.
pub fn prologue(pairing: Option<&[u8; 32]>) -> Vec<u8> {
    let mut prologue = PROLOGUE.to_vec();
    prologue.extend_from_slice(pairing.map(<[u8; 32]>::as_slice).unwrap_or_default());
    prologue
}

/// Noise's symmetric state.
struct Symmetric {
    chaining: Secret32,
    hash: [u8; 32],
    key: Option<Secret32>,
    counter: u8,
}

impl Symmetric {
    /// The state after the prologue and the daemon's key, which both sides know.
    fn new(prologue: &[u8], responder: &PublicKey) -> Self {
        let mut state = Self {
            chaining: Secret32::new(*NAME),
            hash: *NAME,
            key: None,
            counter: 0,
        };
        state.mix_hash(prologue);
        state.mix_hash(&responder.0);
        state
    }

    fn mix_hash(&mut self, data: &[u8]) {
        let mut hash = Sha256::new();
        hash.update(self.hash);
        hash.update(data);
        self.hash = hash.finalize().into();
    }

    fn mix_key(&mut self, input: &Secret32) {
        let (chaining, key) = hkdf(&self.chaining, input.expose());
        self.chaining = chaining;
        self.key = Some(key);
        self.counter = 0;
    }

    fn cipher(&self) -> Option<(ChaCha20Poly1305, Nonce)> {
        let key = self.key.as_ref()?;
        let mut nonce = [0; 12];
        if let Some(low) = nonce.get_mut(4) {
            *low = self.counter;
        }
        Some((ChaCha20Poly1305::new(key.expose().into()), nonce.into()))
    }

    fn encrypt(&mut self, plaintext: &[u8], out: &mut Vec<u8>) {
        let start = out.len();
        match self.cipher() {
            Some((cipher, nonce)) => {
                let payload = Payload {
                    msg: plaintext,
                    aad: &self.hash,
                };
                let sealed = cipher
                    .encrypt(&nonce, payload)
                    .expect("a handshake is far below the cipher's limit");
                out.extend_from_slice(&sealed);
                self.counter = self.counter.saturating_add(1);
            }
            None => out.extend_from_slice(plaintext),
        }
        let written = out.get(start..).unwrap_or_default().to_vec();
        self.mix_hash(&written);
    }

    fn decrypt(&mut self, sealed: &[u8]) -> Result<Vec<u8>, HandshakeError> {
        let plaintext = match self.cipher() {
            Some((cipher, nonce)) => {
                let payload = Payload {
                    msg: sealed,
                    aad: &self.hash,
                };
                let opened = cipher
                    .decrypt(&nonce, payload)
                    .map_err(|_| HandshakeError::Unauthentic)?;
                self.counter = self.counter.saturating_add(1);
                opened
            }
            None => sealed.to_vec(),
        };
        self.mix_hash(sealed);
        Ok(plaintext)
    }

    /// The keys from the device to the daemon and back.
    fn split(self) -> (RecordKey, RecordKey, [u8; 32]) {
        let (first, second) = hkdf(&self.chaining, b"");
        (RecordKey::new(&first), RecordKey::new(&second), self.hash)
    }
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Secret32 {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).expect("HMAC takes any key");
    for part in parts {
        mac.update(part);
    }
    Secret32::new(mac.finalize().into_bytes().into())
}

fn hkdf(chaining: &Secret32, input: &[u8]) -> (Secret32, Secret32) {
    let temporary = hmac(chaining.expose(), &[input]);
    let first = hmac(temporary.expose(), &[&[1]]);
    let second = hmac(temporary.expose(), &[first.expose(), &[2]]);
    (first, second)
}

/// The device's side, after its message.
pub struct Initiator {
    state: Symmetric,
    ephemeral: KeyPair,
    ours: KeyPair,
}

impl Initiator {
    /// Makes message 1.
    pub fn start(
        prologue: &[u8],
        ours: &KeyPair,
        daemon: &PublicKey,
        ephemeral: &Secret32,
        payload: &[u8],
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let ephemeral = KeyPair::new(ephemeral);
        let mut state = Symmetric::new(prologue, daemon);
        let mut message = ephemeral.public().0.to_vec();
        state.mix_hash(&ephemeral.public().0);
        state.mix_key(&ephemeral.agree(daemon)?);
        state.encrypt(&ours.public().0, &mut message);
        state.mix_key(&ours.agree(daemon)?);
        state.encrypt(payload, &mut message);
        let initiator = Self {
            state,
            ephemeral,
            ours: ours.clone(),
        };
        Ok((initiator, message))
    }

    /// Reads message 2: its payload, and the records' keys.
    pub fn finish(mut self, message: &[u8]) -> Result<(Vec<u8>, Transport), HandshakeError> {
        let (theirs, payload) = message
            .split_first_chunk::<32>()
            .filter(|(_, payload)| payload.len() >= TAG)
            .ok_or(HandshakeError::Malformed)?;
        let theirs = PublicKey(*theirs);
        self.state.mix_hash(&theirs.0);
        self.state.mix_key(&self.ephemeral.agree(&theirs)?);
        self.state.mix_key(&self.ours.agree(&theirs)?);
        let payload = self.state.decrypt(payload)?;
        let (sending, receiving, transcript) = self.state.split();
        let transport = Transport {
            sending,
            receiving,
            transcript,
        };
        Ok((payload, transport))
    }
}

/// The daemon's side, after the device's message.
pub struct Responder {
    state: Symmetric,
    device: PublicKey,
    device_ephemeral: PublicKey,
}

impl Responder {
    /// Reads message 1: who it is from, and its payload. Whether that device is known is another question.
    pub fn read(
        prologue: &[u8],
        ours: &KeyPair,
        message: &[u8],
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let malformed = HandshakeError::Malformed;
        let (ephemeral, rest) = message.split_first_chunk::<32>().ok_or(malformed)?;
        let (key, payload) = rest
            .split_first_chunk::<{ 32 + TAG }>()
            .filter(|(_, payload)| payload.len() >= TAG)
            .ok_or(malformed)?;
        let device_ephemeral = PublicKey(*ephemeral);
        let mut state = Symmetric::new(prologue, &ours.public());
        state.mix_hash(&device_ephemeral.0);
        state.mix_key(&ours.agree(&device_ephemeral)?);
        let key = state.decrypt(key)?;
        let device = PublicKey(key.try_into().map_err(|_| malformed)?);
        state.mix_key(&ours.agree(&device)?);
        let payload = state.decrypt(payload)?;
        let responder = Self {
            state,
            device,
            device_ephemeral,
        };
        Ok((responder, payload))
    }

    /// The key that the device proved to have.
    pub fn device(&self) -> PublicKey {
        self.device
    }

    /// Makes message 2 and the records' keys.
    pub fn reply(
        mut self,
        ephemeral: &Secret32,
        payload: &[u8],
    ) -> Result<(Vec<u8>, Transport), HandshakeError> {
        let ephemeral = KeyPair::new(ephemeral);
        let mut message = ephemeral.public().0.to_vec();
        self.state.mix_hash(&ephemeral.public().0);
        self.state
            .mix_key(&ephemeral.agree(&self.device_ephemeral)?);
        self.state.mix_key(&ephemeral.agree(&self.device)?);
        self.state.encrypt(payload, &mut message);
        let (receiving, sending, transcript) = self.state.split();
        let transport = Transport {
            sending,
            receiving,
            transcript,
        };
        Ok((message, transport))
    }
}
