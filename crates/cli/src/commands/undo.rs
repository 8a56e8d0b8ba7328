//! `quintet undo`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::UndoMsg;
use serde_json::json;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;

/// Take back what the last commands of a session did to files
#[derive(Debug, Args)]
#[command(after_help = "\
What is put back are new versions of the files, so that an undo can itself be looked at and taken
back with `quintet workspace restore`. A file that changed again later is left alone and named.")]
pub(crate) struct UndoArgs {
    /// Number of the session, as `quintet sessions` lists it
    session: u64,

    /// How many commands, counted back from the last that changed a file
    #[arg(default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    commands: u32,

    #[command(flatten)]
    json: JsonArg,
}

pub(crate) async fn run(context: &Context, args: &UndoArgs) -> Result<ExitCode, CommandError> {
    let request = UndoMsg {
        session: args.session,
        commands: args.commands,
    };
    let report = connect::daemon(&context.home).await?.undo(request).await?;
    if args.json.json {
        let changed: Vec<_> = report
            .changed
            .iter()
            .map(|change| json!({ "path": change.path, "change": change.change }))
            .collect();
        context.output.json(&json!({
            "commands": report.commands,
            "changed": changed,
            "skipped": report.skipped,
            "sequence": report.sequence,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for change in &report.changed {
        context
            .output
            .line(format_args!("{:<7} {}", change.change, change.path))?;
    }
    for path in &report.skipped {
        context.output.talk(format_args!("left alone: {path}"));
    }
    Ok(ExitCode::SUCCESS)
}
