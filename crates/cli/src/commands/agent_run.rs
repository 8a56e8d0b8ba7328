//! `quintet agent-run`: the processes that the daemon starts for its own agents.

use std::process::ExitCode;

use clap::Subcommand;
use quintet_agent::acp;
use quintet_agent::sdk::AgentEnv;

use crate::error::{CommandError, ErrorKind};

/// Run as an agent's process; the daemon starts these
#[derive(Debug, Subcommand)]
pub(crate) enum AgentRunCommand {
    /// Run what is typed in the workspace
    Shell,
    /// Work with a model
    Coder,
    /// Bridge to a program that speaks the Agent Client Protocol
    Acp {
        /// The program and its arguments
        #[arg(required = true, last = true)]
        command: Vec<String>,
    },
}

pub(crate) async fn run(command: AgentRunCommand) -> Result<ExitCode, CommandError> {
    let environment = AgentEnv::from_lookup(|name| std::env::var(name).ok())
        .map_err(|error| CommandError::new(ErrorKind::Usage, error))?;
    let ended = match command {
        AgentRunCommand::Shell => quintet_coder::shell::run(environment)
            .await
            .map_err(anyhow::Error::new),
        AgentRunCommand::Coder => quintet_coder::run(environment)
            .await
            .map_err(anyhow::Error::new),
        AgentRunCommand::Acp { command } => acp::run(environment, command)
            .await
            .map_err(anyhow::Error::new),
    };
    ended.map_err(|error| CommandError::new(ErrorKind::Failed, error))?;
    Ok(ExitCode::SUCCESS)
}
