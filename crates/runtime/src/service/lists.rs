//! Listings, reports and the configuration.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use quintet_agent::Phase;
use quintet_agent::logs::InstanceLog;
use quintet_agent::proto::message::Question as AgentQuestion;
use quintet_control::wire::{
    AgentInfo, AgentInstance, AgentList, Approval, ApprovalList, AskList, ConfigChange,
    JournalPruneMsg, JournalPruned, JournalReport, KindSize, PendingAsk, Pong, Question,
    QuestionOption, QueueList, QueuedMessage, SessionInfo, SessionList, Stats,
    journal_prune_msg::Keep,
};
use rusqlite::Connection;
use serde_json::json;

use crate::config::{Applies, Change, ConfigErrors, ConfigStore};
use crate::daemon::Runtime;
use crate::journal::{self, Bound, Entry, Kind, rfc3339};
use crate::refusal::Refusal;
use crate::sessions::{self, Session, Which, approvals, asks, messages, usage};

impl Runtime {
    pub(crate) async fn list_sessions(&self, closed_too: bool) -> Result<SessionList, Refusal> {
        let now = Timestamp::now().as_microsecond();
        let which = if closed_too { Which::All } else { Which::Open };
        let listed = self
            .db
            .read(move |connection| sessions::list(connection, which))
            .await?;
        Ok(SessionList {
            sessions: listed
                .into_iter()
                .map(|listed| SessionInfo {
                    worker: self.worker_of(&listed.session),
                    id: listed.session.id,
                    agent: listed.session.agent,
                    created_by: listed.session.created_by,
                    message_count: listed.messages,
                    alive_secs: seconds_between(listed.session.created_at, now),
                    active: listed.active,
                    title: listed.session.title,
                    workspace: listed.session.workspace,
                    cost: listed.cost.to_string(),
                    closed: listed.session.closed_at.is_some(),
                    queued: saturating_u32(listed.queued),
                })
                .collect(),
        })
    }

    pub(crate) async fn list_queue(&self, session: Option<u64>) -> Result<QueueList, Refusal> {
        let waiting = self
            .db
            .read(move |connection| {
                if let Some(session) = session {
                    sessions::open(connection, session)?;
                }
                Ok::<_, Refusal>(messages::listed(connection, session)?)
            })
            .await?;
        Ok(QueueList {
            messages: waiting
                .into_iter()
                .map(|(message, cut)| QueuedMessage {
                    id: message.id,
                    session: message.session,
                    text: message.text,
                    sender: message.sender,
                    at: rfc3339(message.at),
                    cut,
                })
                .collect(),
        })
    }

    pub(crate) async fn list_asks(&self) -> Result<AskList, Refusal> {
        let pending = self
            .db
            .read(|connection| asks::pending(connection, None))
            .await?;
        Ok(AskList {
            asks: pending
                .into_iter()
                .map(|ask| PendingAsk {
                    id: ask.id,
                    session: ask.session,
                    questions: ask.questions.into_iter().map(question).collect(),
                    at: rfc3339(ask.at),
                })
                .collect(),
        })
    }

    pub(crate) async fn list_approvals(&self) -> Result<ApprovalList, Refusal> {
        let pending = self.db.read(approvals::pending).await?;
        let file = self.config.file().display().to_string();
        Ok(ApprovalList {
            approvals: pending
                .into_iter()
                .map(|approval| Approval {
                    id: approval.id,
                    session: approval.session,
                    hash: approval.action.hash(),
                    rule_file: match approval.proposed.toml.as_str() {
                        "" => String::new(),
                        _ => file.clone(),
                    },
                    rule_place: approval.proposed.place(),
                    rule: approval.proposed.toml,
                    action: approval.action.action,
                    command: approval.action.command,
                    cwd: approval.action.cwd,
                    worker: approval.action.worker,
                    reason: match approval.left_over {
                        true => format!(
                            "{}; its turn was cut, after the answer `quintet retry {}` goes on",
                            approval.reason, approval.session
                        ),
                        false => approval.reason,
                    },
                    at: rfc3339(approval.at),
                })
                .collect(),
        })
    }

