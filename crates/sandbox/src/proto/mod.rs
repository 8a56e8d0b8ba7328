//! The sandbox plane's protocol: messages, codecs and state machines, without I/O or clock.
//!
//! # Participants
//!
//! A *worker* is a machine that runs commands, shells and transfers. A *hub* accepts
//! workers and gives them work. The worker dials, so that nothing on it listens.
//!
//! # Flow
//!
//! 1. The worker dials `/ws` and offers [`Protocol::OFFERED`]; the hub echoes the newest it knows
//!    ([`negotiate`]).
//! 2. The worker sends `register`; the hub answers with `register_ack` before anything else.
//! 3. The worker sends a heartbeat at once and every 10 s; the hub answers each.
//! 4. The hub sends requests and the worker answers them, any number at once: in JSON text
//!    ([`HubToWorker`], [`WorkerToHub`]) under `sandd.v1`, in binary frames ([`frame`]) under
//!    `sandd.v2`.
//!
//! # Two dialects of v1
//!
//! The original protocol and the released programs use different names under one version string ([`Dialect`]).
//! A worker answers in the dialect of the request. The hub writes both ids where an object can
//! hold both, and learns a worker's dialect from its first reply.
//!
//! # What is wrong but tolerated
//!
//! An unknown type, malformed JSON, a missing field or bad base64 is logged once per kind and
//! connection, and answered with `error` where the message carried an id; the connection stays.
//! Binary messages are ignored in v1. A message over [`MAX_MESSAGE`] closes the connection.
#![deny(
    clippy::panic,
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects
)]
#![cfg_attr(
    test,
    expect(clippy::arithmetic_side_effects, reason = "tests may fail by panic")
)]

pub mod credit;
pub mod cut;
mod encode;
pub mod frame;
mod hub_session;
mod json;
mod message;
mod negotiate;
mod offsets;
pub mod parse;
mod token;
mod worker_session;

pub use encode::Names;
pub use hub_session::{HubEvent, HubSession, Liveness};
pub use message::{
    Dialect, ErrorMessage, FormerConnection, HubToWorker, IdKey, Load, Metadata, SnapshotInfo,
    SnapshotReply, SnapshotRequest, WorkerToHub,
};
pub use negotiate::{NegotiateError, Protocol, asks_for_sandbox, chosen, negotiate};
pub use offsets::{OffsetError, Progress};
pub use token::{BadFingerprint, BadToken, Fingerprint, Token, TokenHash};
pub use worker_session::{Pulse, WorkerEvent, WorkerSession};

/// The largest WebSocket message that is sent or taken. The released peers break on longer ones.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Bytes of JSON that a v1 reply may spend on stdout and stderr together, which leaves room for
/// the rest of the frame.
pub const MAX_OUTPUT_TEXT: usize = MAX_MESSAGE - 64 * 1024;

/// Bytes of a worker's name.
pub const MAX_NAME: usize = 256;

/// Bytes of JSON that a worker may spend on what it says about its machine.
pub const MAX_METADATA: usize = 16 * 1024;

/// Bytes of a file in one v1 chunk.
pub const CHUNK: usize = 64 * 1024;

/// A command's limit when the request names none.
pub const DEFAULT_TIMEOUT_SECS: u64 = 300;

/// `TERM` when the request names none.
pub const DEFAULT_TERM: &str = "xterm-256color";

/// How long after a shell's exit a background child may still print into the reply.
pub const GRACE_MS: u64 = 500;
