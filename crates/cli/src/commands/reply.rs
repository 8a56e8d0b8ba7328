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
  quintet reply 3 'PostgreSQL'
  quintet reply 3 '[\"tests\", \"docs\"]'     Where more than one may be chosen
  quintet reply 3 $'PostgreSQL\\nno'       Where two questions were asked";

/// Answer the question that an agent waits on
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplyArgs {
    /// Number of the session, as `quintet asks` lists it
    session: u64,

    /// The answer: the label of an option, or words of your own. Several labels are a JSON list;
    /// several questions have a line each
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
