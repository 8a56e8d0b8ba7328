//! The tools that agents use: what each does, and the way that every call goes.
//!
//! A call comes in over MCP with the token of its instance. The policy is asked, and a person where
//! the policy says so; then the tool does its work in the session's workspace, and the use is in the
//! journal: `tool_started` before, `tool_ended` after, also for a call that was refused. A file is
//! opened beneath the workspace by the kernel itself; a path outside is opened only when a rule or
//! a person allowed it.

mod answers;
mod commands;
mod files;
mod find;
mod gate;
mod live;
mod on_files;
mod seen;
mod specs;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use quintet_agent::proto::message::{AgentId, AskOutcome, Question};
use quintet_mcp::{
    CallError, ExternalTool, Externals, ServerSpec, ToolCall, ToolOutcome, ToolSpec, Tools,
};
use quintet_sandbox::hub::ExecOutcome;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, mpsc, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use answers::{Answer, Answers};
use commands::{CommandRequest, SessionCommands};
use files::Target;
use gate::{Leave, NoLeave};
use on_files::blocking;
use seen::Memory;

use crate::config::{Config, McpConfig, Secret};
use crate::daemon::Runtime;
use crate::journal::{Entry, Kind};
use crate::policy::{Isolation, Subject};
use crate::refusal::Refusal;
use crate::sessions::approvals::Action;
use crate::sessions::asks::{self, Opened};
use crate::sessions::{self, Session};
use crate::turns::session_of;

/// How long a command may run when nothing else is said.
const EXEC_TIMEOUT: u64 = 600;

/// The longest that may be said.
const MAX_EXEC_TIMEOUT: u64 = 24 * 3600;

/// How much of a call's arguments its row in the journal holds.
const MAX_NOTED: usize = 4096;

/// Pieces of output that wait to be shown; the command waits beyond that.
const SHOWN_AT_ONCE: usize = 16;

/// Questions of one `ask_user`.
const MAX_QUESTIONS: usize = 16;

/// What the tools keep between calls.
pub(crate) struct ToolState {
    externals: Externals,
    memory: Memory,
    /// Held while a tool writes a file, so that two edits of one file are one after the other.
    writing: Mutex<()>,
    /// The instances that know of a tool server that is not there. Short sections without an await.
    told: std::sync::Mutex<BTreeSet<(String, AgentId)>>,
}

impl ToolState {
    /// `base_env` is what processes of tool servers see of our environment, `home` where they start.
    pub(crate) fn new(base_env: &BTreeMap<String, String>, home: PathBuf) -> Self {
        let base_env = base_env
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value)))
            .collect();
        Self {
            externals: Externals::new(base_env, home),
            memory: Memory::default(),
            writing: Mutex::default(),
            told: std::sync::Mutex::default(),
        }
    }

    /// Keeps the tool servers those of the configuration until `stop`, then ends them.
    pub(crate) async fn follow(
        &self,
        mut config: watch::Receiver<Arc<Config>>,
        stop: CancellationToken,
    ) {
        loop {
            let specs = specs_of(&config.borrow_and_update().clone());
            self.externals.configure(specs).await;
            tokio::select! {
                () = stop.cancelled() => break,
                changed = config.changed() => if changed.is_err() { break },
            }
        }
        self.externals.shutdown().await;
    }
}

fn specs_of(config: &Config) -> BTreeMap<String, ServerSpec> {
    let exposed = |secrets: &BTreeMap<String, Secret>| {
        secrets
            .iter()
            .map(|(name, value)| (name.clone(), value.expose().to_owned()))
            .collect()
    };
    config
        .mcps
        .iter()
        .map(|(name, server)| {
            let spec = match server {
                McpConfig::Command { command, env } => ServerSpec::Command {
                    command: command.clone(),
                    env: exposed(env),
                },
                McpConfig::Url { url, headers } => ServerSpec::Url {
                    url: url.clone(),
                    headers: exposed(headers),
                },
            };
            (name.clone(), spec)
        })
        .collect()
}

/// The tools of one daemon, for the server that agents call.
#[derive(Clone)]
pub(crate) struct ToolServer {
    runtime: Arc<Runtime>,
}

/// One call on its way.
struct Call {
    /// Its id in the journal.
    id: String,
    /// The agent's own id of it, where it told one.
    agents_id: Option<String>,
    tool: String,
    instance: AgentId,
    session: Session,
    /// The worker of the session.
    worker: String,
    /// Where that worker has the workspace, when that is a copy of its own.
    copy: Option<PathBuf>,
}

impl Tools for ToolServer {
    type Instance = AgentId;

    fn instance(&self, token: &str) -> Option<AgentId> {
        self.runtime.coordinator.instances().owner_of(token)
    }

