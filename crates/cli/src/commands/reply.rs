//! `quintet reply`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::ReplyToAskMsg;

use super::Context;
use crate::connect;
use crate::error::CommandError;

const EXAMPLES: &str = "\
Examples:
  quintet reply 3 'PostgreSQL'";

/// Answer the question that an agent waits on
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplyArgs {
    /// Number of the session
    session: u64,

    /// The answer: the label of an option, or words of your own
    text: String,

    /// Answer this question instead of the oldest of the session
    #[arg(long, value_name = "ID")]
    ask: Option<u64>,
}

pub(crate) async fn run(context: &Context, args: ReplyArgs) -> Result<ExitCode, CommandError> {
    let request = ReplyToAskMsg {
        session: args.session,
        content: args.text,
        ask: args.ask,
    };
    connect::daemon(&context.home)
        .await?
        .reply_to_ask(request)
        .await?;
    Ok(ExitCode::SUCCESS)
}
