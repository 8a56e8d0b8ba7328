//! Taking in a large file of which an earlier version is known, by what changed
//! in it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use blake3::hazmat::ChainingValue;

use super::cas::Cas;
use super::chunk::{BLOCK, CHUNK_MAX, Ingest, Ingested, Known, Storing, cut};
use super::whole::{self, PART};
use crate::proto::ContentHash;
use crate::proto::manifest::{ChunkRef, Manifest};

/// What one thread reads and hashes at once; it stays in a core's cache.
const AT_ONCE: usize = 8 * PART;
/// How much is read again to be cut, at most. A file of which more changed is
/// read as if it were new.
const CUT_AGAIN: u64 = 64 << 20;

impl Cas {
    /// Takes in a file that is `size` bytes long: all of it is hashed once, and
    /// only what differs from the earlier version is cut, hashed and stored.
    /// `None` when it has to be taken in as if it were new. The result is the same.
    pub(crate) fn ingest_changed(
        &self,
        file: &File,
        size: u64,
        earlier: (&ContentHash, &Manifest),
    ) -> Result<Option<Ingested>, Ingest> {
        let (earlier, manifest) = earlier;
        let Some(old) = self.parts_of(earlier) else {
            return Ok(None);
        };
        if size < BLOCK as u64 {
            return Ok(None);
        }
        let Some(new) = hash_parts(file, size).map_err(Ingest::Read)? else {
            return Ok(None);
        };
        let Some(hash) = whole::whole(&new, size) else {
            return Ok(None);
        };
        let known = Known::new(manifest);
        let storing = Storing::new(self, &known);
        let mut chunks: Vec<ChunkRef> = Vec::new();
        let mut window = Window::default();
        let mut read_again = 0;
        loop {
            let offset = chunks.last().map_or(0, |last| last.offset + last.size);
            if offset >= size {
                break;
            }
            let unchanged = known.at(offset).filter(|chunk| {
                let parts = parts_of(offset..offset + chunk.size);
                let both = new.get(parts.clone()).zip(old.get(parts));
                both.is_some_and(|(new, old)| new == old) && self.has(&chunk.hash)
            });
            if let Some(chunk) = unchanged {
                chunks.push(ChunkRef { offset, ..*chunk });
                continue;
            }
            if !window.reaches(offset, size) {
                read_again += BLOCK as u64;
                let read = read_again <= CUT_AGAIN
                    && window
                        .read(file, offset, size, &new)
                        .map_err(Ingest::Read)?;
                if !read {
                    return Ok(None);
                }
            }
            let rest = window.from(offset);
            let chunk = rest.get(..cut(rest).max(1)).unwrap_or(rest);
            storing.keep(chunk, None, offset, &mut chunks)?;
        }
        self.ingested(chunks, (hash, new)).map(Some)
    }
}

/// The numbers of the parts that a range touches.
fn parts_of(range: Range<u64>) -> Range<usize> {
    let number = |part: u64| usize::try_from(part).unwrap_or(usize::MAX);
    number(range.start / PART as u64)..number(range.end.div_ceil(PART as u64))
}

/// What one thread hashed of a file, by offset.
type Share = Vec<(u64, Vec<ChainingValue>)>;

