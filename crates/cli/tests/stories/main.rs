//! What a person does with the program, one story a test, against the real binary.
#![expect(
    clippy::unwrap_used,
    reason = "a story that can't go on is a story that failed"
)]

mod acp;
mod admitted;
mod away;
mod behind;
mod channel;
mod coder;
mod coherent;
mod crash;
mod cut;
mod daemon;
mod files;
mod guide;
mod harness;
mod hostile;
mod peer;
mod talk;
mod terminal;
mod three_hosts;
mod tools;
mod undo;
mod usage;
mod workers;
mod workspace;
