//! What a command or shell printed, kept so that it can be read again.
//!
//! A log is a sequence of records: one byte of kind, a big-endian u32 length, the bytes. The end
//! of it is in memory; once that is [`TAIL`] long it moves to a file. All logs of a worker share
//! one [`SpoolQuota`]. When that is used up, or the disk, a log gives up what its reader has taken;
//! when too much is left that was not even sent, it takes no more, and the program waits on its pipe.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// How much of a log stays in memory.
pub(crate) const TAIL: usize = 256 * 1024;

/// How much of it stays in memory where the disk takes nothing. A hub gives credit back in steps of
/// [`TAIL`] bytes, which are six times as long in records of a byte each: all of it may have been
/// read and not yet be known to have been.
const TAIL_WITHOUT_DISK: usize = 8 * TAIL;

/// The longest record that is appended.
pub(crate) const MAX_RECORD: usize = 64 * 1024;

const HEADER: usize = 5;

/// Which pipe bytes came from. The number is the record's kind on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    Out = 0,
    Err = 1,
}

/// Bytes on disk that all logs of a worker may take together.
#[derive(Debug)]
pub(crate) struct SpoolQuota {
    limit: u64,
    used: AtomicU64,
}

impl SpoolQuota {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            used: AtomicU64::new(0),
        }
    }

    fn reserve(&self, bytes: u64) -> bool {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|sum| *sum <= self.limit)
            })
            .is_ok()
    }

    fn release(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// Where a reader stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Start of the next record.
    pos: u64,
    /// Bytes of that record which are already read.
    within: usize,
    /// Bytes of each channel that the reader has from before.
    skip: [u64; 2],
}

impl Cursor {
    pub(crate) fn position(self) -> u64 {
        self.pos
    }
}

#[derive(Debug)]
pub(crate) struct OutputLog {
    quota: Arc<SpoolQuota>,
    path: PathBuf,
    file: Option<Arc<File>>,
    /// Positions count every byte of every record since the start of the job.
    start: u64,
    flushed: u64,
    tail: BytesMut,
    /// Bytes of each channel before `start`, which are gone.
    lost: [u64; 2],
}

/// Why the tail could not be moved to disk.
#[derive(Debug)]
pub(crate) enum SpillError {
    /// No quota, and nothing more to give up.
    Full,
    Io(io::Error),
}

impl OutputLog {
    /// A log that will spill to `path`, which is created only if it has to.
    pub(crate) fn new(path: PathBuf, quota: Arc<SpoolQuota>) -> Self {
        Self {
            quota,
            path,
            file: None,
            start: 0,
            flushed: 0,
            tail: BytesMut::new(),
            lost: [0; 2],
        }
    }

    pub(crate) fn append(&mut self, channel: Channel, data: &[u8]) {
        for part in data.chunks(MAX_RECORD) {
            self.tail.put_u8(channel as u8);
            self.tail
                .put_u32(u32::try_from(part.len()).unwrap_or(u32::MAX));
            self.tail.extend_from_slice(part);
        }
    }

    pub(crate) fn end(&self) -> u64 {
        self.flushed + self.tail.len() as u64
    }

    /// Whether the tail should move to disk before more is appended.
    pub(crate) fn wants_spill(&self) -> bool {
        self.tail.len() >= TAIL
    }

    /// Whether a log that could not be spilled takes no more, when its reader was sent what is before
    /// `sent`.
    pub(crate) fn is_full(&self, sent: u64) -> bool {
        self.end().saturating_sub(sent) >= TAIL as u64 || self.tail.len() >= TAIL_WITHOUT_DISK
    }

    /// Moves the tail to disk. `acked` is the position before which everything has been taken.
    ///
    /// Where that can't be, the log gives up what was taken, on disk and in memory.
    pub(crate) async fn spill(&mut self, acked: u64) -> Result<(), SpillError> {
        let written = self.write_tail(acked).await;
        if written.is_err() && self.give_up_all(acked).await {
            return Ok(());
        }
        written
    }

