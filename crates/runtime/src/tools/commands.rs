//! Commands of a session, as the tools need them.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quintet_sandbox::hub::{ExecEvent, ExecOutcome, RequestError};
use quintet_workspace::history::LogQuery;
use quintet_workspace::proto::WorkspacePath;
use rusqlite::OptionalExtension;
use tokio_util::sync::CancellationToken;

use super::files::MAX_FILE;
use super::live::{OutputStream, Shown};
use crate::daemon::Runtime;
use crate::journal::Kind;
use crate::refusal::Refusal;
use crate::store::StoreError;
use crate::workspaces::SessionExec;

/// How long a cancelled command may take to end.
const CANCEL: Duration = Duration::from_secs(10);

/// Of a command's output, this much of its beginning and of its end is kept.
const HALF: usize = 32 * 1024;

/// Changes of a file that are told of.
const CHANGES: u32 = 5;

/// A command to run in a session's workspace.
#[derive(Debug, Clone)]
pub(crate) struct CommandRequest {
    /// A line for the shell.
    pub(crate) command: String,
    /// Beneath the workspace.
    pub(crate) cwd: Option<String>,
    /// It is killed after so long.
    pub(crate) timeout: Duration,
    /// The worker that leave was given for, and no other: while a person thought about it the
    /// session may have got another one.
    pub(crate) worker: String,
}

/// What a command came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ran {
    /// How it ended.
    pub(crate) outcome: ExecOutcome,
    /// How long it ran.
    pub(crate) duration: Duration,
    /// Its output, stdout and stderr as they came.
    pub(crate) output: Output,
    /// The workspace's sequence that it saw, and the one that holds what it wrote.
    pub(crate) sequences: Option<(u64, u64)>,
    /// What it changed, by path.
    pub(crate) changed: Vec<(String, &'static str)>,
    /// What went wrong with bringing its files back.
    pub(crate) notes: Vec<String>,
}

/// What was taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TakenBack {
    /// How many commands.
    pub(crate) commands: usize,
    /// What was put back, by path.
    pub(crate) changed: Vec<(String, &'static str)>,
    /// What was left alone, and why.
    pub(crate) skipped: Vec<String>,
    /// The workspace's sequence afterwards.
    pub(crate) sequence: u64,
}

/// One change of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FileChange {
    /// The workspace's sequence.
    pub(crate) sequence: u64,
    /// What was done.
    pub(crate) change: &'static str,
    /// The worker that did it, or this machine.
    pub(crate) author: String,
    /// What it came from.
    pub(crate) cause: Cause,
}

/// What a change of a file came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A command of the session that ran then.
    Command(String),
    /// Commands that were taken back.
    Undo,
    /// Nothing that the session knows of.
    Unknown,
}

/// What the tools need of a session's workspace and worker.
///
/// Calls run at the same time. A command sees every earlier write, and everything that it wrote is
/// in the workspace when it has ended.
#[async_trait]
pub(crate) trait SessionCommands: Send + Sync {
    /// Runs a command to its end; once cancelled it is killed. What it prints is also `shown`, as
    /// it comes.
    async fn run(
        &self,
        session: u64,
        request: CommandRequest,
        shown: Shown,
        cancelled: &CancellationToken,
    ) -> Result<Ran, Refusal>;

    /// Takes back what the last commands did to files.
    async fn take_back(&self, session: u64, commands: u32) -> Result<TakenBack, Refusal>;

    /// A file as it was right after a sequence.
    async fn file_at(&self, session: u64, path: &str, sequence: u64) -> Result<Vec<u8>, Refusal>;

    /// The newest changes of a file since a time, in milliseconds since 1970.
    async fn changes_since(
        &self,
        session: u64,
        path: &str,
        at_millis: i64,
    ) -> Result<Vec<FileChange>, Refusal>;
}

