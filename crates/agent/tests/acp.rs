//! The ACP bridge under the supervisor, with a real ACP agent made of the official crate.
#![expect(clippy::unwrap_used, reason = "tests")]

#[expect(dead_code, reason = "each test program uses a part of it")]
mod harness;

use std::path::PathBuf;

use harness::{PATIENCE, Recorder, World, logged, reaches, run};
use quintet_agent::{
    ApprovalResult, Element, FailReason, FinishReason, InboundMessage, InstanceEvent,
    InstanceHandle, InstanceSpec, Phase, Steered, Timings, TurnEnd,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

fn example(name: &str) -> String {
    let deps = std::env::current_exe().unwrap();
    let folder: PathBuf = deps.parent().unwrap().parent().unwrap().join("examples");
    let program = folder.join(name);
    assert!(
        program.exists(),
        "{} is not built: run `cargo build -p quintet-agent --examples` first",
        program.display()
    );
    program.to_str().unwrap().to_owned()
}

fn bridge(world: &World, command: &[&str]) -> InstanceSpec {
    let bridge = example("acp_bridge");
    let mut words = vec![bridge.as_str()];
    words.extend(command);
    let mut spec = world.spec(&words);
    spec.timings = Timings {
        restart: spec.timings.restart,
        ..Timings::default()
    };
    spec
}

async fn open(world: &World) -> InstanceHandle {
    world.open(bridge(world, &[&example("acp_agent")])).await
}

fn ended(finish_reason: FinishReason) -> TurnEnd {
    TurnEnd::Completed {
        finish_reason,
        usage: None,
    }
}

/// The elements of a message as JSON, without how long things took.
fn elements(observer: &Recorder, message: &str) -> Vec<Value> {
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
        .map(|element| {
            let mut element = serde_json::to_value(element).unwrap();
            element.as_object_mut().unwrap().remove("duration_ms");
            element
        })
        .collect()
}

fn text(text: &str) -> Value {
    json!({"type": "text_delta", "text": text})
}

#[expect(
    clippy::disallowed_methods,
    reason = "joined by the test that asked for it"
)]
fn start(agent: &InstanceHandle, id: &'static str, text: &str) -> JoinHandle<TurnEnd> {
    let (agent, message) = (agent.clone(), InboundMessage::text(id, text));
    tokio::spawn(async move { agent.run(message).await })
}

async fn joined(turn: JoinHandle<TurnEnd>) -> TurnEnd {
    tokio::time::timeout(PATIENCE, turn).await.unwrap().unwrap()
}

async fn says(world: &World, id: &str, text: &str) {
    let said = Element::TextDelta {
        text: text.to_owned(),
    };
    world
        .observer
        .saw(|event| {
            matches!(event, InstanceEvent::Element { message_id, element, .. }
                if message_id.as_str() == id && *element == said)
        })
        .await;
}

#[tokio::test]
async fn a_prompt_streams_thoughts_plans_text_and_cost() {
    let world = World::new();
    let agent = open(&world).await;
    let TurnEnd::Completed {
        finish_reason: FinishReason::EndTurn,
        usage: Some(usage),
    } = run(&agent, "think hard").await
    else {
        panic!("the turn has no usage");
    };
    assert_eq!(usage.cost.to_string(), "0.25");
    assert_eq!(
        elements(&world.observer, "msg_think hard"),
        [
            json!({"type": "thinking", "text": "hard"}),
            json!({"type": "plan", "entries":
                   [{"content": "answer", "priority": "high", "status": "pending"}]}),
            text("thought"),
        ]
    );
    world.finish().await;
}