    async fn write_tail(&mut self, acked: u64) -> Result<(), SpillError> {
        let needed = self.tail.len() as u64;
        if !self.quota.reserve(needed) {
            self.give_up(acked).await.map_err(SpillError::Io)?;
            if !self.quota.reserve(needed) {
                return Err(SpillError::Full);
            }
        }
        let tail = self.tail.split().freeze();
        let (path, file, at) = (self.path.clone(), self.file.clone(), self.flushed);
        let bytes = tail.clone();
        let written = blocking(move || {
            let (file, fresh) = match file {
                Some(file) => (file, false),
                None => (Arc::new(create(&path)?), true),
            };
            if let Err(error) = file.write_all_at(&bytes, at) {
                // What was written of it holds room that nobody counts.
                if fresh {
                    let _ = std::fs::remove_file(&path);
                } else {
                    let _ = punch(&file, at, needed);
                }
                return Err(error);
            }
            Ok(file)
        })
        .await;
        match written {
            Ok(file) => {
                self.file = Some(file);
                self.flushed += needed;
                Ok(())
            }
            Err(error) => {
                self.quota.release(needed);
                self.tail = BytesMut::from(&tail[..]);
                Err(SpillError::Io(error))
            }
        }
    }

    /// A cursor for a reader that has the first `stdout` and `stderr` bytes, and how many bytes of
    /// each it will never get.
    pub(crate) fn seek(&self, stdout: u64, stderr: u64) -> (Cursor, [u64; 2]) {
        let have = [stdout, stderr];
        let mut skip = [0; 2];
        let mut lost = [0; 2];
        for channel in 0..2 {
            skip[channel] = have[channel].saturating_sub(self.lost[channel]);
            lost[channel] = self.lost[channel].saturating_sub(have[channel]);
        }
        let cursor = Cursor {
            pos: self.start,
            within: 0,
            skip,
        };
        (cursor, lost)
    }

    pub(crate) fn is_at_end(&self, cursor: Cursor) -> bool {
        cursor.pos >= self.end()
    }

    /// The next bytes of one channel, at most `max`, from memory. `None` when they are on disk or
    /// there are none.
    pub(crate) fn read_tail(&self, cursor: &mut Cursor, max: usize) -> Option<(Channel, Bytes)> {
        let at = usize::try_from(cursor.pos.checked_sub(self.flushed)?).ok()?;
        gather(self.tail.get(at..)?, cursor, max)
    }

    /// The same from disk.
    pub(crate) async fn read_disk(
        &self,
        cursor: &mut Cursor,
        max: usize,
    ) -> io::Result<Option<(Channel, Bytes)>> {
        let Some(file) = self.file.clone() else {
            return Ok(None);
        };
        while cursor.pos < self.flushed {
            let at = cursor.pos;
            let want = usize::try_from(self.flushed - at)
                .unwrap_or(usize::MAX)
                .min(2 * (HEADER + MAX_RECORD));
            let reader = file.clone();
            let block = blocking(move || {
                let mut block = vec![0; want];
                reader.read_exact_at(&mut block, at)?;
                Ok(block)
            })
            .await?;
            if let Some(found) = gather(&block, cursor, max) {
                return Ok(Some(found));
            }
            if cursor.pos == at {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the spool file is damaged",
                ));
            }
        }
        Ok(None)
    }

    /// Gives up whole records before `acked`, those in memory too. False when the tail still has no
    /// room for more.
    async fn give_up_all(&mut self, acked: u64) -> bool {
        // What is on disk stands before the tail; while it stays, the tail has to.
        if self.give_up(acked).await.is_err() || self.start < self.flushed {
            return false;
        }
        let mut rest = &self.tail[..];
        while let Some(header) = rest.first_chunk::<HEADER>() {
            let (channel, len) = parse_header(header);
            if self.start + (HEADER + len) as u64 > acked {
                break;
            }
            rest.advance(HEADER + len);
            self.start += (HEADER + len) as u64;
            self.lost[channel as usize] += len as u64;
        }
        let gone = self.tail.len() - rest.len();
        self.tail.advance(gone);
        // Nothing of the log is on disk: its file begins anew here.
        self.flushed = self.start;
        !self.wants_spill()
    }

    /// Gives back the disk of whole records before `acked`.
    async fn give_up(&mut self, acked: u64) -> io::Result<()> {
        let until = acked.min(self.flushed);
        let Some(file) = self.file.clone() else {
            return Ok(());
        };
        if until <= self.start {
            return Ok(());
        }
        let start = self.start;
        let (end, gone) = blocking(move || {
            let mut at = start;
            let mut gone = [0u64; 2];
            while at < until {
                let mut header = [0; HEADER];
                file.read_exact_at(&mut header, at)?;
                let (channel, len) = parse_header(&header);
                let next = at + (HEADER + len) as u64;
                if next > until {
                    break;
                }
                gone[channel as usize] += len as u64;
                at = next;
            }
            punch(&file, start, at - start)?;
            Ok((at, gone))
        })
        .await?;
        self.quota.release(end - self.start);
        self.start = end;
        self.lost[0] += gone[0];
        self.lost[1] += gone[1];
        Ok(())
    }
}

