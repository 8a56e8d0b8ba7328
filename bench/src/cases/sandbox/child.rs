//! What this program does when it is started as a child of a measurement.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use quintet_runtime::WorkspaceCopies;
use quintet_runtime::config::ConfigInputs;
use quintet_runtime::daemon::{Daemon, DaemonOptions};
use quintet_runtime::home::Home;
use quintet_sandbox::isolate::{self, HelperCommand, IsolationConfig, Limits, Network};
use quintet_sandbox::proto::Protocol;
use quintet_sandbox::worker::{Worker, WorkerConfig, scrub_environment};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

#[derive(Serialize, Deserialize)]
pub(in crate::cases) struct Settings {
    pub(in crate::cases) server_url: String,
    pub(in crate::cases) daemon_id: String,
    pub(in crate::cases) root: PathBuf,
    pub(in crate::cases) spool: PathBuf,
    pub(in crate::cases) v1_only: bool,
    pub(in crate::cases) isolate: bool,
    /// Where it keeps what it knows of its copies of workspaces, if it has any.
    pub(in crate::cases) copies: Option<PathBuf>,
}

/// `worker JSON`, `workers COUNT URL FOLDER`, `isolate-exec ...`, `daemon HOME`, or the other end of a bare transfer.
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
        (Some("workers"), [count, url, folder]) => {
            workers(count.parse()?, url, Path::new(folder))?;
        }
        (Some("daemon"), [home]) => daemon(Home::new(home))?,
        (Some("files"), [wire, address, root]) => super::files::serve_child(wire, address, root)?,
        (Some("relay"), [work, address]) => super::relay::serve_child(work, address)?,
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
        copies,
    } = settings;
    let mut config = WorkerConfig::new(&server_url, &daemon_id, root, spool);
    config.env = scrub_environment(std::env::vars_os());
    if let Some(state) = copies {
        config.mirrors = Some(Arc::new(WorkspaceCopies::of(&config, state)?));
    }
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
            temp: "/tmp".into(),
            limits: Limits::default(),
        });
    }
    tokio::runtime::Runtime::new()?.block_on(async {
        let worker = Worker::start(config).await?;
        worker.run(CancellationToken::new()).await?;
        Ok(())
    })
}

/// Many workers in one process, `worker-0` and so on; the first has copies of workspaces.
fn workers(count: usize, server_url: &str, folder: &Path) -> anyhow::Result<()> {
    // A worker has a thread of its own, and each of its commands one while it is started.
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().max_blocking_threads(2 * count + 64);
    runtime.build()?.block_on(async {
        let mut running = JoinSet::new();
        for number in 0..count {
            let at = |what: &str| folder.join(format!("{what}-{number}"));
            std::fs::create_dir(at("root"))?;
            let id = format!("worker-{number}");
            let mut config = WorkerConfig::new(server_url, &id, at("root"), at("spool"));
            config.env = scrub_environment(std::env::vars_os());
            if number == 0 {
                config.mirrors = Some(Arc::new(WorkspaceCopies::of(&config, at("copies"))?));
            }
            let worker = Worker::start(config).await?;
            running.spawn(worker.run(CancellationToken::new()));
        }
        running.join_all().await;
        Ok(())
    })
}

/// Prints its address and serves until it is killed.
fn daemon(home: Home) -> anyhow::Result<()> {
    let program = std::env::current_exe()?;
    // An agent that answers nothing: a message to it makes a session.
    let config = format!(
        "[http]\nlisten = \"127.0.0.1:0\"\n[agents.quiet]\ncommand = [{:?}, \"child\", \"agent\"]\n",
        program.to_str().context("a program in UTF-8")?
    );
    std::fs::write(home.config_file(), config)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let daemon = Daemon::start(DaemonOptions {
            config: ConfigInputs::new(home.config_file(), jiff::tz::TimeZone::UTC),
            home,
            version: "bench",
            compat_socket: None,
            insecure: false,
            program,
            base_env: BTreeMap::new(),
            worker: None,
        })
        .await?;
        writeln!(std::io::stdout(), "{}", daemon.run_file().http)?;
        daemon.run_until(std::future::pending()).await;
        Ok(())
    })
}
