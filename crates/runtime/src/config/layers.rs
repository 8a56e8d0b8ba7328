//! The layers, weakest first: defaults, `agents/NAME.md`, `config.toml`,
//! variables, flags.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use jiff::tz::TimeZone;
use zeroize::Zeroizing;

use super::effective::Effective;
use super::front_matter;
use super::model::{Config, Surroundings};
use super::node::{Node, Raw, file_source};
use super::problem::{ConfigErrors, Problem, ProblemKind};
use super::reader;
use super::secret::Secret;
use super::source::{ConfigSource, KeyPath, Origin};

/// The defaults, with a comment for every key.
pub const DEFAULT_TOML: &str = include_str!("default.toml");

/// Files larger than this are refused before they are read.
const MAX_FILE: u64 = 4 << 20;

/// Variables that mirror a flag and have a short name.
const SHORT_VARIABLES: [(&str, &str); 2] = [
    ("QUINTET_LISTEN", "http.listen"),
    ("QUINTET_CONTROL_TCP", "control.tcp"),
];

/// The text of a new `config.toml`: all comments, no value set.
#[must_use]
pub fn first_run_file() -> String {
    let mut text = String::with_capacity(DEFAULT_TOML.len() + 256);
    for line in DEFAULT_TOML.lines() {
        if !line.is_empty() && !line.starts_with(['#', '[']) {
            text.push_str("# ");
        }
        text.push_str(line);
        text.push('\n');
    }
    text
}

/// What the layers are read from. The binary fills it in; a library reads
/// neither the environment nor the home folder by itself.
#[derive(Debug, Clone)]
pub struct ConfigInputs {
    file: PathBuf,
    agents_dir: Option<PathBuf>,
    variables: BTreeMap<String, Secret>,
    undecodable: Vec<String>,
    flags: Vec<Flag>,
    machine_time_zone: TimeZone,
}

#[derive(Debug, Clone)]
struct Flag {
    key: KeyPath,
    value: Secret,
    name: Arc<str>,
}

impl ConfigInputs {
    /// Starts with `config.toml`, which need not be there, and the zone that an
    /// empty `cron.time_zone` stands for.
    #[must_use]
    pub fn new(file: impl Into<PathBuf>, machine_time_zone: TimeZone) -> Self {
        Self {
            file: file.into(),
            agents_dir: None,
            variables: BTreeMap::new(),
            undecodable: Vec::new(),
            flags: Vec::new(),
            machine_time_zone,
        }
    }

    /// Adds the folder of `NAME.md` files, which need not be there.
    #[must_use]
    pub fn with_agents_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.agents_dir = Some(dir.into());
        self
    }

    /// Adds the environment, whole: `QUINTET_*` set keys, and `api_key_env`
    /// may name any other.
    #[must_use]
    pub fn with_env(mut self, variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        for (name, value) in variables {
            let Ok(name) = name.into_string() else {
                continue;
            };
            match value.into_string() {
                Ok(value) => {
                    self.variables.insert(name, Secret::new(value));
                }
                Err(_) if key_of_variable(&name).is_some() => self.undecodable.push(name),
                Err(_) => {}
            }
        }
        self
    }

    /// Adds a flag of the command: the key it sets, its value, and its name as
    /// it is typed, `--listen`.
    #[must_use]
    pub fn with_flag(mut self, key: KeyPath, value: impl Into<String>, name: &str) -> Self {
        self.flags.push(Flag {
            key,
            value: Secret::new(value.into()),
            name: name.into(),
        });
        self
    }

    /// The path of `config.toml`.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }
}

/// Reads all layers.
///
/// # Errors
///
/// Everything that is wrong in any layer, at once.
pub fn load(inputs: &ConfigInputs) -> Result<(Config, Effective), ConfigErrors> {
    let text = read_config_file(inputs)?;
    load_with_file(inputs, &text)
}

