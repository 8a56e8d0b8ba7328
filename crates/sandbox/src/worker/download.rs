//! Files and listings that the hub asks for.
//!
//! A file is what it was when it was opened: one that is replaced is sent as it was, one that
//! grows is sent up to the length it had, one that becomes shorter is an error.

use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use quintet_framing::spare::Spare;
use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, Dir, FileType};
use rustix::io::Errno;

use super::state::WorkerState;
use super::transfer::{TransferError, TransferStream};
use super::upload::hash_prefix;
use crate::lanes::Link;
use crate::paths::PathError;
use crate::proto::frame::{
    Body, Entry, EntryKind, FrameKind, HEADER, KEPT_PIECES, LeftOut, MAX_DATA, MAX_PIECE, Opened,
    StreamId, header,
};
use crate::proto::{CHUNK, Dialect, WorkerToHub};
use crate::socket::WsMessage;

impl WorkerState {
    pub(crate) fn start_v1_download(
        self: &Arc<Self>,
        id: String,
        path: String,
        link: Link,
        dialect: Dialect,
    ) {
        let worker = self.clone();
        self.tasks.spawn_blocking(move || {
            let send = |message: &WorkerToHub| {
                link.bulk
                    .blocking_send(WsMessage::Text(message.encode(dialect)))
                    .map_err(|_| TransferError::Lost)
            };
            let result = worker
                .transfer_permit()
                .and_then(|_permit| worker.send_v1(&id, &path, send));
            if let Err(error) = result {
                // A lost connection has nobody to tell.
                let _ = send(&WorkerToHub::FileDownloadError {
                    id: id.clone(),
                    error: error.to_string(),
                });
            }
        });
    }

    fn send_v1(
        &self,
        id: &str,
        path: &str,
        send: impl Fn(&WorkerToHub) -> Result<(), TransferError>,
    ) -> Result<(), TransferError> {
        let mut file = self.root.read(path)?;
        let size = file.metadata()?.len();
        let mut offset = 0;
        loop {
            let want = chunk_len(size - offset, CHUNK);
            let mut data = BytesMut::zeroed(want);
            read_whole(&mut file, &mut data, path)?;
            let next = offset + want as u64;
            // An empty file is one empty chunk: silence would leave the hub waiting.
            send(&WorkerToHub::FileDownloadChunk {
                id: id.to_owned(),
                data: data.freeze(),
                offset: i64::try_from(offset).unwrap_or(i64::MAX),
                is_last: next == size,
            })?;
            if next == size {
                return Ok(());
            }
            offset = next;
        }
    }

    pub(crate) fn send_v2(
        &self,
        path: &str,
        offset: u64,
        blake3: Option<&str>,
        stream: &mut TransferStream,
    ) -> Result<(), TransferError> {
        let mut file = self.root.read(path)?;
        let metadata = file.metadata()?;
        let size = metadata.len();
        let matches = offset > 0
            && offset <= size
            && blake3.is_some_and(|expected| {
                hash_prefix(&mut file, offset).is_ok_and(|hash| hash == expected)
            });
        let mut at = if matches { offset } else { 0 };
        stream.frame(Body::Opened(Opened {
            offset: at,
            size: Some(size),
            mode: Some(metadata.permissions().mode() & 0o7777),
            mtime_ms: Some(mtime_ms(&metadata)),
            mtime_ns: Some(below_milli(metadata.mtime_nsec())),
            ..Opened::default()
        }))?;
        let spare = Spare::new(KEPT_PIECES, HEADER + MAX_PIECE);
        while at < size {
            let want = chunk_len(size - at, MAX_PIECE);
            stream.send_data(read_frame(&spare, &file, at, want, stream.id(), path)?)?;
            at += want as u64;
        }
        Ok(())
    }

    /// Sends what is at and beneath `path`, one JSON object a line, folders before their content.
    pub(crate) fn list(
        &self,
        path: &str,
        stream: &mut TransferStream,
    ) -> Result<(), TransferError> {
        let mut lines = Lines {
            stream,
            frame: BytesMut::new(),
            folders: Vec::new(),
        };
        let top = File::from(self.root.look(path)?);
        let metadata = top.metadata()?;
        lines.push(&Entry {
            path: String::new(),
            kind: kind_of(FileType::from_raw_mode(metadata.mode())),
            size: metadata.len(),
            mode: metadata.permissions().mode() & 0o7777,
            mtime_ms: mtime_ms(&metadata),
            mtime_ns: below_milli(metadata.mtime_nsec()),
            left_out: None,
        })?;
        if metadata.is_dir() {
            lines.folder("", &self.root.folder(path)?)?;
        }
        while let Some(name) = lines.folders.pop() {
            // By its name from the root again: a deep tree must not take a descriptor a folder.
            let listed = match self.root.folder(&format!("{path}/{name}")) {
                Ok(folder) => lines.folder(&name, &folder),
                Err(error) => Err(error.into()),
            };
            match listed {
                Ok(()) => {}
                Err(TransferError::Path(PathError::Io { source, .. })) => {
                    lines.unreadable(name, &source)?;
                }
                Err(TransferError::Io(error)) => lines.unreadable(name, &error)?,
                Err(error) => return Err(error),
            }
        }
        lines.finish()
    }
}

