//! A hub and a worker, each with an honest peer that may be late and a hostile one that says anything.

use std::collections::VecDeque;
use std::time::Duration;

use quintet_sandbox::proto::{
    Dialect, HubEvent, HubSession, HubToWorker, Liveness, Metadata, Names, Protocol, Pulse,
    WorkerEvent, WorkerSession, WorkerToHub,
};

use crate::choices::Choices;

/// Lines that stand for what a peer may say at the wrong time.
const TO_HUB: [&str; 10] = [
    r#"{"type":"heartbeat"}"#,
    r#"{"type":"register","daemon_id":"box","metadata":{"hostname":"h","platform":"p","arch":"a"}}"#,
    r#"{"type":"register","daemon_id":"  ","metadata":{"hostname":"h","platform":"p","arch":"a"}}"#,
    r#"{"type":"command_output","command_id":"1","stdout":"","stderr":"","exit_code":0,"duration_ms":1}"#,
    r#"{"type":"command_error","request_id":"1","error":"no"}"#,
    r#"{"type":"command_output","command_id":"1"}"#,
    r#"{"type":"shell_output","session_id":"1","data":"?"}"#,
    r#"{"type":"nonsense","request_id":"1"}"#,
    r#"{"type":"error","message":"what?"}"#,
    "{",
];
const TO_WORKER: [&str; 10] = [
    r#"{"type":"register_ack","success":true}"#,
    r#"{"type":"register_ack","success":false,"message":"no"}"#,
    r#"{"type":"pong"}"#,
    r#"{"type":"heartbeat_ack","success":true}"#,
    r#"{"type":"heartbeat_ack","success":false}"#,
    r#"{"type":"execute_command","command_id":"1","command":"true"}"#,
    r#"{"type":"execute_command","command_id":"1"}"#,
    r#"{"type":"file_upload_chunk","transfer_id":"1","data":"?","offset":0}"#,
    r#"{"type":"error","message":"what?"}"#,
    "[]",
];

struct Hub {
    session: HubSession,
    registered: bool,
    forgotten: bool,
    heard: Duration,
    /// Since the queue was last emptied.
    handled: usize,
}

/// Each step is a message, a pause, or a choice of the hub's owner.
pub fn sandbox_sessions(data: &[u8]) {
    let mut choices = Choices::new(data);
    let protocol = match choices.flag() {
        true => Protocol::V2,
        false => Protocol::V1,
    };
    let mut now = Duration::from_secs(1);
    let mut hub = Hub {
        session: HubSession::new(protocol, now),
        registered: false,
        forgotten: false,
        heard: now,
        handled: 0,
    };
    let metadata = Metadata::default();
    let mut worker = WorkerSession::new(Pulse::default(), "box".to_owned(), metadata, now);
    let (mut up, mut down): (VecDeque<String>, VecDeque<String>) = Default::default();
    let first = worker.poll_send().expect("a worker speaks first");
    assert!(matches!(first.0, WorkerToHub::Register { .. }));
    up.push_back(written(&first.0.encode(first.1)));
    for _ in 0..256 {
        if choices.is_empty() {
            break;
        }
        match choices.below(10) {
            0..=1 => {
                if let Some(text) = up.pop_front() {
                    hub.hears(&text, now, &mut choices);
                }
            }
            2..=3 => {
                if let Some(text) = down.pop_front() {
                    worker_hears(&mut worker, &text, now);
                }
            }
            4 => hub.hears(choices.of(&TO_HUB), now, &mut choices),
            5 => worker_hears(&mut worker, choices.of(&TO_WORKER), now),
            6 => {
                let len = usize::from(choices.byte());
                let text = String::from_utf8_lossy(choices.take(len)).into_owned();
                hub.hears(&text, now, &mut choices);
                worker_hears(&mut worker, &text, now);
            }
            7 => now += Duration::from_secs(choices.byte().into()),
            8 => {
                hub.session.expect_registration(now);
                (hub.heard, hub.forgotten) = (now, true);
            }
            _ => now = the_worker_is_never_busy_for_nothing(&mut worker, now),
        }
        let liveness = Liveness::default();
        let silent = now.saturating_sub(hub.heard) >= liveness.stale_after;
        assert_eq!(hub.session.is_stale(liveness, now), silent);
        if choices.flag() {
            down.extend(hub.says(&mut choices));
            while let Some((message, dialect)) = worker.poll_send() {
                up.push_back(written(&message.encode(dialect)));
            }
        }
    }
}

fn written(frame: &[u8]) -> String {
    String::from_utf8(frame.to_vec()).expect("a frame of v1 is text")
}

impl Hub {
    fn hears(&mut self, text: &str, now: Duration, choices: &mut Choices<'_>) {
        self.handled += 1;
        match self.session.handle_text(text, now) {
            HubEvent::Register { daemon_id, .. } => {
                self.heard = now;
                assert!(!daemon_id.trim().is_empty());
                if choices.flag() {
                    self.session.accept(daemon_id);
                    (self.registered, self.forgotten) = (true, false);
                } else {
                    self.session.refuse("not today");
                }
            }
            HubEvent::Reply(reply) => {
                self.heard = now;
                assert!(
                    self.registered,
                    "{reply:?} of a worker that is not registered"
                );
            }
            HubEvent::Fault { error: fault, .. } => assert!(!fault.to_string().is_empty()),
            HubEvent::None | HubEvent::Load(_) => {
                use quintet_sandbox::proto::parse::worker_to_hub;
                if let Ok(incoming) = worker_to_hub(text)
                    && matches!(
                        incoming.message,
                        WorkerToHub::Heartbeat { .. } | WorkerToHub::Register { .. }
                    )
                {
                    self.heard = now;
                }
            }
        }
        assert_eq!(self.session.registered().is_some(), self.registered);
    }

    /// What waits to be sent is bounded by what was heard, and heartbeats do not pile up.
    fn says(&mut self, choices: &mut Choices<'_>) -> Vec<String> {
        let names = choices.of(&[
            Names::Both,
            Names::Only(Dialect::Seed),
            Names::Only(Dialect::Released),
        ]);
        let mut said = Vec::new();
        let mut beats = 0;
        while let Some(message) = self.session.poll_send() {
            if let HubToWorker::HeartbeatAck { success, .. } = &message {
                beats += 1;
                assert!(!success || self.registered);
            }
            said.push(written(&message.encode(names)));
        }
        assert!(said.len() <= 2 * self.handled && beats <= 5, "{said:?}");
        self.handled = 0;
        said
    }
}

fn worker_hears(worker: &mut WorkerSession, text: &str, now: Duration) {
    match worker.handle_text(text, now) {
        WorkerEvent::Request { request, .. } => {
            let control = matches!(
                request,
                HubToWorker::RegisterAck { .. } | HubToWorker::Pong | HubToWorker::Error(_)
            );
            assert!(!control, "{request:?} is no request");
        }
        WorkerEvent::Dead => panic!("a message is a sign of life"),
        WorkerEvent::Registered
        | WorkerEvent::None
        | WorkerEvent::Refused { .. }
        | WorkerEvent::Fault { .. } => {}
    }
}

/// What is due is done: the next time that something is due is later, or the hub is given up.
fn the_worker_is_never_busy_for_nothing(worker: &mut WorkerSession, now: Duration) -> Duration {
    let at = worker.poll_timeout().max(now);
    match worker.handle_timeout(at) {
        WorkerEvent::Dead => {}
        WorkerEvent::None => assert!(worker.poll_timeout() > at, "due again at once"),
        other => panic!("{other:?} by itself"),
    }
    at
}
