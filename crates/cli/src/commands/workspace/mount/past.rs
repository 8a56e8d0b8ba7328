//! The past as a file system: `at/SEQ/path`, `at/CHECKPOINT/path`, `time/WHEN/path`.
//!
//! A state is a tree of the history, read once and kept while it is among the last few in use.
//! Inodes live as long as the kernel knows them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, LockOwner, OpenFlags,
    ReplyAttr, ReplyData, ReplyDirectory, ReplyEntry, Request,
};
use quintet_workspace::control::Point;
use quintet_workspace::proto::{Kind, Node, WorkspacePath};
use quintet_workspace::{Past, Version};

use super::super::point;

/// The past does not change, so the kernel may keep what it knows.
const FOR_LONG: Duration = Duration::from_secs(3600);
const TREES: usize = 8;

type Tree = BTreeMap<WorkspacePath, Version>;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Root,
    At,
    Time,
    /// A state, or a path of it.
    In(u64, Option<WorkspacePath>),
}

struct Inodes {
    places: HashMap<u64, (Place, u64)>,
    numbers: HashMap<Place, u64>,
    next: u64,
}

pub(super) struct PastFs {
    past: Mutex<Past>,
    /// The last states in use, newest first.
    trees: Mutex<VecDeque<(u64, Arc<Tree>)>>,
    inodes: Mutex<Inodes>,
    uid: u32,
    gid: u32,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PastFs {
    pub(super) fn new(past: Past) -> Self {
        let root = INodeNo::ROOT.0;
        Self {
            past: Mutex::new(past),
            trees: Mutex::default(),
            inodes: Mutex::new(Inodes {
                places: HashMap::from([(root, (Place::Root, 1))]),
                numbers: HashMap::from([(Place::Root, root)]),
                next: root + 1,
            }),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        }
    }

    fn place(&self, inode: INodeNo) -> Result<Place, Errno> {
        let inodes = lock(&self.inodes);
        let known = inodes.places.get(&inode.0);
        known.map(|(place, _)| place.clone()).ok_or(Errno::ENOENT)
    }

    /// The number of a place that the kernel now knows once more.
    fn number(&self, place: &Place) -> u64 {
        let mut inodes = lock(&self.inodes);
        let number = match inodes.numbers.get(place) {
            Some(number) => *number,
            None => {
                let number = inodes.next;
                inodes.next += 1;
                inodes.numbers.insert(place.clone(), number);
                inodes.places.insert(number, (place.clone(), 0));
                number
            }
        };
        if let Some((_, lookups)) = inodes.places.get_mut(&number) {
            *lookups += 1;
        }
        number
    }

    fn tree(&self, sequence: u64) -> Result<Arc<Tree>, Errno> {
        let mut trees = lock(&self.trees);
        if let Some(at) = trees.iter().position(|(known, _)| *known == sequence)
            && let Some(known) = trees.remove(at)
        {
            trees.push_front(known.clone());
            return Ok(known.1);
        }
        let tree = lock(&self.past).tree(sequence).map_err(failed)?;
        let tree = Arc::new(tree);
        trees.push_front((sequence, Arc::clone(&tree)));
        trees.truncate(TREES);
        Ok(tree)
    }

    fn version(&self, place: &Place) -> Result<Option<Version>, Errno> {
        match place {
            Place::In(sequence, Some(path)) => {
                let tree = self.tree(*sequence)?;
                tree.get(path).cloned().map(Some).ok_or(Errno::ENOENT)
            }
            _ => Ok(None),
        }
    }

    fn child(&self, parent: &Place, name: &OsStr) -> Result<Place, Errno> {
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        match parent {
            Place::Root => match name {
                "at" => Ok(Place::At),
                "time" => Ok(Place::Time),
                _ => Err(Errno::ENOENT),
            },
            Place::At => {
                let point = point::parse(name).map_err(|_| Errno::ENOENT)?;
                Ok(Place::In(self.state(point)?, None))
            }
            Place::Time => {
                let point = point::time(name).map_err(|_| Errno::ENOENT)?;
                Ok(Place::In(self.state(point)?, None))
            }
            Place::In(sequence, folder) => {
                let path = match folder {
                    Some(folder) => format!("{folder}/{name}"),
                    None => name.to_owned(),
                };
                let path = WorkspacePath::parse(&path).map_err(|_| Errno::ENOENT)?;
                Ok(Place::In(*sequence, Some(path)))
            }
        }
    }

    fn state(&self, point: Point) -> Result<u64, Errno> {
        let past = lock(&self.past);
        let (oldest, newest) = past.range().map_err(failed)?;
        let checkpoints = past.checkpoints().map_err(failed)?;
        match point {
            Point::Now => Ok(newest),
            Point::Sequence(sequence) => {
                let named = checkpoints.iter().any(|named| named.sequence == sequence);
                let kept = named || (oldest..=newest).contains(&sequence);
                kept.then_some(sequence).ok_or(Errno::ENOENT)
            }
            Point::Checkpoint(name) => checkpoints
                .into_iter()
                .find(|checkpoint| checkpoint.name == name)
                .map(|checkpoint| checkpoint.sequence)
                .ok_or(Errno::ENOENT),
            Point::AtMillis(at) => {
                let found = past.sequence_at(at).map_err(failed)?;
                found.filter(|found| *found >= oldest).ok_or(Errno::ENOENT)
            }
        }
    }

    fn attributes(&self, place: &Place, number: u64) -> Result<FileAttr, Errno> {
        let version = self.version(place)?;
        let node = version.as_ref().map(|version| &version.node);
        let kind = node.map_or(FileType::Directory, file_type);
        let size = node.map_or(0, |node| node.size);
        let at = version.as_ref().map_or(UNIX_EPOCH, time);
        // What may not be written is shown so; a folder that may not be entered still can.
        let mode = node.map_or(0o555, |node| node.mode & 0o555);
        let bits = if kind == FileType::Directory {
            mode | 0o500
        } else {
            mode
        };
        Ok(FileAttr {
            ino: INodeNo(number),
            size,
            blocks: size.div_ceil(512),
            atime: at,
            mtime: at,
            ctime: at,
            crtime: at,
            kind,
            perm: u16::try_from(bits).unwrap_or(0o555),
            nlink: 1,
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    fn list(&self, place: &Place) -> Result<Vec<(String, FileType)>, Errno> {
        let folder = |name: &str| (name.to_owned(), FileType::Directory);
        match place {
            Place::Root => Ok(vec![folder("at"), folder("time")]),
            // Any other sequence is there too when it is named.
            Place::At => {
                let past = lock(&self.past);
                let mut names = vec![folder("now")];
                names.push(folder(&past.range().map_err(failed)?.1.to_string()));
                // One that no folder can have was given before names were checked.
                let can_be_folder = |name: &str| {
                    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
                };
                for checkpoint in past.checkpoints().map_err(failed)? {
                    if can_be_folder(&checkpoint.name) {
                        names.push(folder(&checkpoint.name));
                    }
                }
                Ok(names)
            }
            Place::Time => Ok(Vec::new()),
            Place::In(sequence, path) => {
                if self
                    .version(place)?
                    .is_some_and(|version| !version.node.is_directory())
                {
                    return Err(Errno::ENOTDIR);
                }
                let tree = self.tree(*sequence)?;
                let inside = |child: &WorkspacePath| child.parent().as_ref() == path.as_ref();
                let children = tree.iter().filter(|(child, _)| inside(child));
                Ok(children
                    .map(|(child, version)| (child.name().to_owned(), file_type(&version.node)))
                    .collect())
            }
        }
    }

    fn content(&self, inode: INodeNo, offset: u64, size: usize) -> Result<Vec<u8>, Errno> {
        let version = self.version(&self.place(inode)?)?.ok_or(Errno::EISDIR)?;
        lock(&self.past)
            .read(&version.node, offset, size)
            .map_err(failed)
    }
}

fn failed(error: impl std::error::Error) -> Errno {
    tracing::warn!(%error, "the past could not be read");
    Errno::EIO
}

fn file_type(node: &Node) -> FileType {
    match node.kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
    }
}

fn time(version: &Version) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(version.at_millis.try_into().unwrap_or(0))
}

impl Filesystem for PastFs {
    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.place(parent).and_then(|parent| {
            let place = self.child(&parent, name)?;
            self.version(&place)?;
            // `now` and times to come are another state a moment later.
            let lasting = if parent == Place::At || parent == Place::Time {
                Duration::ZERO
            } else {
                FOR_LONG
            };
            let number = self.number(&place);
            Ok((lasting, self.attributes(&place, number)?))
        });
        match found {
            Ok((lasting, attributes)) => reply.entry(&lasting, &attributes, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        let mut inodes = lock(&self.inodes);
        if let Some((_, lookups)) = inodes.places.get_mut(&ino.0) {
            *lookups = lookups.saturating_sub(nlookup);
            if *lookups == 0
                && ino != INodeNo::ROOT
                && let Some((place, _)) = inodes.places.remove(&ino.0)
            {
                inodes.numbers.remove(&place);
            }
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let found = self
            .place(ino)
            .and_then(|place| self.attributes(&place, ino.0));
        match found {
            Ok(attributes) => reply.attr(&FOR_LONG, &attributes),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.content(ino, 0, 1 << 16) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.content(ino, offset, usize::try_from(size).unwrap_or(0)) {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = match self.place(ino).and_then(|place| self.list(&place)) {
            Ok(names) => names,
            Err(errno) => return reply.error(errno),
        };
        let folder = |name: &str| (name.to_owned(), FileType::Directory);
        let all = [folder("."), folder("..")].into_iter().chain(names);
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        for (index, (name, kind)) in all.enumerate().skip(from) {
            // The kernel asks for the number when it looks the name up.
            if reply.add(ino, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}
