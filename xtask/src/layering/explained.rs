//! The rules on foreign crates: each is used where it is declared, and each has its sentence in
//! docs/dependencies.md.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use super::Broken;
use super::files::Source;
use super::manifests::{Crate, Workspace};

const PAGE: &str = "docs/dependencies.md";

pub(super) fn check(
    root: &Path,
    workspace: &Workspace,
    sources: &[Source],
) -> io::Result<Vec<Broken>> {
    let mut broken = unused(workspace, sources);
    match fs::read_to_string(root.join(PAGE)) {
        Ok(page) => broken.extend(unexplained(workspace, &page)),
        // A repository without foreign crates needs no page on them.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    Ok(broken)
}

/// Foreign crates that one of ours declares and no source file of it names. Fuzz targets include
/// modules of other crates and declare what those need, and the bench what its peers' generated
/// code needs.
fn unused(workspace: &Workspace, sources: &[Source]) -> Vec<Broken> {
    let mut broken = Vec::new();
    let checked = |owner: &&Crate| !matches!(owner.name.as_str(), "fuzz" | "bench");
    for owner in workspace.crates.iter().filter(checked) {
        let own: Vec<&Source> = sources
            .iter()
            .filter(|source| is_of(owner, workspace, source))
            .collect();
        for (name, line) in owner.foreign(workspace) {
            let import = name.replace('-', "_");
            if !own.iter().any(|source| names(&source.text, &import)) {
                broken.push(Broken {
                    file: owner.manifest(),
                    line,
                    rule: "used-dependencies",
                    what: format!(
                        "{} declares {name}, which none of its files names",
                        owner.name
                    ),
                    fix: "remove the line".to_owned(),
                });
            }
        }
    }
    broken
}

fn is_of(owner: &Crate, workspace: &Workspace, source: &Source) -> bool {
    source
        .path
        .extension()
        .is_some_and(|extension| extension == "rs")
        && workspace
            .crate_of(&source.path)
            .is_some_and(|of| of.package == owner.package)
}

/// Whether a text holds a name as a word of its own.
fn names(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + name.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Foreign crates of the workspace without a row on the page, and rows of crates that are gone.
fn unexplained(workspace: &Workspace, page: &str) -> Vec<Broken> {
    let mut broken = Vec::new();
    let mut rows = BTreeSet::new();
    for (line, name) in rows_of(page) {
        let is_known = workspace.shared.iter().any(|(shared, _)| shared == name);
        if !is_known || !rows.insert(name) {
            let what = if is_known {
                "stands twice"
            } else {
                "is no dependency"
            };
            broken.push(Broken {
                file: PAGE.into(),
                line,
                rule: "explained-dependencies",
                what: format!("{name} {what}"),
                fix: "remove it from the page".to_owned(),
            });
        }
    }
    for (name, line) in &workspace.shared {
        if !rows.contains(name.as_str()) {
            broken.push(Broken {
                file: "Cargo.toml".into(),
                line: *line,
                rule: "explained-dependencies",
                what: format!("nothing says why {name} is there"),
                fix: format!("add a row with one sentence to {PAGE}"),
            });
        }
    }
    broken
}

/// The crates in the first column of the page's tables, with their lines. A table whose head is not
/// `crate` is about something else.
fn rows_of(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut of_crates = false;
    (1..).zip(page.lines()).flat_map(move |(line, text)| {
        let cell = text
            .strip_prefix('|')
            .and_then(|rest| rest.split('|').next())
            .map(str::trim);
        match cell {
            None => of_crates = false,
            Some("crate") => of_crates = true,
            Some(_) => {}
        }
        let cell = cell.filter(|cell| of_crates && *cell != "crate" && !cell.starts_with('-'));
        cell.into_iter()
            .flat_map(|cell| cell.split(','))
            .map(move |name| (line, name.split('(').next().unwrap_or_default().trim()))
    })
}
