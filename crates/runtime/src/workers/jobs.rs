//! Commands and shells that run for clients.
//!
//! Each has a task that owns its handle and feeds the client's stream; other connections reach
//! its input through the table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quintet_control::wire::{
    CommandEnded, CommandEvent, CommandStarted, ExecInputMsg, ExecMsg, ShellInputMsg, ShellMsg,
    ShellResizeMsg, command_ended::Outcome, command_event::Event,
};
use quintet_sandbox::hub::{
    ExecEvent, ExecHandle, ExecInput, ExecOutcome, ExecRequest, RequestError, ShellEvent,
    ShellHandle, ShellInput, ShellPlace, TerminalSize,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{LOCAL, Running, RunningCommand, Workers};
use crate::refusal::Refusal;
use crate::workspaces::{CommandEnd, Finish};

/// Events that wait for their client; the command waits beyond that.
const WAITING: usize = 16;

/// How long a session's command may take to end when its client is gone.
const CANCEL: Duration = Duration::from_secs(10);

/// How long one of any other may, which is longer than the hub waits for a worker that is away.
const ABANDON: Duration = Duration::from_secs(90);

/// How long a worker may take to be told that its job is left to it.
const DETACH: Duration = Duration::from_secs(2);

/// What a client of a command reads.
pub(crate) type CommandEvents = mpsc::Receiver<Result<CommandEvent, Refusal>>;

#[derive(Clone)]
enum Input {
    Exec(ExecInput),
    Shell(ShellInput),
}

struct OpenJob {
    /// A later attachment of the same job takes its place and must not be removed by the earlier.
    number: u64,
    input: Input,
    cancel: CancellationToken,
}

/// The table of what runs for clients.
pub(super) struct OpenJobs {
    /// Short sections without an await.
    open: Mutex<HashMap<String, OpenJob>>,
    numbers: AtomicU64,
    /// Cancelled when the daemon stops: jobs are left to their workers.
    release: CancellationToken,
    tasks: TaskTracker,
}

impl Default for OpenJobs {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            numbers: AtomicU64::new(0),
            release: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }
}

impl OpenJobs {
    pub(super) fn release_all(&self) {
        self.release.cancel();
        self.tasks.close();
    }

    pub(super) async fn released(&self) {
        self.tasks.wait().await;
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, OpenJob>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, id: &str, input: Input) -> Entered {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let cancel = CancellationToken::new();
        let job = OpenJob {
            number,
            input,
            cancel: cancel.clone(),
        };
        self.open().insert(id.to_owned(), job);
        Entered {
            jobs: self.clone(),
            id: id.to_owned(),
            number,
            cancel,
        }
    }

    fn input(&self, id: &str) -> Result<Input, Refusal> {
        let open = self.open();
        let job = open.get(id).ok_or_else(|| not_running(id))?;
        Ok(job.input.clone())
    }
}

fn not_running(id: &str) -> Refusal {
    Refusal::NotFound(format!(
        "no command or shell {id} runs for a client; `quintet jobs` lists what runs"
    ))
}

/// A job's place in the table, left when dropped.
struct Entered {
    jobs: Arc<OpenJobs>,
    id: String,
    number: u64,
    cancel: CancellationToken,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut open = self.jobs.open();
        if open
            .get(&self.id)
            .is_some_and(|job| job.number == self.number)
        {
            open.remove(&self.id);
        }
    }
}

impl Workers {
    /// Runs a command outside of any workspace, or attaches to one.
    pub(crate) async fn exec(&self, request: ExecMsg) -> Result<CommandEvents, Refusal> {
        let running = (request.worker == LOCAL).then(|| {
            self.running.enter(RunningCommand {
                command: request.command.clone(),
                session: None,
                worker: request.worker.clone(),
            })
        });
        let handle = match &request.attach {
            Some(job) => {
                self.arrived(&request.worker).await;
                self.expect_kind(&request.worker, job, "exec").await?;
                self.hub.attach_exec(&request.worker, job).await?
            }
            None => {
                if request.timeout_ms == Some(0) {
                    return Err(Refusal::Bad(
                        "a timeout of 0 lets nothing run; leave it out for no limit".into(),
                    ));
                }
                let exec = ExecRequest {
                    command: request.command,
                    cwd: request.cwd,
                    env: request.env.into_iter().collect(),
                    timeout: request.timeout_ms.map(Duration::from_millis),
                    stdin: request.stdin,
                    mirror: None,
                };
                self.dialled(&request.worker).await;
                self.hub.exec(&request.worker, exec).await?
            }
        };
        Ok(self.follow(handle, Awaited::Command { _running: running }))
    }

