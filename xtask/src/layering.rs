//! The layering rules, each with the reason it exists and what to do when it is broken.
//!
//! | rule | holds |
//! |---|---|
//! | `dependencies` | framing ← planes ← runtime ← cli, and planes never see each other |
//! | `one-plane-per-command` | a file of `cli/src/commands` talks to at most one plane |
//! | `pure-proto` | a `proto/` folder has no I/O, clock, threads, environment or tokio |
//! | `quiet-library` | libraries read no environment, home folder or terminal, and never print |
//! | `telling-names` | no module or crate is called util, utils, common, misc or helpers |
//! | `file-length` | no hand-written source file is over 800 lines |
//! | `crate-docs` | every crate's root file says what the crate is |
//! | `used-dependencies` | what a manifest declares is named in the crate's sources |
//! | `explained-dependencies` | docs/dependencies.md has a sentence for each shared dependency, and for no other |
//! | `same-profile` | fuzz/ and bench/ are compiled as the main workspace is, so that they share what is compiled |
//!
//! The check works on tokens: it sees through comments, strings, imports and `#[cfg(test)]`, and
//! needs no build of what it checks.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

mod explained;
mod files;
mod manifests;
mod paths;
mod profiles;
mod sources;
mod tokens;

use manifests::Workspace;

/// One place where a rule does not hold.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Broken {
    /// Relative to the repository.
    file: PathBuf,
    line: usize,
    rule: &'static str,
    what: String,
    fix: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            rule,
            what,
            fix,
        } = self;
        write!(
            f,
            "{}:{line}: {rule}: {what}\n    fix: {fix}",
            file.display()
        )
    }
}

/// What the check looked at and what it found.
pub(crate) struct Report {
    pub(crate) broken: Vec<Broken>,
    pub(crate) crates: usize,
    pub(crate) files: usize,
}

/// Checks every rule on the repository at `root`.
///
/// # Errors
/// When a manifest or source file cannot be read or is not what its name says.
pub(crate) fn check(root: &Path) -> io::Result<Report> {
    let workspace = Workspace::read(root)?;
    let sources = files::hand_written(root)?;
    let mut broken = workspace.broken_dependencies();
    broken.extend(sources::check(&workspace, &sources));
    broken.extend(files::check(&workspace, &sources));
    broken.extend(explained::check(root, &workspace, &sources)?);
    broken.extend(profiles::check(root)?);
    broken.sort();
    broken.dedup();
    Ok(Report {
        broken,
        crates: workspace.crates.len(),
        files: sources.len(),
    })
}
