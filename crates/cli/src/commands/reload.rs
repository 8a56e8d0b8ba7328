//! `quintet reload`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::ConfigChange;
use serde::Serialize;
use serde_json::Value;

use super::{Context, config};
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;

/// Have the daemon read config.toml, agents and skills again
///
/// Nothing that runs is stopped. A mistake changes nothing and is named with its line. What changed
/// in the configuration is told.
#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {
    #[command(flatten)]
    json: JsonArg,
}

/// A key that changed, in the shape that `--json` has.
#[derive(Debug, Serialize)]
struct Row {
    key: String,
    from: Value,
    to: Value,
    applies: &'static str,
}

impl From<ConfigChange> for Row {
    fn from(change: ConfigChange) -> Self {
        // Nothing is how a key is told that is not set.
        let value = |json: &str| serde_json::from_str(json).unwrap_or_default();
        Self {
            from: value(&change.from),
            to: value(&change.to),
            key: change.key,
            applies: match change.at_restart {
                true => "at_restart",
                false => "now",
            },
        }
    }
}

pub(crate) async fn run(context: &Context, args: &ReloadArgs) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    let answer = daemon.reload().await.map_err(connect::config_refusal)?;
    if args.json.json {
        let changes: Vec<Row> = answer.changed.into_iter().map(Row::from).collect();
        context.output.json(&changes)?;
        return Ok(ExitCode::SUCCESS);
    }
    context.output.talk("reloaded");
    config::tell(context, &answer.changed);
    Ok(ExitCode::SUCCESS)
}
