//! `quintet workspace barrier`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use quintet_runtime::config::units::parse_duration;
use quintet_workspace::Role;
use quintet_workspace::control::{BarrierAnswer, Request, WriteBackAnswer};
use serde::Serialize;

use super::super::Context;
use super::DirArg;
use super::target::{Content, Target};
use crate::args::JsonArg;
use crate::error::CommandError;

/// What the mirror's own answer may take longer than it was given.
const GRACE: Duration = Duration::from_millis(500);

/// Wait until everything that was finished at the master is here
#[derive(Debug, Args)]
pub(crate) struct BarrierArgs {
    /// Give up after this long
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    timeout: Duration,

    /// Fail unless the master has reached this sequence
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    sequence: u64,

    /// First wait until the master has everything that was written here
    #[arg(long)]
    write_back: bool,

    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Passed {
    sequence: u64,
    satisfied: bool,
    /// Paths whose writes were refused meanwhile.
    rejected: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: BarrierArgs) -> Result<ExitCode, CommandError> {
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    if target.role() == Role::Master {
        return Err(CommandError::usage(
            "this folder is a master; barriers are for replicas",
        ));
    }
    let timeout_millis = u64::try_from(args.timeout.as_millis()).unwrap_or(u64::MAX);
    let mut rejected = Vec::new();
    if args.write_back {
        let request = Request::WriteBack { timeout_millis };
        let asked = target.ask(request, "writing back", Content::None);
        let report: WriteBackAnswer = within(args.timeout, asked).await?;
        rejected = report.rejected;
    }
    let request = Request::Barrier {
        sequence: args.sequence,
        timeout_millis,
    };
    let asked = target.ask(request, "waiting for the master", Content::None);
    let passed: BarrierAnswer = within(args.timeout, asked).await?;
    if args.json.json {
        context.output.json(&Passed {
            sequence: passed.sequence,
            satisfied: passed.satisfied,
            rejected,
        })?;
    } else {
        for path in &rejected {
            context.output.talk(format_args!(
                "the master refused {path}; see `quintet workspace conflicts`"
            ));
        }
        context.output.line(passed.sequence)?;
    }
    if !passed.satisfied {
        return Err(CommandError::failed(format!(
            "the master is at {} and has not reached {}",
            passed.sequence, args.sequence
        )));
    }
    Ok(ExitCode::SUCCESS)
}

/// The mirror keeps the time, and says what is missing; one that hangs does not.
async fn within<T>(
    timeout: Duration,
    answer: impl Future<Output = Result<T, CommandError>>,
) -> Result<T, CommandError> {
    match tokio::time::timeout(timeout.saturating_add(GRACE), answer).await {
        Ok(answer) => answer,
        Err(_) => Err(CommandError::failed(format!(
            "not done within {timeout:?}; the program that has the folder open does not answer"
        ))
        .hint("stop `quintet workspace mirror` and run it again")),
    }
}
