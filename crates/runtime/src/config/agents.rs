//! `[agents.NAME]`: programs that agents run as.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use rust_decimal::Decimal;

use super::problem::ProblemKind;
use super::reader::Section;
use super::secret::Secret;
use super::setting::{invalid, word_setting};
use super::source::KeyPath;
use super::units::ByteSize;

const DEFAULT_IDLE_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_STALL_AFTER: Duration = Duration::from_secs(120);

/// What an agent's process speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentKind {
    /// The agent plane.
    Process,
    /// The Agent Client Protocol on standard input and output.
    Acp,
}

word_setting!(AgentKind {
    "process" => AgentKind::Process,
    "acp" => AgentKind::Acp,
});

/// An agent that is part of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BuiltinAgent {
    /// Runs what it is told, without a model.
    Shell,
    /// Works with a model.
    Coder,
}

impl BuiltinAgent {
    fn named(name: &str) -> Option<Self> {
        match name {
            "shell" => Some(Self::Shell),
            "coder" => Some(Self::Coder),
            _ => None,
        }
    }
}

/// What is started for an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentProgram {
    /// A part of this program.
    Builtin(BuiltinAgent),
    /// A program and its arguments, never empty.
    Command(Vec<String>),
}

impl AgentProgram {
    /// Whether a message is what it says alone, word for word, and nothing came before it.
    pub(crate) fn takes_lines(&self) -> bool {
        *self == Self::Builtin(BuiltinAgent::Shell)
    }
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// What is started: its own, or that of the agent it names as `program`.
    pub program: AgentProgram,
    /// What the process speaks.
    pub kind: AgentKind,
    /// One line for lists.
    pub description: String,
    /// Instructions for the agent.
    pub prompt: String,
    /// The model it asks for.
    pub model: Option<String>,
    /// Models to go on with, in order, when that one can't be had.
    pub fallback: Vec<String>,
    /// How large a conversation may get, in tokens, before it is summarised; `None` is the agent's
    /// own choice.
    pub context_tokens: Option<u32>,
    /// The folder it starts in; `None` is its workspace.
    pub cwd: Option<PathBuf>,
    /// Variables added to its scrubbed environment.
    pub env: BTreeMap<String, Secret>,
    /// It is stopped after so long without a message.
    pub idle_timeout: Duration,
    /// A turn is ended after so long.
    pub turn_deadline: Option<Duration>,
    /// A turn that is quiet for so long is reported; it runs on.
    pub stall_after: Duration,
    /// Memory of its processes together where the kernel counts that, else the data of each.
    pub memory_max: Option<ByteSize>,
    /// Open files of each of its processes.
    pub files_max: Option<u32>,
    /// CPU time of each of its processes, in seconds.
    pub cpu_seconds: Option<u32>,
    /// Size of a file that one of its processes writes.
    pub file_size: Option<ByteSize>,
    /// Money it may spend.
    pub budget: Budget,
}

/// Limits of cost; a turn is ended before the call that would pass one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Budget {
    /// For one turn.
    pub turn: Option<Decimal>,
    /// For one day.
    pub day: Option<Decimal>,
}

/// An entry before the program that it shares is looked up.
struct Entry {
    command: Vec<String>,
    program: Option<String>,
    config: AgentConfig,
}

pub(super) fn read(root: &mut Section<'_, '_>) -> BTreeMap<String, AgentConfig> {
    let entries = root.entries("agents", |_, section| read_entry(section));
    let section = KeyPath::root().child("agents");
    let mut agents = BTreeMap::new();
    for name in entries.keys() {
        let path = section.child(name);
        match resolve(name, &entries) {
            Ok(config) => {
                agents.insert(name.clone(), config);
            }
            Err((key, kind)) => root.problem_at(path.child(key), kind),
        }
    }
    agents
}

fn read_entry(s: &mut Section<'_, '_>) -> Entry {
    Entry {
        command: s.value_or("command", Vec::new()),
        program: s.value_or("program", None),
        config: AgentConfig {
            program: AgentProgram::Command(Vec::new()),
            kind: s.value_or("kind", AgentKind::Process),
            description: s.value_or("description", String::new()),
            prompt: s.value_or("prompt", String::new()),
            model: s.value_or("model", None),
            fallback: s.value_or("fallback", Vec::new()),
            context_tokens: limit(s.value_or("context_tokens", 0)),
            cwd: s.value_or("cwd", None),
            env: s.secrets("env"),
            idle_timeout: s.value_or("idle_timeout", DEFAULT_IDLE_TIMEOUT),
            turn_deadline: s.value_or("turn_deadline", None),
            stall_after: s.value_or("stall_after", DEFAULT_STALL_AFTER),
            memory_max: s.value_or("memory_max", None),
            files_max: limit(s.value_or("files_max", 0)),
            cpu_seconds: limit(s.value_or("cpu_seconds", 0)),
            file_size: s.value_or("file_size", None),
            budget: s.nested("budget", |s| Budget {
                turn: s.value_or("turn", None),
                day: s.value_or("day", None),
            }),
        },
    }
}

fn limit(number: u32) -> Option<u32> {
    (number > 0).then_some(number)
}

/// Finds the program of an agent, along the agents that it names.
///
/// What makes the program work comes with it: its kind, its folder, and its
/// variables under the agent's own.
fn resolve(
    name: &str,
    entries: &BTreeMap<String, Entry>,
) -> Result<AgentConfig, (&'static str, ProblemKind)> {
    let Some(entry) = entries.get(name) else {
        return Err(("program", invalid(format!("there is no agent {name:?}"))));
    };
    let mut config = entry.config.clone();
    let mut owner = (name, entry);
    // Each step goes to another entry, so more steps than entries is a circle.
    for _ in 0..=entries.len() {
        let (owner_name, owner_entry) = owner;
        match (&owner_entry.program, owner_entry.command.as_slice()) {
            (Some(_), [_, ..]) => {
                return Err((
                    "program",
                    invalid(format!(
                        "agent {owner_name:?} has a command and a program; keep one"
                    )),
                ));
            }
            (None, command @ [_, ..]) => {
                config.program = AgentProgram::Command(command.to_vec());
                inherit(&mut config, owner_entry);
                return Ok(config);
            }
            (None, []) => {
                let Some(builtin) = BuiltinAgent::named(owner_name) else {
                    return Err((
                        "command",
                        ProblemKind::Missing {
                            reason: "an agent has a command = [\"PROGRAM\", ...], or a program = \"AGENT\" whose program it shares".to_owned(),
                        },
                    ));
                };
                config.program = AgentProgram::Builtin(builtin);
                inherit(&mut config, owner_entry);
                return Ok(config);
            }
            (Some(next), []) => {
                let Some(next_entry) = entries.get(next) else {
                    return Err(("program", invalid(format!("there is no agent {next:?}"))));
                };
                owner = (next, next_entry);
            }
        }
    }
    Err(("program", invalid("goes in a circle")))
}

fn inherit(config: &mut AgentConfig, owner: &Entry) {
    config.kind = owner.config.kind;
    if config.cwd.is_none() {
        config.cwd.clone_from(&owner.config.cwd);
    }
    for (name, value) in &owner.config.env {
        config
            .env
            .entry(name.clone())
            .or_insert_with(|| value.clone());
    }
}
