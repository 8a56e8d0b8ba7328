//! `quintet queue ls`, `rm` and `edit`.

use std::process::ExitCode;

use clap::Subcommand;
use quintet_control::Client;
use quintet_control::wire::{QueueEditMsg, QueueListMsg, QueueRemoveMsg, QueuedMessage};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// List, change and remove the messages that wait for their turn
#[derive(Debug, Subcommand)]
pub(crate) enum QueueCommand {
    /// List the waiting messages, oldest first
    Ls {
        /// Show one session alone
        #[arg(long, value_name = "N")]
        session: Option<u64>,

        #[command(flatten)]
        json: JsonArg,
    },
    /// Remove a message before its turn comes; whoever waits for the answer is told
    Rm {
        /// Number of the message, as `quintet queue ls` lists it
        id: u64,
    },
    /// Change the text of a message before its turn comes
    Edit {
        /// Number of the message, as `quintet queue ls` lists it
        id: u64,

        /// The new text
        text: String,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    session: u64,
    text: String,
    sender: String,
    at: String,
    cut: bool,
}

pub(crate) async fn run(
    context: &Context,
    command: QueueCommand,
) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    match command {
        QueueCommand::Ls { session, json } => {
            let list = daemon.queue_list(QueueListMsg { session }).await?;
            let rows: Vec<Row> = list.messages.into_iter().map(Row::from).collect();
            context
                .output
                .list(json.json, &rows, table, "no message waits")?;
        }
        QueueCommand::Rm { id } => {
            daemon.queue_remove(QueueRemoveMsg { id }).await?;
        }
        QueueCommand::Edit { id, text } => {
            daemon
                .queue_edit(QueueEditMsg { id, content: text })
                .await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["ID", "SESSION", "FROM", "AT", "TEXT"]);
    for row in rows {
        table.row([
            row.id.to_string(),
            row.session.to_string(),
            row.sender.clone(),
            row.at.clone(),
            row.text.clone(),
        ]);
    }
    table
}

impl From<QueuedMessage> for Row {
    fn from(message: QueuedMessage) -> Self {
        Self {
            id: message.id,
            session: message.session,
            text: message.text,
            sender: message.sender,
            at: message.at,
            cut: message.cut,
        }
    }
}
