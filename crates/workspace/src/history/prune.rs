//! Forgetting the past, by a stated policy and with a report.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{History, HistoryError, meta, set_meta, wall_clock};

/// A time without changes that is longer than this, or than the age if that is
/// more, looks the same as a clock that leapt.
const LEAP: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What may be forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrunePolicy {
    /// Versions that were replaced longer ago than this. A leap of the clock
    /// right before the changes of that time does not age what came before it.
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
    /// Whether the clock leapt, or nothing was changed for so long that it cannot
    /// be told: what came before is not taken to be as old as the clock says.
    pub leapt: bool,
}

impl History {
    /// Removes replaced versions. What the tree holds now, and what it held at
    /// each checkpoint, always stays.
    pub fn prune(&mut self, policy: &PrunePolicy) -> Result<PruneReport, HistoryError> {
        self.prune_at(policy, wall_clock())
    }

    fn prune_at(&mut self, policy: &PrunePolicy, now: i64) -> Result<PruneReport, HistoryError> {
        self.transact(|db| {
            let before = contents(db)?;
            let current: i64 = db.query_row("SELECT coalesce(max(sequence), 0) FROM versions", [], |row| row.get(0))?;
            let current = current.max(meta(db, "current")?);
            let mut floor = meta(db, "floor")?;
            let (mut versions, mut leapt) = (0, false);
            if let Some(age) = policy.older_than {
                let (old, leap) = aged(db, now, age)?;
                leapt = leap;
                floor = floor.max(old);
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
                leapt,
            })
        })
    }
}

/// The sequence up to which everything is older than an age, and whether the
/// clock leapt after it.
fn aged(db: &Connection, now: i64, age: Duration) -> rusqlite::Result<(i64, bool)> {
    let millis = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    let (last, next) = before_first_after(db, now.saturating_sub(millis(age)))?;
    let Some((sequence, at)) = last else {
        return Ok((0, false));
    };
    let next = next.map_or(now, |next| next.min(now));
    if next.saturating_sub(at) <= millis(age.max(LEAP)) {
        return Ok((sequence, false));
    }
    let (last, _) = before_first_after(db, at.saturating_sub(millis(age)))?;
    Ok((last.map_or(0, |(sequence, _)| sequence), true))
}

/// The sequence and the time of a change.
type Made = (i64, i64);

/// The last change before the first one that was made after `cutoff`, and the time
/// of that first one. What a clock that was wrong says of
/// later changes does not count.
fn before_first_after(
    db: &Connection,
    cutoff: i64,
) -> rusqlite::Result<(Option<Made>, Option<i64>)> {
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let first: Option<Made> = db
        .query_row(
            "SELECT sequence, at FROM versions WHERE at > ?1 ORDER BY sequence LIMIT 1",
            [cutoff],
            row,
        )
        .optional()?;
    let last = db
        .query_row(
            "SELECT sequence, at FROM versions WHERE sequence < ?1 ORDER BY sequence DESC LIMIT 1",
            [first.map_or(i64::MAX, |(sequence, _)| sequence)],
            row,
        )
        .optional()?;
    Ok((last, first.map(|(_, at)| at)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Record, put_version, time_of_next};
    use crate::proto::{Author, ChangeKind, Node, WorkspacePath};

    const DAY: i64 = 24 * 60 * 60 * 1_000;
    const NOW: i64 = 20_000 * DAY;
    const IN_2001: i64 = 11_500 * DAY;

    fn at_days(days: i64) -> i64 {
        NOW + days * DAY
    }

    /// A history of one file that was changed at these times.
    fn changed_at(dir: &tempfile::TempDir, times: &[i64]) -> History {
        let path = dir.path().join(times.len().to_string());
        let mut history = History::open(&path).unwrap();
        for (sequence, at) in (1..).zip(times) {
            let record = Record {
                path: WorkspacePath::parse("f").unwrap(),
                node: Some(Node::file(0o644, &at.to_le_bytes())),
                change: ChangeKind::Write,
                from: None,
                author: Author::Local("host".into()),
            };
            history
                .transact(|db| put_version(db, sequence, *at, &record))
                .unwrap();
        }
        history
    }

    fn forgotten(times: &[i64], now: i64) -> (u64, bool) {
        let dir = tempfile::tempdir().unwrap();
        let policy = PrunePolicy {
            older_than: Some(Duration::from_secs(90 * 24 * 60 * 60)),
            larger_than: None,
        };
        let report = changed_at(&dir, times).prune_at(&policy, now).unwrap();
        (report.versions, report.leapt)
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let times = [-120, -100, -60, -1].map(at_days);
        assert_eq!(forgotten(&times, NOW), (1, false));
    }

    #[test]
    fn a_clock_that_was_behind_once_ages_nothing() {
        assert_eq!(forgotten(&[NOW - DAY, IN_2001, NOW - 1], NOW), (0, false));
        assert_eq!(forgotten(&[NOW - DAY, NOW - 1, IN_2001], NOW), (0, false));
    }

    #[test]
    fn a_clock_that_leaps_ahead_ages_nothing_until_time_has_passed() {
        let leapt = at_days(900);
        let mut times = vec![at_days(-2), at_days(-1)];
        assert_eq!(forgotten(&times, leapt), (0, true));
        times.push(leapt);
        assert_eq!(forgotten(&times, leapt + DAY), (0, true));
        // It is back; what was recorded ahead of time stays until then.
        times.push(at_days(1));
        assert_eq!(forgotten(&times, at_days(2)), (0, false));
        // Or it was right, and nobody worked meanwhile.
        times.pop();
        times.push(leapt + 60 * DAY);
        assert_eq!(forgotten(&times, leapt + 91 * DAY), (2, false));
    }

    #[test]
    fn a_change_is_not_said_to_be_older_than_those_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let history = changed_at(&dir, &[NOW - 9 * DAY, NOW]);
        let said = |clock| time_of_next(history.db(), clock).unwrap();
        assert_eq!(said(NOW + 5), NOW + 5);
        assert_eq!(said(NOW - 5), NOW, "set back a little");
        assert_eq!(said(IN_2001), NOW, "before the history begins");
        // The change before may be what is wrong.
        assert_eq!(said(NOW - 2 * DAY), NOW - 2 * DAY);
    }
}
