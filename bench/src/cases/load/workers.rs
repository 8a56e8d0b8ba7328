//! Workers in a process of their own, and commands for each of them in turn.

use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::StreamExt as _;
use quintet_control::wire::ExecMsg;
use quintet_control::wire::command_ended::Outcome;
use quintet_control::wire::command_event::Event;
use quintet_control::{Client as _, UnixClient};
use tokio::task::JoinSet;

use super::super::sandbox::memory::online;
use super::super::sandbox::ours::Program;
use super::Bed;
use super::tally::Latency;

/// Connections that ask for commands, and how often each does.
pub(super) const ASKERS: usize = 10;
pub(super) const EVERY: Duration = Duration::from_millis(500);

pub(super) async fn start(bed: &Bed, folder: &Path) -> anyhow::Result<Program> {
    std::fs::create_dir(folder)?;
    let folder = folder.to_str().context("a folder in UTF-8")?;
    let words = ["workers", &bed.size.workers.to_string(), &bed.url, folder];
    let workers = Program::start(&words, false)?;
    online(&mut bed.client().await?, bed.size.workers).await?;
    Ok(workers)
}

/// Fails unless none was lost.
pub(super) async fn are_online(bed: &Bed) -> anyhow::Result<()> {
    let list = bed.client().await?.workers().await?.workers;
    let away: Vec<&str> = list
        .iter()
        .filter(|worker| worker.state != "online")
        .map(|worker| worker.id.as_str())
        .collect();
    let (known, all) = (list.len(), bed.size.workers);
    ensure!(known == all, "{known} of {all} workers are known");
    ensure!(away.is_empty(), "workers are not online: {away:?}");
    Ok(())
}

pub(super) fn work(bed: &Bed, tasks: &mut JoinSet<anyhow::Result<()>>) {
    for asker in 0..ASKERS {
        tasks.spawn(ask(bed.clone(), asker));
    }
}

/// Commands on every worker in turn, this asker's share of them.
async fn ask(bed: Bed, asker: usize) -> anyhow::Result<()> {
    let mut client = bed.client().await?;
    tokio::time::sleep(EVERY.mul_f64(asker as f64 / ASKERS as f64)).await;
    let mut ticks = tokio::time::interval(EVERY);
    let mut number = asker;
    while bed.tick(&mut ticks).await {
        let worker = format!("worker-{}", number % bed.size.workers);
        let asked = Instant::now();
        echo(&mut client, &worker, number)
            .await
            .with_context(|| format!("a command on {worker}"))?;
        bed.tally.took(Latency::Exec, asked.elapsed());
        number += ASKERS;
    }
    Ok(())
}

/// Has a worker say a number.
async fn echo(client: &mut UnixClient, worker: &str, number: usize) -> anyhow::Result<()> {
    let request = ExecMsg {
        worker: worker.to_owned(),
        command: format!("echo {number}"),
        ..ExecMsg::default()
    };
    let mut events = pin!(client.exec(request));
    let (mut said, mut outcome) = (Vec::new(), None);
    while let Some(event) = events.next().await {
        match event?.event {
            Some(Event::Stdout(bytes)) => said.extend_from_slice(&bytes),
            Some(Event::Ended(ended)) => outcome = ended.outcome,
            _ => {}
        }
    }
    ensure!(outcome == Some(Outcome::Exited(0)), "{outcome:?}");
    let said = String::from_utf8_lossy(&said);
    ensure!(said == format!("{number}\n"), "{said:?} is not {number}");
    Ok(())
}
