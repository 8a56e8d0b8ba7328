//! An agent written from the seed alone works: every message of the seed, both ways.

use std::collections::BTreeMap;

use crate::harness::{World, log_lines, logged, object, run};
use quintet_agent::{
    Element, FailReason, FinishReason, InboundMessage, InstanceEvent, Phase, Steered, TokenUsage,
    TurnEnd,
};
use serde_json::{Value, json};

fn done() -> TurnEnd {
    TurnEnd::Completed {
        finish_reason: FinishReason::EndTurn,
        usage: Some(TokenUsage {
            input_tokens: 1250,
            output_tokens: 3400,
            cost: "0.055".parse().unwrap(),
        }),
    }
}

#[tokio::test]
async fn a_message_starts_the_process_and_its_output_comes_back() {
    let world = World::new();
    let agent = world.open(world.python("seed_agent.py", &[])).await;
    assert_eq!(agent.status().phase, Phase::Terminated);
    assert_eq!(run(&agent, "hello there").await, done());
    assert_eq!(world.observer.text(), "echo: hello there");
    assert_eq!(run(&agent, "again").await, done());
    assert_eq!(
        world.observer.phases(),
        [
            Phase::Deploying,
            Phase::Initializing,
            Phase::Ready,
            Phase::Running,
            Phase::Ready,
            Phase::Running,
            Phase::Ready
        ]
    );
    agent.shutdown("user").await;
    assert_eq!(agent.status().phase, Phase::Terminated);
    assert_eq!(run(&agent, "after a stop").await, done());
    world.finish().await;
}

#[tokio::test]
async fn every_element_arrives_whole_and_in_order() {
    let world = World::new();
    let agent = world.open(world.python("seed_agent.py", &[])).await;
    assert_eq!(run(&agent, "elements").await, done());
    let kinds: Vec<String> = world
        .observer
        .events()
        .iter()
        .filter_map(|event| match event {
            InstanceEvent::Element {
                element,
                message_id,
                ..
            } => {
                assert_eq!(message_id.as_str(), "msg_elements");
                Some(element.kind().to_owned())
            }
            _ => None,
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "thinking",
            "tool_call",
            "tool_result",
            "code_block",
            "file_change",
            "terminal_output",
            "plan",
            "text_final"
        ]
    );
    let plan = world
        .observer
        .saw(|event| {
            matches!(
                event,
                InstanceEvent::Element {
                    element: Element::Unknown(_),
                    ..
                }
            )
        })
        .await;
    let InstanceEvent::Element {
        element: Element::Unknown(plan),
        ..
    } = plan
    else {
        unreachable!();
    };
    assert_eq!(
        serde_json::from_str::<Value>(plan.json()).unwrap(),
        json!({"type": "plan", "entries": [{"content": "x"}]})
    );
    world.finish().await;
}

#[tokio::test]
async fn state_survives_the_process() {
    let world = World::new();
    let agent = world.open(world.python("seed_agent.py", &[])).await;
    assert_eq!(run(&agent, "count 3").await, done());
    assert_eq!(agent.state().await, json!({"count": 3}));
    agent.restart("user").await;
    assert_eq!(run(&agent, "count 2").await, done());
    assert_eq!(agent.state().await, json!({"count": 5}));
    assert_eq!(world.observer.text(), "12345");
    world.finish().await;
}

#[tokio::test]
async fn steer_and_config_reach_a_running_turn_and_later_ones() {
    let world = World::new();
    let mut spec = world.python("seed_agent.py", &[]);
    spec.config = object(json!({"model": "a", "kept": 1}));
    let agent = world.open(spec).await;
    assert_eq!(agent.steer("too early").await, Steered::NotRunning);
    let turn = {
        let agent = agent.clone();
        async move { run(&agent, "steered").await }
    };
    let guide = async {
        world
            .observer
            .saw(|event| matches!(event, InstanceEvent::Element { .. }))
            .await;
        let refused = agent.run(InboundMessage::text("second", "x")).await;
        assert!(matches!(
            refused,
            TurnEnd::Failed {
                reason: FailReason::Busy,
                ..
            }
        ));
        agent
            .config_update(object(json!({"model": "b"})), "user")
            .await;
        assert_eq!(agent.steer("look at the tests").await, Steered::Delivered);
    };
    let (end, ()) = tokio::join!(turn, guide);
    assert_eq!(end, done());
    assert_eq!(world.observer.text(), "waitinglook at the tests");
    run(&agent, "config").await;
    assert!(
        world
            .observer
            .text()
            .ends_with(r#"{"kept": 1, "model": "b"}"#)
    );
    agent.restart("reload").await;
    run(&agent, "config").await;
    assert!(
        world
            .observer
            .text()
            .ends_with(r#"{"kept": 1, "model": "b"}{"kept": 1, "model": "b"}"#)
    );
    world.finish().await;
}

#[tokio::test]
async fn a_process_gets_exactly_its_environment() {
    let world = World::new();
    let mut spec = world.spec(&["sleep", "3600"]);
    spec.env.insert("FROM_CONFIG".to_owned(), "yes".to_owned());
    let mut expected = spec.env.clone();
    let socket = spec.instance_dir.join("ipc.sock");
    for (name, value) in [
        ("QUINTET_IPC_SOCKET", socket.to_str().unwrap()),
        ("AGENT_ID", "agent_1"),
        ("AGENT_WORKSPACE", spec.workspace.to_str().unwrap()),
    ] {
        expected.insert(name.to_owned(), value.to_owned());
    }
    let agent = world.open(spec).await;
    agent.restart("user").await;
    let pid = agent.status().pid.unwrap();
    let environ = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
    let seen: BTreeMap<String, String> = environ
        .split_terminator('\0')
        .map(|entry| entry.split_once('=').unwrap())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(seen, expected);
    world.finish().await;
}

#[tokio::test]
async fn a_process_gets_three_descriptors() {
    let world = World::new();
    let agent = world.open(world.python("seed_agent.py", &[])).await;
    // A descriptor that is open here and not marked must not reach the agent.
    let leak = std::fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&leak, rustix::io::FdFlags::empty()).unwrap();
    run(&agent, "fds").await;
    let fds: Vec<i32> = serde_json::from_str(&world.observer.text()).unwrap();
    // 3 is its own connection and 4 the folder that it lists.
    assert_eq!(fds, [0, 1, 2, 3, 4]);
    drop(leak);
    world.finish().await;
}

#[tokio::test]
async fn logs_hold_what_it_logs_and_what_it_prints() {
    let world = World::new();
    let agent = world.open(world.python("seed_agent.py", &[])).await;
    run(&agent, "log").await;
    agent.shutdown("user").await;
    let lines = log_lines(&agent).await;
    let entry = lines
        .iter()
        .find(|line| line.message == "Starting code analysis")
        .unwrap();
    assert_eq!(
        (
            entry.level.as_str(),
            entry.module.as_str(),
            entry.timestamp.as_str()
        ),
        ("info", "agent.analyzer", "2025-01-15T10:30:00Z")
    );
    assert!(logged(&agent, "on stdout").await);
    assert!(logged(&agent, "on stderr").await);
    world.finish().await;
}
