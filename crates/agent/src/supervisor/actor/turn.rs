//! The part of an instance's task that runs messages: commands in, frames out, output back.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Actor, InHand, Loss, Waiting, breaker_text};
use crate::logs::{LogLine, LogSource};
use crate::proto::decode::{BadFrame, Decoded, Payload, decode_payload};
use crate::proto::lifecycle::{Phase, Trigger};
use crate::proto::message::{AgentToCoordinator, CoordinatorToAgent, FinishReason, LogEntry};
use crate::proto::turn::Completion;
use crate::proto::usage::TokenUsage;
use crate::supervisor::handle::Command;
use crate::supervisor::types::{
    CancelCause, FailReason, InstanceEvent, Observer, Steered, TurnEnd,
};

impl<O: Observer> Actor<O> {
    pub(super) async fn command(&mut self, command: Command) {
        match command {
            Command::Run(message, reply) => self.accept(Waiting { message, reply }),
            Command::Steer(content, reply) => {
                let delivered = self.phase == Phase::Running
                    && self.tell(&CoordinatorToAgent::Steer { content });
                answer(
                    reply,
                    match delivered {
                        true => Steered::Delivered,
                        false => Steered::NotRunning,
                    },
                );
            }
            Command::Cancel(cause, reply) => {
                let found = self.cancel(cause);
                answer(reply, found);
            }
            Command::ConfigUpdate(changes, source, reply) => {
                self.spec.config.extend(changes.clone());
                self.restarts.close();
                if self.link.as_ref().is_some_and(|link| link.initialized) {
                    self.tell(&CoordinatorToAgent::ConfigUpdate { changes, source });
                }
                answer(reply, ());
            }
            Command::Respec(spec, reply) => {
                self.restarts.close();
                match &self.link {
                    Some(_) => self.next_spec = Some(spec),
                    None => self.apply_spec(*spec),
                }
                answer(reply, ());
            }
            Command::AnswerAsk(ask_id, outcome, reply) => {
                self.turns.answered(&ask_id, self.now());
                let told = self.tell(&CoordinatorToAgent::AskResult { ask_id, outcome });
                answer(reply, told);
            }
            Command::AnswerApproval(result, reply) => {
                self.turns.answered(&result.request_id, self.now());
                let told = self.tell(&CoordinatorToAgent::ApprovalResult(result));
                answer(reply, told);
            }
            Command::Shutdown(reason, reply) => {
                self.closed |= reason == "daemon_stop";
                if let Some(waiting) = self.waiting.take() {
                    let end = TurnEnd::Failed {
                        reason: FailReason::Stopped,
                        detail: format!("the agent was stopped ({reason})"),
                    };
                    self.outbox.end_turn(waiting.reply, end);
                }
                self.stop(&reason, Some(reply), false).await;
            }
            Command::Restart(reason, reply) => {
                self.restarts.close();
                match self.closed {
                    true => answer(reply, ()),
                    false => {
                        self.start_replies.push(reply);
                        self.stop(&reason, None, true).await;
                    }
                }
            }
            // The loop takes this one itself: the task ends with it.
            Command::Kill(reply) => answer(reply, ()),
        }
    }

    /// Takes a message, or says why not.
    fn accept(&mut self, waiting: Waiting) {
        let refusal = if self.closed {
            Some((FailReason::Stopped, "the daemon stops".to_owned()))
        } else if self.in_hand.is_some() || self.waiting.is_some() {
            let detail = "another message is running; one runs at a time".to_owned();
            Some((FailReason::Busy, detail))
        } else if self.restarts.is_open() {
            Some((
                FailReason::BreakerOpen,
                breaker_text("it is not started again"),
            ))
        } else {
            None
        };
        if let Some((reason, detail)) = refusal {
            self.outbox
                .end_turn(waiting.reply, TurnEnd::Failed { reason, detail });
            return;
        }
        match self.phase {
            Phase::Ready if self.next_spec.is_none() && self.may_deliver() => {
                return self.deliver(waiting);
            }
            Phase::Terminated => self.start_now = true,
            Phase::Crashed => self.start_now = self.retry_at.is_none(),
            _ => {}
        }
        self.waiting = Some(waiting);
    }

