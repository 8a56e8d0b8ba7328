//! Agent instances: one for each session, described by the configuration.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quintet_agent::logs::InstanceLog;
use quintet_agent::proto::message::AgentId;
use quintet_agent::{
    InstanceHandle, InstanceSpec, InstanceStatus, OpenError, ProcessLimits, Supervisor, Timings,
};
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::TurnObserver;
use crate::config::{AgentConfig, AgentKind, AgentProgram, BuiltinAgent, Config};
use crate::home::Home;
use crate::models::{self, AgentDoor};
use crate::refusal::Refusal;
use crate::sessions::Session;

/// The agents' processes, by session. Clones share them.
#[derive(Clone)]
pub(crate) struct Instances {
    inner: Arc<Inner>,
}

struct Inner {
    supervisor: Supervisor<TurnObserver>,
    config: watch::Receiver<Arc<Config>>,
    home: Home,
    program: PathBuf,
    base_env: BTreeMap<String, String>,
    door: AgentDoor,
    /// The workspace of each instance that was opened. Held for look-ups only.
    workspaces: Mutex<BTreeMap<AgentId, PathBuf>>,
}

/// An agent as a listing shows it.
#[derive(Debug, Clone)]
pub(crate) struct AgentListing {
    /// Its name.
    pub(crate) name: String,
    /// `builtin`, `process` or `acp`.
    pub(crate) kind: &'static str,
    /// One line.
    pub(crate) description: String,
    /// Its instances that have been started since the daemon runs.
    pub(crate) instances: Vec<(AgentId, InstanceStatus)>,
}

