//! The client's transports.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use futures_util::{Stream, StreamExt};
use prost::Message;
use quintet_framing::Decoder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream};
use tokio_util::io::poll_read_buf;

use crate::client::{Client, ClientError, Outcome};
use crate::proto::wire::{ClientHello, ClientMessage, ServerHello, ServerMessage};
use crate::proto::{FRAME_FORMAT, ReplyShape, encode_frame};

/// A client on the daemon's Unix socket.
pub type UnixClient = ClientConnection<UnixStream>;

/// A client over TCP.
pub type TcpClient = ClientConnection<TcpStream>;

/// A client on any byte stream.
#[derive(Debug)]
pub struct ClientConnection<IO> {
    io: IO,
    decoder: Decoder,
    out: BytesMut,
    /// A request has been sent and its reply has not been read to the end.
    in_reply: bool,
}

impl UnixClient {
    /// Dials the daemon's socket.
    pub async fn connect(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self::new(quintet_framing::unix::dial(path.as_ref()).await?))
    }
}

impl TcpClient {
    /// Dials the daemon and says `hello`, which has to carry the token.
    pub async fn connect(
        address: impl ToSocketAddrs,
        hello: ClientHello,
    ) -> Outcome<(Self, ServerHello)> {
        let mut client = Self::new(quintet_framing::tcp::dial(address).await?);
        let answer = client.hello(hello).await?;
        Ok((client, answer))
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> ClientConnection<IO> {
    /// A client on a connected stream.
    pub fn new(io: IO) -> Self {
        Self {
            io,
            decoder: Decoder::new(FRAME_FORMAT),
            out: BytesMut::new(),
            in_reply: false,
        }
    }

    fn begin(&mut self, message: &ClientMessage) -> Outcome<()> {
        if self.in_reply {
            return Err(ClientError::Abandoned);
        }
        encode_frame(message, &mut self.out)?;
        self.in_reply = true;
        Ok(())
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Outcome<ServerMessage>> {
        while !self.out.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.out))?;
            if written == 0 {
                return Poll::Ready(Err(ClientError::Closed));
            }
            self.out.advance(written);
        }
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return Poll::Ready(Ok(ServerMessage::decode(frame)?));
            }
            let read = poll_read_buf(Pin::new(&mut self.io), cx, self.decoder.spare());
            if ready!(read)? == 0 {
                return Poll::Ready(Err(ClientError::Closed));
            }
        }
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Client for ClientConnection<IO> {
    async fn request(&mut self, message: ClientMessage) -> Outcome<ServerMessage> {
        let first = self.request_stream(message).next().await;
        first.unwrap_or(Err(ClientError::Closed))
    }

    fn request_stream(
        &mut self,
        message: ClientMessage,
    ) -> impl Stream<Item = Outcome<ServerMessage>> + Send {
        let shape = ReplyShape::of(&message);
        let state = match self.begin(&message) {
            Ok(()) => State::Reading,
            Err(error) => State::Refused(error),
        };
        Replies {
            connection: self,
            shape,
            state,
        }
    }
}

/// The messages of one reply.
struct Replies<'c, IO> {
    connection: &'c mut ClientConnection<IO>,
    shape: ReplyShape,
    state: State,
}

enum State {
    Refused(ClientError),
    Reading,
    Finished,
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Stream for Replies<'_, IO> {
    type Item = Outcome<ServerMessage>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match std::mem::replace(&mut this.state, State::Finished) {
            State::Finished => Poll::Ready(None),
            State::Refused(error) => Poll::Ready(Some(Err(error))),
            State::Reading => {
                let Poll::Ready(message) = this.connection.poll_message(cx) else {
                    this.state = State::Reading;
                    return Poll::Pending;
                };
                if let Ok(message) = &message {
                    if this.shape.is_last(message) {
                        this.connection.in_reply = false;
                    } else {
                        this.state = State::Reading;
                    }
                }
                Poll::Ready(Some(message))
            }
        }
    }
}
