//! `quintet token create`, `ls` and `revoke`.

use std::process::ExitCode;

use clap::Subcommand;
use quintet_control::Client;
use quintet_control::wire::{TokenCreateMsg, TokenInfo, TokenRevokeMsg};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// Make and take back what lets workers of other machines in
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make a token and print it, this once
    Create {
        /// Id that the worker will register with
        #[arg(long, value_name = "ID")]
        worker: String,
    },
    /// List the tokens, without what opens anything
    Ls {
        #[command(flatten)]
        json: JsonArg,
    },
    /// Take a token back; its worker is disconnected at once
    Revoke {
        /// Number of the token, as `quintet token ls` lists it
        id: u64,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    worker: String,
    created_at: String,
    revoked_at: Option<String>,
}

pub(crate) async fn run(
    context: &Context,
    command: TokenCommand,
) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    match command {
        TokenCommand::Create { worker } => {
            let made = daemon.token_create(TokenCreateMsg { worker }).await?;
            context.output.line(made.token)?;
        }
        TokenCommand::Ls { json } => {
            let list = daemon.token_list().await?;
            let rows: Vec<Row> = list.tokens.into_iter().map(Row::from).collect();
            context.output.list(json.json, &rows, table, "no tokens")?;
        }
        TokenCommand::Revoke { id } => {
            daemon.token_revoke(TokenRevokeMsg { id }).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["ID", "WORKER", "CREATED", "REVOKED"]);
    for row in rows {
        table.row([
            row.id.to_string(),
            row.worker.clone(),
            row.created_at.clone(),
            row.revoked_at.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table
}

impl From<TokenInfo> for Row {
    fn from(info: TokenInfo) -> Self {
        Self {
            id: info.id,
            worker: info.worker,
            created_at: info.created_at,
            revoked_at: (!info.revoked_at.is_empty()).then_some(info.revoked_at),
        }
    }
}