/// The text of `config.toml`; empty when there is no file.
pub(super) fn read_config_file(inputs: &ConfigInputs) -> Result<Zeroizing<String>, ConfigErrors> {
    match read_text(&inputs.file) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Zeroizing::default()),
        Err(error) => Err(ConfigErrors(vec![io_problem(&inputs.file, &error)])),
    }
}

/// Reads all layers with this text in the place of `config.toml`.
pub(super) fn load_with_file(
    inputs: &ConfigInputs,
    text: &str,
) -> Result<(Config, Effective), ConfigErrors> {
    let mut problems = Vec::new();
    let mut tree = weakest_layers(inputs, &mut problems);
    match Node::from_toml(text, &file_source(&inputs.file)) {
        Ok(layer) => tree.overlay(layer),
        Err(problem) => problems.push(problem),
    }
    add_variables(&mut tree, inputs, &mut problems);
    for flag in &inputs.flags {
        let origin = Origin::new(ConfigSource::Flag {
            name: Arc::clone(&flag.name),
        });
        tree.insert(
            flag.key.parts(),
            Node::text(origin, flag.value.expose().to_owned()),
        );
    }
    match read_tree(&tree, inputs, None) {
        Ok(loaded) if problems.is_empty() => Ok(loaded),
        Ok(_) => Err(ConfigErrors(problems)),
        Err(ConfigErrors(more)) => {
            problems.extend(more);
            Err(ConfigErrors(problems))
        }
    }
}

/// Reads a request over the defaults alone: it is the whole configuration.
///
/// `kept` are the secrets that `"***"` stands for.
pub(super) fn read_request(
    request: Node,
    inputs: &ConfigInputs,
    kept: &BTreeMap<KeyPath, Secret>,
) -> Result<Effective, ConfigErrors> {
    let mut tree = default_layer();
    tree.overlay(request);
    read_tree(&tree, inputs, Some(kept)).map(|(_, effective)| effective)
}

/// Reads one layer over the defaults.
pub(super) fn read_alone(layer: Node, inputs: &ConfigInputs) -> Result<Config, ConfigErrors> {
    let mut tree = default_layer();
    tree.overlay(layer);
    read_tree(&tree, inputs, None).map(|(config, _)| config)
}

fn read_tree(
    tree: &Node,
    inputs: &ConfigInputs,
    kept: Option<&BTreeMap<KeyPath, Secret>>,
) -> Result<(Config, Effective), ConfigErrors> {
    let around = Surroundings {
        machine_time_zone: &inputs.machine_time_zone,
        variable: &|name| inputs.variables.get(name).cloned(),
    };
    reader::read(tree, kept, |root| Config::read(root, &around))
}

fn default_layer() -> Node {
    // Read once: every change of the configuration begins with it.
    static DEFAULTS: LazyLock<Node> = LazyLock::new(|| {
        Node::from_toml(DEFAULT_TOML, &ConfigSource::Default)
            .unwrap_or_else(|_| Node::table(Origin::new(ConfigSource::Default)))
    });
    DEFAULTS.clone()
}

fn weakest_layers(inputs: &ConfigInputs, problems: &mut Vec<Problem>) -> Node {
    let mut tree = default_layer();
    let Some(dir) = &inputs.agents_dir else {
        return tree;
    };
    let files = match markdown_files(dir) {
        Ok(files) => files,
        Err(error) => {
            problems.push(io_problem(dir, &error));
            return tree;
        }
    };
    let mut names = BTreeMap::new();
    for path in files {
        match read_agent_file(&path) {
            Ok((name, layer)) => {
                if let Some(other) = names.insert(name.clone(), path) {
                    problems.push(Problem {
                        origin: layer.origin.clone(),
                        key: KeyPath::root().child("agents").child(&name),
                        kind: ProblemKind::Invalid {
                            reason: format!("{} has an agent of that name too", other.display()),
                        },
                    });
                }
                tree.insert(&["agents".to_owned(), name], layer);
            }
            Err(problem) => problems.push(problem),
        }
    }
    tree
}

