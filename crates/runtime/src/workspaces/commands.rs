//! Commands in a session's workspace, and taking them back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quintet_control::wire::{CommandChanges, ExecMsg, PathChange, UndoReport};
use quintet_sandbox::hub::{ExecEvent, ExecHandle, ExecOutcome, ExecRequest, WorkerStatus};
use quintet_sandbox::paths::folder_beneath;
use quintet_sandbox::proto::frame::{Mirror, Mirrored};
use quintet_workspace::history::LogQuery;
use quintet_workspace::master::UndoRange;
use quintet_workspace::proto::WorkspacePath;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::Master;
use crate::daemon::Runtime;
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::sessions::{self, Session};
use crate::store::{Db, StoreError};
use crate::workers::{LOCAL, Running, RunningCommand};

/// How many changed paths a command's row names; a build may write thousands.
const NAMED_PATHS: usize = 1000;

/// A command in a session's workspace.
#[derive(Debug, Clone, Default)]
pub(crate) struct SessionExec {
    /// A shell line.
    pub(crate) command: String,
    /// Beneath the workspace; the workspace itself when absent.
    pub(crate) cwd: Option<String>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) stdin: bool,
    /// The only worker that it may run on; the session's when absent.
    pub(crate) worker: Option<String>,
}

impl From<ExecMsg> for SessionExec {
    fn from(request: ExecMsg) -> Self {
        Self {
            command: request.command,
            cwd: request.cwd,
            env: request.env,
            timeout: request.timeout_ms.map(Duration::from_millis),
            stdin: request.stdin,
            worker: None,
        }
    }
}

/// What has to happen after a command before its end may be told.
pub(crate) struct Finish {
    db: Db,
    master: Arc<Master>,
    session: u64,
    worker: String,
    command: String,
    cwd: Option<String>,
    /// Where the history was, for a command that ran in the folder itself.
    shared_before: Option<u64>,
    /// A stop waits for it.
    _running: Running,
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

/// What an undo did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Undone {
    /// The journal's numbers of the commands that were taken back, the newest first.
    pub(crate) commands: Vec<u64>,
    /// What was put back, by path.
    pub(crate) changes: Vec<(String, &'static str)>,
    /// Paths that changed again later and were left alone.
    pub(crate) skipped: Vec<String>,
    /// The workspace's sequence afterwards.
    pub(crate) sequence: u64,
}

impl Runtime {
    /// The worker that a session's commands run on: its own, else the only one, else `local`.
    pub(crate) fn worker_of(&self, session: &Session) -> String {
        if !session.worker.is_empty() {
            return session.worker.clone();
        }
        let workers = self.workers.hub.workers();
        let mut online = workers.iter().filter(|it| it.state == WorkerStatus::Online);
        match (online.next(), online.next()) {
            (Some(only), None) => only.id.clone(),
            _ => LOCAL.to_owned(),
        }
    }

    /// Whether a worker's programs work in the workspace's folder itself, and not in a copy.
    pub(crate) fn shares_folder(&self, worker: &str) -> bool {
        worker == LOCAL && self.workers.local_is_unconfined()
    }

    /// The open session with that number, and its workspace.
    pub(crate) async fn workspace_of(
        &self,
        session: u64,
    ) -> Result<(Session, Arc<Master>), Refusal> {
        let session = self
            .db
            .read(move |connection| sessions::open(connection, session))
            .await?;
        let folder = PathBuf::from(&session.workspace);
        std::fs::create_dir_all(&folder)
            .map_err(|error| Refusal::Internal(format!("{}: {error}", folder.display())))?;
        let master = self.workspaces.of(&folder).await?;
        Ok((session, master))
    }

