//! Events on their way to the observer, one batch at a time.

use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::types::{InstanceEvent, Observer, TurnEnd};
use crate::proto::element::{Element, TextKind};
use crate::proto::message::{AgentId, MessageId};

/// What waits for the observer.
///
/// It stays small without a limit of its own: the socket is not read while anything is in it, and
/// what the instance adds by itself is a few events per phase.
pub(super) struct Outbox<O> {
    observer: Arc<O>,
    agent: AgentId,
    pending: Vec<InstanceEvent>,
    observing: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Ends that are told once the observer has seen everything before them.
    ends: Vec<(oneshot::Sender<TurnEnd>, TurnEnd)>,
}

impl<O: Observer> Outbox<O> {
    pub(super) fn new(observer: Arc<O>, agent: AgentId) -> Self {
        Self {
            observer,
            agent,
            pending: Vec::new(),
            observing: None,
            ends: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, event: InstanceEvent) {
        self.pending.push(event);
    }

    /// Adds a piece of output.
    pub(super) fn push_element(&mut self, running: &MessageId, output: &str, element: Element) {
        match element {
            Element::TextDelta { text } => self.push_text(running, output, TextKind::Delta, &text),
            Element::Thinking { text } => {
                self.push_text(running, output, TextKind::Thinking, &text);
            }
            element => self.push(InstanceEvent::Element {
                message_id: running.clone(),
                output_id: output.to_owned(),
                element,
            }),
        }
    }

    /// Adds a piece of text; it becomes a part of the one before it that waits here too, so that a
    /// runaway agent costs its observer by the batch and not by the token.
    pub(super) fn push_text(
        &mut self,
        running: &MessageId,
        output: &str,
        kind: TextKind,
        text: &str,
    ) {
        if let Some(InstanceEvent::Element {
            output_id,
            element: last,
            ..
        }) = self.pending.last_mut()
            && output_id == output
            && last.join(kind, text)
        {
            return;
        }
        self.push(InstanceEvent::Element {
            message_id: running.clone(),
            output_id: output.to_owned(),
            element: kind.element(text.to_owned()),
        });
    }

    pub(super) fn end_turn(&mut self, reply: oneshot::Sender<TurnEnd>, end: TurnEnd) {
        self.ends.push((reply, end));
    }

    /// Whether the observer has not seen everything yet.
    pub(super) fn is_busy(&self) -> bool {
        self.observing.is_some() || !self.pending.is_empty()
    }

    /// Hands over what is there, or tells the ends when nothing is.
    pub(super) fn pump(&mut self) {
        if self.observing.is_some() {
            return;
        }
        if self.pending.is_empty() {
            for (reply, end) in self.ends.drain(..) {
                // A caller that stopped waiting does not want to know.
                let _ = reply.send(end);
            }
            return;
        }
        let batch = std::mem::take(&mut self.pending);
        let (observer, agent) = (Arc::clone(&self.observer), self.agent.clone());
        self.observing = Some(Box::pin(async move {
            observer.observe(&agent, batch).await;
        }));
    }

    /// Waits until the observer has taken its batch; for ever when it has none.
    pub(super) async fn observed(&mut self) {
        match &mut self.observing {
            Some(observing) => {
                observing.await;
                self.observing = None;
            }
            None => std::future::pending().await,
        }
    }

    /// Hands over everything and waits for it.
    pub(super) async fn drain(&mut self) {
        self.pump();
        while self.is_busy() {
            self.observed().await;
            self.pump();
        }
    }
}
