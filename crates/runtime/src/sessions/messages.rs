//! The durable queue, and the life of a message: queued, running, then done, failed or removed.
//!
//! A message's id is its turn's id. Each change of state is one conditional
//! update, so that of two that race exactly one happens: a turn ends once.

use rusqlite::{Connection, OptionalExtension, Row as SqlRow};
use serde::Serialize;
use serde_json::json;

use super::{Session, approvals, asks, title_from_message, usage};
use crate::cron;
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::store::{StoreError, WriteTx};
use quintet_agent::proto::usage::TokenUsage;

/// Messages that may wait in one session.
const MAX_QUEUED: u64 = 1000;

/// Bytes of text in one list of messages; it has to fit in a frame.
const MAX_LISTED: i64 = 8 << 20;

/// What a message is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A person's, or a schedule's.
    Message,
    /// The daemon asks for a summary.
    Compaction,
}

impl Purpose {
    fn as_str(self) -> &'static str {
        match self {
            Self::Message => "message",
            Self::Compaction => "compaction",
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "compaction" => Self::Compaction,
            _ => Self::Message,
        }
    }
}

/// How a message came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// From a client of the control plane.
    Cli,
    /// From a browser.
    Web,
    /// From a schedule.
    Cron,
    /// From the daemon itself.
    Daemon,
}

impl Channel {
    /// Its name on the agent plane.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cli => "cli",
            Self::Web => "web",
            Self::Cron => "cron",
            Self::Daemon => "daemon",
        }
    }

    fn from_name(name: &str) -> Self {
        match name {
            "web" => Self::Web,
            "cron" => Self::Cron,
            "daemon" => Self::Daemon,
            _ => Self::Cli,
        }
    }
}

/// A message as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Its number, which is the turn's too.
    pub id: u64,
    /// The session it belongs to.
    pub session: u64,
    /// Who sent it.
    pub sender: String,
    /// How it came in.
    pub channel: Channel,
    /// What it says.
    pub text: String,
    /// What it is for.
    pub purpose: Purpose,
    /// Microseconds since 1970.
    pub at: i64,
    /// The journal number of its arrival.
    pub first_seq: u64,
}

const COLUMNS: &str = "id, session, sender, text, purpose, at, first_seq, channel";

impl Message {
    fn from_sql(row: &SqlRow<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get::<_, i64>(0)?.cast_unsigned(),
            session: row.get::<_, i64>(1)?.cast_unsigned(),
            sender: row.get(2)?,
            text: row.get(3)?,
            purpose: Purpose::from_name(row.get_ref(4)?.as_str()?),
            at: row.get(5)?,
            first_seq: row.get::<_, Option<i64>>(6)?.map_or(0, i64::cast_unsigned),
            channel: Channel::from_name(row.get_ref(7)?.as_str()?),
        })
    }
}

/// Who gave guidance and how it came in, by its text: the newest of it that a session has.
pub fn origin_of_steer(
    connection: &Connection,
    session: u64,
    text: &str,
) -> Result<(String, Channel), StoreError> {
    let found: Option<(String, Option<String>)> = connection
        .prepare_cached(
            "SELECT json_extract(data, '$.sender'), json_extract(data, '$.channel') FROM journal
             WHERE session = ? AND kind = ? AND json_extract(data, '$.text') = ?
             ORDER BY seq DESC LIMIT 1",
        )?
        .query_row((session.cast_signed(), Kind::Steer.as_str(), text), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let (sender, channel) = found.unwrap_or_else(|| ("user".to_owned(), None));
    Ok((sender, Channel::from_name(&channel.unwrap_or_default())))
}

/// Accepts a message into a session's queue.
pub fn enqueue(
    tx: &mut WriteTx<'_>,
    session: &Session,
    sender: &str,
    channel: Channel,
    text: &str,
    purpose: Purpose,
) -> Result<Message, Refusal> {
    let waiting: i64 = tx
        .sql()
        .prepare_cached("SELECT count(*) FROM messages WHERE session = ? AND state = 'queued'")?
        .query_row([session.id.cast_signed()], |row| row.get(0))?;
    if waiting.cast_unsigned() >= MAX_QUEUED {
        return Err(Refusal::OverLimit(format!(
            "{MAX_QUEUED} messages wait in session {} already; remove some with `quintet queue rm`",
            session.id
        )));
    }
    let at = tx.now();
    tx.sql()
        .prepare_cached(
            "INSERT INTO messages (session, sender, channel, text, purpose, at, state)
             VALUES (?, ?, ?, ?, ?, ?, 'queued')",
        )?
        .execute((
            session.id.cast_signed(),
            sender,
            channel.as_str(),
            text,
            purpose.as_str(),
            at,
        ))?;
    let id = tx.sql().last_insert_rowid().cast_unsigned();
    let data = json!({
        "id": id,
        "sender": sender,
        "text": text,
        "purpose": purpose.as_str(),
    });
    let first_seq = tx.append(Entry::new(Kind::Message, &data).in_turn(session.id, id))?;
    tx.sql()
        .prepare_cached("UPDATE messages SET first_seq = ? WHERE id = ?")?
        .execute((first_seq.cast_signed(), id.cast_signed()))?;
    if purpose == Purpose::Message {
        title_from_message(tx, session, text)?;
    }
    Ok(Message {
        id,
        session: session.id,
        sender: sender.to_owned(),
        channel,
        text: text.to_owned(),
        purpose,
        at,
        first_seq,
    })
}

/// The messages that wait, oldest first.
pub fn waiting(connection: &Connection, session: Option<u64>) -> Result<Vec<Message>, StoreError> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM messages
         WHERE state = 'queued' AND (?1 IS NULL OR session = ?1) ORDER BY id"
    ))?;
    let rows = statement.query_map([session.map(u64::cast_signed)], Message::from_sql)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The messages that wait, oldest first, and whether a text was cut. They are whole where all of
