//! `quintet exec`.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::command_ended::Outcome;
use quintet_control::wire::{CommandEnded, ExecCancelMsg, ExecMsg};
use quintet_runtime::home::Home;
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Context;
use crate::connect;
use crate::error::CommandError;
use crate::feeder::Feeder;
use crate::output;
use crate::remote::{Opening, Remote, Seen};

/// The version of the protocol that has no way to give a command input.
const WITHOUT_INPUT: &str = "sandd.v1";

/// The worker could not run it.
const NOT_RUN: u8 = 125;
const TIMED_OUT: u8 = 124;
/// Ended by Ctrl-C, as a shell says it: 128 and SIGINT.
const INTERRUPTED: u8 = 130;

/// How long a command that was cancelled may take to end.
const CANCELS_WITHIN: Duration = Duration::from_secs(60);

const EXAMPLES: &str = "\
Examples:
  quintet exec local -- 'ls -l | wc -l'        One word is a shell line as it is
  quintet exec local -- grep -r 'a b' .        Several words are quoted
  tar c src | quintet exec box -- tar x        Input from a pipe
  quintet exec --label gpu=yes -- nvidia-smi   On all that match, lines prefixed
  quintet exec --session 3 -- make test        In a session's workspace, on its worker

Exit code: the command's own; 124 when it ran too long, 125 when the worker could not run it,
128+N when signal N ended it, 255 when an old worker did not say which; with --label the highest.
Ctrl-C ends the command's whole process tree.

With --session the command sees every earlier write in the workspace, and when it ends the host has
every file that it wrote; `quintet undo SESSION` takes them back.";

/// Run a command on a worker
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ExecArgs {
    /// Name of the worker, as `quintet workers` lists it
    #[arg(required_unless_present_any = ["labels", "session"], conflicts_with = "labels")]
    worker: Option<String>,

    /// Run in this session's workspace, on the session's worker
    #[arg(long, value_name = "N", conflicts_with_all = ["labels", "worker"])]
    session: Option<u64>,

    /// Run in this folder [default: the worker's root, or the workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,

    /// Add a variable to the command's environment
    #[arg(long, value_name = "KEY=VALUE", value_parser = super::pair)]
    env: Vec<(String, String)>,

    /// End it after this long, such as 90, 90s or 10m [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,

    /// Run on every online worker with this label; repeat to ask for more
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = super::pair)]
    labels: Vec<(String, String)>,

    /// Leave the input empty although it comes from a pipe
    #[arg(short = 'n', long)]
    no_input: bool,

    /// Go on with a command that runs without a reader, with all it has printed; `quintet jobs`
    /// lists them
    #[arg(long, value_name = "JOB", conflicts_with_all = ["labels", "session", "command"])]
    attach: Option<String>,

    /// The command
    #[arg(last = true, required_unless_present = "attach", value_name = "WORD")]
    command: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: ExecArgs) -> Result<ExitCode, CommandError> {
    let request = ExecMsg {
        command: shell_line(&args.command),
        cwd: args.cwd,
        env: args.env.into_iter().collect(),
        timeout_ms: args
            .timeout
            .map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
        session: args.session,
        attach: args.attach,
        ..ExecMsg::default()
    };
    let interrupts = Interrupts::listen()?;
    let worker = args.worker.or(args.session.map(|_| String::new()));
    let code = match worker {
        Some(worker) => {
            let wanted = !args.no_input && request.attach.is_none() && stdin_holds_data();
            let stdin = wanted && takes_input(context, &worker).await?;
            let request = ExecMsg {
                worker,
                stdin,
                ..request
            };
            on_one(&context.home, request, &interrupts.count, Lines::AsTheyAre).await
        }
        None => {
            if !args.no_input && stdin_holds_data() {
                context.output.talk(
                    "the input is left out: with --label there is nobody to give it to alone",
                );
            }
            let wanted = args.labels.into_iter().collect();
            on_all(&context.home, request, &wanted, &interrupts.count).await
        }
    };
    match code {
        Ok(code) => Ok(ExitCode::from(code)),
        Err(error) if error.is_output_closed() => Err(error),
        Err(error) => {
            error.report();
            Ok(ExitCode::from(NOT_RUN))
        }
    }
}

