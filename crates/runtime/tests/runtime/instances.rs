//! Agent processes under the daemon: what they are told, what is kept of them, how they end.

use futures_util::StreamExt;
use quintet_control::wire::{
    AgentInstance, AgentLogsMsg, AgentRestartMsg, KillMsg, SendMsg, SteerMsg,
};
use quintet_control::{Client, UnixClient};
use serde_json::{Value, json};

use crate::harness::{TestDaemon, again, error_of, run, script, session_of, streamed, text_of};

/// The lines of a log, without their times.
async fn logged(client: &mut UnixClient, agent_id: &str) -> Vec<(String, String, String)> {
    let request = AgentLogsMsg {
        agent_id: agent_id.into(),
        follow: false,
        lines: None,
    };
    let lines: Vec<_> = client.agent_logs(request).collect().await;
    lines
        .into_iter()
        .map(|line| {
            let line = line.expect("readable");
            assert!(line.text.ends_with(&line.message) && line.text.starts_with(&line.at));
            (line.source, line.level, line.message)
        })
        .collect()
}

async fn instances(client: &mut UnixClient, agent: &str) -> Vec<AgentInstance> {
    let listed = client.agents().await.expect("lists").agents;
    let found = listed.into_iter().find(|it| it.name == agent);
    found.map_or_else(Vec::new, |agent| agent.instances)
}

/// Another agent with the program of the first.
fn another(name: &str, more: &str) -> String {
    format!("[agents.{name}]\nprogram = \"py\"\n{more}")
}

fn of(agent: &str, lines: &[&str]) -> SendMsg {
    SendMsg {
        agent: agent.into(),
        ..script(lines)
    }
}

#[tokio::test]
async fn what_is_no_message_or_no_patch_names_the_agent_and_its_log() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let events = run(&mut client, script(&[r#"{"garbage": "[]"}"#])).await;
    let error = error_of(&events);
    let log = format!("`quintet agent logs py-{}`", session_of(&events));
    assert!(
        error.starts_with("the agent sent what is no message: "),
        "{error}"
    );
    assert!(error.contains(&log), "{error}");
    let patch = r#"{"type": "state_delta", "deltas": [{"op": "remove", "path": "/none"}]}"#;
    let line = json!({ "garbage": patch }).to_string();
    let error = error_of(&run(&mut client, script(&[&line])).await);
    assert!(
        error.starts_with("the agent's state patch was refused: "),
        "{error}"
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_change_of_state_is_in_the_journal_without_what_it_holds() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let lines = [r#"{"state": "key", "value": "hidden"}"#, r#"{"say": "x"}"#];
    let session = client.send(script(&lines)).await.expect("answers").session;
    let journal = daemon.journal(Some(session)).await;
    let rows: Vec<Value> = journal
        .iter()
        .filter(|row| row.kind == "agent_state")
        .map(|row| serde_json::from_str(&row.data).expect("JSON"))
        .collect();
    let expected = json!({"agent_id": format!("py-{session}"), "patches": 1, "revision": 1});
    assert_eq!(rows, [expected]);
    daemon.stop().await;
}
