//! A shell's keys, over as many daemons as it takes.
//!
//! They have a connection of their own, so that a shell that reads nothing holds up nothing that it
//! prints. What is on its way when the daemon goes may or may not have reached the worker. Whoever
//! attaches again is told how many bytes the worker has; the rest follows from what is kept here, and
//! what was typed meanwhile follows that.

use std::collections::VecDeque;

use quintet_control::Client;
use quintet_control::wire::{ShellInputMsg, ShellResizeMsg};
use quintet_runtime::home::Home;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::connect;
use crate::error::CommandError;

/// What waits for the daemon; the keyboard waits beyond that.
const WAITING: usize = 64;

/// Bytes that are kept: more than a daemon and a worker let be on its way.
const KEPT: usize = 1024 * 1024;

/// What is for the shell.
#[derive(Debug)]
pub(crate) enum Typed {
    Bytes(Vec<u8>),
    Size { rows: u16, cols: u16 },
}

/// Sends what is typed.
pub(crate) struct Typist {
    typed: mpsc::Sender<Typed>,
    attached: watch::Sender<Option<Attached>>,
    _task: JoinSet<()>,
}

#[derive(Debug, Clone)]
struct Attached {
    job: String,
    /// Bytes of input that its worker has.
    input: u64,
}

impl Typist {
    pub(crate) fn start(home: &Home) -> Self {
        let (typed, mut waiting) = mpsc::channel(WAITING);
        let (attached, mut place) = watch::channel(None);
        let home = home.clone();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut sent = Sent::default();
            while place.changed().await.is_ok() {
                let Some(at) = place.borrow_and_update().clone() else {
                    continue;
                };
                if let Err(error) = sent.type_on(&home, &at, &mut waiting, place.clone()).await {
                    tracing::debug!(message = error.message(), "keys wait for the daemon");
                }
            }
        });
        Self {
            typed,
            attached,
            _task: task,
        }
    }

    /// The shell is reached under this id, and its worker has so many bytes of input.
    pub(crate) fn attach(&self, job: &str, input: u64) {
        let job = job.to_owned();
        self.attached.send_replace(Some(Attached { job, input }));
    }

    /// Waits for room for one thing. Cancel safe.
    pub(crate) async fn room(&self) -> Result<mpsc::Permit<'_, Typed>, mpsc::error::SendError<()>> {
        self.typed.reserve().await
    }
}

/// What was given to some daemon.
#[derive(Debug, Default)]
struct Sent {
    /// Bytes, those of whoever had the shell before included; none before the first attachment.
    bytes: Option<u64>,
    /// The last of them.
    kept: VecDeque<u8>,
    size: Option<(u16, u16)>,
}

impl Sent {
    /// Types until the daemon is lost, or `place` changes.
    async fn type_on(
        &mut self,
        home: &Home,
        at: &Attached,
        waiting: &mut mpsc::Receiver<Typed>,
        mut place: watch::Receiver<Option<Attached>>,
    ) -> Result<(), CommandError> {
        let again = self.missing(at.input);
        let mut daemon = connect::daemon(home).await?;
        let input = |data: Vec<u8>| ShellInputMsg {
            job: at.job.clone(),
            data,
        };
        let resize = |(rows, cols): (u16, u16)| ShellResizeMsg {
            job: at.job.clone(),
            rows: rows.into(),
            cols: cols.into(),
        };
        if let Some(size) = self.size {
            daemon.shell_resize(resize(size)).await?;
        }
        if !again.is_empty() {
            daemon.shell_input(input(again)).await?;
        }
        loop {
            let typed = tokio::select! {
                typed = waiting.recv() => typed,
                _ = place.changed() => None,
            };
            match typed {
                Some(Typed::Bytes(data)) => {
                    self.note(&data);
                    daemon.shell_input(input(data)).await?;
                }
                Some(Typed::Size { rows, cols }) => {
                    self.size = Some((rows, cols));
                    daemon.shell_resize(resize((rows, cols))).await?;
                }
                None => return Ok(()),
            }
        }
    }

    /// What a worker that has `input` bytes has not got.
    fn missing(&mut self, input: u64) -> Vec<u8> {
        let sent = *self.bytes.get_or_insert(input);
        let missing = usize::try_from(sent.saturating_sub(input)).unwrap_or(usize::MAX);
        let skipped = self.kept.len().saturating_sub(missing);
        self.kept.iter().skip(skipped).copied().collect()
    }

    fn note(&mut self, data: &[u8]) {
        self.bytes = Some(self.bytes.unwrap_or(0) + data.len() as u64);
        self.kept.extend(data);
        let over = self.kept.len().saturating_sub(KEPT);
        self.kept.drain(..over);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_lacks_is_what_it_did_not_get_of_the_last() {
        let mut sent = Sent::default();
        // Another had typed 10 before.
        assert_eq!(sent.missing(10), b"");
        sent.note(b"ab");
        sent.note(b"cde");
        assert_eq!(sent.missing(10), b"abcde");
        assert_eq!(sent.missing(13), b"de");
        assert_eq!(sent.missing(15), b"");
        sent.note(b"f");
        assert_eq!(sent.missing(15), b"f");
    }
}
