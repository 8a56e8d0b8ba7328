//! The client's side: two transport primitives, and a typed method for every request on top.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::Stream;
use pin_project_lite::pin_project;

use crate::proto::wire::{server_extension::Reply, server_message::Msg, *};
use crate::proto::{ServerError, UnexpectedMessage};

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon refused it.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The daemon answered with a message that does not belong to the request.
    #[error(transparent)]
    Unexpected(#[from] UnexpectedMessage),
    /// The connection ended before the answer did.
    #[error("the daemon closed the connection before it had answered")]
    Closed,
    /// An earlier stream was dropped before its end, so that the next answer can't be told apart.
    #[error("an earlier reply on this connection was not read to its end; connect again")]
    Abandoned,
    /// The request is over the frame limit, or the daemon's bytes are no frames.
    #[error(transparent)]
    Frame(#[from] quintet_framing::FrameError),
    /// The daemon's bytes are no message of this protocol.
    #[error("the daemon's answer can't be decoded: {0}")]
    Undecodable(#[from] prost::DecodeError),
    /// The system refused.
    #[error("the connection to the daemon failed: {0}")]
    Io(#[from] std::io::Error),
}

impl ClientError {
    /// The daemon's refusal, if that is what it was.
    pub fn refusal(&self) -> Option<&ServerError> {
        match self {
            Self::Server(error) => Some(error),
            _ => None,
        }
    }
}

/// What a method of [`Client`] that is answered once returns.
pub type Outcome<T> = Result<T, ClientError>;

/// Sends requests over one connection, one at a time.
///
/// A transport implements the two primitives. A stream that is dropped before its end leaves the
/// connection without a known place in the conversation: it is to be closed, and a turn that it
/// showed goes on and is picked up with [`attach`](Self::attach).
pub trait Client: Send {
    /// Sends a request that is answered once, and returns the answer as it came.
    fn request(
        &mut self,
        message: ClientMessage,
    ) -> impl Future<Output = Outcome<ServerMessage>> + Send;

    /// Sends a request and returns every message of its reply as it came.
    ///
    /// The stream ends after the message that [`ReplyShape`](crate::ReplyShape) says is the last,
    /// or with an error.
    fn request_stream(
        &mut self,
        message: ClientMessage,
    ) -> impl Stream<Item = Outcome<ServerMessage>> + Send;

    // --- the original protocol -----------------------------------------------------------------

    /// Runs an agent and returns its answer.
    fn send(&mut self, request: SendMsg) -> impl Future<Output = Outcome<SendResponse>> + Send {
        call(self, request)
    }

    /// Runs an agent and shows the turn; the last event is `end`.
    fn stream(&mut self, request: StreamMsg) -> impl Stream<Item = Outcome<StreamEvent>> + Send {
        follow(self, request)
    }

    /// Asks whether the daemon lives.
    fn ping(&mut self) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, PingMsg {})
    }

    /// Lists the sessions.
    fn sessions(
        &mut self,
        request: SessionsMsg,
    ) -> impl Future<Output = Outcome<SessionList>> + Send {
        call(self, request)
    }

    /// Stops a session's turn and closes it.
    fn kill(&mut self, request: KillMsg) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, request)
    }

    /// Shows the configuration, without secrets.
    fn get_config(&mut self) -> impl Future<Output = Outcome<Config>> + Send {
        call(self, GetConfigMsg {})
    }

    /// Replaces the configuration.
    fn set_config(&mut self, request: SetConfigMsg) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, request)
    }

    /// Has the configuration read again.
    fn reload(&mut self) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, ReloadMsg {})
    }

    /// Shows what agents do, without end.
    fn subscribe_events(
        &mut self,
        request: SubscribeEventsMsg,
    ) -> impl Stream<Item = Outcome<AgentEventMsg>> + Send {
        follow(self, request)
    }

    /// Answers an agent's question.
    fn reply_to_ask(
        &mut self,
        request: ReplyToAskMsg,
    ) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, request)
    }

    /// Counts what there is.
    fn get_stats(&mut self) -> impl Future<Output = Outcome<Stats>> + Send {
        call(self, GetStatsMsg {})
    }

    /// Adds a schedule.
    fn create_cron(
        &mut self,
        request: CreateCronMsg,
    ) -> impl Future<Output = Outcome<CronInfo>> + Send {
        call(self, request)
    }

    /// Removes a schedule.
    fn delete_cron(
        &mut self,
        request: DeleteCronMsg,
    ) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, request)
    }

    /// Lists the schedules.
    fn list_crons(&mut self) -> impl Future<Output = Outcome<CronList>> + Send {
        call(self, ListCronsMsg {})
    }

    /// Replaces a session's context by a summary.
    fn compact(
        &mut self,
        request: CompactMsg,
    ) -> impl Future<Output = Outcome<CompactSummary>> + Send {
        call(self, request)
    }

    // --- the extension -------------------------------------------------------------------------

    /// Exchanges versions and capabilities.
    fn hello(&mut self, request: ClientHello) -> impl Future<Output = Outcome<ServerHello>> + Send {
        call(self, request)
    }

    /// Speaks into the running turn.
    fn steer(&mut self, request: SteerMsg) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Stops the running turn.
    fn cancel(&mut self, request: CancelMsg) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Runs the message again whose turn failed; the last event is `end`.
    fn retry(&mut self, request: RetryMsg) -> impl Stream<Item = Outcome<StreamEvent>> + Send {
        follow(self, request)
    }

    /// Shows a session's stream from a cursor to the end of the turn that runs.
    fn attach(&mut self, request: AttachMsg) -> impl Stream<Item = Outcome<StreamEvent>> + Send {
        follow(self, request)
    }

    /// Reads the journal.
    fn events(&mut self, request: EventsMsg) -> impl Stream<Item = Outcome<JournalEvent>> + Send {
        follow(self, request)
    }

    /// Asks how large the journal is.
    fn journal_report(&mut self) -> impl Future<Output = Outcome<JournalReport>> + Send {
        call(self, JournalReportMsg {})
    }

    /// Removes the journal's oldest events.
    fn journal_prune(
        &mut self,
        request: JournalPruneMsg,
    ) -> impl Future<Output = Outcome<JournalPruned>> + Send {
        call(self, request)
    }

    /// Lists the messages that wait for their turn.
    fn queue_list(
        &mut self,
        request: QueueListMsg,
    ) -> impl Future<Output = Outcome<QueueList>> + Send {
        call(self, request)
    }

    /// Changes a waiting message.
    fn queue_edit(
        &mut self,
        request: QueueEditMsg,
    ) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Removes a waiting message.
    fn queue_remove(
        &mut self,
        request: QueueRemoveMsg,
    ) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Lists the questions that wait for an answer.
    fn asks(&mut self) -> impl Future<Output = Outcome<AskList>> + Send {
        call(self, AsksMsg {})
    }

    /// Lists the approvals that wait for an answer.
    fn approvals(&mut self) -> impl Future<Output = Outcome<ApprovalList>> + Send {
        call(self, ApprovalsMsg {})
    }

    /// Answers an approval.
    fn answer_approval(
        &mut self,
        request: AnswerApprovalMsg,
    ) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Names a session.
    fn set_title(
        &mut self,
        request: SetTitleMsg,
    ) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Writes a session as what `resume_file` takes.
    fn export_session(
        &mut self,
        request: ExportSessionMsg,
    ) -> impl Future<Output = Outcome<SessionExport>> + Send {
        call(self, request)
    }

    /// Puts back what the last compaction replaced.
    fn compact_undo(
        &mut self,
        request: CompactUndoMsg,
    ) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Lists the occurrences of one schedule or of all.
    fn cron_runs(
        &mut self,
        request: CronRunsMsg,
    ) -> impl Future<Output = Outcome<CronRunList>> + Send {
        call(self, request)
    }

    /// Lists the agents and their processes.
    fn agents(&mut self) -> impl Future<Output = Outcome<AgentList>> + Send {
        call(self, AgentsMsg {})
    }

    /// Shows what an agent's process printed.
    fn agent_logs(&mut self, request: AgentLogsMsg) -> impl Stream<Item = Outcome<LogLine>> + Send {
        follow(self, request)
    }

    /// Restarts an agent's process.
    fn agent_restart(
        &mut self,
        request: AgentRestartMsg,
    ) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Lists the workers.
    fn workers(&mut self) -> impl Future<Output = Outcome<WorkerList>> + Send {
        call(self, WorkersMsg {})
    }

    /// Runs a command on a worker; dropped, it is cancelled.
    fn exec(&mut self, request: ExecMsg) -> impl Stream<Item = Outcome<CommandEvent>> + Send {
        follow(self, request)
    }

    /// Gives input to a command of another connection.
    fn exec_input(&mut self, request: ExecInputMsg) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, request)
    }

    /// Kills the process tree of a command of another connection.
    fn exec_cancel(
        &mut self,
        request: ExecCancelMsg,
    ) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, request)
    }

    /// Starts or attaches to a shell; dropped, it is left running.
    fn shell(&mut self, request: ShellMsg) -> impl Stream<Item = Outcome<CommandEvent>> + Send {
        follow(self, request)
    }

    /// Types into a shell of another connection.
    fn shell_input(
        &mut self,
        request: ShellInputMsg,
    ) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, request)
    }

    /// Tells a shell of another connection the terminal's size.
    fn shell_resize(
        &mut self,
        request: ShellResizeMsg,
    ) -> impl Future<Output = Outcome<Pong>> + Send {
        call(self, request)
    }

    /// Lists the commands and shells that a worker keeps.
    fn jobs(&mut self, request: JobsMsg) -> impl Future<Output = Outcome<JobList>> + Send {
        call(self, request)
    }

    /// Copies files between a worker and the daemon's machine.
    fn copy(&mut self, request: CopyMsg) -> impl Stream<Item = Outcome<CopyProgress>> + Send {
        follow(self, request)
    }

    /// Takes back what the last commands of a session did to files.
    fn undo(&mut self, request: UndoMsg) -> impl Future<Output = Outcome<UndoReport>> + Send {
        call(self, request)
    }

    /// Makes a worker's token.
    fn token_create(
        &mut self,
        request: TokenCreateMsg,
    ) -> impl Future<Output = Outcome<TokenCreated>> + Send {
        call(self, request)
    }

    /// Lists the tokens.
    fn token_list(&mut self) -> impl Future<Output = Outcome<TokenList>> + Send {
        call(self, TokenListMsg {})
    }

    /// Takes a token back.
    fn token_revoke(
        &mut self,
        request: TokenRevokeMsg,
    ) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }

    /// Makes a code that a browser pairs with.
    fn pair(&mut self) -> impl Future<Output = Outcome<PairingCode>> + Send {
        call(self, PairMsg {})
    }

    /// Lists the browsers that are paired.
    fn devices(&mut self) -> impl Future<Output = Outcome<DeviceList>> + Send {
        call(self, DevicesMsg {})
    }

    /// Ends a browser's pairing.
    fn device_revoke(
        &mut self,
        request: DeviceRevokeMsg,
    ) -> impl Future<Output = Outcome<Accepted>> + Send {
        call(self, request)
    }
}

