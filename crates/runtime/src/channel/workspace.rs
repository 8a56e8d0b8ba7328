//! Files of a session at any version, for a v2 device.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::Request;
use quintet_workspace::Workspace;
use quintet_workspace::history::LogQuery;
use quintet_workspace::master::{DiffEntry, WorkspaceError};
use quintet_workspace::proto::{Kind, WorkspacePath};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::op_error;
use super::ops::{Answer, args};
use crate::daemon::Runtime;
use crate::refusal::Refusal;
use crate::sessions;
use crate::workspaces::Master;

/// The most of a file that is shown; a download has all of it.
const SHOWN: usize = 512 * 1024;

/// A difference longer than this is cut, and all of them together are.
const DIFF_EACH: usize = 128 * 1024;
const DIFF_ALL: usize = 640 * 1024;

/// Lines of the log at the most.
const MAX_LOG: u32 = 1000;

/// Pieces of a download that wait for the socket.
const PIECES: usize = 4;

/// The requests of this family.
pub(super) async fn serve(runtime: &Runtime, request: &Request) -> Answer {
    match request.op.as_str() {
        "workspace.tree" => tree(runtime, &request.args).await,
        "workspace.file" => file(runtime, &request.args).await,
        "workspace.log" => log(runtime, &request.args).await,
        "workspace.diff" => diff(runtime, &request.args).await,
        "workspace.restore" => restore(runtime, &request.args).await,
        "workspace.download" => download(runtime, request).await,
        op => Err(OpError::new(
            "unknown_op",
            format!("this daemon does not know {op:?}"),
        )),
    }
}

/// The workspace of a session, closed ones included: their past stays readable.
async fn opened(runtime: &Runtime, session: u64) -> Result<Arc<Master>, OpError> {
    let found = runtime
        .db
        .read(move |db| sessions::find(db, session)?.ok_or_else(|| Refusal::no_session(session)))
        .await
        .map_err(|refusal| op_error(&refusal))?;
    let master = runtime.workspaces.of(Path::new(&found.workspace)).await;
    master.map_err(|refusal| op_error(&refusal))
}

fn failed(error: &WorkspaceError) -> OpError {
    let code = match error {
        WorkspaceError::NoSuchVersion { .. } => "not_found",
        _ => "bad_request",
    };
    OpError::new(code, error.to_string())
}

fn parsed(path: &str) -> Result<WorkspacePath, OpError> {
    WorkspacePath::parse(path)
        .map_err(|error| OpError::new("bad_request", format!("{path:?}: {error}")))
}

/// A path below the root; the root itself is none.
fn below_root(path: Option<&str>) -> Result<Option<WorkspacePath>, OpError> {
    match path.unwrap_or_default().trim_matches('/') {
        "" | "." => Ok(None),
        path => parsed(path).map(Some),
    }
}

/// The version that is asked for; without one, everything that is on the disk now.
async fn version(workspace: &Workspace, at: Option<u64>) -> Result<u64, OpError> {
    match at {
        Some(at) => Ok(at),
        None => workspace.flush().await.map_err(|error| failed(&error)),
    }
}

#[derive(Deserialize)]
struct At {
    session: u64,
    #[serde(default)]
    path: String,
    at: Option<u64>,
}

async fn tree(runtime: &Runtime, given: &Value) -> Answer {
    let At { session, path, at } = args(given)?;
    let folder = below_root(Some(&path))?;
    let master = opened(runtime, session).await?;
    let sequence = version(&master.workspace, at).await?;
    let children = master
        .workspace
        .list(folder, sequence)
        .await
        .map_err(|error| failed(&error))?;
    let entries: Vec<Value> = children
        .into_iter()
        .map(|child| {
            json!({
                "name": child.name,
                "kind": match child.node.kind {
                    Kind::File => "file",
                    Kind::Directory => "dir",
                    Kind::Symlink => "link",
                },
                "size": child.node.size,
                "mode": child.node.mode,
                "changed_seq": child.sequence,
            })
        })
        .collect();
    Ok(json!({ "sequence": sequence, "entries": entries }))
}

/// Keeps the beginning of what is written to it.
#[derive(Clone, Default)]
struct Beginning(Arc<Mutex<Vec<u8>>>);

impl Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = SHOWN.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(&bytes[..room]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn file(runtime: &Runtime, given: &Value) -> Answer {
    let At { session, path, at } = args(given)?;
    let path = parsed(&path)?;
    let master = opened(runtime, session).await?;
    let sequence = version(&master.workspace, at).await?;
    let beginning = Beginning::default();
    let shown = master
        .workspace
        .show(path, sequence, beginning.clone())
        .await;
    let node = shown.map_err(|error| failed(&error))?;
    let mut bytes =
        std::mem::take(&mut *beginning.0.lock().unwrap_or_else(PoisonError::into_inner));
    let truncated = node.size > bytes.len() as u64;
    if truncated {
        // Not in the middle of a character.
        let whole = bytes.utf8_chunks().map(|chunk| chunk.valid().len()).next();
        bytes.truncate(
            whole
                .filter(|whole| whole + 4 > bytes.len())
                .unwrap_or(bytes.len()),
        );
    }
    let text = match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Some(text),
        _ => None,
    };
    let mut answer = json!({
        "sequence": sequence,
        "size": node.size,
        "binary": text.is_none(),
        "truncated": truncated,
    });
    if let Some(text) = text {
        answer["text"] = text.into();
    }
    Ok(answer)
}