async fn on_all(
    home: &Home,
    request: ExecMsg,
    wanted: &BTreeMap<String, String>,
    interrupts: &watch::Receiver<u32>,
) -> Result<u8, CommandError> {
    let workers = connect::daemon(home).await?.workers().await?.workers;
    let chosen: Vec<String> = workers
        .into_iter()
        .filter(|worker| worker.state == "online")
        .filter(|worker| {
            wanted
                .iter()
                .all(|(key, value)| worker.labels.get(key) == Some(value))
        })
        .map(|worker| worker.id)
        .collect();
    if chosen.is_empty() {
        return Err(CommandError::failed("no online worker has these labels")
            .hint("`quintet workers` lists them"));
    }
    let mut running = JoinSet::new();
    for worker in chosen {
        let request = ExecMsg {
            worker: worker.clone(),
            ..request.clone()
        };
        let (home, interrupts) = (home.clone(), interrupts.clone());
        running.spawn(async move {
            let lines = Lines::Prefixed(worker.clone());
            match on_one(&home, request, &interrupts, lines).await {
                Ok(code) => code,
                Err(error) => {
                    output::report_error(&format!("{worker}: {}", error.message()), &[]);
                    NOT_RUN
                }
            }
        });
    }
    let codes = running.join_all().await;
    Ok(codes.into_iter().max().unwrap_or(0))
}

