//! `quintet workspace status`.

use std::process::ExitCode;

use clap::Args;
use quintet_workspace::control::{Request, StatusAnswer};
use serde::Serialize;

use super::super::Context;
use super::target::{Content, Target};
use super::{DirArg, size};
use crate::args::JsonArg;
use crate::error::CommandError;
use crate::output::{CAUTION, styled, terminal_text};

/// Show where a workspace is: sequence, size, replicas and how far behind they are
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Shown {
    id: String,
    dir: String,
    #[serde(flatten)]
    status: StatusAnswer,
}

pub(crate) async fn run(context: &Context, args: StatusArgs) -> Result<ExitCode, CommandError> {
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let status: StatusAnswer = target
        .ask(Request::Status, "looking", Content::None)
        .await?;
    let shown = Shown {
        id: target.place.id(),
        dir: target.place.dir.display().to_string(),
        status,
    };
    if args.json.json {
        context.output.json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let output = context.output;
    let status = &shown.status;
    output.line(format_args!("{} ({})", shown.dir, status.role))?;
    output.line(format_args!("sequence  {}", status.sequence))?;
    output.line(format_args!(
        "tree      {} files, {}",
        status.files,
        size(status.bytes)
    ))?;
    if let Some(history) = &status.history {
        output.line(format_args!(
            "history   {} versions, {} of content, database {}, from {} on",
            history.versions,
            size(history.content_bytes),
            size(history.database_bytes),
            history.floor
        ))?;
        output.line(format_args!(
            "store     {} on disk, of all workspaces",
            size(history.store_bytes)
        ))?;
    }
    if let Some(connected) = status.connected {
        let connected = if connected {
            "connected"
        } else {
            "not connected"
        };
        output.line(format_args!(
            "master    {connected}, {} to come, {} to be answered, {} conflicts",
            status.incoming, status.outgoing, status.conflicts
        ))?;
    }
    output.line(format_args!("pending   {}", status.pending))?;
    for replica in &status.replicas {
        output.line(format_args!(
            "replica   {} at {}, {} behind",
            terminal_text::exact_line(&replica.sandbox_id),
            replica.acked,
            replica.lag
        ))?;
    }
    for caution in status.polling.iter().chain(&status.failure) {
        output.line(styled(CAUTION, terminal_text::exact_line(caution)))?;
    }
    for problem in &status.problems {
        let problem = terminal_text::exact_line(problem);
        output.line(styled(CAUTION, format_args!("not replicated: {problem}")))?;
    }
    Ok(ExitCode::SUCCESS)
}
