//! `quintet events`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use quintet_control::Client;
use quintet_control::wire::{EventsMsg, JournalEvent};
use serde::Serialize;
use serde_json::value::RawValue;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::{DIM, styled, terminal_text};

const EXAMPLES: &str = "\
Examples:
  quintet events --session 3                  What happened in session 3
  quintet events --follow                     What happens from now on
  quintet events --after 120 --follow --json  From a cursor on, without an end, for a program";

/// How long a daemon may be away while what is there is read.
const PATIENCE: Duration = Duration::from_secs(30);

/// Read the journal: everything that happened, one numbered line each
///
/// Without --follow it prints what is there and ends.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EventsArgs {
    /// Start after this number; 0 is the beginning
    #[arg(long, value_name = "SEQ")]
    after: Option<u64>,

    /// Show one session alone
    #[arg(long, value_name = "N")]
    session: Option<u64>,

    /// Go on with what happens next; without --after from now on
    #[arg(short, long)]
    follow: bool,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    seq: u64,
    at: &'a str,
    session: Option<u64>,
    kind: &'a str,
    data: &'a RawValue,
}

pub(crate) async fn run(context: &Context, args: &EventsArgs) -> Result<ExitCode, CommandError> {
    let mut cursor = args.after;
    let mut seen = false;
    let mut redial = connect::Redial::new(&context.home, (!args.follow).then_some(PATIENCE));
    let mut daemon = connect::daemon(&context.home).await?;
    if args.follow && cursor.is_none() {
        // "From now on" as a number, so that nothing is missed when the connection is lost.
        cursor = Some(daemon.get_stats().await?.journal_seq);
    }
    loop {
        let lost = {
            let mut events = std::pin::pin!(daemon.events(EventsMsg {
                session: args.session,
                after_seq: cursor,
                follow: args.follow,
            }));
            loop {
                match events.next().await {
                    Some(Ok(event)) => {
                        cursor = Some(event.seq);
                        seen = true;
                        print(context, args.json.json, &event)?;
                    }
                    Some(Err(error)) => break error,
                    None => {
                        if !seen && !args.json.json {
                            context.output.talk("no events");
                        }
                        return Ok(ExitCode::SUCCESS);
                    }
                }
            }
        };
        daemon = redial.after(lost).await?;
    }
}

fn print(context: &Context, json: bool, event: &JournalEvent) -> Result<(), CommandError> {
    if json {
        return context.output.json_line(&Row {
            seq: event.seq,
            at: &event.at,
            session: event.session,
            kind: &event.kind,
            data: serde_json::from_str(&event.data)?,
        });
    }
    let session = event
        .session
        .map_or("-".to_owned(), |session| session.to_string());
    context.output.line(format_args!(
        "{:>6}  {}  {session:>3}  {:<18}  {}",
        event.seq,
        styled(DIM, &event.at),
        event.kind,
        terminal_text::one_line(&event.data),
    ))
}
