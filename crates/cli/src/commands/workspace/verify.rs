//! `quintet workspace verify`.

use std::process::ExitCode;

use clap::Args;
use quintet_workspace::control::{Request, VerifyAnswer};

use super::super::Context;
use super::target::{Content, Target};
use super::{DirArg, size};
use crate::args::JsonArg;
use crate::error::CommandError;

/// Read back every content of the history and check it against its hash
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    dir: DirArg,

    #[command(flatten)]
    json: JsonArg,
}

pub(crate) async fn run(context: &Context, args: VerifyArgs) -> Result<ExitCode, CommandError> {
    let mut target = Target::find(context, args.dir.dir.as_deref())?;
    let report: VerifyAnswer = target
        .ask(Request::Verify, "contents", Content::None)
        .await?;
    if args.json.json {
        context.output.json(&report)?;
    } else {
        context.output.line(format_args!(
            "{} contents are whole ({})",
            report.contents,
            size(report.bytes)
        ))?;
        for damage in &report.damaged {
            context.output.line(format_args!(
                "{}: {} ({})",
                damage.hash,
                damage.reason,
                damage.versions.join(", ")
            ))?;
        }
    }
    if !report.damaged.is_empty() {
        return Err(
            CommandError::failed(format!("{} contents are damaged", report.damaged.len()))
                .hint("copy a file that still holds such a version into the folder, or `touch` it there: it is stored anew"),
        );
    }
    Ok(ExitCode::SUCCESS)
}
