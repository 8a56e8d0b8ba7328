//! An agent in twenty lines: it answers, and its log holds what else it is told.

#![expect(
    clippy::print_stderr,
    reason = "what it prints is in the log of its instance"
)]

use quintet_agent::InboundMessage;
use quintet_agent::sdk::{self, Agent, AgentEnv, Completion, Turn, TurnError};
use serde_json::{Map, Value};

struct Hello;

impl Agent for Hello {
    async fn on_message(&self, turn: Turn, said: InboundMessage) -> Result<Completion, TurnError> {
        let name = match said.data.text.as_str() {
            "wait" => turn.next_steer().await.unwrap_or_default(),
            text => text.to_owned(),
        };
        turn.text_delta(format!("hello, {name}")).await?;
        Ok(Completion::default())
    }

    fn on_steer(&self, content: &str) {
        eprintln!("steered: {content}");
    }

    fn on_config(&self, changes: &Map<String, Value>) {
        eprintln!("configured: {changes:?}");
    }

    async fn on_shutdown(&self, reason: &str) {
        eprintln!("shut down: {reason}");
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let env = AgentEnv::from_lookup(|name| std::env::var(name).ok())?;
    Ok(sdk::run(env, Hello).await?)
}
