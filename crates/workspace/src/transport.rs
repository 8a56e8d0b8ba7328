//! Frames from and to a peer, whatever carries them.

use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{Sink, Stream};
use quintet_framing::ws::{self, Refusal, WsFrameReader, WsFrameWriter};
use quintet_framing::{FrameError, FrameReader, FrameWriter, ReadError};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::proto::FORMAT;

/// The connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Io(#[from] io::Error),
    /// What came is not a sequence of frames, or broke off inside one.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl From<ReadError> for TransportError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Io(error) => Self::Io(error),
            ReadError::Frame(error) => Self::Frame(error),
        }
    }
}

/// Where frames come from.
#[async_trait]
pub trait FrameSource: Send {
    /// The next payload; `None` when the peer closed between two frames.
    async fn next(&mut self) -> Result<Option<Bytes>, TransportError>;
}

/// Where frames go.
#[async_trait]
pub trait FrameSink: Send {
    /// Adds a payload, which comes in parts, to what the next flush sends.
    async fn queue(&mut self, parts: [Bytes; 3]) -> Result<(), TransportError>;
    /// Sends what was queued.
    async fn flush(&mut self) -> Result<(), TransportError>;
}

/// Both directions of one connection.
pub struct Connection {
    pub(crate) source: Box<dyn FrameSource>,
    pub(crate) sink: Box<dyn FrameSink>,
}

impl Connection {
    /// Frames over any byte stream, such as a Unix socket.
    pub fn over_stream(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (read, write) = tokio::io::split(stream);
        Self::new(
            FrameReader::new(read, FORMAT),
            FrameWriter::new(write, FORMAT),
        )
    }

    /// Frames in binary WebSocket messages, from any stream and sink of them.
    pub fn over_messages<R, W>(messages: R, sink: W) -> Self
    where
        R: Stream<Item = io::Result<Bytes>> + Send + Unpin + 'static,
        W: Sink<Bytes, Error = io::Error> + Send + Unpin + 'static,
    {
        Self::new(
            WsFrameReader::new(messages, FORMAT),
            WsFrameWriter::new(sink, FORMAT),
        )
    }

    /// Frames from and to something else.
    pub fn new(source: impl FrameSource + 'static, sink: impl FrameSink + 'static) -> Self {
        Self {
            source: Box::new(source),
            sink: Box::new(sink),
        }
    }
}

/// Answers a WebSocket handshake that came to `own`. With a token, only who
/// knows it comes in; a page of another origin never does.
pub async fn accept_websocket<S>(
    socket: S,
    own: SocketAddr,
    token: Option<&str>,
) -> io::Result<Connection>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let socket = ws::accept(socket, crate::replica::ws_limits(), |request| {
        let origin = request.headers().get("origin");
        if origin.is_some_and(|origin| !is_own(origin.as_bytes(), own)) {
            return Err(Refusal {
                status: 403,
                reason: "a page of another origin may not connect".to_owned(),
            });
        }
        let given = request.headers().get("authorization");
        let given = given.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        match token {
            Some(token) if !given.is_some_and(|given| same_secret(given, token)) => Err(Refusal {
                status: 401,
                reason: "the token is missing or wrong".to_owned(),
            }),
            _ => Ok(None),
        }
    })
    .await
    .map_err(io::Error::other)?;
    let (source, sink) = ws::frames(socket, FORMAT);
    Ok(Connection::new(source, sink))
}

/// Whether a page has this address as its origin. What a browser asks for is not
/// looked at: anybody's name can be pointed at this machine.
fn is_own(origin: &[u8], own: SocketAddr) -> bool {
    let by_name = format!("http://localhost:{}", own.port());
    origin == format!("http://{own}").as_bytes()
        || own.ip().is_loopback() && origin == by_name.as_bytes()
}

/// Compares without telling by its time how much was right.
fn same_secret(a: &str, b: &str) -> bool {
    blake3::hash(a.as_bytes()) == blake3::hash(b.as_bytes())
}

#[async_trait]
impl<R: AsyncRead + Send + Unpin> FrameSource for FrameReader<R> {
    async fn next(&mut self) -> Result<Option<Bytes>, TransportError> {
        Ok(Self::next(self).await?)
    }
}

#[async_trait]
impl<W: AsyncWrite + Send + Unpin> FrameSink for FrameWriter<W> {
    async fn queue(&mut self, parts: [Bytes; 3]) -> Result<(), TransportError> {
        Ok(self.queue_parts(parts)?)
    }

    async fn flush(&mut self) -> Result<(), TransportError> {
        Ok(Self::flush(self).await?)
    }
}

#[async_trait]
impl<S: Stream<Item = io::Result<Bytes>> + Send + Unpin> FrameSource for WsFrameReader<S> {
    async fn next(&mut self) -> Result<Option<Bytes>, TransportError> {
        Ok(Self::next(self).await?)
    }
}

#[async_trait]
impl<S: Sink<Bytes, Error = io::Error> + Send + Unpin> FrameSink for WsFrameWriter<S> {
    async fn queue(&mut self, parts: [Bytes; 3]) -> Result<(), TransportError> {
        Ok(self.feed_parts(&parts).await?)
    }

    async fn flush(&mut self) -> Result<(), TransportError> {
        Ok(Self::flush(self).await?)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// The first line of the answer to a page's handshake.
    async fn answer(own: &str, more: &str) -> String {
        let (mut page, socket) = tokio::io::duplex(4096);
        let request = format!(
            "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
        );
        page.write_all(request.as_bytes()).await.unwrap();
        drop(accept_websocket(socket, own.parse().unwrap(), None).await);
        let mut answer = String::new();
        page.read_to_string(&mut answer).await.unwrap();
        answer.lines().next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn a_page_of_another_origin_is_refused_and_a_program_is_not() {
        let refused = "HTTP/1.1 403 Forbidden";
        let accepted = "HTTP/1.1 101 Switching Protocols";
        for (own, more, expected) in [
            ("127.0.0.1:3002", "", accepted),
            (
                "127.0.0.1:3002",
                "Origin: http://127.0.0.1:3002\r\n",
                accepted,
            ),
            (
                "127.0.0.1:3002",
                "Origin: http://localhost:3002\r\n",
                accepted,
            ),
            (
                "127.0.0.1:3002",
                "Origin: http://127.0.0.1:3003\r\n",
                refused,
            ),
            (
                "127.0.0.1:3002",
                "Origin: https://evil.example\r\n",
                refused,
            ),
            // A name that its owner points at this machine.
            ("127.0.0.1:3002", "Origin: http://x\r\n", refused),
            ("127.0.0.1:3002", "Origin: null\r\n", refused),
            ("127.0.0.1:3002", "Origin: \r\n", refused),
            (
                "10.0.0.1:3002",
                "Origin: http://localhost:3002\r\n",
                refused,
            ),
        ] {
            assert_eq!(answer(own, more).await, expected, "{own} {more}");
        }
    }
}