async fn call<C, Q, R>(client: &mut C, request: Q) -> Outcome<R>
where
    C: Client + ?Sized,
    Q: Into<ClientMessage> + Send,
    R: TryFrom<ServerMessage, Error = UnexpectedMessage>,
{
    unwrap(client.request(request.into()).await?)
}

fn follow<C, Q, R>(client: &mut C, request: Q) -> impl Stream<Item = Outcome<R>> + Send
where
    C: Client + ?Sized,
    Q: Into<ClientMessage>,
    R: TryFrom<ServerMessage, Error = UnexpectedMessage> + Send,
{
    Typed {
        messages: client.request_stream(request.into()),
        reply: PhantomData,
    }
}

pin_project! {
    /// The messages of a reply as what they hold, without the `done` behind them.
    struct Typed<S, R> {
        #[pin]
        messages: S,
        reply: PhantomData<fn() -> R>,
    }
}

impl<S, R> Stream for Typed<S, R>
where
    S: Stream<Item = Outcome<ServerMessage>>,
    R: TryFrom<ServerMessage, Error = UnexpectedMessage>,
{
    type Item = Outcome<R>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Outcome<R>>> {
        poll_typed(self.project().messages, cx)
    }
}

/// The next message of a reply as what it holds, without the `done` behind the last.
pub(crate) fn poll_typed<R>(
    mut messages: Pin<&mut impl Stream<Item = Outcome<ServerMessage>>>,
    cx: &mut Context<'_>,
) -> Poll<Option<Outcome<R>>>
where
    R: TryFrom<ServerMessage, Error = UnexpectedMessage>,
{
    loop {
        return Poll::Ready(match ready!(messages.as_mut().poll_next(cx)) {
            Some(Ok(ServerMessage {
                msg: Some(Msg::Extension(extension)),
            })) if matches!(extension.reply, Some(Reply::Done(_))) => continue,
            Some(Ok(message)) => Some(unwrap(message)),
            Some(Err(error)) => Some(Err(error)),
            None => None,
        });
    }
}

fn unwrap<R>(message: ServerMessage) -> Outcome<R>
where
    R: TryFrom<ServerMessage, Error = UnexpectedMessage>,
{
    match message.msg {
        Some(Msg::Error(refusal)) => Err(ServerError::from(refusal).into()),
        msg => Ok(R::try_from(ServerMessage { msg })?),
    }
}
