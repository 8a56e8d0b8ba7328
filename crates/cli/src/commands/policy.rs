//! `quintet policy ls` and `test`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use quintet_control::wire::{SessionsMsg, WorkerInfo};
use quintet_control::{Client, UnixClient};
use quintet_runtime::config::{self, ConfigStore};
use quintet_runtime::policy::{self, Decision, Isolation, Request, Rule, Subject, quoted};
use quintet_runtime::{copy_beneath, session_worker};
use serde::Serialize;

use super::Context;
use crate::args::JsonArg;
use crate::connect;
use crate::error::CommandError;
use crate::output::table::Table;
use crate::settings;

const TEST_EXAMPLES: &str = "\
Examples:
  quintet policy test -- git push origin main
  quintet policy test --worker box --agent coder -- 'make && sudo make install'
  quintet policy test --session 3 --json -- cargo test";

/// See what agents may do
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List the rules, in the order in which they are tried
    Ls {
        #[command(flatten)]
        json: JsonArg,
    },
    /// Say what would happen to a command, and why; nothing is run
    ///
    /// Asks the daemon for its rules, sessions and workers; without one the configuration is read.
    #[command(after_help = TEST_EXAMPLES)]
    Test(TestArgs),
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// The worker that it would run on [default: the session's, or the only one, or local]
    #[arg(long, value_name = "WORKER")]
    worker: Option<String>,

    /// The agent that would run it [default: the session's, or coder]
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,

    /// The session that it would run in
    #[arg(long, value_name = "SESSION")]
    session: Option<u64>,

    /// The folder that it would run in, in the workspace or outside
    #[arg(
        long,
        value_name = "DIR",
        default_value = "",
        hide_default_value = true
    )]
    cwd: String,

    #[command(flatten)]
    json: JsonArg,

    /// The command: one word is a shell line as it is, several are quoted
    #[arg(last = true, required = true, value_name = "WORD")]
    command: Vec<String>,
}

#[derive(Debug, Serialize)]
struct RuleRow {
    rule: usize,
    tool: Option<String>,
    command: Option<String>,
    path: Option<String>,
    agent: Option<String>,
    worker: Option<String>,
    session: Option<u32>,
    action: &'static str,
}

#[derive(Debug, Serialize)]
struct Report {
    action: &'static str,
    why: String,
    rule: Option<usize>,
    command: String,
    cwd: String,
    agent: String,
    worker: String,
    isolation: &'static str,
    session: Option<u64>,
    parts: Vec<PartReport>,
    /// What answering "always" would write.
    proposed: Vec<String>,
}

#[derive(Debug, Serialize)]
struct PartReport {
    part: String,
    action: &'static str,
    why: String,
    rule: Option<usize>,
}

