//! `quintet retry`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::wire::RetryMsg;

use super::{Context, send};
use crate::args::JsonArg;
use crate::error::CommandError;
use crate::turn::{Opening, Turn};

/// Run the last message of a session again, after its turn failed, and print the answer
#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    /// Number of the session
    session: u64,

    #[command(flatten)]
    json: JsonArg,
}

pub(crate) async fn run(context: &Context, args: &RetryArgs) -> Result<ExitCode, CommandError> {
    let request = RetryMsg {
        session: args.session,
    };
    let turn = Turn::open(&context.home, Opening::Retry(request)).await?;
    send::watch(context, turn, args.json.json).await
}
