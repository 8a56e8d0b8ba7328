//! A worker's copies of workspaces: one folder and one replica for each, kept for as long as the
//! worker runs, and found again by the next.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quintet_sandbox::proto::frame::{Mirror, Mirrored};
use quintet_sandbox::tls::pinned_client;
use quintet_sandbox::worker::{Mirrors, WorkerConfig};
use quintet_workspace::replica::{
    Dial, DialFailed, ReplicaOpError, ReplicaStatus, UnixDial, WebSocketDial,
};
use quintet_workspace::{Connection, Replica, ReplicaConfig};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// However well it goes on, one step of a command ends after this.
const LONGEST: Duration = Duration::from_secs(30 * 60);

/// The copies of one worker. Dropped, they are no longer followed; their files stay.
pub struct WorkspaceCopies {
    root: PathBuf,
    state: PathBuf,
    worker: String,
    server_url: String,
    tls: Option<Arc<rustls::ClientConfig>>,
    /// Short sections without an await.
    open: Mutex<HashMap<String, Arc<OnceCell<Copy>>>>,
    tasks: TaskTracker,
    stop: DropGuard,
}

struct Copy {
    replica: Replica,
    dir: PathBuf,
    way: Arc<Way>,
}

/// How a copy reaches its master now; a restarted daemon has another token.
struct Way {
    server_url: String,
    tls: Option<Arc<rustls::ClientConfig>>,
    /// Held to read and to replace.
    latest: Mutex<Mirror>,
}

impl std::fmt::Debug for WorkspaceCopies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkspaceCopies")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl WorkspaceCopies {
    /// Copies for a worker, in `workspaces/{id}` beneath its root, where commands can write. What
    /// is known of them is in `state`, out of the commands' reach.
    pub fn of(worker: &WorkerConfig, state: PathBuf) -> Result<Self, rustls::Error> {
        let pin = worker.token.as_ref().and_then(|token| token.fingerprint());
        let tls = match pin {
            Some(fingerprint) => Some(pinned_client(fingerprint)?),
            None => worker.tls.clone(),
        };
        Ok(Self {
            root: worker.root.clone(),
            state,
            worker: worker.daemon_id.clone(),
            server_url: worker.server_url.clone(),
            tls,
            open: Mutex::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new().drop_guard(),
        })
    }

    async fn copy<'c>(
        &self,
        mirror: &Mirror,
        cell: &'c OnceCell<Copy>,
    ) -> Result<&'c Copy, String> {
        let copy = cell.get_or_try_init(|| self.start(mirror)).await?;
        *copy
            .way
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = mirror.clone();
        Ok(copy)
    }

    fn following(&self) -> CancellationToken {
        self.stop.token().clone()
    }

    fn cell(&self, workspace: &str) -> Arc<OnceCell<Copy>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.entry(workspace.to_owned()).or_default().clone()
    }

    async fn start(&self, mirror: &Mirror) -> Result<Copy, String> {
        let id = &mirror.workspace;
        if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("{id:?} is no workspace's id"));
        }
        let dir = self.root.join("workspaces").join(id);
        let config = ReplicaConfig::new(&dir, self.state.join(id), &self.worker);
        let opened = tokio::task::spawn_blocking(move || Replica::open(&config)).await;
        let (replica, runner) = opened
            .map_err(|_| "the worker stops".to_owned())?
            .map_err(|error| format!("the copy in {} can't be used: {error}", dir.display()))?;
        let way = Arc::new(Way {
            server_url: self.server_url.clone(),
            tls: self.tls.clone(),
            latest: Mutex::new(mirror.clone()),
        });
        let running = runner.run(Latest(way.clone()), self.following());
        self.tasks.spawn(async move {
            if let Err(error) = running.await {
                tracing::warn!(%error, "a copy of a workspace is not followed any more");
            }
        });
        Ok(Copy { replica, dir, way })
    }
}

#[async_trait]
impl Mirrors for WorkspaceCopies {
    async fn enter(&self, mirror: &Mirror) -> Result<(PathBuf, u64), String> {
        let cell = self.cell(&mirror.workspace);
        let copy = self.copy(mirror, &cell).await?;
        let passed = while_it_moves(copy, mirror, |patience| copy.replica.barrier(patience)).await;
        match passed {
            Ok(passed) => Ok((copy.dir.clone(), passed.sequence)),
            Err(Stuck::Silent(status, after)) => Err(behind(&status, after)),
            Err(Stuck::Failed(error)) => Err(format!("the workspace's copy failed: {error}")),
        }
    }

