//! The control plane's requests, served.
//!
//! Each request is a few calls into the parts that own the work; what is
//! streamed is read from the journal.

mod approvals;
mod compaction;
mod crons;
mod export;
mod intake;
mod lists;
mod logs;
mod streams;
mod workers;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::Stream;
use quintet_control::wire::{
    Accepted, AgentEventMsg, AgentList, AgentLogsMsg, AgentRestartMsg, AgentsMsg,
    AnswerApprovalMsg, ApprovalList, ApprovalsMsg, AskList, AsksMsg, AttachMsg, CancelMsg,
    ClientHello, CommandEvent, CompactMsg, CompactSummary, CompactUndoMsg, Config, CopyMsg,
    CopyProgress, CreateCronMsg, CronInfo, CronList, CronRunList, CronRunsMsg, DeleteCronMsg,
    DeviceList, DeviceRevokeMsg, DevicesMsg, EventsMsg, ExecCancelMsg, ExecInputMsg, ExecMsg,
    ExportSessionMsg, GetConfigMsg, GetStatsMsg, JobList, JobsMsg, JournalEvent, JournalPruneMsg,
    JournalPruned, JournalReport, JournalReportMsg, KillMsg, ListCronsMsg, LogLine, PairMsg,
    PairingCode, PingMsg, Pong, QueueEditMsg, QueueList, QueueListMsg, QueueRemoveMsg, ReloadMsg,
    ReplyToAskMsg, RetryMsg, SendMsg, SendResponse, ServerHello, SessionExport, SessionList,
    SessionsMsg, SetConfigMsg, SetTitleMsg, ShellInputMsg, ShellMsg, ShellResizeMsg, Stats,
    SteerMsg, StreamEvent, StreamMsg, SubscribeEventsMsg, TokenCreateMsg, TokenCreated, TokenList,
    TokenListMsg, TokenRevokeMsg, UndoMsg, UndoReport, WorkerList, WorkersMsg,
};
use quintet_control::{
    Answer, Closed, Origin, PROTOCOL_VERSION, Peer, RAW_ELEMENTS, Server, ServerError, Service,
};
use serde_json::json;
use tokio::sync::Mutex as AsyncMutex;

use self::export::InParts;
use crate::daemon::Runtime;
use crate::journal::{Entry, Kind};
use crate::refusal::Refusal;
use crate::sessions::messages::Channel;
use crate::sessions::{self, messages};
use crate::stream::Raw;

pub(crate) use crons::CronRunner;
pub(crate) use intake::is_readable_folder;

/// Who answers and sends for the terminal's commands, in the journal.
const LOCAL_PERSON: &str = "user";

/// A client in a sandbox that is refused is told of at most once in so long.
const TELL_CONFINED_EVERY: Duration = Duration::from_secs(60);

impl From<Refusal> for ServerError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::Bad(_) => Self::bad_request(message),
            Refusal::NotFound(_) => Self::not_found(message),
            Refusal::Conflict(_) => Self::conflict(message),
            Refusal::OverLimit(_) => Self::over_limit(message),
            Refusal::Store(_) | Refusal::Internal(_) => Self::internal(message),
        }
    }
}

/// Accepts control connections for the daemon.
pub(crate) struct ControlService {
    runtime: Arc<Runtime>,
    /// When a client in a sandbox was last told of: it may come as often as it likes.
    confined_told: Mutex<Option<Instant>>,
}

impl ControlService {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self {
            runtime,
            confined_told: Mutex::default(),
        }
    }

    fn is_told_lately(&self) -> bool {
        let mut told = self
            .confined_told
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if told.is_some_and(|at| at.elapsed() < TELL_CONFINED_EVERY) {
            return true;
        }
        *told = Some(Instant::now());
        false
    }
}

impl Service for ControlService {
    type Server = Connection;

    fn connected(&self, peer: &Peer) -> Arc<Connection> {
        self.runtime.metrics.control_connections.inc();
        Arc::new(Connection {
            runtime: self.runtime.clone(),
            wants_raw: AtomicBool::new(false),
            on_this_machine: matches!(peer.origin, Origin::Unix { .. }),
            export: AsyncMutex::default(),
        })
    }

