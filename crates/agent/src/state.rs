//! The durable state of an instance: `state.db`, a snapshot and the patches since.
//!
//! A patch is on disk before anything that the agent said after it is acted on. Patches that arrived
//! together share one transaction, because nothing happens between them.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::Value;

use crate::proto::patch::{Folded, PatchError};

/// Patches after which the state is stored whole and they are dropped.
const SNAPSHOT_EVERY: i64 = 256;

/// Refused patches that are kept for a person to read.
const REJECTED_KEPT: i64 = 100;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS snapshot (
        id INTEGER PRIMARY KEY CHECK (id = 1), sequence INTEGER NOT NULL, state TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS patch (
        sequence INTEGER PRIMARY KEY, deltas TEXT NOT NULL, at TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS rejected (
        id INTEGER PRIMARY KEY AUTOINCREMENT, after_sequence INTEGER NOT NULL,
        deltas TEXT NOT NULL, reason TEXT NOT NULL, at TEXT NOT NULL);
";

/// Why the state can't be kept.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The database failed.
    #[error("the state {} can't be used: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What SQLite said.
        source: rusqlite::Error,
    },
    /// A state that was to be put in whole is too large or too deep.
    #[error("the state is refused: {0}")]
    Refused(PatchError),
    /// A stored row does not fold: the file was changed by another program or is damaged.
    #[error("the state {} is damaged at patch {sequence}: {detail}; move the file away to start without a state", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The row.
        sequence: i64,
        /// What is wrong with it.
        detail: String,
    },
}

/// What became of lists of patches that arrived together.
#[derive(Debug)]
pub(crate) struct Applied {
    /// How many lists apply and are durable; the one after them, if any, was refused.
    pub(crate) lists: usize,
    /// The number of the last change, counted over the life of the state.
    pub(crate) revision: u64,
    /// Why it was refused.
    pub(crate) rejected: Option<PatchError>,
}

/// The state of one instance. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct StateStore {
    /// Held over a transaction, so that nobody reads a state that is not durable yet.
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    db: Connection,
    folded: Folded,
    sequence: i64,
    snapshot_sequence: i64,
}

impl StateStore {
    /// Opens or makes the file and folds what is in it. Blocks on the disk.
    pub(crate) fn open(path: &Path) -> Result<Self, StateError> {
        let db_error = |source| StateError::Database {
            path: path.to_owned(),
            source,
        };
        let db = Connection::open(path).map_err(db_error)?;
        db.pragma_update(None, "journal_mode", "WAL")
            .and_then(|()| db.pragma_update(None, "synchronous", "FULL"))
            .and_then(|()| db.execute_batch(SCHEMA))
            .map_err(db_error)?;
        let mut inner = Inner {
            path: path.to_owned(),
            db,
            folded: Folded::new(Value::Null),
            sequence: 0,
            snapshot_sequence: 0,
        };
        inner.load()?;
        Ok(Self {
            inner: Arc::new(Mutex::new(inner)),
        })
    }

    /// The folded state.
    pub(crate) async fn value(&self) -> Value {
        self.with(|inner| inner.folded.value().clone()).await
    }

    /// Applies lists of patches in order up to the first that does not apply, durably.
    pub(crate) async fn apply(&self, lists: Vec<Vec<Value>>) -> Result<Applied, StateError> {
        self.with(move |inner| inner.apply(&lists)).await
    }

