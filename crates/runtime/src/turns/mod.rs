//! Turns: a message is handed to its agent, what comes back goes to the journal, the turn ends once.
//!
//! Each session with work has one task that takes its messages in order. The
//! agents themselves run under the supervisor; [`observer`] records what they
//! say before they can say more.

mod instances;
mod observer;
mod recorder;

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quintet_agent::proto::message::{
    AgentId, AskOutcome, FinishReason, InboundMessage, MessageData, Origin,
};
use quintet_agent::{FailReason, Steered, TokenUsage, TurnEnd};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Config;
use crate::journal::{Entry, Kind};
use crate::metrics::Metrics;
use crate::policy::{self, Because, Rule};
use crate::refusal::Refusal;
use crate::sessions::approvals::Decision;
use crate::sessions::asks::Ask;
use crate::sessions::messages::{self, Channel, Message, Purpose, TurnOutcome};
use crate::sessions::{self, Session, approvals, asks, compactions, usage};
use crate::store::{Db, StoreError, WriteTx};
use crate::tools::{Answer, Answers};

pub(crate) use instances::{Instances, agent_of};
pub(crate) use observer::{OpenTurns, Turn, TurnObserver};
pub(crate) use recorder::Recorder;

/// How long a turn waits before what the database refused is written again.
const WRITE_AGAIN: Duration = Duration::from_secs(1);

/// Runs turns. Clones share everything.
#[derive(Clone)]
pub(crate) struct Coordinator {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    instances: Instances,
    turns: Arc<OpenTurns>,
    answers: Answers,
    /// Sessions that have a task, and whether it has to look again before it ends.
    awake: Mutex<HashMap<u64, LookAgain>>,
    tasks: TaskTracker,
    /// No further turn begins.
    stopping: CancellationToken,
    /// The turns that still run are not waited for any longer.
    cutting: CancellationToken,
    metrics: Arc<Metrics>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookAgain {
    No,
    Yes,
}

impl Coordinator {
    /// A coordinator over the database and the agents' processes.
    pub(crate) fn new(
        db: Db,
        instances: Instances,
        turns: Arc<OpenTurns>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let inner = Arc::new(Inner {
            db,
            instances,
            turns,
            answers: Answers::default(),
            awake: Mutex::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            cutting: CancellationToken::new(),
            metrics,
        });
        let weak = Arc::downgrade(&inner);
        inner.turns.wakes(move |session| {
            if let Some(inner) = weak.upgrade() {
                Self { inner }.wake(session);
            }
        });
        Self { inner }
    }

    /// What people answer to calls of tools.
    pub(crate) fn answers(&self) -> &Answers {
        &self.inner.answers
    }

    /// The turn that an instance works on.
    pub(crate) fn turn_of(&self, agent_id: &str) -> Option<Arc<Turn>> {
        self.inner.turns.of_agent(&agent_id.into())
    }

    /// The agents' processes.
    pub(crate) fn instances(&self) -> &Instances {
        &self.inner.instances
    }

    /// Reports turns that the last stop cut off, once, and goes on with what waits.
    pub(crate) async fn recover(&self) -> Result<(), StoreError> {
        let waiting = self
            .inner
            .db
            .write(|tx| -> Result<Vec<u64>, StoreError> {
                for turn in messages::all_running(tx.sql())? {
                    let used = usage::last_said(tx.sql(), turn)?;
                    messages::end(tx, turn, &TurnOutcome::interrupted(used))?;
                }
                messages::sessions_with_waiting(tx.sql())
            })
            .await?;
        for session in waiting {
            self.wake(session);
        }
        Ok(())
    }

    /// Makes sure that a task looks at the session's queue after this call.
    pub(crate) fn wake(&self, session: u64) {
        if self.inner.stopping.is_cancelled() {
            return;
        }
        match self.awake().entry(session) {
            Slot::Occupied(mut task) => {
                task.insert(LookAgain::Yes);
            }
            Slot::Vacant(slot) => {
                slot.insert(LookAgain::No);
                let this = self.clone();
                self.inner
                    .tasks
                    .spawn(async move { this.work(session).await });
            }
        }
    }

