//! Schedules over the control plane.

use quintet_control::Client;
use quintet_control::wire::{
    CreateCronMsg, CronRunsMsg, DeleteCronMsg, KillMsg, MissedPolicy, OverlapPolicy,
};

use crate::harness::{TestDaemon, code, script};

fn write_skill(daemon: &TestDaemon) {
    let folder = daemon.home().skills_dir().join("tidy");
    std::fs::create_dir_all(&folder).expect("writable");
    let skill = "---\nname: tidy\ndescription: tidies\n---\nPut things where they belong.\n";
    std::fs::write(folder.join("SKILL.md"), skill).expect("writable");
}

fn every_second(session: u64) -> CreateCronMsg {
    CreateCronMsg {
        schedule: "* * * * * *".into(),
        skill: "tidy".into(),
        session,
        ..CreateCronMsg::default()
    }
}

#[tokio::test]
async fn a_schedule_sends_its_skill_into_the_session() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let session = client.send(script(&["hi"])).await.expect("answers").session;
    write_skill(&daemon);

    let once = CreateCronMsg {
        once: true,
        timezone: Some("Europe/Berlin".into()),
        ..every_second(session)
    };
    let made = client.create_cron(once).await.expect("valid");
    assert_eq!(
        (made.schedule.as_str(), made.timezone.as_str()),
        ("* * * * * *", "Europe/Berlin")
    );
    assert!(!made.next.is_empty());
    let row = loop {
        let row = daemon
            .journal(Some(session))
            .await
            .into_iter()
            .find(|event| event.kind == "message" && event.data.contains(r#""sender":"cron""#));
        if let Some(row) = row {
            break row;
        }
        daemon.wait_for(session, "turn_ended").await;
    };
    assert!(row.data.contains("Put things where they belong."));
    let runs = client
        .cron_runs(CronRunsMsg {
            cron: Some(made.id),
        })
        .await
        .expect("lists")
        .runs;
    assert_eq!(runs.len(), 1, "once is once");
    assert!(
        ["started", "finished"].contains(&runs[0].outcome.as_str()),
        "{runs:?}"
    );
    daemon.stop().await;
}

#[tokio::test]
async fn bad_schedules_are_refused_and_good_ones_listed_and_removed() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let session = client.send(script(&["hi"])).await.expect("answers").session;
    assert_eq!(
        code(client.create_cron(every_second(session)).await),
        404,
        "no such skill"
    );
    write_skill(&daemon);
    let with = |schedule: &str, quiet: Option<&str>, session| CreateCronMsg {
        schedule: schedule.into(),
        quiet_start: quiet.map(str::to_owned),
        quiet_end: quiet.map(|_| "06:00".to_owned()),
        ..every_second(session)
    };
    for (request, expected) in [
        (with("not a schedule", None, session), 400),
        (with("0 0 30 2 *", None, session), 400),
        (with("@daily", Some("25:00"), session), 400),
        (with("@daily", None, 99), 404),
    ] {
        assert_eq!(
            code(client.create_cron(request.clone()).await),
            expected,
            "{request:?}"
        );
    }
    let made = client
        .create_cron(with("@daily", Some("22:00"), session))
        .await
        .expect("valid");
    let listed = client.list_crons().await.expect("lists").crons;
    assert_eq!(listed, std::slice::from_ref(&made));
    client
        .delete_cron(DeleteCronMsg { id: made.id })
        .await
        .expect("there");
    assert_eq!(
        code(client.delete_cron(DeleteCronMsg { id: made.id }).await),
        404
    );
    assert!(client.list_crons().await.expect("lists").crons.is_empty());
    daemon.stop().await;
}

#[tokio::test]
async fn each_schedule_has_its_own_policies_and_ends_with_its_session() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let session = client.send(script(&["hi"])).await.expect("answers").session;
    write_skill(&daemon);
    let with = |missed: i32, overlap: i32| CreateCronMsg {
        schedule: "@yearly".into(),
        missed,
        overlap,
        ..every_second(session)
    };
    let mut made = Vec::new();
    for (missed, overlap) in [
        (MissedPolicy::Skip, OverlapPolicy::Queue),
        (MissedPolicy::RunOnce, OverlapPolicy::Skip),
    ] {
        let cron = client
            .create_cron(with(missed.into(), overlap.into()))
            .await
            .expect("valid");
        assert_eq!((cron.missed(), cron.overlap()), (missed, overlap));
        made.push(cron);
    }
    assert_eq!(client.list_crons().await.expect("lists").crons, made);
    for unknown in [with(2, 0), with(0, 2)] {
        assert_eq!(code(client.create_cron(unknown).await), 400);
    }

    client.kill(KillMsg { session }).await.expect("there");
    assert!(client.list_crons().await.expect("lists").crons.is_empty());
    let deleted = daemon.journal(Some(session)).await;
    let deleted: Vec<_> = deleted
        .iter()
        .filter(|event| event.kind == "cron_deleted")
        .collect();
    assert_eq!(deleted.len(), 2);
    for event in deleted {
        assert!(event.data.contains("the session was killed"), "{event:?}");
    }
    daemon.stop().await;
}