/// The chaining values of all parts of a file, with all cores; `None` when it
/// is shorter.
fn hash_parts(file: &File, size: u64) -> io::Result<Option<Vec<ChainingValue>>> {
    let next = AtomicU64::new(0);
    let work = || -> io::Result<Option<Share>> {
        let mut buffer = vec![0; AT_ONCE];
        let mut done = Vec::new();
        loop {
            let offset = next.fetch_add(AT_ONCE as u64, Ordering::Relaxed);
            if offset >= size {
                return Ok(Some(done));
            }
            let length = usize::try_from(size - offset).unwrap_or(AT_ONCE);
            let some = buffer.get_mut(..length.min(AT_ONCE)).unwrap_or_default();
            match file.read_exact_at(some, offset) {
                Ok(()) => done.push((offset, parts_at(some, offset))),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let shares: Vec<_> = std::thread::scope(|scope| {
        let spawned: Vec<_> = (0..threads.min(4)).map(|_| scope.spawn(work)).collect();
        let joined = spawned.into_iter().map(|thread| thread.join());
        joined.collect()
    });
    let mut all = Vec::new();
    for share in shares {
        match share.map_err(|_| io::Error::other("a thread that hashes failed"))?? {
            Some(share) => all.extend(share),
            None => return Ok(None),
        }
    }
    all.sort_unstable_by_key(|(offset, _)| *offset);
    Ok(Some(all.into_iter().flat_map(|(_, parts)| parts).collect()))
}

/// The chaining values of what begins at an offset that is a part's.
fn parts_at(bytes: &[u8], offset: u64) -> Vec<ChainingValue> {
    let offsets = (offset..).step_by(PART);
    let parts = bytes.chunks(PART).zip(offsets);
    parts.map(|(bytes, at)| whole::part(bytes, at)).collect()
}

/// A piece of the file, of whole parts that are what they were when all of it
/// was hashed.
#[derive(Default)]
struct Window {
    bytes: Vec<u8>,
    start: u64,
}

impl Window {
    fn from(&self, offset: u64) -> &[u8] {
        let skip = offset
            .checked_sub(self.start)
            .and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.bytes.get(skip..))
            .unwrap_or_default()
    }

    /// Whether what begins at an offset can be cut from it.
    fn reaches(&self, offset: u64, size: u64) -> bool {
        let rest = self.from(offset).len() as u64;
        rest >= CHUNK_MAX.min(size - offset)
    }

    /// `false` when the file changed since: the list of its chunks would be
    /// another content's.
    fn read(
        &mut self,
        file: &File,
        offset: u64,
        size: u64,
        hashed: &[ChainingValue],
    ) -> io::Result<bool> {
        self.start = offset - offset % PART as u64;
        let end = (self.start + BLOCK as u64).min(size);
        let length = usize::try_from(end - self.start).unwrap_or_default();
        self.bytes.resize(length, 0);
        match file.read_exact_at(&mut self.bytes, self.start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            done => done?,
        }
        let expected = hashed.get(parts_of(self.start..end));
        let found = parts_at(&self.bytes, self.start);
        Ok(expected == Some(found.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn noise(length: usize, seed: u8) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn what_changed_is_found_and_the_result_is_as_if_all_had_been_cut() {
        let before = noise(20 << 20, 1);
        let mut in_place = before.clone();
        in_place[9_000_000..9_500_000].copy_from_slice(&noise(500_000, 2));
        let mut at_both_ends = before.clone();
        at_both_ends[0] ^= 1;
        *at_both_ends.last_mut().unwrap() ^= 1;
        let mut inserted = before.clone();
        inserted.splice(700..700, *b"inserted");
        let shorter = before[..17_000_003].to_vec();
        let longer = [&before[..], &noise(3_000_001, 3)].concat();
        for (name, after) in [
            ("nothing", before.clone()),
            ("in place", in_place),
            ("at both ends", at_both_ends),
            ("inserted", inserted),
            ("shorter", shorter),
            ("longer", longer),
            ("all", noise(20 << 20, 4)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let cas = Cas::open(dir.path()).unwrap();
            let earlier = cas.ingest(&before[..]).unwrap();
            let manifest = earlier.chunks.unwrap();
            let file = file_of(&after);
            let size = after.len() as u64;
            let found = cas.ingest_changed(&file, size, (&earlier.hash, &manifest));
            let found = found.unwrap().unwrap();
            let expected = cas.ingest_like(&after[..], Some(&manifest)).unwrap();
            assert_eq!(found, expected, "{name}");
            assert_eq!(found.hash, ContentHash::of(&after), "{name}");
            let mut back = Vec::new();
            cas.copy_chunks(&found.hash, &found.chunks.unwrap(), &mut back)
                .unwrap();
            assert!(back == after, "{name}");
        }
    }

    #[test]
    fn a_file_that_is_not_known_or_changes_meanwhile_is_read_as_if_it_were_new() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let bytes = noise(9 << 20, 1);
        let earlier = cas.ingest(&bytes[..]).unwrap();
        let manifest = earlier.chunks.unwrap();
        let other = ContentHash::of(b"another");
        let file = file_of(&bytes);
        let size = bytes.len() as u64;
        assert_eq!(
            cas.ingest_changed(&file, size, (&other, &manifest))
                .unwrap(),
            None
        );
        assert_eq!(
            cas.ingest_changed(&file, size + 1, (&earlier.hash, &manifest))
                .unwrap(),
            None,
            "it is shorter"
        );
        let hashed = hash_parts(&file, size).unwrap().unwrap();
        let mut window = Window::default();
        assert!(window.read(&file, 3 << 20, size, &hashed).unwrap());
        file.write_all_at(b"meanwhile", 4 << 20).unwrap();
        assert!(!window.read(&file, 3 << 20, size, &hashed).unwrap());
        assert!(window.read(&file, 6 << 20, size, &hashed).unwrap());
    }
}
