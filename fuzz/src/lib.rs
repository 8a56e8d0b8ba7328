//! One fuzz target per decoder.
//!
//! A target is a plain function that takes any bytes and panics when a promise of the decoder is
//! broken. Two drivers call it: libFuzzer (`fuzz_targets/`, under cargo-fuzz) and the ordinary test
//! `tests/corpus.rs`, which replays `corpus/NAME/` and mutates it for a few seconds.

mod agent;
mod channel_v1;
mod channel_v2;
mod control;
mod framing;
pub mod mutate;
mod policy;
mod sandbox;
mod workspace;

pub use agent::agent;
pub use channel_v1::channel_v1;
pub use channel_v2::channel_v2;
pub use control::control;
pub use framing::framing;
pub use policy::policy;
pub use sandbox::sandbox;
pub use workspace::workspace;

/// A target and the name of its corpus folder.
pub struct Target {
    /// The folder below `corpus/`, and the program below `fuzz_targets/`.
    pub name: &'static str,
    /// Panics when the decoder breaks a promise.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = &[
    target("agent", agent),
    target("channel_v1", channel_v1),
    target("channel_v2", channel_v2),
    target("control", control),
    target("framing", framing),
    target("policy", policy),
    target("sandbox", sandbox),
    target("workspace", workspace),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}
