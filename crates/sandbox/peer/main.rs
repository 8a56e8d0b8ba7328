//! The worker and the isolation helper as programs, for tests that limit, kill or confine a
//! process of its own.
//!
//! `sandbox-peer worker JSON` works until it is killed; `sandbox-peer isolate-exec ...` is the
//! helper.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use quintet_sandbox::isolate::{self, HelperCommand, IsolationConfig, Limits, Network};
use quintet_sandbox::proto::Protocol;
use quintet_sandbox::worker::{Worker, WorkerConfig, scrub_environment};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

#[derive(Deserialize)]
struct Settings {
    server_url: String,
    daemon_id: String,
    root: PathBuf,
    spool: PathBuf,
    #[serde(default)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    v1_only: bool,
    #[serde(default)]
    isolate: bool,
}

fn main() -> ExitCode {
    let mut args = std::env::args_os().skip(1);
    match args.next().as_ref().and_then(|arg| arg.to_str()) {
        Some("isolate-exec") => isolate::helper_main(args),
        Some("worker") => {
            let settings = args
                .next()
                .and_then(|arg| serde_json::from_slice(arg.as_encoded_bytes()).ok());
            settings.map_or(ExitCode::from(2), work)
        }
        _ => ExitCode::from(2),
    }
}

fn work(settings: Settings) -> ExitCode {
    let Settings {
        server_url,
        daemon_id,
        root,
        spool,
        labels,
        v1_only,
        isolate,
    } = settings;
    let mut config = WorkerConfig::new(&server_url, &daemon_id, root, spool);
    config.env = scrub_environment(std::env::vars_os());
    config.labels = labels;
    config.backoff.base = std::time::Duration::from_millis(50);
    if v1_only {
        config.protocols = vec![Protocol::V1];
    }
    if isolate {
        let Ok(program) = std::env::current_exe() else {
            return ExitCode::FAILURE;
        };
        config.isolation = Some(IsolationConfig {
            helper: HelperCommand {
                program,
                args: vec!["isolate-exec".to_owned()],
            },
            confine: true,
            network: Network::On,
            read: Vec::new(),
            write: Vec::new(),
            temp: "/tmp".into(),
            limits: Limits::default(),
        });
    }
    let Ok(runtime) = tokio::runtime::Runtime::new() else {
        return ExitCode::FAILURE;
    };
    runtime.block_on(async {
        match Worker::start(config).await {
            Ok(worker) => match worker.run(CancellationToken::new()).await {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            },
            Err(_) => ExitCode::FAILURE,
        }
    })
}