    /// Starts a command in a session's workspace, on the session's worker.
    pub(crate) async fn start_in_session(
        &self,
        session: u64,
        exec: SessionExec,
    ) -> Result<(ExecHandle, Finish), Refusal> {
        if exec.timeout == Some(Duration::ZERO) {
            return Err(Refusal::Bad("a timeout of 0 lets nothing run".into()));
        }
        let (session, master) = self.workspace_of(session).await?;
        let worker = exec.worker.unwrap_or_else(|| self.worker_of(&session));
        let shares_folder = self.shares_folder(&worker);
        let mut request = ExecRequest {
            command: exec.command.clone(),
            cwd: exec.cwd.clone(),
            env: exec.env,
            timeout: exec.timeout,
            stdin: exec.stdin,
            mirror: None,
        };
        let mut shared_before = None;
        if shares_folder {
            let cwd = Path::new(exec.cwd.as_deref().unwrap_or_default());
            let folder = folder_beneath(&master.dir, cwd).map_err(Refusal::Bad)?;
            request.cwd = Some(folder.display().to_string());
            let before = master.workspace.flush().await;
            shared_before = Some(before.map_err(|error| Refusal::Conflict(error.to_string()))?);
        } else {
            request.mirror = Some(self.mirror_of(&master, &worker));
        }
        let running = self.runs(&exec.command, session.id, &worker);
        self.workers.dialled(&worker).await;
        let handle = self.workers.hub.exec(&worker, request).await?;
        let finish = Finish {
            _running: running,
            db: self.db.clone(),
            master,
            session: session.id,
            worker,
            command: exec.command,
            cwd: exec.cwd,
            shared_before,
        };
        Ok((handle, finish))
    }

    /// Continues with a command in a session's workspace that was left to its worker.
    pub(crate) async fn attach_in_session(
        &self,
        session: u64,
        job: &str,
    ) -> Result<(ExecHandle, Finish), Refusal> {
        let (session, master) = self.workspace_of(session).await?;
        let worker = self.worker_of(&session);
        self.workers.arrived(&worker).await;
        let handle = self.workers.hub.attach_exec(&worker, job).await?;
        let command = format!("(attach {job})");
        let finish = Finish {
            _running: self.runs(&command, session.id, &worker),
            db: self.db.clone(),
            shared_before: None,
            session: session.id,
            command,
            cwd: None,
            master,
            worker,
        };
        Ok((handle, finish))
    }

