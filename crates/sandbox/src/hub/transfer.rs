//! Files.

use std::fs::File;
use std::io::SeekFrom;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use quintet_framing::spare::Spare;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncSeek, AsyncSeekExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::conn::{Conn, HubStream, StreamEvent, V1Route};
use super::observer::{Direction, HubEvent, Receipt};
use super::{Hub, Inner, RequestError, failure};
use crate::mtime;
use crate::proto::frame::{
    Body, FailureCode, HEADER, KEPT_PIECES, MAX_PIECE, Open, Opened, Outcome,
};
use crate::proto::{CHUNK, HubToWorker, Protocol, WorkerToHub};

/// How much of a download may be on its way.
pub(super) const WINDOW: u32 = 4 * 1024 * 1024;

/// Reads ahead of an upload, so that the file system is asked seldom.
const READ_AHEAD: usize = 512 * 1024;

/// Pieces of a download that may wait for the disk.
const WRITE_BEHIND: usize = 8;

/// Attempts at one transfer, each of which must have moved bytes or found its worker back.
const ATTEMPTS: usize = 10;

/// A file to send.
#[derive(Debug, Clone)]
pub struct UploadRequest {
    /// Where to, beneath the worker's root.
    pub path: String,
    /// Its length. The source must have as much.
    pub size: u64,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Time of change; v2 only.
    pub modified: Option<SystemTime>,
}

/// What the caller has of a file from an earlier attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Have {
    /// How many of its first bytes.
    pub bytes: u64,
    /// Their BLAKE3 in hex.
    pub blake3: String,
}

/// A file on a worker, as far as its version of the protocol tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteFile {
    /// Its length; v2 only.
    pub size: Option<u64>,
    /// Permission bits; v2 only.
    pub mode: Option<u32>,
    /// Time of change; v2 only.
    pub modified: Option<SystemTime>,
    /// Where the bytes that follow belong: what the caller had, or 0.
    pub offset: u64,
}

impl Hub {
    /// Sends a file. Under v2 it continues what an earlier attempt left on the worker, when those
    /// bytes are the same, and goes on by itself when the connection is lost and comes back.
    ///
    /// `progress` is told how many bytes of the file are on the worker.
    pub async fn upload(
        &self,
        worker: &str,
        request: &UploadRequest,
        source: &mut (impl AsyncRead + AsyncSeek + Unpin),
        mut progress: impl FnMut(u64),
    ) -> Result<(), RequestError> {
        let conn = self.inner.online(worker)?;
        let mut audit = Audit::start(self, worker, Direction::Upload, &request.path);
        let mut source = BufReader::with_capacity(READ_AHEAD, source);
        let sent = &mut audit.bytes;
        let result = match conn.protocol() {
            Protocol::V1 => {
                self.upload_v1(&conn, worker, request, &mut source, &mut progress, sent)
                    .await
            }
            Protocol::V2 => {
                self.upload_with_retries(conn, worker, request, &mut source, &mut progress, sent)
                    .await
            }
        };
        audit.end(&result);
        audit.recorded().await?;
        result
    }

    /// Sends nothing but asks for a file; its bytes come from the handle.
    pub async fn download(
        &self,
        worker: &str,
        path: &str,
        have: Option<Have>,
    ) -> Result<DownloadHandle, RequestError> {
        let conn = self.inner.online(worker)?;
        let audit = Audit::start(self, worker, Direction::Download, path);
        self.start_download(conn, worker, path, have, audit).await
    }

