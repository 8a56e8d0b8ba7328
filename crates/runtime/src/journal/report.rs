//! How large the journal is, and taking old rows out of it.

use jiff::Timestamp;

use super::{Entry, Kind};
use crate::store::{Db, StoreError};

/// Rows removed in one transaction, so that writers never wait long for a pruning.
const PRUNE_STEP: i64 = 5_000;

/// The journal's extent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Number of the oldest row that is kept, 0 when there is none.
    pub first_seq: u64,
    /// Number of the newest row.
    pub last_seq: u64,
    /// Rows kept.
    pub rows: u64,
    /// Bytes of their data.
    pub bytes: u64,
    /// Time of the oldest row, in microseconds since 1970.
    pub oldest_at: Option<i64>,
    /// Time of the newest row.
    pub newest_at: Option<i64>,
    /// The same by kind, largest first.
    pub kinds: Vec<KindReport>,
}

/// The rows of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindReport {
    /// The kind's name.
    pub kind: String,
    /// Rows kept.
    pub rows: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// Which rows are to go.
#[derive(Debug, Clone, Copy)]
pub enum Bound {
    /// Those before a time.
    OlderThan(Timestamp),
    /// Those below a number.
    BelowSeq(u64),
}

/// What a pruning did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneReport {
    /// Rows removed.
    pub removed: u64,
    /// Bytes of their data.
    pub bytes: u64,
    /// Number of the oldest row that is left.
    pub first_seq: u64,
}

/// Measures the journal.
pub async fn report(db: &Db) -> Result<Report, StoreError> {
    db.read(|connection| {
        let mut statement = connection.prepare_cached(
            "SELECT kind, count(*), sum(length(CAST(data AS BLOB))) FROM journal
             GROUP BY kind ORDER BY 3 DESC",
        )?;
        let kinds: Vec<KindReport> = statement
            .query_map([], |row| {
                Ok(KindReport {
                    kind: row.get(0)?,
                    rows: row.get::<_, i64>(1)?.cast_unsigned(),
                    bytes: row.get::<_, i64>(2)?.cast_unsigned(),
                })
            })?
            .collect::<Result<_, _>>()?;
        let edge = |order: &str| -> Result<Option<(i64, i64)>, StoreError> {
            let sql = format!("SELECT seq, at FROM journal ORDER BY seq {order} LIMIT 1");
            let mut statement = connection.prepare_cached(&sql)?;
            let mut rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(rows.next().transpose()?)
        };
        let (first, last) = (edge("ASC")?, edge("DESC")?);
        let seq = |edge: Option<(i64, i64)>| edge.map_or(0, |(seq, _)| seq.cast_unsigned());
        Ok(Report {
            first_seq: seq(first),
            last_seq: seq(last),
            rows: kinds.iter().map(|kind| kind.rows).sum(),
            bytes: kinds.iter().map(|kind| kind.bytes).sum(),
            oldest_at: first.map(|(_, at)| at),
            newest_at: last.map(|(_, at)| at),
            kinds,
        })
    })
    .await
}

/// Removes old rows that belong to no open turn, and says so in the journal.
///
/// The newest row always stays: numbers go on from it after a restart.
pub async fn prune(db: &Db, bound: Bound) -> Result<PruneReport, StoreError> {
    let (before, below) = match bound {
        Bound::OlderThan(time) => (time.as_microsecond(), i64::MAX),
        Bound::BelowSeq(seq) => (i64::MAX, i64::try_from(seq).unwrap_or(i64::MAX)),
    };
    let (mut removed, mut bytes) = (0, 0);
    loop {
        let (rows, size) = db
            .write(move |tx| -> Result<(u64, u64), StoreError> {
                let mut statement = tx.sql().prepare_cached(
                    "DELETE FROM journal WHERE seq IN (
                         SELECT seq FROM journal
                         WHERE at < ?1 AND seq < ?2
                           AND seq < (SELECT max(seq) FROM journal)
                           AND seq < coalesce(
                               (SELECT min(first_seq) FROM messages
                                WHERE state IN ('queued', 'running')),
                               9223372036854775807)
                         ORDER BY seq LIMIT ?3)
                     RETURNING length(CAST(data AS BLOB))",
                )?;
                let sizes =
                    statement.query_map((before, below, PRUNE_STEP), |row| row.get::<_, i64>(0))?;
                let mut step = (0, 0);
                for size in sizes {
                    step = (step.0 + 1, step.1 + size?.cast_unsigned());
                }
                Ok(step)
            })
            .await?;
        removed += rows;
        bytes += size;
        if rows < PRUNE_STEP.cast_unsigned() {
            break;
        }
    }
    if removed > 0 {
        let data = serde_json::json!({ "text": "the journal was pruned", "removed": removed });
        db.append(vec![Entry::new(Kind::Note, &data)]).await?;
    }
    let first_seq = report(db).await?.first_seq;
    Ok(PruneReport {
        removed,
        bytes,
        first_seq,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pruning_says_what_it_removed_and_numbers_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("q.db");
        let db = Db::open(&path).expect("new");
        let rows = (0..20).map(|_| Entry::new(Kind::Note, &serde_json::json!({ "text": 1 })));
        db.append(rows.collect()).await.expect("durable");
        let below = prune(&db, Bound::BelowSeq(11)).await.expect("prunes");
        assert_eq!((below.removed, below.bytes, below.first_seq), (10, 100, 11));
        let future = Timestamp::now() + jiff::SignedDuration::from_hours(1);
        let pruned = prune(&db, Bound::OlderThan(future)).await.expect("prunes");
        assert_eq!((pruned.removed, pruned.first_seq), (10, 21));
        let after = report(&db).await.expect("readable");
        assert_eq!((after.first_seq, after.last_seq, after.rows), (21, 22, 2));
        drop(db);
        let db = Db::open(&path).expect("there");
        let next = db
            .append(vec![Entry::new(Kind::Note, &serde_json::json!({}))])
            .await;
        assert_eq!(next.expect("durable"), 23);
    }
}
