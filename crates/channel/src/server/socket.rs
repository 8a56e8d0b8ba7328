//! A WebSocket with an end to every wait.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use bytes::Bytes;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite;

/// Close codes of RFC 6455.
pub(super) mod code {
    pub(crate) const NORMAL: u16 = 1000;
    pub(crate) const GOING_AWAY: u16 = 1001;
    pub(crate) const PROTOCOL: u16 = 1002;
    pub(crate) const POLICY: u16 = 1008;
    pub(crate) const TOO_BIG: u16 = 1009;
}

/// How long a closing handshake may take.
const CLOSING: Duration = Duration::from_secs(2);

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// The client left, or the network did.
    #[error("the client went away")]
    Gone,
    /// The daemon stops.
    #[error("the daemon stops")]
    Stopping,
    /// A message over the limit.
    #[error("a message over the limit of {0} bytes")]
    TooLong(usize),
    /// It does not take what we send.
    #[error("the client does not read")]
    NotReading,
    /// Nothing came, not even an answer to a ping.
    #[error("the client is silent")]
    Silent,
    /// Its handshake takes too long.
    #[error("the handshake takes too long")]
    Unfinished,
    /// The pairing or the token was refused.
    #[error("{0}")]
    Refused(String),
    /// The device was revoked.
    #[error("the device was revoked")]
    Revoked,
    /// The device's pairing ended while it was connected.
    #[error("the device was not used for too long")]
    Expired,
    /// Bytes that are not of this protocol.
    #[error("{0}")]
    Violated(String),
}

impl Closed {
    /// Whether it was cut off for what it did.
    pub fn is_clients_fault(&self) -> bool {
        match self {
            Self::TooLong(_)
            | Self::NotReading
            | Self::Unfinished
            | Self::Refused(_)
            | Self::Violated(_) => true,
            Self::Gone | Self::Stopping | Self::Silent | Self::Revoked | Self::Expired => false,
        }
    }

    fn close_code(&self) -> u16 {
        match self {
            Self::Gone | Self::Refused(_) | Self::Revoked | Self::Expired => code::NORMAL,
            Self::Stopping => code::GOING_AWAY,
            Self::TooLong(_) => code::TOO_BIG,
            Self::NotReading | Self::Silent | Self::Unfinished => code::POLICY,
            Self::Violated(_) => code::PROTOCOL,
        }
    }
}

/// What came in.
#[derive(Debug)]
pub(super) enum Incoming {
    Text(String),
    Binary(Bytes),
}

/// The reading half: what comes, within its limit and before the peer counts as silent.
pub(super) struct Reader<S> {
    stream: S,
    limit: usize,
    silent: Duration,
    heard: Instant,
}

impl<S: Stream<Item = Result<Message, axum::Error>> + Unpin> Reader<S> {
    pub(super) fn new(stream: S, limit: usize, silent: Duration) -> Self {
        Self {
            stream,
            limit,
            silent,
            heard: Instant::now(),
        }
    }

    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// The next message. Nothing is lost when it is dropped unfinished.
    pub(super) async fn next(&mut self) -> Result<Incoming, Closed> {
        loop {
            let deadline = self.heard + self.silent;
            let message = tokio::time::timeout_at(deadline, self.stream.next())
                .await
                .map_err(|_| Closed::Silent)?;
            self.heard = Instant::now();
            let incoming = match message {
                None | Some(Ok(Message::Close(_))) => return Err(Closed::Gone),
                Some(Err(error)) => return Err(self.broken(error)),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => continue,
                Some(Ok(Message::Text(text))) => Incoming::Text(text.to_string()),
                Some(Ok(Message::Binary(bytes))) => Incoming::Binary(bytes),
            };
            let length = match &incoming {
                Incoming::Text(text) => text.len(),
                Incoming::Binary(bytes) => bytes.len(),
            };
            if length > self.limit {
                return Err(Closed::TooLong(self.limit));
            }
            return Ok(incoming);
        }
    }

    fn broken(&self, error: axum::Error) -> Closed {
        match error.into_inner().downcast::<tungstenite::Error>() {
            Ok(error) if matches!(*error, tungstenite::Error::Capacity(_)) => {
                Closed::TooLong(self.limit)
            }
            _ => Closed::Gone,
        }
    }
}

/// Sends, unless the socket takes nothing for too long.
pub(super) async fn send(
    sink: &mut (impl Sink<Message, Error = axum::Error> + Unpin),
    message: Message,
    limit: Duration,
) -> Result<(), Closed> {
    match timeout(limit, sink.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Closed::Gone),
        Err(_) => Err(Closed::NotReading),
    }
}

/// Says why and waits a moment for the client to hear it.
pub(super) async fn close(mut socket: WebSocket, reason: &Closed) {
    if matches!(reason, Closed::Gone) {
        // A client that said that it closes is answered (RFC 6455, 5.5.1); one that is gone is not waited for.
        let _ = timeout(CLOSING, SinkExt::close(&mut socket)).await;
        return;
    }
    let text = reason.to_string();
    let frame = CloseFrame {
        code: reason.close_code(),
        // A reason has at most 123 bytes.
        reason: text[..text.floor_char_boundary(120)].into(),
    };
    let closing = async {
        if socket.send(Message::Close(Some(frame))).await.is_err() {
            return;
        }
        // Unread bytes in our buffer would make the system reset the connection, and the frame be lost.
        while let Some(Ok(message)) = socket.next().await {
            if matches!(message, Message::Close(_)) {
                break;
            }
        }
    };
    let _ = timeout(CLOSING, closing).await;
}
