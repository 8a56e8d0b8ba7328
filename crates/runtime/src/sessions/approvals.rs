//! Approvals: durable, bound to the exact action, answered once.
//!
//! One that waits when the daemon stops is left over: it goes on waiting, and can be answered. When
//! the session asks for the same action again, as a retry of the turn does, it gets that approval,
//! or the answer that was given to it meanwhile. When a turn of the session ends without asking, it
//! is withdrawn.

use quintet_agent::proto::message::ApprovalResult;
use rusqlite::{Connection, OptionalExtension, Row as SqlRow};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::waiting::Waiting;
use crate::journal::{Entry, Kind};
use crate::policy::{self, Rule};
use crate::refusal::Refusal;
use crate::store::{StoreError, WriteTx};

/// Who answers for a rule.
pub const BY_POLICY: &str = "policy";

/// What somebody is asked to approve. All of it is what an approval is bound to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Action {
    /// What would be done, in a word or a sentence.
    pub action: String,
    /// The exact command, where it is one.
    pub command: String,
    /// The folder it would run in.
    pub cwd: String,
    /// The worker it would run on.
    pub worker: String,
}

impl Action {
    /// The same for equal actions and no others: the parts are kept apart by their lengths.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for part in [&self.action, &self.command, &self.cwd, &self.worker] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect()
    }
}

/// What the answer "always" would write into `[policy]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProposedRules {
    /// Inline tables with commas between; empty when no rule can say it.
    pub toml: String,
    /// The rule that they have to stand before to be reached; empty is the end.
    pub before: String,
}

impl ProposedRules {
    /// What is proposed for a request that asks.
    pub fn of(rules: &[Rule], request: &policy::Request<'_>) -> Self {
        let Some(proposal) = policy::propose(rules, request) else {
            return Self::default();
        };
        let shown: Vec<String> = proposal.rules.iter().map(Rule::to_toml).collect();
        let before = proposal.before.and_then(|index| rules.get(index));
        Self {
            toml: shown.join(",\n"),
            before: before.map(Rule::to_toml).unwrap_or_default(),
        }
    }

    /// Where they would stand, in words.
    pub fn place(&self) -> String {
        match (self.toml.as_str(), self.before.as_str()) {
            ("", _) => String::new(),
            (_, "") => "at the end of [policy] rules".to_owned(),
            (_, before) => format!("in [policy] rules, before {before}"),
        }
    }
}

/// How far a yes reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// This once.
    Once,
    /// The same action again in this session.
    Session,
    /// Whatever the rule says that was written.
    Rule,
}

impl Scope {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Session => "session",
            Self::Rule => "rule",
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "session" => Self::Session,
            "rule" => Self::Rule,
            _ => Self::Once,
        }
    }
}

/// An approval that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Approval {
    /// Its number.
    pub id: u64,
    /// The session that asks.
    pub session: u64,
    /// The turn that waits.
    pub turn: u64,
    /// The agent's own name for it.
    pub key: String,
    /// What it is for.
    pub action: Action,
    /// Why it is asked about.
    pub reason: String,
    /// What the answer "always" would write.
    pub proposed: ProposedRules,
    /// Microseconds since 1970.
    pub at: i64,
    /// The daemon stopped under its turn; it waits until the same is asked again.
    pub left_over: bool,
}

const COLUMNS: &str = "id, session, turn, key, action, command, cwd, worker, reason, at, rule, rule_before, left_over";

impl Approval {
    fn from_sql(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get::<_, i64>(0)?.cast_unsigned(),
            session: row.get::<_, i64>(1)?.cast_unsigned(),
            turn: row.get::<_, i64>(2)?.cast_unsigned(),
            key: row.get(3)?,
            action: Action {
                action: row.get(4)?,
                command: row.get(5)?,
                cwd: row.get(6)?,
                worker: row.get(7)?,
            },
            reason: row.get(8)?,
            at: row.get(9)?,
            proposed: ProposedRules {
                toml: row.get(10)?,
                before: row.get(11)?,
            },
            left_over: row.get(12)?,
        })
    }
}

/// What became of a request for approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Requested {
    /// It waits for a person.
    Pending(u64),
    /// The same action was approved for the session before, by this person.
    Granted {
        /// Who did.
        by: String,
    },
    /// It was answered after the turn that first asked was cut.
    Answered(Decision),
}