async fn on_one(
    home: &Home,
    request: ExecMsg,
    interrupts: &watch::Receiver<u32>,
    lines: Lines,
) -> Result<u8, CommandError> {
    let mut interrupts = interrupts.clone();
    let (stdin, limit) = (request.stdin, request.timeout_ms.unwrap_or(300_000));
    let worker = request.worker.clone();
    let mut shown = Shown::new(lines);
    let mut remote = Remote::open(home, Opening::Exec(request)).await?;
    let mut job: Option<String> = None;
    let mut feeder = stdin.then(Feeder::read);
    let mut cancelled = None;
    loop {
        let seen = tokio::select! {
            () = until(cancelled) => {
                let waited = CANCELS_WITHIN.as_secs();
                let text = format!("{worker} did not say in {waited} s that the command has ended");
                output::report_error(&text, &["`quintet jobs` lists what still runs".to_owned()]);
                return Ok(INTERRUPTED);
            }
            seen = remote.next() => seen?,
            Ok(()) = interrupts.changed() => {
                let first = *interrupts.borrow_and_update() == 1;
                match &job {
                    Some(job) if first => {
                        cancel(home, job).await?;
                        cancelled = Some(Instant::now() + CANCELS_WITHIN);
                    }
                    // Closing the connection cancels as well.
                    _ => return Ok(INTERRUPTED),
                }
                continue;
            }
        };
        match seen {
            Seen::Started { job: id, input } => {
                if let Some(feeder) = &mut feeder {
                    feeder.feed(home, &id, input).await;
                }
                job = Some(id);
            }
            Seen::Dropped(bytes) => {
                output::report_error(&format!("{bytes} bytes of output are gone"), &[]);
            }
            Seen::Stdout(bytes) => shown.write(0, &bytes).await?,
            Seen::Stderr(bytes) => shown.write(1, &bytes).await?,
            Seen::Ended(ended) => {
                shown.finish().await?;
                if let Some(Outcome::TimedOut(secs)) = ended.outcome {
                    let limit = match (limit % 1000, secs) {
                        (0, 0) => format!("{} s", limit / 1000),
                        (0, secs) => format!("{secs} s"),
                        _ => format!("{limit} ms"),
                    };
                    output::report_error(&format!("timed out after {limit}"), &[]);
                }
                for note in ended.changes.iter().flat_map(|changes| &changes.notes) {
                    output::report_error(note, &[]);
                }
                return Ok(exit_code(&ended));
            }
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The exit code that CONTRACT promises.
pub(crate) fn exit_code(ended: &CommandEnded) -> u8 {
    match ended.outcome {
        Some(Outcome::Exited(-1)) => 255,
        Some(Outcome::Exited(code)) => code.to_le_bytes()[0],
        Some(Outcome::Signalled(signal)) => u8::try_from(128 + signal).unwrap_or(255),
        Some(Outcome::TimedOut(_)) => TIMED_OUT,
        Some(Outcome::Cancelled(_)) => INTERRUPTED,
        None => NOT_RUN,
    }
}

async fn cancel(home: &Home, job: &str) -> Result<(), CommandError> {
    let request = ExecCancelMsg {
        job: job.to_owned(),
    };
    match connect::daemon(home).await?.exec_cancel(request).await {
        Ok(_) => Ok(()),
        // It ended in the meantime; its result is on the way.
        Err(error) if error.refusal().is_some() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a worker can give input to a command; where it can't, the person is told that it is left
/// out. Programs often start others with a pipe that they never write to, so that is no error.
async fn takes_input(context: &Context, worker: &str) -> Result<bool, CommandError> {
    let workers = connect::daemon(&context.home)
        .await?
        .workers()
        .await?
        .workers;
    let old = workers
        .iter()
        .any(|it| it.id == worker && it.protocol == WITHOUT_INPUT);
    if old {
        context.output.talk(format_args!(
            "the input is left out: {worker} speaks only {WITHOUT_INPUT}"
        ));
    }
    Ok(!old)
}

/// Whether stdin is a pipe, a socket or a file, and not a terminal or a device such as /dev/null;
/// one that is known to be empty holds nothing.
fn stdin_holds_data() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::fs::{FileType, fstat};
    let stdin = io::stdin();
    let Ok(stat) = fstat(&stdin) else {
        return false;
    };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice | FileType::Directory => false,
        FileType::RegularFile => stat.st_size > 0,
        _ => {
            let mut ends = [PollFd::new(&stdin, PollFlags::IN)];
            let polled = poll(&mut ends, Some(&Timespec::default()));
            let seen = ends[0].revents();
            // Nothing in it, and nobody who could write.
            let over = seen.contains(PollFlags::HUP) && !seen.contains(PollFlags::IN);
            !(polled.is_ok() && over)
        }
    }
}

enum Lines {
    AsTheyAre,
    /// Each with the worker's name in front.
    Prefixed(String),
}

/// Where a command's two streams go.
struct Shown {
    lines: Lines,
    /// Lines that are not yet whole.
    partial: [Vec<u8>; 2],
}

/// A line longer than this is shown in parts.
const LONGEST_LINE: usize = 64 * 1024;

impl Shown {
    fn new(lines: Lines) -> Self {
        Self {
            lines,
            partial: [Vec::new(), Vec::new()],
        }
    }

    async fn write(&mut self, stream: usize, bytes: &[u8]) -> Result<(), CommandError> {
        let Lines::Prefixed(name) = &self.lines else {
            return print(stream, bytes).await;
        };
        let partial = &mut self.partial[stream];
        partial.extend_from_slice(bytes);
        let whole = match partial.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None if partial.len() > LONGEST_LINE => partial.len(),
            None => return Ok(()),
        };
        let lines: Vec<u8> = partial.drain(..whole).collect();
        print(stream, &prefixed(name, &lines)).await
    }

    async fn finish(&mut self) -> Result<(), CommandError> {
        let Lines::Prefixed(name) = &self.lines else {
            return Ok(());
        };
        for (stream, rest) in self.partial.iter().enumerate() {
            if !rest.is_empty() {
                print(stream, &prefixed(name, rest)).await?;
            }
        }
        Ok(())
    }
}

fn prefixed(name: &str, lines: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(lines.len() + 32);
    for line in lines.split_inclusive(|byte| *byte == b'\n') {
        text.extend_from_slice(format!("[{name}] ").as_bytes());
        text.extend_from_slice(line);
    }
    if text.last() != Some(&b'\n') {
        text.push(b'\n');
    }
    text
}

async fn print(stream: usize, bytes: &[u8]) -> Result<(), CommandError> {
    if stream == 0 {
        let mut stdout = tokio::io::stdout();
        stdout.write_all(bytes).await?;
        stdout.flush().await?;
    } else {
        let mut stderr = tokio::io::stderr();
        stderr.write_all(bytes).await?;
        stderr.flush().await?;
    }
    Ok(())
}

/// Counts Ctrl-C and SIGTERM.
struct Interrupts {
    count: watch::Receiver<u32>,
    _task: JoinSet<()>,
}

impl Interrupts {
    fn listen() -> io::Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let (sender, count) = watch::channel(0);
        let mut task = JoinSet::new();
        task.spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                sender.send_modify(|count| *count += 1);
            }
        });
        Ok(Self { count, _task: task })
    }
}

