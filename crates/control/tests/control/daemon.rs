//! A small daemon on real sockets, with a client that can be told apart from it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use futures_util::{Stream, StreamExt, stream};
use prost::Message;
use quintet_control::proto::encode_request;
use quintet_control::wire::*;
use quintet_control::{
    Answer, Closed, FRAME_FORMAT, Limits, Peer, Server, ServerError, Service, UnixClient,
    serve_tcp, serve_unix, tokens_match,
};
use quintet_framing::FrameReader;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub(crate) const TOKEN: &str = "correct horse";

/// What the daemon saw.
#[derive(Debug)]
pub(crate) enum Seen {
    Request(Box<ClientMessage>),
    /// A reply's stream was dropped before its end.
    Dropped,
    Closed(Closed),
}

/// Answers every request with something that is recognisably its own.
///
/// The agent's name says what a turn does: "gate" waits for [`Daemon::open_gate`], "hang" never
/// ends, "flood" talks without end, "huge" has an answer that fits in no frame, "panic" panics,
/// "no end", "after end" and "fails" break the rules of a stream; any other echoes the content.
pub(crate) struct TestServer {
    seen: mpsc::UnboundedSender<Seen>,
    gate: Arc<Semaphore>,
}

impl TestServer {
    fn saw(&self, request: impl Into<ClientMessage>) {
        let _ = self.seen.send(Seen::Request(Box::new(request.into())));
    }

    fn turn(
        &self,
        agent: String,
        content: String,
    ) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        async_stream::stream! {
            let guard = DropGuard(Some(self.seen.clone()));
            yield Ok(StreamStart { agent: agent.clone(), session: 1, turn: None }.into());
            match agent.as_str() {
                "gate" => drop(self.gate.acquire().await),
                "hang" => std::future::pending::<()>().await,
                "flood" => loop {
                    yield Ok(chunk(&content));
                },
                "fails" => yield Err(ServerError::over_limit("too much")),
                "after end" => yield Ok(end(&agent)),
                _ => {}
            }
            if agent != "fails" {
                yield Ok(chunk(&content).at(2));
            }
            guard.disarm();
            if agent != "no end" {
                yield Ok(end(&agent));
            }
        }
    }
}

struct DropGuard(Option<mpsc::UnboundedSender<Seen>>);

impl DropGuard {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(seen) = &self.0 {
            let _ = seen.send(Seen::Dropped);
        }
    }
}

pub(crate) fn chunk(content: &str) -> StreamEvent {
    StreamChunk {
        content: content.to_owned(),
    }
    .into()
}

pub(crate) fn end(agent: &str) -> StreamEvent {
    StreamEnd {
        agent: agent.to_owned(),
        ..StreamEnd::default()
    }
    .into()
}

pub(crate) fn accepted(seq: u64) -> Accepted {
    Accepted { seq }
}

pub(crate) fn journal_event(seq: u64) -> JournalEvent {
    JournalEvent {
        seq,
        kind: "note".into(),
        ..JournalEvent::default()
    }
}

/// What a command of that name shows.
pub(crate) fn command_events(job: &str) -> [CommandEvent; 3] {
    use command_event::Event;
    let started = CommandStarted {
        job: job.into(),
        ..CommandStarted::default()
    };
    let ended = CommandEnded {
        outcome: Some(command_ended::Outcome::Exited(3)),
        duration_ms: 5,
        ..CommandEnded::default()
    };
    [
        Event::Started(started),
        Event::Stdout(b"\xff".to_vec()),
        Event::Ended(ended),
    ]
    .map(|event| CommandEvent { event: Some(event) })
}

impl Server for TestServer {
    async fn send(&self, request: SendMsg) -> Answer<SendResponse> {
        self.saw(request.clone());
        let content = match request.agent.as_str() {
            "gate" => {
                drop(self.gate.acquire().await);
                request.content
            }
            "huge" => "x".repeat(16 * 1024 * 1024),
            "panic" => panic!("a turn that panics"),
            _ => request.content,
        };
        Ok(SendResponse {
            agent: request.agent,
            content,
            session: 1,
            ..SendResponse::default()
        })
    }

    fn stream(&self, request: StreamMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        self.saw(request.clone());
        self.turn(request.agent, request.content)
    }

