//! `quintet workspace fork`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use quintet_workspace::Place;
use quintet_workspace::control::{ForkAnswer, Request};

use super::super::Context;
use super::DirArg;
use super::target::{Content, Target};
use crate::args::JsonArg;
use crate::error::CommandError;

/// Copy a workspace, with its history, into a new folder that goes its own way
#[derive(Debug, Args)]
pub(crate) struct ForkArgs {
    /// The new folder; it may be there when it is empty
    #[arg(value_name = "DIR")]
    new: PathBuf,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

pub(crate) async fn run(context: &Context, args: ForkArgs) -> Result<ExitCode, CommandError> {
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    if real(&args.new)?.starts_with(&target.place.dir) {
        return Err(CommandError::usage(format!(
            "{} is inside {}, which would record it",
            args.new.display(),
            target.place.dir.display()
        ))
        .hint("name a folder outside of it"));
    }
    std::fs::create_dir_all(&args.new)?;
    let new = Place::of(context.home.root(), &args.new)?;
    if new.role().is_some() {
        return Err(
            CommandError::failed(format!("{} has a history already", new.dir.display()))
                .hint("fork into another folder"),
        );
    }
    let text = |path: &Path| {
        path.to_str()
            .map(str::to_owned)
            .ok_or_else(|| CommandError::usage(format!("{} is not UTF-8", path.display())))
    };
    let request = Request::Fork {
        dir: text(&new.dir)?,
        state_dir: text(&new.state_dir)?,
    };
    let answer: ForkAnswer = target.ask(request, "copying", Content::None).await?;
    if args.json.json {
        context.output.json(&answer)?;
    } else {
        context.output.talk(format_args!(
            "{} holds {} files, as of {}",
            answer.dir, answer.files, answer.sequence
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The real path of a folder that may not be there yet.
fn real(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for above in path.ancestors() {
        if let Ok(real) = above.canonicalize() {
            return Ok(real.join(path.strip_prefix(above).unwrap_or(Path::new(""))));
        }
    }
    Ok(path)
}
