//! The input of a command or a shell, over as many connections as it takes.
//!
//! What is on its way when a connection is lost may or may not have arrived. The worker says, when
//! it is attached to again, how many bytes it has; the rest follows from what is kept here, which
//! is as much as credit can ever let be on its way, before anything new.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::conn::StreamSender;
use super::{RequestError, TerminalSize};
use crate::proto::frame::{Body, INITIAL_CREDIT, MAX_DATA};
use crate::socket::WsMessage;

/// Bytes that are kept: all that may be on its way.
const KEPT: usize = INITIAL_CREDIT as usize;

/// A command's side of it.
#[derive(Debug)]
pub(super) struct Input {
    handle: ExecInput,
}

/// The input of a command; a shell's is one of these under v2.
#[derive(Debug, Clone)]
pub struct ExecInput {
    worker: String,
    /// Short sections without an await.
    state: Arc<Mutex<State>>,
    /// Changes with [`State::link`].
    changes: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    link: InputLink,
    /// Bytes that were given to some connection.
    sent: u64,
    /// The last of them.
    kept: VecDeque<u8>,
    finished: bool,
    /// Of a shell's window, as it was last told.
    size: Option<TerminalSize>,
}

#[derive(Debug, Clone)]
enum InputLink {
    Connected {
        sender: StreamSender,
    },
    /// Between two connections.
    Interrupted,
    Over,
}

impl State {
    fn is_on(&self, sender: &StreamSender) -> bool {
        matches!(&self.link, InputLink::Connected { sender: current } if current.is_same(sender))
    }

    fn note(&mut self, part: &[u8]) {
        self.sent += part.len() as u64;
        self.kept.extend(part);
        let over = self.kept.len().saturating_sub(KEPT);
        self.kept.drain(..over);
    }
}

impl Input {
    pub(super) fn new(worker: &str, sender: Option<StreamSender>) -> Self {
        let link = match sender {
            Some(sender) => InputLink::Connected { sender },
            None => InputLink::Over,
        };
        Self {
            handle: ExecInput {
                worker: worker.to_owned(),
                state: Arc::new(Mutex::new(State {
                    link,
                    sent: 0,
                    kept: VecDeque::new(),
                    finished: false,
                    size: None,
                })),
                changes: watch::Sender::new(()),
            },
        }
    }

    pub(super) fn handle(&self) -> ExecInput {
        self.handle.clone()
    }

    /// An earlier hub has sent so much.
    pub(super) fn attached_at(&self, offset: u64) {
        self.handle.state().sent = offset;
    }

    pub(super) fn interrupt(&self) {
        self.set(InputLink::Interrupted);
    }

    /// Goes on over another connection to a worker that has `offset` bytes.
    pub(super) fn resume(&self, sender: StreamSender, offset: u64) {
        self.handle.send_missing(sender, offset);
        self.handle.changes.send_replace(());
    }

    pub(super) fn end(&self) {
        self.set(InputLink::Over);
    }

    fn set(&self, link: InputLink) {
        self.handle.state().link = link;
        self.handle.changes.send_replace(());
    }
}

impl ExecInput {
    /// Sends bytes, at the pace at which the command reads. Waits while the connection is lost.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), RequestError> {
        for part in bytes.chunks(MAX_DATA) {
            self.send(Some(part)).await?;
        }
        Ok(())
    }

    /// Ends the input.
    pub async fn finish(&self) -> Result<(), RequestError> {
        self.send(None).await
    }

    /// Tells the size of a shell's window, now or when the connection is back.
    pub(super) async fn resize(&self, size: TerminalSize) -> Result<(), RequestError> {
        let sender = {
            let mut state = self.state();
            state.size = Some(size);
            match &state.link {
                InputLink::Connected { sender } => sender.clone(),
                InputLink::Interrupted => return Ok(()),
                InputLink::Over => return Err(self.lost()),
            }
        };
        // A connection that is gone is followed by one on which it is told again.
        sender.control(size.into()).await;
        Ok(())
    }

    /// Sends one part, or the end.
    async fn send(&self, part: Option<&[u8]>) -> Result<(), RequestError> {
        let mut changes = self.changes.subscribe();
        loop {
            let sender = match &self.state().link {
                InputLink::Connected { sender } => Some(sender.clone()),
                InputLink::Interrupted => None,
                InputLink::Over => return Err(self.lost()),
            };
            if let Some(sender) = sender
                && let Ok(permit) = sender.admit(part.map(<[u8]>::len)).await
            {
                let mut state = self.state();
                // Noted in the same moment as it is sent: what comes next is told of it, or nobody
                // has to.
                if state.is_on(&sender) {
                    match part {
                        Some(part) => {
                            state.note(part);
                            let mut frame = sender.frame(part.len());
                            frame.extend_from_slice(part);
                            permit.send(WsMessage::Binary(frame.freeze()));
                        }
                        None => {
                            state.finished = true;
                            permit.send(sender.message(Body::Eof));
                        }
                    }
                    return Ok(());
                }
            }
            // The sender lives as long as this handle.
            let _ = changes.changed().await;
        }
    }

    /// Sends again what the worker of a new connection does not have. A new connection's lane has
    /// room for it, and its credit too, since no more was ever on its way.
    fn send_missing(&self, sender: StreamSender, from: u64) {
        let mut state = self.state();
        let missing = usize::try_from(state.sent.saturating_sub(from)).unwrap_or(usize::MAX);
        let Some(skipped) = state.kept.len().checked_sub(missing) else {
            tracing::warn!(missing, "the worker lacks input that is not kept any more");
            state.link = InputLink::Over;
            return;
        };
        let bytes: Vec<u8> = state.kept.iter().skip(skipped).copied().collect();
        let mut sent = bytes.chunks(MAX_DATA).all(|part| {
            let mut frame = sender.frame(part.len());
            frame.extend_from_slice(part);
            sender.send_now(frame)
        });
        if state.finished {
            sent &= sender.eof_now();
        }
        if let Some(size) = state.size {
            sender.urgent(size.into());
        }
        state.link = if sent {
            InputLink::Connected { sender }
        } else {
            tracing::warn!("input can't be sent again; the command gets no more of it");
            InputLink::Over
        };
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> RequestError {
        RequestError::Lost {
            worker: self.worker.clone(),
        }
    }
}
