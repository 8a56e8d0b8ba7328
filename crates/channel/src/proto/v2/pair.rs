//! Pairing: SPAKE2 from the code, proof of it by both, then each other's keys.
//!
//! SPAKE2 over edwards25519 as the `spake2` crate and python-spake2 compute it,
//! the device as side A and the daemon as side B, with the code's
//! [`verifier`](crate::proto::pairing::verifier) as the password. An active
//! attacker gets one guess a try and learns nothing that could be checked later.
//!
//! ```text
//! commitment  SHA-256("quintet.channel.v2 commitment" || device nonce || device key)
//! K           the SPAKE2 key (32)
//! T1          SHA-256("quintet.channel.v2 pairing" || frame 01 || frame 02)
//! keys        HKDF-SHA-256(salt T1, input K), info:
//!             "device confirms", "daemon confirms", "device box", "daemon box"
//! frame 03    03 || HMAC-SHA-256(device confirms, T1)
//!                || ChaCha20-Poly1305(device box, nonce 0, ad T1, device nonce || device key || name)
//! T2          SHA-256(T1 || frame 03)
//! frame 04    04 || HMAC-SHA-256(daemon confirms, T2)
//!                || ChaCha20-Poly1305(daemon box, nonce 0, ad T2, device id)
//! pairing     SHA-256(T2 || frame 04), which the resume that follows is bound to
//! words       of SHA-256("quintet.channel.v2 words" || device nonce || daemon nonce
//!                || device key || daemon key)
//! ```
//!
//! The device proves first, so that a guess costs a counted try. The proof is
//! an HMAC because ChaCha20-Poly1305 does not commit to its key. The device
//! commits to its nonce and key before it sees the daemon's, and the daemon
//! shows its own before it sees them opened: somebody between who did guess the
//! code can't choose keys that give both screens the same words.

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{ChaCha20Poly1305, Nonce};
use hkdf::Hkdf;
use hmac::{Hmac, Mac};
use rand_core::{TryCryptoRng, TryRng};
use sha2::{Digest, Sha256};
use spake2::{Ed25519Group, Identity, Password, Spake2};
use zeroize::Zeroizing;

use super::record::TAG;
use super::{HandshakeError, frame, words};
use crate::proto::device::DeviceId;
use crate::proto::keys::{KeyPair, PublicKey, Secret32};

const DEVICE: &[u8] = b"quintet.channel.v2 device";
const DAEMON: &[u8] = b"quintet.channel.v2 daemon";

/// The longest name of a device, in bytes.
pub const MAX_NAME: usize = 256;

/// What one side knows when a pairing is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paired {
    /// The device's number.
    pub device: DeviceId,
    /// The other side's key.
    pub peer: PublicKey,
    /// Shown on both screens.
    pub check_words: [&'static str; 4],
    /// For the prologue of the resume.
    pub pairing: [u8; 32],
}

struct Keys {
    device_confirms: Secret32,
    daemon_confirms: Secret32,
    device_box: Secret32,
    daemon_box: Secret32,
}

