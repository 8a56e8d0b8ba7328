//! Large contents that are put together from chunks, beside the tree.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use crate::content::whole::{self, PART, WholeHasher};
use crate::content::{CHUNK_MAX, cut_points};
use crate::proto::fetch::Finish;
use crate::proto::manifest::{ChunkRef, Manifest};
use crate::proto::{ContentHash, WorkspacePath};
use crate::tree::{LiveTree, Temporary};

use super::database::{self, ReplicaDatabase};

/// Bytes that are copied or hashed at once.
const AT_ONCE: usize = 8 << 20;
/// Bytes that a thread copies through memory at once: they stay in a core's cache.
const BUFFER: usize = 8 * PART;
/// Bytes that are looked for at the same place of the old version, at most.
const LOOK_IN_PLACE: u64 = 64 << 20;
/// Contents that are gone on with after a lost connection, at most.
const KEPT: usize = 16;
/// Contents for which it is known how much room they lack, at most.
const LACKING: usize = 1024;
/// For so many connections one is kept that nobody asks for again.
const KEPT_UNUSED: u8 = 8;

pub(super) struct Assembly {
    temporary: Temporary,
    manifest: Manifest,
    /// Old versions that chunks are taken from.
    old: Vec<File>,
    /// What is taken from them, by where it goes. It is copied at the end, with
    /// the hash of the whole on its heels.
    copies: Vec<Copy>,
    /// The chunks that these make up.
    copied: Vec<usize>,
    /// Which chunks are on disk as they came. Neither these nor the copied ones
    /// are verified one by one: the hash of the whole does that, once.
    fetched: Vec<bool>,
    /// Whether all of it is in place and has the right hash.
    is_whole: bool,
    /// Connections that ended since it was last planned.
    unused: u8,
    /// Whether the file reads as zeroes wherever no chunk was kept yet.
    is_blank: bool,
    /// The hash of what was kept, as far as it came in order from the beginning.
    whole: WholeHasher,
}

/// A part of an old version that is a part of the new one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Copy {
    to: u64,
    old: usize,
    from: u64,
    length: u64,
}

#[derive(Default)]
pub(super) struct Assemblies {
    all: HashMap<ContentHash, Assembly>,
    /// What did not fit on the disk, with the room that it needs at the least: it
    /// is not fetched again before there is as much.
    lacking: HashMap<ContentHash, u64>,
}

impl Assemblies {
    /// Starts a content, with the chunks that files of the tree hold, or goes on
    /// with one that a lost connection cut short. Returns the chunks that are
    /// missing.
    pub(super) fn plan(
        &mut self,
        tree: &LiveTree,
        db: &ReplicaDatabase,
        hash: ContentHash,
        manifest: Manifest,
        near: &[WorkspacePath],
    ) -> io::Result<Vec<usize>> {
        if let Some(begun) = self.all.get_mut(&hash)
            && begun.manifest == manifest
        {
            begun.unused = 0;
            begun.is_whole = false;
            return Ok(begun.missing());
        }
        let temporary = tree.root().temporary()?;
        let file = temporary.file()?;
        if let Some(needed) = self.lacking.get(&hash)
            && room(file)? < *needed
        {
            return Err(io::ErrorKind::StorageFull.into());
        }
        file.set_len(manifest.total_size)?;
        let mut sources: Vec<Option<(usize, u64)>> = vec![None; manifest.chunks.len()];
        let mut old = Vec::new();
        for path in near {
            if let Some((file, chunks)) = old_version(tree, db, path)? {
                find_known(&chunks, &manifest, old.len(), &mut sources);
                find_in_place(&file, &manifest, old.len(), &mut sources)?;
                old.push(file);
            }
        }
        let (mut copied, mut missing) = (Vec::new(), Vec::new());
        for (index, source) in sources.iter().enumerate() {
            match source {
                Some(_) => copied.push(index),
                None => missing.push(index),
            }
        }
        let copies = neighbours_together(&manifest, &sources);
        let fetched = vec![false; manifest.chunks.len()];
        self.all.insert(
            hash,
            Assembly {
                temporary,
                manifest,
                old,
                copies,
                copied,
                fetched,
                is_whole: false,
                unused: 0,
                is_blank: true,
                whole: WholeHasher::default(),
            },
        );
        Ok(missing)
    }

