//! Agents that speak the [Agent Client Protocol](https://agentclientprotocol.com), as agents of ours.
//!
//! # Participants
//! The **bridge** is a process that the supervisor starts like any agent. Upwards it speaks this
//! plane's protocol ([`crate::proto`]); downwards it starts the **ACP agent** and is its client:
//! JSON-RPC 2.0 over the agent's stdin and stdout, one message a line, version 1 of ACP.
//!
//! # Flow
//! ```text
//! coordinator              bridge                          ACP agent
//!   init                ->   initialize                  ->
//!                            session/load or session/new ->   the id is kept as this agent's state
//!   message             ->   session/prompt              ->
//!                       <-   stream_update               <-   session/update
//!                       <-   approval_request            <-   session/request_permission
//!   approval_result     ->   the option of that kind     ->
//!                            a file of the workspace     <-   fs/read_text_file, fs/write_text_file
//!   cancel, shutdown    ->   session/cancel              ->
//!                       <-   complete                    <-   the prompt's answer
//! ```
//! - `steer` becomes the turn's next prompt, when the running one has ended: ACP has no way to speak
//!   into it.
//! - `config.prompt` goes in front of a new session's first prompt; `config.mcp_url` is given to an
//!   agent that takes MCP servers over HTTP.
//! - What a session has cost is reported by the agent as a running total; a turn's cost is its growth.
//! - What the agent writes to stderr is logged.
//!
//! # Limits
//! | what | limit | beyond it |
//! |---|---|---|
//! | a line of the agent | 8 MiB | the bridge ends, the supervisor restarts it |
//! | lines that the agent does not read | 1024 | the bridge ends |
//! | files being read or written | 64 | the agent is not read |
//! | the time until a session is open | 120 s | the bridge ends |
//! | the end of a prompt after `shutdown`, then of the agent | 3 s each | it is killed |
//!
//! # Non-goals
//! Terminals of the client (the capability is declined: agents run commands themselves, or with the
//! daemon's tools), logins (an agent has its own command for that; until then a message is answered
//! with what is missing), modes and other settings of the agent's interface.

mod files;
mod lines;
mod proto;

use std::io;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use agent_client_protocol_schema::v1::{
    Error, ReadTextFileResponse, RequestId, WriteTextFileResponse,
};
use bytes::{BufMut, BytesMut};
use quintet_framing::{FrameError, FrameReader, FrameWriter, ReadError, unix};
use serde_json::Value;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use self::files::FileError;
use self::lines::{LineError, LineReader, Overflow};
use self::proto::{Bridge, Effect};
use crate::proto::FORMAT;
use crate::proto::message::{AgentToCoordinator, CoordinatorToAgent, LogEntry};
use crate::sdk::AgentEnv;

pub use self::proto::BridgeError;

/// The longest line of an agent. Every element made of it fits into a frame.
const LINE_LIMIT: usize = 8 * 1024 * 1024;

/// The longest piece of stderr that is one log entry.
const LOG_LIMIT: usize = 8 * 1024;

/// Lines waiting for an agent that does not read.
const DOWN_LIMIT: usize = 1024;

/// Files being read or written; beyond it the agent is not read.
const FILE_LIMIT: usize = 64;

/// Lines handled before what they made is written.
const BATCH: usize = 64;

/// How long the agent may take.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// To open a session; some agents are downloaded at their first start.
    open: Duration,
    /// To end the prompt, and then itself, after a shutdown.
    stop: Duration,
}

const PATIENCE: Patience = Patience {
    open: Duration::from_secs(120),
    stop: Duration::from_secs(3),
};