    fn key(&self, instance: &AgentId) -> String {
        instance.as_str().to_owned()
    }

    async fn list(&self, instance: &AgentId) -> Vec<ToolSpec> {
        let mut tools = specs::all();
        let externals = self.runtime.tools.externals.list().await;
        self.tell_missing(instance).await;
        tools.extend(externals.into_iter().map(|tool| tool.spec));
        tools
    }

    async fn call(
        &self,
        instance: &AgentId,
        call: ToolCall,
        cancelled: CancellationToken,
    ) -> ToolOutcome {
        let started = Instant::now();
        let on_its_way = match self.prepared(instance, &call).await {
            Ok(prepared) => prepared,
            Err(refusal) => return ToolOutcome::failure(refusal.to_string()),
        };
        let outcome = self.run(&on_its_way, call.arguments, &cancelled).await;
        let mut data = json!({
            "failed": outcome.failed,
            "duration_ms": u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
        });
        if outcome.failed {
            data["error"] = shortened(&outcome.to_text()).into();
        }
        self.note(&on_its_way, Kind::ToolEnded, data).await;
        outcome
    }
}

/// What a tool comes to: a text and its data, or what went wrong.
type Outcome = Result<ToolOutcome, String>;

impl ToolServer {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime }
    }

    async fn prepared(&self, instance: &AgentId, call: &ToolCall) -> Result<Call, Refusal> {
        let id = session_of(instance)
            .ok_or_else(|| Refusal::Internal(format!("{instance} serves no session")))?;
        let session = self
            .runtime
            .db
            .read(move |connection| sessions::open(connection, id))
            .await?;
        let worker = self.runtime.worker_of(&session);
        Ok(Call {
            id: uuid::Uuid::now_v7().to_string(),
            agents_id: call.agents_id.clone(),
            tool: call.name.clone(),
            instance: instance.clone(),
            copy: self.runtime.copy_of(&session, &worker),
            worker,
            session,
        })
    }

    async fn run(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> ToolOutcome {
        let outcome = match call.tool.as_str() {
            specs::EXEC => self.exec(call, arguments, cancelled).await,
            specs::READ_FILE => self.read_file(call, arguments, cancelled).await,
            specs::WRITE_FILE => self.write_file(call, arguments, cancelled).await,
            specs::EDIT_FILE => self.edit_file(call, arguments, cancelled).await,
            specs::LIST_FILES => self.list_files(call, arguments, cancelled).await,
            specs::SEARCH => self.search(call, arguments, cancelled).await,
            specs::ASK_USER => self.ask_user(call, arguments, cancelled).await,
            specs::UNDO => self.undo(call, arguments, cancelled).await,
            _ => self.external(call, arguments, cancelled).await,
        };
        outcome.unwrap_or_else(ToolOutcome::failure)
    }

    /// Leave for a call, and the row that it begins.
    async fn begin(
        &self,
        call: &Call,
        subject: Subject<'_>,
        action: Action,
        cancelled: &CancellationToken,
    ) -> Result<(), String> {
        let noted = json!({ "command": shortened(&action.command), "cwd": action.cwd, "worker": action.worker });
        let leave = self.leave(call, subject, action, cancelled).await;
        let (decision, why) = match &leave {
            Ok(Leave { decision, why }) => (*decision, why.as_str()),
            Err(NoLeave { decision, message }) => (*decision, message.as_str()),
        };
        let mut data = noted;
        data["decision"] = decision.into();
        data["why"] = why.into();
        self.note(call, Kind::ToolStarted, data).await;
        leave.map(drop).map_err(|no| no.message)
    }

    /// Leave for a file.
    async fn begin_with(
        &self,
        call: &Call,
        target: &Target,
        cancelled: &CancellationToken,
    ) -> Result<(), String> {
        let mut action = Action {
            action: call.tool.clone(),
            command: target.shown.clone(),
            cwd: call.session.workspace.clone(),
            worker: String::new(),
        };
        let mut decides = target.clone();
        // A rule for a file holds by whichever name it is reached.
        let named = target.clone();
        if let Some(real) = blocking(move || named.through_links()).await? {
            action.command = format!("{} -> {}", target.shown, real.shown);
            if self.is_as_strict(call, &real, target) {
                decides = real;
            }
        }
        let path = decides.path().display().to_string();
        let subject = Subject::Path {
            path: &path,
            root: &call.session.workspace,
        };
        self.begin(call, subject, action, cancelled).await
    }

    async fn exec(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            command: String,
            cwd: Option<String>,
            timeout_secs: Option<u64>,
        }
        let Arguments {
            command,
            cwd,
            timeout_secs,
        } = read(arguments)?;
        let timeout = timeout_secs.unwrap_or(EXEC_TIMEOUT);
        if timeout == 0 || timeout > MAX_EXEC_TIMEOUT {
            return Err(format!("timeout_secs is from 1 to {MAX_EXEC_TIMEOUT}"));
        }
        let folder = target(call, cwd.as_deref().unwrap_or_default());
        if folder.root == Path::new("/") && folder.root != Path::new(&call.session.workspace) {
            return Err(format!(
                "cwd {} is outside of the workspace; give one relative to it, or go there with `cd` in the command",
                folder.shown
            ));
        }
        let isolation = self.isolation(&call.worker);
        let action = Action {
            action: specs::EXEC.to_owned(),
            command: command.clone(),
            cwd: folder.path().display().to_string(),
            worker: call.worker.clone(),
        };
        let copy = call.copy.as_ref().map(|copy| copy.display().to_string());
        let subject = Subject::Command {
            line: &command,
            root: &call.session.workspace,
            copy: copy.as_deref(),
            cwd: &folder.name,
            isolation,
        };
        self.begin(call, subject, action, cancelled).await?;
        let request = CommandRequest {
            command,
            cwd: Some(folder.name).filter(|name| !name.is_empty()),
            timeout: Duration::from_secs(timeout),
            worker: call.worker.clone(),
        };
        let (shown, output) = mpsc::channel(SHOWN_AT_ONCE);
        let running = self.runtime.run(call.session.id, request, shown, cancelled);
        let (ran, ()) = tokio::join!(running, self.show_live(call, output));
        let ran = ran.map_err(said)?;
        let (code, end) = match ran.outcome {
            ExecOutcome::Exited(code) => (Some(code), format!("exit code {code}")),
            ExecOutcome::Signaled(signal) => {
                (Some(128 + signal), format!("killed by signal {signal}"))
            }
            ExecOutcome::TimedOut { secs } => (
                Some(124),
                format!("killed after {secs} s; give timeout_secs for longer"),
            ),
            ExecOutcome::Cancelled => (None, "cancelled".to_owned()),
        };
        let mut text = ran.output.to_text();
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("[{end}]"));
        if !ran.changed.is_empty() {
            text.push_str(&format!("\n[changed: {}]", named(&ran.changed)));
        }
        for note in &ran.notes {
            text.push_str(&format!("\n[{note}]"));
        }
        let data = json!({
            "exit_code": code,
            "duration_ms": u64::try_from(ran.duration.as_millis()).unwrap_or(u64::MAX),
            "cut": ran.output.is_cut(),
            "before": ran.sequences.map(|(before, _)| before),
            "after": ran.sequences.map(|(_, after)| after),
            "changed": as_json(&ran.changed),
            "notes": ran.notes,
        });
        let mut outcome = ToolOutcome::text(text).with_structured(data);
        outcome.failed = code != Some(0);
        Ok(outcome)
    }

    async fn ask_user(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            questions: Vec<Question>,
        }
        let Arguments { questions } = read(arguments)?;
        if questions.is_empty() || questions.len() > MAX_QUESTIONS {
            return Err(format!("ask from 1 to {MAX_QUESTIONS} questions"));
        }
        let action = plain_action(call, &questions[0].question);
        self.begin(call, Subject::Nothing, action, cancelled)
            .await?;
        let Some(turn) = self.turn(call) else {
            return Err("no turn is running to ask in".to_owned());
        };
        self.announced(call, &turn).await;
        let mut expected = self.runtime.coordinator.answers().expect();
        let (session, id, key) = (call.session.id, turn.id, expected.key().to_owned());
        let asked = questions.clone();
        let opened = self
            .runtime
            .db
            .write(move |tx| asks::open(tx, session, id, &key, &asked))
            .await
            .map_err(said)?;
        let (ask, answer) = match opened {
            Opened::Answered(outcome) => (None, Some(Answer::Ask(outcome))),
            Opened::Pending(ask) => {
                let answer = tokio::select! {
                    answer = expected.come() => answer,
                    () = turn.over() => None,
                    () = cancelled.cancelled() => None,
                };
                (Some(ask), answer)
            }
        };
        let Some(Answer::Ask(AskOutcome::Answered { answers })) = answer else {
            if let Some(ask) = ask
                && !self.runtime.coordinator.is_stopping()
            {
                self.runtime
                    .db
                    .write(move |tx| asks::withdraw_one(tx, ask))
                    .await
                    .map_err(said)?;
            }
            return Err("nobody answered before the call or its turn ended".to_owned());
        };
        let lines: Vec<String> = questions
            .iter()
            .zip(&answers)
            .map(|(question, answer)| format!("{}: {}", question.question, answer.join(", ")))
            .collect();
        Ok(ToolOutcome::text(lines.join("\n")).with_structured(json!({ "answers": answers })))
    }

    async fn undo(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Arguments {
            commands: u32,
        }
        let Arguments { commands } = read(arguments)?;
        let action = plain_action(call, &format!("the last {commands} commands"));
        self.begin(call, Subject::Nothing, action, cancelled)
            .await?;
        let undone = self
            .runtime
            .take_back(call.session.id, commands)
            .await
            .map_err(said)?;
        let mut text = format!(
            "commands taken back: {}; sequence {}: {}",
            undone.commands,
            undone.sequence,
            named(&undone.changed)
        );
        for skipped in &undone.skipped {
            text.push_str(&format!("\n[left alone: {skipped}]"));
        }
        let data = json!({
            "commands": undone.commands,
            "changed": as_json(&undone.changed),
            "skipped": undone.skipped,
            "sequence": undone.sequence,
        });
        Ok(ToolOutcome::text(text).with_structured(data))
    }

    async fn external(
        &self,
        call: &Call,
        arguments: Map<String, Value>,
        cancelled: &CancellationToken,
    ) -> Outcome {
        let externals = &self.runtime.tools.externals;
        let found = tokio::select! {
            found = externals.find(&call.tool) => found,
            () = cancelled.cancelled() => return Err(CallError::Cancelled.to_string()),
        };
        let ExternalTool {
            server,
            tool,
            network,
            ..
        } = match found {
            Some(found) => found.map_err(said)?,
            None => return Err(format!("there is no tool {:?}", call.tool)),
        };
        let shown = Value::Object(arguments.clone()).to_string();
        let action = plain_action(call, &shown);
        self.begin(call, Subject::External { network }, action, cancelled)
            .await?;
        externals
            .call(&server, &tool, arguments, cancelled)
            .await
            .map_err(said)
    }

    /// Says in the conversation which tool servers are not there, once until they are.
    async fn tell_missing(&self, instance: &AgentId) {
        let missing = self.runtime.tools.externals.missing();
        let news: Vec<String> = {
            let mut told = self
                .runtime
                .tools
                .told
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            told.retain(|(server, _)| missing.iter().any(|(name, _)| name == server));
            let news = missing
                .into_iter()
                .filter(|(name, _)| told.insert((name.clone(), instance.clone())));
            news.map(|(name, why)| {
                let place = format!("see [mcps.{name}]");
                let (why, place) = (why.replace(&format!("; {place}"), ""), place);
                format!("{why}; the agent works without its tools until it is, {place}")
            })
            .collect()
        };
        for text in news {
            let entry = Entry::new(Kind::Note, &json!({ "text": text }));
            self.write_row(instance, entry).await;
        }
    }

    fn isolation(&self, worker: &str) -> Isolation {
        let workers = self.runtime.workers.hub.workers();
        let found = workers.into_iter().find(|it| it.id == worker);
        let labels = found.map(|it| it.labels).unwrap_or_default();
        Isolation::of_worker(worker, &labels)
    }
}