    async fn ping(&self, request: PingMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    async fn sessions(&self, request: SessionsMsg) -> Answer<SessionList> {
        self.saw(request);
        Ok(SessionList {
            sessions: vec![SessionInfo {
                id: 1,
                cost: "0.25".into(),
                ..SessionInfo::default()
            }],
        })
    }

    async fn kill(&self, request: KillMsg) -> Answer<Pong> {
        self.saw(request);
        match request.session {
            1 => Ok(Pong::default()),
            other => Err(ServerError::not_found(format!("session {other} not found"))),
        }
    }

    async fn get_config(&self, request: GetConfigMsg) -> Answer<Config> {
        self.saw(request);
        Ok(Config {
            config: "{}".into(),
        })
    }

    async fn set_config(&self, request: SetConfigMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    async fn reload(&self, request: ReloadMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    fn subscribe_events(
        &self,
        request: SubscribeEventsMsg,
    ) -> impl Stream<Item = Answer<AgentEventMsg>> + Send {
        self.saw(request);
        let event = |seq| AgentEventMsg {
            agent: "crab".into(),
            seq: Some(seq),
            ..AgentEventMsg::default()
        };
        let guard = DropGuard(Some(self.seen.clone()));
        stream::iter([Ok(event(1)), Ok(event(2))])
            .chain(stream::pending())
            .map(move |event| {
                let _ = &guard;
                event
            })
    }

    async fn reply_to_ask(&self, request: ReplyToAskMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    async fn get_stats(&self, request: GetStatsMsg) -> Answer<Stats> {
        self.saw(request);
        Ok(Stats {
            uptime_secs: 5,
            ..Stats::default()
        })
    }

    async fn create_cron(&self, request: CreateCronMsg) -> Answer<CronInfo> {
        self.saw(request);
        Ok(CronInfo {
            id: 9,
            ..CronInfo::default()
        })
    }

    async fn delete_cron(&self, request: DeleteCronMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    async fn list_crons(&self, request: ListCronsMsg) -> Answer<CronList> {
        self.saw(request);
        Ok(CronList {
            crons: vec![CronInfo::default()],
        })
    }

    async fn compact(&self, request: CompactMsg) -> Answer<CompactSummary> {
        self.saw(request);
        Ok(CompactSummary {
            summary: "short".into(),
        })
    }

    async fn hello(&self, request: ClientHello) -> Answer<ServerHello> {
        self.saw(request);
        Ok(ServerHello {
            version: 1,
            server: "test".into(),
            ..ServerHello::default()
        })
    }

    async fn steer(&self, request: SteerMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(10))
    }

    async fn cancel(&self, request: CancelMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(11))
    }

    fn retry(&self, request: RetryMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        self.saw(request);
        self.turn("echo".into(), "again".into())
    }

    fn attach(&self, request: AttachMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        self.saw(request);
        // Two turns: an `end` is not the end of this stream.
        stream::iter([
            Ok(end("first").at(4)),
            Ok(chunk("x").at(5)),
            Ok(end("second").at(6)),
        ])
    }

    fn events(&self, request: EventsMsg) -> impl Stream<Item = Answer<JournalEvent>> + Send {
        self.saw(request);
        stream::iter([Ok(journal_event(1)), Ok(journal_event(2))])
    }

    async fn journal_report(&self, request: JournalReportMsg) -> Answer<JournalReport> {
        self.saw(request);
        Ok(JournalReport {
            events: 12,
            ..JournalReport::default()
        })
    }

    async fn journal_prune(&self, request: JournalPruneMsg) -> Answer<JournalPruned> {
        self.saw(request);
        Ok(JournalPruned {
            events: 13,
            ..JournalPruned::default()
        })
    }

    async fn queue_list(&self, request: QueueListMsg) -> Answer<QueueList> {
        self.saw(request);
        Ok(QueueList {
            messages: vec![QueuedMessage::default()],
        })
    }

    async fn queue_edit(&self, request: QueueEditMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(14))
    }

    async fn queue_remove(&self, request: QueueRemoveMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(15))
    }

    async fn asks(&self, request: AsksMsg) -> Answer<AskList> {
        self.saw(request);
        Ok(AskList {
            asks: vec![PendingAsk::default()],
        })
    }

    async fn approvals(&self, request: ApprovalsMsg) -> Answer<ApprovalList> {
        self.saw(request);
        Ok(ApprovalList {
            approvals: vec![Approval::default()],
        })
    }

    async fn answer_approval(&self, request: AnswerApprovalMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(16))
    }

