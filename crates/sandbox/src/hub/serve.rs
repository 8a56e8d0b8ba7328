//! The task of one connection.

use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::auth::PeerInfo;
use super::conn::Conn;
use super::observer::HubEvent as Observed;
use super::registry::{WorkerInfo, WorkerStatus};
use super::{Hub, Inner};
use crate::lanes::{Link, write_loop};
use crate::proto::{HubEvent, HubSession, MAX_MESSAGE, Metadata, Names, Protocol, WorkerToHub};
use crate::socket::{MessageLimit, WsError, WsMessage, WsSocket, close};

/// The longest message of a worker that has not registered.
const MAX_UNREGISTERED_MESSAGE: usize = 64 * 1024;

impl Hub {
    /// Serves one worker's connection, whose handshake has been done with the result of
    /// [`crate::proto::negotiate`], until it ends.
    ///
    /// A worker has [`HubSettings::registration`](super::HubSettings::registration) to register, and
    /// until then its messages are short. Later ones over [`MAX_MESSAGE`] end the connection.
    pub async fn serve_connection(
        &self,
        socket: WsSocket<impl AsyncRead + AsyncWrite + Unpin>,
        peer: PeerInfo,
        protocol: Protocol,
    ) {
        let limit = socket.limit();
        limit.set(MAX_UNREGISTERED_MESSAGE);
        let (sink, stream) = socket.split();
        let (link, lanes) = Link::new(self.inner.next_link());
        // One way to close from outside, one towards the writer.
        let (kick, kicked) = oneshot::channel();
        let (close_tx, close_rx) = oneshot::channel();
        let conn = Conn::new(link.clone(), protocol, peer, kick);
        let mut served = Served {
            hub: &self.inner,
            session: HubSession::new(protocol, self.inner.now()),
            conn: conn.clone(),
            link,
            protocol,
            stale: false,
            newcomer: None,
            limit,
        };
        let writer = write_loop(sink, lanes, close_rx);
        tokio::pin!(writer);
        let mut written = false;
        let (code, reason) = tokio::select! {
            ended = served.read_loop(stream) => ended,
            kicked = kicked => kicked.unwrap_or((close::NORMAL, String::new())),
            () = self.inner.shutdown.cancelled() => {
                (close::GOING_AWAY, "the hub stops".to_owned())
            }
            result = &mut writer => {
                written = true;
                let reason = result.err().map_or_else(String::new, |error| error.to_string());
                (close::NORMAL, reason)
            }
        };
        conn.drop_routes(true);
        if let Some(id) = served.session.registered()
            && self
                .inner
                .registry()
                .mark(id, conn.id(), WorkerStatus::Offline)
        {
            let mut receipt = self.inner.observe(Observed::WorkerOffline {
                worker: id.to_owned(),
                reason: reason.clone(),
            });
            // A worker is gone whether or not that can be written; the observer says if not.
            let _ = receipt.come().await;
            self.inner.changed();
        }
        if !written && close_tx.send((code, reason)).is_ok() {
            // It ends within its own limit, and how is of no interest any more.
            let _ = writer.await;
        }
    }
}

struct Served<'a> {
    hub: &'a Inner,
    session: HubSession,
    conn: Conn,
    link: Link,
    protocol: Protocol,
    stale: bool,
    /// Its place among those that have not registered.
    newcomer: Option<OwnedSemaphorePermit>,
    limit: MessageLimit,
}

