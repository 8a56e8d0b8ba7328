//! One command or shell, from its start until its result is safe.
//!
//! One task owns the process, its pipes, what it printed and the deadlines; everybody else sends
//! it a [`JobCommand`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::copy::{Entered, stopped};
use super::delivery::{Attachment, Delivery};
use super::jobs::{JobKind, Place};
use super::process::{ExitKind, Input, Output, Process, Spawner};
use super::spool::Channel;
use super::state::WorkerState;
use super::tree;
use crate::isolate::Program;
use crate::lanes::Link;
use crate::proto::credit::ReceiveCredit;
use crate::proto::frame::{Body, End, FailureCode, INITIAL_CREDIT, Mirror, Outcome, StreamId};
use crate::proto::{ErrorMessage, GRACE_MS, IdKey, WorkerToHub};

/// Between asking a cancelled tree to end and killing it.
const TERM_GRACE: Duration = Duration::from_secs(2);

/// Typed bytes that may wait for a v1 shell whose program does not read; v2 has credit.
const V1_INPUT: usize = 1024 * 1024;

/// What a job can be told.
#[derive(Debug)]
pub(crate) enum JobCommand {
    Attach {
        link: Link,
        stream: StreamId,
        stdout: u64,
        stderr: u64,
    },
    /// Send nothing more on this stream; run on.
    Detach {
        link: u64,
        stream: StreamId,
    },
    Credit {
        link: u64,
        stream: StreamId,
        amount: u32,
    },
    Input(Bytes),
    Eof,
    Resize {
        rows: u16,
        cols: u16,
    },
    /// Kill the tree.
    Cancel(Origin),
    /// The result is safe, or its place is needed.
    Forget(Origin),
    /// This connection is gone.
    LinkLost(u64),
    /// The worker stops.
    Shutdown,
}

/// The connection and stream that something was said on; none of what holds whoever reads.
pub(crate) type Origin = Option<(u64, StreamId)>;

/// What is needed to start a job.
pub(crate) struct JobSpec {
    pub(crate) id: String,
    pub(crate) kind: JobKind,
    pub(crate) program: Program,
    pub(crate) stdin: bool,
    pub(crate) size: (u16, u16),
    pub(crate) timeout: Option<Duration>,
    /// How long an unseen result is kept.
    pub(crate) keep: Duration,
    pub(crate) mirror: Option<Mirror>,
}

/// Why a program is being stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    TimedOut(u64),
    Cancelled,
    Shutdown,
}

/// Starts the program and stays with it.
pub(crate) async fn run(
    worker: Arc<WorkerState>,
    mut spec: JobSpec,
    delivery: Delivery,
    place: Place,
    mut commands: mpsc::Receiver<JobCommand>,
) {
    let mut told = VecDeque::new();
    let entered = match &spec.mirror {
        None => Ok(None),
        Some(mirror) => {
            tokio::select! {
                entered = Entered::enter(&worker, mirror) => entered.map(Some),
                () = stopped(&mut commands, &mut told) => {
                    Err("cancelled before it began".to_owned())
                }
            }
        }
    };
    let copy = match entered {
        Ok(copy) => copy,
        Err(error) => {
            drop(place);
            return delivery.refused(FailureCode::Workspace, error).await;
        }
    };
    if let Some(copy) = &copy {
        spec.program.cwd = match copy.folder(&spec.program.cwd) {
            Ok(cwd) => cwd,
            Err(error) => {
                drop(place);
                return delivery.refused(FailureCode::Path, error).await;
            }
        };
    }
    let started = match spec.kind {
        JobKind::Exec => {
            let alone = worker.jobs.running() <= 1;
            worker.spawner.pipes(&spec.program, spec.stdin, alone).await
        }
        JobKind::Shell => {
            let (rows, cols) = spec.size;
            worker.spawner.terminal(&spec.program, rows, cols).await
        }
    };
    match started {
        Ok(process) => {
            if spec.kind == JobKind::Shell {
                delivery.started().await;
            }
            Job::new(&spec, delivery, place, commands, process, copy, told)
                .run()
                .await;
        }
        Err(error) => {
            if let Spawner::Isolated(_) = worker.spawner {
                // A helper that died at that moment may have started it, and told nobody.
                kill_tree(None, &spec.id).await;
            }
            let error = spawn_failure(&spec.program, &error);
            delivery.refused(FailureCode::Spawn, error).await;
        }
    }
}

