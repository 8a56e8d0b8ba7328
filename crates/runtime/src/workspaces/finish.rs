//! The end of a command in a session's workspace: its row in the journal, and which of the
//! workspace's sequences are its own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quintet_sandbox::hub::{ExecOutcome, RequestError};
use quintet_sandbox::proto::frame::{FailureCode, Mirrored};
use quintet_workspace::history::{LogEntry, LogQuery};
use quintet_workspace::proto::WorkspacePath;
use rusqlite::Connection;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::Master;
use super::commands::{changes_as_json, paths_of};
use super::open_commands::{self, OpenCommand};
use crate::daemon::Runtime;
use crate::journal::Kind;
use crate::refusal::Refusal;
use crate::store::{Db, StoreError};
use crate::workers::Running;

/// How many changed paths a command's row names; a build may write thousands.
const NAMED_PATHS: usize = 1000;

/// What has to happen after a command before its end may be told. Dropped without that, the
/// command was cut, and gets a row that says so: its files are there all the same.
pub(crate) struct Finish {
    begun: Option<Begun>,
    tasks: TaskTracker,
}

/// A command that has begun.
pub(super) struct Begun {
    /// Its number among those that are open; none of one that was found again.
    pub(super) id: Option<u64>,
    pub(super) open: OpenCommand,
    /// The journal's number when it began.
    pub(super) since: u64,
    /// The session's folder, which other sessions may have too.
    pub(super) folder: String,
    /// It runs in the folder itself.
    pub(super) shares_folder: bool,
    pub(super) db: Db,
    pub(super) master: Arc<Master>,
    /// A stop waits for it.
    pub(super) running: Running,
}

/// A command's end, as everybody hears of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CommandEnd {
    /// The journal's number of its row.
    pub(crate) seq: u64,
    /// The workspace's sequence that the command saw.
    pub(crate) before: u64,
    /// The sequence that holds what it wrote.
    pub(crate) after: u64,
    /// What it changed: `write`, `delete`, `rename` or `chmod`, by path.
    pub(crate) changed: Vec<(String, &'static str)>,
    /// What the host refused, or has not got yet.
    pub(crate) notes: Vec<String>,
}

impl Runtime {
    /// Ends the commands that an earlier daemon left open.
    pub(crate) async fn end_interrupted(&self) -> Result<(), Refusal> {
        for cut in self.db.read(open_commands::interrupted).await? {
            if cut.open.tool.is_some() {
                self.end_interrupted_write(&cut).await?;
                continue;
            }
            let mut after = cut.open.before;
            // It wrote into the folder itself, and so has ended with that daemon.
            if cut.open.author.is_none()
                && let Ok(master) = self.workspaces.of(Path::new(&cut.folder)).await
                && let Ok(now) = master.workspace.flush().await
            {
                after = now;
            }
            let row = cut.open.cut("lost", after);
            open_commands::end(&self.db, Some(cut.id), cut.open.session, Some(row)).await?;
        }
        Ok(())
    }
}

impl Finish {
    pub(super) fn new(begun: Begun, tasks: &TaskTracker) -> Self {
        Self {
            begun: Some(begun),
            tasks: tasks.clone(),
        }
    }

    /// Notes what its worker calls it, so that it can be found again after a restart.
    pub(super) fn named(&mut self, job: &str) {
        let Some(begun) = &mut self.begun else { return };
        job.clone_into(&mut begun.open.job);
        if let Some(id) = begun.id {
            let (db, job) = (begun.db.clone(), job.to_owned());
            self.tasks.spawn(async move {
                if let Err(error) = open_commands::name(&db, id, job).await {
                    tracing::warn!(%error, "a command could not be found again after a restart");
                }
            });
        }
    }

    /// Its worker did not take it.
    pub(super) async fn never_ran(mut self) -> Result<(), Refusal> {
        if let Some(begun) = self.begun.take() {
            open_commands::end(&begun.db, begun.id, begun.open.session, None).await?;
        }
        Ok(())
    }

    /// It is left to its worker while the daemon stops; the next start ends it, unless its client
    /// comes back for it.
    pub(crate) fn left(mut self) {
        self.begun = None;
    }

    /// There is no end to record: its worker refused it, or nobody knows what became of it.
    pub(crate) async fn failed(mut self, error: &RequestError) {
        use FailureCode::{Path, Quota, Spawn, Workspace};
        let refused = matches!(
            error,
            RequestError::Failed {
                code: Some(Path | Quota | Spawn | Workspace),
                ..
            }
        );
        if refused {
            if let Err(refusal) = self.never_ran().await {
                tracing::warn!(%refusal, "a command that never ran is told of at the next start");
            }
        } else if let Some(begun) = self.begun.take() {
            begun.cut("lost").await;
        }
    }