#[async_trait]
impl SessionCommands for Runtime {
    async fn run(
        &self,
        session: u64,
        request: CommandRequest,
        shown: Shown,
        cancelled: &CancellationToken,
    ) -> Result<Ran, Refusal> {
        let exec = SessionExec {
            command: request.command,
            cwd: request.cwd,
            timeout: Some(request.timeout),
            worker: Some(request.worker),
            ..SessionExec::default()
        };
        let (mut handle, mut finish) = self.start_in_session(session, exec).await?;
        let mut output = Output::default();
        let mut killed = false;
        let (outcome, duration) = loop {
            let next = tokio::select! {
                biased;
                () = cancelled.cancelled(), if !killed => {
                    killed = true;
                    handle.cancel().await;
                    continue;
                }
                next = handle.next() => next,
                () = tokio::time::sleep(CANCEL), if killed => {
                    return Err(Refusal::Conflict("it was cancelled and has not ended yet".into()));
                }
            };
            let (stream, bytes) = match next {
                Ok(ExecEvent::Stdout(bytes)) => (OutputStream::Stdout, bytes),
                Ok(ExecEvent::Stderr(bytes)) => (OutputStream::Stderr, bytes),
                Ok(ExecEvent::Dropped { .. }) => continue,
                Ok(ExecEvent::Ended { outcome, duration }) => break (outcome, duration),
                Err(error) => {
                    finish.failed(&error).await;
                    if matches!(error, RequestError::Overdue { .. }) {
                        self.workers.abandon(handle);
                    }
                    return Err(error.into());
                }
            };
            output.push(&bytes);
            // Nobody has to watch.
            let _ = shown.send((stream, bytes)).await;
        };
        let end = finish.record(handle.mirrored(), &outcome, duration).await?;
        let mut ran = Ran {
            outcome,
            duration,
            output,
            sequences: None,
            changed: Vec::new(),
            notes: Vec::new(),
        };
        if let Some(end) = end {
            ran.sequences = Some((end.before, end.after));
            ran.changed = end.changed;
            ran.notes = end.notes;
        }
        Ok(ran)
    }

    async fn take_back(&self, session: u64, commands: u32) -> Result<TakenBack, Refusal> {
        let undone = self.undo(session, commands).await?;
        Ok(TakenBack {
            commands: undone.commands.len(),
            changed: undone.changes,
            skipped: undone.skipped,
            sequence: undone.sequence,
        })
    }

    async fn file_at(&self, session: u64, path: &str, sequence: u64) -> Result<Vec<u8>, Refusal> {
        let path = workspace_path(path)?;
        let (_, master) = self.workspace_of(session).await?;
        let bytes = Bounded::default();
        let node = master
            .workspace
            .show(path, sequence, bytes.clone())
            .await
            .map_err(|error| Refusal::NotFound(error.to_string()))?;
        if node.is_directory() {
            return Err(Refusal::Bad("it was a folder then".into()));
        }
        Ok(bytes.taken())
    }

    async fn changes_since(
        &self,
        session: u64,
        path: &str,
        at_millis: i64,
    ) -> Result<Vec<FileChange>, Refusal> {
        let path = workspace_path(path)?;
        let (_, master) = self.workspace_of(session).await?;
        let failed = |error: quintet_workspace::master::WorkspaceError| {
            Refusal::Internal(format!("the workspace's history can't be read: {error}"))
        };
        master.workspace.flush().await.map_err(failed)?;
        let query = LogQuery {
            path: Some(path),
            limit: Some(CHANGES),
            ..LogQuery::default()
        };
        let log = master.workspace.log(query).await.map_err(failed)?;
        let mut changes = Vec::new();
        for entry in log.into_iter().filter(|entry| entry.at_millis >= at_millis) {
            let sequence = entry.sequence;
            let cause = self
                .db
                .read(move |connection| cause_of(connection, session, sequence))
                .await?;
            changes.push(FileChange {
                sequence,
                change: entry.change.name(),
                author: entry.author,
                cause,
            });
        }
        Ok(changes)
    }
}

