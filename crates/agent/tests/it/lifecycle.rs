//! Start, stop, idle, crash, cancel: the life of an instance with real processes.

use std::time::Duration;

use crate::harness::{PATIENCE, World, log_lines, logged, object, reaches, run};
use quintet_agent::{
    CancelCause, FailReason, FinishReason, InstanceEvent, Phase, TurnEnd, WaitingFor,
};
use serde_json::json;

fn failed(end: &TurnEnd) -> FailReason {
    match end {
        TurnEnd::Failed { reason, .. } => *reason,
        other => panic!("{other:?}"),
    }
}

fn done() -> TurnEnd {
    TurnEnd::Completed {
        finish_reason: FinishReason::EndTurn,
        usage: None,
    }
}

fn is_text(event: &InstanceEvent) -> bool {
    matches!(event, InstanceEvent::Element { .. })
}

#[tokio::test]
async fn an_idle_process_is_shut_down_and_a_message_starts_it_again() {
    let world = World::new();
    let mut spec = world.python("wild_agent.py", &[]);
    spec.timings.idle_timeout = Some(Duration::from_millis(50));
    let agent = world.open(spec).await;
    assert_eq!(run(&agent, "one").await, done());
    reaches(&agent, Phase::Terminated).await;
    assert_eq!(
        world.observer.phases(),
        [
            Phase::Deploying,
            Phase::Initializing,
            Phase::Ready,
            Phase::Running,
            Phase::Ready,
            Phase::ScalingDown,
            Phase::ShuttingDown,
            Phase::Terminated
        ]
    );
    assert_eq!(agent.status().pid, None);
    assert_eq!(run(&agent, "two").await, done());
    world.finish().await;
}

#[tokio::test]
async fn a_turn_without_output_ends_though_an_earlier_process_used_its_id() {
    let world = World::new();
    let mut spec = world.python("wild_agent.py", &[]);
    // So long that no doubt ends within the test.
    spec.timings.complete_grace = PATIENCE * 2;
    let agent = world.open(spec).await;
    assert_eq!(run(&agent, "state-only").await, done());
    agent.restart("user").await;
    assert_eq!(run(&agent, "state-only").await, done());
    assert_eq!(failed(&run(&agent, "exit 3").await), FailReason::Crashed);
    assert_eq!(run(&agent, "state-only").await, done());
    world.finish().await;
}

#[tokio::test]
async fn an_agent_of_one_id_ends_every_turn() {
    let world = World::new();
    let mut spec = world.python("wild_agent.py", &[]);
    // So long that no doubt ends within the test.
    spec.timings.complete_grace = PATIENCE * 2;
    let agent = world.open(spec).await;
    for text in ["state-only out", "state-only out", "silent", "silent"] {
        assert_eq!(run(&agent, text).await, done(), "{text}");
    }
    agent.restart("user").await;
    for _ in 0..3 {
        assert_eq!(run(&agent, "silent").await, done());
    }
    assert_eq!(agent.status().restarts, 0);
    world.finish().await;
}