impl Keys {
    fn derive(transcript: &[u8; 32], shared: &[u8]) -> Self {
        let hkdf = Hkdf::<Sha256>::new(Some(transcript), shared);
        let key = |info: &str| {
            let mut key = [0; 32];
            hkdf.expand(info.as_bytes(), &mut key)
                .expect("32 bytes are within HKDF's limit");
            Secret32::new(key)
        };
        Self {
            device_confirms: key("device confirms"),
            daemon_confirms: key("daemon confirms"),
            device_box: key("device box"),
            daemon_box: key("daemon box"),
        }
    }
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

fn mac(key: &Secret32, data: &[u8]) -> Hmac<Sha256> {
    let mut mac =
        <Hmac<Sha256> as KeyInit>::new_from_slice(key.expose()).expect("HMAC takes any key");
    mac.update(data);
    mac
}

fn seal(key: &Secret32, transcript: &[u8; 32], plaintext: &[u8]) -> Vec<u8> {
    let payload = Payload {
        msg: plaintext,
        aad: transcript,
    };
    ChaCha20Poly1305::new(key.expose().into())
        .encrypt(&Nonce::from([0; 12]), payload)
        .expect("a handshake is far below the cipher's limit")
}

fn unseal(
    key: &Secret32,
    transcript: &[u8; 32],
    sealed: &[u8],
) -> Result<Zeroizing<Vec<u8>>, HandshakeError> {
    let payload = Payload {
        msg: sealed,
        aad: transcript,
    };
    ChaCha20Poly1305::new(key.expose().into())
        .decrypt(&Nonce::from([0; 12]), payload)
        .map(Zeroizing::new)
        .map_err(|_| HandshakeError::Unauthentic)
}

fn commitment(nonce: &[u8; 16], device: &PublicKey) -> [u8; 32] {
    sha256(&[b"quintet.channel.v2 commitment", nonce, &device.0])
}

fn check_words(
    device_nonce: &[u8; 16],
    daemon_nonce: &[u8; 16],
    device: &PublicKey,
    daemon: &PublicKey,
) -> [&'static str; 4] {
    let [a, b, c, d, ..] = sha256(&[
        b"quintet.channel.v2 words",
        device_nonce,
        daemon_nonce,
        &device.0,
        &daemon.0,
    ]);
    [a, b, c, d].map(words::word)
}

/// The scalar's 64 random bytes, handed over as the generator that the crate asks for.
struct Given(Zeroizing<[u8; 64]>);

impl TryRng for Given {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        let mut bytes = [0; 4];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        let mut bytes = [0; 8];
        self.try_fill_bytes(&mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    fn try_fill_bytes(&mut self, target: &mut [u8]) -> Result<(), Self::Error> {
        for (to, from) in target.iter_mut().zip(self.0.iter()) {
            *to = *from;
        }
        Ok(())
    }
}

impl TryCryptoRng for Given {}

fn element(side: u8, bytes: &[u8; 32]) -> [u8; 33] {
    let mut message = [side; 33];
    if let Some(tail) = message.last_chunk_mut() {
        *tail = *bytes;
    }
    message
}

fn spake_message(message: &[u8]) -> [u8; 32] {
    *message
        .last_chunk()
        .expect("a message of SPAKE2 has 33 bytes")
}

/// The device's side, after frame 01.
pub struct DevicePairing {
    spake: Spake2<Ed25519Group>,
    start: Vec<u8>,
    nonce: [u8; 16],
    keys: KeyPair,
}

/// The device's side, after frame 03.
pub struct DeviceProving {
    transcript: [u8; 32],
    derived: Keys,
    nonce: [u8; 16],
    daemon_nonce: [u8; 16],
    daemon: PublicKey,
    device: PublicKey,
}

impl DevicePairing {
    /// Makes frame 01. `scalar` and `nonce` must be random.
    pub fn start(
        password: &Secret32,
        keys: &KeyPair,
        scalar: [u8; 64],
        nonce: [u8; 16],
    ) -> (Self, Vec<u8>) {
        let (spake, message) = Spake2::<Ed25519Group>::start_a_with_rng(
            &Password::new(password.expose()),
            &Identity::new(DEVICE),
            &Identity::new(DAEMON),
            Given(Zeroizing::new(scalar)),
        );
        let mut start = vec![frame::PAIR_START];
        start.extend_from_slice(&spake_message(&message));
        start.extend_from_slice(&commitment(&nonce, &keys.public()));
        let pairing = Self {
            spake,
            start: start.clone(),
            nonce,
            keys: keys.clone(),
        };
        (pairing, start)
    }

