//! The control plane: clients and the daemon.

mod client;
pub mod proto;
mod server;

pub use client::{Client, ClientError, Outcome};
pub use proto::wire;
pub use proto::{
    ErrorCode, FRAME_FORMAT, PROTOCOL_VERSION, RAW_ELEMENTS, ReplyShape, ServerError,
    UnexpectedMessage,
};
pub use server::{Answer, Server};
