//! `quintet workspace conflicts`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use quintet_workspace::control::{ConflictLine, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::super::Context;
use super::target::{Content, Kept, Target};
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

        #[command(flatten)]
        json: JsonArg,
    },
    /// Put what was refused back at its path, on top of what is there now
    Take {
        /// Its number, as `quintet workspace conflicts` lists it
        id: u64,

        #[command(flatten)]
        dir: DirArg,

        #[command(flatten)]
        json: JsonArg,
    },
    /// Throw away what was refused
    Drop {
        /// Its number, as `quintet workspace conflicts` lists it
        id: u64,

        #[command(flatten)]
        dir: DirArg,

        #[command(flatten)]
        json: JsonArg,
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

#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    conflict: Row,
    /// `null` when it is not text.
    text: Option<String>,
}

pub(crate) async fn run(context: &Context, args: ConflictsArgs) -> Result<ExitCode, CommandError> {
    let command = args.command.unwrap_or(ConflictsCommand::Ls {
        dir: args.dir,
        json: args.json,
    });
    match command {
        ConflictsCommand::Ls { dir, json } => {
            let lines: Vec<ConflictLine> =
                ask(context, &dir, Request::Conflicts, Content::None).await?;
            let rows: Vec<Row> = lines.into_iter().map(Row::from).collect();
            context
                .output
                .list(json.json, &rows, table, "no conflicts")?;
        }
        ConflictsCommand::Show { id, dir, json } => {
            let request = Request::ShowConflict { id };
            if !json.json {
                let _: ConflictLine = ask(context, &dir, request, Content::Stdout).await?;
                return Ok(ExitCode::SUCCESS);
            }
            let kept = Kept::default();
            let shown: ConflictLine =
                ask(context, &dir, request, Content::Kept(kept.clone())).await?;
            context.output.json(&Shown {
                conflict: shown.into(),
                text: String::from_utf8(kept.take()).ok(),
            })?;
        }
        ConflictsCommand::Take { id, dir, json } => {
            let taken = ask(context, &dir, Request::TakeConflict { id }, Content::None).await?;
            settled(context, json, taken, |path| {
                format!("{path} holds it again")
            })?;
        }
        ConflictsCommand::Drop { id, dir, json } => {
            let dropped = ask(context, &dir, Request::DropConflict { id }, Content::None).await?;
            settled(context, json, dropped, |path| {
                format!("what was kept of {path} is gone")
            })?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn ask<T: DeserializeOwned>(
    context: &Context,
    dir: &DirArg,
    request: Request,
    content: Content,
) -> Result<T, CommandError> {
    let mut target = Target::find(context, dir.dir.as_deref())?;
    target.ask(request, "reading", content).await
}

fn settled(
    context: &Context,
    json: JsonArg,
    line: ConflictLine,
    told: impl FnOnce(&str) -> String,
) -> Result<(), CommandError> {
    if json.json {
        context.output.json(&Row::from(line))?;
    } else {
        context.output.talk(told(&line.path));
    }
    Ok(())
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
