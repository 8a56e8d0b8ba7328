//! `quintet workspace show`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use quintet_workspace::control::{CheckpointLine, LogLine, Point, Request, ShowAnswer};
use serde::Serialize;

use super::super::Context;
use super::target::{Content, Kept, Target};
use super::{DirArg, point};
use crate::args::JsonArg;
use crate::error::CommandError;

/// Print what a file held at a state; of a symlink, its target
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The file, as PATH@STATE; without a state, as it is now
    #[arg(value_name = "PATH@SEQ")]
    what: String,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Shown {
    path: String,
    sequence: u64,
    hash: String,
    size: u64,
    mode: i64,
    /// `null` when it is not text.
    text: Option<String>,
}

/// `PATH@STATE`, or a path that has an `@` in it.
async fn path_and_state(target: &mut Target, what: &str) -> Result<(String, Point), CommandError> {
    let within = |target: &Target, path: &str| {
        let path = point::inside(&target.place, Path::new(path))?;
        path.ok_or_else(|| CommandError::usage("a folder has no content; name a file"))
    };
    let Some((path, at)) = split(what) else {
        return Ok((within(target, what)?, Point::Now));
    };
    let whole = within(target, what)?;
    let is_path = was_there(target, &whole).await?
        && !match &at {
            Point::Checkpoint(name) => is_checkpoint(target, name).await?,
            _ => was_there(target, &within(target, path)?).await?,
        };
    if is_path {
        return Ok((whole, Point::Now));
    }
    Ok((within(target, path)?, at))
}

/// The path and the state, as far as the text alone says.
fn split(what: &str) -> Option<(&str, Point)> {
    let (path, state) = what.rsplit_once('@')?;
    let is_path = path.is_empty() || path.ends_with('/') || state.contains('/');
    let at = point::parse(state).ok()?;
    (!is_path).then_some((path, at))
}

async fn was_there(target: &mut Target, path: &str) -> Result<bool, CommandError> {
    let request = Request::Log {
        path: Some(path.to_owned()),
        after: 0,
        limit: Some(1),
    };
    let log: Vec<LogLine> = target.ask(request, "reading", Content::None).await?;
    Ok(!log.is_empty())
}

async fn is_checkpoint(target: &mut Target, name: &str) -> Result<bool, CommandError> {
    let all: Vec<CheckpointLine> = target
        .ask(Request::Checkpoints, "reading", Content::None)
        .await?;
    Ok(all.iter().any(|checkpoint| checkpoint.name == name))
}

pub(crate) async fn run(context: &Context, args: ShowArgs) -> Result<ExitCode, CommandError> {
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let (path, at) = path_and_state(&mut target, &args.what).await?;
    let request = Request::Show {
        path: path.clone(),
        at,
    };
    if !args.json.json {
        let _: ShowAnswer = target.ask(request, "reading", Content::Stdout).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let kept = Kept::default();
    let shown: ShowAnswer = target
        .ask(request, "reading", Content::Kept(kept.clone()))
        .await?;
    context.output.json(&Shown {
        path,
        sequence: shown.sequence,
        hash: shown.hash,
        size: shown.size,
        mode: shown.mode,
        text: String::from_utf8(kept.take()).ok(),
    })?;
    Ok(ExitCode::SUCCESS)
}
