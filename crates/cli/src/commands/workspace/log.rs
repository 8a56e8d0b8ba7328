//! `quintet workspace log`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quintet_workspace::control::{LogLine, Request};
use serde::Serialize;

use super::super::Context;
use super::target::{Content, Target};
use super::{DirArg, point, rfc3339, size};
use crate::args::JsonArg;
use crate::error::CommandError;
use crate::output::table::Table;

/// List the changes of a workspace or of one path, oldest first: who, when, and by how much
#[derive(Debug, Args)]
pub(crate) struct LogArgs {
    /// Show this path alone, with what is beneath it
    path: Option<PathBuf>,

    /// Show what came after this sequence
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: u64,

    /// Show the newest N alone
    #[arg(short = 'n', long, value_name = "N")]
    limit: Option<u32>,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    sequence: u64,
    path: String,
    change: String,
    hash: String,
    size: u64,
    previous_size: Option<u64>,
    mode: i64,
    author: String,
    at: String,
    renamed_from: Option<String>,
}

pub(crate) async fn run(context: &Context, args: LogArgs) -> Result<ExitCode, CommandError> {
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let path = match &args.path {
        Some(path) => point::inside(&target.place, path)?,
        None => None,
    };
    let request = Request::Log {
        path,
        after: args.after,
        limit: args.limit,
    };
    let lines: Vec<LogLine> = target
        .ask(request, "reading the history", Content::None)
        .await?;
    let rows: Vec<Row> = lines.into_iter().map(Row::from).collect();
    context
        .output
        .list(args.json.json, &rows, table, "nothing was recorded")?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["SEQ", "AT", "BY", "CHANGE", "SIZE", "PATH"]);
    for row in rows {
        let path = match &row.renamed_from {
            Some(from) => format!("{} (from {from})", row.path),
            None => row.path.clone(),
        };
        table.row([
            row.sequence.to_string(),
            row.at.clone(),
            row.author.clone(),
            row.change.clone(),
            growth(row),
            path,
        ]);
    }
    table
}

/// The size, and by how much it changed.
fn growth(row: &Row) -> String {
    if row.change == "delete" {
        return String::new();
    }
    let now = size(row.size);
    match row.previous_size {
        Some(before) if before < row.size => format!("{now} (+{})", size(row.size - before)),
        Some(before) if before > row.size => format!("{now} (-{})", size(before - row.size)),
        _ => now,
    }
}

impl From<LogLine> for Row {
    fn from(line: LogLine) -> Self {
        Self {
            sequence: line.sequence,
            path: line.path,
            change: line.change,
            hash: line.hash,
            size: line.size,
            previous_size: line.previous_size,
            mode: line.mode,
            author: line.author,
            at: rfc3339(line.at_millis),
            renamed_from: line.renamed_from,
        }
    }
}
