//! `quintet workspace gc`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use quintet_runtime::config::units::parse_duration;
use quintet_runtime::config::{self, ByteSize};
use quintet_workspace::control::{GcAnswer, PruneAnswer, Request};
use serde::Serialize;

use super::super::Context;
use super::target::{Content, Target};
use super::{DirArg, size};
use crate::args::JsonArg;
use crate::error::CommandError;
use crate::settings;

/// Forget old versions by the stated policy, and free what nothing needs any more
///
/// What the folder holds now, and what checkpoints show, always stays. The policy is
/// workspace.history_age and workspace.history_size of the configuration.
#[derive(Debug, Args)]
pub(crate) struct GcArgs {
    /// Forget versions that were replaced longer ago than this [default: workspace.history_age]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    older_than: Option<Duration>,

    /// Forget the oldest until all contents take no more than this [default:
    /// workspace.history_size]
    #[arg(long, value_name = "SIZE")]
    larger_than: Option<ByteSize>,

    /// Free what a workspace needed whose state is gone for good, by its id
    #[arg(long, value_name = "ID")]
    forget: Option<String>,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

/// What was forgotten, and what that freed.
#[derive(Debug, Serialize)]
pub(super) struct Freed {
    pub(super) pruned: PruneAnswer,
    pub(super) collected: GcAnswer,
}

impl Freed {
    pub(super) fn tell(&self, context: &Context) -> Result<(), CommandError> {
        let Self { pruned, collected } = self;
        context.output.line(format_args!(
            "forgot {} versions; {} of content is kept, from sequence {} on",
            pruned.versions,
            size(pruned.kept_bytes),
            pruned.floor
        ))?;
        context.output.line(format_args!(
            "freed {} ({} objects); {} ({} objects) is in use by all workspaces",
            size(collected.removed_bytes),
            collected.removed,
            size(collected.kept_bytes),
            collected.kept
        ))?;
        Ok(())
    }
}

pub(crate) async fn run(context: &Context, args: GcArgs) -> Result<ExitCode, CommandError> {
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let (config, _) =
        config::load(&settings::inputs(&context.home)).map_err(CommandError::config)?;
    let older_than = args.older_than.unwrap_or(config.workspace.history_age);
    let larger_than = args.larger_than.unwrap_or(config.workspace.history_size);
    let request = Request::Prune {
        older_than_secs: Some(older_than.as_secs()),
        larger_than: Some(larger_than.bytes()),
    };
    let pruned: PruneAnswer = target.ask(request, "forgetting", Content::None).await?;
    let collect = Request::Gc {
        forget: args.forget,
    };
    let collected: GcAnswer = target.ask(collect, "collecting", Content::None).await?;
    let freed = Freed { pruned, collected };
    if args.json.json {
        context.output.json(&freed)?;
    } else {
        freed.tell(context)?;
    }
    Ok(ExitCode::SUCCESS)
}