    async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inner) -> T + Send + 'static,
    ) -> T {
        let inner = Arc::clone(&self.inner);
        let done = tokio::task::spawn_blocking(move || work(&mut lock(&inner))).await;
        match done {
            Ok(result) => result,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

fn lock(inner: &Mutex<Inner>) -> MutexGuard<'_, Inner> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn load(&mut self) -> Result<(), StateError> {
        let snapshot: Option<(i64, String)> = self
            .db
            .query_row("SELECT sequence, state FROM snapshot", [], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()
            .map_err(|source| self.db_error(source))?;
        let (sequence, state) = match snapshot {
            Some((sequence, text)) => {
                let state = serde_json::from_str(&text)
                    .map_err(|error| self.damaged(sequence, error.to_string()))?;
                (sequence, state)
            }
            None => (0, Value::Null),
        };
        let rows: Vec<(i64, String)> = self
            .patches_after(sequence)
            .map_err(|source| self.db_error(source))?;
        let mut folded = Folded::new(state);
        self.snapshot_sequence = sequence;
        self.sequence = sequence;
        for (sequence, text) in rows {
            let deltas: Vec<Value> = serde_json::from_str(&text)
                .map_err(|error| self.damaged(sequence, error.to_string()))?;
            folded
                .apply(&deltas)
                .map_err(|error| self.damaged(sequence, error.to_string()))?;
            self.sequence = sequence;
        }
        self.folded = folded;
        Ok(())
    }

    fn patches_after(&self, sequence: i64) -> rusqlite::Result<Vec<(i64, String)>> {
        let mut query = self
            .db
            .prepare("SELECT sequence, deltas FROM patch WHERE sequence > ?1 ORDER BY sequence")?;
        let rows = query.query_map([sequence], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    }

    fn apply(&mut self, lists: &[Vec<Value>]) -> Result<Applied, StateError> {
        let mut rejected = None;
        let mut applied = 0;
        for list in lists {
            match self.folded.apply(list) {
                Ok(()) => applied += 1,
                Err(error) => {
                    rejected = Some(error);
                    break;
                }
            }
        }
        let (good, rest) = lists.split_at(applied);
        let refused = rejected.as_ref().zip(rest.first());
        if let Err(source) = self.store(good, refused.map(|(error, list)| (list, error))) {
            // What is in memory is not on disk: go back to what is.
            let error = self.db_error(source);
            self.load()?;
            return Err(error);
        }
        Ok(Applied {
            lists: applied,
            revision: self.sequence.cast_unsigned(),
            rejected,
        })
    }

    fn store(
        &mut self,
        good: &[Vec<Value>],
        refused: Option<(&Vec<Value>, &PatchError)>,
    ) -> rusqlite::Result<()> {
        let at = jiff::Timestamp::now().to_string();
        let mut sequence = self.sequence;
        let mut snapshot_sequence = self.snapshot_sequence;
        let transaction = self.db.transaction()?;
        for list in good {
            sequence += 1;
            transaction
                .prepare_cached("INSERT INTO patch (sequence, deltas, at) VALUES (?1, ?2, ?3)")?
                .execute(params![sequence, json(list), at])?;
        }
        if let Some((list, error)) = refused {
            transaction.execute(
                "INSERT INTO rejected (after_sequence, deltas, reason, at) VALUES (?1, ?2, ?3, ?4)",
                params![sequence, json(list), error.to_string(), at],
            )?;
            transaction.execute(
                "DELETE FROM rejected WHERE id <= (SELECT max(id) FROM rejected) - ?1",
                [REJECTED_KEPT],
            )?;
        }
        if sequence - snapshot_sequence >= SNAPSHOT_EVERY {
            transaction.execute(
                "INSERT INTO snapshot (id, sequence, state) VALUES (1, ?1, ?2)
                 ON CONFLICT (id) DO UPDATE SET sequence = ?1, state = ?2",
                params![sequence, self.folded.value().to_string()],
            )?;
            transaction.execute("DELETE FROM patch WHERE sequence <= ?1", [sequence])?;
            snapshot_sequence = sequence;
        }
        transaction.commit()?;
        self.sequence = sequence;
        self.snapshot_sequence = snapshot_sequence;
        Ok(())
    }

    fn db_error(&self, source: rusqlite::Error) -> StateError {
        StateError::Database {
            path: self.path.clone(),
            source,
        }
    }

    fn damaged(&self, sequence: i64, detail: String) -> StateError {
        StateError::Damaged {
            path: self.path.clone(),
            sequence,
            detail,
        }
    }
}

fn json(list: &[Value]) -> String {
    Value::from(list).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(n: i64) -> Vec<Value> {
        vec![json!({"op": "add", "path": "/n", "value": n})]
    }

    #[tokio::test]
    async fn a_reopened_state_is_the_last_one_over_many_snapshots() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        for round in 0..4 {
            let store = StateStore::open(&path).unwrap();
            for n in 0..100 {
                let lists = vec![set(round * 1000 + n * 2), set(round * 1000 + n * 2 + 1)];
                let applied = store.apply(lists).await.unwrap();
                assert_eq!((applied.lists, applied.rejected), (2, None));
            }
        }
        let store = StateStore::open(&path).unwrap();
        assert_eq!(store.value().await, json!({"n": 3199}));
        let rows: i64 = lock(&store.inner)
            .db
            .query_row("SELECT count(*) FROM patch", [], |row| row.get(0))
            .unwrap();
        assert!(rows < SNAPSHOT_EVERY, "{rows} patches are kept");
    }

    #[tokio::test]
    async fn lists_before_a_refused_one_are_kept_and_those_after_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let store = StateStore::open(&path).unwrap();
        let wrong = vec![
            json!({"op": "add", "path": "/n", "value": 8}),
            json!({"op": "remove", "path": "/none"}),
        ];
        let applied = store
            .apply(vec![set(1), wrong.clone(), set(2)])
            .await
            .unwrap();
        assert_eq!(applied.lists, 1);
        assert_eq!(applied.rejected.unwrap().operation, 1);
        assert_eq!(store.value().await, json!({"n": 1}));
        drop(store);
        let store = StateStore::open(&path).unwrap();
        assert_eq!(store.value().await, json!({"n": 1}));
        let recorded: String = lock(&store.inner)
            .db
            .query_row("SELECT deltas FROM rejected", [], |row| row.get(0))
            .unwrap();
        assert_eq!(
            serde_json::from_str::<Vec<Value>>(&recorded).unwrap(),
            wrong
        );
    }

    #[test]
    fn a_damaged_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.db");
        let store = StateStore::open(&path).unwrap();
        lock(&store.inner)
            .db
            .execute("INSERT INTO patch VALUES (7, '[{}]', '')", [])
            .unwrap();
        drop(store);
        assert!(matches!(
            StateStore::open(&path),
            Err(StateError::Damaged { sequence: 7, .. })
        ));
    }
}
