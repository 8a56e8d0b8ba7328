//! The channel's version 2: every step of the handshake, and records.

use std::sync::OnceLock;

use quintet_channel::proto::device::DeviceId;
use quintet_channel::proto::keys::{KeyPair, Secret32};
use quintet_channel::proto::pairing;
use quintet_channel::proto::v2::message::{self, ClientMessage};
use quintet_channel::proto::v2::noise::{Initiator, Responder, prologue};
use quintet_channel::proto::v2::pair::{DaemonPairing, DevicePairing, DeviceProving};
use quintet_channel::proto::v2::record::{RecordError, RecordKey};
use quintet_channel::proto::v2::{HandshakeError, Refused};

/// Byte 0 picks who gets the rest, and in place of what.
pub fn channel_v2(data: &[u8]) {
    let [choice, bytes @ ..] = data else {
        return;
    };
    match choice % 8 {
        0 => a_start_of_somebody_else_is_not_the_device(bytes),
        1 => a_reply_of_somebody_else_is_not_the_daemon(bytes),
        2 => only_the_proof_proves(bytes),
        3 => only_the_daemons_end_ends_it(bytes),
        4 => only_a_device_resumes(bytes),
        5 => only_the_daemon_answers_a_resume(bytes),
        6 => records_open_once_and_in_order(bytes),
        _ => any_plaintext_is_a_message_or_an_error(bytes),
    }
}

fn counting<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|at| from.wrapping_add(at as u8))
}

fn keys(from: u8) -> KeyPair {
    KeyPair::new(&Secret32::new(counting(from)))
}

/// The frames of the handshake in the golden vectors, as nobody changed them.
struct Frames {
    start: Vec<u8>,
    reply: Vec<u8>,
    prove: Vec<u8>,
    done: Vec<u8>,
    resume: Vec<u8>,
    resumed: Vec<u8>,
    prologue: Vec<u8>,
}

fn honest() -> &'static Frames {
    static FRAMES: OnceLock<Frames> = OnceLock::new();
    FRAMES.get_or_init(|| {
        let (device, start) = device_starts();
        let (daemon, reply) = daemon_replies(&start).expect("an honest start");
        let (_, prove) = device.prove(&reply, "Küche").expect("an honest reply");
        let proved = daemon.check(&prove).expect("an honest proof");
        let (paired, done) = proved.done(DeviceId(counting(0xa0)));
        let prologue = prologue(Some(&paired.pairing));
        let (_, resume) = device_resumes(&prologue);
        let (responder, _) = daemon_reads(&prologue, &resume).expect("an honest resume");
        let ephemeral = Secret32::new(counting(0xd0));
        let (resumed, _) = responder.reply(&ephemeral, b"").expect("an honest key");
        Frames {
            start,
            reply,
            prove,
            done,
            resume,
            resumed,
            prologue,
        }
    })
}

fn device_starts() -> (DevicePairing, Vec<u8>) {
    let password = pairing::verifier("493021");
    DevicePairing::start(&password, &keys(0), counting(0x40), counting(0x80))
}

fn daemon_replies(start: &[u8]) -> Result<(DaemonPairing, Vec<u8>), HandshakeError> {
    let password = pairing::verifier("493021");
    let daemon = keys(0x20).public();
    DaemonPairing::reply(&password, &daemon, start, counting(0x60), counting(0x90))
}

fn device_proves(reply: &[u8]) -> Result<(DeviceProving, Vec<u8>), HandshakeError> {
    device_starts().0.prove(reply, "Küche")
}

fn device_resumes(prologue: &[u8]) -> (Initiator, Vec<u8>) {
    let ephemeral = Secret32::new(counting(0xb0));
    let daemon = keys(0x20).public();
    Initiator::start(prologue, &keys(0), &daemon, &ephemeral, b"").expect("honest keys")
}

fn daemon_reads(prologue: &[u8], resume: &[u8]) -> Result<(Responder, Vec<u8>), HandshakeError> {
    Responder::read(prologue, &keys(0x20), resume)
}

fn a_start_of_somebody_else_is_not_the_device(start: &[u8]) {
    let frames = honest();
    let Ok((daemon, _)) = daemon_replies(start) else {
        assert_ne!(start, frames.start);
        return;
    };
    assert_eq!(daemon.check(&frames.prove).is_ok(), start == frames.start);
}

fn a_reply_of_somebody_else_is_not_the_daemon(reply: &[u8]) {
    let frames = honest();
    let Ok((device, prove)) = device_proves(reply) else {
        assert_ne!(reply, frames.reply);
        return;
    };
    let (daemon, _) = daemon_replies(&frames.start).expect("an honest start");
    assert_eq!(daemon.check(&prove).is_ok(), reply == frames.reply);
    assert_eq!(device.finish(&frames.done).is_ok(), reply == frames.reply);
}

fn only_the_proof_proves(prove: &[u8]) {
    let frames = honest();
    let (daemon, _) = daemon_replies(&frames.start).expect("an honest start");
    assert_eq!(daemon.check(prove).is_ok(), prove == frames.prove);
}

fn only_the_daemons_end_ends_it(done: &[u8]) {
    let frames = honest();
    let (device, _) = device_proves(&frames.reply).expect("an honest reply");
    assert_eq!(device.finish(done).is_ok(), done == frames.done);
}

/// Whoever it is, it can't be this device unless it has the device's key.
fn only_a_device_resumes(resume: &[u8]) {
    match daemon_reads(&honest().prologue, resume) {
        Ok((responder, _)) => {
            let is_device = responder.device() == keys(0).public();
            assert_eq!(is_device, resume == honest().resume);
        }
        Err(_) => assert_ne!(resume, honest().resume),
    }
}

fn only_the_daemon_answers_a_resume(resumed: &[u8]) {
    let frames = honest();
    let (device, _) = device_resumes(&frames.prologue);
    assert_eq!(device.finish(resumed).is_ok(), resumed == frames.resumed);
}

/// Each byte delivers one of sixteen records, as it is or changed. A queue of what is due says what
/// must open.
fn records_open_once_and_in_order(steps: &[u8]) {
    let key = Secret32::new([3; 32]);
    let mut sender = RecordKey::new(&key);
    let records: [Vec<u8>; 16] = std::array::from_fn(|at| {
        let mut record = vec![at as u8; at];
        sender.seal(&mut record).expect("short");
        record
    });
    let mut receiver = RecordKey::new(&key);
    let mut due = 0;
    for step in steps.iter().take(512) {
        let at = usize::from(step & 15);
        let mut record = records[at].clone();
        let change = usize::from(step >> 4);
        if change > 0 {
            let place = (change * 7) % record.len();
            record[place] ^= 1 << (change % 8);
        }
        let outcome = receiver.open(&mut record);
        if change == 0 && at == due {
            assert_eq!(outcome, Ok(()));
            assert_eq!(record, vec![at as u8; at]);
            due += 1;
        } else {
            assert_eq!(outcome, Err(RecordError::Unauthentic));
        }
    }
}

fn any_plaintext_is_a_message_or_an_error(plaintext: &[u8]) {
    if let Ok(ClientMessage::Bytes { stream, bytes }) = message::parse(plaintext) {
        assert_eq!(message::bytes(stream, &bytes), plaintext);
    }
    if let Some((refused, reason)) = Refused::parse(plaintext) {
        let again = Refused::parse(&refused.encode(&reason)).expect("as written");
        assert_eq!(again.0, refused);
        assert!(reason.starts_with(&again.1));
    }
}
