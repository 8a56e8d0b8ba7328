//! Commands.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::conn::{HubStream, Knowledge, Running, StreamEvent, V1Route};
pub use super::input::ExecInput;
use super::input::Input;
use super::observer::{HubEvent, Receipt};
use super::opening::{Answer, GivenUp, answer};
use super::{Hub, RequestError, failure};
use crate::proto::frame::{
    Body, FailureCode, INITIAL_CREDIT, Mirror, Mirrored, Open, Opened, Outcome,
};
use crate::proto::{DEFAULT_TIMEOUT_SECS, HubToWorker, Protocol, WorkerToHub};

/// The numbers that a signal can have.
const SIGNALS: RangeInclusive<i32> = 1..=127;

/// How much output of a command may be on its way.
const WINDOW: u32 = 4 * INITIAL_CREDIT;

/// A command to run.
#[derive(Debug, Clone, Default)]
pub struct ExecRequest {
    /// A shell line.
    pub command: String,
    /// Absent means the worker's root.
    pub cwd: Option<String>,
    /// Added to the worker's own environment.
    pub env: BTreeMap<String, String>,
    /// Absent means 300 s; counted in whole seconds, at least one.
    pub timeout: Option<Duration>,
    /// Whether [`ExecHandle::stdin`] will be used; v2 only.
    pub stdin: bool,
    /// The workspace whose copy it runs in, with `cwd` beneath it; v2 only.
    pub mirror: Option<Mirror>,
}

/// How a command ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecOutcome {
    /// By itself. A v1 worker says -1 for a signal it does not name.
    Exited(i32),
    /// By a signal.
    Signaled(i32),
    /// It ran too long.
    TimedOut {
        /// The limit.
        secs: u64,
    },
    /// It was cancelled.
    Cancelled,
}

/// What comes from a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecEvent {
    /// Bytes of stdout.
    Stdout(Bytes),
    /// Bytes of stderr.
    Stderr(Bytes),
    /// Output that the worker's quota took while nobody read; it can't be had any more.
    Dropped {
        /// Bytes of stdout.
        stdout: u64,
        /// Bytes of stderr.
        stderr: u64,
    },
    /// The end; nothing follows.
    Ended {
        /// How.
        outcome: ExecOutcome,
        /// How long it ran, as the worker measured it.
        duration: Duration,
    },
}

/// A command's whole result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecOutput {
    /// Stdout, cut at the limit.
    pub stdout: Vec<u8>,
    /// Stderr, cut at the limit.
    pub stderr: Vec<u8>,
    /// Whether either was cut.
    pub cut: bool,
    /// How it ended.
    pub outcome: ExecOutcome,
    /// How long it ran.
    pub duration: Duration,
}

impl Hub {
    /// Runs a command.
    pub async fn exec(
        &self,
        worker: &str,
        request: ExecRequest,
    ) -> Result<ExecHandle, RequestError> {
        let conn = self.inner.online(worker)?;
        let lost = |_| self.inner.lost(worker);
        let id = uuid::Uuid::now_v7().to_string();
        let timeout_secs = request.timeout.map_or(DEFAULT_TIMEOUT_SECS, |timeout| {
            timeout
                .as_millis()
                .div_ceil(1000)
                .try_into()
                .unwrap_or(u64::MAX)
                .max(1)
        });
        let timeout_ms = request
            .timeout
            .map(|timeout| {
                u64::try_from(timeout.as_millis())
                    .unwrap_or(u64::MAX)
                    .max(1)
            })
            .filter(|millis| !millis.is_multiple_of(1000));
        let allowed = request
            .timeout
            .unwrap_or(Duration::from_secs(DEFAULT_TIMEOUT_SECS));
        let moves_files = request.mirror.is_some();
        let audit = Audit::start(self, worker, &id, &request);
        let running = conn.count();
        let mut unanswered = None;
        let transport = match conn.protocol() {
            Protocol::V1 => {
                if request.stdin {
                    return Err(RequestError::NeedsV2 {
                        worker: worker.to_owned(),
                        what: "take input for a command",
                    });
                }
                if request.mirror.is_some() {
                    return Err(RequestError::NeedsV2 {
                        worker: worker.to_owned(),
                        what: "hold a copy of a workspace",
                    });
                }
                let route = conn.request(&id).map_err(lost)?;
                let message = HubToWorker::ExecuteCommand {
                    id: id.clone(),
                    command: request.command,
                    timeout_secs: Some(timeout_secs),
                    env: request.env,
                    cwd: request.cwd,
                };
                conn.send(&message).await.map_err(lost)?;
                Transport::V1 {
                    route,
                    ready: VecDeque::new(),
                    deadline: Instant::now() + Duration::from_secs(timeout_secs),
                    timeout_secs,
                }
            }
            Protocol::V2 => {
                let open = Open::Exec {
                    id: id.clone(),
                    command: request.command,
                    timeout_secs,
                    timeout_ms,
                    env: request.env,
                    cwd: request.cwd,
                    stdin: request.stdin,
                    mirror: request.mirror,
                };
                unanswered = Some(open.clone());
                Transport::V2(conn.open(open, WINDOW).await.map_err(lost)?)
            }
        };
        let mut handle = ExecHandle::new(self, worker, id, transport, audit, running);
        handle.unanswered = unanswered;
        handle.allowed = Some(allowed);
        handle.moves_files = moves_files;
        Ok(handle)
    }

