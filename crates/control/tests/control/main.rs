//! The control plane as a peer sees it: bytes, conversions, and real sockets.
#![expect(clippy::unwrap_used, reason = "a test says what it expects by failing")]

mod arrival;
mod convert;
mod daemon;
mod frames;
mod limits;
mod requests;
mod sentinel;
mod tcp;
