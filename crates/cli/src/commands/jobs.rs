//! `quintet jobs`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::{JobInfo, JobsMsg};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

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
    let mut daemon = connect::daemon(&context.home).await?;
    let workers = match args.worker {
        Some(worker) => vec![worker],
        // The first version of the protocol keeps nothing.
        None => daemon
            .workers()
            .await?
            .workers
            .into_iter()
            .filter(|worker| worker.state == "online" && worker.protocol != "sandd.v1")
            .map(|worker| worker.id)
            .collect(),
    };
    let mut rows = Vec::new();
    for worker in workers {
        let request = JobsMsg {
            worker: worker.clone(),
        };
        let jobs = daemon.jobs(request).await?.jobs;
        rows.extend(jobs.into_iter().map(|job| Row::new(&worker, job)));
    }
    let nothing = "no commands or shells; `quintet shell WORKER` opens one";
    context.output.list(args.json.json, &rows, table, nothing)?;
    Ok(ExitCode::SUCCESS)
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