impl Instances {
    pub(crate) fn new(
        supervisor: Supervisor<TurnObserver>,
        config: watch::Receiver<Arc<Config>>,
        home: Home,
        program: PathBuf,
        base_env: BTreeMap<String, String>,
        door: AgentDoor,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                supervisor,
                config,
                home,
                program,
                base_env,
                door,
                workspaces: Mutex::default(),
            }),
        }
    }

    /// The configuration in force.
    pub(crate) fn config(&self) -> Arc<Config> {
        self.inner.config.borrow().clone()
    }

    /// Whether an agent of that name can be started.
    pub(crate) fn knows(&self, agent: &str) -> bool {
        let config = self.config();
        let agent = config.agents.get(agent);
        agent.is_some_and(|agent| is_ready(&config, agent))
    }

    /// Whether an agent of that name is there and only lacks a provider.
    pub(crate) fn needs_key(&self, agent: &str) -> bool {
        let config = self.config();
        let agent = config.agents.get(agent);
        agent.is_some_and(|agent| !is_ready(&config, agent))
    }

    /// The agent that a client gets when it names none.
    pub(crate) fn default_agent(&self) -> &'static str {
        match self.knows("coder") {
            true => "coder",
            false => "shell",
        }
    }

    /// The folder of a session that brought none of its own.
    pub(crate) fn own_folder(&self, session: &Session) -> PathBuf {
        self.dir(&session.agent_id()).join("workspace")
    }

    /// The instance that serves a session, opened where it is not yet. Starts no process.
    pub(crate) async fn of_session(&self, session: &Session) -> Result<InstanceHandle, Refusal> {
        // First: one that is open still may be of an agent that is gone.
        self.require(&session.agent)?;
        if let Some(handle) = self.find(&session.agent_id()) {
            return Ok(handle);
        }
        let spec = self.spec(session)?;
        std::fs::create_dir_all(&spec.workspace)
            .map_err(|error| Refusal::Internal(format!("{}: {error}", spec.workspace.display())))?;
        let (id, workspace) = (spec.agent_id.clone(), spec.workspace.clone());
        match self.inner.supervisor.open(spec).await {
            Ok(handle) => {
                self.workspaces().insert(id, workspace);
                Ok(handle)
            }
            // Somebody else was faster.
            Err(OpenError::AlreadyOpen(id)) => self
                .find(id.as_str())
                .ok_or_else(|| Refusal::Internal(format!("instance {id} is ending"))),
            Err(error) => Err(Refusal::Internal(error.to_string())),
        }
    }

    fn workspaces(&self) -> MutexGuard<'_, BTreeMap<AgentId, PathBuf>> {
        self.inner
            .workspaces
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The names by which instances reach the daemon; a request with another `Host` is no agent's.
    pub(crate) fn hosts(&self) -> Vec<String> {
        let own = self.inner.door.url().parse::<axum::http::Uri>().ok();
        let own = own.and_then(|url| Some(url.host()?.trim_matches(['[', ']']).to_owned()));
        let loopback = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        loopback.into_iter().chain(own).collect()
    }

    /// The instance that a key was made for, while its process runs.
    pub(crate) fn owner_of(&self, key: &str) -> Option<AgentId> {
        let instance = self.inner.door.owner(key)?;
        self.find(instance.as_str())?.status().pid?;
        Some(instance)
    }

    /// Whether it is the built-in agent that runs a person's own lines.
    pub(crate) fn is_shell(&self, instance: &AgentId) -> bool {
        let config = self.config();
        let agent = config.agents.get(agent_of(instance));
        agent.is_some_and(|it| it.program == AgentProgram::Builtin(BuiltinAgent::Shell))
    }

    /// An instance that has been opened.
    pub(crate) fn find(&self, agent_id: &str) -> Option<InstanceHandle> {
        self.inner.supervisor.get(&AgentId::from(agent_id))
    }

    fn require(&self, agent: &str) -> Result<(), Refusal> {
        match self.knows(agent) {
            true => Ok(()),
            false => Err(no_longer_configured(agent)),
        }
    }

    /// What an instance of a session logged, also when it is not open.
    pub(crate) fn stored_log(&self, session: &Session) -> InstanceLog {
        InstanceLog::new(self.dir(&session.agent_id()).join("logs"))
    }

    /// The instances that are open and whose agent is no longer configured.
    pub(crate) fn orphans(&self) -> Vec<AgentId> {
        let open = self.inner.supervisor.list();
        open.into_iter()
            .map(|(agent_id, _)| agent_id)
            .filter(|agent_id| !self.knows(agent_of(agent_id)))
            .collect()
    }

    /// Ends an instance's process for good.
    ///
    /// Its key is dead when this returns; what is to be awaited takes as long as its process does.
    pub(crate) fn retire(
        &self,
        agent_id: AgentId,
        reason: &'static str,
    ) -> impl Future<Output = ()> + Send + use<> {
        self.inner.door.forget(&agent_id);
        let this = self.clone();
        async move {
            this.inner.supervisor.close(&agent_id, reason).await;
            this.workspaces().remove(&agent_id);
        }
    }

    /// Every configured agent, and its instances.
    pub(crate) fn list(&self) -> Vec<AgentListing> {
        let open = self.inner.supervisor.list();
        let config = self.config();
        config
            .agents
            .iter()
            .filter(|(_, agent)| is_ready(&config, agent))
            .map(|(name, agent)| AgentListing {
                name: name.clone(),
                kind: match (&agent.program, agent.kind) {
                    (AgentProgram::Builtin(_), _) => "builtin",
                    (AgentProgram::Command(_), AgentKind::Process) => "process",
                    (AgentProgram::Command(_), AgentKind::Acp) => "acp",
                },
                description: agent.description.clone(),
                instances: open
                    .iter()
                    .filter(|(agent_id, _)| agent_of(agent_id) == name)
                    .cloned()
                    .collect(),
            })
            .collect()
    }

    /// Tells running agents what changed in their configuration; no turn is stopped.
    pub(crate) async fn apply(&self, old: &Config, new: &Config) {
        let opened = self.workspaces().clone();
        for (agent_id, workspace) in opened {
            let name = agent_of(&agent_id);
            let (Some(before), Some(after), Some(handle)) = (
                old.agents.get(name),
                new.agents.get(name),
                self.inner.supervisor.get(&agent_id),
            ) else {
                continue;
            };
            let told = |config, agent| self.init_config(config, agent, &agent_id);
            let changes = changed_keys(&told(old, before), &told(new, after));
            if !changes.is_empty() {
                handle.config_update(changes, "user").await;
            }
            if needs_new_process(before, after) {
                let spec = self.describe(after, &agent_id, workspace);
                handle.replace_spec(spec).await;
            }
        }
    }

    /// Ends every process within the deadline.
    pub(crate) async fn shutdown(&self, deadline: std::time::Duration) {
        self.inner.supervisor.shutdown_all(deadline).await;
    }

    fn dir(&self, agent_id: &str) -> PathBuf {
        self.inner.home.instances_dir().join(agent_id)
    }

    fn spec(&self, session: &Session) -> Result<InstanceSpec, Refusal> {
        let config = self.config();
        let agent = config
            .agents
            .get(&session.agent)
            .filter(|agent| is_ready(&config, agent))
            .ok_or_else(|| no_longer_configured(&session.agent))?;
        let agent_id = session.agent_id().into();
        Ok(self.describe(agent, &agent_id, session.workspace.clone().into()))
    }

    fn describe(
        &self,
        agent: &AgentConfig,
        agent_id: &AgentId,
        workspace: PathBuf,
    ) -> InstanceSpec {
        let mut env = self.inner.base_env.clone();
        env.extend(
            agent
                .env
                .iter()
                .map(|(key, value)| (key.clone(), value.expose().to_owned())),
        );
        InstanceSpec {
            agent_id: agent_id.clone(),
            agent_type: agent_of(agent_id).to_owned(),
            command: self.command(agent),
            cwd: agent.cwd.clone().unwrap_or_else(|| workspace.clone()),
            env,
            instance_dir: self.dir(agent_id.as_str()),
            workspace,
            config: self.init_config(&self.config(), agent, agent_id),
            limits: ProcessLimits {
                memory_max: agent.memory_max.map(|size| size.bytes()),
                open_files: agent.files_max.map(u64::from),
                cpu_seconds: agent.cpu_seconds.map(u64::from),
                file_size: agent.file_size.map(|size| size.bytes()),
            },
            timings: Timings {
                idle_timeout: Some(agent.idle_timeout),
                stall_after: agent.stall_after,
                turn_deadline: agent.turn_deadline,
                ..Timings::default()
            },
        }
    }

    /// What an instance is told of its configuration; no secret but its own key.
    fn init_config(
        &self,
        config: &Config,
        agent: &AgentConfig,
        agent_id: &AgentId,
    ) -> Map<String, Value> {
        let mut told = Map::new();
        let model = agent
            .model
            .clone()
            .or_else(|| models::default_model(config));
        // Also when none is set: agents may rely on the key.
        told.insert("model".into(), model.unwrap_or_default().into());
        if !agent.prompt.is_empty() {
            told.insert("prompt".into(), agent.prompt.clone().into());
        }
        if let Some(tokens) = agent.context_tokens {
            told.insert("context_tokens".into(), tokens.into());
        }
        let skills = self.inner.home.skills_dir().display().to_string();
        told.insert("skills_dir".into(), skills.into());
        self.inner.door.tell(agent_id, &mut told);
        told
    }

    fn command(&self, agent: &AgentConfig) -> Vec<String> {
        let own = |words: &[&str]| -> Vec<String> {
            std::iter::once(self.inner.program.display().to_string())
                .chain(words.iter().map(|word| (*word).to_owned()))
                .collect()
        };
        match (&agent.program, agent.kind) {
            (AgentProgram::Builtin(BuiltinAgent::Shell), _) => own(&["agent-run", "shell"]),
            (AgentProgram::Builtin(BuiltinAgent::Coder), _) => own(&["agent-run", "coder"]),
            (AgentProgram::Command(words), AgentKind::Process) => words.clone(),
            (AgentProgram::Command(words), AgentKind::Acp) => {
                let mut command = own(&["agent-run", "acp", "--"]);
                command.extend(words.iter().cloned());
                command
            }
        }
    }
}

