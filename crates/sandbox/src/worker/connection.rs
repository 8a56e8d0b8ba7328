//! One connection to a hub: what it asks, handed to jobs and transfers.
//!
//! The reader never waits for the writer: two ends that both write and wait would stop each other
//! for ever. The one thing it waits for is the disk of a v1 upload, which needs nobody's socket.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::job::{JobCommand, failed};
use super::load::LoadMeter;
use super::state::{Asker, CommandRequest, ShellRequest, StartError, WorkerState};
use super::transfer::{COMMANDS, TransferCommand};
use super::upload::{V1Chunk, V1Upload, V2Upload};
use crate::lanes::{Link, write_loop};
use crate::mtime;
use crate::proto::frame::{Body, End, FailureCode, Frame, OPEN_FOLDER, Open, Outcome, StreamId};
use crate::proto::parse::{Fault, ParseError};
use crate::proto::{
    DEFAULT_TIMEOUT_SECS, Dialect, ErrorMessage, FormerConnection, HubToWorker, IdKey, Metadata,
    Protocol, SnapshotReply, WorkerEvent, WorkerSession, WorkerToHub,
};
use crate::socket::{WsError, WsMessage, close};

/// Streams that one connection may have open.
const MAX_STREAMS: usize = 4096;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum Ended {
    Shutdown,
    /// The hub does not want this worker.
    Refused(String),
    /// Another worker has its name.
    Replaced,
    Lost(String),
}

/// Serves a connection until it ends. `registered` is called when the hub knows this worker.
pub(crate) async fn serve(
    worker: Arc<WorkerState>,
    socket: impl Stream<Item = Result<WsMessage, WsError>>
    + futures_util::Sink<WsMessage, Error = WsError>
    + Unpin,
    protocol: Protocol,
    link_id: u64,
    registered: impl FnMut(),
    shutdown: &CancellationToken,
) -> Ended {
    let (sink, stream) = socket.split();
    let (link, lanes) = Link::new(link_id);
    let (close_tx, close_rx) = oneshot::channel();
    let mut connection = Connection {
        session: WorkerSession::new(
            worker.config.pulse,
            worker.config.daemon_id.clone(),
            metadata(&worker, protocol, link_id),
            Duration::ZERO,
        ),
        worker: worker.clone(),
        protocol,
        link,
        epoch: Instant::now(),
        load: LoadMeter::new(),
        uploads: HashMap::new(),
        streams: HashMap::new(),
        registered: false,
        last_stream: 0,
    };
    let writer = write_loop(sink, lanes, close_rx);
    tokio::pin!(writer);
    let (ended, code) = tokio::select! {
        ended = connection.read_loop(stream, registered) => ended,
        result = &mut writer => {
            let reason = result.err().map_or_else(String::new, |error| error.to_string());
            connection.remember();
            worker.jobs.tell_all(|| JobCommand::LinkLost(link_id));
            return Ended::Lost(reason);
        }
        () = shutdown.cancelled() => (Ended::Shutdown, close::GOING_AWAY),
    };
    connection.remember();
    worker.jobs.tell_all(|| JobCommand::LinkLost(link_id));
    // Uploads of this connection see their queue close.
    drop(connection);
    let reason = match &ended {
        Ended::Shutdown => "the worker stops".to_owned(),
        Ended::Replaced => "replaced".to_owned(),
        Ended::Refused(reason) | Ended::Lost(reason) => reason.clone(),
    };
    if close_tx.send((code, reason)).is_ok() {
        // It ends by itself within its own limit; how is of no interest any more.
        let _ = writer.await;
    }
    ended
}

