//! The task that owns one instance.

mod turn;

use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quintet_framing::FrameError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::handle::Command;
use super::link::{Facilities, Link, LinkWake};
use super::outbox::Outbox;
use super::types::{
    CancelCause, FailReason, InstanceEvent, InstanceSpec, InstanceStatus, Observer, TurnEnd,
};
use crate::logs::{InstanceLog, LogLine, LogSource};
use crate::proto::lifecycle::{Phase, Trigger, next};
use crate::proto::message::{CoordinatorToAgent, FinishReason, InboundMessage, Init};
use crate::proto::restart::{AfterCrash, Restarts};
use crate::proto::turn::Turns;
use crate::proto::usage::TokenUsage;
use crate::state::StateStore;

/// How long a process may go on after it closed its connection.
const CLOSED_PATIENCE: Duration = Duration::from_secs(2);

/// How long the observer may take for the last events of an instance that is closed.
const OBSERVER_PATIENCE: Duration = Duration::from_secs(5);

/// Why the process has to be given up.
#[derive(Debug)]
struct Loss {
    reason: FailReason,
    detail: String,
    /// It was not the program that failed.
    is_hindered: bool,
}

impl Loss {
    fn new(reason: FailReason, detail: impl Into<String>) -> Self {
        Self {
            reason,
            detail: detail.into(),
            is_hindered: false,
        }
    }

    fn bad_frame(error: &str) -> Self {
        let detail = format!("the agent sent what is no message: {error}");
        Self::new(FailReason::BadFrame, detail)
    }
}

/// A message whose process is not ready for it yet.
struct Waiting {
    message: InboundMessage,
    reply: oneshot::Sender<TurnEnd>,
}

/// The message that the process works on.
struct InHand {
    reply: oneshot::Sender<TurnEnd>,
    deadline: Option<Instant>,
    cancel: Option<(CancelCause, Instant)>,
    /// What the last doubtful `complete` said.
    doubtful: Option<(FinishReason, Option<TokenUsage>)>,
}

/// The process was told to end.
struct Stopping {
    reason: String,
    /// What comes next, and when.
    next: Escalation,
    at: Instant,
    replies: Vec<oneshot::Sender<()>>,
    start_again: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Escalation {
    Terminate,
    Kill,
}

enum Wake {
    Command(Option<Command>),
    Observed,
    Link(LinkWake),
    Timer,
}

pub(super) struct Actor<O> {
    spec: InstanceSpec,
    next_spec: Option<Box<InstanceSpec>>,
    facilities: Arc<Facilities>,
    outbox: Outbox<O>,
    state: StateStore,
    log: InstanceLog,
    commands: mpsc::Receiver<Command>,
    status: watch::Sender<InstanceStatus>,
    epoch: Instant,
    phase: Phase,
    turns: Turns,
    restarts: Restarts,
    link: Option<Link>,
    waiting: Option<Waiting>,
    in_hand: Option<InHand>,
    stopping: Option<Stopping>,
    idle_at: Option<Instant>,
    retry_at: Option<Instant>,
    start_now: bool,
    start_replies: Vec<oneshot::Sender<()>>,
    closed: bool,
}

impl<O: Observer> Actor<O> {
    pub(super) fn new(
        spec: InstanceSpec,
        facilities: Arc<Facilities>,
        observer: Arc<O>,
        state: StateStore,
        log: InstanceLog,
        commands: mpsc::Receiver<Command>,
        status: watch::Sender<InstanceStatus>,
    ) -> Self {
        Self {
            outbox: Outbox::new(observer, spec.agent_id.clone()),
            restarts: Restarts::new(spec.timings.restart),
            spec,
            next_spec: None,
            facilities,
            state,
            log,
            commands,
            status,
            epoch: Instant::now(),
            phase: Phase::Terminated,
            turns: Turns::default(),
            link: None,
            waiting: None,
            in_hand: None,
            stopping: None,
            idle_at: None,
            retry_at: None,
            start_now: false,
            start_replies: Vec::new(),
            closed: false,
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            if std::mem::take(&mut self.start_now) {
                self.start().await;
            }
            self.ready().await;
            self.publish();
            self.outbox.pump();
            match self.wait().await {
                Wake::Command(Some(Command::Kill(reply))) => {
                    self.kill("daemon_stop").await;
                    // A caller that stopped waiting does not want to know.
                    let _ = reply.send(());
                    return;
                }
                Wake::Command(Some(command)) => self.command(command).await,
                Wake::Command(None) => {
                    self.kill("daemon_stop").await;
                    return;
                }
                Wake::Observed => {}
                Wake::Link(wake) => self.link_woke(wake).await,
                Wake::Timer => self.timer().await,
            }
        }
    }

