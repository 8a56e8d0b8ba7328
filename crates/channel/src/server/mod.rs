//! The daemon's side: upgraded WebSockets, one task each.
//!
//! [`Hub`] owns what connections share: the pairing code, the count of
//! connections, and which of them belong to a device that may be revoked. It
//! asks its [`Backend`] for everything that has a meaning.
//!
//! # Limits
//!
//! | what | how much | beyond it |
//! |---|---|---|
//! | connections | [`Limits::connections`] | [`Hub::admit`] gives none |
//! | a message, v1 | 64 KiB | close 1009 |
//! | a message, v2 | 1 MiB + 16 B | close 1009 |
//! | handshake, v2 | [`Limits::handshake`] | close 1008 |
//! | plaintexts that wait for the socket | 32, v2; none, v1 | whoever makes them waits |
//! | a client that does not read | [`Limits::not_reading`] | cut |
//! | a client that is silent | [`Limits::silent`], pings included | cut |
//! | requests at once, v2 | 64 a connection | `over_limit` |
//! | streams at once, v2 | 32 a connection | `over_limit` |

mod link;
mod socket;
mod v1;
mod v2;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::WebSocket;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::proto::device::{Device, DeviceId, SEEN_EVERY, Seconds, Seen, TokenHash};
use crate::proto::keys::{KeyPair, PublicKey};
use crate::proto::pairing::{self, PairError, Pairing};
use crate::proto::v1::{E2eKey, Outer, ServerEvent};
use crate::proto::v2::message::OpError;

pub use link::{ByteStream, Link, Request, StreamEnd};
pub use socket::Closed;

/// The largest message that the WebSocket layer reads for v1: over its limit, so that we can say so.
pub const V1_SOCKET_LIMIT: usize = 4 * crate::proto::v1::MAX_MESSAGE;

/// The largest message that the WebSocket layer reads for v2.
pub const V2_SOCKET_LIMIT: usize = 2 * crate::proto::v2::MAX_FRAME;

/// What every connection keeps for reading and for writing, idle or not.
pub const SOCKET_BUFFER: usize = 8 * 1024;

/// How much and how long.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once.
    pub connections: usize,
    /// How long a v2 handshake may take.
    pub handshake: Duration,
    /// How long the socket may take none of our bytes.
    pub not_reading: Duration,
    /// How long nothing may come; pings are sent three times as often.
    pub silent: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1000,
            handshake: Duration::from_secs(20),
            not_reading: Duration::from_secs(20),
            silent: Duration::from_secs(90),
        }
    }
}

/// What the configuration says.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Whether v1 clients that do not encrypt are refused.
    pub e2e_required: bool,
    /// How long a device stays paired unused.
    pub token_ttl: Seconds,
    /// How long a code can be used.
    pub code_ttl: Seconds,
}

/// Where a connection comes from.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Whose tries to pair are counted together.
    pub source: IpAddr,
    /// What a v1 device is called, which has no name of its own.
    pub program: String,
}

/// How a device shows who it is.
#[derive(Debug, Clone)]
pub enum Credential {
    /// A token in each message.
    V1 {
        /// What is left of it here.
        token: TokenHash,
        /// The key that chat text is encrypted with.
        key: Option<E2eKey>,
    },
    /// A static key.
    V2 {
        /// Its public half.
        key: PublicKey,
        /// What both screens showed.
        check_words: [&'static str; 4],
    },
}

/// A device that has just been paired.
#[derive(Debug, Clone)]
pub struct NewDevice {
    /// The row.
    pub device: Device,
    /// How it shows who it is.
    pub credential: Credential,
}

/// A message that a v1 device sent, decrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserMessage {
    /// As the client calls the session.
    pub session_id: String,
    /// The agent for a new one.
    pub agent_id: Option<String>,
    /// The text.
    pub content: String,
    /// What it was encrypted under; refused with `e2e_replayed` when the device used it before.
    pub nonce: Option<[u8; 12]>,
}

/// A v1 device's answer to an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApprovalAnswer {
    /// Of the `approval_request`.
    pub request_id: String,
    /// Yes or no.
    pub approved: bool,
    /// Why.
    pub reason: Option<String>,
}

/// What the daemon does for connections.
pub trait Backend: Send + Sync + 'static {
    /// A v1 connection whose device is known.
    type V1: V1Session;

    /// Seconds since 1970.
    fn now(&self) -> Seconds;

    /// The configuration as it is now.
    fn settings(&self) -> Settings;

    /// The daemon's static key.
    fn keys(&self) -> &KeyPair;

    /// A v1 device by its token, unless it is revoked.
    fn device_by_token(
        &self,
        token: TokenHash,
    ) -> impl Future<Output = Result<Option<(Device, Option<E2eKey>)>, OpError>> + Send;

    /// A v2 device by its key, unless it is revoked.
    fn device_by_key(
        &self,
        key: PublicKey,
    ) -> impl Future<Output = Result<Option<Device>, OpError>> + Send;

    /// Keeps a device that was paired.
    fn add_device(&self, new: NewDevice) -> impl Future<Output = Result<(), OpError>> + Send;

    /// Notes that a device was used.
    fn seen(&self, device: DeviceId, seen: Seen) -> impl Future<Output = ()> + Send;

    /// Begins to serve a v1 device on one connection.
    fn v1_session(&self, device: &Device)
    -> impl Future<Output = Result<Self::V1, OpError>> + Send;

    /// Serves a v2 request to its answer. Dropped when it is cancelled or the connection ends.
    fn request(
        &self,
        device: Arc<Device>,
        request: Request,
    ) -> impl Future<Output = Result<Value, OpError>> + Send;

    /// A wrong code was one too many: nobody pairs for a while.
    fn pairing_locked(&self, peer: &Peer);

    /// A connection has ended.
    fn closed(&self, peer: &Peer, device: Option<&Device>, reason: &Closed);
}

