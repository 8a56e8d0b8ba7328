//! What the program promises when the machine, the network or the disk fails it.
//!
//! Each kind of fault has a list of places: the calls that a workload makes, the frames of a
//! conversation. With `QUINTET_FAULTS=long` (`./test --faults`) all of them are tried, with a number so
//! many of each list, with `36..72` as many after the first 36, else few, always evenly spread. A failure names the place; `QUINTET_FAULTS_ONLY`
//! with a part of that name tries it alone. Each test prints what docs/reliability.md has in its table.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on has failed; what was tried is told"
)]

mod agent;
mod channel;
mod clock;
mod daemon;
mod day;
mod disk;
mod folders;
#[path = "../stories/harness.rs"]
#[expect(dead_code, reason = "the stories need more of it")]
mod harness;
mod locked;
mod original;
mod pairing;
mod planes;
mod points;
mod process;
mod proxy;
mod said;
mod trials;
#[path = "../stories/channel/v1.rs"]
#[expect(dead_code, reason = "the stories need more of it")]
mod v1;
mod worker;
