//! What a v2 request's server holds of its connection.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::proto::v2::message::{self, Items, MAX_PIECE, OpError};

/// Plaintexts that wait for the socket.
const QUEUE: usize = 32;

/// Streams of one connection.
const MAX_STREAMS: usize = 32;

/// Pieces of input that wait for whoever reads a stream.
const INPUT: usize = 256;

/// What a device may be sent of a stream before it gives credit.
pub(super) const FIRST_CREDIT: u32 = 256 * 1024;

/// The most credit that is kept.
const MAX_CREDIT: usize = 16 << 20;

/// An end of streams is put off to this piece size, so that credit of a slow terminal suffices.
const CREDIT_PIECE: usize = 32 * 1024;

struct Open {
    label: String,
    input: mpsc::Sender<Vec<u8>>,
    credit: Arc<Semaphore>,
    ended: CancellationToken,
}

struct Shared {
    out: mpsc::Sender<Vec<u8>>,
    /// Held to look up and change, never across an await.
    streams: Mutex<HashMap<u32, Open>>,
    next_stream: AtomicU32,
    tasks: TaskTracker,
    closed: CancellationToken,
}

/// A connection, from inside. Everything sent waits for the socket.
#[derive(Clone)]
pub struct Link(Arc<Shared>);

/// The connection has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection has ended")]
pub struct Ended;

impl Link {
    pub(super) fn new(closed: CancellationToken) -> (Self, mpsc::Receiver<Vec<u8>>) {
        let (out, queue) = mpsc::channel(QUEUE);
        let link = Self(Arc::new(Shared {
            out,
            streams: Mutex::default(),
            next_stream: AtomicU32::new(1),
            tasks: TaskTracker::new(),
            closed,
        }));
        (link, queue)
    }

    /// Cancelled when the connection ends.
    pub fn closed(&self) -> &CancellationToken {
        &self.0.closed
    }

    /// Runs something that outlives its request, at the most to the end of the connection.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let closed = self.0.closed.clone();
        self.0.tasks.spawn(async move {
            closed.run_until_cancelled(task).await;
        });
    }

    pub(super) async fn drained(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    pub(super) async fn send(&self, plaintext: Vec<u8>) -> Result<(), Ended> {
        self.0.out.send(plaintext).await.map_err(|_| Ended)
    }

    /// Opens a stream of bytes each way. The label says what it is of.
    pub fn open_stream(&self, label: &str) -> Result<ByteStream, OpError> {
        let (input, received) = mpsc::channel(INPUT);
        let credit = Arc::new(Semaphore::new(FIRST_CREDIT as usize));
        let ended = self.0.closed.child_token();
        let mut streams = self.streams();
        if streams.len() >= MAX_STREAMS {
            return Err(OpError::new(
                "over_limit",
                format!("a connection has at most {MAX_STREAMS} streams; close one first"),
            ));
        }
        let id = self.0.next_stream.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            label: label.to_owned(),
            input,
            credit: credit.clone(),
            ended: ended.clone(),
        };
        streams.insert(id, open);
        Ok(ByteStream {
            id,
            input: received,
            credit,
            ended,
            link: self.clone(),
        })
    }

    /// What an open stream is of.
    pub fn label(&self, stream: u32) -> Option<String> {
        self.streams().get(&stream).map(|open| open.label.clone())
    }

    /// Ends a stream: whoever serves it receives nothing more and can't send.
    pub fn end_stream(&self, stream: u32) {
        if let Some(open) = self.streams().remove(&stream) {
            open.ended.cancel();
        }
    }

    /// Input for a stream. One that nobody reads ends.
    pub(super) fn input(&self, stream: u32, bytes: Vec<u8>) {
        let mut streams = self.streams();
        let Some(open) = streams.get(&stream) else {
            return;
        };
        if let Err(mpsc::error::TrySendError::Full(_)) = open.input.try_send(bytes) {
            open.ended.cancel();
            streams.remove(&stream);
        }
    }

    /// More of a stream may be sent.
    pub(super) fn credit(&self, stream: u32, bytes: u32) {
        if let Some(open) = self.streams().get(&stream) {
            let room = MAX_CREDIT.saturating_sub(open.credit.available_permits());
            open.credit.add_permits(room.min(bytes as usize));
        }
    }

    fn streams(&self) -> MutexGuard<'_, HashMap<u32, Open>> {
        self.0
            .streams
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream of bytes each way, at the speed of the device that reads it.
pub struct ByteStream {
    id: u32,
    input: mpsc::Receiver<Vec<u8>>,
    credit: Arc<Semaphore>,
    ended: CancellationToken,
    link: Link,
}

