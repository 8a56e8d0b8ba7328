//! `quintet retry`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::wire::RetryMsg;

use super::{Context, send};
use crate::error::CommandError;
use crate::turn::{Opening, Turn};

/// Run the last message of a session again, after its turn failed, and print the answer
#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    /// Number of the session, as `quintet sessions` lists it
    session: u64,

    /// Print the turn's events, one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(context: &Context, args: &RetryArgs) -> Result<ExitCode, CommandError> {
    let request = RetryMsg {
        session: args.session,
    };
    let turn = Turn::open(&context.home, Opening::Retry(request)).await?;
    send::watch(context, turn, args.json).await
}