    /// Hands a message to the process, which is Ready.
    pub(super) fn deliver(&mut self, waiting: Waiting) {
        let Waiting { message, reply } = waiting;
        let id = message.id.clone();
        let sent = match &mut self.link {
            Some(link) => link.send(&CoordinatorToAgent::Message(message)),
            None => Ok(false),
        };
        let refusal = match sent {
            Ok(true) => None,
            // The process is going; its end has not been seen yet.
            Ok(false) => Some((FailReason::NotReady, "the agent does not read".to_owned())),
            Err(error) => Some((FailReason::TooLarge, error.to_string())),
        };
        if let Some((reason, detail)) = refusal {
            self.outbox
                .end_turn(reply, TurnEnd::Failed { reason, detail });
            return;
        }
        // Ready means that no message runs.
        let begun = self.turns.begin(id, self.now());
        debug_assert_eq!(begun, Ok(()));
        self.in_hand = Some(InHand {
            reply,
            deadline: self
                .spec
                .timings
                .turn_deadline
                .map(|limit| Instant::now() + limit),
            cancel: None,
            doubtful: None,
        });
        self.go(Trigger::MessageSent, "a message was delivered");
    }

    fn tell(&mut self, message: &CoordinatorToAgent) -> bool {
        let sent = self
            .link
            .as_mut()
            .map_or(Ok(false), |link| link.send(message));
        sent.unwrap_or_else(|error| {
            tracing::warn!(agent = %self.spec.agent_id, %error, "a message to an agent is not sent");
            false
        })
    }

    /// Asks the agent to end its message; `false` when there is none.
    pub(super) fn cancel(&mut self, cause: CancelCause) -> bool {
        if let Some(waiting) = self.waiting.take() {
            let end = TurnEnd::Failed {
                reason: cause.fail_reason(),
                detail: "it was cancelled before the agent had it".to_owned(),
            };
            self.outbox.end_turn(waiting.reply, end);
            return true;
        }
        let Some(message_id) = self.turns.running().cloned() else {
            return false;
        };
        let grace = self.spec.timings.cancel_grace;
        let Some(in_hand) = &mut self.in_hand else {
            return false;
        };
        in_hand.deadline = None;
        if in_hand.cancel.is_none() {
            in_hand.cancel = Some((cause, Instant::now() + grace));
            self.turns.cancelled();
            self.tell(&CoordinatorToAgent::Cancel { message_id });
        }
        true
    }

    /// Kills an agent that did not end a cancelled message.
    pub(super) async fn cancel_by_force(&mut self, cause: CancelCause) {
        let grace = self.spec.timings.cancel_grace;
        let mut detail =
            format!("the agent did not end the message within {grace:?} and was killed");
        if cause == CancelCause::Deadline {
            detail = format!("{}; {detail}", self.deadline_text());
        }
        self.note("warn", detail.as_str()).await;
        self.end_turn(TurnEnd::Failed {
            reason: cause.fail_reason(),
            detail: detail.clone(),
        });
        self.go(Trigger::Stop, "cancelled");
        self.lost(Loss::new(cause.fail_reason(), detail), Trigger::Lost)
            .await;
    }

    fn deadline_text(&self) -> String {
        let limit = self.spec.timings.turn_deadline.unwrap_or_default();
        format!("the turn ran longer than turn_deadline ({limit:?})")
    }

    /// Ends the running message, if one runs.
    pub(super) fn end_turn(&mut self, end: TurnEnd) {
        self.turns.end();
        if let Some(in_hand) = self.in_hand.take() {
            self.outbox.end_turn(in_hand.reply, end);
        }
    }

    // Output

