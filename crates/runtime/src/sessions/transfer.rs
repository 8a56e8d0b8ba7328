//! A session as one piece of text, and a session made from it.

use std::collections::BTreeMap;

use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{NewSession, Session, find};
use crate::journal::{Entry, Filter, Kind, Row};
use crate::refusal::Refusal;
use crate::store::{StoreError, WriteTx};

/// Names the format and its version.
const FORMAT: &str = "quintet-session-1";

/// An exported session.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Export {
    format: String,
    /// The agent's name.
    pub agent: String,
    /// The session's title.
    pub title: String,
    /// The number it had.
    pub session: u64,
    /// The agent's state, which is what it remembers.
    pub state: Value,
    rows: Vec<ExportedRow>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct ExportedRow {
    turn: Option<u64>,
    kind: String,
    data: Value,
}

/// Whether a row belongs to the conversation itself rather than to this daemon.
fn travels(kind: &Kind) -> bool {
    matches!(
        kind,
        Kind::Message
            | Kind::Steer
            | Kind::TurnStarted
            | Kind::TurnEnded
            | Kind::TextDelta
            | Kind::TextFinal
            | Kind::Thinking
            | Kind::ToolCall
            | Kind::ToolResult
            | Kind::ToolsComplete
            | Kind::CodeBlock
            | Kind::FileChange
            | Kind::TerminalOutput
            | Kind::Element
            | Kind::AskUser
            | Kind::AskAnswered
            | Kind::Compacted
            | Kind::CompactionUndone
    )
}

/// Writes a session down.
pub fn export(connection: &Connection, id: u64, state: Value) -> Result<Export, Refusal> {
    let session = find(connection, id)?.ok_or_else(|| Refusal::no_session(id))?;
    let filter = Filter::session(id);
    let mut statement = connection
        .prepare_cached(
            "SELECT seq, at, session, turn, kind, data FROM journal WHERE session = ? ORDER BY seq",
        )
        .map_err(StoreError::from)?;
    let rows = statement
        .query_map([filter.session.map(u64::cast_signed)], Row::from_sql)
        .map_err(StoreError::from)?;
    let mut exported = Vec::new();
    for row in rows {
        let row = row.map_err(StoreError::from)?;
        if travels(&row.kind) {
            exported.push(ExportedRow {
                turn: row.turn,
                kind: row.kind.as_str().to_owned(),
                data: row.value(),
            });
        }
    }
    Ok(Export {
        format: FORMAT.into(),
        agent: session.agent,
        title: session.title,
        session: id,
        state,
        rows: exported,
    })
}

impl Export {
    /// Reads what [`export`] wrote.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let export: Self = serde_json::from_str(text).map_err(|error| {
            Refusal::Bad(format!(
                "this is not an exported session: {error}; `quintet session export` writes one"
            ))
        })?;
        if export.format != FORMAT {
            return Err(Refusal::Bad(format!(
                "this exported session has format {:?}; this version reads {FORMAT:?}",
                export.format
            )));
        }
        Ok(export)
    }
}

/// Makes a session that goes on where the exported one stood.
pub fn import(
    tx: &mut WriteTx<'_>,
    exported: &Export,
    new: NewSession,
    own_folder: impl FnOnce(&Session) -> String,
) -> Result<Session, Refusal> {
    let session = super::create(tx, new, own_folder)?;
    if !exported.title.is_empty() {
        super::set_title(tx, session.id, &exported.title)?;
    }
    let data = json!({ "from_session": exported.session, "rows": exported.rows.len() });
    tx.append(Entry::new(Kind::SessionImported, &data).in_session(session.id))?;
    let mut turns = BTreeMap::new();
    for row in &exported.rows {
        let kind = Kind::from_name(&row.kind);
        if !travels(&kind) {
            return Err(Refusal::Bad(format!(
                "an exported session holds no rows of kind {:?}",
                row.kind
            )));
        }
        let entry = Entry::new(kind, &row.data);
        let entry = match row.turn {
            Some(old) => {
                let turn = match turns.get(&old) {
                    Some(turn) => *turn,
                    None => {
                        let turn = finished_message(tx, session.id, &row.data)?;
                        turns.insert(old, turn);
                        turn
                    }
                };
                entry.in_turn(session.id, turn)
            }
            None => entry.in_session(session.id),
        };
        tx.append(entry)?;
    }
    Ok(session)
}

/// A message of the past: it gives its rows a turn to belong to and is never run.
fn finished_message(tx: &WriteTx<'_>, session: u64, data: &Value) -> Result<u64, StoreError> {
    let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
    tx.sql()
        .prepare_cached(
            "INSERT INTO messages (session, sender, text, at, state) VALUES (?, ?, ?, ?, 'done')",
        )?
        .execute((
            session.cast_signed(),
            text("sender"),
            text("text"),
            tx.now(),
        ))?;
    Ok(tx.sql().last_insert_rowid().cast_unsigned())
}
