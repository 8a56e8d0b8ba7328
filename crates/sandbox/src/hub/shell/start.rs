//! How a shell begins, or is found again.

use std::time::Duration;

use super::{ShellHandle, ShellPlace, TerminalSize, Transport, WINDOW};
use crate::hub::conn::{Conn, HubStream, Knowledge};
use crate::hub::opening::{Answer, GivenUp, answer};
use crate::hub::{ExecRequest, Hub, RequestError, failure};
use crate::proto::frame::{FailureCode, Open, Opened, Outcome};
use crate::proto::{HubToWorker, Protocol, WorkerToHub};

/// Connections over which the start of one shell is tried.
const ATTEMPTS: usize = 10;

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
        let (transport, running) = match conn.protocol() {
            Protocol::V1 => {
                let running = conn.count();
                let transport = self.shell_v1(worker, &conn, &id, size, term).await?;
                (transport, running)
            }
            Protocol::V2 => {
                let open = Open::Shell {
                    id: id.clone(),
                    rows: size.rows,
                    cols: size.cols,
                    term: term.to_owned(),
                    cwd,
                    mirror,
                };
                let stream = self.begin_v2(worker, conn, &id, open).await?;
                let running = stream.count();
                (Transport::V2(stream), running)
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
        let open = Open::Attach {
            id: id.to_owned(),
            stdout: seen,
            stderr: 0,
        };
        let (stream, opened) = self.attach_v2(worker, &conn, open).await?;
        let running = stream.count();
        let transport = Transport::V2(stream);
        let mut handle = ShellHandle::new(self, worker, id.to_owned(), transport, running);
        handle.came(opened.offset);
        handle.seen = seen.saturating_add(opened.lost_stdout);
        handle.dropped = opened.lost_stdout;
        handle.receipt.come().await?;
        Ok(handle)
    }

    /// Begins a shell, over as many connections as are lost before the worker has answered.
    ///
    /// Nothing was typed yet: where the worker has no such shell, because the start was lost on its
    /// way or the shell died with the worker, it can be begun again.
    async fn begin_v2(
        &self,
        worker: &str,
        mut conn: Conn,
        id: &str,
        begin: Open,
    ) -> Result<HubStream, RequestError> {
        let attach = Open::Attach {
            id: id.to_owned(),
            stdout: 0,
            stderr: 0,
        };
        // A copy of a workspace is brought up to date first.
        let wait = match &begin {
            Open::Shell {
                mirror: Some(mirror),
                ..
            } => Duration::from_millis(mirror.wait_ms),
            _ => Duration::ZERO,
        };
        let mut open = begin.clone();
        for _ in 0..ATTEMPTS {
            let registration = conn.registration();
            let Ok(stream) = conn.open(open.clone(), WINDOW).await else {
                conn = self.inner.returned(worker, registration).await?;
                continue;
            };
            match self
                .within(worker, wait, answer(stream, GivenUp::Ended))
                .await?
            {
                Answer::Opened(stream, _) => return Ok(stream),
                Answer::Ended(Outcome::Failed {
                    code: FailureCode::UnknownJob,
                    ..
                }) => open = begin.clone(),
                Answer::Ended(outcome) => return Err(failure(outcome)),
                Answer::Lost(stream) => {
                    conn = self.inner.returned(worker, registration).await?;
                    open = match conn.knows_of(&stream) {
                        Knowledge::NeverArrived => begin.clone(),
                        Knowledge::Arrived | Knowledge::Nothing => attach.clone(),
                    };
                }
            }
        }
        Err(self.inner.lost(worker))
    }

    /// An answer that comes within the patience and `more`; without one the shell is given up.
    async fn within(
        &self,
        worker: &str,
        more: Duration,
        answer: impl Future<Output = Answer>,
    ) -> Result<Answer, RequestError> {
        let waited = self.inner.settings.patience + more;
        tokio::time::timeout(waited, answer)
            .await
            .map_err(|_| RequestError::NoAnswer {
                worker: worker.to_owned(),
                waited,
            })
    }

    /// Attaches to a job and waits until the worker has accepted it.
    async fn attach_v2(
        &self,
        worker: &str,
        conn: &Conn,
        open: Open,
    ) -> Result<(HubStream, Opened), RequestError> {
        let lost = || self.inner.lost(worker);
        let stream = conn.open(open, WINDOW).await.map_err(|_| lost())?;
        let answer = answer(stream, GivenUp::Left);
        match self.within(worker, Duration::ZERO, answer).await? {
            Answer::Opened(stream, opened) => Ok((stream, opened)),
            Answer::Ended(outcome) => Err(failure(outcome)),
            Answer::Lost(_) => Err(lost()),
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
        let lost = || self.inner.lost(worker);
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
