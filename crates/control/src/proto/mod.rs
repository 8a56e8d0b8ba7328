//! The messages and their rules, without I/O.
//!
//! [`wire`] is generated from `proto/quintet.proto`, which is the published schema and the one
//! registry of message numbers. Around it: conversions between a typed message and its envelope,
//! error codes, and the rule that says which message is the last of a reply.

mod convert;
mod error;
mod frame;
mod shape;
mod text;

#[expect(
    missing_docs,
    reason = "generated; the schema carries the comments of the messages that need one"
)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/crabtalk.protocol.rs"));
}

pub use convert::UnexpectedMessage;
pub use error::{ErrorCode, ServerError};
pub(crate) use frame::append_reply;
pub use frame::{FRAME_FORMAT, decode_reply, decode_request, encode_reply, encode_request};
pub use shape::ReplyShape;
pub(crate) use text::Piece;

/// What `hello` says of this version of the extensions.
pub const PROTOCOL_VERSION: u32 = 1;

/// Capability of a client that takes an agent's elements whole, in `StreamEvent.raw`.
pub const RAW_ELEMENTS: &str = "raw_elements";
