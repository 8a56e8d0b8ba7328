//! The task that owns a replica's state machine and its connection.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use quintet_framing::backoff::{Backoff, BackoffPolicy};
use quintet_framing::ws::{self, WsLimits};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::engine::{Command, Outcomes};
use super::handle::{BarrierOutcome, ReplicaOpError, WriteBackReport};
use crate::link::{Link, LinkError};
use crate::mailbox::Mailbox;
use crate::proto::fetch::{Finish, Offer};
use crate::proto::replica::{
    LocalChange, ReplicaCore, ReplicaEffect, ReplicaError, ReplicaEvent, Settlement,
};
use crate::proto::{ContentHash, FORMAT, MAX_PAYLOAD, WireMessage};
use crate::transport::Connection;

/// Messages that are taken in before anything else has its turn.
const MESSAGES_AT_ONCE: usize = 64;

/// How the master is reached.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Makes a new connection.
    async fn dial(&self) -> Result<Connection, DialFailed>;

    /// Resolves when it is worth dialling before the wait after a failure is over; never unless
    /// there is something to know it by.
    async fn wanted(&self) {
        std::future::pending::<()>().await;
    }
}

/// The master was not reached; it is tried again.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct DialFailed(pub Box<dyn std::error::Error + Send + Sync>);

/// Dials a Unix socket.
#[derive(Clone, Debug)]
pub struct UnixDial {
    /// The socket.
    pub path: PathBuf,
}

#[async_trait]
impl Dial for UnixDial {
    async fn dial(&self) -> Result<Connection, DialFailed> {
        let stream = quintet_framing::unix::dial(&self.path)
            .await
            .map_err(|error| DialFailed(Box::new(error)))?;
        Ok(Connection::over_stream(stream))
    }
}

/// Dials a WebSocket.
#[derive(Clone)]
pub struct WebSocketDial {
    /// `ws://` or `wss://`.
    pub url: String,
    /// Sent as a bearer token.
    pub token: Option<String>,
    /// Needed for `wss://`.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

#[async_trait]
impl Dial for WebSocketDial {
    async fn dial(&self) -> Result<Connection, DialFailed> {
        let dial = ws::WsDial {
            url: &self.url,
            protocols: &[],
            token: self.token.as_deref(),
            tls: self.tls.clone(),
        };
        let (socket, _) = ws::dial(dial, ws_limits())
            .await
            .map_err(|error| DialFailed(Box::new(error)))?;
        let (source, sink) = ws::frames(socket, FORMAT);
        Ok(Connection::new(source, sink))
    }
}

/// Limits of a WebSocket that carries this plane: one message is one frame.
pub fn ws_limits() -> WsLimits {
    WsLimits {
        max_message: MAX_PAYLOAD as usize + 4,
        read_buffer: 128 << 10,
    }
}

/// A replica cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The thread that owns the tree has ended.
    #[error("the replica's engine has ended")]
    EngineEnded,
}

/// What the handle asks for.
pub(super) enum Request {
    Barrier {
        sequence: u64,
        reply: oneshot::Sender<BarrierOutcome>,
    },
    WriteBack {
        reply: oneshot::Sender<Result<WriteBackReport, ReplicaOpError>>,
    },
    Status {
        reply: oneshot::Sender<RunStatus>,
    },
}

pub(super) struct RunStatus {
    pub(super) connected: bool,
    pub(super) last_failure: Option<String>,
    pub(super) sequence: u64,
    pub(super) current: bool,
    pub(super) incoming: usize,
    pub(super) outgoing: usize,
    pub(super) blocked: Option<String>,
}

enum Finished {
    Applied(Outcomes),
    Journalled(u64),
    Inline(Vec<(u64, Vec<u8>)>),
    Loaded(String, Offer),
    Planned(ContentHash, Result<Vec<usize>, String>),
    ChunkKept(ContentHash, Result<usize, String>),
    Verified(ContentHash, Result<Finish, String>),
    Flushed(u64, Result<(), ReplicaOpError>),
}

