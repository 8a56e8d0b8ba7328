//! Commands in a session's workspace, and taking them back.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use quintet_control::wire::{CommandChanges, ExecMsg, PathChange, UndoReport};
use quintet_sandbox::hub::{ExecEvent, ExecHandle, ExecRequest, WorkerStatus};
use quintet_sandbox::paths::folder_beneath;
use quintet_sandbox::proto::frame::Mirror;
use quintet_workspace::master::UndoRange;
use quintet_workspace::proto::WorkspacePath;
use rusqlite::Connection;
use serde_json::{Value, json};

use super::Master;
use super::finish::{Begun, CommandEnd, Finish};
use super::open_commands::{self, OpenCommand};
use crate::daemon::Runtime;
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::sessions::{self, Session};
use crate::store::StoreError;
use crate::workers::{LOCAL, Running, RunningCommand, session_worker};

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
        let workers = self.workers.hub.workers();
        let online = workers.iter().filter(|it| it.state == WorkerStatus::Online);
        session_worker(&session.worker, online.map(|it| it.id.as_str()))
    }

    /// Whether a worker's programs work in the workspace's folder itself, and not in a copy.
    pub(crate) fn shares_folder(&self, worker: &str) -> bool {
        worker == LOCAL && self.workers.local_is_unconfined()
    }

    /// Where a worker has a session's workspace, when that is a copy of its own.
    pub(crate) fn copy_of(&self, session: &Session, worker: &str) -> Option<PathBuf> {
        if self.shares_folder(worker) {
            return None;
        }
        let worker = self.workers.hub.worker(worker)?;
        super::copy_beneath(&worker.copies, Path::new(&session.workspace))
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
            return Err(Refusal::Bad(
                "a timeout of 0 lets nothing run; leave it out for no limit".into(),
            ));
        }
        let (session, master) = self.workspace_of(session).await?;
        let worker = self.worker_for(&session, &exec);
        let (request, shared_before) = self.request(&master, &worker, &exec).await?;
        let running = self.runs(&exec.command, session.id, &worker);
        self.workers.dialled(&worker).await;
        let open = OpenCommand {
            session: session.id,
            author: shared_before.is_none().then(|| worker.clone()),
            before: shared_before.unwrap_or_else(|| master.workspace.sequence()),
            job: String::new(),
            command: exec.command,
            cwd: exec.cwd,
            worker,
            tool: None,
        };
        // Before it runs: were it cut, its files would be there and nobody could tell whose they are.
        let (id, since) = open_commands::begin(&self.db, &open).await?;
        let worker = open.worker.clone();
        let begun = Begun {
            id: Some(id),
            since,
            folder: session.workspace,
            db: self.db.clone(),
            master,
            shares_folder: shared_before.is_some(),
            open,
            running,
        };
        let mut finish = Finish::new(begun, &self.tasks);
        match self.workers.hub.exec(&worker, request).await {
            Ok(handle) => {
                finish.named(handle.id());
                Ok((handle, finish))
            }
            Err(error) => {
                finish.never_ran().await?;
                Err(error.into())
            }
        }
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
        let (id, name) = (session.id, job.to_owned());
        let left = self
            .db
            .read(move |connection| open_commands::left(connection, id, &name))
            .await?;
        let (since, open) = left.unwrap_or_else(|| {
            let unknown = OpenCommand {
                session: id,
                author: Some(worker.clone()),
                before: 0,
                job: job.to_owned(),
                command: format!("(attach {job})"),
                cwd: None,
                worker: worker.clone(),
                tool: None,
            };
            (self.db.tail().head(), unknown)
        });
        let begun = Begun {
            id: None,
            since,
            folder: session.workspace,
            db: self.db.clone(),
            master,
            shares_folder: false,
            running: self.runs(&open.command, id, &worker),
            open,
        };
        Ok((handle, Finish::new(begun, &self.tasks)))
    }

    fn worker_for(&self, session: &Session, exec: &SessionExec) -> String {
        let named = exec.worker.clone();
        named.unwrap_or_else(|| self.worker_of(session))
    }

    /// What a worker is asked for, and where the history was for a command in the folder itself.
    async fn request(
        &self,
        master: &Master,
        worker: &str,
        exec: &SessionExec,
    ) -> Result<(ExecRequest, Option<u64>), Refusal> {
        let mut request = ExecRequest {
            command: exec.command.clone(),
            cwd: exec.cwd.clone(),
            env: exec.env.clone(),
            timeout: exec.timeout,
            stdin: exec.stdin,
            mirror: None,
        };
        if !self.shares_folder(worker) {
            request.mirror = Some(self.mirror_of(master, worker));
            return Ok((request, None));
        }
        let cwd = Path::new(exec.cwd.as_deref().unwrap_or_default());
        let folder = folder_beneath(&master.dir, cwd).map_err(Refusal::Bad)?;
        request.cwd = Some(folder.display().to_string());
        let before = master.workspace.flush().await;
        let before = before.map_err(|error| Refusal::Conflict(error.to_string()))?;
        Ok((request, Some(before)))
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
        let mut undone = Undone::default();
        let mut before = None;
        let mut newly_settled = BTreeSet::new();
        for command in last {
            if undone.commands.len() == count as usize {
                break;
            }
            if command.may_be_on_its_way {
                self.arrives(&session, &master, &command).await?;
            }
            if before.is_none() {
                let flushed = master.workspace.flush().await;
                before = Some(flushed.map_err(|error| Refusal::Conflict(error.to_string()))?);
            }
            let range = UndoRange {
                after: command.before,
                through: command.after.min(master.workspace.sequence()),
                author: command.author,
                only: command.only,
                except: command.others,
                settled: settled.clone(),
                dry_run: false,
            };
            let report = master
                .workspace
                .undo(range)
                .await
                .map_err(|error| Refusal::Conflict(error.to_string()))?;
            // It was cut before it wrote anything.
            if command.behind && report.settled.is_empty() && report.skipped.is_empty() {
                continue;
            }
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
        if undone.commands.is_empty() {
            return Err(Refusal::Conflict(format!(
                "no command of session {id} changed a file that could be put back; `quintet events --session {id}` shows what they did"
            )));
        }
        let data = json!({
            "commands": undone.commands,
            "changed": changes_as_json(&undone.changes),
            "skipped": undone.skipped,
            "before": before,
            "sequence": undone.sequence,
            "settled": newly_settled,
        });
        let row = Entry::new(Kind::CommandsUndone, &data).in_session(id);
        self.db.append(vec![row]).await?;
        Ok(undone)
    }

    /// Waits until the host has what a command wrote that said it did not: any command on its worker
    /// ends after that.
    async fn arrives(
        &self,
        session: &Session,
        master: &Master,
        command: &Undoable,
    ) -> Result<(), Refusal> {
        let late = |reason: String| {
            let seq = command.seq;
            Refusal::Conflict(format!(
                "what command {seq} changed is not at the host: {reason}; try again when its worker is online, `quintet workers` says so"
            ))
        };
        let nothing = SessionExec {
            command: "true".to_owned(),
            worker: command.author.clone(),
            ..SessionExec::default()
        };
        let worker = self.worker_for(session, &nothing);
        let running = async {
            let (request, _) = self.request(master, &worker, &nothing).await?;
            let _running = self.runs(&nothing.command, session.id, &worker);
            self.workers.dialled(&worker).await;
            let mut handle = self.workers.hub.exec(&worker, request).await?;
            while !matches!(handle.next().await?, ExecEvent::Ended { .. }) {}
            Ok::<_, Refusal>(handle)
        };
        let handle = running.await.map_err(|refusal| late(refusal.to_string()))?;
        match handle
            .mirrored()
            .and_then(|mirrored| mirrored.behind.clone())
        {
            None => Ok(()),
            Some(reason) => Err(late(reason)),
        }
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
    /// Its row was written before the host had everything.
    behind: bool,
    may_be_on_its_way: bool,
    author: Option<String>,
    /// Of a tool's write, its own paths: others of this machine may have changed meanwhile.
    only: Option<BTreeSet<WorkspacePath>>,
    /// Sequences in its range that belong to commands which ran at the same time.
    others: Vec<RangeInclusive<u64>>,
}

/// The newest commands of a session that changed something and were not taken back yet, and the
/// sequences that earlier undos have dealt with. Those that may turn out to have changed nothing
/// come in addition to `count`.
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
    let (mut next_begins, mut arrived, mut jobs) =
        (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
    let mut sure = 0;
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
        // It was lost with the daemon and found again: the newer row is the whole of it.
        if let Some(job) = data["job"].as_str()
            && !jobs.insert(job.to_owned())
        {
            continue;
        }
        let author = data["author"].as_str().map(str::to_owned);
        let behind = data["behind"] == true;
        let may_be_on_its_way = behind && !arrived.contains(&author);
        if !behind {
            arrived.insert(author.clone());
        }
        // What others wrote meanwhile does not end what comes late, but where all of it counts.
        let ends = match &author {
            Some(author) => next_begins.get(author).copied(),
            None => next_begins.values().min().copied(),
        };
        let after = if behind {
            ends.unwrap_or(u64::MAX)
        } else {
            after
        };
        next_begins.insert(author.clone().unwrap_or_default(), before);
        if after > before && !gone.contains(&seq) {
            found.push(Undoable {
                seq,
                before,
                after,
                behind,
                may_be_on_its_way,
                author,
                only: data["tool"].is_string().then(|| paths_of(&data["changed"])),
                others: ranges_of(&data["others"]),
            });
            sure += u32::from(!behind);
            if sure == count {
                break;
            }
        }
    }
    Ok((found, settled))
}

