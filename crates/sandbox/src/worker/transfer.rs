//! What uploads and downloads have in common: a thread of their own and the stream they move on.
//!
//! Files block, so each transfer runs on a blocking thread; the number of transfers is limited,
//! and each holds a few chunks in memory whatever the size of its file.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::state::WorkerState;
use crate::lanes::Link;
use crate::paths::PathError;
use crate::proto::OffsetError;
use crate::proto::credit::{OverCredit, ReceiveCredit, SendCredit};
use crate::proto::frame::{
    Body, End, FailureCode, Frame, HEADER, INITIAL_CREDIT, Outcome, StreamId,
};
use crate::socket::WsMessage;

/// What may wait for a v2 transfer: its credit bounds the bytes.
pub(crate) const COMMANDS: usize = 8192;

/// How much an upload lets be in flight.
const UPLOAD_WINDOW: u32 = 4 * 1024 * 1024;

/// What a hub tells a v2 transfer.
#[derive(Debug)]
pub(crate) enum TransferCommand {
    Begin(u64),
    Data(Bytes),
    Eof,
    Credit(u32),
    Cancel,
}

/// Why a transfer ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Offset(#[from] OffsetError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error(transparent)]
    OverCredit(#[from] OverCredit),
    #[error("{limit} transfers already run on this worker; wait for one to end")]
    TooMany { limit: usize },
    #[error("{size} bytes are over this worker's limit of {limit}")]
    TooLarge { size: u64, limit: u64 },
    #[error("{size} bytes do not fit: {free} are free")]
    NoSpace { size: u64, free: u64 },
    #[error("{path:?} is being uploaded already")]
    Busy { path: String },
    #[error("{path:?} became shorter while it was read")]
    Shrunk { path: String },
    #[error("data is not base64")]
    NotBase64,
    #[error("the upload ended after {received} of {total} bytes")]
    Short { received: u64, total: u64 },
    #[error("the hub sent what has no place in this transfer")]
    Unexpected,
    #[error("nothing came for {} s", .0.as_secs())]
    Idle(Duration),
    #[error("cancelled")]
    Cancelled,
    #[error("the connection was lost")]
    Lost,
}

impl TransferError {
    pub(crate) fn outcome(&self) -> Outcome {
        let code = match self {
            Self::Cancelled => return Outcome::Cancelled,
            Self::Path(_) | Self::Busy { .. } => FailureCode::Path,
            Self::Offset(_)
            | Self::OverCredit(_)
            | Self::NotBase64
            | Self::Short { .. }
            | Self::Unexpected => FailureCode::Protocol,
            Self::TooMany { .. } | Self::TooLarge { .. } | Self::NoSpace { .. } => {
                FailureCode::Quota
            }
            Self::Io(_) | Self::Shrunk { .. } | Self::Idle(_) | Self::Lost => FailureCode::Io,
        };
        Outcome::Failed {
            code,
            error: self.to_string(),
        }
    }
}

/// A v2 stream as a transfer's thread uses it.
pub(crate) struct TransferStream {
    link: Link,
    stream: StreamId,
    commands: mpsc::Receiver<TransferCommand>,
    idle: Duration,
    send: SendCredit,
    receive: ReceiveCredit,
    runtime: tokio::runtime::Handle,
}

impl TransferStream {
    pub(crate) fn new(
        link: Link,
        stream: StreamId,
        commands: mpsc::Receiver<TransferCommand>,
        idle: Duration,
    ) -> Self {
        Self {
            link,
            stream,
            commands,
            idle,
            send: SendCredit::default(),
            receive: ReceiveCredit::new(UPLOAD_WINDOW),
            runtime: tokio::runtime::Handle::current(),
        }
    }

    pub(crate) fn id(&self) -> StreamId {
        self.stream
    }

    /// Waits for the hub's next command.
    pub(crate) fn next(&mut self) -> Result<TransferCommand, TransferError> {
        receive_within(&self.runtime, &mut self.commands, self.idle)
    }

