//! Shells.

mod start;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use tokio::time::Instant;

use super::conn::{Conn, HubStream, Knowledge, Running, StreamEvent, V1Route};
use super::exec::{outcome, words};
use super::input::{ExecInput, Input};
use super::observer::{HubEvent, Receipt};
use super::{ExecOutcome, Hub, RequestError};
use crate::proto::frame::{Body, FailureCode, INITIAL_CREDIT, MAX_DATA, Mirror, Open, Outcome};
use crate::proto::{HubToWorker, WorkerToHub};

/// How much output of a shell may be on its way.
const WINDOW: u32 = 2 * INITIAL_CREDIT;

/// A terminal's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminalSize {
    /// Lines.
    pub rows: u16,
    /// Columns.
    pub cols: u16,
}

impl From<TerminalSize> for Body {
    fn from(TerminalSize { rows, cols }: TerminalSize) -> Self {
        Self::Resize { rows, cols }
    }
}

/// What comes from a shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShellEvent {
    /// What it printed.
    Output(Bytes),
    /// The end; nothing follows.
    Ended(ExecOutcome),
}

/// Where a shell starts.
#[derive(Debug, Clone, Default)]
pub enum ShellPlace {
    /// In the worker's root.
    #[default]
    Root,
    /// In a folder of the worker's machine; v2 only.
    Folder(String),
    /// In the worker's copy of a workspace, once that is up to date; v2 only.
    Workspace(Mirror),
}

enum Transport {
    V1 {
        route: V1Route,
        first: Option<Box<WorkerToHub>>,
    },
    V2(HubStream),
    /// The end was seen, or the shell was let go.
    Over,
}

/// A shell. Dropped before its end, it is hung up; [`ShellHandle::detach`] leaves it running.
pub struct ShellHandle {
    hub: Hub,
    worker: String,
    id: String,
    transport: Transport,
    input: Way,
    /// What the worker knew of this when it was attached to again.
    known: Option<Knowledge>,
    input_came: u64,
    seen: u64,
    dropped: u64,
    started: Instant,
    /// Of the row of the audit that was written last.
    receipt: Receipt,
    ended: bool,
    /// The end, which waits for its row.
    ending: Option<Result<ShellEvent, RequestError>>,
    running: Running,
}

/// The way that input takes.
#[derive(Debug)]
enum Way {
    V1 { conn: Conn, over: Arc<AtomicBool> },
    V2(Input),
}

impl ShellHandle {
    fn new(hub: &Hub, worker: &str, id: String, transport: Transport, running: Running) -> Self {
        let receipt = hub.inner.observe(HubEvent::ShellStarted {
            worker: worker.to_owned(),
            job: id.clone(),
        });
        let input = match &transport {
            Transport::V1 { route, .. } => Way::V1 {
                conn: route.conn.clone(),
                over: Arc::default(),
            },
            Transport::V2(stream) => Way::V2(Input::new(worker, Some(stream.sender()))),
            Transport::Over => Way::V2(Input::new(worker, None)),
        };
        Self {
            hub: hub.clone(),
            worker: worker.to_owned(),
            id,
            transport,
            input,
            known: None,
            input_came: 0,
            seen: 0,
            dropped: 0,
            started: Instant::now(),
            receipt,
            ended: false,
            ending: None,
            running,
        }
    }

    /// The job's id, by which [`Hub::attach_shell`] finds it again.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Bytes that its reader never gets: the worker's quota took them before this was attached.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Where typed bytes go; usable beside [`Self::next`].
    pub fn input(&self) -> ShellInput {
        ShellInput(match &self.input {
            Way::V1 { conn, over } => InputWay::V1 {
                worker: self.worker.clone(),
                id: self.id.clone(),
                conn: conn.clone(),
                over: over.clone(),
            },
            Way::V2(input) => InputWay::V2(input.handle()),
        })
    }

    /// Bytes of input that the worker had when this was attached to.
    pub fn input_came(&self) -> u64 {
        self.input_came
    }

    /// The worker has so many bytes of input.
    fn came(&mut self, offset: u64) {
        self.input_came = offset;
        if let Way::V2(input) = &self.input {
            input.attached_at(offset);
        }
    }

    /// The next output, or the end. Cancel safe. Must not be called after [`ShellEvent::Ended`].
    pub async fn next(&mut self) -> Result<ShellEvent, RequestError> {
        if self.ending.is_none() {
            let next = self.advance().await;
            if !matches!(next, Ok(ShellEvent::Ended(_)) | Err(_)) {
                return next;
            }
            self.ending = Some(next);
        }
        self.receipt.come().await?;
        self.ending.take().unwrap_or_else(|| Err(self.lost()))
    }

