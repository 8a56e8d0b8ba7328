//! Where a job's output goes.
//!
//! - a v1 command's is gathered for one reply, up to a limit;
//! - a v1 shell's is relayed at the pace of the connection;
//! - a v2 job's goes into a log, and from there to whoever is attached, at the pace of its credit.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::watch;

use super::job::{failed, v1_reply};
use super::jobs::Jobs;
use super::spool::{Channel, Cursor, OutputLog, SpillError, TAIL};
use crate::lanes::{Link, binary};
use crate::proto::credit::SendCredit;
use crate::proto::frame::{Body, End, FailureCode, MAX_DATA, Opened, Outcome, StreamId, cost};
use crate::proto::{Dialect, ErrorMessage, MAX_OUTPUT_TEXT, WorkerToHub, cut::text_within};
use crate::socket::WsMessage;

/// Bytes of each channel that a v1 reply can hold.
const V1_KEPT: usize = MAX_OUTPUT_TEXT / 2;

pub(crate) enum Delivery {
    Collect(Collect),
    Relay(Relay),
    Log(Box<Log>),
}

/// A v1 reply in the making.
pub(crate) struct Collect {
    pub(crate) link: Link,
    pub(crate) id: String,
    pub(crate) dialect: Dialect,
    pub(crate) kept: [Vec<u8>; 2],
    pub(crate) dropped: [u64; 2],
}

/// A v1 shell's way out.
pub(crate) struct Relay {
    pub(crate) link: Link,
    pub(crate) id: String,
    pub(crate) dialect: Dialect,
    pub(crate) pending: Option<Bytes>,
}

/// A v2 job's output and its reader.
pub(crate) struct Log {
    log: OutputLog,
    attached: Option<Attachment>,
    /// The log can take no more until somebody reads or another log goes.
    full: bool,
    jobs: Arc<Jobs>,
    departures: watch::Receiver<()>,
}

/// A stream that reads a log.
pub(crate) struct Attachment {
    link: Link,
    stream: StreamId,
    credit: SendCredit,
    cursor: Cursor,
    /// Frames that were sent and whose credit has not come back: their cost, and where the log
    /// stood after them.
    unacked: VecDeque<(u32, u64)>,
    returned: u64,
    acked: u64,
    /// The connection's queue was full.
    blocked: bool,
}

impl Attachment {
    pub(crate) fn new(link: Link, stream: StreamId) -> Self {
        Self {
            link,
            stream,
            credit: SendCredit::default(),
            cursor: Cursor::default(),
            unacked: VecDeque::new(),
            returned: 0,
            acked: 0,
            blocked: false,
        }
    }
}

impl Log {
    pub(crate) fn new(log: OutputLog, attached: Attachment, jobs: Arc<Jobs>) -> Self {
        let departures = jobs.departures();
        Self {
            log,
            attached: Some(attached),
            full: false,
            jobs,
            departures,
        }
    }

