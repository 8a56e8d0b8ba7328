//! A supervisor with an observer that keeps what it sees, and agents that are real processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use quintet_agent::logs::LogLine;
use quintet_agent::{
    AgentId, CgroupUse, Element, InboundMessage, InstanceEvent, InstanceHandle, InstanceSpec,
    Observer, Phase, ProcessLimits, RestartPolicy, Supervisor, SupervisorOptions, Timings, TurnEnd,
};
use serde_json::{Map, Value};
use tokio::sync::watch;

/// Long enough that only a hang runs into it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Keeps every event.
#[derive(Debug)]
pub(crate) struct Recorder {
    events: Mutex<Vec<InstanceEvent>>,
    count: watch::Sender<usize>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            events: Mutex::default(),
            count: watch::Sender::new(0),
        }
    }
}

impl Observer for Recorder {
    async fn observe(&self, _agent: &AgentId, batch: Vec<InstanceEvent>) {
        let mut events = self.events.lock().unwrap();
        events.extend(batch);
        self.count.send_replace(events.len());
    }
}

impl Recorder {
    pub(crate) fn events(&self) -> Vec<InstanceEvent> {
        self.events.lock().unwrap().clone()
    }

    /// Waits until an event fulfils `condition`.
    pub(crate) async fn saw(
        &self,
        mut condition: impl FnMut(&InstanceEvent) -> bool,
    ) -> InstanceEvent {
        let mut count = self.count.subscribe();
        let found = async {
            let mut looked_at = 0;
            loop {
                {
                    let events = self.events.lock().unwrap();
                    let new = &events[looked_at..];
                    if let Some(event) = new.iter().find(|event| condition(event)) {
                        return event.clone();
                    }
                    looked_at = events.len();
                }
                count.changed().await.expect("the recorder lives");
            }
        };
        tokio::time::timeout(PATIENCE, found)
            .await
            .unwrap_or_else(|_| panic!("never seen; all: {:?}", self.events()))
    }

    /// The text of all text deltas, in order.
    pub(crate) fn text(&self) -> String {
        self.events()
            .into_iter()
            .filter_map(|event| match event {
                InstanceEvent::Element {
                    element: Element::TextDelta { text },
                    ..
                } => Some(text),
                _ => None,
            })
            .collect()
    }

    /// The phases that were entered, in order.
    pub(crate) fn phases(&self) -> Vec<Phase> {
        self.events()
            .into_iter()
            .filter_map(|event| match event {
                InstanceEvent::Phase { to, .. } => Some(to),
                _ => None,
            })
            .collect()
    }
}

/// A supervisor in a folder of its own.
pub(crate) struct World<O: Observer = Recorder> {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) observer: Arc<O>,
    pub(crate) supervisor: Supervisor<O>,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::with(CgroupUse::WherePossible, Recorder::default())
    }
}

impl<O: Observer> World<O> {
    pub(crate) fn with(cgroups: CgroupUse, observer: O) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let observer = Arc::new(observer);
        let supervisor = Supervisor::new(options(folder.path(), cgroups), Arc::clone(&observer));
        Self {
            supervisor: supervisor.unwrap(),
            folder,
            observer,
        }
    }

    /// An instance that runs `command`.
    pub(crate) fn spec(&self, command: &[&str]) -> InstanceSpec {
        spec(self.folder.path(), command)
    }

    /// An instance that runs a Python agent of this folder.
    pub(crate) fn python(&self, script: &str, arguments: &[&str]) -> InstanceSpec {
        let script = agent_script(script);
        let mut command = vec![python(), script.to_str().unwrap()];
        command.extend(arguments);
        self.spec(&command)
    }

    /// An instance that runs an example of this crate.
    pub(crate) fn example(&self, name: &str) -> InstanceSpec {
        let test = std::env::current_exe().unwrap();
        let built = test.ancestors().nth(2).unwrap().join("examples").join(name);
        assert!(built.exists(), "{} is not built", built.display());
        self.spec(&[built.to_str().unwrap()])
    }

    pub(crate) async fn open(&self, spec: InstanceSpec) -> InstanceHandle {
        self.supervisor.open(spec).await.unwrap()
    }

    /// Ends everything and shows that nothing is left: not in the ledger, not in `/proc`.
    pub(crate) async fn finish(self) {
        self.supervisor.shutdown_all(Duration::from_secs(5)).await;
        let ledger = std::fs::read_to_string(self.folder.path().join("ledger")).unwrap_or_default();
        assert_eq!(ledger, "", "the ledger still holds processes");
        assert_eq!(processes_of(self.folder.path()), Vec::<i32>::new());
    }
}

