//! How a cron ends, and what is told of it.

use super::*;

#[tokio::test]
async fn once_is_started_once_and_then_gone() {
    let mut world = World::new().await;
    let new = NewCron {
        once: true,
        ..world.new_cron("* * * * *")
    };
    let (cron, _) = world.at_first_occurrence(new).await;
    world.driver.look(false).await.unwrap();
    assert_eq!(world.crons.list().await.unwrap(), []);
    let message = world.queue().await[0].id;
    world.end_turn(message, "").await;
    for _ in 0..3 {
        world.advance(60);
        world.driver.look(true).await.unwrap();
    }
    assert_eq!(world.states().await, [RunState::Finished]);
    assert_eq!(
        world.told(Kind::CronDeleted).await,
        [json!({ "cron": cron, "reason": "it was to be started once" })]
    );
    assert!(matches!(
        world.crons.delete(cron).await,
        Err(Refusal::NotFound(_))
    ));
}

#[tokio::test]
async fn crons_end_with_their_session() {
    let mut world = World::new().await;
    let (first, due) = world.at_first_occurrence(world.new_cron("* * * * *")).await;
    world.driver.look(false).await.unwrap();
    let second = world.crons.create(world.new_cron("@daily")).await.unwrap();
    // Of another session, which stays open.
    let other = new_session(&world.db).await;
    let third = NewCron {
        session: other,
        ..world.new_cron("@daily")
    };
    let third = world.crons.create(third).await.unwrap();

    world.close_session().await;
    let reason = "the session was killed by me";
    assert_eq!(
        world.told(Kind::CronDeleted).await,
        [
            json!({ "cron": first, "reason": reason }),
            json!({ "cron": second.cron.id, "reason": reason }),
        ]
    );
    assert_eq!(world.crons.list().await.unwrap(), [third]);
    assert!(matches!(
        world.crons.delete(first).await,
        Err(Refusal::NotFound(_))
    ));

    // The driver, which knew of the cron, decides nothing any more.
    for _ in 0..3 {
        world.advance(60);
        world.driver.look(false).await.unwrap();
    }
    let runs = world.crons.runs(Some(first), 10).await.unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].due, runs[0].state), (due, RunState::Failed));
    assert_eq!(runs[0].note, "its message was removed from the queue");
}

#[tokio::test]
async fn what_was_due_in_a_closed_session_is_missed_and_told() {
    let mut world = World::new().await;
    let (cron, _) = world.at_first_occurrence(world.new_cron("* * * * *")).await;
    *world.host.refusal.lock().unwrap() = Some(Refusal::Store(StoreError::Aborted));
    assert!(world.driver.look(false).await.is_err());
    world.close_session().await;
    world.driver.look(true).await.unwrap();
    let runs = world.crons.runs(Some(cron), 10).await.unwrap();
    assert_eq!(runs.len(), 1);
    assert_eq!(runs[0].state, RunState::Missed);
    assert_eq!(runs[0].note, "the session was killed by me");
    assert_eq!(world.journal().await, ["due", "missed"]);
}

#[tokio::test]
async fn a_removed_cron_starts_nothing_any_more_and_keeps_its_runs() {
    let mut world = World::new().await;
    let (cron, _) = world.at_first_occurrence(world.new_cron("* * * * *")).await;
    *world.host.refusal.lock().unwrap() = Some(Refusal::Store(StoreError::Aborted));
    assert!(world.driver.look(false).await.is_err());
    world.crons.delete(cron).await.unwrap();
    world.advance(60);
    world.driver.look(true).await.unwrap();
    assert_eq!(world.queue().await, []);
    assert_eq!(world.states().await, [RunState::Missed]);
    assert_eq!(world.journal().await, ["due", "missed"]);
    assert_eq!(
        world.told(Kind::CronDeleted).await,
        [json!({ "cron": cron, "reason": "the cron was removed" })]
    );
    assert!(matches!(
        world.crons.delete(cron).await,
        Err(Refusal::NotFound(_))
    ));
    assert!(matches!(
        world.crons.delete(99).await,
        Err(Refusal::NotFound(_))
    ));
}