/// What a shell takes for its own at the beginning of a line, unless it is quoted.
const RESERVED: &[&str] = &[
    "case", "coproc", "do", "done", "elif", "else", "esac", "fi", "for", "function", "if",
    "select", "then", "time", "until", "while",
];

/// One word is a shell line as it is; several are quoted, so that the command gets exactly those.
fn shell_line(words: &[String]) -> String {
    match words {
        [line] => line.clone(),
        [first, ..] if RESERVED.contains(&first.as_str()) => {
            format!("'{first}' {}", joined(&words[1..]))
        }
        words => joined(words),
    }
}

fn joined(words: &[String]) -> String {
    let words: Vec<_> = words.iter().map(|word| quoted(word)).collect();
    words.join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Whole seconds, or a number with `ms`, `s`, `m` or `h`.
fn seconds(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits
        .parse()
        .map_err(|_| format!("{text:?} is no time; write it like 90, 90s or 10m"))?;
    let duration = match &text[digits.len()..] {
        "" | "s" => Duration::from_secs(number),
        "ms" => Duration::from_millis(number),
        "m" => Duration::from_secs(number.saturating_mul(60)),
        "h" => Duration::from_secs(number.saturating_mul(3600)),
        unit => return Err(format!("{unit:?} is no unit; use ms, s, m or h")),
    };
    if duration.is_zero() {
        return Err("nothing runs in no time".to_owned());
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_is_a_line_and_several_are_words() {
        let line = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            shell_line(&words)
        };
        assert_eq!(line(&["a | b $C"]), "a | b $C");
        assert_eq!(line(&["ls", "-l", "a b"]), "ls -l 'a b'");
        assert_eq!(line(&["if", "true"]), "'if' true");
        assert_eq!(line(&["echo", "if"]), "echo if");
        assert_eq!(line(&["echo", "it's", "", "$X"]), r"echo 'it'\''s' '' '$X'");
    }

    #[test]
    fn every_end_has_its_code() {
        let code = |outcome| {
            exit_code(&CommandEnded {
                outcome: Some(outcome),
                ..CommandEnded::default()
            })
        };
        assert_eq!(code(Outcome::Exited(3)), 3);
        assert_eq!(code(Outcome::Exited(-1)), 255);
        assert_eq!(code(Outcome::Signalled(9)), 137);
        assert_eq!(code(Outcome::TimedOut(1)), 124);
        assert_eq!(code(Outcome::Cancelled(true)), 130);
    }

    #[test]
    fn lines_carry_their_worker() {
        assert_eq!(prefixed("w", b"a\nb"), b"[w] a\n[w] b\n");
    }

    #[test]
    fn a_timeout_has_a_unit_or_is_in_seconds() {
        assert_eq!(seconds("90"), Ok(Duration::from_secs(90)));
        assert_eq!(seconds("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(seconds("10m"), Ok(Duration::from_secs(600)));
        for text in ["", "0", "s", "5x", "-1"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}
