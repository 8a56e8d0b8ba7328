//! Two sides of a pairing and of a resume, and somebody between them.

use proptest::prelude::*;
use quintet_channel::proto::device::DeviceId;
use quintet_channel::proto::keys::{KeyPair, Secret32};
use quintet_channel::proto::pairing::verifier;
use quintet_channel::proto::v2::HandshakeError;
use quintet_channel::proto::v2::noise::{Initiator, Responder, prologue};
use quintet_channel::proto::v2::pair::{DaemonPairing, DevicePairing, Paired};
use quintet_channel::proto::v2::record::Transport;

fn keys(seed: u8) -> KeyPair {
    KeyPair::new(&Secret32::new([seed; 32]))
}

/// Runs a pairing in which `between` may change each of the four frames.
fn paired(
    device_code: &str,
    daemon_code: &str,
    mut between: impl FnMut(u8, &mut Vec<u8>),
) -> Result<(Paired, Paired), HandshakeError> {
    let (device, mut frame) =
        DevicePairing::start(&verifier(device_code), &keys(1), [3; 64], [5; 16]);
    between(1, &mut frame);
    let (daemon, mut frame) = DaemonPairing::reply(
        &verifier(daemon_code),
        &keys(2).public(),
        &frame,
        [4; 64],
        [6; 16],
    )?;
    between(2, &mut frame);
    let (proving, mut frame) = device.prove(&frame, "phone")?;
    between(3, &mut frame);
    let (theirs, mut frame) = daemon.check(&frame)?.done(DeviceId([7; 16]));
    between(4, &mut frame);
    Ok((proving.finish(&frame)?, theirs))
}

#[test]
fn both_sides_agree() {
    let (device, daemon) = paired("123456", "123456", |_, _| {}).unwrap();
    assert_eq!(device.pairing, daemon.pairing);
    assert_eq!(device.check_words, daemon.check_words);
    assert_eq!(device.peer, keys(2).public());
    assert_eq!(daemon.peer, keys(1).public());
}

#[test]
fn a_wrong_code_is_noticed_by_the_daemon_before_it_says_anything() {
    let failed = paired("123456", "123457", |frame, _| assert!(frame < 4));
    assert_eq!(failed, Err(HandshakeError::WrongCode));
}