    async fn leave(&self, mirror: &Mirror, before: u64) -> Mirrored {
        let cell = self.cell(&mirror.workspace);
        let mut mirrored = Mirrored {
            before,
            after: before,
            ..Mirrored::default()
        };
        let copy = match self.copy(mirror, &cell).await {
            Ok(copy) => copy,
            Err(error) => {
                mirrored.behind = Some(error);
                return mirrored;
            }
        };
        let written = while_it_moves(copy, mirror, |patience| {
            copy.replica.write_back_and_wait(patience)
        });
        match written.await {
            Ok(report) => {
                mirrored.after = report.sequence.max(before);
                let refused = report.rejected.into_iter();
                mirrored.refused = refused
                    .map(|(path, why)| format!("{path}: {why}"))
                    .collect();
            }
            Err(Stuck::Silent(status, after)) => {
                mirrored.behind = Some(unwritten(&status, after));
            }
            Err(Stuck::Failed(error)) => {
                mirrored.behind = Some(format!("the workspace's copy failed: {error}"));
            }
        }
        mirrored
    }
}

/// Why a step did not end well.
enum Stuck {
    /// Nothing moved for so long.
    Silent(Box<ReplicaStatus>, Duration),
    Failed(ReplicaOpError),
}

/// Repeats a step for as long as the copy gets nearer to its master; a large first copy takes its
/// time, a master that is out of reach does not get more than the mirror's wait.
async fn while_it_moves<T, F>(
    copy: &Copy,
    mirror: &Mirror,
    step: impl Fn(Duration) -> F,
) -> Result<T, Stuck>
where
    F: Future<Output = Result<T, ReplicaOpError>>,
{
    let patience = Duration::from_millis(mirror.wait_ms);
    let begun = Instant::now();
    let mut seen = None;
    loop {
        match step(patience).await {
            Ok(done) => return Ok(done),
            Err(ReplicaOpError::Timeout(_)) => {}
            Err(error) => return Err(Stuck::Failed(error)),
        }
        let status = copy.replica.status().await.map_err(Stuck::Failed)?;
        let place = (
            status.sequence,
            status.incoming,
            status.outgoing,
            status.bytes,
        );
        let moved = seen.replace(place).is_some_and(|before| before != place);
        let first = begun.elapsed() < patience * 2 && status.connected && status.incoming > 0;
        if !(moved || first) || !status.connected || begun.elapsed() > LONGEST {
            return Err(Stuck::Silent(Box::new(status), begun.elapsed()));
        }
    }
}

fn behind(status: &ReplicaStatus, after: Duration) -> String {
    let after = after.as_secs();
    match (&status.failure, status.connected) {
        (Some(failure), _) => format!("the copy on the worker can't be written: {failure}"),
        (None, true) => format!(
            "the worker is {} files behind after {after} s",
            status.incoming
        ),
        (None, false) => format!(
            "the worker does not reach the workspace after {after} s: {}",
            status
                .last_failure
                .as_deref()
                .unwrap_or("no connection yet")
        ),
    }
}

fn unwritten(status: &ReplicaStatus, after: Duration) -> String {
    let after = after.as_secs();
    let reach = match status.connected {
        true => "",
        false => "; it is out of reach and they follow when it is back",
    };
    format!(
        "{} changes of the command are not at the host after {after} s{reach}",
        status.outgoing + status.pending
    )
}

/// Dials as the last command said.
struct Latest(Arc<Way>);

#[async_trait]
impl Dial for Latest {
    async fn dial(&self) -> Result<Connection, DialFailed> {
        let way = &self.0;
        let mirror = way
            .latest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(path) = mirror.socket {
            let path = PathBuf::from(path);
            return UnixDial { path }.dial().await;
        }
        let base = way
            .server_url
            .strip_suffix("/ws")
            .unwrap_or(&way.server_url);
        let dial = WebSocketDial {
            url: format!("{base}/workspaces/{}", mirror.workspace),
            token: Some(mirror.token),
            tls: way.tls.clone(),
        };
        dial.dial().await
    }
}
