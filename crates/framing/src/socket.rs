//! A WebSocket whose handshake is done, over any byte stream.
//!
//! Large payloads are read straight into the memory that they are handed out in, and written from
//! the memory that they came in. Between small messages a connection holds no buffer at all, so that
//! thousands of idle ones cost little; what large ones were read into, 6 MiB at the most, is kept for
//! the next until sixteen small ones in a row have come.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use futures_util::{Sink, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::io::poll_read_buf;

use crate::proto::blocks::Blocks;
use crate::proto::websocket::{Assembler, MAX_HEAD, Outgoing, Received, close_payload};
pub use crate::proto::websocket::{Role, WsFault, WsMessage, close};

/// What is read at once while no large payload is awaited. It is on the stack.
const SMALL_READ: usize = 8 * 1024;

/// The most memory that is taken ahead of the bytes that have arrived of a large payload.
const GROWTH_STEP: usize = 256 * 1024;

/// Memory that large payloads are read into; one of ours fits with the head of the next.
const BLOCK: usize = GROWTH_STEP;

/// Blocks that are kept: what may be on its way of a file, and some.
const KEPT: usize = 24;

/// Payloads up to this are gathered with their neighbours before they are written.
const GATHERED: usize = 4 * 1024;

/// Bytes that may wait before a sender waits until they are written.
const QUEUED: usize = 64 * 1024;

/// Slices of one write.
const SLICES: usize = 16;

/// Why a WebSocket can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WsError {
    /// The peer sent what is not a WebSocket message.
    #[error(transparent)]
    Fault(#[from] WsFault),
    /// The connection ended inside a message.
    #[error("the connection ended inside a message")]
    Cut,
    /// The connection broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl WsError {
    /// The code of the close frame that answers it.
    pub fn close_code(&self) -> u16 {
        match self {
            Self::Fault(WsFault::TooLong { .. }) => close::TOO_BIG,
            Self::Fault(_) => close::PROTOCOL,
            Self::Cut | Self::Io(_) => close::NORMAL,
        }
    }
}

/// How long the messages of a socket may be, for whoever no longer has the socket whole.
#[derive(Debug, Clone)]
pub struct MessageLimit(Arc<AtomicUsize>);

impl MessageLimit {
    /// From the next frame that is read on messages may have at most `bytes`.
    pub fn set(&self, bytes: usize) {
        self.0.store(bytes, Ordering::Relaxed);
    }
}

/// A stream and sink of [`WsMessage`]. Pings are answered by the stream, while it is polled.
#[derive(Debug)]
pub struct WsSocket<S> {
    stream: S,
    assembler: Assembler,
    limit: MessageLimit,
    arrived: BytesMut,
    /// Memory of large payloads.
    blocks: Blocks,
    /// Whether `arrived` is one of them.
    in_block: bool,
    writing: Writing,
    /// The reader writes: the answer to a ping, while nobody else does.
    answering: bool,
    ended: bool,
}

impl<S> WsSocket<S> {
    /// The end `role` of a connection, of which `arrived` was read behind the handshake. Messages
    /// over `limit` bytes are refused.
    pub fn new(stream: S, role: Role, limit: usize, arrived: BytesMut) -> Self {
        Self {
            stream,
            assembler: Assembler::new(role, limit),
            limit: MessageLimit(Arc::new(AtomicUsize::new(limit))),
            arrived,
            blocks: Blocks::new(BLOCK, KEPT),
            in_block: false,
            writing: Writing::new(role),
            answering: false,
            ended: false,
        }
    }

