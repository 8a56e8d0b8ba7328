//! Shells.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::conn::{Conn, HubStream, Running, StreamEvent, StreamSender, V1Route};
use super::exec::words;
use super::observer::{HubEvent, Receipt};
use super::{ExecOutcome, ExecRequest, Hub, RequestError, failure};
use crate::proto::frame::{Body, INITIAL_CREDIT, MAX_DATA, Mirror, Open, Opened, Outcome};
use crate::proto::{HubToWorker, Protocol, WorkerToHub};

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

impl Hub {
    /// Starts a login shell in the worker's root.
    pub async fn shell(
        &self,
        worker: &str,
        size: TerminalSize,
        term: &str,
    ) -> Result<ShellHandle, RequestError> {
        self.shell_in(worker, ShellPlace::Root, size, term).await
    }

    /// Starts a login shell in a place.
    pub async fn shell_in(
        &self,
        worker: &str,
        place: ShellPlace,
        size: TerminalSize,
        term: &str,
    ) -> Result<ShellHandle, RequestError> {
        let conn = match place {
            ShellPlace::Root => self.inner.online(worker)?,
            ShellPlace::Folder(_) | ShellPlace::Workspace(_) => {
                self.inner.online_v2(worker, "start a shell in a folder")?
            }
        };
        let (cwd, mirror) = match place {
            ShellPlace::Root => (None, None),
            ShellPlace::Folder(folder) => (Some(folder), None),
            ShellPlace::Workspace(mirror) => (None, Some(mirror)),
        };
        let id = uuid::Uuid::now_v7().to_string();
        let running = conn.count();
        let transport = match conn.protocol() {
            Protocol::V1 => self.shell_v1(worker, &conn, &id, size, term).await?,
            Protocol::V2 => {
                let open = Open::Shell {
                    id: id.clone(),
                    rows: size.rows,
                    cols: size.cols,
                    term: term.to_owned(),
                    cwd,
                    mirror,
                };
                Transport::V2(self.open_v2(worker, &conn, open).await?.0)
            }
        };
        let mut handle = ShellHandle::new(self, worker, id, transport, running);
        handle.receipt.come().await?;
        Ok(handle)
    }

    /// Continues with a shell that was detached from, or whose hub went away, from the start of
    /// what its worker has kept of its output.
    pub async fn attach_shell(&self, worker: &str, id: &str) -> Result<ShellHandle, RequestError> {
        self.attach_shell_after(worker, id, 0).await
    }

    /// The same for a reader that has the first `seen` bytes of its output.
    pub async fn attach_shell_after(
        &self,
        worker: &str,
        id: &str,
        seen: u64,
    ) -> Result<ShellHandle, RequestError> {
        let conn = self.inner.online_v2(worker, "keep a shell")?;
        let running = conn.count();
        let open = Open::Attach {
            id: id.to_owned(),
            stdout: seen,
            stderr: 0,
        };
        let (stream, opened) = self.open_v2(worker, &conn, open).await?;
        let transport = Transport::V2(stream);
        let mut handle = ShellHandle::new(self, worker, id.to_owned(), transport, running);
        handle.seen = seen.saturating_add(opened.lost_stdout);
        handle.dropped = opened.lost_stdout;
        handle.receipt.come().await?;
        Ok(handle)
    }

    /// Opens a stream and waits until the worker has accepted it.
    async fn open_v2(
        &self,
        worker: &str,
        conn: &Conn,
        open: Open,
    ) -> Result<(HubStream, Opened), RequestError> {
        let lost = || RequestError::Lost {
            worker: worker.to_owned(),
        };
        let mut stream = conn.open(open, WINDOW).await.map_err(|_| lost())?;
        match stream.next().await.ok_or_else(lost)? {
            StreamEvent::Opened(opened) => Ok((stream, opened)),
            StreamEvent::End(end) => Err(failure(end.outcome)),
            StreamEvent::Out(_) | StreamEvent::Err(_) => Err(failure(Outcome::Complete)),
        }
    }

    async fn shell_v1(
        &self,
        worker: &str,
        conn: &Conn,
        id: &str,
        size: TerminalSize,
        term: &str,
    ) -> Result<Transport, RequestError> {
        if conn.dialect().is_none() {
            // A shell has other names in each dialect, and a wrong one is met with silence. Any
            // reply gives the dialect away.
            let request = ExecRequest {
                command: "true".to_owned(),
                timeout: Some(Duration::from_secs(10)),
                ..ExecRequest::default()
            };
            self.exec(worker, request).await?.output(0).await?;
        }
        let lost = || RequestError::Lost {
            worker: worker.to_owned(),
        };
        let mut route = conn.request(id).map_err(|_| lost())?;
        let start = HubToWorker::StartShell {
            id: id.to_owned(),
            rows: size.rows,
            cols: size.cols,
            term: term.to_owned(),
        };
        conn.send(&start).await.map_err(|_| lost())?;
        let waited = self.inner.settings.patience;
        let answer = tokio::time::timeout(waited, route.answers.recv())
            .await
            .map_err(|_| RequestError::NoAnswer {
                worker: worker.to_owned(),
                waited,
            })?;
        match answer.ok_or_else(lost)? {
            WorkerToHub::ShellStarted { success: true, .. } => {
                Ok(Transport::V1 { route, first: None })
            }
            WorkerToHub::ShellStarted { error, .. } => Err(RequestError::Failed {
                code: None,
                error: error.unwrap_or_else(|| "the shell did not start".to_owned()),
            }),
            // A released daemon may print before it says that it started.
            first @ WorkerToHub::ShellOutput { .. } => Ok(Transport::V1 {
                route,
                first: Some(Box::new(first)),
            }),
            WorkerToHub::Error(error) => Err(RequestError::Failed {
                code: None,
                error: error.message,
            }),
            other => Err(RequestError::Failed {
                code: None,
                error: format!("the worker answered with {other:?}"),
            }),
        }
    }
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
    input: Arc<Mutex<InputTransport>>,
    seen: u64,
    dropped: u64,
    started: Instant,
    /// Of the row of the audit that was written last.
    receipt: Receipt,
    ended: bool,
    /// The end, which waits for its row.
    ending: Option<Result<ShellEvent, RequestError>>,
    _running: Running,
}

