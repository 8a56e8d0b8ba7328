//! An agent in about twenty lines: it answers, and counts in its durable state.

use quintet_agent::sdk::{self, Agent, AgentEnv, Completion, Turn, TurnError};
use quintet_agent::{AskOutcome, InboundMessage, Question};

struct Echo;

impl Agent for Echo {
    async fn on_message(
        &self,
        turn: Turn,
        message: InboundMessage,
    ) -> Result<Completion, TurnError> {
        let count = turn
            .state()
            .get("/count")
            .await
            .and_then(|n| n.as_u64())
            .unwrap_or(0)
            + 1;
        turn.state().set("/count", count).await?;
        match message.data.text.as_str() {
            "ask" => {
                let question = Question {
                    question: "Which?".to_owned(),
                    ..Question::default()
                };
                if let AskOutcome::Answered { answers } = turn.ask_user(vec![question]).await? {
                    turn.text_delta(format!("{answers:?}")).await?;
                }
            }
            "approve" => {
                let command = Some("rm -r build".to_owned());
                let result = turn
                    .request_approval("run a command", command, None, None)
                    .await?;
                turn.text_delta(format!("{}", result.approved)).await?;
            }
            "steer" => {
                turn.text_delta(turn.next_steer().await.unwrap_or_default())
                    .await?;
            }
            "wait" => turn.cancelled().cancelled().await,
            "fail" => return Err(TurnError::Failed("it can't be done".to_owned())),
            text => turn.text_delta(format!("{count}: {text}")).await?,
        }
        Ok(Completion::default())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let env = AgentEnv::from_lookup(|name| std::env::var(name).ok())?;
    Ok(sdk::run(env, Echo).await?)
}
