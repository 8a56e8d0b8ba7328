//! `quintet ping`.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use quintet_control::Client;
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;

/// Ask the daemon whether it is there, and say how long the answer took
#[derive(Debug, Args)]
pub(crate) struct PingArgs {
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Report {
    micros: u128,
}

pub(crate) async fn run(context: &Context, args: &PingArgs) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    let asked = Instant::now();
    daemon.ping().await?;
    let report = Report {
        micros: asked.elapsed().as_micros(),
    };
    if args.json.json {
        context.output.json(&report)?;
    } else {
        context
            .output
            .line(format_args!("pong in {} µs", report.micros))?;
    }
    Ok(ExitCode::SUCCESS)
}
