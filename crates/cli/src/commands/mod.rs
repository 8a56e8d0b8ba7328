//! The commands, one file each.

mod agent;
mod agent_run;
mod agents;
mod approvals;
mod approve;
mod asks;
mod cancel;
pub(crate) mod chat;
mod compact;
mod completions;
mod config;
mod cp;
mod cron;
mod deny;
mod devices;
mod doctor;
mod events;
mod exec;
mod isolate_exec;
mod jobs;
mod journal;
mod kill;
mod man;
pub(crate) mod pair;
mod ping;
mod policy;
mod providers;
mod queue;
mod reload;
mod reply;
mod retry;
pub(crate) mod send;
mod session;
mod sessions;
mod shell;
mod stats;
mod status;
mod steer;
mod token;
mod undo;
mod up;
mod worker;
mod workers;
mod workspace;

use std::future::Future;
use std::process::ExitCode;

use clap::Subcommand;
use quintet_runtime::home::Home;

use crate::args::{Cli, GlobalArgs};
use crate::error::CommandError;
use crate::logging::{self, Talkative};
use crate::output::Output;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Up(up::UpArgs),
    Worker(worker::WorkerArgs),
    #[command(subcommand)]
    Workspace(workspace::WorkspaceCommand),
    #[command(flatten)]
    Ask(AskCommand),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
    #[command(subcommand, hide = true)]
    AgentRun(agent_run::AgentRunCommand),
    #[command(hide = true)]
    IsolateExec(isolate_exec::IsolateExecArgs),
}

/// The commands that look at the machine or ask the daemon, and end.
#[derive(Debug, Subcommand)]
pub(crate) enum AskCommand {
    Status(status::StatusArgs),
    Doctor(doctor::DoctorArgs),
    Send(send::SendArgs),
    Chat(chat::ChatArgs),
    Sessions(sessions::SessionsArgs),
    #[command(subcommand)]
    Session(session::SessionCommand),
    Kill(kill::KillArgs),
    Steer(steer::SteerArgs),
    Cancel(cancel::CancelArgs),
    Retry(retry::RetryArgs),
    Asks(asks::AsksArgs),
    Reply(reply::ReplyArgs),
    Approvals(approvals::ApprovalsArgs),
    Approve(approve::ApproveArgs),
    Deny(deny::DenyArgs),
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    Compact(compact::CompactArgs),
    #[command(subcommand)]
    Queue(queue::QueueCommand),
    Events(events::EventsArgs),
    #[command(subcommand)]
    Journal(journal::JournalCommand),
    Agents(agents::AgentsArgs),
    #[command(subcommand)]
    Agent(agent::AgentCommand),
    #[command(subcommand)]
    Cron(cron::CronCommand),
    #[command(subcommand)]
    Config(config::ConfigCommand),
    Workers(workers::WorkersArgs),
    Jobs(jobs::JobsArgs),
    Exec(exec::ExecArgs),
    Undo(undo::UndoArgs),
    Shell(shell::ShellArgs),
    Cp(cp::CpArgs),
    #[command(subcommand)]
    Token(token::TokenCommand),
    Pair(pair::PairArgs),
    Devices(devices::DevicesArgs),
    Reload(reload::ReloadArgs),
    Stats(stats::StatsArgs),
    Ping(ping::PingArgs),
}

/// What every command is given.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) home: Home,
    pub(crate) output: Output,
}

/// Runs the command that was asked for.
pub(crate) fn run(cli: Cli) -> Result<ExitCode, CommandError> {
    let Cli { global, command } = cli;
    logging::start(
        &global,
        match command {
            Command::Up(_) => Talkative::Daemon,
            _ => Talkative::Command,
        },
    );
    match command {
        Command::Up(args) => many_threads(up::run(&context(&global)?, &args)),
        Command::Worker(args) => many_threads(worker::run(&context(&global)?, args)),
        Command::Workspace(command) => many_threads(workspace::run(&context(&global)?, command)),
        Command::Ask(command) => one_thread(ask(&context(&global)?, command)),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        // An agent's process has its world in its environment, and perhaps no home folder.
        Command::AgentRun(command) => one_thread(agent_run::run(command)),
        Command::IsolateExec(args) => Ok(isolate_exec::run(args)),
    }
}

async fn ask(context: &Context, command: AskCommand) -> Result<ExitCode, CommandError> {
    match command {
        AskCommand::Status(args) => status::run(context, &args).await,
        AskCommand::Doctor(args) => doctor::run(context, &args).await,
        AskCommand::Send(args) => send::run(context, args).await,
        AskCommand::Chat(args) => chat::run(context, args).await,
        AskCommand::Sessions(args) => sessions::run(context, &args).await,
        AskCommand::Session(command) => session::run(context, command).await,
        AskCommand::Kill(args) => kill::run(context, &args).await,
        AskCommand::Steer(args) => steer::run(context, args).await,
        AskCommand::Cancel(args) => cancel::run(context, &args).await,
        AskCommand::Retry(args) => retry::run(context, &args).await,
        AskCommand::Asks(args) => asks::run(context, &args).await,
        AskCommand::Reply(args) => reply::run(context, args).await,
        AskCommand::Approvals(args) => approvals::run(context, &args).await,
        AskCommand::Approve(args) => approve::run(context, args).await,
        AskCommand::Deny(args) => deny::run(context, args).await,
        AskCommand::Policy(command) => policy::run(context, command).await,
        AskCommand::Compact(args) => compact::run(context, &args).await,
        AskCommand::Queue(command) => queue::run(context, command).await,
        AskCommand::Events(args) => events::run(context, &args).await,
        AskCommand::Journal(command) => journal::run(context, command).await,
        AskCommand::Agents(args) => agents::run(context, &args).await,
        AskCommand::Agent(command) => agent::run(context, command).await,
        AskCommand::Cron(command) => cron::run(context, command).await,
        AskCommand::Config(command) => config::run(context, command).await,
        AskCommand::Workers(args) => workers::run(context, &args).await,
        AskCommand::Jobs(args) => jobs::run(context, args).await,
        AskCommand::Exec(args) => exec::run(context, args).await,
        AskCommand::Undo(args) => undo::run(context, &args).await,
        AskCommand::Shell(args) => shell::run(context, args).await,
        AskCommand::Cp(args) => cp::run(context, args).await,
        AskCommand::Token(command) => token::run(context, command).await,
        AskCommand::Pair(args) => pair::run(context, &args).await,
        AskCommand::Devices(args) => devices::run(context, args).await,
        AskCommand::Reload(args) => reload::run(context, &args).await,
        AskCommand::Stats(args) => stats::run(context, &args).await,
        AskCommand::Ping(args) => ping::run(context, &args).await,
    }
}

/// `KEY=VALUE` of the command line.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not KEY=VALUE")),
    }
}

fn context(global: &GlobalArgs) -> Result<Context, CommandError> {
    Ok(Context {
        home: Home::new(crate::home::find(global.home.as_deref())?),
        output: Output::new(global.quiet > 0),
    })
}

fn one_thread(
    command: impl Future<Output = Result<ExitCode, CommandError>>,
) -> Result<ExitCode, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(command);
    // A read of the terminal that nobody waits for any more must not hold up the end.
    runtime.shutdown_background();
    result
}

fn many_threads(
    command: impl Future<Output = Result<ExitCode, CommandError>>,
) -> Result<ExitCode, CommandError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let result = runtime.block_on(command);
    runtime.shutdown_background();
    result
}
