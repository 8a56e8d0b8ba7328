//! `quintet stats`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use serde::Serialize;

use super::Context;
use super::sessions::{age, decimal};
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// Count what the daemon has and does
#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Report {
    uptime_secs: u64,
    active_sessions: u32,
    registered_agents: u32,
    workers: u32,
    cost: String,
    version: String,
    pid: u32,
    connections: u32,
    queued: u32,
    pending_asks: u32,
    pending_approvals: u32,
    journal_seq: u64,
    journal_bytes: u64,
}

pub(crate) async fn run(context: &Context, args: &StatsArgs) -> Result<ExitCode, CommandError> {
    let stats = connect::daemon(&context.home).await?.get_stats().await?;
    let report = Report {
        uptime_secs: stats.uptime_secs,
        active_sessions: stats.active_sessions,
        registered_agents: stats.registered_agents,
        workers: stats.workers,
        cost: decimal(stats.cost),
        version: stats.version,
        pid: stats.pid,
        connections: stats.connections,
        queued: stats.queued,
        pending_asks: stats.pending_asks,
        pending_approvals: stats.pending_approvals,
        journal_seq: stats.journal_seq,
        journal_bytes: stats.journal_bytes,
    };
    if args.json.json {
        context.output.json(&report)?;
    } else {
        table(&report).print()?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(report: &Report) -> Table {
    let mut table = Table::new(&["WHAT", "NOW"]);
    for (what, now) in [
        ("uptime", age(report.uptime_secs)),
        ("active sessions", report.active_sessions.to_string()),
        ("agents", report.registered_agents.to_string()),
        ("workers", report.workers.to_string()),
        ("cost", report.cost.clone()),
        ("waiting messages", report.queued.to_string()),
        ("open questions", report.pending_asks.to_string()),
        ("open approvals", report.pending_approvals.to_string()),
        ("connections", report.connections.to_string()),
        ("journal events", report.journal_seq.to_string()),
        ("journal bytes", report.journal_bytes.to_string()),
    ] {
        table.row([what.to_owned(), now]);
    }
    table
}
