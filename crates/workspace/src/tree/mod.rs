//! A directory on disk: looking at it, and changing it safely.

mod apply;
mod capture;
mod create;
mod first;
mod lifted;
mod live;
mod looking;
mod made;
mod problems;
mod renames;
mod root;
mod rules;
pub(crate) mod seen;

pub use root::Fingerprint;
pub use seen::Seen;

pub(crate) use apply::{Applied, Content};
pub(crate) use create::{Near, New};
pub(crate) use first::FirstLook;
pub(crate) use live::{Found, LiveTree, Look};
pub(crate) use root::{Root, Temporary};

use std::io;
use std::path::{Path, PathBuf};

use crate::content::CasError;

/// How much may be tracked without being told to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrackLimits {
    /// Number of files and folders.
    pub max_entries: u64,
    /// Sum of the sizes of files.
    pub max_bytes: u64,
    /// The person's home folder, when it is known: it is not tracked as a whole.
    pub home: Option<PathBuf>,
    /// Track it whatever it is.
    pub allow_anything: bool,
}

impl Default for TrackLimits {
    fn default() -> Self {
        Self {
            max_entries: 500_000,
            max_bytes: 100 << 30,
            home: None,
            allow_anything: false,
        }
    }
}

/// A directory was not accepted as a workspace.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It is the root of the file system.
    #[error(
        "{path} is the root of the file system; choose a project's folder, or allow it explicitly"
    )]
    Root {
        /// The directory.
        path: PathBuf,
    },
    /// It is, or holds, the home folder.
    #[error(
        "{path} is a home folder or holds one; choose a project's folder, or allow it explicitly"
    )]
    Home {
        /// The directory.
        path: PathBuf,
    },
    /// It holds too many files.
    #[error(
        "{path} holds more than {limit} files and folders; choose a smaller folder, list what to leave out in .quintetignore, or allow it explicitly"
    )]
    TooMany {
        /// The directory.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// It holds too many bytes.
    #[error(
        "{path} holds more than {limit} bytes; choose a smaller folder, list what to leave out in .quintetignore, or allow it explicitly"
    )]
    TooLarge {
        /// The directory.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
}

impl TrackLimits {
    /// Refuses what nobody means to track.
    pub(crate) fn check_place(&self, dir: &Path) -> Result<(), Refused> {
        if self.allow_anything {
            return Ok(());
        }
        if dir.parent().is_none() {
            return Err(Refused::Root {
                path: dir.to_owned(),
            });
        }
        let home = self
            .home
            .as_ref()
            .map(|home| home.canonicalize().unwrap_or_else(|_| home.clone()));
        if home.is_some_and(|home| home.starts_with(dir)) {
            return Err(Refused::Home {
                path: dir.to_owned(),
            });
        }
        Ok(())
    }
}

/// The tree could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The disk said no.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// The content store said no.
    #[error(transparent)]
    Store(#[from] CasError),
    /// The workspace's directory is gone, or another one is in its place.
    #[error("{path} is no longer the directory that was opened; nothing was recorded")]
    Gone {
        /// The directory.
        path: PathBuf,
    },
}

impl TreeError {
    /// Whether a disk is full.
    pub fn is_full(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            Self::Store(error) => error.is_full(),
            Self::Gone { .. } => false,
        }
    }
}

impl TreeError {
    /// What went wrong, for somebody who knows which path it is about and need not
    /// know where the workspace is.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Io { source, .. } => source.to_string(),
            Self::Store(_) | Self::Gone { .. } => self.to_string(),
        }
    }

    /// Whether the same may work later, without anybody changing the request.
    pub fn may_pass(&self) -> bool {
        use io::ErrorKind as K;
        match self {
            Self::Io { source, .. } => !matches!(
                source.kind(),
                K::InvalidFilename
                    | K::InvalidInput
                    | K::PermissionDenied
                    | K::ReadOnlyFilesystem
                    | K::FileTooLarge
            ),
            Self::Store(_) | Self::Gone { .. } => true,
        }
    }
}

/// Something in the tree that is not replicated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Problem {
    /// Where.
    pub path: String,
    /// Why.
    pub reason: ProblemReason,
}

/// Why something is not replicated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ProblemReason {
    /// Its name is not UTF-8.
    NameNotUtf8,
    /// It is a socket, a pipe or a device.
    SpecialFile,
    /// It may not be read.
    Unreadable(String),
}