/// Lines gathered into frames.
struct Lines<'a> {
    stream: &'a mut TransferStream,
    frame: BytesMut,
    /// Folders whose content is not listed yet, relative to the listed path.
    folders: Vec<String>,
}

impl Lines<'_> {
    /// Lists what is in `folder`, which is called `prefix`.
    fn folder(&mut self, prefix: &str, folder: &OwnedFd) -> Result<(), TransferError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(folder).map_err(io::Error::from)? {
            names.push(entry.map_err(io::Error::from)?.file_name().to_owned());
        }
        names.retain(|name| !matches!(name.to_bytes(), b"." | b".."));
        names.sort();
        let first = self.folders.len();
        for name in names {
            let stat = match rustix::fs::statat(folder, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Removed since the folder was read.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(io::Error::from(errno).into()),
            };
            let path = match prefix {
                "" => name.to_string_lossy().into_owned(),
                prefix => format!("{prefix}/{}", name.to_string_lossy()),
            };
            let left_out = name.to_str().is_err().then_some(LeftOut::Name);
            let kind = match left_out {
                Some(_) => EntryKind::Other,
                None => kind_of(FileType::from_raw_mode(stat.st_mode)),
            };
            self.push(&Entry {
                path: path.clone(),
                kind,
                size: u64::try_from(stat.st_size).unwrap_or(0),
                mode: stat.st_mode & 0o7777,
                mtime_ms: stat
                    .st_mtime
                    .saturating_mul(1000)
                    .saturating_add(i64::try_from(stat.st_mtime_nsec / 1_000_000).unwrap_or(0)),
                mtime_ns: below_milli(i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
                left_out,
            })?;
            if kind == EntryKind::Folder {
                self.folders.push(path);
            }
        }
        // The last is taken first.
        self.folders[first..].reverse();
        Ok(())
    }

    /// Lists that a folder's content is missing.
    fn unreadable(&mut self, path: String, error: &io::Error) -> Result<(), TransferError> {
        if error.kind() == io::ErrorKind::NotFound {
            // Removed since it was listed.
            return Ok(());
        }
        self.push(&Entry {
            path,
            kind: EntryKind::Other,
            size: 0,
            mode: 0,
            mtime_ms: 0,
            mtime_ns: 0,
            left_out: Some(LeftOut::Unreadable(error.to_string())),
        })
    }

    fn push(&mut self, entry: &Entry) -> Result<(), TransferError> {
        let mut line = serde_json::to_vec(entry).map_err(io::Error::from)?;
        line.push(b'\n');
        if self.frame.len() + line.len() > MAX_DATA {
            self.finish()?;
        }
        if self.frame.is_empty() {
            self.frame = header(FrameKind::Out, self.stream.id(), MAX_DATA);
        }
        self.frame.extend_from_slice(&line);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), TransferError> {
        if self.frame.is_empty() {
            return Ok(());
        }
        let frame = std::mem::take(&mut self.frame);
        self.stream.send_data(frame.freeze())
    }
}

fn kind_of(file_type: FileType) -> EntryKind {
    match file_type {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Folder,
        FileType::Symlink => EntryKind::Link,
        _ => EntryKind::Other,
    }
}

fn mtime_ms(metadata: &Metadata) -> i64 {
    metadata
        .mtime()
        .saturating_mul(1000)
        .saturating_add(metadata.mtime_nsec() / 1_000_000)
}

/// The nanoseconds of a second that are beyond its milliseconds.
fn below_milli(nanos: i64) -> u32 {
    u32::try_from(nanos % 1_000_000).unwrap_or(0)
}

fn chunk_len(left: u64, most: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(most)
}

fn read_whole(file: &mut File, buffer: &mut [u8], path: &str) -> Result<(), TransferError> {
    file.read_exact(buffer).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => TransferError::Shrunk {
            path: path.to_owned(),
        },
        _ => error.into(),
    })
}

/// The frame of `want` bytes of a file, read behind its header into memory that was not cleared.
fn read_frame(
    spare: &Arc<Spare>,
    file: &File,
    at: u64,
    want: usize,
    stream: StreamId,
    path: &str,
) -> Result<Bytes, TransferError> {
    let len = HEADER + want;
    let mut frame = spare.take();
    frame.clear();
    frame.reserve_exact(len);
    frame.extend_from_slice(&header(FrameKind::Out, stream, 0));
    while frame.len() < len {
        let offset = at + (frame.len() - HEADER) as u64;
        match rustix::io::pread(file, spare_capacity(&mut frame), offset) {
            Ok(0) => {
                return Err(TransferError::Shrunk {
                    path: path.to_owned(),
                });
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
    // The allocator may have given more room than was asked for.
    frame.truncate(len);
    Ok(spare.lend(frame))
}
