//! The bridge without I/O: messages and time in, messages and effects out.

mod bridge;
mod permission;
mod rpc;
mod translate;

pub use bridge::BridgeError;
pub(super) use bridge::{Bridge, Effect};
pub(super) use rpc::parse;
