//! Changes in folders that not even their owner may change: modules that were
//! downloaded are kept in such ones, and they are followed like any others. Their
//! owner can give itself the permission, and does so for as long as a change takes.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{self as sys, Access, AtFlags, Dir, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::root::Root;
use crate::proto::WorkspacePath;

/// Begins the names of notes in `.quintet/tmp`. A kill leaves them there, and the
/// next start takes the permission away again, before anybody takes it for a change.
const NOTE: &str = "lifted-";
const OWNERS: u32 = 0o700;

/// A folder that its owner may change until this is dropped.
pub(super) struct Lifted {
    tmp: Arc<OwnedFd>,
    note: String,
    folder: OwnedFd,
    mode: u32,
}

impl Root {
    /// Lets this program change what is in the folder of a path, if that is its own.
    /// What is not possible is told by the change itself.
    pub(super) fn lift(&self, path: &WorkspacePath) -> Vec<Lifted> {
        let may = |parent: &OwnedFd| !is_denied(parent, Access::WRITE_OK | Access::EXEC_OK);
        if self.parent(path).is_ok_and(|parent| may(&parent)) {
            return Vec::new();
        }
        let mut lifted = Vec::new();
        let mut innermost = None;
        for ancestor in path.ancestors() {
            let Ok(folder) = handle(self.fd(), &ancestor) else {
                break;
            };
            if is_denied(&folder, Access::EXEC_OK) {
                lifted.extend(self.lift_one(&ancestor, folder).ok());
            }
            innermost = Some(ancestor);
        }
        lifted.extend(innermost.and_then(|folder| self.lift_folder(&folder)));
        lifted
    }

    /// The same for a folder itself.
    pub(super) fn lift_folder(&self, path: &WorkspacePath) -> Option<Lifted> {
        let folder = handle(self.fd(), path).ok()?;
        let all = Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK;
        is_denied(&folder, all).then(|| self.lift_one(path, folder).ok())?
    }

    fn lift_one(&self, path: &WorkspacePath, folder: OwnedFd) -> io::Result<Lifted> {
        let mode = sys::fstat(&folder)?.st_mode & 0o7777;
        if mode & OWNERS == OWNERS {
            // It is somebody else's, or something other than permissions is in the way.
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let note = format!("{NOTE}{}", self.temporary_name());
        // A link has all of its text or is not there.
        sys::symlinkat(format!("{mode:o} {path}"), &*self.tmp, &note)?;
        let lifted = Lifted {
            tmp: Arc::clone(&self.tmp),
            note,
            folder,
            mode,
        };
        chmod(&lifted.folder, mode | OWNERS)?;
        Ok(lifted)
    }
}

impl Drop for Lifted {
    fn drop(&mut self) {
        if lower(&self.folder, self.mode).is_ok() {
            let _ = sys::unlinkat(&*self.tmp, &self.note, AtFlags::empty());
        }
    }
}

/// Takes back the permissions that a kill left in place.
pub(super) fn lower_all(root: &OwnedFd, tmp: &OwnedFd) -> io::Result<()> {
    let mut notes = Vec::new();
    for entry in Dir::read_from(tmp)? {
        let entry = entry?;
        if entry.file_name().to_bytes().starts_with(NOTE.as_bytes()) {
            notes.extend(read_note(tmp, entry.file_name()));
        }
    }
    // What is inside is out of reach once its folder is closed.
    notes.sort_by(|a, b| b.cmp(a));
    for (path, mode) in notes {
        let lowered = handle(root, &path).and_then(|folder| lower(&folder, mode));
        if let Err(error) = lowered {
            tracing::debug!(%error, %path, "a folder keeps the permission that it was given");
        }
    }
    Ok(())
}

fn read_note(tmp: &OwnedFd, name: &CStr) -> Option<(WorkspacePath, u32)> {
    let note = sys::readlinkat(tmp, name, Vec::new()).ok()?;
    let (mode, path) = note.to_str().ok()?.split_once(' ')?;
    let mode = u32::from_str_radix(mode, 8).ok()?;
    Some((WorkspacePath::parse(path).ok()?, mode & 0o7777))
}

/// Unless somebody else has changed them since.
fn lower(folder: &OwnedFd, mode: u32) -> io::Result<()> {
    if sys::fstat(folder)?.st_mode & 0o7777 == mode | OWNERS {
        chmod(folder, mode)?;
    }
    Ok(())
}

/// A descriptor that needs no permission for the folder itself.
fn handle(root: &OwnedFd, path: &WorkspacePath) -> io::Result<OwnedFd> {
    Ok(sys::openat2(
        root,
        path.as_str(),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )?)
}

fn is_denied(folder: &OwnedFd, access: Access) -> bool {
    sys::accessat(folder, ".", access, AtFlags::EACCESS) == Err(Errno::ACCESS)
}

/// Sets permission bits by a descriptor that was opened without any permission.
pub(super) fn chmod(file: &impl AsFd, mode: u32) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(sys::chmod(path, Mode::from_raw_mode(mode))?)
}
