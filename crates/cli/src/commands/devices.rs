//! `quintet devices` and `quintet devices revoke`.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use quintet_control::Client;
use quintet_control::wire::{DeviceInfo, DeviceRevokeMsg};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// List the paired browsers, or end a pairing
#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    #[command(subcommand)]
    command: Option<DevicesCommand>,

    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Subcommand)]
enum DevicesCommand {
    /// End a browser's pairing; its connections are closed at once
    Revoke {
        /// Id of the device, or a beginning of it that is only one's
        // An id may begin with a dash.
        #[arg(allow_hyphen_values = true)]
        id: String,
    },
}

#[derive(Debug, Serialize)]
struct Row {
    id: String,
    name: String,
    first_seen: String,
    last_seen: String,
    expires_at: String,
    check_words: Vec<String>,
}

pub(crate) async fn run(context: &Context, args: DevicesArgs) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::daemon(&context.home).await?;
    if let Some(DevicesCommand::Revoke { id }) = args.command {
        daemon.device_revoke(DeviceRevokeMsg { id }).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let list = daemon.devices().await?;
    let rows: Vec<Row> = list.devices.into_iter().map(Row::from).collect();
    context.output.list(
        args.json.json,
        &rows,
        table,
        "no browser is paired; pair one with `quintet pair`",
    )?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["ID", "NAME", "FIRST SEEN", "LAST SEEN", "EXPIRES", "WORDS"]);
    for row in rows {
        table.row([
            row.id.clone(),
            row.name.clone(),
            row.first_seen.clone(),
            row.last_seen.clone(),
            row.expires_at.clone(),
            row.check_words.join(" "),
        ]);
    }
    table
}

impl From<DeviceInfo> for Row {
    fn from(info: DeviceInfo) -> Self {
        Self {
            id: info.id,
            name: info.name,
            first_seen: info.first_seen,
            last_seen: info.last_seen,
            expires_at: info.expires_at,
            check_words: info.check_words,
        }
    }
}