/// What a call names. A path of the worker's copy, such as its commands print, is the workspace's.
fn target(call: &Call, path: &str) -> Target {
    let workspace = Path::new(&call.session.workspace);
    let named = Target::new(workspace, path);
    let copied = call.copy.as_ref().and_then(|copy| {
        let path = named.path();
        path.strip_prefix(copy).map(Path::to_owned).ok()
    });
    match copied.as_deref().and_then(Path::to_str) {
        Some(inside) => Target::new(workspace, inside),
        None => named,
    }
}

/// What is asked about for a tool that is no command and names no file.
fn plain_action(call: &Call, what: &str) -> Action {
    Action {
        action: call.tool.clone(),
        command: what.to_owned(),
        ..Action::default()
    }
}

fn read<T: DeserializeOwned>(arguments: Map<String, Value>) -> Result<T, String> {
    serde_path_to_error::deserialize(Value::Object(arguments)).map_err(|error| {
        let (path, reason) = (error.path().to_string(), error.inner().to_string());
        let is_named = path == "." || reason.contains(&format!("`{path}`"));
        match is_named {
            true => format!("the arguments are wrong: {reason}"),
            false => format!("the arguments are wrong: {path}: {reason}"),
        }
    })
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_NOTED) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

fn named(changed: &[(String, &'static str)]) -> String {
    const NAMED: usize = 50;
    let mut names: Vec<String> = changed
        .iter()
        .take(NAMED)
        .map(|(path, change)| format!("{path} ({change})"))
        .collect();
    if changed.len() > NAMED {
        names.push(format!("and {} more", changed.len() - NAMED));
    }
    names.join(", ")
}

fn as_json(changed: &[(String, &'static str)]) -> Value {
    changed
        .iter()
        .map(|(path, change)| json!({ "path": path, "change": change }))
        .collect()
}
