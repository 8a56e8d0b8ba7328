//! Files that the hub sends.
//!
//! They are written beside their destination and renamed when they are whole, so that nobody
//! reads half of one. What is left of an interrupted v2 upload stays for a day, so that it can
//! be continued; of a v1 upload nothing stays.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, FileTimes, Metadata, Permissions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::partials::Leftover;
use super::state::{WorkerState, file_safe};
use super::transfer::{TransferCommand, TransferError, TransferStream, receive_within};
use crate::lanes::Link;
use crate::paths::Parent;
use crate::proto::frame::{Body, Opened};
use crate::proto::{Dialect, Progress, WorkerToHub};
use crate::socket::WsMessage;

/// Chunks of a v1 upload that wait for the disk. A full queue stops the connection: v1 has no
/// other way to slow its sender.
pub(crate) const V1_CHUNKS: usize = 16;

const DEFAULT_MODE: u32 = 0o644;

/// How long an attempt waits for one that was given up to write what has come and let the name go.
const LETTING_GO: Duration = Duration::from_secs(1);

/// What arrives for a v1 upload.
#[derive(Debug)]
pub(crate) enum V1Chunk {
    Data { offset: i64, bytes: Bytes },
    NotBase64,
}

/// What a v1 upload announced.
pub(crate) struct V1Upload {
    pub(crate) id: String,
    pub(crate) path: String,
    pub(crate) total_size: i64,
    pub(crate) mode: Option<u32>,
}

/// What a v2 upload announced.
pub(crate) struct V2Upload {
    pub(crate) path: String,
    pub(crate) total_size: u64,
    pub(crate) mode: Option<u32>,
    pub(crate) modified: Option<SystemTime>,
}

impl WorkerState {
    pub(crate) fn start_v1_upload(
        self: &Arc<Self>,
        upload: V1Upload,
        link: Link,
        dialect: Dialect,
    ) -> mpsc::Sender<V1Chunk> {
        let (sender, mut chunks) = mpsc::channel(V1_CHUNKS);
        let worker = self.clone();
        self.tasks.spawn_blocking(move || {
            let result = worker
                .transfer_permit()
                .and_then(|_permit| worker.receive_v1(&upload, &mut chunks));
            // What still comes is no longer wanted; the connection must not wait on it.
            drop(chunks);
            let message = WorkerToHub::FileUploadComplete {
                id: upload.id,
                success: result.is_ok(),
                error: result.err().map(|error| error.to_string()),
            };
            // A lost connection has nobody to tell.
            let _ = link
                .bulk
                .blocking_send(WsMessage::Text(message.encode(dialect)));
        });
        sender
    }

    fn receive_v1(
        &self,
        upload: &V1Upload,
        chunks: &mut mpsc::Receiver<V1Chunk>,
    ) -> Result<(), TransferError> {
        let mut progress = Progress::announced(upload.total_size)?;
        let total = upload.total_size.unsigned_abs();
        let part = part_name(&upload.id);
        let place = Destination::open(self, &upload.path, part, total, Leftover::Useless)?;
        let mut file = place.parent.create_new(&place.part)?;
        let runtime = tokio::runtime::Handle::current();
        while !progress.is_complete() {
            let idle = self.config.quotas.transfer_idle;
            match receive_within(&runtime, chunks, idle)? {
                V1Chunk::Data { offset, bytes } => {
                    progress.chunk(offset, bytes.len())?;
                    file.write_all(&bytes)?;
                }
                V1Chunk::NotBase64 => return Err(TransferError::NotBase64),
            }
        }
        place.publish(&file, upload.mode, None)
    }

    pub(crate) fn receive_v2(
        &self,
        upload: &V2Upload,
        stream: &mut TransferStream,
    ) -> Result<(), TransferError> {
        // One name for every attempt at this destination: that is how an attempt finds the last.
        let part = part_name(&upload.path);
        let total = upload.total_size;
        let place = Destination::open(self, &upload.path, part, total, Leftover::Resumable)?;
        let (mut file, offset, hash) = place.open_part(total)?;
        stream.frame(Body::Opened(Opened {
            offset,
            blake3: Some(hash),
            ..Opened::default()
        }))?;
        let begin = match stream.next()? {
            TransferCommand::Begin(begin) if begin == 0 || begin == offset => begin,
            TransferCommand::Cancel => return Err(TransferError::Cancelled),
            _ => return Err(TransferError::Unexpected),
        };
        file.set_len(begin)?;
        file.seek(SeekFrom::Start(begin))?;
        stream.open_window()?;
        let mut progress = Progress::resumed(begin, total);
        while let Some(bytes) = stream.next_data()? {
            progress.append(bytes.len())?;
            file.write_all(&bytes)?;
            stream.written(bytes.len())?;
        }
        if !progress.is_complete() {
            return Err(TransferError::Short {
                received: progress.received(),
                total,
            });
        }
        place.publish(&file, upload.mode, upload.modified)
    }

