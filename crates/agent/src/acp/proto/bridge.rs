//! The conversation on both sides of the bridge.

mod requests;
mod session;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    AGENT_METHOD_NAMES, AgentCapabilities, CLIENT_METHOD_NAMES, CancelNotification, ContentBlock,
    Error, ErrorCode, NewSessionResponse, PermissionOption, PromptRequest, RequestId,
    RequestPermissionOutcome, SessionId,
};
use rust_decimal::Decimal;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::rpc::{self, BadLine, Incoming};
use super::translate::Translator;
use crate::proto::element::Element;
use crate::proto::message::{
    AgentToCoordinator, CoordinatorToAgent, FinishReason, InboundMessage, MessageId,
};
use crate::proto::usage::TokenUsage;

/// Messages that wait while the session is being opened; the coordinator sends one at a time.
const MESSAGE_LIMIT: usize = 64;

/// Steers that wait for the running prompt; the oldest goes first.
const STEER_LIMIT: usize = 64;

/// Why the bridge cannot go on.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BridgeError {
    /// The coordinator said something at the wrong time.
    #[error("the coordinator sent `{message}` {when}")]
    OutOfOrder {
        /// What it sent.
        message: &'static str,
        /// When.
        when: &'static str,
    },
    /// The agent speaks another version.
    #[error(
        "the agent speaks version {version} of ACP and this bridge version 1: update one of them"
    )]
    Version {
        /// The agent's.
        version: u16,
    },
    /// The agent refused what every session begins with.
    #[error("the agent refused `{method}`: {error}")]
    Refused {
        /// What was asked.
        method: &'static str,
        /// What it answered.
        error: Error,
    },
    /// The agent's answer has a wrong shape.
    #[error("the agent's answer to `{method}` has a wrong shape: {detail}")]
    WrongAnswer {
        /// What was asked.
        method: &'static str,
        /// What is wrong.
        detail: String,
    },
}

/// What the driver is to do.
#[derive(Debug, PartialEq)]
pub(in crate::acp) enum Effect {
    /// Send to the coordinator.
    Up(AgentToCoordinator<'static>),
    /// Log through the coordinator.
    Log {
        level: &'static str,
        message: String,
    },
    /// Write to the agent; whole lines.
    Down(Vec<u8>),
    /// Read a file of the workspace, then call [`Bridge::answer`].
    Read {
        id: RequestId,
        path: PathBuf,
        line: Option<u32>,
        limit: Option<u32>,
    },
    /// Write a file of the workspace, then call [`Bridge::answer`].
    Write {
        id: RequestId,
        path: PathBuf,
        content: String,
    },
    /// End both sides.
    Stop,
}

/// What is kept over restarts, as this agent's state.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Kept {
    /// The agent's session.
    #[serde(default)]
    session_id: Option<SessionId>,
    /// What that session has cost so far: agents report a running total.
    #[serde(default)]
    cost: Decimal,
}

#[derive(Debug)]
enum Phase {
    /// Before `init`.
    Waiting,
    /// Until the agent has answered `initialize` and opened a session.
    Opening,
    /// The agent wants a login; the next message tries again.
    Locked,
    /// A session is open.
    Open(SessionId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    Initialize,
    NewSession,
    LoadSession,
    Prompt,
}

#[derive(Debug)]
struct Turn {
    message: MessageId,
    out_id: String,
    translator: Translator,
    steers: VecDeque<String>,
    cancelled: bool,
    usage: Option<TokenUsage>,
}

#[derive(Debug)]
struct Permission {
    id: RequestId,
    options: Vec<PermissionOption>,
}

/// A bridge between one coordinator and one ACP agent.
#[derive(Debug)]
pub(in crate::acp) struct Bridge {
    phase: Phase,
    workspace: PathBuf,
    config: Map<String, Value>,
    kept: Kept,
    agent: AgentCapabilities,
    auth_methods: Vec<String>,
    /// The configured prompt, until the first prompt of a new session has carried it.
    preface: Option<String>,
    waiting: VecDeque<InboundMessage>,
    turn: Option<Turn>,
    pending: HashMap<i64, Pending>,
    permissions: HashMap<String, Permission>,
    last_id: i64,
    last_permission: u64,
    stopping: bool,
    effects: VecDeque<Effect>,
}

impl Bridge {
    pub(in crate::acp) fn new() -> Self {
        Self {
            phase: Phase::Waiting,
            workspace: PathBuf::new(),
            config: Map::new(),
            kept: Kept::default(),
            agent: AgentCapabilities::default(),
            auth_methods: Vec::new(),
            preface: None,
            waiting: VecDeque::new(),
            turn: None,
            pending: HashMap::new(),
            permissions: HashMap::new(),
            last_id: 0,
            last_permission: 0,
            stopping: false,
            effects: VecDeque::new(),
        }
    }