#[tokio::test]
async fn the_second_complete_of_a_silent_turn_does_not_end_the_next() {
    let world = World::new();
    let agent = world.open(world.python("wild_agent.py", &[])).await;
    let mut expected = String::new();
    for _ in 0..10 {
        assert_eq!(run(&agent, "silent-twice").await, done());
        assert_eq!(run(&agent, "hello").await, done());
        expected.push_str("echo: hello");
        assert_eq!(world.observer.text(), expected, "it was ended by another");
        agent.restart("user").await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_process_that_ignores_everything_is_killed() {
    let world = World::new();
    let agent = world
        .open(world.python("wild_agent.py", &["--stubborn"]))
        .await;
    assert_eq!(run(&agent, "hello").await, done());
    let before = tokio::time::Instant::now();
    agent.shutdown("user").await;
    // The two grace periods of the harness.
    assert!(before.elapsed() >= Duration::from_millis(600));
    assert!(logged(&agent, "got SIGTERM").await);
    assert_eq!(agent.status().phase, Phase::Terminated);
    world.finish().await;
}

#[tokio::test]
async fn a_message_that_is_running_when_a_person_stops_the_agent_says_so() {
    let world = World::new();
    let agent = world
        .open(world.python("wild_agent.py", &["--stubborn"]))
        .await;
    let stop = async {
        world.observer.saw(is_text).await;
        agent.shutdown("user").await;
    };
    let (end, ()) = tokio::join!(run(&agent, "hang"), stop);
    assert_eq!(failed(&end), FailReason::KilledByUser);
    world.finish().await;
}

#[tokio::test]
async fn an_agent_that_exits_in_a_message_fails_it_with_its_last_words() {
    let world = World::new();
    let agent = world.open(world.python("wild_agent.py", &[])).await;
    match run(&agent, "exit 3").await {
        TurnEnd::Failed {
            reason: FailReason::Crashed,
            detail,
        } => {
            assert!(
                detail.contains("status 3") && detail.contains("going down"),
                "{detail}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(run(&agent, "hello").await, done());
    assert_eq!(agent.status().restarts, 1);
    world.finish().await;
}

#[tokio::test]
async fn an_agent_that_exits_after_its_message_is_no_crash() {
    let world = World::new();
    let agent = world.open(world.python("wild_agent.py", &[])).await;
    for _ in 0..5 {
        assert_eq!(run(&agent, "complete-and-exit").await, done());
        reaches(&agent, Phase::Terminated).await;
    }
    assert_eq!(world.observer.text(), "last words".repeat(5));
    assert_eq!(agent.status().restarts, 0);
    world.finish().await;
}

#[tokio::test]
async fn an_agent_that_closes_its_connection_and_goes_on_is_replaced() {
    let world = World::new();
    let agent = world.open(world.python("wild_agent.py", &[])).await;
    assert_eq!(failed(&run(&agent, "close").await), FailReason::Crashed);
    assert_eq!(run(&agent, "hello").await, done());
    world.finish().await;
}

#[tokio::test]
async fn a_program_that_exits_before_connecting_opens_the_breaker() {
    let world = World::new();
    let mut spec = world.spec(&["sh", "-c", "echo no module named agent >&2; exit 3"]);
    spec.timings.restart.breaker_crashes = 3;
    let agent = world.open(spec).await;
    match run(&agent, "hello").await {
        TurnEnd::Failed {
            reason: FailReason::NotReady,
            detail,
        } => {
            assert!(detail.contains("no module named agent"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    let opened = agent.wait_for(|status| status.breaker_open);
    let status = tokio::time::timeout(PATIENCE, opened)
        .await
        .unwrap()
        .unwrap();
    assert_eq!((status.phase, status.restarts), (Phase::Crashed, 3));
    assert_eq!(failed(&run(&agent, "hello").await), FailReason::BreakerOpen);

    // A config change closes it: the message is tried again.
    agent
        .config_update(object(json!({"model": "m"})), "user")
        .await;
    assert!(
        !agent
            .wait_for(|status| !status.breaker_open)
            .await
            .unwrap()
            .breaker_open
    );
    assert_eq!(failed(&run(&agent, "hello").await), FailReason::NotReady);

    // So does a person, with a command that works this time.
    agent.replace_spec(world.python("wild_agent.py", &[])).await;
    agent.restart("user").await;
    assert_eq!(run(&agent, "hello").await, done());
    world.finish().await;
}

#[tokio::test]
async fn a_disk_that_takes_nothing_opens_no_breaker() {
    let world = World::new();
    // A folder is where the ledger is written, as good as a full disk.
    let in_the_way = world.folder.path().join("ledger.new");
    std::fs::create_dir(&in_the_way).unwrap();
    let mut spec = world.python("wild_agent.py", &[]);
    spec.timings.restart.breaker_crashes = 3;
    let agent = world.open(spec).await;
    for _ in 0..6 {
        match run(&agent, "hello").await {
            TurnEnd::Failed {
                reason: FailReason::NotReady,
                detail,
            } => assert!(detail.contains("ledger"), "{detail}"),
            other => panic!("{other:?}"),
        }
    }
    std::fs::remove_dir(in_the_way).unwrap();
    assert_eq!(run(&agent, "hello").await, done());
    world.finish().await;
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    let world = World::new();
    let agent = world.open(world.spec(&["/nowhere/agent"])).await;
    match run(&agent, "hello").await {
        TurnEnd::Failed {
            reason: FailReason::NotReady,
            detail,
        } => {
            assert!(detail.contains("/nowhere/agent"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    world.finish().await;
}

#[tokio::test]
async fn a_program_that_never_connects_misses_its_deadline() {
    let world = World::new();
    let mut spec = world.spec(&["sleep", "3600"]);
    spec.timings.ready_timeout = Duration::from_millis(100);
    let agent = world.open(spec).await;
    match run(&agent, "hello").await {
        TurnEnd::Failed {
            reason: FailReason::NotReady,
            detail,
        } => {
            assert!(detail.contains("did not connect"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
    world.finish().await;
}

#[tokio::test]
async fn a_message_that_never_completes_is_reported_and_runs_on() {
    let world = World::new();
    let mut spec = world.python("wild_agent.py", &[]);
    spec.timings.stall_after = Duration::from_millis(50);
    let agent = world.open(spec).await;
    let watch = async {
        let stalled = |event: &InstanceEvent| matches!(event, InstanceEvent::Stalled { .. });
        let InstanceEvent::Stalled { waiting_for, .. } = world.observer.saw(stalled).await else {
            unreachable!();
        };
        assert_eq!(waiting_for, WaitingFor::Agent);
        assert_eq!(agent.status().phase, Phase::Running);
        assert!(agent.cancel().await);
    };
    let (end, ()) = tokio::join!(run(&agent, "never"), watch);
    assert_eq!(failed(&end), FailReason::Cancelled);
    world.finish().await;
}

#[tokio::test]
async fn a_stall_names_the_tool_that_it_waits_for() {
    let world = World::new();
    let mut spec = world.python("wild_agent.py", &[]);
    spec.timings.stall_after = Duration::from_millis(50);
    let agent = world.open(spec).await;
    let tool = WaitingFor::Tool {
        call_id: "c1".to_owned(),
        name: "exec".to_owned(),
    };
    let watch = async {
        let expected = tool.clone();
        world
            .observer
            .saw(move |event| {
                matches!(event, InstanceEvent::Stalled { waiting_for, .. } if *waiting_for == expected)
            })
            .await;
        assert_eq!(agent.status().waiting_for, Some(tool));
        agent.kill().await;
    };
    let (end, ()) = tokio::join!(run(&agent, "waits-for-tool"), watch);
    assert_eq!(failed(&end), FailReason::Stopped);
    world.finish().await;
}

#[tokio::test]
async fn a_turn_deadline_ends_what_runs_too_long() {
    let world = World::new();
    let mut spec = world.python("wild_agent.py", &[]);
    spec.timings.turn_deadline = Some(Duration::from_millis(100));
    let agent = world.open(spec).await;
    for text in ["hang", "cancellable"] {
        match run(&agent, text).await {
            TurnEnd::Failed {
                reason: FailReason::Deadline,
                detail,
            } => {
                let said = "the turn ran longer than turn_deadline (100ms)";
                assert!(detail.starts_with(said), "{text}: {detail}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    assert_eq!(run(&agent, "hello").await, done());
    assert_eq!(agent.status().restarts, 0, "a deadline is no crash");
    world.finish().await;
}

#[tokio::test]
async fn cancel_asks_first_and_kills_after_the_grace_period() {
    let world = World::new();
    let mut spec = world.python("wild_agent.py", &[]);
    spec.timings.cancel_grace = PATIENCE;
    let agent = world.open(spec).await;
    assert!(!agent.cancel().await, "nothing runs");
    let cancel = async |cause| {
        agent
            .wait_for(|status| status.phase == Phase::Running)
            .await;
        assert!(agent.cancel_for(cause).await);
    };
    let (end, ()) = tokio::join!(run(&agent, "cancellable"), cancel(CancelCause::User));
    let finished = |finish_reason| TurnEnd::Completed {
        finish_reason,
        usage: None,
    };
    assert_eq!(end, finished(FinishReason::Cancelled));
    reaches(&agent, Phase::Ready).await;
    let (end, ()) = tokio::join!(run(&agent, "cancellable"), cancel(CancelCause::Budget));
    assert_eq!(end, finished(FinishReason::Budget));

    let mut impatient = world.python("wild_agent.py", &[]);
    impatient.timings.cancel_grace = Duration::from_millis(50);
    agent.replace_spec(impatient).await;
    let (end, ()) = tokio::join!(run(&agent, "hang"), async {
        world
            .observer
            .saw(|event| {
                matches!(event, InstanceEvent::Element { message_id, .. }
            if message_id.as_str() == "msg_hang")
            })
            .await;
        assert!(agent.cancel_for(CancelCause::Budget).await);
    });
    assert_eq!(failed(&end), FailReason::BudgetExceeded);
    assert_eq!(run(&agent, "hello").await, done());
    world.finish().await;
}

#[tokio::test]
async fn stopping_everything_ends_waiting_messages_and_refuses_new_ones() {
    let world = World::new();
    let mut spec = world.spec(&["sleep", "3600"]);
    spec.timings.ready_timeout = PATIENCE;
    let agent = world.open(spec).await;
    let stop = async {
        reaches(&agent, Phase::Initializing).await;
        world.supervisor.shutdown_all(Duration::from_secs(5)).await;
    };
    let (end, ()) = tokio::join!(run(&agent, "hello"), stop);
    assert_eq!(failed(&end), FailReason::Stopped);
    assert_eq!(failed(&run(&agent, "hello").await), FailReason::Stopped);
    assert!(world.supervisor.open(world.spec(&["true"])).await.is_err());
    world.finish().await;
}

#[tokio::test]
async fn a_message_over_the_frame_limit_is_refused_and_the_agent_goes_on() {
    let world = World::new();
    let agent = world.open(world.python("wild_agent.py", &[])).await;
    let text = "x".repeat(16 * 1024 * 1024);
    let end = agent
        .run(quintet_agent::InboundMessage::text("large", text))
        .await;
    assert_eq!(failed(&end), FailReason::TooLarge);
    assert!(failed(&end).is_undelivered());
    assert_eq!(run(&agent, "hello").await, done());
    assert!(
        !logged(&agent, "lost").await,
        "{:?}",
        log_lines(&agent).await
    );
    world.finish().await;
}
