//! The durable side and the driver, on a real database and a clock that the
//! test sets.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

mod ends;
mod policies;

use super::store::{self, Claim};
use super::*;
use crate::config::{Config, ConfigInputs, Skill, load};
use crate::journal::Kind;
use crate::refusal::Refusal;
use crate::sessions::messages::TurnOutcome;
use crate::sessions::{self, NewSession, messages};
use crate::store::{Db, StoreError, WriteTx};

/// The session's queue, and the skills of a test.
struct Host {
    skills: Mutex<BTreeMap<String, Skill>>,
    started: mpsc::UnboundedSender<(u64, u64)>,
    /// The next refusal of `enqueue`, after it has put the message into the queue.
    refusal: Mutex<Option<Refusal>>,
}

impl CronHost for Host {
    async fn skill(&self, name: &str) -> Result<Skill, Refusal> {
        let skill = self.skills.lock().unwrap().get(name).cloned();
        skill.ok_or_else(|| Refusal::NotFound(format!("skill {name:?} not found")))
    }

    fn enqueue(&self, tx: &mut WriteTx<'_>, cron: &Cron, skill: &Skill) -> Result<u64, Refusal> {
        let session = sessions::open(tx.sql(), cron.session)?;
        let message = messages::enqueue(
            tx,
            &session,
            "cron",
            messages::Channel::Cron,
            &skill.body,
            messages::Purpose::Message,
        )?;
        match self.refusal.lock().unwrap().take() {
            Some(refusal) => Err(refusal),
            None => Ok(message.id),
        }
    }

    fn started(&self, session: u64, message: u64) {
        let _ = self.started.send((session, message));
    }
}

/// A daemon as far as crons see it.
struct World {
    folder: tempfile::TempDir,
    db: Db,
    now: Arc<AtomicI64>,
    config: watch::Sender<Arc<Config>>,
    host: Arc<Host>,
    started: mpsc::UnboundedReceiver<(u64, u64)>,
    driver: CronDriver<Host>,
    crons: CronHandle,
    session: u64,
}

fn config() -> Config {
    let inputs = ConfigInputs::new("/nonexistent/config.toml", TimeZone::UTC);
    load(&inputs).unwrap().0
}

fn host() -> (Arc<Host>, mpsc::UnboundedReceiver<(u64, u64)>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let skill = Skill {
        name: "daily".to_owned(),
        description: "d".to_owned(),
        body: "Say hello.".to_owned(),
    };
    let host = Host {
        skills: Mutex::new([("daily".to_owned(), skill)].into()),
        started: sender,
        refusal: Mutex::new(None),
    };
    (Arc::new(host), receiver)
}

async fn new_session(db: &Db) -> u64 {
    let new = NewSession {
        agent: "shell".to_owned(),
        sender: "user".to_owned(),
        folder: Some("/tmp".to_owned()),
        worker: String::new(),
    };
    db.write(|tx| sessions::create(tx, new, |_| String::new()))
        .await
        .unwrap()
        .id
}