pub(super) fn paths_of(changed: &Value) -> BTreeSet<WorkspacePath> {
    let changes = changed.as_array().into_iter().flatten();
    changes
        .filter_map(|change| WorkspacePath::parse(change["path"].as_str()?).ok())
        .collect()
}

fn ranges_of(ranges: &Value) -> Vec<RangeInclusive<u64>> {
    let ranges = ranges.as_array().into_iter().flatten();
    ranges
        .filter_map(|range| Some(range[0].as_u64()?..=range[1].as_u64()?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Db;

    #[tokio::test]
    async fn a_tool_takes_back_its_own_paths_and_a_command_all_in_its_range() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let row = |tool: Option<&str>| {
            let changed = changes_as_json(&[("own".to_owned(), "write")]);
            let data = json!({ "before": 1, "after": 3, "tool": tool, "changed": changed });
            Entry::new(Kind::Command, &data).in_session(1)
        };
        db.append(vec![row(None), row(Some("write_file"))])
            .await
            .expect("durable");
        let (found, _) = db
            .read(|connection| undoable(connection, 1, 2))
            .await
            .expect("readable");
        let only: Vec<_> = found.into_iter().map(|it| it.only).collect();
        let own = WorkspacePath::parse("own").expect("a path");
        assert_eq!(only, [Some([own].into()), None]);
    }
}