    /// Receives a file into `target`, which may hold the beginning of it from an earlier attempt;
    /// under v2 that is not sent again when it is the same. Goes on by itself when the connection
    /// is lost and comes back. Returns what is known of the file.
    ///
    /// `progress` is told how many bytes of the file are in `target`.
    pub async fn download_to(
        &self,
        worker: &str,
        path: &str,
        target: &mut tokio::fs::File,
        mut progress: impl FnMut(u64),
    ) -> Result<RemoteFile, RequestError> {
        let local = |error: std::io::Error| RequestError::Local(error.to_string());
        let mut conn = self.inner.online(worker)?;
        for _ in 0..ATTEMPTS {
            let have = hash_of(target).await.map_err(local)?;
            let registration = conn.registration();
            let audit = Audit::start(self, worker, Direction::Download, path);
            let started = self.start_download(conn, worker, path, have, audit).await;
            let result = match started {
                Ok(mut download) => receive(&mut download, target, &mut progress)
                    .await
                    .map(|()| download.file.clone()),
                Err(error) => Err(error),
            };
            match result {
                Err(RequestError::Lost { .. }) => {
                    conn = self.inner.returned(worker, registration).await?;
                }
                result => return result,
            }
        }
        Err(self.inner.lost(worker))
    }

    async fn upload_with_retries(
        &self,
        mut conn: Conn,
        worker: &str,
        request: &UploadRequest,
        source: &mut BufReader<impl AsyncRead + AsyncSeek + Unpin>,
        progress: &mut impl FnMut(u64),
        sent: &mut u64,
    ) -> Result<(), RequestError> {
        for _ in 0..ATTEMPTS {
            let registration = conn.registration();
            let attempt = upload_v2(&self.inner, conn, worker, request, source, progress, sent);
            match attempt.await {
                Err(RequestError::Lost { .. }) => {}
                result => return result,
            }
            conn = self.inner.returned(worker, registration).await?;
        }
        Err(self.inner.lost(worker))
    }

    async fn upload_v1(
        &self,
        conn: &Conn,
        worker: &str,
        request: &UploadRequest,
        source: &mut BufReader<impl AsyncRead + AsyncSeek + Unpin>,
        progress: &mut impl FnMut(u64),
        sent: &mut u64,
    ) -> Result<(), RequestError> {
        let lost = |_| self.inner.lost(worker);
        let id = uuid::Uuid::now_v7().to_string();
        let mut route = conn.request(&id).map_err(lost)?;
        let start = HubToWorker::FileUploadStart {
            id: id.clone(),
            path: request.path.clone(),
            total_size: i64::try_from(request.size).unwrap_or(i64::MAX),
            mode: request.mode,
        };
        conn.send(&start).await.map_err(lost)?;
        let mut offset = 0;
        while offset < request.size {
            let data = read_part(source, request.size - offset, CHUNK, 0, Vec::new()).await?;
            let len = data.len() as u64;
            let chunk = HubToWorker::FileUploadChunk {
                id: id.clone(),
                data: data.into(),
                offset: i64::try_from(offset).unwrap_or(i64::MAX),
            };
            conn.send(&chunk).await.map_err(lost)?;
            offset += len;
            *sent = offset;
            progress(offset);
            // An early answer is a refusal; the rest need not be sent.
            if let Ok(answer) = route.answers.try_recv() {
                return upload_answer(answer);
            }
        }
        let waited = self.inner.settings.patience;
        match tokio::time::timeout(waited, route.answers.recv()).await {
            Ok(Some(answer)) => upload_answer(answer),
            Ok(None) => Err(lost(super::conn::Gone)),
            Err(_) => Err(RequestError::NoAnswer {
                worker: worker.to_owned(),
                waited,
            }),
        }
    }

