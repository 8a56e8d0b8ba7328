//! The model, through the daemon's gateway.

use std::time::Duration;

use futures_util::StreamExt;
use quintet_agent::sdk::Turn;
use quintet_models::proto::fault::BUDGET_KIND;
use quintet_models::proto::sse::Splitter;
use reqwest::{Client, Response};
use serde_json::Value;

use crate::proto::answer::{Answer, AnswerError, Assembly, Piece};

/// The gateway itself gives up before this; it is for a gateway that hangs.
const SILENCE: Duration = Duration::from_secs(900);

/// The largest event that the gateway passes on, and a little.
const MAX_EVENT: usize = 9 * 1024 * 1024;

/// Lets models that think within a number of tokens think between calls too.
const INTERLEAVED: &str = "interleaved-thinking-2025-05-14";

/// Where the gateway is, and the instance's key for it.
#[derive(Clone)]
pub(crate) struct GatewayAddress {
    pub(crate) url: String,
    pub(crate) key: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ModelError {
    /// A budget is used up.
    #[error("{0}")]
    Budget(String),
    /// The gateway refused the call, in a sentence.
    #[error("{message}")]
    Refused { status: u16, message: String },
    #[error("the daemon's model gateway can't be reached: {0}")]
    Unreachable(String),
    /// The answer broke off.
    #[error("{error}")]
    Broken {
        error: AnswerError,
        assembly: Box<Assembly>,
    },
    /// The person cancelled.
    #[error("cancelled")]
    Cancelled(Box<Assembly>),
    #[error(transparent)]
    Send(#[from] quintet_agent::sdk::SendError),
}

/// How an answer is shown while it comes.
pub(crate) struct Shown<'a> {
    turn: &'a Turn,
    /// The text of the turn so far.
    pub(crate) text: &'a mut String,
    begun: bool,
    silent: bool,
}

impl<'a> Shown<'a> {
    /// As the answer of the turn.
    pub(crate) fn live(turn: &'a Turn, text: &'a mut String) -> Self {
        Self {
            turn,
            text,
            begun: false,
            silent: false,
        }
    }

    /// Not at all.
    pub(crate) fn nothing(turn: &'a Turn, text: &'a mut String) -> Self {
        Self {
            silent: true,
            ..Self::live(turn, text)
        }
    }

    async fn piece(&mut self, piece: Piece) -> Result<(), quintet_agent::sdk::SendError> {
        if self.silent {
            return Ok(());
        }
        match piece {
            Piece::Thinking(text) => self.turn.thinking(text).await,
            Piece::Text(text) => {
                // Answers of one turn are paragraphs of one text.
                let separated = match (self.begun, self.text.is_empty()) {
                    (false, false) => format!("\n\n{text}"),
                    _ => text,
                };
                self.begun = true;
                self.text.push_str(&separated);
                self.turn.text_delta(separated).await
            }
        }
    }
}

/// Asks the model and shows its answer as it comes.
pub(crate) async fn ask(
    http: &Client,
    gateway: &GatewayAddress,
    request: &Value,
    turn: &Turn,
    mut shown: Shown<'_>,
) -> Result<Answer, ModelError> {
    let sending = http
        .post(format!("{}/v1/messages", gateway.url))
        .bearer_auth(&gateway.key)
        .header("anthropic-version", "2023-06-01")
        .header("content-type", "application/json");
    let sending = match request.pointer("/thinking/budget_tokens") {
        Some(_) => sending.header("anthropic-beta", INTERLEAVED),
        None => sending,
    };
    let sending = sending.body(request.to_string()).send();
    let response = tokio::select! {
        sent = tokio::time::timeout(SILENCE, sending) => sent
            .map_err(|_| ModelError::Unreachable("it did not answer".to_owned()))?
            .map_err(|error| ModelError::Unreachable(error.without_url().to_string()))?,
        () = turn.cancelled().cancelled() => return Err(ModelError::Cancelled(Box::default())),
    };
    if !response.status().is_success() {
        return Err(refused(response).await);
    }
    let mut assembly = Assembly::default();
    let mut splitter = Splitter::new(MAX_EVENT);
    let mut parts = response.bytes_stream();
    let broken = |error, assembly| ModelError::Broken {
        error,
        assembly: Box::new(assembly),
    };
    while !assembly.is_whole() {
        match splitter.next_event() {
            Err(_) => return Err(broken(AnswerError::TooLarge, assembly)),
            Ok(Some(event)) => match assembly.event(&event.data) {
                Ok(Some(piece)) => shown.piece(piece).await?,
                Ok(None) => {}
                Err(error) => return Err(broken(error, assembly)),
            },
            Ok(None) => {
                let next = tokio::select! {
                    next = tokio::time::timeout(SILENCE, parts.next()) => next,
                    () = turn.cancelled().cancelled() => {
                        return Err(ModelError::Cancelled(Box::new(assembly)));
                    }
                };
                match next {
                    Ok(Some(Ok(part))) => splitter.push(&part),
                    _ => return Err(broken(AnswerError::CutOff, assembly)),
                }
            }
        }
    }
    assembly
        .finish()
        .map_err(|error| broken(error, Assembly::default()))
}

async fn refused(response: Response) -> ModelError {
    let status = response.status().as_u16();
    let text = response.text().await.unwrap_or_default();
    let body: Value = serde_json::from_str(&text).unwrap_or_default();
    let message = match body.pointer("/error/message").and_then(Value::as_str) {
        Some(message) => message.to_owned(),
        None => format!("the model gateway answered {status}"),
    };
    match body.pointer("/error/type").and_then(Value::as_str) {
        Some(BUDGET_KIND) => ModelError::Budget(message),
        _ => ModelError::Refused { status, message },
    }
}
