//! The writing connection, and who commits with it.
//!
//! Whoever writes while nobody else does commits by itself, on its own thread: handing the job to
//! another one and being woken again takes about half as long as the sync does. Everybody else
//! hands the job to the thread of the database, which takes all that wait with one commit. So do
//! those who wrote at once a moment ago: the first one back would else commit without the others.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ToSql};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};

use super::StoreError;
use crate::journal::{Entry, Row, Tail};

/// Jobs that may wait for the thread.
const JOB_QUEUE: usize = 1024;

/// Jobs in one transaction at the most, so that the first of them does not wait for ever.
const MAX_GROUP: usize = 512;

/// Rows that one statement inserts where there are that many: it stays at the end of the table and
/// of its index, which statements of one row look for again each time.
const ROWS_IN_STATEMENT: usize = 32;

/// How long the thread stays awake for those whom it answered: about what it takes to wake two threads.
const AWAKE: Duration = Duration::from_micros(60);

/// Who is back within this time comes back soon: with the thread asleep, that takes longer.
const SOON: Duration = Duration::from_micros(200);

/// Statements kept prepared by the writer.
const STATEMENT_CACHE: usize = 128;

const INSERT: &str =
    "INSERT INTO journal (seq, at, session, turn, kind, data) VALUES (?, ?, ?, ?, ?, ?)";

/// Answers a job's caller, given what became of the transaction.
type Reply = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

type Run = Box<dyn FnOnce(Result<&mut WriteTx<'_>, StoreError>) -> Reply + Send>;

/// Work for the writer.
pub(super) enum Job {
    /// Anything, in a savepoint of its own; told why when there is no transaction to run in.
    Run(Run),
    /// The hot path: journal rows and nothing else, which can only fail as the whole transaction does.
    Append {
        entries: Vec<Entry>,
        reply: oneshot::Sender<Result<u64, StoreError>>,
    },
}

impl Job {
    pub(super) fn run<T, E>(
        job: impl FnOnce(&mut WriteTx<'_>) -> Result<T, E> + Send + 'static,
        reply: oneshot::Sender<Result<T, E>>,
    ) -> Self
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        Self::Run(Box::new(move |tx| {
            let outcome = match tx {
                Ok(tx) => tx.savepoint(job),
                Err(error) => Err(error.into()),
            };
            // A caller that has gone away does not undo what it asked for.
            Box::new(move |committed| {
                let _ = reply.send(committed.map_err(E::from).and(outcome));
            })
        }))
    }
}

/// An open transaction.
#[derive(Debug)]
pub struct WriteTx<'a> {
    connection: &'a Connection,
    appended: Vec<Arc<Row>>,
    head: u64,
    now: i64,
}

impl WriteTx<'_> {
    /// The connection, for statements.
    pub fn sql(&self) -> &Connection {
        self.connection
    }

    /// The time of this transaction in microseconds since 1970, the same for all its rows.
    pub fn now(&self) -> i64 {
        self.now
    }

    /// Appends one row to the journal and returns its number.
    pub fn append(&mut self, entry: Entry) -> Result<u64, StoreError> {
        self.append_all([entry])
    }

    /// Appends rows to the journal and returns the number of the last.
    fn append_all(&mut self, entries: impl IntoIterator<Item = Entry>) -> Result<u64, StoreError> {
        let rows: Vec<_> = (self.head + 1..)
            .zip(entries)
            .map(|(seq, entry)| Arc::new(Row::new(seq, self.now, entry)))
            .collect();
        for rows in rows.chunks(ROWS_IN_STATEMENT) {
            // One at a time again where a statement is not filled: there are two statements to prepare.
            let each = if rows.len() == ROWS_IN_STATEMENT {
                ROWS_IN_STATEMENT
            } else {
                1
            };
            let mut insert = self.connection.prepare_cached(insert_sql(each))?;
            for rows in rows.chunks(each) {
                let mut parameter = 0;
                let mut bind = |value: &dyn ToSql| {
                    parameter += 1;
                    insert.raw_bind_parameter(parameter, value)
                };
                for row in rows {
                    bind(&row.seq.cast_signed())?;
                    bind(&row.at)?;
                    bind(&row.session.map(u64::cast_signed))?;
                    bind(&row.turn.map(u64::cast_signed))?;
                    bind(&row.kind.as_str())?;
                    bind(&row.data)?;
                }
                insert.raw_execute()?;
            }
        }
        if let Some(last) = rows.last() {
            self.head = last.seq;
        }
        self.appended.extend(rows);
        Ok(self.head)
    }

    fn savepoint<T, E: From<StoreError>>(
        &mut self,
        job: impl FnOnce(&mut Self) -> Result<T, E>,
    ) -> Result<T, E> {
        execute(self.connection, "SAVEPOINT job")?;
        let (rows, head) = (self.appended.len(), self.head);
        let outcome = job(self);
        if outcome.is_err() {
            execute(self.connection, "ROLLBACK TO job")?;
            self.appended.truncate(rows);
            self.head = head;
        }
        execute(self.connection, "RELEASE job")?;
        outcome
    }
}

