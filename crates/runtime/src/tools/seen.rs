//! What each instance has read, so that it never edits what it has not seen.
//!
//! The texts are in memory, to show what changed; that a file changed is known after a restart too.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rusqlite::OptionalExtension;
use sha2::{Digest, Sha256};

use crate::store::{Db, StoreError};

/// Files that are remembered for one instance; the longest unread is forgotten first.
const PER_INSTANCE: usize = 256;

/// Instances that are remembered.
const INSTANCES: usize = 256;

/// Texts that are kept to show what changed; a longer one is known by its hash alone.
const MAX_TEXT: usize = 256 * 1024;

/// A file as an instance last saw it.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    hash: [u8; 32],
    /// For a diff.
    pub(super) text: Option<Arc<str>>,
    /// Milliseconds since 1970.
    pub(super) at_millis: i64,
}

impl Seen {
    pub(super) fn of(text: &str, at_millis: i64) -> Self {
        Self {
            hash: hash(text),
            text: (text.len() <= MAX_TEXT).then(|| text.into()),
            at_millis,
        }
    }

    /// Makes it durable, and forgets the oldest beyond the bound.
    pub(super) async fn keep(&self, db: &Db, session: u64, path: &Path) -> Result<(), StoreError> {
        let (hash, at, path) = (self.hash, self.at_millis, path.display().to_string());
        db.write(move |tx| {
            tx.sql()
                .prepare_cached(
                    "INSERT OR REPLACE INTO seen_files (session, path, hash, at_millis)
                     VALUES (?, ?, ?, ?)",
                )?
                .execute((session.cast_signed(), path, hash, at))?;
            tx.sql()
                .prepare_cached(
                    "DELETE FROM seen_files WHERE session = ?1 AND path IN
                         (SELECT path FROM seen_files WHERE session = ?1
                          ORDER BY at_millis DESC LIMIT -1 OFFSET ?2)",
                )?
                .execute((session.cast_signed(), PER_INSTANCE as i64))?;
            Ok(())
        })
        .await
    }

    /// What a session last saw of a file, as it was kept.
    pub(super) async fn kept(
        db: &Db,
        session: u64,
        path: &Path,
    ) -> Result<Option<Self>, StoreError> {
        let path = path.display().to_string();
        db.read(move |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT hash, at_millis FROM seen_files WHERE session = ? AND path = ?",
            )?;
            let found = statement.query_row((session.cast_signed(), path), |row| {
                Ok(Self {
                    hash: row.get(0)?,
                    text: None,
                    at_millis: row.get(1)?,
                })
            });
            Ok(found.optional()?)
        })
        .await
    }

    pub(super) fn is(&self, text: &str) -> bool {
        self.hash == hash(text)
    }
}

fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[derive(Default)]
struct Files {
    files: HashMap<PathBuf, Seen>,
    order: VecDeque<PathBuf>,
}

/// Everything that was seen, and who wrote last.
#[derive(Default)]
pub(super) struct Memory {
    /// Short sections without an await.
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    instances: HashMap<String, Files>,
    order: VecDeque<String>,
    /// Files that a tool wrote: with what, and by whom.
    written: HashMap<PathBuf, ([u8; 32], String)>,
}

impl Memory {
    /// Notes that an instance has seen a file.
    pub(super) fn see(&self, instance: &str, path: &Path, seen: Seen) {
        let mut inner = self.lock();
        if !inner.instances.contains_key(instance) {
            inner.order.push_back(instance.to_owned());
            if inner.order.len() > INSTANCES
                && let Some(oldest) = inner.order.pop_front()
            {
                inner.instances.remove(&oldest);
            }
        }
        let files = inner.instances.entry(instance.to_owned()).or_default();
        files.order.retain(|it| it != path);
        files.order.push_back(path.to_owned());
        files.files.insert(path.to_owned(), seen);
        if files.order.len() > PER_INSTANCE
            && let Some(oldest) = files.order.pop_front()
        {
            files.files.remove(&oldest);
        }
    }

    /// What an instance last saw of a file.
    pub(super) fn seen(&self, instance: &str, path: &Path) -> Option<Seen> {
        self.lock()
            .instances
            .get(instance)?
            .files
            .get(path)
            .cloned()
    }

    /// Notes that an instance wrote a file, which it has seen thereby.
    pub(super) fn wrote(&self, instance: &str, path: &Path, text: &str, at_millis: i64) {
        self.see(instance, path, Seen::of(text, at_millis));
        let mut inner = self.lock();
        if inner.written.len() >= PER_INSTANCE * INSTANCES {
            inner.written.clear();
        }
        inner
            .written
            .insert(path.to_owned(), (hash(text), instance.to_owned()));
    }

    /// The instance that wrote this text into the file with a tool.
    pub(super) fn writer(&self, path: &Path, text: &str) -> Option<String> {
        let inner = self.lock();
        let (written, instance) = inner.written.get(path)?;
        (*written == hash(text)).then(|| instance.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_seen_is_known_after_a_restart_and_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&folder.path().join("q.db")).unwrap();
        db.write(|tx| -> Result<(), StoreError> {
            tx.sql().execute_batch(
                "INSERT INTO sessions (agent, created_by, created_at, workspace)
                 VALUES ('coder', 'me', 0, '/w')",
            )?;
            Ok(())
        })
        .await
        .unwrap();
        let path = Path::new("/w/a");
        Seen::of("one", 5).keep(&db, 1, path).await.unwrap();
        let kept = Seen::kept(&db, 1, path).await.unwrap().unwrap();
        assert!(kept.is("one") && !kept.is("two"));
        assert!(Seen::kept(&db, 2, path).await.unwrap().is_none());
        for index in 0..PER_INSTANCE {
            let path = format!("/w/{index}");
            let seen = Seen::of("x", 6);
            seen.keep(&db, 1, Path::new(&path)).await.unwrap();
        }
        assert!(Seen::kept(&db, 1, path).await.unwrap().is_none());
    }

    #[test]
    fn what_was_seen_is_known_for_each_instance_and_bounded() {
        let memory = Memory::default();
        let path = Path::new("/w/a");
        memory.see("a-1", path, Seen::of("one", 5));
        assert!(memory.seen("a-1", path).unwrap().is("one"));
        assert!(memory.seen("b-2", path).is_none());
        memory.wrote("b-2", path, "two", 6);
        assert_eq!(memory.writer(path, "two").as_deref(), Some("b-2"));
        assert_eq!(memory.writer(path, "three"), None);
        assert!(!memory.seen("a-1", path).unwrap().is("two"));
        for index in 0..PER_INSTANCE {
            memory.see("a-1", Path::new(&format!("/w/{index}")), Seen::of("x", 7));
        }
        assert!(
            memory.seen("a-1", path).is_none(),
            "the oldest is forgotten"
        );
    }
}