    async fn wait(&mut self) -> Wake {
        let deadline = self.next_deadline();
        let may_read = !self.outbox.is_busy();
        let Self {
            commands,
            outbox,
            link,
            ..
        } = self;
        let link_wake = async {
            match link {
                Some(link) => link.wait(may_read).await,
                None => std::future::pending().await,
            }
        };
        let timer = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            command = commands.recv() => Wake::Command(command),
            // Before the observer: what is queued for the agent does not wait for it.
            wake = link_wake => Wake::Link(wake),
            () = outbox.observed() => Wake::Observed,
            () = timer => Wake::Timer,
        }
    }

    /// The instance's clock, for the pure parts.
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn go(&mut self, trigger: Trigger, reason: &str) {
        let Some(to) = next(self.phase, trigger) else {
            return;
        };
        let from = std::mem::replace(&mut self.phase, to);
        self.idle_at = match (to, self.spec.timings.idle_timeout) {
            (Phase::Ready, Some(timeout)) => Some(Instant::now() + timeout),
            _ => None,
        };
        self.outbox.push(InstanceEvent::Phase {
            from,
            to,
            reason: reason.to_owned(),
        });
    }

    fn publish(&self) {
        let status = InstanceStatus {
            phase: self.phase,
            pid: self.link.as_ref().and_then(Link::pid),
            restarts: self.restarts.total(),
            waiting_for: self.turns.waiting_for(),
            breaker_open: self.restarts.is_open(),
        };
        self.status.send_if_modified(|current| {
            let changed = *current != status;
            *current = status;
            changed
        });
    }

    async fn note(&mut self, level: &str, message: impl Into<String>) {
        let message = message.into();
        tracing::debug!(agent = %self.spec.agent_id, level, %message);
        let line = LogLine::new(LogSource::Supervisor, level, message);
        self.log.append(vec![line]).await;
    }

    // Starting

    async fn start(&mut self) {
        self.retry_at = None;
        let trigger = match self.phase {
            Phase::Terminated => Trigger::Start,
            Phase::Crashed => Trigger::Retry,
            _ => return,
        };
        if let Some(spec) = self.next_spec.take() {
            self.apply_spec(*spec);
        }
        self.go(trigger, "starting the process");
        match Link::launch(&self.spec, &self.facilities, &self.log).await {
            Ok(link) => {
                self.link = Some(link);
                // A new process may count its ids from the start again.
                self.turns = Turns::default();
                self.go(Trigger::Spawned, "the process runs");
            }
            Err(error) => {
                let loss = Loss {
                    is_hindered: error.is_of_the_machine(),
                    ..Loss::new(FailReason::NotReady, error.to_string())
                };
                self.lost(loss, Trigger::Lost).await;
            }
        }
        self.publish();
        self.tell_started();
    }

    fn tell_started(&mut self) {
        for reply in self.start_replies.drain(..) {
            let _ = reply.send(());
        }
    }

    fn apply_spec(&mut self, spec: InstanceSpec) {
        // The folder and the id are the instance's own: its state is there.
        self.spec = InstanceSpec {
            agent_id: self.spec.agent_id.clone(),
            instance_dir: self.spec.instance_dir.clone(),
            ..spec
        };
    }