    /// Reads frame 02, makes frame 03.
    pub fn prove(
        self,
        reply: &[u8],
        name: &str,
    ) -> Result<(DeviceProving, Vec<u8>), HandshakeError> {
        let parsed = parse_reply(reply).ok_or(HandshakeError::Malformed)?;
        let shared = self
            .spake
            .finish(&element(b'B', &parsed.element))
            .map(Zeroizing::new)
            .map_err(|_| HandshakeError::Malformed)?;
        let transcript = sha256(&[b"quintet.channel.v2 pairing", &self.start, reply]);
        let derived = Keys::derive(&transcript, &shared);
        let mut plaintext = self.nonce.to_vec();
        plaintext.extend_from_slice(&self.keys.public().0);
        let name = name.get(..name.floor_char_boundary(MAX_NAME));
        plaintext.extend_from_slice(name.unwrap_or_default().as_bytes());
        let mut prove = vec![frame::PAIR_PROVE];
        prove.extend_from_slice(
            &mac(&derived.device_confirms, &transcript)
                .finalize()
                .into_bytes(),
        );
        prove.extend_from_slice(&seal(&derived.device_box, &transcript, &plaintext));
        let proving = DeviceProving {
            transcript: sha256(&[&transcript, &prove]),
            derived,
            nonce: self.nonce,
            daemon_nonce: parsed.nonce,
            daemon: parsed.daemon,
            device: self.keys.public(),
        };
        Ok((proving, prove))
    }
}

impl DeviceProving {
    /// Reads frame 04.
    pub fn finish(self, done: &[u8]) -> Result<Paired, HandshakeError> {
        let body = strip(done, frame::PAIR_DONE)?;
        let (confirmation, sealed) = body
            .split_first_chunk::<32>()
            .ok_or(HandshakeError::Malformed)?;
        mac(&self.derived.daemon_confirms, &self.transcript)
            .verify_slice(confirmation)
            .map_err(|_| HandshakeError::WrongCode)?;
        let id = unseal(&self.derived.daemon_box, &self.transcript, sealed)?;
        let id = id
            .as_slice()
            .try_into()
            .map_err(|_| HandshakeError::Malformed)?;
        Ok(Paired {
            device: DeviceId(id),
            peer: self.daemon,
            check_words: check_words(&self.nonce, &self.daemon_nonce, &self.device, &self.daemon),
            pairing: sha256(&[&self.transcript, done]),
        })
    }
}

struct Reply {
    element: [u8; 32],
    nonce: [u8; 16],
    daemon: PublicKey,
}

fn parse_reply(reply: &[u8]) -> Option<Reply> {
    let (element, rest) = strip(reply, frame::PAIR_REPLY).ok()?.split_first_chunk()?;
    let (nonce, key) = rest.split_first_chunk()?;
    Some(Reply {
        element: *element,
        nonce: *nonce,
        daemon: PublicKey(key.try_into().ok()?),
    })
}

fn strip(bytes: &[u8], kind: u8) -> Result<&[u8], HandshakeError> {
    match bytes.split_first() {
        Some((first, body)) if *first == kind => Ok(body),
        _ => Err(HandshakeError::Malformed),
    }
}

/// The daemon's side, after frame 02.
pub struct DaemonPairing {
    derived: Keys,
    transcript: [u8; 32],
    commitment: [u8; 32],
    nonce: [u8; 16],
    daemon: PublicKey,
}

/// A device that proved that it knows the code, before it is told its number.
pub struct Proved {
    derived: Keys,
    transcript: [u8; 32],
    check_words: [&'static str; 4],
    /// Its key.
    pub device: PublicKey,
    /// What it calls itself.
    pub name: String,
}

impl DaemonPairing {
    /// Reads frame 01, makes frame 02. `scalar` and `nonce` must be random.
    pub fn reply(
        password: &Secret32,
        daemon: &PublicKey,
        start: &[u8],
        scalar: [u8; 64],
        nonce: [u8; 16],
    ) -> Result<(Self, Vec<u8>), HandshakeError> {
        let malformed = HandshakeError::Malformed;
        let (theirs, commitment) = strip(start, frame::PAIR_START)?
            .split_first_chunk()
            .ok_or(malformed)?;
        let commitment = commitment.try_into().map_err(|_| malformed)?;
        let (spake, message) = Spake2::<Ed25519Group>::start_b_with_rng(
            &Password::new(password.expose()),
            &Identity::new(DEVICE),
            &Identity::new(DAEMON),
            Given(Zeroizing::new(scalar)),
        );
        let shared = spake
            .finish(&element(b'A', theirs))
            .map(Zeroizing::new)
            .map_err(|_| malformed)?;
        let mut reply = vec![frame::PAIR_REPLY];
        reply.extend_from_slice(&spake_message(&message));
        reply.extend_from_slice(&nonce);
        reply.extend_from_slice(&daemon.0);
        let transcript = sha256(&[b"quintet.channel.v2 pairing", start, &reply]);
        let pairing = Self {
            derived: Keys::derive(&transcript, &shared),
            transcript,
            commitment,
            nonce,
            daemon: *daemon,
        };
        Ok((pairing, reply))
    }

