//! Sessions outlive clients, agents and the daemon.

use quintet_control::Client;
use quintet_control::wire::{
    CompactMsg, CompactUndoMsg, ExportSessionMsg, JournalEvent, JournalPruneMsg, SendMsg,
    SessionsMsg, SetTitleMsg, journal_prune_msg::Keep,
};

use crate::harness::{TestDaemon, again, code, script};

const SHOW: &str = r#"{"show": "state"}"#;

#[tokio::test]
async fn a_session_and_its_agents_state_survive_a_restart() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let session = client
        .send(script(&[r#"{"state": "n", "value": 7}"#]))
        .await
        .expect("answers")
        .session;
    let title = SetTitleMsg {
        session,
        title: "mine".into(),
    };
    client.set_title(title).await.expect("there");
    drop(client);
    let before = daemon.journal(None).await;

    let daemon = TestDaemon::on(daemon.stop().await).await;
    let mut client = daemon.client().await;
    let after = daemon.journal(None).await;
    assert_eq!(
        after[..before.len()],
        before[..],
        "the journal is as it was"
    );
    let numbers: Vec<u64> = after.iter().map(|event| event.seq).collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert_eq!(
        client
            .sessions(SessionsMsg::default())
            .await
            .expect("lists")
            .sessions[0]
            .title,
        "mine"
    );
    let shown = client.send(again(session, &[SHOW])).await.expect("answers");
    assert_eq!(shown.content, r#"{"n": 7}"#);
    daemon.stop().await;
}

#[tokio::test]
async fn an_exported_session_goes_on_as_a_new_one() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let session = client
        .send(script(&[
            r#"{"state": "n", "value": 7}"#,
            r#"{"say": "kept"}"#,
        ]))
        .await
        .expect("answers")
        .session;
    let export = client
        .export_session(ExportSessionMsg {
            session,
            from: None,
        })
        .await
        .expect("there")
        .export;
    let file = daemon.home().root().join("session.json");
    std::fs::write(&file, &export).expect("writable");
    for resume_file in [export, file.display().to_string()] {
        let resumed = SendMsg {
            content: SHOW.into(),
            resume_file: Some(resume_file),
            ..SendMsg::default()
        };
        let answer = client.send(resumed).await.expect("answers");
        assert_ne!(answer.session, session);
        assert_eq!(
            (answer.agent.as_str(), answer.content.as_str()),
            ("py", r#"{"n": 7}"#)
        );
        let history = daemon.journal(Some(answer.session)).await;
        assert!(history.iter().any(|event| event.data.contains("kept")));
    }
    let broken = SendMsg {
        resume_file: Some("{}".into()),
        ..script(&["hi"])
    };
    assert_eq!(code(client.send(broken).await), 400);
    daemon.stop().await;
}

#[tokio::test]
async fn a_session_that_is_larger_than_a_frame_is_exported_in_parts() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let flood = format!(r#"{{"repeat": 240, "say": "{}"}}"#, "ü".repeat(50_000));
    let message = script(&[r#"{"state": "n", "value": 7}"#, &flood]);
    let answer = client.send(message).await.expect("answers");
    assert!(
        answer.content.contains("quintet events --session 1"),
        "the answer says that it was cut, and where the rest is"
    );
    let session = answer.session;
    let whole = ExportSessionMsg {
        session,
        from: None,
    };
    assert_eq!(code(client.export_session(whole).await), 500);

    let mut export = String::new();
    loop {
        let from = Some(export.len() as u64);
        let request = ExportSessionMsg { session, from };
        let part = client.export_session(request).await.expect("a part");
        export.push_str(&part.export);
        if !part.more {
            break;
        }
    }
    assert!(export.len() > 24_000_000);
    let past = ExportSessionMsg {
        session,
        from: Some(1),
    };
    assert_eq!(code(client.export_session(past).await), 409);
    let file = daemon.home().root().join("session.json");
    std::fs::write(&file, &export).expect("writable");
    let resumed = SendMsg {
        content: SHOW.into(),
        resume_file: Some(file.display().to_string()),
        ..SendMsg::default()
    };
    let answer = client.send(resumed).await.expect("answers");
    assert_eq!(answer.content, r#"{"n": 7}"#);
    daemon.stop().await;
}

#[tokio::test]
async fn a_compaction_stands_for_the_conversation_and_can_be_undone() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let session = client
        .send(script(&[r#"{"state": "n", "value": 7}"#]))
        .await
        .expect("answers")
        .session;
    let compacted = client
        .compact(CompactMsg { session })
        .await
        .expect("summarises");
    assert!(
        compacted.summary.contains("Summarise this conversation"),
        "the agent echoes"
    );
    let shown = client
        .send(again(session, &["what now?"]))
        .await
        .expect("answers")
        .content;
    assert!(
        shown.contains(&compacted.summary) && shown.ends_with("what now?"),
        "{shown}"
    );
    let plain = client
        .send(again(session, &[SHOW]))
        .await
        .expect("answers")
        .content;
    assert_eq!(
        plain, "{}",
        "the context began anew, and the summary is carried once"
    );

    client
        .compact(CompactMsg { session })
        .await
        .expect("summarises again");
    client
        .compact_undo(CompactUndoMsg { session })
        .await
        .expect("undoes the second");
    let rows = daemon.journal(Some(session)).await;
    let value = |row: &JournalEvent| -> serde_json::Value {
        serde_json::from_str(&row.data).expect("JSON")
    };
    let of_kind = |kind: &'static str| rows.iter().filter(move |row| row.kind == kind);
    let links: Vec<_> = of_kind("compacted")
        .map(|row| {
            (
                value(row)["first_seq"].as_u64(),
                value(row)["last_seq"].as_u64(),
            )
        })
        .collect();
    let before = |seq: u64| rows.iter().map(|row| row.seq).rfind(|found| *found < seq);
    let after = |seq: u64| rows.iter().map(|row| row.seq).find(|found| *found > seq);
    let requests: Vec<_> = of_kind("message")
        .filter(|row| value(row)["purpose"] == "compaction")
        .map(|row| row.seq)
        .collect();
    let recorded = of_kind("compacted").next().expect("announced").seq;
    assert_eq!(
        links,
        [
            (Some(rows[0].seq), before(requests[0])),
            (after(recorded), before(requests[1])),
        ]
    );

    client
        .compact_undo(CompactUndoMsg { session })
        .await
        .expect("undoes");
    let carried = client
        .send(again(session, &["and?"]))
        .await
        .expect("answers")
        .content;
    assert!(
        carried.contains("what now?"),
        "what was said since is carried: {carried}"
    );
    let back = client
        .send(again(session, &[SHOW]))
        .await
        .expect("answers")
        .content;
    assert_eq!(back, r#"{"n": 7}"#);
    assert_eq!(
        code(client.compact_undo(CompactUndoMsg { session }).await),
        409
    );
    assert_eq!(code(client.compact(CompactMsg { session: 99 }).await), 404);
    daemon.stop().await;
}

#[tokio::test]
async fn a_summary_is_carried_until_a_turn_with_it_has_ended_well() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let first = client.send(script(&["the task"])).await.expect("answers");
    let session = first.session;
    let summary = client
        .compact(CompactMsg { session })
        .await
        .expect("summarises")
        .summary;
    // It dies before it has kept anything of what it was told.
    let crash = again(session, &[r#"{"crash": 3}"#]);
    let lost = client.send(crash).await;
    assert!(lost.is_err(), "{lost:?}");
    // A summary of a conversation that it does not have yet is one of the summary.
    let second = client
        .compact(CompactMsg { session })
        .await
        .expect("summarises again")
        .summary;
    assert!(second.contains(&summary), "{second}");
    let told = client.send(again(session, &["go on"])).await;
    let told = told.expect("answers").content;
    assert!(told.contains(&summary) && told.ends_with("go on"), "{told}");
    let plain = client.send(again(session, &["and on"])).await;
    assert_eq!(plain.expect("answers").content, "and on");
    daemon.stop().await;
}

#[tokio::test]
async fn the_journal_reports_its_size_and_can_be_pruned() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    client.send(script(&["hi"])).await.expect("answers");
    let report = client.journal_report().await.expect("reports");
    assert_eq!((report.first_seq, report.last_seq), (1, report.events));
    assert!(
        report
            .kinds
            .iter()
            .any(|kind| kind.kind == "text_delta" && kind.bytes > 0)
    );
    let prune = JournalPruneMsg {
        keep: Some(Keep::BeforeSeq(4)),
    };
    let pruned = client.journal_prune(prune).await.expect("prunes");
    assert_eq!((pruned.events, pruned.first_seq), (3, 4));
    assert_eq!(
        code(client.journal_prune(JournalPruneMsg { keep: None }).await),
        400
    );
    daemon.stop().await;
}

#[tokio::test]
async fn the_journal_is_kept_below_its_size_with_the_texts_of_messages() {
    let daemon = TestDaemon::start_with("[journal]\nmax_size = \"1MiB\"\n").await;
    let mut client = daemon.client().await;
    let failing = script(&[r#"{"say": "again"}"#, r#"{"crash": 3}"#]);
    client.send(failing).await.expect_err("the agent crashed");
    let flood = format!(r#"{{"repeat": 2000, "say": "{}"}}"#, "x".repeat(1000));
    client.send(script(&[&flood])).await.expect("answers");
    drop(client);
    assert_eq!(daemon.journal(None).await[0].seq, 1);

    let daemon = TestDaemon::on(daemon.stop().await).await;
    let rows = loop {
        let rows = daemon.journal(None).await;
        let is_told = |row: &JournalEvent| row.data.contains("the journal was pruned");
        if rows.iter().any(is_told) {
            break rows;
        }
    };
    assert!(rows[0].seq > 1);
    let bytes: usize = rows.iter().map(|row| row.data.len()).sum();
    assert!(bytes < 1 << 20, "{bytes} bytes are left");
    let folder = daemon.stop().await;
    let db = rusqlite::Connection::open(folder.path().join("quintet.db")).expect("there");
    let texts: Vec<String> = db
        .prepare("SELECT text FROM messages ORDER BY id")
        .and_then(|mut texts| texts.query_map([], |row| row.get(0))?.collect())
        .expect("readable");
    assert!(texts[0].contains("again"), "a retry needs it");
    assert_eq!(texts[1..], [""], "it went with its row");
}

#[tokio::test]
async fn a_session_works_in_the_folder_of_its_first_message_if_that_can_be_read() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let folder = tempfile::tempdir().expect("a folder");
    let brought = folder.path().display().to_string();
    let missing = folder.path().join("missing").display().to_string();
    let mut works_in = async |cwd: &str, new_chat| {
        let message = SendMsg {
            cwd: Some(cwd.to_owned()),
            new_chat,
            ..script(&[r#"{"say": "here"}"#])
        };
        let session = client.send(message).await.expect("answers").session;
        let listed = client.sessions(SessionsMsg::default()).await;
        let listed = listed.expect("lists").sessions.into_iter();
        let found = listed.into_iter().find(|it| it.id == session);
        (session, found.expect("listed").workspace)
    };
    let own = |session| {
        let folder = daemon.home().instances_dir().join(format!("py-{session}"));
        folder.join("workspace").display().to_string()
    };
    let (first, folder) = works_in(&missing, true).await;
    assert_eq!(folder, own(first));
    let (second, folder) = works_in("relative", true).await;
    assert_eq!(folder, own(second));
    let (third, folder) = works_in(&brought, true).await;
    assert_eq!(folder, brought);
    // A later message's is where its sender is, and changes nothing.
    assert_eq!(works_in("/tmp", false).await, (third, brought));
    daemon.stop().await;
}
