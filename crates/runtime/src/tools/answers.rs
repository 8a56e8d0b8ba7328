//! Answers of people, on their way to the calls that wait for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quintet_agent::proto::message::AskOutcome;
use tokio::sync::oneshot;

use crate::sessions::approvals::Decision;

/// What a person said.
#[derive(Debug, Clone)]
pub(crate) enum Answer {
    /// To an approval.
    Decision(Decision),
    /// To a question.
    Ask(AskOutcome),
}

/// The calls that wait, by the key of what they asked. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Answers {
    /// Short sections without an await.
    waiting: Arc<Mutex<HashMap<String, oneshot::Sender<Answer>>>>,
    /// Held from the writing of a rule to the answer that wrote it, and while what waits asks the
    /// rules again: the approval that a person answered is theirs, the others are the rule's.
    answering: Arc<tokio::sync::Mutex<()>>,
}

impl Answers {
    /// A key of its own, and the place where its answer comes. To be made before anybody can see
    /// the question.
    pub(super) fn expect(&self) -> Expected {
        let key = format!("tool:{}", uuid::Uuid::new_v4());
        let (sender, answer) = oneshot::channel();
        self.waiting().insert(key.clone(), sender);
        Expected {
            answers: self.clone(),
            key,
            answer,
        }
    }

    /// Lets nobody else answer until it is dropped.
    pub(crate) async fn answering(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.answering.lock().await
    }

    /// Whether a call waits for the answer to this.
    pub(crate) fn expects(&self, key: &str) -> bool {
        self.waiting().contains_key(key)
    }

    /// Hands an answer over; gives it back when no call waits for it.
    pub(crate) fn give(&self, key: &str, answer: Answer) -> Result<(), Answer> {
        match self.waiting().remove(key) {
            Some(waiting) => waiting.send(answer),
            None => Err(answer),
        }
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, oneshot::Sender<Answer>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A call that waits; forgotten when dropped.
pub(super) struct Expected {
    answers: Answers,
    key: String,
    answer: oneshot::Receiver<Answer>,
}

impl Expected {
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The answer; `None` when nobody can give one any more.
    pub(super) async fn come(&mut self) -> Option<Answer> {
        (&mut self.answer).await.ok()
    }
}

impl Drop for Expected {
    fn drop(&mut self) {
        self.answers.waiting().remove(&self.key);
    }
}