struct WriteBackWaiter {
    /// Known once the disk was looked at.
    through: Option<u64>,
    report: WriteBackReport,
    reply: oneshot::Sender<Result<WriteBackReport, ReplicaOpError>>,
}

/// Runs a replica.
pub struct Runner {
    core: ReplicaCore,
    engine: Mailbox<Command>,
    found: mpsc::UnboundedReceiver<Vec<LocalChange>>,
    requests: mpsc::Receiver<Request>,
    effects: JoinSet<(u64, Option<Finished>)>,
    /// Counts connections: answers for an earlier one are dropped.
    epoch: u64,
    started: Instant,
    next_id: u64,
    barriers: HashMap<u64, oneshot::Sender<BarrierOutcome>>,
    write_backs: HashMap<u64, WriteBackWaiter>,
    newest_accepted: u64,
    last_failure: Option<String>,
    /// Why the connection has to be closed.
    refused: Option<String>,
    blocked: Option<String>,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

impl Runner {
    pub(super) fn new(
        core: ReplicaCore,
        engine: Mailbox<Command>,
        found: mpsc::UnboundedReceiver<Vec<LocalChange>>,
        requests: mpsc::Receiver<Request>,
    ) -> Self {
        Self {
            core,
            engine,
            found,
            requests,
            effects: JoinSet::new(),
            epoch: 0,
            started: Instant::now(),
            next_id: 0,
            barriers: HashMap::new(),
            write_backs: HashMap::new(),
            newest_accepted: 0,
            last_failure: None,
            refused: None,
            blocked: None,
        }
    }

    /// Follows the master until `shutdown` is cancelled or every handle is gone,
    /// over as many connections as it takes.
    pub async fn run(
        mut self,
        dial: impl Dial,
        shutdown: CancellationToken,
    ) -> Result<(), RunError> {
        let policy = BackoffPolicy {
            base: Duration::from_secs(1),
            cap: Duration::from_secs(30),
            ..Default::default()
        };
        let mut backoff = Backoff::new(policy);
        self.taken();
        loop {
            let dialled = {
                let dialling = dial.dial();
                tokio::pin!(dialling);
                loop {
                    self.pump(None)?;
                    tokio::select! {
                        () = shutdown.cancelled() => return Ok(()),
                        connection = &mut dialling => break connection,
                        more = self.step(None) => if !more? { return Ok(()) },
                    }
                }
            };
            match dialled {
                Ok(connection) => {
                    backoff.connected(self.started.elapsed());
                    self.last_failure = None;
                    self.epoch += 1;
                    self.core.connected(self.started.elapsed());
                    let mut link = Link::start(connection);
                    let ended = tokio::select! {
                        () = shutdown.cancelled() => return Ok(()),
                        ended = self.follow(&mut link) => ended?,
                    };
                    drop(link);
                    self.core.disconnected();
                    self.engine.send(Command::Reset);
                    match ended {
                        Some(failure) => self.note_failure(failure),
                        None => return Ok(()),
                    }
                }
                Err(error) => self.note_failure(error.to_string()),
            }
            let wait = Instant::now() + backoff.lost(self.started.elapsed(), random());
            while Instant::now() < wait {
                self.pump(None)?;
                tokio::select! {
                    () = shutdown.cancelled() => return Ok(()),
                    () = tokio::time::sleep_until(wait.into()) => {}
                    () = dial.wanted() => break,
                    more = self.step(None) => if !more? { return Ok(()) },
                }
            }
        }
    }

    fn note_failure(&mut self, failure: String) {
        tracing::debug!(%failure, "not connected to the master");
        self.last_failure = Some(failure);
    }

