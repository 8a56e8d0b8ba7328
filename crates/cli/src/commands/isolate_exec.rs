//! `quintet isolate-exec`: the process that a worker confines its commands with.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

/// Confine and start the commands of a worker; workers start this
#[derive(Debug, Args)]
pub(crate) struct IsolateExecArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// What makes this program the helper.
pub(crate) const NAME: &str = "isolate-exec";

/// Must be called before any thread is started: confinement is a thread's.
pub(crate) fn run(args: IsolateExecArgs) -> ExitCode {
    quintet_sandbox::isolate::helper_main(args.arguments)
}
