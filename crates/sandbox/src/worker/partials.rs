//! Notes of unfinished uploads, so that none is left behind for ever.
//!
//! A note is a file in the spool folder: its first line says what the leftover is good for, its
//! second the name of the partial file, the rest the destination. The note is written before the
//! partial file and removed after it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::config::KEEP;
use super::state::{WorkerState, file_safe};
use crate::paths::Root;

const PREFIX: &str = "partial-";

/// What a partial file is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftover {
    /// A later upload may continue it, for a day.
    Resumable,
    /// Nobody can use it.
    Useless,
}

impl Leftover {
    const fn word(self) -> &'static str {
        match self {
            Self::Resumable => "resumable",
            Self::Useless => "useless",
        }
    }
}

pub(crate) struct Partials<'a> {
    dir: &'a Path,
}

impl WorkerState {
    pub(crate) fn partials(&self) -> Partials<'_> {
        Partials::new(&self.config.spool_dir)
    }
}

impl<'a> Partials<'a> {
    pub(crate) fn new(dir: &'a Path) -> Self {
        Self { dir }
    }

    pub(crate) fn note(&self, leftover: Leftover, part: &OsStr, path: &str) -> io::Result<()> {
        let mut text = format!("{}\n", leftover.word()).into_bytes();
        text.extend_from_slice(part.as_bytes());
        text.push(b'\n');
        text.extend_from_slice(path.as_bytes());
        fs::write(self.file(part, path), text)
    }

    pub(crate) fn clear(&self, part: &OsStr, path: &str) {
        // A note without its file is removed by the next sweep.
        let _ = fs::remove_file(self.file(part, path));
    }

    fn file(&self, part: &OsStr, path: &str) -> PathBuf {
        let key = format!("{}\0{path}", part.display());
        self.dir.join(format!("{PREFIX}{}", file_safe(&key)))
    }

    /// Removes partial files that nobody can use any more. Nothing may be uploading.
    pub(crate) fn sweep_at_start(&self, root: &Root) -> io::Result<()> {
        self.sweep(root, |leftover, age| {
            leftover == Leftover::Useless || age >= KEEP
        })
    }

    /// The same while uploads run, which only touch notes younger than a day.
    pub(crate) fn sweep_old(&self, root: &Root) -> io::Result<()> {
        self.sweep(root, |_, age| age >= KEEP)
    }

    fn sweep(&self, root: &Root, over: impl Fn(Leftover, Duration) -> bool) -> io::Result<()> {
        let now = SystemTime::now();
        for entry in fs::read_dir(self.dir)? {
            let entry = entry?;
            if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
                continue;
            }
            let age = entry
                .metadata()?
                .modified()
                .ok()
                .and_then(|at| now.duration_since(at).ok())
                .unwrap_or(Duration::ZERO);
            let text = fs::read_to_string(entry.path())?;
            let mut lines = text.splitn(3, '\n');
            let leftover = match lines.next() {
                Some("resumable") => Leftover::Resumable,
                _ => Leftover::Useless,
            };
            if !over(leftover, age) {
                continue;
            }
            let removed = match (lines.next(), lines.next()) {
                (Some(part), Some(path)) => root
                    .parent_of(path)
                    .and_then(|parent| parent.remove(OsStr::new(part)))
                    .is_ok(),
                _ => true,
            };
            if removed {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_removes_what_nobody_can_continue_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let (spool, files) = (dir.path().join("spool"), dir.path().join("root"));
        fs::create_dir_all(&spool).unwrap();
        fs::create_dir_all(files.join("sub")).unwrap();
        let root = Root::open(&files).unwrap();
        let partials = Partials::new(&spool);
        for (leftover, part) in [(Leftover::Useless, ".a"), (Leftover::Resumable, ".b")] {
            partials
                .note(leftover, OsStr::new(part), "sub/file")
                .unwrap();
            fs::write(files.join("sub").join(part), b"half").unwrap();
        }
        partials.sweep_at_start(&root).unwrap();
        assert!(!files.join("sub/.a").exists());
        assert!(files.join("sub/.b").exists());
        assert_eq!(fs::read_dir(&spool).unwrap().count(), 1);

        let note = fs::read_dir(&spool)
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        let yesterday = SystemTime::now() - KEEP - Duration::from_secs(1);
        let times = fs::FileTimes::new().set_modified(yesterday);
        fs::File::options()
            .write(true)
            .open(&note)
            .unwrap()
            .set_times(times)
            .unwrap();
        partials.sweep_old(&root).unwrap();
        assert!(!files.join("sub/.b").exists());
        assert!(!note.exists());
    }
}
