//! The history of a workspace: `history.db`, SQLite in WAL mode.
//!
//! One row of `versions` is one recorded change; its key is its sequence:
//! gapless, workspace-wide, never used twice. A sequence is told to nobody
//! before its row is on disk (`synchronous = FULL`): a number that a power cut
//! took back would be given to something else.
//!
//! `answers` remembers what became of each `(sandbox_id, local_seq)`, with a digest
//! of what was asked and the base that it was made on: a replica that was made anew
//! under an old name may begin to count again, and its entries are not the ones that
//! were answered. `intents` names changes of replicas that are being put in place, so
//! that a crash in between does not attribute them to the master's own side. `content`
//! holds small contents, `seen` what the tree looked like ([`crate::tree`]).

mod prune;
mod query;

pub use prune::{PrunePolicy, PruneReport};
pub use query::{Checkpoint, Child, HistoryReader, LogEntry, LogQuery, SizeReport, UnfitName};

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Transaction, params};

use crate::content::small;
use crate::proto::ledger::Latest;
use crate::proto::{Author, ChangeKind, ContentHash, Ledger, Node, WorkspacePath, WriteBackEntry};
use crate::tree::seen;

/// The history cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// SQLite said no.
    #[error("{path}: {source}")]
    Sqlite {
        /// The database.
        path: PathBuf,
        /// What it said.
        source: rusqlite::Error,
    },
    /// It was written by a newer program.
    #[error("{path} has format {found}, this program knows up to {known}; use a newer one")]
    Version {
        /// The database.
        path: PathBuf,
        /// Its format.
        found: i64,
        /// The newest that is known.
        known: i64,
    },
}

impl HistoryError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Sqlite { source, .. }
            if source.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull))
    }
}

const FORMAT: i64 = 4;

