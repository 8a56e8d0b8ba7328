//! One fuzz target per decoder.
//!
//! A target is a plain function that takes any bytes and panics when a promise of the decoder is
//! broken. Two drivers call it: libFuzzer (`fuzz_targets/`, under cargo-fuzz) and the ordinary test
//! `tests/corpus.rs`, which replays `corpus/NAME/` and mutates it for a few seconds.

mod framing;
pub mod mutate;

pub use framing::framing;

/// A target and the name of its corpus folder.
pub struct Target {
    /// The folder below `corpus/`, and the program below `fuzz_targets/`.
    pub name: &'static str,
    /// Panics when the decoder breaks a promise.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = &[Target {
    name: "framing",
    run: framing,
}];
