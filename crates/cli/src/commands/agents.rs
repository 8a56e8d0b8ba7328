//! `quintet agents`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::AgentInfo;
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// List the agents and their processes
#[derive(Debug, Args)]
pub(crate) struct AgentsArgs {
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    name: String,
    kind: String,
    description: String,
    instances: Vec<Instance>,
}

#[derive(Debug, Serialize)]
struct Instance {
    agent_id: String,
    session: Option<u64>,
    state: String,
    pid: Option<u32>,
}

pub(crate) async fn run(context: &Context, args: &AgentsArgs) -> Result<ExitCode, CommandError> {
    let list = connect::daemon(&context.home).await?.agents().await?;
    let rows: Vec<Row> = list.agents.into_iter().map(Row::from).collect();
    context
        .output
        .list(args.json.json, &rows, table, "no agents are configured")?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "KIND",
        "INSTANCE",
        "SESSION",
        "STATE",
        "PID",
        "DESCRIPTION",
    ]);
    for row in rows {
        let cells = |instance: Option<&Instance>| {
            let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
            [
                row.name.clone(),
                row.kind.clone(),
                text(instance.map(|it| it.agent_id.clone())),
                text(instance.and_then(|it| it.session).map(|it| it.to_string())),
                text(instance.map(|it| it.state.clone())),
                text(instance.and_then(|it| it.pid).map(|it| it.to_string())),
                row.description.clone(),
            ]
        };
        if row.instances.is_empty() {
            table.row(cells(None));
        }
        for instance in &row.instances {
            table.row(cells(Some(instance)));
        }
    }
    table
}

impl From<AgentInfo> for Row {
    fn from(info: AgentInfo) -> Self {
        Self {
            name: info.name,
            kind: info.kind,
            description: info.description,
            instances: info
                .instances
                .into_iter()
                .map(|instance| Instance {
                    agent_id: instance.agent_id,
                    session: instance.session,
                    state: instance.state,
                    pid: instance.pid,
                })
                .collect(),
        }
    }
}