#[tokio::test]
async fn a_restart_loads_the_session_and_tells_nothing_twice() {
    let world = World::new();
    let mut spec = bridge(&world, &[&example("acp_agent")]);
    spec.config = harness::object(json!({"prompt": "Be kind."}));
    let agent = world.open(spec).await;
    assert_eq!(run(&agent, "one").await, ended(FinishReason::EndTurn));
    assert_eq!(elements(&world.observer, "msg_one"), [text("Be kind.+one")]);
    let session = agent.state().await["session_id"].clone();
    assert!(session.as_str().unwrap().starts_with("session-"));

    agent.restart("reload").await;
    assert_eq!(run(&agent, "recall").await, ended(FinishReason::EndTurn));
    assert_eq!(
        elements(&world.observer, "msg_recall"),
        [text("Be kind.+one;")]
    );
    assert_eq!(agent.state().await["session_id"], session);

    // A session that the agent no longer has is replaced.
    std::fs::remove_file(
        world
            .folder
            .path()
            .join(format!("workspace/.{}", session.as_str().unwrap())),
    )
    .unwrap();
    agent.restart("reload").await;
    assert_eq!(
        run(&agent, "recall more").await,
        ended(FinishReason::EndTurn)
    );
    assert_ne!(agent.state().await["session_id"], session);
    assert!(logged(&agent, "starting a new one").await);
    world.finish().await;
}

#[tokio::test]
async fn files_are_those_of_the_workspace() {
    let world = World::new();
    let agent = open(&world).await;
    let file = world.folder.path().join("workspace/src/a.txt");
    let path = file.to_str().unwrap();
    let edit = format!("edit {path}");
    assert_eq!(run(&agent, &edit).await, ended(FinishReason::EndTurn));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "new\n");
    assert_eq!(
        elements(&world.observer, &format!("msg_{edit}")),
        [
            json!({"type": "tool_call", "call_id": "edit-1", "name": "edit", "arguments": {"path": path}}),
            json!({"type": "file_change", "path": "src/a.txt", "change": "modified",
                   "diff": "--- a/src/a.txt\n+++ b/src/a.txt\n@@ -1 +1 @@\n-old\n+new\n"}),
            json!({"type": "tool_result", "call_id": "edit-1", "output": "", "is_error": false}),
        ]
    );
    let read = format!("read {path}");
    run(&agent, &read).await;
    assert_eq!(
        elements(&world.observer, &format!("msg_{read}")),
        [text("new\n")]
    );

    std::fs::write(world.folder.path().join("secret"), "secret").unwrap();
    let escape = format!("read {path}/../../../secret");
    run(&agent, &escape).await;
    let told = elements(&world.observer, &format!("msg_{escape}")).remove(0);
    let told = told["text"].as_str().unwrap();
    assert!(
        told.starts_with("refused: ") && !told.contains("secret\""),
        "{told}"
    );
    world.finish().await;
}

#[tokio::test]
async fn a_permission_request_waits_for_its_approval() {
    let world = World::new();
    let agent = open(&world).await;
    for (id, approved, scope, chosen) in [
        ("once", true, None, "yes"),
        ("lasting", true, Some("session"), "always"),
        ("denied", false, None, "no"),
    ] {
        let turn = start(&agent, id, "run make all");
        let request = world
            .observer
            .saw(|event| {
                matches!(event, InstanceEvent::ApprovalRequest { request_id, .. }
                if request_id.ends_with(match id { "once" => "_1", "lasting" => "_2", _ => "_3" }))
            })
            .await;
        let InstanceEvent::ApprovalRequest {
            request_id,
            action,
            command,
            ..
        } = request
        else {
            unreachable!("it was matched above");
        };
        assert_eq!(
            (action.as_str(), command.as_deref()),
            ("Run a command", Some("make all"))
        );
        let answer = ApprovalResult {
            request_id,
            approved,
            scope: scope.map(str::to_owned),
            ..ApprovalResult::default()
        };
        assert!(agent.answer_approval(answer).await);
        assert_eq!(joined(turn).await, ended(FinishReason::EndTurn));
        let output = format!("make all: {chosen}\n");
        assert_eq!(
            elements(&world.observer, id),
            [
                json!({"type": "tool_call", "call_id": "run-1", "name": "execute",
                       "arguments": {"command": "make all"}}),
                json!({"type": "terminal_output", "stream": "stdout", "data": output}),
                json!({"type": "tool_result", "call_id": "run-1", "output": output, "is_error": !approved}),
            ]
        );
    }
    world.finish().await;
}

