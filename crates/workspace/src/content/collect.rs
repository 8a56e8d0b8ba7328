//! Removing what nothing refers to.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::cas::{Cas, CasError, Object, at};
use super::total;
use crate::proto::ContentHash;
use crate::proto::manifest::Manifest;

/// Objects removed while the store is held alone, before writers get a turn.
const AT_ONCE: usize = 512;

/// What a collection did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Objects that are in use.
    pub kept: u64,
    /// Their bytes on disk.
    pub kept_bytes: u64,
    /// Objects that were removed.
    pub removed: u64,
    /// Their bytes on disk.
    pub removed_bytes: u64,
}

impl Cas {
    /// Writes down that a history refers to this store, so that a collection
    /// for another workspace asks it too.
    pub fn register(&self, history: &Path) -> Result<(), CasError> {
        let folder = self.dir().join("workspaces");
        fs::create_dir_all(&folder).map_err(at(&folder))?;
        let text = history.to_string_lossy();
        let path = folder.join(ContentHash::of(text.as_bytes()).to_string());
        if !path.exists() {
            fs::write(&path, text.as_bytes()).map_err(at(&path))?;
        }
        Ok(())
    }

    /// The histories that refer to this store.
    pub fn registered(&self) -> Result<Vec<PathBuf>, CasError> {
        let folder = self.dir().join("workspaces");
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(at(&folder))?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(at(&folder))?.path();
            all.push(PathBuf::from(fs::read_to_string(&path).map_err(at(&path))?));
        }
        Ok(all)
    }

    /// Forgets a history that is gone for good.
    pub fn unregister(&self, history: &Path) -> Result<(), CasError> {
        let name = ContentHash::of(history.to_string_lossy().as_bytes()).to_string();
        let path = self.dir().join("workspaces").join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            done => done.map_err(at(&path)),
        }
    }

    /// Removes every object that is not among the references. It may run beside
    /// writers: references are read again while they wait.
    pub fn collect<E: From<CasError>>(
        &self,
        mut references: impl FnMut() -> Result<HashSet<ContentHash>, E>,
    ) -> Result<GcReport, E> {
        let mut report = GcReport::default();
        let before = self.total().ok().and_then(|total| total.get());
        let mut on_disk = 0;
        let needed = self.closure(references()?)?;
        let mut unneeded = Vec::new();
        for (hash, path) in self.objects()? {
            let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
            on_disk += total::on_disk(size);
            if needed.contains(&hash) {
                report.kept += 1;
                report.kept_bytes += size;
            } else {
                unneeded.push((hash, path, size));
            }
        }
        for some in unneeded.chunks(AT_ONCE) {
            let _alone = self.alone()?;
            let needed = self.closure(references()?)?;
            for (hash, path, size) in some {
                if needed.contains(hash) {
                    report.kept += 1;
                    report.kept_bytes += size;
                } else {
                    fs::remove_file(path).map_err(at(path))?;
                    report.removed += 1;
                    report.removed_bytes += size;
                    on_disk = on_disk.saturating_sub(total::on_disk(*size));
                }
            }
        }
        self.recount(on_disk, before);
        Ok(report)
    }

    /// The objects that contents consist of: themselves and their chunks.
    fn closure(&self, contents: HashSet<ContentHash>) -> Result<HashSet<ContentHash>, CasError> {
        let mut needed = contents.clone();
        for hash in contents {
            // Only lists have to be read; a damaged chunk is `verify`'s business.
            if let Some(manifest) = self.list(&hash)? {
                needed.extend(manifest.chunks.iter().map(|chunk| chunk.hash));
            }
        }
        Ok(needed)
    }

    /// The chunks of a content; `None` when it is stored as it is, or not at all.
    pub(crate) fn list(&self, hash: &ContentHash) -> Result<Option<Manifest>, CasError> {
        if !self.is_list(hash) {
            return Ok(None);
        }
        Ok(match self.read(hash)? {
            Some(Object::Chunks(manifest)) => Some(manifest),
            _ => None,
        })
    }

    fn is_list(&self, hash: &ContentHash) -> bool {
        let mut first = [0];
        fs::File::open(self.object_path(hash))
            .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut first))
            .is_ok_and(|()| first == [2])
    }

    /// Every object in the store.
    pub fn objects(&self) -> Result<Vec<(ContentHash, PathBuf)>, CasError> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.dir()).map_err(at(self.dir()))? {
            let folder = entry.map_err(at(self.dir()))?;
            let name = folder.file_name();
            let is_shard = name
                .to_str()
                .is_some_and(|name| name.len() == 2 && u8::from_str_radix(name, 16).is_ok());
            if !is_shard {
                continue;
            }
            let folder = folder.path();
            for entry in fs::read_dir(&folder).map_err(at(&folder))? {
                let path = entry.map_err(at(&folder))?.path();
                let name = path
                    .file_name()
                    .and_then(|name| name.to_str())
                    .map(String::from_str);
                if let Some(hash) = name.and_then(|name| ContentHash::parse(&name.ok()?)) {
                    all.push((hash, path));
                }
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn only_what_nothing_refers_to_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let mut bytes = vec![0; 3 << 20];
        blake3::Hasher::new().finalize_xof().fill(&mut bytes);
        let kept = cas.ingest(&bytes[..]).unwrap();
        bytes[0] ^= 1;
        let dropped = cas.ingest(&bytes[..]).unwrap();
        let before = cas.objects().unwrap().len();
        let report = cas
            .collect::<CasError>(|| Ok(HashSet::from([kept.hash])))
            .unwrap();
        assert_eq!(report.removed, 2, "the other list and its first chunk");
        assert_eq!(report.kept, before as u64 - 2);
        let mut back = Vec::new();
        cas.copy_chunks(&kept.hash, &kept.chunks.unwrap(), &mut back)
            .unwrap();
        assert!(!cas.has(&dropped.hash));
    }

    #[test]
    fn a_writer_beside_the_collector_never_loses_an_object() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        let committed = Mutex::new(HashSet::new());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..400u32 {
                    let guard = cas.writing().unwrap();
                    // Few contents, so that most are stored again after they were collected.
                    let bytes = vec![u8::try_from(round % 7).unwrap(); 100_000];
                    let hash = cas.ingest(&bytes[..]).unwrap().hash;
                    committed.lock().unwrap().insert(hash);
                    drop(guard);
                    assert!(
                        cas.read(&hash).unwrap().is_some(),
                        "collected while it was in use"
                    );
                    committed.lock().unwrap().remove(&hash);
                }
                done.store(true, Ordering::Release);
            });
            while !done.load(Ordering::Acquire) {
                let collected = cas.collect::<CasError>(|| Ok(committed.lock().unwrap().clone()));
                collected.unwrap();
            }
        });
    }
}
