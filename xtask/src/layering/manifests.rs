//! The crates of the repository, and the rule on what may depend on what.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::Broken;

const RULE: &str = "dependencies";

/// Crates that carry one protocol, or the model gateway, which is a neighbour of theirs.
const PLANES: [&str; 6] = [
    "control",
    "agent",
    "workspace",
    "sandbox",
    "channel",
    "models",
];

/// A crate of the repository.
#[derive(Debug)]
pub(super) struct Crate {
    /// The name of its folder, which is what the rules speak of.
    pub(super) name: String,
    /// The name in its manifest.
    pub(super) package: String,
    /// Relative to the repository.
    pub(super) folder: PathBuf,
    /// The line of `name` in its manifest.
    pub(super) name_line: usize,
    dependencies: Vec<Dependency>,
}

#[derive(Debug)]
struct Dependency {
    /// The name in the manifest, which is also the one that source files use.
    key: String,
    package: String,
    line: usize,
}

impl Crate {
    pub(super) fn is_plane(&self) -> bool {
        PLANES.contains(&self.name.as_str())
    }

    /// Whether the rules name the crate.
    fn is_layer(&self) -> bool {
        self.is_plane() || matches!(self.name.as_str(), "framing" | "runtime" | "cli")
    }

    /// Programs own the environment and the terminal; all other crates are libraries.
    pub(super) fn is_program(&self) -> bool {
        matches!(self.name.as_str(), "cli" | "xtask" | "bench" | "fuzz")
    }

    /// The name that Rust source uses for the crate.
    pub(super) fn import_name(&self) -> String {
        self.package.replace('-', "_")
    }

    pub(super) fn manifest(&self) -> PathBuf {
        self.folder.join("Cargo.toml")
    }

    /// The names in its manifest of dependencies from elsewhere, with their lines.
    pub(super) fn foreign(&self, workspace: &Workspace) -> impl Iterator<Item = (&str, usize)> {
        self.dependencies
            .iter()
            .filter(|dependency| !workspace.is_own(&dependency.package))
            .map(|dependency| (dependency.key.as_str(), dependency.line))
    }
}

/// Every crate of the repository: the members, and the workspaces of their own beside them.
#[derive(Debug)]
pub(super) struct Workspace {
    pub(super) crates: Vec<Crate>,
    /// The names in `[workspace.dependencies]` of what comes from elsewhere, with their lines.
    pub(super) shared: Vec<(String, usize)>,
}

impl Workspace {
    pub(super) fn read(root: &Path) -> io::Result<Self> {
        let path = root.join("Cargo.toml");
        let text = read(&path)?;
        let table = parse(&path, &text)?;
        let workspace = table.get("workspace").and_then(|v| v.get_ref().as_table());
        let list = |key| {
            workspace
                .and_then(|w| w.get(key))
                .map(|v| strings(v.get_ref()))
        };
        let members = list("members").unwrap_or_default();
        let excluded = list("exclude").unwrap_or_default();
        let renamed = renamed_packages(workspace);
        let mut crates = Vec::new();
        for pattern in members.iter().chain(&excluded) {
            for folder in expand(root, pattern)? {
                crates.push(Crate::read(root, folder, &renamed)?);
            }
        }
        let shared = shared_dependencies(workspace)
            .filter(|(_, spec)| spec.get_ref().get("path").is_none())
            .map(|(name, _)| {
                (
                    name.get_ref().to_string(),
                    line_of(&text, name.span().start),
                )
            })
            .collect();
        Ok(Self { crates, shared })
    }

    fn is_own(&self, package: &str) -> bool {
        self.crates.iter().any(|own| own.package == package)
    }

    /// The crate that holds a file given relative to the repository.
    pub(super) fn crate_of(&self, file: &Path) -> Option<&Crate> {
        self.crates.iter().find(|c| file.starts_with(&c.folder))
    }

    pub(super) fn broken_dependencies(&self) -> Vec<Broken> {
        let by_package: BTreeMap<&str, &Crate> = self
            .crates
            .iter()
            .map(|c| (c.package.as_str(), c))
            .collect();
        let mut broken = Vec::new();
        for from in &self.crates {
            let mut planes = BTreeSet::new();
            for dependency in &from.dependencies {
                let Some(&direct) = by_package.get(dependency.package.as_str()) else {
                    continue;
                };
                let seen = reachable(direct, &by_package);
                for to in &seen {
                    if let Some((what, fix)) = refusal(from, to) {
                        let via = if to.package == direct.package {
                            String::new()
                        } else {
                            format!(" (through {})", direct.name)
                        };
                        broken.push(break_at(from, dependency.line, what + &via, fix));
                    }
                    if to.is_plane() {
                        planes.insert(to.name.as_str());
                    }
                }
                // The coder is a program on the agent plane that calls the gateway.
                let knows_all = matches!(
                    from.name.as_str(),
                    "runtime" | "cli" | "coder" | "bench" | "fuzz"
                );
                if planes.len() > 1 && !knows_all && !from.is_plane() {
                    let names = planes.iter().copied().collect::<Vec<_>>().join(" and ");
                    broken.push(break_at(
                        from,
                        dependency.line,
                        format!("{} depends on the planes {names}", from.name),
                        "only runtime and cli may know more than one plane: move what joins them \
                         to runtime"
                            .to_owned(),
                    ));
                }
            }
        }
        broken
    }
}

