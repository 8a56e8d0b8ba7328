//! The agent plane against other ways of talking to a child process.
//!
//! "One way" is 200-byte text deltas: ours go through the supervisor into the journal of a real
//! daemon. "Round trip" is a message and its completion, without the journal.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use quintet_agent::{
    AgentId, CgroupUse, InboundMessage, InstanceEvent, InstanceSpec, Observer, ProcessLimits,
    Supervisor, SupervisorOptions, Timings, TurnEnd,
};
use quintet_control::{Client, UnixClient, wire::SendMsg};
use quintet_runtime::config::ConfigInputs;
use quintet_runtime::daemon::{Daemon, DaemonOptions};
use quintet_runtime::home::Home;
use tempfile::TempDir;

use super::Case;
use crate::harness::{Contender, Race};

mod bare;
pub(crate) mod child;

pub(crate) const CASE: Case = Case {
    name: "agent",
    about: "messages/s from an agent one way, and round trips/s",
    races,
};

const DELTAS: u64 = 200_000;
const TRIPS: u64 = 10_000;

fn races() -> anyhow::Result<Vec<Race>> {
    Ok(vec![
        Race {
            variant: "one way, 200 B".to_owned(),
            unit: "messages/s",
            bytes_each: Some(200),
            contenders: vec![
                Contender::new("quintet, into the journal", || {
                    tokio::runtime::Runtime::new()?.block_on(through_the_daemon(DELTAS))
                }),
                Contender::new("Node child-process IPC", || {
                    script("node", "node_ipc.mjs", "flood", DELTAS)
                }),
                Contender::new("Python pipe", || {
                    script("python3", "python_pipe.py", "flood", DELTAS)
                }),
                Contender::new("bare socket, JSON frames", || bare::flood(DELTAS)),
            ],
        },
        Race {
            variant: "round trip".to_owned(),
            unit: "round trips/s",
            bytes_each: None,
            contenders: vec![
                Contender::new("quintet, no journal", || {
                    // On the runtime's own threads, where a daemon runs its turns.
                    let runtime = tokio::runtime::Runtime::new()?;
                    runtime.block_on(runtime.spawn(through_the_supervisor(TRIPS)))?
                }),
                Contender::new("Node child-process IPC", || {
                    script("node", "node_ipc.mjs", "echo", TRIPS)
                }),
                Contender::new("Python pipe", || {
                    script("python3", "python_pipe.py", "echo", TRIPS)
                }),
                Contender::new("bare socket, JSON frames", || bare::echo(TRIPS)),
                Contender::new("bare socket, under tokio", || bare::echo_async(TRIPS)),
            ],
        },
    ])
}

/// Runs a peer's program, which prints its own rate: its start is not what is measured.
fn script(program: &str, file: &str, mode: &str, count: u64) -> anyhow::Result<f64> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("peers")
        .join(file);
    let output = Command::new(program)
        .arg(path)
        .args([mode, &count.to_string()])
        .output()
        .with_context(|| format!("{program} is needed for this peer"))?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

fn own_program() -> anyhow::Result<String> {
    Ok(std::env::current_exe()?.display().to_string())
}

async fn through_the_daemon(count: u64) -> anyhow::Result<f64> {
    let folder = TempDir::new_in(env!("CARGO_MANIFEST_DIR"))?;
    let home = Home::new(folder.path());
    let config = format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n[agents.flood]\ncommand = [{:?}, \"child\", \"agent\"]\n",
        own_program()?
    );
    std::fs::write(home.config_file(), config)?;
    let daemon = Daemon::start(DaemonOptions {
        config: ConfigInputs::new(home.config_file(), jiff::tz::TimeZone::UTC),
        home: home.clone(),
        version: "bench",
        compat_socket: None,
        insecure: false,
        program: PathBuf::from(own_program()?),
        base_env: BTreeMap::new(),
        worker: None,
    })
    .await?;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let talk = async {
        let mut client = UnixClient::connect(home.control_socket()).await?;
        let message = |content: &str| SendMsg {
            agent: "flood".into(),
            content: content.into(),
            ..SendMsg::default()
        };
        client.send(message("1")).await?;
        let started = std::time::Instant::now();
        let answer = client.send(message(&count.to_string())).await?;
        let elapsed = started.elapsed().as_secs_f64();
        // An answer is cut, and says so; the journal holds all of it.
        let text = answer.content.bytes().take_while(|byte| *byte == b'x');
        ensure!(text.count() as u64 == (count * 200).min(15 << 20));
        drop(stop);
        Ok(count as f64 / elapsed)
    };
    let (rate, ()) = tokio::join!(
        talk,
        daemon.run_until(async {
            // The other end is dropped when the work is done.
            let _ = stopped.await;
        })
    );
    rate
}

struct Nobody;

impl Observer for Nobody {
    async fn observe(&self, _: &AgentId, _: Vec<InstanceEvent>) {}
}

async fn through_the_supervisor(count: u64) -> anyhow::Result<f64> {
    let folder = TempDir::new()?;
    let options = SupervisorOptions {
        ledger: folder.path().join("ledger"),
        short_dir: None,
        cgroups: CgroupUse::Never,
    };
    let supervisor = Supervisor::new(options, Arc::new(Nobody))?;
    let handle = supervisor
        .open(InstanceSpec {
            agent_id: "bench".into(),
            agent_type: "bench".to_owned(),
            command: vec![own_program()?, "child".to_owned(), "agent".to_owned()],
            cwd: folder.path().to_owned(),
            env: BTreeMap::new(),
            instance_dir: folder.path().join("bench"),
            workspace: folder.path().to_owned(),
            config: serde_json::Map::new(),
            limits: ProcessLimits::default(),
            timings: Timings::default(),
        })
        .await?;
    let turn = async |id: u64| {
        let end = handle
            .run(InboundMessage::text(format!("m{id}"), "0"))
            .await;
        ensure!(matches!(end, TurnEnd::Completed { .. }), "{end:?}");
        anyhow::Ok(())
    };
    turn(0).await?;
    let started = std::time::Instant::now();
    for id in 0..count {
        turn(id + 1).await?;
    }
    let elapsed = started.elapsed().as_secs_f64();
    supervisor
        .shutdown_all(std::time::Duration::from_secs(5))
        .await;
    Ok(count as f64 / elapsed)
}