#[tokio::test]
async fn a_cancel_ends_the_prompt_and_leaves_the_agent() {
    let world = World::new();
    let agent = open(&world).await;
    let turn = start(&agent, "m1", "wait");
    says(&world, "m1", "waiting").await;
    let before = agent.status().pid;
    assert!(agent.cancel().await);
    assert_eq!(joined(turn).await, ended(FinishReason::Cancelled));
    assert_eq!(run(&agent, "hello").await, ended(FinishReason::EndTurn));
    assert_eq!(agent.status().pid, before);

    // A permission that nobody will give any more does not hold the prompt.
    let turn = start(&agent, "m2", "run rm");
    world
        .observer
        .saw(|event| matches!(event, InstanceEvent::ApprovalRequest { .. }))
        .await;
    assert!(agent.cancel().await);
    assert_eq!(joined(turn).await, ended(FinishReason::Cancelled));
    world.finish().await;
}

#[tokio::test]
async fn guidance_is_the_next_prompt_of_the_turn() {
    let world = World::new();
    let agent = open(&world).await;
    let turn = start(&agent, "m1", "run ls");
    let asked = world
        .observer
        .saw(|event| matches!(event, InstanceEvent::ApprovalRequest { .. }))
        .await;
    assert_eq!(agent.steer("go left").await, Steered::Delivered);
    let InstanceEvent::ApprovalRequest { request_id, .. } = asked else {
        unreachable!("it was matched above");
    };
    let yes = ApprovalResult {
        request_id,
        approved: true,
        ..ApprovalResult::default()
    };
    assert!(agent.answer_approval(yes).await);
    assert_eq!(joined(turn).await, ended(FinishReason::EndTurn));
    assert_eq!(
        elements(&world.observer, "m1").last().unwrap(),
        &text("go left")
    );
    world.finish().await;
}

#[tokio::test]
async fn a_shutdown_cancels_the_prompt_and_ends_the_agent() {
    let world = World::new();
    let agent = open(&world).await;
    let turn = start(&agent, "m1", "wait");
    says(&world, "m1", "waiting").await;
    let begun = tokio::time::Instant::now();
    agent.shutdown("user").await;
    assert!(
        begun.elapsed() < Timings::default().shutdown_grace,
        "it had to be killed"
    );
    joined(turn).await;
    assert_eq!(agent.status().phase, Phase::Terminated);
    world.finish().await;
}

#[tokio::test]
async fn a_failing_prompt_is_told_and_a_dying_agent_is_a_crash() {
    let world = World::new();
    let agent = open(&world).await;
    assert_eq!(run(&agent, "fail badly").await, ended(FinishReason::Error));
    let told = elements(&world.observer, "msg_fail badly").remove(0);
    assert!(told["text"].as_str().unwrap().contains("badly"), "{told}");

    let TurnEnd::Failed { reason, .. } = run(&agent, "die").await else {
        panic!("a dead agent completed");
    };
    assert_eq!(reason, FailReason::Crashed);
    assert!(logged(&agent, "the ACP agent ended by itself (exit status: 3)").await);
    reaches(&agent, Phase::Ready).await;
    assert_eq!(run(&agent, "hello").await, ended(FinishReason::EndTurn));
    world.finish().await;
}

#[tokio::test]
async fn a_program_that_is_no_acp_agent_is_named_in_the_log() {
    let world = World::new();
    let mut spec = bridge(&world, &["/nowhere/agent"]);
    spec.timings.restart.breaker_crashes = 2;
    let agent = world.open(spec).await;
    let TurnEnd::Failed { detail, .. } = run(&agent, "hello").await else {
        panic!("nothing completed a message");
    };
    assert!(
        detail.contains("cannot start the ACP agent `/nowhere/agent`"),
        "{detail}"
    );
    world.finish().await;
}