impl ByteStream {
    /// Its number.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// What the device sends next; `None` when the stream has ended.
    pub async fn receive(&mut self) -> Option<Vec<u8>> {
        tokio::select! {
            () = self.ended.cancelled() => None,
            bytes = self.input.recv() => bytes,
        }
    }

    /// Something to send with, apart from receiving.
    pub fn sender(&self) -> StreamSender {
        StreamSender {
            id: self.id,
            credit: self.credit.clone(),
            ended: self.ended.clone(),
            link: self.link.clone(),
        }
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        self.ended.cancel();
        self.link.streams().remove(&self.id);
    }
}

/// How a stream ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEnd {
    /// The program behind it ended with this code.
    Exited(i32),
    /// It can't go on, for this reason; a device must not try again by itself.
    Failed(String),
    /// What is behind it lives on, and may be attached to again.
    LetGo,
}

/// Sends into a stream.
#[derive(Clone)]
pub struct StreamSender {
    id: u32,
    credit: Arc<Semaphore>,
    ended: CancellationToken,
    link: Link,
}

impl StreamSender {
    /// Sends, as far as the device has given credit.
    pub async fn send(&self, bytes: &[u8]) -> Result<(), Ended> {
        for piece in bytes.chunks(CREDIT_PIECE.min(MAX_PIECE)) {
            let permits = u32::try_from(piece.len()).map_err(|_| Ended)?;
            tokio::select! {
                () = self.ended.cancelled() => return Err(Ended),
                permit = self.credit.acquire_many(permits) => permit.map_err(|_| Ended)?.forget(),
            }
            self.link.send(message::bytes(self.id, piece)).await?;
        }
        Ok(())
    }

    /// Tells the device that nothing more comes.
    pub async fn end(&self, end: &StreamEnd) -> Result<(), Ended> {
        let stream = self.id;
        let end = match end {
            StreamEnd::Exited(code) => json!({ "stream": stream, "code": code }),
            StreamEnd::Failed(reason) => {
                json!({ "stream": stream, "code": null, "reason": reason })
            }
            StreamEnd::LetGo => json!({ "stream": stream, "code": null }),
        };
        let end = json!({ "stream_end": end });
        self.link.send(message::json(&end)).await
    }
}

/// A request of a device.
pub struct Request {
    /// Its number.
    pub id: u64,
    /// What it asks.
    pub op: String,
    /// With what.
    pub args: Value,
    /// The connection.
    pub link: Link,
}

impl Request {
    /// No items yet.
    pub fn items(&self) -> Items {
        Items::new(self.id)
    }

    /// Sends items before the answer.
    pub async fn send_items(&self, items: Items) -> Result<(), Ended> {
        self.link.send(items.finish()).await
    }

    /// Sends bytes on the stream that has the request's own number.
    pub async fn send_bytes(&self, bytes: &[u8]) -> Result<(), OpError> {
        let stream = u32::try_from(self.id)
            .map_err(|_| OpError::new("bad_request", "the request's number is over 2^32"))?;
        for piece in bytes.chunks(MAX_PIECE) {
            self.link
                .send(message::bytes(stream, piece))
                .await
                .map_err(|ended| OpError::new("connection_lost", ended.to_string()))?;
        }
        Ok(())
    }
}
