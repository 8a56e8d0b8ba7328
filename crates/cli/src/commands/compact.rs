//! `quintet compact`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::{CompactMsg, CompactUndoMsg};

use super::Context;
use crate::connect;
use crate::error::CommandError;
use crate::output;

/// Replace what an agent remembers of a session by a summary, and print the summary
///
/// Every message stays in the journal, and --undo puts the agent's memory back.
#[derive(Debug, Args)]
pub(crate) struct CompactArgs {
    /// Number of the session, as `quintet sessions` lists it
    session: u64,

    /// Put back what the last compaction replaced
    #[arg(long)]
    undo: bool,
}

pub(crate) async fn run(context: &Context, args: &CompactArgs) -> Result<ExitCode, CommandError> {
    let session = args.session;
    let mut daemon = connect::daemon(&context.home).await?;
    if args.undo {
        daemon.compact_undo(CompactUndoMsg { session }).await?;
        context
            .output
            .talk(format_args!("session {session} has its full memory back"));
    } else {
        if output::stderr_is_terminal() {
            context.output.talk("asking the agent for a summary");
        }
        let summary = daemon.compact(CompactMsg { session }).await?.summary;
        context.output.piece(&summary)?;
        context.output.piece("\n")?;
    }
    Ok(ExitCode::SUCCESS)
}