    /// Runs for a client a command of a session; `finish` happens before its end is told.
    pub(crate) fn follow_in_session(&self, handle: ExecHandle, finish: Finish) -> CommandEvents {
        self.follow(handle, Awaited::Finish(Box::new(finish)))
    }

    /// Ends a command that nobody waits for, whenever its worker is back.
    pub(crate) fn abandon(&self, handle: ExecHandle) {
        let release = self.jobs.release.clone();
        self.jobs
            .tasks
            .spawn(async move { abandon(handle, &release).await });
    }

    fn follow(&self, handle: ExecHandle, awaited: Awaited) -> CommandEvents {
        let entered = self.jobs.enter(handle.id(), Input::Exec(handle.stdin()));
        let (events, client) = mpsc::channel(WAITING);
        let release = self.jobs.release.clone();
        self.jobs
            .tasks
            .spawn(run_command(handle, awaited, entered, events, release));
        client
    }

    /// Starts a shell, or attaches to one.
    pub(crate) async fn shell(&self, request: ShellMsg) -> Result<CommandEvents, Refusal> {
        let size = terminal_size(request.rows, request.cols)?;
        let worker = &request.worker;
        match &request.attach {
            Some(job) => self.attach_shell(worker, job, size, 0).await,
            None => {
                self.open_shell(worker, ShellPlace::Root, size, &request.term)
                    .await
            }
        }
    }

    /// Starts a shell in a place.
    pub(crate) async fn open_shell(
        &self,
        worker: &str,
        place: ShellPlace,
        size: TerminalSize,
        term: &str,
    ) -> Result<CommandEvents, Refusal> {
        self.dialled(worker).await;
        let handle = self.hub.shell_in(worker, place, size, term).await?;
        Ok(self.follow_shell(handle))
    }

    /// Attaches to a shell for a client that has the first `seen` bytes of its output.
    pub(crate) async fn attach_shell(
        &self,
        worker: &str,
        job: &str,
        size: TerminalSize,
        seen: u64,
    ) -> Result<CommandEvents, Refusal> {
        self.arrived(worker).await;
        self.expect_kind(worker, job, "shell").await?;
        let handle = self.hub.attach_shell_after(worker, job, seen).await?;
        handle.input().resize(size).await?;
        Ok(self.follow_shell(handle))
    }

    /// Refuses to go on with a shell as with a command, whose Ctrl-C cancels it, or the other way.
    async fn expect_kind(&self, worker: &str, job: &str, kind: &str) -> Result<(), Refusal> {
        let jobs = self.hub.jobs(worker).await?;
        match jobs.into_iter().find(|it| it.id == job) {
            Some(other) if other.kind != kind => Err(Refusal::Bad(format!(
                "{job} is none that `quintet {kind}` goes on with; use `quintet {} {worker} \
                 --attach {job}`",
                other.kind
            ))),
            // What is not there is told by the worker.
            _ => Ok(()),
        }
    }

    fn follow_shell(&self, handle: ShellHandle) -> CommandEvents {
        let entered = self.jobs.enter(handle.id(), Input::Shell(handle.input()));
        let (events, client) = mpsc::channel(WAITING);
        let release = self.jobs.release.clone();
        self.jobs
            .tasks
            .spawn(run_shell(handle, entered, events, release));
        client
    }

    pub(crate) async fn exec_input(&self, request: ExecInputMsg) -> Result<(), Refusal> {
        let Input::Exec(input) = self.jobs.input(&request.job)? else {
            return Err(not_running(&request.job));
        };
        input.write(&request.data).await?;
        if request.eof {
            input.finish().await?;
        }
        Ok(())
    }

    pub(crate) fn exec_cancel(&self, job: &str) -> Result<(), Refusal> {
        let open = self.jobs.open();
        open.get(job)
            .ok_or_else(|| not_running(job))?
            .cancel
            .cancel();
        Ok(())
    }

    pub(crate) async fn shell_input(&self, request: ShellInputMsg) -> Result<(), Refusal> {
        Ok(self.shell_of(&request.job)?.write(&request.data).await?)
    }

