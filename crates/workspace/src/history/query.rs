//! Reading the past.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};

use super::HistoryError;
use crate::content::{SMALL, small};
use crate::past::Version;
use crate::proto::{ChangeKind, ContentHash, Node, WorkspacePath};
use crate::tree::seen;

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// Its number.
    pub sequence: u64,
    /// The path.
    pub path: WorkspacePath,
    /// What was done.
    pub change: ChangeKind,
    /// What the path holds since.
    pub node: Option<Node>,
    /// Size of the version before it.
    pub previous_size: Option<u64>,
    /// Who did it: the master's own name or a replica's.
    pub author: String,
    /// When, in milliseconds since 1970.
    pub at_millis: i64,
    /// Where it came from, for a rename.
    pub renamed_from: Option<WorkspacePath>,
}

/// What is in a folder under one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// The last part of its path.
    pub name: String,
    /// What it is.
    pub node: Node,
    /// The sequence it is so since.
    pub sequence: u64,
}

/// Which part of the log is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogQuery {
    /// Only this path and what is beneath it.
    pub path: Option<WorkspacePath>,
    /// Only after this sequence.
    pub after: u64,
    /// Only up to this sequence.
    pub through: Option<u64>,
    /// Only by this author.
    pub author: Option<String>,
    /// At most so many, the newest ones.
    pub limit: Option<u32>,
}

/// A name for a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The name.
    pub name: String,
    /// What it stands for.
    pub sequence: u64,
    /// When it was made, in milliseconds since 1970.
    pub at_millis: i64,
}

/// A text that cannot name a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} {reason}; choose another name, such as before-refactor")]
pub struct UnfitName {
    /// The text.
    pub name: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

impl Checkpoint {
    /// Whether people can say the name wherever a state is asked for: alone, in `A..B` and
    /// `PATH@STATE`, and as a folder of a mounted history.
    pub fn check_name(name: &str) -> Result<(), UnfitName> {
        const LONGEST: usize = 255;
        let reason = if name.is_empty() || name == "now" || name.parse::<u64>().is_ok() {
            "can't be told from a state that is no checkpoint"
        } else if name.contains(char::is_control) || name.trim() != name {
            "has a control character in it, or a space around it"
        } else if name.contains(['/', '@']) || name.contains("..") || name == "." {
            "has a / or @ or .. in it, which has a meaning of its own where states are named"
        } else if name.len() > LONGEST {
            "is longer than 255 bytes"
        } else {
            return Ok(());
        };
        Err(UnfitName {
            name: name.to_owned(),
            reason,
        })
    }
}

/// What a history takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SizeReport {
    /// Recorded changes that are kept.
    pub versions: u64,
    /// Distinct contents that they refer to.
    pub contents: u64,
    /// Sum of those contents, uncompressed.
    pub content_bytes: u64,
    /// Small contents inside the database, as stored.
    pub small_bytes: u64,
    /// The database and its write-ahead log.
    pub database_bytes: u64,
    /// Deletions up to here are forgotten; what is older cannot be restored.
    pub floor: u64,
}

/// A reader beside the writer.
#[derive(Debug)]
pub struct HistoryReader {
    db: Connection,
    path: PathBuf,
}

const COLUMNS: &str = "sequence, path, change, kind, mode, hash, size, author, at, renamed_from";

impl HistoryReader {
    /// Opens an existing history for reading.
    pub fn open(path: &Path) -> Result<Self, HistoryError> {
        let sqlite = |source| HistoryError::Sqlite {
            path: path.to_owned(),
            source,
        };
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(path, flags).map_err(sqlite)?;
        db.busy_timeout(Duration::from_secs(30)).map_err(sqlite)?;
        Ok(Self {
            db,
            path: path.to_owned(),
        })
    }

    fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, HistoryError> {
        work(&self.db).map_err(|source| HistoryError::Sqlite {
            path: self.path.clone(),
            source,
        })
    }

