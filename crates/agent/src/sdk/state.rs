//! The state object: a change is a patch, sent where it is made.

use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::Mutex;

use super::{Outgoing, SendError};
use crate::proto::message::AgentToCoordinator;
use crate::proto::patch::{Folded, PatchError};

/// Why a change of state was not made.
#[derive(Debug, thiserror::Error)]
pub enum StateChangeError {
    /// It does not apply; nothing was changed or sent.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// It can't be sent.
    #[error(transparent)]
    Send(#[from] SendError),
}

/// The agent's durable state, addressed by JSON pointers. Clones share it.
///
/// A change is applied here first, so that the coordinator only ever gets patches that apply.
#[derive(Debug, Clone)]
pub struct State {
    /// Held over the send: patches leave in the order in which they were applied.
    folded: Arc<Mutex<Folded>>,
    out: Outgoing,
}

impl State {
    pub(super) fn new(value: Value, out: Outgoing) -> Self {
        Self {
            folded: Arc::new(Mutex::new(Folded::new(value))),
            out,
        }
    }

    /// The whole state.
    pub async fn value(&self) -> Value {
        self.folded.lock().await.value().clone()
    }

    /// The value at `pointer`.
    pub async fn get(&self, pointer: &str) -> Option<Value> {
        self.folded.lock().await.value().pointer(pointer).cloned()
    }

    /// Puts a value at `pointer`, over what is there.
    pub async fn set(
        &self,
        pointer: &str,
        value: impl Into<Value>,
    ) -> Result<(), StateChangeError> {
        let mut folded = self.folded.lock().await;
        let op = match folded.value().pointer(pointer) {
            Some(_) => "replace",
            None => "add",
        };
        let delta = json!({"op": op, "path": pointer, "value": value.into()});
        self.change(&mut folded, vec![delta]).await
    }

    /// Appends a value to the array at `pointer`.
    pub async fn push(
        &self,
        pointer: &str,
        value: impl Into<Value>,
    ) -> Result<(), StateChangeError> {
        let delta = json!({"op": "add", "path": format!("{pointer}/-"), "value": value.into()});
        self.patch(vec![delta]).await
    }

    /// Removes the value at `pointer`.
    pub async fn remove(&self, pointer: &str) -> Result<(), StateChangeError> {
        self.patch(vec![json!({"op": "remove", "path": pointer})])
            .await
    }

    /// Applies RFC 6902 operations, all or none.
    pub async fn patch(&self, deltas: Vec<Value>) -> Result<(), StateChangeError> {
        let mut folded = self.folded.lock().await;
        self.change(&mut folded, deltas).await
    }

    async fn change(
        &self,
        folded: &mut Folded,
        deltas: Vec<Value>,
    ) -> Result<(), StateChangeError> {
        folded.apply(&deltas)?;
        self.out
            .send(&AgentToCoordinator::StateDelta { deltas })
            .await?;
        Ok(())
    }
}
