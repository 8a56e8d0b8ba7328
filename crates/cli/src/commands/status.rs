//! `quintet status`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// Say whether a daemon runs on this home folder, and where it listens
///
/// Exits 1 when none does.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    json: JsonArg,
}

pub(crate) async fn run(context: &Context, args: &StatusArgs) -> Result<ExitCode, CommandError> {
    // The file may be left over from a daemon that was killed: only an answer counts.
    connect::daemon(&context.home).await?.ping().await?;
    let Some(run) = connect::run_file(&context.home) else {
        return Err(CommandError::failed(format!(
            "a daemon answers, but {} can't be read",
            context.home.run_file().display()
        ))
        .hint("it is being started or stopped; try again"));
    };
    if args.json.json {
        context.output.json(&run)?;
    } else {
        let mut table = Table::new(&["WHAT", "NOW"]);
        for (what, now) in [
            ("pid", run.pid.to_string()),
            ("version", run.version),
            ("home", context.home.root().display().to_string()),
            ("http", run.http),
            ("control socket", run.control_socket.display().to_string()),
            ("started", run.started_at),
        ] {
            table.row([what.to_owned(), now]);
        }
        table.print()?;
    }
    Ok(ExitCode::SUCCESS)
}
