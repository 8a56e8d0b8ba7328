//! One connection of our own UI.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::ws::{Message, WebSocket};
use bytes::Bytes;
use futures_util::stream::FuturesUnordered;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval_at, timeout};
use tokio_util::sync::CancellationToken;

use super::link::{Link, Request};
use super::socket::{Closed, Incoming, Reader, close, send};
use super::{Backend, Credential, Enlisted, Hub, Limits, NewDevice, Peer, random};
use crate::proto::device::{Device, DeviceId, Expired, clean_name};
use crate::proto::keys::{PublicKey, Secret32};
use crate::proto::v2::message::{self, ClientMessage, OpError};
use crate::proto::v2::noise::{Responder, prologue};
use crate::proto::v2::pair::{DaemonPairing, Paired};
use crate::proto::v2::record::{RecordKey, Transport};
use crate::proto::v2::{HandshakeError, MAX_FRAME, MAX_HANDSHAKE, MAX_PLAINTEXT, Refused, frame};

/// Requests of one connection that are served at once.
const MAX_REQUESTS: usize = 64;

/// Bytes that are put into the socket before it is flushed.
const FLUSH_AT: usize = 64 * 1024;

/// A device that may ask, or one whose first record tells it why not.
enum Admitted<'a, B: Backend> {
    Yes(Device, PublicKey, Enlisted<'a, B>),
    No(OpError),
}

pub(super) async fn serve<B: Backend>(
    hub: &Hub<B>,
    mut socket: WebSocket,
    peer: Peer,
    stop: CancellationToken,
) {
    let mut device = None;
    let reason = tokio::select! {
        () = stop.cancelled() => Closed::Stopping,
        reason = run(hub, &mut socket, &peer, &mut device) => reason,
    };
    hub.backend.closed(&peer, device.as_deref(), &reason);
    close(socket, &reason).await;
}

async fn run<B: Backend>(
    hub: &Hub<B>,
    socket: &mut WebSocket,
    peer: &Peer,
    known: &mut Option<Arc<Device>>,
) -> Closed {
    let (mut sink, stream) = socket.split();
    let limits = &hub.limits;
    let mut reader = Reader::new(stream, MAX_HANDSHAKE, limits.silent);
    let shaken = timeout(
        limits.handshake,
        handshake(hub, peer, &mut reader, &mut sink),
    );
    let (transport, admitted) = match shaken.await {
        Ok(Ok(done)) => done,
        Ok(Err(closed)) => return closed,
        Err(_) => return Closed::Unfinished,
    };
    let Transport {
        mut sending,
        receiving,
        ..
    } = transport;
    let (device, key, enlisted) = match admitted {
        Admitted::Yes(device, key, enlisted) => (Arc::new(device), key, enlisted),
        Admitted::No(error) => {
            farewell(&mut sink, &mut sending, &error, limits).await;
            return Closed::Refused(error.message);
        }
    };
    *known = Some(device.clone());
    reader.set_limit(MAX_FRAME);

    let ended = CancellationToken::new();
    let (link, queue) = Link::new(ended.clone());
    let mut writer = Writer {
        sink: &mut sink,
        key: sending,
        queue,
    };
    let reason = tokio::select! {
        closed = listen(hub, &device, key, &mut reader, receiving, &link) => closed,
        closed = writer.run(limits) => closed,
        () = enlisted.revoked.cancelled() => Closed::Revoked,
    };
    ended.cancel();
    let unauthorized = match reason {
        Closed::Revoked => Some("this device was revoked".to_owned()),
        Closed::Expired => Some(Expired.to_string()),
        _ => None,
    };
    if let Some(why) = unauthorized {
        let error = OpError::new("unauthorized", why);
        farewell(writer.sink, &mut writer.key, &error, limits).await;
    }
    drop(writer);
    link.drained().await;
    reason
}

/// Tells a device, in a record that nobody else can make, that it is not wanted.
async fn farewell(
    sink: &mut (impl Sink<Message, Error = axum::Error> + Unpin),
    key: &mut RecordKey,
    error: &OpError,
    limits: &Limits,
) {
    let mut record = message::json(&serde_json::json!({ "error": error }));
    if key.seal(&mut record).is_ok() {
        let _ = send(sink, Message::Binary(record.into()), limits.not_reading).await;
    }
}