#[derive(Deserialize)]
struct Log {
    session: u64,
    path: Option<String>,
    before: Option<u64>,
    limit: u32,
}

async fn log(runtime: &Runtime, given: &Value) -> Answer {
    let asked: Log = args(given)?;
    let query = LogQuery {
        path: below_root(asked.path.as_deref())?,
        through: asked.before.map(|before| before.saturating_sub(1)),
        limit: Some(asked.limit.min(MAX_LOG)),
        ..LogQuery::default()
    };
    let master = opened(runtime, asked.session).await?;
    master
        .workspace
        .flush()
        .await
        .map_err(|error| failed(&error))?;
    let lines = master
        .workspace
        .log(query)
        .await
        .map_err(|error| failed(&error))?;
    let entries: Vec<Value> = lines
        .into_iter()
        .map(|line| {
            let node = line.node.as_ref();
            json!({
                "sequence": line.sequence,
                "path": line.path.as_str(),
                "change": line.change.name(),
                "hash": node.map(|node| node.hash.to_string()),
                "size": node.map_or(0, |node| node.size),
                "mode": node.map_or(0, |node| node.mode),
                "author": line.author,
                "at": jiff::Timestamp::from_millisecond(line.at_millis)
                    .map(|at| at.to_string())
                    .unwrap_or_default(),
            })
        })
        .collect();
    Ok(json!({ "entries": entries }))
}

#[derive(Deserialize)]
struct Diff {
    session: u64,
    from: u64,
    to: u64,
    path: Option<String>,
}

async fn diff(runtime: &Runtime, given: &Value) -> Answer {
    let asked: Diff = args(given)?;
    let path = below_root(asked.path.as_deref())?;
    let master = opened(runtime, asked.session).await?;
    let entries = master
        .workspace
        .diff(asked.from, asked.to, path)
        .await
        .map_err(|error| failed(&error))?;
    let mut left = DIFF_ALL;
    let files: Vec<Value> = entries
        .into_iter()
        .map(|entry| {
            let change = change(&entry);
            let mut unified = entry.unified.unwrap_or_default();
            let room = left.min(DIFF_EACH);
            if unified.len() > room {
                unified.truncate(unified.floor_char_boundary(room));
                unified.push_str("\n… (cut here)\n");
            }
            left = left.saturating_sub(unified.len());
            json!({ "path": entry.path.as_str(), "change": change, "unified": unified })
        })
        .collect();
    Ok(json!({ "files": files }))
}

fn change(entry: &DiffEntry) -> &'static str {
    match (&entry.old, &entry.new) {
        (_, None) => "delete",
        (Some(old), Some(new)) if old.hash == new.hash && old.kind == new.kind => "chmod",
        _ => "write",
    }
}

#[derive(Deserialize)]
struct Restore {
    session: u64,
    to: u64,
    path: Option<String>,
    dry_run: bool,
}

async fn restore(runtime: &Runtime, given: &Value) -> Answer {
    let asked: Restore = args(given)?;
    let path = below_root(asked.path.as_deref())?;
    let master = opened(runtime, asked.session).await?;
    let report = master
        .workspace
        .restore(asked.to, path, asked.dry_run)
        .await
        .map_err(|error| failed(&error))?;
    let changes: Vec<Value> = report
        .changes
        .into_iter()
        .map(|(path, change)| json!({ "path": path.as_str(), "change": change.name() }))
        .collect();
    Ok(json!({ "changes": changes, "sequence": report.sequence }))
}

/// Hands what is written to it to somebody who sends it.
struct Pieces(mpsc::Sender<Vec<u8>>);

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.0.blocking_send(bytes.to_vec()).map_err(gone)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn download(runtime: &Runtime, request: &Request) -> Answer {
    let At { session, path, at } = args(&request.args)?;
    let path = parsed(&path)?;
    let master = opened(runtime, session).await?;
    let sequence = version(&master.workspace, at).await?;
    let (sender, pieces) = mpsc::channel(PIECES);
    let reading = master.workspace.show(path, sequence, Pieces(sender));
    let sending = async move {
        // Dropped when sending fails, so that reading ends too.
        let mut pieces = pieces;
        while let Some(piece) = pieces.recv().await {
            request.send_bytes(&piece).await?;
        }
        Ok::<_, OpError>(())
    };
    let (node, sent) = tokio::join!(reading, sending);
    sent?;
    let node = node.map_err(|error| failed(&error))?;
    Ok(json!({ "size": node.size, "hash": node.hash.to_string() }))
}
