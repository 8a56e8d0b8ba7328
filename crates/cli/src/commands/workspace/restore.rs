//! `quintet workspace restore`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quintet_workspace::control::{ChangeLine, Point, Request, RestoreAnswer};

use super::super::Context;
use super::target::{Content, Target};
use super::{DirArg, point};
use crate::args::JsonArg;
use crate::error::CommandError;
use crate::output::terminal_text;

const EXAMPLES: &str = "\
Examples:
  quintet workspace restore --to 120                    The whole folder
  quintet workspace restore --to before-refactor src    One folder, from a checkpoint
  quintet workspace restore --at 10m --dry-run          What going back ten minutes would change

A restore is recorded like any other change, so it can itself be undone with `restore`.";

/// Make the folder, or a part of it, hold what it held at a state
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RestoreArgs {
    /// State to go back to: a sequence or a checkpoint's name
    #[arg(long, value_name = "SEQ", value_parser = point::parse, required_unless_present = "at")]
    to: Option<Point>,

    /// Time to go back to: RFC 3339, a local date and time, or `10m` for ten minutes ago
    #[arg(long, value_name = "TIME", value_parser = point::time, conflicts_with = "to")]
    at: Option<Point>,

    /// Restore this path alone, with what is beneath it
    path: Option<PathBuf>,

    /// Only say what would change
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

pub(crate) async fn run(context: &Context, args: RestoreArgs) -> Result<ExitCode, CommandError> {
    let Some(to) = args.to.or(args.at) else {
        return Err(CommandError::usage(
            "say where to go back to with --to or --at",
        ));
    };
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let path = match &args.path {
        Some(path) => point::inside(&target.place, path)?,
        None => None,
    };
    let request = Request::Restore {
        to,
        path,
        dry_run: args.dry_run,
    };
    let answer: RestoreAnswer = target.ask(request, "restoring", Content::None).await?;
    if args.json.json {
        context.output.json(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    for ChangeLine { change, path } in &answer.changes {
        let path = terminal_text::exact_line(path);
        context.output.line(format_args!("{change:6} {path}"))?;
    }
    match (answer.changes.len(), args.dry_run) {
        (0, _) => context.output.talk("it is so already"),
        (count, true) => context
            .output
            .talk(format_args!("{count} paths would change")),
        (count, false) => context.output.talk(format_args!(
            "{count} paths restored to {}; undo with `quintet workspace restore --to {}`",
            answer.to, answer.before
        )),
    }
    Ok(ExitCode::SUCCESS)
}
