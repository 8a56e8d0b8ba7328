//! Configuration: layers with provenance, checked whole, changed in place.
//!
//! # Layers
//!
//! Weakest first: the defaults ([`DEFAULT_TOML`], compiled in and commented),
//! the heads of `agents/NAME.md`, `config.toml`, `QUINTET_*` variables, flags.
//! Tables join, anything else is replaced by the stronger layer. An empty
//! string means "not set".
//!
//! - `QUINTET_LISTEN` is `http.listen`, `QUINTET_CONTROL_TCP` is `control.tcp`,
//!   and `QUINTET_SECTION__KEY` is `section.key`. Other `QUINTET_*` variables
//!   (`QUINTET_HOME`, what agents are given) set no key.
//! - `agents/NAME.md` has a head (see `front_matter`) with any key of
//!   `[agents.NAME]`, above all `description`, `model` and `program` (or
//!   `agent`): the agent whose program it shares. The text below is the prompt.
//!
//! # Mistakes
//!
//! All of them are listed at once, each with its source, its line and its key:
//! `config.toml:12: http.lisen: unknown key, did you mean http.listen?` Keys
//! are known by being read, so this cannot fall behind the code. A syntax error
//! in a file hides further mistakes of that file.
//!
//! # Changes
//!
//! [`ConfigStore`] holds what is in force. A request or a changed file is
//! checked whole before anything changes; then `config.toml` is written (beside,
//! synced, renamed, mode 0600, comments kept, only what differs), the new
//! configuration takes the place of the old one, and what changed is reported
//! with when it applies. Nothing that runs is stopped.
//!
//! # Secrets
//!
//! API keys and the values of `env` and `headers` are [`Secret`]s: shown as
//! `"***"`, never in `Debug`, in JSON or in an error.

mod agents;
mod edit;
mod effective;
mod front_matter;
mod layers;
mod model;
mod node;
mod problem;
mod reader;
mod rules;
mod secret;
mod setting;
mod skills;
mod source;
mod store;
pub mod units;

pub use effective::{Applies, Change, Effective};
pub use layers::{ConfigInputs, DEFAULT_TOML, first_run_file, load};
pub use model::{
    AgentConfig, AgentKind, AgentProgram, Budget, BuiltinAgent, ChannelConfig, Config,
    ControlConfig, CronConfig, DaemonConfig, HttpConfig, JournalConfig, McpConfig, PolicyConfig,
    PriceConfig, ProviderConfig, ProviderKind, SandboxConfig, TlsFiles, WorkspaceConfig,
};
pub use problem::{ConfigErrors, Problem, ProblemKind};
pub use rules::{parse_rules, rules_of_json};
pub use secret::{REDACTED, Secret};
pub use skills::{Skill, Skills, load_skill, load_skills};
pub use source::{BadKeyPath, ConfigSource, KeyPath, Origin};
pub use store::ConfigStore;
pub use units::{ByteSize, UnitError, parse_duration};

#[cfg(test)]
mod tests;
