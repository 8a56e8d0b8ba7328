//! Bytes from anywhere, and state machines on virtual time.

use std::time::Duration;

use proptest::prelude::*;
use quintet_sandbox::proto::credit::{ReceiveCredit, SendCredit};
use quintet_sandbox::proto::frame::{Body, End, Frame, INITIAL_CREDIT, Open, Opened, Outcome};
use quintet_sandbox::proto::{
    HubEvent, HubSession, HubToWorker, Liveness, Load, MAX_METADATA, MAX_NAME, Metadata, Names,
    OffsetError, Progress, Protocol, Pulse, WorkerEvent, WorkerSession, WorkerToHub, parse,
};

fn body() -> impl Strategy<Value = Body> {
    let data = prop::collection::vec(any::<u8>(), 0..200).prop_map(bytes::Bytes::from);
    prop_oneof![
        data.clone().prop_map(Body::In),
        data.clone().prop_map(Body::Out),
        data.prop_map(Body::Err),
        any::<u64>().prop_map(Body::Begin),
        any::<u32>().prop_map(Body::Credit),
        (any::<u16>(), any::<u16>()).prop_map(|(rows, cols)| Body::Resize { rows, cols }),
        Just(Body::Eof),
        Just(Body::Cancel),
        Just(Body::Detach),
        Just(Body::Done),
        any::<String>().prop_map(|path| Body::Open(Box::new(Open::List { path }))),
        (any::<u64>(), any::<Option<String>>()).prop_map(|(offset, blake3)| Body::Opened(Opened {
            offset,
            blake3,
            ..Opened::default()
        })),
        (any::<i32>(), any::<u64>()).prop_map(|(code, duration_ms)| Body::End(Box::new(End {
            outcome: Outcome::Exited { code },
            duration_ms,
            mirrored: None,
        }))),
    ]
}

proptest! {
    #[test]
    fn a_frame_survives_its_bytes(stream: u32, body in body()) {
        let frame = Frame::new(stream, body);
        prop_assert_eq!(Frame::decode(&frame.encode()).unwrap(), frame);
    }

    #[test]
    fn any_bytes_are_a_frame_or_a_fault(bytes: Vec<u8>) {
        let _ = Frame::decode(&bytes.into());
    }

    #[test]
    fn any_text_is_a_message_or_a_fault(text: String) {
        let _ = parse::hub_to_worker(&text);
        let _ = parse::worker_to_hub(&text);
    }

    #[test]
    fn sender_and_receiver_agree_on_credit(sizes in prop::collection::vec(1usize..70_000, 1..200)) {
        let mut sender = SendCredit::default();
        let mut receiver = ReceiveCredit::new(4 * INITIAL_CREDIT);
        if let Some(more) = receiver.open() {
            sender.grant(more);
        }
        for size in sizes {
            prop_assert_eq!(sender.room(size), size, "a reader that takes everything never stops its sender");
            sender.spend(size);
            receiver.arrived(size).unwrap();
            if let Some(grant) = receiver.taken(size) {
                sender.grant(grant);
            }
        }
    }

    #[test]
    fn a_sender_without_grants_stops_before_the_receiver_complains(size in 1usize..70_000) {
        let mut sender = SendCredit::default();
        let mut receiver = ReceiveCredit::new(INITIAL_CREDIT);
        while sender.room(size) == size {
            sender.spend(size);
            prop_assert!(receiver.arrived(size).is_ok());
        }
        prop_assert!(receiver.arrived(size).is_err());
    }

    #[test]
    fn an_upload_is_complete_exactly_when_its_chunks_are_its_bytes(
        total in 0i64..1000,
        chunks in prop::collection::vec((-10i64..1000, 0usize..300), 0..20),
    ) {
        let mut progress = Progress::announced(total).unwrap();
        let mut at = 0;
        for (offset, len) in chunks {
            let fits = offset == at && at + len as i64 <= total;
            prop_assert_eq!(progress.chunk(offset, len).is_ok(), fits);
            if fits {
                at += len as i64;
            }
        }
        prop_assert_eq!(progress.is_complete(), at == total);
    }
}