/// What brings a history of each earlier format one further. An answer without a
/// digest or a base is given again as it was.
const UPGRADES: &[(i64, &str)] = &[
    (1, seen::FROM_FORMAT_1),
    (2, "ALTER TABLE answers ADD COLUMN digest BLOB;"),
    (3, "ALTER TABLE answers ADD COLUMN base INTEGER;"),
];

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS versions (
        sequence INTEGER PRIMARY KEY,
        path TEXT NOT NULL,
        change TEXT NOT NULL,
        kind INTEGER, mode INTEGER, hash BLOB, size INTEGER,
        author TEXT NOT NULL,
        is_sandbox INTEGER NOT NULL,
        at INTEGER NOT NULL,
        renamed_from TEXT
    );
    CREATE INDEX IF NOT EXISTS versions_by_path ON versions (path, sequence);
    CREATE TABLE IF NOT EXISTS answers (
        sandbox TEXT NOT NULL,
        local_seq INTEGER NOT NULL,
        sequence INTEGER,
        reason TEXT,
        digest BLOB,
        base INTEGER,
        PRIMARY KEY (sandbox, local_seq)
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS intents (
        path TEXT PRIMARY KEY,
        kind INTEGER, mode INTEGER, hash BLOB, size INTEGER,
        sandbox TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS checkpoints (
        name TEXT PRIMARY KEY,
        sequence INTEGER NOT NULL,
        at INTEGER NOT NULL
    ) WITHOUT ROWID;
";

/// A change to record.
#[derive(Clone, Debug)]
pub struct Record {
    /// The path.
    pub path: WorkspacePath,
    /// What it holds now.
    pub node: Option<Node>,
    /// How it is named in the log.
    pub change: ChangeKind,
    /// Where it came from, for a rename.
    pub from: Option<WorkspacePath>,
    /// Who made it.
    pub author: Author,
}

/// What was answered to a write-back entry.
pub type Answer = Result<u64, String>;

/// An answer, with the digest of the entry that it was given to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The answer.
    pub answer: Answer,
    /// Of the entry; `None` where that was not remembered yet.
    pub digest: Option<ContentHash>,
    /// The base of the entry; `None` where that was not remembered yet.
    pub base: Option<u64>,
}

impl Answered {
    /// What is remembered of an answer to this entry.
    pub fn to(entry: &WriteBackEntry, answer: Answer) -> Self {
        Self {
            answer,
            digest: Some(entry.digest()),
            base: Some(entry.base()),
        }
    }

    /// Whether it was given to this entry. Not to one that was made on something later than
    /// what the answer tells: that is another one, of a replica that counts from the same
    /// number again. One that is sent again can only have lost its base.
    pub fn is_for(&self, entry: &WriteBackEntry) -> bool {
        let through = |base: u64| self.answer.as_ref().map_or(base, |told| base.max(*told));
        self.digest.is_none_or(|digest| digest == entry.digest())
            && self.base.is_none_or(|base| entry.base() <= through(base))
    }
}

/// The writer of a history; there is one per workspace.
#[derive(Debug)]
pub struct History {
    db: Connection,
    path: PathBuf,
}

/// Opens a database of ours with the settings that all of them share.
pub(crate) fn open_database(
    path: &Path,
    schema: &[&str],
    upgrades: &[(i64, &str)],
    format: i64,
) -> Result<Connection, HistoryError> {
    let sqlite = |source| HistoryError::Sqlite {
        path: path.to_owned(),
        source,
    };
    let db = Connection::open(path).map_err(sqlite)?;
    db.busy_timeout(Duration::from_secs(30)).map_err(sqlite)?;
    // Of a new one: with small contents in it, the usual 4 KiB hold one or two rows.
    db.pragma_update(None, "page_size", 8_192).map_err(sqlite)?;
    db.pragma_update(None, "journal_mode", "WAL")
        .map_err(sqlite)?;
    db.pragma_update(None, "synchronous", "FULL")
        .map_err(sqlite)?;
    db.pragma_update(None, "journal_size_limit", 64 << 20)
        .map_err(sqlite)?;
    // A first look writes more than the usual thousand pages at once: they would all
    // be written twice while somebody waits for them.
    db.pragma_update(None, "wal_autocheckpoint", 4_096)
        .map_err(sqlite)?;
    db.pragma_update(None, "cache_size", -4_000)
        .map_err(sqlite)?;
    db.set_prepared_statement_cache_capacity(64);
    let found: i64 = db
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(sqlite)?;
    if found > format {
        return Err(HistoryError::Version {
            path: path.to_owned(),
            found,
            known: format,
        });
    }
    if found < format {
        let transaction = db.unchecked_transaction().map_err(sqlite)?;
        let due = upgrades
            .iter()
            .filter(|(from, _)| (1..=*from).contains(&found));
        for part in due.map(|(_, upgrade)| upgrade).chain(schema) {
            transaction.execute_batch(part).map_err(sqlite)?;
        }
        transaction
            .pragma_update(None, "user_version", format)
            .map_err(sqlite)?;
        transaction.commit().map_err(sqlite)?;
    }
    Ok(db)
}

impl History {
    /// Opens a history, making it if need be.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        let schema = [SCHEMA, small::SCHEMA, seen::SCHEMA];
        let db = open_database(path, &schema, UPGRADES, FORMAT)?;
        Ok(Self {
            db,
            path: path.to_owned(),
        })
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn db(&self) -> &Connection {
        &self.db
    }

    pub(crate) fn error(&self, source: rusqlite::Error) -> HistoryError {
        HistoryError::Sqlite {
            path: self.path.clone(),
            source,
        }
    }

    /// Runs something in one transaction.
    pub(crate) fn transact<T>(
        &mut self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, HistoryError> {
        let path = &self.path;
        let run = |db: &mut Connection| {
            let transaction = db.transaction()?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        run(&mut self.db).map_err(|source| HistoryError::Sqlite {
            path: path.clone(),
            source,
        })
    }

    /// The newest change of every path.
    pub fn load_ledger(&self) -> Result<Ledger, HistoryError> {
        self.read_ledger().map_err(|source| self.error(source))
    }

    fn read_ledger(&self) -> rusqlite::Result<Ledger> {
        let newest: Option<i64> =
            self.db
                .query_row("SELECT max(sequence) FROM versions", [], |row| row.get(0))?;
        let current = newest.unwrap_or(0).max(meta(&self.db, "current")?);
        let floor = meta(&self.db, "floor")?;
        let mut ledger = Ledger::new(current.cast_unsigned(), floor.cast_unsigned());
        let mut select = self.db.prepare(
            "SELECT path, max(sequence), kind, mode, hash, size, author, is_sandbox FROM versions GROUP BY path",
        )?;
        let mut rows = select.query([])?;
        while let Some(row) = rows.next()? {
            let name: String = row.get(6)?;
            let author = if row.get(7)? {
                Author::Sandbox(name.into())
            } else {
                Author::Local(name.into())
            };
            ledger.load(
                seen::path_at(row, 0)?,
                Latest {
                    sequence: row.get::<_, i64>(1)?.cast_unsigned(),
                    node: seen::optional_node_at(row, 2)?,
                    author,
                },
            );
        }
        Ok(ledger)
    }

    /// Answers that were given to a replica before.
    pub fn answers(
        &self,
        sandbox: &str,
        local_seqs: &[u64],
    ) -> Result<HashMap<u64, Answered>, HistoryError> {
        let read = || {
            let mut select = self.db.prepare_cached(
                "SELECT sequence, reason, digest, base FROM answers WHERE sandbox = ?1 AND local_seq = ?2",
            )?;
            let mut found = HashMap::new();
            for local_seq in local_seqs {
                let answer = select
                    .query_row(params![sandbox, local_seq.cast_signed()], |row| {
                        Ok(Answered {
                            answer: match row.get::<_, Option<i64>>(0)? {
                                Some(sequence) => Ok(sequence.cast_unsigned()),
                                None => Err(row.get(1)?),
                            },
                            digest: row.get(2)?,
                            base: row.get::<_, Option<i64>>(3)?.map(i64::cast_unsigned),
                        })
                    })
                    .optional()?;
                if let Some(answer) = answer {
                    found.insert(*local_seq, answer);
                }
            }
            Ok(found)
        };
        read().map_err(|source| self.error(source))
    }

    /// Changes of replicas that were being put in place when the program ended.
    pub(crate) fn take_intents(
        &mut self,
    ) -> Result<HashMap<WorkspacePath, (Option<Node>, String)>, HistoryError> {
        self.transact(|db| {
            let mut select =
                db.prepare("SELECT path, kind, mode, hash, size, sandbox FROM intents")?;
            let rows = select.query_map([], |row| {
                Ok((
                    seen::path_at(row, 0)?,
                    (seen::optional_node_at(row, 1)?, row.get(5)?),
                ))
            })?;
            let intents = rows.collect::<rusqlite::Result<_>>()?;
            db.execute("DELETE FROM intents", [])?;
            Ok(intents)
        })
    }
}

pub(crate) fn put_intent(
    db: &Connection,
    path: &WorkspacePath,
    node: Option<&Node>,
    sandbox: &str,
) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO intents VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            path.as_str(),
            node.map(|node| node.kind),
            node.map(|node| node.mode),
            node.map(|node| node.hash),
            node.map(|node| node.size.cast_signed()),
            sandbox,
        ])?;
    Ok(())
}

