//! One connection of a server: one request at a time, replies written in batches.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use quintet_framing::{Decoder, FrameError};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::listen::{Closed, Limits};
use crate::proto::wire::{
    ClientExtension, ClientHello, ClientMessage, ServerMessage, client_extension::Request,
    client_message::Msg,
};
use crate::proto::{FRAME_FORMAT, ServerError, decode_request, encode_reply};
use crate::server::{ReplyStream, Server};

/// Replies are gathered up to this size before they are written even if more is ready.
const WRITE_BATCH: usize = 64 * 1024;

/// A write buffer that grew past this is given back after it was written.
const KEEP_BUFFER: usize = 1024 * 1024;

/// How much of a client's further requests is read while one is being answered.
///
/// Reading on is how a client that goes away is noticed. One that has sent more than this in
/// advance is noticed at the next write instead, and the rest of it waits in the kernel.
const READ_AHEAD: usize = 64 * 1024;

/// Who may send requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Everybody who got this far.
    Open,
    /// A client whose first message is a `hello` with a valid token.
    Token,
}

/// One client's socket, with what was read of it and what is to be written.
pub(crate) struct Connection<IO> {
    io: IO,
    decoder: Decoder,
    out: BytesMut,
    limits: Limits,
    // Pinned for as long as the connection lives: registering anew for every request would take
    // the token's lock each time.
    shutdown: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Connection<IO> {
    pub(crate) fn new(io: IO, limits: Limits, shutdown: CancellationToken) -> Self {
        Self {
            io,
            decoder: Decoder::new(FRAME_FORMAT),
            out: BytesMut::new(),
            limits,
            shutdown: Box::pin(shutdown.cancelled_owned()),
        }
    }

    /// Serves the client until one side ends it.
    pub(crate) async fn run<S: Server>(
        mut self,
        server: &S,
        access: Access,
        authorizes: impl Fn(&str) -> bool,
    ) -> Closed {
        match self.converse(server, access, authorizes).await {
            Ok(()) => Closed::ByClient,
            Err(reason) => reason,
        }
    }

    async fn converse<S: Server>(
        &mut self,
        server: &S,
        access: Access,
        authorizes: impl Fn(&str) -> bool,
    ) -> Result<(), Closed> {
        if access == Access::Token {
            let patience = self.limits.half_frame;
            let hello = timeout(patience, self.hello(authorizes))
                .await
                .map_err(|_| Closed::Unauthorized)??;
            self.reply(server.dispatch(hello)).await?;
        }
        while let Some(mut request) = self.next_request().await? {
            if let Some(hello) = hello_in(&mut request) {
                hello.token = String::new();
            }
            self.reply(server.dispatch(request)).await?;
        }
        Ok(())
    }

    /// The first message of a client that has to show a token, with the token removed.
    async fn hello(&mut self, authorizes: impl Fn(&str) -> bool) -> Result<ClientMessage, Closed> {
        let mut request = self.next_request().await?.ok_or(Closed::ByClient)?;
        let token = hello_in(&mut request).map(|hello| std::mem::take(&mut hello.token));
        if token.is_some_and(|token| authorizes(&token)) {
            return Ok(request);
        }
        encode_reply(&refusal_without_token(), &mut self.out)?;
        self.flush().await?;
        Err(Closed::Unauthorized)
    }

    /// The next request, or `None` when the client has gone. Writes what is still unwritten
    /// before it waits.
    async fn next_request(&mut self) -> Result<Option<ClientMessage>, Closed> {
        if let Some(request) = self.decoder.read_frame(decode_request)? {
            return Ok(Some(request?));
        }
        self.flush().await?;
        self.read_request().await
    }

    async fn read_request(&mut self) -> Result<Option<ClientMessage>, Closed> {
        loop {
            let patience = self
                .decoder
                .is_mid_frame()
                .then_some(self.limits.half_frame);
            let read = self.io.read_buf(self.decoder.spare());
            let read = tokio::select! {
                biased;
                read = within(patience, read) => read,
                () = &mut self.shutdown => return Err(Closed::Shutdown),
            };
            match read {
                Some(Ok(0)) => {
                    self.decoder.finish()?;
                    return Ok(None);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(io_closed(error)),
                None => {
                    let silent = self.limits.half_frame;
                    return Err(Closed::HalfFrame { silent });
                }
            }
            if let Some(request) = self.decoder.read_frame(decode_request)? {
                return Ok(Some(request?));
            }
        }
    }

    /// Queues the messages of one reply, many to a write where many are ready.
    ///
    /// A handler that makes its messages one by one is given the thread once more before each
    /// write, for as long as that brings another message: a turn's words then share a write, and a
    /// single one waits for nothing but a pass of the scheduler.
    ///
    /// The last batch is left for the caller to flush: with the next request already here, its
    /// reply joins the same write.
    async fn reply(&mut self, replies: impl ReplyStream) -> Result<(), Closed> {
        let mut replies = pin!(replies);
        loop {
            let before = self.out.len();
            let now = poll_fn(|cx| Poll::Ready(gather(replies.as_mut(), &mut self.out, cx)));
            let gathered = match now.await {
                Gathered::Waiting if self.out.is_empty() => self.wait_for(replies.as_mut()).await?,
                gathered => gathered,
            };
            match gathered {
                Gathered::Whole => return Ok(()),
                Gathered::Waiting if self.out.len() > before => pass().await,
                Gathered::Batch | Gathered::Waiting => self.flush().await?,
            }
        }
    }

    /// Waits until some of `replies` is gathered, and notices a client that goes away meanwhile.
    async fn wait_for(
        &mut self,
        mut replies: Pin<&mut impl ReplyStream>,
    ) -> Result<Gathered, Closed> {
        loop {
            let ahead = self.decoder.spare();
            let may_read = ahead.len() < READ_AHEAD;
            let out = &mut self.out;
            let some = poll_fn(|cx| match gather(replies.as_mut(), out, cx) {
                Gathered::Waiting if out.is_empty() => Poll::Pending,
                gathered => Poll::Ready(gathered),
            });
            tokio::select! {
                biased;
                gathered = some => return Ok(gathered),
                read = self.io.read_buf(ahead), if may_read => match read {
                    Ok(0) => return Err(Closed::ByClient),
                    Ok(_) => {}
                    Err(error) => return Err(io_closed(error)),
                },
            }
        }
    }

    async fn flush(&mut self) -> Result<(), Closed> {
        let grew = self.out.len() > KEEP_BUFFER;
        while !self.out.is_empty() {
            let waited = self.limits.not_reading;
            match timeout(waited, self.io.write_buf(&mut self.out)).await {
                Ok(Ok(0)) => return Err(io_closed(io::ErrorKind::WriteZero.into())),
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return Err(io_closed(error)),
                Err(_) => {
                    let unsent = self.out.len();
                    return Err(Closed::NotReading { unsent, waited });
                }
            }
        }
        if grew {
            self.out = BytesMut::new();
        }
        Ok(())
    }
}

/// How far a reply has been gathered into the write buffer.
enum Gathered {
    /// All of it.
    Whole,
    /// Enough for a write.
    Batch,
    /// What was ready; more will come.
    Waiting,
}

/// Encodes what is ready of `replies`, without a step in between for each message.
#[inline]
fn gather(
    mut replies: Pin<&mut impl ReplyStream>,
    out: &mut BytesMut,
    cx: &mut Context<'_>,
) -> Gathered {
    while out.len() < WRITE_BATCH {
        match replies.as_mut().poll_append(cx, out) {
            Poll::Ready(Some(Ok(()))) => {}
            Poll::Ready(Some(Err(error))) => {
                encode_reply(&too_large_reply(&error), out)
                    .expect("a message of one line fits in a frame");
                return Gathered::Whole;
            }
            Poll::Ready(None) => return Gathered::Whole,
            Poll::Pending => return Gathered::Waiting,
        }
    }
    Gathered::Batch
}

/// Lets every task that is ready run once. Unlike tokio's own yield it does not look for new I/O
/// first, which would cost a system call for each message.
async fn pass() {
    let mut passed = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut passed, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Awaits `work`, at most as long as `patience` says; `None` when that was over first.
async fn within<T>(patience: Option<Duration>, work: impl Future<Output = T>) -> Option<T> {
    match patience {
        Some(patience) => timeout(patience, work).await.ok(),
        None => Some(work.await),
    }
}

fn hello_in(request: &mut ClientMessage) -> Option<&mut ClientHello> {
    match &mut request.msg {
        Some(Msg::Extension(ClientExtension {
            request: Some(Request::Hello(hello)),
        })) => Some(hello),
        _ => None,
    }
}

/// A client may go away at any point; that is not a failure.
fn io_closed(error: io::Error) -> Closed {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Closed::ByClient,
        _ => Closed::Io(error),
    }
}

fn refusal_without_token() -> ServerMessage {
    ServerError::unauthorized("begin with a hello that carries the token of this daemon").into()
}

fn too_large_reply(error: &FrameError) -> ServerMessage {
    ServerError::internal(format!("the answer does not fit in a frame: {error}")).into()
}
