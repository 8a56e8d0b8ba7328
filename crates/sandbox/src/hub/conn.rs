//! A connection as handles hold it: the way out, and the table by which answers find them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use bytes::Bytes;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::Instant;

use super::auth::PeerInfo;
use super::lock;
use crate::lanes::Link;
use crate::proto::credit::{ReceiveCredit, SendCredit};
use crate::proto::frame::{
    Body, End, FailureCode, Frame, FrameKind, HEADER, Open, Opened, Outcome, StreamId,
};
use crate::proto::{
    Dialect, FormerConnection, HubToWorker, Load, Metadata, Names, Protocol, WorkerToHub,
};
use crate::socket::WsMessage;

/// Messages of one v1 shell or download that wait for their reader; a full queue stops the
/// connection, since v1 has no other way to slow a worker.
const V1_QUEUE: usize = 64;

/// Connections of one run of a worker that a later one is known to follow.
const MAX_FORMER: usize = 8;

/// The connection is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Gone;

/// One of the times that a worker was registered: by a connection, or again on the same one when it
/// had been silent for too long. Requests last as long as it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Registration {
    link: u64,
    ended: u64,
}

/// What a worker knows of a stream that was opened on a connection which is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Knowledge {
    /// It never came.
    NeverArrived,
    /// It came, or may have: this is the run of the worker that had the connection.
    Arrived,
    /// The worker was started anew since.
    Nothing,
}

/// A cheap handle of one connection.
#[derive(Debug, Clone)]
pub(super) struct Conn(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    link: Link,
    protocol: Protocol,
    peer: PeerInfo,
    /// Short sections without an await.
    routes: Mutex<Routes>,
    dialect: watch::Sender<Option<Dialect>>,
    running: AtomicUsize,
    /// When something last came.
    heard: Mutex<Instant>,
    /// What the last heartbeat said.
    load: Mutex<Option<Load>>,
    /// What its worker calls it, and the one before; known once that has registered.
    lineage: OnceLock<Lineage>,
    close: Mutex<Option<oneshot::Sender<(u16, String)>>>,
}

#[derive(Debug)]
struct Lineage {
    name: String,
    /// Those that the same run of the worker had before, the last first.
    former: Vec<FormerConnection>,
}

#[derive(Debug, Default)]
struct Routes {
    closed: bool,
    /// How often all of them were ended.
    ended: u64,
    last_stream: StreamId,
    streams: HashMap<StreamId, StreamRoute>,
    requests: HashMap<String, mpsc::Sender<WorkerToHub>>,
}

impl Routes {
    fn end(&mut self, closed: bool) {
        self.closed = closed;
        self.ended += 1;
        self.streams.clear();
        self.requests.clear();
    }
}

#[derive(Debug, Clone)]
struct StreamRoute {
    /// Unbounded in type only: what may be in it is bounded by the credit in `receive`.
    events: mpsc::UnboundedSender<StreamEvent>,
    receive: Arc<Mutex<ReceiveCredit>>,
    gate: Arc<CreditGate>,
    /// Whether the worker has accepted it, which is said once and costs no credit.
    opened: bool,
}

/// What arrives on a v2 stream.
#[derive(Debug)]
pub(super) enum StreamEvent {
    Opened(Opened),
    Out(Bytes),
    Err(Bytes),
    End(Box<End>),
}

/// The credit of a v2 stream towards the worker.
#[derive(Debug, Default)]
struct CreditGate {
    credit: Mutex<SendCredit>,
    changed: Notify,
}

impl Conn {
    pub(super) fn new(
        link: Link,
        protocol: Protocol,
        peer: PeerInfo,
        close: oneshot::Sender<(u16, String)>,
    ) -> Self {
        let known = (protocol == Protocol::V2).then_some(Dialect::Seed);
        Self(Arc::new(Inner {
            link,
            protocol,
            peer,
            routes: Mutex::default(),
            dialect: watch::Sender::new(known),
            running: AtomicUsize::new(0),
            heard: Mutex::new(Instant::now()),
            load: Mutex::default(),
            lineage: OnceLock::new(),
            close: Mutex::new(Some(close)),
        }))
    }

    pub(super) fn id(&self) -> u64 {
        self.0.link.id
    }

    /// The registration that requests are made under now.
    pub(super) fn registration(&self) -> Registration {
        Registration {
            link: self.id(),
            ended: self.routes().ended,
        }
    }

    pub(super) fn protocol(&self) -> Protocol {
        self.0.protocol
    }

    /// Who dialled.
    pub(super) fn peer(&self) -> &PeerInfo {
        &self.0.peer
    }

