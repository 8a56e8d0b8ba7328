//! What the supervisor is told and what it tells.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::process::ProcessLimits;
use crate::proto::element::Element;
use crate::proto::lifecycle::Phase;
use crate::proto::message::{AgentId, FinishReason, LogEntry, MessageId, Question};
use crate::proto::restart::RestartPolicy;
use crate::proto::turn::WaitingFor;
use crate::proto::usage::TokenUsage;

/// One instance of an agent: what to start and where.
#[derive(Debug, Clone)]
pub struct InstanceSpec {
    /// Names the instance over all its processes.
    pub agent_id: AgentId,
    /// The configured agent's name.
    pub agent_type: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The process's working folder.
    pub cwd: PathBuf,
    /// The whole environment: a scrubbed base and what the config adds.
    ///
    /// The supervisor adds `QUINTET_IPC_SOCKET`, `AGENT_ID` and `AGENT_WORKSPACE`, and nothing else.
    pub env: BTreeMap<String, String>,
    /// Holds `ipc.sock`, `state.db` and `logs/`; made where it is missing.
    pub instance_dir: PathBuf,
    /// The folder the agent works in.
    pub workspace: PathBuf,
    /// Goes into `init`.
    pub config: Map<String, Value>,
    /// Limits of its processes.
    pub limits: ProcessLimits,
    /// How long things may take.
    pub timings: Timings,
}

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timings {
    /// From the start of the process to its connection.
    pub ready_timeout: Duration,
    /// Ready without a message before the process is shut down; `None` keeps it.
    pub idle_timeout: Option<Duration>,
    /// From `shutdown` to SIGTERM.
    pub shutdown_grace: Duration,
    /// From SIGTERM to SIGKILL.
    pub term_grace: Duration,
    /// From `cancel` to SIGKILL.
    pub cancel_grace: Duration,
    /// Quiet for this long, a running message is reported as stalled.
    pub stall_after: Duration,
    /// Until a `complete` with the id of an earlier message counts for one that says nothing more.
    pub complete_grace: Duration,
    /// The longest that one message may run.
    pub turn_deadline: Option<Duration>,
    /// How lost processes are started again.
    pub restart: RestartPolicy,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            ready_timeout: Duration::from_secs(30),
            idle_timeout: Some(Duration::from_secs(600)),
            shutdown_grace: Duration::from_secs(10),
            term_grace: Duration::from_secs(5),
            cancel_grace: Duration::from_secs(10),
            stall_after: Duration::from_secs(120),
            complete_grace: Duration::from_secs(10),
            turn_deadline: None,
            restart: RestartPolicy::default(),
        }
    }
}

/// What happens in an instance.
#[derive(Debug, Clone, PartialEq)]
pub enum InstanceEvent {
    /// It moved from one phase to another.
    Phase {
        /// Where it was.
        from: Phase,
        /// Where it is.
        to: Phase,
        /// Why.
        reason: String,
    },
    /// A piece of output.
    Element {
        /// The inbound message that it belongs to.
        message_id: MessageId,
        /// The agent's own id of the output that it is a piece of.
        output_id: String,
        /// The piece.
        element: Element,
    },
    /// The agent logged something; it is in the instance's log already.
    Log(LogEntry),
    /// The agent changed its state; the change is durable.
    StateApplied {
        /// The list of operations.
        patches: Vec<Value>,
        /// The number of the change, counted over the life of the state.
        revision: u64,
    },
    /// The agent's change of state does not apply; it is recorded, and the process restarts from the last good state.
    StateRejected {
        /// Why not.
        reason: String,
    },
    /// What the running message has used so far, in all.
    Usage(TokenUsage),
    /// The agent asks the person; see [`InstanceHandle::answer_ask`](crate::InstanceHandle::answer_ask).
    AskUser {
        /// The agent's id of the question.
        ask_id: String,
        /// The questions, asked together.
        questions: Vec<Question>,
    },
    /// The agent asks leave; see [`InstanceHandle::answer_approval`](crate::InstanceHandle::answer_approval).
    ApprovalRequest {
        /// The agent's id of the request.
        request_id: String,
        /// What it wants to do.
        action: String,
        /// The exact command.
        command: Option<String>,
        /// The folder it would run in.
        cwd: Option<String>,
        /// Why.
        reason: Option<String>,
    },
    /// Guidance that the agent got and did not look at before its message was done.
    SteerUnread {
        /// The guidance, as it was given.
        content: String,
    },
    /// The running message has been quiet for long. Said once for each quiet spell.
    Stalled {
        /// What it waits for.
        waiting_for: WaitingFor,
        /// When it was last heard of.
        since: jiff::Timestamp,
    },
}