    /// Does several reads in one transaction: they see the same state, and the
    /// database is locked once and not for each.
    pub(crate) fn together<T>(
        &self,
        work: impl FnOnce(&Self) -> Result<T, HistoryError>,
    ) -> Result<T, HistoryError> {
        let transaction =
            self.db
                .unchecked_transaction()
                .map_err(|source| HistoryError::Sqlite {
                    path: self.path.clone(),
                    source,
                })?;
        let done = work(self)?;
        drop(transaction);
        Ok(done)
    }

    /// Lines of the log, ascending.
    pub fn log(&self, query: &LogQuery) -> Result<Vec<LogEntry>, HistoryError> {
        let range = query.path.as_ref().map(WorkspacePath::beneath_range);
        self.read(|db| {
            let mut select = db.prepare_cached(&format!(
                "SELECT {COLUMNS}, (SELECT size FROM versions AS older WHERE older.path = versions.path \
                 AND older.sequence < versions.sequence ORDER BY older.sequence DESC LIMIT 1) \
                 FROM versions WHERE sequence > ?1 AND sequence <= ?2 \
                 AND (?3 IS NULL OR path = ?3 OR (path >= ?4 AND path < ?5)) \
                 AND (?7 IS NULL OR author = ?7) ORDER BY sequence DESC LIMIT ?6"
            ))?;
            let rows = select.query_map(
                params![
                    query.after.cast_signed(),
                    query.through.map_or(i64::MAX, u64::cast_signed),
                    query.path.as_ref().map(WorkspacePath::as_str),
                    range.as_ref().map(|range| range.start.as_str()),
                    range.as_ref().map(|range| range.end.as_str()),
                    query.limit.map_or(-1, i64::from),
                    query.author,
                ],
                log_entry,
            )?;
            let mut entries = rows.collect::<rusqlite::Result<Vec<_>>>()?;
            entries.reverse();
            Ok(entries)
        })
    }

    /// The tree as it was right after a sequence, or a part of it.
    pub fn tree_at(
        &self,
        sequence: u64,
        beneath: Option<&WorkspacePath>,
    ) -> Result<BTreeMap<WorkspacePath, Node>, HistoryError> {
        let range = beneath.map(WorkspacePath::beneath_range);
        self.read(|db| {
            let mut select = db.prepare_cached(
                "SELECT path, max(sequence), kind, mode, hash, size FROM versions WHERE sequence <= ?1 \
                 AND (?2 IS NULL OR path = ?2 OR (path >= ?3 AND path < ?4)) GROUP BY path",
            )?;
            let mut rows = select.query(params![
                sequence.cast_signed(),
                beneath.map(WorkspacePath::as_str),
                range.as_ref().map(|range| range.start.as_str()),
                range.as_ref().map(|range| range.end.as_str()),
            ])?;
            let mut tree = BTreeMap::new();
            while let Some(row) = rows.next()? {
                if let Some(node) = seen::optional_node_at(row, 2)? {
                    tree.insert(seen::path_at(row, 0)?, node);
                }
            }
            Ok(tree)
        })
    }

    /// What is directly in a folder right after a sequence; in the root without one.
    pub fn children_at(
        &self,
        sequence: u64,
        folder: Option<&WorkspacePath>,
    ) -> Result<Vec<Child>, HistoryError> {
        let range = folder.map(WorkspacePath::beneath_range);
        let above = range.as_ref().map_or("", |range| range.start.as_str());
        self.read(|db| {
            let mut select = db.prepare_cached(
                "SELECT path, max(sequence), kind, mode, hash, size FROM versions \
                 WHERE sequence <= ?1 AND (?3 IS NULL OR (path >= ?2 AND path < ?3)) \
                 AND instr(substr(path, length(?2) + 1), '/') = 0 GROUP BY path",
            )?;
            let mut rows = select.query(params![
                sequence.cast_signed(),
                above,
                range.as_ref().map(|range| range.end.as_str()),
            ])?;
            let mut children = Vec::new();
            while let Some(row) = rows.next()? {
                if let Some(node) = seen::optional_node_at(row, 2)? {
                    let path = seen::path_at(row, 0)?;
                    children.push(Child {
                        name: path.as_str()[above.len()..].to_owned(),
                        sequence: row.get::<_, i64>(1)?.cast_unsigned(),
                        node,
                    });
                }
            }
            Ok(children)
        })
    }

