//! Schedules.

use std::path::Path;

use quintet_control::wire::{self, CreateCronMsg, CronInfo, CronList, CronRun, CronRunList};

use crate::config::{Skill, load_skill};
use crate::cron::{Cron, CronHost, Listed, MissedPolicy, NewCron, OverlapPolicy, Run};
use crate::daemon::Runtime;
use crate::home::Home;
use crate::refusal::Refusal;
use crate::sessions;
use crate::sessions::messages::{self, Channel, Purpose};
use crate::store::WriteTx;
use crate::turns::Coordinator;

/// The sender of what a schedule starts.
const SENDER: &str = "cron";

/// Occurrences shown at the most, newest first.
const RUNS_SHOWN: u32 = 1000;

impl Runtime {
    pub(crate) async fn create_cron(&self, request: CreateCronMsg) -> Result<CronInfo, Refusal> {
        find_skill(&self.home, &request.skill).await?;
        let missed = missed_from_wire(request.missed)?;
        let overlap = overlap_from_wire(request.overlap)?;
        let schedule = match request.timezone.as_deref() {
            None | Some("") => request.schedule,
            Some(zone) => format!("TZ={zone} {}", request.schedule),
        };
        let new = NewCron {
            schedule,
            skill: request.skill,
            session: request.session,
            quiet_start: request.quiet_start.unwrap_or_default(),
            quiet_end: request.quiet_end.unwrap_or_default(),
            once: request.once,
            missed,
            overlap,
        };
        Ok(info(self.crons.create(new).await?))
    }

    pub(crate) async fn delete_cron(&self, id: u64) -> Result<(), Refusal> {
        self.crons.delete(id).await
    }

    pub(crate) async fn list_crons(&self) -> Result<CronList, Refusal> {
        let crons = self.crons.list().await?;
        Ok(CronList {
            crons: crons.into_iter().map(info).collect(),
        })
    }

    pub(crate) async fn list_cron_runs(&self, cron: Option<u64>) -> Result<CronRunList, Refusal> {
        if let Some(id) = cron
            && !self.crons.knows(id).await?
        {
            return Err(Refusal::no_cron(id));
        }
        let runs = self.crons.runs(cron, RUNS_SHOWN).await?;
        Ok(CronRunList {
            runs: runs.into_iter().map(run).collect(),
        })
    }
}

fn info(listed: Listed) -> CronInfo {
    let Listed { cron, next } = listed;
    let (timezone, schedule) = match cron.schedule.strip_prefix("TZ=") {
        Some(zoned) => zoned.split_once(' ').unwrap_or((zoned, "")),
        None => ("", cron.schedule.as_str()),
    };
    CronInfo {
        id: cron.id,
        schedule: schedule.to_owned(),
        skill: cron.skill,
        session: cron.session,
        quiet_start: cron.quiet_start,
        quiet_end: cron.quiet_end,
        once: cron.once,
        timezone: timezone.to_owned(),
        missed: match cron.missed {
            MissedPolicy::Skip => wire::MissedPolicy::Skip,
            MissedPolicy::RunOnce => wire::MissedPolicy::RunOnce,
        }
        .into(),
        overlap: match cron.overlap {
            OverlapPolicy::Skip => wire::OverlapPolicy::Skip,
            OverlapPolicy::Queue => wire::OverlapPolicy::Queue,
        }
        .into(),
        next: next.map(|time| time.to_string()).unwrap_or_default(),
    }
}

/// A policy of a newer client's is refused: another one is not what it asked for.
fn missed_from_wire(number: i32) -> Result<MissedPolicy, Refusal> {
    match wire::MissedPolicy::try_from(number) {
        Ok(wire::MissedPolicy::Skip) => Ok(MissedPolicy::Skip),
        Ok(wire::MissedPolicy::RunOnce) => Ok(MissedPolicy::RunOnce),
        Err(_) => Err(Refusal::Bad(format!(
            "missed: policy {number} is not known; use skip (0) or run once (1)"
        ))),
    }
}

fn overlap_from_wire(number: i32) -> Result<OverlapPolicy, Refusal> {
    match wire::OverlapPolicy::try_from(number) {
        Ok(wire::OverlapPolicy::Skip) => Ok(OverlapPolicy::Skip),
        Ok(wire::OverlapPolicy::Queue) => Ok(OverlapPolicy::Queue),
        Err(_) => Err(Refusal::Bad(format!(
            "overlap: policy {number} is not known; use skip (0) or queue (1)"
        ))),
    }
}

fn run(run: Run) -> CronRun {
    let time = |time: Option<jiff::Timestamp>| time.map(|at| at.to_string()).unwrap_or_default();
    CronRun {
        cron: run.cron,
        due: run.due.to_string(),
        started: time(run.started),
        finished: time(run.finished),
        outcome: run.state.as_str().to_owned(),
        detail: run.note,
    }
}

/// A skill by its name, which is its folder's: one path component and nothing else.
async fn find_skill(home: &Home, name: &str) -> Result<Skill, Refusal> {
    let (dir, name) = (home.skills_dir(), name.to_owned());
    tokio::task::spawn_blocking(move || {
        let is_folder = !(name.is_empty() || name.starts_with('.') || name.contains(['/', '\0']));
        let file = dir.join(&name).join("SKILL.md");
        if is_folder && file.exists() {
            return load_skill(&file).map_err(|problem| {
                Refusal::NotFound(format!("skill {name:?} can't be read: {problem}"))
            });
        }
        let next = match is_folder {
            true => format!("write it to {}", file.display()),
            false => format!("its name is its folder's in {}", dir.display()),
        };
        let there = match skill_names(&dir) {
            names if names.is_empty() => "there is none yet".to_owned(),
            names => format!("there are: {}", names.join(", ")),
        };
        Err(Refusal::NotFound(format!(
            "skill {name:?} not found; {there}; {next}"
        )))
    })
    .await
    .map_err(|error| Refusal::Internal(error.to_string()))?
}

/// Folders with a `SKILL.md`, also of those that can't be read: they can be mended.
fn skill_names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
        .filter(|folder| folder.path().join("SKILL.md").is_file())
        .map(|folder| folder.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Starts what schedules say.
pub(crate) struct CronRunner {
    home: Home,
    coordinator: Coordinator,
    started: prometheus_client::metrics::counter::Counter,
}

impl CronRunner {
    pub(crate) fn new(
        home: Home,
        coordinator: Coordinator,
        started: prometheus_client::metrics::counter::Counter,
    ) -> Self {
        Self {
            home,
            coordinator,
            started,
        }
    }
}

impl CronHost for CronRunner {
    async fn skill(&self, name: &str) -> Result<Skill, Refusal> {
        find_skill(&self.home, name).await
    }

    fn enqueue(&self, tx: &mut WriteTx<'_>, cron: &Cron, skill: &Skill) -> Result<u64, Refusal> {
        let session = sessions::open(tx.sql(), cron.session)?;
        let text = match self.coordinator.takes_lines(&session.agent) {
            true => skill.body.clone(),
            false => format!("Skill {}:\n\n{}", skill.name, skill.body),
        };
        let message =
            messages::enqueue(tx, &session, SENDER, Channel::Cron, &text, Purpose::Message)?;
        Ok(message.id)
    }

    fn started(&self, session: u64, _message: u64) {
        self.started.inc();
        self.coordinator.wake(session);
    }
}
