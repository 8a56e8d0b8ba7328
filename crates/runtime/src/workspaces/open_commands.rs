//! Commands that began and have not ended: rows of `quintet.db` that a crash leaves behind.

use rusqlite::{Connection, OptionalExtension, Row};
use serde_json::{Value, json};

use crate::journal::{Entry, Kind};
use crate::store::{Db, StoreError, WriteTx};

/// A command of a session, as it began.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenCommand {
    pub(super) session: u64,
    pub(super) worker: String,
    /// The worker's name for it; empty until it was sent.
    pub(super) job: String,
    pub(super) command: String,
    pub(super) cwd: Option<String>,
    /// The workspace's sequence when it began.
    pub(super) before: u64,
    /// Who writes its files; nobody in particular where it runs in the folder itself.
    pub(super) author: Option<String>,
    /// Of a file that a tool writes, the tool; the path follows it in `command`.
    pub(super) tool: Option<String>,
}

/// A command that a crash cut.
#[derive(Debug)]
pub(super) struct Interrupted {
    pub(super) id: u64,
    pub(super) open: OpenCommand,
    /// The session's folder.
    pub(super) folder: String,
}

impl OpenCommand {
    /// The row of a command that was cut. What it wrote may still come, where it has a copy of the
    /// folder.
    pub(super) fn cut(&self, ended: &str, after: u64) -> Value {
        json!({
            "command": self.command,
            "cwd": self.cwd,
            "worker": self.worker,
            "job": self.job,
            "exit_code": null,
            "ended": ended,
            "before": self.before,
            "after": after.max(self.before),
            "author": self.author,
            "changed": [],
            "behind": self.author.is_some(),
        })
    }
}

/// Notes that a command begins; durable when it returns. Says its number, and the journal's.
pub(super) async fn begin(db: &Db, open: &OpenCommand) -> Result<(u64, u64), StoreError> {
    let open = open.clone();
    db.write(move |tx| {
        tx.sql()
            .prepare_cached(
                "INSERT INTO open_commands (session, worker, job, command, cwd, before, author, tool)
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            )?
            .execute((
                open.session.cast_signed(),
                &open.worker,
                &open.job,
                &open.command,
                &open.cwd,
                open.before.cast_signed(),
                &open.author,
                &open.tool,
            ))?;
        let id = tx.sql().last_insert_rowid().cast_unsigned();
        let head: Option<i64> = tx
            .sql()
            .prepare_cached("SELECT max(seq) FROM journal")?
            .query_row([], |row| row.get(0))?;
        Ok((id, head.unwrap_or_default().cast_unsigned()))
    })
    .await
}

/// Notes what its worker calls it.
pub(super) async fn name(db: &Db, id: u64, job: String) -> Result<(), StoreError> {
    db.write(move |tx| {
        tx.sql()
            .prepare_cached("UPDATE open_commands SET job = ? WHERE id = ?")?
            .execute((job, id.cast_signed()))?;
        Ok(())
    })
    .await
}

/// Ends it with a row of the journal, or without one when it never ran. `None` when it has ended
/// before.
pub(super) async fn end(
    db: &Db,
    id: Option<u64>,
    session: u64,
    row: Option<Value>,
) -> Result<Option<u64>, StoreError> {
    db.write(move |tx| end_in(tx, id, session, row)).await
}

fn end_in(
    tx: &mut WriteTx<'_>,
    id: Option<u64>,
    session: u64,
    row: Option<Value>,
) -> Result<Option<u64>, StoreError> {
    if let Some(id) = id {
        let ended = tx
            .sql()
            .prepare_cached("DELETE FROM open_commands WHERE id = ?")?
            .execute([id.cast_signed()])?;
        if ended == 0 {
            return Ok(None);
        }
    }
    let Some(row) = row else { return Ok(None) };
    let entry = Entry::new(Kind::Command, &row).in_session(session);
    tx.append(entry).map(Some)
}

/// Those that an earlier daemon has not ended, the oldest first.
pub(super) fn interrupted(connection: &Connection) -> Result<Vec<Interrupted>, StoreError> {
    let mut statement = connection.prepare(
        "SELECT it.id, it.session, it.worker, it.job, it.command, it.cwd, it.before, it.author,
                it.tool, sessions.workspace
         FROM open_commands AS it JOIN sessions ON sessions.id = it.session ORDER BY it.id",
    )?;
    let rows = statement.query_map([], interrupted_from)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn interrupted_from(row: &Row<'_>) -> rusqlite::Result<Interrupted> {
    Ok(Interrupted {
        id: row.get::<_, i64>(0)?.cast_unsigned(),
        open: OpenCommand {
            session: row.get::<_, i64>(1)?.cast_unsigned(),
            worker: row.get(2)?,
            job: row.get(3)?,
            command: row.get(4)?,
            cwd: row.get(5)?,
            before: row.get::<_, i64>(6)?.cast_unsigned(),
            author: row.get(7)?,
            tool: row.get(8)?,
        },
        folder: row.get(9)?,
    })
}

/// The command that a worker kept through a restart, by its name there, with its row's number.
pub(super) fn left(
    connection: &Connection,
    session: u64,
    job: &str,
) -> Result<Option<(u64, OpenCommand)>, StoreError> {
    let found: Option<(i64, String)> = connection
        .prepare_cached(
            "SELECT seq, data FROM journal
             WHERE session = ? AND kind = ? AND json_extract(data, '$.job') = ?
             ORDER BY seq DESC LIMIT 1",
        )?
        .query_row(
            (session.cast_signed(), Kind::Command.as_str(), job),
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let Some((seq, data)) = found else {
        return Ok(None);
    };
    let data: Value = serde_json::from_str(&data).unwrap_or_default();
    let text = |key: &str| data[key].as_str().map(str::to_owned);
    let open = OpenCommand {
        session,
        worker: text("worker").unwrap_or_default(),
        job: job.to_owned(),
        command: text("command").unwrap_or_default(),
        cwd: text("cwd"),
        before: data["before"].as_u64().unwrap_or_default(),
        author: text("author"),
        tool: None,
    };
    Ok(Some((seq.cast_unsigned(), open)))
}