/// Records a request of a running turn, or finds that the session has leave already.
pub fn request(
    tx: &mut WriteTx<'_>,
    session: u64,
    turn: u64,
    key: &str,
    action: &Action,
    reason: &str,
    proposed: &ProposedRules,
) -> Result<Requested, StoreError> {
    let bound_to = action.hash();
    let granted: Option<Option<String>> = tx
        .sql()
        .prepare_cached(
            "SELECT by FROM approvals
             WHERE session = ? AND bound_to = ? AND scope = 'session' AND state = 'approved'",
        )?
        .query_row((session.cast_signed(), &bound_to), |row| row.get(0))
        .optional()?;
    let mut data = json!({
        "action": action.action,
        "command": action.command,
        "cwd": action.cwd,
        "worker": action.worker,
        "reason": reason,
        "hash": bound_to,
    });
    if let Some(by) = granted {
        let by = by.unwrap_or_default();
        data["approved"] = true.into();
        data["scope"] = "session".into();
        data["by"] = by.clone().into();
        tx.append(Entry::new(Kind::ApprovalAnswered, &data).in_turn(session, turn))?;
        return Ok(Requested::Granted { by });
    }
    if let Some((id, decision)) = left_over(tx.sql(), session, &bound_to)? {
        tx.sql()
            .prepare_cached(
                "UPDATE approvals SET left_over = 0, turn = ?, key = ?, rule = ?, rule_before = ?
                 WHERE id = ?",
            )?
            .execute((
                turn.cast_signed(),
                key,
                &proposed.toml,
                &proposed.before,
                id.cast_signed(),
            ))?;
        let Some(decision) = decision else {
            return announce(tx, session, turn, id, proposed, data);
        };
        data["approved"] = decision.approved.into();
        data["scope"] = decision.scope.as_str().into();
        data["by"] = decision.by.as_str().into();
        tx.append(Entry::new(Kind::ApprovalAnswered, &data).in_turn(session, turn))?;
        return Ok(Requested::Answered(decision));
    }
    let now = tx.now();
    tx.sql()
        .prepare_cached(
            "INSERT INTO approvals
                 (session, turn, key, action, command, cwd, worker, reason, bound_to, at, rule,
                  rule_before, state)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending')",
        )?
        .execute((
            session.cast_signed(),
            turn.cast_signed(),
            key,
            &action.action,
            &action.command,
            &action.cwd,
            &action.worker,
            reason,
            bound_to,
            now,
            &proposed.toml,
            &proposed.before,
        ))?;
    let id = tx.sql().last_insert_rowid().cast_unsigned();
    announce(tx, session, turn, id, proposed, data)
}

fn announce(
    tx: &mut WriteTx<'_>,
    session: u64,
    turn: u64,
    id: u64,
    proposed: &ProposedRules,
    mut data: Value,
) -> Result<Requested, StoreError> {
    data["approval"] = id.into();
    data["rule"] = proposed.toml.as_str().into();
    data["rule_place"] = proposed.place().into();
    tx.append(Entry::new(Kind::ApprovalRequested, &data).in_turn(session, turn))?;
    Ok(Requested::Pending(id))
}

/// The approval of an action that was left over, and what it was answered with.
fn left_over(
    connection: &Connection,
    session: u64,
    bound_to: &str,
) -> Result<Option<(u64, Option<Decision>)>, StoreError> {
    let found = connection
        .prepare_cached(
            "SELECT id, state, scope, note, by FROM approvals
             WHERE session = ? AND left_over = 1 AND bound_to = ? ORDER BY id LIMIT 1",
        )?
        .query_row((session.cast_signed(), bound_to), |row| {
            let state: String = row.get(1)?;
            let decision = match state.as_str() {
                "approved" | "denied" => Some(Decision {
                    approved: state == "approved",
                    scope: Scope::from_name(row.get_ref(2)?.as_str()?),
                    note: row.get::<_, Option<String>>(3)?.unwrap_or_default(),
                    by: row.get::<_, Option<String>>(4)?.unwrap_or_default(),
                    rule: String::new(),
                }),
                _ => None,
            };
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), decision))
        })
        .optional()?;
    Ok(found)
}

/// The row of an action that a rule decided, so that nobody was asked.
pub fn decided_by_rule(
    session: u64,
    turn: u64,
    action: &Action,
    approved: bool,
    why: &str,
) -> Entry {
    let data = json!({
        "action": action.action,
        "command": action.command,
        "cwd": action.cwd,
        "worker": action.worker,
        "approved": approved,
        "scope": "rule",
        "reason": why,
        "by": BY_POLICY,
        "hash": action.hash(),
    });
    Entry::new(Kind::ApprovalAnswered, &data).in_turn(session, turn)
}