    /// The same for the whole tree, with the time of each version.
    pub fn versions_at(
        &self,
        sequence: u64,
    ) -> Result<BTreeMap<WorkspacePath, Version>, HistoryError> {
        self.read(|db| {
            let mut select = db.prepare_cached(
                "SELECT path, max(sequence), kind, mode, hash, size, at FROM versions \
                 WHERE sequence <= ?1 GROUP BY path",
            )?;
            let mut rows = select.query([sequence.cast_signed()])?;
            let mut tree = BTreeMap::new();
            while let Some(row) = rows.next()? {
                if let Some(node) = seen::optional_node_at(row, 2)? {
                    let at_millis = row.get(6)?;
                    tree.insert(seen::path_at(row, 0)?, Version { node, at_millis });
                }
            }
            Ok(tree)
        })
    }

    /// What one path held right after a sequence.
    pub fn node_at(
        &self,
        path: &WorkspacePath,
        sequence: u64,
    ) -> Result<Option<Node>, HistoryError> {
        self.read(|db| {
            let node = db
                .prepare_cached(
                    "SELECT kind, mode, hash, size FROM versions WHERE path = ?1 AND sequence <= ?2 \
                     ORDER BY sequence DESC LIMIT 1",
                )?
                .query_row(params![path.as_str(), sequence.cast_signed()], |row| seen::optional_node_at(row, 0))
                .optional()?;
            Ok(node.flatten())
        })
    }

    /// Paths that changed after `after` and up to `through`.
    pub fn changed_between(
        &self,
        after: u64,
        through: u64,
    ) -> Result<Vec<WorkspacePath>, HistoryError> {
        self.read(|db| {
            let mut select = db.prepare_cached(
                "SELECT DISTINCT path FROM versions WHERE sequence > ?1 AND sequence <= ?2 ORDER BY path",
            )?;
            let rows = select
                .query_map([after.cast_signed(), through.cast_signed()], |row| seen::path_at(row, 0))?;
            rows.collect()
        })
    }

    /// The last sequence that was recorded at or before a time.
    pub fn sequence_at(&self, at_millis: i64) -> Result<Option<u64>, HistoryError> {
        self.read(|db| {
            let sequence: Option<i64> = db.query_row(
                "SELECT max(sequence) FROM versions WHERE at <= ?1",
                [at_millis],
                |row| row.get(0),
            )?;
            Ok(sequence.map(i64::cast_unsigned))
        })
    }

    /// Every checkpoint, oldest first.
    pub fn checkpoints(&self) -> Result<Vec<Checkpoint>, HistoryError> {
        self.read(|db| {
            let mut select = db.prepare_cached(
                "SELECT name, sequence, at FROM checkpoints ORDER BY sequence, name",
            )?;
            let rows = select.query_map([], |row| {
                Ok(Checkpoint {
                    name: row.get(0)?,
                    sequence: row.get::<_, i64>(1)?.cast_unsigned(),
                    at_millis: row.get(2)?,
                })
            })?;
            rows.collect()
        })
    }

    /// The sequence through which deletions are forgotten.
    pub fn floor(&self) -> Result<u64, HistoryError> {
        self.read(|db| Ok(super::meta(db, "floor")?.cast_unsigned()))
    }

    /// A small content.
    pub fn small_content(&self, hash: &ContentHash) -> Result<Option<Vec<u8>>, HistoryError> {
        self.read(|db| small::get(db, hash))
    }

    /// Whether a small content is there.
    pub fn has_small_content(&self, hash: &ContentHash) -> Result<bool, HistoryError> {
        self.read(|db| small::has(db, hash))
    }

    /// Versions that refer to a content, as `PATH@SEQUENCE`, newest first.
    pub fn versions_with(
        &self,
        hash: &ContentHash,
        limit: u32,
    ) -> Result<Vec<String>, HistoryError> {
        self.read(|db| {
            let mut select = db.prepare_cached(
                "SELECT path || '@' || sequence FROM versions WHERE hash = ?1 \
                 ORDER BY sequence DESC LIMIT ?2",
            )?;
            let rows = select.query_map(params![hash, limit], |row| row.get(0))?;
            rows.collect()
        })
    }