    /// Writes the command's row: what it was, how it ended, and which sequences are its own.
    pub(crate) async fn record(
        &mut self,
        mirrored: Option<&Mirrored>,
        outcome: &ExecOutcome,
        duration: Duration,
    ) -> Result<Option<CommandEnd>, Refusal> {
        let Some(begun) = &self.begun else {
            return Ok(None);
        };
        let end = begun.record(mirrored, outcome, duration).await?;
        self.begun = None;
        Ok(end)
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        if let Some(begun) = self.begun.take()
            && let Ok(handle) = tokio::runtime::Handle::try_current()
        {
            self.tasks.spawn_on(begun.cut("cancelled"), &handle);
        }
    }
}

impl Begun {
    async fn record(
        &self,
        mirrored: Option<&Mirrored>,
        outcome: &ExecOutcome,
        duration: Duration,
    ) -> Result<Option<CommandEnd>, Refusal> {
        let failed = |error: quintet_workspace::master::WorkspaceError| {
            Refusal::Internal(format!("the workspace's history can't be read: {error}"))
        };
        let workspace = &self.master.workspace;
        let _one_at_a_time = self.master.recording.lock().await;
        let (before, after, author, notes) = match (self.shares_folder, mirrored) {
            (true, _) => {
                let after = workspace.flush().await.map_err(failed)?;
                (self.open.before, after, None, Vec::new())
            }
            (false, Some(mirrored)) => {
                let mut notes = mirrored.refused.clone();
                notes.extend(mirrored.behind.clone());
                let author = Some(self.open.worker.clone());
                // A worker can say what it likes; there is nothing beyond what we have.
                let after = mirrored.after.min(workspace.sequence());
                (mirrored.before.min(after), after, author, notes)
            }
            // It never began.
            (false, None) => {
                let now = workspace.sequence();
                (now, now, None, Vec::new())
            }
        };
        let own = self.own(before, after, author.clone()).await?;
        let unnamed = own.changed.len().saturating_sub(NAMED_PATHS);
        let changed: Vec<_> = own.changed.into_iter().take(NAMED_PATHS).collect();
        let (exit_code, ended) = match *outcome {
            ExecOutcome::Exited(code) => (json!(code), "exited".to_owned()),
            ExecOutcome::Signaled(signal) => (json!(128 + signal), format!("signal {signal}")),
            ExecOutcome::TimedOut { secs } => (json!(124), format!("timed out after {secs} s")),
            ExecOutcome::Cancelled => (Value::Null, "cancelled".to_owned()),
        };
        let mut data = json!({
            "command": self.open.command,
            "cwd": self.open.cwd,
            "worker": self.open.worker,
            "job": self.open.job,
            "exit_code": exit_code,
            "ended": ended,
            "duration_ms": u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            "before": before,
            "after": after,
            "author": author,
            "changed": changes_as_json(&changed),
        });
        if unnamed > 0 {
            data["changed_unnamed"] = json!(unnamed);
        }
        if !own.others.is_empty() {
            data["others"] = ranges_as_json(&own.others);
        }
        if !notes.is_empty() {
            data["notes"] = json!(notes);
        }
        if mirrored.is_some_and(|mirrored| mirrored.behind.is_some()) {
            data["behind"] = json!(true);
        }
        let session = self.open.session;
        let seq = open_commands::end(&self.db, self.id, session, Some(data)).await?;
        Ok(seq.map(|seq| CommandEnd {
            seq,
            before,
            after,
            changed,
            notes,
        }))
    }

    /// Writes the row of a command that was cut, with what the host has of it so far.
    async fn cut(self, ended: &'static str) {
        let _one_at_a_time = self.master.recording.lock().await;
        let workspace = &self.master.workspace;
        let after = match self.shares_folder {
            true => workspace.flush().await.unwrap_or(self.open.before),
            false => workspace.sequence(),
        };
        let mut row = self.open.cut(ended, after);
        let own = self.own(self.open.before, after, self.open.author.clone());
        if let Ok(own) = own.await {
            let changed: Vec<_> = own.changed.into_iter().take(NAMED_PATHS).collect();
            row["changed"] = changes_as_json(&changed);
            row["others"] = ranges_as_json(&own.others);
        }
        let written = open_commands::end(&self.db, self.id, self.open.session, Some(row)).await;
        if let Err(error) = written {
            tracing::warn!(%error, "that a command was cut is recorded at the next start");
        }
        drop(self.running);
    }