    pub(super) fn running(&self) -> usize {
        self.0.running.load(Ordering::Relaxed)
    }

    /// Notes that something came from the worker.
    pub(super) fn hears(&self) {
        *lock(&self.0.heard) = Instant::now();
    }

    /// When something last came from the worker.
    pub(super) fn heard(&self) -> Instant {
        *lock(&self.0.heard)
    }

    pub(super) fn told_load(&self, load: Load) {
        *lock(&self.0.load) = Some(load);
    }

    pub(super) fn load(&self) -> Option<Load> {
        *lock(&self.0.load)
    }

    /// Notes what the worker calls this connection, and which ones it had before: the last as it
    /// says, those before that as `earlier`, the last that it registered on, knew them.
    pub(super) fn registered(&self, metadata: &Metadata, earlier: Option<&Self>) {
        let Some(name) = &metadata.connection else {
            return;
        };
        let mut former = Vec::from_iter(metadata.former.clone());
        let known = earlier.and_then(|earlier| earlier.0.lineage.get());
        if let (Some(last), Some(known)) = (former.first(), known)
            && last.connection == known.name
        {
            former.extend(known.former.iter().take(MAX_FORMER - 1).cloned());
        }
        // A worker that registers again on the same connection says the same.
        let _ = self.0.lineage.set(Lineage {
            name: name.clone(),
            former,
        });
    }

    /// What this connection's worker knows of a stream that was lost with its own.
    pub(super) fn knows_of(&self, lost: &HubStream) -> Knowledge {
        let (Some(now), Some(before)) = (self.0.lineage.get(), lost.conn.0.lineage.get()) else {
            return Knowledge::Nothing;
        };
        if now.name == before.name {
            return Knowledge::Arrived;
        }
        match now.former.iter().find(|it| it.connection == before.name) {
            Some(former) if lost.id > former.last_stream => Knowledge::NeverArrived,
            Some(_) => Knowledge::Arrived,
            None => Knowledge::Nothing,
        }
    }

    /// Counts a command or shell as running until the guard is dropped.
    pub(super) fn count(&self) -> Running {
        self.0.running.fetch_add(1, Ordering::Relaxed);
        Running(self.clone())
    }

    pub(super) fn dialect(&self) -> Option<Dialect> {
        *self.0.dialect.borrow()
    }

    pub(super) fn learn_dialect(&self, dialect: Option<Dialect>) {
        if dialect.is_some() && self.dialect().is_none() {
            self.0.dialect.send_replace(dialect);
        }
    }

    /// Asks the connection's task to close it. Only the first call counts.
    pub(super) fn close(&self, code: u16, reason: String) {
        if let Some(close) = lock(&self.0.close).take() {
            // The task may be gone already, which is what was asked for.
            let _ = close.send((code, reason));
        }
    }

    /// Cancels what runs for this hub, whose worker nobody reaches any more, and ends every route:
    /// who waits is told why it ended, and not the worker's answer to that.
    pub(super) fn cancel_streams(&self) {
        let mut routes = self.routes();
        for stream in routes.streams.keys() {
            self.0.link.urgent(*stream, Body::Cancel);
        }
        routes.end(true);
    }

    /// Ends every route: the connection is gone, or its worker is no longer registered.
    pub(super) fn drop_routes(&self, closed: bool) {
        self.routes().end(closed);
    }

    // ---- v1 ----

    /// Opens a route for the answers to `id`.
    pub(super) fn request(&self, id: &str) -> Result<V1Route, Gone> {
        let (sender, answers) = mpsc::channel(V1_QUEUE);
        let mut routes = self.routes();
        if routes.closed {
            return Err(Gone);
        }
        routes.requests.insert(id.to_owned(), sender);
        Ok(V1Route {
            conn: self.clone(),
            id: id.to_owned(),
            answers,
        })
    }

    pub(super) async fn send(&self, message: &HubToWorker) -> Result<(), Gone> {
        let names = match self.dialect() {
            // Both ids where an object can hold both; a shell needs the right names.
            Some(dialect) if is_shell(message) => Names::Only(dialect),
            _ => Names::Both,
        };
        self.0
            .link
            .bulk
            .send(WsMessage::Text(message.encode(names)))
            .await
            .map_err(|_| Gone)
    }

    /// Hangs up a shell, from where nothing can wait. The seed has no message for it.
    pub(super) fn close_shell(&self, id: &str) {
        let message = HubToWorker::ShellClose { id: id.to_owned() };
        self.0.link.text(message.encode(Names::Both));
    }