    async fn link_woke(&mut self, wake: LinkWake) {
        match wake {
            LinkWake::Flushed => self.flushed(),
            LinkWake::Exited => {}
            LinkWake::Drained => self.process_ended().await,
            LinkWake::Frame(first) => {
                if let Err(loss) = self.ingest(first).await {
                    self.lost(loss, Trigger::Lost).await;
                }
            }
            LinkWake::Closed => {
                if let Some(link) = &mut self.link
                    && self.stopping.is_none()
                {
                    link.gone_by = Some(Instant::now() + CLOSED_PATIENCE);
                }
            }
            LinkWake::BadFrames(error) => {
                let loss = Loss::bad_frame(&error.to_string());
                self.lost(loss, Trigger::Lost).await;
            }
            LinkWake::Accepted(stream) => {
                let Some(link) = &mut self.link else { return };
                match link.connect(stream) {
                    Ok(()) => self.initialize().await,
                    Err(refused) if link.note_once(refused) => self.note("warn", refused).await,
                    Err(_) => {}
                }
            }
        }
    }

    async fn initialize(&mut self) {
        let init = CoordinatorToAgent::Init(Init {
            agent_id: self.spec.agent_id.clone(),
            agent_type: self.spec.agent_type.clone(),
            workspace: self.spec.workspace.to_string_lossy().into_owned(),
            config: self.spec.config.clone(),
            state: self.state.value().await,
        });
        let Some(link) = &mut self.link else { return };
        if let Err(error) = link.send(&init) {
            let loss = Loss::new(
                FailReason::NotReady,
                format!("`init` can't be sent: {error}"),
            );
            self.lost(loss, Trigger::Lost).await;
        }
    }

    fn flushed(&mut self) {
        let Some(link) = &mut self.link else { return };
        if !link.initialized && link.is_flushed() {
            link.initialized = true;
            self.go(Trigger::Initialized, "the process is connected");
        }
    }

    /// Gives a process that is Ready its message, or replaces it.
    async fn ready(&mut self) {
        if self.phase != Phase::Ready {
            return;
        }
        if self.next_spec.is_some() {
            self.stop("reload", None, true).await;
        } else if self.may_deliver()
            && let Some(waiting) = self.waiting.take()
        {
            self.deliver(waiting);
        }
    }

    fn may_deliver(&self) -> bool {
        self.turns.begins_at().is_none_or(|at| at <= self.now())
    }

    // Ending

    async fn process_ended(&mut self) {
        let Some(link) = self.link.take() else { return };
        let (status, stderr) = link.end(&self.facilities).await;
        let clean = status.is_some_and(|status| status.success());
        let mut detail = describe_exit(status);
        if !clean && !stderr.is_empty() {
            detail = format!("{detail}; it last printed:\n{stderr}");
        }
        let trigger = match clean {
            true => Trigger::ExitedCleanly,
            false => Trigger::Lost,
        };
        self.lost(Loss::new(FailReason::Crashed, detail), trigger)
            .await;
    }

    /// The process is gone or has to go.
    async fn lost(&mut self, loss: Loss, trigger: Trigger) {
        if let Some(link) = self.link.take() {
            link.end(&self.facilities).await;
        }
        let was_up = self.phase != Phase::Deploying && self.phase != Phase::Initializing;
        self.go(trigger, &loss.detail);
        let is_hindered = loss.is_hindered;
        let (reason, detail) = match &self.stopping {
            Some(stopping) => {
                let reason = match stopping.reason.as_str() {
                    "user" => FailReason::KilledByUser,
                    _ => FailReason::Stopped,
                };
                (
                    reason,
                    format!("the agent was stopped ({})", stopping.reason),
                )
            }
            None => (loss.reason, loss.detail),
        };
        self.end_turn(TurnEnd::Failed {
            reason,
            detail: detail.clone(),
        });
        if self.phase == Phase::Crashed {
            self.note("error", format!("the process is lost: {detail}"))
                .await;
            let after = match is_hindered {
                true => self.restarts.hindered(),
                false => self.restarts.crashed(self.now()),
            };
            let waiting_ends = match after {
                AfterCrash::Retry(delay) => {
                    self.retry_at = Some(Instant::now() + delay);
                    (!was_up).then_some((FailReason::NotReady, detail))
                }
                AfterCrash::BreakerOpen => {
                    self.note(
                        "error",
                        "too many crashes: it stays down until a restart or a config change",
                    )
                    .await;
                    Some((FailReason::BreakerOpen, breaker_text(&detail)))
                }
            };
            if let (Some((reason, detail)), Some(waiting)) = (waiting_ends, self.waiting.take()) {
                let end = TurnEnd::Failed { reason, detail };
                self.outbox.end_turn(waiting.reply, end);
            }
        }
        self.settle();
    }

