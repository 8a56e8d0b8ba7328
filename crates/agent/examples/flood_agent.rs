//! An agent that answers `N` with N text deltas of 200 bytes, as fast as it can: for measurements
//! and for tests of backpressure.

use quintet_agent::InboundMessage;
use quintet_agent::sdk::{self, Agent, AgentEnv, Completion, Turn, TurnError};

struct Flood;

impl Agent for Flood {
    async fn on_message(
        &self,
        turn: Turn,
        message: InboundMessage,
    ) -> Result<Completion, TurnError> {
        let count: u64 = message
            .data
            .text
            .parse()
            .map_err(|_| TurnError::Failed("send a number".to_owned()))?;
        let text = "x".repeat(200);
        for _ in 0..count {
            turn.text_delta(text.as_str()).await?;
        }
        Ok(Completion::default())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let env = AgentEnv::from_lookup(|name| std::env::var(name).ok())?;
    Ok(sdk::run(env, Flood).await?)
}