    /// Writes a chunk where it belongs. When that fails nothing is left of the
    /// content, so that there is room for others.
    pub(super) fn keep(
        &mut self,
        hash: &ContentHash,
        bytes: &[u8],
        offsets: &[u64],
    ) -> io::Result<()> {
        let Some(assembly) = self.all.get_mut(hash) else {
            return Ok(());
        };
        let kept = assembly.keep(bytes, offsets);
        kept.inspect_err(|error| self.drop_failed(hash, error, bytes.len() as u64))
    }

    /// Verifies a content of which every chunk is there.
    pub(super) fn finish(&mut self, hash: &ContentHash) -> io::Result<(Finish, Option<Manifest>)> {
        let Some(assembly) = self.all.get_mut(hash) else {
            return Ok((Finish::Wrong, None));
        };
        let finished = assembly.finish(hash);
        match &finished {
            Ok((Finish::Wrong, _)) => drop(self.all.remove(hash)),
            Err(error) => self.drop_failed(hash, error, 1),
            Ok(_) => {}
        }
        finished
    }

    fn drop_failed(&mut self, hash: &ContentHash, error: &io::Error, lacks: u64) {
        let Some(assembly) = self.all.remove(hash) else {
            return;
        };
        if error.kind() == io::ErrorKind::StorageFull
            && let Ok(needed) = assembly.room_when_dropped()
        {
            if self.lacking.len() >= LACKING {
                self.lacking.clear();
            }
            self.lacking.insert(*hash, needed + lacks);
        }
    }

    /// The content, if all of it is there. One that is gone on with stays.
    pub(super) fn take(&mut self, hash: &ContentHash) -> Option<Temporary> {
        if !self.all.get(hash)?.is_whole {
            return None;
        }
        self.all.remove(hash).map(|assembly| assembly.temporary)
    }

    /// Nothing wants what was begun.
    pub(super) fn drop_all(&mut self) {
        self.all.clear();
    }

    /// The connection is lost. What came over it need not come again, as far as
    /// the next one wants it.
    pub(super) fn suspend(&mut self) {
        self.lacking.clear();
        self.all.retain(|_, assembly| {
            assembly.unused += 1;
            assembly.unused <= KEPT_UNUSED && assembly.fetched.contains(&true)
        });
        if self.all.len() > KEPT {
            let mut sizes: Vec<u64> = self.all.values().map(Assembly::fetched_bytes).collect();
            sizes.sort_unstable();
            let least = sizes.iter().rev().nth(KEPT).copied().unwrap_or_default();
            self.all
                .retain(|_, assembly| assembly.fetched_bytes() > least);
        }
    }
}

impl Assembly {
    fn keep(&mut self, bytes: &[u8], offsets: &[u64]) -> io::Result<()> {
        self.is_whole = false;
        // What is a hole at the master stays one here.
        let is_hole = self.is_blank && bytes.iter().all(|byte| *byte == 0);
        for offset in offsets {
            if !is_hole {
                self.temporary.file()?.write_all_at(bytes, *offset)?;
            }
            self.hash_on(bytes, *offset)?;
            let chunks = &self.manifest.chunks;
            if let Ok(index) = chunks.binary_search_by_key(offset, |chunk| chunk.offset)
                && let Some(fetched) = self.fetched.get_mut(index)
            {
                *fetched = true;
            }
        }
        Ok(())
    }

    fn finish(&mut self, hash: &ContentHash) -> io::Result<(Finish, Option<Manifest>)> {
        self.is_blank = false;
        let in_order = std::mem::take(&mut self.whole);
        let found = match in_order.length() == self.manifest.total_size {
            true => in_order.finish().0,
            false => self.copy_and_hash()?,
        };
        if found == *hash {
            self.is_whole = true;
            return Ok((Finish::Right, Some(self.manifest.clone())));
        }
        // What is wrong is fetched, and must not be copied over again.
        self.copies.clear();
        self.old.clear();
        self.copied.clear();
        let file = self.temporary.file()?;
        let mut wrong = Vec::new();
        let mut bytes = Vec::new();
        let chunks = self.manifest.chunks.iter().zip(&mut self.fetched);
        for (index, (chunk, fetched)) in chunks.enumerate() {
            bytes.resize(usize::try_from(chunk.size).unwrap_or_default(), 0);
            *fetched = file.read_exact_at(&mut bytes, chunk.offset).is_ok()
                && ContentHash::of(&bytes) == chunk.hash;
            if !*fetched {
                wrong.push(index);
            }
        }
        Ok(match wrong.is_empty() {
            true => (Finish::Wrong, None),
            false => (Finish::Missing(wrong), None),
        })
    }

