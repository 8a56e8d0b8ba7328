//! `quintet agent logs` and `quintet agent restart`.

use std::process::ExitCode;

use clap::Subcommand;
use futures_util::StreamExt;
use quintet_control::Client;
use quintet_control::wire::{AgentLogsMsg, AgentRestartMsg};

use super::Context;
use crate::connect;
use crate::error::CommandError;

/// Look after one agent process
#[derive(Debug, Subcommand)]
pub(crate) enum AgentCommand {
    /// Print what an agent process logged
    Logs {
        /// Name of the process, as `quintet agents` lists it
        id: String,

        /// Go on with what it logs next
        #[arg(short, long)]
        follow: bool,

        /// Print the last so many lines [default: all]
        #[arg(short = 'n', long, value_name = "N")]
        lines: Option<u32>,
    },
    /// Stop an agent process and start it again with the state it had
    Restart {
        /// Name of the process, as `quintet agents` lists it
        id: String,
    },
}

pub(crate) async fn run(
    context: &Context,
    command: AgentCommand,
) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    match command {
        AgentCommand::Logs { id, follow, lines } => {
            let mut log = std::pin::pin!(daemon.agent_logs(AgentLogsMsg {
                agent_id: id,
                follow,
                lines,
            }));
            while let Some(line) = log.next().await {
                let line = line?;
                context.output.piece(&line.text)?;
                context.output.piece("\n")?;
            }
        }
        AgentCommand::Restart { id } => {
            daemon
                .agent_restart(AgentRestartMsg { agent_id: id })
                .await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