pub(crate) async fn run(
    context: &Context,
    command: PolicyCommand,
) -> Result<ExitCode, CommandError> {
    let mut daemon = connect::dial(&context.home).await.ok();
    let rules = rules(context, daemon.as_mut()).await?;
    match command {
        PolicyCommand::Ls { json } => {
            let rows: Vec<RuleRow> = rules.iter().enumerate().map(row).collect();
            let nothing =
                "no rules; the defaults decide (`quintet policy test -- COMMAND` says how)";
            context.output.list(json.json, &rows, table, nothing)?;
        }
        PolicyCommand::Test(args) => test(context, daemon.as_mut(), &rules, args).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The rules that the daemon goes by; without one, those it would go by.
async fn rules(
    context: &Context,
    daemon: Option<&mut UnixClient>,
) -> Result<Vec<Rule>, CommandError> {
    let inputs = settings::inputs(&context.home);
    match daemon {
        Some(daemon) => {
            let config = serde_json::from_str(&daemon.get_config().await?.config)?;
            config::rules_of_json(&inputs, &config).map_err(CommandError::config)
        }
        None => {
            let store = ConfigStore::open(inputs).map_err(CommandError::config)?;
            Ok(store.current().policy.rules.clone())
        }
    }
}

/// Where a command of a session would run.
struct Place {
    agent: String,
    worker: String,
    isolation: Isolation,
    root: String,
    /// Where the worker has the workspace, when that is a copy of its own.
    copy: Option<String>,
}

async fn test(
    context: &Context,
    daemon: Option<&mut UnixClient>,
    rules: &[Rule],
    args: TestArgs,
) -> Result<(), CommandError> {
    let line = match args.command.as_slice() {
        [line] => line.clone(),
        words => words
            .iter()
            .map(|word| quoted(word))
            .collect::<Vec<_>>()
            .join(" "),
    };
    let place = place(daemon, &args).await?;
    let request = Request {
        tool: "exec",
        agent: &place.agent,
        session: args.session.unwrap_or(0),
        worker: &place.worker,
        subject: Subject::Command {
            line: &line,
            root: &place.root,
            copy: place.copy.as_deref(),
            cwd: &args.cwd,
            isolation: place.isolation,
        },
    };
    let verdict = policy::decide(rules, &request);
    let rule = |decision: &Decision| decision.rule().map(|index| index + 1);
    let report = Report {
        action: verdict.decision.action.as_str(),
        why: verdict.decision.explain(rules),
        rule: rule(&verdict.decision),
        command: line.clone(),
        cwd: args.cwd.clone(),
        agent: place.agent.clone(),
        worker: place.worker.clone(),
        isolation: match place.isolation {
            Isolation::Isolated => "isolated",
            Isolation::Local => "built-in",
            Isolation::Open => "none",
        },
        session: args.session,
        parts: verdict
            .parts
            .iter()
            .map(|decision| PartReport {
                part: decision.part.clone().unwrap_or_default(),
                action: decision.action.as_str(),
                why: decision.explain(rules),
                rule: rule(decision),
            })
            .collect(),
        proposed: policy::propose(rules, &request)
            .map(|proposal| proposal.rules.iter().map(Rule::to_toml).collect())
            .unwrap_or_default(),
    };
    if args.json.json {
        return context.output.json(&report);
    }
    context
        .output
        .line(format!("{}: {}", report.action, report.why))?;
    if report.parts.len() > 1 {
        let mut table = Table::new(&["PART", "ACTION", "WHY"]);
        for part in report.parts {
            table.row([part.part, part.action.to_owned(), part.why]);
        }
        table.print()?;
    }
    for rule in report.proposed {
        context
            .output
            .talk(format!("always allowing it would write {rule}"));
    }
    if place.agent == "shell" {
        context
            .output
            .talk("what you type to `shell` is yours and is not asked about; this is for tools");
    }
    Ok(())
}

async fn place(daemon: Option<&mut UnixClient>, args: &TestArgs) -> Result<Place, CommandError> {
    let mut place = Place {
        agent: args.agent.clone().unwrap_or_else(|| "coder".to_owned()),
        worker: args.worker.clone().unwrap_or_default(),
        isolation: Isolation::Local,
        root: "/workspace".to_owned(),
        copy: None,
    };
    let mut workers: BTreeMap<String, WorkerInfo> = BTreeMap::new();
    let mut online = Vec::new();
    match (daemon, args.session) {
        (None, Some(_)) => {
            return Err(
                CommandError::failed("no daemon is running, so there are no sessions")
                    .hint("start one with `quintet up`, or leave out --session"),
            );
        }
        (None, None) => {}
        (Some(daemon), session) => {
            let listed = daemon.workers().await?.workers;
            let there = listed.iter().filter(|it| it.state == "online");
            online.extend(there.map(|it| it.id.clone()));
            workers.extend(listed.into_iter().map(|it| (it.id.clone(), it)));
            if let Some(id) = session {
                let sessions = daemon.sessions(SessionsMsg::default()).await?.sessions;
                let found = sessions.into_iter().find(|session| session.id == id);
                let session = found.ok_or_else(|| {
                    CommandError::failed(format!("session {id} not found"))
                        .hint("`quintet sessions` lists them")
                })?;
                place.agent = args.agent.clone().unwrap_or(session.agent);
                place.root = session.workspace;
                if args.worker.is_none() {
                    place.worker = session.worker;
                }
            }
        }
    }
    let online = online.iter().map(String::as_str);
    place.worker = session_worker(&place.worker, online);
    let worker = workers.remove(&place.worker).unwrap_or_default();
    place.isolation = Isolation::of_worker(&place.worker, &worker.labels);
    // The built-in worker without isolation works in the folder itself.
    if place.isolation != Isolation::Local {
        let copy = copy_beneath(&worker.copies, Path::new(&place.root));
        place.copy = copy.map(|copy| copy.display().to_string());
    }
    Ok(place)
}

fn row((index, rule): (usize, &Rule)) -> RuleRow {
    let selectors: BTreeMap<&str, &str> = rule.selectors().into_iter().collect();
    let selector = |key: &str| selectors.get(key).map(|value| (*value).to_owned());
    RuleRow {
        rule: index + 1,
        tool: selector("tool"),
        command: selector("command"),
        path: selector("path"),
        agent: selector("agent"),
        worker: selector("worker"),
        session: rule.session,
        action: rule.action.as_str(),
    }
}

fn table(rows: &[RuleRow]) -> Table {
    let mut table = Table::new(&[
        "RULE", "ACTION", "TOOL", "COMMAND", "PATH", "AGENT", "WORKER", "SESSION",
    ]);
    let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "*".to_owned());
    for row in rows {
        table.row([
            row.rule.to_string(),
            row.action.to_owned(),
            shown(&row.tool),
            shown(&row.command),
            shown(&row.path),
            shown(&row.agent),
            shown(&row.worker),
            row.session
                .map_or_else(|| "*".to_owned(), |session| session.to_string()),
        ]);
    }
    table
}
