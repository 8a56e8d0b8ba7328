//! Versioned files, replicated: the workspace plane.
//!
//! Two folders on two machines are the same folder, every version of every file
//! is kept, and a program can know that they agree.
//!
//! # What a program calls
//!
//! | to | call |
//! |---|---|
//! | find where a folder's state belongs | [`Place::of`]: `HOME/workspaces/{id}/`, `HOME/cas/` |
//! | open a master | [`Workspace::open`] with a [`WorkspaceConfig`] (blocks: `spawn_blocking`); [`Workspace::start`] to serve replicas while a new tree is still being read |
//! | serve one replica | [`Workspace::serve`] on a [`Connection`]: [`Connection::over_stream`] for any byte stream, [`Connection::over_messages`] for an upgraded WebSocket's binary messages |
//! | open a replica and follow a master | [`Replica::open`], then [`replica::Runner::run`] with a [`replica::Dial`] ([`replica::UnixDial`], [`replica::WebSocketDial`], or your own) |
//! | know that all earlier writes of the master are here | [`Replica::barrier`], with a timeout |
//! | know that the master has all that was written here | [`Replica::write_back_and_wait`]: the master's sequences, and what was refused |
//! | see how it goes | [`Workspace::status`] (sequence, replicas, lag), [`Replica::status`] (`incoming`: files behind; `outgoing`: unanswered) |
//! | follow the history live | [`Workspace::watch_sequence`], [`Workspace::log`] with [`history::LogQuery`] |
//! | look back | [`Workspace::show`], [`Workspace::diff`], [`Workspace::changed_between`], [`Workspace::node_at`], [`Workspace::sequence_at`] |
//! | look back without opening it | [`Past`]: takes no lock, reads beside whoever has it open |
//! | go back | [`Workspace::restore`] to a state; [`Workspace::undo`] of a sequence range, of one author if wanted, that spares later changes |
//! | name and copy states | [`Workspace::checkpoint`], [`Workspace::fork`] |
//! | keep it small and sound | [`Workspace::prune`], [`Workspace::gc`], [`Workspace::verify`] |
//! | settle refused writes | [`Replica::conflicts`], [`Replica::take_conflict`], [`Replica::drop_conflict`] |
//! | let `quintet workspace` ask it | [`control::serve`] beside it, on the state folder's socket |
//!
//! **A coherent command** is `barrier`, run, `write_back_and_wait`: it sees every
//! earlier write of the master, and when it returns the master has every file
//! that it wrote. What it changed are the sequences after the barrier's and up
//! to the report's, by the replica's name: [`Workspace::log`] and
//! [`Workspace::undo`] take exactly that range.
//!
//! # Where to start reading
//!
//! [`proto`] is the protocol's specification and both of its state machines,
//! without I/O. [`master`] and [`replica`] drive them. [`history`] is the
//! database of versions, [`content`] the store of their bytes, [`tree`] and
//! [`watch`] the disk, [`transport`] what carries frames.
//!
//! This crate never reads the environment, the home folder or the terminal, and
//! knows no other plane.

pub mod content;
pub mod control;
pub mod history;
mod link;
mod mailbox;
pub mod master;
mod past;
mod place;
pub mod proto;
pub mod replica;
pub mod transport;
pub mod tree;
pub mod watch;

pub use link::LinkError;
pub use master::{Opening, Workspace, WorkspaceConfig};
pub use past::{Past, Version};
pub use place::{Place, Role};
pub use replica::{Replica, ReplicaConfig};
pub use transport::Connection;