/// The statement that inserts `rows` rows, either one or [`ROWS_IN_STATEMENT`].
fn insert_sql(rows: usize) -> &'static str {
    static MANY: LazyLock<String> = LazyLock::new(|| {
        let more = ", (?, ?, ?, ?, ?, ?)".repeat(ROWS_IN_STATEMENT - 1);
        format!("{INSERT}{more}")
    });
    if rows == 1 { INSERT } else { &MANY }
}

/// Opens the writing connection.
pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    // First of all: it holds only for a database that is still empty.
    connection.pragma_update(None, "auto_vacuum", "incremental")?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // FULL syncs the log at every commit: what a client was told survives a power cut.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "journal_size_limit", 64 << 20)?;
    connection.pragma_update(None, "wal_autocheckpoint", 4000)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    Ok(connection)
}

/// The way to the writing connection; clones share it.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
    /// Jobs that were handed to the thread and are not committed yet: nobody overtakes them.
    waiting: Arc<AtomicUsize>,
    /// Whether the thread's last commit was of several jobs, whose callers are about to come back.
    crowded: Arc<AtomicBool>,
    /// Held for one transaction. A thread waits for it; a task only ever tries.
    transactions: Arc<Mutex<Transactions>>,
}

impl Writer {
    /// Starts the thread. It ends when every handle on the database is gone.
    pub(super) fn start(connection: Connection, tail: Arc<Tail>, head: u64) -> Self {
        let (jobs, queue) = mpsc::channel(JOB_QUEUE);
        let writer = Self {
            jobs,
            waiting: Arc::default(),
            crowded: Arc::default(),
            transactions: Arc::new(Mutex::new(Transactions {
                connection,
                tail,
                head,
            })),
        };
        let (waiting, crowded) = (writer.waiting.clone(), writer.crowded.clone());
        let transactions = writer.transactions.clone();
        std::thread::Builder::new()
            .name("quintet-db".into())
            .spawn(move || commit_what_waits(queue, &waiting, &crowded, &transactions))
            .expect("the system can start a thread");
        writer
    }

    /// Runs `job` where nobody else writes, else hands it to the thread.
    pub(super) async fn run(&self, job: Job) -> Result<(), StoreError> {
        match self.run_here(job) {
            None => Ok(()),
            Some(job) => self.hand_over(job).await,
        }
    }

    /// Hands `job` to the thread. Jobs that were handed over one after the other run in that order.
    pub(super) async fn hand_over(&self, job: Job) -> Result<(), StoreError> {
        let room = self.jobs.reserve().await.map_err(|_| StoreError::Closed)?;
        self.waiting.fetch_add(1, Ordering::AcqRel);
        room.send(job);
        Ok(())
    }

    /// The same, without waiting for room: the job comes back where there is none.
    pub(super) fn try_hand_over(&self, job: Job) -> Result<(), Job> {
        match self.jobs.try_reserve() {
            Ok(room) => {
                self.waiting.fetch_add(1, Ordering::AcqRel);
                room.send(job);
                Ok(())
            }
            Err(mpsc::error::TrySendError::Full(())) => Err(job),
            // Dropping the job tells whoever waits.
            Err(mpsc::error::TrySendError::Closed(())) => Ok(()),
        }
    }

    /// Commits `job` on this thread, or gives it back: where somebody else commits, where jobs wait
    /// that came first, where several wrote at once, and on a runtime of one thread, where all other
    /// tasks would wait for the disk.
    fn run_here(&self, job: Job) -> Option<Job> {
        let has_more_threads = Handle::try_current()
            .is_ok_and(|runtime| runtime.runtime_flavor() == RuntimeFlavor::MultiThread);
        if !has_more_threads {
            return Some(job);
        }
        let Ok(mut transactions) = self.transactions.try_lock() else {
            return Some(job);
        };
        if self.waiting.load(Ordering::Acquire) > 0 || self.crowded.load(Ordering::Relaxed) {
            return Some(job);
        }
        // Another thread goes on with this one's tasks meanwhile.
        let answers = tokio::task::block_in_place(|| transactions.commit(std::iter::once(job)));
        drop(transactions);
        answers.send();
        None
    }
}

