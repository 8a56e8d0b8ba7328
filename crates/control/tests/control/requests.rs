//! Every request through a real socket: the typed method, the server's method, the reply.

use futures_util::{Stream, StreamExt};
use quintet_control::wire::*;
use quintet_control::{Client, ErrorCode, Limits, Outcome, UnixClient};

use crate::daemon::{
    Daemon, accepted, chunk, command_events, end, journal_event, send_of, stream_of,
};
use crate::frames::schema;

async fn all<T>(stream: impl Stream<Item = Outcome<T>>) -> Vec<T> {
    stream.map(|item| item.unwrap()).collect().await
}

/// What a typed call answered, as its envelope; a stream as all of its messages.
async fn answers(client: &mut UnixClient, request: &str) -> (ClientMessage, Vec<ServerMessage>) {
    /// Calls a method that takes its request, or that has none to take.
    macro_rules! one {
        ($method:ident($message:expr)) => {{
            let request = $message;
            let answer = client.$method(request.clone()).await.unwrap();
            (request.into(), vec![answer.into()])
        }};
        ($method:ident: $message:expr) => {{
            let answer = client.$method().await.unwrap();
            ($message.into(), vec![answer.into()])
        }};
    }
    macro_rules! many {
        ($method:ident($message:expr), $take:expr) => {{
            let request = $message;
            let answer = all(client.$method(request.clone()).take($take)).await;
            (request.into(), answer.into_iter().map(Into::into).collect())
        }};
    }
    let (session, content) = (1, "text".to_owned());
    match request {
        "send" => one!(send(send_of("echo", "hi"))),
        "stream" => many!(stream(stream_of("echo", "hi")), 10),
        "ping" => one!(ping: PingMsg {}),
        "sessions" => one!(sessions(SessionsMsg {
            include_closed: true
        })),
        "kill" => one!(kill(KillMsg { session })),
        "get_config" => one!(get_config: GetConfigMsg {}),
        "set_config" => one!(set_config(SetConfigMsg { config: content })),
        "reload" => one!(reload: ReloadMsg {}),
        "subscribe_events" => many!(
            subscribe_events(SubscribeEventsMsg {
                session: Some(1),
                after_seq: Some(0)
            }),
            2
        ),
        "reply_to_ask" => one!(reply_to_ask(ReplyToAskMsg {
            session,
            content,
            ask: Some(3)
        })),
        "get_stats" => one!(get_stats: GetStatsMsg {}),
        "create_cron" => one!(create_cron(CreateCronMsg {
            schedule: content,
            ..Default::default()
        })),
        "delete_cron" => one!(delete_cron(DeleteCronMsg { id: 9 })),
        "list_crons" => one!(list_crons: ListCronsMsg {}),
        "compact" => one!(compact(CompactMsg { session })),
        "hello" => one!(hello(ClientHello {
            version: 1,
            ..Default::default()
        })),
        "steer" => one!(steer(SteerMsg { session, content })),
        "cancel" => one!(cancel(CancelMsg { session })),
        "retry" => many!(retry(RetryMsg { session }), 10),
        "attach" => many!(
            attach(AttachMsg {
                session,
                after_seq: Some(3),
                turn: None,
            }),
            10
        ),
        "events" => many!(
            events(EventsMsg {
                session: Some(1),
                after_seq: None,
                follow: true
            }),
            10
        ),
        "journal_report" => one!(journal_report: JournalReportMsg {}),
        "journal_prune" => one!(journal_prune(JournalPruneMsg {
            keep: Some(journal_prune_msg::Keep::BeforeSeq(4)),
        })),
        "queue_list" => one!(queue_list(QueueListMsg { session: Some(1) })),
        "queue_edit" => one!(queue_edit(QueueEditMsg { id: 4, content })),
        "queue_remove" => one!(queue_remove(QueueRemoveMsg { id: 4 })),
        "asks" => one!(asks: AsksMsg {}),
        "approvals" => one!(approvals: ApprovalsMsg {}),
        "answer_approval" => one!(answer_approval(AnswerApprovalMsg {
            id: 4,
            approved: true,
            reason: content,
            scope: ApprovalScope::Session.into(),
            rule: String::new(),
        })),
        "set_title" => one!(set_title(SetTitleMsg {
            session,
            title: content
        })),
        "export_session" => one!(export_session(ExportSessionMsg {
            session,
            from: Some(0)
        })),
        "compact_undo" => one!(compact_undo(CompactUndoMsg { session })),
        "cron_runs" => one!(cron_runs(CronRunsMsg { cron: Some(9) })),
        "agents" => one!(agents: AgentsMsg {}),
        "agent_logs" => many!(
            agent_logs(AgentLogsMsg {
                agent_id: content,
                follow: false,
                lines: Some(2)
            }),
            10
        ),
        "agent_restart" => one!(agent_restart(AgentRestartMsg { agent_id: content })),
        "workers" => one!(workers: WorkersMsg {}),
        "exec" => many!(
            exec(ExecMsg {
                worker: content,
                ..Default::default()
            }),
            10
        ),
        "exec_input" => one!(exec_input(ExecInputMsg {
            job: content,
            data: vec![0xff],
            eof: true
        })),
        "exec_cancel" => one!(exec_cancel(ExecCancelMsg { job: content })),
        "shell" => many!(
            shell(ShellMsg {
                worker: content,
                ..Default::default()
            }),
            10
        ),
        "shell_input" => one!(shell_input(ShellInputMsg {
            job: content,
            data: vec![0xff]
        })),
        "shell_resize" => one!(shell_resize(ShellResizeMsg {
            job: content,
            rows: 24,
            cols: 80
        })),
        "jobs" => one!(jobs(JobsMsg { worker: content })),
        "copy" => many!(
            copy(CopyMsg {
                worker: content,
                ..Default::default()
            }),
            10
        ),
        "undo" => one!(undo(UndoMsg {
            session,
            commands: 2
        })),
        "token_create" => one!(token_create(TokenCreateMsg { worker: content })),
        "token_list" => one!(token_list: TokenListMsg {}),
        "token_revoke" => one!(token_revoke(TokenRevokeMsg { id: 20 })),
        "pair" => one!(pair: PairMsg {}),
        "devices" => one!(devices: DevicesMsg {}),
        "device_revoke" => one!(device_revoke(DeviceRevokeMsg { id: content })),
        other => panic!("the schema has a request {other} that this test does not know"),
    }
}