    /// Takes no more messages, lets running turns end within the caller's deadline.
    pub(crate) async fn drain(&self) {
        self.inner.stopping.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// Whether the daemon stops: what then nobody waits for any more belongs to its turn's end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.inner.stopping.is_cancelled()
    }

    /// Ends the agents' processes within the deadline; turns that still run are cut.
    pub(crate) async fn cut(&self, deadline: Duration) {
        self.inner.cutting.cancel();
        self.inner.instances.shutdown(deadline).await;
    }

    /// How a turn ended, where the daemon's stop may be why.
    fn or_cut(&self, outcome: TurnOutcome) -> TurnOutcome {
        match self.inner.cutting.is_cancelled() && !outcome.error.is_empty() {
            true => TurnOutcome::interrupted(outcome.usage),
            false => outcome,
        }
    }

    /// Turns that are running.
    pub(crate) fn running(&self) -> usize {
        self.inner.turns.len()
    }

    /// Guides a running turn; becomes an ordinary message when none runs.
    pub(crate) async fn steer(
        &self,
        session: u64,
        content: String,
        sender: String,
        channel: Channel,
    ) -> Result<u64, Refusal> {
        messages::require_text(&content)?;
        let found = self.session(session).await?;
        if let Some(turn) = self.inner.turns.of_session(session) {
            let data = json!({ "text": content, "sender": sender, "channel": channel.as_str() });
            let entry = Entry::new(Kind::Steer, &data).in_turn(session, turn.id);
            let seq = self.inner.db.append(vec![entry]).await?;
            if turn.steer(&content).await == Steered::Delivered {
                return Ok(seq);
            }
        }
        let message = self
            .inner
            .db
            .write(move |tx| {
                let purpose = Purpose::Message;
                messages::enqueue(tx, &found, &sender, channel, &content, purpose)
            })
            .await?;
        self.wake(session);
        Ok(message.first_seq)
    }

    /// Asks a running turn to stop; its end follows in the journal.
    pub(crate) async fn cancel(&self, session: u64, by: String) -> Result<u64, Refusal> {
        self.session(session).await?;
        let turn = self.inner.turns.of_session(session).ok_or_else(|| {
            Refusal::Conflict(format!(
                "no turn is running in session {session}; `quintet sessions` shows where one does"
            ))
        })?;
        let entry = Entry::new(Kind::Cancel, &json!({ "by": by })).in_turn(session, turn.id);
        let seq = self.inner.db.append(vec![entry]).await?;
        turn.cancel();
        Ok(seq)
    }

    /// Stops a session's turn, ends its stream and closes it.
    pub(crate) async fn kill(&self, session: u64, by: &str) -> Result<(), Refusal> {
        let found = self.session(session).await?;
        let reason = format!("the session was killed by {by}");
        let turn = self.inner.turns.of_session(session);
        {
            let _closed = match &turn {
                Some(turn) => Some(turn.close().await),
                None => None,
            };
            self.inner
                .db
                .write(move |tx| sessions::close(tx, session, &reason))
                .await?;
        }
        let instances = &self.inner.instances;
        let retired = instances.retire(found.agent_id().into(), "user");
        self.inner.tasks.spawn(retired);
        Ok(())
    }

    /// Tells running agents what changed in their configuration. No turn is stopped: an agent that is
    /// gone from it ends with its turn.
    pub(crate) async fn apply(&self, old: &Config, new: &Config) {
        let instances = &self.inner.instances;
        instances.apply(old, new).await;
        for agent_id in instances.orphans() {
            let this = self.clone();
            self.inner.tasks.spawn(async move {
                if let Some(turn) = this.inner.turns.of_agent(&agent_id) {
                    turn.over().await;
                }
                let instances = &this.inner.instances;
                // It may have been put back meanwhile.
                if !instances.knows(agent_of(&agent_id)) {
                    instances.retire(agent_id, "reload").await;
                }
            });
        }
    }

