//! The master: a directory, its history, and the replicas that follow it.
//!
//! One thread, the engine, owns the tree, the watcher and the writing side of
//! the history; everybody else sends it commands. Connections read the ledger,
//! which the engine updates after each commit.

mod books;
mod commit;
mod engine;
mod fresh;
mod ops;
mod own;
mod serve;
mod workspace;

pub use ops::{DiffEntry, ForkReport, RestoreReport, UndoRange, UndoReport, VerifyReport};
pub use serve::ServeError;
pub(crate) use workspace::lock_state;
pub use workspace::{
    OpenError, Opening, ReplicaStatus, Workspace, WorkspaceConfig, WorkspaceError, WorkspaceStatus,
};
