//! `quintet jobs`.

use std::process::ExitCode;

use clap::Args;
use futures_util::{StreamExt as _, stream};
use quintet_control::Client;
use quintet_control::wire::{JobInfo, JobsMsg};
use quintet_runtime::home::Home;
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output;
use crate::output::table::Table;

/// Workers that are asked at once, so that one that is silent does not hold up the others.
const AT_ONCE: usize = 16;

const EXAMPLES: &str = "\
Examples:
  quintet jobs                        Of every worker that is online
  quintet exec box --attach 0193...   Go on with a command
  quintet shell box --attach 0193...  Go on with a shell";

/// List the commands and shells on workers that can be gone on with
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct JobsArgs {
    /// Only of this worker
    worker: Option<String>,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    worker: String,
    id: String,
    kind: String,
    command: String,
    age_secs: u64,
    running: bool,
    attached: bool,
}

pub(crate) async fn run(context: &Context, args: JobsArgs) -> Result<ExitCode, CommandError> {
    let (rows, silent) = match args.worker {
        Some(worker) => (of_one(&context.home, &worker).await?, false),
        None => of_all(context).await?,
    };
    let nothing = "no commands or shells; `quintet shell WORKER` opens one";
    context.output.list(args.json.json, &rows, table, nothing)?;
    Ok(if silent {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// What all workers have, and whether one could not say it.
async fn of_all(context: &Context) -> Result<(Vec<Row>, bool), CommandError> {
    let workers = connect::daemon(&context.home)
        .await?
        .workers()
        .await?
        .workers;
    let asked = workers
        .into_iter()
        // The first version of the protocol keeps nothing.
        .filter(|worker| worker.state == "online" && worker.protocol != "sandd.v1")
        .map(|worker| async move { (of_one(&context.home, &worker.id).await, worker.id) });
    let mut answers = stream::iter(asked).buffered(AT_ONCE);
    let (mut rows, mut silent) = (Vec::new(), false);
    while let Some((answer, worker)) = answers.next().await {
        match answer {
            Ok(found) => rows.extend(found),
            Err(error) => {
                output::report_error(&format!("{worker}: {}", error.message()), &[]);
                silent = true;
            }
        }
    }
    Ok((rows, silent))
}

async fn of_one(home: &Home, worker: &str) -> Result<Vec<Row>, CommandError> {
    let request = JobsMsg {
        worker: worker.to_owned(),
    };
    let jobs = connect::daemon(home).await?.jobs(request).await?.jobs;
    Ok(jobs.into_iter().map(|job| Row::new(worker, job)).collect())
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["WORKER", "JOB", "KIND", "STATE", "AGE", "COMMAND"]);
    for row in rows {
        let state = match (row.running, row.attached) {
            (true, true) => "attached",
            (true, false) => "running",
            (false, _) => "ended",
        };
        table.row([
            row.worker.clone(),
            row.id.clone(),
            row.kind.clone(),
            state.to_owned(),
            format!("{} s", row.age_secs),
            row.command.clone(),
        ]);
    }
    table
}

impl Row {
    fn new(worker: &str, job: JobInfo) -> Self {
        Self {
            worker: worker.to_owned(),
            id: job.id,
            kind: job.kind,
            command: job.command,
            age_secs: job.age_secs,
            running: job.running,
            attached: job.attached,
        }
    }
}
