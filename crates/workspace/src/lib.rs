//! Versioned files, replicated: the workspace plane.
//!
//! Two folders on two machines are the same folder, every version of every file
//! is kept, and a program can know that they agree.
//!
//! Where to start: [`proto`] is the protocol's specification and both of its
//! state machines, without I/O. [`Workspace`] is the master: it opens a folder,
//! records its history and [serves](Workspace::serve) replicas. [`Replica`] is
//! the other end: its runner follows a master over as many connections as it
//! takes. *Barrier, run a command, write back and wait* is what makes a command
//! coherent: [`Replica::barrier`] and [`Replica::write_back_and_wait`].
//!
//! [`history`] is the database of versions, [`content`] the store of their
//! bytes, [`tree`] and [`watch`] the disk, [`transport`] what carries frames.
//!
//! This crate never reads the environment, the home folder or the terminal, and
//! knows no other plane.

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