/// Every approval that waits, oldest first.
pub fn pending(connection: &Connection) -> Result<Vec<Approval>, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM approvals WHERE state = 'pending' ORDER BY id"
    ))?;
    let rows = statement.query_map([], Approval::from_sql)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The approval of that number, if it still waits.
pub fn waiting(connection: &Connection, id: u64) -> Result<Approval, Refusal> {
    let found = connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS}, state, by FROM approvals WHERE id = ?"
        ))?
        .query_row([id.cast_signed()], |row| {
            Ok((
                Approval::from_sql(row)?,
                row.get::<_, String>(13)?,
                row.get::<_, Option<String>>(14)?,
            ))
        })
        .optional()?;
    match found {
        Some((approval, state, _)) if state == "pending" => Ok(approval),
        Some((_, state, by)) => {
            let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
            Err(Refusal::Conflict(format!(
                "approval {id} is {state}{by} already; `quintet approvals` lists those that wait"
            )))
        }
        None => Err(Refusal::NotFound(format!(
            "approval {id} not found; `quintet approvals` lists those that wait"
        ))),
    }
}

/// A person's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// Yes or no.
    pub approved: bool,
    /// How far a yes reaches.
    pub scope: Scope,
    /// Why; the agent sees it.
    pub note: String,
    /// Who answered.
    pub by: String,
    /// With [`Scope::Rule`]: what was written.
    pub rule: String,
}

impl Decision {
    /// What the agent that asked for leave itself is told.
    pub(crate) fn told_to(self, request_id: String) -> ApprovalResult {
        ApprovalResult {
            request_id,
            approved: self.approved,
            reason: Some(self.note).filter(|note| !note.is_empty()),
            by: Some(self.by),
            scope: Some(self.scope.as_str().to_owned()),
        }
    }

    /// What a rule that was written meanwhile decides.
    pub fn of_policy(approved: bool, why: &str) -> Self {
        Self {
            approved,
            scope: Scope::Rule,
            note: why.to_owned(),
            by: BY_POLICY.to_owned(),
            rule: String::new(),
        }
    }
}

/// Answers an approval. The first answer wins.
pub fn answer(
    tx: &mut WriteTx<'_>,
    id: u64,
    decision: &Decision,
) -> Result<(Approval, u64), Refusal> {
    let approval = waiting(tx.sql(), id)?;
    let state = if decision.approved {
        "approved"
    } else {
        "denied"
    };
    tx.sql()
        .prepare_cached("UPDATE approvals SET state = ?, scope = ?, note = ?, by = ? WHERE id = ?")?
        .execute((
            state,
            decision.scope.as_str(),
            &decision.note,
            &decision.by,
            id.cast_signed(),
        ))?;
    let mut data = json!({
        "approval": id,
        "approved": decision.approved,
        "scope": decision.scope.as_str(),
        "reason": decision.note,
        "by": decision.by,
    });
    if !decision.rule.is_empty() {
        data["rule"] = decision.rule.as_str().into();
    }
    let entry = Entry::new(Kind::ApprovalAnswered, &data);
    let entry = match approval.left_over {
        true => entry.in_session(approval.session),
        false => entry.in_turn(approval.session, approval.turn),
    };
    let seq = tx.append(entry)?;
    Ok((approval, seq))
}

const WAITING: Waiting = Waiting {
    table: "approvals",
    key: "approval",
    withdrawn: Kind::ApprovalWithdrawn,
};

/// Withdraws one that nobody waits for any more; one that is answered stays so.
pub fn withdraw_one(tx: &mut WriteTx<'_>, id: u64) -> Result<(), StoreError> {
    WAITING.withdraw_one(tx, id)
}

/// Withdraws what a turn still waits for, because it is over.
pub fn withdraw(tx: &mut WriteTx<'_>, turn: u64) -> Result<(), StoreError> {
    WAITING.withdraw_all(tx, turn)
}

/// Leaves what a turn waits for to the session: the daemon stops under it.
pub fn leave(tx: &mut WriteTx<'_>, turn: u64) -> Result<(), StoreError> {
    WAITING.leave(tx, turn)
}

/// Withdraws what was left over in a session, and forgets answers that nobody came for.
pub fn withdraw_left_over(tx: &mut WriteTx<'_>, session: u64) -> Result<(), StoreError> {
    WAITING.withdraw_left_over(tx, session)
}
