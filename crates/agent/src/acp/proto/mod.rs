//! The bridge without I/O: messages and time in, messages and effects out.

mod bridge;
mod permission;
mod rpc;
mod translate;

pub(super) use bridge::{Bridge, BridgeError, Effect};
pub(super) use rpc::{BadLine, Incoming, parse};