    /// One connection, to its end. `None` when nobody needs the replica any more.
    async fn follow(&mut self, link: &mut Link) -> Result<Option<String>, RunError> {
        loop {
            let blocked = self.pump(Some(link))?;
            if let Some(refused) = self.refused.take() {
                return Ok(Some(refused));
            }
            let now = self.started.elapsed();
            if self.core.is_lost(now) {
                return Ok(Some("the master has been silent for too long".to_owned()));
            }
            let Link {
                incoming, outgoing, ..
            } = link;
            let outcome = tokio::select! {
                message = incoming.recv() => match message {
                    Some(message) => self.take_messages(message, incoming),
                    None => break,
                },
                _ = outgoing.reserve(), if blocked => Ok(()),
                more = self.step(Some(())) => if more? { Ok(()) } else { return Ok(None) },
            };
            if let Err(error) = outcome {
                return Ok(Some(self.refuse(&error)));
            }
        }
        let ended: Result<(), LinkError> = link.ended().await;
        Ok(Some(ended.map_or_else(
            |error| error.to_string(),
            |()| "the master closed the connection".to_owned(),
        )))
    }

    /// Takes a message and those that wait behind it: what has to be done between
    /// them costs more than most of them.
    fn take_messages(
        &mut self,
        message: WireMessage,
        incoming: &mut mpsc::Receiver<WireMessage>,
    ) -> Result<(), ReplicaError> {
        let now = self.started.elapsed();
        let mut next = Some(message);
        for _ in 0..MESSAGES_AT_ONCE {
            let Some(message) = next.take() else { break };
            self.core.handle_message(now, message)?;
            next = incoming.try_recv().ok();
        }
        match next {
            Some(message) => self.core.handle_message(now, message),
            None => Ok(()),
        }
    }

    fn refuse(&self, error: &ReplicaError) -> String {
        tracing::warn!(%error, "the connection is closed");
        error.to_string()
    }

    /// Whatever happens besides messages. `false` when every handle is gone.
    async fn step(&mut self, connected: Option<()>) -> Result<bool, RunError> {
        let now = self.started.elapsed();
        let timeout = self
            .core
            .poll_timeout()
            .filter(|_| connected.is_some())
            .unwrap_or(now + Duration::from_secs(60));
        tokio::select! {
            Some(finished) = self.effects.join_next() => {
                let (epoch, finished) = finished.map_err(|_| RunError::EngineEnded)?;
                self.finish(epoch, finished.ok_or(RunError::EngineEnded)?);
            }
            Some(changes) = self.found.recv() => self.local_changes(changes),
            request = self.requests.recv() => match request {
                Some(request) => self.take(request),
                None => return Ok(false),
            },
            () = tokio::time::sleep_until((self.started + timeout).into()) => {
                self.core.handle_timeout(self.started.elapsed());
            }
        }
        Ok(true)
    }

    /// Starts effects and sends messages, as far as the connection takes them.
    /// Returns whether it takes no more for now.
    fn pump(&mut self, link: Option<&mut Link>) -> Result<bool, RunError> {
        self.start_effects();
        let mut blocked = false;
        if let Some(link) = link {
            while let Ok(permit) = link.outgoing.try_reserve() {
                match self.core.poll_message() {
                    Some(message) => permit.send(message),
                    None => break,
                }
            }
            blocked = link.outgoing.capacity() == 0;
            self.start_effects();
        }
        while let Some(event) = self.core.poll_event() {
            self.tell(event);
        }
        self.answer_write_backs();
        Ok(blocked)
    }

    fn local_changes(&mut self, changes: Vec<LocalChange>) {
        self.core.local_changes(changes);
        self.taken();
    }

    /// Tells the engine, behind the entries that came of it, that it need no
    /// longer hold on to what it handed over.
    fn taken(&mut self) {
        self.start_effects();
        self.engine.send(Command::Taken);
    }

    fn start_effects(&mut self) {
        while let Some(effect) = self.core.poll_effect() {
            self.start(effect);
        }
    }

