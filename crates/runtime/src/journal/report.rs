//! How large the journal is, and taking old rows out of it.

use jiff::Timestamp;
use rusqlite::Connection;

use super::{Entry, Kind};
use crate::store::{Db, StoreError};

/// Rows removed in one transaction, so that writers never wait long for a pruning.
const PRUNE_STEP: i64 = 5_000;

/// Pages given back in one transaction, for the same reason.
const VACUUM_STEP: u32 = 4_000;

/// Free pages stay, to be used again, while they are less than this part of all.
const FREE_PAGES_KEPT: u64 = 10;

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
    /// The oldest, until the database takes no more than so many bytes.
    BeyondSize(u64),
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

/// Removes old rows that belong to no open turn, with the texts of their messages, gives the space
/// back, and says so in the journal.
///
/// The newest row always stays: numbers go on from it after a restart.
pub async fn prune(db: &Db, bound: Bound) -> Result<PruneReport, StoreError> {
    let (mut removed, mut bytes) = (0, 0);
    loop {
        let (rows, size) = db.write(move |tx| remove_some(tx.sql(), bound)).await?;
        removed += rows;
        bytes += size;
        if rows == 0 {
            break;
        }
    }
    if removed > 0 {
        db.write(|tx| forget_texts(tx.sql())).await?;
        while db.write(|tx| give_back_some(tx.sql())).await? {}
        let data = serde_json::json!({ "text": "the journal was pruned", "removed": removed });
        db.append(vec![Entry::new(Kind::Note, &data)]).await?;
    }
    let first_seq = db.read(first_seq).await?;
    Ok(PruneReport {
        removed,
        bytes,
        first_seq,
    })
}

/// Removes the next rows; returns how many, and the bytes of their data.
fn remove_some(connection: &Connection, bound: Bound) -> Result<(u64, u64), StoreError> {
    let (before, below, enough) = match bound {
        Bound::OlderThan(time) => (time.as_microsecond(), i64::MAX, i64::MAX),
        Bound::BelowSeq(seq) => (i64::MAX, signed(seq), i64::MAX),
        Bound::BeyondSize(most) => {
            let beyond = used_bytes(connection)?.saturating_sub(most);
            (i64::MAX, i64::MAX, signed(beyond))
        }
    };
    let mut statement = connection.prepare_cached(
        "WITH oldest AS (
             SELECT seq, length(CAST(data AS BLOB)) AS size FROM journal
             WHERE at < ?1 AND seq < ?2
               AND seq < (SELECT max(seq) FROM journal)
               AND seq < coalesce(
                   (SELECT min(first_seq) FROM messages WHERE state IN ('queued', 'running')),
                   9223372036854775807)
             ORDER BY seq LIMIT ?3),
         counted AS (SELECT seq, sum(size) OVER (ORDER BY seq) - size AS earlier FROM oldest)
         DELETE FROM journal WHERE seq IN (SELECT seq FROM counted WHERE earlier < ?4)
         RETURNING length(CAST(data AS BLOB))",
    )?;
    let sizes = statement.query_map((before, below, PRUNE_STEP, enough), |row| {
        row.get::<_, i64>(0)
    })?;
    let mut step = (0, 0);
    for size in sizes {
        step = (step.0 + 1, step.1 + size?.cast_unsigned());
    }
    Ok(step)
}

/// What messages said that the journal no longer knows. What a retry would send again stays.
fn forget_texts(connection: &Connection) -> Result<(), StoreError> {
    connection.execute(
        "UPDATE messages SET text = ''
         WHERE text != '' AND state NOT IN ('queued', 'running')
           AND first_seq < (SELECT min(seq) FROM journal)
           AND NOT (state = 'failed' AND id = (
               SELECT max(id) FROM messages AS others
               WHERE others.session = messages.session AND others.state != 'removed'))",
        [],
    )?;
    Ok(())
}

/// Gives free pages back to the file system while they are much of the file; true when there may be
/// more. A database that an older version made keeps them for later rows.
fn give_back_some(connection: &Connection) -> Result<bool, StoreError> {
    let (pages, free) = (
        pragma(connection, "page_count")?,
        pragma(connection, "freelist_count")?,
    );
    if free < pages / FREE_PAGES_KEPT {
        return Ok(false);
    }
    let mut statement = connection.prepare(&format!("PRAGMA incremental_vacuum({VACUUM_STEP})"))?;
    let mut rows = statement.query([])?;
    while rows.next()?.is_some() {}
    let left = pragma(connection, "freelist_count")?;
    Ok(left > 0 && left < free)
}

/// What the database takes without the pages that are free.
fn used_bytes(connection: &Connection) -> Result<u64, StoreError> {
    let pages = pragma(connection, "page_count")?;
    let free = pragma(connection, "freelist_count")?;
    Ok((pages - free) * pragma(connection, "page_size")?)
}

fn pragma(connection: &Connection, name: &str) -> Result<u64, StoreError> {
    let value: i64 = connection.pragma_query_value(None, name, |row| row.get(0))?;
    Ok(value.cast_unsigned())
}

fn first_seq(connection: &Connection) -> Result<u64, StoreError> {
    let first: Option<i64> =
        connection.query_row("SELECT min(seq) FROM journal", [], |row| row.get(0))?;
    Ok(first.map_or(0, i64::cast_unsigned))
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
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
    #[tokio::test]
    async fn the_oldest_rows_beyond_a_size_go_and_the_database_shrinks() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let text = "x".repeat(1 << 16);
        for _ in 0..160 {
            let data = serde_json::json!({ "text": text });
            let row = Entry::new(Kind::Note, &data);
            db.append(vec![row]).await.expect("durable");
        }
        let most = 4 << 20;
        let pruned = prune(&db, Bound::BeyondSize(most)).await.expect("prunes");
        let used = db.read(used_bytes).await.expect("readable");
        assert!(
            (most * 3 / 4..=most).contains(&used),
            "{used} bytes are left"
        );
        assert_eq!(pruned.first_seq, pruned.removed + 1, "the oldest went");
        let after = report(&db).await.expect("readable");
        assert_eq!(after.last_seq, 161, "no number is used again");
        let again = prune(&db, Bound::BeyondSize(most)).await.expect("prunes");
        assert_eq!(again.removed, 0, "what fits stays");
        let size =
            db.read(|db| Ok::<_, StoreError>(pragma(db, "page_count")? * pragma(db, "page_size")?));
        let size = size.await.expect("readable");
        assert!(size < most * 3 / 2, "{size} bytes with those that are free");
    }
}