    /// Where answers to `id` go.
    pub(super) fn route_of(&self, id: &str) -> Option<mpsc::Sender<WorkerToHub>> {
        self.routes().requests.get(id).cloned()
    }

    pub(super) fn forget_request(&self, id: &str) {
        self.routes().requests.remove(id);
    }

    // ---- v2 ----

    /// Opens a stream whose reader lets `window` bytes be in flight once the first have come.
    pub(super) async fn open(&self, open: Open, window: u32) -> Result<HubStream, Gone> {
        let (events_tx, events) = mpsc::unbounded_channel();
        let receive = Arc::new(Mutex::new(ReceiveCredit::new(window)));
        let gate = Arc::new(CreditGate::default());
        let route = StreamRoute {
            events: events_tx,
            receive: receive.clone(),
            gate: gate.clone(),
            opened: false,
        };
        let (id, ended) = {
            let mut routes = self.routes();
            if routes.closed {
                return Err(Gone);
            }
            routes.last_stream = routes.last_stream.wrapping_add(1);
            let id = routes.last_stream;
            routes.streams.insert(id, route);
            (id, routes.ended)
        };
        let registration = Registration {
            link: self.id(),
            ended,
        };
        let stream = HubStream {
            conn: self.clone(),
            registration,
            id,
            events,
            receive,
            gate,
        };
        if !self.0.link.open(id, Body::Open(Box::new(open))).await {
            return Err(Gone);
        }
        Ok(stream)
    }

    /// Routes a frame from the worker. An error is a peer that breaks the framing.
    pub(super) fn frame(&self, message: &Bytes) -> Result<(), String> {
        let frame = Frame::decode(message).map_err(|fault| fault.to_string())?;
        let mut routes = self.routes();
        let Some(route) = routes.streams.get_mut(&frame.stream) else {
            // It crossed with the end of its stream.
            return Ok(());
        };
        let event = match frame.body {
            Body::Opened(opened) => StreamEvent::Opened(opened),
            Body::Out(bytes) => StreamEvent::Out(bytes),
            Body::Err(bytes) => StreamEvent::Err(bytes),
            Body::Credit(amount) => {
                route.gate.grant(amount);
                return Ok(());
            }
            Body::End(end) => StreamEvent::End(end),
            _ => return Err("a worker sent a frame that only a hub sends".to_owned()),
        };
        let fault = match &event {
            StreamEvent::Out(bytes) | StreamEvent::Err(bytes) => lock(&route.receive)
                .arrived(bytes.len())
                .err()
                .map(|_| "the worker sent beyond its credit"),
            StreamEvent::Opened(_) => std::mem::replace(&mut route.opened, true)
                .then_some("the worker opened a stream twice"),
            StreamEvent::End(_) => None,
        };
        if let Some(fault) = fault {
            let end = End {
                outcome: Outcome::Failed {
                    code: FailureCode::Protocol,
                    error: fault.to_owned(),
                },
                duration_ms: 0,
                mirrored: None,
            };
            let _ = route.events.send(StreamEvent::End(Box::new(end)));
            routes.streams.remove(&frame.stream);
            self.0.link.urgent(frame.stream, Body::Cancel);
            return Ok(());
        }
        let ended = matches!(event, StreamEvent::End(_));
        // A reader that went away has dropped its route, or is about to.
        let _ = route.events.send(event);
        if ended {
            routes.streams.remove(&frame.stream);
        }
        Ok(())
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        lock(&self.0.routes)
    }
}

/// Counts a job, see [`Conn::count`].
#[derive(Debug)]
pub(super) struct Running(Conn);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answers to one v1 request. Its queue ends with the connection.
#[derive(Debug)]
pub(super) struct V1Route {
    pub(super) conn: Conn,
    id: String,
    pub(super) answers: mpsc::Receiver<WorkerToHub>,
}

impl Drop for V1Route {
    fn drop(&mut self) {
        self.conn.forget_request(&self.id);
    }
}

/// One v2 stream. Its queue ends with the connection.
#[derive(Debug)]
pub(super) struct HubStream {
    conn: Conn,
    registration: Registration,
    id: StreamId,
    events: mpsc::UnboundedReceiver<StreamEvent>,
    receive: Arc<Mutex<ReceiveCredit>>,
    gate: Arc<CreditGate>,
}