#[test]
fn frames_have_the_documented_bytes() {
    let credit = Frame::new(0x0102_0304, Body::Credit(5)).encode();
    assert_eq!(credit.as_ref(), [8, 1, 2, 3, 4, 0, 0, 0, 5]);
    let resize = Frame::new(1, Body::Resize { rows: 24, cols: 80 }).encode();
    assert_eq!(resize.as_ref(), [9, 0, 0, 0, 1, 0, 24, 0, 80]);
    let out = Frame::new(2, Body::Out("hi".into())).encode();
    assert_eq!(out.as_ref(), [5, 0, 0, 0, 2, b'h', b'i']);
    let begin = Frame::new(3, Body::Begin(9)).encode();
    assert_eq!(begin.as_ref(), [3, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 9]);
    let open = Frame::new(4, Body::Open(Box::new(Open::Jobs))).encode();
    assert_eq!(&open[..], b"\x01\0\0\0\x04{\"kind\":\"jobs\"}");
    let end = End {
        outcome: Outcome::Exited { code: 3 },
        duration_ms: 7,
        mirrored: None,
    };
    let end = Frame::new(5, Body::End(Box::new(end))).encode();
    assert_eq!(
        &end[5..],
        br#"{"outcome":"exited","code":3,"duration_ms":7}"#
    );
}

#[test]
fn a_negative_size_is_refused_and_nothing_is_complete_at_once() {
    assert_eq!(Progress::announced(-1), Err(OffsetError::NegativeSize(-1)));
    assert!(Progress::announced(0).unwrap().is_complete());
}

/// Both ends on one virtual clock.
struct Pair {
    hub: HubSession,
    worker: WorkerSession,
    now: Duration,
    hub_answers: bool,
    died: Option<Duration>,
    registrations: usize,
}

impl Pair {
    fn new() -> Self {
        let metadata = Metadata::default();
        Self {
            hub: HubSession::new(Protocol::V1, Duration::ZERO),
            worker: WorkerSession::new(Pulse::default(), "w".to_owned(), metadata, Duration::ZERO),
            now: Duration::ZERO,
            hub_answers: true,
            died: None,
            registrations: 0,
        }
    }

    fn exchange(&mut self) {
        loop {
            let mut quiet = true;
            while let Some((message, dialect)) = self.worker.poll_send() {
                quiet = false;
                let text = message.encode(dialect);
                let event = self
                    .hub
                    .handle_text(std::str::from_utf8(&text).unwrap(), self.now);
                if let HubEvent::Register { daemon_id, .. } = event {
                    self.registrations += 1;
                    self.hub.accept(daemon_id);
                }
            }
            while let Some(message) = self.hub.poll_send() {
                if !self.hub_answers {
                    continue;
                }
                quiet = false;
                let text = message.encode(Names::Both);
                let text = std::str::from_utf8(&text).unwrap();
                self.worker.handle_text(text, self.now);
            }
            if quiet {
                return;
            }
        }
    }

    /// Lets time pass, event by event.
    fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        self.exchange();
        while self.worker.poll_timeout() <= end && self.died.is_none() {
            self.now = self.worker.poll_timeout();
            if self.worker.handle_timeout(self.now) == WorkerEvent::Dead {
                self.died = Some(self.now);
            }
            self.exchange();
        }
        self.now = end;
    }
}

/// At once, so that a hub that was restarted hears of its load, and every 10 s: the released server
/// drops whoever is silent for 30 s.
#[test]
fn a_worker_s_heart_beats_at_once_and_every_ten_seconds() {
    let mut pair = Pair::new();
    pair.worker.poll_send();
    let ack = r#"{"type":"register_ack","success":true,"message":""}"#;
    for at in [0, 10, 20] {
        let now = Duration::from_secs(at);
        match at {
            0 => pair.worker.handle_text(ack, now),
            _ => pair.worker.handle_timeout(now),
        };
        let (sent, _) = pair.worker.poll_send().unwrap();
        assert_eq!(sent, WorkerToHub::Heartbeat { load: None }, "{at}");
        assert_eq!(pair.worker.poll_send(), None, "{at}");
        assert_eq!(pair.worker.poll_timeout(), Duration::from_secs(at + 10));
    }
}

#[test]
fn a_quiet_pair_stays_together_for_ever() {
    let mut pair = Pair::new();
    pair.pass(Duration::from_secs(3600));
    assert_eq!((pair.died, pair.registrations), (None, 1));
    assert!(!pair.hub.is_stale(Liveness::default(), pair.now));
}

