//! The store of objects that all workspaces share.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use blake3::hazmat::ChainingValue;
use bytes::Bytes;
use quintet_framing::spare::Spare;
use rustix::fs::{self as sys, FlockOperation, Mode, OFlags};

use super::chunk::{CHUNK_AVERAGE, CHUNK_MAX};
use super::total::on_disk;
use super::whole::RecentParts;
use crate::place::make_private;
use crate::proto::ContentHash;
use crate::proto::manifest::{ChunkRef, Manifest};

const RAW: u8 = 0;
const ZSTD: u8 = 1;
const CHUNKS: u8 = 2;
const LEVEL: i32 = 1;
/// The largest object that is read back: a chunk of a foreign peer at most.
const MAX_OBJECT: u64 = 128 << 20;
/// How many pieces of memory that objects are read to are kept; one of a foreign peer's is seldom needed again.
const KEPT: usize = 8;
const KEPT_SIZE: usize = 2 * CHUNK_MAX as usize;

/// Something is wrong with the store.
#[derive(Debug, thiserror::Error)]
pub enum CasError {
    /// The disk said no.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// An object does not hold what its name says.
    #[error(
        "the stored content {hash} is damaged ({detail}) and kept as {path}; write a file that holds it anew, or put the object back from a backup"
    )]
    Damaged {
        /// Its name.
        hash: ContentHash,
        /// Where it is now.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A content needs a chunk that is not there.
    #[error(
        "the stored content {hash} lacks its chunk {chunk}; write a file that holds it anew, or put the object back from a backup"
    )]
    MissingChunk {
        /// The content.
        hash: ContentHash,
        /// The chunk.
        chunk: ContentHash,
    },
}

impl CasError {
    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
    }
}

/// An object as it is stored.
#[derive(Debug, PartialEq, Eq)]
pub enum Object {
    /// Content itself.
    Bytes(Bytes),
    /// The list of its chunks.
    Chunks(Manifest),
}

/// An object could not be read.
enum Fault {
    Io(io::Error),
    Damaged(String),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::damaged("it is cut short"),
            _ => Self::Io(error),
        }
    }
}

impl Fault {
    fn damaged(detail: &str) -> Self {
        Self::Damaged(detail.to_owned())
    }
}

/// Who finds out whether stored bytes have the hash that is their name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Whoever reads them.
    Verify,
    /// Whoever they are sent to.
    Receiver,
}

/// The folder `cas/`.
#[derive(Debug)]
pub struct Cas {
    dir: PathBuf,
    next: AtomicU64,
    /// Objects that may not survive a power cut yet, and what they take; held only
    /// to push and take.
    unsynced: Mutex<Vec<(PathBuf, u64)>>,
    /// Held only to look up and add.
    parts: Mutex<RecentParts>,
    spare: Arc<Spare>,
}

/// While it lives, nothing is collected.
#[derive(Debug)]
pub struct WriteGuard {
    _lock: OwnedFd,
}

