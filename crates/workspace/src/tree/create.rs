//! New files, of which a first sync brings thousands: each is made without a name
//! and given one once it is whole, the folder that many go into is opened once, and
//! where there are many, several threads make them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{self as sys, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::capture::cores;
use super::live::LiveTree;
use super::root::{Fingerprint, Replaced, Root, Unsynced};
use super::seen::Seen;
use crate::proto::{Kind, Node, WorkspacePath};

/// The folder that the last new file went into. It lives no longer than a batch:
/// what is put into a folder that somebody moves meanwhile moves along, as if it
/// had been there just before.
#[derive(Default)]
pub(crate) struct Near(Option<(Option<WorkspacePath>, OwnedFd)>);

/// A new file.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) path: &'a WorkspacePath,
    pub(crate) node: &'a Node,
    pub(crate) bytes: &'a [u8],
}

/// Files that a thread makes at least: below, it costs more than it brings.
const SHARE: usize = 64;

impl LiveTree {
    /// Whether a path can be tried to [`create`](Self::create).
    pub(crate) fn is_new(&self, new: &New<'_>) -> bool {
        new.node.kind == Kind::File
            && !self.seen.contains_key(new.path)
            && self.root.makes_nameless()
    }

    /// Puts many new files in place, and says which of them. With the others it is as
    /// with [`create`](Self::create).
    pub(crate) fn create_all(&mut self, new: &[New<'_>]) -> Vec<bool> {
        let root = &self.root;
        let make = |share: &[New<'_>]| {
            let (mut near, mut unsynced) = (Near::default(), Unsynced::default());
            let made = share
                .iter()
                .map(|new| near.create(root, new, &mut unsynced))
                .collect::<Vec<_>>();
            (made, unsynced)
        };
        let threads = cores().min(4).min(new.len() / SHARE).max(1);
        let mut shares = new.chunks(new.len().div_ceil(threads).max(1));
        let own = shares.next().unwrap_or_default();
        let done = std::thread::scope(|scope| {
            let others: Vec<_> = shares
                .map(|share| (share.len(), scope.spawn(move || make(share))))
                .collect();
            let mut done = vec![make(own)];
            done.extend(others.into_iter().map(|(length, other)| {
                // What a thread that panicked may have made is looked at.
                let none = (vec![None; length], Unsynced::default());
                other.join().unwrap_or(none)
            }));
            done
        });
        let mut results = Vec::with_capacity(new.len());
        let mut all = new.iter();
        for (made, unsynced) in done {
            self.unsynced.join(unsynced);
            for (fingerprint, new) in made.into_iter().zip(all.by_ref()) {
                results.push(fingerprint.is_some());
                if let Some(fingerprint) = fingerprint {
                    self.made_new(new, fingerprint);
                }
            }
        }
        results
    }

    fn made_new(&mut self, new: &New<'_>, fingerprint: Fingerprint) {
        let node = new.node.clone();
        self.see(new.path, Some(Seen { node, fingerprint }));
        self.file_made(new.path);
    }

    /// Puts a file where nothing was seen. `false` when that is not so simple and
    /// nothing was done: [`apply`](Self::apply) finds out what is the matter.
    pub(crate) fn create(&mut self, near: &mut Near, new: &New<'_>) -> bool {
        if !self.is_new(new) {
            return false;
        }
        match near.create(&self.root, new, &mut self.unsynced) {
            Some(fingerprint) => {
                self.made_new(new, fingerprint);
                true
            }
            None => false,
        }
    }
}

impl Near {
    fn create(
        &mut self,
        root: &Root,
        new: &New<'_>,
        unsynced: &mut Unsynced,
    ) -> Option<Fingerprint> {
        let New { path, node, bytes } = *new;
        let is_near = |(folder, _): &(Option<WorkspacePath>, OwnedFd)| path.is_in(folder.as_ref());
        if !self.0.as_ref().is_some_and(is_near) {
            let parent = path.parent();
            let folder = root.folder(parent.as_ref()).ok()?;
            self.0 = Some((parent, folder));
        }
        let (_, folder) = self.0.as_ref()?;
        match root.create(folder.as_fd(), path.name(), node, bytes, unsynced) {
            Ok(Replaced::Done(fingerprint)) => Some(fingerprint),
            _ => None,
        }
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