    async fn start_download(
        &self,
        conn: Conn,
        worker: &str,
        path: &str,
        have: Option<Have>,
        mut audit: Audit,
    ) -> Result<DownloadHandle, RequestError> {
        let lost = || self.inner.lost(worker);
        let (source, file) = match conn.protocol() {
            Protocol::V1 => {
                let id = uuid::Uuid::now_v7().to_string();
                let route = conn.request(&id).map_err(|_| lost())?;
                let start = HubToWorker::FileDownloadStart {
                    id,
                    path: path.to_owned(),
                };
                conn.send(&start).await.map_err(|_| lost())?;
                (Source::V1 { route, offset: 0 }, RemoteFile::default())
            }
            Protocol::V2 => {
                let (offset, blake3) = match have {
                    Some(have) => (have.bytes, Some(have.blake3)),
                    None => (0, None),
                };
                let open = Open::Download {
                    path: path.to_owned(),
                    offset,
                    blake3,
                };
                let mut stream = conn.open(open, WINDOW).await.map_err(|_| lost())?;
                // It compares what is here with its own file first.
                let opened = match self.inner.answered(worker, stream.next(), offset).await {
                    Ok(StreamEvent::Opened(opened)) if [0, offset].contains(&opened.offset) => {
                        Ok(opened)
                    }
                    Ok(StreamEvent::Opened(_)) => Err(protocol(
                        "the worker goes on where nothing ends that is here",
                    )),
                    Ok(StreamEvent::End(end)) => Err(failure(end.outcome)),
                    Ok(StreamEvent::Out(_) | StreamEvent::Err(_)) => {
                        Err(protocol("bytes came before the file was opened"))
                    }
                    Err(lost @ RequestError::Lost { .. }) => return Err(lost),
                    Err(error) => Err(error),
                };
                match opened {
                    Ok(opened) => (Source::V2(stream), remote_file(&opened)),
                    Err(error) => {
                        stream.urgent(Body::Cancel);
                        audit.end(&Err(error.clone()));
                        audit.recorded().await?;
                        return Err(error);
                    }
                }
            }
        };
        Ok(DownloadHandle {
            worker: worker.to_owned(),
            patience: self.inner.settings.patience,
            left: file.size.map(|size| size.saturating_sub(file.offset)),
            file,
            source,
            audit,
            ending: None,
        })
    }
}

async fn upload_v2(
    hub: &Inner,
    conn: Conn,
    worker: &str,
    request: &UploadRequest,
    source: &mut BufReader<impl AsyncRead + AsyncSeek + Unpin>,
    progress: &mut impl FnMut(u64),
    sent: &mut u64,
) -> Result<(), RequestError> {
    let lost = || RequestError::Lost {
        worker: worker.to_owned(),
    };
    let (mtime_ms, mtime_ns) = request.modified.map(mtime::split).unzip();
    let open = Open::Upload {
        path: request.path.clone(),
        total_size: request.size,
        mode: request.mode,
        mtime_ms,
        mtime_ns,
    };
    let mut stream = Uploading::new(conn.open(open, 0).await.map_err(|_| lost())?);
    // It reads what it has of the file first.
    let opened = match hub.answered(worker, stream.next(), request.size).await? {
        StreamEvent::Opened(opened) => opened,
        StreamEvent::End(end) => return Err(failure(end.outcome)),
        StreamEvent::Out(_) | StreamEvent::Err(_) => return Err(protocol("bytes of an upload")),
    };
    let begin = common_prefix(&opened, request.size, source).await?;
    let sender = stream.stream.sender();
    sender
        .in_turn(Body::Begin(begin))
        .await
        .map_err(|_| lost())?;
    let mut offset = begin;
    progress(offset);
    let spare = Spare::new(KEPT_PIECES, HEADER + MAX_PIECE);
    let waited = hub.settings.patience;
    let no_answer = || RequestError::NoAnswer {
        worker: worker.to_owned(),
        waited,
    };
    let sending = async {
        while offset < request.size {
            let frame = spare.take();
            let mut frame =
                read_part(source, request.size - offset, MAX_PIECE, HEADER, frame).await?;
            frame[..HEADER].copy_from_slice(&sender.frame(0));
            let len = frame.len() - HEADER;
            // A worker that takes nothing for so long never will.
            let taken = tokio::time::timeout(waited, sender.send(spare.lend(frame)));
            taken.await.map_err(|_| no_answer())?.map_err(|_| lost())?;
            offset += len as u64;
            *sent += len as u64;
            progress(offset);
        }
        sender.in_turn(Body::Eof).await.map_err(|_| lost())
    };
    tokio::pin!(sending);
    let mut is_sent = false;
    loop {
        let event = match is_sent {
            // It puts the file on its disk before it says so.
            true => hub.answered(worker, stream.next(), request.size).await?,
            false => tokio::select! {
                result = &mut sending => {
                    result?;
                    is_sent = true;
                    continue;
                }
                // It may end the stream in the middle: disk full, or a path that went away.
                event = stream.next() => event.ok_or_else(lost)?,
            },
        };
        if let StreamEvent::End(end) = event {
            return match end.outcome {
                Outcome::Complete => Ok(()),
                outcome => Err(failure(outcome)),
            };
        }
    }
}

