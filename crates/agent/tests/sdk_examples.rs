//! The examples of the SDKs, and the agent without one, as real processes under the supervisor.
#![expect(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "each test program uses a part of it")]
mod harness;

use std::path::{Path, PathBuf};
use std::time::Duration;

use harness::{Recorder, World, logged, object, run};
use quintet_agent::{
    Element, FinishReason, InboundMessage, InstanceEvent, InstanceHandle, InstanceSpec, Phase,
    Steered, Timings, TokenUsage, TurnEnd,
};
use serde_json::json;

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// Interpreters take their time on a loaded machine: only a hang is to be killed.
fn patient(mut spec: InstanceSpec) -> InstanceSpec {
    spec.timings = Timings {
        restart: spec.timings.restart,
        ..Timings::default()
    };
    spec
}

fn python(world: &World, script: &str) -> InstanceSpec {
    let script = repository(script);
    let mut spec = patient(world.spec(&["python3", script.to_str().unwrap()]));
    let packages = repository("sdk/python/src");
    spec.env.insert(
        "PYTHONPATH".to_owned(),
        packages.to_str().unwrap().to_owned(),
    );
    spec.env
        .insert("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned());
    spec
}

fn node(world: &World) -> InstanceSpec {
    let script = repository("sdk/typescript/dist/examples/echo.js");
    assert!(
        script.exists(),
        "{} is not built: run sdk/typescript/build.sh first",
        script.display()
    );
    patient(world.spec(&["node", script.to_str().unwrap()]))
}

fn completed(finish_reason: FinishReason, input_tokens: u64) -> TurnEnd {
    TurnEnd::Completed {
        finish_reason,
        usage: Some(TokenUsage {
            input_tokens,
            output_tokens: 0,
            cost: "0.001".parse().unwrap(),
        }),
    }
}

fn elements(observer: &Recorder, message: &str) -> Vec<Element> {
    observer
        .events()
        .into_iter()
        .filter_map(|event| match event {
            InstanceEvent::Element {
                message_id,
                element,
                ..
            } if message_id.as_str() == message => Some(element),
            _ => None,
        })
        .collect()
}

fn text(observer: &Recorder, message: &str) -> String {
    elements(observer, message)
        .into_iter()
        .filter_map(|element| match element {
            Element::TextDelta { text } => Some(text),
            _ => None,
        })
        .collect()
}

/// Sends `wait` as `id`, and waits until the example says that it does.
async fn start_waiting(
    world: &World,
    agent: &InstanceHandle,
    id: &'static str,
) -> tokio::task::JoinHandle<TurnEnd> {
    let runner = agent.clone();
    #[expect(
        clippy::disallowed_methods,
        reason = "joined by the test that asked for it"
    )]
    let turn = tokio::spawn(async move { runner.run(InboundMessage::text(id, "wait")).await });
    world
        .observer
        .saw(|event| matches!(event, InstanceEvent::Element { message_id, .. } if message_id.as_str() == id))
        .await;
    turn
}

async fn joined(turn: tokio::task::JoinHandle<TurnEnd>) -> TurnEnd {
    tokio::time::timeout(harness::PATIENCE, turn)
        .await
        .unwrap()
        .unwrap()
}

/// What both examples do.
async fn check(world: World, spec: InstanceSpec) {
    let agent = world.open(spec).await;

    // A message in, elements out.
    assert_eq!(
        run(&agent, "hello world").await,
        completed(FinishReason::EndTurn, 11)
    );
    let seen = elements(&world.observer, "msg_hello world");
    let [
        Element::ToolCall {
            call_id,
            name,
            arguments,
        },
        Element::ToolResult {
            call_id: result_of,
            output,
            is_error: false,
            duration_ms: Some(_),
        },
        Element::TextDelta { text: answer },
    ] = seen.as_slice()
    else {
        panic!("other elements: {seen:?}");
    };
    assert_eq!((call_id, name.as_str()), (result_of, "count"));
    assert_eq!(json!(arguments), json!({"words": "hello world"}));
    assert_eq!((output, answer.as_str()), (&json!("2"), "1: hello world"));

    // The state survives a restart.
    assert_eq!(
        agent.state().await,
        json!({"count": 1, "history": ["hello world"]})
    );
    let before = agent.status().pid;
    agent.restart("reload").await;
    assert_eq!(
        run(&agent, "again").await,
        completed(FinishReason::EndTurn, 5)
    );
    assert_ne!(agent.status().pid, before);
    assert_eq!(text(&world.observer, "msg_again"), "2: again");
    assert_eq!(
        agent.state().await,
        json!({"count": 2, "history": ["hello world", "again"]})
    );

    // Guidance reaches the running turn.
    let turn = start_waiting(&world, &agent, "steered").await;
    assert_eq!(agent.steer("go left").await, Steered::Delivered);
    assert_eq!(joined(turn).await, completed(FinishReason::EndTurn, 4));
    assert_eq!(
        text(&world.observer, "steered"),
        "waiting, told: go left3: wait"
    );

    // A changed configuration reaches the running turn and restarts nothing.
    let before = agent.status().pid;
    let turn = start_waiting(&world, &agent, "configured").await;
    agent
        .config_update(object(json!({"prefix": "no. "})), "user")
        .await;
    assert_eq!(agent.steer("go on").await, Steered::Delivered);
    assert_eq!(joined(turn).await, completed(FinishReason::EndTurn, 4));
    assert_eq!(
        text(&world.observer, "configured"),
        "waiting, told: go onno. 4: wait"
    );
    assert!(logged(&agent, "user changed: prefix").await);
    assert_eq!(agent.status().pid, before);

    // A cancel ends the turn, not the process.
    let turn = start_waiting(&world, &agent, "cancelled").await;
    assert!(agent.cancel().await);
    let TurnEnd::Completed {
        finish_reason: FinishReason::Cancelled,
        ..
    } = joined(turn).await
    else {
        panic!("the turn was not cancelled");
    };
    assert_eq!(
        run(&agent, "after").await,
        completed(FinishReason::EndTurn, 5)
    );
    assert_eq!(agent.status().pid, before);

    // A shutdown ends the process by its own will.
    let begun = tokio::time::Instant::now();
    agent.shutdown("user").await;
    assert!(
        begun.elapsed() < Timings::default().shutdown_grace,
        "it had to be killed"
    );
    assert_eq!(agent.status().phase, Phase::Terminated);
    assert!(logged(&agent, "stopping: user").await);
    world.finish().await;
}

#[tokio::test]
async fn the_python_example_runs_under_the_supervisor() {
    let world = World::new();
    let spec = python(&world, "sdk/python/examples/echo.py");
    check(world, spec).await;
}

#[tokio::test]
async fn the_typescript_example_runs_under_the_supervisor() {
    let world = World::new();
    let spec = node(&world);
    check(world, spec).await;
}

#[tokio::test]
async fn the_agent_without_an_sdk_runs_under_the_supervisor() {
    let world = World::new();
    let agent = world.open(python(&world, "examples/agents/plain.py")).await;
    let done = TurnEnd::Completed {
        finish_reason: FinishReason::EndTurn,
        usage: None,
    };
    assert_eq!(run(&agent, "hello").await, done);
    agent.restart("reload").await;
    assert_eq!(run(&agent, "hello again").await, done);
    assert_eq!(world.observer.text(), "1: hello 2: hello again ");
    assert_eq!(agent.state().await, json!({"count": 2}));
    let begun = tokio::time::Instant::now();
    agent.shutdown("user").await;
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "it had to be killed"
    );
    world.finish().await;
}
