//! The answering side.

use std::io::{self, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quintet_framing::unix::{self, BindError};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::answers::{self, ChangeLine, ConflictLine, DiffLine, LogLine};
use super::{
    BarrierAnswer, CheckpointLine, DamageLine, ForkAnswer, GcAnswer, Point, Progress, PruneAnswer,
    ReplicaLine, Request, RestoreAnswer, SOCKET, Said, ShowAnswer, SizeAnswer, StatusAnswer,
    VerifyAnswer, WriteBackAnswer,
};
use crate::history::{LogQuery, PrunePolicy};
use crate::master::{DiffEntry, WorkspaceError};
use crate::proto::{ChangeKind, Node, PathError, WorkspacePath};
use crate::replica::{Dial, DialFailed, ReplicaOpError};
use crate::{Connection, Replica, Workspace};

const MAX_REQUEST: u64 = 64 << 10;
const AT_ONCE: usize = 32;
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// What a program has open.
#[derive(Clone, Debug)]
pub enum Open {
    /// A workspace.
    Master(Workspace),
    /// A replica, and the name under which its master knows it.
    Replica(Replica, String),
}

/// A request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The workspace said no.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The replica said no.
    #[error(transparent)]
    Replica(#[from] ReplicaOpError),
    /// A path is none.
    #[error(transparent)]
    Path(#[from] PathError),
    /// It is asked of masters.
    #[error("this folder is a replica; its history is at the master")]
    NeedsMaster,
    /// It is asked of replicas.
    #[error("this folder is a master; only replicas have barriers and conflicts")]
    NeedsReplica,
    /// There is no such checkpoint.
    #[error("there is no checkpoint {0:?}; a state is a sequence, a checkpoint's name, or `now`")]
    NoCheckpoint(String),
    /// The path is in no version.
    #[error("{0} was never there; `quintet workspace log` lists what was")]
    NeverThere(WorkspacePath),
    /// There is nothing to show of a folder.
    #[error("{0} is a folder at sequence {1}, which has no content; name a file in it")]
    Folder(WorkspacePath, u64),
    /// The history is younger.
    #[error("nothing was recorded at or before that time")]
    NothingThen,
}

/// Answers on a state folder's socket until `shutdown` is cancelled. The socket
/// is there when this returns a future's first poll; it is removed at the end.
pub async fn serve(
    open: Open,
    state_dir: PathBuf,
    shutdown: CancellationToken,
) -> Result<(), BindError> {
    let path = state_dir.join(SOCKET);
    let listener = unix::bind(&path).await?;
    let permits = Arc::new(Semaphore::new(AT_ONCE));
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = tasks.join_next(), if !tasks.is_empty() => continue,
            accepted = async {
                let permit = Arc::clone(&permits).acquire_owned().await.ok();
                (permit, listener.accept().await)
            } => accepted,
        };
        let (permit, Ok((stream, _))) = accepted else {
            // Out of descriptors, or the peer is gone already.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let open = open.clone();
        tasks.spawn(async move {
            if let Err(error) = converse(&open, stream).await {
                tracing::debug!(%error, "a question was not answered");
            }
            drop(permit);
        });
    }
    drop(std::fs::remove_file(&path));
    Ok(())
}

async fn converse(open: &Open, stream: UnixStream) -> io::Result<()> {
    if !unix::peer_is_users_own(&stream)? {
        return Ok(());
    }
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    let mut limited = (&mut stream).take(MAX_REQUEST);
    tokio::time::timeout(STUCK_AFTER, limited.read_until(b'\n', &mut line)).await??;
    let stream = stream.into_inner().into_std()?;
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(STUCK_AFTER))?;
    let voice = Voice(Arc::new(Mutex::new(stream)));
    let last = match serde_json::from_slice::<Request>(&line) {
        Ok(request) => {
            let told = voice.clone();
            let progress = move |progress| drop(told.say(&Said::Progress(progress)));
            match answer(open, request, progress, voice.clone()).await {
                Ok(value) => Said::Done(value),
                Err(error) => Said::Failed(error.to_string()),
            }
        }
        Err(error) => Said::Failed(format!("the request was not understood: {error}")),
    };
    tokio::task::spawn_blocking(move || voice.say(&last)).await?
}

/// Writes lines, and content as pieces.
#[derive(Clone)]
struct Voice(Arc<Mutex<BlockingStream>>);

impl Voice {
    fn say(&self, said: &Said) -> io::Result<()> {
        let mut line = serde_json::to_vec(said)?;
        line.push(b'\n');
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write_all(&line)
    }
}

