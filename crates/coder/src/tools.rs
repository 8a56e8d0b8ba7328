//! Calls of tools: at the same time, reported as they end.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use quintet_agent::sdk::{SendError, Turn};
use serde_json::Value;

use crate::mcp::Mcp;
use crate::proto::answer::Call;
use crate::proto::conversation::{self, INTERRUPTED};
use crate::proto::tool::{Outcome, Toolbox};
use crate::skills::Skills;

/// Calls at once; more wait for one to end.
const AT_ONCE: usize = 8;

/// What the model is told of a call that was stopped: a person does that, and a budget.
const CANCELLED: &str =
    "The message was cancelled before this call ended; what it did until then is unknown.";

/// The tools of a turn.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) mcp: Option<Mcp>,
    pub(crate) toolbox: Toolbox,
    pub(crate) skills: Skills,
}

impl Tools {
    /// Makes the calls of an answer. The results are in the order of the calls; the person sees
    /// them in the order in which they end. A cancel leaves the rest without a result of its own.
    pub(crate) async fn run(&self, turn: &Turn, calls: &[Call]) -> Result<Vec<Value>, SendError> {
        for call in calls {
            let arguments = call.input.clone();
            turn.tool_call(&call.id, &call.name, arguments).await?;
        }
        let mut outcomes: Vec<Option<Outcome>> = vec![None; calls.len()];
        let timed: Vec<_> = calls
            .iter()
            .enumerate()
            .map(|(at, call)| self.timed(at, call))
            .collect();
        let mut running = futures_util::stream::iter(timed).buffer_unordered(AT_ONCE);
        loop {
            let ended = tokio::select! {
                ended = running.next() => ended,
                () = turn.cancelled().cancelled() => None,
            };
            let Some((at, outcome, elapsed)) = ended else {
                break;
            };
            if let Some(call) = calls.get(at) {
                report(turn, call, &outcome, elapsed).await?;
            }
            if let Some(slot) = outcomes.get_mut(at) {
                *slot = Some(outcome);
            }
        }
        drop(running);
        let mut results = Vec::with_capacity(calls.len());
        for (call, outcome) in calls.iter().zip(outcomes) {
            let outcome = match outcome {
                Some(outcome) => outcome,
                None => {
                    let outcome = Outcome::failed(match turn.shuts_down() {
                        true => INTERRUPTED,
                        false => CANCELLED,
                    });
                    report(turn, call, &outcome, Duration::ZERO).await?;
                    outcome
                }
            };
            results.push(conversation::result(
                &call.id,
                &outcome.content,
                outcome.is_error,
            ));
        }
        Ok(results)
    }

    async fn timed(&self, at: usize, call: &Call) -> (usize, Outcome, Duration) {
        let begun = Instant::now();
        let outcome = self.one(call).await;
        (at, outcome, begun.elapsed())
    }

    async fn one(&self, call: &Call) -> Outcome {
        if call.input.contains_key("_unreadable_arguments") {
            return Outcome::failed("the arguments are no JSON object; write them again");
        }
        match (call.name.as_str(), &self.mcp) {
            ("load_skill", mcp) => {
                let name = call.input.get("name").and_then(Value::as_str);
                self.skills
                    .load(name.unwrap_or_default(), mcp.as_ref())
                    .await
            }
            // Done already: it is a change of the conversation itself.
            ("remember", _) => Outcome::text("remembered"),
            (name, Some(mcp)) => match self.toolbox.own_name(name) {
                Some(own) => {
                    let arguments = Value::Object(call.input.clone());
                    match mcp.call(own, &arguments, Some(&call.id)).await {
                        Ok(result) => Outcome::from_call(own, &call.input, &result),
                        Err(error) => Outcome::failed(error.to_string()),
                    }
                }
                None => Outcome::failed(format!("there is no tool {name:?}")),
            },
            (name, None) => Outcome::failed(format!("there is no tool {name:?} here")),
        }
    }
}

async fn report(
    turn: &Turn,
    call: &Call,
    outcome: &Outcome,
    elapsed: Duration,
) -> Result<(), SendError> {
    let shown = outcome.shown.clone();
    let result = match outcome.is_error {
        true => Err(shown),
        false => Ok(shown),
    };
    // First, so that with the last result everything of the calls has been said.
    for changed in &outcome.changes {
        turn.file_change(&changed.path, changed.change, changed.diff.clone())
            .await?;
    }
    turn.tool_result(&call.id, result, elapsed).await
}
