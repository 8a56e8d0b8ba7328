//! The handle of an instance: what others ask of it.

use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, oneshot, watch};

use super::types::{CancelCause, FailReason, InstanceSpec, InstanceStatus, Steered, TurnEnd};
use crate::logs::InstanceLog;
use crate::proto::message::{AgentId, ApprovalResult, AskOutcome, InboundMessage};
use crate::state::{StateError, StateStore};

/// Commands that wait for an instance; a caller beyond that waits in its call.
pub(super) const COMMAND_QUEUE: usize = 64;

/// What is asked of an instance's task.
#[derive(Debug)]
pub(super) enum Command {
    Run(InboundMessage, oneshot::Sender<TurnEnd>),
    Steer(String, oneshot::Sender<Steered>),
    Cancel(CancelCause, oneshot::Sender<bool>),
    ConfigUpdate(Map<String, Value>, String, oneshot::Sender<()>),
    Respec(Box<InstanceSpec>, oneshot::Sender<()>),
    AnswerAsk(String, AskOutcome, oneshot::Sender<bool>),
    AnswerApproval(ApprovalResult, oneshot::Sender<bool>),
    Shutdown(String, oneshot::Sender<()>),
    Restart(String, oneshot::Sender<()>),
    /// Ends everything now and for good.
    Kill(oneshot::Sender<()>),
}

/// One instance of an agent. Clones are the same instance.
#[derive(Debug, Clone)]
pub struct InstanceHandle {
    pub(super) agent_id: AgentId,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) status: watch::Receiver<InstanceStatus>,
    pub(super) state: StateStore,
    pub(super) log: InstanceLog,
}

impl InstanceHandle {
    /// Its id.
    pub fn agent_id(&self) -> &AgentId {
        &self.agent_id
    }

    /// Delivers a message and waits for its end; starts the process if there is none.
    ///
    /// Returns exactly once, after the observer has seen everything of the message. While one message
    /// runs, another is refused with [`FailReason::Busy`]. Dropping the future does not end the message.
    pub async fn run(&self, message: InboundMessage) -> TurnEnd {
        self.ask(|reply| Command::Run(message, reply))
            .await
            .unwrap_or_else(|| TurnEnd::Failed {
                reason: FailReason::Stopped,
                detail: "the supervisor has ended".to_owned(),
            })
    }

    /// Gives guidance to the message that is running.
    pub async fn steer(&self, text: impl Into<String>) -> Steered {
        self.ask(|reply| Command::Steer(text.into(), reply))
            .await
            .unwrap_or(Steered::NotRunning)
    }

    /// Cancels the message that is running or waits for its process; `false` when there is none.
    ///
    /// The agent is asked first and killed with its tree after the grace period. How the message ended
    /// is what [`run`](Self::run) returns.
    pub async fn cancel(&self) -> bool {
        self.cancel_for(CancelCause::User).await
    }

    /// Cancels for a stated cause; see [`cancel`](Self::cancel).
    pub async fn cancel_for(&self, cause: CancelCause) -> bool {
        self.ask(|reply| Command::Cancel(cause, reply))
            .await
            .unwrap_or(false)
    }

    /// Changes configuration keys: at once in a running process, and in every later `init`.
    ///
    /// Closes the breaker.
    pub async fn config_update(&self, changes: Map<String, Value>, source: impl Into<String>) {
        self.ask(|reply| Command::ConfigUpdate(changes, source.into(), reply))
            .await;
    }

    /// Replaces what needs a new process (command, environment, limits); applied when it is next Ready.
    ///
    /// The id and the instance's folder stay as they are. Closes the breaker.
    pub async fn replace_spec(&self, spec: InstanceSpec) {
        self.ask(|reply| Command::Respec(Box::new(spec), reply))
            .await;
    }

    /// Answers a question of the agent; `false` when no process is there to be told.
    pub async fn answer_ask(&self, ask_id: impl Into<String>, outcome: AskOutcome) -> bool {
        self.ask(|reply| Command::AnswerAsk(ask_id.into(), outcome, reply))
            .await
            .unwrap_or(false)
    }

    /// Answers an approval request of the agent; `false` when no process is there to be told.
    pub async fn answer_approval(&self, result: ApprovalResult) -> bool {
        self.ask(|reply| Command::AnswerApproval(result, reply))
            .await
            .unwrap_or(false)
    }

    /// Asks the process to end and waits until nothing of it is left. A later message starts it again.
    ///
    /// With the reason `daemon_stop` it stays ended.
    pub async fn shutdown(&self, reason: impl Into<String>) {
        self.ask(|reply| Command::Shutdown(reason.into(), reply))
            .await;
    }

    /// Ends the process as [`shutdown`](Self::shutdown) does and starts another. Closes the breaker.
    ///
    /// Returns when the new process was started.
    pub async fn restart(&self, reason: impl Into<String>) {
        self.ask(|reply| Command::Restart(reason.into(), reply))
            .await;
    }

    /// Kills the process and everything it started, now and for good.
    pub async fn kill(&self) {
        self.ask(Command::Kill).await;
    }

    /// How it stands.
    pub fn status(&self) -> InstanceStatus {
        self.status.borrow().clone()
    }

    /// Waits until the status fulfils `condition`; `None` when the supervisor ended first.
    pub async fn wait_for(
        &self,
        condition: impl FnMut(&InstanceStatus) -> bool,
    ) -> Option<InstanceStatus> {
        let mut status = self.status.clone();
        let found = status.wait_for(condition).await.ok()?;
        Some(found.clone())
    }

    /// Its folded, durable state.
    pub async fn state(&self) -> Value {
        self.state.value().await
    }

    /// Replaces its durable state; the process is ended first and starts again from the new state.
    pub async fn replace_state(&self, state: Value) -> Result<(), StateError> {
        self.shutdown("reload").await;
        let whole = vec![json!({ "op": "replace", "path": "", "value": state })];
        match self.state.apply(vec![whole]).await?.rejected {
            Some(rejected) => Err(StateError::Refused(rejected)),
            None => Ok(()),
        }
    }

    /// Its log.
    pub fn log(&self) -> &InstanceLog {
        &self.log
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}