    /// What to do next.
    pub(in crate::acp) fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// The folder to work in; empty before `init`.
    pub(in crate::acp) fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Whether the agent still owes an answer that every session begins with.
    pub(in crate::acp) fn is_opening(&self) -> bool {
        matches!(self.phase, Phase::Opening)
    }

    /// Takes what the coordinator says.
    pub(in crate::acp) fn coordinator(
        &mut self,
        message: CoordinatorToAgent,
    ) -> Result<(), BridgeError> {
        match (message, &self.phase) {
            (CoordinatorToAgent::Init(init), Phase::Waiting) => self.init(init),
            (CoordinatorToAgent::Init(_), _) => return Err(out_of_order("init", "twice")),
            (CoordinatorToAgent::Shutdown { .. }, _) => self.shutdown(),
            (CoordinatorToAgent::Message(_), Phase::Waiting) => {
                return Err(out_of_order("message", "before init"));
            }
            (CoordinatorToAgent::Message(message), _) => {
                if self.waiting.len() >= MESSAGE_LIMIT {
                    return Err(out_of_order("message", "while many are waiting"));
                }
                self.waiting.push_back(message);
                match self.phase {
                    Phase::Locked => self.open_session(),
                    _ => self.next_turn(),
                }
            }
            (CoordinatorToAgent::Steer { content }, _) => self.steer(content),
            (CoordinatorToAgent::Cancel { message_id }, _) => self.cancel(&message_id),
            (CoordinatorToAgent::ConfigUpdate { changes, .. }, _) => self.config.extend(changes),
            (CoordinatorToAgent::ApprovalResult(result), _) => self.approval(&result),
            // The bridge never asks questions, and a newer coordinator may say more.
            (CoordinatorToAgent::AskResult { .. } | CoordinatorToAgent::Unknown, _) => {}
        }
        Ok(())
    }

    /// Takes what the agent says.
    pub(in crate::acp) fn agent(
        &mut self,
        incoming: Incoming,
        now: Duration,
    ) -> Result<(), BridgeError> {
        match incoming {
            Incoming::Response { id, outcome } => self.response(&id, outcome, now),
            Incoming::Request { id, method, params } => {
                self.request(id, &method, params, now);
                Ok(())
            }
            Incoming::Notification { method, params } => {
                if method == CLIENT_METHOD_NAMES.session_update {
                    self.update(params, now);
                }
                // Extensions begin with an underscore and may be ignored.
                Ok(())
            }
        }
    }

    /// Takes a line of the agent's that is no message.
    pub(in crate::acp) fn bad_line(&mut self, error: &BadLine) {
        self.log("warn", format!("ignored a line of the agent: {error}"));
    }

    /// Answers a request of the agent.
    pub(in crate::acp) fn answer(&mut self, id: &RequestId, outcome: &Result<Value, Error>) {
        self.effects
            .push_back(Effect::Down(rpc::response(id, outcome)));
    }

    // Turns.

    fn next_turn(&mut self) {
        let Phase::Open(_) = &self.phase else { return };
        if self.turn.is_some() || self.stopping {
            return;
        }
        let Some(message) = self.waiting.pop_front() else {
            return;
        };
        let mut prompt: Vec<ContentBlock> =
            self.preface.take().map(Into::into).into_iter().collect();
        prompt.push(message.data.text.into());
        for attachment in message.data.attachments {
            match serde_json::from_value::<ContentBlock>(attachment) {
                Ok(block) if self.takes(&block) => prompt.push(block),
                Ok(_) => self.log(
                    "warn",
                    "the agent does not take attachments of this kind".to_owned(),
                ),
                Err(error) => self.log(
                    "warn",
                    format!("an attachment is no content block: {error}"),
                ),
            }
        }
        self.turn = Some(Turn {
            out_id: out_id(&message.id),
            message: message.id,
            translator: Translator::new(self.workspace.clone()),
            steers: VecDeque::new(),
            cancelled: false,
            usage: None,
        });
        self.prompt(prompt);
    }

