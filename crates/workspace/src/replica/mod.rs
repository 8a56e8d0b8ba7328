//! The replica: a copy of a master's directory that follows it, and whose own
//! changes are written back.
//!
//! One thread, the engine, owns the tree, the watcher and `replica.db`; one task
//! owns the protocol's state machine and the connection. The task asks the
//! engine to put changes in place and to remember things; the engine tells it of
//! local changes.

mod assembly;
mod database;
mod engine;
mod handle;
mod intents;
mod run;

pub use database::Conflict;
pub use handle::{
    BarrierOutcome, Replica, ReplicaConfig, ReplicaOpError, ReplicaStatus, WriteBackReport,
};
pub use run::{Dial, DialFailed, RunError, Runner, UnixDial, WebSocketDial, ws_limits};
