//! The supervisor with real processes.
#![expect(clippy::unwrap_used, reason = "tests")]

mod bad_input;
#[path = "../harness/mod.rs"]
mod harness;
mod lifecycle;
mod patch_suite;
mod processes;
mod rust_agents;
mod seed_agent;
mod state_over_kills;
mod throughput;
