//! Typed messages in and out of their envelopes.

use quintet_control::wire::*;
use quintet_control::{ErrorCode, ServerError, UnexpectedMessage};

use crate::frames::schema;

type Unwrap<E> = fn(E) -> Result<(), UnexpectedMessage>;

/// One message type of an envelope: how it is wrapped and how it is unwrapped.
macro_rules! rows {
    ($envelope:ty: $($message:ident)+) => {
        vec![$((
            <$envelope>::from($message::default()),
            (|envelope| $message::try_from(envelope).map(drop)) as Unwrap<$envelope>,
        )),+]
    };
}

fn client() -> Vec<(ClientMessage, Unwrap<ClientMessage>)> {
    rows![ClientMessage:
        SendMsg StreamMsg PingMsg SessionsMsg KillMsg GetConfigMsg SetConfigMsg ReloadMsg
        SubscribeEventsMsg ReplyToAskMsg GetStatsMsg CreateCronMsg DeleteCronMsg ListCronsMsg
        CompactMsg
        ClientHello SteerMsg CancelMsg RetryMsg AttachMsg EventsMsg JournalReportMsg
        JournalPruneMsg QueueListMsg QueueEditMsg QueueRemoveMsg AsksMsg ApprovalsMsg
        AnswerApprovalMsg SetTitleMsg ExportSessionMsg CompactUndoMsg CronRunsMsg AgentsMsg
        AgentLogsMsg AgentRestartMsg
        WorkersMsg ExecMsg ExecInputMsg ExecCancelMsg ShellMsg ShellInputMsg ShellResizeMsg JobsMsg
        CopyMsg UndoMsg TokenCreateMsg TokenListMsg TokenRevokeMsg PairMsg DevicesMsg
        DeviceRevokeMsg
    ]
}

fn server() -> Vec<(ServerMessage, Unwrap<ServerMessage>)> {
    rows![ServerMessage:
        SendResponse StreamEvent ErrorMsg Pong SessionList Config AgentEventMsg Stats CronInfo
        CronList CompactSummary
        ServerHello Done Accepted JournalEvent JournalReport JournalPruned QueueList AskList
        ApprovalList SessionExport CronRunList AgentList LogLine
        WorkerList CommandEvent JobList CopyProgress UndoReport TokenCreated TokenList
        PairingCode DeviceList
    ]
}

fn stream_events() -> Vec<(StreamEvent, Unwrap<StreamEvent>)> {
    rows![StreamEvent:
        StreamStart StreamChunk StreamThinking ToolStart ToolResult ToolsComplete StreamEnd AskUser
    ]
}

/// Every row unwraps itself, and refuses every other with both names.
fn check<E: Clone>(rows: &[(E, Unwrap<E>)], kind: impl Fn(&E) -> &'static str) {
    for (own, unwrap) in rows {
        for (other, _) in rows {
            let (expected, got) = (kind(own), kind(other));
            let wanted = match expected == got {
                true => Ok(()),
                false => Err(UnexpectedMessage { expected, got }),
            };
            assert_eq!(unwrap(other.clone()), wanted);
        }
    }
}

fn names(messages: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = messages
        .iter()
        .flat_map(|message| {
            let message = schema().get_message_by_name(&format!("crabtalk.protocol.{message}"));
            let group = message.unwrap().oneofs().next().unwrap();
            group
                .fields()
                .map(|field| field.name().to_owned())
                .collect::<Vec<_>>()
        })
        .filter(|name| name != "extension")
        .collect();
    names.sort();
    names
}

fn sorted<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn a_request_unwraps_as_itself_and_as_nothing_else() {
    let rows = client();
    assert_eq!(
        sorted(rows.iter().map(|(message, _)| message.kind())),
        names(&["ClientMessage", "ClientExtension"])
    );
    check(&rows, ClientMessage::kind);
}

#[test]
fn a_reply_unwraps_as_itself_and_as_nothing_else() {
    let rows = server();
    assert_eq!(
        sorted(rows.iter().map(|(message, _)| message.kind())),
        names(&["ServerMessage", "ServerExtension"])
    );
    check(&rows, ServerMessage::kind);
}

#[test]
fn a_stream_event_unwraps_as_itself_and_as_nothing_else() {
    let rows = stream_events();
    assert_eq!(
        sorted(rows.iter().map(|(event, _)| event.kind())),
        names(&["StreamEvent"])
    );
    check(&rows, StreamEvent::kind);
}

#[test]
fn an_empty_envelope_is_nothing() {
    let empty = [
        ClientMessage::default(),
        ClientMessage {
            msg: Some(client_message::Msg::Extension(ClientExtension::default())),
        },
    ];
    for envelope in empty {
        let error = UnexpectedMessage {
            expected: "ping",
            got: "empty",
        };
        assert_eq!(PingMsg::try_from(envelope), Err(error));
    }
}

#[test]
fn a_conversion_keeps_the_content() {
    let request = SteerMsg {
        session: 7,
        content: "left".into(),
    };
    let envelope = ClientMessage::from(request.clone());
    assert_eq!(SteerMsg::try_from(envelope), Ok(request));
}

#[test]
fn error_codes_cross_the_wire() {
    for code in [
        ErrorCode::BadRequest,
        ErrorCode::Unauthorized,
        ErrorCode::NotFound,
        ErrorCode::Conflict,
        ErrorCode::OverLimit,
        ErrorCode::Internal,
        ErrorCode::Other(418),
    ] {
        let error = ServerError::new(code, "why");
        assert_eq!(ServerError::from(ErrorMsg::from(error.clone())), error);
    }
    assert_eq!(ErrorMsg::from(ServerError::over_limit("")).code, 429);
}
