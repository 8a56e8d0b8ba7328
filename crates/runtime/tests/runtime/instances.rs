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
async fn logs_and_restart_outlive_the_daemon_and_logs_the_session() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let said = [r#"{"log": "a remark"}"#, r#"{"state": "n", "value": 1}"#];
    let session = client.send(script(&said)).await.expect("answers").session;
    let id = format!("py-{session}");
    let remark = ("agent".into(), "warn".into(), "a remark".into());
    assert!(logged(&mut client, &id).await.contains(&remark));

    let daemon = TestDaemon::on(daemon.stop().await).await;
    let mut client = daemon.client().await;
    assert!(logged(&mut client, &id).await.contains(&remark));
    let listed = instances(&mut client, "py").await;
    let expected = AgentInstance {
        agent_id: id.clone(),
        session: Some(session),
        state: "terminated".into(),
        pid: None,
    };
    assert_eq!(listed, [expected]);
    let agent_id = id.clone();
    let restart = client.agent_restart(AgentRestartMsg { agent_id }).await;
    restart.expect("starts it");
    assert!(instances(&mut client, "py").await[0].pid.is_some());
    let answer = client.send(again(session, &[r#"{"show": "state"}"#])).await;
    assert_eq!(answer.expect("answers").content, r#"{"n": 1}"#);

    client.kill(KillMsg { session }).await.expect("there");
    assert!(logged(&mut client, &id).await.contains(&remark));
    let agent_id = id.clone();
    let refused = client.agent_restart(AgentRestartMsg { agent_id }).await;
    assert!(refused.is_err(), "its session is closed");
    daemon.stop().await;
}

#[tokio::test]
async fn an_agent_that_is_gone_from_the_configuration_ends_with_its_turn() {
    let daemon = TestDaemon::start_with(&another("gone", "")).await;
    let mut client = daemon.client().await;
    let stream = client.stream(streamed(of("gone", &[r#"{"await": "steer"}"#])));
    tokio::pin!(stream);
    let start = stream.next().await.expect("starts").expect("streams");
    let session = session_of(&[start]);
    let file = daemon.home().config_file();
    let text = std::fs::read_to_string(&file).expect("there");
    std::fs::write(&file, text.replace(&another("gone", ""), "")).expect("writable");
    let mut other = daemon.client().await;
    other.reload().await.expect("valid");
    let content = "go on".into();
    other
        .steer(SteerMsg { session, content })
        .await
        .expect("runs");
    let events: Vec<_> = stream.map(|event| event.expect("streams")).collect().await;
    assert_eq!(
        (text_of(&events), error_of(&events)),
        ("steered: go on".into(), String::new())
    );
    daemon
        .wait_for_row(session, |row| {
            row.kind == "agent_phase" && row.data.contains("\"reload\"")
        })
        .await;
    let events = run(&mut other, again(session, &["hi"])).await;
    let error = error_of(&events);
    assert!(
        error.contains("\"gone\" is no longer configured"),
        "{error}"
    );
    daemon.stop().await;
}

#[tokio::test]
async fn an_agent_is_told_its_model_and_how_a_message_came() {
    let daemon = TestDaemon::start_with(&another("bare", "")).await;
    let mut client = daemon.client().await;
    let shown = async |client: &mut UnixClient, what: &str| -> Value {
        let line = json!({ "show": what }).to_string();
        let message = SendMsg {
            sender: Some("ann".into()),
            ..of("bare", &[&line])
        };
        let answer = client.send(message).await.expect("answers");
        serde_json::from_str(&answer.content).expect("JSON")
    };
    assert_eq!(shown(&mut client, "config").await["model"], "");
    assert_eq!(shown(&mut client, "origin").await["channel"], "cli");
    daemon.stop().await;
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

#[tokio::test]
async fn a_quiet_turn_is_reported_and_runs_on() {
    let daemon = TestDaemon::start_with("stall_after = \"50ms\"\n").await;
    let mut client = daemon.client().await;
    let stream = client.stream(streamed(script(&[r#"{"await": "steer"}"#])));
    tokio::pin!(stream);
    let start = stream.next().await.expect("starts").expect("streams");
    let session = session_of(&[start]);
    let row = daemon.wait_for(session, "agent_stalled").await;
    assert!(
        row.data.contains("output or `complete` from the agent"),
        "{}",
        row.data
    );
    let mut other = daemon.client().await;
    let content = "on".into();
    other
        .steer(SteerMsg { session, content })
        .await
        .expect("runs");
    let events: Vec<_> = stream.map(|event| event.expect("streams")).collect().await;
    assert_eq!(error_of(&events), "");
    daemon.stop().await;
}

#[tokio::test]
async fn what_the_configuration_says_of_an_agent_holds_for_its_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let elsewhere = folder.path().canonicalize().expect("there");
    let more = format!(
        "cwd = {elsewhere:?}\nenv = {{ GREETING = \"hello\" }}\nfiles_max = 77\n\
         cpu_seconds = 100\nfile_size = \"1MiB\"\nmemory_max = \"1GiB\"\n\
         turn_deadline = \"300ms\"\nidle_timeout = \"100ms\"\n"
    );
    let daemon = TestDaemon::start_with(&another("wired", &more)).await;
    let mut client = daemon.client().await;
    let shown = client.send(of("wired", &[r#"{"show": "process"}"#])).await;
    let shown = shown.expect("answers");
    let process: Value = serde_json::from_str(&shown.content).expect("JSON");
    assert_eq!(process["cwd"], elsewhere.to_str().expect("UTF-8"));
    assert_eq!(process["env"]["GREETING"], "hello");
    let limits = &process["limits"];
    assert_eq!(
        (
            &limits["RLIMIT_NOFILE"],
            &limits["RLIMIT_CPU"],
            &limits["RLIMIT_FSIZE"]
        ),
        (&json!(77), &json!(100), &json!(1 << 20))
    );
    // A cgroup counts the memory where there is one for the agent.
    let data = &limits["RLIMIT_DATA"];
    assert!(*data == json!(1 << 30) || *data == json!(-1), "{data}");
    daemon
        .wait_for_row(shown.session, |row| {
            row.kind == "agent_phase" && row.data.contains("idle_timeout")
        })
        .await;
    let late = again(shown.session, &[r#"{"await": "cancel"}"#]);
    let error = error_of(&run(&mut client, late).await);
    assert_eq!(error, "the turn ran longer than turn_deadline (300ms)");
    daemon.stop().await;
}

#[tokio::test]
async fn an_agent_of_a_file_has_its_text_as_its_prompt() {
    let daemon = TestDaemon::start().await;
    let folder = daemon.home().agents_dir();
    std::fs::create_dir_all(&folder).expect("writable");
    let text = "---\nprogram: py\nmodel: m9\n---\nBe brief.\n";
    std::fs::write(folder.join("terse.md"), text).expect("writable");
    let mut client = daemon.client().await;
    client.reload().await.expect("valid");
    let answer = client.send(of("terse", &[r#"{"show": "config"}"#])).await;
    let config: Value = serde_json::from_str(&answer.expect("answers").content).expect("JSON");
    assert_eq!(
        (&config["prompt"], &config["model"]),
        (&json!("Be brief."), &json!("m9"))
    );
    daemon.stop().await;
}