    /// Takes the frames that arrived together.
    ///
    /// Changes of state are made durable first: nothing that the agent said after one is acted on before.
    pub(super) async fn ingest(&mut self, first: Bytes) -> Result<(), Loss> {
        let (frames, frame_error) = self.collect(first);
        let mut payloads = Vec::with_capacity(frames.len());
        let mut bad = None;
        for frame in &frames {
            match decode_payload(frame) {
                Ok(payload) => payloads.push(payload),
                Err(error) => {
                    bad = Some(error);
                    break;
                }
            }
        }
        let mut durable = self.store(&payloads).await?;
        let mut logs = Vec::new();
        // What arrived together was heard together.
        let now = self.now();
        for payload in payloads {
            let decoded = match payload {
                Payload::Text(update) => {
                    let id = update.message_id.as_ref();
                    match self.turns.text(id, now) {
                        Some(running) => {
                            self.outbox
                                .push_text(running, id, update.kind, &update.text);
                        }
                        None => self.note_stray("output", id, &mut logs),
                    }
                    continue;
                }
                Payload::Message(decoded) => decoded,
            };
            for field in &decoded.unknown_fields {
                self.note_unknown(format!("the unknown field `{field}` is ignored"), &mut logs);
            }
            if let Err(loss) = self.take(decoded.message, now, &mut durable, &mut logs) {
                self.write_logs(logs).await;
                return Err(loss);
            }
        }
        self.write_logs(logs).await;
        let bad = bad.as_ref().map(BadFrame::to_string);
        match bad.or(frame_error.map(|error| error.to_string())) {
            Some(detail) => Err(Loss::bad_frame(&detail)),
            None => Ok(()),
        }
    }

