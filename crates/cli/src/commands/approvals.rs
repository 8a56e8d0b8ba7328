//! `quintet approvals`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::Approval;
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;
use crate::output::terminal_text::exact_line;

/// List what agents want to do and wait for your word on
#[derive(Debug, Args)]
pub(crate) struct ApprovalsArgs {
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    session: u64,
    action: String,
    command: String,
    cwd: String,
    worker: String,
    reason: String,
    at: String,
    /// What `approve --scope rule` would write, and where.
    rule: String,
    rule_file: String,
    rule_place: String,
    hash: String,
}

pub(crate) async fn run(context: &Context, args: &ApprovalsArgs) -> Result<ExitCode, CommandError> {
    let list = connect::daemon(&context.home).await?.approvals().await?;
    let rows: Vec<Row> = list.approvals.into_iter().map(Row::from).collect();
    context
        .output
        .list(args.json.json, &rows, table, "nothing waits for approval")?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let headers = &["ID", "SESSION", "ACTION", "WHERE", "WHY", "COMMAND"];
    let mut table = Table::new(headers).whole();
    for row in rows {
        let place = if row.worker.is_empty() {
            row.cwd.clone()
        } else {
            format!("{}:{}", row.worker, row.cwd)
        };
        table.row([
            row.id.to_string(),
            row.session.to_string(),
            exact_line(&row.action),
            exact_line(&place),
            row.reason.clone(),
            exact_line(&row.command),
        ]);
    }
    table
}

impl From<Approval> for Row {
    fn from(approval: Approval) -> Self {
        Self {
            id: approval.id,
            session: approval.session,
            action: approval.action,
            command: approval.command,
            cwd: approval.cwd,
            worker: approval.worker,
            reason: approval.reason,
            at: approval.at,
            rule: approval.rule,
            rule_file: approval.rule_file,
            rule_place: approval.rule_place,
            hash: approval.hash,
        }
    }
}
