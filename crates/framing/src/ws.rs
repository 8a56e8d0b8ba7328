//! WebSocket as a byte transport.
//!
//! A sender puts one frame, prefix included, into one binary message. A reader
//! takes any binary messages as one byte stream: several frames in one message,
//! or one frame over several. Text messages are refused; ping, pong and close
//! are the transport's own business.

mod dial;
mod upgrade;

use std::io;

use bytes::{Bytes, BytesMut};
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode, header};
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error as WsError, Message};

use crate::ReadError;
use crate::proto::codec::{Decoder, FrameError, FrameFormat, HEADER_LEN};
pub use dial::{DialError, DialledSocket, DialledWs, WsDial, dial, dial_socket};
pub use upgrade::{accept_socket, switching};

/// Bytes of a request or an answer of a handshake.
const MAX_HANDSHAKE: usize = 64 * 1024;

/// Memory that one connection may take.
#[derive(Debug, Clone, Copy)]
pub struct WsLimits {
    /// The largest message that is read.
    pub max_message: usize,
    /// The read buffer, which every connection holds even when idle.
    pub read_buffer: usize,
}

impl WsLimits {
    fn config(self) -> WebSocketConfig {
        // The write buffer's bound has to hold one whole message beside what is being written.
        WebSocketConfig::default()
            .read_buffer_size(self.read_buffer)
            .write_buffer_size(self.read_buffer)
            .max_write_buffer_size(2 * self.read_buffer + self.max_message)
            .max_message_size(Some(self.max_message))
            .max_frame_size(Some(self.max_message))
    }
}

/// An answer that refuses an upgrade.
#[derive(Debug)]
pub struct Refusal {
    /// The HTTP status.
    pub status: u16,
    /// A sentence for the body.
    pub reason: String,
}

/// Answers one handshake on `socket`.
///
/// `admit` sees the request and returns the subprotocol to echo, if any, or a refusal.
pub async fn accept<S>(
    socket: S,
    limits: WsLimits,
    admit: impl FnOnce(&Request) -> Result<Option<String>, Refusal> + Unpin,
) -> Result<WebSocketStream<S>, Box<WsError>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    #[expect(
        clippy::result_large_err,
        reason = "the error type is the handshake library's"
    )]
    let check = |request: &Request, mut response: Response| match admit(request) {
        Ok(chosen) => {
            if let Some(value) = chosen.and_then(|name| HeaderValue::from_str(&name).ok()) {
                response
                    .headers_mut()
                    .insert(header::SEC_WEBSOCKET_PROTOCOL, value);
            }
            Ok(response)
        }
        Err(refusal) => {
            let mut answer = ErrorResponse::new(Some(refusal.reason));
            *answer.status_mut() =
                StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
            Err(answer)
        }
    };
    tokio_tungstenite::accept_hdr_async_with_config(socket, check, Some(limits.config()))
        .await
        .map_err(Box::new)
}

/// The two directions of a WebSocket, as a reader and a writer of frames.
pub fn frames<S>(
    socket: WebSocketStream<S>,
    format: FrameFormat,
) -> (
    WsFrameReader<impl Stream<Item = io::Result<Bytes>> + Send + Unpin>,
    WsFrameWriter<impl Sink<Bytes, Error = io::Error> + Send + Unpin>,
)
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    let (sink, stream) = socket.split();
    let sink = sink
        .sink_map_err(io::Error::other)
        .with(|bytes| std::future::ready(io::Result::Ok(Message::Binary(bytes))));
    let stream = stream.filter_map(|message| {
        std::future::ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(Message::Text(_)) => Some(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a text message on a binary connection",
            ))),
            Ok(_) => None,
            Err(WsError::ConnectionClosed) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    (
        WsFrameReader::new(stream, format),
        WsFrameWriter::new(sink, format),
    )
}

/// Reads frames from a stream of binary messages.
#[derive(Debug)]
pub struct WsFrameReader<S> {
    messages: S,
    decoder: Decoder,
}

impl<S: Stream<Item = io::Result<Bytes>> + Unpin> WsFrameReader<S> {
    /// Reads frames of `format` from `messages`.
    pub fn new(messages: S, format: FrameFormat) -> Self {
        Self {
            messages,
            decoder: Decoder::new(format),
        }
    }

    /// The next frame's payload, or `None` when the connection ended between frames. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(payload) = self.decoder.next_frame()? {
                return Ok(Some(payload));
            }
            match self.messages.next().await {
                Some(message) => self.decoder.feed(message?),
                None => {
                    self.decoder.finish()?;
                    return Ok(None);
                }
            }
        }
    }

    /// A frame that has already arrived, without touching the transport.
    pub fn buffered(&mut self) -> Result<Option<Bytes>, FrameError> {
        self.decoder.next_frame()
    }
}

/// Writes frames as binary messages, one each.
#[derive(Debug)]
pub struct WsFrameWriter<S> {
    messages: S,
    format: FrameFormat,
}

impl<S: Sink<Bytes, Error = io::Error> + Unpin> WsFrameWriter<S> {
    /// Writes frames of `format` to `messages`.
    pub fn new(messages: S, format: FrameFormat) -> Self {
        Self { messages, format }
    }

