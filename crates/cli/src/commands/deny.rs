//! `quintet deny`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::{AnswerApprovalMsg, ApprovalScope};

use super::Context;
use crate::connect;
use crate::error::CommandError;

const EXAMPLES: &str = "\
Examples:
  quintet deny 7 --reason 'use the staging database'";

/// Refuse what an agent wants to do; it is told and goes on without it
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DenyArgs {
    /// Number of the approval, as `quintet approvals` lists it
    id: u64,

    /// Tell the agent why
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
}

pub(crate) async fn run(context: &Context, args: DenyArgs) -> Result<ExitCode, CommandError> {
    let request = AnswerApprovalMsg {
        id: args.id,
        approved: false,
        reason: args.reason,
        scope: ApprovalScope::Once.into(),
        rule: String::new(),
    };
    connect::daemon(&context.home)
        .await?
        .answer_approval(request)
        .await?;
    Ok(ExitCode::SUCCESS)
}
