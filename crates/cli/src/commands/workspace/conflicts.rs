//! `quintet workspace conflicts`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use quintet_workspace::control::{ConflictLine, Request};
use serde::Serialize;

use super::super::Context;
use super::target::{Content, Target};
use super::{DirArg, rfc3339, size};
use crate::args::JsonArg;
use crate::error::CommandError;
use crate::output::table::Table;

/// List and settle the writes of this replica that the master refused; their bytes are kept
#[derive(Debug, Args)]
pub(crate) struct ConflictsArgs {
    #[command(subcommand)]
    command: Option<ConflictsCommand>,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Subcommand)]
enum ConflictsCommand {
    /// List them, oldest first
    Ls {
        #[command(flatten)]
        dir: DirArg,

        #[command(flatten)]
        json: JsonArg,
    },
    /// Print what was refused
    Show {
        /// Its number, as `quintet workspace conflicts` lists it
        id: u64,

        #[command(flatten)]
        dir: DirArg,
    },
    /// Put what was refused back at its path, on top of what is there now
    Take {
        /// Its number, as `quintet workspace conflicts` lists it
        id: u64,

        #[command(flatten)]
        dir: DirArg,
    },
    /// Throw away what was refused
    Drop {
        /// Its number, as `quintet workspace conflicts` lists it
        id: u64,

        #[command(flatten)]
        dir: DirArg,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    path: String,
    author: String,
    at: String,
    size: Option<u64>,
    reason: String,
}

impl From<ConflictLine> for Row {
    fn from(line: ConflictLine) -> Self {
        Self {
            id: line.id,
            path: line.path,
            author: line.author,
            at: rfc3339(line.at_millis),
            size: line.size,
            reason: line.reason,
        }
    }
}

pub(crate) async fn run(context: &Context, args: ConflictsArgs) -> Result<ExitCode, CommandError> {
    let command = args.command.unwrap_or(ConflictsCommand::Ls {
        dir: args.dir,
        json: args.json,
    });
    let (request, content, dir) = match command {
        ConflictsCommand::Ls { dir, json } => {
            let mut target = Target::find(context, dir.dir.as_deref())?;
            let lines: Vec<ConflictLine> = target
                .ask(Request::Conflicts, "reading", Content::None)
                .await?;
            let rows: Vec<Row> = lines.into_iter().map(Row::from).collect();
            context
                .output
                .list(json.json, &rows, table, "no conflicts")?;
            return Ok(ExitCode::SUCCESS);
        }
        ConflictsCommand::Show { id, dir } => (Request::ShowConflict { id }, Content::Stdout, dir),
        ConflictsCommand::Take { id, dir } => (Request::TakeConflict { id }, Content::None, dir),
        ConflictsCommand::Drop { id, dir } => (Request::DropConflict { id }, Content::None, dir),
    };
    let mut target = Target::find(context, dir.dir.as_deref())?;
    let done: ConflictLine = target.ask(request.clone(), "reading", content).await?;
    match request {
        Request::TakeConflict { .. } => context
            .output
            .talk(format_args!("{} holds it again", done.path)),
        Request::DropConflict { .. } => context
            .output
            .talk(format_args!("what was kept of {} is gone", done.path)),
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["ID", "AT", "BY", "SIZE", "PATH", "REASON"]);
    for row in rows {
        table.row([
            row.id.to_string(),
            row.at.clone(),
            row.author.clone(),
            row.size.map_or_else(|| "removed".to_owned(), size),
            row.path.clone(),
            row.reason.clone(),
        ]);
    }
    table
}
