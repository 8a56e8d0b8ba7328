//! Reading from a cursor.

use std::sync::Arc;

use tokio::sync::watch;

use super::Row;
use super::tail::{BATCH_BYTES, BATCH_ROWS};
use crate::store::{Db, StoreError};

/// Which rows a reader wants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only rows of this session.
    pub session: Option<u64>,
    /// Only rows of this turn.
    pub turn: Option<u64>,
}

impl Filter {
    /// Rows of one session.
    pub fn session(session: u64) -> Self {
        Self {
            session: Some(session),
            turn: None,
        }
    }

    /// Rows of one turn of a session.
    pub fn turn(session: u64, turn: u64) -> Self {
        Self {
            session: Some(session),
            turn: Some(turn),
        }
    }

    fn wants(&self, row: &Row) -> bool {
        (self.session.is_none() || self.session == row.session)
            && (self.turn.is_none() || self.turn == row.turn)
    }
}

/// Rows after a cursor, in order, each once.
#[derive(Debug)]
pub struct Reader {
    db: Db,
    filter: Filter,
    after: u64,
    head: watch::Receiver<u64>,
}

impl Reader {
    /// Reads what comes after number `after`.
    pub fn new(db: &Db, filter: Filter, after: u64) -> Self {
        Self {
            db: db.clone(),
            filter,
            after,
            head: db.tail().watch(),
        }
    }

    /// The number up to which everything wanted has been handed out.
    pub fn cursor(&self) -> u64 {
        self.after
    }

    /// The next rows, empty when there are none yet.
    pub async fn next_batch(&mut self) -> Result<Vec<Arc<Row>>, StoreError> {
        loop {
            let head = self.db.tail().head();
            if self.after >= head {
                return Ok(Vec::new());
            }
            let rows = match self.db.tail().after(self.after) {
                Some((rows, upto)) => {
                    self.after = upto;
                    rows.into_iter()
                        .filter(|row| self.filter.wants(row))
                        .collect()
                }
                None => self.read_disk(head).await?,
            };
            if !rows.is_empty() {
                return Ok(rows);
            }
        }
    }