impl World {
    /// Crons are made at the database's time, so the world starts a little later.
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let db = Db::open(&folder.path().join("quintet.db")).unwrap();
        let session = new_session(&db).await;
        let now = Arc::new(AtomicI64::new(Timestamp::now().as_second()));
        let config = watch::Sender::new(Arc::new(config()));
        let (host, started) = host();
        let clock = clock(&now);
        let (driver, crons) =
            CronDriver::new(db.clone(), Arc::clone(&host), config.subscribe(), clock);
        Self {
            folder,
            db,
            now,
            config,
            host,
            started,
            driver,
            crons,
            session,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("quintet.db")
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.now.load(Ordering::SeqCst)).unwrap()
    }

    fn set_now(&self, now: Timestamp) {
        self.now.store(now.as_second(), Ordering::SeqCst);
    }

    fn advance(&self, seconds: i64) {
        self.now.fetch_add(seconds, Ordering::SeqCst);
    }

    /// Stops the daemon and starts it again at the same time of day.
    fn restart(&mut self) {
        self.db = Db::open(&self.path()).unwrap();
        (self.host, self.started) = host();
        (self.driver, self.crons) = CronDriver::new(
            self.db.clone(),
            Arc::clone(&self.host),
            self.config.subscribe(),
            clock(&self.now),
        );
    }

    fn new_cron(&self, schedule: &str) -> NewCron {
        NewCron {
            schedule: schedule.to_owned(),
            skill: "daily".to_owned(),
            session: self.session,
            ..NewCron::default()
        }
    }

    /// Makes a cron and goes to its first occurrence.
    async fn at_first_occurrence(&mut self, new: NewCron) -> (u64, Timestamp) {
        let listed = self.crons.create(new).await.unwrap();
        self.driver.look(true).await.unwrap();
        let due = listed.next.unwrap();
        self.set_now(due);
        (listed.cron.id, due)
    }

    /// Every occurrence, oldest first.
    async fn states(&self) -> Vec<RunState> {
        let runs = self.crons.runs(None, 5000).await.unwrap();
        runs.iter().rev().map(|run| run.state).collect()
    }

    async fn queue(&self) -> Vec<messages::Message> {
        self.db
            .read(|connection| messages::waiting(connection, None))
            .await
            .unwrap()
    }

    /// Starts the turn of a waiting message.
    async fn begin_turn(&self, id: u64) {
        let message = self
            .queue()
            .await
            .into_iter()
            .find(|message| message.id == id)
            .unwrap();
        let begun = self
            .db
            .write(move |tx| messages::begin(tx, &message, "shell"))
            .await;
        assert!(begun.unwrap());
    }

    /// Runs the turn of a waiting message to its end; an empty error is success.
    async fn end_turn(&self, id: u64, error: &'static str) {
        self.begin_turn(id).await;
        self.end_running(id, error).await;
    }

    async fn end_running(&self, id: u64, error: &'static str) {
        self.db
            .write(move |tx| -> Result<(), StoreError> {
                let outcome = TurnOutcome {
                    error: error.to_owned(),
                    ..TurnOutcome::default()
                };
                assert!(messages::end(tx, id, &outcome)?);
                Ok(())
            })
            .await
            .unwrap();
    }

    /// The data of the session's journal rows of a kind.
    async fn told(&self, kind: Kind) -> Vec<Value> {
        let session = self.session;
        self.db
            .read(move |connection| -> Result<_, StoreError> {
                let sql = "SELECT data FROM journal WHERE kind = ? AND session = ? ORDER BY seq";
                let mut rows = connection.prepare(sql)?;
                let rows = rows.query_map((kind.as_str(), session.cast_signed()), |row| {
                    row.get::<_, String>(0)
                })?;
                Ok(rows.collect::<Result<Vec<_>, _>>()?)
            })
            .await
            .unwrap()
            .iter()
            .map(|data| serde_json::from_str(data).unwrap())
            .collect()
    }

    /// The states that the journal tells of, in order.
    async fn journal(&self) -> Vec<Value> {
        let told = self.told(Kind::CronRun).await;
        told.iter().map(|data| data["state"].clone()).collect()
    }

    async fn close_session(&self) {
        let session = self.session;
        self.db
            .write(move |tx| sessions::close(tx, session, "the session was killed by me"))
            .await
            .unwrap();
    }
}

fn clock(now: &Arc<AtomicI64>) -> Clock {
    let now = Arc::clone(now);
    Arc::new(move || Timestamp::from_second(now.load(Ordering::SeqCst)).unwrap())
}