/// them fit in a list; else each gets an equal part of it.
pub fn listed(
    connection: &Connection,
    session: Option<u64>,
) -> Result<Vec<(Message, bool)>, StoreError> {
    // One statement, so that what is counted is what is listed. SQLite cuts by characters, which
    // have up to four bytes.
    let mut statement = connection.prepare_cached(
        "WITH waiting AS (
             SELECT * FROM messages WHERE state = 'queued' AND (?1 IS NULL OR session = ?1)),
         total AS (SELECT count(*) AS count, sum(length(CAST(text AS BLOB))) AS bytes FROM waiting),
         part AS (SELECT iif(bytes > ?2, ?2 / 4 / count, bytes) AS most FROM total)
         SELECT id, session, sender, substr(text, 1, most), purpose, at, first_seq, channel,
                length(text) > most
         FROM waiting, part ORDER BY id",
    )?;
    let rows = statement.query_map((session.map(u64::cast_signed), MAX_LISTED), |row| {
        Ok((Message::from_sql(row)?, row.get(8)?))
    })?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The message that a session takes next.
pub fn next(connection: &Connection, session: u64) -> Result<Option<Message>, StoreError> {
    Ok(connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS} FROM messages
             WHERE session = ? AND state = 'queued' ORDER BY id LIMIT 1"
        ))?
        .query_row([session.cast_signed()], Message::from_sql)
        .optional()?)
}

/// The turn that runs in a session.
pub fn running(connection: &Connection, session: u64) -> Result<Option<u64>, StoreError> {
    Ok(connection
        .prepare_cached("SELECT id FROM messages WHERE session = ? AND state = 'running'")?
        .query_row([session.cast_signed()], |row| row.get::<_, i64>(0))
        .optional()?
        .map(i64::cast_unsigned))
}

/// The journal number of a message's arrival in a session, and whether nothing more comes of it.
pub fn begin_and_over(
    connection: &Connection,
    session: u64,
    id: u64,
) -> Result<Option<(u64, bool)>, StoreError> {
    Ok(connection
        .prepare_cached(
            "SELECT first_seq, state NOT IN ('queued', 'running') FROM messages
             WHERE id = ? AND session = ?",
        )?
        .query_row((id.cast_signed(), session.cast_signed()), |row| {
            let first: Option<i64> = row.get(0)?;
            Ok((first.map_or(0, i64::cast_unsigned), row.get(1)?))
        })
        .optional()?)
}

/// Turns that were running when the daemon went away.
pub fn all_running(connection: &Connection) -> Result<Vec<u64>, StoreError> {
    let mut statement =
        connection.prepare_cached("SELECT id FROM messages WHERE state = 'running' ORDER BY id")?;
    let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
    rows.map(|id| Ok(id?.cast_unsigned())).collect()
}

