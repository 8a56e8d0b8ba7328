//! `quintet steer`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::SteerMsg;

use super::Context;
use crate::connect;
use crate::error::CommandError;

const EXAMPLES: &str = "\
Examples:
  quintet steer 3 'leave the tests alone, fix the parser first'";

/// Say something to an agent while it works
///
/// The agent hears it at its next step. When no turn is running it becomes an ordinary message.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SteerArgs {
    /// Number of the session, as `quintet sessions` lists it
    session: u64,

    /// What to say
    text: String,
}

pub(crate) async fn run(context: &Context, args: SteerArgs) -> Result<ExitCode, CommandError> {
    let request = SteerMsg {
        session: args.session,
        content: args.text,
    };
    connect::daemon(&context.home).await?.steer(request).await?;
    Ok(ExitCode::SUCCESS)
}
