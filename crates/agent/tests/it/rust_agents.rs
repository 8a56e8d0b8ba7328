//! Agents that use the Rust SDK, under the real supervisor.

use std::time::Duration;

use quintet_agent::{
    ApprovalResult, AskOutcome, FailReason, FinishReason, InstanceEvent, Phase, Steered, TurnEnd,
};
use serde_json::json;

use crate::harness::{PATIENCE, World, logged, object, reaches, run};

fn finished(finish_reason: FinishReason) -> TurnEnd {
    TurnEnd::Completed {
        finish_reason,
        usage: None,
    }
}

fn done() -> TurnEnd {
    finished(FinishReason::EndTurn)
}

#[tokio::test]
async fn the_example_answers_counts_and_keeps_its_count() {
    let world = World::new();
    let agent = world.open(world.example("echo_agent")).await;
    assert_eq!(run(&agent, "a").await, done());
    agent.shutdown("user").await;
    assert_eq!(run(&agent, "b").await, done());
    assert_eq!(world.observer.text(), "1: a2: b");
    assert_eq!(agent.state().await, json!({"count": 2}));
    world.finish().await;
}

#[tokio::test]
async fn an_agent_sees_guidance_configuration_and_its_end() {
    let world = World::new();
    let agent = world.open(world.example("hello_agent")).await;
    let guide = async {
        reaches(&agent, Phase::Running).await;
        let changes = object(json!({"model": "m2"}));
        agent.config_update(changes, "user").await;
        assert_eq!(agent.steer("ann").await, Steered::Delivered);
    };
    let (end, ()) = tokio::join!(run(&agent, "wait"), guide);
    assert_eq!(end, done());
    assert_eq!(world.observer.text(), "hello, ann");
    agent.shutdown("user").await;
    for line in [
        "configured: {\"model\": String(\"m2\")}",
        "steered: ann",
        "shut down: user",
    ] {
        assert!(logged(&agent, line).await, "{line}");
    }
    world.finish().await;
}

#[tokio::test]
async fn questions_approvals_and_steers_reach_the_turn() {
    let world = World::new();
    let agent = world.open(world.example("echo_agent")).await;
    let answer = async {
        let asked = |event: &InstanceEvent| matches!(event, InstanceEvent::AskUser { .. });
        let InstanceEvent::AskUser { ask_id, questions } = world.observer.saw(asked).await else {
            unreachable!();
        };
        assert_eq!(questions[0].question, "Which?");
        assert!(matches!(
            agent.status().waiting_for,
            Some(quintet_agent::WaitingFor::Answer { .. })
        ));
        let answers = vec![vec!["that one".to_owned()]];
        assert!(
            agent
                .answer_ask(ask_id, AskOutcome::Answered { answers })
                .await
        );
    };
    let (end, ()) = tokio::join!(run(&agent, "ask"), answer);
    assert_eq!(end, done());
    assert_eq!(world.observer.text(), r#"[["that one"]]"#);

    let approve = async {
        let asked = |event: &InstanceEvent| matches!(event, InstanceEvent::ApprovalRequest { .. });
        let InstanceEvent::ApprovalRequest {
            request_id,
            command,
            ..
        } = world.observer.saw(asked).await
        else {
            unreachable!();
        };
        assert_eq!(command.as_deref(), Some("rm -r build"));
        let result = ApprovalResult {
            request_id,
            approved: true,
            ..ApprovalResult::default()
        };
        assert!(agent.answer_approval(result).await);
    };
    let (end, ()) = tokio::join!(run(&agent, "approve"), approve);
    assert_eq!(end, done());
    assert!(world.observer.text().ends_with("true"));

    let steer = async {
        reaches(&agent, Phase::Running).await;
        assert_eq!(agent.steer("left").await, Steered::Delivered);
    };
    let (end, ()) = tokio::join!(run(&agent, "steer"), steer);
    assert_eq!(end, done());
    assert!(world.observer.text().ends_with("left"));
    world.finish().await;
}

#[tokio::test]
async fn cancel_failure_and_shutdown_end_a_turn_of_the_sdk() {
    let world = World::new();
    let mut spec = world.example("echo_agent");
    spec.timings.cancel_grace = PATIENCE;
    spec.timings.shutdown_grace = PATIENCE;
    let agent = world.open(spec).await;
    let cancel = async {
        reaches(&agent, Phase::Running).await;
        assert!(agent.cancel().await);
    };
    let (end, ()) = tokio::join!(run(&agent, "wait"), cancel);
    assert_eq!(end, finished(FinishReason::Cancelled));

    assert_eq!(run(&agent, "fail").await, finished(FinishReason::Error));
    assert!(world.observer.text().ends_with("it can't be done"));

    let stop = async {
        reaches(&agent, Phase::Running).await;
        agent.shutdown("user").await;
    };
    let (end, ()) = tokio::join!(run(&agent, "wait"), stop);
    assert_eq!(end, finished(FinishReason::Cancelled));
    assert_eq!(agent.status().restarts, 0);
    world.finish().await;
}

#[tokio::test]
async fn an_agent_of_the_sdk_that_is_killed_fails_its_turn() {
    let world = World::new();
    let agent = world.open(world.example("echo_agent")).await;
    let kill = async {
        reaches(&agent, Phase::Running).await;
        agent.kill().await;
    };
    let (end, ()) = tokio::join!(
        tokio::time::timeout(Duration::from_secs(20), run(&agent, "wait")),
        kill
    );
    assert!(matches!(
        end.unwrap(),
        TurnEnd::Failed {
            reason: FailReason::Stopped,
            ..
        }
    ));
    world.finish().await;
}