#[tokio::test]
async fn a_cron_sends_its_skill_when_it_is_due() {
    let mut world = World::new().await;
    let (cron, due) = world.at_first_occurrence(world.new_cron("* * * * *")).await;
    let wait = world.driver.look(false).await.unwrap();
    assert_eq!(wait, Duration::from_secs(60));
    let queue = world.queue().await;
    assert_eq!(queue.len(), 1);
    assert_eq!(
        (queue[0].sender.as_str(), queue[0].text.as_str()),
        ("cron", "Say hello.")
    );
    assert_eq!(world.started.try_recv(), Ok((world.session, queue[0].id)));
    let runs = world.crons.runs(Some(cron), 10).await.unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].due, runs[0].state), (due, RunState::Started));
    assert_eq!(runs[0].message, Some(queue[0].id));
    assert!(runs[0].started.is_some() && runs[0].finished.is_none());

    // Looking again changes nothing.
    world.driver.look(true).await.unwrap();
    assert_eq!(world.queue().await.len(), 1);

    world.end_turn(queue[0].id, "").await;
    let runs = world.crons.runs(Some(cron), 10).await.unwrap();
    assert_eq!(runs[0].state, RunState::Finished);
    assert!(runs[0].finished.is_some());
    assert_eq!(world.journal().await, ["due", "started", "finished"]);
}

#[tokio::test]
async fn a_crash_between_due_and_started_starts_it_exactly_once() {
    let mut world = World::new().await;
    let (cron, due) = world.at_first_occurrence(world.new_cron("* * * * *")).await;
    // The daemon decides, and dies before it claims.
    let zone = TimeZone::UTC;
    let (up_since, now) = (world.now() - SignedDuration::from_secs(60), world.now());
    world
        .db
        .write(move |tx| {
            let schedule = "* * * * *".parse().unwrap();
            let rules = planner::Rules {
                zone: &zone,
                up_since,
            };
            store::decide(tx, cron, (&schedule, None), rules, now)
        })
        .await
        .unwrap();
    assert_eq!(world.states().await, [RunState::Due]);
    assert_eq!(world.queue().await, []);

    // However late the restart is.
    world.advance(3 * 86_400 + 7);
    world.restart();
    world.driver.look(true).await.unwrap();
    let queue = world.queue().await;
    assert_eq!(queue.len(), 1);
    let runs = world.crons.runs(Some(cron), 5000).await.unwrap();
    let started: Vec<_> = runs
        .iter()
        .filter(|run| run.state == RunState::Started)
        .collect();
    assert_eq!(started.len(), 1);
    assert_eq!(
        (started[0].due, started[0].message),
        (due, Some(queue[0].id))
    );

    // A second restart finds nothing to do.
    world.restart();
    world.driver.look(true).await.unwrap();
    assert_eq!(world.queue().await.len(), 1);
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_start_leaves_it_due_and_the_queue_empty() {
    let mut world = World::new().await;
    world.at_first_occurrence(world.new_cron("* * * * *")).await;
    // The transaction that claims and enqueues does not commit.
    *world.host.refusal.lock().unwrap() = Some(Refusal::Store(StoreError::Aborted));
    assert!(world.driver.look(false).await.is_err());
    assert_eq!(world.queue().await, []);
    assert_eq!(world.states().await, [RunState::Due]);

    world.restart();
    world.driver.look(true).await.unwrap();
    assert_eq!(world.queue().await.len(), 1);
    assert_eq!(world.states().await, [RunState::Started]);
}

#[tokio::test]
async fn two_claims_of_one_occurrence_start_it_once() {
    let mut world = World::new().await;
    *world.host.refusal.lock().unwrap() = Some(Refusal::Store(StoreError::Aborted));
    world.at_first_occurrence(world.new_cron("* * * * *")).await;
    assert!(world.driver.look(false).await.is_err());
    let (cron, due) = world.db.read(store::due).await.unwrap().remove(0);
    let mut claims = Vec::new();
    for _ in 0..2 {
        let (cron, host) = (cron.clone(), Arc::clone(&world.host));
        let skill = host.skill("daily").await.unwrap();
        let claim = world
            .db
            .write(move |tx| store::claim(tx, &cron, due, |tx| host.enqueue(tx, &cron, &skill)))
            .await
            .unwrap();
        claims.push(claim);
    }
    assert!(matches!(claims[0], Claim::Started(_)));
    assert_eq!(claims[1], Claim::NotDue);
    assert_eq!(world.queue().await.len(), 1);
}

#[tokio::test]
async fn a_missing_skill_is_a_failed_run() {
    let mut world = World::new().await;
    let (cron, _) = world.at_first_occurrence(world.new_cron("* * * * *")).await;
    world.host.skills.lock().unwrap().clear();
    world.driver.look(false).await.unwrap();
    let runs = world.crons.runs(Some(cron), 10).await.unwrap();
    assert_eq!(runs[0].state, RunState::Failed);
    assert_eq!(runs[0].note, "skill \"daily\" not found");
    assert_eq!(world.journal().await, ["due", "failed"]);
}

#[tokio::test]
async fn bad_crons_are_refused_with_the_reason() {
    let world = World::new().await;
    for schedule in [
        "",
        "nonsense",
        "0 0 30 2 *",
        "61 * * * *",
        "TZ=Nowhere/At-All * * * * *",
    ] {
        let refused = world.crons.create(world.new_cron(schedule)).await;
        assert!(matches!(refused, Err(Refusal::Bad(_))), "{schedule}");
    }
    for (start, end) in [
        ("25:00", "06:00"),
        ("22:00", ""),
        ("", "22:00"),
        ("22:00", "22:00"),
    ] {
        let new = NewCron {
            quiet_start: start.to_owned(),
            quiet_end: end.to_owned(),
            ..world.new_cron("@daily")
        };
        let refused = world.crons.create(new).await;
        assert!(matches!(refused, Err(Refusal::Bad(_))), "{start}-{end}");
    }
    let new = NewCron {
        session: 99,
        ..world.new_cron("@daily")
    };
    assert!(matches!(
        world.crons.create(new).await,
        Err(Refusal::NotFound(_))
    ));
    assert_eq!(world.crons.list().await.unwrap(), []);
}

#[tokio::test]
async fn crons_are_listed_with_their_next_start_and_survive_a_restart() {
    let mut world = World::new().await;
    let made = world.crons.create(world.new_cron("@hourly")).await.unwrap();
    world.crons.create(world.new_cron("@daily")).await.unwrap();
    let listed = world.crons.list().await.unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[0], made);
    assert!(listed[0].next.unwrap() > world.now());
    world.restart();
    assert_eq!(world.crons.list().await.unwrap(), listed);
    // A number is never used again.
    world.crons.delete(2).await.unwrap();
    let third = world.crons.create(world.new_cron("@daily")).await.unwrap();
    assert_eq!(third.cron.id, 3);
}

