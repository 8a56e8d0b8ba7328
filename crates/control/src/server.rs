//! The server's side: one method a request, and the dispatch that routes to them.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use futures_util::{Stream, stream};
use pin_project_lite::pin_project;
use quintet_framing::FrameError;

use crate::proto::wire::{client_extension::Request, client_message::Msg, *};
use crate::proto::{PROTOCOL_VERSION, ReplyShape, ServerError, append_reply, encode_reply};

/// What a method of [`Server`] that answers once returns.
pub type Answer<T> = Result<T, ServerError>;

/// Serves the requests of one client, or of many.
///
/// Implementations write `async fn` for the methods that answer once. A method that returns a
/// stream must not do its work before the stream is polled, and must expect the stream to be
/// dropped at any point: that is how a client goes away, and it must not stop a turn.
///
/// The transports call [`dispatch`](Self::dispatch) with one request at a time for each
/// connection, and for many connections at once.
///
/// The requests of the original protocol have to be served. Those of the extension are refused
/// with 400 unless they are implemented.
pub trait Server: Send + Sync {
    // --- the original protocol -----------------------------------------------------------------

    /// Runs an agent to the end of its turn. 404: unknown session or agent. A turn that fails is
    /// an error.
    fn send(&self, request: SendMsg) -> impl Future<Output = Answer<SendResponse>> + Send;

