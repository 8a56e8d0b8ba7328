//! Approvals: durable, bound to the exact action, answered once.

use rusqlite::{Connection, OptionalExtension, Row as SqlRow};
use serde_json::json;

use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::store::{StoreError, WriteTx};

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
    fn key(&self) -> String {
        [&self.action, &self.command, &self.cwd, &self.worker]
            .map(|part| format!("{}:{part}", part.len()))
            .concat()
    }
}

/// How far a yes reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// This once.
    Once,
    /// The same action again in this session.
    Session,
}

impl Scope {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Session => "session",
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
    /// Why the agent wants it.
    pub reason: String,
    /// Microseconds since 1970.
    pub at: i64,
}

const COLUMNS: &str = "id, session, turn, key, action, command, cwd, worker, reason, at";

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
}

/// Records a request of a running turn, or finds that the session has leave already.
pub fn request(
    tx: &mut WriteTx<'_>,
    session: u64,
    turn: u64,
    key: &str,
    action: &Action,
    reason: &str,
) -> Result<Requested, StoreError> {
    let bound_to = action.key();
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
    });
    if let Some(by) = granted {
        let by = by.unwrap_or_default();
        data["approved"] = true.into();
        data["scope"] = "session".into();
        data["by"] = by.clone().into();
        tx.append(Entry::new(Kind::ApprovalAnswered, &data).in_turn(session, turn))?;
        return Ok(Requested::Granted { by });
    }
    let now = tx.now();
    tx.sql()
        .prepare_cached(
            "INSERT INTO approvals
                 (session, turn, key, action, command, cwd, worker, reason, bound_to, at, state)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'pending')",
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
        ))?;
    let id = tx.sql().last_insert_rowid().cast_unsigned();
    data["approval"] = id.into();
    tx.append(Entry::new(Kind::ApprovalRequested, &data).in_turn(session, turn))?;
    Ok(Requested::Pending(id))
}

/// Every approval that waits, oldest first.
pub fn pending(connection: &Connection) -> Result<Vec<Approval>, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM approvals WHERE state = 'pending' ORDER BY id"
    ))?;
    let rows = statement.query_map([], Approval::from_sql)?;
    Ok(rows.collect::<Result<_, _>>()?)
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
}

/// Answers an approval. The first answer wins.
pub fn answer(
    tx: &mut WriteTx<'_>,
    id: u64,
    decision: &Decision,
) -> Result<(Approval, u64), Refusal> {
    let found = tx
        .sql()
        .prepare_cached(&format!(
            "SELECT {COLUMNS}, state, by FROM approvals WHERE id = ?"
        ))?
        .query_row([id.cast_signed()], |row| {
            Ok((
                Approval::from_sql(row)?,
                row.get::<_, String>(10)?,
                row.get::<_, Option<String>>(11)?,
            ))
        })
        .optional()?;
    let approval = match found {
        Some((approval, state, _)) if state == "pending" => approval,
        Some((_, state, by)) => {
            let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
            return Err(Refusal::Conflict(format!(
                "approval {id} is {state}{by} already"
            )));
        }
        None => return Err(Refusal::NotFound(format!("approval {id} not found"))),
    };
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
    let data = json!({
        "approval": id,
        "approved": decision.approved,
        "scope": decision.scope.as_str(),
        "reason": decision.note,
        "by": decision.by,
    });
    let entry = Entry::new(Kind::ApprovalAnswered, &data).in_turn(approval.session, approval.turn);
    let seq = tx.append(entry)?;
    Ok((approval, seq))
}

/// Withdraws what a turn still waits for, because it is over.
pub fn withdraw(tx: &mut WriteTx<'_>, turn: u64) -> Result<(), StoreError> {
    let pending: Vec<(i64, i64)> = tx
        .sql()
        .prepare_cached("SELECT id, session FROM approvals WHERE turn = ? AND state = 'pending'")?
        .query_map([turn.cast_signed()], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<_, _>>()?;
    for (id, session) in pending {
        tx.sql()
            .prepare_cached("UPDATE approvals SET state = 'withdrawn' WHERE id = ?")?
            .execute([id])?;
        let entry = Entry::new(Kind::ApprovalWithdrawn, &json!({ "approval": id }));
        tx.append(entry.in_turn(session.cast_unsigned(), turn))?;
    }
    Ok(())
}
