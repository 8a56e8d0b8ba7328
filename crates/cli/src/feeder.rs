//! A command's input from this program's stdin, over as many daemons as it takes.
//!
//! What is on its way when the daemon goes may or may not have reached the worker. Whoever attaches
//! again is told how many bytes the worker has; the rest follows from what is kept here.

use std::collections::VecDeque;

use quintet_control::Client;
use quintet_control::wire::ExecInputMsg;
use quintet_runtime::home::Home;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connect;
use crate::error::CommandError;

/// Input in one request.
const CHUNK: usize = 64 * 1024;

/// Bytes that are kept: more than a daemon and a worker let be on its way.
const KEPT: usize = 1024 * 1024;

/// Chunks that wait to be sent; stdin waits beyond that.
const WAITING: usize = 2;

/// Reads stdin once and feeds it to a command.
pub(crate) struct Feeder {
    /// At home while nothing is fed; else with the task.
    fed: Option<Fed>,
    task: JoinSet<Fed>,
    stop: CancellationToken,
    _reader: JoinSet<()>,
}

struct Fed {
    /// An empty chunk is the end.
    chunks: mpsc::Receiver<Vec<u8>>,
    kept: VecDeque<u8>,
    sent: u64,
    finished: bool,
}

impl Feeder {
    pub(crate) fn read() -> Self {
        let (sender, chunks) = mpsc::channel(WAITING);
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            let mut stdin = tokio::io::stdin();
            loop {
                let mut chunk = vec![0; CHUNK];
                // What can't be read any further has ended.
                let count = stdin.read(&mut chunk).await.unwrap_or(0);
                chunk.truncate(count);
                if sender.send(chunk).await.is_err() || count == 0 {
                    return;
                }
            }
        });
        Self {
            fed: Some(Fed {
                chunks,
                kept: VecDeque::new(),
                sent: 0,
                finished: false,
            }),
            task: JoinSet::new(),
            stop: CancellationToken::new(),
            _reader: reader,
        }
    }

    /// Feeds a job from where its worker stands.
    pub(crate) async fn feed(&mut self, home: &Home, job: &str, from: u64) {
        self.stop.cancel();
        let fed = match self.task.join_next().await {
            Some(Ok(fed)) => Some(fed),
            Some(Err(_)) | None => self.fed.take(),
        };
        let Some(mut fed) = fed else { return };
        self.stop = CancellationToken::new();
        let (home, job, stop) = (home.clone(), job.to_owned(), self.stop.clone());
        self.task.spawn(async move {
            if let Err(error) = fed.send_all(&home, &job, from, &stop).await {
                tracing::debug!(message = error.message(), "input is interrupted");
            }
            fed
        });
    }
}

impl Fed {
    async fn send_all(
        &mut self,
        home: &Home,
        job: &str,
        from: u64,
        stop: &CancellationToken,
    ) -> Result<(), CommandError> {
        let mut daemon = connect::daemon(home).await?;
        let mut send = async |data: Vec<u8>, eof: bool| {
            let job = job.to_owned();
            daemon.exec_input(ExecInputMsg { job, data, eof }).await
        };
        let missing = usize::try_from(self.sent.saturating_sub(from)).unwrap_or(usize::MAX);
        let Some(skipped) = self.kept.len().checked_sub(missing) else {
            return Err(CommandError::failed("input that is needed again is gone"));
        };
        let again: Vec<u8> = self.kept.iter().skip(skipped).copied().collect();
        for chunk in again.chunks(CHUNK) {
            send(chunk.to_vec(), false).await?;
        }
        if self.finished {
            send(Vec::new(), true).await?;
            return Ok(());
        }
        loop {
            let chunk = tokio::select! {
                chunk = self.chunks.recv() => chunk.unwrap_or_default(),
                () = stop.cancelled() => return Ok(()),
            };
            self.note(&chunk);
            let eof = chunk.is_empty();
            send(chunk, eof).await?;
            if eof {
                return Ok(());
            }
        }
    }

    fn note(&mut self, chunk: &[u8]) {
        self.finished |= chunk.is_empty();
        self.sent += chunk.len() as u64;
        self.kept.extend(chunk);
        let over = self.kept.len().saturating_sub(KEPT);
        self.kept.drain(..over);
    }
}
