//! A download's way into its file.

use std::io::{SeekFrom, Write as _};

use tokio::io::{AsyncSeekExt as _, AsyncWriteExt as _, BufWriter};
use tokio::sync::watch;

use super::{DownloadHandle, Source};
use crate::hub::conn::{HubStream, StreamEvent};
use crate::hub::{RequestError, failure};
use crate::proto::frame::Outcome;

/// Gathers a download without a thread of its own, so that the file system is asked seldom.
const WRITE_BEHIND: usize = 512 * 1024;

/// How much of a v2 download arrives before its progress is told again.
const TELL_EVERY: u64 = 256 * 1024;

/// Receives into `target`, from where the download begins.
pub(super) async fn receive(
    download: &mut DownloadHandle,
    target: &mut tokio::fs::File,
    progress: &mut impl FnMut(u64),
) -> Result<(), RequestError> {
    let local = |error: std::io::Error| RequestError::Local(error.to_string());
    let mut at = download.file.offset;
    target.set_len(at).await.map_err(local)?;
    target.seek(SeekFrom::Start(at)).await.map_err(local)?;
    progress(at);
    let thread = download.audit.hub.inner.writers.clone();
    if let Source::V2(_) = &download.source
        && let Ok(_thread) = thread.try_acquire_owned()
        && let Source::V2(stream) = std::mem::replace(&mut download.source, Source::Over)
    {
        return receive_v2(download, stream, target, progress).await;
    }
    // The file system is asked seldom: each time costs a change of threads.
    let mut target = BufWriter::with_capacity(WRITE_BEHIND, target);
    let result = loop {
        match download.next().await {
            Ok(Some(bytes)) => {
                target.write_all(&bytes).await.map_err(local)?;
                at += bytes.len() as u64;
                progress(at);
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // What came before a failure is where the next attempt goes on.
    target.flush().await.map_err(local)?;
    result
}

/// Receives on a thread that stays with the file and writes what comes as it came: on its way from
/// the network it passes no other task, and nobody copies it.
async fn receive_v2(
    download: &mut DownloadHandle,
    stream: HubStream,
    target: &tokio::fs::File,
    progress: &mut impl FnMut(u64),
) -> Result<(), RequestError> {
    let local = |error: &dyn std::fmt::Display| RequestError::Local(error.to_string());
    let begin = download.file.offset;
    // Dropped with this future, it ends the thread.
    let stopper = stream.stopper();
    let file = target.try_clone().await.map_err(|error| local(&error))?;
    let file = file.into_std().await;
    let (tell, mut told) = watch::channel(begin);
    let worker = download.worker.clone();
    let mut writing = tokio::task::spawn_blocking(move || write_down(stream, file, &worker, &tell));
    let result = loop {
        tokio::select! {
            ended = &mut writing => {
                break ended.unwrap_or_else(|error| Err(local(&error)));
            }
            Ok(()) = told.changed() => progress(*told.borrow_and_update()),
        }
    };
    let at = *told.borrow();
    progress(at);
    download.audit.bytes += at.saturating_sub(begin);
    if !matches!(result, Err(RequestError::Local(_))) {
        stopper.let_go();
    }
    download.finish(&result);
    download.audit.recorded().await?;
    result
}

/// Writes a download to its end; what came before a failure is where the next attempt goes on.
fn write_down(
    mut stream: HubStream,
    mut file: std::fs::File,
    worker: &str,
    tell: &watch::Sender<u64>,
) -> Result<(), RequestError> {
    let mut at = *tell.borrow();
    let mut told = at;
    let result = loop {
        match stream.blocking_next() {
            Some(StreamEvent::Out(bytes)) => {
                if let Err(error) = file.write_all(&bytes) {
                    break Err(RequestError::Local(error.to_string()));
                }
                at += bytes.len() as u64;
                stream.blocking_taken(bytes.len());
                if at - told >= TELL_EVERY {
                    told = at;
                    tell.send_replace(at);
                }
            }
            Some(StreamEvent::End(end)) => {
                break match end.outcome {
                    Outcome::Complete => Ok(()),
                    outcome => Err(failure(outcome)),
                };
            }
            Some(StreamEvent::Opened(_) | StreamEvent::Err(_)) => {}
            None => {
                break Err(RequestError::Lost {
                    worker: worker.to_owned(),
                });
            }
        }
    };
    tell.send_replace(at);
    result
}
