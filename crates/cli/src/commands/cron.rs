//! `quintet cron add`, `rm`, `ls` and `runs`.

use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use quintet_control::Client;
use quintet_control::wire::{
    CreateCronMsg, CronInfo, CronRun, CronRunsMsg, DeleteCronMsg, MissedPolicy, OverlapPolicy,
};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

const ADD_EXAMPLES: &str = "\
Examples:
  quintet cron add '0 9 * * 1-5' standup 3      Weekdays at nine
  quintet cron add '*/10 * * * * *' watch 3     Every ten seconds
  quintet cron add @daily report 3 --quiet-start 22:00 --quiet-end 07:00";

/// Run skills in sessions on a schedule
///
/// A skill is a text that is sent to the session's agent: ~/.quintet/skills/NAME/SKILL.md, with
/// `name` and `description` in its head.
#[derive(Debug, Subcommand)]
pub(crate) enum CronCommand {
    Add(AddArgs),
    /// Remove a schedule
    Rm {
        /// Number of the schedule, as `quintet cron ls` lists it
        id: u64,
    },
    /// List the schedules
    Ls {
        #[command(flatten)]
        json: JsonArg,
    },
    /// List the occurrences and what became of each
    Runs {
        /// Show this schedule alone, by its number in `quintet cron ls`
        id: Option<u64>,

        #[command(flatten)]
        json: JsonArg,
    },
}

/// Add a schedule and print it
#[derive(Debug, Args)]
#[command(after_help = ADD_EXAMPLES)]
pub(crate) struct AddArgs {
    /// When: minute, hour, day, month and weekday, with seconds before them where there are six;
    /// or @hourly, @daily, @weekly, @monthly, @yearly
    schedule: String,

    /// Name of the skill to run: its folder in ~/.quintet/skills, with a SKILL.md in it
    skill: String,

    /// Number of the session to run it in, as `quintet sessions` lists it
    session: u64,

    /// Skip what comes due from this time of day on
    #[arg(long, value_name = "HH:MM", requires = "quiet_end")]
    quiet_start: Option<String>,

    /// ... until this one
    #[arg(long, value_name = "HH:MM", requires = "quiet_start")]
    quiet_end: Option<String>,

    /// Run it the next time only
    #[arg(long)]
    once: bool,

    /// Count the schedule and the quiet hours in this time zone [default: the machine's]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,

    /// What to do when the daemon was down at the time
    #[arg(long, value_name = "POLICY", default_value = "skip")]
    missed: Missed,

    /// What to do when the occurrence before still runs
    #[arg(long, value_name = "POLICY", default_value = "skip")]
    overlap: Overlap,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Missed {
    /// Leave it out
    Skip,
    /// Run it once when the daemon is back
    RunOnce,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Overlap {
    /// Leave it out
    Skip,
    /// Run it afterwards; what comes while one waits is left out
    Queue,
}

#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    schedule: String,
    skill: String,
    session: u64,
    quiet_start: Option<String>,
    quiet_end: Option<String>,
    once: bool,
    next: Option<String>,
    timezone: String,
    missed: &'static str,
    overlap: &'static str,
}

#[derive(Debug, Serialize)]
struct Run {
    cron: u64,
    due: Option<String>,
    started: Option<String>,
    finished: Option<String>,
    outcome: String,
    detail: String,
}

pub(crate) async fn run(context: &Context, command: CronCommand) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    let output = context.output;
    match command {
        CronCommand::Add(args) => {
            let json = args.json.json;
            let row = Row::from(daemon.create_cron(args.into()).await?);
            if json {
                output.json(&row)?;
            } else {
                table(&[row]).print()?;
            }
        }
        CronCommand::Rm { id } => {
            daemon.delete_cron(DeleteCronMsg { id }).await?;
        }
        CronCommand::Ls { json } => {
            let list = daemon.list_crons().await?;
            let rows: Vec<Row> = list.crons.into_iter().map(Row::from).collect();
            output.list(json.json, &rows, table, "no schedules")?;
        }
        CronCommand::Runs { id, json } => {
            let list = daemon.cron_runs(CronRunsMsg { cron: id }).await?;
            let rows: Vec<Run> = list.runs.into_iter().map(Run::from).collect();
            output.list(json.json, &rows, runs_table, "nothing has come due yet")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "ID", "SCHEDULE", "ZONE", "SKILL", "SESSION", "QUIET", "ONCE", "MISSED", "OVERLAP", "NEXT",
    ]);
    for row in rows {
        let quiet = match (&row.quiet_start, &row.quiet_end) {
            (Some(start), Some(end)) => format!("{start}-{end}"),
            _ => "-".to_owned(),
        };
        let zone = match row.timezone.as_str() {
            "" => "machine's",
            zone => zone,
        };
        table.row([
            row.id.to_string(),
            row.schedule.clone(),
            zone.to_owned(),
            row.skill.clone(),
            row.session.to_string(),
            quiet,
            if row.once { "yes" } else { "no" }.to_owned(),
            row.missed.to_owned(),
            row.overlap.to_owned(),
            row.next.clone().unwrap_or_else(|| "never".to_owned()),
        ]);
    }
    table
}

fn runs_table(rows: &[Run]) -> Table {
    let mut table = Table::new(&["CRON", "DUE", "STARTED", "FINISHED", "OUTCOME", "DETAIL"]);
    let time = |at: &Option<String>| at.clone().unwrap_or_else(|| "-".to_owned());
    for row in rows {
        table.row([
            row.cron.to_string(),
            time(&row.due),
            time(&row.started),
            time(&row.finished),
            row.outcome.clone(),
            row.detail.clone(),
        ]);
    }
    table
}

impl From<AddArgs> for CreateCronMsg {
    fn from(args: AddArgs) -> Self {
        let missed = match args.missed {
            Missed::Skip => MissedPolicy::Skip,
            Missed::RunOnce => MissedPolicy::RunOnce,
        };
        let overlap = match args.overlap {
            Overlap::Skip => OverlapPolicy::Skip,
            Overlap::Queue => OverlapPolicy::Queue,
        };
        Self {
            schedule: args.schedule,
            skill: args.skill,
            session: args.session,
            quiet_start: args.quiet_start,
            quiet_end: args.quiet_end,
            once: args.once,
            timezone: args.timezone,
            missed: missed.into(),
            overlap: overlap.into(),
        }
    }
}

impl From<CronInfo> for Row {
    fn from(info: CronInfo) -> Self {
        let missed = match info.missed() {
            MissedPolicy::Skip => "skip",
            MissedPolicy::RunOnce => "run-once",
        };
        let overlap = match info.overlap() {
            OverlapPolicy::Skip => "skip",
            OverlapPolicy::Queue => "queue",
        };
        Self {
            id: info.id,
            schedule: info.schedule,
            skill: info.skill,
            session: info.session,
            quiet_start: set(info.quiet_start),
            quiet_end: set(info.quiet_end),
            once: info.once,
            next: set(info.next),
            timezone: info.timezone,
            missed,
            overlap,
        }
    }
}

impl From<CronRun> for Run {
    fn from(run: CronRun) -> Self {
        Self {
            cron: run.cron,
            due: set(run.due),
            started: set(run.started),
            finished: set(run.finished),
            outcome: run.outcome,
            detail: run.detail,
        }
    }
}

/// The wire says "" for what is unset; JSON says null.
fn set(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}
