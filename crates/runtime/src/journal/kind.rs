//! What a row tells of. The one registry of names; a retired name stays listed.

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// The kind of a journal row.
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $variant,)*
            /// A kind that this version does not know, kept as it is.
            Other(Box<str>),
        }

        impl Kind {
            /// The name on disk and on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(name) => name,
                }
            }

            /// The kind of that name.
            pub fn from_name(name: &str) -> Self {
                match name {
                    $($name => Self::$variant,)*
                    other => Self::Other(other.into()),
                }
            }
        }
    };
}

kinds! {
    /// The daemon is ready.
    DaemonStarted = "daemon_started",
    /// The daemon stops in order.
    DaemonStopped = "daemon_stopped",
    /// A remark of the daemon's own.
    Note = "note",
    /// The configuration changed.
    ConfigChanged = "config_changed",
    /// A client was cut off, and why.
    ClientCut = "client_cut",

    /// A session was made.
    SessionCreated = "session_created",
    /// A session got a title.
    SessionTitled = "session_titled",
    /// A session was closed.
    SessionClosed = "session_closed",
    /// A session was made from an exported one; holds its conversation.
    SessionImported = "session_imported",

    /// A message for the agent was accepted into the queue.
    Message = "message",
    /// A waiting message was changed.
    MessageEdited = "message_edited",
    /// A waiting message was taken out of the queue.
    MessageRemoved = "message_removed",
    /// Guidance for a running turn.
    Steer = "steer",
    /// A client asked a running turn to stop.
    Cancel = "cancel",

    /// A message was handed to the agent.
    TurnStarted = "turn_started",
    /// The turn is over; exactly one for each that started.
    TurnEnded = "turn_ended",

    /// Text as it comes.
    TextDelta = "text_delta",
    /// The whole text of one output message.
    TextFinal = "text_final",
    /// Reasoning as it comes.
    Thinking = "thinking",
    /// A tool call begins.
    ToolCall = "tool_call",
    /// A tool call's result.
    ToolResult = "tool_result",
    /// An instance used a tool of the daemon: what the policy or a person said to it.
    ToolStarted = "tool_started",
    /// What came of it.
    ToolEnded = "tool_ended",
    /// A command in the session's workspace ended: its text, exit code, sequences and changed paths.
    Command = "command",
    /// What commands did to files was taken back.
    CommandsUndone = "commands_undone",
    /// Every tool call so far has its result.
    ToolsComplete = "tools_complete",
    /// A block of code.
    CodeBlock = "code_block",
    /// A file that the agent changed.
    FileChange = "file_change",
    /// Output of a command.
    TerminalOutput = "terminal_output",
    /// What a turn has used so far.
    Usage = "usage",
    /// An element of a type that this version does not know.
    Element = "element",

    /// A question to the person.
    AskUser = "ask_user",
    /// A question was answered.
    AskAnswered = "ask_answered",
    /// A question ended with its turn.
    AskWithdrawn = "ask_withdrawn",
    /// An action waits for approval.
    ApprovalRequested = "approval_requested",
    /// An approval was given or refused.
    ApprovalAnswered = "approval_answered",
    /// An approval ended with its turn.
    ApprovalWithdrawn = "approval_withdrawn",

    /// An agent process changed its phase.
    AgentPhase = "agent_phase",
    /// An agent changed its state; says how much, never what.
    AgentState = "agent_state",
    /// An agent's state patch did not apply.
    AgentStateRejected = "agent_state_rejected",
    /// A turn makes no progress; says what it waits for.
    AgentStalled = "agent_stalled",

    /// A cron entry was made.
    CronCreated = "cron_created",
    /// A cron entry was removed.
    CronDeleted = "cron_deleted",
    /// What became of one occurrence.
    CronRun = "cron_run",

    /// A worker registered, or came back from being stale.
    WorkerOnline = "worker_online",
    /// A worker's connection ended.
    WorkerOffline = "worker_offline",
    /// A worker has been silent too long.
    WorkerStale = "worker_stale",
    /// A worker was not let in, and why.
    WorkerRefused = "worker_refused",
    /// A command was sent to a worker.
    CommandStarted = "command_started",
    /// A command's result, or that nobody waits for it.
    CommandEnded = "command_ended",
    /// A shell was started or attached to.
    ShellStarted = "shell_started",
    /// A shell ended or was left.
    ShellEnded = "shell_ended",
    /// A file goes to or comes from a worker.
    TransferStarted = "transfer_started",
    /// What became of it.
    TransferEnded = "transfer_ended",
    /// A worker's token was made.
    TokenCreated = "token_created",
    /// A worker's token was taken back.
    TokenRevoked = "token_revoked",
    /// A browser was paired.
    DevicePaired = "device_paired",
    /// A browser's pairing was ended.
    DeviceRevoked = "device_revoked",

    /// The context was replaced by a summary; links to what it replaced.
    Compacted = "compacted",
    /// A compaction was taken back.
    CompactionUndone = "compaction_undone",
}

impl Kind {
    /// The row of an element of that type, as an agent names it.
    pub fn of_element(element_type: &str) -> Self {
        match Self::from_name(element_type) {
            kind @ (Self::TextDelta
            | Self::TextFinal
            | Self::Thinking
            | Self::ToolCall
            | Self::ToolResult
            | Self::CodeBlock
            | Self::FileChange
            | Self::TerminalOutput) => kind,
            _ => Self::Element,
        }
    }
}