fn metadata(worker: &WorkerState, protocol: Protocol, link: u64) -> Metadata {
    let uname = rustix::system::uname();
    let (opens, connection, former, copies) = match protocol {
        Protocol::V1 => (Vec::new(), None, None, String::new()),
        Protocol::V2 => {
            let mirrors = worker.config.mirrors.as_ref();
            let copies = mirrors.and_then(|it| it.folder().into_os_string().into_string().ok());
            (
                vec![OPEN_FOLDER.to_owned()],
                Some(worker.connection_name(link)),
                worker.former().clone(),
                copies.unwrap_or_default(),
            )
        }
    };
    Metadata {
        hostname: uname.nodename().to_string_lossy().into_owned(),
        platform: uname.sysname().to_string_lossy().to_lowercase(),
        arch: uname.machine().to_string_lossy().into_owned(),
        version: worker.config.version.clone(),
        labels: worker.config.labels.clone(),
        opens,
        connection,
        former,
        copies,
    }
}

struct Connection {
    worker: Arc<WorkerState>,
    session: WorkerSession,
    protocol: Protocol,
    link: Link,
    epoch: Instant,
    load: LoadMeter,
    uploads: HashMap<String, mpsc::Sender<V1Chunk>>,
    streams: HashMap<StreamId, StreamHandle>,
    registered: bool,
    /// The highest number of a stream that was opened.
    last_stream: StreamId,
}

enum StreamHandle {
    Job(mpsc::Sender<JobCommand>),
    Transfer(mpsc::Sender<TransferCommand>),
}

impl StreamHandle {
    fn is_closed(&self) -> bool {
        match self {
            Self::Job(sender) => sender.is_closed(),
            Self::Transfer(sender) => sender.is_closed(),
        }
    }
}

/// A peer that breaks the framing can't be talked to any further.
struct Broken(String);

impl Connection {
    async fn read_loop(
        &mut self,
        mut stream: impl Stream<Item = Result<WsMessage, WsError>> + Unpin,
        mut registered: impl FnMut(),
    ) -> (Ended, u16) {
        loop {
            self.send_pending();
            let timeout = self.epoch + self.session.poll_timeout();
            let event = tokio::select! {
                message = stream.next() => match message {
                    Some(Ok(WsMessage::Text(text))) => match std::str::from_utf8(&text) {
                        Ok(text) => self.session.handle_text(text, self.epoch.elapsed()),
                        Err(_) => {
                            let reason = "a text that is not UTF-8".to_owned();
                            return (Ended::Lost(reason), close::NOT_UTF8);
                        }
                    },
                    Some(Ok(WsMessage::Binary(bytes))) => {
                        if self.protocol == Protocol::V2
                            && let Err(Broken(reason)) = self.binary(&bytes)
                        {
                            return (Ended::Lost(reason), close::PROTOCOL);
                        }
                        continue;
                    }
                    Some(Ok(WsMessage::Close(close::REPLACED, _))) => {
                        return (Ended::Replaced, close::NORMAL);
                    }
                    Some(Ok(WsMessage::Close(_, reason))) => {
                        return (Ended::Lost(format!("the hub closed: {reason}")), close::NORMAL);
                    }
                    Some(Err(error)) => {
                        return (Ended::Lost(error.to_string()), error.close_code());
                    }
                    None => return (Ended::Lost("the hub is gone".to_owned()), close::NORMAL),
                },
                () = tokio::time::sleep_until(timeout) => self.session.handle_timeout(self.now()),
            };
            match event {
                WorkerEvent::None => {}
                WorkerEvent::Registered => {
                    self.registered = true;
                    registered();
                }
                WorkerEvent::Refused { reason } => {
                    return (Ended::Refused(reason), close::NORMAL);
                }
                WorkerEvent::Request { request, dialect } => self.request(request, dialect).await,
                WorkerEvent::Fault { error, log } => self.fault(&error, log).await,
                WorkerEvent::Dead => {
                    let reason = "the hub stopped answering".to_owned();
                    return (Ended::Lost(reason), close::NORMAL);
                }
            }
        }
    }

