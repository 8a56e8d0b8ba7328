//! `quintet kill`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::KillMsg;

use super::Context;
use crate::connect;
use crate::error::CommandError;

/// Stop a session's turn and close the session; its history stays readable
///
/// `quintet cancel` stops the turn and leaves the session open; `quintet events --session N` reads
/// the history.
#[derive(Debug, Args)]
pub(crate) struct KillArgs {
    /// Number of the session, as `quintet sessions` lists it
    session: u64,
}

pub(crate) async fn run(context: &Context, args: &KillArgs) -> Result<ExitCode, CommandError> {
    let request = KillMsg {
        session: args.session,
    };
    connect::daemon(&context.home).await?.kill(request).await?;
    context
        .output
        .talk(format_args!("session {} is closed", args.session));
    Ok(ExitCode::SUCCESS)
}
