//! `skills/NAME/SKILL.md`: instructions that a person or a cron can send.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use super::front_matter;
use super::layers::{io_problem, read_text};
use super::node::{Raw, file_source};
use super::problem::{Problem, ProblemKind};
use super::source::{KeyPath, Origin};

/// A skill: what it is called, what it is for, and what it says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// `name` of the head, else the folder's name.
    pub name: String,
    /// `description` of the head.
    pub description: String,
    /// The text after the head.
    pub body: String,
}

/// The skills of a folder by name, and what was wrong with the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skills {
    /// The skills that could be read.
    pub skills: BTreeMap<String, Skill>,
    /// One for each file that could not.
    pub problems: Vec<Problem>,
}

/// Reads every `NAME/SKILL.md` below a folder, which need not be there.
///
/// A broken skill never hides a good one.
#[must_use]
pub fn load_skills(dir: &Path) -> Skills {
    let mut loaded = Skills::default();
    let folders = match std::fs::read_dir(dir) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                loaded.problems.push(io_problem(dir, &error));
            }
            return loaded;
        }
    };
    let mut files: Vec<_> = folders
        .map(|folder| folder.join("SKILL.md"))
        .filter(|file| file.is_file())
        .collect();
    files.sort();
    for file in files {
        match load_skill(&file) {
            Ok(skill) if loaded.skills.contains_key(&skill.name) => {
                let reason = format!("another skill is named {:?}", skill.name);
                loaded.problems.push(invalid(&file, "name", reason));
            }
            Ok(skill) => {
                loaded.skills.insert(skill.name.clone(), skill);
            }
            Err(problem) => loaded.problems.push(problem),
        }
    }
    loaded
}

/// Reads one `SKILL.md`.
///
/// Keys of the head other than `name` and `description` belong to other
/// programs that share the format, and are left alone.
///
/// # Errors
///
/// When the file cannot be read, its head does not parse, or it says nothing.
pub fn load_skill(file: &Path) -> Result<Skill, Problem> {
    let source = file_source(file);
    let text = read_text(file).map_err(|error| io_problem(file, &error))?;
    let matter = front_matter::parse(&text, &source)?;
    let word = |key: &str| match matter.head.child(key).map(|node| &node.raw) {
        Some(Raw::Str(text) | Raw::Text(text)) => Some(text.to_string()),
        _ => None,
    };
    let folder = file
        .parent()
        .and_then(Path::file_name)
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default();
    let name = word("name")
        .filter(|name| !name.is_empty())
        .unwrap_or(folder);
    let Some(description) = word("description").filter(|text| !text.is_empty()) else {
        return Err(Problem {
            origin: Origin::new(source),
            key: KeyPath::root().child("description"),
            kind: ProblemKind::Missing {
                reason: "a skill says what it is for in its head".to_owned(),
            },
        });
    };
    if matter.body.is_empty() {
        return Err(invalid(
            file,
            "body",
            "there is no text after the head".to_owned(),
        ));
    }
    Ok(Skill {
        name,
        description,
        body: matter.body,
    })
}

fn invalid(file: &Path, key: &str, reason: String) -> Problem {
    Problem {
        origin: Origin::new(file_source(file)),
        key: KeyPath::root().child(key),
        kind: ProblemKind::Invalid { reason },
    }
}
