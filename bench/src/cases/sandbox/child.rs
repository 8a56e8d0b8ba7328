//! What this program does when it is started as a child of a measurement.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use quintet_runtime::config::ConfigInputs;
use quintet_runtime::daemon::{Daemon, DaemonOptions};
use quintet_runtime::home::Home;
use quintet_sandbox::isolate::{self, HelperCommand, IsolationConfig, Limits, Network};
use quintet_sandbox::proto::Protocol;
use quintet_sandbox::worker::{Worker, WorkerConfig, scrub_environment};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

#[derive(Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) server_url: String,
    pub(super) daemon_id: String,
    pub(super) root: PathBuf,
    pub(super) spool: PathBuf,
    pub(super) v1_only: bool,
    pub(super) isolate: bool,
}

/// `worker JSON`, `isolate-exec ...`, `daemon HOME`, or the other end of a bare transfer.
pub(crate) fn run(mut args: impl Iterator<Item = OsString>) -> anyhow::Result<ExitCode> {
    let mode = args.next().context("a mode")?;
    if mode == "isolate-exec" {
        return Ok(isolate::helper_main(args));
    }
    let words: Vec<String> = args
        .map(|word| word.into_string())
        .collect::<Result<_, _>>()
        .map_err(|word| anyhow::anyhow!("{word:?} is not UTF-8"))?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    end_with_the_parent();
    match (mode.to_str(), words.as_slice()) {
        (Some("worker"), [settings]) => worker(serde_json::from_str(settings)?)?,
        (Some("daemon"), [home]) => daemon(Home::new(home))?,
        (Some("files"), [wire, address, root]) => super::files::serve_child(wire, address, root)?,
        _ => bail!("this is for the bench itself"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ends this process when the measurement is gone, however that ended.
fn end_with_the_parent() {
    std::thread::spawn(|| {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    });
}

fn worker(settings: Settings) -> anyhow::Result<()> {
    let Settings {
        server_url,
        daemon_id,
        root,
        spool,
        v1_only,
        isolate,
    } = settings;
    let mut config = WorkerConfig::new(&server_url, &daemon_id, root, spool);
    config.env = scrub_environment(std::env::vars_os());
    if v1_only {
        config.protocols = vec![Protocol::V1];
    }
    if isolate {
        config.isolation = Some(IsolationConfig {
            helper: HelperCommand {
                program: std::env::current_exe()?,
                args: ["child", "sandbox", "isolate-exec"]
                    .map(str::to_owned)
                    .into(),
            },
            confine: true,
            network: Network::On,
            read: Vec::new(),
            write: Vec::new(),
            limits: Limits::default(),
        });
    }
    tokio::runtime::Runtime::new()?.block_on(async {
        let worker = Worker::start(config).await?;
        worker.run(CancellationToken::new()).await;
        Ok(())
    })
}

/// Prints its address and serves until it is killed.
fn daemon(home: Home) -> anyhow::Result<()> {
    std::fs::write(home.config_file(), "[http]\nlisten = \"127.0.0.1:0\"\n")?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let daemon = Daemon::start(DaemonOptions {
            config: ConfigInputs::new(home.config_file(), jiff::tz::TimeZone::UTC),
            home,
            version: "bench",
            compat_socket: None,
            insecure: false,
            program: std::env::current_exe()?,
            base_env: BTreeMap::new(),
            worker: None,
        })
        .await?;
        writeln!(std::io::stdout(), "{}", daemon.run_file().http)?;
        daemon.run_until(std::future::pending()).await;
        Ok(())
    })
}
