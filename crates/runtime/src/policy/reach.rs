//! Which files a command names by its words, and which of them it would change.
//!
//! Known by the names of common programs and by nothing else: this is where a person is asked
//! before an obvious accident, and what isolation is for is the rest.

use super::words::Word;
use super::wrappers::Part;

/// Programs that change what they are given.
const CHANGE: [&str; 18] = [
    "chgrp", "chmod", "chown", "cp", "dd", "install", "ln", "mkdir", "mkfifo", "mknod", "mv", "rm",
    "rmdir", "shred", "tee", "touch", "truncate", "unlink",
];

/// Of these, those that only read what comes before the last word.
const COPY: [&str; 3] = ["cp", "install", "ln"];

/// Programs whose words are text and no files.
const SAY: [&str; 2] = ["echo", "printf"];

/// Programs whose first word is a pattern or a script.
const PATTERN: [&str; 8] = ["ack", "ag", "awk", "egrep", "fgrep", "grep", "rg", "sed"];

/// Folders that any program reads.
const SYSTEM: [&str; 11] = [
    "/bin", "/dev", "/etc", "/lib", "/lib64", "/nix", "/opt", "/proc", "/sbin", "/sys", "/usr",
];

/// The first path outside of the workspace that a part would change.
pub(super) fn changed(part: &Part, reached: impl Fn(&Word) -> Option<String>) -> Option<String> {
    let name = name(part)?;
    let has = |option: &str| part.words.iter().any(|word| word.prefix() == option);
    let changes = CHANGE.contains(&name.as_str())
        || (name == "find" && has("-delete"))
        || (name == "sed" && part.words.iter().any(|word| is_in_place(word.prefix())));
    if !changes {
        return None;
    }
    let words = part.words.get(1..).unwrap_or_default();
    let target = words.iter().any(|word| {
        let prefix = word.prefix();
        prefix == "-t" || prefix.starts_with("--target-directory")
    });
    let operands: Vec<&Word> = words.iter().filter(|word| !is_option(word)).collect();
    let read = match COPY.contains(&name.as_str()) && !target {
        true => operands.len().saturating_sub(1),
        false => 0,
    };
    let options = words.iter().filter(|word| is_option(word));
    let given = operands.into_iter().skip(read).chain(options);
    given
        .filter(|word| !(name == "dd" && word.prefix().starts_with("if=")))
        .find_map(reached)
}

/// The first path outside of the workspace that a part names, but for what any program reads.
pub(super) fn named(part: &Part, reached: impl Fn(&Word) -> Option<String>) -> Option<String> {
    let name = name(part)?;
    if SAY.contains(&name.as_str()) {
        return None;
    }
    let words = part.words.iter().enumerate();
    let mut patterns = usize::from(PATTERN.contains(&name.as_str()));
    let named = words.filter(|(index, word)| {
        let is_pattern = *index > 0 && patterns > 0 && !is_option(word);
        patterns -= usize::from(is_pattern);
        !is_pattern
    });
    let paths = named.filter_map(|(_, word)| reached(word));
    paths.into_iter().find(|path| !is_system(path))
}

fn name(part: &Part) -> Option<String> {
    let name = part.words.first()?.exact()?;
    Some(name.rsplit('/').next().unwrap_or_default().to_owned())
}

fn is_option(word: &Word) -> bool {
    word.prefix().starts_with('-') && word.prefix() != "-"
}

fn is_in_place(option: &str) -> bool {
    option.starts_with("-i") || option.starts_with("--in-place")
}

/// The path outside that a word is, or has as its value: `/x`, `../x`, `~/x`, `of=/x`, `-C/x`.
/// `text` is what the word is, where that is known.
pub(super) fn reached(
    word: &Word,
    text: Option<String>,
    outside: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    if is_home(word) {
        return Some(word.raw.clone());
    }
    let text = text?;
    let value = match text.split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None if is_option(word) => text
            .find('/')
            .and_then(|at| Some(text.get(at..)?.to_owned())),
        None => None,
    };
    match value {
        Some(value) => outside(&value),
        None if is_option(word) => None,
        None => outside(&text),
    }
}

/// What a word may hold beside being a path itself: `--in=x`, `-Ix`, `@x`, `x:/y`.
pub(super) fn values(text: &str) -> impl Iterator<Item = &str> {
    let attached = match text.strip_prefix('-') {
        Some(option) if !option.starts_with('-') => option.get(1..),
        _ => None,
    };
    let split = text.split(['=', ':', '@', ',']);
    let split = split.filter(move |value| value.len() < text.len());
    split.chain(attached).filter(|value| !value.is_empty())
}

/// Whether a word begins with the home folder.
pub(super) fn is_home(word: &Word) -> bool {
    let homes = ["~", "$HOME", "${HOME}", "\"$HOME", "\"${HOME}"];
    homes.iter().any(|home| word.raw.starts_with(home))
}

fn is_system(path: &str) -> bool {
    SYSTEM.iter().any(|folder| {
        path.strip_prefix(folder)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}
