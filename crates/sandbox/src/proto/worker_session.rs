//! The worker's side of one connection, without the connection.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::message::{Dialect, HubToWorker, Metadata, WorkerToHub};
use super::parse::{self, ParseError};

/// Kinds of faults that one connection may log.
const MAX_LOGGED_KINDS: usize = 64;

/// The worker's clockwork.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pulse {
    /// Between heartbeats. The released server drops a worker after 30 s of silence.
    pub heartbeat: Duration,
    /// How long a registration or, once one has been seen, a heartbeat may stay unanswered.
    pub patience: Duration,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(10),
            patience: Duration::from_secs(30),
        }
    }
}

/// What the driver has to do after a message or a timeout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerEvent {
    /// Nothing, or only what [`WorkerSession::poll_send`] has.
    None,
    /// The hub knows this worker; the backoff starts anew.
    Registered,
    /// The hub does not want this worker. Reconnect after a delay.
    Refused {
        /// The hub's words.
        reason: String,
    },
    /// Do it, and answer in this dialect.
    Request {
        /// What to do.
        request: HubToWorker,
        /// How to answer.
        dialect: Dialect,
    },
    /// A message that can't be used. An answer, where one is due, is in
    /// [`WorkerSession::poll_send`]; a broken upload chunk also ends its upload.
    Fault {
        /// What is wrong.
        error: ParseError,
        /// Whether it is the first of its kind on this connection and worth a log line.
        log: bool,
    },
    /// The hub stopped answering. Reconnect.
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Registering { deadline: Duration },
    Ready,
}

/// One connection as the worker sees it. Time is any monotonic clock's.
#[derive(Debug)]
pub struct WorkerSession {
    pulse: Pulse,
    register: WorkerToHub,
    state: State,
    next_heartbeat: Duration,
    /// Armed by the first ack: hubs that never answer heartbeats exist.
    unanswered_since: Option<Duration>,
    acks_seen: bool,
    logged: HashSet<String>,
    outgoing: VecDeque<(WorkerToHub, Dialect)>,
}

impl WorkerSession {
    /// A connection whose handshake has just been done.
    pub fn new(pulse: Pulse, daemon_id: String, metadata: Metadata, now: Duration) -> Self {
        let register = WorkerToHub::Register {
            daemon_id,
            metadata,
        };
        Self {
            pulse,
            state: State::Registering {
                deadline: now.saturating_add(pulse.patience),
            },
            next_heartbeat: now.saturating_add(pulse.heartbeat),
            unanswered_since: None,
            acks_seen: false,
            logged: HashSet::new(),
            outgoing: VecDeque::from([(register.clone(), Dialect::Seed)]),
            register,
        }
    }

    /// Takes one text frame.
    pub fn handle_text(&mut self, text: &str, now: Duration) -> WorkerEvent {
        let incoming = match parse::hub_to_worker(text) {
            Ok(incoming) => incoming,
            Err(error) => {
                if let Some(answer) = error.answer()
                    && self.outgoing.len() < 16
                {
                    self.outgoing
                        .push_back((WorkerToHub::Error(answer), Dialect::Seed));
                }
                let log =
                    self.logged.len() < MAX_LOGGED_KINDS && self.logged.insert(error.log_key());
                return WorkerEvent::Fault { error, log };
            }
        };
        match incoming.message {
            HubToWorker::RegisterAck { success: true, .. } => {
                let first = self.state != State::Ready;
                self.state = State::Ready;
                if !first {
                    return WorkerEvent::None;
                }
                self.send_heartbeat(now);
                WorkerEvent::Registered
            }
            HubToWorker::RegisterAck {
                success: false,
                message,
            } => WorkerEvent::Refused { reason: message },
            HubToWorker::Pong => {
                self.acked();
                WorkerEvent::None
            }
            HubToWorker::HeartbeatAck { success, .. } => {
                self.acked();
                if !success {
                    self.state = State::Registering {
                        deadline: now.saturating_add(self.pulse.patience),
                    };
                    self.outgoing
                        .push_back((self.register.clone(), Dialect::Seed));
                }
                WorkerEvent::None
            }
            HubToWorker::Error(error) => {
                // The hub could not use something of ours; nothing can be redone.
                let log = self.logged.len() < MAX_LOGGED_KINDS
                    && self.logged.insert("error from the hub".to_owned());
                WorkerEvent::Fault {
                    error: ParseError {
                        fault: parse::Fault::Malformed(error.message),
                        kind: None,
                        id: None,
                    },
                    log,
                }
            }
            request => WorkerEvent::Request {
                request,
                dialect: incoming.dialect.unwrap_or(Dialect::Seed),
            },
        }
    }

    /// When [`Self::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Duration {
        match self.state {
            State::Registering { deadline } => deadline,
            State::Ready => match self.unanswered_since {
                Some(since) => self
                    .next_heartbeat
                    .min(since.saturating_add(self.pulse.patience)),
                None => self.next_heartbeat,
            },
        }
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) -> WorkerEvent {
        match self.state {
            State::Registering { deadline } if now >= deadline => WorkerEvent::Dead,
            State::Registering { .. } => WorkerEvent::None,
            State::Ready => {
                if let Some(since) = self.unanswered_since
                    && now >= since.saturating_add(self.pulse.patience)
                {
                    return WorkerEvent::Dead;
                }
                if now >= self.next_heartbeat {
                    self.send_heartbeat(now);
                }
                WorkerEvent::None
            }
        }
    }

    /// The next message to send.
    pub fn poll_send(&mut self) -> Option<(WorkerToHub, Dialect)> {
        self.outgoing.pop_front()
    }

    fn send_heartbeat(&mut self, now: Duration) {
        self.next_heartbeat = now.saturating_add(self.pulse.heartbeat);
        if self.acks_seen {
            self.unanswered_since.get_or_insert(now);
        }
        self.outgoing
            .push_back((WorkerToHub::Heartbeat { load: None }, Dialect::Seed));
    }

    fn acked(&mut self) {
        self.acks_seen = true;
        self.unanswered_since = None;
    }
}