async fn kill_tree(leader: Option<i32>, id: &str) {
    let id = id.to_owned();
    // It reads /proc, which blocks; a failed join means the runtime is going down.
    let _ = tokio::task::spawn_blocking(move || tree::kill(leader, &id)).await;
}

fn spawn_failure(program: &Program, error: &std::io::Error) -> String {
    if program.cwd.is_dir() {
        format!("{} can't be started: {error}", program.path.display())
    } else {
        format!(
            "the working folder {} can't be used: {error}",
            program.cwd.display()
        )
    }
}

struct Job {
    id: String,
    kind: JobKind,
    delivery: Delivery,
    place: Place,
    commands: mpsc::Receiver<JobCommand>,
    pid: i32,
    exit: super::process::Exit,
    stdout: Option<Output>,
    stderr: Option<Output>,
    stdin: Option<Input>,
    input: VecDeque<Typed>,
    input_len: usize,
    /// Bytes of input that came so far, over all connections.
    input_came: u64,
    input_credit: ReceiveCredit,
    eof: bool,
    started: Instant,
    deadline: Option<Instant>,
    timeout_secs: u64,
    stop: Option<Stop>,
    kill_at: Option<Instant>,
    status: Option<Result<ExitKind, String>>,
    grace: Option<Instant>,
    end: Option<End>,
    end_sent: bool,
    forget: bool,
    expires: Option<Instant>,
    keep: Duration,
    /// The workspace's copy that it runs in.
    copy: Option<Entered>,
    /// What was said while the copy was brought up to date.
    told: VecDeque<JobCommand>,
}

/// Input that waits for the program to read it.
struct Typed {
    bytes: Bytes,
    /// What the frame was when it came; none when it came over an earlier connection, whose
    /// credit is gone with it.
    frame: Option<usize>,
}

enum Event {
    Command(Option<JobCommand>),
    Out(Channel, Option<Bytes>),
    Exited(std::io::Result<ExitKind>),
    Written(std::io::Result<usize>),
    Forward,
    Deadline,
}

impl Job {
    fn new(
        spec: &JobSpec,
        delivery: Delivery,
        place: Place,
        commands: mpsc::Receiver<JobCommand>,
        process: Process,
        copy: Option<Entered>,
        told: VecDeque<JobCommand>,
    ) -> Self {
        let now = Instant::now();
        Self {
            id: spec.id.clone(),
            kind: spec.kind,
            delivery,
            place,
            commands,
            pid: process.pid,
            exit: process.exit,
            stdout: process.stdout,
            stderr: process.stderr,
            stdin: process.stdin,
            input: VecDeque::new(),
            input_len: 0,
            input_came: 0,
            input_credit: ReceiveCredit::new(INITIAL_CREDIT),
            eof: false,
            started: now,
            deadline: spec.timeout.map(|timeout| now + timeout),
            timeout_secs: spec.timeout.map_or(0, |timeout| {
                timeout
                    .as_millis()
                    .div_ceil(1000)
                    .try_into()
                    .unwrap_or(u64::MAX)
            }),
            stop: None,
            kill_at: None,
            status: None,
            grace: None,
            end: None,
            end_sent: false,
            forget: false,
            expires: None,
            keep: spec.keep,
            copy,
            told,
        }
    }

    async fn run(mut self) {
        self.work().await;
        self.leave();
    }

    /// Gives up the job's place, then answers whoever found it just before.
    fn leave(self) {
        let Self {
            place,
            mut commands,
            id,
            ..
        } = self;
        drop(place);
        commands.close();
        while let Ok(command) = commands.try_recv() {
            if let JobCommand::Attach { link, stream, .. } = command {
                let error = format!("the command or shell {id:?} is over");
                link.urgent(stream, failed(FailureCode::UnknownJob, error));
            }
        }
    }