impl Cas {
    /// Opens the store, making its folder if need be.
    pub fn open(dir: &Path) -> Result<Self, CasError> {
        let cas = Self {
            dir: dir.to_owned(),
            next: AtomicU64::new(0),
            unsynced: Mutex::default(),
            parts: Mutex::default(),
            spare: Spare::new(KEPT, KEPT_SIZE),
        };
        let tmp = cas.dir.join("tmp");
        make_private(&tmp).map_err(at(&tmp))?;
        // When nobody writes, what is in tmp was left by a crash.
        let lock = cas.lock_file()?;
        if sys::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            for entry in fs::read_dir(&tmp).map_err(at(&tmp))? {
                let path = entry.map_err(at(&tmp))?.path();
                fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        Ok(cas)
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn lock_file(&self) -> Result<OwnedFd, CasError> {
        let path = self.dir.join("lock");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        sys::open(&path, flags, Mode::from_raw_mode(0o600)).map_err(|errno| at(&path)(errno.into()))
    }

    /// Keeps the collector away until the guard is dropped.
    pub fn writing(&self) -> Result<WriteGuard, CasError> {
        self.locked(FlockOperation::LockShared)
    }

    pub(super) fn alone(&self) -> Result<WriteGuard, CasError> {
        self.locked(FlockOperation::LockExclusive)
    }

    fn locked(&self, how: FlockOperation) -> Result<WriteGuard, CasError> {
        let lock = self.lock_file()?;
        sys::flock(&lock, how).map_err(|errno| at(&self.dir.join("lock"))(errno.into()))?;
        Ok(WriteGuard { _lock: lock })
    }

    pub(super) fn object_path(&self, hash: &ContentHash) -> PathBuf {
        let name = hash.to_string();
        self.dir.join(&name[..2]).join(name)
    }

    /// Whether an object is there.
    pub fn has(&self, hash: &ContentHash) -> bool {
        self.object_path(hash).exists()
    }

    /// Stores bytes under their hash, which the caller has computed.
    pub fn put_bytes(&self, hash: &ContentHash, bytes: &[u8]) -> Result<(), CasError> {
        if self.has(hash) {
            return Ok(());
        }
        match compress(bytes) {
            Some(packed) => {
                let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
                self.put(hash, &[&[ZSTD], &length, &packed])
            }
            None => self.put(hash, &[&[RAW], bytes]),
        }
    }

    /// Stores the list of chunks of a content. The chunks are there already.
    pub fn put_manifest(&self, hash: &ContentHash, manifest: &Manifest) -> Result<(), CasError> {
        let is_stored = match self.list(hash) {
            // One that was cut otherwise may name a chunk that was damaged since.
            Ok(Some(list)) => list.chunks.iter().all(|chunk| self.has(&chunk.hash)),
            Ok(None) => self.has(hash),
            Err(_) => false,
        };
        if is_stored {
            return Ok(());
        }
        let mut body = Vec::with_capacity(8 + manifest.chunks.len() * 36);
        body.extend_from_slice(&manifest.total_size.to_le_bytes());
        for chunk in &manifest.chunks {
            body.extend_from_slice(chunk.hash.as_bytes());
            body.extend_from_slice(&u32::try_from(chunk.size).unwrap_or(u32::MAX).to_le_bytes());
        }
        self.put(hash, &[&[CHUNKS], &body])
    }

    fn put(&self, hash: &ContentHash, parts: &[&[u8]]) -> Result<(), CasError> {
        let length = parts.iter().map(|part| part.len() as u64).sum();
        let path = self.object_path(hash);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        // Threads of several processes write here at once.
        let beside =
            self.dir
                .join("tmp")
                .join(format!("{}-{:p}-{number}", std::process::id(), self));
        let written = File::create(&beside).and_then(|mut file| write_parts(&mut file, parts));
        // Named by the store: a cause that stays must read the same at each attempt, to be told once.
        if let Err(source) = written {
            drop(fs::remove_file(&beside));
            return Err(at(&self.dir)(source));
        }
        let renamed = fs::rename(&beside, &path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                if let Some(folder) = path.parent() {
                    fs::create_dir_all(folder)?;
                }
                fs::rename(&beside, &path)
            }
            _ => Err(error),
        });
        if let Err(source) = renamed {
            drop(fs::remove_file(&beside));
            return Err(at(&self.dir)(source));
        }
        self.unsynced
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((path, on_disk(length)));
        Ok(())
    }

    /// The chaining values of a content that was taken in lately.
    pub(super) fn parts_of(&self, hash: &ContentHash) -> Option<Arc<[ChainingValue]>> {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.of(hash)
    }

    pub(super) fn remember_parts(&self, hash: ContentHash, parts: Vec<ChainingValue>) {
        let mut recent = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        recent.remember(hash, parts);
    }

