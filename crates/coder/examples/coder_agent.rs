//! The built-in `coder` agent as a program of its own.

use quintet_agent::sdk::AgentEnv;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let env = AgentEnv::from_lookup(|name| std::env::var(name).ok())?;
    Ok(quintet_coder::run(env).await?)
}
