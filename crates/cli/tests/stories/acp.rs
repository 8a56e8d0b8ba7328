//! An agent that speaks the Agent Client Protocol, under the daemon.

use crate::harness::Machine;

/// A machine whose agent `acp` is the example of the agent crate.
fn with_acp_agent() -> Machine {
    let test = std::env::current_exe().unwrap();
    let agent = test.ancestors().nth(2).unwrap().join("examples/acp_agent");
    assert!(agent.exists(), "{} is not built", agent.display());
    let machine = Machine::fresh();
    machine.configure(&format!(
        "[agents.acp]\ncommand = [{agent:?}]\nkind = \"acp\"\nbudget = {{ turn = \"0.20\" }}\n"
    ));
    machine
}

#[tokio::test]
async fn an_acp_agent_answers_asks_is_cancelled_and_remembers_over_a_restart() {
    let machine = with_acp_agent();
    let _daemon = machine.up().await;
    assert_eq!(
        machine.runs(&["send", "acp", "hello"]).await.succeeds(),
        "hello\n"
    );
    let agents = machine.runs(&["agents", "--json"]).await.json();
    let agents = agents.as_array().unwrap();
    let agent = agents.iter().find(|agent| agent["name"] == "acp").unwrap();
    assert_eq!(
        (&agent["kind"], &agent["instances"][0]["agent_id"]),
        (&"acp".into(), &"acp-1".into())
    );

    let asking = machine.begins(&["send", "acp", "run make", "--session", "1"]);
    machine.sees("approval_requested", 1).await;
    let approvals = machine.runs(&["approvals", "--json"]).await.json();
    assert_eq!(approvals[0]["command"], "make");
    let id = approvals[0]["id"].to_string();
    machine.runs(&["approve", &id]).await.succeeds();
    asking.ends().await.succeeds();
    let result = machine.sees("tool_result", 1).await;
    assert!(result["data"].to_string().contains("make: yes"), "{result}");

    let waiting = machine.begins(&["send", "acp", "wait", "--new"]);
    machine.sees("text_delta", 2).await;
    machine.runs(&["cancel", "2"]).await.succeeds();
    let stderr = waiting.ends().await.fails(1);
    assert!(stderr.contains("cancelled"), "{stderr}");

    machine
        .runs(&["agent", "restart", "acp-1"])
        .await
        .succeeds();
    let recalled = machine.runs(&["send", "acp", "recall", "--session", "1"]);
    assert_eq!(recalled.await.succeeds(), "hello;run make;\n");
}

#[tokio::test]
async fn a_budget_ends_the_turn_of_an_acp_agent() {
    let machine = with_acp_agent();
    let _daemon = machine.up().await;
    let stderr = machine.runs(&["send", "acp", "spend 0.25"]).await.fails(1);
    assert!(stderr.contains("budget"), "{stderr}");
    let ended = machine.sees("turn_ended", 1).await;
    assert_eq!(ended["data"]["finish_reason"], "budget");
    assert_eq!(ended["data"]["usage"]["cost"], "0.25");
}