    pub(crate) async fn list_agents(&self) -> Result<AgentList, Refusal> {
        let open = self
            .db
            .read(|connection| sessions::list(connection, Which::Open))
            .await?;
        let agents = self.coordinator.instances().list();
        Ok(AgentList {
            agents: agents
                .into_iter()
                .map(|agent| {
                    let mut instances: Vec<AgentInstance> = agent
                        .instances
                        .into_iter()
                        .map(|(agent_id, status)| AgentInstance {
                            session: crate::turns::session_of(&agent_id),
                            agent_id: agent_id.into(),
                            state: status.phase.to_string(),
                            pid: status.pid,
                        })
                        .collect();
                    // What a session's instance left is there also when nothing has opened it yet.
                    for listed in &open {
                        let agent_id = listed.session.agent_id();
                        let is_new = instances.iter().all(|it| it.agent_id != agent_id);
                        if listed.session.agent == agent.name && is_new {
                            instances.push(AgentInstance {
                                session: Some(listed.session.id),
                                agent_id,
                                state: Phase::Terminated.to_string(),
                                pid: None,
                            });
                        }
                    }
                    instances.sort_by_key(|instance| instance.session);
                    AgentInfo {
                        name: agent.name,
                        kind: agent.kind.to_owned(),
                        description: agent.description,
                        instances,
                    }
                })
                .collect(),
        })
    }

    pub(super) async fn export_session(&self, session: u64) -> Result<String, Refusal> {
        let found = self
            .db
            .read(move |connection| {
                sessions::find(connection, session)?.ok_or_else(|| Refusal::no_session(session))
            })
            .await?;
        let state = self.coordinator.state(&found).await?;
        let export = self
            .db
            .read(move |connection| sessions::export(connection, session, state))
            .await?;
        serde_json::to_string(&export).map_err(|error| Refusal::Internal(error.to_string()))
    }

    pub(super) async fn restart_agent(&self, agent_id: &str) -> Result<u64, Refusal> {
        let session = self.session_of_instance(agent_id).await?;
        if session.closed_at.is_some() {
            return Err(Refusal::NotFound(format!(
                "session {} of {agent_id} is closed; start a new one to go on",
                session.id
            )));
        }
        let instances = self.coordinator.instances();
        let handle = instances.of_session(&session).await?;
        let data = json!({ "agent_id": agent_id, "reason": "restart asked for by the user" });
        let seq = self.db.append(vec![Entry::new(Kind::Note, &data)]).await?;
        handle.restart("user").await;
        Ok(seq)
    }

    /// The session that an instance serves or served.
    pub(super) async fn session_of_instance(&self, agent_id: &str) -> Result<Session, Refusal> {
        let found = match crate::turns::session_of(&agent_id.into()) {
            Some(id) => {
                let find = move |connection: &Connection| sessions::find(connection, id);
                self.db.read(find).await?
            }
            None => None,
        };
        found
            .filter(|session| session.agent_id() == agent_id)
            .ok_or_else(|| {
                Refusal::NotFound(format!(
                    "agent instance {agent_id:?} not found; `quintet agents` lists them"
                ))
            })
    }

    /// The log of an instance that is open, or what another one of its session left.
    ///
    /// To follow that of an open session, its instance is opened: what it logs next comes from there.
    pub(super) async fn instance_log(
        &self,
        agent_id: &str,
        follow: bool,
    ) -> Result<InstanceLog, Refusal> {
        let instances = self.coordinator.instances();
        let session = self.session_of_instance(agent_id).await?;
        if let Some(handle) = instances.find(agent_id) {
            return Ok(handle.log().clone());
        }
        let is_followed = follow && session.closed_at.is_none() && instances.knows(&session.agent);
        match is_followed {
            true => Ok(instances.of_session(&session).await?.log().clone()),
            false => Ok(instances.stored_log(&session)),
        }
    }

    pub(super) async fn journal_report(&self) -> Result<JournalReport, Refusal> {
        let report = journal::report(&self.db).await?;
        Ok(JournalReport {
            first_seq: report.first_seq,
            last_seq: report.last_seq,
            events: report.rows,
            bytes: report.bytes,
            oldest_at: report.oldest_at.map(rfc3339).unwrap_or_default(),
            newest_at: report.newest_at.map(rfc3339).unwrap_or_default(),
            kinds: report
                .kinds
                .into_iter()
                .map(|size| KindSize {
                    kind: size.kind,
                    events: size.rows,
                    bytes: size.bytes,
                })
                .collect(),
        })
    }

    pub(super) async fn journal_prune(
        &self,
        request: JournalPruneMsg,
    ) -> Result<JournalPruned, Refusal> {
        let bound = match request.keep {
            Some(Keep::BeforeSeq(seq)) => Bound::BelowSeq(seq),
            Some(Keep::OlderThanSecs(secs)) => {
                let age = SignedDuration::from_secs(i64::try_from(secs).unwrap_or(i64::MAX));
                Bound::OlderThan(
                    Timestamp::now()
                        .checked_sub(age)
                        .map_err(|_| Refusal::Bad(format!("{secs} seconds ago is no date")))?,
                )
            }
            None => {
                return Err(Refusal::Bad(
                    "say what to remove: events below a number, or older than an age".into(),
                ));
            }
        };
        let pruned = journal::prune(&self.db, bound).await?;
        Ok(JournalPruned {
            events: pruned.removed,
            bytes: pruned.bytes,
            first_seq: pruned.first_seq,
        })
    }

