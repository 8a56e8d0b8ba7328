//! Conversions between a typed message and its envelope.
//!
//! `From` wraps, `TryFrom` unwraps and refuses another variant with [`UnexpectedMessage`]. The
//! tables below name every variant once; a variant of the schema that is missing here does not
//! compile, because `kind` matches exhaustively.

use std::fmt;

use super::ServerError;
use super::wire::*;

/// An envelope held another message than the one that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, got {got}; the peers disagree on what was asked")]
pub struct UnexpectedMessage {
    /// The variant that was asked for.
    pub expected: &'static str,
    /// The variant that was there, or "empty".
    pub got: &'static str,
}

macro_rules! envelope {
    (@take $message:ident boxed) => { *$message };
    (@take $message:ident) => { $message };
    (
        $envelope:ident, $oneof:path, $extension:ident { $field:ident: $inner:path };
        original { $($message:ident = $variant:ident $name:literal $($boxed:ident)?,)+ }
        extension { $($ext_message:ident = $ext_variant:ident $ext_name:literal,)+ }
    ) => {
        impl $envelope {
            /// The name of the variant inside, as the schema writes it; "empty" when there is none.
            pub fn kind(&self) -> &'static str {
                use $oneof as Msg;
                use $inner as Inner;
                match &self.msg {
                    $(Some(Msg::$variant(_)) => $name,)+
                    Some(Msg::Extension(extension)) => match &extension.$field {
                        $(Some(Inner::$ext_variant(_)) => $ext_name,)+
                        None => "empty",
                    },
                    None => "empty",
                }
            }
        }

        $(
            impl From<$message> for $envelope {
                #[inline]
                fn from(message: $message) -> Self {
                    use $oneof as Msg;
                    Self { msg: Some(Msg::$variant(message.into())) }
                }
            }

            impl TryFrom<$envelope> for $message {
                type Error = UnexpectedMessage;

                #[inline]
                fn try_from(envelope: $envelope) -> Result<Self, UnexpectedMessage> {
                    use $oneof as Msg;
                    match envelope.msg {
                        Some(Msg::$variant(message)) => Ok(envelope!(@take message $($boxed)?)),
                        msg => {
                            let got = $envelope { msg }.kind();
                            Err(UnexpectedMessage { expected: $name, got })
                        }
                    }
                }
            }
        )+

        $(
            impl From<$ext_message> for $envelope {
                fn from(message: $ext_message) -> Self {
                    use $oneof as Msg;
                    use $inner as Inner;
                    Self {
                        msg: Some(Msg::Extension(
                            $extension { $field: Some(Inner::$ext_variant(message)) }.into(),
                        )),
                    }
                }
            }

            impl TryFrom<$envelope> for $ext_message {
                type Error = UnexpectedMessage;

                #[inline]
                fn try_from(envelope: $envelope) -> Result<Self, UnexpectedMessage> {
                    use $oneof as Msg;
                    use $inner as Inner;
                    let got = envelope.kind();
                    if let Some(Msg::Extension(extension)) = envelope.msg
                        && let Some(Inner::$ext_variant(message)) = extension.$field
                    {
                        return Ok(message);
                    }
                    Err(UnexpectedMessage { expected: $ext_name, got })
                }
            }
        )+
    };
}

envelope! {
    ClientMessage, client_message::Msg, ClientExtension { request: client_extension::Request };
    original {
        SendMsg = Send "send",
        StreamMsg = Stream "stream",
        PingMsg = Ping "ping",
        SessionsMsg = Sessions "sessions",
        KillMsg = Kill "kill",
        GetConfigMsg = GetConfig "get_config",
        SetConfigMsg = SetConfig "set_config",
        ReloadMsg = Reload "reload",
        SubscribeEventsMsg = SubscribeEvents "subscribe_events",
        ReplyToAskMsg = ReplyToAsk "reply_to_ask",
        GetStatsMsg = GetStats "get_stats",
        CreateCronMsg = CreateCron "create_cron",
        DeleteCronMsg = DeleteCron "delete_cron",
        ListCronsMsg = ListCrons "list_crons",
        CompactMsg = Compact "compact",
    }
    extension {
        ClientHello = Hello "hello",
        SteerMsg = Steer "steer",
        CancelMsg = Cancel "cancel",
        RetryMsg = Retry "retry",
        AttachMsg = Attach "attach",
        EventsMsg = Events "events",
        JournalReportMsg = JournalReport "journal_report",
        JournalPruneMsg = JournalPrune "journal_prune",
        QueueListMsg = QueueList "queue_list",
        QueueEditMsg = QueueEdit "queue_edit",
        QueueRemoveMsg = QueueRemove "queue_remove",
        AsksMsg = Asks "asks",
        ApprovalsMsg = Approvals "approvals",
        AnswerApprovalMsg = AnswerApproval "answer_approval",
        SetTitleMsg = SetTitle "set_title",
        ExportSessionMsg = ExportSession "export_session",
        CompactUndoMsg = CompactUndo "compact_undo",
        CronRunsMsg = CronRuns "cron_runs",
        AgentsMsg = Agents "agents",
        AgentLogsMsg = AgentLogs "agent_logs",
        AgentRestartMsg = AgentRestart "agent_restart",
        WorkersMsg = Workers "workers",
        ExecMsg = Exec "exec",
        ExecInputMsg = ExecInput "exec_input",
        ExecCancelMsg = ExecCancel "exec_cancel",
        ShellMsg = Shell "shell",
        ShellInputMsg = ShellInput "shell_input",
        ShellResizeMsg = ShellResize "shell_resize",
        JobsMsg = Jobs "jobs",
        CopyMsg = Copy "copy",
        UndoMsg = Undo "undo",
        TokenCreateMsg = TokenCreate "token_create",
        TokenListMsg = TokenList "token_list",
        TokenRevokeMsg = TokenRevoke "token_revoke",
        PairMsg = Pair "pair",
        DevicesMsg = Devices "devices",
        DeviceRevokeMsg = DeviceRevoke "device_revoke",
    }
}

