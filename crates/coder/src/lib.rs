//! The built-in agents, each a process of its own: `coder`, a loop of model calls and tool calls,
//! and [`shell`], which needs no model.
//!
//! - [`proto`] is its pure core: the conversation and its patches, answers, compaction, the prompt.
//! - [`run`] serves on the agent plane until the coordinator says `shutdown`; start there.
//!
//! It reaches the model through the daemon's gateway (`ensemble_url`, `ensemble_api_key`) and files
//! and commands through the daemon's tools (`mcp_url`, `mcp_token`): it has no key of a provider,
//! and does nothing to the workspace by itself. What it must not forget is its state on the agent
//! plane. It never reads the environment and never touches the terminal.

mod agent;
mod http;
mod mcp;
mod model;
pub mod proto;
pub mod shell;
mod skills;
mod steps;
mod tools;

use quintet_agent::sdk::{self, AgentEnv, SdkError};

/// Serves as the `coder` agent until the coordinator says `shutdown`.
pub async fn run(env: AgentEnv) -> Result<(), SdkError> {
    sdk::run(env, agent::Coder::default()).await
}
