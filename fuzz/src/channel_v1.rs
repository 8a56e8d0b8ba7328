//! The channel's version 1: what a browser sends, what goes back to it, and the code it pairs with.

use std::net::IpAddr;

use quintet_channel::proto::base64url;
use quintet_channel::proto::pairing::{LOCKED_FOR, MAX_WRONG, PairError, Pairing};
use quintet_channel::proto::v1::{
    Body, ClientMessage, E2eKey, MAX_MESSAGE, Outer, Sealed, ServerEvent, encode, parse,
};
use serde_json::Value;

/// Any text frame; the same bytes are also an answer's text, and a sequence of tries to pair.
pub fn channel_v1(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let outer = any_text_is_answered(text);
        what_is_sent_fits_and_reads_back(&outer, text);
    }
    a_code_pairs_once_and_dies_after_five(data);
}

/// A message or an error that can be sent, with ids that can be echoed.
fn any_text_is_answered(text: &str) -> Outer {
    let session_id = match parse(text) {
        Ok(envelope) => {
            assert!(envelope.request_id.is_none_or(|id| !id.is_empty()));
            if let ClientMessage::UserMessage {
                body: Ok(Body::Sealed(sealed)),
                ..
            } = envelope.message
            {
                let opened = E2eKey::from_stored([7; 32]).open(&sealed);
                assert!(opened.is_err(), "no key of ours sealed it");
            }
            envelope.session_id
        }
        Err(invalid) => {
            let outer = Outer {
                session_id: invalid.session_id.clone(),
                agent_id: None,
            };
            let request_id = invalid.request_id.as_deref();
            let frame = invalid.code.encode(&outer, request_id, &invalid.message);
            assert!(frame.len() <= MAX_MESSAGE, "{} bytes", frame.len());
            let frame: Value = serde_json::from_str(&frame).expect("an error is JSON");
            assert_eq!(frame["payload"]["code"], invalid.code.as_str());
            invalid.session_id
        }
    };
    assert!(!session_id.is_empty(), "a client ignores an empty one");
    Outer {
        session_id,
        agent_id: Some("coder".to_owned()),
    }
}

/// However long: every frame is within the limit, and the pieces are the text.
fn what_is_sent_fits_and_reads_back(outer: &Outer, text: &str) {
    // A few are made too long for one frame; most stay quick.
    let is_long = !text.is_empty() && text.len().is_multiple_of(64);
    let times = if is_long {
        MAX_MESSAGE / text.len() + 1
    } else {
        1
    };
    let text = text.repeat(times);
    let key = E2eKey::from_stored([9; 32]);
    let mut count = 0_u8;
    let nonce = || {
        count = count.wrapping_add(1);
        [count; 12]
    };
    let chunk = ServerEvent::Chunk { text: text.clone() };
    let mut read = String::new();
    for frame in encode(&chunk, outer, Some(&key), nonce) {
        read.push_str(&opened(&frame, &key));
    }
    assert_eq!(read, text);
    let (id, result) = ("call".to_owned(), text.clone());
    for event in [
        ServerEvent::Final { text: text.clone() },
        ServerEvent::Error {
            message: text.clone(),
            code: None,
        },
        ServerEvent::ToolResult {
            request_id: id.clone(),
            result: Ok(result),
        },
        ServerEvent::ApprovalRequest {
            request_id: id,
            action: text.clone(),
            reason: Some(text),
        },
    ] {
        for frame in encode(&event, outer, Some(&key), || [0; 12]) {
            within_the_limit(&frame);
        }
    }
}

fn within_the_limit(frame: &str) -> Value {
    assert!(frame.len() <= MAX_MESSAGE, "{} bytes", frame.len());
    serde_json::from_str(frame).expect("a frame is JSON")
}

fn opened(frame: &str, key: &E2eKey) -> String {
    let e2e = within_the_limit(frame)["payload"]["e2e"].take();
    let bytes = |name: &str| {
        let text = e2e[name].as_str().expect("a text");
        base64url::decode(text).expect("base64url")
    };
    let sealed = Sealed {
        nonce: bytes("nonce").try_into().expect("12 bytes"),
        ciphertext: bytes("ciphertext"),
    };
    let plaintext = key.open(&sealed).expect("it opens");
    let plaintext: Value = serde_json::from_slice(&plaintext).expect("JSON");
    plaintext["content"].as_str().expect("a text").to_owned()
}

/// Each byte does one thing; a plain count beside it says what may happen.
fn a_code_pairs_once_and_dies_after_five(steps: &[u8]) {
    const RIGHT: &str = "123456";
    const TTL: u64 = 300;
    let mut pairing = Pairing::default();
    let (mut now, mut locked_until) = (1000, 0);
    // Of the open code: until when it may pair, and how often it was guessed wrongly.
    let (mut good_until, mut wrong) = (0, 0);
    // Five tries end a code; after more there is nothing new.
    for step in steps.iter().take(64) {
        let source = IpAddr::from([10, 0, 0, step >> 4]);
        match step % 8 {
            0 => {
                let opened = pairing.open(RIGHT, now, TTL).is_ok();
                assert_eq!(opened, now >= locked_until);
                if opened {
                    (good_until, wrong) = (now + TTL, 0);
                }
            }
            1 => now += u64::from(*step),
            2 | 3 => {
                if pairing.try_code(RIGHT, source, now).is_ok() {
                    assert!(now < good_until, "used, dead or too old");
                    good_until = 0;
                }
            }
            _ => {
                let tried = pairing.try_code("654321", source, now);
                let error = tried.expect_err("a wrong code never pairs");
                if error == PairError::Invalid {
                    wrong += 1;
                    assert!(wrong <= MAX_WRONG, "a try after the last was heard");
                    if wrong == MAX_WRONG {
                        (good_until, locked_until) = (0, now + LOCKED_FOR);
                    }
                }
            }
        }
    }
}
