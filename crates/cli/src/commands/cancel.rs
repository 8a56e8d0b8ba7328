//! `quintet cancel`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::CancelMsg;

use super::Context;
use crate::connect;
use crate::error::CommandError;

/// Stop the turn that runs; the session stays open
#[derive(Debug, Args)]
pub(crate) struct CancelArgs {
    /// Number of the session, as `quintet sessions` lists it
    session: u64,
}

pub(crate) async fn run(context: &Context, args: &CancelArgs) -> Result<ExitCode, CommandError> {
    let request = CancelMsg {
        session: args.session,
    };
    connect::daemon(&context.home)
        .await?
        .cancel(request)
        .await?;
    Ok(ExitCode::SUCCESS)
}
