//! The rules on what a Rust file may name.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Broken;
use super::files::Source;
use super::manifests::{Crate, Workspace};
use super::paths::{NamedPath, named_paths};
use super::tokens::{Kind, Shipped, shipped};

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Broken> {
    let scanned: Vec<Scanned<'_>> = sources
        .iter()
        .filter_map(|source| Scanned::new(workspace, source))
        .collect();
    let tests = test_files(&scanned);
    let mut broken = Vec::new();
    for file in &scanned {
        broken.extend(names_that_tell_nothing(file));
        let in_tests = tests.iter().any(|test| file.path.starts_with(test));
        if in_tests || !file.path.starts_with(file.owner.folder.join("src")) {
            continue;
        }
        let paths = named_paths(&file.shipped.tokens);
        broken.extend(impure_proto(file, &paths));
        broken.extend(loud_library(file, &paths));
        broken.extend(second_plane(workspace, file, &paths));
    }
    broken
}

struct Scanned<'a> {
    path: &'a Path,
    owner: &'a Crate,
    shipped: Shipped<'a>,
}

impl<'a> Scanned<'a> {
    fn new(workspace: &'a Workspace, source: &'a Source) -> Option<Self> {
        let rust = source.path.extension().is_some_and(|e| e == "rs");
        let owner = workspace.crate_of(&source.path).filter(|_| rust)?;
        Some(Self {
            path: &source.path,
            owner,
            shipped: shipped(&source.text),
        })
    }

    fn broken(&self, rule: &'static str, line: usize, what: String, fix: &str) -> Broken {
        Broken {
            file: self.path.to_path_buf(),
            line,
            rule,
            what,
            fix: fix.to_owned(),
        }
    }
}

/// Files and folders of modules that are declared as `#[cfg(test)] mod name;`.
fn test_files(scanned: &[Scanned<'_>]) -> BTreeSet<PathBuf> {
    let mut tests = BTreeSet::new();
    for file in scanned {
        let stem = file.path.file_stem().unwrap_or_default();
        let parent = file.path.parent().unwrap_or(Path::new(""));
        let folder = match stem.to_str() {
            Some("lib" | "main" | "mod") => parent.to_path_buf(),
            _ => parent.join(stem),
        };
        for name in &file.shipped.test_modules {
            tests.insert(folder.join(format!("{name}.rs")));
            tests.insert(folder.join(name));
        }
    }
    tests
}

/// A name that a rule refuses, with the words for the report.
struct Refused {
    matches: fn(&NamedPath<'_>) -> bool,
    why: &'static str,
}

const IMPURE: [Refused; 3] = [
    Refused {
        matches: |path| {
            path.segments.len() > 1
                && path
                    .segments
                    .first()
                    .is_some_and(|s| *s == "tokio" || s.starts_with("tokio_"))
        },
        why: "the runtime",
    },
    Refused {
        matches: |path| {
            ["net", "fs", "process", "thread", "env"]
                .iter()
                .any(|m| path.starts_with(&["std", m]))
                || path.starts_with(&["std", "os", "unix", "net"])
        },
        why: "the outside world",
    },
    Refused {
        matches: |path| {
            path.segments.contains(&"SystemTime")
                || [
                    ["Instant", "now"],
                    ["Timestamp", "now"],
                    ["Zoned", "now"],
                    ["Uuid", "now_v7"],
                ]
                .iter()
                .any(|clock| path.ends_with(clock))
        },
        why: "the clock",
    },
];

fn impure_proto(file: &Scanned<'_>, paths: &[NamedPath<'_>]) -> Vec<Broken> {
    let inside = file
        .path
        .strip_prefix(&file.owner.folder)
        .unwrap_or(file.path);
    let in_proto = inside.components().any(|c| {
        let name = c.as_os_str();
        name == "proto" || name == "proto.rs"
    });
    if !in_proto {
        return Vec::new();
    }
    let fix = "take bytes and time as arguments and return effects; the driver beside proto/ does \
               the I/O";
    refused(paths, &IMPURE, |path, why| {
        file.broken(
            "pure-proto",
            path.line,
            format!("{} reaches {why}", path.display()),
            fix,
        )
    })
}

const LOUD: [Refused; 4] = [
    Refused {
        // The constants of the build target are no environment.
        matches: |path| {
            path.starts_with(&["std", "env"]) && !path.starts_with(&["std", "env", "consts"])
        },
        why: "reads the environment",
    },
    Refused {
        matches: |path| {
            path.segments.last() == Some(&"home_dir") || path.starts_with(&["etcetera"])
        },
        why: "looks for the home folder",
    },
    Refused {
        matches: |path| {
            let stream = ["stdin", "stdout", "stderr"].iter().any(|s| {
                path.starts_with(&["std", "io", s]) || path.starts_with(&["tokio", "io", s])
            });
            stream
                || path.segments.contains(&"IsTerminal")
                || ["crossterm", "indicatif", "anstream"]
                    .iter()
                    .any(|c| path.starts_with(&[c]))
        },
        why: "uses the terminal",
    },
    Refused {
        matches: |path| {
            path.is_macro
                && ["println", "print", "eprintln", "eprint", "dbg"]
                    .iter()
                    .any(|m| path.segments.last() == Some(m))
        },
        why: "prints",
    },
];

fn loud_library(file: &Scanned<'_>, paths: &[NamedPath<'_>]) -> Vec<Broken> {
    if file.owner.is_program() {
        return Vec::new();
    }
    let fix = "only the program may: take the value or an I/O handle as an argument from cli, and \
               report through return values or tracing";
    refused(paths, &LOUD, |path, why| {
        let what = format!(
            "{} {why} in the library {}",
            path.display(),
            file.owner.name
        );
        file.broken("quiet-library", path.line, what, fix)
    })
}

