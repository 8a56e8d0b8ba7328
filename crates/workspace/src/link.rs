//! One connection as two queues of messages.

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::proto::WireMessage;
use crate::proto::message::{DecodeError, EncodeError};
use crate::transport::{Connection, TransportError};

/// Messages that wait on either side. When the outgoing queue is full nothing
/// more is taken from the state machine; when the incoming one is full nothing
/// more is read from the socket.
const QUEUE: usize = 64;
/// Bytes that go out in one flush, at least.
const FLUSH_BYTES: usize = 1 << 20;

/// The connection is of no more use.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The transport broke.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The peer sent something that is no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A message of ours is too large.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

pub(crate) struct Link {
    pub(crate) incoming: mpsc::Receiver<WireMessage>,
    pub(crate) outgoing: mpsc::Sender<WireMessage>,
    tasks: JoinSet<Result<(), LinkError>>,
}

impl Link {
    pub(crate) fn start(connection: Connection) -> Self {
        let Connection {
            mut source,
            mut sink,
        } = connection;
        let (in_send, incoming) = mpsc::channel(QUEUE);
        let (outgoing, mut out_receive) = mpsc::channel::<WireMessage>(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            while let Some(payload) = source.next().await? {
                let message = WireMessage::decode_shared(&payload)?;
                drop(payload);
                if in_send.send(message).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
        tasks.spawn(async move {
            while let Some(message) = out_receive.recv().await {
                let mut queued = 0;
                let mut next = Some(message);
                while let Some(message) = next {
                    let parts = message.encode_in_parts()?;
                    queued += parts.iter().map(Bytes::len).sum::<usize>();
                    sink.queue(parts).await?;
                    next = if queued < FLUSH_BYTES {
                        out_receive.try_recv().ok()
                    } else {
                        None
                    };
                }
                sink.flush().await?;
            }
            Ok(())
        });
        Self {
            incoming,
            outgoing,
            tasks,
        }
    }

    /// Waits until either direction ends. A clean end of the peer is `Ok`.
    pub(crate) async fn ended(&mut self) -> Result<(), LinkError> {
        match self.tasks.join_next().await {
            Some(Ok(result)) => result,
            // Cancelled or panicked; either way it carries nothing any more.
            Some(Err(_)) | None => Ok(()),
        }
    }
}