    fn start(&mut self, effect: ReplicaEffect) {
        match effect {
            ReplicaEffect::Apply(items) => {
                self.ask(|reply| Command::Apply(items, reply), Finished::Applied);
            }
            ReplicaEffect::SaveProgress { applied, resyncing } => {
                self.engine
                    .send(Command::SaveProgress { applied, resyncing });
            }
            ReplicaEffect::ForgetSequences => {
                self.engine.send(Command::ForgetSequences);
            }
            ReplicaEffect::DropPlanned => {
                self.engine.send(Command::DropPlanned);
            }
            ReplicaEffect::Journal(entries) => {
                let through = entries
                    .iter()
                    .map(|entry| entry.local_seq)
                    .max()
                    .unwrap_or(0);
                self.ask(
                    |reply| Command::Journal(entries, reply),
                    move |()| Finished::Journalled(through),
                );
            }
            ReplicaEffect::Settle(settlements) => {
                self.engine.send(Command::Settle(settlements));
            }
            ReplicaEffect::LoadInline(wanted) => {
                self.ask(|reply| Command::LoadInline(wanted, reply), Finished::Inline);
            }
            ReplicaEffect::LoadContent { content_hash } => {
                match ContentHash::parse(&content_hash) {
                    Some(hash) => self.ask(
                        |reply| Command::LoadContent(hash, reply),
                        move |offer| Finished::Loaded(content_hash, offer),
                    ),
                    None => self.core.content_loaded(content_hash, Offer::Nothing),
                }
            }
            ReplicaEffect::Plan {
                hash,
                manifest,
                near,
            } => self.ask(
                |reply| Command::Plan {
                    hash,
                    manifest,
                    near,
                    reply,
                },
                move |missing| Finished::Planned(hash, missing),
            ),
            ReplicaEffect::KeepChunk {
                hash,
                bytes,
                offsets,
            } => self.ask(
                |reply| Command::KeepChunk {
                    hash,
                    bytes,
                    offsets,
                    reply,
                },
                move |count| Finished::ChunkKept(hash, count),
            ),
            ReplicaEffect::FinishContent { hash } => {
                self.ask(
                    |reply| Command::Finish(hash, reply),
                    move |finish| Finished::Verified(hash, finish),
                );
            }
        }
    }

    /// Sends a command at once, so that the engine sees them in order.
    fn ask<T: Send + 'static>(
        &mut self,
        command: impl FnOnce(oneshot::Sender<T>) -> Command,
        finished: impl FnOnce(T) -> Finished + Send + 'static,
    ) {
        let (reply, answer) = oneshot::channel();
        self.engine.send(command(reply));
        let epoch = self.epoch;
        self.effects
            .spawn(async move { (epoch, answer.await.ok().map(finished)) });
    }

    fn finish(&mut self, epoch: u64, finished: Finished) {
        let now = self.started.elapsed();
        let stale = epoch != self.epoch;
        match finished {
            Finished::Applied(outcomes) => {
                self.core.applied(now, outcomes);
                self.taken();
            }
            Finished::Journalled(through) => self.core.journalled(through),
            Finished::Flushed(id, result) => self.flushed(id, result),
            _ if stale => {}
            Finished::Inline(contents) => self.core.inline_loaded(contents),
            Finished::Loaded(hash, offer) => self.core.content_loaded(hash, offer),
            Finished::Planned(hash, Ok(missing)) => self.core.planned(&hash, &missing),
            Finished::ChunkKept(hash, Ok(count)) => self.core.chunk_kept(&hash, count),
            Finished::ChunkKept(hash, Err(reason)) => {
                self.core.chunk_kept(&hash, 0);
                self.core.content_not_kept(now, &hash, &reason);
            }
            Finished::Verified(hash, Ok(finish)) => {
                if let Err(error) = self.core.content_finished(&hash, &finish) {
                    self.refused = Some(self.refuse(&error));
                }
            }
            Finished::Planned(hash, Err(reason)) | Finished::Verified(hash, Err(reason)) => {
                self.core.content_not_kept(now, &hash, &reason);
            }
        }
    }

