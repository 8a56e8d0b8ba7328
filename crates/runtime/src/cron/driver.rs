//! The task that wakes up when something is due.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::planner::{LATE_LIMIT, Rules};
use super::rows::{Cron, NewCron, Run};
use super::schedule::{QuietHours, Schedule};
use super::store::{self, Claim};
use crate::config::{Config, Skill};
use crate::refusal::Refusal;
use crate::store::{Db, StoreError, WriteTx};

/// How long to wait before trying again what the database refused.
const RETRY: Duration = Duration::from_secs(1);

/// Crons that are decided in one transaction: after a long absence each may
/// have many rows, and others write too.
const BATCH: usize = 16;

/// The rest of the daemon, as crons need it.
pub trait CronHost: Send + Sync + 'static {
    /// The skill of that name.
    ///
    /// # Errors
    ///
    /// When there is none, or it can't be read.
    fn skill(&self, name: &str) -> impl Future<Output = Result<Skill, Refusal>> + Send;

    /// Puts the skill into the session's durable queue, with sender `cron`, in
    /// the open transaction, and returns the message's number.
    ///
    /// # Errors
    ///
    /// A refusal that is not the database's makes the run a failed one.
    fn enqueue(&self, tx: &mut WriteTx<'_>, cron: &Cron, skill: &Skill) -> Result<u64, Refusal>;

    /// Told after the message is durable, to get the session going. A crash
    /// before this loses nothing: the queue is worked on after a restart.
    fn started(&self, session: u64, message: u64);
}

/// The time of day; the system's clock but in tests.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Makes, lists and removes crons. Clones share the driver that it wakes.
#[derive(Clone)]
pub struct CronHandle {
    db: Db,
    config: watch::Receiver<Arc<Config>>,
    clock: Clock,
    changed: Arc<Notify>,
}

/// A cron and when it will be started next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The cron.
    pub cron: Cron,
    /// The next occurrence outside of its quiet hours.
    pub next: Option<Timestamp>,
}

impl CronHandle {
    /// Makes a cron. That the skill exists is the caller's to check.
    ///
    /// # Errors
    ///
    /// As [`store::create`].
    pub async fn create(&self, new: NewCron) -> Result<Listed, Refusal> {
        let (schedule, quiet) = store::check(&new)?;
        let cron = self.db.write(move |tx| store::create(tx, &new)).await?;
        self.changed.notify_one();
        Ok(self.with_next(cron, Some((schedule, quiet))))
    }

    /// Removes a cron; what it has started goes on.
    ///
    /// # Errors
    ///
    /// As [`store::delete`].
    pub async fn delete(&self, id: u64) -> Result<(), Refusal> {
        self.db.write(move |tx| store::delete(tx, id)).await?;
        self.changed.notify_one();
        Ok(())
    }

    /// The crons that have not ended.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let crons = self.db.read(store::list).await?;
        Ok(crons
            .into_iter()
            .map(|cron| {
                let parsed = parse(&cron);
                self.with_next(cron, parsed)
            })
            .collect())
    }

    /// Whether there is, or was, such a cron.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn knows(&self, id: u64) -> Result<bool, StoreError> {
        self.db
            .read(move |connection| store::knows(connection, id))
            .await
    }

    /// Occurrences, newest first: of one cron or of all.
    ///
    /// # Errors
    ///
    /// When the database fails.
    pub async fn runs(&self, cron: Option<u64>, limit: u32) -> Result<Vec<Run>, StoreError> {
        self.db.write(store::settle).await?;
        self.db
            .read(move |connection| store::runs(connection, cron, limit))
            .await
    }

    fn with_next(&self, cron: Cron, parsed: Option<(Schedule, Option<QuietHours>)>) -> Listed {
        let zone = self.config.borrow().cron.time_zone.clone();
        let after = cron.decided.max((self.clock)());
        let next = parsed.and_then(|(schedule, quiet)| schedule.next_outside(after, quiet, &zone));
        Listed { cron, next }
    }
}

/// Starts what is due. One task owns it.
pub struct CronDriver<H> {
    handle: CronHandle,
    host: Arc<H>,
    /// The earliest time that the clock has shown: see [`Rules::up_since`].
    up_since: Timestamp,
    crons: BTreeMap<u64, Waiting>,
}

/// A cron that waits for its next occurrence.
struct Waiting {
    schedule: Schedule,
    quiet: Option<QuietHours>,
    next: Option<Timestamp>,
}

impl<H: CronHost> CronDriver<H> {
    /// Makes the driver and the handle that others use.
    pub fn new(
        db: Db,
        host: Arc<H>,
        config: watch::Receiver<Arc<Config>>,
        clock: Clock,
    ) -> (Self, CronHandle) {
        let up_since = clock();
        let handle = CronHandle {
            db,
            config,
            clock,
            changed: Arc::new(Notify::new()),
        };
        let driver = Self {
            handle: handle.clone(),
            host,
            up_since,
            crons: BTreeMap::new(),
        };
        (driver, handle)
    }

    /// Runs until it is told to stop; a start that has begun is finished first.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut config = self.handle.config.clone();
        let changed = Arc::clone(&self.handle.changed);
        let mut look_at_all = true;
        loop {
            let wait = match self.look(look_at_all).await {
                Ok(wait) => {
                    look_at_all = false;
                    wait
                }
                Err(error) => {
                    tracing::error!(%error, "crons could not be looked at; trying again");
                    look_at_all = true;
                    RETRY
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(wait) => {}
                () = changed.notified() => look_at_all = true,
                // The zone may be another one now. A closed sender changes nothing any more.
                Ok(()) = config.changed() => look_at_all = true,
            }
        }
    }

