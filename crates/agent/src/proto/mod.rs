//! The agent plane: what the coordinator and one agent process say to each other.
//!
//! # Participants
//! The **coordinator** (this crate's supervisor, inside the daemon) listens on a Unix socket of the
//! instance, starts the process, and owns everything durable. The **agent** is any program; it dials
//! the path in `QUINTET_IPC_SOCKET` and holds nothing that must survive it.
//!
//! # Bytes
//! `[4 bytes: length, little-endian] [JSON object with a "type"]`, at most [`MAX_FRAME`] bytes of JSON.
//!
//! # Flow
//! ```text
//! coordinator                              agent
//!   init {agent_id, .., config, state}  ->        once, after the connection
//!   message {id, data, origin}          ->        one at a time
//!                                       <-  stream_update, state_delta, log   any number
//!   steer, config_update, cancel        ->        at any time
//!                                       <-  complete {finish_reason, token_usage?}   exactly once
//!   shutdown {reason}                   ->        the agent ends
//! ```
//! `message_id` in the agent's output is minted by the agent. All output belongs to the one message
//! that is running ([`turn`]).
//!
//! # State
//! `state_delta {deltas}` is an RFC 6902 patch: the whole list applies or none of it does ([`patch`]).
//! A state that was never set is `null`; a patch whose first pointer is not the root then starts from
//! `{}`, because that is what every agent holds at that point.
//!
//! # Additions to the original protocol
//! An agent that does not know them ignores them, and one that never sends them loses nothing.
//!
//! | direction | message | meaning |
//! |---|---|---|
//! | to the agent | `cancel {message_id}` | end the running message with `complete {finish_reason: "cancelled"}`; after a grace period the process is killed |
//! | to the agent | `ask_result {ask_id, outcome}` | the answer to `ask_user`: `{status: "answered", answers: [[text, ..] per question]}` or `{status: "withdrawn", reason}` |
//! | to the agent | `approval_result {request_id, approved, reason?, by?, scope?}` | the answer to `approval_request` |
//! | to the coordinator | `ask_user {ask_id, questions: [{question, header, options: [{label, description}], multi_select}]}` | a question to the person; the turn stays running |
//! | to the coordinator | `approval_request {request_id, action, command?, cwd?, reason?}` | asks leave for one action |
//! | to the coordinator | `usage {token_usage}` | what the running message has used so far, in all; a budget that is used up cancels it |
//! | to the coordinator | `steer_unread {content}` | a steer that the message did not look at before it was done, or that came when none ran; it becomes the session's next message |
//! | to the coordinator | element `plan {entries}` | passes like every unknown element |
//!
//! # Unknown and wrong input
//! An unknown `type` or field is ignored and logged once per process. An unknown element is kept as
//! the JSON it was. Bytes that are no frame, JSON that is no object, and a known type of a wrong shape
//! are a [`decode::BadFrame`]: the connection is closed and the process restarted as after a crash.
//!
//! # Non-goals
//! No authentication beyond the peer's uid, no request ids, no second connection per process.
//!
//! This module does no I/O and reads no clock: time comes in as an argument.

pub mod decode;
pub mod element;
pub mod json_text;
pub mod lifecycle;
pub mod message;
pub mod patch;
pub mod restart;
pub mod turn;
pub mod usage;

use quintet_framing::{ByteOrder, FrameFormat};

/// The largest JSON payload of a frame, either way.
pub const MAX_FRAME: u32 = 16 * 1024 * 1024;

/// The frame format of this plane.
pub const FORMAT: FrameFormat = FrameFormat::new("agent", ByteOrder::Little, MAX_FRAME);

/// The largest folded state as JSON text: it must fit into one `init` beside the config.
pub const MAX_STATE: usize = 8 * 1024 * 1024;