impl Write for Voice {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !bytes.is_empty() {
            self.say(&Said::Bytes(bytes.len() as u64))?;
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .write_all(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Carries out a request in this process. Content goes to `out`.
pub async fn answer(
    open: &Open,
    request: Request,
    progress: impl Fn(Progress) + Send + Sync + 'static,
    out: impl Write + Send + 'static,
) -> Result<Value, Refused> {
    match (open, request) {
        (Open::Master(workspace), Request::Status) => master_status(workspace).await,
        (Open::Replica(replica, _), Request::Status) => replica_status(replica).await,
        (Open::Master(workspace), request) => of_master(workspace, request, progress, out).await,
        (Open::Replica(replica, name), request) => of_replica(replica, name, request, out).await,
    }
}

async fn master_status(workspace: &Workspace) -> Result<Value, Refused> {
    let sizes = workspace.sizes().await?;
    let status = workspace.status().await?;
    let line = |replica: crate::master::ReplicaStatus| ReplicaLine {
        sandbox_id: replica.sandbox_id,
        acked: replica.acked,
        lag: replica.lag,
    };
    Ok(json!(StatusAnswer {
        role: "master".to_owned(),
        sequence: status.sequence,
        files: status.files,
        bytes: status.bytes,
        replicas: status.replicas.into_iter().map(line).collect(),
        pending: status.pending as u64,
        history: Some(SizeAnswer {
            versions: sizes.versions,
            contents: sizes.contents,
            content_bytes: sizes.content_bytes,
            database_bytes: sizes.database_bytes,
            store_bytes: workspace.store_bytes().await?,
            floor: sizes.floor,
        }),
        polling: answers::polling(status.watch),
        problems: answers::problems(status.problems),
        failure: status.failure,
        ..StatusAnswer::default()
    }))
}

async fn replica_status(replica: &Replica) -> Result<Value, Refused> {
    let status = replica.status().await?;
    Ok(json!(StatusAnswer {
        role: "replica".to_owned(),
        sequence: status.sequence,
        files: status.files,
        bytes: status.bytes,
        pending: (status.pending + status.incoming + status.outgoing) as u64,
        connected: Some(status.connected),
        incoming: status.incoming as u64,
        outgoing: status.outgoing as u64,
        conflicts: status.conflicts as u64,
        polling: answers::polling(status.watch),
        problems: answers::problems(status.problems),
        failure: status.failure.or(status.last_failure),
        ..StatusAnswer::default()
    }))
}

async fn of_master(
    workspace: &Workspace,
    request: Request,
    progress: impl Fn(Progress) + Send + Sync + 'static,
    out: impl Write + Send + 'static,
) -> Result<Value, Refused> {
    Ok(match request {
        Request::Log { path, after, limit } => {
            workspace.flush().await?;
            let query = LogQuery {
                path: parse(path)?,
                after,
                limit,
                ..LogQuery::default()
            };
            let log = workspace.log(query).await?;
            json!(log.into_iter().map(LogLine::from).collect::<Vec<_>>())
        }
        Request::Show { path, at } => {
            let sequence = find(workspace, at).await?;
            let path = WorkspacePath::parse(&path)?;
            let node = workspace.show(path.clone(), sequence, out).await?;
            if node.is_directory() {
                return Err(Refused::Folder(path, sequence));
            }
            json!(ShowAnswer {
                sequence,
                hash: node.hash.to_string(),
                size: node.size,
                mode: node.permissions(),
            })
        }
        Request::Diff { from, to, path } => {
            let from = find(workspace, from).await?;
            let to = find(workspace, to).await?;
            let diff = workspace.diff(from, to, parse(path)?).await?;
            json!(diff.into_iter().map(diff_line).collect::<Vec<_>>())
        }
        Request::Restore { to, path, dry_run } => {
            let to = find(workspace, to).await?;
            let before = workspace.flush().await?;
            let path = parse(path)?;
            if let Some(path) = &path {
                let ever = LogQuery {
                    path: Some(path.clone()),
                    limit: Some(1),
                    ..LogQuery::default()
                };
                if workspace.log(ever).await?.is_empty() {
                    return Err(Refused::NeverThere(path.clone()));
                }
            }
            let report = workspace.restore(to, path, dry_run).await?;
            json!(RestoreAnswer {
                to,
                before,
                sequence: report.sequence,
                changes: ChangeLine::all(report.changes),
            })
        }
        Request::Checkpoint { name } => {
            workspace.checkpoint(name.clone()).await?;
            let made = workspace.checkpoints().await?;
            let made = made.into_iter().find(|checkpoint| checkpoint.name == name);
            json!(made.map(CheckpointLine::from))
        }
        Request::Checkpoints => {
            let all = workspace.checkpoints().await?;
            json!(
                all.into_iter()
                    .map(CheckpointLine::from)
                    .collect::<Vec<_>>()
            )
        }
        Request::Fork { dir, state_dir } => {
            let tell = move |done, total| progress(Progress { done, total });
            let report = workspace
                .fork_telling(PathBuf::from(&dir), PathBuf::from(state_dir), tell)
                .await?;
            json!(ForkAnswer {
                dir,
                sequence: report.sequence,
                files: report.files,
            })
        }
        Request::Prune {
            older_than_secs,
            larger_than,
        } => {
            let policy = PrunePolicy {
                older_than: older_than_secs.map(Duration::from_secs),
                larger_than,
            };
            let report = workspace.prune(policy).await?;
            json!(PruneAnswer {
                versions: report.versions,
                contents: report.contents,
                content_bytes: report.content_bytes,
                floor: report.floor,
                kept_bytes: report.kept_bytes,
            })
        }
        Request::Gc { forget } => {
            if let Some(id) = forget {
                workspace.forget(id).await?;
            }
            let report = workspace.gc().await?;
            json!(GcAnswer {
                kept: report.kept,
                kept_bytes: report.kept_bytes,
                removed: report.removed,
                removed_bytes: report.removed_bytes,
            })
        }
        Request::Verify => {
            let tell = move |done, total| progress(Progress { done, total });
            let report = workspace.verify_telling(tell).await?;
            let mut damaged = Vec::new();
            for (hash, reason) in report.damaged {
                damaged.push(DamageLine {
                    hash: hash.to_string(),
                    reason,
                    versions: workspace.versions_with(hash).await?,
                });
            }
            json!(VerifyAnswer {
                contents: report.contents,
                bytes: report.bytes,
                damaged,
            })
        }
        Request::Conflicts => json!([]),
        Request::Status
        | Request::Barrier { .. }
        | Request::WriteBack { .. }
        | Request::ShowConflict { .. }
        | Request::TakeConflict { .. }
        | Request::DropConflict { .. } => return Err(Refused::NeedsReplica),
    })
}

async fn of_replica(
    replica: &Replica,
    name: &str,
    request: Request,
    out: impl Write + Send + 'static,
) -> Result<Value, Refused> {
    Ok(match request {
        Request::Barrier {
            sequence,
            timeout_millis,
        } => {
            let passed = replica
                .barrier_at(sequence, Duration::from_millis(timeout_millis))
                .await?;
            json!(BarrierAnswer {
                sequence: passed.sequence,
                satisfied: passed.satisfied,
            })
        }
        Request::WriteBack { timeout_millis } => {
            let report = replica
                .write_back_and_wait(Duration::from_millis(timeout_millis))
                .await?;
            json!(WriteBackAnswer {
                sequence: report.sequence,
                accepted: report.accepted.len() as u64,
                rejected: report
                    .rejected
                    .into_iter()
                    .map(|(path, _)| path.to_string())
                    .collect(),
            })
        }
        Request::Conflicts => {
            let all = replica.conflicts().await?;
            let line = |conflict| ConflictLine::of(conflict, name);
            json!(all.into_iter().map(line).collect::<Vec<_>>())
        }
        Request::ShowConflict { id } => {
            let all = replica.conflicts().await?;
            let conflict = all.into_iter().find(|conflict| conflict.id == id);
            let conflict = conflict.ok_or(ReplicaOpError::NoConflict { id })?;
            replica.conflict_content(id, out).await?;
            json!(ConflictLine::of(conflict, name))
        }
        Request::TakeConflict { id } => {
            json!(ConflictLine::of(replica.take_conflict(id).await?, name))
        }
        Request::DropConflict { id } => {
            json!(ConflictLine::of(replica.drop_conflict(id).await?, name))
        }
        _ => return Err(Refused::NeedsMaster),
    })
}

fn parse(path: Option<String>) -> Result<Option<WorkspacePath>, PathError> {
    path.map(|path| WorkspacePath::parse(&path)).transpose()
}

async fn find(workspace: &Workspace, point: Point) -> Result<u64, Refused> {
    let now = workspace.flush().await?;
    match point {
        Point::Now => Ok(now),
        Point::Sequence(sequence) => Ok(sequence),
        Point::Checkpoint(name) => {
            let all = workspace.checkpoints().await?;
            all.into_iter()
                .find(|checkpoint| checkpoint.name == name)
                .map(|checkpoint| checkpoint.sequence)
                .ok_or(Refused::NoCheckpoint(name))
        }
        Point::AtMillis(at) => workspace.sequence_at(at).await?.ok_or(Refused::NothingThen),
    }
}

fn diff_line(entry: DiffEntry) -> DiffLine {
    let (old, new) = (entry.old.as_ref(), entry.new.as_ref());
    DiffLine {
        path: entry.path.to_string(),
        change: ChangeKind::between(old, new).name().to_owned(),
        old_size: old.map(|node| node.size),
        new_size: new.map(|node| node.size),
        old_mode: old.map(Node::permissions),
        new_mode: new.map(Node::permissions),
        unified: entry.unified,
    }
}

/// Stands for the master where a replica is opened only to be asked.
#[derive(Clone, Copy, Debug)]
pub struct NotDialled;

#[async_trait]
impl Dial for NotDialled {
    async fn dial(&self) -> Result<Connection, DialFailed> {
        Err(DialFailed("no mirror is running for this folder".into()))
    }
}
