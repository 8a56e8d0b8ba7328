//! Files that tools write in a session's workspace: commands like any other, so that they can be
//! shown and taken back.

use serde_json::json;

use quintet_workspace::history::LogQuery;
use quintet_workspace::proto::WorkspacePath;

use super::commands::changes_as_json;
use super::{HOST, Master};
use crate::daemon::Runtime;
use crate::journal::{Entry, Kind};
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
        let begun = async {
            let (_, master) = self.workspace_of(write.session).await?;
            let before = master.workspace.flush().await;
            let before = before.map_err(|error| Refusal::Conflict(error.to_string()))?;
            Ok::<_, Refusal>((master, before))
        };
        let begun = begun.await;
        let written = writing.await?;
        let recorded = match begun {
            Ok((master, before)) => self.record_write(write, &master, before).await,
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
        Ok(written)
    }

    async fn record_write(
        &self,
        write: ToolWrite<'_>,
        master: &Master,
        before: u64,
    ) -> Result<(), Refusal> {
        let failed = |error: quintet_workspace::master::WorkspaceError| {
            Refusal::Internal(format!("the workspace's history can't be read: {error}"))
        };
        let path = WorkspacePath::parse(write.path)
            .map_err(|error| Refusal::Bad(format!("{}: {error}", write.path)))?;
        let after = master.workspace.flush().await.map_err(failed)?;
        let query = LogQuery {
            after: before,
            through: Some(after),
            author: Some(HOST.to_owned()),
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
            return Ok(());
        }
        let data = json!({
            "command": format!("{} {}", write.tool, write.path),
            "tool": write.tool,
            "cwd": null,
            "worker": "",
            "exit_code": 0,
            "ended": "exited",
            "before": before,
            "after": after,
            "author": HOST,
            "changed": changes_as_json(&changed),
        });
        let row = Entry::new(Kind::Command, &data).in_session(write.session);
        self.db.append(vec![row]).await?;
        Ok(())
    }
}
