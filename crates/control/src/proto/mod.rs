//! The messages and their rules, without I/O.
//!
//! [`wire`] is generated from `proto/quintet.proto`, which is the published schema and the one
//! registry of message numbers. Around it: conversions between a typed message and its envelope,
//! error codes, and the rule that says which message is the last of a reply.

mod convert;
mod error;
mod shape;

#[expect(
    missing_docs,
    reason = "generated; the schema carries the comments of the messages that need one"
)]
pub mod wire {
    include!(concat!(env!("OUT_DIR"), "/crabtalk.protocol.rs"));
}

use quintet_framing::{ByteOrder, FrameFormat};

pub use convert::UnexpectedMessage;
pub use error::{ErrorCode, ServerError};
pub use shape::ReplyShape;

/// Frames of this plane: big-endian length, at most 16 MiB of payload.
pub const FRAME_FORMAT: FrameFormat = FrameFormat::new("control", ByteOrder::Big, 16 * 1024 * 1024);

/// What `hello` says of this version of the extensions.
pub const PROTOCOL_VERSION: u32 = 1;

/// Capability of a client that takes an agent's elements whole, in `StreamEvent.raw`.
pub const RAW_ELEMENTS: &str = "raw_elements";