    /// Continues with a command that was detached from, or whose hub went away, from the start of
    /// what its worker has kept of its output.
    pub async fn attach_exec(&self, worker: &str, id: &str) -> Result<ExecHandle, RequestError> {
        let conn = self.inner.online_v2(worker, "keep a command")?;
        let open = Open::Attach {
            id: id.to_owned(),
            stdout: 0,
            stderr: 0,
        };
        let running = conn.count();
        let lost = || self.inner.lost(worker);
        let stream = conn.open(open, WINDOW).await.map_err(|_| lost())?;
        let (stream, opened) = match answer(stream, GivenUp::Left).await {
            Answer::Opened(stream, opened) => (stream, opened),
            Answer::Ended(outcome) => return Err(failure(outcome)),
            Answer::Lost(_) => return Err(lost()),
        };
        let request = ExecRequest {
            command: format!("(attach {id})"),
            ..ExecRequest::default()
        };
        let audit = Audit::start(self, worker, id, &request);
        let transport = Transport::V2(stream);
        let id = id.to_owned();
        let mut handle = ExecHandle::new(self, worker, id, transport, audit, running);
        handle.input.attached_at(opened.offset);
        handle.seen = [opened.lost_stdout, opened.lost_stderr];
        handle.attached = Some(opened);
        Ok(handle)
    }
}

enum Transport {
    V1 {
        route: V1Route,
        ready: VecDeque<ExecEvent>,
        deadline: Instant,
        timeout_secs: u64,
    },
    V2(HubStream),
    /// The end was seen, or the command was let go.
    Over,
}

/// A running command. Dropped before its end, it is cancelled: its process tree is killed under
/// v2; under v1, which has no such message, it runs until its timeout and its result is dropped.
pub struct ExecHandle {
    hub: Hub,
    worker: String,
    id: String,
    transport: Transport,
    input: Input,
    seen: [u64; 2],
    /// The request, until something came back.
    unanswered: Option<Open>,
    /// What the worker knew of this when it was attached to again.
    known: Option<Knowledge>,
    cancelled: bool,
    /// Its own timeout; none of one that was attached to, of which its worker alone knows.
    allowed: Option<Duration>,
    /// How long that takes at its end, the worker alone knows.
    moves_files: bool,
    attached: Option<Opened>,
    mirrored: Option<Mirrored>,
    audit: Audit,
    /// The end, which waits for its row.
    ending: Option<Result<ExecEvent, RequestError>>,
    running: Running,
}

impl ExecHandle {
    fn new(
        hub: &Hub,
        worker: &str,
        id: String,
        transport: Transport,
        audit: Audit,
        running: Running,
    ) -> Self {
        let input = match &transport {
            Transport::V2(stream) => Some(stream.sender()),
            Transport::V1 { .. } | Transport::Over => None,
        };
        Self {
            hub: hub.clone(),
            worker: worker.to_owned(),
            id,
            transport,
            input: Input::new(worker, input),
            seen: [0; 2],
            unanswered: None,
            known: None,
            cancelled: false,
            allowed: None,
            moves_files: false,
            attached: None,
            mirrored: None,
            audit,
            ending: None,
            running,
        }
    }

    /// The job's id, by which [`Hub::attach_exec`] finds it again.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// What the command did to the workspace that it ran in; known after its end.
    pub fn mirrored(&self) -> Option<&Mirrored> {
        self.mirrored.as_ref()
    }

    /// Where the command's input goes; usable beside [`Self::next`].
    pub fn stdin(&self) -> ExecInput {
        self.input.handle()
    }

    /// What the worker said when this was attached to: how much output is gone, and how many bytes
    /// of input it has. None of a command that was started here.
    pub fn attached(&self) -> Option<&Opened> {
        self.attached.as_ref()
    }