impl HubStream {
    /// The next event, or `None` when the connection is gone. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<StreamEvent> {
        self.events.recv().await
    }

    /// Gives back the credit of bytes that the reader has.
    pub(super) async fn taken(&self, len: usize) {
        let grant = lock(&self.receive).taken(len);
        if let Some(amount) = grant {
            self.control(Body::Credit(amount)).await;
        }
    }

    /// Sends a frame before bulk, or with it when there is no room.
    pub(super) async fn control(&self, body: Body) {
        self.sender().control(body).await;
    }

    /// The same from where nothing can wait.
    pub(super) fn urgent(&self, body: Body) {
        self.conn.0.link.urgent(self.id, body);
    }

    /// The sending half, which may outlive this one.
    pub(super) fn sender(&self) -> StreamSender {
        StreamSender {
            link: self.conn.0.link.clone(),
            id: self.id,
            gate: self.gate.clone(),
        }
    }

    /// Counts a job as running on its connection.
    pub(super) fn count(&self) -> Running {
        self.conn.count()
    }

    /// The registration that it was opened under.
    pub(super) fn registration(&self) -> Registration {
        self.registration
    }
}

impl Drop for HubStream {
    fn drop(&mut self) {
        self.conn.routes().streams.remove(&self.id);
    }
}

/// The sending half of a v2 stream.
#[derive(Debug, Clone)]
pub(super) struct StreamSender {
    link: Link,
    id: StreamId,
    gate: Arc<CreditGate>,
}

impl StreamSender {
    /// A frame with room for `len` bytes of payload behind its header.
    pub(super) fn frame(&self, len: usize) -> bytes::BytesMut {
        crate::proto::frame::header(FrameKind::In, self.id, len)
    }

    /// Sends a frame that begins with [`Self::frame`], once there is credit for it.
    pub(super) async fn send(&self, frame: Bytes) -> Result<(), Gone> {
        let len = frame.len() - HEADER;
        tokio::select! {
            () = self.gate.acquire(len) => {}
            () = self.link.bulk.closed() => return Err(Gone),
        }
        let message = WsMessage::Binary(frame);
        self.link.bulk.send(message).await.map_err(|_| Gone)
    }

    /// Waits for the credit of a frame of `len` bytes, if it has any, and for room in its turn.
    pub(super) async fn admit(
        &self,
        len: Option<usize>,
    ) -> Result<mpsc::Permit<'_, WsMessage>, Gone> {
        if let Some(len) = len {
            tokio::select! {
                () = self.gate.acquire(len) => {}
                () = self.link.bulk.closed() => return Err(Gone),
            }
        }
        self.link.bulk.reserve().await.map_err(|_| Gone)
    }

    /// A frame of this stream.
    pub(super) fn message(&self, body: Body) -> WsMessage {
        crate::lanes::binary(self.id, body)
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        (self.link.id, self.id) == (other.link.id, other.id)
    }

    /// Sends a frame made by [`Self::frame`] if there is credit and room for it now.
    pub(super) fn send_now(&self, frame: bytes::BytesMut) -> bool {
        let Ok(permit) = self.link.bulk.try_reserve() else {
            return false;
        };
        let len = frame.len() - HEADER;
        {
            let mut credit = lock(&self.gate.credit);
            if credit.room(len) < len {
                return false;
            }
            credit.spend(len);
        }
        permit.send(WsMessage::Binary(frame.freeze()));
        true
    }

    /// Ends the input if there is room to say it now.
    pub(super) fn eof_now(&self) -> bool {
        self.link.bulk.try_send(self.message(Body::Eof)).is_ok()
    }

    /// Sends a small frame, before bulk where there is room for it.
    pub(super) async fn control(&self, body: Body) -> bool {
        self.link.urgent(self.id, body.clone()) || self.link.frame(self.id, body).await
    }

    /// Sends a small frame before bulk, from where nothing can wait.
    pub(super) fn urgent(&self, body: Body) -> bool {
        self.link.urgent(self.id, body)
    }

    /// Sends a frame behind what was sent before.
    pub(super) async fn in_turn(&self, body: Body) -> Result<(), Gone> {
        if self.link.frame(self.id, body).await {
            Ok(())
        } else {
            Err(Gone)
        }
    }
}

impl CreditGate {
    fn grant(&self, amount: u32) {
        lock(&self.credit).grant(amount);
        self.changed.notify_waiters();
    }

    async fn acquire(&self, len: usize) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Registered before the look, so that no grant is missed in between.
            changed.as_mut().enable();
            {
                let mut credit = lock(&self.credit);
                if credit.room(len) >= len {
                    credit.spend(len);
                    return;
                }
            }
            changed.await;
        }
    }
}

fn is_shell(message: &HubToWorker) -> bool {
    matches!(
        message,
        HubToWorker::StartShell { .. }
            | HubToWorker::ShellInput { .. }
            | HubToWorker::ShellResize { .. }
            | HubToWorker::ShellClose { .. }
    )
}