fn no_longer_configured(agent: &str) -> Refusal {
    Refusal::NotFound(format!(
        "agent {agent:?} is no longer configured; see `quintet agents`"
    ))
}

/// Whether the agent can be run: one that needs a model needs a provider.
fn is_ready(config: &Config, agent: &AgentConfig) -> bool {
    agent.program != AgentProgram::Builtin(BuiltinAgent::Coder) || models::is_set(config)
}

/// The agent's name in an instance's id.
pub(crate) fn agent_of(agent_id: &AgentId) -> &str {
    agent_id
        .as_str()
        .rsplit_once('-')
        .map_or(agent_id.as_str(), |(name, _)| name)
}

/// The keys whose values differ, with the new ones; null for a key that is gone.
fn changed_keys(old: &Map<String, Value>, new: &Map<String, Value>) -> Map<String, Value> {
    let gone = old
        .keys()
        .filter(|key| !new.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    new.iter()
        .filter(|(key, value)| old.get(*key) != Some(*value))
        .map(|(key, value)| (key.clone(), value.clone()))
        .chain(gone)
        .collect()
}

fn needs_new_process(old: &AgentConfig, new: &AgentConfig) -> bool {
    let without_told = |agent: &AgentConfig| AgentConfig {
        model: None,
        fallback: Vec::new(),
        context_tokens: None,
        prompt: String::new(),
        description: String::new(),
        budget: Default::default(),
        ..agent.clone()
    };
    without_told(old) != without_told(new)
}
