//! `quintet.db`: one writer, many readers.
//!
//! SQLite takes one writer at a time, so there is one writing connection. A
//! caller that finds it free runs its job itself; else the job goes to a
//! thread, which takes all jobs that wait, runs them in one transaction and
//! commits once (group commit): under load many small events cost one sync,
//! and a lone event waits for nobody. A job's caller is answered after the
//! commit, never before, and rows that a job appended to the journal become
//! visible to readers at that same moment.
//!
//! A job that fails is rolled back alone; a commit that fails (disk full)
//! fails every job in it and nothing of it is told to anybody.
//!
//! The queue of jobs is bounded; a caller waits when it is full.

mod migrations;
mod readers;
mod writer;

use std::path::Path;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::journal::{Entry, Tail};
use readers::Readers;
pub use writer::WriteTx;
use writer::{Job, Writer};

/// Why the database did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// SQLite said no.
    #[error("the database failed: {0}")]
    Sqlite(Arc<rusqlite::Error>),
    /// SQLite ended the transaction that this was a part of, as it does on a full disk.
    #[error("the database gave up a transaction; is the disk full?")]
    Aborted,
    /// The file can't be opened or made.
    #[error("{0}")]
    Unusable(String),
    /// A stored value is not what this version writes.
    #[error("the database holds a value that this version does not understand: {0}")]
    Corrupt(String),
    /// The database was written by a newer version.
    #[error(
        "the database has format {found}, this version knows up to {known}; use a newer quintet"
    )]
    TooNew {
        /// The format found.
        found: u32,
        /// The newest format known.
        known: u32,
    },
    /// The daemon is stopping.
    #[error("the database is closed")]
    Closed,
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(Arc::new(error))
    }
}

/// A handle on the database; clones share it.
#[derive(Debug, Clone)]
pub struct Db {
    writer: Writer,
    readers: Arc<Readers>,
    tail: Arc<Tail>,
}

impl Db {
    /// Opens or makes the database, bringing an older format up to date, and starts its writer.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        create_private(path)?;
        let mut connection = writer::connect(path)?;
        migrations::run(&mut connection)?;
        let head: Option<i64> =
            connection.query_row("SELECT max(seq) FROM journal", [], |row| row.get(0))?;
        let head = head.map_or(0, i64::cast_unsigned);
        let tail = Arc::new(Tail::new(head));
        Ok(Self {
            writer: Writer::start(connection, tail.clone(), head),
            readers: Arc::new(Readers::new(path)),
            tail,
        })
    }

    /// Runs `job` in a transaction; returns once that is durable.
    ///
    /// An error of the job rolls back what it did and nothing else.
    pub async fn write<T, E>(
        &self,
        job: impl FnOnce(&mut WriteTx<'_>) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        self.writer.run(Job::run(job, reply)).await?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Appends `entries` to the journal; returns the number of the last once all are durable.
    pub async fn append(&self, entries: Vec<Entry>) -> Result<u64, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.writer.run(Job::Append { entries, reply }).await?;
        Appending(answer).durable().await
    }

    /// Hands `entries` to the writer's thread and returns before they are durable. Appends that were
    /// started one after the other become rows in that order.
    pub(crate) async fn start_append(&self, entries: Vec<Entry>) -> Result<Appending, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.writer
            .hand_over(Job::Append { entries, reply })
            .await?;
        Ok(Appending(answer))
    }

    /// Hands one row to the writer from where nothing can wait. When the queue is full, a task of
    /// `waiting` does; else rows become rows in the order of the calls.
    pub(crate) fn append_in_order(&self, entry: Entry, waiting: &TaskTracker) -> Appending {
        let (reply, answer) = oneshot::channel();
        let entries = vec![entry];
        self.send_in_order(Job::Append { entries, reply }, waiting);
        Appending(answer)
    }

    /// The same for a row that is written together with something else.
    pub(crate) fn write_in_order(
        &self,
        job: impl FnOnce(&mut WriteTx<'_>) -> Result<u64, StoreError> + Send + 'static,
        waiting: &TaskTracker,
    ) -> Appending {
        let (reply, answer) = oneshot::channel();
        self.send_in_order(Job::run(job, reply), waiting);
        Appending(answer)
    }

    fn send_in_order(&self, job: Job, waiting: &TaskTracker) {
        if let Err(job) = self.writer.try_hand_over(job) {
            let writer = self.writer.clone();
            waiting.spawn(async move {
                // A closed queue drops the reply, which tells whoever waits.
                let _ = writer.hand_over(job).await;
            });
        }
    }

    /// Runs `query` on a read-only snapshot.
    pub async fn read<T, E>(
        &self,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, E> + Send + 'static,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        self.readers.read(query).await
    }

    pub(crate) fn tail(&self) -> &Arc<Tail> {
        &self.tail
    }
}