    fn authorizes(&self, token: &str) -> bool {
        quintet_control::tokens_match(token, &self.runtime.control_token)
    }

    fn closed(&self, peer: &Peer, reason: Closed) {
        if !matches!(reason, Closed::ForeignUser { .. } | Closed::Confined) {
            self.runtime.metrics.control_connections.dec();
        }
        if !reason.is_clients_fault() {
            tracing::debug!(%peer, %reason, "control connection closed");
            return;
        }
        self.runtime.metrics.control_cut.inc();
        if matches!(reason, Closed::Confined) && self.is_told_lately() {
            return;
        }
        tracing::warn!(%peer, %reason, "control client cut off");
        let data = json!({ "client": peer.to_string(), "reason": reason.to_string() });
        let db = self.runtime.db.clone();
        self.runtime.tasks.spawn(async move {
            if let Err(error) = db.append(vec![Entry::new(Kind::ClientCut, &data)]).await {
                tracing::error!(%error, "a cut client could not be recorded");
            }
        });
    }

    fn accept_failed(&self, error: &std::io::Error) {
        tracing::error!(%error, "the system refuses to accept control connections");
    }
}

/// One control connection.
pub(crate) struct Connection {
    runtime: Arc<Runtime>,
    wants_raw: AtomicBool,
    on_this_machine: bool,
    /// What is being handed out in parts. Requests of a connection come one after the other, so
    /// that nobody waits for it.
    export: AsyncMutex<Option<InParts>>,
}

impl Connection {
    fn raw(&self) -> Raw {
        if self.wants_raw.load(Ordering::Relaxed) {
            Raw::Show
        } else {
            Raw::Hide
        }
    }
}

impl Server for Connection {
    async fn hello(&self, request: ClientHello) -> Answer<ServerHello> {
        let raw = request.capabilities.iter().any(|name| name == RAW_ELEMENTS);
        self.wants_raw.store(raw, Ordering::Relaxed);
        Ok(ServerHello {
            version: PROTOCOL_VERSION,
            capabilities: vec![RAW_ELEMENTS.to_owned()],
            server: format!("quintet {}", self.runtime.version),
        })
    }

    async fn send(&self, request: SendMsg) -> Answer<SendResponse> {
        let message = self.runtime.accept(request).await?;
        Ok(self.runtime.answer_of(&message).await?)
    }

    fn stream(&self, request: StreamMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        let raw = self.raw();
        async_stream::stream! {
            match self.runtime.accept(intake::as_send(request)).await {
                Ok(message) => {
                    for await event in self.runtime.turn_events(&message, raw) {
                        yield event;
                    }
                }
                Err(refusal) => yield Err(refusal.into()),
            }
        }
    }

    async fn ping(&self, _: PingMsg) -> Answer<Pong> {
        Ok(Pong::default())
    }

    async fn sessions(&self, request: SessionsMsg) -> Answer<SessionList> {
        Ok(self.runtime.list_sessions(request.include_closed).await?)
    }

    async fn kill(&self, request: KillMsg) -> Answer<Pong> {
        self.runtime
            .coordinator
            .kill(request.session, LOCAL_PERSON)
            .await?;
        Ok(Pong::default())
    }

    async fn get_config(&self, _: GetConfigMsg) -> Answer<Config> {
        Ok(Config {
            config: self.runtime.config.to_json().to_string(),
        })
    }

    async fn set_config(&self, request: SetConfigMsg) -> Answer<Pong> {
        let changes = self
            .runtime
            .change_config(move |config| config.set(&request.config))
            .await?;
        Ok(lists::changed(changes))
    }

    async fn reload(&self, _: ReloadMsg) -> Answer<Pong> {
        let changes = self.runtime.change_config(|config| config.reload()).await?;
        Ok(lists::changed(changes))
    }

    fn subscribe_events(
        &self,
        request: SubscribeEventsMsg,
    ) -> impl Stream<Item = Answer<AgentEventMsg>> + Send {
        self.runtime.agent_events(request)
    }

    async fn reply_to_ask(&self, request: ReplyToAskMsg) -> Answer<Pong> {
        self.runtime
            .coordinator
            .reply(
                request.session,
                request.ask,
                request.content,
                LOCAL_PERSON.to_owned(),
            )
            .await?;
        Ok(Pong::default())
    }

