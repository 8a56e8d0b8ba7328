//! The control plane: clients and the daemon.
//!
//! A client (terminal, browser gateway, any program with the schema) asks, the daemon answers.
//! This crate is the protocol and both ends of its transports; what a request does is the
//! daemon's affair, behind [`Server`]. It must never know a session, an agent or a file.
//!
//! # Bytes
//!
//! A frame is a 4-byte big-endian length and one protobuf message, at most 16 MiB of it:
//! [`ClientMessage`](wire::ClientMessage) one way, [`ServerMessage`](wire::ServerMessage) the
//! other. `proto/quintet.proto` is the schema and the registry of numbers. Those below 1000 are
//! the original protocol's; ours are from 1000 up, where an old peer skips them.
//!
//! # Conversation
//!
//! - One request at a time on a connection. A second one that is sent early waits its turn: it is
//!   no error, and replies are never interleaved. Several connections do several things at once.
//! - There are no request ids: [`ReplyShape`] says for each request which message is the last of
//!   its reply. An error always is.
//! - `hello` is optional on a Unix socket; a peer that never says it is an old one. On TCP it comes
//!   first and carries the token, so that an old peer is refused there with 401.
//! - A client keeps its sending side open until it has its answer: the end of its bytes means that
//!   it is gone. What answered it is dropped, and the turn behind it goes on.
//! - A reply that does not fit in a frame is replaced by an error 500.
//!
//! # What a peer may do wrong
//!
//! | what | consequence |
//! |---|---|
//! | an empty message, or a request number that is not known | error 400, the connection stays |
//! | a length over 16 MiB, bytes that don't decode, a string that is no UTF-8 | closed |
//! | half a frame and then silence | closed after [`Limits::half_frame`] |
//! | not reading its replies | closed after [`Limits::not_reading`] without a byte taken |
//! | more connections than [`Limits::max_connections`] | wait, unaccepted |
//! | more than 64 KiB of requests in advance | wait in the kernel |
//! | another user's process on the Unix socket | closed |
//!
//! The daemon learns of each with its reason through [`Service::closed`].
//!
//! # Where to start
//!
//! [`Server`] and [`serve_unix`] for a daemon, [`Client`] and [`UnixClient`] for a client,
//! [`proto`] for the rules without I/O.

mod client;
mod connection;
mod dial;
mod listen;
pub mod proto;
mod server;

pub use client::{Client, ClientError, Outcome};
pub use dial::{ClientConnection, TcpClient, UnixClient};
pub use listen::{Closed, Limits, Origin, Peer, Service, serve_tcp, serve_unix, tokens_match};
pub use proto::wire;
pub use proto::{
    ErrorCode, FRAME_FORMAT, PROTOCOL_VERSION, RAW_ELEMENTS, ReplyShape, ServerError,
    UnexpectedMessage,
};
pub use server::{Answer, ReplyStream, Server};
