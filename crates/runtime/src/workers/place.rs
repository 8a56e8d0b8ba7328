//! Where what comes from a worker is put on this machine: beside its place until it is whole.
//!
//! Whoever fills such a part holds a lock on it, so that two copies to one place do not mix, also
//! of two daemons.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::copy::unusable;
use crate::refusal::Refusal;

/// The longest name of a file on Linux.
const NAME_MAX: usize = 255;

/// A file or folder that is not whole, and that nobody else fills.
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    target: PathBuf,
    /// Holds the lock.
    file: File,
}

impl Part {
    /// What is there of a file from an earlier attempt, or nothing yet.
    pub(super) fn of_file(target: &Path) -> Result<Self, Refusal> {
        refuse_special(target)?;
        Self::hold(target, |path| {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                .open(path)
        })
    }

    /// The same of a folder.
    pub(super) fn of_folder(target: &Path) -> Result<Self, Refusal> {
        Self::hold(target, |path| {
            fs::create_dir_all(path)?;
            let flags = OFlags::NOFOLLOW | OFlags::DIRECTORY;
            OpenOptions::new()
                .read(true)
                .custom_flags(flags.bits().cast_signed())
                .open(path)
        })
    }

    fn hold(target: &Path, open: impl Fn(&Path) -> io::Result<File>) -> Result<Self, Refusal> {
        let path = beside(target)?;
        let failed = |error: io::Error| unusable(target, &error);
        loop {
            let file = open(&path).map_err(failed)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // On a file system without locks nothing tells of another copy.
                Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => {}
                Err(Errno::WOULDBLOCK) => {
                    return Err(Refusal::Conflict(format!(
                        "{} is being copied already; wait for that, or name another destination",
                        target.display()
                    )));
                }
                Err(errno) => return Err(failed(errno.into())),
            }
            // Whoever held it before may have put it in its place since it was opened.
            if is_at(&file, &path).map_err(failed)? {
                let target = target.to_owned();
                return Ok(Self { path, target, file });
            }
        }
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Another handle of it.
    pub(super) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Puts a file in its place.
    pub(super) fn publish_file(self) -> Result<(), Refusal> {
        refuse_special(&self.target)?;
        self.publish()
    }

    /// Puts it in its place.
    pub(super) fn publish(self) -> Result<(), Refusal> {
        fs::rename(&self.path, &self.target).map_err(|error| unusable(&self.target, &error))
    }

    /// Removes a file of which there is nothing.
    pub(super) fn discard(self) {
        // One that stays is continued from its beginning.
        let _ = fs::remove_file(&self.path);
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let held = file.metadata()?;
    match path.symlink_metadata() {
        Ok(there) => Ok((there.dev(), there.ino()) == (held.dev(), held.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// A file takes the place of a file, and of nothing else: a device, a pipe or a link there is meant
/// to stay, and what it leads to is for the person to name.
fn refuse_special(target: &Path) -> Result<(), Refusal> {
    let what = match target.symlink_metadata() {
        Ok(there) if there.is_file() => return Ok(()),
        Ok(there) if there.is_dir() => "a folder",
        Ok(there) if there.is_symlink() => "a link; name the file itself, or remove it",
        Ok(_) => "not a regular file; name another destination, or remove it",
        Err(_) => return Ok(()),
    };
    Err(Refusal::Bad(format!("{} is {what}", target.display())))
}

fn beside(target: &Path) -> Result<PathBuf, Refusal> {
    let (Some(folder), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(Refusal::Bad(format!(
            "{} has no name to copy to",
            target.display()
        )));
    };
    let mut part = OsString::from(".");
    part.push(name);
    part.push(".quintet-partial");
    if part.len() > NAME_MAX {
        part = OsString::from(format!(".quintet-{}.quintet-partial", hash(name)));
    }
    Ok(folder.join(part))
}

fn hash(name: &OsStr) -> String {
    let hash = Sha256::digest(name.as_bytes());
    hash.iter().take(16).fold(String::new(), |mut hex, byte| {
        // Writing to memory does not fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn two_copies_to_one_place_do_not_mix() {
        let folder = tempfile::tempdir().expect("a folder");
        let target = folder.path().join("none/yet/out");
        let first = Part::of_file(&target).expect("the first");
        assert!(matches!(Part::of_file(&target), Err(Refusal::Conflict(_))));
        first
            .file()
            .expect("a handle")
            .write_all(b"first")
            .expect("writable");
        first.publish_file().expect("put in place");
        let second = Part::of_file(&target).expect("the first is over");
        assert_eq!(
            second
                .file()
                .expect("a handle")
                .metadata()
                .expect("there")
                .len(),
            0
        );
        second.discard();
        assert_eq!(fs::read(&target).expect("there"), b"first");

        let target = folder.path().join("tree");
        let first = Part::of_folder(&target).expect("the first");
        assert!(matches!(
            Part::of_folder(&target),
            Err(Refusal::Conflict(_))
        ));
        first.publish().expect("put in place");
        assert!(target.is_dir());
    }

    #[test]
    fn a_file_takes_the_place_of_nothing_but_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("folder")).expect("a folder");
        std::os::unix::fs::symlink("none", at("link")).expect("a link");
        mknodat(CWD, at("pipe"), FileType::Fifo, Mode::RUSR, 0).expect("a pipe");
        for name in ["folder", "link", "pipe"] {
            let refused = Part::of_file(&at(name)).expect_err(name);
            assert!(refused.to_string().contains(name), "{refused}");
        }
        // It came while the file did.
        let part = Part::of_file(&at("late")).expect("nothing there");
        std::os::unix::fs::symlink("none", at("late")).expect("a link");
        assert!(matches!(part.publish_file(), Err(Refusal::Bad(_))));
        assert!(at("late").is_symlink());
    }

    #[test]
    fn a_name_of_any_length_has_a_part_of_its_own_that_is_found_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let long = |last: &str| folder.path().join(format!("{}{last}", "n".repeat(250)));
        let (one, two) = (long("1"), long("2"));
        let part = Part::of_file(&one).expect("a part");
        Part::of_file(&two).expect("another").discard();
        part.file()
            .expect("a handle")
            .write_all(b"cut")
            .expect("writable");
        drop(part);
        let part = Part::of_file(&one).expect("the same");
        assert_eq!(
            part.file()
                .expect("a handle")
                .metadata()
                .expect("there")
                .len(),
            3
        );
        part.publish_file().expect("put in place");
        assert!(one.is_file());
    }
}