fn markdown_files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "md") && path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Reads `agents/NAME.md`: the head's keys are those of `[agents.NAME]`, with
/// `agent` as another word for `program` and `name` in the place of the file's;
/// the body is the prompt.
fn read_agent_file(path: &Path) -> Result<(String, Node), Problem> {
    let source = file_source(path);
    let text = read_text(path).map_err(|error| io_problem(path, &error))?;
    let front_matter::FrontMatter {
        mut head,
        body,
        body_line,
    } = front_matter::parse(&text, &source)?;
    let origin_at = |line| Origin {
        source: source.clone(),
        line: Some(line),
    };
    let mut name = path
        .file_stem()
        .map(|stem| stem.to_string_lossy().into_owned())
        .unwrap_or_default();
    if let Raw::Table(members) = &mut head.raw {
        if let Some(Node {
            raw: Raw::Str(given) | Raw::Text(given),
            ..
        }) = members.remove("name")
        {
            name = given.to_string();
        }
        if let Some(program) = members.remove("agent") {
            members.entry("program".to_owned()).or_insert(program);
        }
    }
    if !body.is_empty() {
        head.insert(
            &["prompt".to_owned()],
            Node::string(origin_at(body_line), body),
        );
    }
    Ok((name, head))
}

fn add_variables(tree: &mut Node, inputs: &ConfigInputs, problems: &mut Vec<Problem>) {
    let origin = |name: &str| Origin::new(ConfigSource::Env { name: name.into() });
    for name in &inputs.undecodable {
        problems.push(Problem {
            origin: origin(name),
            key: KeyPath::root(),
            kind: ProblemKind::Syntax {
                reason: "the value is not UTF-8".to_owned(),
            },
        });
    }
    for (name, value) in &inputs.variables {
        let Some(parts) = key_of_variable(name) else {
            continue;
        };
        let parts = as_written(tree, parts);
        tree.insert(&parts, Node::text(origin(name), value.expose().to_owned()));
    }
}

/// The key that a variable sets; `None` for a variable that sets none.
///
/// `QUINTET_SECTION__KEY` is `section.key`: two underscores are a dot. Below
/// `env` and `headers` names keep their case.
fn key_of_variable(name: &str) -> Option<Vec<String>> {
    if let Some((_, key)) = SHORT_VARIABLES.iter().find(|(short, _)| *short == name) {
        return Some(key.split('.').map(str::to_owned).collect());
    }
    let rest = name.strip_prefix("QUINTET_")?;
    if !rest.contains("__") {
        return None;
    }
    let mut keep_case = false;
    Some(
        rest.split("__")
            .map(|part| {
                if keep_case {
                    return part.to_owned();
                }
                let part = part.to_ascii_lowercase();
                keep_case = part == "env" || part == "headers";
                part
            })
            .collect(),
    )
}

/// Takes the spelling of names that are there: `MY_AGENT` may be `my-agent`.
fn as_written(tree: &Node, parts: Vec<String>) -> Vec<String> {
    let plain = |name: &str| name.to_ascii_lowercase().replace('-', "_");
    let mut node = Some(tree);
    parts
        .into_iter()
        .map(|part| {
            let written = match node.map(|node| &node.raw) {
                Some(Raw::Table(members)) => members
                    .keys()
                    .find(|name| **name == part)
                    .or_else(|| members.keys().find(|name| plain(name) == plain(&part)))
                    .cloned()
                    .unwrap_or(part),
                _ => part,
            };
            node = node.and_then(|node| node.child(&written));
            written
        })
        .collect()
}

/// Reads a text file of a sane size.
pub(super) fn read_text(path: &Path) -> io::Result<Zeroizing<String>> {
    let size = std::fs::metadata(path)?.len();
    if size > MAX_FILE {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{size} bytes are more than the {MAX_FILE} that such a file may have"),
        ));
    }
    std::fs::read_to_string(path).map(Zeroizing::new)
}

pub(super) fn io_problem(path: &Path, error: &io::Error) -> Problem {
    Problem {
        origin: Origin::new(file_source(path)),
        key: KeyPath::root(),
        kind: ProblemKind::Io {
            reason: error.to_string(),
        },
    }
}