    /// What of a range is the command's own, and not of one that ran at the same time and has ended.
    async fn own(&self, before: u64, after: u64, author: Option<String>) -> Result<Own, Refusal> {
        if after <= before {
            return Ok(Own::default());
        }
        let (folder, since) = (self.folder.clone(), self.since);
        let job = self.open.job.clone();
        let ended = self
            .db
            .read(move |connection| ended_since(connection, &folder, since, &job))
            .await?;
        let query = LogQuery {
            after: before,
            through: Some(after),
            author,
            ..LogQuery::default()
        };
        let log = self.master.workspace.log(query).await;
        let log = log.map_err(|error| {
            Refusal::Internal(format!("the workspace's history can't be read: {error}"))
        })?;
        Ok(Own::among(log, &ended))
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Own {
    changed: BTreeMap<String, &'static str>,
    /// Sequences in between that are not.
    others: Vec<RangeInclusive<u64>>,
}

impl Own {
    /// Which of two commands changed a path while both ran can't be told, and the one that ends first
    /// has it as its own. A path that this one changed alone too is its own from its beginning on: an
    /// undo would else put back what this one wrote before.
    fn among(log: Vec<LogEntry>, ended: &[Claim]) -> Self {
        let alone: BTreeSet<WorkspacePath> = log
            .iter()
            .filter(|entry| !ended.iter().any(|claim| claim.holds(entry)))
            .map(|entry| entry.path.clone())
            .collect();
        let mut own = Self::default();
        let mut adjacent = false;
        for entry in log {
            let not_its_own = |claim: &Claim| {
                claim.holds(&entry) && (claim.only.is_some() || !alone.contains(&entry.path))
            };
            if !ended.iter().any(not_its_own) {
                own.changed
                    .insert(entry.path.to_string(), entry.change.name());
                adjacent = false;
                continue;
            }
            match own.others.last_mut().filter(|_| adjacent) {
                Some(range) => *range = *range.start()..=entry.sequence,
                None => own.others.push(entry.sequence..=entry.sequence),
            }
            adjacent = true;
        }
        own
    }
}

/// What an ended command has as its own.
struct Claim {
    before: u64,
    after: u64,
    author: Option<String>,
    only: Option<BTreeSet<WorkspacePath>>,
}

impl Claim {
    fn holds(&self, entry: &LogEntry) -> bool {
        (self.before + 1..=self.after).contains(&entry.sequence)
            && self.author.as_ref().is_none_or(|it| *it == entry.author)
            && self.only.as_ref().is_none_or(|it| it.contains(&entry.path))
    }
}

/// What commands in a folder have as their own that ended after the journal's `since`.
fn ended_since(
    connection: &Connection,
    folder: &str,
    since: u64,
    job: &str,
) -> Result<Vec<Claim>, StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT data FROM journal
         WHERE session IN (SELECT id FROM sessions WHERE workspace = ?) AND seq > ? AND kind = ?",
    )?;
    let mut rows = statement.query((folder, since.cast_signed(), Kind::Command.as_str()))?;
    let mut claims = Vec::new();
    while let Some(row) = rows.next()? {
        let data: Value = serde_json::from_str(&row.get::<_, String>(0)?).unwrap_or_default();
        let (Some(before), Some(after)) = (data["before"].as_u64(), data["after"].as_u64()) else {
            continue;
        };
        // Its own row, of when it was lost.
        if data["job"].as_str().is_some_and(|it| it == job) {
            continue;
        }
        claims.push(Claim {
            before,
            after,
            author: data["author"].as_str().map(str::to_owned),
            only: data["tool"].is_string().then(|| paths_of(&data["changed"])),
        });
    }
    Ok(claims)
}

fn ranges_as_json(ranges: &[RangeInclusive<u64>]) -> Value {
    ranges
        .iter()
        .map(|range| json!([range.start(), range.end()]))
        .collect()
}

#[cfg(test)]
mod tests {
    use quintet_workspace::proto::ChangeKind;

    use super::*;

    #[test]
    fn a_path_that_a_command_changed_alone_is_its_own_from_its_beginning_on() {
        let path = |name: &str| WorkspacePath::parse(name).expect("a path");
        let log = |entries: &[(u64, &str)]| -> Vec<LogEntry> {
            let entry = |&(sequence, name): &(u64, &str)| LogEntry {
                sequence,
                path: path(name),
                change: ChangeKind::Write,
                node: None,
                previous_size: None,
                author: "box".to_owned(),
                at_millis: 0,
                renamed_from: None,
            };
            entries.iter().map(entry).collect()
        };
        let claim = |only: Option<&str>| Claim {
            before: 0,
            after: 4,
            author: Some("box".to_owned()),
            only: only.map(|name| [path(name)].into()),
        };
        let own = |changed: &[&str], others: &[RangeInclusive<u64>]| Own {
            changed: changed
                .iter()
                .map(|name| ((*name).to_owned(), ChangeKind::Write.name()))
                .collect(),
            others: others.to_vec(),
        };

        let both = [(1, "pa"), (2, "pb"), (3, "pa"), (4, "pc"), (5, "pb")];
        assert_eq!(
            Own::among(log(&both), &[claim(None)]),
            own(&["pb"], &[1..=1, 3..=4])
        );
        // Of what a tool wrote it is known.
        assert_eq!(
            Own::among(
                log(&[(1, "pb"), (2, "pb"), (5, "pb")]),
                &[claim(Some("pb"))]
            ),
            own(&["pb"], &[1..=2])
        );
    }
}