    async fn work(&mut self) {
        while let Some(command) = self.told.pop_front() {
            self.command(command).await;
        }
        loop {
            self.delivery.pump().await;
            if self.end.is_none() && self.is_over() {
                self.conclude().await;
            }
            if let Some(end) = &self.end {
                if !self.delivery.outlives_its_program() {
                    self.delivery.conclude(end).await;
                    return;
                }
                if !self.end_sent && self.delivery.is_drained() {
                    self.end_sent = self.delivery.send_end(end).await;
                }
            }
            if self.forget && self.end.is_some() {
                return;
            }
            let event = self.next_event().await;
            if !self.handle(event).await {
                return;
            }
        }
    }

    /// Waits for whatever comes first. Orders to stop and deadlines go before bulk.
    async fn next_event(&mut self) -> Event {
        let take = self.end.is_none() && self.delivery.takes_more();
        let deadline = self.next_deadline();
        tokio::select! {
            biased;
            command = self.commands.recv() => Event::Command(command),
            () = sleep_until(deadline), if deadline.is_some() => Event::Deadline,
            () = self.delivery.wait_until_movable() => Event::Forward,
            written = write(&mut self.stdin, self.input.front()), if !self.input.is_empty() => {
                Event::Written(written)
            }
            bytes = read(&mut self.stdout), if take && self.stdout.is_some() => {
                Event::Out(Channel::Out, bytes)
            }
            bytes = read(&mut self.stderr), if take && self.stderr.is_some() => {
                Event::Out(Channel::Err, bytes)
            }
            status = self.exit.wait(), if self.status.is_none() => Event::Exited(status),
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadline = self
            .deadline
            .filter(|_| self.status.is_none() && self.stop.is_none());
        [deadline, self.kill_at, self.grace, self.expires]
            .into_iter()
            .flatten()
            .min()
    }

    /// False when nothing is left to do.
    async fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Command(Some(command)) => self.command(command).await,
            Event::Command(None) => {
                // The table lost this job's sender, which only its own end does.
                return false;
            }
            Event::Out(channel, bytes) => match bytes {
                Some(bytes) => self.delivery.take(channel, bytes),
                None if channel == Channel::Out => self.stdout = None,
                None => self.stderr = None,
            },
            Event::Exited(status) => {
                self.status = Some(status.map_err(|error| error.to_string()));
                self.grace = Some(Instant::now() + Duration::from_millis(GRACE_MS));
                let lost = matches!(self.status, Some(Err(_)));
                if self.stop.is_some() || lost {
                    // Nothing survives a cancelled command, nor one whose end nobody can see.
                    self.kill_tree().await;
                }
            }
            Event::Written(result) => self.written(result).await,
            Event::Forward => {}
            Event::Deadline => return self.deadline_passed().await,
        }
        true
    }

    async fn deadline_passed(&mut self) -> bool {
        let now = Instant::now();
        let passed = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if passed(self.expires) {
            return false;
        }
        if passed(self.grace) {
            // A background child holds the pipe; it does not hold the reply.
            self.grace = None;
            self.stdout = None;
            self.stderr = None;
        }
        if passed(self.kill_at) {
            self.kill_at = None;
            self.kill_tree().await;
        }
        if passed(self.deadline) && self.status.is_none() && self.stop.is_none() {
            self.stop = Some(Stop::TimedOut(self.timeout_secs));
            self.kill_tree().await;
        }
        true
    }

    async fn command(&mut self, command: JobCommand) {
        match command {
            JobCommand::Attach {
                link,
                stream,
                stdout,
                stderr,
            } => {
                let reader = Attachment::new(link, stream);
                self.delivery
                    .attach(reader, stdout, stderr, self.input_came);
                self.input_credit = ReceiveCredit::new(INITIAL_CREDIT);
                for typed in &mut self.input {
                    typed.frame = None;
                }
                self.end_sent = false;
                self.forget = false;
                self.expires = None;
                self.place.set_attached(true);
            }
            JobCommand::Detach { link, stream } => {
                if self.delivery.is_read_by(link, stream) {
                    self.detach();
                }
            }
            JobCommand::Credit {
                link,
                stream,
                amount,
            } => {
                if self.delivery.is_read_by(link, stream) {
                    self.delivery.credit(amount);
                }
            }
            JobCommand::Input(bytes) => self.type_in(bytes).await,
            JobCommand::Eof => {
                self.eof = true;
                self.close_input_if_done();
            }
            JobCommand::Resize { rows, cols } => {
                if let Some(stdin) = &self.stdin {
                    // A terminal whose program is gone can't be resized, and need not be.
                    let _ = stdin.resize(rows, cols);
                }
            }
            // Somebody who lost the job to another reader has no say in it any more.
            JobCommand::Cancel(Some((link, stream))) | JobCommand::Forget(Some((link, stream)))
                if self.delivery.is_read_by_another(link, stream) => {}
            JobCommand::Cancel(_) => self.stop(Stop::Cancelled),
            JobCommand::Forget(_) => self.forget = true,
            JobCommand::LinkLost(id) => {
                if self.delivery.is_on(id) {
                    if self.delivery.outlives_its_link() {
                        self.detach();
                    } else {
                        self.stop(Stop::Cancelled);
                    }
                }
            }
            JobCommand::Shutdown => {
                self.stop(Stop::Shutdown);
                self.forget = true;
            }
        }
    }

    fn detach(&mut self) {
        self.delivery.detach();
        self.end_sent = false;
        self.place.set_attached(false);
        if self.end.is_some() {
            self.expires = Some(Instant::now() + self.keep);
        }
    }

    fn stop(&mut self, stop: Stop) {
        if self.status.is_some() || self.stop.is_some() {
            return;
        }
        self.stop = Some(stop);
        // A shell ignores SIGTERM; closing its terminal is how one ends it.
        if self.kind == JobKind::Shell || stop == Stop::Shutdown {
            self.kill_at = Some(Instant::now());
        } else {
            tree::terminate(self.pid);
            self.kill_at = Some(Instant::now() + TERM_GRACE);
        }
    }

    async fn kill_tree(&mut self) {
        self.kill_at = None;
        kill_tree(Some(self.pid), &self.id).await;
    }

    async fn type_in(&mut self, bytes: Bytes) {
        let len = bytes.len();
        if self.delivery.has_credit() {
            if self.input_credit.arrived(len).is_err() {
                tracing::warn!(job = self.id, "input beyond its credit; the job is stopped");
                self.stop(Stop::Cancelled);
                return;
            }
        } else if self.input_len + len > V1_INPUT {
            self.delivery.complain(ErrorMessage {
                message: format!(
                    "input dropped: the program does not read and {V1_INPUT} bytes may wait"
                ),
                recoverable: true,
                id: Some((IdKey::Session, self.id.clone())),
            });
            return;
        }
        self.input_came += len as u64;
        if self.stdin.is_none() || self.eof || bytes.is_empty() {
            self.taken(Some(len)).await;
            return;
        }
        self.input_len += len;
        self.input.push_back(Typed {
            bytes,
            frame: Some(len),
        });
    }

    async fn written(&mut self, result: std::io::Result<usize>) {
        match result {
            Ok(written) => {
                self.input_len -= written;
                let Some(front) = self.input.front_mut() else {
                    return;
                };
                front.bytes.advance(written);
                if front.bytes.is_empty() {
                    let frame = front.frame;
                    self.input.pop_front();
                    self.taken(frame).await;
                }
                self.close_input_if_done();
            }
            // The program closed its input: what is still typed goes nowhere.
            Err(_) => {
                self.stdin = None;
                self.input_len = 0;
                for typed in std::mem::take(&mut self.input) {
                    self.taken(typed.frame).await;
                }
            }
        }
    }

    fn close_input_if_done(&mut self) {
        if self.eof && self.input.is_empty() && self.kind == JobKind::Exec {
            self.stdin = None;
        }
    }

    /// Gives back the credit of a frame of input.
    async fn taken(&mut self, frame: Option<usize>) {
        if let Some(amount) = frame.and_then(|len| self.input_credit.taken(len))
            && self.delivery.has_credit()
        {
            self.delivery.grant(amount).await;
        }
    }

    fn is_over(&self) -> bool {
        self.status.is_some() && self.stdout.is_none() && self.stderr.is_none()
    }

    async fn conclude(&mut self) {
        self.grace = None;
        self.kill_at = None;
        self.stdin = None;
        self.input.clear();
        let outcome = match (self.stop, self.status.clone()) {
            (Some(Stop::TimedOut(secs)), _) => Outcome::TimedOut { secs },
            (Some(Stop::Cancelled), _) => Outcome::Cancelled,
            (Some(Stop::Shutdown), _) => Outcome::Failed {
                code: FailureCode::Shutdown,
                error: "the worker stops".to_owned(),
            },
            (None, Some(Ok(ExitKind::Code(code)))) => Outcome::Exited { code },
            (None, Some(Ok(ExitKind::Signal(signal)))) => Outcome::Signaled { signal },
            (None, Some(Err(error))) => Outcome::Failed {
                code: FailureCode::Io,
                error,
            },
            (None, None) => Outcome::Failed {
                code: FailureCode::Io,
                error: "the program's end was not seen".to_owned(),
            },
        };
        let duration_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let mirrored = match self.copy.take() {
            Some(copy) => Some(copy.leave().await),
            None => None,
        };
        self.end = Some(End {
            outcome,
            duration_ms,
            mirrored,
        });
        self.place.set_ended();
        self.delivery.settle().await;
        if !self.delivery.is_attached() {
            self.expires = Some(Instant::now() + self.keep);
        }
    }
}

