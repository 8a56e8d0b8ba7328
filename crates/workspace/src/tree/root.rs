//! Every file operation inside a workspace, resolved beneath its root.
//!
//! **Invariant:** no symlink is ever followed on the way to a path, and no path
//! leaves the root (`openat2` with `RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`).
//! Nothing appears under its real name before it is whole: it is written in
//! `.quintet/tmp` and renamed.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{
    self as sys, AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, Timespec,
    Timestamps,
};
use rustix::io::Errno;

use crate::proto::path::RESERVED;
use crate::proto::{ContentHash, Kind, Node, WorkspacePath};

/// What a file looked like when it was last read or written: equal ones hold
/// equal content. The kernel sets the time of the last change of any kind and
/// nobody else can, so a write that puts the old time of modification back is
/// seen all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// Inode.
    pub inode: u64,
    /// Length.
    pub size: u64,
    /// Time of the last modification, in nanoseconds.
    pub mtime: i64,
    /// Time of the last change of any kind, in nanoseconds. 0 when what the file
    /// holds has to be read before it is relied on.
    pub ctime: i64,
}

impl Fingerprint {
    /// One that equals no file: what it stands for has to be read again.
    pub const UNTRUSTED: Self = Self {
        inode: 0,
        size: 0,
        mtime: 0,
        ctime: 0,
    };

    pub(crate) fn of(stat: &Stat) -> Self {
        Self {
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            mtime: nanoseconds(stat.st_mtime, stat.st_mtime_nsec),
            ctime: nanoseconds(stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Whether it is the same file, unless somebody wrote to it and put its time
    /// back. To rename, link or chmod a file changes no more than its `ctime`.
    pub(crate) fn resembles(self, other: Self) -> bool {
        self.with_ctime(0) == other.with_ctime(0)
    }

    /// The same, to be read before it is relied on.
    pub(crate) fn unproven(self) -> Self {
        self.with_ctime(0)
    }

    /// The same after something that changes `ctime` was done to the file, which
    /// looks like this now. Where it does not resemble what it was, somebody
    /// wrote to it meanwhile, and that has to be found.
    pub(crate) fn after_a_change_of_ours(self, now: Self) -> Self {
        if self.resembles(now) {
            now
        } else {
            self.unproven()
        }
    }

    fn with_ctime(self, ctime: i64) -> Self {
        Self { ctime, ..self }
    }
}

fn nanoseconds(seconds: i64, nanos: impl TryInto<i64>) -> i64 {
    seconds
        .saturating_mul(1_000_000_000)
        .saturating_add(nanos.try_into().unwrap_or_default())
}

/// The kind of a directory entry; `None` for sockets, pipes and devices.
pub(crate) fn kind(stat: &Stat) -> Option<Kind> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Directory),
        FileType::Symlink => Some(Kind::Symlink),
        _ => None,
    }
}

pub(crate) fn mode(stat: &Stat) -> u32 {
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        0o777
    } else {
        stat.st_mode & 0o777
    }
}

