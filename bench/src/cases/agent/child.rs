//! What this program does when it is started as a child of a measurement.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::Context as _;
use quintet_agent::InboundMessage;
use quintet_agent::sdk::{self, Agent, AgentEnv, Completion, Turn, TurnError};

use super::bare;
use crate::cases::load::Stamp;

/// `child agent`: under the supervisor. `child bare MODE SOCKET COUNT`: the bare loop's other end.
pub(crate) fn run(words: &[&str]) -> anyhow::Result<()> {
    match words {
        ["agent"] => agent(),
        ["bare", mode, socket, count] => {
            let stream = UnixStream::connect(socket)?;
            match *mode {
                "flood" => bare_flood(stream, count.parse()?),
                "echo" => bare_echo(stream, count.parse()?),
                "echo-async" => one_thread()?.block_on(bare_echo_async(stream, count.parse()?)),
                other => anyhow::bail!("unknown mode {other}"),
            }
        }
        _ => anyhow::bail!("this is for the bench itself"),
    }
}

/// Answers `N` with N deltas of 200 bytes, and `N MILLIS` with N lines, one every so many
/// milliseconds, each with its number and when it was sent.
struct Flood;

impl Agent for Flood {
    async fn on_message(
        &self,
        turn: Turn,
        message: InboundMessage,
    ) -> Result<Completion, TurnError> {
        if let Some((count, millis)) = message.data.text.split_once(' ') {
            let number = |word: &str| word.parse().unwrap_or(1);
            return paced(&turn, number(count), Duration::from_millis(number(millis))).await;
        }
        let count: u64 = message.data.text.parse().unwrap_or(0);
        let text = "x".repeat(200);
        for _ in 0..count {
            turn.text_delta(text.as_str()).await?;
        }
        Ok(Completion::default())
    }
}

async fn paced(turn: &Turn, count: u64, every: Duration) -> Result<Completion, TurnError> {
    let mut ticks = tokio::time::interval(every);
    for number in 0..count {
        ticks.tick().await;
        turn.text_delta(Stamp::now(number).line()).await?;
    }
    Ok(Completion::default())
}

fn agent() -> anyhow::Result<()> {
    let env = AgentEnv::from_lookup(|name| std::env::var(name).ok())
        .context("started by a supervisor")?;
    Ok(one_thread()?.block_on(sdk::run(env, Flood))?)
}

fn one_thread() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

fn bare_flood(mut stream: UnixStream, count: u64) -> anyhow::Result<()> {
    let text = "x".repeat(200);
    for _ in 0..count {
        let delta = serde_json::json!({
            "type": "stream_update", "message_id": "out",
            "element": { "type": "text_delta", "text": text },
        });
        bare::write(&mut stream, &delta)?;
    }
    Ok(stream.flush()?)
}

fn bare_echo(mut stream: UnixStream, count: u64) -> anyhow::Result<()> {
    let mut reader = std::io::BufReader::new(stream.try_clone()?);
    for _ in 0..count {
        let message = bare::read(&mut reader)?;
        let done = serde_json::json!({ "type": "complete", "message_id": message["id"] });
        bare::write(&mut stream, &done)?;
    }
    Ok(())
}

async fn bare_echo_async(stream: UnixStream, count: u64) -> anyhow::Result<()> {
    let mut far = bare::Async::new(stream)?;
    for _ in 0..count {
        let message = far.read().await?;
        let done = serde_json::json!({ "type": "complete", "message_id": message["id"] });
        far.write(&done).await?;
    }
    Ok(())
}