envelope! {
    ServerMessage, server_message::Msg, ServerExtension { reply: server_extension::Reply };
    original {
        SendResponse = Response "response" boxed,
        StreamEvent = Stream "stream",
        ErrorMsg = Error "error",
        Pong = Pong "pong",
        SessionList = Sessions "sessions",
        Config = Config "config",
        AgentEventMsg = AgentEvent "agent_event" boxed,
        Stats = Stats "stats" boxed,
        CronInfo = CronInfo "cron_info" boxed,
        CronList = CronList "cron_list",
        CompactSummary = Compact "compact",
    }
    extension {
        ServerHello = Hello "hello",
        Done = Done "done",
        Accepted = Accepted "accepted",
        JournalEvent = Event "event",
        JournalReport = JournalReport "journal_report",
        JournalPruned = JournalPruned "journal_pruned",
        QueueList = QueueList "queue_list",
        AskList = Asks "asks",
        ApprovalList = Approvals "approvals",
        SessionExport = SessionExport "session_export",
        CronRunList = CronRuns "cron_runs",
        AgentList = Agents "agents",
        LogLine = LogLine "log_line",
        WorkerList = Workers "workers",
        CommandEvent = CommandEvent "command_event",
        JobList = Jobs "jobs",
        CopyProgress = CopyProgress "copy_progress",
        UndoReport = UndoReport "undo_report",
        TokenCreated = TokenCreated "token_created",
        TokenList = Tokens "tokens",
        PairingCode = PairingCode "pairing_code",
        DeviceList = Devices "devices",
    }
}

impl From<ServerError> for ServerMessage {
    fn from(error: ServerError) -> Self {
        ErrorMsg::from(error).into()
    }
}

macro_rules! stream_events {
    ($($message:ident = $variant:ident $name:literal $($boxed:ident)?,)+) => {
        impl StreamEvent {
            /// The name of the event inside; "raw" when an element comes without one.
            pub fn kind(&self) -> &'static str {
                match &self.event {
                    $(Some(stream_event::Event::$variant(_)) => $name,)+
                    None => "raw",
                }
            }
        }

        $(
            impl From<$message> for StreamEvent {
                #[inline]
                fn from(message: $message) -> Self {
                    Self {
                        event: Some(stream_event::Event::$variant(message.into())),
                        seq: None,
                        raw: String::new(),
                    }
                }
            }

            impl TryFrom<StreamEvent> for $message {
                type Error = UnexpectedMessage;

                #[inline]
                fn try_from(event: StreamEvent) -> Result<Self, UnexpectedMessage> {
                    match event.event {
                        Some(stream_event::Event::$variant(message)) => {
                            Ok(envelope!(@take message $($boxed)?))
                        }
                        _ => Err(UnexpectedMessage { expected: $name, got: event.kind() }),
                    }
                }
            }
        )+
    };
}

stream_events! {
    StreamStart = Start "start",
    StreamChunk = Chunk "chunk",
    StreamThinking = Thinking "thinking",
    ToolStart = ToolStart "tool_start",
    ToolResult = ToolResult "tool_result" boxed,
    ToolsComplete = ToolsComplete "tools_complete",
    StreamEnd = End "end" boxed,
    AskUser = AskUser "ask_user",
}

impl StreamEvent {
    /// The same event with its journal number.
    #[must_use]
    pub fn at(mut self, seq: u64) -> Self {
        self.seq = Some(seq);
        self
    }

    /// Whether this is `end`, the last event of a turn.
    pub fn is_end(&self) -> bool {
        matches!(self.event, Some(stream_event::Event::End(_)))
    }
}

impl fmt::Debug for ClientHello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientHello")
            .field("version", &self.version)
            .field("capabilities", &self.capabilities)
            .field("client", &self.client)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for SetConfigMsg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetConfigMsg")
            .field("bytes", &self.config.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TokenCreated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenCreated")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PairingCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PairingCode")
            .field("expires_in_secs", &self.expires_in_secs)
            .finish_non_exhaustive()
    }
}
