//! `quintet agent logs` and `quintet agent restart`.

use std::process::ExitCode;

use clap::Subcommand;
use futures_util::StreamExt;
use quintet_control::Client;
use quintet_control::wire::{AgentLogsMsg, AgentRestartMsg, LogLine};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
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

        #[command(flatten)]
        json: JsonArg,
    },
    /// Stop an agent process and start it again with the state it had
    Restart {
        /// Name of the process, as `quintet agents` lists it
        id: String,
    },
}

#[derive(Debug, Serialize)]
struct Line<'a> {
    source: &'a str,
    level: &'a str,
    time: &'a str,
    text: &'a str,
}

impl<'a> Line<'a> {
    fn of(line: &'a LogLine) -> Self {
        Self {
            source: &line.source,
            level: &line.level,
            time: &line.at,
            // A daemon from before the parts has only the whole.
            text: match line.message.as_str() {
                "" => &line.text,
                message => message,
            },
        }
    }
}

pub(crate) async fn run(
    context: &Context,
    command: AgentCommand,
) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    match command {
        AgentCommand::Logs {
            id,
            follow,
            lines,
            json,
        } => {
            let mut log = std::pin::pin!(daemon.agent_logs(AgentLogsMsg {
                agent_id: id,
                follow,
                lines,
            }));
            while let Some(line) = log.next().await {
                let line = line?;
                if json.json {
                    context.output.json_line(&Line::of(&line))?;
                    continue;
                }
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
