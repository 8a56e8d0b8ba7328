//! The built-in `shell` agent: runs what a message says in the session's workspace, on its worker.
//!
//! It needs no model. The daemon runs the line behind a barrier and brings back what it wrote, as
//! for every other command of the session; this process asks for it over HTTP with its own key.
//! Output streams as `terminal_output`; an exit code other than 0 follows as a `text_final`. A
//! cancel ends the request, and the daemon everything that the command started.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quintet_agent::sdk::{self, Agent, AgentEnv, Completion, SdkError, Turn, TurnError};
use quintet_agent::{InboundMessage, TerminalStream};
use reqwest::{Client, Response};
use serde::Deserialize;
use serde_json::{Value, json};

/// The longest line of the daemon's answer.
const MAX_LINE: usize = 1024 * 1024;

/// Serves as the `shell` agent until the coordinator says `shutdown`.
pub async fn run(env: AgentEnv) -> Result<(), SdkError> {
    let http = crate::http::client();
    sdk::run(env, Shell { http }).await
}

struct Shell {
    http: Result<Client, String>,
}

/// One line of the daemon's answer.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Stdout(String),
    Stderr(String),
    Ended {
        text: Option<String>,
        notes: Vec<String>,
    },
    Failed(String),
}

impl Agent for Shell {
    async fn on_message(
        &self,
        turn: Turn,
        message: InboundMessage,
    ) -> Result<Completion, TurnError> {
        let asking = self.run_line(&turn, &message.data.text);
        tokio::select! {
            ran = asking => ran?,
            // Dropping the request is how the daemon learns of it.
            () = turn.cancelled().cancelled() => {}
        }
        Ok(Completion::default())
    }
}

impl Shell {
    async fn run_line(&self, turn: &Turn, line: &str) -> Result<(), TurnError> {
        let response = self.ask(turn, line).await?;
        let mut lines = Lines::new(response);
        let mut texts = Texts::default();
        loop {
            let (stream, data) = match lines.next().await? {
                Line::Stdout(data) => (TerminalStream::Stdout, data),
                Line::Stderr(data) => (TerminalStream::Stderr, data),
                Line::Ended { text, notes } => {
                    for (stream, text) in texts.finish() {
                        turn.terminal_output(stream, text).await?;
                    }
                    let said: Vec<String> = text.into_iter().chain(notes).collect();
                    if !said.is_empty() {
                        turn.text_final(said.join("\n")).await?;
                    }
                    return Ok(());
                }
                Line::Failed(error) => return Err(TurnError::Failed(error)),
            };
            let data = STANDARD
                .decode(data)
                .map_err(|error| TurnError::Failed(format!("unreadable output: {error}")))?;
            let text = texts.add(stream, &data);
            if !text.is_empty() {
                turn.terminal_output(stream, text).await?;
            }
        }
    }

    async fn ask(&self, turn: &Turn, line: &str) -> Result<Response, TurnError> {
        let text = |key: &str| match turn.session().config(key) {
            Some(Value::String(text)) if !text.is_empty() => Some(text),
            _ => None,
        };
        let (Some(url), Some(key)) = (text("ensemble_url"), text("ensemble_api_key")) else {
            let error = "the daemon did not say where commands run; is it of the same version?";
            return Err(TurnError::Failed(error.to_owned()));
        };
        let http = self
            .http
            .as_ref()
            .map_err(|error| TurnError::Failed(error.clone()))?;
        let asked = http
            .post(format!("{url}/exec"))
            .bearer_auth(key)
            .json(&json!({ "command": line }))
            .send()
            .await
            .and_then(Response::error_for_status);
        asked.map_err(|error| {
            TurnError::Failed(format!(
                "the daemon did not take the command: {}",
                error.without_url()
            ))
        })
    }
}

/// The lines of an answer as they come.
struct Lines {
    response: Response,
    buffer: Vec<u8>,
}

impl Lines {
    fn new(response: Response) -> Self {
        Self {
            response,
            buffer: Vec::new(),
        }
    }

    async fn next(&mut self) -> Result<Line, TurnError> {
        let failed = |error: String| TurnError::Failed(error);
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&line).map_err(|error| {
                    failed(format!("the daemon's answer is unreadable: {error}"))
                });
            }
            if self.buffer.len() > MAX_LINE {
                return Err(failed(
                    "the daemon's answer has a line without an end".to_owned(),
                ));
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => self.buffer.extend_from_slice(&bytes),
                Ok(None) | Err(_) => {
                    return Err(failed(
                        "the daemon went away; what became of the command is in its journal"
                            .to_owned(),
                    ));
                }
            }
        }
    }
}

/// Bytes to text, with characters that are cut by a chunk's end kept for the next one.
#[derive(Debug, Default)]
struct Texts {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Texts {
    fn add(&mut self, stream: TerminalStream, data: &[u8]) -> String {
        let rest = match stream {
            TerminalStream::Stdout => &mut self.stdout,
            TerminalStream::Stderr => &mut self.stderr,
        };
        rest.extend_from_slice(data);
        let mut bytes = std::mem::take(rest);
        let whole = bytes.len() - cut_tail(&bytes);
        *rest = bytes.split_off(whole);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn finish(self) -> Vec<(TerminalStream, String)> {
        [
            (TerminalStream::Stdout, self.stdout),
            (TerminalStream::Stderr, self.stderr),
        ]
        .into_iter()
        .filter(|(_, rest)| !rest.is_empty())
        .map(|(stream, rest)| (stream, String::from_utf8_lossy(&rest).into_owned()))
        .collect()
    }
}

/// How many bytes at the end begin a character that may still be completed.
fn cut_tail(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(3);
    (tail..bytes.len())
        .find(|at| {
            let rest = bytes.get(*at..).unwrap_or_default();
            match std::str::from_utf8(rest) {
                Ok(_) => false,
                Err(error) => error.valid_up_to() == 0 && error.error_len().is_none(),
            }
        })
        .map_or(0, |at| bytes.len() - at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_survive_every_split() {
        let text = "a\u{e4}\u{20ac}\u{1F600}z".repeat(3);
        let bytes = text.as_bytes();
        for first in 0..bytes.len() {
            for second in first..bytes.len() {
                let mut texts = Texts::default();
                let mut joined = String::new();
                for part in [&bytes[..first], &bytes[first..second], &bytes[second..]] {
                    joined.push_str(&texts.add(TerminalStream::Stdout, part));
                }
                assert_eq!(joined, text);
                assert!(texts.finish().is_empty());
            }
        }
    }

    #[test]
    fn bytes_that_are_no_text_pass_as_replacement_characters() {
        let mut texts = Texts::default();
        assert_eq!(
            texts.add(TerminalStream::Stderr, b"a\xffb\xe2"),
            "a\u{fffd}b"
        );
        assert_eq!(
            texts.finish(),
            [(TerminalStream::Stderr, "\u{fffd}".to_owned())]
        );
    }
}
