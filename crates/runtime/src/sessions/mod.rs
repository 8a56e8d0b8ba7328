//! Sessions: one conversation of one sender with one agent.
//!
//! Everything here is a statement or two inside a caller's transaction. What
//! changes a session also appends to the journal in that transaction.

pub mod approvals;
pub mod asks;
pub mod compactions;
pub mod messages;
mod transfer;
pub mod usage;
mod waiting;

use rusqlite::{Connection, OptionalExtension, Row as SqlRow};
use serde_json::json;

use crate::cron;
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::store::{StoreError, WriteTx};

pub use transfer::{Export, export, import};

/// The longest title, in characters; a longer one is cut.
const MAX_TITLE: usize = 80;

/// The sender of a client that names none.
pub const DEFAULT_SENDER: &str = "user";

/// A session as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Counts up from 1, never used again.
    pub id: u64,
    /// The agent's name.
    pub agent: String,
    /// The sender it belongs to.
    pub created_by: String,
    /// A short name for people.
    pub title: String,
    /// Microseconds since 1970.
    pub created_at: i64,
    /// When it was closed.
    pub closed_at: Option<i64>,
    /// The folder that the agent works in.
    pub workspace: String,
    /// The worker that its commands run on, empty for the default one.
    pub worker: String,
    /// A summary that the next message carries to the agent.
    pub preamble: Option<String>,
}

const COLUMNS: &str =
    "id, agent, created_by, title, created_at, closed_at, workspace, worker, preamble";

impl Session {
    fn from_sql(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get::<_, i64>(0)?.cast_unsigned(),
            agent: row.get(1)?,
            created_by: row.get(2)?,
            title: row.get(3)?,
            created_at: row.get(4)?,
            closed_at: row.get(5)?,
            workspace: row.get(6)?,
            worker: row.get(7)?,
            preamble: row.get(8)?,
        })
    }

    /// The id of the agent instance that serves it: stable, so that its state is found again.
    pub fn agent_id(&self) -> String {
        format!("{}-{}", self.agent, self.id)
    }
}

/// What a new session is made of.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// A configured agent's name.
    pub agent: String,
    /// Who asked for it.
    pub sender: String,
    /// A folder of the user's to work in; the session gets one of its own without.
    pub folder: Option<String>,
    /// The worker for its commands.
    pub worker: String,
}

/// The open session with that number.
pub fn open(connection: &Connection, id: u64) -> Result<Session, Refusal> {
    match find(connection, id)? {
        Some(session) if session.closed_at.is_none() => Ok(session),
        Some(_) => Err(Refusal::NotFound(format!(
            "session {id} is closed; `quintet events --session {id}` reads its history, `quintet send --new` starts a new one"
        ))),
        None => Err(Refusal::no_session(id)),
    }
}

/// The session with that number, closed or not.
pub fn find(connection: &Connection, id: u64) -> Result<Option<Session>, StoreError> {
    Ok(connection
        .prepare_cached(&format!("SELECT {COLUMNS} FROM sessions WHERE id = ?"))?
        .query_row([id.cast_signed()], Session::from_sql)
        .optional()?)
}

/// The newest open session of an agent and a sender that fits.
pub fn newest(
    connection: &Connection,
    agent: &str,
    sender: &str,
    fits: impl Fn(&Session) -> bool,
) -> Result<Option<Session>, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM sessions
         WHERE agent = ? AND created_by = ? AND closed_at IS NULL
         ORDER BY id DESC"
    ))?;
    for session in statement.query_map([agent, sender], Session::from_sql)? {
        let session = session?;
        if fits(&session) {
            return Ok(Some(session));
        }
    }
    Ok(None)
}

/// Makes a session. `own_folder` names the folder of a session whose client brought none.
pub fn create(
    tx: &mut WriteTx<'_>,
    new: NewSession,
    own_folder: impl FnOnce(&Session) -> String,
) -> Result<Session, StoreError> {
    let now = tx.now();
    tx.sql()
        .prepare_cached(
            "INSERT INTO sessions (agent, created_by, created_at, workspace, worker)
             VALUES (?, ?, ?, ?, ?)",
        )?
        .execute((
            &new.agent,
            &new.sender,
            now,
            new.folder.as_deref().unwrap_or_default(),
            &new.worker,
        ))?;
    let mut session = Session {
        id: tx.sql().last_insert_rowid().cast_unsigned(),
        agent: new.agent,
        created_by: new.sender,
        title: String::new(),
        created_at: now,
        closed_at: None,
        workspace: new.folder.unwrap_or_default(),
        worker: new.worker,
        preamble: None,
    };
    if session.workspace.is_empty() {
        session.workspace = own_folder(&session);
        tx.sql()
            .prepare_cached("UPDATE sessions SET workspace = ? WHERE id = ?")?
            .execute((&session.workspace, session.id.cast_signed()))?;
    }
    let data = json!({
        "agent": session.agent,
        "sender": session.created_by,
        "workspace": session.workspace,
        "worker": session.worker,
    });
    tx.append(Entry::new(Kind::SessionCreated, &data).in_session(session.id))?;
    Ok(session)
}

