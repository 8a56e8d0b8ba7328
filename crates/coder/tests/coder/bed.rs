//! A supervisor, a model, tools, and one coder.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quintet_agent::{
    AgentId, CgroupUse, Element, InboundMessage, InstanceEvent, InstanceHandle, InstanceSpec,
    Observer, Origin, ProcessLimits, RestartPolicy, Supervisor, SupervisorOptions, Timings,
    TokenUsage, TurnEnd,
};
use quintet_models::test_server::{Received, Reply, TestServer};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::tool_server::{TOKEN, ToolServer};

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(crate) struct Seen {
    events: Mutex<Vec<InstanceEvent>>,
    count: watch::Sender<usize>,
}

impl Observer for Seen {
    async fn observe(&self, _: &AgentId, batch: Vec<InstanceEvent>) {
        let mut events = self.events.lock().unwrap();
        events.extend(batch);
        self.count.send_replace(events.len());
    }
}

pub(crate) struct Bed {
    pub(crate) model: TestServer,
    pub(crate) tools: ToolServer,
    pub(crate) agent: InstanceHandle,
    pub(crate) seen: Arc<Seen>,
    supervisor: Supervisor<Seen>,
    _folder: tempfile::TempDir,
}

impl Bed {
    pub(crate) async fn new(script: Vec<Reply>) -> Self {
        Self::with(script, json!({})).await
    }

    /// With more in `init.config`.
    pub(crate) async fn with(script: Vec<Reply>, more: Value) -> Self {
        Self::over(TestServer::start(script).await, more).await
    }

    /// With a model of one's own.
    pub(crate) async fn over(model: TestServer, more: Value) -> Self {
        let tools = ToolServer::start().await;
        let folder = tempfile::tempdir().unwrap();
        let skills = folder.path().join("skills/release");
        std::fs::create_dir_all(&skills).unwrap();
        let skill =
            "---\nname: release\ndescription: makes a release\n---\nFirst tag, then push.\n";
        std::fs::write(skills.join("SKILL.md"), skill).unwrap();
        let seen = Arc::new(Seen::default());
        let options = SupervisorOptions {
            ledger: folder.path().join("ledger"),
            short_dir: None,
            cgroups: CgroupUse::WherePossible,
        };
        let supervisor = Supervisor::new(options, Arc::clone(&seen)).unwrap();
        let mut config = json!({
            "model": "claude-sonnet-4-5",
            "ensemble_url": model.url(), "ensemble_api_key": "instance-key",
            "mcp_url": tools.url, "mcp_token": TOKEN,
            "skills_dir": folder.path().join("skills"),
        });
        for (key, value) in more.as_object().unwrap() {
            config[key] = value.clone();
        }
        let test = std::env::current_exe().unwrap();
        let program = test
            .ancestors()
            .nth(2)
            .unwrap()
            .join("examples/coder_agent");
        let workspace = folder.path().join("workspace");
        std::fs::create_dir_all(&workspace).unwrap();
        let spec = InstanceSpec {
            agent_id: "coder-1".into(),
            agent_type: "coder".into(),
            command: vec![program.to_str().unwrap().to_owned()],
            cwd: workspace.clone(),
            env: BTreeMap::new(),
            instance_dir: folder.path().join("instances/coder-1"),
            workspace,
            config: config.as_object().unwrap().clone(),
            limits: ProcessLimits::default(),
            timings: Timings {
                restart: RestartPolicy {
                    base: Duration::from_millis(10),
                    ..RestartPolicy::default()
                },
                ..Timings::default()
            },
        };
        let agent = supervisor.open(spec).await.unwrap();
        Self {
            model,
            tools,
            agent,
            seen,
            supervisor,
            _folder: folder,
        }
    }

    pub(crate) async fn say(&self, text: &str) -> TurnEnd {
        self.send(InboundMessage::text("msg", text)).await
    }

    pub(crate) async fn send(&self, message: InboundMessage) -> TurnEnd {
        tokio::time::timeout(PATIENCE, self.agent.run(message))
            .await
            .expect("the message ends")
    }

    /// Kills the agent's process.
    pub(crate) fn crash(&self) {
        let pid = self.agent.status().pid.unwrap();
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    /// A message as the daemon asks for a summary.
    pub(crate) fn summary_request() -> InboundMessage {
        InboundMessage {
            origin: Origin {
                channel: "daemon".into(),
                ..Origin::default()
            },
            ..InboundMessage::text(
                "msg",
                "Summarise this conversation so that you could go on.",
            )
        }
    }

    pub(crate) fn elements(&self) -> Vec<Element> {
        let events = self.seen.events.lock().unwrap();
        events
            .iter()
            .filter_map(|event| match event {
                InstanceEvent::Element { element, .. } => Some(element.clone()),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn usages(&self) -> Vec<TokenUsage> {
        let events = self.seen.events.lock().unwrap();
        events
            .iter()
            .filter_map(|event| match event {
                InstanceEvent::Usage(usage) => Some(*usage),
                _ => None,
            })
            .collect()
    }

    pub(crate) fn text(&self) -> String {
        self.elements()
            .into_iter()
            .filter_map(|element| match element {
                Element::TextDelta { text } => Some(text),
                _ => None,
            })
            .collect()
    }

    /// Waits until the text so far holds `part`.
    pub(crate) async fn said(&self, part: &str) {
        let mut count = self.seen.count.subscribe();
        let found = async {
            while !self.text().contains(part) {
                count.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, found).await.expect("said");
    }

    /// What the model was asked, the newest last.
    pub(crate) fn asked(&self) -> Vec<Received> {
        self.model.received()
    }

    pub(crate) async fn finish(self) {
        self.supervisor.shutdown_all(Duration::from_secs(5)).await;
    }
}

/// The messages of a request.
pub(crate) fn messages(received: &Received) -> Vec<Value> {
    received.body["messages"].as_array().unwrap().clone()
}

/// The last block of the last message of a request.
pub(crate) fn last_block(received: &Received) -> Value {
    let messages = messages(received);
    let content = messages.last().unwrap()["content"].as_array().unwrap();
    content.last().unwrap().clone()
}
