//! Programs that agents or features use.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::Check;

/// A program that can't say its version in this time is as good as none.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn checks() -> Vec<Check> {
    vec![
        program("git", &["--version"], "sudo apt-get install git").await,
        program("python3", &["--version"], "sudo apt-get install python3").await,
    ]
}

async fn program(name: &'static str, arguments: &[&str], fix: &str) -> Check {
    match answers(name, arguments).await {
        Ok(version) => Check::good(name, version),
        Err(error) => Check::bad(name, format!("can't be run: {error}"), fix),
    }
}

/// The first line that a program prints when it succeeds.
pub(super) async fn answers(name: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(name)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output).await??;
    if !output.status.success() {
        return Err(io::Error::other(output.status.to_string()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}