impl Drop for OutputLog {
    fn drop(&mut self) {
        self.quota.release(self.flushed - self.start);
        if self.file.take().is_some() {
            // Best effort: the sweep at the next start removes what is left.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn create(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

/// Gives a part of a file back to the file system.
fn punch(file: &File, at: u64, len: u64) -> io::Result<()> {
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, at, len)?)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|join| Err(io::Error::other(join)))
}

fn parse_header(header: &[u8; HEADER]) -> (Channel, usize) {
    let [kind, a, b, c, d] = *header;
    let channel = if kind == 0 {
        Channel::Out
    } else {
        Channel::Err
    };
    (channel, u32::from_be_bytes([a, b, c, d]) as usize)
}

/// Joins what stands next to each other on one channel, so that a reader that fell behind gets
/// few large pieces instead of many small ones.
fn gather(mut records: &[u8], cursor: &mut Cursor, max: usize) -> Option<(Channel, Bytes)> {
    let mut found: Option<(Channel, BytesMut)> = None;
    while let Some(header) = records.first_chunk::<HEADER>() {
        let (channel, len) = parse_header(header);
        let Some(payload) = records.get(HEADER..HEADER + len) else {
            break;
        };
        let mut fresh = &payload[cursor.within..];
        let skipped = usize::try_from(cursor.skip[channel as usize])
            .unwrap_or(usize::MAX)
            .min(fresh.len());
        fresh.advance(skipped);
        cursor.skip[channel as usize] -= skipped as u64;
        cursor.within += skipped;
        let (_, out) = match &mut found {
            Some((kind, _)) if *kind != channel && !fresh.is_empty() => break,
            Some(found) => found,
            None if fresh.is_empty() => {
                records.advance(HEADER + len);
                cursor.pos += (HEADER + len) as u64;
                cursor.within = 0;
                continue;
            }
            None => found.insert((channel, BytesMut::new())),
        };
        let take = fresh.len().min(max - out.len());
        out.extend_from_slice(&fresh[..take]);
        cursor.within += take;
        if cursor.within < len {
            break;
        }
        records.advance(HEADER + len);
        cursor.pos += (HEADER + len) as u64;
        cursor.within = 0;
        if out.len() == max {
            break;
        }
    }
    found.map(|(channel, out)| (channel, out.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log(dir: &Path, limit: u64) -> OutputLog {
        OutputLog::new(dir.join("job"), Arc::new(SpoolQuota::new(limit)))
    }

    async fn read_all(log: &OutputLog, mut cursor: Cursor, max: usize) -> [Vec<u8>; 2] {
        let mut seen = [Vec::new(), Vec::new()];
        loop {
            let next = match log.read_tail(&mut cursor, max) {
                Some(next) => Some(next),
                None => log.read_disk(&mut cursor, max).await.unwrap(),
            };
            match next {
                Some((channel, bytes)) => {
                    assert!(!bytes.is_empty() && bytes.len() <= max);
                    seen[channel as usize].extend_from_slice(&bytes);
                }
                None if log.is_at_end(cursor) => return seen,
                None => {}
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_reader_gets_what_was_written_from_wherever_it_starts(
            parts in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 1..300)), 0..40),
            spills in prop::collection::vec(any::<bool>(), 40),
            max in 1usize..400,
            have in (0usize..3000, 0usize..3000),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let dir = tempfile::tempdir().unwrap();
                let mut log = log(dir.path(), 1 << 20);
                let mut wrote = [Vec::new(), Vec::new()];
                for ((err, data), spill) in parts.iter().zip(spills) {
                    let channel = if *err { Channel::Err } else { Channel::Out };
                    log.append(channel, data);
                    wrote[channel as usize].extend_from_slice(data);
                    if spill {
                        log.spill(0).await.unwrap();
                    }
                }
                let have = [have.0.min(wrote[0].len()), have.1.min(wrote[1].len())];
                let (cursor, lost) = log.seek(have[0] as u64, have[1] as u64);
                assert_eq!(lost, [0, 0]);
                let seen = read_all(&log, cursor, max).await;
                assert_eq!(seen[0], wrote[0][have[0]..]);
                assert_eq!(seen[1], wrote[1][have[1]..]);
            });
        }
    }

    #[tokio::test]
    async fn a_full_quota_gives_up_only_what_was_taken() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path(), 300_000);
        log.append(Channel::Out, &[1; 200_000]);
        log.spill(0).await.unwrap();
        log.append(Channel::Err, &[2; 150_000]);
        assert!(matches!(log.spill(0).await, Err(SpillError::Full)));
        assert_eq!(log.seek(0, 0).1, [0, 0]);

        // A reader takes the first part; the log may then forget it.
        let (mut cursor, _) = log.seek(0, 0);
        while cursor.position() < 200_000 {
            log.read_disk(&mut cursor, 65536).await.unwrap();
        }
        log.spill(cursor.position()).await.unwrap();
        let (_, lost) = log.seek(0, 0);
        assert_eq!(lost, [200_000, 0]);
        let (rest, lost) = log.seek(200_000, 0);
        assert_eq!(lost, [0, 0]);
        assert_eq!(
            read_all(&log, rest, 65536).await,
            [vec![], vec![2; 150_000]]
        );
    }

    #[tokio::test]
    async fn without_quota_what_was_taken_makes_room_in_memory() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = log(dir.path(), 0);
        log.append(Channel::Out, &[1; TAIL]);
        let taken = log.end();
        log.append(Channel::Err, &[2; 100]);
        assert!(matches!(log.spill(0).await, Err(SpillError::Full)));
        assert!(log.is_full(0) && !log.is_full(taken));
        log.spill(taken).await.unwrap();
        assert!(!log.wants_spill());
        let (cursor, lost) = log.seek(0, 0);
        assert_eq!(lost, [TAIL as u64, 0]);
        assert_eq!(read_all(&log, cursor, 65536).await, [vec![], vec![2; 100]]);
    }

    #[tokio::test]
    async fn a_file_that_can_t_be_written_now_can_be_later() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = OutputLog::new(
            dir.path().join("spool/job"),
            Arc::new(SpoolQuota::new(1 << 30)),
        );
        log.append(Channel::Out, &[1; TAIL]);
        let taken = log.end();
        assert!(matches!(log.spill(0).await, Err(SpillError::Io(_))));
        log.spill(taken).await.unwrap();
        std::fs::create_dir(dir.path().join("spool")).unwrap();
        log.append(Channel::Out, &[2; TAIL]);
        log.spill(taken).await.unwrap();
        let (cursor, lost) = log.seek(0, 0);
        assert_eq!(lost, [TAIL as u64, 0]);
        assert_eq!(read_all(&log, cursor, 65536).await, [vec![2; TAIL], vec![]]);
    }

    #[tokio::test]
    async fn a_dropped_log_leaves_neither_file_nor_quota() {
        let dir = tempfile::tempdir().unwrap();
        let quota = Arc::new(SpoolQuota::new(1000));
        let mut log = OutputLog::new(dir.path().join("job"), quota.clone());
        log.append(Channel::Out, &[0; 500]);
        log.spill(0).await.unwrap();
        assert_eq!(quota.used.load(Ordering::Relaxed), 505);
        drop(log);
        assert_eq!(quota.used.load(Ordering::Relaxed), 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
