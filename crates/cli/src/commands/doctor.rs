//! `quintet doctor`.

mod isolation;
mod kernel;
mod models;
mod place;
mod programs;

use std::borrow::Cow;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::error::CommandError;
pub(crate) use place::instead_of_temp;

use crate::output::{BAD, CAUTION, DIM, GOOD, styled, terminal_text};

/// Say what works on this machine and what is missing, with the command that fixes it
///
/// Exits 1 when something that is needed is missing; what is marked `-` only makes things better.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    json: JsonArg,
}

/// What was looked at, and what to do where it is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    check: Cow<'static, str>,
    ok: bool,
    detail: String,
    /// Empty when there is nothing to do.
    fix: String,
    /// Whether the daemon can't work without it.
    needed: bool,
}

impl Check {
    fn good(check: impl Into<Cow<'static, str>>, detail: impl Into<String>) -> Self {
        Self {
            check: check.into(),
            ok: true,
            detail: detail.into(),
            fix: String::new(),
            needed: false,
        }
    }

    fn bad(
        check: impl Into<Cow<'static, str>>,
        detail: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            check: check.into(),
            ok: false,
            detail: detail.into(),
            fix: fix.into(),
            needed: false,
        }
    }

    fn needed(mut self) -> Self {
        self.needed = true;
        self
    }
}

pub(crate) async fn run(context: &Context, args: &DoctorArgs) -> Result<ExitCode, CommandError> {
    let mut checks = vec![
        place::home(&context.home),
        place::config(&context.home),
        place::port(&context.home).await,
    ];
    checks.extend(place::temp(&context.home));
    checks.extend(place::reach(&context.home));
    checks.extend(models::checks(&context.home));
    checks.extend(kernel::checks().await);
    checks.extend(isolation::checks(&context.home));
    checks.extend(programs::checks().await);
    if args.json.json {
        context.output.json(&checks)?;
    } else {
        let width = checks.iter().map(|check| check.check.len()).max();
        for check in &checks {
            print(context, check, width.unwrap_or_default())?;
        }
    }
    Ok(if checks.iter().all(|check| check.ok || !check.needed) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn print(context: &Context, check: &Check, width: usize) -> Result<(), CommandError> {
    let mark = match (check.ok, check.needed) {
        (true, _) => styled(GOOD, "✓"),
        (false, true) => styled(BAD, "✗"),
        (false, false) => styled(CAUTION, "-"),
    };
    let detail = terminal_text::one_line(&check.detail);
    context
        .output
        .line(format_args!("{mark} {:<width$} {detail}", check.check))?;
    if !check.fix.is_empty() {
        context.output.line(format_args!(
            "  {}",
            styled(DIM, format!("fix: {}", check.fix))
        ))?;
    }
    Ok(())
}