/// What a v1 connection asks and hears once its device is known.
pub trait V1Session: Send {
    /// The device says something.
    fn say(&mut self, message: UserMessage) -> impl Future<Output = Result<(), OpError>> + Send;

    /// The device answers an approval.
    fn answer(
        &mut self,
        answer: ApprovalAnswer,
    ) -> impl Future<Output = Result<(), OpError>> + Send;

    /// The next event for this connection. Nothing is lost when it is dropped unfinished.
    fn next(&mut self) -> impl Future<Output = (Outer, ServerEvent)> + Send;

    /// The event that [`next`](Self::next) gave last has been sent.
    fn sent(&mut self) -> impl Future<Output = ()> + Send;
}

/// A code that was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedCode {
    /// Six digits.
    pub code: String,
    /// How long it can be used.
    pub expires_in: Seconds,
}

/// What all connections share.
pub struct Hub<B> {
    backend: B,
    limits: Limits,
    /// Held for a comparison, never across an await.
    pairing: Mutex<Pairing>,
    permits: Arc<Semaphore>,
    /// Held to look up and change, never across an await.
    live: Mutex<HashMap<DeviceId, Vec<(u64, CancellationToken)>>>,
    next_connection: AtomicU64,
}

impl<B: Backend> Hub<B> {
    /// A hub without connections.
    pub fn new(backend: B, limits: Limits) -> Self {
        Self {
            backend,
            permits: Arc::new(Semaphore::new(limits.connections)),
            limits,
            pairing: Mutex::default(),
            live: Mutex::default(),
            next_connection: AtomicU64::new(0),
        }
    }

    /// What it asks.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Makes a pairing code in place of any earlier one.
    pub fn open_code(&self) -> Result<OpenedCode, PairError> {
        let code = pairing::digits(random());
        let ttl = self.backend.settings().code_ttl;
        self.pairing().open(&code, self.backend.now(), ttl)?;
        Ok(OpenedCode {
            code,
            expires_in: ttl,
        })
    }

    /// Makes a pairing code where nobody has asked for one: it takes the place of none.
    pub fn open_first_code(&self) -> Result<Option<OpenedCode>, PairError> {
        let code = pairing::digits(random());
        let ttl = self.backend.settings().code_ttl;
        let opened = self.pairing().open_first(&code, self.backend.now(), ttl)?;
        Ok(opened.then_some(OpenedCode {
            code,
            expires_in: ttl,
        }))
    }

    /// A place for one more connection, if there is one.
    pub fn admit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// Connections that have a place.
    pub fn connections(&self) -> usize {
        self.limits
            .connections
            .saturating_sub(self.permits.available_permits())
    }

    /// Ends every connection of a device whose row says that it is revoked.
    pub fn revoke(&self, device: DeviceId) {
        for (_, ended) in self.live().remove(&device).unwrap_or_default() {
            ended.cancel();
        }
    }

    /// Serves a connection of the original protocol to its end.
    pub async fn serve_v1(&self, socket: WebSocket, peer: Peer, stop: CancellationToken) {
        v1::serve(self, socket, peer, stop).await;
    }

    /// Serves a connection of our own UI to its end.
    pub async fn serve_v2(&self, socket: WebSocket, peer: Peer, stop: CancellationToken) {
        v2::serve(self, socket, peer, stop).await;
    }

    fn pairing(&self) -> MutexGuard<'_, Pairing> {
        self.pairing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries a code, and tells the backend when that locked pairing.
    fn tried(
        &self,
        peer: &Peer,
        tries: impl FnOnce(&mut Pairing) -> Result<(), PairError>,
    ) -> Result<(), PairError> {
        let mut pairing = self.pairing();
        let outcome = tries(&mut pairing);
        // While it is locked no try is found wrong: the one that is has locked it.
        let locked = outcome == Err(PairError::Invalid) && pairing.is_locked(self.backend.now());
        drop(pairing);
        if locked {
            self.backend.pairing_locked(peer);
        }
        outcome
    }

    fn live(&self) -> MutexGuard<'_, HashMap<DeviceId, Vec<(u64, CancellationToken)>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a pairing that ends then may be over. Wakes in between: the clock may be set, and
    /// a machine may sleep.
    async fn lapse(&self, expires_at: Seconds) {
        loop {
            let left = expires_at.saturating_sub(self.backend.now());
            if left == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_secs(left.min(SEEN_EVERY))).await;
        }
    }

    /// Registers a connection of a device; it is cancelled when the device is revoked.
    fn enlist(&self, device: DeviceId) -> Enlisted<'_, B> {
        let connection = self.next_connection.fetch_add(1, Ordering::Relaxed);
        let revoked = CancellationToken::new();
        self.live()
            .entry(device)
            .or_default()
            .push((connection, revoked.clone()));
        Enlisted {
            hub: self,
            device,
            connection,
            revoked,
        }
    }
}

struct Enlisted<'a, B: Backend> {
    hub: &'a Hub<B>,
    device: DeviceId,
    connection: u64,
    revoked: CancellationToken,
}

impl<B: Backend> Drop for Enlisted<'_, B> {
    fn drop(&mut self) {
        let mut live = self.hub.live();
        if let Some(connections) = live.get_mut(&self.device) {
            connections.retain(|(connection, _)| *connection != self.connection);
            if connections.is_empty() {
                live.remove(&self.device);
            }
        }
    }
}

/// Random bytes of the system.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's generator answers once it is seeded");
    bytes
}
