//! Tools over the Model Context Protocol: served to agents, and taken from other servers.
//!
//! [`router`] is the server: streamable HTTP at `/mcp`, generic over [`Tools`], which says whose
//! token a request carries, what that instance may see, and what a call does. [`Externals`] is the
//! client: the tools of configured servers, each a supervised process or an address.
//!
//! # The server
//!
//! - Every request is whole by itself: no session is kept between two of them, so that an agent
//!   goes on after either side was restarted. An answer is a stream of events with one message, so
//!   that a long call keeps its connection.
//! - `Authorization: Bearer`; a token that is not known, or no longer, is 401.
//! - The `Host` header has to be one of ours (a page that rebinds its name to this address can't
//!   reach the tools) and there may be no `Origin`: agents are no browsers.
//! - Calls run at the same time and are answered in the order in which they end. A call ends early
//!   when its connection does, when the client sends `notifications/cancelled`, or when its
//!   instance's token dies.
//! - Limits: [`MAX_REQUEST`] bytes of a request, [`MAX_CALLS`] calls at once for an instance (more
//!   is a tool error), [`MAX_RESULT`] bytes of a result.
//!
//! # The client
//!
//! A server is started when its tools are first wanted. One that ends is started again when it is
//! next wanted, with a growing pause after each failure; a call in between, and the calls that it
//! took down with it, are tool errors that say so. A process is ended with everything that it
//! started.
//!
//! This crate knows nothing of sessions, policy or configuration, and rmcp's types stay inside.

mod client;
mod process;
mod reach;
mod server;
mod tool;

pub use client::{CallError, ExternalTool, Externals, ServerSpec};
pub use server::{CALL_ID, MAX_CALLS, MAX_REQUEST, ServerOptions, Tools, router};
pub use tool::{Content, MAX_RESULT, ToolCall, ToolOutcome, ToolSpec};