impl Served<'_> {
    async fn read_loop(
        &mut self,
        mut stream: impl Stream<Item = Result<WsMessage, WsError>> + Unpin,
    ) -> (u16, String) {
        let too_late = Instant::now() + self.hub.settings.registration;
        let place = self.hub.unregistered.clone().acquire_owned();
        let Ok(Ok(place)) = tokio::time::timeout_at(too_late, place).await else {
            return (
                close::TRY_AGAIN_LATER,
                "too many workers are registering".to_owned(),
            );
        };
        self.newcomer = Some(place);
        let mut check = Instant::now() + self.hub.liveness().check_every;
        loop {
            self.send_pending();
            let message = tokio::select! {
                message = stream.next() => message,
                () = tokio::time::sleep_until(too_late), if self.newcomer.is_some() => {
                    return (close::POLICY, "no worker has registered".to_owned());
                }
                () = tokio::time::sleep_until(check) => {
                    check = Instant::now() + self.hub.liveness().check_every;
                    if self.check_liveness() {
                        continue;
                    }
                    return (close::POLICY, "silent for too long".to_owned());
                }
            };
            self.conn.hears();
            match message {
                Some(Ok(WsMessage::Text(text))) => {
                    let Ok(text) = std::str::from_utf8(&text) else {
                        return (close::NOT_UTF8, "a text that is not UTF-8".to_owned());
                    };
                    let event = self.session.handle_text(text, self.hub.now());
                    self.conn.learn_dialect(self.session.dialect());
                    if let Err(refused) = self.event(event).await {
                        return refused;
                    }
                }
                Some(Ok(WsMessage::Binary(bytes))) => {
                    if self.protocol == Protocol::V2 && self.session.registered().is_some() {
                        self.session.heard(self.hub.now());
                        if let Err(reason) = self.conn.frame(&bytes) {
                            return (close::PROTOCOL, reason);
                        }
                    }
                }
                Some(Ok(WsMessage::Close(_, reason))) => {
                    return (close::NORMAL, format!("the worker closed: {reason}"));
                }
                Some(Err(error)) => return (error.close_code(), error.to_string()),
                None => return (close::NORMAL, "the worker is gone".to_owned()),
            }
        }
    }

    /// False when the worker has been silent for so long that its connection is worth nothing.
    fn check_liveness(&mut self) -> bool {
        let liveness = self.hub.liveness();
        let now = self.hub.now();
        if !self.session.is_stale(liveness, now) {
            return true;
        }
        if self.stale || self.session.registered().is_none() {
            return false;
        }
        self.stale = true;
        if let Some(id) = self.session.registered()
            && self
                .hub
                .registry()
                .mark(id, self.conn.id(), WorkerStatus::Stale)
        {
            // The row is kept in order with the others; nobody is told by this task.
            let _ = self.hub.observe(Observed::WorkerStale {
                worker: id.to_owned(),
            });
            self.hub.changed();
        }
        // One more period to be heard of: its next heartbeat is refused and it registers again.
        self.session.expect_registration(now);
        self.conn.drop_routes(false);
        true
    }

    async fn event(&mut self, event: HubEvent) -> Result<(), (u16, String)> {
        match event {
            HubEvent::None => Ok(()),
            HubEvent::Load(load) => {
                self.conn.told_load(load);
                Ok(())
            }
            HubEvent::Register {
                daemon_id,
                metadata,
            } => self.register(daemon_id, metadata).await,
            HubEvent::Reply(reply) => {
                self.reply(reply).await;
                Ok(())
            }
            HubEvent::Fault { error, log } => {
                if log {
                    let worker = self.session.registered().unwrap_or("unregistered");
                    tracing::warn!(worker, %error, "a message from a worker can't be used");
                }
                // What it would have answered has no other answer.
                if let (false, Some(answer)) = (error.is_unknown(), error.answer()) {
                    self.reply(WorkerToHub::Error(answer)).await;
                }
                Ok(())
            }
        }
    }

    async fn register(&mut self, id: String, metadata: Metadata) -> Result<(), (u16, String)> {
        // One connection is one worker: else it could leave its first name behind as a ghost.
        if let Some(known) = self.session.registered()
            && known != id
        {
            self.session
                .refuse(&format!("this connection is registered as {known}"));
            return Ok(());
        }
        if let Err(reason) = self.authorize(&id).await {
            return Err(self.refuse(id, reason).await);
        }
        if self.hub.registry().is_unchanged(&id, &metadata, &self.conn) {
            // Nothing to record, else a worker could fill the journal by repeating itself.
            self.session.accept(id);
            return Ok(());
        }
        let earlier = self.hub.registry().conn(&id).cloned();
        self.conn.registered(&metadata, earlier.as_ref());
        let info = WorkerInfo::new(&id, &metadata, &self.conn);
        let kept = self.hub.observe(Observed::WorkerOnline(info)).come().await;
        if let Err(error) = kept {
            return Err(self.refuse(id, error.to_string()).await);
        }
        self.stale = false;
        self.newcomer = None;
        self.limit.set(MAX_MESSAGE);
        self.session.accept(id.clone());
        // The ack is queued before anybody can find the worker: it must be its first message.
        self.send_pending();
        let replaced = self.hub.registry().register(&id, metadata, &self.conn);
        if let Some(older) = replaced {
            let code = match older.protocol() {
                Protocol::V1 => close::POLICY,
                Protocol::V2 => close::REPLACED,
            };
            older.close(code, format!("{id} registered on a newer connection"));
        }
        self.hub.changed();
        // A token that was taken back since the first look found no connection to close.
        match self.authorize(&id).await {
            Ok(()) => Ok(()),
            Err(reason) => {
                self.hub.dismiss(&id, &self.conn, &reason);
                Err((close::POLICY, reason))
            }
        }
    }

    async fn authorize(&self, id: &str) -> Result<(), String> {
        let answer = self.hub.authorize(self.conn.peer(), id).await;
        answer.map_err(|error| error.to_string())
    }

    async fn refuse(&mut self, id: String, reason: String) -> (u16, String) {
        let mut receipt = self.hub.observe(Observed::WorkerRefused {
            worker: id,
            address: self.conn.peer().address,
            reason: reason.clone(),
        });
        // It is refused whether or not that can be written; the observer says if not.
        let _ = receipt.come().await;
        self.session.refuse(&reason);
        self.send_pending();
        (close::POLICY, reason)
    }

    fn send_pending(&mut self) {
        while let Some(message) = self.session.poll_send() {
            // A full lane means that the worker does not read; it will be stale soon.
            self.link.text(message.encode(Names::Both));
        }
    }

    /// Hands a v1 reply to whoever asked.
    async fn reply(&mut self, reply: WorkerToHub) {
        let id = match &reply {
            WorkerToHub::CommandOutput { id, .. }
            | WorkerToHub::CommandError { id, .. }
            | WorkerToHub::ShellStarted { id, .. }
            | WorkerToHub::ShellOutput { id, .. }
            | WorkerToHub::ShellExit { id, .. }
            | WorkerToHub::FileUploadComplete { id, .. }
            | WorkerToHub::FileDownloadChunk { id, .. }
            | WorkerToHub::FileDownloadError { id, .. }
            | WorkerToHub::Snapshot { id, .. } => id,
            WorkerToHub::Error(error) => match &error.id {
                Some((_, id)) => id,
                None => {
                    tracing::warn!(message = error.message, "a worker reports an error");
                    return;
                }
            },
            WorkerToHub::Register { .. } | WorkerToHub::Heartbeat { .. } => return,
        };
        let Some(route) = self.conn.route_of(id) else {
            // Whoever asked no longer waits.
            return;
        };
        let id = id.clone();
        let patience = self.hub.settings.slow_reader;
        if tokio::time::timeout(patience, route.send(reply))
            .await
            .is_err()
        {
            // Its reader stands still and holds up the whole connection: it loses its stream.
            self.conn.forget_request(&id);
        }
        // Time spent waiting on our own side is not the worker's silence.
        self.session.heard(self.hub.now());
        self.conn.hears();
    }
}