    /// Waits until the audit has the start; the command runs meanwhile. Cancel safe.
    pub async fn recorded(&mut self) -> Result<(), RequestError> {
        Ok(self.audit.receipt.come().await?)
    }

    /// The next output, or the end. Cancel safe. Must not be called after [`ExecEvent::Ended`].
    ///
    /// A worker that is silent for long when the command's time is over is
    /// [`RequestError::Overdue`], and one that only says nothing of a command that has no files to
    /// move [`RequestError::NoAnswer`]; a command that is cancelled then is waited for again.
    pub async fn next(&mut self) -> Result<ExecEvent, RequestError> {
        self.recorded().await?;
        if self.ending.is_none() {
            let next = self.advance_in_time().await;
            if !matches!(next, Ok(ExecEvent::Ended { .. }) | Err(_)) {
                return next;
            }
            self.ending = Some(next);
        }
        self.recorded().await?;
        self.ending.take().unwrap_or_else(|| Err(self.lost()))
    }

    /// The worker ends a command whose time is over, which takes as long as its files are on their
    /// way. What it can't say is that it stands still.
    async fn advance_in_time(&mut self) -> Result<ExecEvent, RequestError> {
        let due = self
            .allowed
            .filter(|_| !self.cancelled)
            .and_then(|allowed| Some((allowed, self.audit.started.checked_add(allowed)?)));
        let Some((allowed, due)) = due else {
            return self.advance().await;
        };
        let (hub, worker) = (self.hub.clone(), self.worker.clone());
        let moves_files = self.moves_files;
        let answer = async {
            match moves_files {
                true => std::future::pending().await,
                false => {
                    let last = due.max(Instant::now()) + hub.inner.settings.patience;
                    tokio::time::sleep_until(last).await;
                }
            }
        };
        tokio::select! {
            biased;
            event = self.advance() => event,
            () = answer => {
                let waited = self.audit.started.elapsed();
                Err(RequestError::NoAnswer { worker, waited })
            }
            silent = hub.inner.overdue(&worker, due) => {
                Err(RequestError::Overdue { worker, allowed, silent })
            }
        }
    }

    async fn advance(&mut self) -> Result<ExecEvent, RequestError> {
        loop {
            let event = match &mut self.transport {
                Transport::V1 { .. } => return self.next_v1().await,
                Transport::V2(stream) => stream.next().await,
                Transport::Over => return Err(self.lost()),
            };
            if event.is_some() {
                self.unanswered = None;
            }
            match event {
                Some(StreamEvent::Opened(opened)) => {
                    // What was on its way in may be lost; it follows before anything new.
                    if let Transport::V2(stream) = &self.transport {
                        self.input.resume(stream.sender(), opened.offset);
                    }
                    // What the quota took can't be had; the count must still agree.
                    let (stdout, stderr) = (opened.lost_stdout, opened.lost_stderr);
                    self.seen[0] = self.seen[0].saturating_add(stdout);
                    self.seen[1] = self.seen[1].saturating_add(stderr);
                    if stdout > 0 || stderr > 0 {
                        return Ok(ExecEvent::Dropped { stdout, stderr });
                    }
                }
                Some(StreamEvent::Out(bytes)) => {
                    self.taken(0, bytes.len()).await;
                    return Ok(ExecEvent::Stdout(bytes));
                }
                Some(StreamEvent::Err(bytes)) => {
                    self.taken(1, bytes.len()).await;
                    return Ok(ExecEvent::Stderr(bytes));
                }
                Some(StreamEvent::End(end)) => {
                    if let Transport::V2(stream) = &self.transport {
                        stream.urgent(Body::Done);
                    }
                    let duration = Duration::from_millis(end.duration_ms);
                    let end = *end;
                    self.mirrored = end.mirrored;
                    let outcome = match end.outcome {
                        Outcome::Failed {
                            code: FailureCode::UnknownJob,
                            ..
                        } if self.known == Some(Knowledge::Nothing) => {
                            Err(RequestError::Restarted {
                                worker: self.worker.clone(),
                                what: "command",
                            })
                        }
                        end => outcome(end),
                    };
                    return self.ended(outcome, duration);
                }
                None => {
                    if let Some(end) = self.reattach().await? {
                        return Ok(end);
                    }
                }
            }
        }
    }