/// Where the content of a new file comes from.
pub(crate) enum Source<'a> {
    Bytes(&'a [u8]),
    /// A file made with [`Root::temporary`] that already holds it.
    Temporary(Temporary),
    /// Writes the content.
    Write(&'a mut dyn FnMut(&File) -> io::Result<()>),
}

/// A file in `.quintet/tmp`; removed when dropped.
#[derive(Debug)]
pub(crate) struct Temporary {
    folder: std::sync::Arc<OwnedFd>,
    name: String,
    file: Option<File>,
    /// Renamed away, with nothing in exchange.
    placed: bool,
}

impl Temporary {
    pub(crate) fn file(&self) -> io::Result<&File> {
        self.file
            .as_ref()
            .ok_or_else(|| io::Error::other("a temporary link has no file"))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // A leftover is removed at the next start.
        if !self.placed {
            let _ = sys::unlinkat(&*self.folder, &self.name, AtFlags::empty());
        }
    }
}

/// How a path is expected to be when it is replaced.
pub(crate) type Expected = Option<Fingerprint>;

/// What became of a replacement.
pub(crate) enum Replaced {
    /// It is in place.
    Done(Fingerprint),
    /// The path was not as expected; it is as it was.
    Changed,
    /// Something is in the way.
    InTheWay,
}

/// A directory that is a workspace.
#[derive(Debug)]
pub(crate) struct Root {
    path: PathBuf,
    root: OwnedFd,
    pub(super) tmp: std::sync::Arc<OwnedFd>,
    next: AtomicU64,
    /// Whether new files can be made without a name first.
    pub(super) nameless: AtomicBool,
}

const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

impl Root {
    /// Opens the directory and its `.quintet/tmp`, which is emptied.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let root = sys::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let own = make_folder(&root, RESERVED)?;
        let tmp = make_folder(&own, "tmp")?;
        let mut next = 0;
        super::lifted::lower_all(&root, &tmp)?;
        for entry in Dir::read_from(&tmp)? {
            let entry = entry?;
            let name = entry.file_name();
            if !matches!(name.to_bytes(), b"." | b"..")
                && sys::unlinkat(&tmp, name, AtFlags::empty()).is_err()
            {
                // A folder that a file took the place of. One that is not empty stays:
                // what somebody put into it at the last moment is nowhere else.
                let left = sys::unlinkat(&tmp, name, AtFlags::REMOVEDIR).is_err();
                if left && let Some(Ok(number)) = name.to_str().ok().map(str::parse::<u64>) {
                    next = next.max(number.saturating_add(1));
                }
            }
        }
        let nameless = AtomicBool::new(super::create::has_fine_times(&tmp));
        Ok(Self {
            path: path.to_owned(),
            root,
            tmp: std::sync::Arc::new(tmp),
            next: AtomicU64::new(next),
            nameless,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.root
    }

    pub(crate) fn absolute(&self, path: Option<&WorkspacePath>) -> PathBuf {
        path.map_or_else(|| self.path.clone(), |path| self.path.join(path.as_str()))
    }

    /// Whether the directory at the workspace's path is still the one that was opened.
    pub(crate) fn is_in_place(&self) -> bool {
        let here = sys::stat(&self.path).map(|stat| (stat.st_dev, stat.st_ino));
        let opened = sys::fstat(&self.root).map(|stat| (stat.st_dev, stat.st_ino));
        matches!((here, opened), (Ok(here), Ok(opened)) if here == opened)
    }

    /// Opens a directory of the tree; `None` is the root itself.
    pub(crate) fn folder(&self, path: Option<&WorkspacePath>) -> io::Result<OwnedFd> {
        let name = path.map_or(".", WorkspacePath::as_str);
        Ok(sys::openat2(
            &self.root,
            name,
            FOLDER | OFlags::RDONLY,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        )?)
    }

    pub(crate) fn parent(&self, path: &WorkspacePath) -> io::Result<OwnedFd> {
        self.folder(path.parent().as_ref())
    }

    /// The state of a path; `None` when it, or a folder it would be in, does not exist.
    pub(crate) fn stat(&self, path: &WorkspacePath) -> io::Result<Option<Stat>> {
        match self.parent(path) {
            Ok(parent) => stat_in(parent.as_fd(), path.name()),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names in a directory, without our own and those that are not UTF-8,
    /// which are given to `odd`.
    pub(crate) fn names(
        &self,
        folder: &OwnedFd,
        is_root: bool,
        odd: &mut dyn FnMut(&std::ffi::CStr),
    ) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok("." | "..") => {}
                Ok(RESERVED) if is_root => {}
                Ok(name) => names.push(name.to_owned()),
                Err(_) => odd(entry.file_name()),
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Whether nothing is in a folder, not even what is not replicated.
    pub(super) fn is_empty(&self, path: &WorkspacePath) -> io::Result<bool> {
        let mut is_empty = true;
        let folder = self.folder(Some(path))?;
        let names = self.names(&folder, false, &mut |_| is_empty = false)?;
        Ok(is_empty && names.is_empty())
    }

    /// Opens a regular file for reading; never blocks on a pipe.
    pub(crate) fn open_file(&self, path: &WorkspacePath) -> io::Result<File> {
        open_file_in(self.parent(path)?.as_fd(), path.name())
    }

    pub(crate) fn read_link(&self, path: &WorkspacePath) -> io::Result<Vec<u8>> {
        Ok(sys::readlinkat(self.parent(path)?, path.name(), Vec::new())?.into_bytes())
    }

    pub(super) fn temporary_name(&self) -> String {
        format!("{}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// A new empty file in `.quintet/tmp`.
    pub(crate) fn temporary(&self) -> io::Result<Temporary> {
        self.temporary_with(0o600)
    }

    fn temporary_with(&self, mode: u32) -> io::Result<Temporary> {
        let name = self.temporary_name();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = sys::openat(&*self.tmp, &name, flags, Mode::from_raw_mode(mode))?;
        Ok(Temporary {
            folder: std::sync::Arc::clone(&self.tmp),
            name,
            file: Some(File::from(file)),
            placed: false,
        })
    }

    /// Puts a file or symlink in place of what is expected there.
    pub(crate) fn put(
        &self,
        parent: &OwnedFd,
        name: &str,
        node: &Node,
        source: Source<'_>,
        expected: Expected,
        to_sync: &mut Unsynced,
    ) -> io::Result<Replaced> {
        let mut temporary = match node.kind {
            Kind::Symlink => self.temporary_link(&source)?,
            Kind::File | Kind::Directory => self.temporary_file(node.mode, source)?,
        };
        let stat = match &temporary.file {
            Some(file) => sys::fstat(file)?,
            None => sys::statat(&*self.tmp, &temporary.name, AtFlags::SYMLINK_NOFOLLOW)?,
        };
        if let Some(file) = temporary
            .file
            .as_ref()
            .filter(|_| stat.st_mode & 0o777 != node.mode)
        {
            sys::fchmod(file, Mode::from_raw_mode(node.mode))?;
        }
        Ok(
            match self.swap_in(&mut temporary, parent, name, expected)? {
                Swap::Done => {
                    to_sync.add(temporary.file.as_ref());
                    let now = match &temporary.file {
                        Some(file) => Some(sys::fstat(file)?),
                        None => stat_in(parent.as_fd(), name)?,
                    };
                    let before = Fingerprint::of(&stat);
                    Replaced::Done(now.map_or(before.unproven(), |now| {
                        before.after_a_change_of_ours(Fingerprint::of(&now))
                    }))
                }
                Swap::Changed => Replaced::Changed,
                Swap::InTheWay => Replaced::InTheWay,
            },
        )
    }

    fn temporary_file(&self, mode: u32, source: Source<'_>) -> io::Result<Temporary> {
        let temporary = match source {
            Source::Temporary(temporary) => temporary,
            Source::Bytes(bytes) => {
                let temporary = self.temporary_with(mode)?;
                io::Write::write_all(&mut temporary.file()?, bytes)?;
                temporary
            }
            Source::Write(write) => {
                let temporary = self.temporary_with(mode)?;
                write(temporary.file()?)?;
                temporary
            }
        };
        // The kernel's own timestamps are coarse: two writes within one tick
        // look alike. A precise one differs from any that a later write gets.
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let now = Timespec {
            tv_sec: i64::try_from(now.as_secs()).unwrap_or_default(),
            tv_nsec: i64::from(now.subsec_nanos()),
        };
        sys::futimens(
            temporary.file()?,
            &Timestamps {
                last_access: now,
                last_modification: now,
            },
        )?;
        Ok(temporary)
    }

    fn temporary_link(&self, source: &Source<'_>) -> io::Result<Temporary> {
        let Source::Bytes(target) = source else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the target of a symlink is too long",
            ));
        };
        let name = self.temporary_name();
        sys::symlinkat(*target, &*self.tmp, &name)?;
        Ok(Temporary {
            folder: std::sync::Arc::clone(&self.tmp),
            name,
            file: None,
            placed: false,
        })
    }

    fn swap_in(
        &self,
        temporary: &mut Temporary,
        parent: &OwnedFd,
        name: &str,
        expected: Expected,
    ) -> io::Result<Swap> {
        let Some(expected) = expected else {
            return match sys::renameat_with(
                &*self.tmp,
                &temporary.name,
                parent,
                name,
                RenameFlags::NOREPLACE,
            ) {
                Ok(()) => {
                    temporary.placed = true;
                    Ok(Swap::Done)
                }
                Err(Errno::EXIST) => Ok(Swap::Changed),
                Err(errno) => Err(errno.into()),
            };
        };
        let exchange = || {
            sys::renameat_with(
                &*self.tmp,
                &temporary.name,
                parent,
                name,
                RenameFlags::EXCHANGE,
            )
        };
        match exchange() {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(Swap::Changed),
            Err(Errno::INVAL) => {
                // This file system cannot exchange; the check came just before.
                sys::renameat(&*self.tmp, &temporary.name, parent, name)?;
                return Ok(Swap::Done);
            }
            Err(errno) => return Err(errno.into()),
        }
        // What was there is now under the temporary name, out of everybody's
        // reach: if somebody wrote to it at the last moment, it goes back.
        let stat = sys::statat(&*self.tmp, &temporary.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if kind(&stat) == Some(Kind::Directory) {
            return match sys::unlinkat(&*self.tmp, &temporary.name, AtFlags::REMOVEDIR) {
                Ok(()) => Ok(Swap::Done),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    exchange()?;
                    Ok(Swap::InTheWay)
                }
                Err(errno) => Err(errno.into()),
            };
        }
        // The exchange itself changed its `ctime`.
        if !Fingerprint::of(&stat).resembles(expected) {
            exchange()?;
            return Ok(Swap::Changed);
        }
        Ok(Swap::Done)
    }

    /// Removes a file or symlink that is as expected.
    pub(crate) fn remove(
        &self,
        path: &WorkspacePath,
        expected: Fingerprint,
    ) -> io::Result<Replaced> {
        let parent = self.parent(path)?;
        let name = self.temporary_name();
        match sys::renameat_with(
            &parent,
            path.name(),
            &*self.tmp,
            &name,
            RenameFlags::NOREPLACE,
        ) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(Replaced::Done(Fingerprint::UNTRUSTED)),
            Err(errno) => return Err(errno.into()),
        }
        let stat = sys::statat(&*self.tmp, &name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !Fingerprint::of(&stat).resembles(expected) {
            sys::renameat_with(
                &*self.tmp,
                &name,
                &parent,
                path.name(),
                RenameFlags::NOREPLACE,
            )?;
            return Ok(Replaced::Changed);
        }
        sys::unlinkat(&*self.tmp, &name, AtFlags::empty())?;
        Ok(Replaced::Done(Fingerprint::UNTRUSTED))
    }

    /// Removes an empty directory.
    pub(crate) fn remove_folder(&self, path: &WorkspacePath) -> io::Result<Replaced> {
        match sys::unlinkat(self.parent(path)?, path.name(), AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(Replaced::Done(Fingerprint::UNTRUSTED)),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(Replaced::InTheWay),
            Err(Errno::NOTDIR) => Ok(Replaced::Changed),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes a directory, or gives an existing one these permission bits. `None`
    /// when something else is there; otherwise how it looks, and whether it was made.
    pub(super) fn put_folder(
        &self,
        path: &WorkspacePath,
        mode: u32,
    ) -> io::Result<Option<(Fingerprint, bool)>> {
        let parent = self.parent(path)?;
        let is_made = match sys::mkdirat(&parent, path.name(), Mode::from_raw_mode(mode)) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(errno) => return Err(errno.into()),
        };
        let stat = sys::statat(&parent, path.name(), AtFlags::SYMLINK_NOFOLLOW)?;
        if kind(&stat) != Some(Kind::Directory) {
            return Ok(None);
        }
        if stat.st_mode & 0o777 != mode {
            self.set_mode(path, mode)?;
        }
        Ok(Some((Fingerprint::of(&stat), is_made)))
    }

    /// Sets permission bits without following a symlink; says what it looks like then.
    pub(crate) fn set_mode(
        &self,
        path: &WorkspacePath,
        mode: u32,
    ) -> io::Result<Option<Fingerprint>> {
        let parent = self.parent(path)?;
        let bits = Mode::from_raw_mode(mode);
        match sys::chmodat(&parent, path.name(), bits, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => {
                // A descriptor that needs no permission: it may be closed to its owner.
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = sys::openat(&parent, path.name(), flags, Mode::empty())?;
                super::lifted::chmod(&file, mode)?;
            }
            done => done?,
        }
        let stat = stat_in(parent.as_fd(), path.name())?;
        Ok(stat.map(|stat| Fingerprint::of(&stat)))
    }

    /// Makes a name in `.quintet/` and removes it again: an event that comes
    /// after everything that happened before.
    pub(crate) fn drop_cookie(&self) -> io::Result<String> {
        let own = sys::openat(&self.root, RESERVED, FOLDER, Mode::empty())?;
        let name = format!("cookie-{}", self.temporary_name());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        drop(sys::openat(&own, &name, flags, Mode::from_raw_mode(0o600))?);
        sys::unlinkat(&own, &name, AtFlags::empty())?;
        Ok(name)
    }

    /// Makes everything that was put in place survive a power cut.
    pub(crate) fn sync(&self, unsynced: &mut Unsynced) -> io::Result<()> {
        if unsynced.overflow {
            sys::syncfs(&self.root)?;
        } else {
            for file in &unsynced.files {
                sys::fdatasync(file)?;
            }
        }
        *unsynced = Unsynced::default();
        Ok(())
    }
}

enum Swap {
    Done,
    Changed,
    InTheWay,
}

/// From here on one call for the whole file system beats many for single files.
const UNSYNCED: usize = 16;

/// Files that were put in place and may not survive a power cut yet.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    files: Vec<OwnedFd>,
    overflow: bool,
}

impl Unsynced {
    pub(super) fn add(&mut self, file: Option<&File>) {
        if self.overflow {
            return;
        }
        match file.map(|file| file.as_fd().try_clone_to_owned()) {
            Some(Ok(file)) if self.files.len() < UNSYNCED => self.files.push(file),
            Some(_) => {
                self.overflow = true;
                self.files.clear();
            }
            None => {}
        }
    }

    pub(super) fn join(&mut self, other: Self) {
        self.files.extend(other.files);
        self.overflow |= other.overflow || self.files.len() > UNSYNCED;
        if self.overflow {
            self.files.clear();
        }
    }
}

/// The state of an entry of a folder; `None` when there is none.
pub(crate) fn stat_in(folder: BorrowedFd<'_>, name: &str) -> io::Result<Option<Stat>> {
    match sys::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Opens a regular file of a folder; never blocks on a pipe.
pub(crate) fn open_file_in(folder: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let flags =
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOATIME;
    let opened = sys::openat(folder, name, flags, Mode::empty())
        // Reading without a trace is allowed only to the owner.
        .or_else(|errno| match errno {
            Errno::PERM => sys::openat(
                folder,
                name,
                flags.difference(OFlags::NOATIME),
                Mode::empty(),
            ),
            other => Err(other),
        })?;
    Ok(File::from(opened))
}

fn make_folder(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match sys::mkdirat(parent, name, Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    Ok(sys::openat(parent, name, FOLDER, Mode::empty())?)
}

/// Whether an error says that a path does not exist (a symlink in its way included).
pub(crate) fn is_absence(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP))
}

/// What a symlink is, as a node.
pub(crate) fn link_node(target: &[u8]) -> Node {
    Node {
        kind: Kind::Symlink,
        mode: 0o777,
        hash: ContentHash::of(target),
        size: target.len() as u64,
    }
}