fn expected(request: &str) -> Vec<ServerMessage> {
    let turn = |content: &str| {
        let start = StreamStart {
            agent: "echo".into(),
            session: 1,
            turn: None,
        };
        let events = [StreamEvent::from(start), chunk(content).at(2), end("echo")];
        events.map(ServerMessage::from).to_vec()
    };
    let agent_event = |seq| {
        AgentEventMsg {
            agent: "crab".into(),
            seq: Some(seq),
            ..Default::default()
        }
        .into()
    };
    match request {
        "send" => vec![
            SendResponse {
                agent: "echo".into(),
                content: "hi".into(),
                session: 1,
                ..Default::default()
            }
            .into(),
        ],
        "stream" => turn("hi"),
        "retry" => turn("again"),
        "ping" | "kill" | "set_config" | "reload" | "reply_to_ask" | "delete_cron"
        | "exec_input" | "exec_cancel" | "shell_input" | "shell_resize" => {
            vec![Pong::default().into()]
        }
        "workers" => vec![
            WorkerList {
                workers: vec![WorkerInfo::default()],
            }
            .into(),
        ],
        "exec" | "shell" => command_events(request).map(Into::into).to_vec(),
        "jobs" => vec![
            JobList {
                jobs: vec![JobInfo::default()],
            }
            .into(),
        ],
        "copy" => [1, 2]
            .map(|bytes| {
                CopyProgress {
                    bytes,
                    ..Default::default()
                }
                .into()
            })
            .to_vec(),
        "token_create" => vec![
            TokenCreated {
                id: 20,
                ..Default::default()
            }
            .into(),
        ],
        "token_list" => vec![
            TokenList {
                tokens: vec![TokenInfo::default()],
            }
            .into(),
        ],
        "pair" => vec![
            PairingCode {
                expires_in_secs: 300,
                ..Default::default()
            }
            .into(),
        ],
        "devices" => vec![
            DeviceList {
                devices: vec![DeviceInfo::default()],
            }
            .into(),
        ],
        "sessions" => {
            let session = SessionInfo {
                id: 1,
                cost: "0.25".into(),
                ..Default::default()
            };
            vec![
                SessionList {
                    sessions: vec![session],
                }
                .into(),
            ]
        }
        "get_config" => vec![
            Config {
                config: "{}".into(),
            }
            .into(),
        ],
        "subscribe_events" => vec![agent_event(1), agent_event(2)],
        "get_stats" => vec![
            Stats {
                uptime_secs: 5,
                ..Default::default()
            }
            .into(),
        ],
        "create_cron" => vec![
            CronInfo {
                id: 9,
                ..Default::default()
            }
            .into(),
        ],
        "list_crons" => vec![
            CronList {
                crons: vec![CronInfo::default()],
            }
            .into(),
        ],
        "compact" => vec![
            CompactSummary {
                summary: "short".into(),
            }
            .into(),
        ],
        "hello" => {
            vec![
                ServerHello {
                    version: 1,
                    server: "test".into(),
                    ..Default::default()
                }
                .into(),
            ]
        }
        "attach" => [end("first").at(4), chunk("x").at(5), end("second").at(6)]
            .map(ServerMessage::from)
            .to_vec(),
        "events" => vec![journal_event(1).into(), journal_event(2).into()],
        "journal_report" => vec![
            JournalReport {
                events: 12,
                ..Default::default()
            }
            .into(),
        ],
        "journal_prune" => vec![
            JournalPruned {
                events: 13,
                ..Default::default()
            }
            .into(),
        ],
        "queue_list" => vec![
            QueueList {
                messages: vec![QueuedMessage::default()],
            }
            .into(),
        ],
        "asks" => vec![
            AskList {
                asks: vec![PendingAsk::default()],
            }
            .into(),
        ],
        "approvals" => vec![
            ApprovalList {
                approvals: vec![Approval::default()],
            }
            .into(),
        ],
        "export_session" => vec![
            SessionExport {
                export: "{}".into(),
                more: false,
            }
            .into(),
        ],
        "cron_runs" => vec![
            CronRunList {
                runs: vec![CronRun::default()],
            }
            .into(),
        ],
        "agents" => vec![
            AgentList {
                agents: vec![AgentInfo::default()],
            }
            .into(),
        ],
        "agent_logs" => ["one", "two"]
            .map(|text| {
                LogLine {
                    text: text.into(),
                    ..LogLine::default()
                }
                .into()
            })
            .to_vec(),
        "steer" => vec![accepted(10).into()],
        "cancel" => vec![accepted(11).into()],
        "queue_edit" => vec![accepted(14).into()],
        "queue_remove" => vec![accepted(15).into()],
        "answer_approval" => vec![accepted(16).into()],
        "set_title" => vec![accepted(17).into()],
        "compact_undo" => vec![accepted(18).into()],
        "agent_restart" => vec![accepted(19).into()],
        "token_revoke" => vec![accepted(21).into()],
        "device_revoke" => vec![accepted(23).into()],
        "undo" => vec![
            UndoReport {
                sequence: 22,
                ..UndoReport::default()
            }
            .into(),
        ],
        other => panic!("no expectation for {other}"),
    }
}

#[tokio::test]
async fn every_request_reaches_its_method_and_its_reply_comes_back() {
    let mut daemon = Daemon::on_unix(Limits::default());
    let mut client = daemon.client().await;
    for message in ["ClientMessage", "ClientExtension"] {
        let message = schema().get_message_by_name(&format!("crabtalk.protocol.{message}"));
        for field in message.unwrap().fields() {
            let name = field.name();
            if name == "extension" {
                continue;
            }
            let (request, answers) = answers(&mut client, name).await;
            assert_eq!(daemon.next_request().await, request, "{name}");
            assert_eq!(answers, expected(name), "{name}");
            if name == "subscribe_events" {
                // It has no end: this connection is used up.
                client = daemon.client().await;
            }
        }
    }
}

#[tokio::test]
async fn a_refusal_comes_back_with_its_code_and_the_connection_stays() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut client = daemon.client().await;
    let error = client.kill(KillMsg { session: 9 }).await.unwrap_err();
    let refusal = error.refusal().unwrap();
    assert_eq!(refusal.code, ErrorCode::NotFound);
    assert_eq!(refusal.message, "session 9 not found");
    client.ping().await.unwrap();
}