    /// Gathers the whole output, at most `limit` bytes of each stream.
    pub async fn output(mut self, limit: usize) -> Result<ExecOutput, RequestError> {
        let mut kept = [Vec::new(), Vec::new()];
        let mut cut = false;
        loop {
            let (channel, bytes) = match self.next().await? {
                ExecEvent::Stdout(bytes) => (0, bytes),
                ExecEvent::Stderr(bytes) => (1, bytes),
                ExecEvent::Dropped { .. } => {
                    cut = true;
                    continue;
                }
                ExecEvent::Ended { outcome, duration } => {
                    let [stdout, stderr] = kept;
                    return Ok(ExecOutput {
                        stdout,
                        stderr,
                        cut,
                        outcome,
                        duration,
                    });
                }
            };
            let room = limit.saturating_sub(kept[channel].len()).min(bytes.len());
            kept[channel].extend_from_slice(&bytes[..room]);
            cut |= room < bytes.len();
        }
    }

    /// Kills the command's process tree. Its end still comes from [`Self::next`], as
    /// [`ExecOutcome::Cancelled`].
    pub async fn cancel(&mut self) {
        self.cancelled = true;
        match &mut self.transport {
            Transport::V2(stream) => stream.control(Body::Cancel).await,
            Transport::V1 { ready, .. } => {
                // v1 can't: what the caller sees is over.
                ready.clear();
                ready.push_back(ExecEvent::Ended {
                    outcome: ExecOutcome::Cancelled,
                    duration: self.audit.started.elapsed(),
                });
            }
            Transport::Over => {}
        }
    }

    /// Lets the command run on without a reader; v2 only. Returns its id.
    pub async fn detach(mut self) -> Result<String, RequestError> {
        match &self.transport {
            Transport::V2(stream) => stream.control(Body::Detach).await,
            Transport::V1 { .. } | Transport::Over => {
                return Err(RequestError::NeedsV2 {
                    worker: self.worker.clone(),
                    what: "leave a command running",
                });
            }
        }
        self.transport = Transport::Over;
        self.audit.end("detached");
        self.recorded().await?;
        Ok(std::mem::take(&mut self.id))
    }

    async fn taken(&mut self, channel: usize, len: usize) {
        self.seen[channel] = self.seen[channel].saturating_add(len as u64);
        self.audit.output += len as u64;
        if let Transport::V2(stream) = &self.transport {
            stream.taken(len).await;
        }
    }

    fn lost(&self) -> RequestError {
        self.hub.inner.lost(&self.worker)
    }

    fn ended(
        &mut self,
        outcome: Result<ExecOutcome, RequestError>,
        duration: Duration,
    ) -> Result<ExecEvent, RequestError> {
        self.transport = Transport::Over;
        self.input.end();
        match outcome {
            Ok(outcome) => {
                self.audit.end(&words(&outcome));
                Ok(ExecEvent::Ended { outcome, duration })
            }
            Err(error) => {
                self.audit.end(&error.to_string());
                Err(error)
            }
        }
    }

    /// Continues on the worker's next connection, or begins there if the request was lost. Answers
    /// with the end of a command that nobody wants any more.
    async fn reattach(&mut self) -> Result<Option<ExecEvent>, RequestError> {
        let Transport::V2(lost) = &self.transport else {
            return Err(self.lost());
        };
        self.input.interrupt();
        let mut registration = lost.registration();
        let (begins, known, stream) = loop {
            let conn = match self.hub.inner.returned(&self.worker, registration).await {
                Ok(conn) => conn,
                Err(error) => return self.ended(Err(error), Duration::ZERO).map(Some),
            };
            registration = conn.registration();
            let known = conn.knows_of(lost);
            let again = self
                .unanswered
                .clone()
                .filter(|_| known == Knowledge::NeverArrived);
            if again.is_some() && self.cancelled {
                return self
                    .ended(Ok(ExecOutcome::Cancelled), Duration::ZERO)
                    .map(Some);
            }
            let begins = again.is_some();
            let open = again.unwrap_or_else(|| Open::Attach {
                id: self.id.clone(),
                stdout: self.seen[0],
                stderr: self.seen[1],
            });
            // A connection that is gone before this left takes nothing with it.
            if let Ok(stream) = conn.open(open, WINDOW).await {
                break (begins, known, stream);
            }
        };
        self.known = Some(known);
        self.running = stream.count();
        if begins {
            // Its input was on its way behind it. Who attaches is told how much of it has come.
            self.input.resume(stream.sender(), 0);
        }
        if self.cancelled {
            // The first may be lost; a second changes nothing.
            stream.control(Body::Cancel).await;
        }
        self.transport = Transport::V2(stream);
        Ok(None)
    }