    async fn store(&mut self, payloads: &[Payload<'_>]) -> Result<Durable, Loss> {
        let lists: Vec<Vec<Value>> = payloads
            .iter()
            .filter_map(|payload| match payload {
                Payload::Message(Decoded {
                    message: AgentToCoordinator::StateDelta { deltas },
                    ..
                }) => Some(deltas.clone()),
                _ => None,
            })
            .collect();
        if lists.is_empty() {
            return Ok(Durable::default());
        }
        match self.state.apply(lists).await {
            Ok(applied) => Ok(Durable {
                lists: applied.lists,
                revision: applied.revision,
                refusal: applied.rejected.map(|error| error.to_string()),
            }),
            Err(error) => Err(Loss::new(FailReason::StateLost, error.to_string())),
        }
    }

    fn take(
        &mut self,
        message: AgentToCoordinator<'_>,
        now: Duration,
        durable: &mut Durable,
        logs: &mut Vec<LogLine>,
    ) -> Result<(), Loss> {
        match message {
            AgentToCoordinator::StreamUpdate {
                message_id,
                element,
            } => match self.turns.output(&message_id, &element, now) {
                Some(running) => self.outbox.push_element(running, &message_id, element),
                None => self.note_stray("output", &message_id, logs),
            },
            AgentToCoordinator::Complete {
                message_id,
                finish_reason,
                token_usage,
            } => self.completed(&message_id, finish_reason, token_usage, logs),
            AgentToCoordinator::Usage { token_usage } => {
                self.turns.heard(now);
                if self.turns.running().is_some() {
                    self.outbox.push(InstanceEvent::Usage(token_usage));
                }
            }
            AgentToCoordinator::StateDelta { deltas } => {
                self.turns.heard(now);
                if durable.lists == 0 {
                    let reason = durable.refusal.take().unwrap_or_default();
                    self.outbox.push(InstanceEvent::StateRejected {
                        reason: reason.clone(),
                    });
                    let detail = format!("the agent's state patch was refused: {reason}");
                    return Err(Loss::new(FailReason::StateRejected, detail));
                }
                durable.lists -= 1;
                self.outbox.push(InstanceEvent::StateApplied {
                    patches: deltas,
                    revision: durable.revision.saturating_sub(durable.lists as u64),
                });
            }
            AgentToCoordinator::Log(entry) => {
                self.turns.heard(now);
                logs.push(log_line(&entry));
                self.outbox.push(InstanceEvent::Log(entry));
            }
            AgentToCoordinator::AskUser { ask_id, questions } => {
                if self.turns.asked(&ask_id, now) {
                    self.outbox
                        .push(InstanceEvent::AskUser { ask_id, questions });
                } else {
                    self.note_stray("a question", &ask_id, logs);
                }
            }
            AgentToCoordinator::ApprovalRequest(request) => {
                if self.turns.approval_requested(&request.request_id, now) {
                    self.outbox.push(InstanceEvent::ApprovalRequest {
                        request_id: request.request_id,
                        action: request.action,
                        command: request.command,
                        cwd: request.cwd,
                        reason: request.reason,
                    });
                } else {
                    self.note_stray("an approval request", &request.request_id, logs);
                }
            }
            AgentToCoordinator::SteerUnread { content } => {
                self.outbox.push(InstanceEvent::SteerUnread { content });
            }
            AgentToCoordinator::Unknown { kind } => {
                self.note_unknown(format!("the unknown message `{kind}` is ignored"), logs);
            }
        }
        Ok(())
    }

    fn completed(
        &mut self,
        output_id: &str,
        finish_reason: FinishReason,
        usage: Option<TokenUsage>,
        logs: &mut Vec<LogLine>,
    ) {
        match self.turns.complete(output_id, self.now()) {
            Completion::Ends(_) => self.complete(finish_reason, usage),
            Completion::Doubtful => {
                if let Some(in_hand) = &mut self.in_hand {
                    in_hand.doubtful = Some((finish_reason, usage));
                }
                self.note_doubt(output_id, logs);
            }
            Completion::Nothing => self.note_stray("`complete`", output_id, logs),
        }
    }

    /// Ends the running message by a `complete` that was doubtful for long enough.
    pub(super) fn settle_doubt(&mut self) {
        let grace = self.spec.timings.complete_grace;
        if self.outbox.is_busy() || self.turns.settle(self.now(), grace).is_none() {
            return;
        }
        let said = self.in_hand.as_mut().and_then(|it| it.doubtful.take());
        if let Some((finish_reason, usage)) = said {
            self.complete(finish_reason, usage);
        }
    }

    fn complete(&mut self, finish_reason: FinishReason, usage: Option<TokenUsage>) {
        self.restarts.turn_completed();
        if let Some(in_hand) = self.in_hand.take() {
            let cause = in_hand.cancel.map(|(cause, _)| cause);
            let end = match (cause, &finish_reason) {
                (Some(CancelCause::Deadline), FinishReason::Cancelled) => {
                    // A failure has no usage of its own.
                    if let Some(usage) = usage {
                        self.outbox.push(InstanceEvent::Usage(usage));
                    }
                    TurnEnd::Failed {
                        reason: FailReason::Deadline,
                        detail: self.deadline_text(),
                    }
                }
                (Some(CancelCause::Budget), FinishReason::Cancelled) => TurnEnd::Completed {
                    finish_reason: FinishReason::Budget,
                    usage,
                },
                _ => TurnEnd::Completed {
                    finish_reason,
                    usage,
                },
            };
            self.outbox.end_turn(in_hand.reply, end);
        }
        self.go(Trigger::TurnEnded, "the message is complete");
    }

    fn note_doubt(&mut self, id: &str, logs: &mut Vec<LogLine>) {
        let is_new = self
            .link
            .as_mut()
            .is_some_and(|link| link.note_once("doubt"));
        if is_new {
            let grace = self.spec.timings.complete_grace;
            let text = format!(
                "`complete` with the id of an earlier message ({id}) counts when nothing follows within {grace:?}"
            );
            logs.push(LogLine::new(LogSource::Supervisor, "warn", text));
        }
    }

    fn note_stray(&mut self, what: &str, id: &str, logs: &mut Vec<LogLine>) {
        let is_new = self.link.as_mut().is_some_and(|link| link.note_once(what));
        if is_new {
            let text = format!("{what} for no message is ignored (id {id})");
            logs.push(LogLine::new(LogSource::Supervisor, "warn", text));
        }
    }

    fn note_unknown(&mut self, text: String, logs: &mut Vec<LogLine>) {
        let is_new = self.link.as_mut().is_some_and(|link| link.note_once(&text));
        if is_new {
            logs.push(LogLine::new(LogSource::Supervisor, "info", text));
        }
    }

    async fn write_logs(&mut self, logs: Vec<LogLine>) {
        if !logs.is_empty() {
            self.log.append(logs).await;
        }
    }
}

/// How many of the lists in a batch are durable, and why the one after them is not.
#[derive(Default)]
struct Durable {
    lists: usize,
    /// The number of the last of them.
    revision: u64,
    refusal: Option<String>,
}

fn log_line(entry: &LogEntry) -> LogLine {
    LogLine {
        module: entry.module.clone(),
        timestamp: entry.timestamp.clone(),
        ..LogLine::new(LogSource::Agent, &entry.level, entry.message.as_str())
    }
}

fn answer<T>(reply: oneshot::Sender<T>, value: T) {
    // A caller that stopped waiting does not want to know.
    let _ = reply.send(value);
}
