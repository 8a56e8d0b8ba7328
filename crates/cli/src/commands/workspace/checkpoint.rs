//! `quintet workspace checkpoint`.

use std::process::ExitCode;

use clap::Args;
use quintet_workspace::control::{CheckpointLine, Request};
use quintet_workspace::history::Checkpoint;
use serde::Serialize;

use super::super::Context;
use super::target::{Content, Target};
use super::{DirArg, rfc3339};
use crate::args::JsonArg;
use crate::error::CommandError;
use crate::output::table::Table;

/// Name the present state; what a checkpoint shows is never pruned
#[derive(Debug, Args)]
pub(crate) struct CheckpointArgs {
    /// Its name; without one, the checkpoints are listed
    name: Option<String>,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    sequence: u64,
    at: String,
}

impl From<CheckpointLine> for Row {
    fn from(line: CheckpointLine) -> Self {
        Self {
            name: line.name,
            sequence: line.sequence,
            at: rfc3339(line.at_millis),
        }
    }
}

pub(crate) async fn run(context: &Context, args: CheckpointArgs) -> Result<ExitCode, CommandError> {
    if let Some(name) = &args.name {
        Checkpoint::check_name(name).map_err(|error| CommandError::usage(error.to_string()))?;
    }
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let Some(name) = args.name else {
        let lines: Vec<CheckpointLine> = target
            .ask(Request::Checkpoints, "reading", Content::None)
            .await?;
        let rows: Vec<Row> = lines.into_iter().map(Row::from).collect();
        context
            .output
            .list(args.json.json, &rows, table, "no checkpoints")?;
        return Ok(ExitCode::SUCCESS);
    };
    let made: CheckpointLine = target
        .ask(Request::Checkpoint { name }, "recording", Content::None)
        .await?;
    if args.json.json {
        context.output.json(&Row::from(made))?;
    } else {
        context.output.line(made.sequence)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["SEQ", "AT", "NAME"]);
    for row in rows {
        table.row([row.sequence.to_string(), row.at.clone(), row.name.clone()]);
    }
    table
}