/// Names a session.
pub fn set_title(tx: &mut WriteTx<'_>, id: u64, title: &str) -> Result<u64, Refusal> {
    let session = find(tx.sql(), id)?.ok_or_else(|| Refusal::no_session(id))?;
    Ok(write_title(tx, session.id, title)?)
}

/// Names a session after its first message, unless it has a name.
pub(crate) fn title_from_message(
    tx: &mut WriteTx<'_>,
    session: &Session,
    text: &str,
) -> Result<(), StoreError> {
    let first_line = text.lines().find(|line| !line.trim().is_empty());
    if let (true, Some(line)) = (session.title.is_empty(), first_line) {
        write_title(tx, session.id, line)?;
    }
    Ok(())
}

fn write_title(tx: &mut WriteTx<'_>, id: u64, title: &str) -> Result<u64, StoreError> {
    let title: String = title
        .chars()
        .filter(|c| !c.is_control())
        .take(MAX_TITLE)
        .collect();
    let title = title.trim();
    tx.sql()
        .prepare_cached("UPDATE sessions SET title = ? WHERE id = ?")?
        .execute((title, id.cast_signed()))?;
    tx.append(Entry::new(Kind::SessionTitled, &json!({ "title": title })).in_session(id))
}

/// Closes a session: its running turn ends with an error, its queue is emptied, its questions are
/// withdrawn, its crons end. Returns the turn that was running.
pub fn close(tx: &mut WriteTx<'_>, id: u64, reason: &str) -> Result<Option<u64>, Refusal> {
    open(tx.sql(), id)?;
    let running = messages::running(tx.sql(), id)?;
    if let Some(turn) = running {
        messages::end(tx, turn, &messages::TurnOutcome::failed(reason, 409, false))?;
    }
    for waiting in messages::waiting(tx.sql(), Some(id))? {
        messages::remove(tx, waiting.id, reason)?;
    }
    messages::withdraw_left_over(tx, id)?;
    cron::end_of_session(tx, id, reason)?;
    let now = tx.now();
    tx.sql()
        .prepare_cached("UPDATE sessions SET closed_at = ? WHERE id = ?")?
        .execute((now, id.cast_signed()))?;
    tx.append(Entry::new(Kind::SessionClosed, &json!({ "reason": reason })).in_session(id))?;
    Ok(running)
}

/// A session with what a listing shows beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The session.
    pub session: Session,
    /// Messages that it took.
    pub messages: u64,
    /// Messages that wait.
    pub queued: u64,
    /// Whether a turn runs.
    pub active: bool,
    /// What it cost.
    pub cost: rust_decimal::Decimal,
}

/// Which sessions a listing shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// Those that take messages.
    Open,
    /// Those that were closed, too.
    All,
}

/// Sessions, oldest first.
pub fn list(connection: &Connection, which: Which) -> Result<Vec<Listed>, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS},
                (SELECT count(*) FROM messages
                 WHERE session = sessions.id AND state != 'removed' AND purpose = 'message'),
                (SELECT count(*) FROM messages WHERE session = sessions.id AND state = 'queued'),
                (SELECT count(*) FROM messages WHERE session = sessions.id AND state = 'running')
         FROM sessions WHERE closed_at IS NULL OR ? ORDER BY id"
    ))?;
    let rows = statement.query_map([which == Which::All], |row| {
        Ok((
            Session::from_sql(row)?,
            row.get::<_, i64>(9)?.cast_unsigned(),
            row.get::<_, i64>(10)?.cast_unsigned(),
            row.get::<_, i64>(11)? > 0,
        ))
    })?;
    rows.map(|row| {
        let (session, messages, queued, active) = row?;
        let cost = usage::of_session(connection, session.id)?;
        Ok(Listed {
            session,
            messages,
            queued,
            active,
            cost,
        })
    })
    .collect()
}
