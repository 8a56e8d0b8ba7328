//! The sandbox plane, both ends together and each against raw sockets and the released programs.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

mod bed;
mod commands;
mod files;
mod golden;
mod liar;
mod lost;
mod memory;
mod reconnect;
mod released;
mod revoked;
mod security;
mod shells;
mod uploads;
mod wire;
