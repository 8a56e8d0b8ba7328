//! The channel plane in the daemon: devices, what they ask, and what the journal tells them.

mod conversation;
mod devices;
mod events;
mod lists;
mod ops;
mod shells;
mod upgrade;
mod usage;
mod v1;
mod web;
mod workspace;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use jiff::Timestamp;
use quintet_channel::proto::base64url;
use quintet_channel::proto::device::{Device, DeviceId, Seconds, Seen, TokenHash};
use quintet_channel::proto::keys::{KeyPair, PublicKey, Secret32};
use quintet_channel::proto::pairing::{MAX_WRONG, PairError};
use quintet_channel::proto::v1::E2eKey;
use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::{
    Backend, Closed, Hub, Limits, NewDevice, OpenedCode, Peer, Request, Settings,
};
use quintet_control::wire::{DeviceInfo, DeviceList, PairingCode};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::daemon::Runtime;
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::refusals::Refusals;
use crate::store::{Db, StoreError};

pub(crate) use devices::{Identity, Listed};
pub(crate) use upgrade::{asks_for_address, upgrade};
pub(crate) use web::serve as serve_web;

/// The channel's part of the daemon.
pub(crate) struct Channel {
    pub(crate) hub: Arc<Hub<DaemonBackend>>,
    token: String,
    address: SocketAddr,
    tls: bool,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// How to pair, for the person.
#[derive(Debug, Clone)]
pub(crate) struct Invitation {
    pub(crate) code: String,
    /// Opens our UI with the code filled in.
    pub(crate) url: String,
    /// For clients of the original protocol.
    pub(crate) ws_url: String,
    pub(crate) expires_in: Seconds,
}

impl From<Invitation> for PairingCode {
    fn from(invitation: Invitation) -> Self {
        Self {
            code: invitation.code,
            url: invitation.url,
            expires_in_secs: invitation.expires_in,
            ws_url: invitation.ws_url,
        }
    }
}

/// Reads or makes the daemon's keys.
pub(crate) async fn identity(db: &Db) -> Result<Identity, StoreError> {
    let (fresh, token) = (Secret32::new(random()), base64url::encode(&random::<32>()));
    db.write(move |tx| Identity::load_or_make(tx, &fresh, &token))
        .await
}

impl Channel {
    pub(crate) fn new(
        identity: Identity,
        address: SocketAddr,
        tls: bool,
        runtime: Weak<Runtime>,
    ) -> Self {
        let backend = DaemonBackend {
            keys: identity.keys,
            refusals: Mutex::default(),
            runtime,
        };
        Self {
            hub: Arc::new(Hub::new(backend, Limits::default())),
            token: identity.token,
            address,
            tls,
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    /// Makes a code, and the link that holds it.
    pub(crate) fn invite(&self) -> Result<Invitation, Refusal> {
        let opened = self.hub.open_code().map_err(refused)?;
        Ok(self.invitation(opened))
    }

    /// The same, unless somebody has asked for a code already, which this one would end.
    pub(crate) fn invite_first(&self) -> Result<Option<Invitation>, Refusal> {
        let opened = self.hub.open_first_code().map_err(refused)?;
        Ok(opened.map(|opened| self.invitation(opened)))
    }

    fn invitation(&self, opened: OpenedCode) -> Invitation {
        let address = SocketAddr::new(reachable(self.address.ip()), self.address.port());
        let secure = if self.tls { "s" } else { "" };
        let needs_token = !self.address.ip().is_loopback();
        let query = match needs_token {
            true => format!("?token={}", self.token),
            false => String::new(),
        };
        Invitation {
            url: format!("http{secure}://{address}/#pair={}", opened.code),
            ws_url: format!("ws{secure}://{address}/ws{query}"),
            code: opened.code,
            expires_in: opened.expires_in,
        }
    }

    /// Closes every connection.
    pub(crate) async fn shutdown(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn refused(error: PairError) -> Refusal {
    match error {
        PairError::LockedOut { .. } => Refusal::Conflict(error.to_string()),
        error => Refusal::Internal(error.to_string()),
    }
}

/// The address that another machine reaches us at, where we listen on all of them.
fn reachable(listening: IpAddr) -> IpAddr {
    if !listening.is_unspecified() {
        return listening;
    }
    // Nothing is sent: connecting a datagram socket only chooses the route.
    let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    route.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

/// What connections ask the daemon.
pub(crate) struct DaemonBackend {
    keys: KeyPair,
    /// Held to count, never across an await.
    refusals: Mutex<Refusals>,
    /// The daemon owns the hub that owns this.
    runtime: Weak<Runtime>,
}

impl DaemonBackend {
    fn runtime(&self) -> Result<Arc<Runtime>, OpError> {
        self.runtime
            .upgrade()
            .ok_or_else(|| OpError::new("internal", "the daemon is stopping"))
    }

    fn note_cut(&self, peer: &Peer, mut data: Value) {
        let Some(runtime) = self.runtime.upgrade() else {
            return;
        };
        data["client"] = format!("channel {}", peer.source).into();
        let entry = Entry::new(Kind::ClientCut, &data);
        // Nobody waits for it: the row is the record.
        drop(runtime.db.append_in_order(entry, &runtime.tasks));
    }
}

/// A refusal as a device reads it.
pub(crate) fn op_error(refusal: &Refusal) -> OpError {
    let code = match refusal {
        Refusal::Bad(_) => "bad_request",
        Refusal::NotFound(_) => "not_found",
        Refusal::Conflict(_) => "conflict",
        Refusal::OverLimit(_) => "over_limit",
        Refusal::Store(_) | Refusal::Internal(_) => "internal",
    };
    OpError::new(code, refusal.to_string())
}

fn failed(error: &StoreError) -> OpError {
    OpError::new("internal", error.to_string())
}

impl Backend for DaemonBackend {
    type V1 = v1::Conversation;

    fn now(&self) -> Seconds {
        Timestamp::now().as_second().max(0).cast_unsigned()
    }

    fn settings(&self) -> Settings {
        let Some(runtime) = self.runtime.upgrade() else {
            return Settings {
                e2e_required: true,
                token_ttl: 0,
                code_ttl: 0,
            };
        };
        let config = runtime.config.current();
        Settings {
            e2e_required: config.channel.e2e_required,
            token_ttl: config.channel.token_ttl.as_secs(),
            code_ttl: config.channel.code_ttl.as_secs(),
        }
    }

    fn keys(&self) -> &KeyPair {
        &self.keys
    }

    async fn device_by_token(
        &self,
        token: TokenHash,
    ) -> Result<Option<(Device, Option<E2eKey>)>, OpError> {
        let found = self
            .runtime()?
            .db
            .read(move |db| devices::by_token(db, &token))
            .await;
        found.map_err(|error| failed(&error))
    }

    async fn device_by_key(&self, key: PublicKey) -> Result<Option<Device>, OpError> {
        let found = self
            .runtime()?
            .db
            .read(move |db| devices::by_key(db, &key))
            .await;
        found.map_err(|error| failed(&error))
    }

    async fn add_device(&self, new: NewDevice) -> Result<(), OpError> {
        let added = self
            .runtime()?
            .db
            .write(move |tx| devices::add(tx, &new))
            .await;
        added.map_err(|error| failed(&error))
    }

    async fn seen(&self, device: DeviceId, seen: Seen) {
        let Ok(runtime) = self.runtime() else { return };
        let noted = runtime
            .db
            .write(move |tx| devices::seen(tx, device, seen))
            .await;
        if let Err(error) = noted {
            tracing::error!(%error, "a device's use could not be noted");
        }
    }

    async fn v1_session(&self, device: &Device) -> Result<v1::Conversation, OpError> {
        let opened = v1::Conversation::open(self.runtime()?, device).await;
        opened.map_err(|error| op_error(&error))
    }

    async fn request(&self, device: Arc<Device>, request: Request) -> Result<Value, OpError> {
        ops::serve(self.runtime()?, &device, request).await
    }

    fn pairing_locked(&self, peer: &Peer) {
        let reason = format!("pairing is locked after {MAX_WRONG} wrong codes");
        self.note_cut(peer, json!({ "device": null, "reason": reason }));
    }

    fn closed(&self, peer: &Peer, device: Option<&Device>, reason: &Closed) {
        let device = device.map(|device| device.id.to_string());
        tracing::debug!(source = %peer.source, ?device, %reason, "channel connection closed");
        if !reason.is_clients_fault() {
            return;
        }
        let mut data = json!({ "device": device, "reason": reason.to_string() });
        if device.is_none() {
            let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
            match refusals.count(peer.source, self.now()) {
                Some(0) => {}
                Some(unwritten) => data["unwritten"] = unwritten.into(),
                None => return,
            }
        }
        self.note_cut(peer, data);
    }
}

impl Runtime {
    /// A code that a browser pairs with, once, and the link that carries it.
    pub(crate) fn pairing_code(&self) -> Result<PairingCode, Refusal> {
        Ok(self.channel.invite()?.into())
    }

    /// A code for the first device; none where a device is paired or a code was asked for.
    pub(crate) async fn first_pairing_code(&self) -> Result<Option<PairingCode>, Refusal> {
        if !self.list_devices().await?.is_empty() {
            return Ok(None);
        }
        Ok(self.channel.invite_first()?.map(PairingCode::from))
    }

    /// Devices that are paired.
    pub(crate) async fn list_devices(&self) -> Result<Vec<Listed>, Refusal> {
        let now = self.channel.hub.backend().now();
        Ok(self.db.read(move |db| devices::list(db, now)).await?)
    }

    /// Devices that are paired, for the terminal.
    pub(crate) async fn device_list(&self) -> Result<DeviceList, Refusal> {
        let listed = self.list_devices().await?;
        Ok(DeviceList {
            devices: listed
                .into_iter()
                .map(|listed| DeviceInfo {
                    id: listed.device.id.to_string(),
                    name: listed.device.name,
                    first_seen: lists::time(listed.first_seen),
                    last_seen: lists::time(listed.device.last_seen),
                    expires_at: lists::time(listed.device.expires_at),
                    check_words: listed.check_words,
                })
                .collect(),
        })
    }

    /// Ends a device's pairing and every connection of it.
    pub(crate) async fn revoke_device(&self, named: String, by: String) -> Result<u64, Refusal> {
        let (id, seq) = self
            .db
            .write(move |tx| devices::revoke(tx, &named, &by))
            .await?;
        self.channel.hub.revoke(id);
        Ok(seq)
    }
}

/// Random bytes of the system.
fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's generator answers once it is seeded");
    bytes
}