    async fn advance(&mut self) -> Result<ShellEvent, RequestError> {
        loop {
            match &mut self.transport {
                Transport::V1 { route, first } => {
                    let message = match first.take() {
                        Some(first) => Some(*first),
                        None => route.answers.recv().await,
                    };
                    match message {
                        Some(WorkerToHub::ShellOutput { data, .. }) => {
                            return Ok(ShellEvent::Output(data));
                        }
                        Some(WorkerToHub::ShellExit { exit_code, .. }) => {
                            return self.finish(Ok(ExecOutcome::Exited(exit_code)));
                        }
                        // About one message of ours, such as input that found no room.
                        Some(WorkerToHub::Error(error)) => {
                            tracing::warn!(shell = self.id, message = error.message, "refused");
                        }
                        Some(_) => {}
                        None => return self.finish(Err(self.lost())),
                    }
                }
                Transport::V2(stream) => match stream.next().await {
                    Some(StreamEvent::Out(bytes) | StreamEvent::Err(bytes)) => {
                        self.seen = self.seen.saturating_add(bytes.len() as u64);
                        stream.taken(bytes.len()).await;
                        return Ok(ShellEvent::Output(bytes));
                    }
                    Some(StreamEvent::Opened(opened)) => {
                        // What was on its way in may be lost; it follows before anything new.
                        if let Way::V2(input) = &self.input {
                            input.resume(stream.sender(), opened.offset);
                        }
                        self.seen = self.seen.saturating_add(opened.lost_stdout);
                    }
                    Some(StreamEvent::End(end)) => {
                        stream.urgent(Body::Done);
                        return self.finish(match end.outcome {
                            Outcome::Failed {
                                code: FailureCode::UnknownJob,
                                ..
                            } if self.known == Some(Knowledge::Nothing) => {
                                Err(RequestError::Restarted {
                                    worker: self.worker.clone(),
                                    what: "shell",
                                })
                            }
                            end => outcome(end),
                        });
                    }
                    None => self.reattach().await?,
                },
                Transport::Over => return Err(self.lost()),
            }
        }
    }

    /// Leaves the shell running, to be attached to later; v2 only. Returns its id.
    pub async fn detach(mut self) -> Result<String, RequestError> {
        let Transport::V2(stream) = &self.transport else {
            return Err(RequestError::NeedsV2 {
                worker: self.worker.clone(),
                what: "leave a shell running",
            });
        };
        stream.control(Body::Detach).await;
        self.transport = Transport::Over;
        self.observe_end("detached");
        self.receipt.come().await?;
        Ok(self.id.clone())
    }

    async fn reattach(&mut self) -> Result<(), RequestError> {
        let Transport::V2(lost) = &self.transport else {
            return Err(self.lost());
        };
        if let Way::V2(input) = &self.input {
            input.interrupt();
        }
        let mut registration = lost.registration();
        loop {
            let conn = match self.hub.inner.returned(&self.worker, registration).await {
                Ok(conn) => conn,
                Err(error) => return self.finish(Err(error)).map(drop),
            };
            registration = conn.registration();
            let open = Open::Attach {
                id: self.id.clone(),
                stdout: self.seen,
                stderr: 0,
            };
            // A connection that is gone before this left takes nothing with it.
            if let Ok(stream) = conn.open(open, WINDOW).await {
                self.known = Some(conn.knows_of(lost));
                self.running = stream.count();
                self.transport = Transport::V2(stream);
                return Ok(());
            }
        }
    }

    fn finish(
        &mut self,
        outcome: Result<ExecOutcome, RequestError>,
    ) -> Result<ShellEvent, RequestError> {
        self.transport = Transport::Over;
        self.end_input();
        match outcome {
            Ok(outcome) => {
                self.observe_end(&words(&outcome));
                Ok(ShellEvent::Ended(outcome))
            }
            Err(error) => {
                self.observe_end(&error.to_string());
                Err(error)
            }
        }
    }

    fn end_input(&self) {
        match &self.input {
            Way::V1 { over, .. } => over.store(true, Ordering::Relaxed),
            Way::V2(input) => input.end(),
        }
    }

    fn lost(&self) -> RequestError {
        self.hub.inner.lost(&self.worker)
    }

    fn observe_end(&mut self, result: &str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        self.receipt = self.hub.inner.observe(HubEvent::ShellEnded {
            worker: self.worker.clone(),
            job: self.id.clone(),
            result: result.to_owned(),
            duration: self.started.elapsed(),
        });
    }
}

impl Drop for ShellHandle {
    fn drop(&mut self) {
        match &self.transport {
            Transport::V2(stream) => {
                stream.urgent(Body::Cancel);
                stream.urgent(Body::Done);
            }
            Transport::V1 { route, .. } => route.conn.close_shell(&self.id),
            Transport::Over => {}
        }
        self.end_input();
        self.observe_end("hung up");
    }
}

/// A shell's input.
#[derive(Debug, Clone)]
pub struct ShellInput(InputWay);

#[derive(Debug, Clone)]
enum InputWay {
    V1 {
        worker: String,
        id: String,
        conn: Conn,
        over: Arc<AtomicBool>,
    },
    V2(ExecInput),
}

impl ShellInput {
    /// Types bytes. Under v2 at the pace at which the program reads, and while the connection is
    /// lost this waits; under v1 that is the end of it.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), RequestError> {
        if let InputWay::V2(input) = &self.0 {
            return input.write(bytes).await;
        }
        for part in bytes.chunks(MAX_DATA) {
            let data = Bytes::copy_from_slice(part);
            self.send_v1(|id| HubToWorker::ShellInput { id, data })
                .await?;
        }
        Ok(())
    }

    /// Tells the program that its window has another size; under v2, once the connection is back
    /// where it is lost.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), RequestError> {
        if let InputWay::V2(input) = &self.0 {
            return input.resize(size).await;
        }
        let TerminalSize { rows, cols } = size;
        self.send_v1(|id| HubToWorker::ShellResize { id, rows, cols })
            .await
    }

    async fn send_v1(
        &self,
        message: impl FnOnce(String) -> HubToWorker,
    ) -> Result<(), RequestError> {
        let InputWay::V1 {
            worker,
            id,
            conn,
            over,
        } = &self.0
        else {
            return Ok(());
        };
        let lost = || RequestError::Lost {
            worker: worker.clone(),
        };
        if over.load(Ordering::Relaxed) {
            return Err(lost());
        }
        conn.send(&message(id.clone())).await.map_err(|_| lost())
    }
}