async fn handshake<'a, B: Backend>(
    hub: &'a Hub<B>,
    peer: &Peer,
    reader: &mut Reader<impl Stream<Item = Result<Message, axum::Error>> + Unpin>,
    sink: &mut (impl Sink<Message, Error = axum::Error> + Unpin),
) -> Result<(Transport, Admitted<'a, B>), Closed> {
    let mut first = binary(reader).await?;
    let mut paired = None;
    if first.first() == Some(&frame::PAIR_START) {
        paired = match pair(hub, peer, &first, reader, sink).await {
            Ok(paired) => Some(paired),
            Err(failed) => return Err(refuse(sink, &hub.limits, failed).await),
        };
        first = binary(reader).await?;
    }
    let resumed = resume(hub, paired.as_ref(), &first).await;
    match resumed {
        Ok((reply, transport, admitted)) => {
            put(sink, reply, &hub.limits).await?;
            Ok((transport, admitted))
        }
        Err(failed) => Err(refuse(sink, &hub.limits, failed).await),
    }
}

/// Why a handshake is not finished.
enum Failed {
    Refused(Refused, String),
    Closed(Closed),
}

impl From<Closed> for Failed {
    fn from(closed: Closed) -> Self {
        Self::Closed(closed)
    }
}

impl From<OpError> for Failed {
    fn from(error: OpError) -> Self {
        Self::Refused(Refused::Unavailable, error.message)
    }
}

impl From<crate::proto::pairing::PairError> for Failed {
    fn from(error: crate::proto::pairing::PairError) -> Self {
        Self::Refused(error.into(), error.to_string())
    }
}

fn bad(error: HandshakeError) -> Failed {
    Failed::Refused(Refused::BadFrame, error.to_string())
}

async fn refuse(
    sink: &mut (impl Sink<Message, Error = axum::Error> + Unpin),
    limits: &Limits,
    failed: Failed,
) -> Closed {
    match failed {
        Failed::Closed(closed) => closed,
        Failed::Refused(refused, reason) => {
            match put(sink, refused.encode(&reason), limits).await {
                Ok(()) => Closed::Refused(reason),
                Err(closed) => closed,
            }
        }
    }
}

async fn put(
    sink: &mut (impl Sink<Message, Error = axum::Error> + Unpin),
    frame: Vec<u8>,
    limits: &Limits,
) -> Result<(), Closed> {
    send(sink, Message::Binary(frame.into()), limits.not_reading).await
}

async fn binary(
    reader: &mut Reader<impl Stream<Item = Result<Message, axum::Error>> + Unpin>,
) -> Result<Bytes, Closed> {
    match reader.next().await? {
        Incoming::Binary(bytes) => Ok(bytes),
        Incoming::Text(_) => Err(Closed::Violated("v2 has binary messages only".to_owned())),
    }
}

async fn pair<B: Backend>(
    hub: &Hub<B>,
    peer: &Peer,
    start: &[u8],
    reader: &mut Reader<impl Stream<Item = Result<Message, axum::Error>> + Unpin>,
    sink: &mut (impl Sink<Message, Error = axum::Error> + Unpin),
) -> Result<Paired, Failed> {
    let daemon = hub.backend.keys().public();
    let (password, generation) = hub.pairing().password(peer.source, hub.backend.now())?;
    let (pairing, reply) =
        DaemonPairing::reply(&password, &daemon, start, random(), random()).map_err(bad)?;
    put(sink, reply, &hub.limits).await?;
    let prove = binary(reader).await?;
    let checked = pairing.check(&prove);
    let knows = !matches!(checked, Err(HandshakeError::WrongCode));
    let now = hub.backend.now();
    if let (true, Err(error)) = (knows, &checked) {
        return Err(bad(*error));
    }
    hub.tried(peer, |pairing| {
        pairing.proved(knows, generation, peer.source, now)
    })?;
    let proved = checked.map_err(bad)?;
    let id = DeviceId(random());
    let settings = hub.backend.settings();
    let new = NewDevice {
        device: Device {
            id,
            name: clean_name(&proved.name),
            last_seen: now,
            expires_at: now.saturating_add(settings.token_ttl),
        },
        credential: Credential::V2 {
            key: proved.device,
            check_words: proved.check_words(),
        },
    };
    hub.backend.add_device(new).await?;
    let (paired, done) = proved.done(id);
    put(sink, done, &hub.limits).await?;
    Ok(paired)
}