    /// Makes a folder, or finds it, and gives it what was asked for. The root's own is not the hub's
    /// to change.
    pub(crate) fn make_folder(
        &self,
        path: &str,
        mode: Option<u32>,
        modified: Option<SystemTime>,
    ) -> Result<(), TransferError> {
        let folder = File::from(self.root.create_folder(path)?);
        if is_same(&folder.metadata()?, &std::fs::metadata(self.root.path())?) {
            return Ok(());
        }
        if let Some(mode) = mode {
            folder.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        }
        if let Some(modified) = modified {
            folder.set_times(FileTimes::new().set_modified(modified))?;
        }
        Ok(())
    }
}

/// Files that an upload is writing now.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Short sections without an await.
    taken: Mutex<HashSet<PathBuf>>,
    freed: Condvar,
}

impl Names {
    /// Takes a name, at the latest after `patience`. False when another upload still has it.
    fn take(&self, name: &Path, patience: Duration) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut taken, _) = self
            .freed
            .wait_timeout_while(taken, patience, |taken| taken.contains(name))
            .unwrap_or_else(PoisonError::into_inner);
        taken.insert(name.to_owned())
    }

    fn give_back(&self, name: &Path) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.remove(name);
        drop(taken);
        self.freed.notify_all();
    }
}

/// Where an upload goes, and what has to be tidied when it fails.
struct Destination<'a> {
    worker: &'a WorkerState,
    parent: Parent,
    part: OsString,
    path: String,
    key: PathBuf,
    leftover: Leftover,
    published: std::cell::Cell<bool>,
}

impl<'a> Destination<'a> {
    fn open(
        worker: &'a WorkerState,
        path: &str,
        part: OsString,
        total: u64,
        leftover: Leftover,
    ) -> Result<Self, TransferError> {
        let limit = worker.config.quotas.upload_bytes;
        if total > limit {
            return Err(TransferError::TooLarge { size: total, limit });
        }
        let parent = worker.root.parent_of(path)?;
        // What an earlier attempt left needs no room any more.
        let there = parent
            .open_existing(&part)
            .and_then(|file| Some(file.metadata().ok()?.len()))
            .unwrap_or(0);
        if let Some(free) = parent.free_bytes()
            && total.saturating_sub(there) > free
        {
            return Err(TransferError::NoSpace { size: total, free });
        }
        let key = worker.root.path().join(path).with_file_name(&part);
        if !worker.uploading.take(&key, LETTING_GO) {
            return Err(TransferError::Busy {
                path: path.to_owned(),
            });
        }
        let place = Self {
            worker,
            parent,
            part,
            path: path.to_owned(),
            key,
            leftover,
            published: std::cell::Cell::new(false),
        };
        worker.partials().note(leftover, &place.part, &place.path)?;
        Ok(place)
    }

    /// What is left of an earlier attempt, or a new file.
    fn open_part(&self, total: u64) -> Result<(File, u64, String), TransferError> {
        if let Some(mut file) = self.parent.open_existing(&self.part) {
            let len = file.metadata()?.len();
            if len <= total {
                let hash = hash_prefix(&mut file, len)?;
                return Ok((file, len, hash));
            }
            self.parent.remove(&self.part)?;
        }
        let mut file = self.parent.create_new(&self.part)?;
        let hash = hash_prefix(&mut file, 0)?;
        Ok((file, 0, hash))
    }

    fn publish(
        &self,
        file: &File,
        mode: Option<u32>,
        modified: Option<SystemTime>,
    ) -> Result<(), TransferError> {
        let mode = mode.or_else(|| self.former_mode()).unwrap_or(DEFAULT_MODE);
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        if let Some(modified) = modified {
            file.set_times(FileTimes::new().set_modified(modified))?;
        }
        self.parent.publish(&self.part)?;
        self.published.set(true);
        Ok(())
    }

    /// A file that is replaced keeps its permissions.
    fn former_mode(&self) -> Option<u32> {
        let former = self.parent.open_existing(self.parent.name())?;
        Some(former.metadata().ok()?.permissions().mode())
    }
}

impl Drop for Destination<'_> {
    fn drop(&mut self) {
        let gone = self.published.get()
            || (self.leftover == Leftover::Useless && self.parent.remove(&self.part).is_ok());
        // Else the note stays, and with it the next sweep's chance to remove what is left.
        if gone {
            self.worker.partials().clear(&self.part, &self.path);
        }
        self.worker.uploading.give_back(&self.key);
    }
}

/// The BLAKE3 of a file's first `len` bytes, and the file positioned after them.
pub(crate) fn hash_prefix(file: &mut File, len: u64) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut left = len;
    while left > 0 {
        let want = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let got = file.read(&mut buffer[..want])?;
        if got == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        hasher.update(&buffer[..got]);
        left -= got as u64;
    }
    Ok(hasher.finalize().to_hex().to_string())
}

fn part_name(of: &str) -> OsString {
    format!(".quintet-{}.part", file_safe(of)).into()
}

fn is_same(one: &Metadata, other: &Metadata) -> bool {
    (one.dev(), one.ino()) == (other.dev(), other.ino())
}
