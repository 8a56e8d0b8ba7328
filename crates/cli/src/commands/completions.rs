//! `quintet completions`.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::error::CommandError;

const EXAMPLES: &str = "\
Examples:
  quintet completions bash > ~/.local/share/bash-completion/completions/quintet
  quintet completions fish > ~/.config/fish/completions/quintet.fish";

/// Print a script that completes the commands in your shell
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell to complete in
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> Result<ExitCode, CommandError> {
    // clap_complete panics when it can't write, so it writes to memory first.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "quintet", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
