//! One daemon a home folder.
//!
//! The lock is the kernel's: it goes away with the process that holds it,
//! however that ends. The pid inside is only for the message.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Why the lock was not taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another daemon has this home folder.
    #[error("a daemon with pid {pid} is running on {}", home.display())]
    Held {
        /// Its process.
        pid: String,
        /// The home folder.
        home: PathBuf,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Holds the home folder until it is dropped.
#[derive(Debug)]
pub(crate) struct HomeLock {
    _file: File,
}

impl HomeLock {
    /// Takes the lock, or says who has it.
    pub(crate) fn take(path: &Path, home: &Path) -> Result<Self, LockError> {
        let io_error = |source| LockError::Io {
            path: path.to_owned(),
            source,
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(io_error)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(io_error)?;
            return Err(LockError::Held {
                pid: match pid.trim() {
                    "" => "unknown".to_owned(),
                    pid => pid.to_owned(),
                },
                home: home.to_owned(),
            });
        }
        file.set_len(0).map_err(io_error)?;
        file.rewind().map_err(io_error)?;
        writeln!(file, "{}", std::process::id()).map_err(io_error)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_has_it_and_the_lock_goes_with_its_holder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lock");
        let held = HomeLock::take(&path, folder.path()).expect("free");
        match HomeLock::take(&path, folder.path()) {
            Err(LockError::Held { pid, .. }) => assert_eq!(pid, std::process::id().to_string()),
            other => panic!("expected the holder's pid, got {other:?}"),
        }
        drop(held);
        HomeLock::take(&path, folder.path()).expect("free again");
    }
}
