//! One message from its arrival to its end: steps of a model call and the calls it asks for.

use futures_util::FutureExt;
use quintet_agent::sdk::{Completion, Turn, TurnError};
use quintet_agent::{FinishReason, TokenUsage};
use reqwest::Client;
use serde_json::Value;

use crate::model::{self, GatewayAddress, ModelError, Shown};
use crate::proto::answer::{Answer, Call};
use crate::proto::conversation::{Conversation, Patch};
use crate::proto::kept;
use crate::proto::prompt::{self, Ask, MAX_OUTPUT, Thinking};
use crate::tools::Tools;

/// Model calls for one message; a loop that goes nowhere ends.
const MAX_STEPS: u32 = 250;

/// How often an answer that broke off before its text is asked for again.
const RETRIES: u32 = 2;

/// How often in a row the model may go on when an answer was cut off while it worked.
const CUTS: u32 = 2;

/// Stands for a conversation that is too long even to be summarised, beside what is kept of it.
const NO_SUMMARY: &str = "The conversation before this could not be summarised. Look at the files to see how far the work is.";

/// A message that is worked on.
pub(crate) struct Work<'a> {
    pub(crate) turn: &'a Turn,
    pub(crate) http: &'a Client,
    pub(crate) gateway: GatewayAddress,
    pub(crate) model: String,
    pub(crate) system: String,
    pub(crate) tools: &'a Tools,
    pub(crate) own_tools: Vec<Value>,
    pub(crate) conversation: Conversation,
    pub(crate) thinking: Thinking,
    /// How large the conversation may get, in tokens.
    pub(crate) bound: u64,
    pub(crate) used: TokenUsage,
    /// The text of the answer so far.
    pub(crate) text: String,
}

/// How a message ends early.
enum Stop {
    /// With this reason; the person has been told.
    Finished(FinishReason),
    Failed(TurnError),
}