    /// Runs an agent; the last event is `end`. 404: unknown session or agent.
    fn stream(&self, request: StreamMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send;

    /// Says that the daemon lives.
    fn ping(&self, request: PingMsg) -> impl Future<Output = Answer<Pong>> + Send;

    /// Lists the sessions.
    fn sessions(&self, request: SessionsMsg) -> impl Future<Output = Answer<SessionList>> + Send;

    /// Stops a session's turn and closes it. 404: unknown session.
    fn kill(&self, request: KillMsg) -> impl Future<Output = Answer<Pong>> + Send;

    /// Shows the configuration, without secrets.
    fn get_config(&self, request: GetConfigMsg) -> impl Future<Output = Answer<Config>> + Send;

    /// Replaces the configuration. 400: every key at fault.
    fn set_config(&self, request: SetConfigMsg) -> impl Future<Output = Answer<Pong>> + Send;

    /// Reads the configuration again. 400: the line at fault; the old one stays.
    fn reload(&self, request: ReloadMsg) -> impl Future<Output = Answer<Pong>> + Send;

    /// Shows what agents do, until the client goes away.
    fn subscribe_events(
        &self,
        request: SubscribeEventsMsg,
    ) -> impl Stream<Item = Answer<AgentEventMsg>> + Send;

    /// Answers an agent's question. 404: nothing is pending.
    fn reply_to_ask(&self, request: ReplyToAskMsg) -> impl Future<Output = Answer<Pong>> + Send;

    /// Counts what there is.
    fn get_stats(&self, request: GetStatsMsg) -> impl Future<Output = Answer<Stats>> + Send;

    /// Adds a schedule. 400: bad schedule or time. 404: unknown session or skill.
    fn create_cron(&self, request: CreateCronMsg) -> impl Future<Output = Answer<CronInfo>> + Send;

    /// Removes a schedule. 404: unknown id.
    fn delete_cron(&self, request: DeleteCronMsg) -> impl Future<Output = Answer<Pong>> + Send;

    /// Lists the schedules.
    fn list_crons(&self, request: ListCronsMsg) -> impl Future<Output = Answer<CronList>> + Send;

    /// Replaces a session's context by a summary. 404: unknown session.
    fn compact(&self, request: CompactMsg) -> impl Future<Output = Answer<CompactSummary>> + Send;

    // --- the extension -------------------------------------------------------------------------

    /// Exchanges versions and capabilities. The transport has checked the token and removed it.
    fn hello(&self, request: ClientHello) -> impl Future<Output = Answer<ServerHello>> + Send {
        let _ = request;
        async {
            Ok(ServerHello {
                version: PROTOCOL_VERSION,
                capabilities: Vec::new(),
                server: concat!("quintet ", env!("CARGO_PKG_VERSION")).to_owned(),
            })
        }
    }

    /// Speaks into the running turn. 404: unknown session. 409: no turn runs.
    fn steer(&self, request: SteerMsg) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Stops the running turn. 404: unknown session. 409: no turn runs.
    fn cancel(&self, request: CancelMsg) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Runs the message again whose turn failed; the last event is `end`. 404: unknown session.
    /// 409: the last turn did not fail.
    fn retry(&self, request: RetryMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        unsupported_stream(request)
    }

    /// Shows a session's stream from a cursor to the end of the turn that runs. 404: unknown
    /// session.
    fn attach(&self, request: AttachMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        unsupported_stream(request)
    }

    /// Reads the journal. 404: unknown session.
    fn events(&self, request: EventsMsg) -> impl Stream<Item = Answer<JournalEvent>> + Send {
        unsupported_stream(request)
    }

    /// Says how large the journal is.
    fn journal_report(
        &self,
        request: JournalReportMsg,
    ) -> impl Future<Output = Answer<JournalReport>> + Send {
        unsupported(request)
    }

    /// Removes the journal's oldest events. 400: nothing says which.
    fn journal_prune(
        &self,
        request: JournalPruneMsg,
    ) -> impl Future<Output = Answer<JournalPruned>> + Send {
        unsupported(request)
    }

    /// Lists the messages that wait for their turn.
    fn queue_list(&self, request: QueueListMsg) -> impl Future<Output = Answer<QueueList>> + Send {
        unsupported(request)
    }

    /// Changes a waiting message. 404: unknown id. 409: its turn has begun.
    fn queue_edit(&self, request: QueueEditMsg) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Removes a waiting message. 404: unknown id. 409: its turn has begun.
    fn queue_remove(
        &self,
        request: QueueRemoveMsg,
    ) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Lists the questions that wait for an answer.
    fn asks(&self, request: AsksMsg) -> impl Future<Output = Answer<AskList>> + Send {
        unsupported(request)
    }

    /// Lists the approvals that wait for an answer.
    fn approvals(
        &self,
        request: ApprovalsMsg,
    ) -> impl Future<Output = Answer<ApprovalList>> + Send {
        unsupported(request)
    }

    /// Answers an approval. 404: unknown id. 409: somebody was first.
    fn answer_approval(
        &self,
        request: AnswerApprovalMsg,
    ) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Names a session. 404: unknown session.
    fn set_title(&self, request: SetTitleMsg) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Writes a session as what `resume_file` takes. 404: unknown session.
    fn export_session(
        &self,
        request: ExportSessionMsg,
    ) -> impl Future<Output = Answer<SessionExport>> + Send {
        unsupported(request)
    }

    /// Puts back what the last compaction replaced. 404: unknown session. 409: nothing to undo.
    fn compact_undo(
        &self,
        request: CompactUndoMsg,
    ) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Lists the occurrences of one schedule or of all. 404: unknown id.
    fn cron_runs(&self, request: CronRunsMsg) -> impl Future<Output = Answer<CronRunList>> + Send {
        unsupported(request)
    }

    /// Lists the agents and their processes.
    fn agents(&self, request: AgentsMsg) -> impl Future<Output = Answer<AgentList>> + Send {
        unsupported(request)
    }

    /// Shows what an agent's process printed. 404: unknown agent id.
    fn agent_logs(&self, request: AgentLogsMsg) -> impl Stream<Item = Answer<LogLine>> + Send {
        unsupported_stream(request)
    }

    /// Restarts an agent's process. 404: unknown agent id.
    fn agent_restart(
        &self,
        request: AgentRestartMsg,
    ) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Lists the workers.
    fn workers(&self, request: WorkersMsg) -> impl Future<Output = Answer<WorkerList>> + Send {
        unsupported(request)
    }

    /// Runs a command on a worker. 404: unknown worker or job. 409: the worker is not online.
    fn exec(&self, request: ExecMsg) -> impl Stream<Item = Answer<CommandEvent>> + Send {
        unsupported_stream(request)
    }

    /// Gives input to a command. 404: nothing with that id runs.
    fn exec_input(&self, request: ExecInputMsg) -> impl Future<Output = Answer<Pong>> + Send {
        unsupported(request)
    }

    /// Kills a command's process tree. 404: nothing with that id runs.
    fn exec_cancel(&self, request: ExecCancelMsg) -> impl Future<Output = Answer<Pong>> + Send {
        unsupported(request)
    }

    /// Starts or attaches to a shell. 404: unknown worker or job. 409: the worker is not online.
    fn shell(&self, request: ShellMsg) -> impl Stream<Item = Answer<CommandEvent>> + Send {
        unsupported_stream(request)
    }

    /// Types into a shell. 404: nothing with that id runs.
    fn shell_input(&self, request: ShellInputMsg) -> impl Future<Output = Answer<Pong>> + Send {
        unsupported(request)
    }

    /// Tells a shell the terminal's size. 404: nothing with that id runs.
    fn shell_resize(&self, request: ShellResizeMsg) -> impl Future<Output = Answer<Pong>> + Send {
        unsupported(request)
    }

    /// Lists the commands and shells that a worker keeps. 404: unknown worker.
    fn jobs(&self, request: JobsMsg) -> impl Future<Output = Answer<JobList>> + Send {
        unsupported(request)
    }

    /// Copies files. 400: over TCP, or a path that can't be used. 404: unknown worker.
    fn copy(&self, request: CopyMsg) -> impl Stream<Item = Answer<CopyProgress>> + Send {
        unsupported_stream(request)
    }

    /// Takes back what the last commands of a session did to files. 404: unknown session. 409:
    /// there is nothing to take back.
    fn undo(&self, request: UndoMsg) -> impl Future<Output = Answer<UndoReport>> + Send {
        unsupported(request)
    }

    /// Makes a worker's token.
    fn token_create(
        &self,
        request: TokenCreateMsg,
    ) -> impl Future<Output = Answer<TokenCreated>> + Send {
        unsupported(request)
    }

    /// Lists the tokens, without what opens anything.
    fn token_list(&self, request: TokenListMsg) -> impl Future<Output = Answer<TokenList>> + Send {
        unsupported(request)
    }

    /// Takes a token back. 404: unknown id. 409: it was taken back before.
    fn token_revoke(
        &self,
        request: TokenRevokeMsg,
    ) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Makes a code that a browser pairs with. 409: pairing is locked after wrong tries.
    fn pair(&self, request: PairMsg) -> impl Future<Output = Answer<PairingCode>> + Send {
        unsupported(request)
    }

    /// Lists the browsers that are paired.
    fn devices(&self, request: DevicesMsg) -> impl Future<Output = Answer<DeviceList>> + Send {
        unsupported(request)
    }

    /// Ends a browser's pairing and every connection of it. 404: unknown id.
    fn device_revoke(
        &self,
        request: DeviceRevokeMsg,
    ) -> impl Future<Output = Answer<Accepted>> + Send {
        unsupported(request)
    }

    /// Routes a request to its method and wraps what comes back.
    ///
    /// The stream is never empty, its last message is the one that [`ReplyShape`] says, and
    /// nothing follows it. A message without a known request in it is answered with 400.
    fn dispatch(&self, message: ClientMessage) -> impl ReplyStream + Send {
        use ReplyShape::{Endless, UntilDone, UntilEnd};
        let request = match message.msg {
            Some(Msg::Stream(request)) => {
                let replies = Relay::new(self.stream(request), UntilEnd);
                return Replies::Stream { replies };
            }
            Some(Msg::SubscribeEvents(request)) => {
                let replies = Relay::new(self.subscribe_events(request), Endless);
                return Replies::SubscribeEvents { replies };
            }
            Some(Msg::Extension(extension)) => match extension.request {
                Some(Request::Retry(request)) => {
                    let replies = Relay::new(self.retry(request), UntilEnd);
                    return Replies::Retry { replies };
                }
                Some(Request::Attach(request)) => {
                    let replies = Relay::new(self.attach(request), UntilDone);
                    return Replies::Attach { replies };
                }
                Some(Request::Events(request)) => {
                    let replies = Relay::new(self.events(request), UntilDone);
                    return Replies::Events { replies };
                }
                Some(Request::AgentLogs(request)) => {
                    let replies = Relay::new(self.agent_logs(request), UntilDone);
                    return Replies::AgentLogs { replies };
                }
                Some(Request::Exec(request)) => {
                    let replies = Relay::new(self.exec(request), UntilDone);
                    return Replies::Exec { replies };
                }
                Some(Request::Shell(request)) => {
                    let replies = Relay::new(self.shell(request), UntilDone);
                    return Replies::Shell { replies };
                }
                Some(Request::Copy(request)) => {
                    let replies = Relay::new(self.copy(request), UntilDone);
                    return Replies::Copy { replies };
                }
                request => Some(Msg::Extension(ClientExtension { request })),
            },
            request => request,
        };
        Replies::One {
            reply: stream::once(answer(self, request)),
        }
    }
}

/// The messages of one reply, which a connection takes as frames.
pub trait ReplyStream: Stream<Item = ServerMessage> {
    /// Appends the next message to `out` as one frame, or returns `None` after the last.
    ///
    /// The same as to poll it and to encode it, in one step: a message is large, and a piece of
    /// text that is never moved as one costs half as much.
    fn poll_append(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<Result<(), FrameError>>>;
}

/// Answers a request that is answered once.
async fn answer<S: Server + ?Sized>(server: &S, request: Option<Msg>) -> ServerMessage {
    let Some(request) = request else {
        return unknown_request();
    };
    match request {
        Msg::Ping(request) => wrap(server.ping(request).await),
        Msg::Send(request) => wrap(server.send(request).await),
        Msg::Sessions(request) => wrap(server.sessions(request).await),
        Msg::Kill(request) => wrap(server.kill(request).await),
        Msg::GetConfig(request) => wrap(server.get_config(request).await),
        Msg::SetConfig(request) => wrap(server.set_config(request).await),
        Msg::Reload(request) => wrap(server.reload(request).await),
        Msg::ReplyToAsk(request) => wrap(server.reply_to_ask(request).await),
        Msg::GetStats(request) => wrap(server.get_stats(request).await),
        Msg::CreateCron(request) => wrap(server.create_cron(request).await),
        Msg::DeleteCron(request) => wrap(server.delete_cron(request).await),
        Msg::ListCrons(request) => wrap(server.list_crons(request).await),
        Msg::Compact(request) => wrap(server.compact(request).await),
        Msg::Stream(_) | Msg::SubscribeEvents(_) => streamed(),
        Msg::Extension(ClientExtension { request: None }) => unknown_request(),
        Msg::Extension(ClientExtension {
            request: Some(request),
        }) => match request {
            Request::Hello(request) => wrap(server.hello(request).await),
            Request::Steer(request) => wrap(server.steer(request).await),
            Request::Cancel(request) => wrap(server.cancel(request).await),
            Request::JournalReport(request) => wrap(server.journal_report(request).await),
            Request::JournalPrune(request) => wrap(server.journal_prune(request).await),
            Request::QueueList(request) => wrap(server.queue_list(request).await),
            Request::QueueEdit(request) => wrap(server.queue_edit(request).await),
            Request::QueueRemove(request) => wrap(server.queue_remove(request).await),
            Request::Asks(request) => wrap(server.asks(request).await),
            Request::Approvals(request) => wrap(server.approvals(request).await),
            Request::AnswerApproval(request) => wrap(server.answer_approval(request).await),
            Request::SetTitle(request) => wrap(server.set_title(request).await),
            Request::ExportSession(request) => wrap(server.export_session(request).await),
            Request::CompactUndo(request) => wrap(server.compact_undo(request).await),
            Request::CronRuns(request) => wrap(server.cron_runs(request).await),
            Request::Agents(request) => wrap(server.agents(request).await),
            Request::AgentRestart(request) => wrap(server.agent_restart(request).await),
            Request::Workers(request) => wrap(server.workers(request).await),
            Request::ExecInput(request) => wrap(server.exec_input(request).await),
            Request::ExecCancel(request) => wrap(server.exec_cancel(request).await),
            Request::ShellInput(request) => wrap(server.shell_input(request).await),
            Request::ShellResize(request) => wrap(server.shell_resize(request).await),
            Request::Jobs(request) => wrap(server.jobs(request).await),
            Request::Undo(request) => wrap(server.undo(request).await),
            Request::TokenCreate(request) => wrap(server.token_create(request).await),
            Request::TokenList(request) => wrap(server.token_list(request).await),
            Request::TokenRevoke(request) => wrap(server.token_revoke(request).await),
            Request::Pair(request) => wrap(server.pair(request).await),
            Request::Devices(request) => wrap(server.devices(request).await),
            Request::DeviceRevoke(request) => wrap(server.device_revoke(request).await),
            Request::Retry(_)
            | Request::Attach(_)
            | Request::Events(_)
            | Request::AgentLogs(_)
            | Request::Exec(_)
            | Request::Shell(_)
            | Request::Copy(_) => streamed(),
        },
    }
}

pin_project! {
    /// The reply to one request: a kind of stream for each that streams, and one for all others.
    #[project = RepliesProjection]
    enum Replies<One, Stream, SubscribeEvents, Retry, Attach, Events, AgentLogs, Exec, Shell, Copy> {
        One { #[pin] reply: One },
        Stream { #[pin] replies: Stream },
        SubscribeEvents { #[pin] replies: SubscribeEvents },
        Retry { #[pin] replies: Retry },
        Attach { #[pin] replies: Attach },
        Events { #[pin] replies: Events },
        AgentLogs { #[pin] replies: AgentLogs },
        Exec { #[pin] replies: Exec },
        Shell { #[pin] replies: Shell },
        Copy { #[pin] replies: Copy },
    }
}

impl<O, S, U, R, A, E, L, X, H, C> Stream for Replies<O, S, U, R, A, E, L, X, H, C>
where
    O: Stream<Item = ServerMessage>,
    S: Stream<Item = ServerMessage>,
    U: Stream<Item = ServerMessage>,
    R: Stream<Item = ServerMessage>,
    A: Stream<Item = ServerMessage>,
    E: Stream<Item = ServerMessage>,
    L: Stream<Item = ServerMessage>,
    X: Stream<Item = ServerMessage>,
    H: Stream<Item = ServerMessage>,
    C: Stream<Item = ServerMessage>,
{
    type Item = ServerMessage;

    #[inline]
    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ServerMessage>> {
        match self.project() {
            RepliesProjection::One { reply } => reply.poll_next(cx),
            RepliesProjection::Stream { replies } => replies.poll_next(cx),
            RepliesProjection::SubscribeEvents { replies } => replies.poll_next(cx),
            RepliesProjection::Retry { replies } => replies.poll_next(cx),
            RepliesProjection::Attach { replies } => replies.poll_next(cx),
            RepliesProjection::Events { replies } => replies.poll_next(cx),
            RepliesProjection::AgentLogs { replies } => replies.poll_next(cx),
            RepliesProjection::Exec { replies } => replies.poll_next(cx),
            RepliesProjection::Shell { replies } => replies.poll_next(cx),
            RepliesProjection::Copy { replies } => replies.poll_next(cx),
        }
    }
}

impl<O, S, U, R, A, E, L, X, H, C> ReplyStream for Replies<O, S, U, R, A, E, L, X, H, C>
where
    O: Stream<Item = ServerMessage>,
    S: ReplyStream,
    U: ReplyStream,
    R: ReplyStream,
    A: ReplyStream,
    E: ReplyStream,
    L: ReplyStream,
    X: ReplyStream,
    H: ReplyStream,
    C: ReplyStream,
{
    #[inline]
    fn poll_append(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<Result<(), FrameError>>> {
        match self.project() {
            RepliesProjection::One { reply } => {
                let message = ready!(reply.poll_next(cx));
                Poll::Ready(message.map(|message| append_reply(message, out)))
            }
            RepliesProjection::Stream { replies } => replies.poll_append(cx, out),
            RepliesProjection::SubscribeEvents { replies } => replies.poll_append(cx, out),
            RepliesProjection::Retry { replies } => replies.poll_append(cx, out),
            RepliesProjection::Attach { replies } => replies.poll_append(cx, out),
            RepliesProjection::Events { replies } => replies.poll_append(cx, out),
            RepliesProjection::AgentLogs { replies } => replies.poll_append(cx, out),
            RepliesProjection::Exec { replies } => replies.poll_append(cx, out),
            RepliesProjection::Shell { replies } => replies.poll_append(cx, out),
            RepliesProjection::Copy { replies } => replies.poll_append(cx, out),
        }
    }
}

fn wrap<T: Into<ServerMessage>>(answer: Answer<T>) -> ServerMessage {
    match answer {
        Ok(reply) => reply.into(),
        Err(error) => error.into(),
    }
}

fn unknown_request() -> ServerMessage {
    ServerError::bad_request(
        "the message holds no request that this daemon knows; is the client newer than it?",
    )
    .into()
}

fn streamed() -> ServerMessage {
    ServerError::internal("this request has no single answer").into()
}

fn unsupported<T>(request: impl Into<ClientMessage>) -> impl Future<Output = Answer<T>> + Send
where
    T: Send,
{
    std::future::ready(Err(refusal(request)))
}

fn unsupported_stream<T>(request: impl Into<ClientMessage>) -> impl Stream<Item = Answer<T>> + Send
where
    T: Send,
{
    stream::iter([Err(refusal(request))])
}

fn refusal(request: impl Into<ClientMessage>) -> ServerError {
    ServerError::unsupported(request.into().kind())
}

pin_project! {
    /// A handler's stream as the messages of one reply: ends after the last one, and always has one.
    struct Relay<S> {
        #[pin]
        replies: S,
        shape: ReplyShape,
        finished: bool,
    }
}

impl<S> Relay<S> {
    fn new(replies: S, shape: ReplyShape) -> Self {
        Self {
            replies,
            shape,
            finished: false,
        }
    }
}

impl<S, T> Stream for Relay<S>
where
    S: Stream<Item = Answer<T>>,
    T: Into<ServerMessage>,
{
    type Item = ServerMessage;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<ServerMessage>> {
        let this = self.project();
        if *this.finished {
            return Poll::Ready(None);
        }
        let message = match ready!(this.replies.poll_next(cx)) {
            Some(Ok(reply)) => reply.into(),
            Some(Err(error)) => error.into(),
            None => this.shape.closing(),
        };
        *this.finished = this.shape.is_last(&message);
        Poll::Ready(Some(message))
    }
}

impl<S, T> ReplyStream for Relay<S>
where
    S: Stream<Item = Answer<T>>,
    T: Into<ServerMessage>,
{
    fn poll_append(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut BytesMut,
    ) -> Poll<Option<Result<(), FrameError>>> {
        let this = self.project();
        if *this.finished {
            return Poll::Ready(None);
        }
        let last = match ready!(this.replies.poll_next(cx)) {
            Some(Ok(reply)) => {
                let message = reply.into();
                *this.finished = this.shape.is_last(&message);
                return Poll::Ready(Some(append_reply(message, out)));
            }
            Some(Err(error)) => error.into(),
            None => this.shape.closing(),
        };
        *this.finished = true;
        Poll::Ready(Some(encode_reply(&last, out)))
    }
}