/// Gets what happens in the instances of a supervisor.
pub trait Observer: Send + Sync + 'static {
    /// Takes what happened, oldest first.
    ///
    /// What arrived together comes together. Nothing more is read from the agent's socket until this
    /// is done: that is the backpressure. Commands to the instance are still served meanwhile.
    fn observe(
        &self,
        agent: &AgentId,
        batch: Vec<InstanceEvent>,
    ) -> impl Future<Output = ()> + Send;
}

/// How a message ended. The observer has seen everything of it by then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TurnEnd {
    /// The agent said `complete`.
    Completed {
        /// Why it ended.
        finish_reason: FinishReason,
        /// What it used.
        usage: Option<TokenUsage>,
    },
    /// It ended in another way. It is not run again by itself: its effects are unknown.
    Failed {
        /// Why.
        reason: FailReason,
        /// The same in words, for a person.
        detail: String,
    },
}

/// Why a message ended without `complete`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailReason {
    /// The process ended or closed its connection.
    Crashed,
    /// The agent sent what is no message of this plane.
    BadFrame,
    /// The agent's change of state did not apply.
    StateRejected,
    /// The state could not be stored.
    StateLost,
    /// A person stopped the instance.
    KilledByUser,
    /// The instance was stopped for another reason.
    Stopped,
    /// The budget is used up.
    BudgetExceeded,
    /// The turn's deadline passed.
    Deadline,
    /// The process did not start or did not connect in time. The message was not delivered.
    NotReady,
    /// Too many crashes; a restart or a config change closes the breaker. The message was not delivered.
    BreakerOpen,
    /// It was cancelled and the agent did not end it in time, or had not begun it.
    Cancelled,
    /// Another message is running. This one was not delivered.
    Busy,
    /// The message is over the frame limit. It was not delivered.
    TooLarge,
}

impl FailReason {
    /// Whether the agent certainly never saw the message, so that it can be sent again without harm.
    pub fn is_undelivered(self) -> bool {
        matches!(
            self,
            Self::NotReady | Self::BreakerOpen | Self::Busy | Self::TooLarge
        )
    }
}

/// What became of a steer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steered {
    /// It is on its way to the running message.
    Delivered,
    /// No message is running, or its agent does not read; send it as a message.
    NotRunning,
}

/// Why a running message is cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelCause {
    /// A person asked.
    User,
    /// The budget is used up.
    Budget,
    /// The turn's deadline passed.
    Deadline,
}

impl CancelCause {
    pub(super) fn fail_reason(self) -> FailReason {
        match self {
            Self::User => FailReason::Cancelled,
            Self::Budget => FailReason::BudgetExceeded,
            Self::Deadline => FailReason::Deadline,
        }
    }
}

/// How an instance stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstanceStatus {
    /// Its phase.
    pub phase: Phase,
    /// Its process.
    pub pid: Option<u32>,
    /// Crashes since it was opened.
    pub restarts: u32,
    /// What the running message waits for.
    pub waiting_for: Option<WaitingFor>,
    /// Whether the breaker keeps it from starting again.
    pub breaker_open: bool,
}
