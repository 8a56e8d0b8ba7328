//! Workers, commands, files and tokens.

use futures_util::Stream;
use quintet_control::wire::{
    Accepted, CommandEvent, CopyMsg, CopyProgress, ExecMsg, JobInfo, JobList, ShellMsg,
    TokenCreated, TokenInfo, TokenList, WorkerInfo, WorkerList, WorkerLoad,
};
use quintet_control::{Answer, ServerError};
use quintet_sandbox::hub::WorkerStatus;
use quintet_sandbox::proto::MAX_NAME;

use crate::daemon::Runtime;
use crate::journal::rfc3339;
use crate::refusal::Refusal;
use crate::workers::{self, CommandEvents, LOCAL, tokens};

impl Runtime {
    pub(crate) fn list_workers(&self) -> WorkerList {
        let workers = self.workers.hub.workers().into_iter();
        WorkerList {
            workers: workers
                .map(|info| WorkerInfo {
                    id: info.id,
                    hostname: info.hostname,
                    platform: info.platform,
                    arch: info.arch,
                    version: info.version,
                    labels: info.labels,
                    copies: info.copies,
                    state: match info.state {
                        WorkerStatus::Online => "online",
                        WorkerStatus::Stale => "stale",
                        WorkerStatus::Offline => "offline",
                    }
                    .to_owned(),
                    protocol: info.protocol,
                    running: u32::try_from(info.running).unwrap_or(u32::MAX),
                    load: info.load.map(|load| WorkerLoad {
                        cpu: load.cpu.into(),
                        memory: load.memory.into(),
                    }),
                })
                .collect(),
        }
    }

    pub(super) fn exec(&self, request: ExecMsg) -> impl Stream<Item = Answer<CommandEvent>> + Send {
        followed(async move {
            let Some(session) = request.session else {
                return self.workers.exec(request).await;
            };
            let (handle, finish) = match &request.attach {
                Some(job) => self.attach_in_session(session, job).await?,
                None => self.start_in_session(session, request.into()).await?,
            };
            Ok(self.workers.follow_in_session(handle, finish))
        })
    }

    pub(super) fn shell(
        &self,
        request: ShellMsg,
    ) -> impl Stream<Item = Answer<CommandEvent>> + Send {
        followed(self.workers.shell(request))
    }

    pub(crate) async fn list_jobs(&self, worker: &str) -> Result<JobList, Refusal> {
        let jobs = self.workers.hub.jobs(worker).await?;
        Ok(JobList {
            jobs: jobs
                .into_iter()
                .map(|job| JobInfo {
                    id: job.id,
                    kind: job.kind,
                    command: job.command,
                    age_secs: job.age_secs,
                    running: job.running,
                    attached: job.attached,
                })
                .collect(),
        })
    }

    pub(super) fn copy(
        &self,
        request: CopyMsg,
    ) -> impl Stream<Item = Answer<CopyProgress>> + Send + use<> {
        use futures_util::StreamExt;
        workers::copy(self.workers.clone(), request)
            .map(|progress| progress.map_err(ServerError::from))
    }

    pub(super) async fn create_token(&self, worker: String) -> Result<TokenCreated, Refusal> {
        if worker.trim().is_empty() || worker.len() > MAX_NAME {
            return Err(Refusal::Bad(format!(
                "a worker's id has 1 to {MAX_NAME} bytes"
            )));
        }
        if worker == LOCAL && self.workers.has_local() {
            return Err(Refusal::Conflict(format!(
                "the name {LOCAL:?} is the daemon's own worker's, and no token lets another have it; \
                 name the worker otherwise, or start the daemon with --no-worker"
            )));
        }
        let token = tokens::mint(self.workers.fingerprint)?;
        let text = token.expose();
        let id = self
            .db
            .write(move |tx| tokens::insert(tx, &worker, &token))
            .await?;
        Ok(TokenCreated { id, token: text })
    }

    pub(super) async fn list_tokens(&self) -> Result<TokenList, Refusal> {
        let rows = self.db.read(tokens::list).await?;
        Ok(TokenList {
            tokens: rows
                .into_iter()
                .map(|row| TokenInfo {
                    id: row.id,
                    worker: row.worker,
                    created_at: rfc3339(row.created_at),
                    revoked_at: row.revoked_at.map(rfc3339).unwrap_or_default(),
                })
                .collect(),
        })
    }

    pub(super) async fn revoke_token(&self, id: u64) -> Result<Accepted, Refusal> {
        let (seq, worker) = self.db.write(move |tx| tokens::revoke(tx, id)).await?;
        // One that came in otherwise, or with another of its tokens, stays.
        let hub = &self.workers.hub;
        if !hub.recheck(&worker, "its token was revoked").await {
            self.workspaces.shut_out(&worker);
        }
        Ok(Accepted { seq })
    }
}

fn followed(
    opening: impl Future<Output = Result<CommandEvents, Refusal>> + Send,
) -> impl Stream<Item = Answer<CommandEvent>> + Send {
    async_stream::stream! {
        match opening.await {
            Ok(mut events) => {
                while let Some(event) = events.recv().await {
                    yield event.map_err(ServerError::from);
                }
            }
            Err(refusal) => yield Err(refusal.into()),
        }
    }
}
