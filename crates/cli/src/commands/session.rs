//! `quintet session export` and `quintet session title`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;
use quintet_control::Client;
use quintet_control::wire::{ExportSessionMsg, SetTitleMsg};

use super::Context;
use crate::connect;
use crate::error::{CommandError, ErrorKind};

const EXPORT_EXAMPLES: &str = "\
Examples:
  quintet session export 3 > talk.json
  quintet send coder 'go on' --resume-file talk.json";

/// Name a session, or take it elsewhere
#[derive(Debug, Subcommand)]
pub(crate) enum SessionCommand {
    /// Print a session so that it can be resumed with `send --resume-file`
    #[command(after_help = EXPORT_EXAMPLES)]
    Export {
        /// Number of the session, as `quintet sessions` lists it
        session: u64,

        /// Write to this file instead of stdout
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Give a session a title
    Title {
        /// Number of the session, as `quintet sessions` lists it
        session: u64,

        /// The title; an empty one removes it
        title: String,
    },
}

pub(crate) async fn run(
    context: &Context,
    command: SessionCommand,
) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    match command {
        SessionCommand::Export { session, output } => {
            let mut export = String::new();
            loop {
                let request = ExportSessionMsg {
                    session,
                    from: Some(export.len() as u64),
                };
                let part = daemon.export_session(request).await?;
                export.push_str(&part.export);
                if !part.more {
                    break;
                }
            }
            match output {
                Some(path) => std::fs::write(&path, export).map_err(|error| {
                    CommandError::new(
                        ErrorKind::Failed,
                        anyhow::Error::new(error)
                            .context(format!("can't write {}", path.display())),
                    )
                })?,
                None => context.output.piece(&export)?,
            }
        }
        SessionCommand::Title { session, title } => {
            daemon.set_title(SetTitleMsg { session, title }).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
