//! A download's way into its file.

use std::fs::File;
use std::io::{self, IoSlice, Write as _};

use bytes::Bytes;
use tokio::task::JoinHandle;

/// What is gathered before the file system is asked: each time costs a change of threads.
const GATHERED: usize = 512 * 1024;

/// Writes what arrives as it arrived, without copying it: one part is gathered while the one before
/// it is being written.
pub(super) struct WriteBehind {
    gathered: Vec<Bytes>,
    len: usize,
    writing: Writing,
}

enum Writing {
    /// Nothing has been written yet.
    Idle(File),
    Busy(JoinHandle<(File, io::Result<()>)>),
    /// What follows a hole is not written.
    Failed,
}

impl WriteBehind {
    /// Writes where `target` stands, which nobody else may use meanwhile.
    pub(super) async fn new(target: &tokio::fs::File) -> io::Result<Self> {
        Ok(Self {
            gathered: Vec::new(),
            len: 0,
            writing: Writing::Idle(target.try_clone().await?.into_std().await),
        })
    }

    /// Takes the next bytes. Fails when earlier ones could not be written.
    pub(super) async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.len += bytes.len();
        self.gathered.push(bytes);
        if self.len >= GATHERED {
            self.start().await?;
        }
        Ok(())
    }

    /// Returns when everything is written.
    pub(super) async fn finish(mut self) -> io::Result<()> {
        self.start().await?;
        self.settle().await.map(drop)
    }

    /// Begins to write what is gathered, once what was gathered before is written.
    async fn start(&mut self) -> io::Result<()> {
        let mut file = self.settle().await?;
        let parts = std::mem::take(&mut self.gathered);
        self.len = 0;
        self.writing = Writing::Busy(tokio::task::spawn_blocking(move || {
            let result = write_all(&mut file, &parts);
            (file, result)
        }));
        Ok(())
    }

    async fn settle(&mut self) -> io::Result<File> {
        if let Writing::Busy(task) = &mut self.writing {
            let written = task.await;
            self.writing = Writing::Failed;
            let (file, result) = written.map_err(io::Error::other)?;
            result?;
            return Ok(file);
        }
        match std::mem::replace(&mut self.writing, Writing::Failed) {
            Writing::Idle(file) => Ok(file),
            Writing::Busy(_) | Writing::Failed => Err(io::Error::other("an earlier write failed")),
        }
    }
}

fn write_all(file: &mut File, parts: &[Bytes]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    // Parts are never empty, and nothing is left before the first byte that is not written.
    while !rest.is_empty() {
        match file.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Seek as _};

    use tokio::io::AsyncSeekExt as _;

    use super::*;

    #[tokio::test]
    async fn parts_of_any_length_are_in_the_file_in_their_order() {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"begin").expect("writable");
        let mut target = tokio::fs::File::from_std(file.try_clone().expect("open"));
        target.seek(io::SeekFrom::Start(5)).await.expect("seekable");
        let mut expected = b"begin".to_vec();
        let mut writer = WriteBehind::new(&target).await.expect("open");
        for (n, len) in [1, 70_000, GATHERED, 3, 2 * GATHERED + 1, 17]
            .iter()
            .enumerate()
        {
            let part = Bytes::from(vec![n as u8; *len]);
            expected.extend_from_slice(&part);
            writer.write(part).await.expect("writable");
        }
        writer.finish().await.expect("writable");
        let mut there = Vec::new();
        file.rewind().expect("seekable");
        file.read_to_end(&mut there).expect("readable");
        assert!(there == expected);
    }

    #[tokio::test]
    async fn a_write_that_failed_is_told_and_nothing_follows_it() {
        let read_only = tempfile::NamedTempFile::new().expect("a file");
        let target = tokio::fs::File::open(read_only.path()).await.expect("open");
        let mut writer = WriteBehind::new(&target).await.expect("open");
        let part = Bytes::from(vec![0; GATHERED]);
        writer.write(part.clone()).await.expect("not known yet");
        assert!(writer.write(part.clone()).await.is_err());
        assert!(writer.write(part).await.is_err());
        assert!(writer.finish().await.is_err());
    }
}