    async fn get_stats(&self, _: GetStatsMsg) -> Answer<Stats> {
        Ok(self.runtime.stats().await?)
    }

    async fn create_cron(&self, request: CreateCronMsg) -> Answer<CronInfo> {
        Ok(self.runtime.create_cron(request).await?)
    }

    async fn delete_cron(&self, request: DeleteCronMsg) -> Answer<Pong> {
        self.runtime.delete_cron(request.id).await?;
        Ok(Pong::default())
    }

    async fn list_crons(&self, _: ListCronsMsg) -> Answer<CronList> {
        Ok(self.runtime.list_crons().await?)
    }

    async fn compact(&self, request: CompactMsg) -> Answer<CompactSummary> {
        let summary = self.runtime.compact(request.session).await?;
        Ok(CompactSummary { summary })
    }

    async fn steer(&self, request: SteerMsg) -> Answer<Accepted> {
        let seq = self
            .runtime
            .coordinator
            .steer(
                request.session,
                request.content,
                LOCAL_PERSON.to_owned(),
                Channel::Cli,
            )
            .await?;
        Ok(Accepted { seq })
    }

    async fn cancel(&self, request: CancelMsg) -> Answer<Accepted> {
        let seq = self
            .runtime
            .coordinator
            .cancel(request.session, LOCAL_PERSON.to_owned())
            .await?;
        Ok(Accepted { seq })
    }

    fn retry(&self, request: RetryMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        let raw = self.raw();
        async_stream::stream! {
            match self.runtime.retry(request.session).await {
                Ok(message) => {
                    for await event in self.runtime.turn_events(&message, raw) {
                        yield event;
                    }
                }
                Err(refusal) => yield Err(refusal.into()),
            }
        }
    }

    fn attach(&self, request: AttachMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        self.runtime.attached_events(request, self.raw())
    }

    fn events(&self, request: EventsMsg) -> impl Stream<Item = Answer<JournalEvent>> + Send {
        self.runtime.journal_events(request)
    }

    async fn journal_report(&self, _: JournalReportMsg) -> Answer<JournalReport> {
        Ok(self.runtime.journal_report().await?)
    }

    async fn journal_prune(&self, request: JournalPruneMsg) -> Answer<JournalPruned> {
        Ok(self.runtime.journal_prune(request).await?)
    }

    async fn queue_list(&self, request: QueueListMsg) -> Answer<QueueList> {
        Ok(self.runtime.list_queue(request.session).await?)
    }

    async fn queue_edit(&self, request: QueueEditMsg) -> Answer<Accepted> {
        let seq = self
            .runtime
            .db
            .write(move |tx| messages::edit(tx, request.id, &request.content))
            .await?;
        Ok(Accepted { seq })
    }

    async fn queue_remove(&self, request: QueueRemoveMsg) -> Answer<Accepted> {
        let seq = self
            .runtime
            .db
            .write(move |tx| messages::remove(tx, request.id, "somebody removed it"))
            .await?;
        Ok(Accepted { seq })
    }

    async fn asks(&self, _: AsksMsg) -> Answer<AskList> {
        Ok(self.runtime.list_asks().await?)
    }

    async fn approvals(&self, _: ApprovalsMsg) -> Answer<ApprovalList> {
        Ok(self.runtime.list_approvals().await?)
    }

    async fn answer_approval(&self, request: AnswerApprovalMsg) -> Answer<Accepted> {
        let seq = self
            .runtime
            .answer_approval(request, LOCAL_PERSON.to_owned())
            .await?;
        Ok(Accepted { seq })
    }

    async fn set_title(&self, request: SetTitleMsg) -> Answer<Accepted> {
        let seq = self
            .runtime
            .db
            .write(move |tx| sessions::set_title(tx, request.session, &request.title))
            .await?;
        Ok(Accepted { seq })
    }

    async fn export_session(&self, request: ExportSessionMsg) -> Answer<SessionExport> {
        let session = request.session;
        let Some(from) = request.from else {
            let export = self.runtime.export_session(session).await?;
            return Ok(SessionExport {
                export,
                more: false,
            });
        };
        let mut held = self.export.lock().await;
        if from == 0 {
            let text = self.runtime.export_session(session).await?;
            *held = Some(InParts { session, text });
        }
        let part = held.as_ref().and_then(|whole| whole.part(session, from));
        let Some(part) = part else {
            return Err(ServerError::conflict(
                "this connection has no such part of an export; begin with the first",
            ));
        };
        if !part.more {
            *held = None;
        }
        Ok(part)
    }

