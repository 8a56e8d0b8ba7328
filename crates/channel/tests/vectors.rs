//! Published vectors, and golden ones that the browser's client checks too.
//!
//! `vectors.json` has a copy in web/src/lib/channel, held equal here.
#![expect(clippy::unwrap_used, reason = "tests")]

use quintet_channel::proto::device::DeviceId;
use quintet_channel::proto::keys::{KeyPair, PublicKey, Secret32};
use quintet_channel::proto::pairing;
use quintet_channel::proto::v1::E2eKey;
use quintet_channel::proto::v2::noise::{Initiator, Responder, prologue};
use quintet_channel::proto::v2::pair::{DaemonPairing, DevicePairing};
use quintet_channel::proto::v2::record::{REKEY_EVERY, RecordKey};
use quintet_channel::proto::v2::words;
use serde_json::{Value, json};
use spake2::{Ed25519Group, Identity, Password, Spake2};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn secret(text: &Value) -> Secret32 {
    Secret32::new(unhex(text).try_into().unwrap())
}

fn published() -> Value {
    serde_json::from_str(include_str!("published.json")).unwrap()
}

/// Cacophony's vector of `Noise_IK_25519_ChaChaPoly_SHA256`, both sides and four transport messages.
#[test]
fn noise_ik_is_the_published_one() {
    let vector = published()["noise"].take();
    let prologue = unhex(&vector["init_prologue"]);
    let initiator_keys = KeyPair::new(&secret(&vector["init_static"]));
    let responder_keys = KeyPair::new(&secret(&vector["resp_static"]));
    let messages = vector["messages"].as_array().unwrap();
    let payload = |at: usize| unhex(&messages[at]["payload"]);
    let ciphertext = |at: usize| unhex(&messages[at]["ciphertext"]);

    let (initiator, first) = Initiator::start(
        &prologue,
        &initiator_keys,
        &responder_keys.public(),
        &secret(&vector["init_ephemeral"]),
        &payload(0),
    )
    .unwrap();
    assert_eq!(hex(&first), hex(&ciphertext(0)));
    let (responder, read) = Responder::read(&prologue, &responder_keys, &first).unwrap();
    assert_eq!(read, payload(0));
    assert_eq!(responder.device(), initiator_keys.public());
    let (second, mut theirs) = responder
        .reply(&secret(&vector["resp_ephemeral"]), &payload(1))
        .unwrap();
    assert_eq!(hex(&second), hex(&ciphertext(1)));
    let (read, mut ours) = initiator.finish(&second).unwrap();
    assert_eq!(read, payload(1));
    assert_eq!(ours.transcript, theirs.transcript);
    assert_eq!(hex(&ours.transcript), vector["handshake_hash"]);
    for at in 2..messages.len() {
        let (sender, receiver) = if at % 2 == 0 {
            (&mut ours.sending, &mut theirs.receiving)
        } else {
            (&mut theirs.sending, &mut ours.receiving)
        };
        let mut record = payload(at);
        sender.seal(&mut record).unwrap();
        assert_eq!(hex(&record), hex(&ciphertext(at)), "message {at}");
        receiver.open(&mut record).unwrap();
        assert_eq!(record, payload(at));
    }
}

/// A generator that gives the wide form of one scalar.
struct Scalar([u8; 64]);

impl rand_core::TryRng for Scalar {
    type Error = std::convert::Infallible;
    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(0)
    }
    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(0)
    }
    fn try_fill_bytes(&mut self, target: &mut [u8]) -> Result<(), Self::Error> {
        target.copy_from_slice(&self.0[..target.len()]);
        Ok(())
    }
}

impl rand_core::TryCryptoRng for Scalar {}

/// A decimal number as 64 little-endian bytes.
fn decimal(text: &Value) -> Scalar {
    let mut bytes = [0_u8; 64];
    for digit in text.as_str().unwrap().bytes() {
        let mut carry = u16::from(digit - b'0');
        for byte in &mut bytes {
            carry += u16::from(*byte) * 10;
            *byte = carry.to_le_bytes()[0];
            carry >>= 8;
        }
    }
    Scalar(bytes)
}

/// python-spake2's `test_asymmetric`.
#[test]
fn spake2_is_the_published_one() {
    let vector = published()["spake2"].take();
    let text = |name: &str| vector[name].as_str().unwrap().as_bytes().to_vec();
    let password = Password::new(text("password"));
    let (a, b) = (Identity::new(&text("id_a")), Identity::new(&text("id_b")));
    let (device, first) =
        Spake2::<Ed25519Group>::start_a_with_rng(&password, &a, &b, decimal(&vector["scalar_a"]));
    let (daemon, second) =
        Spake2::<Ed25519Group>::start_b_with_rng(&password, &a, &b, decimal(&vector["scalar_b"]));
    assert_eq!(hex(&first), vector["message_a"]);
    assert_eq!(hex(&second), vector["message_b"]);
    assert_eq!(hex(&device.finish(&second).unwrap()), vector["key"]);
    assert_eq!(hex(&daemon.finish(&first).unwrap()), vector["key"]);
}

fn counting<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|at| from.wrapping_add(at as u8))
}