    pub(crate) async fn shell_resize(&self, request: ShellResizeMsg) -> Result<(), Refusal> {
        let size = terminal_size(request.rows, request.cols)?;
        Ok(self.shell_of(&request.job)?.resize(size).await?)
    }

    fn shell_of(&self, job: &str) -> Result<ShellInput, Refusal> {
        match self.jobs.input(job)? {
            Input::Shell(input) => Ok(input),
            Input::Exec(_) => Err(not_running(job)),
        }
    }
}

/// A terminal's size as it comes over a wire.
pub(crate) fn terminal_size(rows: u32, cols: u32) -> Result<TerminalSize, Refusal> {
    let (Ok(rows), Ok(cols)) = (u16::try_from(rows), u16::try_from(cols)) else {
        return Err(Refusal::Bad(format!("{rows}x{cols} is no terminal's size")));
    };
    // Some terminals do not know theirs, and programs divide by the width.
    let or = |given: u16, usual: u16| if given == 0 { usual } else { given };
    Ok(TerminalSize {
        rows: or(rows, 24),
        cols: or(cols, 80),
    })
}

type Client = mpsc::Sender<Result<CommandEvent, Refusal>>;

/// What is held until a command has ended.
enum Awaited {
    /// A command of a session: its files are recorded before its end is told.
    Finish(Box<Finish>),
    /// Any other: the daemon may have to wait for it.
    Command { _running: Option<Running> },
}

async fn run_command(
    mut handle: ExecHandle,
    mut awaited: Awaited,
    entered: Entered,
    client: Client,
    release: CancellationToken,
) {
    let started = match handle.recorded().await {
        Ok(()) => {
            let attached = handle.attached();
            Ok(started(CommandStarted {
                job: handle.id().to_owned(),
                dropped_stdout: attached.map_or(0, |opened| opened.lost_stdout),
                dropped_stderr: attached.map_or(0, |opened| opened.lost_stderr),
                input: attached.map_or(0, |opened| opened.offset),
            }))
        }
        Err(error) => Err(error.into()),
    };
    let failed = started.is_err();
    if client.send(started).await.is_err() || failed {
        cancel(handle, awaited, &release).await;
        return;
    }
    let mut cancelled = false;
    loop {
        let next = tokio::select! {
            biased;
            () = release.cancelled() => {
                leave(handle.detach()).await;
                awaited.left();
                return;
            }
            () = client.closed() => {
                cancel(handle, awaited, &release).await;
                return;
            }
            () = entered.cancel.cancelled(), if !cancelled => {
                cancelled = true;
                handle.cancel().await;
                continue;
            }
            next = handle.next() => next,
        };
        let (event, last) = match next {
            Ok(ExecEvent::Stdout(bytes)) => (Ok(Event::Stdout(bytes.into())), false),
            Ok(ExecEvent::Stderr(bytes)) => (Ok(Event::Stderr(bytes.into())), false),
            // The worker gives up only what this daemon has taken and handed on.
            Ok(ExecEvent::Dropped { stdout, stderr }) => {
                tracing::warn!(job = handle.id(), stdout, stderr, "output was dropped");
                continue;
            }
            Ok(ExecEvent::Ended { outcome, duration }) => {
                let changes = match &mut awaited {
                    Awaited::Finish(finish) => {
                        finish.record(handle.mirrored(), &outcome, duration).await
                    }
                    Awaited::Command { .. } => Ok(None),
                };
                (
                    changes.map(|changes| ended(&outcome, duration, changes)),
                    true,
                )
            }
            Err(error) => {
                if let Awaited::Finish(finish) = awaited {
                    finish.failed(&error).await;
                }
                let overdue = matches!(error, RequestError::Overdue { .. });
                let _ = deliver(&client, Err(error.into()), &release).await;
                drop(client);
                if overdue {
                    abandon(handle, &release).await;
                }
                return;
            }
        };
        let delivered = deliver(&client, event, &release).await;
        if last {
            return;
        }
        if delivered.is_err() {
            if release.is_cancelled() {
                leave(handle.detach()).await;
                awaited.left();
            } else {
                cancel(handle, awaited, &release).await;
            }
            return;
        }
    }
}

impl Awaited {
    /// The command goes on while the daemon stops.
    fn left(self) {
        if let Self::Finish(finish) = self {
            finish.left();
        }
    }
}