/// A stream that a file goes out on. Dropped before its end, it is given up, so that the worker does
/// not hold the name for what will not come.
struct Uploading {
    stream: HubStream,
    over: bool,
}

impl Uploading {
    fn new(stream: HubStream) -> Self {
        Self {
            stream,
            over: false,
        }
    }

    /// The next event, or `None` when the connection is gone. Cancel safe.
    async fn next(&mut self) -> Option<StreamEvent> {
        let event = self.stream.next().await;
        self.over = matches!(event, Some(StreamEvent::End(_)) | None);
        event
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        if !self.over {
            self.stream.urgent(Body::Cancel);
        }
    }
}

/// Where to begin: after what the worker has, if the source begins with the same bytes.
async fn common_prefix(
    opened: &Opened,
    size: u64,
    source: &mut BufReader<impl AsyncRead + AsyncSeek + Unpin>,
) -> Result<u64, RequestError> {
    let local = |error: std::io::Error| RequestError::Local(error.to_string());
    source.seek(SeekFrom::Start(0)).await.map_err(local)?;
    if opened.offset == 0 || opened.offset > size {
        return Ok(0);
    }
    let mut hasher = blake3::Hasher::new();
    let mut left = opened.offset;
    let mut part = Vec::new();
    while left > 0 {
        part = read_part(source, left, READ_AHEAD, 0, part).await?;
        left -= part.len() as u64;
        hasher.update(&part);
    }
    if opened.blake3.as_deref() == Some(hasher.finalize().to_hex().as_str()) {
        return Ok(opened.offset);
    }
    source.seek(SeekFrom::Start(0)).await.map_err(local)?;
    Ok(0)
}

/// Reads the next part of a source into `part`, at most `most` bytes, behind `room` free bytes.
async fn read_part(
    source: &mut (impl AsyncRead + Unpin),
    left: u64,
    most: usize,
    room: usize,
    mut part: Vec<u8>,
) -> Result<Vec<u8>, RequestError> {
    let want = usize::try_from(left).unwrap_or(usize::MAX).min(most);
    part.resize(room + want, 0);
    source
        .read_exact(&mut part[room..])
        .await
        .map_err(|error| RequestError::Local(error.to_string()))?;
    Ok(part)
}

fn upload_answer(answer: WorkerToHub) -> Result<(), RequestError> {
    let error = match answer {
        WorkerToHub::FileUploadComplete { success: true, .. } => return Ok(()),
        WorkerToHub::FileUploadComplete { error, .. } => {
            error.unwrap_or_else(|| "the upload failed".to_owned())
        }
        WorkerToHub::Error(error) => error.message,
        other => format!("the worker answered with {other:?}"),
    };
    Err(RequestError::Failed { code: None, error })
}

async fn hash_of(file: &mut tokio::fs::File) -> std::io::Result<Option<Have>> {
    let bytes = file.metadata().await?.len();
    if bytes == 0 {
        return Ok(None);
    }
    file.seek(SeekFrom::Start(0)).await?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; READ_AHEAD];
    loop {
        let read = file.read(&mut buffer).await?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
    }
    Ok(Some(Have {
        bytes,
        blake3: hasher.finalize().to_hex().to_string(),
    }))
}