fn refused(
    paths: &[NamedPath<'_>],
    rules: &[Refused],
    report: impl Fn(&NamedPath<'_>, &str) -> Broken,
) -> Vec<Broken> {
    let hits = paths.iter().flat_map(|path| {
        rules
            .iter()
            .filter(|rule| (rule.matches)(path))
            .map(move |rule| (path, rule.why))
    });
    hits.map(|(path, why)| report(path, why)).collect()
}

fn second_plane(workspace: &Workspace, file: &Scanned<'_>, paths: &[NamedPath<'_>]) -> Vec<Broken> {
    let commands = file.owner.folder.join("src").join("commands");
    if file.owner.name != "cli" || !file.path.starts_with(commands) {
        return Vec::new();
    }
    let planes: BTreeMap<String, &str> = workspace
        .crates
        .iter()
        .filter(|c| c.is_plane())
        .map(|c| (c.import_name(), c.name.as_str()))
        .collect();
    let mut first = None;
    let mut broken = Vec::new();
    for path in paths {
        let Some(&plane) = path.segments.first().and_then(|root| planes.get(*root)) else {
            continue;
        };
        let known = *first.get_or_insert(plane);
        if known != plane {
            broken.push(file.broken(
                "one-plane-per-command",
                path.line,
                format!(
                    "{} in a command that already uses the plane {known}",
                    path.display()
                ),
                "move what joins the planes to runtime and call that from the command",
            ));
        }
    }
    broken
}

/// Inline `mod util { .. }`; modules in files are seen by their file's name.
fn names_that_tell_nothing(file: &Scanned<'_>) -> Vec<Broken> {
    let pairs = file.shipped.tokens.windows(3);
    pairs
        .filter_map(|w| match (w[0].kind, w[1].kind, w[2].kind) {
            (Kind::Ident("mod"), Kind::Ident(name), Kind::Punct('{'))
                if super::files::tells_nothing(name) =>
            {
                Some(super::files::telling_name(
                    file.path, w[1].line, "module", name,
                ))
            }
            _ => None,
        })
        .collect()
}