    /// Waits for the next bytes of an upload; `None` at its end.
    pub(crate) fn next_data(&mut self) -> Result<Option<Bytes>, TransferError> {
        loop {
            match self.next()? {
                TransferCommand::Data(bytes) => {
                    self.receive.arrived(bytes.len())?;
                    return Ok(Some(bytes));
                }
                TransferCommand::Eof => return Ok(None),
                TransferCommand::Cancel => return Err(TransferError::Cancelled),
                TransferCommand::Credit(_) => {}
                TransferCommand::Begin(_) => return Err(TransferError::Unexpected),
            }
        }
    }

    /// Opens the window for an upload.
    pub(crate) fn open_window(&mut self) -> Result<(), TransferError> {
        match self.receive.open() {
            Some(more) => self.frame(Body::Credit(more)),
            None => Ok(()),
        }
    }

    /// Gives back the credit of bytes that are written.
    pub(crate) fn written(&mut self, len: usize) -> Result<(), TransferError> {
        match self.receive.taken(len) {
            Some(amount) if !self.link.urgent(self.stream, Body::Credit(amount)) => {
                self.frame(Body::Credit(amount))
            }
            _ => Ok(()),
        }
    }

    /// Sends a data frame whose payload stands behind its header, once there is credit for it.
    pub(crate) fn send_data(&mut self, frame: Bytes) -> Result<(), TransferError> {
        let len = frame.len() - HEADER;
        debug_assert!(
            len < INITIAL_CREDIT as usize,
            "a frame fits the first window"
        );
        while self.send.room(len) < len {
            match self.next()? {
                TransferCommand::Credit(amount) => self.send.grant(amount),
                TransferCommand::Cancel => return Err(TransferError::Cancelled),
                _ => return Err(TransferError::Unexpected),
            }
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                TransferCommand::Credit(amount) => self.send.grant(amount),
                TransferCommand::Cancel => return Err(TransferError::Cancelled),
                _ => return Err(TransferError::Unexpected),
            }
        }
        self.send.spend(len);
        self.put(frame)
    }

    pub(crate) fn frame(&self, body: Body) -> Result<(), TransferError> {
        self.put(Frame::new(self.stream, body).encode())
    }

    fn put(&self, frame: Bytes) -> Result<(), TransferError> {
        self.link
            .bulk
            .blocking_send(WsMessage::Binary(frame))
            .map_err(|_| TransferError::Lost)
    }
}

/// Waits on a blocking thread for an asynchronous queue.
pub(crate) fn receive_within<T>(
    runtime: &tokio::runtime::Handle,
    queue: &mut mpsc::Receiver<T>,
    idle: Duration,
) -> Result<T, TransferError> {
    match queue.try_recv() {
        Ok(command) => return Ok(command),
        Err(mpsc::error::TryRecvError::Disconnected) => return Err(TransferError::Lost),
        Err(mpsc::error::TryRecvError::Empty) => {}
    }
    runtime
        .block_on(async { tokio::time::timeout(idle, queue.recv()).await })
        .map_err(|_| TransferError::Idle(idle))?
        .ok_or(TransferError::Lost)
}

impl WorkerState {
    /// A transfer's right to run.
    pub(crate) fn transfer_permit(&self) -> Result<OwnedSemaphorePermit, TransferError> {
        self.transfers
            .clone()
            .try_acquire_owned()
            .map_err(|_| TransferError::TooMany {
                limit: self.config.quotas.transfers,
            })
    }

    /// Runs a v2 transfer on a thread of its own and ends its stream with its result.
    pub(crate) fn run_transfer(
        self: &Arc<Self>,
        link: Link,
        stream: StreamId,
        commands: mpsc::Receiver<TransferCommand>,
        work: impl FnOnce(&Self, &mut TransferStream) -> Result<(), TransferError> + Send + 'static,
    ) {
        let worker = self.clone();
        self.tasks.spawn_blocking(move || {
            let started = std::time::Instant::now();
            let mut stream =
                TransferStream::new(link, stream, commands, worker.config.quotas.transfer_idle);
            let result = worker
                .transfer_permit()
                .and_then(|_permit| work(&worker, &mut stream));
            let outcome = match &result {
                Ok(()) => Outcome::Complete,
                Err(error) => error.outcome(),
            };
            let end = End {
                outcome,
                duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
                mirrored: None,
            };
            // A lost connection has nobody to tell.
            let _ = stream.frame(Body::End(Box::new(end)));
        });
    }
}