pub(crate) fn options(folder: &Path, cgroups: CgroupUse) -> SupervisorOptions {
    SupervisorOptions {
        ledger: folder.join("ledger"),
        short_dir: None,
        cgroups,
    }
}

pub(crate) fn spec(folder: &Path, command: &[&str]) -> InstanceSpec {
    let workspace = folder.join("workspace");
    std::fs::create_dir_all(&workspace).unwrap();
    InstanceSpec {
        agent_id: "agent_1".into(),
        agent_type: "test".to_owned(),
        command: command.iter().map(|word| (*word).to_owned()).collect(),
        cwd: workspace.clone(),
        env: BTreeMap::from([
            ("PATH".to_owned(), path_variable()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ]),
        instance_dir: folder.join("instances/agent_1"),
        workspace,
        config: Map::new(),
        limits: ProcessLimits::default(),
        timings: quick(),
    }
}

/// Short enough for tests, long enough for a loaded machine.
pub(crate) fn quick() -> Timings {
    Timings {
        shutdown_grace: Duration::from_millis(300),
        term_grace: Duration::from_millis(300),
        cancel_grace: Duration::from_millis(300),
        complete_grace: Duration::from_millis(300),
        restart: RestartPolicy {
            base: Duration::from_millis(10),
            cap: Duration::from_millis(20),
            breaker_crashes: 1000,
            ..RestartPolicy::default()
        },
        ..Timings::default()
    }
}

pub(crate) fn agent_script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/agents")
        .join(name)
}

/// The interpreter itself: a version manager's `python3` is a script that starts others.
pub(crate) fn python() -> &'static str {
    static PYTHON: OnceLock<String> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let print = "import sys; print(sys.executable, end='')";
        let output = std::process::Command::new("python3")
            .args(["-c", print])
            .output();
        String::from_utf8(output.expect("python3 is installed").stdout).unwrap()
    })
}

fn path_variable() -> String {
    std::env::var("PATH").unwrap()
}

/// Runs a text and waits for its end.
pub(crate) async fn run(handle: &InstanceHandle, text: &str) -> TurnEnd {
    let id = format!("msg_{text}");
    tokio::time::timeout(PATIENCE, handle.run(InboundMessage::text(id, text)))
        .await
        .expect("the message ends")
}

/// Waits until the instance is in `phase`.
pub(crate) async fn reaches(handle: &InstanceHandle, phase: Phase) {
    let reached = handle.wait_for(|status| status.phase == phase);
    tokio::time::timeout(PATIENCE, reached)
        .await
        .unwrap_or_else(|_| panic!("never {phase}: {:?}", handle.status()))
        .expect("the supervisor lives");
}

/// The whole log of an instance.
pub(crate) async fn log_lines(handle: &InstanceHandle) -> Vec<LogLine> {
    handle.log().tail(usize::MAX).await.unwrap().0
}

/// Whether a line of the log contains `text`.
pub(crate) async fn logged(handle: &InstanceHandle, text: &str) -> bool {
    log_lines(handle)
        .await
        .iter()
        .any(|line| line.message.contains(text))
}

/// Living processes whose environment or command line names something in `folder`.
pub(crate) fn processes_of(folder: &Path) -> Vec<i32> {
    let needle = folder.to_str().unwrap().as_bytes();
    let own = i32::try_from(std::process::id()).unwrap();
    let names = |path: PathBuf| {
        std::fs::read(path)
            .is_ok_and(|text| text.windows(needle.len()).any(|window| window == needle))
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let is_zombie = stat.rsplit(')').next()?.trim_start().starts_with('Z');
            let is_ours =
                names(entry.path().join("environ")) || names(entry.path().join("cmdline"));
            (pid != own && !is_zombie && is_ours).then_some(pid)
        })
        .collect()
}

/// Waits for a fact that nobody announces, such as the end of another's process.
pub(crate) async fn wait_until(mut fact: impl FnMut() -> bool) {
    let reached = async {
        while !fact() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, reached)
        .await
        .expect("it comes true");
}

pub(crate) fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => panic!("no object: {other}"),
    }
}