impl<E: Into<TurnError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Work<'_> {
    /// Sends a change of the conversation.
    pub(crate) async fn save(&self, patch: Patch) -> Result<(), TurnError> {
        if !patch.is_empty() {
            self.turn.state().patch(patch).await?;
        }
        Ok(())
    }

    /// Works until the model is done.
    pub(crate) async fn run(mut self) -> Result<Completion, TurnError> {
        let finish_reason = match self.steps().await {
            Ok(reason) | Err(Stop::Finished(reason)) => reason,
            Err(Stop::Failed(error)) => return Err(error),
        };
        if matches!(
            finish_reason,
            FinishReason::EndTurn | FinishReason::MaxTokens
        ) {
            let patch = self.conversation.done();
            self.save(patch).await?;
        }
        if !self.text.is_empty() {
            self.turn.text_final(self.text).await?;
        }
        Ok(Completion {
            finish_reason,
            usage: Some(self.used),
        })
    }

    /// Answers a request for a summary that the daemon makes: what is kept stands in it as it was.
    pub(crate) async fn summarise(mut self) -> Result<Completion, TurnError> {
        let summary = match self.summary().await? {
            Ok(summary) => summary,
            Err(error) => match self.tell(error).await {
                Stop::Finished(finish_reason) => {
                    return Ok(Completion {
                        finish_reason,
                        usage: Some(self.used),
                    });
                }
                Stop::Failed(error) => return Err(error),
            },
        };
        let text = self.conversation.kept().with_summary(&summary);
        self.turn.text_delta(text).await?;
        Ok(Completion {
            finish_reason: FinishReason::EndTurn,
            usage: Some(self.used),
        })
    }

    async fn steps(&mut self) -> Result<FinishReason, Stop> {
        let mut cuts = 0;
        for _ in 0..MAX_STEPS {
            if self.turn.cancelled().is_cancelled() {
                return Ok(FinishReason::Cancelled);
            }
            if self.conversation.is_large(self.bound) {
                self.compact().await?;
            }
            let answer = self.answer().await?;
            let patch = self.conversation.answered(&answer);
            self.save(patch).await?;
            if answer.cut_in_work && cuts < CUTS {
                cuts += 1;
                let patch = self.conversation.cut();
                self.save(patch).await?;
                continue;
            }
            cuts = 0;
            if answer.calls.is_empty() {
                let steers = self.steers();
                if steers.is_empty() {
                    return self.ended(&answer).await;
                }
                for text in steers {
                    let patch = self.conversation.say(&text, &[]);
                    self.save(patch).await?;
                }
                continue;
            }
            self.remember(&answer.calls).await?;
            let results = self.tools.run(self.turn, &answer.calls).await?;
            let steers = self.steers();
            let patch = self.conversation.heard(&answer.calls, &results);
            self.save(patch).await?;
            let patch = self.conversation.results(results, &steers);
            self.save(patch).await?;
        }
        self.say(&format!(
            "I have made {MAX_STEPS} model calls for this message and stop here; say `go on` if I should."
        ))
        .await?;
        Ok(FinishReason::EndTurn)
    }

    async fn ended(&mut self, answer: &Answer) -> Result<FinishReason, Stop> {
        match answer.stop_reason.as_str() {
            "max_tokens" => {
                self.say(&format!(
                    "The answer was cut off: it reached the {MAX_OUTPUT} tokens that one answer may have. Say `go on` to have the rest, or ask for less at a time."
                ))
                .await?;
                Ok(FinishReason::MaxTokens)
            }
            "refusal" if answer.text().is_empty() => {
                self.say("The model declined to answer this.").await?;
                Ok(FinishReason::EndTurn)
            }
            // Silence would look as if nothing had been asked.
            _ if self.text.is_empty() => {
                let sentence = "The model ended without a word. Ask again, or in other words.";
                self.say(sentence).await?;
                Ok(FinishReason::EndTurn)
            }
            _ => Ok(FinishReason::EndTurn),
        }
    }

    /// Guidance that has come since the last step.
    fn steers(&self) -> Vec<String> {
        let mut steers = Vec::new();
        while let Some(Some(text)) = self.turn.next_steer().now_or_never() {
            steers.push(text);
        }
        steers
    }

    async fn remember(&mut self, calls: &[Call]) -> Result<(), Stop> {
        for call in calls.iter().filter(|call| call.name == "remember") {
            let list = |key: &str| -> Vec<String> {
                let items = call.input.get(key).and_then(Value::as_array);
                let texts = items.into_iter().flatten().filter_map(Value::as_str);
                texts.map(str::to_owned).collect()
            };
            let patch =
                self.conversation
                    .note(list("rules"), list("open_questions"), &list("answered"));
            self.save(patch).await?;
        }
        Ok(())
    }

    /// Asks the model; says what is wrong where there is no answer.
    async fn answer(&mut self) -> Result<Answer, Stop> {
        let messages = self.conversation.messages().to_vec();
        let mut tries = 0u32;
        loop {
            let request = self.request(&messages, true);
            let shown = Shown::live(self.turn, &mut self.text);
            let error = match model::ask(self.http, &self.gateway, &request, self.turn, shown).await
            {
                Ok(answer) => {
                    self.count(&answer).await?;
                    return Ok(answer);
                }
                Err(error) => error,
            };
            tries = tries.saturating_add(1);
            match error {
                ModelError::Unreachable(_) if tries <= RETRIES => {
                    self.turn
                        .log("warn", "the gateway hung up; asking again")
                        .await?;
                }
                ModelError::Broken { assembly, .. } if !assembly.has_text() && tries <= RETRIES => {
                    let note = "an answer broke off before its text; asking again";
                    self.turn.log("warn", note).await?;
                }
                ModelError::Refused {
                    status: 400,
                    ref message,
                } if message.contains("thinking") && self.thinking != Thinking::Off => {
                    self.thinking = Thinking::Off;
                }
                ModelError::Refused { ref message, .. }
                    if is_too_long(message) && tries == 1 && messages.len() > 1 =>
                {
                    self.compact().await?;
                    return Box::pin(self.answer()).await;
                }
                error => return Err(self.explain(error).await),
            }
        }
    }

    fn request(&self, messages: &[Value], may_call: bool) -> Value {
        let tools: Vec<Value> = self
            .tools
            .toolbox
            .tools()
            .iter()
            .chain(&self.own_tools)
            .cloned()
            .collect();
        prompt::request(&Ask {
            model: &self.model,
            system: &self.system,
            tools: &tools,
            messages,
            thinking: self.thinking,
            may_call,
        })
    }

    async fn count(&mut self, answer: &Answer) -> Result<(), TurnError> {
        // What it cost is the gateway's to know.
        self.used.add(&TokenUsage {
            input_tokens: answer.usage.total_input(),
            output_tokens: answer.usage.output,
            ..TokenUsage::default()
        });
        Ok(self.turn.usage(self.used).await?)
    }

    /// Keeps what there is of an answer and tells the person why there is no more.
    async fn explain(&mut self, mut error: ModelError) -> Stop {
        if let ModelError::Broken { assembly, .. } | ModelError::Cancelled(assembly) = &mut error {
            let partial = std::mem::take(assembly).partial();
            let patch = self.conversation.broken_off(&partial);
            if let Err(error) = self.save(patch).await {
                return Stop::Failed(error);
            }
        }
        self.tell(error).await
    }

    /// Tells the person why there is no answer.
    async fn tell(&mut self, error: ModelError) -> Stop {
        let sentence = error.to_string();
        let reason = match error {
            ModelError::Send(error) => return Stop::Failed(error.into()),
            ModelError::Budget(_) => FinishReason::Budget,
            ModelError::Cancelled(_) => return Stop::Finished(FinishReason::Cancelled),
            ModelError::Refused { .. } | ModelError::Unreachable(_) | ModelError::Broken { .. } => {
                FinishReason::Error
            }
        };
        match self.say(&sentence).await {
            Ok(()) => Stop::Finished(reason),
            Err(error) => Stop::Failed(error),
        }
    }

    /// Says something of the agent's own.
    async fn say(&mut self, sentence: &str) -> Result<(), TurnError> {
        let separated = match self.text.is_empty() {
            true => sentence.to_owned(),
            false => format!("\n\n{sentence}"),
        };
        self.text.push_str(&separated);
        Ok(self.turn.text_delta(separated).await?)
    }

    /// Lets a summary stand for the conversation. Without one it stays as it is, and the person is
    /// told why.
    async fn compact(&mut self) -> Result<(), Stop> {
        let before = self.conversation.tokens();
        let summary = match self.summary().await? {
            Ok(summary) => summary,
            Err(error) => return Err(self.tell(error).await),
        };
        let patch = self.conversation.compacted(&summary);
        self.save(patch).await?;
        let after = self.conversation.tokens();
        let note =
            format!("the conversation was summarised: {before} tokens before, {after} after");
        self.turn.log("info", note).await?;
        Ok(())
    }

    async fn summary(&mut self) -> Result<Result<String, ModelError>, TurnError> {
        let mut messages = self.conversation.messages().to_vec();
        messages.push(serde_json::json!({
            "role": "user", "content": [{ "type": "text", "text": kept::REQUEST }],
        }));
        let request = self.request(&messages, false);
        let mut unseen = String::new();
        let shown = Shown::nothing(self.turn, &mut unseen);
        let answer = match model::ask(self.http, &self.gateway, &request, self.turn, shown).await {
            Ok(answer) => answer,
            Err(ModelError::Refused { message, .. }) if is_too_long(&message) => {
                return Ok(Ok(NO_SUMMARY.to_owned()));
            }
            Err(error) => return Ok(Err(error)),
        };
        self.count(&answer).await?;
        let summary = answer.text();
        let (rules, questions) = kept::listed(&summary);
        let patch = self.conversation.note(rules, questions, &[]);
        self.save(patch).await?;
        Ok(Ok(summary))
    }
}

/// Whether a provider refused because the conversation does not fit.
fn is_too_long(message: &str) -> bool {
    message.contains("too long")
}
