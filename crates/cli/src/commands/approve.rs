//! `quintet approve`.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use quintet_control::Client;
use quintet_control::wire::{AnswerApprovalMsg, Approval, ApprovalScope};

use super::Context;
use crate::connect;
use crate::error::CommandError;

const EXAMPLES: &str = "\
Examples:
  quintet approve 7                                  This once
  quintet approve 7 --scope session                  The same action again in this session
  quintet approve 7 --scope rule                     Write the rule that `quintet approvals --json` shows
  quintet approve 7 --scope rule --rule '{ command = \"git push **\", action = \"allow\" }'";

/// Allow what an agent wants to do
///
/// With `--scope rule` the rule is written into config.toml and applies at once; what was written
/// is printed.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ApproveArgs {
    /// Number of the approval, as `quintet approvals` lists it
    id: u64,

    /// How far it reaches
    #[arg(long, value_name = "SCOPE", default_value = "once")]
    scope: ScopeArg,

    /// Allow the same thing for the rest of the session
    #[arg(long, hide = true, conflicts_with = "scope")]
    for_session: bool,

    /// Write this rule instead of the one that was proposed
    #[arg(
        long,
        value_name = "TOML",
        default_value = "",
        hide_default_value = true
    )]
    rule: String,

    /// Say why; it is kept with the answer
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ScopeArg {
    Once,
    Session,
    Rule,
}

pub(crate) async fn run(context: &Context, args: ApproveArgs) -> Result<ExitCode, CommandError> {
    let scope = match (args.for_session, args.scope) {
        (true, _) | (false, ScopeArg::Session) => ApprovalScope::Session,
        (false, ScopeArg::Once) => ApprovalScope::Once,
        (false, ScopeArg::Rule) => ApprovalScope::Rule,
    };
    if !args.rule.is_empty() && scope != ApprovalScope::Rule {
        return Err(CommandError::usage("--rule needs `--scope rule`"));
    }
    let mut daemon = connect::daemon(&context.home).await?;
    let proposed = match scope {
        ApprovalScope::Rule => {
            let listed = daemon.approvals().await?.approvals;
            listed.into_iter().find(|approval| approval.id == args.id)
        }
        _ => None,
    };
    let request = AnswerApprovalMsg {
        id: args.id,
        approved: true,
        reason: args.reason,
        scope: scope.into(),
        rule: args.rule.clone(),
    };
    daemon.answer_approval(request).await?;
    if let Some(Approval {
        rule,
        rule_file,
        rule_place,
        ..
    }) = proposed
    {
        let written = if args.rule.is_empty() {
            rule
        } else {
            args.rule
        };
        let file = match rule_file.as_str() {
            "" => context.home.config_file().display().to_string(),
            file => file.to_owned(),
        };
        context
            .output
            .talk(format!("written to {file} {rule_place}:"));
        context.output.line(written)?;
    }
    Ok(ExitCode::SUCCESS)
}