fn commit_what_waits(
    mut queue: mpsc::Receiver<Job>,
    waiting: &AtomicUsize,
    crowded: &AtomicBool,
    transactions: &Mutex<Transactions>,
) {
    let mut group = Vec::with_capacity(MAX_GROUP);
    let mut callers = Callers::default();
    loop {
        callers.await_return(&queue);
        if queue.blocking_recv_many(&mut group, MAX_GROUP) == 0 {
            return;
        }
        // Poisoned by a job that panicked where it was run: nothing more is written.
        let Ok(mut transactions) = transactions.lock() else {
            return;
        };
        // Those who came while another commit was waited for.
        while group.len() < MAX_GROUP
            && let Ok(job) = queue.try_recv()
        {
            group.push(job);
        }
        let count = group.len();
        callers.are_back(count);
        crowded.store(count > 1, Ordering::Relaxed);
        let answers = transactions.commit(group.drain(..));
        // Before the answers: a lone caller that comes right back finds nobody before it.
        waiting.fetch_sub(count, Ordering::AcqRel);
        drop(transactions);
        answers.send();
        callers.answered();
    }
}

/// Those whom the last commit answered, as far as they matter to whether the thread may sleep.
///
/// Who writes one row after the other is back sooner than a thread falls asleep and is woken; and of
/// many who do, one commit should take all, not the first alone. So the thread stays awake for a
/// moment where the last ones came back that soon, and sleeps at once where events are rare.
#[derive(Default)]
struct Callers {
    count: usize,
    answered: Option<Instant>,
    come_back: bool,
}

impl Callers {
    fn answered(&mut self) {
        self.answered = Some(Instant::now());
    }

    fn are_back(&mut self, count: usize) {
        self.count = count;
        self.come_back = self.answered.is_some_and(|at| at.elapsed() < SOON);
    }

    /// Waits, awake, until as many jobs wait as were answered, at most for [`AWAKE`].
    fn await_return(&self, queue: &mpsc::Receiver<Job>) {
        // On one core, they could only come back when this thread sleeps.
        static HAS_ROOM: LazyLock<bool> =
            LazyLock::new(|| available_parallelism().is_ok_and(|cores| cores.get() > 1));
        let Some(answered) = self.answered.filter(|_| self.come_back && *HAS_ROOM) else {
            return;
        };
        while queue.len() < self.count && answered.elapsed() < AWAKE {
            std::hint::spin_loop();
        }
    }
}

/// The writing connection and the number of the last row that it wrote.
#[derive(Debug)]
struct Transactions {
    connection: Connection,
    tail: Arc<Tail>,
    head: u64,
}

impl Transactions {
    /// Runs a group of jobs in one transaction and publishes their rows.
    fn commit(&mut self, group: impl Iterator<Item = Job>) -> Answers {
        let connection = &self.connection;
        let mut tx = WriteTx {
            connection,
            appended: Vec::new(),
            head: self.head,
            now: jiff::Timestamp::now().as_microsecond(),
        };
        let mut replies: Vec<Reply> = Vec::new();
        let mut failed = execute(connection, "BEGIN IMMEDIATE").err();
        for job in group {
            match job {
                Job::Run(job) => replies.push(job(match &failed {
                    None => Ok(&mut tx),
                    Some(error) => Err(error.clone()),
                })),
                Job::Append { entries, reply } => {
                    if failed.is_none() {
                        failed = tx.append_all(entries).err();
                    }
                    let last = tx.head;
                    replies.push(Box::new(move |committed| {
                        let _ = reply.send(committed.map(|()| last));
                    }));
                }
            }
            // SQLite ends a transaction by itself on a full disk; what follows must not run outside of one.
            if failed.is_none() && connection.is_autocommit() {
                failed = Some(StoreError::Aborted);
            }
        }
        let outcome = match failed {
            None => execute(connection, "COMMIT"),
            Some(error) => Err(error),
        };
        match &outcome {
            Ok(()) => {
                self.head = tx.head;
                self.tail.publish(tx.appended);
            }
            Err(error) => {
                tracing::error!(%error, "a transaction failed; nothing of it was kept");
                let _ = execute(connection, "ROLLBACK");
            }
        }
        Answers { replies, outcome }
    }
}

/// What the callers of a transaction's jobs are told, once its connection is free for others.
#[must_use]
struct Answers {
    replies: Vec<Reply>,
    outcome: Result<(), StoreError>,
}

impl Answers {
    fn send(self) {
        for reply in self.replies {
            reply(self.outcome.clone());
        }
    }
}

/// Runs a statement that every transaction has, and which is therefore kept prepared.
fn execute(connection: &Connection, sql: &str) -> Result<(), StoreError> {
    connection.prepare_cached(sql)?.execute([])?;
    Ok(())
}