/// Why `from` must not depend on `to`, and what to do instead.
fn refusal(from: &Crate, to: &Crate) -> Option<(String, String)> {
    let what = format!("{} depends on {}", from.name, to.name);
    let fix = match (from.name.as_str(), to.name.as_str()) {
        (_, "cli") => {
            "cli is the top layer: move what is needed down to runtime or a plane".to_owned()
        }
        ("framing", _) => {
            "framing is the bottom layer: pass what it needs as an argument, or move \
                           this code up into the crate that needs it"
                .to_owned()
        }
        (_, "runtime") if from.is_plane() => {
            "a plane never looks up: define a trait in the plane and implement it in runtime"
                .to_owned()
        }
        _ if from.is_plane() && to.is_plane() && from.name != to.name => {
            "planes never see each other: join them in runtime".to_owned()
        }
        _ => return None,
    };
    Some((what, fix))
}

fn break_at(from: &Crate, line: usize, what: String, fix: String) -> Broken {
    Broken {
        file: from.manifest(),
        line,
        rule: RULE,
        what,
        fix,
    }
}

/// `start`, and what it leads to through crates that belong to no layer: a layer answers for its
/// own dependencies.
fn reachable<'a>(start: &'a Crate, by_package: &BTreeMap<&str, &'a Crate>) -> Vec<&'a Crate> {
    let mut found: Vec<&Crate> = vec![start];
    let mut at = 0;
    while at < found.len() {
        let through = found[at];
        let dependencies = through.dependencies.iter().filter(|_| !through.is_layer());
        for dependency in dependencies {
            if let Some(&next) = by_package.get(dependency.package.as_str())
                && !found.iter().any(|c| c.package == next.package)
            {
                found.push(next);
            }
        }
        at += 1;
    }
    found
}

impl Crate {
    fn read(root: &Path, folder: PathBuf, renamed: &BTreeMap<String, String>) -> io::Result<Self> {
        let path = root.join(&folder).join("Cargo.toml");
        let text = read(&path)?;
        let table = parse(&path, &text)?;
        let name = folder
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let package_name = table
            .get("package")
            .and_then(|p| p.get_ref().as_table())
            .and_then(|p| p.get("name"));
        let package = package_name
            .and_then(|n| n.get_ref().as_str())
            .unwrap_or(&name)
            .to_owned();
        let name_line = package_name.map_or(1, |n| line_of(&text, n.span().start));
        let mut dependencies = Vec::new();
        collect_dependencies(&table, &text, renamed, &mut dependencies);
        dependencies.sort_by_key(|dependency| dependency.line);
        Ok(Self {
            name,
            package,
            folder,
            name_line,
            dependencies,
        })
    }
}

/// Normal, build and dev dependencies, also those of `[target.'cfg(..)']`.
fn collect_dependencies(
    table: &DeTable<'_>,
    text: &str,
    renamed: &BTreeMap<String, String>,
    out: &mut Vec<Dependency>,
) {
    for (key, value) in table {
        let Some(inner) = value.get_ref().as_table() else {
            continue;
        };
        match key.get_ref().as_ref() {
            "dependencies" | "build-dependencies" | "dev-dependencies" => {
                for (name, spec) in inner {
                    let package = package_of(name.get_ref(), spec.get_ref(), renamed);
                    out.push(Dependency {
                        key: name.get_ref().to_string(),
                        package,
                        line: line_of(text, name.span().start),
                    });
                }
            }
            "target" => {
                for (_, target) in inner {
                    if let Some(target) = target.get_ref().as_table() {
                        collect_dependencies(target, text, renamed, out);
                    }
                }
            }
            _ => {}
        }
    }
}

fn package_of(name: &str, spec: &DeValue<'_>, renamed: &BTreeMap<String, String>) -> String {
    let explicit = spec
        .as_table()
        .and_then(|t| t.get("package"))
        .and_then(|p| p.get_ref().as_str());
    explicit
        .map(str::to_owned)
        .or_else(|| renamed.get(name).cloned())
        .unwrap_or(name.to_owned())
}

/// Entries of `[workspace.dependencies]` whose key is not the package's own name.
fn renamed_packages(workspace: Option<&DeTable<'_>>) -> BTreeMap<String, String> {
    let mut renamed = BTreeMap::new();
    for (name, spec) in shared_dependencies(workspace) {
        let package = package_of(name.get_ref(), spec.get_ref(), &BTreeMap::new());
        renamed.insert(name.get_ref().to_string(), package);
    }
    renamed
}

/// The entries of `[workspace.dependencies]`.
fn shared_dependencies<'a, 'i>(
    workspace: Option<&'a DeTable<'i>>,
) -> impl Iterator<Item = (&'a Spanned<DeString<'i>>, &'a Spanned<DeValue<'i>>)> {
    let dependencies = workspace
        .and_then(|w| w.get("dependencies"))
        .and_then(|d| d.get_ref().as_table());
    dependencies.into_iter().flatten()
}

/// The folders that a pattern of `members` stands for: those that hold a manifest.
fn expand(root: &Path, pattern: &str) -> io::Result<Vec<PathBuf>> {
    let mut folders = match pattern.strip_suffix("/*") {
        None => vec![PathBuf::from(pattern)],
        Some(parent) => match fs::read_dir(root.join(parent)) {
            Ok(entries) => entries
                .map(|entry| entry.map(|e| Path::new(parent).join(e.file_name())))
                .collect::<io::Result<_>>()?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error),
        },
    };
    folders.retain(|folder| root.join(folder).join("Cargo.toml").is_file());
    folders.sort();
    Ok(folders)
}

fn strings(value: &DeValue<'_>) -> Vec<String> {
    let items = value.as_array().into_iter().flatten();
    items
        .filter_map(|item| item.get_ref().as_str().map(str::to_owned))
        .collect()
}

fn read(path: &Path) -> io::Result<String> {
    fs::read_to_string(path)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

fn parse<'a>(path: &Path, text: &'a str) -> io::Result<DeTable<'a>> {
    DeTable::parse(text)
        .map(toml::Spanned::into_inner)
        .map_err(|error| io::Error::other(format!("{}: {error}", path.display())))
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}
