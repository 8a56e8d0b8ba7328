//! New files, of which a first sync brings thousands: each is made without a name
//! and given one once it is whole, and the folder that many go into is opened once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{self as sys, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::live::LiveTree;
use super::root::{Fingerprint, Replaced, Root, Unsynced};
use super::seen::Seen;
use crate::proto::{Kind, Node, WorkspacePath};

/// The folder that the last new file went into. It lives no longer than a batch:
/// what is put into a folder that somebody moves meanwhile moves along, as if it
/// had been there just before.
#[derive(Default)]
pub(crate) struct Near(Option<(Option<WorkspacePath>, OwnedFd)>);

impl LiveTree {
    /// Puts a file where nothing was seen. `false` when that is not so simple and
    /// nothing was done: [`apply`](Self::apply) finds out what is the matter.
    pub(crate) fn create(
        &mut self,
        near: &mut Near,
        path: &WorkspacePath,
        node: Option<&Node>,
        bytes: &[u8],
    ) -> bool {
        let Some(node) = node.filter(|node| node.kind == Kind::File) else {
            return false;
        };
        if self.seen.contains_key(path) || !self.root.makes_nameless() {
            return false;
        }
        let parent = path.parent();
        if near.0.as_ref().is_none_or(|(folder, _)| *folder != parent) {
            let Ok(folder) = self.root.folder(parent.as_ref()) else {
                return false;
            };
            near.0 = Some((parent, folder));
        }
        let Some((_, folder)) = &near.0 else {
            return false;
        };
        let (folder, name) = (folder.as_fd(), path.name());
        let made = self
            .root
            .create(folder, name, node, bytes, &mut self.unsynced);
        let Ok(Replaced::Done(fingerprint)) = made else {
            return false;
        };
        let node = node.clone();
        self.see(path, Some(Seen { node, fingerprint }));
        true
    }
}

impl Root {
    fn makes_nameless(&self) -> bool {
        self.nameless.load(Ordering::Relaxed)
    }

    /// Makes a file under a name that nothing has.
    fn create(
        &self,
        folder: BorrowedFd<'_>,
        name: &str,
        node: &Node,
        bytes: &[u8],
        to_sync: &mut Unsynced,
    ) -> io::Result<Replaced> {
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(node.mode);
        let file = match sys::openat(&*self.tmp, ".", flags, mode) {
            Ok(file) => std::fs::File::from(file),
            Err(errno) => return Err(self.cannot_make_nameless(errno)),
        };
        io::Write::write_all(&mut &file, bytes)?;
        let before = sys::fstat(&file)?;
        if before.st_mode & 0o777 != node.mode {
            sys::fchmod(&file, mode)?;
        }
        match sys::linkat(&file, "", folder, name, AtFlags::EMPTY_PATH) {
            Ok(()) => {}
            Err(Errno::EXIST) => return Ok(Replaced::Changed),
            Err(errno) => return Err(self.cannot_make_nameless(errno)),
        }
        to_sync.add(Some(&file));
        let after = Fingerprint::of(&sys::fstat(&file)?);
        let fingerprint = Fingerprint::of(&before).after_a_change_of_ours(after);
        Ok(Replaced::Done(fingerprint))
    }

    /// Remembers that this file system can't.
    fn cannot_make_nameless(&self, errno: Errno) -> io::Error {
        let never = [Errno::OPNOTSUPP, Errno::ISDIR, Errno::INVAL, Errno::PERM];
        if never.contains(&errno) {
            self.nameless.store(false, Ordering::Relaxed);
        }
        errno.into()
    }
}

/// Whether two writes never leave the same time of modification, once somebody has
/// looked in between: since Linux 6.13, and where the file system takes part.
/// Elsewhere a file is given a precise time of its own before it gets its name. That
/// Linux also lets everybody name a file by its descriptor, which was root's before.
pub(super) fn has_fine_times(folder: &OwnedFd) -> bool {
    const BTRFS: i64 = 0x9123_683e;
    const EXT4: i64 = 0xef53;
    const TMPFS: i64 = 0x0102_1994;
    const XFS: i64 = 0x5846_5342;
    let kind = sys::fstatfs(folder).map(|stat| stat.f_type);
    super::capture::has_fine_clock() && matches!(kind, Ok(BTRFS | EXT4 | TMPFS | XFS))
}
