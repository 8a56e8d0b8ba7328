//! The daemon's core: sessions, journal, configuration, cron and the planes joined.
//!
//! This is the only library that knows more than one plane. It must never read
//! the environment, find the home folder by itself or touch the terminal: the
//! binary passes those in.
//!
//! Start at `daemon`, which builds everything and runs it; [`journal`] is
//! what every stream that a client sees is read from.

pub mod home;
pub mod journal;
pub mod store;
