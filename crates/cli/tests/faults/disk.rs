//! A disk that fails, and what a process left on one.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// How a disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errno {
    Full,
    ReadOnly,
    Broken,
}

impl Errno {
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Full => rustix::io::Errno::NOSPC.raw_os_error(),
            Self::ReadOnly => rustix::io::Errno::ROFS.raw_os_error(),
            Self::Broken => rustix::io::Errno::IO.raw_os_error(),
        }
    }

    /// Whether a person can see from this text what is wrong with the disk.
    pub(crate) fn is_named_in(self, text: &str) -> bool {
        // SQLite calls a refused write an I/O error in places, and of a database that it can't open
        // it says no more than that.
        let sqlite = ["I/O error", "unable to open database file"];
        let words: &[&str] = match self {
            Self::Full => &["No space left", "is full"],
            Self::ReadOnly => &["ead-only", "readonly"],
            Self::Broken => &["nput/output error"],
        };
        words.iter().chain(&sqlite).any(|word| text.contains(word))
    }
}

/// Files beneath a folder that are named like something unfinished.
pub(crate) fn temporary(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(Result::unwrap) {
            let (path, name) = (entry.path(), entry.file_name());
            let name = name.to_str().unwrap();
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            } else if folder.ends_with("tmp")
                // A part of a copy stays: the next attempt goes on with it.
                || (name.starts_with(".quintet-") && !name.ends_with(".part"))
            {
                found.insert(path);
            }
        }
    }
    found
}
