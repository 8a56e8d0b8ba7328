//! What agents say, recorded before they can say more.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use quintet_agent::proto::message::{AgentId, ApprovalResult, InboundMessage};
use quintet_agent::{
    CancelCause, InstanceEvent, InstanceHandle, Observer, Phase, Steered, TokenUsage, TurnEnd,
};
use rust_decimal::Decimal;
use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard, Notify, watch};
use tokio_util::sync::CancellationToken;

use super::Recorder;
use crate::config::Config;
use crate::journal::{Entry, Kind};
use crate::models::larger;
use crate::policy::{self, Because, Isolation, Subject};
use crate::refusal::Refusal;
use crate::sessions;
use crate::sessions::approvals::{self, Action, ProposedRules, Requested};
use crate::sessions::asks::{self, Opened};
use crate::sessions::messages::{self, Purpose, TurnOutcome};
use crate::store::{Appending, Db, StoreError};

/// Batches of one turn that may be on their way to the disk while the agent is read on. Clients are
/// told by the journal, hence after the disk, so reading ahead tells nobody anything early.
const MAX_IN_FLIGHT: usize = 4;

/// More batches may be on their way while they are no longer than this together: what is there when
/// a commit begins goes with it, and each commit waits for the disk once.
const MAX_BYTES_IN_FLIGHT: usize = 1024 * 1024;

/// What a turn is told whose rows the database refused.
const NOT_WRITTEN: &str = "what the agent said could not be written";

/// How long a question waits for the agent's own word of the call that asks it.
const ANNOUNCED: Duration = Duration::from_secs(1);

/// A turn that runs.
pub(crate) struct Turn {
    session: u64,
    pub(crate) id: u64,
    pub(crate) handle: InstanceHandle,
    /// What the turn may cost.
    allowance: Option<Decimal>,
    /// Held while rows of the turn are written, so that none follows its end.
    gate: AsyncMutex<Gate>,
    /// Told of when something of the agent was recorded.
    recorded: Notify,
    cancelled: CancellationToken,
    ended: CancellationToken,
}

pub(crate) struct Gate {
    open: bool,
    recorder: Recorder,
    /// What the agent said that the turn has used so far.
    used: TokenUsage,
    /// What the gateway metered of the turn's model calls.
    metered: TokenUsage,
    /// Rows that are on their way to the disk, oldest first, with their length.
    in_flight: VecDeque<(Appending, usize)>,
    bytes_in_flight: usize,
    /// Why something of the turn is not in the journal.
    lost: Option<StoreError>,
    /// What was said in it that is to be said once.
    remarks: BTreeSet<String>,
}

impl Gate {
    /// How the turn ended, with everything that it used.
    pub(super) fn outcome(&self, agent_id: &str, end: TurnEnd) -> TurnOutcome {
        let mut outcome = super::outcome(agent_id, end, self.used);
        outcome.usage = larger(&outcome.usage, &self.metered);
        match &self.lost {
            None => outcome,
            Some(error) => TurnOutcome {
                usage: outcome.usage,
                ..TurnOutcome::failed(format!("{NOT_WRITTEN}: {error}"), 500, true)
            },
        }
    }

    fn spent(&self) -> Decimal {
        self.used.cost.max(self.metered.cost)
    }

    /// Sends rows to the disk without waiting for them, unless too many batches are on their way.
    async fn append(&mut self, db: &Db, rows: Vec<Entry>) -> Result<(), StoreError> {
        if rows.is_empty() {
            return Ok(());
        }
        let bytes = rows.iter().map(|row| row.data.len()).sum();
        while self.in_flight.len() >= MAX_IN_FLIGHT
            && self.bytes_in_flight + bytes > MAX_BYTES_IN_FLIGHT
        {
            self.settle_oldest().await?;
        }
        self.in_flight
            .push_back((db.start_append(rows).await?, bytes));
        self.bytes_in_flight += bytes;
        Ok(())
    }

    async fn settle_oldest(&mut self) -> Result<(), StoreError> {
        if let Some((oldest, bytes)) = self.in_flight.pop_front() {
            self.bytes_in_flight -= bytes;
            oldest.durable().await?;
        }
        Ok(())
    }

