//! The client's transports.

use std::io;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use futures_util::{Stream, StreamExt};
use quintet_framing::Decoder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, ToSocketAddrs, UnixStream};
use tokio_util::io::poll_read_buf;

use crate::client::{Client, ClientError, Outcome, poll_typed};
use crate::proto::wire::{
    AttachMsg, ClientHello, ClientMessage, RetryMsg, ServerHello, ServerMessage, StreamEvent,
    StreamMsg,
};
use crate::proto::{FRAME_FORMAT, Piece, ReplyShape, decode_reply, encode_request};

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

    fn replies(&mut self, message: &ClientMessage) -> Replies<'_, IO> {
        let shape = ReplyShape::of(message);
        let refused = self.begin(message).err();
        Replies {
            connection: self,
            shape,
            refused,
            finished: false,
        }
    }

    fn begin(&mut self, message: &ClientMessage) -> Outcome<()> {
        if self.in_reply {
            return Err(ClientError::Abandoned);
        }
        encode_request(message, &mut self.out)?;
        self.in_reply = true;
        Ok(())
    }

    /// The next message where it is a piece of text that has arrived whole.
    #[inline(always)]
    fn next_piece(&mut self) -> Option<Piece> {
        if !self.out.is_empty() {
            return None;
        }
        let payload = self.decoder.whole_frame()?;
        let len = payload.len();
        let piece = Piece::read(payload)?;
        self.decoder.skip_frame(len);
        Some(piece)
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
            if let Some(message) = self.decoder.read_frame(decode_reply)? {
                return Poll::Ready(Ok(message?));
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
        self.replies(&message)
    }

    fn stream(&mut self, request: StreamMsg) -> impl Stream<Item = Outcome<StreamEvent>> + Send {
        Turn(self.replies(&request.into()))
    }

    fn retry(&mut self, request: RetryMsg) -> impl Stream<Item = Outcome<StreamEvent>> + Send {
        Turn(self.replies(&request.into()))
    }

    fn attach(&mut self, request: AttachMsg) -> impl Stream<Item = Outcome<StreamEvent>> + Send {
        Turn(self.replies(&request.into()))
    }
}

/// The messages of one reply.
struct Replies<'c, IO> {
    connection: &'c mut ClientConnection<IO>,
    shape: ReplyShape,
    /// Why the request was not even sent.
    refused: Option<ClientError>,
    finished: bool,
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Stream for Replies<'_, IO> {
    type Item = Outcome<ServerMessage>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.finished {
            return Poll::Ready(None);
        }
        if this.refused.is_some() {
            this.finished = true;
            return Poll::Ready(this.refused.take().map(Err));
        }
        let message = ready!(this.connection.poll_message(cx));
        match &message {
            Ok(message) if this.shape.is_last(message) => {
                this.finished = true;
                this.connection.in_reply = false;
            }
            Ok(_) => {}
            Err(_) => this.finished = true,
        }
        Poll::Ready(Some(message))
    }
}

/// The events of a turn. Nearly all are pieces of text, which become no message on the way.
struct Turn<'c, IO>(Replies<'c, IO>);

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Turn<'_, IO> {
    #[inline(never)]
    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Outcome<StreamEvent>>> {
        poll_typed(Pin::new(&mut self.0), cx)
    }
}

impl<IO: AsyncRead + AsyncWrite + Unpin + Send> Stream for Turn<'_, IO> {
    type Item = Outcome<StreamEvent>;

    #[inline(always)]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        // A piece of text is never the last event, after which the stream has ended.
        if !this.0.finished
            && this.0.refused.is_none()
            && let Some(piece) = this.0.connection.next_piece()
        {
            return Poll::Ready(Some(Ok(piece.into())));
        }
        this.poll_message(cx)
    }
}