/// Every value of one pairing, one resume, its first records and a rekey, from fixed secrets.
fn golden() -> Value {
    let device_keys = KeyPair::new(&Secret32::new(counting(0)));
    let daemon_keys = KeyPair::new(&Secret32::new(counting(0x20)));
    let code = "493021";
    let password = pairing::verifier(code);
    let (device, start) =
        DevicePairing::start(&password, &device_keys, counting(0x40), counting(0x80));
    let (daemon, reply) = DaemonPairing::reply(
        &password,
        &daemon_keys.public(),
        &start,
        counting(0x60),
        counting(0x90),
    )
    .unwrap();
    let (proving, prove) = device.prove(&reply, "Küche").unwrap();
    let proved = daemon.check(&prove).unwrap();
    assert_eq!(proved.name, "Küche");
    let (theirs, done) = proved.done(DeviceId(counting(0xa0)));
    let ours = proving.finish(&done).unwrap();
    assert_eq!(ours.pairing, theirs.pairing);
    assert_eq!(ours.check_words, theirs.check_words);
    assert_eq!(
        (ours.peer, theirs.peer),
        (daemon_keys.public(), device_keys.public())
    );

    let prologue = prologue(Some(&ours.pairing));
    let (initiator, resume) = Initiator::start(
        &prologue,
        &device_keys,
        &daemon_keys.public(),
        &Secret32::new(counting(0xb0)),
        b"",
    )
    .unwrap();
    let (responder, _) = Responder::read(&prologue, &daemon_keys, &resume).unwrap();
    let (resumed, mut daemon_side) = responder
        .reply(&Secret32::new(counting(0xd0)), b"")
        .unwrap();
    let (_, mut device_side) = initiator.finish(&resumed).unwrap();
    let mut request = b"\0{\"id\":1,\"op\":\"hello\",\"args\":{}}".to_vec();
    device_side.sending.seal(&mut request).unwrap();
    let mut answer = b"\0{\"id\":1,\"ok\":{}}".to_vec();
    daemon_side.sending.seal(&mut answer).unwrap();

    let mut rekeyed = RecordKey::new(&Secret32::new([3; 32]));
    for _ in 0..REKEY_EVERY {
        rekeyed.seal(&mut Vec::new()).unwrap();
    }
    let mut after_rekey = b"after".to_vec();
    rekeyed.seal(&mut after_rekey).unwrap();

    let e2e = E2eKey::derive(&daemon_keys, &device_keys.public()).unwrap();
    let sealed = e2e.seal(counting(0), br#"{"content":"hi","sender_id":"ui-1"}"#);
    json!({
        "pairing": {
            "code": code,
            "password": hex(password.expose()),
            "device_secret": hex(&counting::<32>(0)),
            "device_key": hex(&device_keys.public().0),
            "daemon_secret": hex(&counting::<32>(0x20)),
            "daemon_key": hex(&daemon_keys.public().0),
            "device_scalar": hex(&counting::<64>(0x40)),
            "device_nonce": hex(&counting::<16>(0x80)),
            "name": "Küche",
            "start": hex(&start),
            "reply": hex(&reply),
            "prove": hex(&prove),
            "done": hex(&done),
            "device_id": ours.device.to_string(),
            "check_words": ours.check_words,
            "pairing": hex(&ours.pairing),
        },
        "resume": {
            "prologue": hex(&prologue),
            "device_ephemeral": hex(&counting::<32>(0xb0)),
            "message": hex(&resume),
            "reply": hex(&resumed),
            "transcript": hex(&device_side.transcript),
            "first_request": hex(&request),
            "first_answer": hex(&answer),
        },
        "rekey": {
            "key": hex(&[3; 32]),
            "records_before": REKEY_EVERY,
            "plaintext": "after",
            "record": hex(&after_rekey),
        },
        "v1": {
            "key": hex(e2e.expose()),
            "nonce": hex(&sealed.nonce),
            "plaintext": r#"{"content":"hi","sender_id":"ui-1"}"#,
            "ciphertext": hex(&sealed.ciphertext),
        },
        "words": (0..=255).map(words::word).collect::<Vec<_>>(),
    })
}

#[test]
fn golden_bytes_stand_here_and_in_the_browser() {
    let computed = golden();
    let here: Value = serde_json::from_str(include_str!("vectors.json")).unwrap();
    assert_eq!(
        here,
        computed,
        "computed:\n{}",
        serde_json::to_string_pretty(&computed).unwrap()
    );
    assert_eq!(
        include_str!("vectors.json"),
        include_str!("../../../web/src/lib/channel/vectors.json"),
        "the browser's copy differs"
    );
    assert_eq!(
        include_str!("published.json"),
        include_str!("../../../web/src/lib/channel/published.json"),
        "the browser's copy differs"
    );
}

#[test]
fn a_public_key_of_zeros_opens_nothing() {
    let keys = KeyPair::new(&Secret32::new(counting(0)));
    let zero = PublicKey([0; 32]);
    let ephemeral = Secret32::new(counting(9));
    assert!(Initiator::start(b"", &keys, &zero, &ephemeral, b"").is_err());
    let (_, mut message) = Initiator::start(b"", &keys, &keys.public(), &ephemeral, b"").unwrap();
    message[..32].fill(0);
    assert!(Responder::read(b"", &keys, &message).is_err());
}