    /// With no process left: tells those who waited for that, and starts again where it is wanted.
    fn settle(&mut self) {
        let stopping = self.stopping.take();
        let start_again = stopping
            .as_ref()
            .is_some_and(|stopping| stopping.start_again);
        let wanted = self.phase == Phase::Terminated && self.waiting.is_some();
        self.start_now |= (start_again || wanted) && !self.closed;
        self.publish();
        for reply in stopping.into_iter().flat_map(|stopping| stopping.replies) {
            let _ = reply.send(());
        }
        if !self.start_now && self.retry_at.is_none() {
            self.tell_started();
        }
    }

    /// Asks the process to end; the timer does the rest.
    async fn stop(&mut self, reason: &str, reply: Option<oneshot::Sender<()>>, start_again: bool) {
        if let Some(stopping) = &mut self.stopping {
            stopping.replies.extend(reply);
            stopping.start_again = start_again;
            return;
        }
        self.go(Trigger::Stop, reason);
        self.stopping = Some(Stopping {
            reason: reason.to_owned(),
            next: Escalation::Terminate,
            at: Instant::now() + self.spec.timings.shutdown_grace,
            replies: reply.into_iter().collect(),
            start_again,
        });
        match &mut self.link {
            Some(link) => {
                link.remember_tree().await;
                let message = CoordinatorToAgent::Shutdown {
                    reason: reason.to_owned(),
                };
                // One that is not connected, or does not read, meets the signals.
                let _ = link.send(&message);
            }
            None => {
                self.retry_at = None;
                self.settle();
            }
        }
    }

    /// Kills the process now.
    async fn kill(&mut self, reason: &str) {
        self.closed = true;
        self.stop(reason, None, false).await;
        self.lost(Loss::new(FailReason::Stopped, reason), Trigger::Lost)
            .await;
        if let Some(waiting) = self.waiting.take() {
            self.refuse_stopped(waiting.reply);
        }
        self.tell_started();
        // An observer that does not come back must not keep the daemon from stopping.
        if tokio::time::timeout(OBSERVER_PATIENCE, self.outbox.drain())
            .await
            .is_err()
        {
            tracing::warn!(agent = %self.spec.agent_id, "the observer did not take the last events");
        }
    }

    fn refuse_stopped(&mut self, reply: oneshot::Sender<TurnEnd>) {
        let end = TurnEnd::Failed {
            reason: FailReason::Stopped,
            detail: "the daemon stops".to_owned(),
        };
        self.outbox.end_turn(reply, end);
    }

    // Time

