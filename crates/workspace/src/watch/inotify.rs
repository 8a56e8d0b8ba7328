//! The kernel's events, per directory.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::proto::WorkspacePath;
use crate::proto::ledger::str_range;

/// Something happened to an entry of a watched directory.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) path: WorkspacePath,
    pub(crate) happening: Happening,
    pub(crate) is_folder: bool,
    /// Whether the name was not there before.
    pub(crate) is_made: bool,
    /// What both names of a rename have in common.
    pub(crate) rename: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Happening {
    /// It was made; whoever made it may still be writing.
    Made,
    /// It was written to and is still open.
    Written,
    /// It is whole: closed after writing, moved here, or its mode changed.
    Settled,
    /// It is gone from here.
    Gone,
}

/// What one look at the queue brought.
#[derive(Debug, Default)]
pub(crate) struct Events {
    pub(crate) events: Vec<Event>,
    /// The queue overflowed: anything may have happened.
    pub(crate) overflow: bool,
    /// Names that appeared in `.quintet/`.
    pub(crate) cookies: Vec<String>,
}

/// Which directory a watch is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Watched {
    Root,
    Own,
    Folder(WorkspacePath),
}

pub(crate) struct Watcher {
    queue: OwnedFd,
    by_descriptor: HashMap<i32, Watched>,
    folders: BTreeMap<WorkspacePath, i32>,
    buffer: Vec<MaybeUninit<u8>>,
}

/// A watch could not be added.
#[derive(Debug)]
pub(crate) enum WatchError {
    /// The user may watch no more folders.
    Watches,
    /// The user may have no more queues of events.
    Instances,
    /// The directory is gone, or cannot be read.
    Io(io::Error),
}

impl WatchError {
    /// Why the tree is read instead, and what to do about it.
    pub(crate) fn advice(&self, watched: usize) -> String {
        let instead = "the tree is read every few seconds instead. To raise it: sudo sysctl";
        match self {
            Self::Watches => format!(
                "the kernel's limit of watched folders was reached at {watched}; {instead} \
                 fs.inotify.max_user_watches=1048576"
            ),
            Self::Instances => format!(
                "the kernel's limit of programs that watch was reached; {instead} \
                 fs.inotify.max_user_instances=1024"
            ),
            Self::Io(error) => format!("the kernel refused to watch: {error}"),
        }
    }
}

/// An event as the kernel tells it.
struct Raw {
    descriptor: i32,
    flags: ReadFlags,
    cookie: u32,
    name: Option<String>,
}

const INTERESTING: WatchFlags = WatchFlags::CREATE
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::ATTRIB)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::ONLYDIR)
    .union(WatchFlags::DONT_FOLLOW);

impl Watcher {
    /// Watches the root itself and its `.quintet/`, and nothing else yet.
    pub(crate) fn new(root: &Path, own: &Path) -> Result<Self, WatchError> {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
            .map_err(|errno| no_queue(errno, || std::fs::File::open(root).is_ok()))?;
        let mut watcher = Self {
            queue,
            by_descriptor: HashMap::new(),
            folders: BTreeMap::new(),
            buffer: vec![MaybeUninit::uninit(); 64 << 10],
        };
        watcher.add(root, Watched::Root)?;
        watcher.add(own, Watched::Own)?;
        Ok(watcher)
    }

    fn add(&mut self, path: &Path, watched: Watched) -> Result<(), WatchError> {
        let descriptor = inotify::add_watch(&self.queue, path, INTERESTING).map_err(no_watch)?;
        if let Watched::Folder(folder) = &watched {
            self.folders.insert(folder.clone(), descriptor);
        }
        self.by_descriptor.insert(descriptor, watched);
        Ok(())
    }

    /// Watches a directory of the tree. Read it afterwards.
    pub(crate) fn watch(
        &mut self,
        folder: &WorkspacePath,
        absolute: &Path,
    ) -> Result<(), WatchError> {
        self.add(absolute, Watched::Folder(folder.clone()))
    }

    /// Whether what happens to a path is told.
    pub(crate) fn watches_folder_of(&self, path: &WorkspacePath) -> bool {
        let folder = path.as_str().rsplit_once('/');
        folder.is_none_or(|(folder, _)| self.folders.contains_key(folder))
    }

    pub(crate) fn watched(&self) -> usize {
        self.by_descriptor.len()
    }

