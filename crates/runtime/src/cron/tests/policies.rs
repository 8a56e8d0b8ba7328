//! What is not started as planned: missed, overlapping, in quiet hours, or by another clock.

use super::*;

#[tokio::test]
async fn what_came_while_down_is_missed_or_run_once() {
    for (missed, expected) in [
        (
            MissedPolicy::Skip,
            [RunState::Missed, RunState::Missed, RunState::Missed],
        ),
        (
            MissedPolicy::RunOnce,
            [RunState::Missed, RunState::Missed, RunState::Started],
        ),
    ] {
        let mut world = World::new().await;
        let new = NewCron {
            missed,
            ..world.new_cron("0 * * * *")
        };
        let (_, due) = world.at_first_occurrence(new).await;
        world.set_now(due + SignedDuration::from_secs(2 * 3600 + 5));
        world.restart();
        world.driver.look(true).await.unwrap();
        assert_eq!(world.states().await, expected);
        let started = expected
            .iter()
            .filter(|state| **state == RunState::Started)
            .count();
        assert_eq!(world.queue().await.len(), started);
        // The next one is on time again, once the run has ended.
        for message in world.queue().await {
            world.end_turn(message.id, "the agent crashed").await;
            let run = world.crons.runs(None, 1).await.unwrap().remove(0);
            assert_eq!(run.state, RunState::Failed);
            assert_eq!(run.note, "the agent crashed");
        }
        world.set_now(due + SignedDuration::from_secs(3 * 3600));
        world.driver.look(false).await.unwrap();
        assert_eq!(world.states().await.last(), Some(&RunState::Started));
    }
}

#[tokio::test]
async fn quiet_hours_and_overlap_are_recorded_and_start_nothing() {
    let mut world = World::new().await;
    let (_, due) = world
        .at_first_occurrence(world.new_cron("*/10 * * * * *"))
        .await;
    world.driver.look(false).await.unwrap();
    world.advance(10);
    world.driver.look(false).await.unwrap();
    assert_eq!(
        world.states().await,
        [RunState::Started, RunState::SkippedOverlap]
    );
    let message = world.queue().await[0].id;
    world
        .db
        .write(move |tx| messages::remove(tx, message, "not wanted"))
        .await
        .unwrap();
    world.advance(10);
    world.driver.look(false).await.unwrap();
    assert_eq!(
        world.states().await,
        [
            RunState::Failed,
            RunState::SkippedOverlap,
            RunState::Started
        ]
    );

    let mut world = World::new().await;
    world.set_now(due);
    // A minute from now on is quiet, whatever the time of day is.
    let local = due.to_zoned(TimeZone::UTC);
    let time = |minutes: i64| {
        (&local + SignedDuration::from_mins(minutes))
            .strftime("%H:%M")
            .to_string()
    };
    let new = NewCron {
        quiet_start: time(0),
        quiet_end: time(5),
        ..world.new_cron("0 * * * * *")
    };
    let listed = world.crons.create(new).await.unwrap();
    assert_eq!(
        local.timestamp().max(listed.next.unwrap()),
        listed.next.unwrap()
    );
    assert_eq!(
        listed
            .next
            .unwrap()
            .to_zoned(TimeZone::UTC)
            .strftime("%H:%M")
            .to_string(),
        time(5)
    );
    world.driver.look(true).await.unwrap();
    world.set_now(listed.next.unwrap() - SignedDuration::from_secs(60));
    world.driver.look(false).await.unwrap();
    assert_eq!(world.states().await.last(), Some(&RunState::SkippedQuiet));
    assert_eq!(world.queue().await, []);
    world.set_now(listed.next.unwrap());
    world.driver.look(false).await.unwrap();
    assert_eq!(world.states().await.last(), Some(&RunState::Started));
}

#[tokio::test]
async fn with_queue_one_occurrence_waits_behind_the_running_one() {
    let mut world = World::new().await;
    let new = NewCron {
        overlap: OverlapPolicy::Queue,
        ..world.new_cron("*/10 * * * * *")
    };
    world.at_first_occurrence(new).await;
    world.driver.look(false).await.unwrap();
    let first = world.queue().await[0].id;

    // It has not begun: it is the one that waits.
    world.advance(10);
    world.driver.look(false).await.unwrap();
    assert_eq!(world.queue().await.len(), 1);

    world.begin_turn(first).await;
    for _ in 0..3 {
        world.advance(10);
        world.driver.look(false).await.unwrap();
    }
    let second = world.queue().await;
    assert_eq!(second.len(), 1);
    assert_eq!(
        world.states().await,
        [
            RunState::Started,
            RunState::SkippedOverlap,
            RunState::Started,
            RunState::SkippedOverlap,
            RunState::SkippedOverlap,
        ]
    );

    // When the first has ended and the second has begun, a third may wait.
    world.end_running(first, "").await;
    world.begin_turn(second[0].id).await;
    world.advance(10);
    world.driver.look(false).await.unwrap();
    assert_eq!(world.queue().await.len(), 1);
    assert_eq!(
        world.states().await,
        [
            RunState::Finished,
            RunState::SkippedOverlap,
            RunState::Started,
            RunState::SkippedOverlap,
            RunState::SkippedOverlap,
            RunState::Started,
        ]
    );
}

#[tokio::test]
async fn policies_are_those_of_the_entry_and_kept() {
    let mut world = World::new().await;
    let mut made = Vec::new();
    for missed in [MissedPolicy::Skip, MissedPolicy::RunOnce] {
        for overlap in [OverlapPolicy::Skip, OverlapPolicy::Queue] {
            let new = NewCron {
                missed,
                overlap,
                ..world.new_cron("@daily")
            };
            let listed = world.crons.create(new).await.unwrap();
            assert_eq!((listed.cron.missed, listed.cron.overlap), (missed, overlap));
            made.push(listed);
        }
    }
    world.restart();
    assert_eq!(world.crons.list().await.unwrap(), made);
    let told = world.told(Kind::CronCreated).await;
    assert_eq!(
        (&told[3]["missed"], &told[3]["overlap"]),
        (&json!("run_once"), &json!("queue"))
    );
    assert_eq!(told[3]["cron"], made[3].cron.id);
}

#[tokio::test]
async fn a_clock_set_back_an_hour_repeats_nothing_and_one_set_forward_misses() {
    let mut world = World::new().await;
    let (_, due) = world
        .at_first_occurrence(world.new_cron("*/10 * * * *"))
        .await;
    world.driver.look(false).await.unwrap();
    let message = world.queue().await[0].id;
    world.end_turn(message, "").await;
    world.set_now(due - SignedDuration::from_hours(1));
    for _ in 0..12 {
        world.driver.look(true).await.unwrap();
        world.advance(300);
    }
    assert_eq!(world.states().await, [RunState::Finished]);
    world.set_now(due + SignedDuration::from_mins(10));
    world.driver.look(false).await.unwrap();
    assert_eq!(
        world.states().await,
        [RunState::Finished, RunState::Started]
    );
    world.end_turn(message + 1, "").await;
    world.set_now(due + SignedDuration::from_mins(75));
    world.driver.look(false).await.unwrap();
    assert_eq!(world.states().await[2..], [RunState::Missed; 6]);
}