    /// Makes every object that was put survive a power cut. Called before
    /// anything that refers to them is committed.
    pub fn sync(&self) -> Result<(), CasError> {
        let paths =
            std::mem::take(&mut *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner));
        if paths.is_empty() {
            return Ok(());
        }
        self.count(paths.iter().map(|(_, size)| size).sum());
        let synced = self.sync_objects(&paths);
        if synced.is_err() {
            // Nothing may refer to them before they are on the disk.
            let mut unsynced = self.unsynced.lock().unwrap_or_else(PoisonError::into_inner);
            unsynced.extend(paths.into_iter().map(|(path, _)| (path, 0)));
        }
        synced
    }

    fn sync_objects(&self, paths: &[(PathBuf, u64)]) -> Result<(), CasError> {
        if paths.len() > 16 {
            let dir = File::open(&self.dir).map_err(at(&self.dir))?;
            return sys::syncfs(&dir).map_err(|errno| at(&self.dir)(errno.into()));
        }
        for (path, _) in paths {
            match File::open(path).and_then(|file| file.sync_data()) {
                // Collected again already, because nothing refers to it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                done => done.map_err(at(path))?,
            }
        }
        Ok(())
    }

    /// Reads an object. Bytes are verified; chunks of a list are verified when
    /// they are read.
    pub fn read(&self, hash: &ContentHash) -> Result<Option<Object>, CasError> {
        self.read_trusting(hash, Trust::Verify)
    }

    /// Reads an object, and verifies it as far as nobody else does.
    pub(crate) fn read_trusting(
        &self,
        hash: &ContentHash,
        trust: Trust,
    ) -> Result<Option<Object>, CasError> {
        let path = self.object_path(hash);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(CasError::Io { path, source }),
        };
        match self.decode(&mut file, hash, trust) {
            Ok(object) => Ok(Some(object)),
            Err(Fault::Io(source)) => Err(CasError::Io { path, source }),
            Err(Fault::Damaged(detail)) => Err(self.damaged(hash, &file, detail)),
        }
    }

    fn decode(&self, file: &mut File, hash: &ContentHash, trust: Trust) -> Result<Object, Fault> {
        let length = file.metadata()?.len();
        if length > MAX_OBJECT {
            return Err(Fault::damaged("it is far too long"));
        }
        // All at once, the first byte too: some processors copy ten times slower to
        // memory that is a few bytes further into its page than the source is.
        let mut stored = self.spare.take();
        stored.resize(usize::try_from(length).unwrap_or_default(), 0);
        file.read_exact(&mut stored)?;
        let stored = self.share(stored);
        let Some((kind, body)) = stored.split_first() else {
            return Err(Fault::damaged("it is empty"));
        };
        let object = match *kind {
            RAW => Object::Bytes(stored.slice(1..)),
            ZSTD => {
                let (length, packed) = body
                    .split_first_chunk::<4>()
                    .ok_or_else(|| Fault::damaged("it is cut short"))?;
                let length = u64::from(u32::from_le_bytes(*length));
                if length > MAX_OBJECT {
                    return Err(Fault::damaged("it claims to be far too long"));
                }
                let length = usize::try_from(length).unwrap_or_default();
                let bytes = zstd::bulk::decompress(packed, length)
                    .map_err(|error| Fault::damaged(&error.to_string()))?;
                Object::Bytes(bytes.into())
            }
            CHUNKS => {
                let list = read_manifest(body);
                Object::Chunks(list.ok_or_else(|| Fault::damaged("its list is broken"))?)
            }
            _ => return Err(Fault::damaged("its first byte is unknown")),
        };
        match &object {
            Object::Bytes(bytes) if trust == Trust::Verify && ContentHash::of(bytes) != *hash => {
                Err(Fault::damaged("its hash is another one"))
            }
            _ => Ok(object),
        }
    }

    /// Has a damaged object out of the way, so that its content is stored anew when
    /// somebody writes it again. It is kept: it may be all that is left of it.
    fn damaged(&self, hash: &ContentHash, found: &File, detail: String) -> CasError {
        let path = self.set_aside(hash, found).unwrap_or_else(|error| {
            tracing::debug!(%error, "a damaged object stays where it is");
            self.object_path(hash)
        });
        CasError::Damaged {
            hash: *hash,
            path,
            detail,
        }
    }

    fn set_aside(&self, hash: &ContentHash, found: &File) -> Result<PathBuf, CasError> {
        let folder = self.dir.join("damaged");
        make_private(&folder).map_err(at(&folder))?;
        let (path, aside) = (self.object_path(hash), folder.join(hash.to_string()));
        // Who finds it at the same moment must not take away what is stored anew.
        let total = self.total()?;
        let found = found.metadata().map_err(at(&path))?;
        let is_there = fs::symlink_metadata(&path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (found.dev(), found.ino()));
        if is_there {
            fs::rename(&path, &aside).map_err(at(&path))?;
            if let Some(sum) = total.get() {
                total.set(sum.saturating_sub(on_disk(found.len())))?;
            }
        }
        Ok(aside)
    }

    /// What was read, for many hands; its memory comes back when all let go of it.
    fn share(&self, bytes: Vec<u8>) -> Bytes {
        self.spare.lend(bytes)
    }

    /// Writes out a content that is stored as chunks, verifying each of them
    /// and the whole.
    pub fn copy_chunks(
        &self,
        hash: &ContentHash,
        manifest: &Manifest,
        out: &mut dyn Write,
    ) -> Result<(), CasError> {
        let mut hasher = blake3::Hasher::new();
        for chunk in &manifest.chunks {
            let Some(Object::Bytes(bytes)) = self.read(&chunk.hash)? else {
                return Err(CasError::MissingChunk {
                    hash: *hash,
                    chunk: chunk.hash,
                });
            };
            hasher.update(&bytes);
            out.write_all(&bytes).map_err(at(Path::new("(output)")))?;
        }
        if hasher.finalize().as_bytes() != hash.as_bytes() {
            let path = self.object_path(hash);
            let list = File::open(&path).map_err(at(&path))?;
            let detail = "its chunks make another content".to_owned();
            return Err(self.damaged(hash, &list, detail));
        }
        Ok(())
    }
}