    async fn pump(&mut self) {
        self.forward().await;
        if !self.log.wants_spill() {
            self.full = false;
            return;
        }
        let (acked, sent) = match &self.attached {
            Some(reader) => (reader.acked, reader.cursor.position()),
            None => (0, 0),
        };
        let spilled = self.log.spill(acked).await;
        let was_full =
            std::mem::replace(&mut self.full, spilled.is_err() && self.log.is_full(sent));
        match spilled {
            Err(SpillError::Full) if self.full => {
                self.jobs.evict_oldest();
            }
            Err(SpillError::Io(error)) if self.full && !was_full => {
                tracing::warn!(%error, "output can't be spooled; the program waits");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Sends what credit and queue allow.
    async fn forward(&mut self) {
        while let Some(reader) = &mut self.attached {
            let room = reader.credit.room(MAX_DATA);
            if room == 0 || self.log.is_at_end(reader.cursor) {
                break;
            }
            let permit = match reader.link.bulk.clone().try_reserve_owned() {
                Ok(permit) => permit,
                Err(TrySendError::Full(_)) => {
                    reader.blocked = true;
                    break;
                }
                Err(TrySendError::Closed(_)) => {
                    self.attached = None;
                    break;
                }
            };
            let next = match self.log.read_tail(&mut reader.cursor, room) {
                Some(next) => Some(next),
                None => match self.log.read_disk(&mut reader.cursor, room).await {
                    Ok(next) => next,
                    Err(error) => {
                        let text = format!("the spooled output can't be read: {error}");
                        let end = failed(FailureCode::Io, text);
                        permit.send(binary(reader.stream, end));
                        self.attached = None;
                        break;
                    }
                },
            };
            let Some((channel, bytes)) = next else {
                continue;
            };
            let len = bytes.len();
            let body = match channel {
                Channel::Out => Body::Out(bytes),
                Channel::Err => Body::Err(bytes),
            };
            permit.send(binary(reader.stream, body));
            reader.credit.spend(len);
            reader
                .unacked
                .push_back((cost(len), reader.cursor.position()));
        }
    }
}

impl Delivery {
    /// A shell runs.
    pub(crate) async fn started(&self) {
        match self {
            Self::Collect(_) => {}
            Self::Relay(relay) => {
                let message = WorkerToHub::ShellStarted {
                    id: relay.id.clone(),
                    success: true,
                    error: None,
                };
                relay.link.send(&message, relay.dialect).await;
            }
            Self::Log(log) => {
                if let Some(reader) = &log.attached {
                    reader
                        .link
                        .frame(reader.stream, Body::Opened(Opened::default()))
                        .await;
                }
            }
        }
    }

    /// The program could not be started.
    pub(crate) async fn refused(&self, code: FailureCode, error: String) {
        match self {
            Self::Collect(collect) => {
                let message = WorkerToHub::CommandError {
                    id: collect.id.clone(),
                    error,
                };
                collect.link.send(&message, collect.dialect).await;
            }
            Self::Relay(relay) => {
                let message = WorkerToHub::ShellStarted {
                    id: relay.id.clone(),
                    success: false,
                    error: Some(error),
                };
                relay.link.send(&message, relay.dialect).await;
            }
            Self::Log(log) => {
                if let Some(reader) = &log.attached {
                    reader.link.frame(reader.stream, failed(code, error)).await;
                }
            }
        }
    }

    /// Whether the program's next bytes have a place to go.
    pub(crate) fn takes_more(&self) -> bool {
        match self {
            Self::Collect(_) => true,
            Self::Relay(relay) => relay.pending.is_none(),
            Self::Log(log) => !log.full,
        }
    }

    pub(crate) fn take(&mut self, channel: Channel, bytes: Bytes) {
        match self {
            Self::Collect(collect) => {
                let kept = &mut collect.kept[channel as usize];
                let room = V1_KEPT.saturating_sub(kept.len()).min(bytes.len());
                kept.extend_from_slice(&bytes[..room]);
                collect.dropped[channel as usize] += (bytes.len() - room) as u64;
            }
            Self::Relay(relay) => relay.pending = Some(bytes),
            Self::Log(log) => log.log.append(channel, &bytes),
        }
    }

    /// Moves what can be moved without waiting for the connection.
    pub(crate) async fn pump(&mut self) {
        match self {
            Self::Collect(_) => {}
            Self::Relay(relay) => relay.pump(),
            Self::Log(log) => log.pump().await,
        }
    }

    /// Resolves when [`Self::pump`] could do more than at its last call.
    pub(crate) async fn wait_until_movable(&mut self) {
        match self {
            Self::Collect(_) => std::future::pending().await,
            Self::Relay(relay) => match relay.pending {
                Some(_) => drop(relay.link.bulk.reserve().await),
                None => std::future::pending().await,
            },
            Self::Log(log) => {
                let full = log.full;
                let queue = async {
                    match &mut log.attached {
                        Some(reader) if reader.blocked => {
                            drop(reader.link.bulk.reserve().await);
                            reader.blocked = false;
                        }
                        _ => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = queue => {}
                    // The table outlives its jobs, so the sender is never gone.
                    _ = log.departures.changed(), if full => {}
                }
            }
        }
    }

    pub(crate) fn attach(
        &mut self,
        mut reader: Attachment,
        stdout: u64,
        stderr: u64,
        input_came: u64,
    ) {
        let Self::Log(log) = self else { return };
        let (cursor, [lost_stdout, lost_stderr]) = log.log.seek(stdout, stderr);
        reader.cursor = cursor;
        let opened = Opened {
            offset: input_came,
            lost_stdout,
            lost_stderr,
            ..Opened::default()
        };
        reader.link.urgent(reader.stream, Body::Opened(opened));
        if let Some(former) = log.attached.replace(reader) {
            let end = failed(FailureCode::Replaced, "somebody else attached");
            former.link.urgent(former.stream, end);
        }
    }

    pub(crate) fn detach(&mut self) {
        if let Self::Log(log) = self {
            log.attached = None;
        }
    }

    pub(crate) fn credit(&mut self, amount: u32) {
        let Self::Log(log) = self else { return };
        let Some(reader) = &mut log.attached else {
            return;
        };
        reader.credit.grant(amount);
        reader.returned += u64::from(amount);
        while let Some((cost, position)) = reader.unacked.front().copied()
            && u64::from(cost) <= reader.returned
        {
            reader.returned -= u64::from(cost);
            reader.acked = position;
            reader.unacked.pop_front();
        }
    }

    /// Whether input is bounded by credit.
    pub(crate) fn has_credit(&self) -> bool {
        matches!(self, Self::Log(_))
    }

    /// Grants input, before bulk where there is room for it.
    pub(crate) async fn grant(&self, amount: u32) {
        if let Self::Log(log) = self
            && let Some(reader) = &log.attached
            && !reader.link.urgent(reader.stream, Body::Credit(amount))
        {
            reader.link.frame(reader.stream, Body::Credit(amount)).await;
        }
    }

    pub(crate) fn complain(&self, error: ErrorMessage) {
        if let Self::Relay(relay) = self {
            let message = WorkerToHub::Error(error).encode(relay.dialect);
            relay.link.text(message);
        }
    }

    /// Whether a stream is the one that reads this job.
    pub(crate) fn is_read_by(&self, link: u64, stream: StreamId) -> bool {
        match self {
            Self::Log(log) => log
                .attached
                .as_ref()
                .is_some_and(|reader| reader.link.id == link && reader.stream == stream),
            Self::Collect(_) | Self::Relay(_) => false,
        }
    }

    /// Whether another stream has taken the place of this one.
    pub(crate) fn is_read_by_another(&self, link: u64, stream: StreamId) -> bool {
        self.is_log() && self.is_attached() && !self.is_read_by(link, stream)
    }

    fn is_log(&self) -> bool {
        matches!(self, Self::Log(_))
    }

    pub(crate) fn is_on(&self, link: u64) -> bool {
        match self {
            Self::Collect(collect) => collect.link.id == link,
            Self::Relay(relay) => relay.link.id == link,
            Self::Log(log) => log
                .attached
                .as_ref()
                .is_some_and(|reader| reader.link.id == link),
        }
    }

    pub(crate) fn is_attached(&self) -> bool {
        match self {
            Self::Collect(_) | Self::Relay(_) => true,
            Self::Log(log) => log.attached.is_some(),
        }
    }

    /// Whether the program goes on when its connection is lost.
    pub(crate) fn outlives_its_link(&self) -> bool {
        matches!(self, Self::Log(_))
    }

    /// Whether a result is kept after the program ended.
    pub(crate) fn outlives_its_program(&self) -> bool {
        matches!(self, Self::Log(_))
    }

    /// Whether the reader has been sent everything.
    pub(crate) fn is_drained(&self) -> bool {
        match self {
            Self::Collect(_) | Self::Relay(_) => true,
            Self::Log(log) => log
                .attached
                .as_ref()
                .is_some_and(|reader| log.log.is_at_end(reader.cursor)),
        }
    }

    /// The program ended: an unread result should not hold memory.
    pub(crate) async fn settle(&mut self) {
        if let Self::Log(log) = self
            && log.attached.is_none()
            && log.log.end() > TAIL as u64 / 4
        {
            // Without room on disk it stays in memory, which is bounded too.
            let _ = log.log.spill(0).await;
        }
    }

    /// Sends the result to whoever is attached. False if nobody is any more.
    pub(crate) async fn send_end(&mut self, end: &End) -> bool {
        let Self::Log(log) = self else { return true };
        let Some(reader) = &log.attached else {
            return false;
        };
        let sent = reader
            .link
            .frame(reader.stream, Body::End(Box::new(end.clone())))
            .await;
        if !sent {
            log.attached = None;
        }
        sent
    }

    /// Sends the v1 reply.
    pub(crate) async fn conclude(&mut self, end: &End) {
        match self {
            Self::Collect(collect) => {
                let [out, err] = &collect.kept;
                let stdout = text_within(out, collect.dropped[0], V1_KEPT);
                let stderr = text_within(err, collect.dropped[1], V1_KEPT);
                let message = v1_reply(&collect.id, end, stdout, stderr);
                collect.link.send(&message, collect.dialect).await;
            }
            Self::Relay(relay) => {
                if let Some(bytes) = relay.pending.take() {
                    let message = relay.output(bytes);
                    relay.link.send(&message, relay.dialect).await;
                }
                let exit_code = match end.outcome {
                    Outcome::Exited { code } => code,
                    Outcome::Signaled { signal } => 128 + signal,
                    _ => -1,
                };
                let message = WorkerToHub::ShellExit {
                    id: relay.id.clone(),
                    exit_code,
                };
                relay.link.send(&message, relay.dialect).await;
            }
            Self::Log(_) => {}
        }
    }
}

impl Relay {
    fn pump(&mut self) {
        let Some(bytes) = self.pending.take() else {
            return;
        };
        match self.link.bulk.try_reserve() {
            Ok(permit) => {
                permit.send(WsMessage::Text(self.output(bytes).encode(self.dialect)));
            }
            Err(TrySendError::Full(())) => self.pending = Some(bytes),
            // The job is told of the lost connection by itself.
            Err(TrySendError::Closed(())) => {}
        }
    }

    fn output(&self, data: Bytes) -> WorkerToHub {
        WorkerToHub::ShellOutput {
            id: self.id.clone(),
            data,
        }
    }
}
