//! Forgetting the past, by a stated policy and with a report.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::{History, HistoryError, meta, set_meta, wall_clock};

/// What may be forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrunePolicy {
    /// Versions that were replaced longer ago than this.
    pub older_than: Option<Duration>,
    /// The oldest replaced versions, until all contents together are no larger.
    pub larger_than: Option<u64>,
}

/// What was forgotten. Content on disk is freed by the next collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneReport {
    /// Versions that were removed from the log.
    pub versions: u64,
    /// Contents that nothing refers to any more.
    pub contents: u64,
    /// Their size, uncompressed.
    pub content_bytes: u64,
    /// What is older than this cannot be restored any more.
    pub floor: u64,
    /// Size of all contents that are kept, uncompressed.
    pub kept_bytes: u64,
}

impl History {
    /// Removes replaced versions. What the tree holds now, and what it held at
    /// each checkpoint, always stays.
    pub fn prune(&mut self, policy: &PrunePolicy) -> Result<PruneReport, HistoryError> {
        self.transact(|db| {
            let before = contents(db)?;
            let current: i64 = db.query_row("SELECT coalesce(max(sequence), 0) FROM versions", [], |row| row.get(0))?;
            let current = current.max(meta(db, "current")?);
            let mut floor = meta(db, "floor")?;
            let mut versions = 0;
            if let Some(age) = policy.older_than {
                let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
                let old: Option<i64> = db.query_row(
                    "SELECT max(sequence) FROM versions WHERE at <= ?1",
                    [wall_clock().saturating_sub(age)],
                    |row| row.get(0),
                )?;
                floor = floor.max(old.unwrap_or(0));
                versions += forget(db, floor)?;
            }
            if let Some(limit) = policy.larger_than {
                let limit = i64::try_from(limit).unwrap_or(i64::MAX);
                while contents(db)?.1 > limit && floor < current {
                    // A sixteenth of what is left at a time, so that not much
                    // more is forgotten than has to be.
                    floor += ((current - floor) / 16).max(1);
                    versions += forget(db, floor)?;
                }
            }
            set_meta(db, "floor", floor)?;
            set_meta(db, "current", current)?;
            db.execute(
                "DELETE FROM content WHERE NOT EXISTS (SELECT 1 FROM versions WHERE versions.hash = content.hash)",
                [],
            )?;
            let after = contents(db)?;
            Ok(PruneReport {
                versions,
                contents: (before.0 - after.0).max(0).cast_unsigned(),
                content_bytes: (before.1 - after.1).max(0).cast_unsigned(),
                floor: floor.cast_unsigned(),
                kept_bytes: after.1.cast_unsigned(),
            })
        })
    }
}

/// Removes versions that were replaced at or before `floor` and that no
/// checkpoint shows, and deletions up to it.
fn forget(db: &Connection, floor: i64) -> rusqlite::Result<u64> {
    let removed = db.execute(
        "DELETE FROM versions WHERE sequence IN (
            SELECT old FROM (
                SELECT sequence AS old, kind AS old_kind,
                       lead(sequence) OVER (PARTITION BY path ORDER BY sequence) AS next
                FROM versions WHERE sequence <= ?1
            )
            WHERE (next IS NOT NULL AND NOT EXISTS (
                       SELECT 1 FROM checkpoints WHERE checkpoints.sequence >= old AND checkpoints.sequence < next))
               OR (next IS NULL AND old_kind IS NULL AND NOT EXISTS (
                       -- An older version that a checkpoint shows would come back to life.
                       SELECT 1 FROM checkpoints WHERE checkpoints.sequence < old))
        )",
        params![floor],
    )?;
    Ok(removed as u64)
}

fn contents(db: &Connection) -> rusqlite::Result<(i64, i64)> {
    db.query_row(
        "SELECT count(*), coalesce(sum(size), 0) FROM \
         (SELECT DISTINCT hash, size FROM versions WHERE hash IS NOT NULL AND kind <> 1)",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
}