#[test]
fn a_flipped_bit_in_every_byte_of_every_frame_is_noticed() {
    let mut lengths = [0; 5];
    paired("123456", "123456", |frame, bytes| {
        lengths[usize::from(frame)] = bytes.len();
    })
    .unwrap();
    for frame in 1..=4_u8 {
        for at in 0..lengths[usize::from(frame)] {
            for bit in 0..8 {
                let changed = paired("123456", "123456", |now, bytes| {
                    if now == frame {
                        bytes[at] ^= 1 << bit;
                    }
                });
                assert!(changed.is_err(), "frame {frame} byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn the_other_sides_own_frame_sent_back_is_refused() {
    let (device, start) = DevicePairing::start(&verifier("1"), &keys(1), [3; 64], [5; 16]);
    assert!(device.prove(&start, "phone").is_err());
}

/// Somebody between who guessed the code pairs with each side: the words differ.
#[test]
fn somebody_between_who_knows_the_code_shows_in_the_words() {
    let (device, start) = DevicePairing::start(&verifier("1"), &keys(1), [3; 64], [5; 16]);
    let (towards_device, reply) =
        DaemonPairing::reply(&verifier("1"), &keys(9).public(), &start, [8; 64], [9; 16]).unwrap();
    let (proving, prove) = device.prove(&reply, "phone").unwrap();
    let (_, done) = towards_device
        .check(&prove)
        .unwrap()
        .done(DeviceId([7; 16]));
    let victim = proving.finish(&done).unwrap();

    let (towards_daemon, start) = DevicePairing::start(&verifier("1"), &keys(9), [8; 64], [9; 16]);
    let (daemon, reply) =
        DaemonPairing::reply(&verifier("1"), &keys(2).public(), &start, [4; 64], [6; 16]).unwrap();
    let (_, prove) = towards_daemon.prove(&reply, "phone").unwrap();
    let proved = daemon.check(&prove).unwrap();
    assert_ne!(victim.check_words, proved.check_words());
}

fn resumed(
    mut between: impl FnMut(u8, &mut Vec<u8>),
    pairing: [Option<&[u8; 32]>; 2],
) -> Result<([u8; 32], [u8; 32]), HandshakeError> {
    let ephemeral = |seed| Secret32::new([seed; 32]);
    let (initiator, mut frame) = Initiator::start(
        &prologue(pairing[0]),
        &keys(1),
        &keys(2).public(),
        &ephemeral(3),
        b"",
    )?;
    between(1, &mut frame);
    let (responder, _) = Responder::read(&prologue(pairing[1]), &keys(2), &frame)?;
    let (mut frame, theirs) = responder.reply(&ephemeral(4), b"")?;
    between(2, &mut frame);
    let (_, ours) = initiator.finish(&frame)?;
    Ok((ours.transcript, theirs.transcript))
}

#[test]
fn a_flipped_bit_in_every_byte_of_a_resume_is_noticed() {
    let (ours, theirs) = resumed(|_, _| {}, [None, None]).unwrap();
    assert_eq!(ours, theirs);
    for (frame, length) in [(1, 96), (2, 48)] {
        for at in 0..length {
            for bit in 0..8 {
                let changed = resumed(
                    |now, bytes| {
                        if now == frame {
                            bytes[at] ^= 1 << bit;
                        }
                    },
                    [None, None],
                );
                // The top bit of an X25519 key is ignored by its arithmetic and kept by the transcript.
                assert!(changed.is_err(), "frame {frame} byte {at} bit {bit}");
            }
        }
    }
}

#[test]
fn a_resume_is_bound_to_the_pairing_before_it() {
    let pairing = [9; 32];
    assert!(resumed(|_, _| {}, [Some(&pairing), Some(&pairing)]).is_ok());
    let unbound = resumed(|_, _| {}, [Some(&pairing), None]);
    assert_eq!(unbound, Err(HandshakeError::Unauthentic));
}

#[test]
fn another_daemon_can_not_answer() {
    let (_, message) = Initiator::start(
        b"",
        &keys(1),
        &keys(2).public(),
        &Secret32::new([3; 32]),
        b"",
    )
    .unwrap();
    let read = Responder::read(b"", &keys(9), &message).map(|_| ());
    assert_eq!(read, Err(HandshakeError::Unauthentic));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_bytes_make_the_handshake_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0..5_u8) {
        let mut frame = bytes;
        frame.insert(0, kind);
        let reply = DaemonPairing::reply(&verifier("1"), &keys(2).public(), &frame, [4; 64], [6; 16]);
        if let Ok((daemon, _)) = reply {
            prop_assert!(daemon.check(&frame).is_err());
        }
        let (device, _) = DevicePairing::start(&verifier("1"), &keys(1), [3; 64], [5; 16]);
        if let Ok((proving, _)) = device.prove(&frame, "n") {
            prop_assert!(proving.finish(&frame).is_err());
        }
        prop_assert!(Responder::read(b"", &keys(2), &frame).is_err());
    }
}

/// Keys stolen later open no recording: the ephemeral keys of that connection are gone.
#[test]
fn a_recording_does_not_open_with_both_static_keys() {
    let ephemeral = |seed| Secret32::new([seed; 32]);
    let (device, daemon) = (keys(1), keys(2));
    let prologue = prologue(None);
    let start = |ephemeral: &Secret32| {
        Initiator::start(&prologue, &device, &daemon.public(), ephemeral, b"").unwrap()
    };
    let (initiator, first) = start(&ephemeral(3));
    let (responder, _) = Responder::read(&prologue, &daemon, &first).unwrap();
    let (second, mut theirs) = responder.reply(&ephemeral(4), b"").unwrap();
    let (_, mut ours) = initiator.finish(&second).unwrap();
    let mut upwards = b"from the device".to_vec();
    ours.sending.seal(&mut upwards).unwrap();
    let mut downwards = b"from the daemon".to_vec();
    theirs.sending.seal(&mut downwards).unwrap();

    // Each end again, as whoever has both static keys and both frames can play it.
    let again = |ephemeral: &Secret32| {
        let (responder, _) = Responder::read(&prologue, &daemon, &first).unwrap();
        responder.reply(ephemeral, b"").unwrap().1
    };
    let opens = |mut transport: Transport, record: &[u8]| {
        let mut record = record.to_vec();
        transport.receiving.open(&mut record).is_ok()
    };
    assert!(
        opens(again(&ephemeral(4)), &upwards),
        "with the ephemeral key it does"
    );
    assert!(!opens(again(&ephemeral(5)), &upwards));
    let (thief, _) = start(&ephemeral(5));
    assert!(
        thief.finish(&second).is_err(),
        "the answer is for another key"
    );
    let (owner, _) = start(&ephemeral(3));
    assert!(opens(owner.finish(&second).unwrap().1, &downwards));
}