pub(crate) fn clear_intents(db: &Connection) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM intents")?.execute([])?;
    Ok(())
}

pub(crate) fn put_version(
    db: &Connection,
    sequence: u64,
    at: i64,
    record: &Record,
) -> rusqlite::Result<()> {
    let node = record.node.as_ref();
    db.prepare_cached(
        "INSERT INTO versions VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?
    .execute(params![
        sequence.cast_signed(),
        record.path.as_str(),
        record.change.name(),
        node.map(|node| node.kind),
        node.map(|node| node.mode),
        node.map(|node| node.hash),
        node.map(|node| node.size.cast_signed()),
        record.author.name(),
        matches!(record.author, Author::Sandbox(_)),
        at,
        record.from.as_ref().map(WorkspacePath::as_str),
    ])?;
    Ok(())
}

pub(crate) fn put_answer(
    db: &Connection,
    sandbox: &str,
    local_seq: u64,
    answered: &Answered,
) -> rusqlite::Result<()> {
    let (sequence, reason) = match &answered.answer {
        Ok(sequence) => (Some(sequence.cast_signed()), None),
        Err(reason) => (None, Some(reason)),
    };
    db.prepare_cached("INSERT OR REPLACE INTO answers VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            sandbox,
            local_seq.cast_signed(),
            sequence,
            reason,
            answered.digest,
            answered.base.map(u64::cast_signed),
        ])?;
    Ok(())
}