    /// Bytes that the disk has room for once this is dropped.
    fn room_when_dropped(&self) -> io::Result<u64> {
        use std::os::unix::fs::MetadataExt;

        let file = self.temporary.file()?;
        Ok(room(file)? + file.metadata()?.blocks() * 512)
    }

    /// The chunks that are neither here nor in an old version.
    fn missing(&self) -> Vec<usize> {
        let fetched = self.fetched.iter().enumerate();
        fetched
            .filter(|(index, fetched)| !**fetched && self.copied.binary_search(index).is_err())
            .map(|(index, _)| index)
            .collect()
    }

    fn fetched_bytes(&self) -> u64 {
        let chunks = self.manifest.chunks.iter().zip(&self.fetched);
        chunks
            .filter(|(_, fetched)| **fetched)
            .map(|(chunk, _)| chunk.size)
            .sum()
    }
}

impl Assembly {
    /// Copies what is taken from old versions, and hashes the whole close behind.
    fn copy_and_hash(&self) -> io::Result<ContentHash> {
        let new = self.temporary.file()?;
        let size = self.manifest.total_size;
        if !shares_blocks(new) {
            return self.copy_through_memory(new, size);
        }
        std::thread::scope(|scope| {
            let (tell, in_place) = mpsc::channel();
            let hashing = scope.spawn(move || hash_behind(new, size, &in_place));
            for copy in &self.copies {
                if let Some(old) = self.old.get(copy.old) {
                    copy_range(old, new, copy, &tell)?;
                }
            }
            drop(tell);
            hashing
                .join()
                .map_err(|_| io::Error::other("the hashing thread failed"))?
        })
    }
}

impl Assembly {
    /// Hashes a chunk that was just written, when it goes on where the hash is,
    /// and chunks behind it that came too early.
    fn hash_on(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset < self.whole.length() {
            // Something that was hashed is written anew.
            self.whole = WholeHasher::default();
        }
        if !self.copies.is_empty() || offset != self.whole.length() {
            return Ok(());
        }
        self.whole.update(bytes);
        let mut early = Vec::new();
        loop {
            let next = self.whole.length();
            let chunks = &self.manifest.chunks;
            let Ok(index) = chunks.binary_search_by_key(&next, |chunk| chunk.offset) else {
                return Ok(());
            };
            let chunk = chunks.get(index).filter(|chunk| chunk.size > 0);
            let (Some(chunk), Some(true)) = (chunk, self.fetched.get(index)) else {
                return Ok(());
            };
            early.resize(usize::try_from(chunk.size).unwrap_or_default(), 0);
            self.temporary.file()?.read_exact_at(&mut early, next)?;
            self.whole.update(&early);
        }
    }

    /// The same where a copy is a copy: what is read of an old version is written
    /// and hashed from the same memory, by several threads.
    fn copy_through_memory(&self, new: &File, size: u64) -> io::Result<ContentHash> {
        let next = AtomicU64::new(0);
        let work = || -> io::Result<Vec<(u64, Vec<_>)>> {
            let mut buffer = vec![0; BUFFER];
            let mut done = Vec::new();
            loop {
                let offset = next.fetch_add(BUFFER as u64, Ordering::Relaxed);
                if offset >= size {
                    return Ok(done);
                }
                let length = usize::try_from(size - offset).unwrap_or(BUFFER).min(BUFFER);
                let bytes = buffer.get_mut(..length).unwrap_or_default();
                self.fill(new, offset, size, bytes)?;
                let parts = bytes.chunks(PART).zip((offset..).step_by(PART));
                let parts = parts.map(|(bytes, at)| whole::part(bytes, at)).collect();
                done.push((offset, parts));
            }
        };
        if size <= PART as u64 {
            let mut bytes = vec![0; usize::try_from(size).unwrap_or_default()];
            self.fill(new, 0, size, &mut bytes)?;
            return Ok(ContentHash::of(&bytes));
        }
        let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let shares: Vec<_> = std::thread::scope(|scope| {
            let spawned: Vec<_> = (0..threads.min(4)).map(|_| scope.spawn(work)).collect();
            let joined = spawned.into_iter().map(|thread| thread.join());
            joined.collect()
        });
        let failed = || io::Error::other("a thread that hashes failed");
        let mut all = Vec::new();
        for share in shares {
            all.extend(share.map_err(|_| failed())??);
        }
        all.sort_unstable_by_key(|(offset, _)| *offset);
        let parts: Vec<_> = all.into_iter().flat_map(|(_, parts)| parts).collect();
        whole::whole(&parts, size).ok_or_else(failed)
    }