/// Rows on their way to the disk.
#[derive(Debug)]
pub(crate) struct Appending(oneshot::Receiver<Result<u64, StoreError>>);

impl Appending {
    /// Waits until they are there; returns the number of the last.
    pub(crate) async fn durable(self) -> Result<u64, StoreError> {
        self.0.await.map_err(|_| StoreError::Closed)?
    }
}

/// Makes the file readable by the user alone; SQLite gives its companions the same mode.
fn create_private(path: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
        .map(drop)
        .map_err(|error| StoreError::Unusable(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{Kind, Row};

    fn entry(text: &str) -> Entry {
        Entry::new(Kind::Note, &serde_json::json!({ "text": text }))
    }

    async fn numbers(db: &Db) -> Vec<(u64, String)> {
        db.read(|connection| -> Result<_, StoreError> {
            let mut rows = connection.prepare("SELECT seq, data FROM journal ORDER BY seq")?;
            let rows = rows.query_map([], |row| {
                Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?))
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
        .await
        .expect("readable")
    }

    #[tokio::test]
    async fn a_failed_job_leaves_no_row_and_no_gap() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        db.append(vec![entry("a")]).await.expect("durable");
        let failed: Result<(), StoreError> = db
            .write(|tx| {
                tx.append(entry("never"))?;
                Err(StoreError::Corrupt("on purpose".into()))
            })
            .await;
        assert!(matches!(failed, Err(StoreError::Corrupt(_))));
        let seq = db
            .write(|tx| -> Result<u64, StoreError> { tx.append(entry("b")) })
            .await
            .expect("durable");
        assert_eq!(seq, 2);
        assert_eq!(
            numbers(&db).await,
            [(1, r#"{"text":"a"}"#.into()), (2, r#"{"text":"b"}"#.into())]
        );
        let (visible, _) = db.tail().after(0).expect("recent");
        assert_eq!(
            visible
                .iter()
                .map(|row: &Arc<Row>| row.seq)
                .collect::<Vec<_>>(),
            [1, 2]
        );
    }

    #[tokio::test]
    async fn rows_of_one_append_keep_their_order_however_many() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let mut expected = Vec::new();
        for count in [1, 31, 32, 33, 64, 69] {
            let first = expected.len() as u64 + 1;
            let texts = (first..first + count).map(|n| n.to_string());
            let rows: Vec<Entry> = texts.clone().map(|text| entry(&text)).collect();
            let last = db.append(rows).await.expect("durable");
            expected.extend(texts.map(|text| format!(r#"{{"text":"{text}"}}"#)));
            assert_eq!(last, expected.len() as u64);
        }
        assert_eq!(
            numbers(&db).await,
            (1..).zip(expected).collect::<Vec<(u64, String)>>()
        );
    }

    #[tokio::test]
    async fn numbers_go_on_after_a_reopen() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("q.db");
        let db = Db::open(&path).expect("new");
        db.append(vec![entry("a"), entry("b")])
            .await
            .expect("durable");
        drop(db);
        let db = Db::open(&path).expect("there");
        assert_eq!(db.append(vec![entry("c")]).await.expect("durable"), 3);
    }

    #[tokio::test]
    async fn what_waits_shares_one_commit() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let (started, is_started) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel();
        let first = db.write_in_order(
            move |tx| {
                started.send(()).expect("the test waits");
                released.recv().expect("the test goes on");
                tx.append(entry("first"))
            },
            &TaskTracker::new(),
        );
        is_started.recv().expect("the writer runs it");
        let mut waiting = Vec::new();
        for _ in 0..64 {
            waiting.push(db.start_append(vec![entry("x")]).await.expect("room"));
        }
        release.send(()).expect("the writer waits");
        assert_eq!(first.durable().await.expect("durable"), 1);
        for (appending, seq) in waiting.into_iter().zip(2..) {
            assert_eq!(appending.durable().await.expect("durable"), seq);
        }
        let (rows, _) = db.tail().after(1).expect("recent");
        assert_eq!(rows.len(), 64);
        assert!(
            rows.iter().all(|row| row.at == rows[0].at),
            "each transaction has one time: {rows:?}"
        );
    }

    #[tokio::test]
    async fn concurrent_writers_get_every_number_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..50 {
            let db = db.clone();
            tasks.spawn(async move { db.append(vec![entry("x")]).await.expect("durable") });
        }
        let mut seen = tasks.join_all().await;
        seen.sort_unstable();
        assert_eq!(seen, (1..=50).collect::<Vec<_>>());
    }

    /// The name of the thread that runs a job of a caller whom nobody hinders.
    async fn committing_thread(db: &Db) -> Option<String> {
        db.write(|_| -> Result<_, StoreError> {
            Ok(std::thread::current().name().map(str::to_owned))
        })
        .await
        .expect("durable")
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_lone_caller_commits_by_itself() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        assert_ne!(committing_thread(&db).await.as_deref(), Some("quintet-db"));
        // Nor is it the thread's for ever once that had something to do.
        let handed_over = db.start_append(vec![entry("x")]).await.expect("room");
        assert_eq!(handed_over.durable().await.expect("durable"), 1);
        assert_ne!(committing_thread(&db).await.as_deref(), Some("quintet-db"));
    }

    #[tokio::test]
    async fn the_only_thread_of_a_runtime_never_waits_for_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        assert_eq!(committing_thread(&db).await.as_deref(), Some("quintet-db"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn other_tasks_go_on_while_a_caller_commits() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let (release, released) = std::sync::mpsc::channel();
        let (started, is_started) = oneshot::channel();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            is_started.await.expect("the job runs");
            release.send(()).expect("the job waits");
        });
        tasks.spawn(async move {
            db.write(move |tx| -> Result<(), StoreError> {
                started.send(()).expect("the other task waits");
                released.recv().expect("the other task goes on");
                tx.append(entry("x")).map(drop)
            })
            .await
            .expect("durable");
        });
        tasks.join_all().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_overtakes_what_was_handed_over() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        for round in 0..200 {
            let first = db.start_append(vec![entry("first")]).await.expect("room");
            let second = db.append(vec![entry("second")]).await.expect("durable");
            let first = first.durable().await.expect("durable");
            assert_eq!((first, second), (2 * round + 1, 2 * round + 2));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_comes_while_a_caller_commits_shares_the_next_commit() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let (started, is_started) = oneshot::channel();
        let (release, released) = std::sync::mpsc::channel();
        let mut leading = tokio::task::JoinSet::new();
        leading.spawn({
            let db = db.clone();
            async move {
                db.write(move |tx| {
                    started.send(()).expect("the test waits");
                    released.recv().expect("the test goes on");
                    tx.append(entry("first"))
                })
                .await
            }
        });
        is_started.await.expect("the caller runs it");
        let mut waiting = Vec::new();
        for _ in 0..64 {
            waiting.push(db.start_append(vec![entry("x")]).await.expect("room"));
        }
        // Whoever went away meanwhile gets what it asked for all the same.
        drop(waiting.pop());
        release.send(()).expect("the caller waits");
        for (appending, seq) in waiting.into_iter().zip(2..) {
            assert_eq!(appending.durable().await.expect("durable"), seq);
        }
        let (rows, _) = db.tail().after(1).expect("recent");
        assert_eq!(rows.len(), 64);
        assert!(
            rows.iter().all(|row| row.at == rows[0].at),
            "one transaction has one time: {rows:?}"
        );
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn after_a_crowd_the_first_one_back_waits_for_the_others_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let (release, released) = std::sync::mpsc::channel::<()>();
        // The thread is held by the first, so that the next two share a commit.
        let held = db.write_in_order(
            move |tx| {
                released.recv().expect("the test goes on");
                tx.append(entry("x"))
            },
            &TaskTracker::new(),
        );
        let one = db.start_append(vec![entry("x")]).await.expect("room");
        let two = db.start_append(vec![entry("x")]).await.expect("room");
        release.send(()).expect("the first waits");
        held.durable().await.expect("durable");
        one.durable().await.expect("durable");
        two.durable().await.expect("durable");
        assert_eq!(committing_thread(&db).await.as_deref(), Some("quintet-db"));
        assert_ne!(committing_thread(&db).await.as_deref(), Some("quintet-db"));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn who_writes_on_and_on_can_be_stopped() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let mut head = db.tail().watch();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move {
            loop {
                db.append(vec![entry("x")]).await.expect("durable");
            }
        });
        head.wait_for(|head| *head > 3).await.expect("it writes");
        tasks.shutdown().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn after_a_job_that_panicked_nothing_is_written_and_nobody_waits() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn({
            let db = db.clone();
            async move {
                db.write(|tx| -> Result<(), StoreError> {
                    tx.append(entry("never"))?;
                    panic!("on purpose")
                })
                .await
            }
        });
        let ended = tasks.join_next().await.expect("one task");
        assert!(ended.expect_err("it panicked").is_panic());
        let refused = db.append(vec![entry("x")]).await;
        assert!(matches!(refused, Err(StoreError::Closed)), "{refused:?}");
        assert_eq!(numbers(&db).await, []);
    }
}
