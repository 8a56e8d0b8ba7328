//! The sandbox plane's binary frames, and the credit and offsets of what they carry.

use std::collections::VecDeque;

use bytes::Bytes;
use quintet_sandbox::proto::Progress;
use quintet_sandbox::proto::credit::{ReceiveCredit, SendCredit};
use quintet_sandbox::proto::frame::{FRAME_COST, Frame, INITIAL_CREDIT, cost};

use crate::choices::Choices;

/// Any binary message. One of an unknown kind is a sequence of steps instead.
pub fn sandbox_v2(message: &[u8]) {
    match Frame::decode(&Bytes::copy_from_slice(message)) {
        Ok(frame) => assert_eq!(Frame::decode(&frame.encode()), Ok(frame)),
        Err(fault) => assert!(!fault.to_string().is_empty()),
    }
    match message.split_first() {
        Some((200, steps)) => a_window_is_never_overrun_and_never_stuck(steps),
        Some((201, steps)) => a_receiver_notices_who_overruns_it(steps),
        Some((202, steps)) => an_upload_has_neither_gap_nor_excess(steps),
        _ => {}
    }
}

/// A stream's two ends, and frames and grants on their way.
fn a_window_is_never_overrun_and_never_stuck(steps: &[u8]) {
    let mut choices = Choices::new(steps);
    let window = u32::from(choices.byte()) << 12;
    let (mut sender, mut receiver) = (SendCredit::default(), ReceiveCredit::new(window));
    let window = u64::from(window.max(INITIAL_CREDIT));
    let mut grants: VecDeque<u32> = receiver.open().into_iter().collect();
    let (mut frames, mut held) = (VecDeque::new(), VecDeque::new());
    let charge =
        |queue: &VecDeque<usize>| queue.iter().map(|len| u64::from(cost(*len))).sum::<u64>();
    while !choices.is_empty() {
        match choices.below(4) {
            0 => {
                let want = 1 + (usize::from(choices.byte()) << choices.below(12));
                let len = sender.room(want);
                assert!(len <= want);
                if len > 0 {
                    sender.spend(len);
                    frames.push_back(len);
                }
            }
            1 => {
                if let Some(len) = frames.pop_front() {
                    assert_eq!(receiver.arrived(len), Ok(()), "the sender kept its credit");
                    held.push_back(len);
                }
            }
            2 => {
                if let Some(len) = held.pop_front() {
                    grants.extend(receiver.taken(len));
                }
            }
            _ => {
                if let Some(grant) = grants.pop_front() {
                    sender.grant(grant);
                }
            }
        }
        assert!(
            charge(&frames) + charge(&held) <= window,
            "more than the window"
        );
    }
    for len in held.into_iter().chain(frames) {
        grants.extend(receiver.taken(len));
    }
    for grant in grants {
        sender.grant(grant);
    }
    assert!(
        sender.room(1) == 1,
        "everything was taken and nothing may be sent"
    );
}

fn a_receiver_notices_who_overruns_it(steps: &[u8]) {
    let mut choices = Choices::new(steps);
    let window = u32::from(choices.byte()) << 12;
    let mut receiver = ReceiveCredit::new(window);
    let mut credit = u64::from(INITIAL_CREDIT);
    let (mut held, mut buffered) = (VecDeque::new(), 0_u64);
    while !choices.is_empty() {
        if choices.flag() {
            let len = usize::try_from(choices.number()).unwrap_or(usize::MAX) << choices.below(14);
            let charge = u64::from(cost(len));
            let arrived = receiver.arrived(len);
            assert_eq!(arrived.is_ok(), charge <= credit);
            if arrived.is_err() {
                // It ends the stream.
                return;
            }
            credit -= charge;
            buffered += charge;
            held.push_back(len);
        } else if let Some(len) = held.pop_front() {
            buffered -= u64::from(cost(len));
            credit += u64::from(receiver.taken(len).unwrap_or(0));
        }
        assert!(credit + buffered <= u64::from(window.max(INITIAL_CREDIT)));
        assert!(held.len() as u64 * u64::from(FRAME_COST) <= buffered);
    }
}

fn an_upload_has_neither_gap_nor_excess(steps: &[u8]) {
    let mut choices = Choices::new(steps);
    let total = choices.number().cast_signed();
    let Ok(mut progress) = Progress::announced(total) else {
        assert!(total < 0);
        return;
    };
    let (mut received, total) = (0_u64, total.unsigned_abs());
    while !choices.is_empty() {
        let offset = match choices.flag() {
            true => received,
            false => choices.number(),
        };
        let len = choices.number();
        let fits = offset == received
            && i64::try_from(offset).is_ok()
            && received.checked_add(len).is_some_and(|end| end <= total);
        let taken = progress.chunk(
            offset.cast_signed(),
            usize::try_from(len).unwrap_or(usize::MAX),
        );
        assert_eq!(taken.is_ok(), fits, "{taken:?}");
        if fits {
            received += len;
        }
        assert_eq!(progress.received(), received);
        assert_eq!(progress.is_complete(), received == total);
    }
}
