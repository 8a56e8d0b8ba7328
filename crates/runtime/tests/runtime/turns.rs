//! Messages, the queue, steering, stopping.

use futures_util::StreamExt;
use quintet_control::wire::{
    CancelMsg, CronRunsMsg, KillMsg, QueueEditMsg, QueueListMsg, QueueRemoveMsg, RetryMsg, SendMsg,
    SessionsMsg, SetTitleMsg, SteerMsg, SubscribeEventsMsg, TokenCreateMsg, stream_event::Event,
};
use quintet_control::{Client, ErrorCode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::{
    TestDaemon, again, code, error_of, run, script, session_of, streamed, text_of,
};

#[tokio::test]
async fn a_message_is_answered_and_counted() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let answer = client
        .send(script(&[r#"{"say": "hello"}"#, r#"{"usage": "0.25"}"#]))
        .await
        .expect("answers");
    assert_eq!(
        (answer.content.as_str(), answer.cost.as_str()),
        ("hello", "0.25")
    );
    let more = again(
        answer.session,
        &[r#"{"final": "whole"}"#, r#"{"usage": "0.75"}"#],
    );
    assert_eq!(client.send(more).await.expect("answers").content, "whole");
    let sessions = client
        .sessions(SessionsMsg::default())
        .await
        .expect("lists")
        .sessions;
    assert_eq!(sessions.len(), 1);
    assert_eq!((sessions[0].message_count, sessions[0].active), (2, false));
    assert_eq!(sessions[0].cost, "1.00");
    let stats = client.get_stats().await.expect("counts");
    assert_eq!((stats.active_sessions, stats.cost.as_str()), (1, "1.00"));
    daemon.stop().await;
}

#[tokio::test]
async fn selectors_choose_the_session() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let say = |sender: &str, new_chat| SendMsg {
        agent: "py".into(),
        content: "hi".into(),
        sender: Some(sender.into()),
        new_chat,
        ..SendMsg::default()
    };
    let mut sessions = Vec::new();
    for message in [
        say("ann", false),
        say("ann", false),
        say("bob", false),
        say("ann", true),
        say("ann", false),
    ] {
        sessions.push(client.send(message).await.expect("answers").session);
    }
    assert_eq!(sessions, [1, 1, 2, 3, 3]);
    let named = SendMsg {
        session: Some(1),
        agent: "ignored".into(),
        ..say("bob", true)
    };
    assert_eq!(client.send(named).await.expect("answers").session, 1);
    daemon.stop().await;
}

#[tokio::test]
async fn a_folder_and_a_worker_choose_the_session_too() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    for worker in ["one", "two"] {
        let worker = worker.into();
        client
            .token_create(TokenCreateMsg { worker })
            .await
            .expect("made");
    }
    let folders = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let folder = folders.path().join(name);
        std::fs::create_dir_all(&folder).expect("made");
        folder.display().to_string()
    };
    let gone = folders.path().join("gone").display().to_string();
    let (p, q) = (folder("p"), folder("q"));
    let say = |cwd: &str, worker: &str| SendMsg {
        agent: "py".into(),
        content: "hi".into(),
        cwd: Some(cwd.into()),
        worker: Some(worker.into()),
        match_session: true,
        ..SendMsg::default()
    };
    let mut sessions = Vec::new();
    for message in [
        say(&p, ""),
        say(&q, ""),
        say(&format!("{p}/"), ""),
        say(&p, "one"),
        say("", "one"),
        say("", "two"),
        say(&gone, ""),
        say(&p, ""),
        say("", ""),
    ] {
        sessions.push(client.send(message).await.expect("answers").session);
    }
    assert_eq!(sessions, [1, 2, 1, 3, 3, 4, 4, 3, 4]);

    let matched = |message: SendMsg| SendMsg {
        session: Some(3),
        match_session: true,
        ..message
    };
    let any = SendMsg {
        agent: String::new(),
        ..say("", "")
    };
    for fits in [matched(any), matched(say(&p, "one"))] {
        assert_eq!(client.send(fits).await.expect("answers").session, 3);
    }
    let other_agent = SendMsg {
        agent: "shell".into(),
        ..say("", "")
    };
    for (other, said) in [
        (
            other_agent,
            "session 3 is of agent py, not of shell".to_owned(),
        ),
        (say(&q, ""), format!("session 3 works in {p}, not in {q}")),
        (
            say("", "two"),
            "session 3 uses worker one, not two".to_owned(),
        ),
    ] {
        let refused = client.send(matched(other)).await.expect_err("another");
        let refusal = refused.refusal().expect("the server's word");
        assert_eq!(refusal.code, ErrorCode::Conflict);
        assert!(refusal.message.starts_with(&said), "{refusal:?}");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn what_does_not_exist_is_refused() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let unknown_agent = SendMsg {
        agent: "nobody".into(),
        ..script(&["hi"])
    };
    assert_eq!(code(client.send(unknown_agent).await), 404);
    assert_eq!(code(client.send(again(99, &["hi"])).await), 404);
    assert_eq!(code(client.send(script(&["  "])).await), 400);
    assert_eq!(code(client.kill(KillMsg { session: 99 }).await), 404);
    let steer = SteerMsg {
        session: 99,
        content: "x".into(),
    };
    assert_eq!(code(client.steer(steer).await), 404);
    assert_eq!(
        code(client.queue_remove(QueueRemoveMsg { id: 99 }).await),
        404
    );
    let runs = CronRunsMsg { cron: Some(77) };
    assert_eq!(code(client.cron_runs(runs).await), 404);
    let subscription = SubscribeEventsMsg {
        session: Some(99),
        after_seq: None,
    };
    let mut events = std::pin::pin!(client.subscribe_events(subscription));
    assert_eq!(code(events.next().await.expect("an answer")), 404);
    daemon.stop().await;
}

#[tokio::test]
async fn a_new_session_is_refused_on_a_worker_that_nobody_knows() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let away = TokenCreateMsg {
        worker: "away".into(),
    };
    client.token_create(away).await.expect("made");
    let on = |worker: &str| SendMsg {
        worker: Some(worker.into()),
        ..script(&["hi"])
    };
    let refused = client.send(on("nosuch")).await.expect_err("unknown");
    let refusal = refused.refusal().expect("the server's word");
    assert_eq!(refusal.code, ErrorCode::NotFound);
    assert!(refusal.message.ends_with("there are: away"), "{refusal:?}");
    client.send(on("away")).await.expect("it may come back");
    daemon.stop().await;
}

#[tokio::test]
async fn empty_guidance_and_empty_edits_are_refused() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let session = client.send(script(&["hi"])).await.expect("answers").session;
    let steer = SteerMsg {
        session,
        content: " ".into(),
    };
    assert_eq!(code(client.steer(steer).await), 400);
    let edit = QueueEditMsg {
        id: 1,
        content: String::new(),
    };
    assert_eq!(code(client.queue_edit(edit).await), 400);
    let rows = daemon.journal(Some(session)).await;
    assert_eq!(rows.iter().filter(|row| row.kind == "message").count(), 1);
    daemon.stop().await;
}

