//! A WebSocket as this plane sees it, whoever's library carries it.
//!
//! The hub takes any stream and sink of [`WsMessage`]: [`TungsteniteSocket`] here, or a mapped
//! axum socket in the daemon.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Sink, SinkExt as _, Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::{self, Message, Utf8Bytes};

/// Close codes of RFC 6455 that this plane sends.
pub mod close {
    /// Done.
    pub const NORMAL: u16 = 1000;
    /// The program stops.
    pub const GOING_AWAY: u16 = 1001;
    /// The peer broke the protocol.
    pub const PROTOCOL: u16 = 1002;
    /// Not allowed, or, under v1, replaced by a newer connection.
    pub const POLICY: u16 = 1008;
    /// A message over the limit.
    pub const TOO_BIG: u16 = 1009;
    /// Under v2, of this plane's own: another connection registered with the same id. A worker that
    /// dialled again would take the name back, and so on for ever.
    pub const REPLACED: u16 = 4001;
}

/// One WebSocket message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WsMessage {
    /// UTF-8.
    Text(Bytes),
    /// Anything.
    Binary(Bytes),
    /// The end, with a code and a reason.
    Close(u16, String),
}

/// Why a WebSocket can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WsError {
    /// A message over the limit of the connection.
    #[error("a message over {} bytes", crate::proto::MAX_MESSAGE)]
    TooLong,
    /// Anything else.
    #[error("{0}")]
    Broken(String),
}

impl From<tungstenite::Error> for WsError {
    fn from(error: tungstenite::Error) -> Self {
        match error {
            tungstenite::Error::Capacity(_) => Self::TooLong,
            error => Self::Broken(error.to_string()),
        }
    }
}

impl WsError {
    /// From a library that wraps tungstenite and boxes its errors, as axum does.
    pub fn from_boxed(error: Box<dyn std::error::Error + Send + Sync>) -> Self {
        match error.downcast::<tungstenite::Error>() {
            Ok(error) => (*error).into(),
            Err(error) => Self::Broken(error.to_string()),
        }
    }
}

/// A tungstenite connection as a stream and sink of [`WsMessage`].
#[derive(Debug)]
pub struct TungsteniteSocket<S>(WebSocketStream<S>);

impl<S> TungsteniteSocket<S> {
    /// Wraps a connection whose handshake is done.
    pub fn new(socket: WebSocketStream<S>) -> Self {
        Self(socket)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for TungsteniteSocket<S> {
    type Item = Result<WsMessage, WsError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let message = match ready!(self.0.poll_next_unpin(cx)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
                Some(Ok(message)) => message,
            };
            let message = match message {
                Message::Text(text) => WsMessage::Text(text.into()),
                Message::Binary(bytes) => WsMessage::Binary(bytes),
                Message::Close(frame) => match frame {
                    Some(frame) => WsMessage::Close(frame.code.into(), frame.reason.to_string()),
                    None => WsMessage::Close(close::NORMAL, String::new()),
                },
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => continue,
            };
            return Poll::Ready(Some(Ok(message)));
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<WsMessage> for TungsteniteSocket<S> {
    type Error = WsError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WsError>> {
        self.0.poll_ready_unpin(cx).map_err(WsError::from)
    }

    fn start_send(mut self: Pin<&mut Self>, message: WsMessage) -> Result<(), WsError> {
        let message = match message {
            WsMessage::Text(text) => Message::Text(
                Utf8Bytes::try_from(text).map_err(|error| WsError::Broken(error.to_string()))?,
            ),
            WsMessage::Binary(bytes) => Message::Binary(bytes),
            WsMessage::Close(code, reason) => Message::Close(Some(CloseFrame {
                code: code.into(),
                reason: shorten(reason).into(),
            })),
        };
        self.0.start_send_unpin(message).map_err(WsError::from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WsError>> {
        self.0.poll_flush_unpin(cx).map_err(WsError::from)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WsError>> {
        self.0.poll_close_unpin(cx).map_err(WsError::from)
    }
}

/// A close frame holds 123 bytes of reason.
fn shorten(mut reason: String) -> String {
    let mut end = reason.len().min(120);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    reason
}
