//! Files that tools write in a session's workspace: commands like any other, so that they can be
//! shown and taken back.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use quintet_workspace::history::LogQuery;
use quintet_workspace::proto::WorkspacePath;

use super::commands::changes_as_json;
use super::open_commands::{self, Interrupted, OpenCommand};
use super::{HOST, Master};
use crate::daemon::Runtime;
use crate::refusal::Refusal;

/// A write that a tool makes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ToolWrite<'a> {
    pub(crate) session: u64,
    pub(crate) tool: &'a str,
    /// Relative to the workspace.
    pub(crate) path: &'a str,
}

impl Runtime {
    /// Writes, and records what that changed as a command of the session.
    ///
    /// In a folder that has no history, because it is too large or is none that should be tracked,
    /// the file is written all the same; it can't be taken back then.
    pub(crate) async fn write_in_session<T>(
        &self,
        write: ToolWrite<'_>,
        writing: impl Future<Output = Result<T, String>>,
    ) -> Result<T, String> {
        let begun = self.begin_write(write).await;
        let written = writing.await;
        let recorded = match begun {
            Ok((master, open, id)) => self.end_write(&master, &open, id, "exited").await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = recorded {
            tracing::warn!(
                session = write.session,
                path = write.path,
                %refusal,
                "what a tool wrote has no history and can't be taken back"
            );
        }
        written
    }

    async fn begin_write(
        &self,
        write: ToolWrite<'_>,
    ) -> Result<(Arc<Master>, OpenCommand, u64), Refusal> {
        let ToolWrite {
            session,
            tool,
            path,
        } = write;
        parsed(path)?;
        let (_, master) = self.workspace_of(session).await?;
        let before = master.workspace.flush().await;
        let before = before.map_err(|error| Refusal::Conflict(error.to_string()))?;
        let open = OpenCommand {
            session,
            worker: String::new(),
            job: String::new(),
            command: format!("{tool} {path}"),
            cwd: None,
            before,
            author: Some(HOST.to_owned()),
            tool: Some(tool.to_owned()),
        };
        // Before it is written: were it cut, the file would be there and nobody could tell whose it is.
        let (id, _) = open_commands::begin(&self.db, &open).await?;
        Ok((master, open, id))
    }

    /// Ends a write that an earlier daemon left open, which wrote the whole file or nothing.
    pub(super) async fn end_interrupted_write(&self, cut: &Interrupted) -> Result<(), Refusal> {
        let ended = match self.workspaces.of(Path::new(&cut.folder)).await {
            Ok(master) => self.end_write(&master, &cut.open, cut.id, "lost").await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = ended {
            let command = &cut.open.command;
            tracing::warn!(command, %refusal, "what it changed is not known and can't be taken back");
            open_commands::end(&self.db, Some(cut.id), cut.open.session, None).await?;
        }
        Ok(())
    }

    async fn end_write(
        &self,
        master: &Master,
        open: &OpenCommand,
        id: u64,
        ended: &str,
    ) -> Result<(), Refusal> {
        let row = row_of(master, open, ended).await?;
        open_commands::end(&self.db, Some(id), open.session, row).await?;
        Ok(())
    }
}

/// The row of a tool's write, with what it changed; none where that is nothing.
async fn row_of(
    master: &Master,
    open: &OpenCommand,
    ended: &str,
) -> Result<Option<Value>, Refusal> {
    let failed = |error: quintet_workspace::master::WorkspaceError| {
        Refusal::Internal(format!("the workspace's history can't be read: {error}"))
    };
    let (before, after) = (open.before, master.workspace.flush().await.map_err(failed)?);
    let (_, path) = open.command.split_once(' ').unwrap_or_default();
    let path = parsed(path)?;
    let query = LogQuery {
        after: before,
        through: Some(after),
        author: open.author.clone(),
        ..LogQuery::default()
    };
    // A person may have saved another file meanwhile.
    let folders = path.ancestors();
    let own = |it: &WorkspacePath| *it == path || folders.contains(it);
    let log = master.workspace.log(query).await.map_err(failed)?;
    let changed: Vec<(String, &'static str)> = log
        .into_iter()
        .filter(|entry| own(&entry.path))
        .map(|entry| (entry.path.to_string(), entry.change.name()))
        .collect();
    if changed.is_empty() {
        return Ok(None);
    }
    let exit_code = match ended {
        "exited" => json!(0),
        _ => Value::Null,
    };
    Ok(Some(json!({
        "command": open.command,
        "tool": open.tool,
        "cwd": null,
        "worker": open.worker,
        "exit_code": exit_code,
        "ended": ended,
        "before": before,
        "after": after,
        "author": open.author,
        "changed": changes_as_json(&changed),
    })))
}

fn parsed(path: &str) -> Result<WorkspacePath, Refusal> {
    WorkspacePath::parse(path).map_err(|error| Refusal::Bad(format!("{path}: {error}")))
}
