//! A command or shell on a worker, read over as many connections as it takes.
//!
//! When the daemon goes away in the middle, the worker keeps the job; the next connection attaches
//! to it and skips what was seen.

use std::time::Duration;

use futures_util::StreamExt;
use quintet_control::wire::command_event::Event;
use quintet_control::wire::{CommandEnded, CommandEvent, ExecMsg, ShellMsg};
use quintet_control::{Client, ClientError, UnixClient};
use quintet_runtime::home::Home;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::connect::{self, Redial};
use crate::error::CommandError;

/// How long a daemon may be away before the command is given up here.
const PATIENCE: Duration = Duration::from_secs(60);

/// Events that wait to be shown; the socket waits beyond that.
const WAITING: usize = 16;

/// What runs.
#[derive(Debug, Clone)]
pub(crate) enum Opening {
    Exec(ExecMsg),
    Shell(ShellMsg),
}

impl Opening {
    fn attach_to(&mut self, job: &str) {
        let attach = match self {
            Self::Exec(request) => &mut request.attach,
            Self::Shell(request) => &mut request.attach,
        };
        *attach = Some(job.to_owned());
    }
}

/// What it shows.
#[derive(Debug)]
pub(crate) enum Seen {
    /// It runs under this id; comes again after every attachment.
    Started {
        job: String,
        /// Bytes of input that the worker has.
        input: u64,
    },
    /// So many bytes of output are gone: the worker's quota took them while nobody read.
    Dropped(u64),
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    Ended(CommandEnded),
}

/// Something that runs on a worker. Dropped, its connection closes: a command is cancelled, a
/// shell is left.
#[derive(Debug)]
pub(crate) struct Remote {
    events: mpsc::Receiver<Result<Seen, CommandError>>,
    _reader: JoinSet<()>,
}

impl Remote {
    pub(crate) async fn open(home: &Home, opening: Opening) -> Result<Self, CommandError> {
        let client = connect::daemon(home).await?;
        let (sender, events) = mpsc::channel(WAITING);
        let home = home.clone();
        let mut reader = JoinSet::new();
        reader.spawn(async move {
            if let Err(error) = read(&home, client, opening, &sender).await {
                // Nobody is left to tell when the watcher is gone.
                let _ = sender.send(Err(error)).await;
            }
        });
        Ok(Self {
            events,
            _reader: reader,
        })
    }

    /// What happens next; an error when it ended without a result.
    pub(crate) async fn next(&mut self) -> Result<Seen, CommandError> {
        match self.events.recv().await {
            Some(seen) => seen,
            None => Err(CommandError::failed("the command ended without a result")
                .hint("`quintet events` shows what became of it")),
        }
    }
}

async fn read(
    home: &Home,
    mut client: UnixClient,
    mut opening: Opening,
    events: &mpsc::Sender<Result<Seen, CommandError>>,
) -> Result<(), CommandError> {
    let mut redial = Redial::new(home, Some(PATIENCE));
    let mut seen = [0u64; 2];
    let mut job = None;
    loop {
        let mut skip = seen;
        let lost = {
            let mut replies = match opening.clone() {
                Opening::Exec(request) => client.exec(request).boxed(),
                Opening::Shell(request) => client.shell(request).boxed(),
            };
            loop {
                let event = match replies.next().await {
                    Some(Ok(CommandEvent { event })) => event,
                    Some(Err(error)) => break error,
                    // The daemon stops and leaves the job to its worker.
                    None => break ClientError::Closed,
                };
                let shown = match event {
                    Some(Event::Started(started)) => {
                        job = Some(started.job.clone());
                        let dropped = [started.dropped_stdout, started.dropped_stderr];
                        let lost = behind(dropped, &mut skip, &mut seen);
                        if lost > 0 && events.send(Ok(Seen::Dropped(lost))).await.is_err() {
                            return Ok(());
                        }
                        Seen::Started {
                            job: started.job,
                            input: started.input,
                        }
                    }
                    Some(Event::Stdout(bytes)) => {
                        Seen::Stdout(unseen(bytes, &mut skip[0], &mut seen[0]))
                    }
                    Some(Event::Stderr(bytes)) => {
                        Seen::Stderr(unseen(bytes, &mut skip[1], &mut seen[1]))
                    }
                    Some(Event::Ended(ended)) => {
                        let _ = events.send(Ok(Seen::Ended(ended))).await;
                        return Ok(());
                    }
                    None => continue,
                };
                if events.send(Ok(shown)).await.is_err() {
                    return Ok(());
                }
            }
        };
        let Some(job) = &job else {
            return Err(lost.into());
        };
        client = redial.after(lost).await?;
        opening.attach_to(job);
    }
}

/// Where a stream begins from whose beginning `dropped` bytes are gone, given what was seen.
/// Returns how many bytes nobody will see.
fn behind(dropped: [u64; 2], skip: &mut [u64; 2], seen: &mut [u64; 2]) -> u64 {
    let mut lost = 0;
    for stream in 0..2 {
        skip[stream] = seen[stream].saturating_sub(dropped[stream]);
        lost = u64::saturating_add(lost, dropped[stream].saturating_sub(seen[stream]));
        seen[stream] = seen[stream].max(dropped[stream]);
    }
    lost
}

/// The part of `bytes` that no earlier connection has brought.
fn unseen(mut bytes: Vec<u8>, skip: &mut u64, seen: &mut u64) -> Vec<u8> {
    let known = usize::try_from(*skip)
        .unwrap_or(usize::MAX)
        .min(bytes.len());
    bytes.drain(..known);
    *skip -= known as u64;
    *seen += bytes.len() as u64;
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_quota_took_is_neither_skipped_twice_nor_silently_missing() {
        // 8 of 10 were seen and 5 are gone: 3 are skipped and nothing is missing.
        let (mut skip, mut seen) = ([8, 0], [8, 0]);
        assert_eq!(behind([5, 0], &mut skip, &mut seen), 0);
        assert_eq!((skip, seen), ([3, 0], [8, 0]));
        // Whoever has seen nothing misses what is gone.
        let (mut skip, mut seen) = ([0, 0], [0, 0]);
        assert_eq!(behind([5, 2], &mut skip, &mut seen), 7);
        assert_eq!((skip, seen), ([0, 0], [5, 2]));
    }

    #[test]
    fn what_was_seen_is_skipped_wherever_it_is_cut() {
        let (mut skip, mut seen) = (5, 5);
        let mut all = Vec::new();
        for part in ["abc", "defg", "h"] {
            all.extend(unseen(part.into(), &mut skip, &mut seen));
        }
        assert_eq!((all, skip, seen), (b"fgh".to_vec(), 0, 8));
    }
}
