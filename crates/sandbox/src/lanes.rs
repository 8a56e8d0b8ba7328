//! The way out of a connection: a bulk lane and a control lane that goes before it.

use std::time::Duration;

use bytes::Bytes;
use futures_util::{Sink, SinkExt as _};
use tokio::sync::{mpsc, oneshot};

use crate::proto::frame::{Body, Frame, StreamId};
use crate::proto::{Dialect, WorkerToHub};
use crate::socket::{WsError, WsMessage};

/// Messages that wait for the socket. A full lane makes its sender wait; together they hold at
/// most a few megabytes.
const BULK: usize = 32;

/// Small messages that go before bulk: acks, credit, errors. What does not fit is refused.
const CONTROL: usize = 1024;

/// How long a close frame may take to leave.
const CLOSE: Duration = Duration::from_secs(1);

/// The writing end of one connection. It stays valid, and fails, after the connection is gone.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    /// Tells the connections of one end apart; counts up.
    pub(crate) id: u64,
    pub(crate) bulk: mpsc::Sender<WsMessage>,
    control: mpsc::Sender<WsMessage>,
}

/// The reading end of the lanes, which the socket's writer holds.
#[derive(Debug)]
pub(crate) struct Lanes {
    bulk: mpsc::Receiver<WsMessage>,
    control: mpsc::Receiver<WsMessage>,
}

impl Link {
    pub(crate) fn new(id: u64) -> (Self, Lanes) {
        let (bulk, bulk_rx) = mpsc::channel(BULK);
        let (control, control_rx) = mpsc::channel(CONTROL);
        let lanes = Lanes {
            bulk: bulk_rx,
            control: control_rx,
        };
        (Self { id, bulk, control }, lanes)
    }

    /// Sends a small message without waiting. False when the lane is full, which only a peer that
    /// does not read can bring about, or the connection is gone.
    pub(crate) fn text(&self, text: Bytes) -> bool {
        self.control.try_send(WsMessage::Text(text)).is_ok()
    }

    /// Sends a v1 message in its turn. False when the connection is gone.
    pub(crate) async fn send(&self, message: &WorkerToHub, dialect: Dialect) -> bool {
        let text = WsMessage::Text(message.encode(dialect));
        self.bulk.send(text).await.is_ok()
    }

    /// Sends a v2 frame in its turn. False when the connection is gone.
    pub(crate) async fn frame(&self, stream: StreamId, body: Body) -> bool {
        self.bulk.send(binary(stream, body)).await.is_ok()
    }

    /// Opens a v2 stream: before bulk, and in order with the urgent frames that follow on it. False
    /// when the connection is gone.
    pub(crate) async fn open(&self, stream: StreamId, body: Body) -> bool {
        self.control.send(binary(stream, body)).await.is_ok()
    }

    /// Sends a v2 frame before bulk, without waiting. False when it can't.
    pub(crate) fn urgent(&self, stream: StreamId, body: Body) -> bool {
        self.control.try_send(binary(stream, body)).is_ok()
    }
}

/// A frame as a message.
pub(crate) fn binary(stream: StreamId, body: Body) -> WsMessage {
    WsMessage::Binary(Frame::new(stream, body).encode())
}

/// Writes what the lanes hold until the connection breaks or is to be closed.
///
/// Messages are fed as long as there are any and flushed when there are none, so that bulk shares
/// system calls and a lone message leaves at once.
pub(crate) async fn write_loop(
    mut sink: impl Sink<WsMessage, Error = WsError> + Unpin,
    mut lanes: Lanes,
    mut closing: oneshot::Receiver<(u16, String)>,
) -> Result<(), WsError> {
    loop {
        let message = tokio::select! {
            biased;
            close = &mut closing => {
                let (code, reason) = close.unwrap_or((crate::socket::close::NORMAL, String::new()));
                return finish(sink, lanes, code, reason).await;
            }
            Some(message) = lanes.control.recv() => message,
            Some(message) = lanes.bulk.recv() => message,
        };
        sink.feed(message).await?;
        while let Some(message) = lanes.ready() {
            sink.feed(message).await?;
        }
        sink.flush().await?;
    }
}

impl Lanes {
    fn ready(&mut self) -> Option<WsMessage> {
        self.control
            .try_recv()
            .or_else(|_| self.bulk.try_recv())
            .ok()
    }
}

/// Sends what was said before the close, then the close itself.
async fn finish(
    mut sink: impl Sink<WsMessage, Error = WsError> + Unpin,
    mut lanes: Lanes,
    code: u16,
    reason: String,
) -> Result<(), WsError> {
    let closing = async {
        while let Ok(message) = lanes.control.try_recv() {
            sink.feed(message).await?;
        }
        sink.feed(WsMessage::Close(code, reason)).await?;
        sink.flush().await
    };
    tokio::time::timeout(CLOSE, closing).await.unwrap_or(Ok(()))
}
