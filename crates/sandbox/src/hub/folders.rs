//! Folders: made, looked at and listed.

use std::time::SystemTime;

use bytes::BytesMut;

use super::conn::StreamEvent;
use super::transfer::{WINDOW, protocol};
use super::{Hub, RequestError, failure};
use crate::mtime;
use crate::proto::frame::{Body, Entry, OPEN_FOLDER, Open, Outcome};

/// A line of a listing has at most so many bytes: a path has 4 KiB, each of which JSON may write as
/// six.
const MAX_LINE: usize = 64 << 10;

/// A whole listing, about a million and a half files. It is in memory until it ends, and how long it
/// is only the worker's word.
const MAX_LISTING: usize = 256 << 20;

/// A folder to make, or to change.
#[derive(Debug, Clone, Default)]
pub struct FolderRequest {
    /// Where, beneath the worker's root.
    pub path: String,
    /// Permission bits that it gets; absent leaves them as they are.
    pub mode: Option<u32>,
    /// Time of change that it gets.
    pub modified: Option<SystemTime>,
}

impl Hub {
    /// Makes a folder and what is missing above it, or changes the one that is there. Only v2, and
    /// there only workers that know it; the others answer [`RequestError::NeedsV2`].
    pub async fn make_folder(
        &self,
        worker: &str,
        request: &FolderRequest,
    ) -> Result<(), RequestError> {
        const WHAT: &str = "make folders";
        let conn = self.inner.online_v2(worker, WHAT)?;
        if !self.inner.registry().knows(worker, OPEN_FOLDER) {
            return Err(RequestError::NeedsV2 {
                worker: worker.to_owned(),
                what: WHAT,
            });
        }
        let lost = || self.inner.lost(worker);
        let (mtime_ms, mtime_ns) = request.modified.map(mtime::split).unzip();
        let open = Open::Folder {
            path: request.path.clone(),
            mode: request.mode,
            mtime_ms,
            mtime_ns,
        };
        let mut stream = conn.open(open, 0).await.map_err(|_| lost())?;
        loop {
            match self.inner.answered(worker, stream.next(), 0).await? {
                StreamEvent::End(end) => match end.outcome {
                    Outcome::Complete => return Ok(()),
                    outcome => return Err(failure(outcome)),
                },
                StreamEvent::Opened(_) | StreamEvent::Out(_) | StreamEvent::Err(_) => {}
            }
        }
    }

    /// What is at a path of the worker's; v2 only.
    pub async fn look(&self, worker: &str, path: &str) -> Result<Entry, RequestError> {
        let mut first = Vec::new();
        self.list_until(worker, path, &mut first, |entries| !entries.is_empty())
            .await?;
        first
            .pop()
            .ok_or_else(|| protocol("the worker listed nothing"))
    }

    /// What is at and beneath a path of the worker's, folders before their content; v2 only.
    pub async fn list(&self, worker: &str, path: &str) -> Result<Vec<Entry>, RequestError> {
        let mut entries = Vec::new();
        self.list_until(worker, path, &mut entries, |_| false)
            .await?;
        Ok(entries)
    }

    async fn list_until(
        &self,
        worker: &str,
        path: &str,
        entries: &mut Vec<Entry>,
        enough: impl Fn(&[Entry]) -> bool,
    ) -> Result<(), RequestError> {
        let conn = self.inner.online_v2(worker, "list files")?;
        let lost = || self.inner.lost(worker);
        let open = Open::List {
            path: path.to_owned(),
        };
        let mut stream = conn.open(open, WINDOW).await.map_err(|_| lost())?;
        let mut partial = BytesMut::new();
        let mut received = 0;
        loop {
            let event = self.inner.answered(worker, stream.next(), 0).await;
            let event = event.inspect_err(|_| stream.urgent(Body::Cancel))?;
            match event {
                StreamEvent::Out(bytes) => {
                    stream.taken(bytes.len()).await;
                    received += bytes.len();
                    partial.extend_from_slice(&bytes);
                    while let Some(end) = partial.iter().position(|byte| *byte == b'\n') {
                        let line = partial.split_to(end + 1);
                        let entry = serde_json::from_slice(&line)
                            .map_err(|error| protocol(&error.to_string()))?;
                        entries.push(entry);
                        if enough(entries) {
                            stream.urgent(Body::Cancel);
                            return Ok(());
                        }
                    }
                    if partial.len() > MAX_LINE || received > MAX_LISTING {
                        stream.urgent(Body::Cancel);
                        return Err(protocol("the worker's listing has no end"));
                    }
                }
                StreamEvent::End(end) => match end.outcome {
                    Outcome::Complete => return Ok(()),
                    outcome => return Err(failure(outcome)),
                },
                StreamEvent::Opened(_) | StreamEvent::Err(_) => {}
            }
        }
    }
}
