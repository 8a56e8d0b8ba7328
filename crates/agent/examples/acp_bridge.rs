//! The bridge as a program of its own: `acp_bridge PROGRAM ARGUMENT...`, started by a supervisor.
#![expect(
    clippy::print_stderr,
    reason = "the supervisor reports what a process printed last"
)]

use std::error::Error;
use std::process::ExitCode;

use quintet_agent::acp;
use quintet_agent::sdk::AgentEnv;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match bridge().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn bridge() -> Result<(), Box<dyn Error>> {
    let env = AgentEnv::from_lookup(|name| std::env::var(name).ok())?;
    Ok(acp::run(env, std::env::args().skip(1).collect()).await?)
}
