//! The conversation in a terminal.
//!
//! It is a view of the journal from a cursor: everything on the screen but what is being typed
//! comes from the session's events, so that it is the same after the daemon or the terminal was
//! restarted. [`model`] is the state (events and keys in, effects out), [`view`] draws it, and
//! [`driver`] has the sockets and the terminal. In a pipe, [`plain`] takes their place.

mod composer;
pub(crate) mod driver;
pub(crate) mod event;
mod highlight;
mod markdown;
mod model;
mod picker;
pub(crate) mod plain;
mod prompt;
mod slash;
mod theme;
mod transcript;
mod view;
mod wrap;

/// Who the messages of a terminal are from.
pub(crate) const SENDER: &str = "user";
