//! The built-in coder through the daemon, with a model on this machine.

use quintet_models::test_server::{Reply, TestServer};
use serde_json::json;

use crate::harness::Machine;

/// A machine whose provider answers with a script.
async fn machine(script: Vec<Reply>) -> (Machine, TestServer) {
    let model = TestServer::start(script).await;
    let machine = Machine::fresh();
    machine.configure(&format!(
        "[providers.anthropic]\napi_key = \"sk-story\"\nbase_url = {:?}\n",
        model.url()
    ));
    (machine, model)
}

#[tokio::test]
async fn why_a_provider_refused_is_told_beside_the_answer() {
    let no = Reply::error(401, "authentication_error", "no such key");
    let (machine, _model) = machine(vec![no]).await;
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let told = machine.runs(&["send", "coder", "hello"]).await.fails(1);
    assert!(
        told.contains("the agent reported an error") && told.contains("no such key"),
        "{told}"
    );
}

#[tokio::test]
async fn a_compacted_session_knows_its_task_its_rules_and_its_questions() {
    let noted = json!({"rules": ["no tabs"], "open_questions": ["which port?"]});
    let (machine, model) = machine(vec![
        Reply::tool("t1", "remember", noted),
        Reply::text("Begun."),
        Reply::text("The lexer is done."),
        Reply::text("Going on."),
    ])
    .await;
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let task = ["send", "coder", "build it, never touch main.c"];
    machine.runs(&task).await.succeeds();
    machine.runs(&["compact", "1"]).await.succeeds();
    machine.runs(&["send", "coder", "go on"]).await.succeeds();

    let asked: Vec<_> = model.received();
    let asked: Vec<_> = asked.iter().filter(|it| !it.lists_models()).collect();
    assert_eq!(asked.len(), 4);
    assert_eq!(asked[2].body["tool_choice"]["type"], "none");
    let goes_on = asked[3].body["messages"].to_string();
    for part in [
        "build it, never touch main.c",
        "no tabs",
        "which port?",
        "The lexer is done.",
    ] {
        assert!(goes_on.contains(part), "{part:?} is in {goes_on}");
    }
}