    /// Waits until everything that was sent is durable.
    async fn settle(&mut self) -> Result<(), StoreError> {
        while !self.in_flight.is_empty() {
            self.settle_oldest().await?;
        }
        Ok(())
    }
}

impl Turn {
    pub(crate) fn new(
        session: u64,
        id: u64,
        handle: InstanceHandle,
        allowance: Option<Decimal>,
    ) -> Self {
        Self {
            session,
            id,
            handle,
            allowance,
            gate: AsyncMutex::new(Gate {
                open: true,
                recorder: Recorder::new(session, id),
                used: TokenUsage::default(),
                metered: TokenUsage::default(),
                in_flight: VecDeque::new(),
                bytes_in_flight: 0,
                lost: None,
                remarks: BTreeSet::new(),
            }),
            recorded: Notify::new(),
            cancelled: CancellationToken::new(),
            ended: CancellationToken::new(),
        }
    }

    /// Hands the message to the agent and waits for its end.
    pub(crate) async fn run(&self, message: InboundMessage) -> TurnEnd {
        let run = self.handle.run(message);
        tokio::pin!(run);
        tokio::select! {
            // First, so that the message is on its way before it can be cancelled.
            biased;
            end = &mut run => end,
            () = self.cancelled.cancelled() => {
                self.handle.cancel().await;
                run.await
            }
        }
    }

    /// Asks the agent to stop, also when it has not got the message yet.
    pub(crate) fn cancel(&self) {
        self.cancelled.cancel();
    }

    /// Guides the agent, once it has the message.
    pub(crate) async fn steer(&self, content: &str) -> Steered {
        if self.handle.steer(content).await == Steered::Delivered {
            return Steered::Delivered;
        }
        tokio::select! {
            () = self.ended.cancelled() => Steered::NotRunning,
            _ = self.handle.wait_for(|status| status.phase == Phase::Running) => {
                self.handle.steer(content).await
            }
        }
    }

    /// Waits until it is over.
    pub(crate) async fn over(&self) {
        self.ended.cancelled().await;
    }

    /// Waits until the agent's own word of a call is in the journal: it comes on another connection
    /// than the call, and what a person is asked because of the call belongs behind it. An agent
    /// that does not say it is not waited for long.
    pub(crate) async fn announced(&self, call_id: &str) {
        let said = async {
            loop {
                let more = self.recorded.notified();
                if self.gate.lock().await.recorder.is_pending(call_id) {
                    return;
                }
                more.await;
            }
        };
        let _ = tokio::time::timeout(ANNOUNCED, said).await;
    }

    /// Writes a row of the turn; of its session when the turn is over.
    pub(crate) async fn note(&self, db: &Db, entry: Entry) -> Result<(), StoreError> {
        let mut gate = self.gate.lock().await;
        if !gate.open {
            return db
                .append(vec![entry.in_session(self.session)])
                .await
                .map(drop);
        }
        gate.append(db, vec![entry.in_turn(self.session, self.id)])
            .await?;
        gate.settle().await
    }

    /// Lets no further row of the turn through; what was being written is written first.
    pub(crate) async fn close(&self) -> AsyncMutexGuard<'_, Gate> {
        let mut gate = self.gate.lock().await;
        if let Err(error) = gate.settle().await {
            tracing::error!(turn = self.id, %error, "{NOT_WRITTEN}");
            gate.lost = Some(error);
        }
        gate.open = false;
        self.ended.cancel();
        gate
    }
}

/// The running turns, by the agent instance that works on them.
#[derive(Default)]
pub(crate) struct OpenTurns {
    /// Held to look up and insert, never across an await.
    turns: Mutex<HashMap<String, Arc<Turn>>>,
    /// Makes somebody look at a session's queue.
    waker: OnceLock<Waker>,
}

type Waker = Box<dyn Fn(u64) + Send + Sync>;

impl OpenTurns {
    /// Says who looks at a session's queue when something is put there from here.
    pub(super) fn wakes(&self, waker: impl Fn(u64) + Send + Sync + 'static) {
        // There is one coordinator, and it does this once.
        let _ = self.waker.set(Box::new(waker));
    }

    fn wake(&self, session: u64) {
        if let Some(waker) = self.waker.get() {
            waker(session);
        }
    }

