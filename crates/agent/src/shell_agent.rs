//! The built-in `shell` agent: runs what a message says with `sh -c` in the workspace.
//!
//! It needs no model. Output streams as `terminal_output`; an exit code other than 0 follows as a
//! `text_final`. What a command left in the background goes on, as in a terminal, and ends with the
//! agent; a cancel ends everything that the command started.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::process::{Leftover, ProcessMark, kill_leftover};
use crate::proto::element::TerminalStream;
use crate::proto::message::InboundMessage;
use crate::sdk::{self, Agent, AgentEnv, Completion, SdkError, Turn, TurnError};

/// How much of a command's output is one element at most.
const CHUNK: usize = 16 * 1024;

/// Chunks that wait to be sent; the command waits beyond that.
const CHUNK_QUEUE: usize = 16;

/// How long output may still come after the shell has ended.
///
/// A process that was left in the background holds the pipe open for as long as it lives.
const AFTER_EXIT: Duration = Duration::from_millis(200);

/// Serves as the `shell` agent until the coordinator says `shutdown`.
pub async fn run(env: AgentEnv) -> Result<(), SdkError> {
    sdk::run(env, ShellAgent::default()).await
}

#[derive(Debug, Default)]
struct ShellAgent {
    /// Readers of pipes that background processes still hold; for short sections without await.
    readers: Mutex<JoinSet<()>>,
}

type Chunk = (TerminalStream, Vec<u8>);

impl Agent for ShellAgent {
    async fn on_message(
        &self,
        turn: Turn,
        message: InboundMessage,
    ) -> Result<Completion, TurnError> {
        let mark = format!("QUINTET_COMMAND={}", uuid::Uuid::now_v7());
        let mut child = start(&turn, &message.data.text, &mark)
            .map_err(|error| TurnError::Failed(format!("`sh` can't be started: {error}")))?;
        let leader = child
            .id()
            .and_then(|pid| ProcessMark::of(i32::try_from(pid).ok()?));
        let mut chunks = self.read_output(&mut child);
        let status = tokio::select! {
            status = stream(&turn, &mut child, &mut chunks) => status?,
            () = turn.cancelled().cancelled() => {
                kill_leftover(Leftover::new(leader, mark)).await;
                // Reaped here; the status of a killed command is nobody's business.
                let _ = child.wait().await;
                return Ok(Completion::default());
            }
        };
        if let Some(text) = describe(status) {
            turn.text_final(text).await?;
        }
        Ok(Completion::default())
    }
}

fn start(turn: &Turn, line: &str, mark: &str) -> std::io::Result<Child> {
    let (name, value) = mark.split_once('=').unwrap_or((mark, ""));
    Command::new("sh")
        .arg("-c")
        .arg(line)
        .current_dir(turn.session().workspace())
        .env(name, value)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
}

impl ShellAgent {
    /// Reads both pipes to their end, whoever still writes to them; what nobody takes is dropped.
    fn read_output(&self, child: &mut Child) -> mpsc::Receiver<Chunk> {
        let (sender, chunks) = mpsc::channel(CHUNK_QUEUE);
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        while readers.try_join_next().is_some() {}
        if let Some(stdout) = child.stdout.take() {
            readers.spawn(read_chunks(stdout, TerminalStream::Stdout, sender.clone()));
        }
        if let Some(stderr) = child.stderr.take() {
            readers.spawn(read_chunks(stderr, TerminalStream::Stderr, sender));
        }
        chunks
    }
}

async fn read_chunks(
    mut pipe: impl AsyncRead + Unpin,
    stream: TerminalStream,
    chunks: mpsc::Sender<Chunk>,
) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(count) = pipe.read(&mut buffer).await
        && let Some(data) = buffer.get(..count)
        && count > 0
    {
        // Without a taker the pipe is still emptied, so that a background process never blocks.
        let _ = chunks.send((stream, data.to_owned())).await;
    }
}

/// Sends output until the command has ended and its output with it.
async fn stream(
    turn: &Turn,
    child: &mut Child,
    chunks: &mut mpsc::Receiver<Chunk>,
) -> Result<ExitStatus, TurnError> {
    let mut texts = Texts::default();
    let mut ended = None;
    loop {
        let patience = async {
            match ended {
                Some(_) => tokio::time::sleep(AFTER_EXIT).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            chunk = chunks.recv() => match chunk {
                Some((stream, data)) => {
                    let text = texts.add(stream, &data);
                    if !text.is_empty() {
                        turn.terminal_output(stream, text).await?;
                    }
                }
                None => break,
            },
            status = child.wait(), if ended.is_none() => ended = Some(waited(status)?),
            () = patience => break,
        }
    }
    for (stream, text) in texts.finish() {
        turn.terminal_output(stream, text).await?;
    }
    match ended {
        Some(status) => Ok(status),
        None => waited(child.wait().await),
    }
}

fn waited(status: std::io::Result<ExitStatus>) -> Result<ExitStatus, TurnError> {
    status.map_err(|error| TurnError::Failed(format!("the command is lost: {error}")))
}

fn describe(status: ExitStatus) -> Option<String> {
    match (status.code(), status.signal()) {
        (Some(0), _) => None,
        (Some(code), _) => Some(format!("exit status {code}")),
        (None, Some(signal)) => Some(format!("killed by signal {signal}")),
        (None, None) => Some("ended without a status".to_owned()),
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
