//! The hub's side of one connection, without the connection.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::message::{Dialect, HubToWorker, Load, Metadata, WorkerToHub};
use super::negotiate::Protocol;
use super::parse::{self, ParseError};
use super::{MAX_METADATA, MAX_NAME};

/// Kinds of faults that one connection may log, so that a peer's invention can't fill a log.
const MAX_LOGGED_KINDS: usize = 64;

/// When a worker counts as gone quiet. The seed's numbers by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Liveness {
    /// Silence after which a worker is stale.
    pub stale_after: Duration,
    /// How often that is looked at.
    pub check_every: Duration,
}

impl Default for Liveness {
    fn default() -> Self {
        Self {
            stale_after: Duration::from_secs(90),
            check_every: Duration::from_secs(30),
        }
    }
}

/// What the driver has to do after a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubEvent {
    /// Nothing, or only what [`HubSession::poll_send`] has.
    None,
    /// Decide whether this worker may register, then call [`HubSession::accept`] or
    /// [`HubSession::refuse`].
    Register {
        /// Its name, never empty and never over [`MAX_NAME`].
        daemon_id: String,
        /// Its machine, never over [`MAX_METADATA`].
        metadata: Metadata,
    },
    /// How busy the worker's machine is.
    Load(Load),
    /// A reply or output to route by its id.
    Reply(WorkerToHub),
    /// A message that can't be used.
    Fault {
        /// Why.
        error: ParseError,
        /// Whether it is the first of its kind on this connection, and worth a line in the log.
        log: bool,
    },
}

/// One connection as the hub sees it. Time is any monotonic clock's, since an epoch of the
/// caller's choice.
#[derive(Debug)]
pub struct HubSession {
    protocol: Protocol,
    registered: Option<String>,
    /// Registered once, and has to do it again.
    forgotten: bool,
    dialect: Option<Dialect>,
    last_heard: Duration,
    logged: HashSet<String>,
    outgoing: VecDeque<HubToWorker>,
}

impl HubSession {
    /// A connection whose handshake has just been done.
    pub fn new(protocol: Protocol, now: Duration) -> Self {
        Self {
            protocol,
            registered: None,
            forgotten: false,
            dialect: None,
            last_heard: now,
            logged: HashSet::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// Takes one text frame.
    pub fn handle_text(&mut self, text: &str, now: Duration) -> HubEvent {
        let incoming = match parse::worker_to_hub(text) {
            Ok(incoming) => incoming,
            Err(error) => return self.fault(error),
        };
        if let Some(dialect) = incoming.dialect {
            self.dialect.get_or_insert(dialect);
        }
        match incoming.message {
            WorkerToHub::Register {
                daemon_id,
                metadata,
            } => {
                self.last_heard = now;
                if let Err(reason) = admissible(&daemon_id, &metadata) {
                    self.refuse(&reason);
                    return HubEvent::None;
                }
                HubEvent::Register {
                    daemon_id,
                    metadata,
                }
            }
            WorkerToHub::Heartbeat { load } => {
                self.last_heard = now;
                self.heartbeat();
                load.map_or(HubEvent::None, HubEvent::Load)
            }
            // Before registration nothing else means anything: no request can have been sent.
            _ if self.registered.is_none() => HubEvent::None,
            reply => {
                self.last_heard = now;
                HubEvent::Reply(reply)
            }
        }
    }

    /// Bytes of a stream arrived: a worker that is busy sending is not stale.
    pub fn heard(&mut self, now: Duration) {
        self.last_heard = now;
    }

    /// The driver let the worker in.
    pub fn accept(&mut self, daemon_id: String) {
        self.registered = Some(daemon_id);
        self.forgotten = false;
        self.outgoing.push_back(HubToWorker::RegisterAck {
            success: true,
            message: "Successfully registered".to_owned(),
        });
    }

    /// The driver did not.
    pub fn refuse(&mut self, reason: &str) {
        self.outgoing.push_back(HubToWorker::RegisterAck {
            success: false,
            message: reason.to_owned(),
        });
    }

    /// The hub gave up on this worker while its connection stands. Its next heartbeat is answered
    /// with failure, which makes it register again; its silence counts from `now`.
    pub fn expect_registration(&mut self, now: Duration) {
        self.forgotten = true;
        self.last_heard = now;
    }

    /// The next message to send.
    pub fn poll_send(&mut self) -> Option<HubToWorker> {
        self.outgoing.pop_front()
    }

    /// Whether the worker has been silent too long.
    pub fn is_stale(&self, liveness: Liveness, now: Duration) -> bool {
        now.saturating_sub(self.last_heard) >= liveness.stale_after
    }

    /// The worker's dialect, once a reply gave it away. A v2 worker is ours and knows both.
    pub fn dialect(&self) -> Option<Dialect> {
        match self.protocol {
            Protocol::V1 => self.dialect,
            Protocol::V2 => Some(Dialect::Seed),
        }
    }

    /// The name under which the worker is registered.
    pub fn registered(&self) -> Option<&str> {
        self.registered.as_deref()
    }

    fn heartbeat(&mut self) {
        // A worker that sends faster than it reads must not grow this queue.
        if self.outgoing.len() >= 4 {
            return;
        }
        let success = self.registered.is_some() && !self.forgotten;
        self.outgoing.push_back(HubToWorker::HeartbeatAck {
            success,
            reason: if success {
                String::new()
            } else {
                "daemon is not registered".to_owned()
            },
        });
        if self.protocol == Protocol::V1 && self.dialect == Some(Dialect::Seed) {
            self.outgoing.push_back(HubToWorker::Pong);
        }
    }

    fn fault(&mut self, error: ParseError) -> HubEvent {
        if let Some(answer) = error.answer()
            && self.outgoing.len() < 16
        {
            self.outgoing.push_back(HubToWorker::Error(answer));
        }
        let log = self.logged.len() < MAX_LOGGED_KINDS && self.logged.insert(error.log_key());
        HubEvent::Fault { error, log }
    }
}

/// Who may register is asked only about what can be kept and listed.
fn admissible(daemon_id: &str, metadata: &Metadata) -> Result<(), String> {
    if daemon_id.trim().is_empty() {
        return Err("no daemon id".to_owned());
    }
    if daemon_id.len() > MAX_NAME {
        return Err(format!(
            "the daemon id is over {MAX_NAME} bytes; give a shorter one with --daemon-id"
        ));
    }
    let said = serde_json::to_vec(metadata).map_or(usize::MAX, |json| json.len());
    if said > MAX_METADATA {
        return Err(format!(
            "metadata and labels are over {} KiB; give fewer or shorter labels",
            MAX_METADATA / 1024
        ));
    }
    Ok(())
}