async fn resume<'a, B: Backend>(
    hub: &'a Hub<B>,
    paired: Option<&Paired>,
    message: &[u8],
) -> Result<(Vec<u8>, Transport, Admitted<'a, B>), Failed> {
    let Some((&frame::RESUME, message)) = message.split_first() else {
        return Err(bad(HandshakeError::Malformed));
    };
    let prologue = prologue(paired.map(|paired| &paired.pairing));
    let read = Responder::read(&prologue, hub.backend.keys(), message);
    let (responder, _) = read.map_err(|error| match error {
        HandshakeError::Unauthentic => {
            let reason = "this daemon has another key than the one it was paired with";
            Failed::Refused(Refused::WrongDaemon, reason.to_owned())
        }
        error => bad(error),
    })?;
    let admitted = admit(hub, responder.device()).await?;
    let (reply, transport) = responder
        .reply(&Secret32::new(random()), b"")
        .map_err(bad)?;
    let mut resumed = vec![frame::RESUMED];
    resumed.extend_from_slice(&reply);
    Ok((resumed, transport, admitted))
}

async fn admit<B: Backend>(hub: &Hub<B>, key: PublicKey) -> Result<Admitted<'_, B>, OpError> {
    let unknown = || {
        Admitted::No(OpError::new(
            "unauthorized",
            "this device is not paired or was revoked",
        ))
    };
    let Some(device) = hub.backend.device_by_key(key).await? else {
        return Ok(unknown());
    };
    let enlisted = hub.enlist(device.id);
    // Asked again now that a revocation would reach the connection: one before that is seen here.
    let Some(mut device) = hub.backend.device_by_key(key).await? else {
        return Ok(unknown());
    };
    match device.used(hub.backend.now(), hub.backend.settings().token_ttl) {
        Ok(seen) => {
            if let Some(seen) = seen {
                hub.backend.seen(device.id, seen).await;
            }
            Ok(Admitted::Yes(device, key, enlisted))
        }
        Err(expired) => Ok(Admitted::No(OpError::new(
            "unauthorized",
            expired.to_string(),
        ))),
    }
}