    fn takes(&self, block: &ContentBlock) -> bool {
        let takes = &self.agent.prompt_capabilities;
        match block {
            ContentBlock::Text(_) | ContentBlock::ResourceLink(_) => true,
            ContentBlock::Image(_) => takes.image,
            ContentBlock::Audio(_) => takes.audio,
            ContentBlock::Resource(_) => takes.embedded_context,
            _ => false,
        }
    }

    fn prompt(&mut self, prompt: Vec<ContentBlock>) {
        if let Phase::Open(session) = &self.phase {
            let prompt = PromptRequest::new(session.clone(), prompt);
            self.call(Pending::Prompt, prompt);
        }
    }

    /// ACP has no way to speak into a running prompt: guidance is the turn's next prompt.
    fn steer(&mut self, content: String) {
        if let Some(turn) = &mut self.turn {
            if turn.steers.len() >= STEER_LIMIT {
                turn.steers.pop_front();
            }
            turn.steers.push_back(content);
        }
    }

    fn cancel(&mut self, message: &MessageId) {
        self.waiting.retain(|waiting| waiting.id != *message);
        if self
            .turn
            .as_ref()
            .is_some_and(|turn| turn.message == *message)
        {
            self.cancel_turn();
        }
    }

    fn cancel_turn(&mut self) {
        let (Some(turn), Phase::Open(session)) = (&mut self.turn, &self.phase) else {
            return;
        };
        if std::mem::replace(&mut turn.cancelled, true) {
            return;
        }
        turn.steers.clear();
        self.effects.push_back(Effect::Down(rpc::notification(
            AGENT_METHOD_NAMES.session_cancel,
            CancelNotification::new(session.clone()),
        )));
        // The protocol demands an answer to each request that is open at a cancel.
        for (_, permission) in std::mem::take(&mut self.permissions) {
            self.permit(&permission.id, RequestPermissionOutcome::Cancelled);
        }
    }

    fn prompted(&mut self, outcome: Result<Value, Error>, now: Duration) {
        let Some(turn) = &mut self.turn else { return };
        let (reason, error) = match outcome {
            _ if turn.cancelled => (FinishReason::Cancelled, None),
            Ok(answer) => {
                add_tokens(&mut turn.usage, &answer);
                (finish_reason(&answer), None)
            }
            Err(error) => (FinishReason::Error, Some(error)),
        };
        if reason == FinishReason::EndTurn
            && let Some(steer) = turn.steers.pop_front()
        {
            self.prompt(vec![steer.into()]);
            return;
        }
        let Some(mut turn) = self.turn.take() else {
            return;
        };
        for element in turn.translator.finish(now) {
            self.element(&turn.out_id, element);
        }
        if let Some(error) = error {
            self.log("error", format!("the agent refused the prompt: {error}"));
            let text = format!("The agent failed: {error}");
            self.element(&turn.out_id, Element::TextDelta { text });
        }
        self.permissions.clear();
        self.up(AgentToCoordinator::Complete {
            message_id: turn.out_id.into(),
            finish_reason: reason,
            token_usage: turn.usage,
        });
        match self.stopping {
            true => self.effects.push_back(Effect::Stop),
            false => self.next_turn(),
        }
    }

    fn shutdown(&mut self) {
        self.stopping = true;
        self.waiting.clear();
        match self.turn {
            Some(_) => self.cancel_turn(),
            None => self.effects.push_back(Effect::Stop),
        }
    }

    // What the agent says.