    async fn next_v1(&mut self) -> Result<ExecEvent, RequestError> {
        let lost = self.lost();
        let Transport::V1 {
            route,
            ready,
            deadline,
            timeout_secs,
        } = &mut self.transport
        else {
            return Err(lost);
        };
        if ready.is_empty() {
            let answer = route.answers.recv().await;
            let (deadline, timeout_secs) = (*deadline, *timeout_secs);
            match answer {
                Some(WorkerToHub::CommandOutput {
                    stdout,
                    stderr,
                    exit_code,
                    duration_ms,
                    ..
                }) => {
                    self.audit.output += (stdout.len() + stderr.len()) as u64;
                    if !stdout.is_empty() {
                        ready.push_back(ExecEvent::Stdout(Bytes::from(stdout)));
                    }
                    if !stderr.is_empty() {
                        ready.push_back(ExecEvent::Stderr(Bytes::from(stderr)));
                    }
                    ready.push_back(ExecEvent::Ended {
                        outcome: ExecOutcome::Exited(exit_code),
                        duration: Duration::from_millis(duration_ms),
                    });
                }
                // Workers word it differently; the clock says the same everywhere.
                Some(WorkerToHub::CommandError { .. }) if Instant::now() >= deadline => {
                    ready.push_back(ExecEvent::Ended {
                        outcome: ExecOutcome::TimedOut { secs: timeout_secs },
                        duration: Duration::from_secs(timeout_secs),
                    });
                }
                Some(WorkerToHub::CommandError { error, .. }) => {
                    let error = RequestError::Failed { code: None, error };
                    return self.ended(Err(error), Duration::ZERO);
                }
                Some(WorkerToHub::Error(error)) => {
                    let error = RequestError::Failed {
                        code: None,
                        error: error.message,
                    };
                    return self.ended(Err(error), Duration::ZERO);
                }
                Some(other) => {
                    let error = RequestError::Failed {
                        code: Some(FailureCode::Protocol),
                        error: format!("the worker answered with {other:?}"),
                    };
                    return self.ended(Err(error), Duration::ZERO);
                }
                None => return self.ended(Err(lost), Duration::ZERO),
            }
        }
        match ready.pop_front() {
            Some(ExecEvent::Ended { outcome, duration }) => self.ended(Ok(outcome), duration),
            Some(event) => Ok(event),
            None => Err(lost),
        }
    }
}

impl Drop for ExecHandle {
    fn drop(&mut self) {
        if let Transport::V2(stream) = &self.transport {
            stream.urgent(Body::Cancel);
            stream.urgent(Body::Done);
        }
        self.input.end();
    }
}

/// A command's rows in the audit.
struct Audit {
    /// Of the row that was written last.
    receipt: Receipt,
    hub: Hub,
    worker: String,
    job: String,
    started: Instant,
    output: u64,
    ended: bool,
}

impl Audit {
    fn start(hub: &Hub, worker: &str, job: &str, request: &ExecRequest) -> Self {
        let receipt = hub.inner.observe(HubEvent::CommandStarted {
            worker: worker.to_owned(),
            job: job.to_owned(),
            command: request.command.clone(),
            cwd: request.cwd.clone(),
        });
        Self {
            receipt,
            hub: hub.clone(),
            worker: worker.to_owned(),
            job: job.to_owned(),
            started: Instant::now(),
            output: 0,
            ended: false,
        }
    }

    fn end(&mut self, result: &str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.receipt = self.hub.inner.observe(HubEvent::CommandEnded {
            worker: self.worker.clone(),
            job: self.job.clone(),
            result: result.to_owned(),
            duration: self.started.elapsed(),
            output: self.output,
        });
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.end("cancelled");
    }
}

pub(super) fn outcome(outcome: Outcome) -> Result<ExecOutcome, RequestError> {
    match outcome {
        Outcome::Exited { code } => Ok(ExecOutcome::Exited(code)),
        // Whoever tells it adds 128 to it.
        Outcome::Signaled { signal } if SIGNALS.contains(&signal) => {
            Ok(ExecOutcome::Signaled(signal))
        }
        Outcome::TimedOut { secs } => Ok(ExecOutcome::TimedOut { secs }),
        Outcome::Cancelled => Ok(ExecOutcome::Cancelled),
        outcome => Err(failure(outcome)),
    }
}

/// An outcome for the audit.
pub(super) fn words(outcome: &ExecOutcome) -> String {
    match outcome {
        ExecOutcome::Exited(code) => format!("exited {code}"),
        ExecOutcome::Signaled(signal) => format!("signal {signal}"),
        ExecOutcome::TimedOut { secs } => format!("timed out after {secs} s"),
        ExecOutcome::Cancelled => "cancelled".to_owned(),
    }
}
