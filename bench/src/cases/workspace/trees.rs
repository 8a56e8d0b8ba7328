//! Folders to sync, in memory.

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Context as _;
use tempfile::TempDir;

use super::{FILES, LARGE};

/// Where one round happens; gone afterwards.
#[derive(Clone)]
pub(super) struct Place(Rc<TempDir>);

impl Place {
    pub(super) fn new() -> anyhow::Result<Self> {
        let dir = TempDir::new_in("/dev/shm").context("a folder in memory")?;
        fs::create_dir(dir.path().join("master"))?;
        fs::create_dir(dir.path().join("replica"))?;
        Ok(Self(Rc::new(dir)))
    }

    pub(super) fn home(&self) -> &Path {
        self.0.path()
    }

    pub(super) fn master(&self) -> PathBuf {
        self.home().join("master")
    }

    pub(super) fn replica(&self) -> PathBuf {
        self.home().join("replica")
    }
}

/// The n-th small file.
pub(super) fn name(n: usize) -> String {
    format!("folder-{:02}/file-{n:05}.txt", n % 100)
}

/// 10,000 files in 100 folders, of a few hundred bytes to 4 KiB.
pub(super) fn small(place: &Place) -> anyhow::Result<()> {
    let master = place.master();
    for folder in 0..100 {
        fs::create_dir_all(master.join(format!("folder-{folder:02}")))?;
    }
    for n in 0..FILES {
        let line = format!("line of file {n}, which is like no other file's\n");
        fs::write(master.join(name(n)), line.repeat(1 + n % 80))?;
    }
    Ok(())
}

/// One file of 1 GiB that does not compress.
pub(super) fn large(place: &Place) -> anyhow::Result<()> {
    let mut file = fs::File::create(place.master().join("large"))?;
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    let mut block = vec![0; 1 << 20];
    for _ in 0..LARGE >> 20 {
        noise.fill(&mut block);
        file.write_all(&block)?;
    }
    Ok(())
}

/// One file of 1 GiB of text.
pub(super) fn text(place: &Place) -> anyhow::Result<()> {
    let mut file = fs::File::create(place.master().join("large"))?;
    let mut noise = Noise(7);
    let words = [
        "let", "value", "return", "match", "self", "error", "path", "while", "(", ")",
    ];
    let mut block = String::with_capacity(1 << 20);
    for _ in 0..LARGE >> 20 {
        block.clear();
        while block.len() < 1 << 20 {
            let number = noise.next();
            block.push_str(words[usize::try_from(number % 10)?]);
            block.push_str(&format!("_{:x}", number >> 52));
            block.push(if number.is_multiple_of(13) { '\n' } else { ' ' });
        }
        file.write_all(&block.as_bytes()[..1 << 20])?;
    }
    Ok(())
}

/// Writes 1 MiB of other bytes into the middle of the large file.
pub(super) fn change_inside(place: &Place) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .open(place.master().join("large"))?;
    let mut block = vec![0; 1 << 20];
    Noise(99).fill(&mut block);
    file.seek(SeekFrom::Start(LARGE as u64 / 2 + 12_345))?;
    file.write_all(&block)?;
    Ok(())
}

/// Fails unless both folders hold the same.
pub(super) fn same(place: &Place) -> anyhow::Result<()> {
    holds(&place.replica(), &place.master())
}

/// Fails unless `replica` holds everything that `master` does.
pub(in crate::cases) fn holds(replica: &Path, master: &Path) -> anyhow::Result<()> {
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(master.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if path.starts_with(".quintet") || path.starts_with(".stfolder") {
                continue;
            }
            let there = fs::metadata(replica.join(&path)).with_context(|| format!("{path:?}"))?;
            let here = entry.metadata()?;
            anyhow::ensure!(
                here.is_dir() == there.is_dir(),
                "{path:?} is something else"
            );
            if here.is_dir() {
                folders.push(path);
                continue;
            }
            anyhow::ensure!(here.size() == there.size(), "{path:?} has another size");
            let equal = fs::read(master.join(&path))? == fs::read(replica.join(&path))?;
            anyhow::ensure!(equal, "{path:?} differs");
        }
    }
    Ok(())
}

/// Bytes that look random and are the same every time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn fill(&mut self, block: &mut [u8]) {
        for eight in block.chunks_mut(8) {
            let bytes = self.next().to_le_bytes();
            eight.copy_from_slice(&bytes[..eight.len()]);
        }
    }
}
