//! `quintet chat`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::{SessionInfo, SessionsMsg};

use super::Context;
use super::send::folder;
use crate::chat::{SENDER, driver, plain};
use crate::connect;
use crate::error::CommandError;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  quintet chat                       Go on with your newest session
  quintet chat coder --new           Start a new one
  quintet chat --cwd ~/project       Work in that folder
  echo 'ls -l' | quintet chat shell  In a pipe: each line is a message, the answers are text

F1 or /help shows the keys. Leaving does not stop the agent.";

/// Talk to an agent in the terminal
///
/// The conversation is the session's journal: it is the same after this terminal or the daemon
/// was restarted.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChatArgs {
    /// Name of the agent [default: coder when a model provider has a key, else shell]
    agent: Option<String>,

    /// Open this session
    #[arg(long, value_name = "N", conflicts_with_all = ["new", "agent"])]
    session: Option<u64>,

    /// Start a new session
    #[arg(long)]
    new: bool,

    /// Work in this folder: go on with the newest session there, or start one
    #[arg(long, value_name = "DIR", conflicts_with = "session")]
    cwd: Option<PathBuf>,
}

/// What to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) agent: String,
    pub(crate) session: Option<u64>,
    /// The folder of a new session.
    pub(crate) cwd: Option<String>,
}

pub(crate) async fn run(context: &Context, args: ChatArgs) -> Result<ExitCode, CommandError> {
    let choice = choose(context, args).await?;
    if output::stdin_is_terminal() && output::stdout_is_terminal() {
        driver::run(&context.home, choice).await?;
        Ok(ExitCode::SUCCESS)
    } else {
        plain::run(context, choice).await
    }
}

async fn choose(context: &Context, args: ChatArgs) -> Result<Choice, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    let sessions = daemon
        .sessions(SessionsMsg {
            include_closed: args.session.is_some(),
        })
        .await?
        .sessions;
    if let Some(number) = args.session {
        let found = sessions.into_iter().find(|session| session.id == number);
        return match found {
            Some(session) => Ok(Choice {
                agent: session.agent,
                session: Some(number),
                cwd: None,
            }),
            None => Err(CommandError::failed(format!("session {number} not found"))
                .hint("`quintet sessions` lists them")),
        };
    }
    let agent = match args.agent {
        Some(agent) => agent,
        None => {
            let agents = daemon.agents().await?.agents;
            default_agent(|name| agents.iter().any(|agent| agent.name == name))
        }
    };
    let cwd = args.cwd.map(|path| folder(context.output, &path));
    let cwd = cwd.transpose()?;
    let session = if args.new {
        None
    } else {
        newest(&sessions, &agent, cwd.as_deref())
    };
    Ok(Choice {
        agent,
        session,
        cwd,
    })
}

fn newest(sessions: &[SessionInfo], agent: &str, cwd: Option<&str>) -> Option<u64> {
    sessions
        .iter()
        .filter(|session| !session.closed && session.agent == agent && session.created_by == SENDER)
        .filter(|session| cwd.is_none_or(|cwd| session.workspace == cwd))
        .map(|session| session.id)
        .max()
}

/// `coder` when the daemon can run it, which takes a model provider; else `shell`.
fn default_agent(exists: impl Fn(&str) -> bool) -> String {
    let agent = if exists("coder") { "coder" } else { "shell" };
    agent.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coder_is_the_default_where_it_can_run() {
        assert_eq!(default_agent(|_| true), "coder");
        assert_eq!(default_agent(|name| name == "shell"), "shell");
    }

    #[test]
    fn the_newest_open_session_of_this_person_is_taken() {
        let session = |id, agent: &str, by: &str, closed| SessionInfo {
            id,
            agent: agent.into(),
            created_by: by.into(),
            closed,
            workspace: format!("/w/{id}"),
            ..SessionInfo::default()
        };
        let sessions = [
            session(1, "coder", "user", false),
            session(2, "coder", "user", false),
            session(3, "coder", "user", true),
            session(4, "coder", "cron", false),
            session(5, "shell", "user", false),
        ];
        assert_eq!(newest(&sessions, "coder", None), Some(2));
        assert_eq!(newest(&sessions, "coder", Some("/w/1")), Some(1));
        assert_eq!(newest(&sessions, "coder", Some("/w/3")), None);
        assert_eq!(newest(&sessions, "other", None), None);
    }
}
