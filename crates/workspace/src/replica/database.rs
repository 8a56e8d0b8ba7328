//! `replica.db`: what a replica must not forget.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, Row, Transaction, params};

use crate::content::small;
use crate::history::{HistoryError, meta, open_database, set_meta, wall_clock};
use crate::proto::manifest::Manifest;
use crate::proto::replica::{Base, JournalEntry, Restored, Settlement, bases_after};
use crate::proto::{ContentHash, Node, Operation, WorkspacePath};
use crate::tree::Seen;
use crate::tree::seen::{self, node_at, optional_node_at, path_at};

const FORMAT: i64 = 3;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS bases (
        path TEXT PRIMARY KEY,
        kind INTEGER NOT NULL, mode INTEGER NOT NULL, hash BLOB NOT NULL, size INTEGER NOT NULL,
        sequence INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS journal (
        local_seq INTEGER PRIMARY KEY,
        path TEXT NOT NULL,
        operation TEXT NOT NULL,
        new_path TEXT,
        kind INTEGER, mode INTEGER, hash BLOB, size INTEGER,
        base INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS conflicts (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        path TEXT NOT NULL,
        kind INTEGER, mode INTEGER, hash BLOB, size INTEGER,
        reason TEXT NOT NULL,
        at INTEGER NOT NULL
    );
    CREATE TABLE IF NOT EXISTS intents (
        path TEXT PRIMARY KEY,
        kind INTEGER, mode INTEGER, hash BLOB, size INTEGER,
        sequence INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS intended (id INTEGER PRIMARY KEY, items BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS manifests (hash BLOB PRIMARY KEY, json TEXT NOT NULL) WITHOUT ROWID;
";

/// A write that the master refused; its bytes are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its number.
    pub id: u64,
    /// The path.
    pub path: WorkspacePath,
    /// What the path held; `None` when it had been removed.
    pub node: Option<Node>,
    /// Why the master refused it.
    pub reason: String,
    /// When, in milliseconds since 1970.
    pub at_millis: i64,
}

pub(super) struct ReplicaDatabase {
    db: Connection,
    path: PathBuf,
}

impl ReplicaDatabase {
    pub(super) fn open(path: &Path) -> Result<Self, HistoryError> {
        let schema = [SCHEMA, small::SCHEMA, seen::SCHEMA];
        let db = open_database(path, &schema, &[(1, seen::FROM_FORMAT_1)], FORMAT)?;
        let database = Self {
            db,
            path: path.to_owned(),
        };
        // A replica of the same name may have been here before and is forgotten;
        // the master still knows its numbers. No replica numbers more than one
        // change a microsecond, so the clock is ahead of all of them.
        let first = wall_clock().saturating_mul(1_000);
        database.read(|db| {
            db.execute(
                "INSERT OR IGNORE INTO meta VALUES ('next_local_seq', ?1)",
                [first],
            )
        })?;
        Ok(database)
    }

    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, HistoryError> {
        work(&self.db).map_err(|source| HistoryError::Sqlite {
            path: self.path.clone(),
            source,
        })
    }

    /// One transaction. What the master would tell us again need not survive a
    /// power cut; what only we know must.
    pub(super) fn transact<T>(
        &mut self,
        durable: Durable,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, HistoryError> {
        let level = match durable {
            Durable::Yes => "FULL",
            Durable::No => "NORMAL",
        };
        let run = |db: &mut Connection| {
            db.pragma_update(None, "synchronous", level)?;
            let transaction = db.transaction()?;
            let done = work(&transaction)?;
            transaction.commit()?;
            Ok(done)
        };
        let path = &self.path;
        run(&mut self.db).map_err(|source| HistoryError::Sqlite {
            path: path.clone(),
            source,
        })
    }

    /// What the state machine starts from. `seen` is what the tree last held.
    pub(super) fn restore(
        &self,
        seen: &HashMap<WorkspacePath, Node>,
    ) -> Result<Restored, HistoryError> {
        self.read(|db| {
            let mut bases = BTreeMap::new();
            let mut select =
                db.prepare("SELECT path, kind, mode, hash, size, sequence FROM bases")?;
            let mut rows = select.query([])?;
            while let Some(row) = rows.next()? {
                let sequence = row.get::<_, i64>(5)?.cast_unsigned();
                bases.insert(
                    path_at(row, 0)?,
                    Base {
                        sequence,
                        node: node_at(row, 1)?,
                    },
                );
            }
            let journal = read_journal(db)?;
            let differing = seen
                .iter()
                .filter(|(path, node)| bases.get(*path).map(|base| &base.node) != Some(*node))
                .map(|(path, _)| path)
                .chain(bases.keys().filter(|path| !seen.contains_key(*path)))
                .cloned()
                .collect();
            Ok(Restored {
                applied: meta(db, "applied")?.cast_unsigned(),
                resyncing: meta(db, "resyncing")? != 0,
                next_local_seq: meta(db, "next_local_seq")?.cast_unsigned(),
                bases,
                differing,
                journal,
            })
        })
    }

    pub(super) fn conflicts(&self) -> Result<Vec<Conflict>, HistoryError> {
        self.read(|db| {
            let mut select = db.prepare(
                "SELECT id, path, kind, mode, hash, size, reason, at FROM conflicts ORDER BY id",
            )?;
            let rows = select.query_map([], |row| {
                Ok(Conflict {
                    id: row.get::<_, i64>(0)?.cast_unsigned(),
                    path: path_at(row, 1)?,
                    node: optional_node_at(row, 2)?,
                    reason: row.get(6)?,
                    at_millis: row.get(7)?,
                })
            })?;
            rows.collect()
        })
    }

    /// Contents that unanswered and refused writes need.
    pub(super) fn needed_contents(&self) -> Result<HashSet<ContentHash>, HistoryError> {
        self.read(|db| {
            let mut select = db.prepare(
                "SELECT hash FROM journal WHERE hash IS NOT NULL UNION SELECT hash FROM conflicts WHERE hash IS NOT NULL",
            )?;
            let rows = select.query_map([], |row| row.get(0))?;
            rows.collect()
        })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Durable {
    Yes,
    No,
}

fn read_journal(db: &Connection) -> rusqlite::Result<Vec<JournalEntry>> {
    let mut select = db.prepare(
        "SELECT local_seq, path, operation, new_path, kind, mode, hash, size, base FROM journal ORDER BY local_seq",
    )?;
    let rows = select.query_map([], |row| {
        let node = optional_node_at(row, 4)?;
        Ok(JournalEntry {
            local_seq: row.get::<_, i64>(0)?.cast_unsigned(),
            path: path_at(row, 1)?,
            operation: operation_at(row, node.as_ref())?,
            node,
            base: row.get::<_, i64>(8)?.cast_unsigned(),
        })
    })?;
    rows.collect()
}

fn operation_at(row: &Row<'_>, node: Option<&Node>) -> rusqlite::Result<Operation> {
    let name: String = row.get(2)?;
    Ok(match (name.as_str(), node) {
        ("write", Some(node)) => Operation::Write(node.clone()),
        ("chmod", Some(node)) => Operation::Chmod(node.mode),
        ("rename", _) => Operation::Rename(path_at(row, 3)?),
        _ => Operation::Delete,
    })
}

pub(super) fn put_base(
    db: &Connection,
    path: &WorkspacePath,
    base: Option<&Base>,
) -> rusqlite::Result<()> {
    let Some(Base { sequence, node }) = base else {
        db.prepare_cached("DELETE FROM bases WHERE path = ?1")?
            .execute([path.as_str()])?;
        return Ok(());
    };
    db.prepare_cached("INSERT OR REPLACE INTO bases VALUES (?1, ?2, ?3, ?4, ?5, ?6)")?
        .execute(params![
            path.as_str(),
            node.kind,
            node.mode,
            node.hash,
            node.size.cast_signed(),
            sequence.cast_signed(),
        ])?;
    Ok(())
}

/// Of what is known of paths, no sequence is the master's any more.
pub(super) fn forget_sequences(db: &Transaction<'_>) -> rusqlite::Result<()> {
    set_meta(db, "applied", 0)?;
    db.execute("UPDATE bases SET sequence = 0", [])?;
    db.execute("UPDATE journal SET base = 0", [])?;
    Ok(())
}

/// Nor is anything known of what the master has.
pub(super) fn begin_anew(db: &Transaction<'_>) -> rusqlite::Result<()> {
    forget_sequences(db)?;
    set_meta(db, "resyncing", 1)
}

/// A folder that had to be made for something in it, before the master named it.
pub(super) fn put_implied(
    db: &Connection,
    path: &WorkspacePath,
    seen: Option<&Seen>,
) -> rusqlite::Result<()> {
    let Some(seen) = seen.filter(|seen| seen.node.is_directory()) else {
        return Ok(());
    };
    let node = Node::directory(0o755);
    let made = db
        .prepare_cached(
            "INSERT OR IGNORE INTO bases SELECT ?1, ?2, ?3, ?4, ?5, 0 \
             WHERE NOT EXISTS (SELECT 1 FROM journal WHERE path = ?1)",
        )?
        .execute(params![
            path.as_str(),
            node.kind,
            node.mode,
            node.hash,
            node.size.cast_signed()
        ])?;
    if made > 0 {
        seen::put(db, path, Some(seen))
    } else {
        Ok(())
    }
}

pub(super) fn put_journal(db: &Connection, entry: &JournalEntry) -> rusqlite::Result<()> {
    let (operation, new_path) = match &entry.operation {
        Operation::Write(_) => ("write", None),
        Operation::Delete => ("delete", None),
        Operation::Chmod(_) => ("chmod", None),
        Operation::Rename(to) => ("rename", Some(to.as_str())),
    };
    let node = entry.node.as_ref();
    db.prepare_cached("INSERT INTO journal VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?
        .execute(params![
            entry.local_seq.cast_signed(),
            entry.path.as_str(),
            operation,
            new_path,
            node.map(|node| node.kind),
            node.map(|node| node.mode),
            node.map(|node| node.hash),
            node.map(|node| node.size.cast_signed()),
            entry.base.cast_signed(),
        ])?;
    set_meta(db, "next_local_seq", (entry.local_seq + 1).cast_signed())
}

pub(super) fn settle(db: &Connection, settlement: &Settlement) -> rusqlite::Result<()> {
    let entry = &settlement.entry;
    db.prepare_cached("DELETE FROM journal WHERE local_seq = ?1")?
        .execute([entry.local_seq.cast_signed()])?;
    if let Ok(sequence) = settlement.result {
        for (path, node) in bases_after(entry) {
            let base = node.map(|node| Base { sequence, node });
            put_base(db, &path, base.as_ref())?;
        }
    }
    Ok(())
}

/// Keeps a refused write, of which the content is here.
pub(super) fn put_conflict(
    db: &Connection,
    entry: &JournalEntry,
    reason: &str,
) -> rusqlite::Result<()> {
    let path = match &entry.operation {
        Operation::Rename(to) => to,
        _ => &entry.path,
    };
    let node = entry.node.as_ref();
    db.prepare_cached(
        "INSERT INTO conflicts (path, kind, mode, hash, size, reason, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
    )?
    .execute(params![
        path.as_str(),
        node.map(|node| node.kind),
        node.map(|node| node.mode),
        node.map(|node| node.hash),
        node.map(|node| node.size.cast_signed()),
        reason,
        wall_clock(),
    ])?;
    Ok(())
}

/// Removes small contents that neither an unanswered nor a refused write needs.
pub(super) fn drop_unneeded(db: &Connection) -> rusqlite::Result<()> {
    db.execute(
        "DELETE FROM content WHERE NOT EXISTS (SELECT 1 FROM journal WHERE journal.hash = content.hash) \
         AND NOT EXISTS (SELECT 1 FROM conflicts WHERE conflicts.hash = content.hash)",
        [],
    )?;
    Ok(())
}

/// The chunks of a large content that is or was in the tree, so that they need
/// not be found again when the next version comes.
pub(super) fn put_manifest(
    db: &Connection,
    hash: &ContentHash,
    manifest: &Manifest,
) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO manifests VALUES (?1, ?2)")?
        .execute(params![hash, manifest.to_json()])?;
    // Only what some path holds is of use.
    db.prepare_cached(
        "DELETE FROM manifests WHERE hash <> ?1 AND hash NOT IN (SELECT hash FROM bases)",
    )?
    .execute([hash])?;
    Ok(())
}

pub(super) fn manifest(db: &Connection, node: &Node) -> rusqlite::Result<Option<Manifest>> {
    let mut select = db.prepare_cached("SELECT json FROM manifests WHERE hash = ?1")?;
    let mut rows = select.query([node.hash])?;
    match rows.next()? {
        Some(row) => Ok(Manifest::parse(&row.get::<_, String>(0)?, node.size).ok()),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_of_another_history_are_forgotten_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("replica.db");
        let mut db = ReplicaDatabase::open(&path).unwrap();
        let file = WorkspacePath::parse("f").unwrap();
        let node = Node::file(0o644, b"f");
        let base = Base {
            sequence: 20,
            node: node.clone(),
        };
        let entry = JournalEntry {
            local_seq: 7,
            path: file.clone(),
            operation: Operation::Delete,
            node: None,
            base: 20,
        };
        db.transact(Durable::Yes, |db| {
            set_meta(db, "applied", 20)?;
            put_base(db, &file, Some(&base))?;
            put_journal(db, &entry)
        })
        .unwrap();
        db.transact(Durable::Yes, forget_sequences).unwrap();
        drop(db);
        let db = ReplicaDatabase::open(&path).unwrap();
        let restored = db.restore(&HashMap::new()).unwrap();
        let base = Base { sequence: 0, node };
        assert_eq!(restored.applied, 0);
        assert_eq!(restored.bases, BTreeMap::from([(file, base)]));
        assert_eq!(restored.journal, [JournalEntry { base: 0, ..entry }]);
        assert_eq!(restored.next_local_seq, 8);
    }
}
