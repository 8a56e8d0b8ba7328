//! One fuzz target per decoder, and one per state machine.
//!
//! A target is a plain function that takes any bytes and panics when a promise is broken: of a
//! decoder, that any bytes are a message or an error; of a state machine, what holds after any
//! sequence of steps, which it reads from the bytes. Two drivers call it: libFuzzer
//! (`fuzz_targets/`, by `fuzz/run` or cargo-fuzz) and the ordinary test `tests/corpus.rs`, which
//! replays `corpus/NAME/` and mutates it for a few seconds.

mod agent;
mod agent_life;
mod channel_v1;
mod channel_v2;
mod choices;
mod config;
mod control;
mod cron;
mod framing;
mod json_patch;
mod models;
pub mod mutate;
mod policy;
mod sandbox_sessions;
mod sandbox_v1;
mod sandbox_v2;
mod websocket;
mod workspace;
mod workspace_ledger;
mod workspace_peers;

// The cores of `models` and of the runtime's configuration take little, so the fuzzer builds them by
// themselves and not the whole crates. The names are those under which they know each other.
extern crate self as quintet_models;
#[path = "../../crates/models/src/proto/mod.rs"]
#[expect(
    dead_code,
    unused_imports,
    reason = "the gateway uses what the fuzzer does not"
)]
mod proto;
#[path = "../../crates/models/src/secret.rs"]
#[expect(dead_code, reason = "no request is sent")]
mod secret;

pub use agent::agent;
pub use agent_life::agent_life;
pub use channel_v1::channel_v1;
pub use channel_v2::channel_v2;
pub use config::config;
pub use control::control;
pub use cron::cron;
pub use framing::framing;
pub use json_patch::json_patch;
pub use models::models;
pub use policy::policy;
pub use sandbox_sessions::sandbox_sessions;
pub use sandbox_v1::sandbox_v1;
pub use sandbox_v2::sandbox_v2;
pub use websocket::websocket;
pub use workspace::workspace;
pub use workspace_ledger::workspace_ledger;
pub use workspace_peers::workspace_peers;

/// A target and the name of its corpus folder.
pub struct Target {
    /// The folder below `corpus/`, and the program below `fuzz_targets/`.
    pub name: &'static str,
    /// Panics when a promise is broken.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: &[Target] = &[
    target("agent", agent),
    target("agent_life", agent_life),
    target("channel_v1", channel_v1),
    target("channel_v2", channel_v2),
    target("config", config),
    target("control", control),
    target("cron", cron),
    target("framing", framing),
    target("json_patch", json_patch),
    target("models", models),
    target("policy", policy),
    target("sandbox_sessions", sandbox_sessions),
    target("sandbox_v1", sandbox_v1),
    target("sandbox_v2", sandbox_v2),
    target("websocket", websocket),
    target("workspace", workspace),
    target("workspace_ledger", workspace_ledger),
    target("workspace_peers", workspace_peers),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}
