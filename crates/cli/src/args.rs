//! The command line's global part. The doc comments are the help.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, Parser, ValueEnum};

use crate::commands::Command;

const EXAMPLES: &str = "\
Examples:
  quintet up                            Start the daemon here, in the foreground
  quintet chat                          Talk to the default agent
  quintet send shell 'ls -l'            One message, the answer on stdout
  quintet events --follow --json        Everything that happens, one object a line

Exit codes: 0 done, 1 failed, 2 wrong usage, 64 bad configuration";

/// Run agents on your own machine and talk to them
///
/// `quintet up` is the daemon; every other command asks it. Data goes to stdout, talk to stderr;
/// every listing takes --json.
#[derive(Debug, Parser)]
#[command(name = "quintet", version, after_help = EXAMPLES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct GlobalArgs {
    /// Keep configuration and data in this folder [default: ~/.quintet]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "QUINTET_HOME",
        hide_env_values = true
    )]
    pub(crate) home: Option<PathBuf>,

    /// Say more on stderr; repeat for more
    #[arg(short, long, global = true, action = ArgAction::Count, conflicts_with = "quiet")]
    pub(crate) verbose: u8,

    /// Say less on stderr; twice for nothing but errors that end the command
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) quiet: u8,

    /// Write log lines as `text` or as `json`, one object a line
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        default_value = "text",
        env = "QUINTET_LOG",
        hide_env_values = true,
        hide_possible_values = true
    )]
    pub(crate) log: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The flag of every command that lists or reports.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct JsonArg {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Prints help, version or the mistake in the command line, and says how the process ends.
pub(crate) fn explain(refusal: &clap::Error) -> ExitCode {
    // Nobody is left to tell when the stream is closed.
    let _ = refusal.print();
    match refusal.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => ExitCode::from(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_whole_reference() {
        let mut command = Cli::command();
        // A parent's flags reach its subcommands only when it is built.
        command.build();
        let mut pages = Vec::new();
        collect(&command, &mut pages);
        insta::assert_snapshot!(pages.join("\n"));
    }

    fn collect(command: &clap::Command, pages: &mut Vec<String>) {
        let help = command.clone().term_width(100).render_long_help();
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        pages.push(format!("==== {name} ====\n{help}"));
        for subcommand in command
            .get_subcommands()
            .filter(|subcommand| !subcommand.is_hide_set())
        {
            collect(subcommand, pages);
        }
    }
}
