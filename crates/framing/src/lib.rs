//! Length-prefixed frames and what every plane needs to carry them.
//!
//! A frame is a four-byte payload length followed by the payload. Three planes
//! use it with different byte orders and limits; each states its own
//! [`FrameFormat`] and shares everything else:
//!
//! - [`proto`]: the codec and the reconnect backoff, without I/O.
//! - [`FrameReader`] and [`FrameWriter`]: the codec over any byte stream.
//! - [`confined`]: whether the process at the other end is in a sandbox.
//! - [`descriptors`]: how many of them this process may have.
//! - [`unix`], [`tcp`] and [`ws`]: the byte transports that carry frames.
//! - [`socket`]: a WebSocket for large messages and for thousands of idle peers.
//! - [`spare`]: memory that contents are read to again and again.
//!
//! This crate must never know a message of any plane.

pub mod confined;
pub mod descriptors;
pub mod proto;
mod reader;
pub mod socket;
pub mod spare;
pub mod tcp;
pub mod unix;
mod writer;
pub mod ws;

pub use proto::backoff;
pub use proto::codec::{ByteOrder, Decoder, FrameError, FrameFormat, HEADER_LEN};
pub use reader::{FrameReader, ReadError};
pub use writer::FrameWriter;