    fn take(&mut self, request: Request) {
        self.next_id += 1;
        let id = self.next_id;
        match request {
            Request::Barrier { sequence, reply } => {
                self.barriers.retain(|id, waiting| {
                    if waiting.is_closed() {
                        self.core.forget_barrier(*id);
                    }
                    !waiting.is_closed()
                });
                self.barriers.insert(id, reply);
                self.core.request_barrier(id, sequence);
            }
            Request::WriteBack { reply } => {
                let waiter = WriteBackWaiter {
                    through: None,
                    report: WriteBackReport::default(),
                    reply,
                };
                self.write_backs.insert(id, waiter);
                self.ask(Command::Flush, move |result| Finished::Flushed(id, result));
            }
            Request::Status { reply } => {
                let status = RunStatus {
                    connected: self.core.is_connected(),
                    last_failure: self.last_failure.clone(),
                    sequence: self.core.applied_through(),
                    current: self.core.is_current(),
                    incoming: self.core.incoming_len(),
                    outgoing: self.core.journal_len(),
                    blocked: self
                        .blocked
                        .clone()
                        .filter(|_| self.core.incoming_len() > 0),
                };
                drop(reply.send(status));
            }
        }
    }

    /// The disk was looked at: what was found is in the channel, before this.
    fn flushed(&mut self, id: u64, result: Result<(), ReplicaOpError>) {
        while let Ok(changes) = self.found.try_recv() {
            self.local_changes(changes);
        }
        match result {
            Ok(()) => {
                let through = self.core.last_local_seq();
                if let Some(waiter) = self.write_backs.get_mut(&id) {
                    waiter.through = Some(through);
                }
            }
            Err(error) => {
                if let Some(waiter) = self.write_backs.remove(&id) {
                    drop(waiter.reply.send(Err(error)));
                }
            }
        }
    }

    fn tell(&mut self, event: ReplicaEvent) {
        match event {
            ReplicaEvent::BarrierPassed {
                id,
                satisfied,
                sequence,
            } => {
                if let Some(reply) = self.barriers.remove(&id) {
                    let _ = reply.send(BarrierOutcome {
                        sequence,
                        satisfied,
                    });
                }
            }
            ReplicaEvent::Settled(Settlement { entry, result }) => {
                if let Ok(sequence) = result {
                    self.newest_accepted = self.newest_accepted.max(sequence);
                }
                for waiter in self.write_backs.values_mut() {
                    match &result {
                        Ok(sequence) => {
                            waiter.report.accepted.push((entry.path.clone(), *sequence));
                        }
                        Err(reason) => waiter
                            .report
                            .rejected
                            .push((entry.path.clone(), reason.clone())),
                    }
                }
            }
            ReplicaEvent::Blocked { path, reason } => {
                tracing::warn!(%path, %reason, "a change of the master cannot be put in place yet");
                self.blocked = Some(format!("{path}: {reason}"));
            }
        }
    }

    fn answer_write_backs(&mut self) {
        let done: Vec<u64> = self
            .write_backs
            .iter()
            .filter(|(_, waiter)| {
                waiter.reply.is_closed()
                    || waiter
                        .through
                        .is_some_and(|through| self.core.is_settled_through(through))
            })
            .map(|(id, _)| *id)
            .collect();
        for id in done {
            if let Some(mut waiter) = self.write_backs.remove(&id) {
                waiter.report.sequence = self.newest_accepted;
                drop(waiter.reply.send(Ok(waiter.report)));
            }
        }
    }
}

/// A number from 0 to 1 that differs between replicas, for the backoff.
fn random() -> f64 {
    let bits = std::hash::RandomState::new().build_hasher().finish();
    f64::from(u32::try_from(bits >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}