    /// Every content that versions refer to.
    pub fn references(&self) -> Result<HashSet<ContentHash>, HistoryError> {
        self.read(|db| {
            let mut select = db.prepare_cached(
                "SELECT DISTINCT hash FROM versions WHERE hash IS NOT NULL AND kind <> 1",
            )?;
            let rows = select.query_map([], |row| row.get(0))?;
            rows.collect()
        })
    }

    /// Contents of the store that versions after a sequence refer to, and the
    /// newest sequence that was looked at.
    pub(crate) fn stored_after(
        &self,
        sequence: u64,
    ) -> Result<(u64, Vec<ContentHash>), HistoryError> {
        self.read(|db| {
            let newest: Option<i64> = db
                .prepare_cached("SELECT max(sequence) FROM versions")?
                .query_row([], |row| row.get(0))?;
            let mut select = db.prepare_cached(
                "SELECT DISTINCT hash FROM versions WHERE sequence > ?1 AND size > ?2 AND kind = 0",
            )?;
            let rows = select.query_map([sequence.cast_signed(), SMALL.cast_signed()], |row| {
                row.get(0)
            })?;
            let newest = newest.unwrap_or(0).cast_unsigned();
            Ok((newest.max(sequence), rows.collect::<rusqlite::Result<_>>()?))
        })
    }

    /// What the history takes.
    pub fn sizes(&self) -> Result<SizeReport, HistoryError> {
        let mut log = self.path.clone().into_os_string();
        log.push("-wal");
        let length = |path: &Path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let database_bytes = length(&self.path) + length(Path::new(&log));
        self.read(|db| {
            let number = |sql: &str| db.query_row(sql, [], |row| row.get::<_, Option<i64>>(0));
            let count = |sql: &str| number(sql).map(|value| value.unwrap_or(0).cast_unsigned());
            let distinct =
                "(SELECT DISTINCT hash, size FROM versions WHERE hash IS NOT NULL AND kind <> 1)";
            Ok(SizeReport {
                versions: count("SELECT count(*) FROM versions")?,
                contents: count(&format!("SELECT count(*) FROM {distinct}"))?,
                content_bytes: count(&format!("SELECT sum(size) FROM {distinct}"))?,
                small_bytes: count("SELECT sum(length(data)) FROM content")?,
                database_bytes,
                floor: super::meta(db, "floor")?.cast_unsigned(),
            })
        })
    }
}

fn log_entry(row: &Row<'_>) -> rusqlite::Result<LogEntry> {
    let change: String = row.get(2)?;
    let renamed_from: Option<String> = row.get(9)?;
    Ok(LogEntry {
        sequence: row.get::<_, i64>(0)?.cast_unsigned(),
        path: seen::path_at(row, 1)?,
        change: ChangeKind::parse(&change).unwrap_or(ChangeKind::Write),
        node: seen::optional_node_at(row, 3)?,
        author: row.get(7)?,
        at_millis: row.get(8)?,
        renamed_from: renamed_from.and_then(|path| WorkspacePath::parse(&path).ok()),
        previous_size: row.get::<_, Option<i64>>(10)?.map(i64::cast_unsigned),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_said_where_states_are_is_refused() {
        for unfit in [
            "",
            "now",
            "7",
            "+7",
            " 7",
            "a ",
            "a\nb",
            "x/y",
            "a..b",
            "..",
            ".",
            "v@1",
            "\u{1b}[2J",
        ] {
            assert!(Checkpoint::check_name(unfit).is_err(), "{unfit:?}");
        }
        assert!(Checkpoint::check_name(&"n".repeat(256)).is_err());
        for fit in [
            "v1",
            "before-refactor",
            "snapshot of today",
            "1.0",
            "v.",
            "\u{fc}",
        ] {
            assert_eq!(Checkpoint::check_name(fit), Ok(()));
        }
    }
}