/// Writes parts one after the other, with as few calls as the kernel allows.
fn write_parts(file: &mut File, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut slices = slices.as_mut_slice();
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match file.write_vectored(slices) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut slices, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_manifest(body: &[u8]) -> Option<Manifest> {
    let (total_size, entries) = body.split_first_chunk::<8>()?;
    let mut chunks = Vec::with_capacity(entries.len() / 36);
    let mut offset = 0u64;
    let mut entries = entries.chunks_exact(36);
    for entry in &mut entries {
        let (hash, size) = entry.split_first_chunk::<32>()?;
        let size = u64::from(u32::from_le_bytes(*size.first_chunk::<4>()?));
        chunks.push(ChunkRef {
            hash: ContentHash::from_bytes(*hash),
            offset,
            size,
        });
        offset = offset.checked_add(size)?;
    }
    let total_size = u64::from_le_bytes(*total_size);
    (entries.remainder().is_empty() && offset == total_size).then_some(Manifest {
        total_size,
        chunk_size: CHUNK_AVERAGE,
        chunks,
    })
}

/// Compressed content, when that is worth it. A sample decides: trying all of a
/// film or an archive would cost more than everything else together.
pub(crate) fn compress(bytes: &[u8]) -> Option<Vec<u8>> {
    const SAMPLE: usize = 4 << 10;
    if bytes.len() < SAMPLE {
        return None;
    }
    if bytes.len() > 4 * SAMPLE {
        let middle = bytes.len() / 2;
        let sample = bytes.get(middle..middle + SAMPLE)?;
        let packed = packed(sample, 1)?;
        if packed.len() * 100 > SAMPLE * 95 {
            return None;
        }
    }
    let packed = packed(bytes, LEVEL)?;
    (packed.len() * 100 < bytes.len() * 97).then_some(packed)
}

/// Compresses with a context that each thread makes once: making one costs as
/// much as compressing a small content.
fn packed(bytes: &[u8], level: i32) -> Option<Vec<u8>> {
    thread_local! {
        static CONTEXT: RefCell<Option<zstd::bulk::Compressor<'static>>> =
            const { RefCell::new(None) };
    }
    CONTEXT.with_borrow_mut(|context| {
        let context = match context {
            Some(context) => context,
            None => context.insert(zstd::bulk::Compressor::new(level).ok()?),
        };
        context.set_compression_level(level).ok()?;
        context.compress(bytes).ok()
    })
}

pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> CasError + '_ {
    move |source| CasError::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_comes_back_and_damage_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let text = b"the same words again and again. ".repeat(10_000);
        let noise: Vec<u8> = (0..200_000u32)
            .flat_map(|n| blake3::hash(&n.to_le_bytes()).as_bytes()[..1].to_vec())
            .collect();
        for bytes in [text.clone(), noise, vec![]] {
            let hash = ContentHash::of(&bytes);
            cas.put_bytes(&hash, &bytes).unwrap();
            assert_eq!(cas.read(&hash).unwrap(), Some(Object::Bytes(bytes.into())));
        }
        let hash = ContentHash::of(&text);
        let path = cas.object_path(&hash);
        assert!(fs::metadata(&path).unwrap().len() < 10_000);
        let mut raw = fs::read(&path).unwrap();
        let last = raw.len() - 1;
        raw[last] ^= 1;
        fs::write(&path, raw).unwrap();
        assert!(matches!(cas.read(&hash), Err(CasError::Damaged { .. })));
        fs::write(&path, [RAW, 1, 2, 3]).unwrap();
        assert!(matches!(cas.read(&hash), Err(CasError::Damaged { .. })));
        fs::write(&path, []).unwrap();
        assert!(matches!(cas.read(&hash), Err(CasError::Damaged { .. })));
    }

    #[test]
    fn a_damaged_object_is_set_aside_and_its_content_is_stored_anew() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let mut bytes = vec![0; 2 << 20];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        let whole = cas.ingest(&bytes[..]).unwrap();
        cas.sync().unwrap();
        let list = whole.chunks.unwrap();
        let store_again = |name: &ContentHash| {
            let path = cas.object_path(name);
            let mut damaged = fs::read(&path).unwrap();
            *damaged.last_mut().unwrap() ^= 1;
            fs::write(&path, &damaged).unwrap();
            cas.ingest(&bytes[..]).unwrap();
            let read = || {
                let Some(Object::Chunks(list)) = cas.read(&whole.hash)? else {
                    panic!("the list is gone");
                };
                let mut back = Vec::new();
                cas.copy_chunks(&whole.hash, &list, &mut back)?;
                Ok::<_, CasError>(back)
            };
            // Nobody has looked at it yet.
            let Err(CasError::Damaged { path: kept, .. }) = read() else {
                panic!("damage is not seen");
            };
            assert_eq!(fs::read(kept).unwrap(), damaged);
            read().unwrap_err();
            cas.ingest(&bytes[..]).unwrap();
            cas.sync().unwrap();
            assert!(read().unwrap() == bytes);
            let objects = cas.objects().unwrap().into_iter();
            let lengths = objects.map(|(_, path)| path.metadata().unwrap().len());
            assert_eq!(cas.disk_bytes().unwrap(), lengths.map(on_disk).sum::<u64>());
        };
        cas.disk_bytes().unwrap();
        store_again(&list.chunks[0].hash);
    }

    #[test]
    fn a_list_that_names_a_damaged_chunk_gives_way_to_another() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let mut bytes = vec![0; 2 << 20];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        let hash = ContentHash::of(&bytes);
        let (left, right) = bytes.split_at(1 << 20);
        let chunks = [(left, 0), (right, 1 << 20)].map(|(bytes, offset)| ChunkRef {
            hash: ContentHash::of(bytes),
            offset,
            size: bytes.len() as u64,
        });
        for (chunk, bytes) in chunks.iter().zip([left, right]) {
            cas.put_bytes(&chunk.hash, bytes).unwrap();
        }
        let halves = Manifest {
            total_size: 2 << 20,
            chunk_size: CHUNK_AVERAGE,
            chunks: chunks.to_vec(),
        };
        cas.put_manifest(&hash, &halves).unwrap();
        fs::write(cas.object_path(&chunks[1].hash), [RAW]).unwrap();
        cas.read(&chunks[1].hash).unwrap_err();
        let list = cas.ingest(&bytes[..]).unwrap().chunks.unwrap();
        assert_eq!(cas.read(&hash).unwrap(), Some(Object::Chunks(list)));
    }

    #[test]
    fn what_a_crash_left_is_removed_but_not_what_another_writer_needs() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let left = dir.path().join("tmp/left");
        fs::write(&left, "half").unwrap();
        let guard = cas.writing().unwrap();
        Cas::open(dir.path()).unwrap();
        assert!(left.exists());
        drop(guard);
        Cas::open(dir.path()).unwrap();
        assert!(!left.exists());
    }

    #[test]
    fn what_could_not_be_synced_is_synced_again_and_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let bytes = [7; 100_000];
        let hash = ContentHash::of(&bytes);
        assert_eq!(cas.disk_bytes().unwrap(), 0);
        cas.put_bytes(&hash, &bytes).unwrap();
        let (path, aside) = (cas.object_path(&hash), dir.path().join("aside"));
        fs::rename(&path, &aside).unwrap();
        // It cannot be opened, and that is not because it is gone.
        std::os::unix::fs::symlink(&path, &path).unwrap();
        cas.sync().unwrap_err();
        cas.sync()
            .expect_err("what refers to it would be committed");
        fs::rename(&aside, &path).unwrap();
        let counted = cas.disk_bytes().unwrap();
        assert_eq!(counted, on_disk(path.metadata().unwrap().len()));
        cas.sync().unwrap();
        assert_eq!(cas.disk_bytes().unwrap(), counted);
    }
}
