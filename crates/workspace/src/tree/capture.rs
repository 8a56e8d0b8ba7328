//! Reading a path so that what is read is a state it really had.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::SystemTime;

use rustix::fs::{self as sys, Stat};

use super::TreeError;
use super::root::{self, Fingerprint, Root};
use super::seen::Seen;
use crate::content::{Cas, Ingest, Ingested, MANIFEST_FROM, Object, SMALL};
use crate::proto::manifest::Manifest;
use crate::proto::{ContentHash, Kind, Node, WorkspacePath};

/// How often a file that changes while it is read is read again at once.
const ATTEMPTS: usize = 4;

/// What a path holds; large content is in the store.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) seen: Seen,
    pub(crate) small: Option<Vec<u8>>,
}

#[derive(Debug)]
pub(crate) enum Capture {
    Is(Captured),
    Absent,
    /// It is neither a file, a folder nor a symlink.
    Special,
    /// It kept changing; look again later.
    Unstable,
    Unreadable(io::Error),
}

impl Root {
    /// Reads a path, again and again until it is stable.
    pub(crate) fn capture(&self, path: &WorkspacePath, cas: &Cas) -> Result<Capture, TreeError> {
        match self.parent(path) {
            Ok(folder) => capture_in(folder.as_fd(), path.name(), None, cas),
            Err(error) if root::is_absence(&error) => Ok(Capture::Absent),
            Err(error) => Ok(Capture::Unreadable(error)),
        }
    }

    /// What a path holds, as far as it can be read at this moment.
    pub(crate) fn capture_seen(
        &self,
        path: &WorkspacePath,
        cas: &Cas,
    ) -> Result<Option<Seen>, TreeError> {
        Ok(match self.capture(path, cas)? {
            Capture::Is(captured) => Some(captured.seen),
            _ => None,
        })
    }
}

/// Reads an entry of a folder, again and again until it is stable.
pub(crate) fn capture_in(
    folder: BorrowedFd<'_>,
    name: &str,
    earlier: Option<&Node>,
    cas: &Cas,
) -> Result<Capture, TreeError> {
    // Of a large file that was changed in one place, most is as it was.
    let earlier = earlier.filter(|node| node.kind == Kind::File && node.size >= MANIFEST_FROM);
    let earlier = earlier.and_then(|node| match cas.read(&node.hash) {
        Ok(Some(Object::Chunks(manifest))) => Some((node.hash, manifest)),
        _ => None,
    });
    for _ in 0..ATTEMPTS {
        match capture_once(folder, name, earlier.as_ref(), cas)? {
            Capture::Unstable => {}
            captured => return Ok(captured),
        }
    }
    Ok(Capture::Unstable)
}

/// Files of a folder that are read ahead, at most; each is small.
pub(crate) const READ_AHEAD: usize = 256;
/// Below this, threads cost more than they bring.
const WORTH_THREADS: usize = 32;

/// How many threads can run at once. It takes a dozen system calls to find out.
pub(super) fn cores() -> usize {
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get))
}

/// Reads small files of a folder, this thread and others; most of the time goes
/// into system calls. What is not small or cannot be read is left out. `busy` cores
/// have something else to do.
pub(crate) fn capture_ahead(
    folder: BorrowedFd<'_>,
    names: &[WorkspacePath],
    glimpsed: &HashMap<WorkspacePath, Stat>,
    busy: usize,
    cas: &Cas,
) -> Vec<(WorkspacePath, Capture)> {
    let small = |path: &WorkspacePath| {
        let stat = match glimpsed.get(path) {
            Some(stat) => *stat,
            None => root::stat_in(folder, path.name()).ok()??,
        };
        let is_small =
            root::kind(&stat) == Some(Kind::File) && Fingerprint::of(&stat).size <= SMALL;
        if !is_small {
            return None;
        }
        let captured = match capture_file(folder, path.name(), None, cas, &stat).ok()? {
            Capture::Unstable => capture_in(folder, path.name(), None, cas).ok()?,
            captured => captured,
        };
        Some((path.clone(), captured))
    };
    if names.len() < WORTH_THREADS {
        return Vec::new();
    }
    let threads = cores().saturating_sub(busy).clamp(1, 4);
    let read = |share: &[WorkspacePath]| share.iter().filter_map(small).collect::<Vec<_>>();
    let mut shares = names.chunks(names.len().div_ceil(threads));
    let own = shares.next().unwrap_or_default();
    std::thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|share| scope.spawn(move || read(share)))
            .collect();
        let mut all = read(own);
        all.extend(
            others
                .into_iter()
                .filter_map(|share| share.join().ok())
                .flatten(),
        );
        all
    })
}