pub(crate) fn meta(db: &Connection, key: &str) -> rusqlite::Result<i64> {
    let value = db
        .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0));
    Ok(value.optional()?.unwrap_or(0))
}

pub(crate) fn set_meta(db: &Connection, key: &str, value: i64) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO meta VALUES (?1, ?2)")?
        .execute(params![key, value])?;
    Ok(())
}

/// When the next change is said to have been made, by a clock that says `now`.
/// One that was set back by less than a day, or to before the history begins, is
/// not believed: the time of the change before is better. Otherwise that one may
/// have been made while the clock was ahead, and must not hold up all others.
pub(crate) fn time_of_next(db: &Connection, now: i64) -> rusqlite::Result<i64> {
    const DAY: i64 = 24 * 60 * 60 * 1_000;
    let at = |order: &str| {
        db.prepare_cached(&format!(
            "SELECT at FROM versions ORDER BY sequence {order} LIMIT 1"
        ))?
        .query_row([], |row| row.get::<_, i64>(0))
        .optional()
    };
    let (Some(oldest), Some(newest)) = (at("ASC")?, at("DESC")?) else {
        return Ok(now);
    };
    let is_behind = now < newest && (newest.saturating_sub(now) < DAY || now < oldest);
    Ok(if is_behind { newest } else { now })
}

/// Milliseconds since 1970, for the log and for the age of versions. A clock that
/// jumps changes what the log says, never what is sent.
pub(crate) fn wall_clock() -> i64 {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_of_format_1_is_taken_over_and_what_it_saw_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.db");
        let old = Connection::open(&path).unwrap();
        old.execute_batch(
            "CREATE TABLE seen (
                path TEXT PRIMARY KEY, kind INTEGER NOT NULL, mode INTEGER NOT NULL,
                hash BLOB NOT NULL, size INTEGER NOT NULL, inode INTEGER NOT NULL,
                length INTEGER NOT NULL, mtime INTEGER NOT NULL
            ) WITHOUT ROWID;
            INSERT INTO seen VALUES ('f', 0, 420, zeroblob(32), 1, 7, 1, 9);
            CREATE TABLE answers (
                sandbox TEXT NOT NULL, local_seq INTEGER NOT NULL, sequence INTEGER, reason TEXT,
                PRIMARY KEY (sandbox, local_seq)
            ) WITHOUT ROWID;
            INSERT INTO answers VALUES ('one', 1, 7, NULL);
            PRAGMA user_version = 1;",
        )
        .unwrap();
        drop(old);
        for _ in 0..2 {
            let history = History::open(&path).unwrap();
            let seen = seen::load(history.db()).unwrap();
            let (_, seen) = seen.first().unwrap();
            assert_eq!((seen.fingerprint.mtime, seen.fingerprint.ctime), (9, 0));
            let answers = history.answers("one", &[1]).unwrap();
            let kept = Answered {
                answer: Ok(7),
                digest: None,
                base: None,
            };
            assert_eq!(answers, HashMap::from([(1, kept)]));
        }
    }
}
