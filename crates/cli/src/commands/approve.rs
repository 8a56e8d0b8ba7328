//! `quintet approve`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::{AnswerApprovalMsg, ApprovalScope};

use super::Context;
use crate::connect;
use crate::error::CommandError;

/// Allow what an agent wants to do
#[derive(Debug, Args)]
pub(crate) struct ApproveArgs {
    /// Number of the approval, as `quintet approvals` lists it
    id: u64,

    /// Allow the same thing for the rest of the session
    #[arg(long)]
    for_session: bool,

    /// Say why; it is kept with the answer
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
}

pub(crate) async fn run(context: &Context, args: ApproveArgs) -> Result<ExitCode, CommandError> {
    let scope = if args.for_session {
        ApprovalScope::Session
    } else {
        ApprovalScope::Once
    };
    let request = AnswerApprovalMsg {
        id: args.id,
        approved: true,
        reason: args.reason,
        scope: scope.into(),
    };
    connect::daemon(&context.home)
        .await?
        .answer_approval(request)
        .await?;
    Ok(ExitCode::SUCCESS)
}
