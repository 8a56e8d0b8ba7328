//! `quintet workspace show`.

use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use quintet_workspace::control::{Point, Request, ShowAnswer};
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

pub(crate) async fn run(context: &Context, args: ShowArgs) -> Result<ExitCode, CommandError> {
    let (path, at) = match args.what.rsplit_once('@') {
        Some((path, state)) => (path, point::parse(state).map_err(CommandError::usage)?),
        None => (&*args.what, Point::Now),
    };
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let Some(path) = point::inside(&target.place, Path::new(path))? else {
        return Err(CommandError::usage("a folder has no content; name a file"));
    };
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