    /// Hands one frame to the transport; it may wait there until [`flush`](Self::flush).
    pub async fn feed(&mut self, payload: &[u8]) -> io::Result<()> {
        self.feed_parts(&[payload]).await
    }

    /// The same for a payload that comes in parts.
    pub async fn feed_parts(&mut self, parts: &[impl AsRef<[u8]>]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.as_ref().len()).sum();
        let header = self
            .format
            .header(len)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let mut frame = BytesMut::with_capacity(HEADER_LEN + len);
        frame.extend_from_slice(&header);
        for part in parts {
            frame.extend_from_slice(part.as_ref());
        }
        self.messages.feed(frame.freeze()).await
    }

    /// Writes everything that was fed.
    pub async fn flush(&mut self) -> io::Result<()> {
        self.messages.flush().await
    }

    /// Feeds one frame and flushes.
    pub async fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.feed(payload).await?;
        self.flush().await
    }

    /// Closes the connection.
    pub async fn close(&mut self) -> io::Result<()> {
        self.messages.close().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;
    use tokio::net::{TcpListener, TcpStream};

    const FORMAT: FrameFormat = FrameFormat::new("test", ByteOrder::Little, 1 << 20);
    const LIMITS: WsLimits = WsLimits {
        max_message: 2 << 20,
        read_buffer: 16 * 1024,
    };

    async fn pair(
        dialled: &WsDial<'_>,
        listener: TcpListener,
        admit: impl FnOnce(&Request) -> Result<Option<String>, Refusal> + Unpin,
    ) -> (
        Result<(DialledWs, Option<String>), DialError>,
        Result<WebSocketStream<TcpStream>, Box<WsError>>,
    ) {
        let accept = async {
            let (socket, _) = listener.accept().await.expect("dialled");
            super::accept(socket, LIMITS, admit).await
        };
        let request = WsDial {
            url: dialled.url,
            protocols: dialled.protocols,
            token: dialled.token,
            tls: None,
        };
        tokio::join!(dial(request, LIMITS), accept)
    }

    async fn listen() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("ws://{}/ws", listener.local_addr().expect("bound"));
        (listener, url)
    }

    #[tokio::test]
    async fn frames_cross_with_protocol_and_token() {
        let (listener, url) = listen().await;
        let request = WsDial {
            url: &url,
            protocols: &["b.v2", "b.v1"],
            token: Some("secret"),
            tls: None,
        };
        let (dialled, accepted) = pair(&request, listener, |request| {
            assert_eq!(
                request.headers().get(header::AUTHORIZATION),
                Some(&HeaderValue::from_static("Bearer secret"))
            );
            assert_eq!(
                request.headers().get(header::SEC_WEBSOCKET_PROTOCOL),
                Some(&HeaderValue::from_static("b.v2, b.v1"))
            );
            Ok(Some("b.v1".to_owned()))
        })
        .await;
        let (near, chosen) = dialled.expect("accepted");
        assert_eq!(chosen.as_deref(), Some("b.v1"));
        let (_near_reader, mut near_writer) = frames(near, FORMAT);
        let (mut far_reader, _far_writer) = frames(accepted.expect("accepted"), FORMAT);

        let payload = vec![5; 300_000];
        let send = async {
            near_writer.send(b"small").await.expect("open");
            near_writer.send(&payload).await.expect("open");
            near_writer.close().await.expect("open");
        };
        let receive = async {
            let mut seen = Vec::new();
            while let Some(frame) = far_reader.next().await.expect("valid") {
                seen.push(frame);
            }
            seen
        };
        let ((), seen) = tokio::join!(send, receive);
        assert_eq!(seen, [Bytes::from_static(b"small"), payload.clone().into()]);
    }

    #[tokio::test]
    async fn a_refusal_reaches_the_dialler_with_its_reason() {
        let (listener, url) = listen().await;
        let request = WsDial {
            url: &url,
            protocols: &[],
            token: None,
            tls: None,
        };
        let (dialled, _) = pair(&request, listener, |_| {
            Err(Refusal {
                status: 400,
                reason: "offer sandd.v1".to_owned(),
            })
        })
        .await;
        match dialled {
            Err(DialError::Refused { status, reason, .. }) => {
                assert_eq!((status, reason.as_str()), (400, "offer sandd.v1"));
            }
            other => panic!("expected a refusal, got {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_frame_split_over_messages_and_frames_in_one_message_are_read() {
        let pieces = [
            &b"\x03\0\0\0a"[..],
            b"bc\x01\0\0\0d\x01\0\0\0e",
            b"\x02\0\0\0f",
        ];
        let messages = futures_util::stream::iter(
            pieces.map(|piece| io::Result::Ok(Bytes::from_static(piece))),
        );
        let mut reader = WsFrameReader::new(messages, FORMAT);
        for expected in [&b"abc"[..], b"d", b"e"] {
            assert_eq!(
                reader.next().await.expect("valid").expect("whole"),
                expected
            );
        }
        assert!(matches!(
            reader.next().await,
            Err(ReadError::Frame(FrameError::Truncated { .. }))
        ));
    }
}