    /// What a worker needs to have a copy that a program works in.
    pub(crate) fn mirror_of(&self, master: &Master, worker: &str) -> Mirror {
        let patience = self.config.current().workspace.patience;
        Mirror {
            workspace: master.id.clone(),
            token: master.token_of(worker),
            socket: (worker == LOCAL).then(|| master.socket.display().to_string()),
            wait_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn runs(&self, command: &str, session: u64, worker: &str) -> Running {
        self.workers.running.enter(RunningCommand {
            command: command.to_owned(),
            session: Some(session),
            worker: worker.to_owned(),
        })
    }

    /// Takes back what the last `count` commands of a session did to files.
    pub(crate) async fn undo(&self, session: u64, count: u32) -> Result<Undone, Refusal> {
        if count == 0 {
            return Err(Refusal::Bad(
                "say how many commands to take back, at least 1".into(),
            ));
        }
        let (session, master) = self.workspace_of(session).await?;
        let id = session.id;
        let (last, mut settled) = self
            .db
            .read(move |connection| undoable(connection, id, count))
            .await?;
        if last.is_empty() {
            return Err(Refusal::Conflict(format!(
                "no command of session {id} changed a file that could be put back"
            )));
        }
        for command in last.iter().filter(|command| command.may_be_on_its_way) {
            self.arrives(id, command).await?;
        }
        let now = master.workspace.sequence();
        let mut undone = Undone::default();
        let mut newly_settled = BTreeSet::new();
        for command in last {
            let range = UndoRange {
                after: command.before,
                through: command.after.min(now),
                author: command.author,
                only: command.only,
                settled: settled.clone(),
                dry_run: false,
            };
            let report = master
                .workspace
                .undo(range)
                .await
                .map_err(|error| Refusal::Conflict(error.to_string()))?;
            undone.commands.push(command.seq);
            let changes = report.changes.into_iter();
            undone
                .changes
                .extend(changes.map(|(path, kind)| (path.to_string(), kind.name())));
            let skipped = report.skipped.into_iter();
            undone
                .skipped
                .extend(skipped.map(|(path, by)| format!("{path} (changed again in {by})")));
            undone.sequence = report.sequence;
            settled.extend(&report.settled);
            newly_settled.extend(report.settled);
        }
        let data = json!({
            "commands": undone.commands,
            "changed": changes_as_json(&undone.changes),
            "skipped": undone.skipped,
            "sequence": undone.sequence,
            "settled": newly_settled,
        });
        let row = Entry::new(Kind::CommandsUndone, &data).in_session(id);
        self.db.append(vec![row]).await?;
        Ok(undone)
    }

    /// Waits until the host has what a command wrote that said it did not: any command on its worker
    /// ends after that.
    async fn arrives(&self, session: u64, command: &Undoable) -> Result<(), Refusal> {
        let late = |reason: String| {
            let seq = command.seq;
            Refusal::Conflict(format!(
                "what command {seq} changed is not at the host: {reason}"
            ))
        };
        let nothing = SessionExec {
            command: "true".to_owned(),
            cwd: None,
            env: BTreeMap::new(),
            timeout: None,
            stdin: false,
            worker: command.author.clone(),
        };
        let started = self.start_in_session(session, nothing).await;
        let (mut handle, _running) = started.map_err(|refusal| late(refusal.to_string()))?;
        loop {
            match handle.next().await {
                Ok(ExecEvent::Ended { .. }) => break,
                Ok(_) => {}
                Err(error) => return Err(late(error.to_string())),
            }
        }
        match handle
            .mirrored()
            .and_then(|mirrored| mirrored.behind.clone())
        {
            None => Ok(()),
            Some(reason) => Err(late(reason)),
        }
    }
}

impl Finish {
    /// Writes the command's row: what it was, how it ended, and which sequences are its own.
    pub(crate) async fn record(
        &self,
        mirrored: Option<&Mirrored>,
        outcome: &ExecOutcome,
        duration: Duration,
    ) -> Result<Option<CommandEnd>, Refusal> {
        let failed = |error: quintet_workspace::master::WorkspaceError| {
            Refusal::Internal(format!("the workspace's history can't be read: {error}"))
        };
        let workspace = &self.master.workspace;
        let (before, after, author, notes) = match (self.shared_before, mirrored) {
            (Some(before), _) => (
                before,
                workspace.flush().await.map_err(failed)?,
                None,
                Vec::new(),
            ),
            (None, Some(mirrored)) => {
                let mut notes = mirrored.refused.clone();
                notes.extend(mirrored.behind.clone());
                let author = Some(self.worker.clone());
                // A worker can say what it likes; there is nothing beyond what we have.
                let after = mirrored.after.min(workspace.sequence());
                (mirrored.before.min(after), after, author, notes)
            }
            // It never began.
            (None, None) => {
                let now = workspace.sequence();
                (now, now, None, Vec::new())
            }
        };
        let query = LogQuery {
            after: before,
            through: Some(after),
            author: author.clone(),
            ..LogQuery::default()
        };
        let log = match after > before {
            true => workspace.log(query).await.map_err(failed)?,
            false => Vec::new(),
        };
        let changed: BTreeMap<String, &'static str> = log
            .into_iter()
            .map(|entry| (entry.path.to_string(), entry.change.name()))
            .collect();
        let unnamed = changed.len().saturating_sub(NAMED_PATHS);
        let changed: Vec<_> = changed.into_iter().take(NAMED_PATHS).collect();
        let (exit_code, ended) = match *outcome {
            ExecOutcome::Exited(code) => (json!(code), "exited".to_owned()),
            ExecOutcome::Signaled(signal) => (json!(128 + signal), format!("signal {signal}")),
            ExecOutcome::TimedOut { secs } => (json!(124), format!("timed out after {secs} s")),
            ExecOutcome::Cancelled => (Value::Null, "cancelled".to_owned()),
        };
        let mut data = json!({
            "command": self.command,
            "cwd": self.cwd,
            "worker": self.worker,
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
        if !notes.is_empty() {
            data["notes"] = json!(notes);
        }
        if mirrored.is_some_and(|mirrored| mirrored.behind.is_some()) {
            data["behind"] = json!(true);
        }
        let row = Entry::new(Kind::Command, &data).in_session(self.session);
        let seq = self.db.append(vec![row]).await?;
        Ok(Some(CommandEnd {
            seq,
            before,
            after,
            changed,
            notes,
        }))
    }
}

impl From<CommandEnd> for CommandChanges {
    fn from(end: CommandEnd) -> Self {
        Self {
            before: end.before,
            after: end.after,
            changed: on_the_wire(end.changed),
            notes: end.notes,
            seq: end.seq,
        }
    }
}

impl From<Undone> for UndoReport {
    fn from(undone: Undone) -> Self {
        Self {
            commands: undone.commands,
            changed: on_the_wire(undone.changes),
            skipped: undone.skipped,
            sequence: undone.sequence,
        }
    }
}

fn on_the_wire(changes: Vec<(String, &'static str)>) -> Vec<PathChange> {
    let change = |(path, change): (String, &'static str)| PathChange {
        path,
        change: change.to_owned(),
    };
    changes.into_iter().map(change).collect()
}

pub(super) fn changes_as_json(changes: &[(String, &'static str)]) -> Value {
    let entry = |(path, change): &(String, &'static str)| json!({ "path": path, "change": change });
    changes.iter().map(entry).collect()
}

struct Undoable {
    seq: u64,
    before: u64,
    /// Of a command whose changes came later, as far as they may have: to the next command.
    after: u64,
    may_be_on_its_way: bool,
    author: Option<String>,
    /// Of a tool's write, its own paths: others of this machine may have changed meanwhile.
    only: Option<BTreeSet<WorkspacePath>>,
}

/// The newest commands of a session that changed something and were not taken back yet, and the
/// sequences that earlier undos have dealt with.
fn undoable(
    connection: &Connection,
    session: u64,
    count: u32,
) -> Result<(Vec<Undoable>, BTreeSet<u64>), StoreError> {
    let mut statement = connection.prepare_cached(
        "SELECT seq, kind, data FROM journal
         WHERE session = ? AND kind IN (?, ?) ORDER BY seq DESC",
    )?;
    let mut rows = statement.query((
        session.cast_signed(),
        Kind::Command.as_str(),
        Kind::CommandsUndone.as_str(),
    ))?;
    let (mut gone, mut settled, mut found) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let (mut next_begins, mut arrived) = (u64::MAX, BTreeSet::new());
    while let Some(row) = rows.next()? {
        let seq = row.get::<_, i64>(0)?.cast_unsigned();
        let kind = Kind::from_name(&row.get::<_, String>(1)?);
        let data: Value = serde_json::from_str(&row.get::<_, String>(2)?).unwrap_or_default();
        if kind == Kind::CommandsUndone {
            let undone = data["commands"].as_array().into_iter().flatten();
            gone.extend(undone.filter_map(Value::as_u64));
            let sequences = data["settled"].as_array().into_iter().flatten();
            settled.extend(sequences.filter_map(Value::as_u64));
            continue;
        }
        let (before, after) = (data["before"].as_u64(), data["after"].as_u64());
        let (Some(before), Some(after)) = (before, after) else {
            continue;
        };
        let author = data["author"].as_str().map(str::to_owned);
        let behind = data["behind"] == true;
        let may_be_on_its_way = behind && !arrived.contains(&author);
        if !behind {
            arrived.insert(author.clone());
        }
        let after = if behind { next_begins } else { after };
        next_begins = before;
        if after > before && !gone.contains(&seq) {
            found.push(Undoable {
                seq,
                before,
                after,
                may_be_on_its_way,
                author,
                only: data["tool"].is_string().then(|| paths_of(&data["changed"])),
            });
            if found.len() == count as usize {
                break;
            }
        }
    }
    Ok((found, settled))
}

fn paths_of(changed: &Value) -> BTreeSet<WorkspacePath> {
    let changes = changed.as_array().into_iter().flatten();
    changes
        .filter_map(|change| WorkspacePath::parse(change["path"].as_str()?).ok())
        .collect()
}
