//! The built-in `shell` agent as a program of its own.

use quintet_agent::sdk::AgentEnv;
use quintet_agent::shell_agent;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let env = AgentEnv::from_lookup(|name| std::env::var(name).ok())?;
    Ok(shell_agent::run(env).await?)
}