#[test]
fn a_hub_that_stops_answering_is_noticed_within_its_patience() {
    let mut pair = Pair::new();
    pair.pass(Duration::from_secs(25));
    pair.hub_answers = false;
    pair.pass(Duration::from_secs(100));
    let died = pair.died.unwrap().as_secs();
    assert!((55..=65).contains(&died), "{died}");
}

#[test]
fn a_hub_that_never_answers_heartbeats_is_tolerated() {
    let mut pair = Pair::new();
    pair.exchange();
    // From here on as a seed's hub that sends no pong.
    let mut fresh = Pair::new();
    let ack = HubToWorker::RegisterAck {
        success: true,
        message: String::new(),
    };
    let text = ack.encode(Names::Both);
    fresh.worker.poll_send();
    fresh
        .worker
        .handle_text(std::str::from_utf8(&text).unwrap(), Duration::ZERO);
    fresh.hub_answers = false;
    fresh.pass(Duration::from_secs(3600));
    assert_eq!(fresh.died, None);
}

#[test]
fn silence_makes_a_worker_stale_after_ninety_seconds() {
    let mut pair = Pair::new();
    pair.exchange();
    let liveness = Liveness::default();
    assert!(!pair.hub.is_stale(liveness, Duration::from_secs(89)));
    assert!(pair.hub.is_stale(liveness, Duration::from_secs(90)));
    pair.hub.expect_registration(Duration::from_secs(90));
    pair.now = Duration::from_secs(95);
    pair.pass(Duration::from_secs(20));
    assert_eq!(pair.registrations, 2);
    assert!(!pair.hub.is_stale(liveness, pair.now));
}

#[test]
fn a_registration_that_is_never_acknowledged_is_given_up() {
    let mut pair = Pair::new();
    pair.hub_answers = false;
    pair.pass(Duration::from_secs(60));
    assert_eq!(pair.died, Some(Duration::from_secs(30)));
}

#[test]
fn a_heartbeat_may_say_how_busy_the_machine_is() {
    let text = r#"{"type":"heartbeat","load":{"cpu":37,"memory":61}}"#;
    let load = Load {
        cpu: 37,
        memory: 61,
    };
    let mut hub = HubSession::new(Protocol::V2, Duration::ZERO);
    hub.accept("w".to_owned());
    assert_eq!(hub.handle_text(text, Duration::ZERO), HubEvent::Load(load));
    let said = WorkerToHub::Heartbeat { load: Some(load) };
    assert_eq!(said.encode(quintet_sandbox::proto::Dialect::Seed), text);
}

#[test]
fn a_seed_worker_gets_a_pong_beside_the_ack() {
    let mut hub = HubSession::new(Protocol::V1, Duration::ZERO);
    hub.accept("w".to_owned());
    let reply = WorkerToHub::CommandError {
        id: "x".to_owned(),
        error: String::new(),
    };
    let text = reply.encode(quintet_sandbox::proto::Dialect::Seed);
    hub.handle_text(std::str::from_utf8(&text).unwrap(), Duration::ZERO);
    hub.handle_text(r#"{"type":"heartbeat"}"#, Duration::ZERO);
    let sent: Vec<HubToWorker> = std::iter::from_fn(|| hub.poll_send()).collect();
    assert!(matches!(
        sent[1],
        HubToWorker::HeartbeatAck { success: true, .. }
    ));
    assert_eq!(sent[2], HubToWorker::Pong);
}

#[test]
fn a_worker_that_says_too_much_of_itself_is_refused_before_anybody_is_asked() {
    let register = |id: &str, label: usize| {
        let labels = serde_json::json!({ "a": "L".repeat(label) });
        serde_json::json!({
            "type": "register", "daemon_id": id,
            "metadata": {"hostname": "h", "platform": "p", "arch": "a", "labels": labels},
        })
        .to_string()
    };
    let mut hub = HubSession::new(Protocol::V1, Duration::ZERO);
    for too_much in [
        register(&"A".repeat(MAX_NAME + 1), 1),
        register("w", MAX_METADATA),
    ] {
        assert_eq!(hub.handle_text(&too_much, Duration::ZERO), HubEvent::None);
        assert!(matches!(
            hub.poll_send(),
            Some(HubToWorker::RegisterAck { success: false, .. })
        ));
    }
    let most = register(&"A".repeat(MAX_NAME), MAX_METADATA / 2);
    assert!(matches!(
        hub.handle_text(&most, Duration::ZERO),
        HubEvent::Register { .. }
    ));
}
