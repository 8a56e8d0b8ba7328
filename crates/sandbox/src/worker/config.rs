//! What a worker is told at its start.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quintet_framing::backoff::BackoffPolicy;

use crate::isolate::IsolationConfig;
use crate::proto::frame::{Mirror, Mirrored};
use crate::proto::{Protocol, Pulse, SnapshotReply, SnapshotRequest, Token};

/// Variables of the worker's own environment that commands see; everything else, keys above all,
/// stays out. Names that start with `LC_` are also kept.
pub const KEPT_VARIABLES: &[&str] = &[
    "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM",
];

/// Keeps of an environment what commands may see.
pub fn scrub_environment(
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Vec<(OsString, OsString)> {
    let kept = |name: &OsStr| {
        KEPT_VARIABLES.iter().any(|kept| *kept == name)
            || name.to_str().is_some_and(|name| name.starts_with("LC_"))
    };
    variables
        .into_iter()
        .filter(|(name, _)| kept(name))
        .collect()
}

/// How long what nobody came back for is kept.
pub(crate) const KEEP: Duration = Duration::from_secs(24 * 60 * 60);

/// A worker's limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quotas {
    /// Commands at once; one more is refused.
    pub commands: usize,
    /// Shells at once; one more is refused.
    pub shells: usize,
    /// Uploads and downloads at once; one more is refused.
    pub transfers: usize,
    /// Bytes of output on disk, for all commands and shells together.
    pub spool_bytes: u64,
    /// How long the result and the output of a command that nobody came back for are kept.
    pub keep: Duration,
    /// Bytes of the largest file that may be uploaded.
    pub upload_bytes: u64,
    /// A transfer on which the hub has not moved for so long is given up.
    pub transfer_idle: Duration,
}

impl Default for Quotas {
    fn default() -> Self {
        Self {
            commands: 256,
            shells: 64,
            transfers: 64,
            spool_bytes: 1 << 30,
            keep: KEEP,
            upload_bytes: u64::MAX,
            transfer_idle: Duration::from_secs(300),
        }
    }
}

/// Answers the released programs' snapshot requests, from the workspace's history.
#[async_trait]
pub trait Snapshots: Send + Sync + std::fmt::Debug {
    /// Answers one request. Called concurrently; a failure is [`SnapshotReply::Error`].
    async fn answer(&self, request: SnapshotRequest) -> SnapshotReply;
}

/// Copies of workspaces that commands run in.
#[async_trait]
pub trait Mirrors: Send + Sync + std::fmt::Debug {
    /// The folder that the copies are in, as commands see it.
    fn folder(&self) -> PathBuf;

    /// Makes the copy hold every write that ended at the master before this call. Answers with its
    /// folder, beneath the worker's root, and the master's sequence that it then holds; or with why
    /// not, in words that name the step. Takes at most the mirror's `wait_ms`.
    async fn enter(&self, mirror: &Mirror) -> Result<(PathBuf, u64), String>;

    /// Waits until the master has everything that was written in the copy before this call, at
    /// most the mirror's `wait_ms`. `before` is what [`enter`](Self::enter) answered.
    async fn leave(&self, mirror: &Mirror, before: u64) -> Mirrored;
}

/// Everything a worker needs to know.
#[derive(Debug, Clone)]
pub struct WorkerConfig {
    /// `ws://` or `wss://`, with the path `/ws`.
    pub server_url: String,
    /// The name it registers under.
    pub daemon_id: String,
    /// Needed unless the hub is on this machine and of the same user.
    pub token: Option<Token>,
    /// How to check a `wss` hub's certificate when the token does not name it.
    pub tls: Option<Arc<rustls::ClientConfig>>,
    /// What it is selected by.
    pub labels: BTreeMap<String, String>,
    /// The version it reports.
    pub version: String,
    /// Beneath which files are transferred and where commands start. Must exist.
    pub root: PathBuf,
    /// For output that outlives its connection; this worker's alone, created if it is missing.
    pub spool_dir: PathBuf,
    /// What commands see beside their own variables; see [`scrub_environment`].
    pub env: Vec<(OsString, OsString)>,
    /// The user's shell, bash or sh where it is absent.
    pub shell: Option<PathBuf>,
    /// Confinement and limits of what it runs.
    pub isolation: Option<IsolationConfig>,
    /// Its own limits.
    pub quotas: Quotas,
    /// Heartbeats.
    pub pulse: Pulse,
    /// Reconnection.
    pub backoff: BackoffPolicy,
    /// Versions to offer, the preferred one first.
    pub protocols: Vec<Protocol>,
    /// Snapshots, where a workspace with a history is attached.
    pub snapshots: Option<Arc<dyn Snapshots>>,
    /// Copies of workspaces; without it a command in one is refused.
    pub mirrors: Option<Arc<dyn Mirrors>>,
}

impl WorkerConfig {
    /// The defaults for everything that has one.
    pub fn new(server_url: &str, daemon_id: &str, root: PathBuf, spool_dir: PathBuf) -> Self {
        Self {
            server_url: server_url.to_owned(),
            daemon_id: daemon_id.to_owned(),
            token: None,
            tls: None,
            labels: BTreeMap::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            root,
            spool_dir,
            env: Vec::new(),
            shell: None,
            isolation: None,
            quotas: Quotas::default(),
            pulse: Pulse::default(),
            backoff: BackoffPolicy::default(),
            protocols: vec![Protocol::V2, Protocol::V1],
            snapshots: None,
            mirrors: None,
        }
    }
}