#[derive(Debug, Clone)]
enum InputTransport {
    V1(Conn),
    V2(StreamSender),
    Gone,
}

impl ShellHandle {
    fn new(hub: &Hub, worker: &str, id: String, transport: Transport, running: Running) -> Self {
        let receipt = hub.inner.observe(HubEvent::ShellStarted {
            worker: worker.to_owned(),
            job: id.clone(),
        });
        let input = match &transport {
            Transport::V1 { route, .. } => InputTransport::V1(route.conn.clone()),
            Transport::V2(stream) => InputTransport::V2(stream.sender()),
            Transport::Over => InputTransport::Gone,
        };
        Self {
            hub: hub.clone(),
            worker: worker.to_owned(),
            id,
            transport,
            input: Arc::new(Mutex::new(input)),
            seen: 0,
            dropped: 0,
            started: Instant::now(),
            receipt,
            ended: false,
            ending: None,
            _running: running,
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
        ShellInput {
            worker: self.worker.clone(),
            id: self.id.clone(),
            transport: self.input.clone(),
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
                        self.seen += bytes.len() as u64;
                        stream.taken(bytes.len()).await;
                        return Ok(ShellEvent::Output(bytes));
                    }
                    Some(StreamEvent::Opened(opened)) => self.seen += opened.lost_stdout,
                    Some(StreamEvent::End(end)) => {
                        stream.urgent(Body::Done);
                        return self.finish(match end.outcome {
                            Outcome::Exited { code } => Ok(ExecOutcome::Exited(code)),
                            Outcome::Signaled { signal } => Ok(ExecOutcome::Signaled(signal)),
                            Outcome::Cancelled => Ok(ExecOutcome::Cancelled),
                            outcome => Err(failure(outcome)),
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
        let Transport::V2(stream) = &self.transport else {
            return Err(self.lost());
        };
        let attached = async {
            let conn = self
                .hub
                .inner
                .returned(&self.worker, stream.registration())
                .await?;
            let open = Open::Attach {
                id: self.id.clone(),
                stdout: self.seen,
                stderr: 0,
            };
            conn.open(open, WINDOW).await.map_err(|_| self.lost())
        };
        match attached.await {
            Ok(stream) => {
                self.set_input(InputTransport::V2(stream.sender()));
                self.transport = Transport::V2(stream);
                Ok(())
            }
            Err(error) => self.finish(Err(error)).map(drop),
        }
    }

    fn finish(
        &mut self,
        outcome: Result<ExecOutcome, RequestError>,
    ) -> Result<ShellEvent, RequestError> {
        self.transport = Transport::Over;
        self.set_input(InputTransport::Gone);
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

    fn set_input(&self, transport: InputTransport) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = transport;
    }

    fn lost(&self) -> RequestError {
        RequestError::Lost {
            worker: self.worker.clone(),
        }
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
        self.set_input(InputTransport::Gone);
        self.observe_end("hung up");
    }
}

/// A shell's input.
#[derive(Debug, Clone)]
pub struct ShellInput {
    worker: String,
    id: String,
    transport: Arc<Mutex<InputTransport>>,
}

impl ShellInput {
    /// Types bytes, at the pace at which the program reads under v2.
    pub async fn write(&self, bytes: &[u8]) -> Result<(), RequestError> {
        for part in bytes.chunks(MAX_DATA) {
            match self.transport() {
                InputTransport::V1(conn) => {
                    let message = HubToWorker::ShellInput {
                        id: self.id.clone(),
                        data: Bytes::copy_from_slice(part),
                    };
                    conn.send(&message).await.map_err(|_| self.lost())?;
                }
                InputTransport::V2(sender) => {
                    let mut frame = sender.frame(part.len());
                    frame.extend_from_slice(part);
                    sender.send(frame).await.map_err(|_| self.lost())?;
                }
                InputTransport::Gone => return Err(self.lost()),
            }
        }
        Ok(())
    }

    /// Tells the program that its window has another size.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), RequestError> {
        let TerminalSize { rows, cols } = size;
        match self.transport() {
            InputTransport::V1(conn) => {
                let message = HubToWorker::ShellResize {
                    id: self.id.clone(),
                    rows,
                    cols,
                };
                conn.send(&message).await.map_err(|_| self.lost())
            }
            InputTransport::V2(sender) => {
                if sender.control(Body::Resize { rows, cols }).await {
                    Ok(())
                } else {
                    Err(self.lost())
                }
            }
            InputTransport::Gone => Err(self.lost()),
        }
    }

    fn transport(&self) -> InputTransport {
        self.transport
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn lost(&self) -> RequestError {
        RequestError::Lost {
            worker: self.worker.clone(),
        }
    }
}
