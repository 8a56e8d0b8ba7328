//! Messages on their way to the coordinator.

use std::sync::{Arc, Mutex};

use quintet_framing::HEADER_LEN;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::Notify;

use super::{Closed, SendError, lock};
use crate::proto::FORMAT;
use crate::proto::message::AgentToCoordinator;

/// Bytes that may wait to be written; a sender waits while there are more.
const MAX_WAITING: usize = 256 * 1024;

/// Frames that wait to be written, one behind the other. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Outgoing(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// For short sections without await.
    waiting: Mutex<Waiting>,
    /// There is something to write, or nothing more will come.
    to_write: Notify,
    /// There is room, or nobody writes any more.
    to_send: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    frames: Vec<u8>,
    ended: bool,
    closed: bool,
}

impl Outgoing {
    /// Queues a message; waits while too much is queued.
    pub(super) async fn send(&self, message: &AgentToCoordinator<'_>) -> Result<(), SendError> {
        while !self.try_send(message)? {
            let room = self.0.to_send.notified();
            // Between the try and this line there may have been room already.
            if self.try_send(message)? {
                break;
            }
            room.await;
        }
        Ok(())
    }

    /// Queues a message unless too much is queued.
    fn try_send(&self, message: &AgentToCoordinator<'_>) -> Result<bool, SendError> {
        let mut waiting = lock(&self.0.waiting);
        if waiting.closed || waiting.ended {
            return Err(Closed.into());
        }
        let start = waiting.frames.len();
        if start >= MAX_WAITING {
            return Ok(false);
        }
        let frames = &mut waiting.frames;
        frames.extend_from_slice(&[0; HEADER_LEN]);
        message.encode(frames);
        match FORMAT.header(frames.len() - start - HEADER_LEN) {
            Ok(header) => frames[start..start + HEADER_LEN].copy_from_slice(&header),
            Err(too_large) => {
                frames.truncate(start);
                return Err(too_large.into());
            }
        }
        if start == 0 {
            self.0.to_write.notify_one();
        }
        Ok(true)
    }

    /// Lets nothing more in; what is queued is still written.
    pub(super) fn end(&self) {
        lock(&self.0.waiting).ended = true;
        self.0.to_write.notify_one();
        self.0.to_send.notify_waiters();
    }

    /// Writes what is queued, as much at a time as is there, until the end.
    pub(super) async fn write_to(self, mut socket: OwnedWriteHalf) {
        let mut frames = Vec::new();
        loop {
            let ended = {
                let mut waiting = lock(&self.0.waiting);
                std::mem::swap(&mut waiting.frames, &mut frames);
                waiting.ended
            };
            if frames.is_empty() {
                if ended {
                    return;
                }
                self.0.to_write.notified().await;
                continue;
            }
            self.0.to_send.notify_waiters();
            if socket.write_all(&frames).await.is_err() {
                lock(&self.0.waiting).closed = true;
                self.0.to_send.notify_waiters();
                return;
            }
            frames.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::element::Element;
    use quintet_framing::{FrameError, FrameReader};
    use tokio::net::UnixStream;

    fn delta(text: String) -> AgentToCoordinator<'static> {
        AgentToCoordinator::StreamUpdate {
            message_id: "out".into(),
            element: Element::TextDelta { text },
        }
    }

    #[tokio::test]
    async fn everything_arrives_in_order_and_a_sender_waits_for_room() {
        let (near, far) = UnixStream::pair().expect("a pair");
        let out = Outgoing::default();
        let mut sent = 0_u64;
        let text = |n: u64| format!("{n} {}", "x".repeat(5_000));
        while out.try_send(&delta(text(sent))).expect("open") {
            sent += 1;
        }
        assert!(lock(&out.0.waiting).frames.len() < MAX_WAITING + 6_000);
        let (_unused, write) = near.into_split();
        let read = async {
            let mut reader = FrameReader::new(far, FORMAT);
            let mut texts = Vec::new();
            while let Some(frame) = reader.next().await.expect("frames") {
                let value: serde_json::Value = serde_json::from_slice(&frame).expect("JSON");
                texts.push(value["element"]["text"].as_str().expect("text").to_owned());
            }
            texts
        };
        let send = async {
            for n in sent..500 {
                out.send(&delta(text(n))).await.expect("open");
            }
            out.end();
        };
        let ((), (), texts) = tokio::join!(out.clone().write_to(write), send, read);
        assert_eq!(texts, (0..500).map(text).collect::<Vec<_>>());
        assert!(matches!(
            out.send(&delta("late".into())).await,
            Err(SendError::Closed(_))
        ));
    }

    #[tokio::test]
    async fn a_sender_is_told_when_nobody_reads_any_more() {
        let (near, far) = UnixStream::pair().expect("a pair");
        let out = Outgoing::default();
        let (_unused, write) = near.into_split();
        drop(far);
        let refused = async {
            loop {
                if let Err(error) = out.send(&delta("x".repeat(100_000))).await {
                    break error;
                }
            }
        };
        let (refused, ()) = tokio::join!(refused, out.clone().write_to(write));
        assert_eq!(refused, SendError::Closed(Closed));
    }

    #[test]
    fn a_message_over_the_limit_changes_nothing() {
        let out = Outgoing::default();
        out.try_send(&delta("before".into())).expect("fits");
        let before = lock(&out.0.waiting).frames.clone();
        assert!(matches!(
            out.try_send(&delta("x".repeat(17 << 20))),
            Err(SendError::TooLarge(FrameError::TooLarge { .. }))
        ));
        assert_eq!(lock(&out.0.waiting).frames, before);
    }
}