    /// Reads frame 03. [`HandshakeError::WrongCode`] is a try that counts.
    pub fn check(self, prove: &[u8]) -> Result<Proved, HandshakeError> {
        let malformed = HandshakeError::Malformed;
        let (confirmation, sealed) = strip(prove, frame::PAIR_PROVE)?
            .split_first_chunk::<32>()
            .filter(|(_, sealed)| sealed.len() >= 48 + TAG)
            .ok_or(malformed)?;
        mac(&self.derived.device_confirms, &self.transcript)
            .verify_slice(confirmation)
            .map_err(|_| HandshakeError::WrongCode)?;
        let plaintext = unseal(&self.derived.device_box, &self.transcript, sealed)?;
        let (nonce, rest) = plaintext.split_first_chunk::<16>().ok_or(malformed)?;
        let (device, name) = rest.split_first_chunk::<32>().ok_or(malformed)?;
        let device = PublicKey(*device);
        if commitment(nonce, &device) != self.commitment {
            return Err(HandshakeError::BrokenCommitment);
        }
        if name.len() > MAX_NAME {
            return Err(malformed);
        }
        Ok(Proved {
            transcript: sha256(&[&self.transcript, prove]),
            check_words: check_words(nonce, &self.nonce, &device, &self.daemon),
            derived: self.derived,
            device,
            name: String::from_utf8_lossy(name).into_owned(),
        })
    }
}

impl Proved {
    /// Makes frame 04 for a device that has its row.
    pub fn done(self, device: DeviceId) -> (Paired, Vec<u8>) {
        let mut done = vec![frame::PAIR_DONE];
        let confirmation = mac(&self.derived.daemon_confirms, &self.transcript).finalize();
        done.extend_from_slice(&confirmation.into_bytes());
        done.extend_from_slice(&seal(&self.derived.daemon_box, &self.transcript, &device.0));
        let paired = Paired {
            device,
            peer: self.device,
            check_words: self.check_words,
            pairing: sha256(&[&self.transcript, &done]),
        };
        (paired, done)
    }

    /// What both screens show.
    pub fn check_words(&self) -> [&'static str; 4] {
        self.check_words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::pairing::verifier;

    fn keys(seed: u8) -> KeyPair {
        KeyPair::new(&Secret32::new([seed; 32]))
    }

    /// Somebody who knows the code commits to one thing and opens another; all else fits.
    #[test]
    fn a_commitment_opens_to_nothing_else() {
        let password = verifier("1");
        for (nonce, key) in [([5; 16], keys(3)), ([6; 16], keys(1))] {
            let (mut device, mut start) =
                DevicePairing::start(&password, &keys(1), [3; 64], [5; 16]);
            start[33..].copy_from_slice(&commitment(&nonce, &key.public()));
            device.start.clone_from(&start);
            let daemon = keys(2).public();
            let (daemon, reply) =
                DaemonPairing::reply(&password, &daemon, &start, [4; 64], [6; 16]).unwrap();
            let (_, prove) = device.prove(&reply, "phone").unwrap();
            let opened = daemon.check(&prove).map(|_| ());
            assert_eq!(opened, Err(HandshakeError::BrokenCommitment));
        }
    }
}