    /// Answers a question and hands the answer to the agent that asked.
    pub(crate) async fn reply(
        &self,
        session: u64,
        ask: Option<u64>,
        content: String,
        by: String,
    ) -> Result<(), Refusal> {
        self.session(session).await?;
        let (ask, outcome) = self
            .inner
            .db
            .write(move |tx| asks::answer(tx, session, ask, &content, &by))
            .await?;
        self.answered(ask, outcome).await;
        Ok(())
    }

    /// Hands an answer that is kept to the agent that asked.
    pub(crate) async fn answered(&self, ask: Ask, outcome: AskOutcome) {
        // The turn that asked is over; a retry of it takes the answer.
        if ask.left_over {
            return;
        }
        let unclaimed = self.inner.answers.give(&ask.key, Answer::Ask(outcome));
        if let (Err(Answer::Ask(outcome)), Some(turn)) =
            (unclaimed, self.inner.turns.of_session(ask.session))
        {
            turn.handle.answer_ask(ask.key, outcome).await;
        }
    }

    /// Hands a decision to the agent that asked for leave.
    pub(crate) async fn decide(&self, approval: u64, decision: Decision) -> Result<u64, Refusal> {
        let kept = decision.clone();
        let (approval, seq) = self
            .inner
            .db
            .write(move |tx| approvals::answer(tx, approval, &kept))
            .await?;
        // The turn that asked is over; a retry of it takes the answer.
        if approval.left_over {
            return Ok(seq);
        }
        let answer = Answer::Decision(decision.clone());
        if self.inner.answers.give(&approval.key, answer).is_ok() {
            return Ok(seq);
        }
        if let Some(turn) = self.inner.turns.of_session(approval.session) {
            let result = decision.told_to(approval.key);
            turn.handle.answer_approval(result).await;
        }
        Ok(seq)
    }

    /// Settles what agents themselves asked leave for and rules now decide, whenever rules change.
    /// Calls of tools ask again by themselves.
    pub(crate) async fn follow_policy(&self, mut config: watch::Receiver<Arc<Config>>) {
        while config.changed().await.is_ok() {
            let rules = config.borrow_and_update().policy.rules.clone();
            if let Err(refusal) = self.settle_by(&rules).await {
                tracing::error!(%refusal, "approvals could not be checked again");
            }
        }
    }

