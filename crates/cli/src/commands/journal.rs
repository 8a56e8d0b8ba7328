//! `quintet journal report` and `prune`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgGroup, Args, Subcommand};
use quintet_control::Client;
use quintet_control::wire::{JournalPruneMsg, JournalReport, journal_prune_msg::Keep};
use quintet_runtime::config::units::parse_duration;
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// See how large the journal is, and shorten it
#[derive(Debug, Subcommand)]
pub(crate) enum JournalCommand {
    /// Say how many events there are and what they take
    Report {
        #[command(flatten)]
        json: JsonArg,
    },
    Prune(PruneArgs),
}

/// Remove the oldest events for good
///
/// Numbers are never used again, and what is still pending stays pending.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("which").required(true))]
pub(crate) struct PruneArgs {
    /// Remove the events below this number
    #[arg(long, value_name = "SEQ", group = "which")]
    before: Option<u64>,

    /// Remove the events older than this: 30d, 12h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, group = "which")]
    older_than: Option<Duration>,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Report {
    first_seq: u64,
    last_seq: u64,
    events: u64,
    bytes: u64,
    oldest_at: Option<String>,
    newest_at: Option<String>,
    kinds: Vec<Kind>,
}

#[derive(Debug, Serialize)]
struct Kind {
    kind: String,
    events: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Pruned {
    events: u64,
    bytes: u64,
    first_seq: u64,
}

pub(crate) async fn run(
    context: &Context,
    command: JournalCommand,
) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    let output = context.output;
    match command {
        JournalCommand::Report { json } => {
            let report = Report::from(daemon.journal_report().await?);
            if json.json {
                output.json(&report)?;
            } else {
                table(&report).print()?;
                output.talk(format_args!(
                    "{} events, {} bytes, numbers {} to {}",
                    report.events, report.bytes, report.first_seq, report.last_seq
                ));
            }
        }
        JournalCommand::Prune(args) => {
            let keep = match (args.before, args.older_than) {
                (Some(seq), _) => Some(Keep::BeforeSeq(seq)),
                (None, Some(age)) => Some(Keep::OlderThanSecs(age.as_secs())),
                (None, None) => None,
            };
            let pruned = daemon.journal_prune(JournalPruneMsg { keep }).await?;
            if args.json.json {
                output.json(&Pruned {
                    events: pruned.events,
                    bytes: pruned.bytes,
                    first_seq: pruned.first_seq,
                })?;
            } else {
                output.talk(format_args!(
                    "{} events removed, {} bytes; the oldest is now {}",
                    pruned.events, pruned.bytes, pruned.first_seq
                ));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(report: &Report) -> Table {
    let mut table = Table::new(&["KIND", "EVENTS", "BYTES"]);
    for kind in &report.kinds {
        table.row([
            kind.kind.clone(),
            kind.events.to_string(),
            kind.bytes.to_string(),
        ]);
    }
    table
}

impl From<JournalReport> for Report {
    fn from(report: JournalReport) -> Self {
        let set = |at: String| (!at.is_empty()).then_some(at);
        Self {
            first_seq: report.first_seq,
            last_seq: report.last_seq,
            events: report.events,
            bytes: report.bytes,
            oldest_at: set(report.oldest_at),
            newest_at: set(report.newest_at),
            kinds: report
                .kinds
                .into_iter()
                .map(|kind| Kind {
                    kind: kind.kind,
                    events: kind.events,
                    bytes: kind.bytes,
                })
                .collect(),
        }
    }
}
