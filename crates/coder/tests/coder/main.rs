//! The coder as a real process under the real supervisor, with a model and a tool server that
//! speak their documented formats.
#![expect(clippy::unwrap_used, reason = "tests")]

mod bed;
mod compaction;
mod steps;
mod tool_server;
