//! What a connected idle worker costs the daemon in memory.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use futures_util::SinkExt as _;
use quintet_control::{Client as _, UnixClient};
use quintet_framing::ws::{DialledWs, WsDial, WsLimits, dial};
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::Message;

use super::ours::daemon;
use crate::harness::{Contender, Race};

/// Less is better here, and there is nobody to compare with: the goal is a number.
pub(super) fn race(workers: usize) -> Race {
    Race {
        variant: format!("{workers} idle workers"),
        unit: "bytes of the daemon's memory for each",
        bytes_each: None,
        contenders: vec![Contender::new("quintet daemon", move || {
            tokio::runtime::Runtime::new()?.block_on(measure(workers))
        })],
    }
}

async fn measure(workers: usize) -> anyhow::Result<f64> {
    let home = TempDir::new()?;
    let daemon = daemon(home.path())?;
    let url = format!("{}/ws", daemon.said.replacen("http", "ws", 1));
    let mut client = UnixClient::connect(home.path().join("run/quintet.sock")).await?;
    // What is taken once for all workers is taken by the first of them.
    let first = connect(&url, "first").await?;
    online(&mut client, 1).await?;
    let before = resident(daemon.pid())?;
    let mut connections = Vec::with_capacity(workers);
    for number in 0..workers {
        connections.push(connect(&url, &format!("worker-{number}")).await?);
    }
    online(&mut client, workers + 1).await?;
    let after = resident(daemon.pid())?;
    drop((first, connections));
    Ok(after.saturating_sub(before) as f64 / workers as f64)
}

async fn connect(url: &str, id: &str) -> anyhow::Result<DialledWs> {
    let worker = WsDial {
        url,
        protocols: &["sandd.v2", "sandd.v1"],
        token: None,
        tls: None,
    };
    let limits = WsLimits {
        max_message: 64 * 1024,
        read_buffer: 1024,
    };
    let (mut socket, _) = dial(worker, limits).await?;
    let register = serde_json::json!({
        "type": "register", "daemon_id": id,
        "metadata": {
            "hostname": "bench", "platform": "linux", "arch": "x86_64", "version": "1",
            "labels": {"kind": "idle"},
        },
    });
    socket.send(Message::text(register.to_string())).await?;
    socket
        .send(Message::text(r#"{"type":"heartbeat"}"#))
        .await?;
    Ok(socket)
}

pub(in crate::cases) async fn online(client: &mut UnixClient, wanted: usize) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let list = client.workers().await?.workers;
        if list.iter().filter(|it| it.state == "online").count() == wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not all workers came online");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub(in crate::cases) fn resident(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("the kernel tells")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024)
}
