//! `quintet reload`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;

use super::Context;
use crate::connect;
use crate::error::CommandError;

/// Have the daemon read config.toml, agents and skills again
///
/// Nothing that runs is stopped. A mistake changes nothing and is named with its line.
#[derive(Debug, Args)]
pub(crate) struct ReloadArgs {}

pub(crate) async fn run(context: &Context, _args: &ReloadArgs) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    daemon.reload().await.map_err(connect::config_refusal)?;
    context.output.talk("reloaded");
    Ok(ExitCode::SUCCESS)
}
