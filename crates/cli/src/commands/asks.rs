//! `quintet asks`.

use std::process::ExitCode;

use clap::Args;
use quintet_control::Client;
use quintet_control::wire::{PendingAsk, Question};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;

/// List the questions that agents wait for an answer to; `quintet reply` answers
#[derive(Debug, Args)]
pub(crate) struct AsksArgs {
    #[command(flatten)]
    json: JsonArg,
}

#[derive(Debug, Serialize)]
struct Row {
    id: u64,
    session: u64,
    at: String,
    questions: Vec<Asked>,
}

#[derive(Debug, Serialize)]
struct Asked {
    question: String,
    header: String,
    options: Vec<Choice>,
    multi_select: bool,
}

#[derive(Debug, Serialize)]
struct Choice {
    label: String,
    description: String,
}

pub(crate) async fn run(context: &Context, args: &AsksArgs) -> Result<ExitCode, CommandError> {
    let list = connect::daemon(&context.home).await?.asks().await?;
    let rows: Vec<Row> = list.asks.into_iter().map(Row::from).collect();
    context
        .output
        .list(args.json.json, &rows, table, "nobody waits for an answer")?;
    Ok(ExitCode::SUCCESS)
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&["SESSION", "AT", "QUESTION", "CHOICES"]);
    for row in rows {
        for asked in &row.questions {
            let choices: Vec<&str> = asked.options.iter().map(|it| it.label.as_str()).collect();
            table.row([
                row.session.to_string(),
                row.at.clone(),
                asked.question.clone(),
                choices.join(", "),
            ]);
        }
    }
    table
}

impl From<PendingAsk> for Row {
    fn from(ask: PendingAsk) -> Self {
        Self {
            id: ask.id,
            session: ask.session,
            at: ask.at,
            questions: ask.questions.into_iter().map(Asked::from).collect(),
        }
    }
}

impl From<Question> for Asked {
    fn from(question: Question) -> Self {
        Self {
            question: question.question,
            header: question.header,
            options: question
                .options
                .into_iter()
                .map(|option| Choice {
                    label: option.label,
                    description: option.description,
                })
                .collect(),
            multi_select: question.multi_select,
        }
    }
}