    async fn settle_by(&self, rules: &[Rule]) -> Result<(), Refusal> {
        let _answering = self.inner.answers.answering().await;
        let pending = self
            .inner
            .db
            .read(|connection| -> Result<_, StoreError> {
                let mut found = Vec::new();
                for approval in approvals::pending(connection)? {
                    if let Some(session) = sessions::find(connection, approval.session)? {
                        found.push((approval, session));
                    }
                }
                Ok(found)
            })
            .await?;
        for (approval, session) in pending {
            // Calls of tools ask again by themselves, and a retry asks the rules first.
            if approval.left_over || self.inner.answers.expects(&approval.key) {
                continue;
            }
            let agent = AgentId::from(session.agent_id());
            let request = observer::own_request(&agent, session.id, &approval.action);
            let decision = policy::decide(rules, &request).decision;
            let approved = match (&decision.because, decision.action) {
                (Because::Rule(_), policy::Action::Allow) => true,
                (Because::Rule(_), policy::Action::Deny) => false,
                _ => continue,
            };
            let by_rule = Decision::of_policy(approved, &decision.explain(rules));
            match self.decide(approval.id, by_rule).await {
                Ok(_) | Err(Refusal::Conflict(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Replaces what an agent remembers.
    pub(crate) async fn replace_state(
        &self,
        session: &Session,
        state: Value,
    ) -> Result<(), Refusal> {
        let handle = self.inner.instances.of_session(session).await?;
        handle
            .replace_state(state)
            .await
            .map_err(|error| Refusal::Internal(error.to_string()))
    }

    /// What an agent remembers.
    pub(crate) async fn state(&self, session: &Session) -> Result<Value, Refusal> {
        Ok(self
            .inner
            .instances
            .of_session(session)
            .await?
            .state()
            .await)
    }

    async fn session(&self, session: u64) -> Result<Session, Refusal> {
        self.inner
            .db
            .read(move |connection| sessions::open(connection, session))
            .await
    }

    fn awake(&self) -> MutexGuard<'_, HashMap<u64, LookAgain>> {
        self.inner
            .awake
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the session's messages in order until none waits.
    async fn work(&self, session: u64) {
        loop {
            while !self.inner.stopping.is_cancelled() {
                match self.take(session).await {
                    Ok(Some((session, message))) => self.turn(session, message).await,
                    Ok(None) => break,
                    Err(error) => {
                        tracing::error!(session, %error, "the queue can't be read");
                        break;
                    }
                }
            }
            let mut awake = self.awake();
            match awake.get_mut(&session) {
                Some(again @ LookAgain::Yes) if !self.inner.stopping.is_cancelled() => {
                    *again = LookAgain::No;
                }
                _ => {
                    awake.remove(&session);
                    return;
                }
            }
        }
    }

    async fn take(&self, session: u64) -> Result<Option<(Session, Message)>, StoreError> {
        self.inner
            .db
            .read(move |connection| {
                let Some(message) = messages::next(connection, session)? else {
                    return Ok(None);
                };
                let session = sessions::find(connection, session)?.ok_or_else(|| {
                    StoreError::Corrupt(format!("message of no session {session}"))
                })?;
                Ok(Some((session, message)))
            })
            .await
    }

    /// Runs one message from its start to its one end.
    async fn turn(&self, session: Session, message: Message) {
        let (id, started) = (message.id, std::time::Instant::now());
        let outcome = match self.start(&session, &message).await {
            Ok(Some(turn)) => {
                match message.purpose {
                    Purpose::Message => {
                        let end = turn.run(self.inbound(&session, &message)).await;
                        let closed = turn.close().await;
                        self.inner.turns.remove(&session.agent_id());
                        let outcome = self.or_cut(closed.outcome(&session.agent_id(), end));
                        self.end_carrying(&session, id, outcome).await;
                    }
                    Purpose::Compaction => self.compact(&session, &message, &turn).await,
                }
                tracing::debug!(turn = id, elapsed = ?started.elapsed(), "turn ended");
                return;
            }
            Ok(None) => return,
            Err(refusal) => match refusal {
                Refusal::OverLimit(text) => TurnOutcome {
                    finish_reason: "budget".into(),
                    ..TurnOutcome::failed(text, 429, false)
                },
                refusal => TurnOutcome::failed(refusal.to_string(), 500, true),
            },
        };
        self.end(id, outcome).await;
    }

    /// Runs a request for a summary, and lets the summary stand for the conversation when it ends well.
    async fn compact(&self, session: &Session, message: &Message, turn: &Turn) {
        let before = turn.handle.state().await;
        let end = turn.run(self.inbound(session, message)).await;
        let closed = turn.close().await;
        let mut outcome = self.or_cut(closed.outcome(&session.agent_id(), end));
        self.inner.turns.remove(&session.agent_id());
        let (id, number) = (message.id, session.id);
        let text = self
            .inner
            .db
            .read(move |connection| answer_text(connection, number, id))
            .await;
        let summary = match text {
            Ok(text) => text.trim().to_owned(),
            Err(error) => {
                outcome = TurnOutcome::failed(error.to_string(), 500, true);
                String::new()
            }
        };
        if outcome.error.is_empty() && summary.is_empty() {
            outcome = TurnOutcome::failed("the agent gave no summary", 500, true);
        }
        let compacted = outcome.error.is_empty();
        self.inner.metrics.turn_ended(&outcome.finish_reason);
        let written = self
            .insist(id, move |tx| {
                let ended = messages::end(tx, id, &outcome)?;
                if ended && compacted {
                    compactions::record(tx, number, id, &summary, &before)?;
                }
                Ok(ended && compacted)
            })
            .await;
        if written == Some(true)
            && let Err(error) = turn.handle.replace_state(Value::Null).await
        {
            tracing::error!(session = number, %error, "an agent's state was not replaced");
        }
    }

    /// Finds the message's agent and marks it as running; `None` when it no longer waits.
    async fn start(
        &self,
        session: &Session,
        message: &Message,
    ) -> Result<Option<Arc<Turn>>, Refusal> {
        // Known before its start can be read, so that whoever sees that can steer and cancel it.
        let prepared = self.prepare(session, message).await;
        if let Ok(turn) = &prepared {
            self.inner.turns.insert(session.agent_id(), turn.clone());
        }
        match (self.begin(session, message).await, prepared) {
            (Some(true), prepared) => prepared.map(Some),
            (Some(false) | None, _) => {
                self.inner.turns.remove(&session.agent_id());
                Ok(None)
            }
        }
    }

    async fn prepare(&self, session: &Session, message: &Message) -> Result<Arc<Turn>, Refusal> {
        let allowance = self.allowance(session).await?;
        let handle = self.inner.instances.of_session(session).await?;
        Ok(Arc::new(Turn::new(
            session.id, message.id, handle, allowance,
        )))
    }

    /// The message as its agent gets it.
    fn inbound(&self, session: &Session, message: &Message) -> InboundMessage {
        let text = match &session.preamble {
            Some(preamble) if !self.takes_lines(&session.agent) => {
                compactions::with_preamble(preamble, &message.text)
            }
            _ => message.text.clone(),
        };
        InboundMessage {
            id: format!("msg_{}", message.id).into(),
            data: MessageData {
                text,
                role: "user".into(),
                attachments: Vec::new(),
            },
            origin: Origin {
                tenant_id: String::new(),
                role: "user".into(),
                channel: message.channel.as_str().to_owned(),
            },
        }
    }

    /// Whether an agent takes each message for a line of its own, to run it.
    pub(crate) fn takes_lines(&self, agent: &str) -> bool {
        let config = self.inner.instances.config();
        let agent = config.agents.get(agent);
        agent.is_some_and(|agent| agent.program.takes_lines())
    }

    async fn begin(&self, session: &Session, message: &Message) -> Option<bool> {
        let (kept, agent) = (message.clone(), session.agent.clone());
        self.insist(message.id, move |tx| messages::begin(tx, &kept, &agent))
            .await
    }

    /// What the next turn may cost; refused when the day's budget is used up.
    async fn allowance(&self, session: &Session) -> Result<Option<Decimal>, Refusal> {
        let config = self.inner.instances.config();
        let Some(budget) = config.agents.get(&session.agent).map(|agent| agent.budget) else {
            return Ok(None);
        };
        let Some(limit) = budget.day else {
            return Ok(budget.turn);
        };
        let agent = session.agent.clone();
        let day = usage::day_of(jiff::Timestamp::now().as_microsecond());
        let spent = self
            .inner
            .db
            .read(move |connection| usage::of_agent_on(connection, &agent, &day))
            .await?;
        if spent >= limit {
            return Err(Refusal::OverLimit(format!(
                "agent {} has spent {spent} of its {limit} for today; raise agents.{}.budget.day or wait until tomorrow (UTC)",
                session.agent, session.agent
            )));
        }
        let left = limit - spent;
        Ok(Some(budget.turn.map_or(left, |turn| turn.min(left))))
    }

    /// Ends a turn whose message may have carried a summary. One that did not end well may have left
    /// its agent without it, so the next message carries it again.
    async fn end_carrying(&self, session: &Session, turn: u64, outcome: TurnOutcome) {
        let carried = session.preamble.clone();
        let carried = carried.filter(|_| outcome.error.is_empty());
        let number = session.id;
        self.inner.metrics.turn_ended(&outcome.finish_reason);
        self.insist(turn, move |tx| {
            if let Some(carried) = &carried {
                compactions::clear_preamble(tx, number, carried)?;
            }
            messages::end(tx, turn, &outcome)
        })
        .await;
    }

    async fn end(&self, turn: u64, outcome: TurnOutcome) {
        self.inner.metrics.turn_ended(&outcome.finish_reason);
        self.insist(turn, move |tx| messages::end(tx, turn, &outcome))
            .await;
    }

    /// Writes what begins or ends a turn, again and again while the disk does not take it: whoever
    /// waits for that would wait for ever. `None` when the daemon stops before; a turn that runs is
    /// reported as interrupted by the next start then.
    async fn insist<T: Send + 'static>(
        &self,
        turn: u64,
        write: impl Fn(&mut WriteTx<'_>) -> Result<T, StoreError> + Clone + Send + 'static,
    ) -> Option<T> {
        loop {
            match self.inner.db.write(write.clone()).await {
                Ok(written) => return Some(written),
                Err(StoreError::Closed) => return None,
                Err(error) => tracing::error!(turn, %error, "a turn waits for the database"),
            }
            tokio::select! {
                () = tokio::time::sleep(WRITE_AGAIN) => {}
                () = self.inner.stopping.cancelled() => return None,
            }
        }
    }
}

/// The text of a turn's answer.
fn answer_text(
    connection: &rusqlite::Connection,
    session: u64,
    turn: u64,
) -> Result<String, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, at, session, turn, kind, data FROM journal
         WHERE session = ? AND turn = ? ORDER BY seq",
    )?;
    let rows = statement.query_map(
        (session.cast_signed(), turn.cast_signed()),
        crate::journal::Row::from_sql,
    )?;
    rows.filter_map(|row| match row {
        Ok(row) => crate::stream::answer_text(&row).map(Ok),
        Err(error) => Some(Err(error.into())),
    })
    .collect()
}

/// The session that an instance serves.
pub(crate) fn session_of(agent_id: &AgentId) -> Option<u64> {
    agent_id.as_str().rsplit_once('-')?.1.parse().ok()
}

/// How a turn ended. What it said it had used counts also when it did not come to its completion.
fn outcome(agent_id: &str, end: TurnEnd, used: TokenUsage) -> TurnOutcome {
    match end {
        TurnEnd::Completed {
            finish_reason,
            usage,
        } => {
            let word = match &finish_reason {
                FinishReason::EndTurn => "end_turn",
                FinishReason::MaxTokens => "max_tokens",
                FinishReason::Cancelled => "cancelled",
                FinishReason::Error => "error",
                FinishReason::Budget => "budget",
                FinishReason::Other(word) => word,
            };
            let (error, code, retryable) = match finish_reason {
                FinishReason::Cancelled => ("the turn was cancelled".to_owned(), Some(409), true),
                FinishReason::Error => ("the agent reported an error".to_owned(), Some(500), true),
                FinishReason::Budget => ("the budget is used up".to_owned(), Some(429), false),
                _ => (String::new(), None, false),
            };
            TurnOutcome {
                finish_reason: word.to_owned(),
                error,
                code,
                retryable,
                usage: usage.unwrap_or(used),
                cut: false,
            }
        }
        TurnEnd::Failed { reason, detail } => {
            let (word, code, retryable) = match reason {
                FailReason::Cancelled => ("cancelled", 409, true),
                FailReason::KilledByUser | FailReason::Stopped => ("cancelled", 409, true),
                FailReason::BudgetExceeded => ("budget", 429, false),
                FailReason::TooLarge => ("error", 400, false),
                FailReason::BreakerOpen => ("error", 500, false),
                _ => ("error", 500, true),
            };
            let detail = match reason {
                FailReason::BreakerOpen => {
                    format!("{detail}; start it again with `quintet agent restart {agent_id}`")
                }
                FailReason::BadFrame | FailReason::StateRejected => {
                    format!("{detail}; see `quintet agent logs {agent_id}`")
                }
                _ => detail,
            };
            TurnOutcome {
                finish_reason: word.to_owned(),
                usage: used,
                ..TurnOutcome::failed(detail, code, retryable)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_breaker_is_no_case_for_a_retry_and_names_what_closes_it() {
        let end = TurnEnd::Failed {
            reason: FailReason::BreakerOpen,
            detail: "it crashed too often".to_owned(),
        };
        let outcome = outcome("py-1", end, TokenUsage::default());
        assert!(!outcome.retryable);
        assert!(outcome.error.contains("`quintet agent restart py-1`"));
    }
}