    /// The next rows, waiting for them. An empty batch means that the database is closed.
    pub async fn follow(&mut self) -> Result<Vec<Arc<Row>>, StoreError> {
        loop {
            self.head.mark_unchanged();
            let rows = self.next_batch().await?;
            if !rows.is_empty() {
                return Ok(rows);
            }
            if self.head.changed().await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    async fn read_disk(&mut self, head: u64) -> Result<Vec<Arc<Row>>, StoreError> {
        let (after, filter) = (self.after, self.filter);
        let (rows, is_full) = self
            .db
            .read(move |connection| -> Result<_, StoreError> {
                let sql = match (filter.session, filter.turn) {
                    (None, _) => {
                        "SELECT seq, at, session, turn, kind, data FROM journal
                         WHERE seq > :after AND seq <= :head ORDER BY seq LIMIT :limit"
                    }
                    (Some(_), None) => {
                        "SELECT seq, at, session, turn, kind, data FROM journal
                         WHERE session = :session AND seq > :after AND seq <= :head
                         ORDER BY seq LIMIT :limit"
                    }
                    (Some(_), Some(_)) => {
                        "SELECT seq, at, session, turn, kind, data FROM journal
                         WHERE session = :session AND turn = :turn AND seq > :after AND seq <= :head
                         ORDER BY seq LIMIT :limit"
                    }
                };
                let mut statement = connection.prepare_cached(sql)?;
                let mut bind = vec![
                    (":after", after.cast_signed()),
                    (":head", head.cast_signed()),
                    (":limit", BATCH_ROWS as i64),
                ];
                if let Some(session) = filter.session {
                    bind.push((":session", session.cast_signed()));
                    if let Some(turn) = filter.turn {
                        bind.push((":turn", turn.cast_signed()));
                    }
                }
                let bind: Vec<(&str, &dyn rusqlite::ToSql)> = bind
                    .iter()
                    .map(|(name, value)| (*name, value as &dyn rusqlite::ToSql))
                    .collect();
                let mut found = statement.query_map(&*bind, Row::from_sql)?;
                let (mut rows, mut bytes) = (Vec::new(), 0);
                while bytes < BATCH_BYTES
                    && let Some(row) = found.next().transpose()?
                {
                    bytes += row.weight();
                    rows.push(Arc::new(row));
                }
                let is_full = bytes >= BATCH_BYTES || rows.len() == BATCH_ROWS;
                Ok((rows, is_full))
            })
            .await?;
        self.after = match rows.last() {
            Some(last) if is_full => last.seq,
            _ => head,
        };
        Ok(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Entry, Kind};

    fn database() -> (tempfile::TempDir, Db) {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        (folder, db)
    }

    fn entry(session: u64, text: &str) -> Entry {
        Entry::new(Kind::Note, &serde_json::json!({ "text": text })).in_session(session)
    }

    async fn all(mut reader: Reader) -> Vec<u64> {
        let mut seen = Vec::new();
        loop {
            let rows = reader.next_batch().await.expect("readable");
            if rows.is_empty() {
                return seen;
            }
            seen.extend(rows.iter().map(|row| row.seq));
        }
    }

    #[tokio::test]
    async fn a_reader_behind_the_tail_reads_the_disk_and_catches_up() {
        let (_folder, db) = database();
        let big = "x".repeat(4096);
        for _ in 0..60 {
            let of = |i: u64| entry(i % 3, &big).in_turn(i % 3, i % 2);
            let batch = (0..100).map(of).collect();
            db.append(batch).await.expect("durable");
        }
        assert!(
            db.tail().after(0).is_none(),
            "6,000 rows of 4 KiB do not fit in memory"
        );
        let everything = all(Reader::new(&db, Filter::default(), 0)).await;
        assert_eq!(everything, (1..=6000).collect::<Vec<_>>());
        let of_one = all(Reader::new(&db, Filter::session(1), 11)).await;
        let expected: Vec<u64> = (12..=6000).filter(|seq| (seq - 1) % 100 % 3 == 1).collect();
        assert_eq!(of_one, expected);
        let of_its_turn = all(Reader::new(&db, Filter::turn(1, 1), 8)).await;
        let expected: Vec<u64> = (9..=6000).filter(|seq| (seq - 1) % 100 % 6 == 1).collect();
        assert_eq!(of_its_turn, expected);
    }

    #[tokio::test]
    async fn a_batch_of_large_rows_ends_by_their_bytes() {
        let (_folder, db) = database();
        let large = "x".repeat(1 << 20);
        for _ in 0..40 {
            db.append(vec![entry(1, &large)]).await.expect("durable");
        }
        db.append(vec![
            entry(1, &"x".repeat(BATCH_BYTES * 2)),
            entry(1, "small"),
        ])
        .await
        .expect("durable");
        assert!(db.tail().after(0).is_none(), "40 MiB do not fit in memory");
        assert!(db.tail().after(38).is_some(), "the newest are there");
        for filter in [Filter::default(), Filter::session(1)] {
            let mut reader = Reader::new(&db, filter, 0);
            let mut seen = Vec::new();
            while seen.len() < 42 {
                let rows = reader.next_batch().await.expect("readable");
                let earlier = &rows[..rows.len() - 1];
                let bytes: usize = earlier.iter().map(|row| row.weight()).sum();
                assert!(bytes < BATCH_BYTES, "{bytes} bytes, and then one more row");
                seen.extend(rows.iter().map(|row| row.seq));
            }
            assert_eq!(seen, (1..=42).collect::<Vec<_>>());
        }
    }

    #[tokio::test]
    async fn live_and_later_are_equal() {
        let (_folder, db) = database();
        let mut live = Reader::new(&db, Filter::default(), 0);
        let writer = async {
            for i in 0..200u64 {
                db.append(vec![entry(i % 2, &i.to_string())])
                    .await
                    .expect("durable");
            }
        };
        let follower = async {
            let mut seen = Vec::new();
            while seen.len() < 200 {
                seen.extend(live.follow().await.expect("readable"));
            }
            seen
        };
        let ((), live) = tokio::join!(writer, follower);
        let later: Vec<_> = db
            .read(|connection| -> Result<Vec<Row>, StoreError> {
                let mut statement = connection.prepare(
                    "SELECT seq, at, session, turn, kind, data FROM journal ORDER BY seq",
                )?;
                Ok(statement
                    .query_map([], Row::from_sql)?
                    .collect::<Result<_, _>>()?)
            })
            .await
            .expect("readable");
        assert_eq!(
            live.iter().map(|row| (**row).clone()).collect::<Vec<_>>(),
            later
        );
    }
}