    async fn compact_undo(&self, request: CompactUndoMsg) -> Answer<Accepted> {
        let seq = self.runtime.undo_compaction(request.session).await?;
        Ok(Accepted { seq })
    }

    async fn cron_runs(&self, request: CronRunsMsg) -> Answer<CronRunList> {
        Ok(self.runtime.list_cron_runs(request.cron).await?)
    }

    async fn agents(&self, _: AgentsMsg) -> Answer<AgentList> {
        Ok(self.runtime.list_agents().await?)
    }

    fn agent_logs(&self, request: AgentLogsMsg) -> impl Stream<Item = Answer<LogLine>> + Send {
        self.runtime.agent_logs(&request)
    }

    async fn agent_restart(&self, request: AgentRestartMsg) -> Answer<Accepted> {
        let seq = self.runtime.restart_agent(&request.agent_id).await?;
        Ok(Accepted { seq })
    }

    async fn workers(&self, _: WorkersMsg) -> Answer<WorkerList> {
        Ok(self.runtime.list_workers())
    }

    fn exec(&self, request: ExecMsg) -> impl Stream<Item = Answer<CommandEvent>> + Send {
        self.runtime.exec(request)
    }

    async fn undo(&self, request: UndoMsg) -> Answer<UndoReport> {
        let undone = self.runtime.undo(request.session, request.commands).await?;
        Ok(undone.into())
    }

    async fn exec_input(&self, request: ExecInputMsg) -> Answer<Pong> {
        self.runtime.workers.exec_input(request).await?;
        Ok(Pong::default())
    }

    async fn exec_cancel(&self, request: ExecCancelMsg) -> Answer<Pong> {
        self.runtime.workers.exec_cancel(&request.job)?;
        Ok(Pong::default())
    }

    fn shell(&self, request: ShellMsg) -> impl Stream<Item = Answer<CommandEvent>> + Send {
        self.runtime.shell(request)
    }

    async fn shell_input(&self, request: ShellInputMsg) -> Answer<Pong> {
        self.runtime.workers.shell_input(request).await?;
        Ok(Pong::default())
    }

    async fn shell_resize(&self, request: ShellResizeMsg) -> Answer<Pong> {
        self.runtime.workers.shell_resize(request).await?;
        Ok(Pong::default())
    }

    async fn jobs(&self, request: JobsMsg) -> Answer<JobList> {
        Ok(self.runtime.list_jobs(&request.worker).await?)
    }

    fn copy(&self, request: CopyMsg) -> impl Stream<Item = Answer<CopyProgress>> + Send {
        let allowed = self.on_this_machine;
        async_stream::stream! {
            if !allowed {
                yield Err(ServerError::bad_request(
                    "files are read and written on the daemon's machine; ask on its Unix socket",
                ));
                return;
            }
            for await progress in self.runtime.copy(request) {
                yield progress;
            }
        }
    }

    async fn token_create(&self, request: TokenCreateMsg) -> Answer<TokenCreated> {
        Ok(self.runtime.create_token(request.worker).await?)
    }

    async fn token_list(&self, _: TokenListMsg) -> Answer<TokenList> {
        Ok(self.runtime.list_tokens().await?)
    }

    async fn token_revoke(&self, request: TokenRevokeMsg) -> Answer<Accepted> {
        Ok(self.runtime.revoke_token(request.id).await?)
    }

    async fn pair(&self, _: PairMsg) -> Answer<PairingCode> {
        Ok(self.runtime.pairing_code()?)
    }

    async fn devices(&self, _: DevicesMsg) -> Answer<DeviceList> {
        Ok(self.runtime.device_list().await?)
    }

    async fn device_revoke(&self, request: DeviceRevokeMsg) -> Answer<Accepted> {
        let by = LOCAL_PERSON.to_owned();
        let seq = self.runtime.revoke_device(request.id, by).await?;
        Ok(Accepted { seq })
    }
}
