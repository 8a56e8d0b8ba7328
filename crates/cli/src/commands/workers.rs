//! `quintet workers`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::WorkerInfo;
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// List the workers
#[derive(Debug, Args)]
pub(crate) struct WorkersArgs {
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    id: String,
    hostname: String,
    platform: String,
    arch: String,
    version: String,
    labels: BTreeMap<String, String>,
    state: String,
    protocol: String,
    running: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    load: Option<Load>,
}

/// In percent.
#[derive(Debug, Serialize)]
struct Load {
    cpu: u32,
    memory: u32,
}

pub(crate) async fn run(context: &Context, args: &WorkersArgs) -> Result<ExitCode, CommandError> {
    let list = connect::daemon(&context.home).await?.workers().await?;
    let rows: Vec<Row> = list.workers.into_iter().map(Row::from).collect();
    let nothing = "no workers; `quintet worker` makes this machine one";
    context.output.list(args.json.json, &rows, table, nothing)?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "ID", "STATE", "RUNNING", "CPU", "MEMORY", "HOST", "SYSTEM", "PROTOCOL", "VERSION",
        "LABELS",
    ]);
    for row in rows {
        let labels: Vec<String> = row
            .labels
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let percent = |value: fn(&Load) -> u32| match &row.load {
            Some(load) => format!("{} %", value(load)),
            None => String::new(),
        };
        table.row([
            row.id.clone(),
            row.state.clone(),
            row.running.to_string(),
            percent(|load| load.cpu),
            percent(|load| load.memory),
            row.hostname.clone(),
            format!("{}/{}", row.platform, row.arch),
            row.protocol.clone(),
            row.version.clone(),
            labels.join(","),
        ]);
    }
    table
}

impl From<WorkerInfo> for Row {
    fn from(info: WorkerInfo) -> Self {
        Self {
            id: info.id,
            hostname: info.hostname,
            platform: info.platform,
            arch: info.arch,
            version: info.version,
            labels: info.labels,
            state: info.state,
            protocol: info.protocol,
            running: info.running,
            load: info.load.map(|load| Load {
                cpu: load.cpu,
                memory: load.memory,
            }),
        }
    }
}