/// Why a bridge ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum AcpError {
    /// There is nothing to run.
    #[error("no command was given: name the ACP agent's program and its arguments")]
    NoCommand,
    /// The coordinator is not there.
    #[error("cannot connect to the coordinator at {}: {source}", path.display())]
    Connect {
        /// Its socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The program did not start.
    #[error("cannot start the ACP agent `{program}`: {source}; check `command` of this agent")]
    Start {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// The two sides do not understand each other.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// The coordinator's bytes are not the protocol.
    #[error("the coordinator sent what is not the protocol: {detail}")]
    Coordinator {
        /// What is wrong.
        detail: String,
    },
    /// The coordinator closed the connection without a `shutdown`.
    #[error("the coordinator closed the connection")]
    CoordinatorGone,
    /// The agent ended by itself.
    #[error("the ACP agent ended by itself ({})", status.map_or("unknown".to_owned(), |status| status.to_string()))]
    AgentGone {
        /// How.
        status: Option<ExitStatus>,
    },
    /// The agent wrote a line that is too long.
    #[error("the ACP agent wrote a line of more than {limit} bytes")]
    LineTooLong {
        /// The limit.
        limit: usize,
    },
    /// The agent does not read.
    #[error("the ACP agent does not read its input: {DOWN_LIMIT} lines are waiting")]
    AgentStuck,
    /// The agent did not open a session in time.
    #[error("the ACP agent did not open a session within {} s", patience.as_secs())]
    NotOpened {
        /// How long it was waited for.
        patience: Duration,
    },
    /// A message for the coordinator is too large.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Runs `command` as an ACP agent, as what the coordinator started with `env`, until a shutdown.
///
/// The caller prints an error to stderr: the supervisor reports what a process printed last.
pub async fn run(env: AgentEnv, command: Vec<String>) -> Result<(), AcpError> {
    bridge(env, &command, PATIENCE).await
}

async fn bridge(env: AgentEnv, command: &[String], patience: Patience) -> Result<(), AcpError> {
    let stream = unix::dial(&env.socket)
        .await
        .map_err(|source| AcpError::Connect {
            path: env.socket,
            source,
        })?;
    let (reader, writer) = stream.into_split();
    let mut driver = Driver {
        bridge: Bridge::new(),
        patience,
        started: Instant::now(),
        open_by: None,
        stop_by: None,
        reader: FrameReader::new(reader, FORMAT),
        writer: FrameWriter::new(writer, FORMAT),
        agent: Agent::start(command)?,
        files: JoinSet::new(),
    };
    let outcome = driver.serve().await;
    driver.agent.end(patience.stop).await;
    outcome
}

struct Driver {
    bridge: Bridge,
    patience: Patience,
    started: Instant,
    /// When a session is to be open, while one is being opened.
    open_by: Option<Instant>,
    /// When a shutdown no longer waits for the running prompt.
    stop_by: Option<Instant>,
    reader: FrameReader<OwnedReadHalf>,
    writer: FrameWriter<OwnedWriteHalf>,
    agent: Agent,
    files: JoinSet<(RequestId, Result<Value, FileError>)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Next {
    Continue,
    Stop,
}

impl Driver {
    async fn serve(&mut self) -> Result<(), AcpError> {
        while self.perform().await? == Next::Continue {
            match self.bridge.is_opening() {
                true => self.open_by = self.open_by.or(Some(Instant::now() + self.patience.open)),
                false => self.open_by = None,
            }
            let reads = self.files.len() < FILE_LIMIT;
            tokio::select! {
                frame = self.reader.next() => self.coordinator(frame)?,
                line = self.agent.stdout.next(), if reads => self.agent_line(line).await?,
                piece = self.agent.stderr.next(), if !self.agent.silent => self.agent_log(piece)?,
                Some(done) = self.files.join_next() => self.file_done(done),
                () = reached(self.open_by) => {
                    return Err(AcpError::NotOpened { patience: self.patience.open });
                }
                () = reached(self.stop_by) => return Ok(()),
            }
        }
        Ok(())
    }

    fn coordinator(
        &mut self,
        frame: Result<Option<bytes::Bytes>, ReadError>,
    ) -> Result<(), AcpError> {
        let wrong = |detail: String| AcpError::Coordinator { detail };
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Err(AcpError::CoordinatorGone),
            Err(error) => return Err(wrong(error.to_string())),
        };
        let message: CoordinatorToAgent =
            serde_json::from_slice(&frame).map_err(|error| wrong(error.to_string()))?;
        if let CoordinatorToAgent::Shutdown { .. } = message {
            self.stop_by
                .get_or_insert(Instant::now() + self.patience.stop);
        }
        Ok(self.bridge.coordinator(message)?)
    }

    async fn agent_line(
        &mut self,
        first: Result<Option<Vec<u8>>, LineError>,
    ) -> Result<(), AcpError> {
        let Some(first) = first.map_err(line_error)? else {
            let status = timeout(self.patience.stop, self.agent.child.wait()).await;
            return Err(AcpError::AgentGone {
                status: status.ok().and_then(Result::ok),
            });
        };
        let mut next = Some(first);
        let mut left = BATCH;
        while let Some(line) = next {
            let now = self.started.elapsed();
            match proto::parse(&line) {
                Ok(incoming) => self.bridge.agent(incoming, now)?,
                Err(error) => self.bridge.bad_line(&error),
            }
            left -= 1;
            next = match left {
                0 => None,
                _ => self.agent.stdout.buffered().map_err(line_error)?,
            };
        }
        Ok(())
    }

    fn agent_log(&mut self, piece: Result<Option<Vec<u8>>, LineError>) -> Result<(), AcpError> {
        match piece.map_err(line_error)? {
            Some(piece) => self.log("info", String::from_utf8_lossy(&piece).into_owned())?,
            None => self.agent.silent = true,
        }
        Ok(())
    }

    fn file_done(&mut self, done: Result<(RequestId, Result<Value, FileError>), JoinError>) {
        if let Ok((id, outcome)) = done {
            self.bridge
                .answer(&id, &outcome.map_err(|error| file_error(&error)));
        }
    }

    /// Does what the bridge wants done.
    async fn perform(&mut self) -> Result<Next, AcpError> {
        let mut next = Next::Continue;
        while let Some(effect) = self.bridge.poll() {
            match effect {
                Effect::Up(message) => self.up(&message)?,
                Effect::Log { level, message } => self.log(level, message)?,
                Effect::Down(line) => self.agent.send(line)?,
                Effect::Read {
                    id,
                    path,
                    line,
                    limit,
                } => {
                    let workspace = self.bridge.workspace().to_owned();
                    self.files.spawn_blocking(move || {
                        let read = files::read(&workspace, &path, line, limit);
                        (
                            id,
                            read.map(|content| to_value(ReadTextFileResponse::new(content))),
                        )
                    });
                }
                Effect::Write { id, path, content } => {
                    let workspace = self.bridge.workspace().to_owned();
                    self.files.spawn_blocking(move || {
                        let written = files::write(&workspace, &path, &content);
                        (id, written.map(|()| to_value(WriteTextFileResponse::new())))
                    });
                }
                Effect::Stop => next = Next::Stop,
            }
        }
        self.writer.flush().await?;
        Ok(next)
    }

    fn log(&mut self, level: &str, message: String) -> Result<(), AcpError> {
        self.up(&AgentToCoordinator::Log(LogEntry {
            level: level.to_owned(),
            message,
            module: "acp".to_owned(),
            timestamp: jiff::Timestamp::now().to_string(),
        }))
    }

    fn up(&mut self, message: &AgentToCoordinator<'_>) -> Result<(), AcpError> {
        let mut wrong = None;
        self.writer.queue_with(|payload: &mut BytesMut| {
            wrong = serde_json::to_writer(payload.writer(), message).err();
        })?;
        match wrong {
            Some(error) => Err(io::Error::from(error).into()),
            None => Ok(()),
        }
    }
}

/// The agent's process.
struct Agent {
    child: Child,
    stdout: LineReader<ChildStdout>,
    stderr: LineReader<ChildStderr>,
    /// Whether stderr has ended.
    silent: bool,
    stdin: Option<mpsc::Sender<Vec<u8>>>,
    writer: JoinSet<()>,
}

impl Agent {
    fn start(command: &[String]) -> Result<Self, AcpError> {
        let (program, arguments) = command.split_first().ok_or(AcpError::NoCommand)?;
        let failed = |source| AcpError::Start {
            program: program.clone(),
            source,
        };
        let mut child = Command::new(program)
            .args(arguments)
            // The agent has no business with the coordinator.
            .env_remove("QUINTET_IPC_SOCKET")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failed(io::Error::other("it has no pipes")));
        };
        // Its own task: a bridge that waits for the agent to read would not read what it says.
        let (sender, lines) = mpsc::channel(DOWN_LIMIT);
        let mut writer = JoinSet::new();
        writer.spawn(write_lines(stdin, lines));
        Ok(Self {
            child,
            stdout: LineReader::new(stdout, LINE_LIMIT, Overflow::Fail),
            stderr: LineReader::new(stderr, LOG_LIMIT, Overflow::Split),
            silent: false,
            stdin: Some(sender),
            writer,
        })
    }

    fn send(&self, line: Vec<u8>) -> Result<(), AcpError> {
        match self.stdin.as_ref().map(|stdin| stdin.try_send(line)) {
            Some(Err(mpsc::error::TrySendError::Full(_))) => Err(AcpError::AgentStuck),
            // A closed pipe shows as the end of stdout too, which says how the agent ended.
            _ => Ok(()),
        }
    }

    /// Closes the agent's input, which asks it to end, and kills it where it does not.
    async fn end(mut self, patience: Duration) {
        self.stdin = None;
        let ended = timeout(patience, async {
            self.writer.join_next().await;
            self.child.wait().await
        });
        if ended.await.is_err() {
            // Failing means that it has ended meanwhile.
            let _ = self.child.kill().await;
        }
    }
}

async fn write_lines(mut stdin: ChildStdin, mut lines: mpsc::Receiver<Vec<u8>>) {
    use tokio::io::AsyncWriteExt;
    while let Some(line) = lines.recv().await {
        if stdin.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn reached(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn line_error(error: LineError) -> AcpError {
    match error {
        LineError::TooLong { limit } => AcpError::LineTooLong { limit },
        LineError::Io(error) => AcpError::Io(error),
    }
}

fn file_error(error: &FileError) -> Error {
    match error {
        FileError::NotFound { path } => Error::resource_not_found(Some(path.display().to_string())),
        FileError::Io { .. } => Error::internal_error().data(error.to_string()),
        _ => Error::invalid_params().data(error.to_string()),
    }
}

fn to_value<T: serde::Serialize>(answer: T) -> Value {
    serde_json::to_value(answer).expect("an answer of strings is JSON")
}

#[cfg(test)]
mod tests;
