//! The channel plane: browsers, paired and encrypted.
//!
//! [`proto`] is both versions of the protocol without I/O, and its module doc
//! the specification. [`server`] drives upgraded WebSockets for the daemon,
//! which implements [`server::Backend`]; [`client`] is the device's side of v2.
//!
//! This crate must never know what a session or a journal is: it carries
//! events and requests between devices and a backend.

pub mod client;
pub mod proto;
pub mod server;
