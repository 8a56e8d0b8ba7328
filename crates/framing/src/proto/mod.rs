//! The parts of framing that do no I/O: bytes and numbers in, bytes and numbers out.

pub mod backoff;
pub(crate) mod blocks;
pub mod codec;
pub mod websocket;
