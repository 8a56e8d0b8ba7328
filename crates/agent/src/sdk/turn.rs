//! One message that an agent works on: what it can say and ask meanwhile.

use std::sync::Arc;

use serde_json::{Map, Value};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Closed, SendError, Session, State, StateChangeError, lock};
use crate::proto::element::{Element, FileChangeKind, TerminalStream};
use crate::proto::message::{
    AgentToCoordinator, ApprovalRequest, ApprovalResult, AskOutcome, FinishReason, LogEntry,
    MessageId, Question,
};
use crate::proto::usage::TokenUsage;

/// How an agent ends a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completion {
    /// Why it ends.
    pub finish_reason: FinishReason,
    /// What it used.
    pub usage: Option<TokenUsage>,
}

impl Default for Completion {
    fn default() -> Self {
        Self {
            finish_reason: FinishReason::EndTurn,
            usage: None,
        }
    }
}

/// Why an agent could not work on a message.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// Something can't be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The coordinator is gone.
    #[error(transparent)]
    Closed(#[from] Closed),
    /// A change of state does not apply.
    #[error(transparent)]
    State(#[from] StateChangeError),
    /// The agent's own reason, which the person sees.
    #[error("{0}")]
    Failed(String),
}

/// Guidance for a turn; what is left when the turn is over was not looked at.
pub(super) type Steers = Arc<Mutex<mpsc::Receiver<String>>>;

/// One message that the agent works on.
#[derive(Debug)]
pub struct Turn {
    session: Session,
    output_id: String,
    message_id: MessageId,
    steers: Steers,
    cancel: CancellationToken,
    shutdown: CancellationToken,
}

impl Turn {
    pub(super) fn new(
        session: Session,
        output_id: String,
        message_id: MessageId,
        steers: Steers,
        cancel: CancellationToken,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            session,
            output_id,
            message_id,
            steers,
            cancel,
            shutdown,
        }
    }

    /// What the agent knows beside the message.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The durable state.
    pub fn state(&self) -> &State {
        self.session.state()
    }

    /// The inbound message's id.
    pub fn message_id(&self) -> &MessageId {
        &self.message_id
    }

    pub(super) fn output_id(&self) -> &str {
        &self.output_id
    }

    /// Fires when the message is to be ended.
    pub fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Whether it is to be ended because the process is, and not for its own sake.
    pub fn shuts_down(&self) -> bool {
        self.shutdown.is_cancelled()
    }

    /// Sends any element.
    pub async fn element(&self, element: Element) -> Result<(), SendError> {
        send_element(&self.session, &self.output_id, element).await
    }

    /// Adds text to the answer.
    pub async fn text_delta(&self, text: impl Into<String>) -> Result<(), SendError> {
        self.element(Element::TextDelta { text: text.into() }).await
    }

    /// Sends the whole text of the answer.
    pub async fn text_final(&self, text: impl Into<String>) -> Result<(), SendError> {
        self.element(Element::TextFinal { text: text.into() }).await
    }

    /// Adds text to what the model thinks.
    pub async fn thinking(&self, text: impl Into<String>) -> Result<(), SendError> {
        self.element(Element::Thinking { text: text.into() }).await
    }

    /// Says that a tool is called.
    pub async fn tool_call(
        &self,
        call_id: impl Into<String>,
        name: impl Into<String>,
        arguments: Map<String, Value>,
    ) -> Result<(), SendError> {
        self.element(Element::ToolCall {
            call_id: call_id.into(),
            name: name.into(),
            arguments,
        })
        .await
    }

    /// Says what a tool gave.
    pub async fn tool_result(
        &self,
        call_id: impl Into<String>,
        result: Result<Value, Value>,
        duration: std::time::Duration,
    ) -> Result<(), SendError> {
        let is_error = result.is_err();
        let (Ok(output) | Err(output)) = result;
        self.element(Element::ToolResult {
            call_id: call_id.into(),
            output,
            is_error,
            duration_ms: Some(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)),
        })
        .await
    }

    /// Sends code on its own.
    pub async fn code_block(
        &self,
        language: impl Into<String>,
        code: impl Into<String>,
    ) -> Result<(), SendError> {
        self.element(Element::CodeBlock {
            language: language.into(),
            code: code.into(),
        })
        .await
    }

    /// Says that a file changed.
    pub async fn file_change(
        &self,
        path: impl Into<String>,
        change: FileChangeKind,
        diff: Option<String>,
    ) -> Result<(), SendError> {
        self.element(Element::FileChange {
            path: path.into(),
            change,
            diff,
        })
        .await
    }

    /// Sends output of a command.
    pub async fn terminal_output(
        &self,
        stream: TerminalStream,
        data: impl Into<String>,
    ) -> Result<(), SendError> {
        self.element(Element::TerminalOutput {
            stream,
            data: data.into(),
        })
        .await
    }

    /// Logs something.
    pub async fn log(&self, level: &str, message: impl Into<String>) -> Result<(), SendError> {
        let entry = LogEntry {
            level: level.to_owned(),
            message: message.into(),
            module: self.session.agent_type().to_owned(),
            timestamp: jiff::Timestamp::now().to_string(),
        };
        self.session
            .shared
            .out
            .send(&AgentToCoordinator::Log(entry))
            .await
    }

    /// Says what the message has used so far, in all, so that a budget can end it in time.
    pub async fn usage(&self, so_far: TokenUsage) -> Result<(), SendError> {
        let message = AgentToCoordinator::Usage {
            token_usage: so_far,
        };
        self.session.shared.out.send(&message).await
    }

    /// The next guidance for this message; `None` when no more can come.
    pub async fn next_steer(&self) -> Option<String> {
        self.steers.lock().await.recv().await
    }

    /// Asks the person and waits for what comes of it.
    pub async fn ask_user(&self, questions: Vec<Question>) -> Result<AskOutcome, SendError> {
        let ask_id = format!("ask_{}", uuid::Uuid::now_v7());
        let (reply, outcome) = oneshot::channel();
        lock(&self.session.shared.asks).insert(ask_id.clone(), reply);
        let message = AgentToCoordinator::AskUser { ask_id, questions };
        self.session.shared.out.send(&message).await?;
        Ok(outcome.await.map_err(|_| Closed)?)
    }

    /// Asks leave for an action and waits for the answer.
    pub async fn request_approval(
        &self,
        action: impl Into<String>,
        command: Option<String>,
        cwd: Option<String>,
        reason: Option<String>,
    ) -> Result<ApprovalResult, SendError> {
        let request_id = format!("approval_{}", uuid::Uuid::now_v7());
        let (reply, result) = oneshot::channel();
        lock(&self.session.shared.approvals).insert(request_id.clone(), reply);
        let request = ApprovalRequest {
            request_id,
            action: action.into(),
            command,
            cwd,
            reason,
        };
        let message = AgentToCoordinator::ApprovalRequest(request);
        self.session.shared.out.send(&message).await?;
        Ok(result.await.map_err(|_| Closed)?)
    }
}

async fn send_element(
    session: &Session,
    output_id: &str,
    element: Element,
) -> Result<(), SendError> {
    let message = AgentToCoordinator::StreamUpdate {
        message_id: output_id.into(),
        element,
    };
    session.shared.out.send(&message).await
}

/// Says the last words of a turn that failed.
pub(super) async fn say(session: &Session, output_id: &str, text: String) {
    if let Err(error) = send_element(session, output_id, Element::TextDelta { text }).await {
        tracing::debug!(%error, "an error is not told");
    }
}