    /// Forgets a directory and those beneath it, when they moved away: under a
    /// new name they are watched and read anew.
    fn forget(&mut self, folder: &WorkspacePath) {
        let range = folder.beneath_range();
        let mut gone: Vec<WorkspacePath> = self
            .folders
            .range::<str, _>(str_range(&range))
            .map(|(path, _)| path.clone())
            .collect();
        gone.push(folder.clone());
        for path in gone {
            if let Some(descriptor) = self.folders.remove(&path)
                && self.by_descriptor.get(&descriptor) == Some(&Watched::Folder(path))
            {
                self.by_descriptor.remove(&descriptor);
                let _ = inotify::remove_watch(&self.queue, descriptor);
            }
        }
    }

    /// Reads everything that is queued, without waiting.
    pub(crate) fn read(&mut self) -> io::Result<Events> {
        let mut found = Events::default();
        let mut buffer = std::mem::take(&mut self.buffer);
        let result = self.read_into(&mut buffer, &mut found);
        self.buffer = buffer;
        result.map(|()| found)
    }

    fn read_into(&mut self, buffer: &mut [MaybeUninit<u8>], found: &mut Events) -> io::Result<()> {
        let mut raw = Vec::new();
        let mut reader = inotify::Reader::new(&self.queue, buffer);
        loop {
            match reader.next() {
                Ok(event) => {
                    // A name that is not UTF-8 is not replicated; the scan reports it.
                    let name = event
                        .file_name()
                        .map(|name| name.to_str().map(str::to_owned));
                    if let Some(Err(_)) = name {
                        continue;
                    }
                    raw.push(Raw {
                        descriptor: event.wd(),
                        flags: event.events(),
                        cookie: event.cookie(),
                        name: name.and_then(Result::ok),
                    });
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        for event in raw {
            self.take(event, found);
        }
        Ok(())
    }

    fn take(&mut self, event: Raw, found: &mut Events) {
        let Raw {
            descriptor,
            flags,
            cookie,
            name,
        } = event;
        if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
            found.overflow = true;
            return;
        }
        if flags.contains(ReadFlags::IGNORED) {
            if let Some(Watched::Folder(path)) = self.by_descriptor.remove(&descriptor)
                && self.folders.get(&path) == Some(&descriptor)
            {
                self.folders.remove(&path);
            }
            return;
        }
        let Some(name) = name else { return };
        let path = match self.by_descriptor.get(&descriptor) {
            None => return,
            Some(Watched::Own) => {
                if flags.contains(ReadFlags::CREATE) {
                    found.cookies.push(name);
                }
                return;
            }
            Some(Watched::Root) => WorkspacePath::parse(&name),
            Some(Watched::Folder(folder)) => WorkspacePath::parse(&format!("{folder}/{name}")),
        };
        // Only `.quintet` itself does not parse here.
        let Ok(path) = path else { return };
        let is_folder = flags.contains(ReadFlags::ISDIR);
        if is_folder && flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            self.forget(&path);
        }
        let happening = if flags.intersects(ReadFlags::MOVED_FROM | ReadFlags::DELETE) {
            Happening::Gone
        } else if flags.contains(ReadFlags::CREATE) && !is_folder {
            Happening::Made
        } else if flags.contains(ReadFlags::MODIFY) {
            Happening::Written
        } else {
            Happening::Settled
        };
        found.events.push(Event {
            path,
            happening,
            is_folder,
            is_made: flags.contains(ReadFlags::CREATE),
            rename: (cookie != 0).then_some(cookie),
        });
    }
}

impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

fn no_watch(errno: Errno) -> WatchError {
    match errno {
        Errno::NOSPC => WatchError::Watches,
        other => WatchError::Io(other.into()),
    }
}

/// The kernel says the same of the user's queues and of this program's files.
fn no_queue(errno: Errno, can_open_files: impl FnOnce() -> bool) -> WatchError {
    match errno {
        Errno::MFILE if can_open_files() => WatchError::Instances,
        other => WatchError::Io(other.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_named_with_what_raises_it() {
        let watches = no_watch(Errno::NOSPC).advice(8_192);
        assert!(watches.contains("at 8192"), "{watches}");
        assert!(watches.contains("sysctl fs.inotify.max_user_watches="));
        let instances = no_queue(Errno::MFILE, || true).advice(0);
        assert!(instances.contains("sysctl fs.inotify.max_user_instances="));
        assert!(!instances.contains("watched folders"), "{instances}");
        for other in [no_queue(Errno::MFILE, || false), no_watch(Errno::ACCESS)] {
            let told = other.advice(0);
            assert!(!told.contains("sysctl"), "{told}");
        }
    }
}
