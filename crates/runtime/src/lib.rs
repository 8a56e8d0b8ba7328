//! The daemon's core: sessions, journal, configuration, cron and the planes joined.
//!
//! This is the only library that knows more than one plane. It must never read
//! the environment, find the home folder by itself or touch the terminal: the
//! binary passes those in.
//!
//! Start at [`daemon`], which builds everything and runs it; [`journal`] is
//! what every stream that a client sees is read from.

mod channel;
pub mod config;
pub mod cron;
pub mod daemon;
pub mod home;
mod http;
pub mod journal;
mod lock;
mod metrics;
mod models;
pub mod policy;
mod refusal;
mod refusals;
mod service;
pub mod sessions;
pub mod store;
pub mod stream;
mod tools;
mod turns;
mod workers;
mod workspaces;

pub use http::TlsError;
pub use lock::LockError;
pub use models::providers_of;
pub use refusal::Refusal;
pub use workers::{BuiltinError, BuiltinWorker, instead_of_temp, session_worker};
pub use workspaces::{WorkspaceCopies, WorkspaceSnapshots, copy_beneath};
