//! Compactions: a summary that stands for a part of a conversation, and the way back.
//!
//! Nothing is removed from the journal. A compaction names the rows that its
//! summary stands for and keeps the agent's state from before. The agent then
//! starts from an empty state, and the next message carries the summary to it.

use rusqlite::{Connection, OptionalExtension};
use serde_json::{Value, json};

use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::store::{StoreError, WriteTx};

/// What the agent is asked for.
pub const REQUEST: &str = "Summarise this conversation so that you could go on from the summary alone. \
Keep word for word: the task, rules and constraints that were given, open questions, and decisions \
with their reasons. Name the files, commands and results that still matter. Answer with the summary only.";

/// Records a compaction and leaves its summary for the next message.
pub fn record(
    tx: &mut WriteTx<'_>,
    session: u64,
    turn: u64,
    summary: &str,
    state_before: &Value,
) -> Result<u64, StoreError> {
    let (first, last) = covered(tx.sql(), session, turn)?;
    let now = tx.now();
    tx.sql()
        .prepare_cached(
            "INSERT INTO compactions (session, summary, first_seq, last_seq, state, at)
             VALUES (?, ?, ?, ?, ?, ?)",
        )?
        .execute((
            session.cast_signed(),
            summary,
            first.cast_signed(),
            last.cast_signed(),
            state_before.to_string(),
            now,
        ))?;
    let id = tx.sql().last_insert_rowid().cast_unsigned();
    set_preamble(tx, session, Some(summary))?;
    let data = json!({
        "compaction": id,
        "summary": summary,
        "first_seq": first,
        "last_seq": last,
    });
    tx.append(Entry::new(Kind::Compacted, &data).in_turn(session, turn))
}

/// Takes back the last compaction. Returns the state to go back to.
///
/// What was said since is not lost either: it becomes what the next message carries.
pub fn undo(tx: &mut WriteTx<'_>, session: u64) -> Result<(Value, u64), Refusal> {
    let last = tx
        .sql()
        .prepare_cached(
            "SELECT id, state, at FROM compactions
             WHERE session = ? AND undone_at IS NULL ORDER BY id DESC LIMIT 1",
        )?
        .query_row([session.cast_signed()], |row| {
            Ok((
                row.get::<_, i64>(0)?,
                row.get::<_, String>(1)?,
                row.get::<_, i64>(2)?,
            ))
        })
        .optional()?;
    let Some((id, state, at)) = last else {
        return Err(Refusal::Conflict(format!(
            "session {session} has no compaction to undo; `quintet compact {session}` makes one"
        )));
    };
    let state = serde_json::from_str(&state)
        .map_err(|error| StoreError::Corrupt(format!("compaction {id}: {error}")))?;
    let now = tx.now();
    tx.sql()
        .prepare_cached("UPDATE compactions SET undone_at = ? WHERE id = ?")?
        .execute((now, id))?;
    let since = transcript_since(tx.sql(), session, at)?;
    set_preamble(tx, session, since.as_deref())?;
    let data = json!({ "compaction": id });
    let seq = tx.append(Entry::new(Kind::CompactionUndone, &data).in_session(session))?;
    Ok((state, seq))
}

/// The text that an agent gets for a message that follows a compaction.
pub fn with_preamble(preamble: &str, text: &str) -> String {
    format!("[The conversation so far, summarised]\n{preamble}\n\n[The message]\n{text}")
}

/// Forgets the summary that a message has carried to its agent, unless there is another by now.
pub fn clear_preamble(tx: &mut WriteTx<'_>, session: u64, carried: &str) -> Result<(), StoreError> {
    tx.sql()
        .prepare_cached("UPDATE sessions SET preamble = NULL WHERE id = ? AND preamble = ?")?
        .execute((session.cast_signed(), carried))?;
    Ok(())
}

fn set_preamble(
    tx: &mut WriteTx<'_>,
    session: u64,
    preamble: Option<&str>,
) -> Result<(), StoreError> {
    tx.sql()
        .prepare_cached("UPDATE sessions SET preamble = ? WHERE id = ?")?
        .execute((preamble, session.cast_signed()))?;
    Ok(())
}

/// The rows that a summary made in `turn` stands for: those between the last compaction that holds
/// and this turn, which may have waited for another one to end.
fn covered(connection: &Connection, session: u64, turn: u64) -> Result<(u64, u64), StoreError> {
    let bounds: (Option<i64>, Option<i64>) = connection
        .prepare_cached(
            "WITH earlier AS (
                 SELECT id, last_seq FROM compactions
                 WHERE session = ?1 AND undone_at IS NULL ORDER BY id DESC LIMIT 1),
             recorded AS (
                 SELECT max(seq) AS seq FROM journal
                 WHERE session = ?1 AND kind = 'compacted'
                   AND json_extract(data, '$.compaction') = (SELECT id FROM earlier)),
             own AS (
                 SELECT min(seq) AS arrived, max(seq) FILTER (WHERE kind = 'turn_started') AS started
                 FROM journal WHERE session = ?1 AND turn = ?2)
             SELECT min(seq), max(seq) FROM journal, own
             WHERE session = ?1
               AND seq > coalesce((SELECT seq FROM recorded), (SELECT last_seq FROM earlier), 0)
               AND (seq < arrived OR (seq < started AND turn != ?2))",
        )?
        .query_row((session.cast_signed(), turn.cast_signed()), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let number = |value: Option<i64>| value.map_or(0, i64::cast_unsigned);
    Ok((number(bounds.0), number(bounds.1)))
}

/// What was said after a time, as text; `None` when nothing was.
fn transcript_since(
    connection: &Connection,
    session: u64,
    at: i64,
) -> Result<Option<String>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT kind, data FROM journal
         WHERE session = ? AND at > ? AND kind IN ('message', 'text_delta', 'text_final')
         ORDER BY seq",
    )?;
    let rows = statement.query_map((session.cast_signed(), at), |row| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))
    })?;
    let mut text = String::new();
    for row in rows {
        let (kind, data) = row?;
        let data: Value = serde_json::from_str(&data).unwrap_or_default();
        let said = data["text"].as_str().unwrap_or_default();
        match kind.as_str() {
            "message" => {
                let sender = data["sender"].as_str().unwrap_or_default();
                text.push_str(&format!("\n{sender}: {said}\nagent: "));
            }
            "text_final" if data["streamed"] == true => {}
            _ => text.push_str(said),
        }
    }
    Ok((!text.is_empty()).then_some(text))
}
