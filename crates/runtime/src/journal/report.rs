//! How large the journal is, and taking old rows out of it.

use jiff::Timestamp;

use super::{Entry, Kind};
use crate::store::{Db, StoreError};

/// Rows removed in one transaction, so that writers never wait long for a pruning.
const PRUNE_STEP: i64 = 5_000;

/// The journal's extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Number of the oldest row that is kept, 0 when there is none.
    pub first_seq: u64,
    /// Number of the newest row.
    pub last_seq: u64,
    /// Rows kept.
    pub rows: u64,
    /// Size of the whole database file in bytes.
    pub bytes: u64,
}

/// What a pruning did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneReport {
    /// Rows removed.
    pub removed: u64,
    /// Number of the oldest row that is left.
    pub first_seq: u64,
}

/// Measures the journal.
pub async fn report(db: &Db) -> Result<Report, StoreError> {
    db.read(|connection| {
        let number = |sql: &str| -> Result<u64, StoreError> {
            let value: Option<i64> = connection.query_row(sql, [], |row| row.get(0))?;
            Ok(value.map_or(0, i64::cast_unsigned))
        };
        Ok(Report {
            first_seq: number("SELECT min(seq) FROM journal")?,
            last_seq: number("SELECT max(seq) FROM journal")?,
            rows: number("SELECT count(*) FROM journal")?,
            bytes: number(
                "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()",
            )?,
        })
    })
    .await
}

/// Removes rows that are older than `before` and belong to no open turn; says so in the journal.
///
/// The newest row always stays: numbers go on from it after a restart.
pub async fn prune(db: &Db, before: Timestamp) -> Result<PruneReport, StoreError> {
    let before = before.as_microsecond();
    let mut removed = 0;
    loop {
        let step = db
            .write(move |tx| -> Result<u64, StoreError> {
                let count = tx
                    .sql()
                    .prepare_cached(
                        "DELETE FROM journal WHERE seq IN (
                             SELECT seq FROM journal
                             WHERE at < ?1
                               AND seq < (SELECT max(seq) FROM journal)
                               AND seq < coalesce(
                                   (SELECT min(first_seq) FROM messages
                                    WHERE state IN ('queued', 'running')),
                                   9223372036854775807)
                             ORDER BY seq LIMIT ?2)",
                    )?
                    .execute((before, PRUNE_STEP))?;
                Ok(count as u64)
            })
            .await?;
        removed += step;
        if step < PRUNE_STEP.cast_unsigned() {
            break;
        }
    }
    if removed > 0 {
        let data = serde_json::json!({ "text": "the journal was pruned", "removed": removed });
        db.append(vec![Entry::new(Kind::Note, &data)]).await?;
    }
    let first_seq = report(db).await?.first_seq;
    Ok(PruneReport { removed, first_seq })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pruning_says_what_it_removed_and_numbers_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("q.db");
        let db = Db::open(&path).expect("new");
        let rows = (0..20).map(|i| Entry::new(Kind::Note, &serde_json::json!({ "text": i })));
        db.append(rows.collect()).await.expect("durable");
        let future = Timestamp::now() + jiff::SignedDuration::from_hours(1);
        let pruned = prune(&db, future).await.expect("prunes");
        assert_eq!(
            pruned,
            PruneReport {
                removed: 19,
                first_seq: 20
            }
        );
        let after = report(&db).await.expect("readable");
        assert_eq!((after.first_seq, after.last_seq, after.rows), (20, 21, 2));
        drop(db);
        let db = Db::open(&path).expect("there");
        let next = db
            .append(vec![Entry::new(Kind::Note, &serde_json::json!({}))])
            .await;
        assert_eq!(next.expect("durable"), 22);
    }
}
