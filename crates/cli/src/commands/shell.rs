//! `quintet shell`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::wire::ShellMsg;
use quintet_runtime::home::Home;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Context;
use super::exec::exit_code;
use crate::error::CommandError;
use crate::output::stdin_is_terminal;
use crate::remote::{Opening, Remote, Seen};
use crate::typist::{Typed, Typist};

/// Ctrl-], which begins a word to this program.
const ESCAPE: u8 = 0x1d;

/// Ctrl-D, which a terminal sends for the end of input.
const END_OF_INPUT: u8 = 0x04;

/// Keys that wait for the typist; the keyboard waits beyond that.
const WAITING: usize = 64;

const EXAMPLES: &str = "\
Ctrl-] then d detaches: the shell runs on, and the id to attach with is printed. Ctrl-] twice sends
one Ctrl-]. Exits with the shell's own code; 125 when the worker could not run it.

Examples:
  quintet shell local
  quintet shell box --attach 0193...";

/// Open a shell on a worker
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ShellArgs {
    /// Name of the worker, as `quintet workers` lists it
    worker: String,

    /// Go on with a shell that was detached from, with all it has printed
    #[arg(long, value_name = "JOB")]
    attach: Option<String>,
}

pub(crate) async fn run(context: &Context, args: ShellArgs) -> Result<ExitCode, CommandError> {
    let raw = RawTerminal::enter()?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    // As after any program that a signal ends, but with the terminal as it was.
    let ended = tokio::select! {
        ended = converse(&context.home, args) => ended,
        Some(()) = terminate.recv() => Ok(Left::Ended(128 + 15)),
        Some(()) = hang_up.recv() => Ok(Left::Ended(128 + 1)),
    };
    // What is said next belongs on an ordinary terminal.
    drop(raw);
    match ended {
        Ok(Left::Ended(code)) => Ok(ExitCode::from(code)),
        Ok(Left::Detached { worker, job }) => {
            // The shell's prompt is on the line.
            context.output.talk(format_args!(
                "\ndetached; `quintet shell {worker} --attach {job}` goes on with it"
            ));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            error.report();
            Ok(ExitCode::from(125))
        }
    }
}

enum Left {
    Ended(u8),
    Detached { worker: String, job: String },
}

async fn converse(home: &Home, args: ShellArgs) -> Result<Left, CommandError> {
    let (cols, rows) = crossterm::terminal::size().unwrap_or((80, 24));
    let request = ShellMsg {
        worker: args.worker.clone(),
        rows: rows.into(),
        cols: cols.into(),
        term: std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".to_owned()),
        attach: args.attach,
    };
    let mut resized = signal(SignalKind::window_change())?;
    let mut remote = Remote::open(home, Opening::Shell(request)).await?;
    let mut keys = Keys::read();
    let mut escape = Escape::default();
    let typist = Typist::start(home);
    let mut job = None;
    // What waits for the typist: its queue must not hold up what the shell shows.
    let mut next = None;
    let mut input_ended = false;
    let mut stdout = tokio::io::stdout();
    loop {
        tokio::select! {
            seen = remote.next() => match seen? {
                Seen::Started { job: id, input } => {
                    typist.attach(&id, input);
                    job = Some(id);
                }
                Seen::Dropped(bytes) => {
                    let note = format!("[{bytes} bytes of output are gone]\r\n");
                    stdout.write_all(note.as_bytes()).await?;
                }
                Seen::Stdout(bytes) | Seen::Stderr(bytes) => {
                    stdout.write_all(&bytes).await?;
                    stdout.flush().await?;
                    // A shell that was told before it began to read keys has lost it; that it shows
                    // something, such as its prompt, is when it may be told again.
                    if input_ended && next.is_none() {
                        next = Some(Typed::Bytes(vec![END_OF_INPUT]));
                    }
                }
                Seen::Ended(ended) => return Ok(Left::Ended(exit_code(&ended))),
            },
            bytes = keys.0.recv(), if job.is_some() && next.is_none() && !input_ended => {
                let Some(bytes) = bytes else {
                    input_ended = true;
                    next = Some(Typed::Bytes(vec![END_OF_INPUT]));
                    continue;
                };
                let (typed, detach) = escape.take(&bytes);
                if let (true, Some(job)) = (detach, &job) {
                    return Ok(Left::Detached { worker: args.worker, job: job.clone() });
                }
                next = (!typed.is_empty()).then_some(Typed::Bytes(typed));
            }
            Some(()) = resized.recv(), if job.is_some() && next.is_none() => {
                if let Ok((cols, rows)) = crossterm::terminal::size() {
                    next = Some(Typed::Size { rows, cols });
                }
            }
            Ok(room) = typist.room(), if next.is_some() => {
                if let Some(next) = next.take() {
                    room.send(next);
                }
            }
        }
    }
}

/// Finds the words to this program among the keys.
#[derive(Debug, Default)]
struct Escape {
    begun: bool,
}

impl Escape {
    /// What is for the shell, and whether to detach.
    fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut typed = Vec::with_capacity(bytes.len());
        for &byte in bytes {
            match (std::mem::take(&mut self.begun), byte) {
                (false, ESCAPE) => self.begun = true,
                (true, b'd' | b'D') => return (typed, true),
                (true, ESCAPE) | (false, _) => typed.push(byte),
                (true, _) => typed.extend([ESCAPE, byte]),
            }
        }
        (typed, false)
    }
}

/// The keyboard, or a pipe, which has an end.
struct Keys(
    mpsc::Receiver<Vec<u8>>,
    #[expect(dead_code, reason = "owns the task")] JoinSet<()>,
);

impl Keys {
    fn read() -> Self {
        let (sender, keys) = mpsc::channel(WAITING);
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut stdin = tokio::io::stdin();
            let mut buffer = vec![0; 4096];
            loop {
                let count = stdin.read(&mut buffer).await.unwrap_or(0);
                if count == 0 || sender.send(buffer[..count].to_vec()).await.is_err() {
                    return;
                }
            }
        });
        Self(keys, task)
    }
}

/// A terminal whose keys come one by one; restored when dropped.
struct RawTerminal(bool);

impl RawTerminal {
    fn enter() -> Result<Self, CommandError> {
        let terminal = stdin_is_terminal();
        if terminal {
            crossterm::terminal::enable_raw_mode()?;
        }
        Ok(Self(terminal))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if self.0 {
            // A terminal that is gone needs no restoring.
            let _ = crossterm::terminal::disable_raw_mode();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_escape_is_found_wherever_the_keys_are_cut() {
        let mut escape = Escape::default();
        assert_eq!(escape.take(b"ls\x1d"), (b"ls".to_vec(), false));
        assert_eq!(escape.take(b"d"), (Vec::new(), true));
        assert_eq!(
            escape.take(b"a\x1d\x1db\x1dx"),
            (b"a\x1db\x1dx".to_vec(), false)
        );
        assert_eq!(escape.take(b"done"), (b"done".to_vec(), false));
    }
}
