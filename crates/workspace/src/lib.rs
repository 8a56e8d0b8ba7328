//! Versioned files, replicated: the workspace plane.

pub mod content;
pub mod history;
mod link;
mod mailbox;
pub mod master;
pub mod proto;
pub mod replica;
pub mod transport;
pub mod tree;
pub mod watch;

pub use link::LinkError;
pub use master::{Workspace, WorkspaceConfig};
pub use replica::{Replica, ReplicaConfig};
pub use transport::Connection;