    fn next_deadline(&self) -> Option<Instant> {
        let link = self.link.as_ref();
        let in_hand = self.in_hand.as_ref();
        let timings = &self.spec.timings;
        // While the observer is busy nothing is read, so silence says nothing about the agent.
        let (stall, doubt) = match self.outbox.is_busy() {
            true => (None, None),
            false => (
                self.turns.stalls_at(timings.stall_after),
                self.turns.settles_at(timings.complete_grace),
            ),
        };
        let at = |time: Option<Duration>| time.and_then(|time| self.epoch.checked_add(time));
        let (stall, doubt) = (at(stall), at(doubt));
        let deliver = match (self.phase, &self.waiting) {
            (Phase::Ready, Some(_)) => at(self.turns.begins_at()),
            _ => None,
        };
        if let Some(stopping) = &self.stopping {
            return Some(stall.map_or(stopping.at, |stall| stall.min(stopping.at)));
        }
        [
            link.filter(|link| !link.initialized)
                .map(|link| link.ready_by),
            link.and_then(|link| link.gone_by),
            in_hand.and_then(|in_hand| in_hand.deadline),
            in_hand.and_then(|in_hand| Some(in_hand.cancel?.1)),
            self.idle_at,
            self.retry_at,
            deliver,
            stall,
            doubt,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    async fn timer(&mut self) {
        let now = Instant::now();
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let timings = self.spec.timings;
        if let Some(stopping) = &mut self.stopping {
            if stopping.at > now {
                return self.report_stall();
            }
            match stopping.next {
                Escalation::Terminate => {
                    stopping.next = Escalation::Kill;
                    stopping.at = now + timings.term_grace;
                    if let Some(link) = &self.link {
                        link.terminate();
                    }
                    self.note("warn", "the process ignored `shutdown` and got SIGTERM")
                        .await;
                }
                Escalation::Kill => {
                    let loss = Loss::new(FailReason::Stopped, "it ignored SIGTERM and was killed");
                    self.lost(loss, Trigger::Lost).await;
                }
            }
            return;
        }
        if let Some(link) = &self.link {
            if !link.initialized && link.ready_by <= now {
                let limit = timings.ready_timeout;
                let detail =
                    format!("the process did not connect and take `init` within {limit:?}");
                return self
                    .lost(Loss::new(FailReason::NotReady, detail), Trigger::Lost)
                    .await;
            }
            if due(link.gone_by) {
                let detail = "the process closed its connection and went on running";
                return self
                    .lost(Loss::new(FailReason::Crashed, detail), Trigger::Lost)
                    .await;
            }
        }
        if let Some(InHand {
            cancel: Some((cause, at)),
            ..
        }) = &self.in_hand
            && *at <= now
        {
            let cause = *cause;
            return self.cancel_by_force(cause).await;
        }
        self.settle_doubt();
        if due(self.in_hand.as_ref().and_then(|in_hand| in_hand.deadline)) {
            self.cancel(CancelCause::Deadline);
        }
        if due(self.retry_at) {
            self.start_now = true;
        }
        if due(self.idle_at) {
            self.go(Trigger::IdleTimeout, "idle");
            self.stop("idle_timeout", None, false).await;
        }
        self.report_stall();
    }

    fn report_stall(&mut self) {
        if self.outbox.is_busy() {
            return;
        }
        let now = self.now();
        if let Some(stall) = self.turns.stalled(now, self.spec.timings.stall_after) {
            let quiet = now.saturating_sub(stall.since);
            let clock = jiff::Timestamp::now();
            self.outbox.push(InstanceEvent::Stalled {
                waiting_for: stall.waiting_for,
                since: clock.checked_sub(quiet).unwrap_or(clock),
            });
        }
    }

    /// The frames that arrived together, from `first` on, up to the limits of a batch.
    fn collect(&mut self, first: Bytes) -> (Vec<Bytes>, Option<FrameError>) {
        /// Enough to fill a pipe, little enough that a cancel is not kept waiting.
        const MAX_FRAMES: usize = 1024;
        const MAX_BYTES: usize = 1024 * 1024;
        let mut bytes = first.len();
        let mut frames = vec![first];
        while frames.len() < MAX_FRAMES && bytes < MAX_BYTES {
            match self.link.as_mut().map_or(Ok(None), Link::buffered) {
                Ok(Some(frame)) => {
                    bytes += frame.len();
                    frames.push(frame);
                }
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
        (frames, None)
    }
}

fn describe_exit(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status.map(|status| (status.code(), status.signal())) {
        Some((Some(code), _)) => format!("the process exited with status {code}"),
        Some((None, Some(signal))) => format!("the process was killed by signal {signal}"),
        _ => "the process is gone".to_owned(),
    }
}

fn breaker_text(detail: &str) -> String {
    format!(
        "the agent crashed too often and stays down until a restart or a config change: {detail}"
    )
}