    fn response(
        &mut self,
        id: &RequestId,
        outcome: Result<Value, Error>,
        now: Duration,
    ) -> Result<(), BridgeError> {
        let pending = match id {
            RequestId::Number(id) => self.pending.remove(id),
            _ => None,
        };
        let Some(pending) = pending else {
            self.log(
                "warn",
                format!("the agent answered a request {id} that was never made"),
            );
            return Ok(());
        };
        match (pending, outcome) {
            (Pending::Prompt, outcome) => self.prompted(outcome, now),
            (Pending::LoadSession, Ok(_)) => {
                if let Some(session) = self.kept.session_id.clone() {
                    self.open(session);
                }
            }
            (Pending::LoadSession, Err(error)) if error.code != ErrorCode::AuthRequired => {
                self.log(
                    "warn",
                    format!("the agent has lost its session ({error}); starting a new one"),
                );
                self.new_session();
            }
            (Pending::Initialize, Ok(answer)) => {
                self.initialized(read(pending, answer)?)?;
            }
            (Pending::NewSession, Ok(answer)) => {
                let answer: NewSessionResponse = read(pending, answer)?;
                self.kept = Kept {
                    session_id: Some(answer.session_id.clone()),
                    cost: Decimal::ZERO,
                };
                self.keep();
                self.open(answer.session_id);
            }
            (_, Err(error)) if error.code == ErrorCode::AuthRequired => self.lock(),
            (_, Err(error)) => {
                return Err(BridgeError::Refused {
                    method: pending.method(),
                    error,
                });
            }
        }
        Ok(())
    }

    // Sending.

    fn call<P: Serialize>(&mut self, pending: Pending, params: P) {
        self.last_id = self.last_id.saturating_add(1);
        self.pending.insert(self.last_id, pending);
        let line = rpc::request(self.last_id, pending.method(), params);
        self.effects.push_back(Effect::Down(line));
    }

    fn elements(&mut self, elements: Vec<Element>) {
        if let Some(out_id) = self.turn.as_ref().map(|turn| turn.out_id.clone()) {
            for element in elements {
                self.element(&out_id, element);
            }
        }
    }

    fn element(&mut self, out_id: &str, element: Element) {
        self.up(AgentToCoordinator::StreamUpdate {
            message_id: out_id.to_owned().into(),
            element,
        });
    }

    fn keep(&mut self) {
        let value = json!({"op": "replace", "path": "", "value": self.kept});
        self.up(AgentToCoordinator::StateDelta {
            deltas: vec![value],
        });
    }

    fn log(&mut self, level: &'static str, message: String) {
        self.effects.push_back(Effect::Log { level, message });
    }

    fn up(&mut self, message: AgentToCoordinator<'static>) {
        self.effects.push_back(Effect::Up(message));
    }
}

impl Pending {
    fn method(self) -> &'static str {
        match self {
            Self::Initialize => AGENT_METHOD_NAMES.initialize,
            Self::NewSession => AGENT_METHOD_NAMES.session_new,
            Self::LoadSession => AGENT_METHOD_NAMES.session_load,
            Self::Prompt => AGENT_METHOD_NAMES.session_prompt,
        }
    }
}

/// Output has an id of its own, one for each message.
fn out_id(message: &MessageId) -> String {
    format!("{message}_out")
}

fn out_of_order(message: &'static str, when: &'static str) -> BridgeError {
    BridgeError::OutOfOrder { message, when }
}

fn read<T: DeserializeOwned>(pending: Pending, answer: Value) -> Result<T, BridgeError> {
    serde_json::from_value(answer).map_err(|error| BridgeError::WrongAnswer {
        method: pending.method(),
        detail: error.to_string(),
    })
}

/// A stop reason that is not one of ours is passed on as it is.
fn finish_reason(answer: &Value) -> FinishReason {
    match answer.get("stopReason").and_then(Value::as_str) {
        Some("end_turn") | None => FinishReason::EndTurn,
        Some("max_tokens") => FinishReason::MaxTokens,
        Some("cancelled") => FinishReason::Cancelled,
        Some(other) => FinishReason::Other(other.to_owned()),
    }
}

/// Adds what the answer says of tokens; agents may leave it out.
fn add_tokens(usage: &mut Option<TokenUsage>, answer: &Value) {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Tokens {
        input_tokens: u64,
        output_tokens: u64,
    }
    let tokens = answer.get("usage").map(Tokens::deserialize);
    if let Some(Ok(tokens)) = tokens {
        usage.get_or_insert_default().add(&TokenUsage {
            input_tokens: tokens.input_tokens,
            output_tokens: tokens.output_tokens,
            cost: Decimal::ZERO,
        });
    }
}

#[cfg(test)]
mod tests;