    pub(crate) async fn stats(&self) -> Result<Stats, Refusal> {
        let counts = self.counts().await?;
        Ok(Stats {
            uptime_secs: self.started.elapsed().as_secs(),
            active_sessions: saturating_u32(counts.sessions),
            registered_agents: saturating_u32(self.coordinator.instances().list().len() as u64),
            workers: u32::try_from(self.workers.online()).unwrap_or(u32::MAX),
            cost: counts.cost.to_string(),
            version: self.version.to_owned(),
            journal_bytes: counts.journal_bytes,
            journal_seq: self.db.tail().head(),
            connections: saturating_u32(self.metrics.control_connections.get().unsigned_abs()),
            queued: saturating_u32(counts.queued),
            pending_asks: saturating_u32(counts.asks),
            pending_approvals: saturating_u32(counts.approvals),
            pid: std::process::id(),
        })
    }

    /// Counts what there is, for `stats` and for `/metrics`.
    pub(crate) async fn counts(&self) -> Result<Counts, Refusal> {
        self.db
            .read(|connection| {
                let number = |sql: &str| -> Result<u64, Refusal> {
                    let count: i64 = connection.query_row(sql, [], |row| row.get(0))?;
                    Ok(count.cast_unsigned())
                };
                Ok(Counts {
                    sessions: number("SELECT count(*) FROM sessions WHERE closed_at IS NULL")?,
                    queued: number("SELECT count(*) FROM messages WHERE state = 'queued'")?,
                    asks: number("SELECT count(*) FROM asks WHERE state = 'pending'")?,
                    approvals: number("SELECT count(*) FROM approvals WHERE state = 'pending'")?,
                    journal_bytes: number(
                        "SELECT page_count * page_size
                         FROM pragma_page_count(), pragma_page_size()",
                    )?,
                    cost: usage::total(connection)?,
                })
            })
            .await
    }

    /// Changes the configuration, says what changed in the journal, tells running agents.
    pub(super) async fn change_config(
        &self,
        change: impl FnOnce(&ConfigStore) -> Result<Vec<Change>, ConfigErrors> + Send + 'static,
    ) -> Result<Vec<Change>, Refusal> {
        let old = self.config.current();
        let store = Arc::clone(&self.config);
        let changes = tokio::task::spawn_blocking(move || change(&store))
            .await
            .map_err(|error| Refusal::Internal(error.to_string()))?
            .map_err(|errors| Refusal::Bad(errors.to_string()))?;
        if changes.is_empty() {
            return Ok(changes);
        }
        let list: Vec<_> = changes
            .iter()
            .map(|change| {
                json!({
                    "key": change.key.to_string(),
                    "from": change.from,
                    "to": change.to,
                    "applies": match change.applies {
                        Applies::Now => "now",
                        Applies::AtRestart => "at_restart",
                    },
                })
            })
            .collect();
        let data = json!({ "changes": list });
        self.db
            .append(vec![Entry::new(Kind::ConfigChanged, &data)])
            .await?;
        let new = self.config.current();
        self.workers.configure(&new.sandbox);
        self.coordinator.apply(&old, &new).await;
        Ok(changes)
    }
}

/// What became different, for the client that asked for it.
pub(super) fn changed(changes: Vec<Change>) -> Pong {
    let json = |value: Option<serde_json::Value>| value.map(|it| it.to_string());
    let changed = changes.into_iter().map(|change| ConfigChange {
        key: change.key.to_string(),
        from: json(change.from).unwrap_or_default(),
        to: json(change.to).unwrap_or_default(),
        at_restart: change.applies == Applies::AtRestart,
    });
    Pong {
        changed: changed.collect(),
    }
}

/// What there is.
pub(crate) struct Counts {
    pub(crate) sessions: u64,
    pub(crate) queued: u64,
    pub(crate) asks: u64,
    pub(crate) approvals: u64,
    pub(crate) journal_bytes: u64,
    pub(crate) cost: rust_decimal::Decimal,
}

fn question(question: AgentQuestion) -> Question {
    Question {
        question: question.question,
        header: question.header,
        options: question
            .options
            .into_iter()
            .map(|option| QuestionOption {
                label: option.label,
                description: option.description,
            })
            .collect(),
        multi_select: question.multi_select,
    }
}

fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn seconds_between(from: i64, to: i64) -> u64 {
    u64::try_from((to - from) / 1_000_000).unwrap_or(0)
}