    /// Keeps, for the hub of the next connection, what came on this one. Nothing is sent on one that
    /// was never registered.
    fn remember(&self) {
        if self.protocol == Protocol::V2 && self.registered {
            *self.worker.former() = Some(FormerConnection {
                connection: self.worker.connection_name(self.link.id),
                last_stream: self.last_stream,
            });
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn send_pending(&mut self) {
        while let Some((mut message, dialect)) = self.session.poll_send() {
            // The released programs' heartbeat has nothing in it.
            if let WorkerToHub::Heartbeat { load } = &mut message
                && self.protocol == Protocol::V2
            {
                *load = self.load.read();
            }
            // A full lane means that the hub does not read; it will miss the heartbeat too.
            self.link.text(message.encode(dialect));
        }
    }

    async fn fault(&mut self, error: &ParseError, log: bool) {
        if log {
            tracing::warn!(%error, "a message from the hub can't be used");
        }
        if error.fault == Fault::NotBase64
            && let Some((_, id)) = &error.id
            && let Some(upload) = self.uploads.get(id)
        {
            // An upload that already failed needs no second reason.
            let _ = upload.send(V1Chunk::NotBase64).await;
        }
    }

    async fn request(&mut self, request: HubToWorker, dialect: Dialect) {
        let asker = Asker::V1 {
            link: self.link.clone(),
            dialect,
        };
        match request {
            HubToWorker::ExecuteCommand {
                id,
                command,
                timeout_secs,
                env,
                cwd,
            } => {
                let request = CommandRequest {
                    id: id.clone(),
                    command,
                    timeout: Duration::from_secs(timeout_secs.unwrap_or(DEFAULT_TIMEOUT_SECS)),
                    env,
                    cwd,
                    stdin: false,
                    mirror: None,
                };
                if let Err(error) = self.worker.start_command(request, asker) {
                    let error = error.to_string();
                    self.answer(&WorkerToHub::CommandError { id, error }, dialect);
                }
            }
            HubToWorker::StartShell {
                id,
                rows,
                cols,
                term,
            } => {
                let request = ShellRequest {
                    id: id.clone(),
                    rows,
                    cols,
                    term,
                    cwd: None,
                    mirror: None,
                };
                if let Err(error) = self.worker.start_shell(request, asker) {
                    let message = WorkerToHub::ShellStarted {
                        id,
                        success: false,
                        error: Some(error.to_string()),
                    };
                    self.answer(&message, dialect);
                }
            }
            HubToWorker::ShellInput { id, data } => {
                self.to_shell(&id, JobCommand::Input(data), dialect);
            }
            HubToWorker::ShellResize { id, rows, cols } => {
                self.to_shell(&id, JobCommand::Resize { rows, cols }, dialect);
            }
            // The released server also closes shells that have ended.
            HubToWorker::ShellClose { id } => {
                if let Some(job) = self.worker.jobs.find(&id) {
                    let _ = job.try_send(JobCommand::Cancel(None));
                }
            }
            HubToWorker::FileUploadStart {
                id,
                path,
                total_size,
                mode,
            } => {
                self.uploads.retain(|_, upload| !upload.is_closed());
                let upload = V1Upload {
                    id: id.clone(),
                    path,
                    total_size,
                    mode,
                };
                let link = self.link.clone();
                let chunks = self.worker.start_v1_upload(upload, link, dialect);
                self.uploads.insert(id, chunks);
            }
            HubToWorker::FileUploadChunk { id, data, offset } => {
                let chunk = V1Chunk::Data {
                    offset,
                    bytes: data,
                };
                match self.uploads.get(&id) {
                    // Chunks behind a failed one are dropped: the failure has been answered.
                    Some(upload) => drop(upload.send(chunk).await),
                    None => self.unknown(transfer_key(dialect), id, "upload", dialect),
                }
            }
            HubToWorker::FileDownloadStart { id, path } => {
                let link = self.link.clone();
                self.worker.start_v1_download(id, path, link, dialect);
            }
            HubToWorker::Snapshot { id, request } => {
                let (worker, link) = (self.worker.clone(), self.link.clone());
                self.worker.tasks.spawn(async move {
                    let reply = match &worker.config.snapshots {
                        Some(snapshots) => snapshots.answer(request).await,
                        None => SnapshotReply::Error(
                            "no workspace with a history is attached to this worker".to_owned(),
                        ),
                    };
                    let message = WorkerToHub::Snapshot { id, reply };
                    link.send(&message, dialect).await;
                });
            }
            HubToWorker::RegisterAck { .. }
            | HubToWorker::Pong
            | HubToWorker::HeartbeatAck { .. }
            | HubToWorker::Error(_) => {}
        }
    }

    fn answer(&self, message: &WorkerToHub, dialect: Dialect) {
        self.link.text(message.encode(dialect));
    }

    fn unknown(&self, key: IdKey, id: String, what: &str, dialect: Dialect) {
        let error = ErrorMessage {
            message: format!("there is no {what} {id:?} here"),
            recoverable: true,
            id: Some((key, id)),
        };
        self.answer(&WorkerToHub::Error(error), dialect);
    }

    fn to_shell(&self, id: &str, command: JobCommand, dialect: Dialect) {
        match self.worker.jobs.find(id) {
            Some(job) => {
                // Full only when the hub types faster than the job can even refuse it.
                let _ = job.try_send(command);
            }
            None => self.unknown(IdKey::Session, id.to_owned(), "shell", dialect),
        }
    }

    fn binary(&mut self, bytes: &Bytes) -> Result<(), Broken> {
        let Frame { stream, body } =
            Frame::decode(bytes).map_err(|fault| Broken(fault.to_string()))?;
        if let Body::Open(open) = body {
            return self.open(stream, *open);
        }
        let Some(handle) = self.streams.get(&stream) else {
            // It crossed with the end of its stream.
            return Ok(());
        };
        let delivered = match (handle, body) {
            (StreamHandle::Job(job), body) => {
                let link = self.link.id;
                let command = match body {
                    Body::In(bytes) => JobCommand::Input(bytes),
                    Body::Eof => JobCommand::Eof,
                    Body::Credit(amount) => JobCommand::Credit {
                        link,
                        stream,
                        amount,
                    },
                    Body::Resize { rows, cols } => JobCommand::Resize { rows, cols },
                    Body::Cancel => JobCommand::Cancel(Some((link, stream))),
                    Body::Detach => JobCommand::Detach { link, stream },
                    Body::Done => JobCommand::Forget(Some((link, stream))),
                    _ => return Err(unexpected()),
                };
                job.try_send(command)
                    .map_err(|error| matches!(error, mpsc::error::TrySendError::Full(_)))
            }
            (StreamHandle::Transfer(transfer), body) => {
                let command = match body {
                    Body::Begin(offset) => TransferCommand::Begin(offset),
                    Body::In(bytes) => TransferCommand::Data(bytes),
                    Body::Eof => TransferCommand::Eof,
                    Body::Credit(amount) => TransferCommand::Credit(amount),
                    Body::Cancel | Body::Detach => TransferCommand::Cancel,
                    Body::Done | Body::Resize { .. } => return Ok(()),
                    _ => return Err(unexpected()),
                };
                transfer
                    .try_send(command)
                    .map_err(|error| matches!(error, mpsc::error::TrySendError::Full(_)))
            }
        };
        match delivered {
            Ok(()) => Ok(()),
            Err(true) => Err(Broken("more commands than a stream can hold".to_owned())),
            Err(false) => {
                self.streams.remove(&stream);
                Ok(())
            }
        }
    }

    fn open(&mut self, stream: StreamId, open: Open) -> Result<(), Broken> {
        self.last_stream = self.last_stream.max(stream);
        if self.streams.contains_key(&stream) {
            return Err(Broken(format!("stream {stream} was opened twice")));
        }
        if self.streams.len() >= MAX_STREAMS {
            self.streams.retain(|_, handle| !handle.is_closed());
        }
        if self.streams.len() >= MAX_STREAMS {
            let error = format!("{MAX_STREAMS} streams are open");
            self.link.urgent(stream, failed(FailureCode::Quota, error));
            return Ok(());
        }
        let asker = Asker::V2 {
            link: self.link.clone(),
            stream,
        };
        let started = match open {
            Open::Exec {
                id,
                command,
                timeout_secs,
                timeout_ms,
                env,
                cwd,
                stdin,
                mirror,
            } => {
                let request = CommandRequest {
                    id,
                    command,
                    timeout: timeout_ms
                        .map_or(Duration::from_secs(timeout_secs), Duration::from_millis),
                    env,
                    cwd,
                    stdin,
                    mirror,
                };
                self.worker.start_command(request, asker)
            }
            Open::Shell {
                id,
                rows,
                cols,
                term,
                cwd,
                mirror,
            } => {
                let request = ShellRequest {
                    id,
                    rows,
                    cols,
                    term,
                    cwd,
                    mirror,
                };
                self.worker.start_shell(request, asker)
            }
            Open::Attach { id, stdout, stderr } => {
                self.attach(stream, &id, stdout, stderr);
                return Ok(());
            }
            Open::Jobs => {
                let jobs = self.worker.jobs.list();
                let end = End {
                    outcome: Outcome::Jobs { jobs },
                    duration_ms: 0,
                    mirrored: None,
                };
                self.link.urgent(stream, Body::End(Box::new(end)));
                return Ok(());
            }
            transfer @ (Open::Upload { .. }
            | Open::Folder { .. }
            | Open::Download { .. }
            | Open::List { .. }) => {
                self.transfer(stream, transfer);
                return Ok(());
            }
        };
        match started {
            Ok(job) => {
                self.streams.insert(stream, StreamHandle::Job(job));
            }
            Err(error) => {
                let code = match &error {
                    StartError::Admit(_) => FailureCode::Quota,
                    StartError::ZeroTimeout | StartError::BadEnv(_) => FailureCode::Spawn,
                };
                self.link.urgent(stream, failed(code, error.to_string()));
            }
        }
        Ok(())
    }

    fn attach(&mut self, stream: StreamId, id: &str, stdout: u64, stderr: u64) {
        let attached = self.worker.jobs.find(id).filter(|job| {
            let command = JobCommand::Attach {
                link: self.link.clone(),
                stream,
                stdout,
                stderr,
            };
            job.try_send(command).is_ok()
        });
        match attached {
            Some(job) => {
                self.streams.insert(stream, StreamHandle::Job(job));
            }
            None => {
                let error = format!(
                    "this worker has no command or shell {id:?}: it was fetched or given up, or the \
                     worker was started anew since; `quintet jobs` lists what it has"
                );
                self.link
                    .urgent(stream, failed(FailureCode::UnknownJob, error));
            }
        }
    }

    fn transfer(&mut self, stream: StreamId, open: Open) {
        let (sender, commands) = mpsc::channel(COMMANDS);
        self.streams.insert(stream, StreamHandle::Transfer(sender));
        let link = self.link.clone();
        self.worker
            .run_transfer(link, stream, commands, move |worker, stream| match open {
                Open::Upload {
                    path,
                    total_size,
                    mode,
                    mtime_ms,
                    mtime_ns,
                } => {
                    let upload = V2Upload {
                        path,
                        total_size,
                        mode,
                        modified: mtime_ms.and_then(|ms| mtime::join(ms, mtime_ns)),
                    };
                    worker.receive_v2(&upload, stream)
                }
                Open::Folder {
                    path,
                    mode,
                    mtime_ms,
                    mtime_ns,
                } => {
                    let modified = mtime_ms.and_then(|ms| mtime::join(ms, mtime_ns));
                    worker.make_folder(&path, mode, modified)
                }
                Open::Download {
                    path,
                    offset,
                    blake3,
                } => worker.send_v2(&path, offset, blake3.as_deref(), stream),
                Open::List { path } => worker.list(&path, stream),
                _ => Ok(()),
            });
    }
}

fn unexpected() -> Broken {
    Broken("the hub sent a frame that only a worker sends".to_owned())
}

fn transfer_key(dialect: Dialect) -> IdKey {
    match dialect {
        Dialect::Seed => IdKey::Transfer,
        Dialect::Released => IdKey::Request,
    }
}
