//! The hand-written source files of the repository, and the rules on their names and lengths.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Broken;
use super::manifests::{Crate, Workspace};

/// At 800 lines a file has more than one reason to change.
const MAX_LINES: usize = 800;

/// Names that say nothing of what is inside.
const EMPTY_NAMES: [&str; 5] = ["util", "utils", "common", "misc", "helpers"];

/// What is written by hand in this repository.
const LANGUAGES: [&str; 4] = ["rs", "ts", "svelte", "py"];

/// Folders that hold what a program made or somebody else wrote.
const MADE: [&str; 6] = [
    "target",
    "node_modules",
    "dist",
    "gen",
    "generated",
    "__pycache__",
];

/// A source file, its path relative to the repository.
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) text: String,
}

/// Reads every hand-written source file below `root`, in order of path.
pub(super) fn hand_written(root: &Path) -> io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(root.join(&folder))? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let path = folder.join(&*name);
            let kind = entry.file_type()?;
            if kind.is_dir() && !name.starts_with('.') && !MADE.contains(&&*name) {
                folders.push(path);
            } else if kind.is_file()
                && path
                    .extension()
                    .is_some_and(|e| LANGUAGES.iter().any(|known| e == *known))
            {
                let text = String::from_utf8_lossy(&fs::read(root.join(&path))?).into_owned();
                if !text.lines().take(5).any(|line| line.contains("@generated")) {
                    sources.push(Source { path, text });
                }
            }
        }
    }
    sources.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(sources)
}

pub(super) fn check(workspace: &Workspace, sources: &[Source]) -> Vec<Broken> {
    let mut broken = Vec::new();
    for source in sources {
        broken.extend(too_long(source));
        broken.extend(named_for_nothing(source));
    }
    for owner in &workspace.crates {
        broken.extend(undocumented(owner, sources));
        let last = owner.package.rsplit('-').next().unwrap_or_default();
        if tells_nothing(last) || tells_nothing(&owner.name) {
            broken.push(telling_name(
                &owner.manifest(),
                owner.name_line,
                "crate",
                &owner.package,
            ));
        }
    }
    broken
}

pub(super) fn tells_nothing(name: &str) -> bool {
    EMPTY_NAMES.contains(&name)
}

pub(super) fn telling_name(file: &Path, line: usize, kind: &str, name: &str) -> Broken {
    Broken {
        file: file.to_path_buf(),
        line,
        rule: "telling-names",
        what: format!("the {kind} {name} is named for nothing in particular"),
        fix: "name it for the one thing it does, or move each part beside its only caller"
            .to_owned(),
    }
}

fn too_long(source: &Source) -> Option<Broken> {
    let lines = source.text.lines().count();
    (lines > MAX_LINES).then(|| Broken {
        file: source.path.clone(),
        line: MAX_LINES + 1,
        rule: "file-length",
        what: format!("{lines} lines, the limit is {MAX_LINES}"),
        fix: "split it along the seam between its reasons to change".to_owned(),
    })
}

/// A file or folder whose name says nothing; one report names the file.
fn named_for_nothing(source: &Source) -> Option<Broken> {
    let stem = source.path.with_extension("");
    let name = stem
        .iter()
        .filter_map(|part| part.to_str())
        .find(|part| tells_nothing(part))?;
    Some(telling_name(&source.path, 1, "module", name))
}

fn undocumented(owner: &Crate, sources: &[Source]) -> Vec<Broken> {
    let src = owner.folder.join("src");
    let wanted = [src.join("lib.rs"), src.join("main.rs")];
    let roots: Vec<&Source> = sources
        .iter()
        .filter(|s| wanted.contains(&s.path))
        .collect();
    let broken = |file: PathBuf, what: String| Broken {
        file,
        line: 1,
        rule: "crate-docs",
        what,
        fix: "begin it with a //! paragraph: what the crate is, what it must never do, where to \
              start reading"
            .to_owned(),
    };
    if roots.is_empty() {
        let what = format!(
            "the crate {} has neither src/lib.rs nor src/main.rs",
            owner.name
        );
        return vec![broken(owner.manifest(), what)];
    }
    let bare = roots
        .into_iter()
        .filter(|root| !begins_with_doc(&root.text));
    bare.map(|root| {
        broken(
            root.path.clone(),
            format!("the crate {} does not say what it is", owner.name),
        )
    })
    .collect()
}

/// Whether a `//!` line with words stands before the first line of code.
fn begins_with_doc(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines
        .find(|line| {
            !line.starts_with("#![") && (line.starts_with("//!") || !line.starts_with("//"))
        })
        .is_some_and(|line| {
            line.strip_prefix("//!")
                .is_some_and(|doc| !doc.trim().is_empty())
        })
}