    pub(super) fn insert(&self, agent_id: String, turn: Arc<Turn>) {
        self.lock().insert(agent_id, turn);
    }

    pub(super) fn remove(&self, agent_id: &str) {
        self.lock().remove(agent_id);
    }

    pub(super) fn of_session(&self, session: u64) -> Option<Arc<Turn>> {
        self.lock()
            .values()
            .find(|turn| turn.session == session)
            .cloned()
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// What the turn of an instance has cost so far.
    pub(crate) async fn spent_by(&self, agent_id: &str) -> Decimal {
        let turn = self.lock().get(agent_id).cloned();
        match turn {
            Some(turn) => turn.gate.lock().await.spent(),
            None => Decimal::ZERO,
        }
    }

    /// What the open turns of all instances of an agent have cost so far.
    pub(crate) async fn spent_by_agent(&self, agent: &str) -> Decimal {
        let turns: Vec<Arc<Turn>> = self
            .lock()
            .iter()
            .filter(|(agent_id, _)| super::agent_of(&agent_id.as_str().into()) == agent)
            .map(|(_, turn)| Arc::clone(turn))
            .collect();
        let mut sum = Decimal::ZERO;
        for turn in turns {
            sum = sum.saturating_add(turn.gate.lock().await.spent());
        }
        sum
    }

    /// Says a text in the turn that an instance works on, the first time that it comes with its key.
    pub(crate) async fn remark(
        &self,
        db: &Db,
        agent: &AgentId,
        (key, text): (String, String),
    ) -> Result<(), StoreError> {
        let Some(turn) = self.of_agent(agent) else {
            return Ok(());
        };
        if !turn.gate.lock().await.remarks.insert(key) {
            return Ok(());
        }
        let entry = Entry::new(Kind::Note, &json!({ "text": text }));
        turn.note(db, entry).await
    }

    /// Adds what a model call used to the turn that an instance works on; false when there is none.
    pub(crate) async fn meter(
        &self,
        db: &Db,
        agent: &AgentId,
        used: &TokenUsage,
        call: &serde_json::Value,
    ) -> Result<bool, StoreError> {
        let Some(turn) = self.of_agent(agent) else {
            return Ok(false);
        };
        let mut gate = turn.gate.lock().await;
        if !gate.open {
            return Ok(false);
        }
        gate.metered.add(used);
        let so_far = larger(&gate.used, &gate.metered);
        let mut data = serde_json::to_value(so_far).unwrap_or_default();
        data["call"] = call.clone();
        let row = Entry::new(Kind::Usage, &data).in_turn(turn.session, turn.id);
        gate.append(db, vec![row]).await?;
        gate.settle().await?;
        Ok(true)
    }

    pub(super) fn of_agent(&self, agent: &AgentId) -> Option<Arc<Turn>> {
        self.lock().get(agent.as_str()).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Turn>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what agents say to the journal.
pub(crate) struct TurnObserver {
    db: Db,
    turns: Arc<OpenTurns>,
    config: watch::Receiver<Arc<Config>>,
}

impl TurnObserver {
    pub(crate) fn new(db: Db, turns: Arc<OpenTurns>, config: watch::Receiver<Arc<Config>>) -> Self {
        Self { db, turns, config }
    }

    async fn record(
        &self,
        agent: &AgentId,
        mut batch: Vec<InstanceEvent>,
    ) -> Result<(), StoreError> {
        let state = state_row(agent, &mut batch);
        let Some(turn) = self.turns.of_agent(agent) else {
            return self.note_all(agent, None, batch, state).await;
        };
        let mut gate = turn.gate.lock().await;
        if !gate.open {
            return self.note_all(agent, Some(&turn), batch, state).await;
        }
        let mut rows = Vec::new();
        let mut elements = Vec::new();
        for event in batch {
            if let InstanceEvent::Element {
                output_id, element, ..
            } = event
            {
                elements.push((output_id, element));
                continue;
            }
            rows.extend(gate.recorder.record(elements.drain(..)));
            match event {
                InstanceEvent::AskUser { ask_id, questions } => {
                    gate.append(&self.db, std::mem::take(&mut rows)).await?;
                    let (session, id) = (turn.session, turn.id);
                    let key = ask_id.clone();
                    let opened = self
                        .db
                        .write(move |tx| asks::open(tx, session, id, &key, &questions))
                        .await?;
                    if let Opened::Answered(outcome) = opened {
                        turn.handle.answer_ask(ask_id, outcome).await;
                    }
                }
                InstanceEvent::SteerUnread { content } => {
                    gate.append(&self.db, std::mem::take(&mut rows)).await?;
                    self.requeue(turn.session, content).await?;
                }
                event @ InstanceEvent::ApprovalRequest { .. } => {
                    gate.append(&self.db, std::mem::take(&mut rows)).await?;
                    self.request_approval(agent, &turn, event).await?;
                }
                InstanceEvent::Usage(used) => {
                    let before = larger(&gate.used, &gate.metered);
                    gate.used = used;
                    let so_far = larger(&used, &gate.metered);
                    // What the gateway metered has its row already.
                    if so_far != before {
                        let row = Entry::new(Kind::Usage, &so_far);
                        rows.push(row.in_turn(turn.session, turn.id));
                    }
                    if turn
                        .allowance
                        .is_some_and(|allowance| used.cost >= allowance)
                    {
                        turn.handle.cancel_for(CancelCause::Budget).await;
                    }
                }
                event => rows.extend(note(agent, Some(&turn), event)),
            }
        }
        rows.extend(gate.recorder.record(elements));
        rows.extend(state.map(|row| row.in_turn(turn.session, turn.id)));
        let appended = gate.append(&self.db, rows).await;
        turn.recorded.notify_waiters();
        appended
    }

    /// Records what is not output, outside of a turn.
    async fn note_all(
        &self,
        agent: &AgentId,
        turn: Option<&Turn>,
        batch: Vec<InstanceEvent>,
        state: Option<Entry>,
    ) -> Result<(), StoreError> {
        let mut rows = Vec::new();
        rows.extend(state.map(|row| match super::session_of(agent) {
            Some(session) => row.in_session(session),
            None => row,
        }));
        for event in batch {
            match (event, super::session_of(agent)) {
                (InstanceEvent::SteerUnread { content }, Some(session)) => {
                    self.requeue(session, content).await?;
                }
                (event, _) => rows.extend(note(agent, turn, event)),
            }
        }
        if !rows.is_empty() {
            self.db.append(rows).await?;
        }
        Ok(())
    }

    /// Makes a message of guidance that came too late for its turn.
    async fn requeue(&self, session: u64, content: String) -> Result<(), StoreError> {
        let queued = self
            .db
            .write(move |tx| -> Result<(), Refusal> {
                let found = sessions::open(tx.sql(), session)?;
                let (sender, channel) = messages::origin_of_steer(tx.sql(), session, &content)?;
                let purpose = Purpose::Message;
                messages::enqueue(tx, &found, &sender, channel, &content, purpose).map(drop)
            })
            .await;
        match queued {
            Ok(()) => self.turns.wake(session),
            // The session is closed or its queue full: nobody is left to hear it.
            Err(refusal) => {
                tracing::warn!(session, %refusal, "guidance that came too late is lost");
            }
        }
        Ok(())
    }

    async fn request_approval(
        &self,
        agent: &AgentId,
        turn: &Turn,
        event: InstanceEvent,
    ) -> Result<(), StoreError> {
        let InstanceEvent::ApprovalRequest {
            request_id,
            action,
            command,
            cwd,
            reason,
        } = event
        else {
            return Ok(());
        };
        let action = Action {
            action,
            command: command.unwrap_or_default(),
            cwd: cwd.unwrap_or_default(),
            worker: String::new(),
        };
        let (session, id, key) = (turn.session, turn.id, request_id.clone());
        let rules = self.config.borrow().policy.rules.clone();
        let asked = own_request(agent, session, &action);
        let decision = policy::decide(&rules, &asked).decision;
        let answer = match (&decision.because, decision.action) {
            (Because::Rule(_), policy::Action::Allow) => Some(true),
            (Because::Rule(_), policy::Action::Deny) => Some(false),
            _ => None,
        };
        if let Some(approved) = answer {
            let why = decision.explain(&rules);
            let row = approvals::decided_by_rule(session, id, &action, approved, &why);
            self.db.append(vec![row]).await?;
            let result = ApprovalResult {
                request_id,
                approved,
                reason: Some(why),
                by: Some(approvals::BY_POLICY.into()),
                scope: Some("rule".into()),
            };
            turn.handle.answer_approval(result).await;
            return Ok(());
        }
        let proposed = ProposedRules::of(&rules, &asked);
        let reason = reason.unwrap_or_default();
        let requested = self
            .db
            .write(move |tx| approvals::request(tx, session, id, &key, &action, &reason, &proposed))
            .await?;
        let result = match requested {
            Requested::Pending(_) => None,
            Requested::Granted { by } => Some(ApprovalResult {
                request_id,
                approved: true,
                reason: None,
                by: Some(by),
                scope: Some("session".into()),
            }),
            Requested::Answered(decision) => Some(decision.told_to(request_id)),
        };
        if let Some(result) = result {
            turn.handle.answer_approval(result).await;
        }
        Ok(())
    }
}

/// What an agent asks leave for by itself. Nothing is known of what would keep it in the
/// workspace, so that where no rule matches a person is asked.
pub(super) fn own_request<'a>(
    agent: &'a AgentId,
    session: u64,
    action: &'a Action,
) -> policy::Request<'a> {
    policy::Request {
        tool: &action.action,
        agent: super::agent_of(agent),
        session,
        worker: "",
        subject: match action.command.as_str() {
            "" => Subject::External { network: true },
            line => Subject::Command {
                line,
                root: &action.cwd,
                copy: None,
                cwd: "",
                isolation: Isolation::Open,
            },
        },
    }
}

impl Observer for TurnObserver {
    async fn observe(&self, agent: &AgentId, batch: Vec<InstanceEvent>) {
        let Err(error) = self.record(agent, batch).await else {
            return;
        };
        tracing::error!(%agent, %error, "{NOT_WRITTEN}");
        // Nothing that is not in the journal may follow, and an answer with a hole is none.
        if let Some(turn) = self.turns.of_agent(agent) {
            turn.gate.lock().await.lost.get_or_insert(error);
            turn.cancel();
        }
    }
}

/// Takes the changes of state out of a batch: one row for all of them. It says how many there are
/// and never what they hold, which may be a secret.
fn state_row(agent: &AgentId, batch: &mut Vec<InstanceEvent>) -> Option<Entry> {
    let (mut patches, mut last) = (0, None);
    batch.retain(|event| match event {
        InstanceEvent::StateApplied {
            patches: list,
            revision,
        } => {
            patches += list.len();
            last = Some(*revision);
            false
        }
        _ => true,
    });
    let data = json!({ "agent_id": agent.as_str(), "patches": patches, "revision": last? });
    Some(Entry::new(Kind::AgentState, &data))
}

/// The row of an event that is not output.
fn note(agent: &AgentId, turn: Option<&Turn>, event: InstanceEvent) -> Option<Entry> {
    let (kind, data) = match event {
        InstanceEvent::Phase { from, to, reason } => (
            Kind::AgentPhase,
            json!({
                "agent_id": agent.as_str(),
                "from": from.to_string(),
                "to": to.to_string(),
                "reason": reason,
            }),
        ),
        InstanceEvent::StateRejected { reason } => (
            Kind::AgentStateRejected,
            json!({ "agent_id": agent.as_str(), "reason": reason }),
        ),
        InstanceEvent::Stalled { waiting_for, since } => (
            Kind::AgentStalled,
            json!({
                "agent_id": agent.as_str(),
                "waiting_for": waiting_for.to_string(),
                "since": since.to_string(),
            }),
        ),
        InstanceEvent::Log(_)
        | InstanceEvent::StateApplied { .. }
        | InstanceEvent::Usage(_)
        | InstanceEvent::Element { .. }
        | InstanceEvent::SteerUnread { .. }
        | InstanceEvent::AskUser { .. }
        | InstanceEvent::ApprovalRequest { .. } => return None,
    };
    let entry = Entry::new(kind, &data);
    let session = turn
        .map(|turn| turn.session)
        .or_else(|| super::session_of(agent));
    Some(match session {
        Some(session) => entry.in_session(session),
        None => entry,
    })
}