/// Reads records and serves what they ask, until something is wrong.
async fn listen<B: Backend>(
    hub: &Hub<B>,
    device: &Arc<Device>,
    static_key: PublicKey,
    reader: &mut Reader<impl Stream<Item = Result<Message, axum::Error>> + Unpin>,
    mut key: RecordKey,
    link: &Link,
) -> Closed {
    let mut device = device.clone();
    let mut cancels: HashMap<u64, CancellationToken> = HashMap::new();
    let mut served = FuturesUnordered::new();
    loop {
        let bytes = tokio::select! {
            incoming = binary(reader) => match incoming {
                Ok(bytes) => bytes,
                Err(closed) => return closed,
            },
            Some((id, outcome)) = served.next() => {
                cancels.remove(&id);
                if link.send(fitting(id, &outcome)).await.is_err() {
                    return Closed::Gone;
                }
                continue;
            }
            () = hub.lapse(device.expires_at) => {
                // Another connection of the device may have put its end off.
                match hub.backend.device_by_key(static_key).await {
                    Ok(Some(now)) if hub.backend.now() < now.expires_at => device = Arc::new(now),
                    Ok(_) => return Closed::Expired,
                    Err(error) => return Closed::Refused(error.message),
                }
                continue;
            }
        };
        let mut record = Vec::from(bytes);
        if let Err(error) = key.open(&mut record) {
            return Closed::Violated(error.to_string());
        }
        let message = match message::parse(&record) {
            Ok(message) => message,
            Err(error) => return Closed::Violated(error.to_string()),
        };
        match message {
            ClientMessage::Bytes { stream, bytes } => link.input(stream, bytes),
            ClientMessage::Credit { stream, bytes } => link.credit(stream, bytes),
            ClientMessage::Cancel { id } => {
                if let Some(cancel) = cancels.get(&id) {
                    cancel.cancel();
                }
            }
            ClientMessage::Request { id, op, args } => {
                let mut used = (*device).clone();
                let ttl = hub.backend.settings().token_ttl;
                match used.used(hub.backend.now(), ttl) {
                    Ok(Some(seen)) => {
                        hub.backend.seen(used.id, seen).await;
                        device = Arc::new(used);
                    }
                    Ok(None) => {}
                    Err(Expired) => return Closed::Expired,
                }
                if cancels.len() >= MAX_REQUESTS || cancels.contains_key(&id) {
                    let error = OpError::new(
                        "over_limit",
                        format!("{MAX_REQUESTS} requests at once, each with a number of its own"),
                    );
                    if link.send(message::answer(id, &Err(error))).await.is_err() {
                        return Closed::Gone;
                    }
                    continue;
                }
                let request = Request {
                    id,
                    op,
                    args,
                    link: link.clone(),
                };
                let cancel = CancellationToken::new();
                cancels.insert(id, cancel.clone());
                let answer = hub.backend.request(device.clone(), request);
                served.push(async move {
                    let outcome = cancel.run_until_cancelled_owned(answer).await;
                    let cancelled = || Err(OpError::new("cancelled", "as you asked"));
                    (id, outcome.unwrap_or_else(cancelled))
                });
            }
        }
    }
}

/// An answer that fits a record, or an error that says that it does not.
fn fitting(id: u64, outcome: &Result<serde_json::Value, OpError>) -> Vec<u8> {
    let answer = message::answer(id, outcome);
    if answer.len() <= MAX_PLAINTEXT {
        return answer;
    }
    let error = OpError::new("over_limit", "the answer is over 1 MiB; ask for less of it");
    message::answer(id, &Err(error))
}

/// Encrypts and sends what is queued, and pings when nothing is.
struct Writer<'a, S> {
    sink: &'a mut S,
    key: RecordKey,
    queue: mpsc::Receiver<Vec<u8>>,
}

impl<S: Sink<Message, Error = axum::Error> + Unpin> Writer<'_, S> {
    /// Never leaves a record sealed and unsent, wherever it is dropped: the counters would differ.
    async fn run(&mut self, limits: &Limits) -> Closed {
        let every = limits.silent / 3;
        let mut ping = interval_at(Instant::now() + every, every);
        loop {
            let first = tokio::select! {
                plaintext = self.queue.recv() => plaintext,
                _ = ping.tick() => None,
            };
            let written = async {
                match first {
                    Some(plaintext) => {
                        let mut size = self.put(plaintext).await?;
                        while size < FLUSH_AT
                            && let Ok(more) = self.queue.try_recv()
                        {
                            size = size.saturating_add(self.put(more).await?);
                        }
                    }
                    None => {
                        self.ready().await?;
                        let ping = Message::Ping(Bytes::new());
                        self.sink.start_send_unpin(ping).map_err(|_| Closed::Gone)?;
                    }
                }
                self.sink.flush().await.map_err(|_| Closed::Gone)
            };
            match timeout(limits.not_reading, written).await {
                Ok(Ok(())) => {}
                Ok(Err(closed)) => return closed,
                Err(_) => return Closed::NotReading,
            }
        }
    }

    async fn ready(&mut self) -> Result<(), Closed> {
        std::future::poll_fn(|context| self.sink.poll_ready_unpin(context))
            .await
            .map_err(|_| Closed::Gone)
    }

    async fn put(&mut self, mut plaintext: Vec<u8>) -> Result<usize, Closed> {
        self.ready().await?;
        self.key
            .seal(&mut plaintext)
            .map_err(|error| Closed::Violated(error.to_string()))?;
        let size = plaintext.len();
        self.sink
            .start_send_unpin(Message::Binary(plaintext.into()))
            .map_err(|_| Closed::Gone)?;
        Ok(size)
    }
}
