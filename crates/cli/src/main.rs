//! The `quintet` program: the daemon, and everything a person asks of it from a terminal.
//!
//! This is the only crate that reads the environment, finds the home folder and touches the
//! terminal. `commands` has one file a command; `chat` is the terminal conversation.

mod args;
mod chat;
mod commands;
mod connect;
mod error;
mod feeder;
mod home;
mod logging;
mod output;
mod remote;
mod settings;
mod turn;
mod typist;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(refusal) => return args::explain(&refusal),
    };
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => error.report(),
    }
}