fn cause_of(
    connection: &rusqlite::Connection,
    session: u64,
    sequence: u64,
) -> Result<Cause, StoreError> {
    // First: a command may have run meanwhile, whose sequences hold those of an undo.
    if is_of_an_undo(connection, session, sequence)? {
        return Ok(Cause::Undo);
    }
    let command = command_of(connection, session, sequence)?;
    Ok(command.map_or(Cause::Unknown, Cause::Command))
}

/// Whether commands of any session in the same folder were taken back with this sequence.
fn is_of_an_undo(
    connection: &rusqlite::Connection,
    session: u64,
    sequence: u64,
) -> Result<bool, StoreError> {
    Ok(connection
        .prepare_cached(
            "SELECT 1 FROM journal
             WHERE session IN (SELECT it.id FROM sessions AS it JOIN sessions AS this
                               ON it.workspace = this.workspace WHERE this.id = ?1)
               AND kind = ?2 AND json_extract(data, '$.before') < ?3
               AND json_extract(data, '$.sequence') >= ?3",
        )?
        .exists((
            session.cast_signed(),
            Kind::CommandsUndone.as_str(),
            sequence.cast_signed(),
        ))?)
}

/// The command of a session whose sequences hold this one.
fn command_of(
    connection: &rusqlite::Connection,
    session: u64,
    sequence: u64,
) -> Result<Option<String>, StoreError> {
    Ok(connection
        .prepare_cached(
            "SELECT json_extract(data, '$.command') FROM journal
             WHERE session = ?1 AND kind = ?2
               AND json_extract(data, '$.before') < ?3 AND json_extract(data, '$.after') >= ?3
             ORDER BY seq DESC LIMIT 1",
        )?
        .query_row(
            (
                session.cast_signed(),
                Kind::Command.as_str(),
                sequence.cast_signed(),
            ),
            |row| row.get(0),
        )
        .optional()?)
}

fn workspace_path(path: &str) -> Result<WorkspacePath, Refusal> {
    WorkspacePath::parse(path).map_err(|error| Refusal::Bad(error.to_string()))
}

/// Bytes that are written, up to a limit.
#[derive(Clone, Default)]
struct Bounded(Arc<Mutex<Vec<u8>>>);

impl Bounded {
    fn taken(&self) -> Vec<u8> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if (held.len() + bytes.len()) as u64 > MAX_FILE {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "it is too large to be read",
            ));
        }
        held.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning and the end of an output of any length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Output {
    head: Vec<u8>,
    tail: VecDeque<u8>,
    left_out: u64,
}

impl Output {
    fn push(&mut self, bytes: &[u8]) {
        let room = HALF.saturating_sub(self.head.len()).min(bytes.len());
        let (head, rest) = bytes.split_at(room);
        self.head.extend_from_slice(head);
        self.tail.extend(rest);
        let over = self.tail.len().saturating_sub(HALF);
        self.tail.drain(..over);
        self.left_out += over as u64;
    }

    /// The text, with a line where something was left out.
    pub(crate) fn to_text(&self) -> String {
        let (front, back) = self.tail.as_slices();
        let tail = [front, back].concat();
        if self.left_out == 0 {
            let whole = [self.head.as_slice(), &tail].concat();
            return String::from_utf8_lossy(&whole).into_owned();
        }
        format!(
            "{}\n[{} bytes left out; write the output to a file to see all of it]\n{}",
            String::from_utf8_lossy(&self.head),
            self.left_out,
            String::from_utf8_lossy(&tail)
        )
    }

    /// Whether something was left out.
    pub(crate) fn is_cut(&self) -> bool {
        self.left_out > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_output_keeps_its_beginning_and_its_end() {
        let mut output = Output::default();
        output.push(b"begin ");
        output.push("x".repeat(3 * HALF).as_bytes());
        output.push(b" end");
        assert!(output.is_cut());
        let text = output.to_text();
        assert!(text.starts_with("begin x") && text.ends_with("x end"));
        assert!(
            text.contains(&format!("[{} bytes left out", HALF + 10)),
            "{}",
            text.len()
        );
        let mut short = Output::default();
        short.push("größe".as_bytes());
        assert_eq!((short.to_text().as_str(), short.is_cut()), ("größe", false));
    }
}