/// Sessions in which a message waits.
pub fn sessions_with_waiting(connection: &Connection) -> Result<Vec<u64>, StoreError> {
    let mut statement = connection
        .prepare_cached("SELECT DISTINCT session FROM messages WHERE state = 'queued'")?;
    let rows = statement.query_map([], |row| row.get::<_, i64>(0))?;
    rows.map(|id| Ok(id?.cast_unsigned())).collect()
}

/// Hands a waiting message to the agent; false when it no longer waits.
pub fn begin(tx: &mut WriteTx<'_>, message: &Message, agent: &str) -> Result<bool, StoreError> {
    if !move_on(tx, message.id, "queued", "running")? {
        return Ok(false);
    }
    let data = json!({ "agent": agent, "sender": message.sender });
    tx.append(Entry::new(Kind::TurnStarted, &data).in_turn(message.session, message.id))?;
    Ok(true)
}

/// How a turn ended.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TurnOutcome {
    /// `end_turn`, `max_tokens`, `cancelled`, `error`, `budget` or the agent's own word.
    pub finish_reason: String,
    /// A sentence, empty on success.
    pub error: String,
    /// The error's code, as on the control plane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<u32>,
    /// Whether sending the message again may help.
    pub retryable: bool,
    /// What the turn used.
    pub usage: TokenUsage,
    /// The daemon stopped under it: what it asked goes on waiting for a retry.
    #[serde(skip)]
    pub cut: bool,
}

impl TurnOutcome {
    /// A turn that did not end well.
    pub fn failed(error: impl Into<String>, code: u32, retryable: bool) -> Self {
        Self {
            finish_reason: "error".into(),
            error: error.into(),
            code: Some(code),
            retryable,
            usage: TokenUsage::default(),
            cut: false,
        }
    }

    /// A turn that the daemon stopped under, with what it had used.
    pub fn interrupted(usage: TokenUsage) -> Self {
        Self {
            usage,
            cut: true,
            ..Self::failed(INTERRUPTED, 500, true)
        }
    }
}

/// What a turn is told when the daemon went away under it.
const INTERRUPTED: &str = "the daemon stopped during this turn; what it did and what it asked is kept, send it again with `quintet retry`";

/// Ends a running turn, once: false when it is over already.
pub fn end(tx: &mut WriteTx<'_>, turn: u64, outcome: &TurnOutcome) -> Result<bool, StoreError> {
    let state = if outcome.error.is_empty() {
        "done"
    } else {
        "failed"
    };
    if !move_on(tx, turn, "running", state)? {
        return Ok(false);
    }
    let (session, agent, purpose) = tx
        .sql()
        .prepare_cached(
            "SELECT messages.session, sessions.agent, messages.purpose FROM messages
             JOIN sessions ON sessions.id = messages.session WHERE messages.id = ?",
        )?
        .query_row([turn.cast_signed()], |row| {
            let purpose = Purpose::from_name(row.get_ref(2)?.as_str()?);
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, purpose))
        })?;
    let session = session.cast_unsigned();
    if outcome.cut {
        asks::leave(tx, turn)?;
        approvals::leave(tx, turn)?;
    } else {
        asks::withdraw(tx, turn)?;
        approvals::withdraw(tx, turn)?;
        // The conversation has gone on without what an earlier turn asked.
        if purpose == Purpose::Message {
            withdraw_left_over(tx, session)?;
        }
    }
    usage::add(tx, turn, session, &agent, &outcome.usage)?;
    let mut data = serde_json::to_value(outcome).unwrap_or_default();
    data["agent"] = agent.into();
    let seq = tx.append(Entry::new(Kind::TurnEnded, &data).in_turn(session, turn))?;
    tx.sql()
        .prepare_cached("UPDATE messages SET last_seq = ? WHERE id = ?")?
        .execute((seq.cast_signed(), turn.cast_signed()))?;
    cron::settle(tx)?;
    Ok(true)
}

/// Withdraws what cut turns of a session asked.
pub fn withdraw_left_over(tx: &mut WriteTx<'_>, session: u64) -> Result<(), StoreError> {
    asks::withdraw_left_over(tx, session)?;
    approvals::withdraw_left_over(tx, session)
}

/// Refuses a message that says nothing.
pub fn require_text(text: &str) -> Result<(), Refusal> {
    match text.trim() {
        "" => Err(Refusal::Bad("the message is empty; say what to do".into())),
        _ => Ok(()),
    }
}

