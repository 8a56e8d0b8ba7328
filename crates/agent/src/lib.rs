//! The agent plane: agents as supervised processes.
//!
//! - [`proto`] is the plane's specification and its pure core: messages, lifecycle, state patches.
//! - [`supervisor`] starts and keeps the processes; start at [`Supervisor`] and [`InstanceHandle`].
//! - [`logs`] is what the instances leave behind beside their state.
//! - [`sdk`] is the other end: what an agent written in Rust uses.
//!
//! This crate knows no other plane and no session: whoever runs messages brings the queue and the
//! journal. It never reads the environment, the home folder or the terminal.

pub mod acp;
mod ledger;
pub mod logs;
mod process;
pub mod proto;
pub mod sdk;
mod state;
pub mod supervisor;

pub use ledger::{LedgerError, SweepReport};
pub use process::{ProcessLimits, SpawnError};
pub use proto::element::{Element, FileChangeKind, RawElement, TerminalStream};
pub use proto::lifecycle::Phase;
pub use proto::message::{
    AgentId, ApprovalResult, AskOption, AskOutcome, FinishReason, InboundMessage, LogEntry,
    MessageData, MessageId, Origin, Question,
};
pub use proto::restart::RestartPolicy;
pub use proto::turn::WaitingFor;
pub use proto::usage::{Budget, BudgetExceeded, TokenUsage};
pub use state::StateError;
pub use supervisor::{
    CancelCause, CgroupUse, FailReason, InstanceEvent, InstanceHandle, InstanceSpec,
    InstanceStatus, Observer, OpenError, Steered, Supervisor, SupervisorError, SupervisorOptions,
    Timings, TurnEnd,
};