    /// Decides and starts what is due; says how long to wait before the next look.
    pub(super) async fn look(&mut self, all: bool) -> Result<Duration, StoreError> {
        if all {
            self.read_crons().await?;
        }
        let now = (self.handle.clock)();
        self.up_since = self.up_since.min(now);
        let decided = self.decide(now).await?;
        // Also those that a crash or an error left between due and started.
        if all || decided {
            self.start_due().await?;
        }
        let limit = Duration::try_from(LATE_LIMIT).unwrap_or(RETRY);
        let next = self.crons.values().filter_map(|cron| cron.next).min();
        // A wall clock may be set at any time and a sleep does not notice, so no
        // sleep is longer than what counts as late.
        Ok(next.map_or(limit, |next| {
            let until = next.duration_since((self.handle.clock)());
            Duration::try_from(until).unwrap_or_default().min(limit)
        }))
    }

    async fn read_crons(&mut self) -> Result<(), StoreError> {
        let zone = self.handle.config.borrow().cron.time_zone.clone();
        let crons = self.handle.db.read(store::list).await?;
        self.crons = crons
            .iter()
            .filter_map(|cron| {
                let (schedule, quiet) = parse(cron)?;
                let next = schedule.next_after(cron.decided, &zone);
                let waiting = Waiting {
                    schedule,
                    quiet,
                    next,
                };
                Some((cron.id, waiting))
            })
            .collect();
        Ok(())
    }

    /// Decides the crons whose next occurrence has come; whether there were any.
    async fn decide(&mut self, now: Timestamp) -> Result<bool, StoreError> {
        let due: Vec<_> = self
            .crons
            .iter()
            .filter(|(_, cron)| cron.next.is_some_and(|next| next <= now))
            .map(|(id, cron)| (*id, cron.schedule.clone(), cron.quiet))
            .collect();
        if due.is_empty() {
            return Ok(false);
        }
        let zone = self.handle.config.borrow().cron.time_zone.clone();
        for batch in due.chunks(BATCH) {
            let decided = self.decide_batch(batch.to_vec(), &zone, now).await?;
            for (id, decided) in decided {
                match (decided, self.crons.get_mut(&id)) {
                    (Some(decided), Some(cron)) => {
                        cron.next = cron.schedule.next_after(decided, &zone);
                    }
                    (None, _) => {
                        self.crons.remove(&id);
                    }
                    (Some(_), None) => {}
                }
            }
        }
        Ok(true)
    }

    async fn decide_batch(
        &self,
        batch: Vec<(u64, Schedule, Option<QuietHours>)>,
        zone: &TimeZone,
        now: Timestamp,
    ) -> Result<Vec<(u64, Option<Timestamp>)>, StoreError> {
        let up_since = self.up_since;
        let zone = zone.clone();
        self.handle
            .db
            .write(move |tx| {
                store::settle(tx)?;
                let rules = Rules {
                    zone: &zone,
                    up_since,
                };
                batch
                    .iter()
                    .map(|(id, schedule, quiet)| {
                        let decided = store::decide(tx, *id, (schedule, *quiet), rules, now)?;
                        Ok((*id, decided))
                    })
                    .collect()
            })
            .await
    }

    async fn start_due(&mut self) -> Result<(), StoreError> {
        let due = self.handle.db.read(store::due).await?;
        for (cron, due) in due {
            if self.start(&cron, due).await? && cron.once {
                self.crons.remove(&cron.id);
            }
        }
        Ok(())
    }

    /// Starts one occurrence; whether it was started.
    async fn start(&self, cron: &Cron, due: Timestamp) -> Result<bool, StoreError> {
        let skill = match self.host.skill(&cron.skill).await {
            Ok(skill) => skill,
            Err(refusal) => {
                self.fail(cron, due, refusal.to_string()).await?;
                return Ok(false);
            }
        };
        let host = Arc::clone(&self.host);
        let for_job = cron.clone();
        let claimed = self
            .handle
            .db
            .write(move |tx| {
                store::claim(tx, &for_job, due, |tx| host.enqueue(tx, &for_job, &skill))
            })
            .await;
        match claimed {
            Ok(Claim::Started(message)) => {
                self.host.started(cron.session, message);
                Ok(true)
            }
            Ok(Claim::NotDue) => Ok(false),
            // It is still due, and is tried again.
            Err(Refusal::Store(error)) => Err(error),
            Err(refusal) => {
                self.fail(cron, due, refusal.to_string()).await?;
                Ok(false)
            }
        }
    }

    async fn fail(&self, cron: &Cron, due: Timestamp, note: String) -> Result<(), StoreError> {
        tracing::warn!(cron = cron.id, %due, note, "a cron run could not be started");
        let cron = cron.clone();
        self.handle
            .db
            .write(move |tx| store::fail(tx, &cron, due, &note))
            .await
    }
}

/// Reads what was checked when it was saved.
fn parse(cron: &Cron) -> Option<(Schedule, Option<QuietHours>)> {
    let schedule = cron.schedule.parse();
    let quiet = QuietHours::parse(&cron.quiet_start, &cron.quiet_end);
    match (schedule, quiet) {
        (Ok(schedule), Ok(quiet)) => Some((schedule, quiet)),
        (schedule, _) => {
            // A zone can leave the database; the cron waits until it is back.
            tracing::error!(cron = cron.id, error = ?schedule.err(), "a stored cron cannot be read");
            None
        }
    }
}