    /// Puts what belongs at an offset of the new file in place, and reads it.
    fn fill(&self, new: &File, offset: u64, size: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while let Some(free) = bytes.get_mut(filled..).filter(|free| !free.is_empty()) {
            let at = offset + filled as u64;
            let behind = |copy: &Copy| copy.to + copy.length <= at;
            let copy = self.copies.get(self.copies.partition_point(behind));
            match self.read_next(new, copy, at, size, free)? {
                // The file was cut short by somebody; the hash will tell.
                0 => {
                    free.fill(0);
                    return Ok(());
                }
                read => filled += read,
            }
        }
        Ok(())
    }

    /// Reads what comes at an offset of the new file, from where it is taken from.
    fn read_next(
        &self,
        new: &File,
        copy: Option<&Copy>,
        offset: u64,
        size: u64,
        bytes: &mut [u8],
    ) -> io::Result<usize> {
        let room = bytes.len();
        let up_to = |end: u64| usize::try_from(end - offset).unwrap_or(room).min(room);
        if let Some(copy) = copy.filter(|copy| copy.to <= offset)
            && let Some(old) = self.old.get(copy.old)
        {
            let some = up_to(copy.to + copy.length);
            let part = bytes.get_mut(..some).unwrap_or_default();
            let read = old.read_at(part, copy.from + (offset - copy.to))?;
            if read > 0 {
                new.write_all_at(part.get(..read).unwrap_or_default(), offset)?;
                return Ok(read);
            }
            // The old file is shorter than it was; the hash of the whole will tell.
        }
        let next = copy.filter(|copy| copy.to > offset);
        let some = up_to(next.map_or(size, |copy| copy.to.min(size)));
        new.read_at(bytes.get_mut(..some).unwrap_or_default(), offset)
    }
}

/// Bytes that the disk of a file has room for.
fn room(file: &File) -> io::Result<u64> {
    let disk = rustix::fs::fstatvfs(file)?;
    Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Whether copies within the file system share their blocks until one is
/// written to. Elsewhere `copy_file_range` goes page by page, and is slow.
fn shares_blocks(file: &File) -> bool {
    const BTRFS: i64 = 0x9123_683e;
    const XFS: i64 = 0x5846_5342;
    let kind = rustix::fs::fstatfs(file).map(|stat| stat.f_type);
    matches!(kind, Ok(BTRFS | XFS))
}

/// Hashes a file with all cores, up to where it is in place; all of it is once
/// nobody tells any more. It is read and not mapped: mapped pages of a large
/// file would count as this program's memory.
fn hash_behind(file: &File, size: u64, in_place: &mpsc::Receiver<u64>) -> io::Result<ContentHash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; usize::try_from(size).unwrap_or(AT_ONCE).min(AT_ONCE)];
    let (mut offset, mut limit) = (0, 0);
    while offset < size {
        while limit < size && limit < offset + buffer.len() as u64 {
            limit = in_place.recv().unwrap_or(size);
        }
        let some = usize::try_from(limit.min(size) - offset).unwrap_or(usize::MAX);
        let some = some.min(buffer.len());
        let read = file.read_at(buffer.get_mut(..some).unwrap_or_default(), offset)?;
        if read == 0 {
            break;
        }
        hasher.update_rayon(buffer.get(..read).unwrap_or_default());
        offset += read as u64;
    }
    Ok(ContentHash::from_bytes(*hasher.finalize().as_bytes()))
}