#[tokio::test]
async fn further_messages_wait_and_can_be_edited_and_removed() {
    let daemon = TestDaemon::start().await;
    let mut holder = daemon.client().await;
    let holding = holder.stream(streamed(script(&[r#"{"await": "steer"}"#])));
    tokio::pin!(holding);
    let start = holding.next().await.expect("starts").expect("streams");
    let session = session_of(&[start]);

    let (mut edited, mut removed, mut other) =
        tokio::join!(daemon.client(), daemon.client(), daemon.client());
    let edited = edited.stream(streamed(again(session, &["first"])));
    tokio::pin!(edited);
    assert!(futures_util::poll!(edited.next()).is_pending());
    let list = QueueListMsg {
        session: Some(session),
    };
    let waiting = loop {
        let waiting = other.queue_list(list).await.expect("lists").messages;
        if waiting.len() == 1 {
            break waiting;
        }
    };
    let removed = removed.stream(streamed(again(session, &["second"])));
    tokio::pin!(removed);
    assert!(futures_util::poll!(removed.next()).is_pending());
    let second = loop {
        let waiting = other.queue_list(list).await.expect("lists").messages;
        if let [_, second] = &waiting[..] {
            assert_eq!(
                (second.text.as_str(), second.sender.as_str()),
                ("second", "user")
            );
            break second.id;
        }
    };
    let edit = QueueEditMsg {
        id: waiting[0].id,
        content: "changed".into(),
    };
    other.queue_edit(edit.clone()).await.expect("waits");
    other
        .queue_remove(QueueRemoveMsg { id: second })
        .await
        .expect("waits");
    assert_eq!(
        code(other.queue_remove(QueueRemoveMsg { id: second }).await),
        409
    );
    let end = removed.next().await.expect("ends").expect("streams");
    assert!(error_of(&[end]).contains("taken out of the queue"));
    assert!(removed.next().await.is_none());

    let steer = SteerMsg {
        session,
        content: "go".into(),
    };
    other.steer(steer).await.expect("runs");
    while holding.next().await.is_some() {}
    let events: Vec<_> = edited.map(|event| event.expect("streams")).collect().await;
    assert_eq!(text_of(&events), "changed");
    assert_eq!(code(other.queue_edit(edit).await), 409);
    daemon.stop().await;
}

#[tokio::test]
async fn steering_an_idle_session_is_an_ordinary_message() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let session = client.send(script(&["hi"])).await.expect("answers").session;
    let steer = SteerMsg {
        session,
        content: "more".into(),
    };
    let accepted = client.steer(steer).await.expect("taken");
    let journal = daemon.journal(Some(session)).await;
    let row = journal
        .iter()
        .find(|event| event.seq == accepted.seq)
        .expect("there");
    assert_eq!(row.kind, "message");
    daemon.stop().await;
}

#[tokio::test]
async fn a_cancelled_turn_ends_and_the_session_goes_on() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let stream = client.stream(streamed(script(&[
        r#"{"say": "a"}"#,
        r#"{"await": "cancel"}"#,
    ])));
    tokio::pin!(stream);
    let start = stream.next().await.expect("starts").expect("streams");
    let session = session_of(std::slice::from_ref(&start));
    let mut other = daemon.client().await;
    other.cancel(CancelMsg { session }).await.expect("runs");
    let mut events = vec![start];
    while let Some(event) = stream.next().await {
        events.push(event.expect("streams"));
    }
    match events.last().and_then(|event| event.event.clone()) {
        Some(Event::End(end)) => {
            assert_eq!(
                (end.finish_reason.as_str(), end.code),
                ("cancelled", Some(409))
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(code(other.cancel(CancelMsg { session }).await), 409);
    assert_eq!(
        other
            .send(again(session, &["on"]))
            .await
            .expect("answers")
            .content,
        "on"
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_budget_stops_a_turn_before_its_next_call_and_refuses_the_next_one() {
    let budget = "budget = { turn = \"0.50\", day = \"1.00\" }\n";
    let daemon = TestDaemon::start_with(budget).await;
    let mut client = daemon.client().await;
    let within = script(&[r#"{"spend": "0.49"}"#, r#"{"say": "done"}"#]);
    let session = client
        .send(within)
        .await
        .expect("within its budget")
        .session;
    let over = again(session, &[r#"{"spend": "0.51"}"#, r#"{"await": "cancel"}"#]);
    let events = run(&mut client, over).await;
    match events.last().and_then(|event| event.event.clone()) {
        Some(Event::End(end)) => {
            assert_eq!(
                (end.finish_reason.as_str(), end.code),
                ("budget", Some(429))
            );
        }
        other => panic!("{other:?}"),
    }
    let refused = client.send(again(session, &["more"])).await;
    assert_eq!(code(refused), 429, "0.49 and 0.51 are the whole day");
    daemon.stop().await;
}

#[tokio::test]
async fn a_killed_session_ends_its_stream_and_keeps_its_history() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let stream = client.stream(streamed(script(&[r#"{"await": "steer"}"#])));
    tokio::pin!(stream);
    let start = stream.next().await.expect("starts").expect("streams");
    let session = session_of(&[start]);
    let mut other = daemon.client().await;
    other.kill(KillMsg { session }).await.expect("there");
    let events: Vec<_> = stream.map(|event| event.expect("streams")).collect().await;
    assert!(error_of(&events).contains("killed"), "{events:?}");
    assert_eq!(code(other.send(again(session, &["hi"])).await), 404);
    assert_eq!(code(other.kill(KillMsg { session }).await), 404);
    assert!(
        other
            .sessions(SessionsMsg::default())
            .await
            .expect("lists")
            .sessions
            .is_empty()
    );
    let history = daemon.journal(Some(session)).await;
    let ends = history
        .iter()
        .filter(|event| event.kind == "turn_ended")
        .count();
    assert_eq!(ends, 1);
    assert_eq!(
        history
            .iter()
            .filter(|event| event.kind == "session_closed")
            .count(),
        1
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_crash_is_reported_once_and_the_message_can_be_retried() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let events = run(
        &mut client,
        script(&[
            r#"{"state": "tries", "value": 1}"#,
            r#"{"spend": "0.10"}"#,
            r#"{"say": "a"}"#,
            r#"{"crash": 3}"#,
        ]),
    )
    .await;
    assert!(!error_of(&events).is_empty());
    let session = session_of(&events);
    let ends = |journal: &[quintet_control::wire::JournalEvent]| {
        journal
            .iter()
            .filter(|event| event.kind == "turn_ended")
            .count()
    };
    assert_eq!(ends(&daemon.journal(Some(session)).await), 1);
    let retried: Vec<_> = client.retry(RetryMsg { session }).collect().await;
    let retried: Vec<_> = retried
        .into_iter()
        .map(|event| event.expect("streams"))
        .collect();
    assert!(!error_of(&retried).is_empty(), "the script crashes again");
    assert_eq!(ends(&daemon.journal(Some(session)).await), 2);
    let shown = client.send(again(session, &[r#"{"show": "state"}"#])).await;
    assert_eq!(shown.expect("restarted").content, r#"{"tries": 1}"#);
    let sessions = client
        .sessions(SessionsMsg::default())
        .await
        .expect("lists")
        .sessions;
    assert_eq!(
        sessions[0].cost, "0.20",
        "what was spent counts, crash or not"
    );
    let refused: Vec<_> = client.retry(RetryMsg { session }).collect().await;
    assert_eq!(code(refused.into_iter().next().expect("one answer")), 409);
    daemon.stop().await;
}

/// Has the database refuse rows of a kind, as a full disk would.
fn refuses(daemon: &TestDaemon, kind: &str) -> rusqlite::Connection {
    let database = rusqlite::Connection::open(daemon.home().database()).expect("opens");
    let trigger = format!(
        "CREATE TRIGGER full BEFORE INSERT ON journal WHEN NEW.kind = '{kind}'
         BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    );
    database.execute_batch(&trigger).expect("made");
    database
}

/// Waits until the metrics have this line.
async fn counts(daemon: &TestDaemon, line: &str) {
    let run = std::fs::read_to_string(daemon.home().run_file()).expect("written");
    let run: serde_json::Value = serde_json::from_str(&run).expect("JSON");
    let address = run["http"]
        .as_str()
        .expect("an address")
        .replace("http://", "");
    loop {
        let mut stream = TcpStream::connect(&address).await.expect("listens");
        let request = format!("GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("taken");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("answered");
        if answer.lines().any(|it| it == line) {
            return;
        }
    }
}

#[tokio::test]
async fn metrics_follow_what_happens() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let says = [r#"{"say": "hello"}"#];
    let first = client.send(script(&says)).await.expect("answers");
    let second = again(first.session, &says);
    client.send(second).await.expect("answers");
    for line in [
        "quintet_journal_rows_total{kind=\"message\"} 2",
        "quintet_journal_rows_total{kind=\"turn_ended\"} 2",
        "quintet_journal_rows_total{kind=\"session_created\"} 1",
        "quintet_turns_ended_total{finish_reason=\"end_turn\"} 2",
        "quintet_sessions_open 1",
        "quintet_messages_queued 0",
        "quintet_asks_pending 0",
        "quintet_approvals_pending 0",
        "quintet_turns_running 0",
        "quintet_agent_processes 1",
        "quintet_control_connections 1",
        "quintet_control_cut_total 0",
        "quintet_cron_started_total 0",
    ] {
        counts(&daemon, line).await;
    }
}

#[tokio::test]
async fn a_turn_waits_for_a_full_disk_and_goes_on_when_it_is_not() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let message = script(&[r#"{"say": "hello"}"#]);
    let session = client.send(message).await.expect("answers").session;
    for (kind, reached) in [
        ("turn_started", "quintet_turns_running 1"),
        (
            "turn_ended",
            "quintet_turns_ended_total{finish_reason=\"end_turn\"} 3",
        ),
    ] {
        let database = refuses(&daemon, kind);
        let mended = async {
            counts(&daemon, reached).await;
            // What the turn writes is before this in the writer's queue.
            let title = SetTitleMsg {
                session,
                title: kind.into(),
            };
            let mut client = daemon.client().await;
            client.set_title(title).await.expect("written");
            database.execute_batch("DROP TRIGGER full").expect("gone");
        };
        let answer = client.send(again(session, &[r#"{"say": "again"}"#]));
        let (answer, ()) = tokio::join!(answer, mended);
        assert_eq!(answer.expect("answers").content, "again");
    }
    daemon.stop().await;
}

#[tokio::test]
async fn an_answer_that_could_not_be_written_is_no_answer() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let database = refuses(&daemon, "text_delta");
    let message = script(&[r#"{"say": "hello"}"#]);
    let refused = client.send(message).await.expect_err("it is lost");
    assert!(refused.to_string().contains("disk is full"), "{refused}");
    database.execute_batch("DROP TRIGGER full").expect("gone");
    let answer = client.send(script(&[r#"{"say": "hello"}"#])).await;
    assert_eq!(answer.expect("answers").content, "hello");
    daemon.stop().await;
}

#[tokio::test]
async fn a_queue_of_long_messages_is_listed_with_their_beginnings() {
    let daemon = TestDaemon::start().await;
    let mut holder = daemon.client().await;
    let mut holding = std::pin::pin!(holder.stream(streamed(script(&[r#"{"await": "steer"}"#]))));
    holding.next().await.expect("starts").expect("streams");
    let text = "ü".repeat(3 << 20);
    let mut senders = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let mut sender = daemon.client().await;
        let message = again(1, &[&text]);
        senders.spawn(async move { run(&mut sender, message).await });
    }
    let mut other = daemon.client().await;
    let listed = loop {
        let listed = other
            .queue_list(QueueListMsg::default())
            .await
            .expect("fits");
        let listed = listed.messages;
        if listed.len() == 3 {
            break listed;
        }
        assert!(
            listed
                .iter()
                .all(|message| !message.cut || listed.len() > 1)
        );
    };
    for message in &listed {
        assert!(message.cut);
        assert!(message.text.len() > 1 << 20 && text.starts_with(&message.text));
    }
    for message in listed {
        let remove = QueueRemoveMsg { id: message.id };
        other.queue_remove(remove).await.expect("waits");
    }
    for told in senders.join_all().await {
        assert!(error_of(&told).contains("taken out"));
    }
    let steer = SteerMsg {
        session: 1,
        content: "go".into(),
    };
    other.steer(steer).await.expect("runs");
    while holding.next().await.is_some() {}
    daemon.stop().await;
}