/// Changes a waiting message.
pub fn edit(tx: &mut WriteTx<'_>, id: u64, text: &str) -> Result<u64, Refusal> {
    require_text(text)?;
    let session = require_waiting(tx, id)?;
    tx.sql()
        .prepare_cached("UPDATE messages SET text = ? WHERE id = ?")?
        .execute((text, id.cast_signed()))?;
    let data = json!({ "id": id, "text": text });
    Ok(tx.append(Entry::new(Kind::MessageEdited, &data).in_turn(session, id))?)
}

/// Takes a waiting message out of the queue; a stream that waits for it ends with `reason`.
pub fn remove(tx: &mut WriteTx<'_>, id: u64, reason: &str) -> Result<u64, Refusal> {
    let session = require_waiting(tx, id)?;
    move_on(tx, id, "queued", "removed")?;
    let data = json!({ "id": id, "reason": reason });
    Ok(tx.append(Entry::new(Kind::MessageRemoved, &data).in_turn(session, id))?)
}

/// The last message of a session, if its turn failed: what a retry runs again.
pub fn last_failed(connection: &Connection, session: u64) -> Result<Option<Message>, StoreError> {
    let last = connection
        .prepare_cached(&format!(
            "SELECT {COLUMNS}, state FROM messages
             WHERE session = ? AND state != 'removed' ORDER BY id DESC LIMIT 1"
        ))?
        .query_row([session.cast_signed()], |row| {
            Ok((Message::from_sql(row)?, row.get::<_, String>(8)?))
        })
        .optional()?;
    Ok(last.and_then(|(message, state)| (state == "failed").then_some(message)))
}

fn require_waiting(tx: &WriteTx<'_>, id: u64) -> Result<u64, Refusal> {
    let found = tx
        .sql()
        .prepare_cached("SELECT session, state FROM messages WHERE id = ?")?
        .query_row([id.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    match found {
        Some((session, state)) if state == "queued" => Ok(session.cast_unsigned()),
        Some((_, state)) => Err(Refusal::Conflict(format!(
            "message {id} no longer waits: it is {state}; `quintet queue ls` lists those that do"
        ))),
        None => Err(Refusal::NotFound(format!(
            "message {id} not found; `quintet queue ls` lists those that wait"
        ))),
    }
}

fn move_on(tx: &WriteTx<'_>, id: u64, from: &str, to: &str) -> Result<bool, StoreError> {
    let changed = tx
        .sql()
        .prepare_cached("UPDATE messages SET state = ? WHERE id = ? AND state = ?")?
        .execute((to, id.cast_signed(), from))?;
    Ok(changed == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::{NewSession, create};
    use crate::store::Db;

    fn session(tx: &mut WriteTx<'_>) -> Result<Session, StoreError> {
        let new = NewSession {
            agent: "a".into(),
            sender: "user".into(),
            folder: None,
            worker: String::new(),
        };
        create(tx, new, |_| String::new())
    }

    fn say(tx: &mut WriteTx<'_>, session: &Session) -> Result<Message, Refusal> {
        enqueue(tx, session, "user", Channel::Cli, "hi", Purpose::Message)
    }

    #[tokio::test]
    async fn a_turn_ends_once_however_often_it_is_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        db.write(|tx| -> Result<(), Refusal> {
            let session = session(tx)?;
            let message = say(tx, &session)?;
            let failed = TurnOutcome::failed("it was killed", 409, true);
            assert!(!end(tx, message.id, &failed)?, "it has not begun");
            assert!(begin(tx, &message, "a")?);
            assert!(end(tx, message.id, &TurnOutcome::default())?);
            assert!(!end(tx, message.id, &failed)?, "it is over");
            let ends: i64 = tx.sql().query_row(
                "SELECT count(*) FROM journal WHERE kind = 'turn_ended'",
                [],
                |row| row.get(0),
            )?;
            assert_eq!(ends, 1);
            assert!(last_failed(tx.sql(), session.id)?.is_none());
            Ok(())
        })
        .await
        .expect("durable");
    }

    #[tokio::test]
    async fn a_full_queue_refuses_the_next_message_until_one_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        db.write(|tx| -> Result<(), Refusal> {
            let session = session(tx)?;
            let first = say(tx, &session)?;
            for _ in 1..MAX_QUEUED {
                say(tx, &session)?;
            }
            assert!(matches!(say(tx, &session), Err(Refusal::OverLimit(_))));
            remove(tx, first.id, "a test")?;
            say(tx, &session)?;
            assert!(matches!(say(tx, &session), Err(Refusal::OverLimit(_))));
            Ok(())
        })
        .await
        .expect("durable");
    }
}