fn capture_once(
    folder: BorrowedFd<'_>,
    name: &str,
    earlier: Option<&(ContentHash, Manifest)>,
    cas: &Cas,
) -> Result<Capture, TreeError> {
    let stat = match root::stat_in(folder, name) {
        Ok(Some(stat)) => stat,
        Ok(None) => return Ok(Capture::Absent),
        Err(error) => return Ok(Capture::Unreadable(error)),
    };
    match root::kind(&stat) {
        None => Ok(Capture::Special),
        Some(Kind::Directory) => Ok(Capture::Is(Captured {
            seen: Seen {
                node: Node::directory(root::mode(&stat)),
                fingerprint: Fingerprint::of(&stat),
            },
            small: None,
        })),
        Some(Kind::Symlink) => match rustix::fs::readlinkat(folder, name, Vec::new())
            .map(std::ffi::CString::into_bytes)
        {
            Ok(target) => Ok(Capture::Is(Captured {
                seen: Seen {
                    node: root::link_node(&target),
                    fingerprint: Fingerprint::of(&stat),
                },
                small: Some(target),
            })),
            // It was replaced since.
            Err(_) => Ok(Capture::Unstable),
        },
        Some(Kind::File) => capture_file(folder, name, earlier, cas, &stat),
    }
}

fn capture_file(
    folder: BorrowedFd<'_>,
    name: &str,
    earlier: Option<&(ContentHash, Manifest)>,
    cas: &Cas,
    before: &Stat,
) -> Result<Capture, TreeError> {
    let started = SystemTime::now();
    let mut file = match root::open_file_in(folder, name) {
        Ok(file) => file,
        Err(error) if root::is_absence(&error) => return Ok(Capture::Unstable),
        Err(error) => return Ok(Capture::Unreadable(error)),
    };
    // No further than it was long; if it grew, its size says so afterwards.
    let length = Fingerprint::of(before).size;
    let changed = match earlier {
        Some((hash, manifest)) => cas.ingest_changed(&file, length, (hash, manifest)),
        None => Ok(None),
    };
    let manifest = earlier.map(|(_, manifest)| manifest);
    let ingested = match changed.and_then(|changed| match changed {
        Some(ingested) => Ok(ingested),
        None if length <= SMALL => read_small(&mut file, length),
        None => cas.ingest_like((&mut file).take(length), manifest),
    }) {
        Ok(ingested) => ingested,
        Err(Ingest::Read(error)) => return Ok(Capture::Unreadable(error)),
        Err(Ingest::Store(error)) => return Err(error.into()),
    };
    let Ok(after) = sys::fstat(&file) else {
        return Ok(Capture::Unstable);
    };
    let fingerprint = Fingerprint::of(&after);
    if Fingerprint::of(before) != fingerprint || fingerprint.size != ingested.size {
        return Ok(Capture::Unstable);
    }
    let node = Node {
        kind: Kind::File,
        mode: root::mode(&after),
        hash: ingested.hash,
        size: ingested.size,
    };
    let newest = fingerprint.mtime.max(fingerprint.ctime);
    let fingerprint = if is_racy(newest, started) {
        Fingerprint::UNTRUSTED
    } else {
        fingerprint
    };
    Ok(Capture::Is(Captured {
        seen: Seen { node, fingerprint },
        small: ingested.small,
    }))
}

/// Reads a file of which the length is known: thousands of them are held at once,
/// and none takes more memory than it needs.
fn read_small(file: &mut std::fs::File, length: u64) -> Result<Ingested, Ingest> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
    let mut filled = 0;
    while let Some(free) = bytes.get_mut(filled..).filter(|free| !free.is_empty()) {
        match file.read(free) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Ingest::Read(error)),
        }
    }
    bytes.truncate(filled);
    Ok(Ingested::small(bytes))
}

/// Whether a write right after the reading could leave the same timestamp: the
/// clock of file systems ticks every few milliseconds. A time in the future
/// (clocks jump) says nothing either.
fn is_racy(newest: i64, started: SystemTime) -> bool {
    const TICK: i64 = 11_000_000;
    let started = started
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let started = i64::try_from(started.as_nanos()).unwrap_or(i64::MAX);
    let tick = if has_fine_clock() { 0 } else { TICK };
    newest > started.saturating_sub(tick)
}

/// Since Linux 6.13 a timestamp that somebody has looked at is never given twice.
pub(super) fn has_fine_clock() -> bool {
    static IS_FINE: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *IS_FINE.get_or_init(|| {
        let release = rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned();
        let mut numbers = release
            .split(|c: char| !c.is_ascii_digit())
            .map_while(|part| part.parse::<u32>().ok());
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        version >= (6, 13)
    })
}
