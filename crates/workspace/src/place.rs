//! Where the state of a folder is kept, so that every program of a person finds
//! the same.
//!
//! Beneath the home folder, `workspaces/{id}/` holds `history.db` of a master or
//! `replica.db` of a replica, and `cas/` the contents of all masters. The id
//! follows from the folder's real path.

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Makes a folder that nobody but its user may enter: what is in it was readable by others only
/// where its file was.
pub(crate) fn make_private(folder: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

/// Which end of the plane a folder is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It has a history.
    Master,
    /// It is a copy.
    Replica,
}

/// A folder and where its state is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The folder, by its real path.
    pub dir: PathBuf,
    /// `workspaces/{id}` of the home folder.
    pub state_dir: PathBuf,
    /// `cas` of the home folder.
    pub cas_dir: PathBuf,
}

impl Place {
    /// The place of a folder that exists.
    pub fn of(home: &Path, dir: &Path) -> io::Result<Self> {
        let dir = dir.canonicalize()?;
        Ok(Self {
            state_dir: home.join("workspaces").join(id_of(&dir)),
            cas_dir: home.join("cas"),
            dir,
        })
    }

    /// The place of the innermost folder around `start` that has a state.
    pub fn around(home: &Path, start: &Path) -> io::Result<Option<Self>> {
        let start = start.canonicalize()?;
        for dir in start.ancestors() {
            let place = Self::of(home, dir)?;
            if place.role().is_some() {
                return Ok(Some(place));
            }
        }
        Ok(None)
    }

    /// Which end it is; `None` when it was never opened.
    pub fn role(&self) -> Option<Role> {
        if self.state_dir.join("history.db").exists() {
            Some(Role::Master)
        } else if self.state_dir.join("replica.db").exists() {
            Some(Role::Replica)
        } else {
            None
        }
    }

    /// The name of the folder's state.
    pub fn id(&self) -> String {
        id_of(&self.dir)
    }

    /// The name under which a replica was last opened.
    pub fn sandbox_id(&self) -> Option<String> {
        std::fs::read_to_string(self.state_dir.join(SANDBOX_ID)).ok()
    }
}

/// The file in a replica's state folder that holds its name.
pub(crate) const SANDBOX_ID: &str = "sandbox_id";
/// The one that says which master it follows.
pub(crate) const MASTER: &str = "master";

fn id_of(dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let hash = blake3::hash(dir.as_os_str().as_bytes());
    hash.to_hex()[..16].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_folder_with_a_state_is_found() {
        let home = tempfile::tempdir().unwrap();
        let outer = home.path().join("outer");
        let inner = outer.join("a/inner");
        std::fs::create_dir_all(inner.join("deep")).unwrap();
        assert_eq!(Place::around(home.path(), &inner).unwrap(), None);
        for (dir, name) in [(&outer, "history.db"), (&inner, "replica.db")] {
            let place = Place::of(home.path(), dir).unwrap();
            std::fs::create_dir_all(&place.state_dir).unwrap();
            std::fs::write(place.state_dir.join(name), "").unwrap();
        }
        let found = |dir: &Path| Place::around(home.path(), dir).unwrap().unwrap();
        assert_eq!(found(&inner.join("deep")).role(), Some(Role::Replica));
        assert_eq!(found(&outer.join("a")).role(), Some(Role::Master));
        assert_eq!(found(&outer.join("a")).dir, outer.canonicalize().unwrap());
    }
}