/// The file at a path with the chunks that it holds, as far as that is known
/// without a promise.
fn old_version(
    tree: &LiveTree,
    db: &ReplicaDatabase,
    path: &WorkspacePath,
) -> io::Result<Option<(File, Vec<ChunkRef>)>> {
    let Some(seen) = tree
        .seen(path)
        .filter(|seen| seen.node.size >= crate::content::CHUNK_MIN)
    else {
        return Ok(None);
    };
    let Ok(file) = tree.root().open_file(path) else {
        return Ok(None);
    };
    let known = db
        .read(|db| database::manifest(db, &seen.node))
        .map_err(io::Error::other)?;
    let chunks = match known {
        Some(manifest) => manifest.chunks,
        None => cut_points(&file)?,
    };
    Ok(Some((file, chunks)))
}

/// Finds chunks that the old version has anywhere.
fn find_known(
    chunks: &[ChunkRef],
    manifest: &Manifest,
    old: usize,
    sources: &mut [Option<(usize, u64)>],
) {
    let places: HashMap<ContentHash, &ChunkRef> =
        chunks.iter().map(|chunk| (chunk.hash, chunk)).collect();
    for (chunk, source) in manifest.chunks.iter().zip(sources) {
        let place = places.get(&chunk.hash);
        if let (None, Some(place)) = (&source, place.filter(|place| place.size == chunk.size)) {
            *source = Some((old, place.offset));
        }
    }
}

/// Finds chunks that the old version has at the same place, though it was cut
/// otherwise there. Only where little is left to find: of a file that was
/// written anew all would be read in vain.
fn find_in_place(
    file: &File,
    manifest: &Manifest,
    old: usize,
    sources: &mut [Option<(usize, u64)>],
) -> io::Result<()> {
    let unknown = || {
        let all = manifest.chunks.iter().zip(sources.iter());
        all.filter(|(_, source)| source.is_none())
    };
    if unknown().map(|(chunk, _)| chunk.size).sum::<u64>() > LOOK_IN_PLACE {
        return Ok(());
    }
    let mut bytes = Vec::new();
    for (chunk, source) in manifest.chunks.iter().zip(sources) {
        if source.is_some() || chunk.size > CHUNK_MAX {
            continue;
        }
        bytes.resize(usize::try_from(chunk.size).unwrap_or_default(), 0);
        match file.read_exact_at(&mut bytes, chunk.offset) {
            Ok(()) if ContentHash::of(&bytes) == chunk.hash => *source = Some((old, chunk.offset)),
            // The old version ends before it.
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

fn neighbours_together(manifest: &Manifest, sources: &[Option<(usize, u64)>]) -> Vec<Copy> {
    let mut copies: Vec<Copy> = Vec::new();
    for (chunk, source) in manifest.chunks.iter().zip(sources) {
        let Some((old, from)) = *source else { continue };
        match copies.last_mut() {
            Some(last)
                if last.old == old
                    && last.from + last.length == from
                    && last.to + last.length == chunk.offset =>
            {
                last.length += chunk.size;
            }
            _ => copies.push(Copy {
                to: chunk.offset,
                old,
                from,
                length: chunk.size,
            }),
        }
    }
    copies
}

/// Copies a part, and tells how far the new file is in place.
fn copy_range(old: &File, new: &File, copy: &Copy, tell: &mpsc::Sender<u64>) -> io::Result<()> {
    let Copy {
        mut from,
        mut to,
        mut length,
        ..
    } = *copy;
    while length > 0 {
        let some = usize::try_from(length).unwrap_or(AT_ONCE).min(AT_ONCE);
        let copied =
            match rustix::fs::copy_file_range(old, Some(&mut from), new, Some(&mut to), some) {
                // The old file is shorter than it was; the hash of the whole will tell.
                Ok(0) => return Ok(()),
                Ok(copied) => copied,
                Err(_) => {
                    let mut bytes = vec![0; some.min(1 << 20)];
                    let read = old.read_at(&mut bytes, from)?;
                    if read == 0 {
                        return Ok(());
                    }
                    new.write_all_at(bytes.get(..read).unwrap_or_default(), to)?;
                    from += read as u64;
                    to += read as u64;
                    read
                }
            };
        length = length.saturating_sub(copied as u64);
        // Whoever hashes has stopped at an error, which is told at the end.
        let _ = tell.send(to);
    }
    Ok(())
}