    async fn set_title(&self, request: SetTitleMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(17))
    }

    async fn export_session(&self, request: ExportSessionMsg) -> Answer<SessionExport> {
        self.saw(request);
        Ok(SessionExport {
            export: "{}".into(),
            more: false,
        })
    }

    async fn compact_undo(&self, request: CompactUndoMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(18))
    }

    async fn cron_runs(&self, request: CronRunsMsg) -> Answer<CronRunList> {
        self.saw(request);
        Ok(CronRunList {
            runs: vec![CronRun::default()],
        })
    }

    async fn agents(&self, request: AgentsMsg) -> Answer<AgentList> {
        self.saw(request);
        Ok(AgentList {
            agents: vec![AgentInfo::default()],
        })
    }

    fn agent_logs(&self, request: AgentLogsMsg) -> impl Stream<Item = Answer<LogLine>> + Send {
        self.saw(request);
        stream::iter(["one", "two"]).map(|text| {
            Ok(LogLine {
                text: text.into(),
                ..LogLine::default()
            })
        })
    }

    async fn agent_restart(&self, request: AgentRestartMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(19))
    }

    async fn workers(&self, request: WorkersMsg) -> Answer<WorkerList> {
        self.saw(request);
        Ok(WorkerList {
            workers: vec![WorkerInfo::default()],
        })
    }

    fn exec(&self, request: ExecMsg) -> impl Stream<Item = Answer<CommandEvent>> + Send {
        self.saw(request);
        stream::iter(command_events("exec").map(Ok))
    }

    async fn exec_input(&self, request: ExecInputMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    async fn exec_cancel(&self, request: ExecCancelMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    fn shell(&self, request: ShellMsg) -> impl Stream<Item = Answer<CommandEvent>> + Send {
        self.saw(request);
        stream::iter(command_events("shell").map(Ok))
    }

    async fn shell_input(&self, request: ShellInputMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    async fn shell_resize(&self, request: ShellResizeMsg) -> Answer<Pong> {
        self.saw(request);
        Ok(Pong::default())
    }

    async fn jobs(&self, request: JobsMsg) -> Answer<JobList> {
        self.saw(request);
        Ok(JobList {
            jobs: vec![JobInfo::default()],
        })
    }

    fn copy(&self, request: CopyMsg) -> impl Stream<Item = Answer<CopyProgress>> + Send {
        self.saw(request);
        stream::iter([1, 2]).map(|bytes| {
            Ok(CopyProgress {
                bytes,
                ..CopyProgress::default()
            })
        })
    }

    async fn undo(&self, request: UndoMsg) -> Answer<UndoReport> {
        self.saw(request);
        Ok(UndoReport {
            sequence: 22,
            ..UndoReport::default()
        })
    }

    async fn token_create(&self, request: TokenCreateMsg) -> Answer<TokenCreated> {
        self.saw(request);
        Ok(TokenCreated {
            id: 20,
            ..TokenCreated::default()
        })
    }

    async fn token_list(&self, request: TokenListMsg) -> Answer<TokenList> {
        self.saw(request);
        Ok(TokenList {
            tokens: vec![TokenInfo::default()],
        })
    }

    async fn token_revoke(&self, request: TokenRevokeMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(21))
    }

    async fn pair(&self, request: PairMsg) -> Answer<PairingCode> {
        self.saw(request);
        Ok(PairingCode {
            expires_in_secs: 300,
            ..PairingCode::default()
        })
    }

    async fn devices(&self, request: DevicesMsg) -> Answer<DeviceList> {
        self.saw(request);
        Ok(DeviceList {
            devices: vec![DeviceInfo::default()],
        })
    }

    async fn device_revoke(&self, request: DeviceRevokeMsg) -> Answer<Accepted> {
        self.saw(request);
        Ok(accepted(23))
    }
}

/// The listener's view of the daemon; counts how many connections there are at once.
struct TestService {
    server: Arc<TestServer>,
    open: AtomicUsize,
    most_open: AtomicUsize,
}

impl Service for TestService {
    type Server = TestServer;

    fn connected(&self, _: &Peer) -> Arc<TestServer> {
        let open = self.open.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_open.fetch_max(open, Ordering::SeqCst);
        self.server.clone()
    }

    fn authorizes(&self, token: &str) -> bool {
        tokens_match(token, TOKEN)
    }

    fn closed(&self, _: &Peer, reason: Closed) {
        self.open.fetch_sub(1, Ordering::SeqCst);
        let _ = self.server.seen.send(Seen::Closed(reason));
    }
}

pub(crate) struct Daemon {
    folder: TempDir,
    service: Arc<TestService>,
    seen: mpsc::UnboundedReceiver<Seen>,
    shutdown: CancellationToken,
    serving: JoinSet<()>,
}

impl Daemon {
    pub(crate) fn on_unix(limits: Limits) -> Self {
        let mut daemon = Self::new();
        let listener = UnixListener::bind(daemon.socket()).unwrap();
        let (service, shutdown) = (daemon.service.clone(), daemon.shutdown.clone());
        daemon
            .serving
            .spawn(serve_unix(listener, service, limits, shutdown));
        daemon
    }

    pub(crate) async fn on_tcp(limits: Limits) -> (Self, std::net::SocketAddr) {
        let mut daemon = Self::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (service, shutdown) = (daemon.service.clone(), daemon.shutdown.clone());
        daemon
            .serving
            .spawn(serve_tcp(listener, service, limits, shutdown));
        (daemon, address)
    }

    fn new() -> Self {
        let (sender, seen) = mpsc::unbounded_channel();
        let server = Arc::new(TestServer {
            seen: sender,
            gate: Arc::new(Semaphore::new(0)),
        });
        Self {
            folder: tempfile::tempdir().unwrap(),
            service: Arc::new(TestService {
                server,
                open: AtomicUsize::new(0),
                most_open: AtomicUsize::new(0),
            }),
            seen,
            shutdown: CancellationToken::new(),
            serving: JoinSet::new(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    pub(crate) async fn client(&self) -> UnixClient {
        UnixClient::connect(self.socket()).await.unwrap()
    }

    pub(crate) async fn raw(&self) -> Raw<UnixStream> {
        Raw::new(UnixStream::connect(self.socket()).await.unwrap())
    }

    pub(crate) fn open_gate(&self) {
        self.service.server.gate.add_permits(1000);
    }

    pub(crate) fn most_open(&self) -> usize {
        self.service.most_open.load(Ordering::SeqCst)
    }

    pub(crate) async fn next_seen(&mut self) -> Seen {
        self.seen.recv().await.unwrap()
    }

    pub(crate) async fn next_request(&mut self) -> ClientMessage {
        loop {
            if let Seen::Request(request) = self.next_seen().await {
                return *request;
            }
        }
    }

    pub(crate) async fn next_closed(&mut self) -> Closed {
        loop {
            if let Seen::Closed(reason) = self.next_seen().await {
                return reason;
            }
        }
    }

    pub(crate) async fn next_dropped(&mut self) {
        while !matches!(self.next_seen().await, Seen::Dropped) {}
    }

    pub(crate) fn begin_shutdown(&self) {
        self.shutdown.cancel();
    }

    /// Waits until the listener and every connection are over.
    pub(crate) async fn stopped(&mut self) {
        self.serving.join_next().await.unwrap().unwrap();
    }
}

/// Limits short enough for a test that waits for them to be reached.
pub(crate) fn impatient() -> Limits {
    Limits {
        half_frame: Duration::from_millis(60),
        not_reading: Duration::from_millis(60),
        ..Limits::default()
    }
}

/// A peer that writes bytes, and reads frames.
pub(crate) struct Raw<IO> {
    writer: WriteHalf<IO>,
    reader: FrameReader<ReadHalf<IO>>,
}

impl<IO: AsyncRead + AsyncWrite + Unpin> Raw<IO> {
    pub(crate) fn new(io: IO) -> Self {
        let (reader, writer) = tokio::io::split(io);
        Self {
            writer,
            reader: FrameReader::new(reader, FRAME_FORMAT),
        }
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        self.writer.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn send(&mut self, request: impl Into<ClientMessage>) {
        self.write(&frame(request)).await;
    }

    pub(crate) async fn next(&mut self) -> ServerMessage {
        let frame = self.reader.next().await.unwrap();
        ServerMessage::decode(frame.expect("the connection is open")).unwrap()
    }

    /// Writes `bytes` and reads so many messages at the same time.
    pub(crate) async fn exchange(&mut self, bytes: &[u8], messages: usize) -> Vec<ServerMessage> {
        let write = async { self.writer.write_all(bytes).await.unwrap() };
        let read = async {
            let mut read = Vec::new();
            while read.len() < messages {
                let frame = self.reader.next().await.unwrap().unwrap();
                read.push(ServerMessage::decode(frame).unwrap());
            }
            read
        };
        tokio::join!(write, read).1
    }

    /// Waits until the daemon has closed the connection.
    pub(crate) async fn closed(&mut self) {
        match self.reader.next().await {
            Ok(None) | Err(_) => {}
            Ok(Some(frame)) => panic!("still open: {:?}", ServerMessage::decode(frame)),
        }
    }
}

pub(crate) fn frame(request: impl Into<ClientMessage>) -> BytesMut {
    let mut out = BytesMut::new();
    encode_request(&request.into(), &mut out).unwrap();
    out
}

pub(crate) fn stream_of(agent: &str, content: &str) -> StreamMsg {
    StreamMsg {
        agent: agent.into(),
        content: content.into(),
        ..StreamMsg::default()
    }
}

pub(crate) fn send_of(agent: &str, content: &str) -> SendMsg {
    SendMsg {
        agent: agent.into(),
        content: content.into(),
        ..SendMsg::default()
    }
}

pub(crate) fn error_code(message: &ServerMessage) -> u32 {
    match &message.msg {
        Some(server_message::Msg::Error(error)) => error.code,
        other => panic!("not an error: {other:?}"),
    }
}