    /// The limit that messages have, to change it later.
    pub fn limit(&self) -> MessageLimit {
        self.limit.clone()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> WsSocket<S> {
    fn poll_arrival(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let have = self.arrived.len();
        let spare = self.arrived.capacity() - have;
        let missing = self.assembler.missing(have);
        if missing > SMALL_READ || (missing > 0 && missing <= spare) {
            if spare < missing.min(SMALL_READ) {
                // With the head of the next frame, so that one read brings one frame.
                let room = missing.min(GROWTH_STEP.max(have)).saturating_add(MAX_HEAD);
                let block = have + room <= self.blocks.size();
                let larger = match block {
                    true => self.blocks.take(&self.arrived),
                    false => {
                        let mut larger = BytesMut::with_capacity(have + room);
                        larger.extend_from_slice(&self.arrived);
                        larger
                    }
                };
                self.leave_arrived(larger, block);
            }
            return poll_read_buf(Pin::new(&mut self.stream), cx, &mut self.arrived);
        }
        let mut bytes = [const { MaybeUninit::uninit() }; SMALL_READ];
        let mut read = ReadBuf::uninit(&mut bytes);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
        self.arrived.extend_from_slice(read.filled());
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Goes on in `next`. What was cut from the memory before may still be in use.
    fn leave_arrived(&mut self, next: BytesMut, block: bool) {
        let before = std::mem::replace(&mut self.arrived, next);
        if std::mem::replace(&mut self.in_block, block) {
            self.blocks.keep(before);
        }
    }

    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing.poll(Pin::new(&mut self.stream), cx)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Stream for WsSocket<S> {
    type Item = Result<WsMessage, WsError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        this.assembler
            .set_limit(this.limit.0.load(Ordering::Relaxed));
        while !this.ended {
            match this.assembler.next(&mut this.arrived) {
                Ok(Some(Received::Message(message))) => {
                    if this.arrived.is_empty() {
                        // Else it would hold the memory of what it was cut from.
                        this.leave_arrived(BytesMut::new(), false);
                    }
                    let large = match &message {
                        WsMessage::Text(bytes) | WsMessage::Binary(bytes) => {
                            bytes.len() > SMALL_READ
                        }
                        WsMessage::Close(..) => false,
                    };
                    this.blocks.note(large);
                    return Poll::Ready(Some(Ok(message)));
                }
                Ok(Some(Received::Ping(bytes))) => {
                    // A writer that has begun takes it along, and only that is to be woken.
                    this.answering |= this.writing.queued == 0;
                    this.writing.pong = Some(bytes);
                    continue;
                }
                Ok(None) => {}
                Err(fault) => {
                    this.ended = true;
                    return Poll::Ready(Some(Err(fault.into())));
                }
            }
            if this.answering
                && let Poll::Ready(written) = this.poll_written(cx)
            {
                this.answering = false;
                if let Err(error) = written {
                    this.ended = true;
                    return Poll::Ready(Some(Err(error.into())));
                }
            }
            let error = match ready!(this.poll_arrival(cx)) {
                Ok(0) if this.assembler.is_inside(this.arrived.len()) => WsError::Cut,
                Ok(0) => break,
                Ok(_) => continue,
                Err(error) => error.into(),
            };
            this.ended = true;
            return Poll::Ready(Some(Err(error)));
        }
        this.ended = true;
        Poll::Ready(None)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Sink<WsMessage> for WsSocket<S> {
    type Error = WsError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WsError>> {
        if self.writing.queued < QUEUED {
            return Poll::Ready(Ok(()));
        }
        self.poll_written(cx).map_err(WsError::from)
    }

    fn start_send(mut self: Pin<&mut Self>, message: WsMessage) -> Result<(), WsError> {
        self.writing.put(message);
        self.answering = false;
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WsError>> {
        self.poll_written(cx).map_err(WsError::from)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), WsError>> {
        ready!(self.poll_written(cx))?;
        Pin::new(&mut self.stream)
            .poll_shutdown(cx)
            .map_err(WsError::from)
    }
}

/// What waits to be written, in its order.
#[derive(Debug)]
struct Writing {
    /// What keys are made from; only a client has them.
    keys: Option<Keys>,
    slices: VecDeque<Bytes>,
    /// Small frames, and the head of a large one, behind the slices.
    gathered: BytesMut,
    queued: usize,
    /// The answer to the last ping; earlier ones need none (5.5.3).
    pong: Option<Bytes>,
}

impl Writing {
    fn new(role: Role) -> Self {
        Self {
            keys: (role == Role::Client).then(Keys::default),
            slices: VecDeque::new(),
            gathered: BytesMut::new(),
            queued: 0,
            pong: None,
        }
    }

    fn put(&mut self, message: WsMessage) {
        let key = self.key();
        let frame = Outgoing::message(&message, key);
        let payload = match message {
            WsMessage::Text(bytes) | WsMessage::Binary(bytes) => bytes,
            WsMessage::Close(code, reason) => close_payload(code, &reason),
        };
        if self.queued == 0 && payload.len() <= GATHERED && self.gathered.capacity() > QUEUED {
            // Left by a large payload that was masked, and not needed for this one.
            self.gathered = BytesMut::new();
        }
        let before = self.gathered.len();
        if key.is_some() || payload.len() <= GATHERED {
            frame.whole(&payload, &mut self.gathered);
            self.queued += self.gathered.len() - before;
            return;
        }
        frame.head(payload.len(), &mut self.gathered);
        self.queued += self.gathered.len() - before + payload.len();
        self.slices.push_back(self.gathered.split().freeze());
        self.slices.push_back(payload);
    }

    fn key(&mut self) -> Option<[u8; 4]> {
        self.keys.as_mut().map(Keys::next)
    }

    fn poll(
        &mut self,
        mut stream: Pin<&mut impl AsyncWrite>,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(bytes) = self.pong.take() {
            let before = self.gathered.len();
            Outgoing::pong(self.key()).whole(&bytes, &mut self.gathered);
            self.queued += self.gathered.len() - before;
        }
        while self.queued > 0 {
            let written = {
                let mut slices = [IoSlice::new(&[]); SLICES];
                let waiting = self.slices.iter().map(|slice| &slice[..]);
                let waiting = waiting.chain([&self.gathered[..]]);
                let mut count = 0;
                for (slice, bytes) in slices.iter_mut().zip(waiting) {
                    *slice = IoSlice::new(bytes);
                    count += 1;
                }
                let slices = &slices[..count];
                ready!(stream.as_mut().poll_write_vectored(cx, slices))?
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written(written);
        }
        // Between small messages it holds no memory.
        if self.gathered.capacity() <= QUEUED {
            self.gathered = BytesMut::new();
        }
        self.slices.shrink_to(2 * SLICES);
        stream.poll_flush(cx)
    }

    fn written(&mut self, mut count: usize) {
        self.queued -= count;
        while let Some(first) = self.slices.front_mut() {
            if first.len() > count {
                first.advance(count);
                return;
            }
            count -= first.len();
            self.slices.pop_front();
        }
        self.gathered.advance(count);
    }
}

/// Keys that a page or a proxy between the ends can't foresee (10.3), without a system call each.
#[derive(Debug, Default)]
struct Keys {
    secret: RandomState,
    count: u64,
}

impl Keys {
    fn next(&mut self) -> [u8; 4] {
        self.count += 1;
        let [a, b, c, d, ..] = self.secret.hash_one(self.count).to_ne_bytes();
        [a, b, c, d]
    }
}