async fn receive(
    download: &mut DownloadHandle,
    target: &mut tokio::fs::File,
    progress: &mut impl FnMut(u64),
) -> Result<(), RequestError> {
    let local = |error: std::io::Error| RequestError::Local(error.to_string());
    let begin = download.file.offset;
    target.set_len(begin).await.map_err(local)?;
    let file = target.try_clone().await.map_err(local)?.into_std().await;
    let written = Arc::new(AtomicU64::new(begin));
    progress(begin);
    let (pieces, queue) = mpsc::channel(WRITE_BEHIND);
    let writing = {
        let written = written.clone();
        tokio::task::spawn_blocking(move || write_pieces(&file, queue, &written))
    };
    let result = loop {
        match download.next().await {
            // A writer that has gone says below why it failed.
            Ok(Some(bytes)) => match pieces.send(bytes).await {
                Ok(()) => progress(written.load(Ordering::Relaxed)),
                Err(_) => break Ok(()),
            },
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    drop(pieces);
    // What came before a failure is where the next attempt goes on.
    let end = writing.await.map_err(|error| local(error.into()))?;
    progress(written.load(Ordering::Relaxed));
    end.map_err(local).and(result)
}

/// Writes a download's pieces from the memory that they came in, until there are no more.
fn write_pieces(
    file: &File,
    mut queue: mpsc::Receiver<Bytes>,
    written: &AtomicU64,
) -> std::io::Result<()> {
    let mut at = written.load(Ordering::Relaxed);
    while let Some(bytes) = queue.blocking_recv() {
        file.write_all_at(&bytes, at)?;
        at += bytes.len() as u64;
        written.store(at, Ordering::Relaxed);
    }
    Ok(())
}

fn remote_file(opened: &Opened) -> RemoteFile {
    RemoteFile {
        size: opened.size,
        mode: opened.mode,
        modified: opened
            .mtime_ms
            .and_then(|ms| mtime::join(ms, opened.mtime_ns)),
        offset: opened.offset,
    }
}

pub(super) fn protocol(error: &str) -> RequestError {
    RequestError::Failed {
        code: Some(FailureCode::Protocol),
        error: error.to_owned(),
    }
}

enum Source {
    V1 { route: V1Route, offset: i64 },
    V2(HubStream),
    Over,
}

/// A file that is being received. Dropped before its end, it is given up.
pub struct DownloadHandle {
    worker: String,
    patience: Duration,
    file: RemoteFile,
    /// Bytes that are still to come, where the worker has said how many there are.
    left: Option<u64>,
    source: Source,
    audit: Audit,
    /// What the last bytes were, which wait for the row of the end.
    ending: Option<Result<Option<Bytes>, RequestError>>,
}

impl DownloadHandle {
    /// What is known of the file.
    pub fn file(&self) -> &RemoteFile {
        &self.file
    }

    /// The next bytes, or `None` when the file is whole. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, RequestError> {
        if self.ending.is_none() {
            let next = self.advance().await;
            if !matches!(self.source, Source::Over) {
                return next;
            }
            self.ending = Some(next);
        }
        self.audit.recorded().await?;
        self.ending.take().unwrap_or(Ok(None))
    }

    async fn advance(&mut self) -> Result<Option<Bytes>, RequestError> {
        let result = match &mut self.source {
            Source::V1 { route, offset } => {
                match tokio::time::timeout(self.patience, route.answers.recv()).await {
                    Ok(Some(message)) => v1_chunk(message, offset),
                    Ok(None) => Err(self.audit.hub.inner.lost(&self.worker)),
                    Err(_) => Err(RequestError::NoAnswer {
                        worker: self.worker.clone(),
                        waited: self.patience,
                    }),
                }
            }
            Source::V2(stream) => loop {
                let inner = &self.audit.hub.inner;
                let event = inner.answered(&self.worker, stream.next(), 0).await;
                match event {
                    Ok(StreamEvent::Out(bytes)) => {
                        // No more of this machine's disk than was announced, whoever sends.
                        match self.left.map(|left| left.checked_sub(bytes.len() as u64)) {
                            Some(None) => {
                                stream.urgent(Body::Cancel);
                                break Err(protocol("the file is longer than the worker said"));
                            }
                            Some(left) => self.left = left,
                            None => {}
                        }
                        stream.taken(bytes.len()).await;
                        break Ok((bytes, false));
                    }
                    Ok(StreamEvent::End(end)) => {
                        break match end.outcome {
                            Outcome::Complete if self.left.is_some_and(|left| left > 0) => {
                                Err(protocol("the file is shorter than the worker said"))
                            }
                            Outcome::Complete => Ok((Bytes::new(), true)),
                            outcome => Err(failure(outcome)),
                        };
                    }
                    Ok(StreamEvent::Opened(_) | StreamEvent::Err(_)) => {}
                    Err(error) => {
                        stream.urgent(Body::Cancel);
                        break Err(error);
                    }
                }
            },
            Source::Over => return Ok(None),
        };
        match result {
            Ok((bytes, last)) => {
                self.audit.bytes += bytes.len() as u64;
                if last {
                    self.finish(&Ok(()));
                }
                Ok((!bytes.is_empty()).then_some(bytes))
            }
            Err(error) => {
                self.finish(&Err(error.clone()));
                Err(error)
            }
        }
    }

    fn finish(&mut self, result: &Result<(), RequestError>) {
        self.source = Source::Over;
        self.audit.end(result);
    }
}

/// A chunk and whether it is the last. Empty chunks that are not are skipped by the caller's loop.
fn v1_chunk(message: WorkerToHub, expected: &mut i64) -> Result<(Bytes, bool), RequestError> {
    match message {
        WorkerToHub::FileDownloadChunk {
            data,
            offset,
            is_last,
            ..
        } => {
            if offset != *expected {
                return Err(protocol(&format!(
                    "a chunk at {offset} where {expected} was next"
                )));
            }
            *expected = expected.saturating_add(i64::try_from(data.len()).unwrap_or(i64::MAX));
            if data.is_empty() && !is_last {
                return Err(protocol("an empty chunk that is not the last"));
            }
            Ok((data, is_last))
        }
        WorkerToHub::FileDownloadError { error, .. } => {
            Err(RequestError::Failed { code: None, error })
        }
        WorkerToHub::Error(error) => Err(RequestError::Failed {
            code: None,
            error: error.message,
        }),
        other => Err(protocol(&format!("the worker answered with {other:?}"))),
    }
}

impl Drop for DownloadHandle {
    fn drop(&mut self) {
        if let Source::V2(stream) = &self.source {
            stream.urgent(Body::Cancel);
        }
    }
}

/// A transfer's rows in the audit.
struct Audit {
    hub: Hub,
    worker: String,
    direction: Direction,
    path: String,
    started: Instant,
    /// Bytes that went over the wire so far.
    bytes: u64,
    /// Of the start, then of the end: a transfer is told when both have come.
    receipts: [Receipt; 2],
    ended: bool,
}

impl Audit {
    fn start(hub: &Hub, worker: &str, direction: Direction, path: &str) -> Self {
        let receipt = hub.inner.observe(HubEvent::TransferStarted {
            worker: worker.to_owned(),
            direction,
            path: path.to_owned(),
        });
        Self {
            hub: hub.clone(),
            worker: worker.to_owned(),
            direction,
            path: path.to_owned(),
            started: Instant::now(),
            bytes: 0,
            receipts: [receipt, Receipt::given()],
            ended: false,
        }
    }

    fn end(&mut self, result: &Result<(), RequestError>) {
        let result = match result {
            Ok(()) => "complete".to_owned(),
            Err(error) => error.to_string(),
        };
        self.observe(result);
    }

    /// Waits for what was written so far. Cancel safe.
    async fn recorded(&mut self) -> Result<(), RequestError> {
        for receipt in &mut self.receipts {
            receipt.come().await?;
        }
        Ok(())
    }

    fn observe(&mut self, result: String) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.receipts[1] = self.hub.inner.observe(HubEvent::TransferEnded {
            worker: self.worker.clone(),
            direction: self.direction,
            path: self.path.clone(),
            bytes: self.bytes,
            result,
            duration: self.started.elapsed(),
        });
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        self.observe("given up".to_owned());
    }
}