#[tokio::test]
async fn old_runs_are_forgotten_and_open_ones_are_not() {
    let mut world = World::new().await;
    let (cron, _) = world
        .at_first_occurrence(world.new_cron("* * * * * *"))
        .await;
    world.driver.look(false).await.unwrap();
    for _ in 0..3 {
        world.advance(900);
        world.driver.look(false).await.unwrap();
    }
    let states = world.states().await;
    assert_eq!(states.len(), 1001);
    assert_eq!(states[0], RunState::Started);
    assert_eq!(world.crons.runs(Some(cron), 7).await.unwrap().len(), 7);
}

#[tokio::test]
async fn the_driver_wakes_up_by_itself_and_stops_when_it_is_told() {
    let World {
        db,
        host,
        mut started,
        config,
        session,
        folder,
        ..
    } = World::new().await;
    let clock: Clock = Arc::new(Timestamp::now);
    let (driver, crons) = CronDriver::new(db, host, config.subscribe(), clock);
    let stop = CancellationToken::new();
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(driver.run(stop.clone()));
    let new = NewCron {
        schedule: "* * * * * *".to_owned(),
        skill: "daily".to_owned(),
        session,
        ..NewCron::default()
    };
    crons.create(new).await.unwrap();
    let started = tokio::time::timeout(Duration::from_secs(20), started.recv());
    assert_eq!(started.await.unwrap().unwrap().0, session);
    stop.cancel();
    tasks.join_all().await;
    drop(folder);
}
