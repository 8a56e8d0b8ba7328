//! `quintet sessions`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::{SessionInfo, SessionsMsg};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// List the sessions
#[derive(Debug, Args)]
pub(crate) struct SessionsArgs {
    /// List those that were killed as well
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    agent: String,
    created_by: String,
    title: String,
    messages: u64,
    active: bool,
    alive_secs: u64,
    workspace: String,
    worker: String,
    cost: String,
    closed: bool,
    queued: u32,
}

pub(crate) async fn run(context: &Context, args: &SessionsArgs) -> Result<ExitCode, CommandError> {
    let list = connect::daemon(&context.home)
        .await?
        .sessions(SessionsMsg {
            include_closed: args.all,
        })
        .await?;
    let rows: Vec<Row> = list.sessions.into_iter().map(Row::from).collect();
    context.output.list(
        args.json.json,
        &rows,
        table,
        "no sessions yet; start one with `quintet chat`",
    )?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "ID", "AGENT", "BY", "MESSAGES", "STATE", "AGE", "COST", "TITLE",
    ]);
    for row in rows {
        table.row([
            row.id.to_string(),
            row.agent.clone(),
            row.created_by.clone(),
            row.messages.to_string(),
            state(row),
            age(row.alive_secs),
            row.cost.clone(),
            row.title.clone(),
        ]);
    }
    table
}

fn state(row: &Row) -> String {
    let state = match (row.closed, row.active) {
        (true, _) => "closed",
        (false, true) => "working",
        (false, false) => "idle",
    };
    match row.queued {
        0 => state.to_owned(),
        waiting => format!("{state}, {waiting} waiting"),
    }
}

/// A duration in its largest unit.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

impl From<SessionInfo> for Row {
    fn from(info: SessionInfo) -> Self {
        Self {
            id: info.id,
            agent: info.agent,
            created_by: info.created_by,
            title: info.title,
            messages: info.message_count,
            active: info.active,
            alive_secs: info.alive_secs,
            workspace: info.workspace,
            worker: info.worker,
            cost: decimal(info.cost),
            closed: info.closed,
            queued: info.queued,
        }
    }
}

/// A decimal number as JSON shows it; proto3 leaves out an empty string, which is no money.
pub(crate) fn decimal(cost: String) -> String {
    if cost.is_empty() {
        "0".to_owned()
    } else {
        cost
    }
}
