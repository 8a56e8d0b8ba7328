//! What the store takes on the disk, without looking at every object each time.
//!
//! `cas/size` holds the sum. Whoever stores adds to it once for each commit; a
//! collection, which looks at every object anyway, sets it right. A crash between
//! storing and adding leaves it short by one commit until then.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use rustix::fs::{self as sys, FlockOperation, Mode, OFlags};

use super::cas::{Cas, CasError, at};

/// The unit in which nearly all file systems give out space.
const BLOCK: u64 = 4_096;

/// What a file of this length takes.
pub(super) fn on_disk(length: u64) -> u64 {
    length.div_ceil(BLOCK).saturating_mul(BLOCK)
}

/// The sum; nobody else changes it while this lives.
pub(super) struct Total {
    file: File,
    path: PathBuf,
}

impl Total {
    /// `None` when it was never taken: a store of an earlier program.
    pub(super) fn get(&self) -> Option<u64> {
        let (mut sum, mut check) = ([0; 8], [0; 8]);
        self.file.read_exact_at(&mut sum, 0).ok()?;
        self.file.read_exact_at(&mut check, 8).ok()?;
        let [sum, check] = [sum, check].map(u64::from_le_bytes);
        (sum == !check).then_some(sum)
    }

    pub(super) fn set(&self, sum: u64) -> Result<(), CasError> {
        let bytes = [sum.to_le_bytes(), (!sum).to_le_bytes()].concat();
        let written = self.file.write_all_at(&bytes, 0);
        written.map_err(at(&self.path))
    }
}

impl Cas {
    pub(super) fn total(&self) -> Result<Total, CasError> {
        let path = self.dir().join("size");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = sys::open(&path, flags, Mode::from_raw_mode(0o600))
            .and_then(|file| sys::flock(&file, FlockOperation::LockExclusive).map(|()| file))
            .map_err(|errno| at(&path)(errno.into()))?;
        let file = File::from(file);
        Ok(Total { file, path })
    }

    /// Counts what was stored. It is only told to people: that it could not be
    /// written down is no reason to fail.
    pub(super) fn count(&self, stored: u64) {
        let counted = self.total().and_then(|total| match total.get() {
            Some(sum) => total.set(sum.saturating_add(stored)),
            None => Ok(()),
        });
        if let Err(error) = counted {
            tracing::debug!(%error, "what was stored is not counted");
        }
    }

    /// What all objects take on the disk.
    pub fn disk_bytes(&self) -> Result<u64, CasError> {
        let total = self.total()?;
        if let Some(sum) = total.get() {
            return Ok(sum);
        }
        let objects = self.objects()?.into_iter();
        let lengths = objects.filter_map(|(_, path)| Some(path.metadata().ok()?.len()));
        let sum = lengths.map(on_disk).sum();
        total.set(sum)?;
        Ok(sum)
    }

    /// Sets the sum to what a collection found, and what was counted since it
    /// began, when the sum was `before`. A full disk must not keep it from
    /// collecting.
    pub(super) fn recount(&self, found: u64, before: Option<u64>) {
        let counted = self.total().and_then(|total| {
            let more = total.get().zip(before);
            let more = more.map_or(0, |(now, before)| now.saturating_sub(before));
            total.set(found.saturating_add(more))
        });
        if let Err(error) = counted {
            tracing::debug!(%error, "what is stored is not counted");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn noise(length: usize, seed: u8) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut hasher = blake3::Hasher::new();
        hasher.update(&[seed]).finalize_xof().fill(&mut bytes);
        bytes
    }

    fn counted(cas: &Cas) -> u64 {
        let objects = cas.objects().unwrap().into_iter();
        let lengths = objects.map(|(_, path)| path.metadata().unwrap().len());
        lengths.map(on_disk).sum()
    }

    #[test]
    fn the_sum_follows_what_is_stored_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let cas = Cas::open(dir.path()).unwrap();
        cas.ingest(&noise(300_000, 1)[..]).unwrap();
        cas.sync().unwrap();
        assert_eq!(
            cas.disk_bytes().unwrap(),
            counted(&cas),
            "all are looked at"
        );
        let kept = cas.ingest(&noise(3_000_000, 2)[..]).unwrap().hash;
        cas.ingest(&noise(2_000_000, 3)[..]).unwrap();
        cas.sync().unwrap();
        assert!(counted(&cas) > 5_300_000);
        assert_eq!(cas.disk_bytes().unwrap(), counted(&cas), "they are counted");
        let other = Cas::open(dir.path()).unwrap();
        assert_eq!(other.disk_bytes().unwrap(), counted(&cas));
        other.total().unwrap().set(7).unwrap();
        cas.collect::<CasError>(|| Ok(HashSet::from([kept])))
            .unwrap();
        assert!((3_000_000..3_200_000).contains(&counted(&cas)));
        assert_eq!(cas.disk_bytes().unwrap(), counted(&cas), "it is set right");
        std::fs::write(dir.path().join("size"), "half").unwrap();
        assert_eq!(cas.disk_bytes().unwrap(), counted(&cas), "it was damaged");
    }
}