/// Ends a command that nobody waits for. What one of a session wrote is still recorded.
async fn cancel(mut handle: ExecHandle, awaited: Awaited, release: &CancellationToken) {
    let Awaited::Finish(mut finish) = awaited else {
        return abandon(handle, release).await;
    };
    let ending = async {
        handle.cancel().await;
        loop {
            match handle.next().await {
                Ok(ExecEvent::Ended { outcome, duration }) => break Some((outcome, duration)),
                Ok(_) => {}
                Err(_) => break None,
            }
        }
    };
    let Ok(Some((outcome, duration))) = tokio::time::timeout(CANCEL, ending).await else {
        return;
    };
    let recorded = finish.record(handle.mirrored(), &outcome, duration).await;
    if let Err(refusal) = recorded {
        tracing::warn!(job = handle.id(), %refusal, "what a cancelled command wrote is not known");
    }
}

/// Ends a command of which nothing is recorded any more. Where its worker is away, it would run on
/// there if it were just dropped.
async fn abandon(mut handle: ExecHandle, release: &CancellationToken) {
    let ending = async {
        handle.cancel().await;
        while !matches!(handle.next().await, Ok(ExecEvent::Ended { .. }) | Err(_)) {}
    };
    tokio::select! {
        _ = tokio::time::timeout(ABANDON, ending) => {}
        () = release.cancelled() => {}
    }
}

async fn run_shell(
    mut handle: ShellHandle,
    entered: Entered,
    client: Client,
    release: CancellationToken,
) {
    let started_at = tokio::time::Instant::now();
    let begun = started(CommandStarted {
        job: handle.id().to_owned(),
        dropped_stdout: handle.dropped(),
        input: handle.input_came(),
        ..CommandStarted::default()
    });
    let _ = client.send(Ok(begun)).await;
    loop {
        let next = tokio::select! {
            biased;
            () = release.cancelled() => break,
            () = client.closed() => break,
            // Dropping the handle hangs up.
            () = entered.cancel.cancelled() => return,
            next = handle.next() => next,
        };
        let (event, last) = match next {
            Ok(ShellEvent::Output(bytes)) => (Ok(Event::Stdout(bytes.into())), false),
            Ok(ShellEvent::Ended(outcome)) => {
                (Ok(ended(&outcome, started_at.elapsed(), None)), true)
            }
            Err(error) => (Err(error.into()), true),
        };
        let delivered = deliver(&client, event, &release).await;
        if last {
            return;
        }
        if delivered.is_err() {
            break;
        }
    }
    leave(handle.detach()).await;
}

/// Gives an event to the client; fails when it is gone or the daemon stops.
async fn deliver(
    client: &Client,
    event: Result<Event, Refusal>,
    release: &CancellationToken,
) -> Result<(), ()> {
    let event = event.map(|event| CommandEvent { event: Some(event) });
    tokio::select! {
        biased;
        sent = client.send(event) => sent.map_err(drop),
        () = release.cancelled() => Err(()),
    }
}

/// Leaves a job to its worker. One that can't keep it ends it.
async fn leave(detach: impl Future<Output = Result<String, RequestError>>) {
    match tokio::time::timeout(DETACH, detach).await {
        Ok(Ok(job)) => tracing::debug!(job, "left running"),
        Ok(Err(error)) => tracing::debug!(%error, "could not be left running"),
        Err(_) => tracing::debug!("the worker was not told in time; it keeps the job by itself"),
    }
}

fn started(started: CommandStarted) -> CommandEvent {
    CommandEvent {
        event: Some(Event::Started(started)),
    }
}

fn ended(outcome: &ExecOutcome, duration: Duration, changes: Option<CommandEnd>) -> Event {
    let outcome = match *outcome {
        ExecOutcome::Exited(code) => Outcome::Exited(code),
        ExecOutcome::Signaled(signal) => Outcome::Signalled(signal),
        ExecOutcome::TimedOut { secs } => Outcome::TimedOut(secs),
        ExecOutcome::Cancelled => Outcome::Cancelled(true),
    };
    Event::Ended(CommandEnded {
        outcome: Some(outcome),
        duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
        changes: changes.map(Into::into),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_without_a_size_gets_the_usual_one() {
        for (given, used) in [((0, 0), (24, 80)), ((50, 0), (50, 80)), ((1, 2), (1, 2))] {
            let size = terminal_size(given.0, given.1).expect("a size");
            assert_eq!((size.rows, size.cols), used);
        }
        assert!(terminal_size(70_000, 80).is_err());
    }
}