async fn read(output: &mut Option<Output>) -> Option<Bytes> {
    match output {
        Some(output) => output.read().await,
        None => std::future::pending().await,
    }
}

async fn write(input: &mut Option<Input>, typed: Option<&Typed>) -> std::io::Result<usize> {
    match (input, typed) {
        (Some(input), Some(typed)) => input.write(&typed.bytes).await,
        _ => std::future::pending().await,
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The text of a v1 reply to a command.
pub(crate) fn v1_reply(id: &str, end: &End, stdout: String, mut stderr: String) -> WorkerToHub {
    let id = id.to_owned();
    let (exit_code, failure) = match &end.outcome {
        Outcome::Exited { code } => (*code, None),
        Outcome::Signaled { signal } => {
            if !stderr.is_empty() && !stderr.ends_with('\n') {
                stderr.push('\n');
            }
            stderr.push_str(&format!("[killed by signal {}]\n", signal_name(*signal)));
            (-1, None)
        }
        Outcome::TimedOut { secs } => (-1, Some(format!("timed out after {secs} s"))),
        Outcome::Cancelled => (-1, Some("cancelled".to_owned())),
        Outcome::Failed { error, .. } => (-1, Some(error.clone())),
        Outcome::Complete | Outcome::Jobs { .. } => (0, None),
    };
    match failure {
        Some(error) => WorkerToHub::CommandError { id, error },
        None => WorkerToHub::CommandOutput {
            id,
            stdout,
            stderr,
            exit_code,
            duration_ms: end.duration_ms,
        },
    }
}

fn signal_name(signal: i32) -> String {
    let name = match signal {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGTERM => "SIGTERM",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGSYS => "SIGSYS",
        _ => return signal.to_string(),
    };
    format!("{signal} ({name})")
}

/// The frame that ends a stream before it was a job.
pub(crate) fn failed(code: FailureCode, error: impl Into<String>) -> Body {
    Body::End(Box::new(End {
        outcome: Outcome::Failed {
            code,
            error: error.into(),
        },
        duration_ms: 0,
        mirrored: None,
    }))
}
