//! Agents and models: the gateway with the daemon's keys, budgets and books.

use quintet_control::Client;
use quintet_control::wire::KillMsg;
use quintet_models::test_server::{Message, Reply, TestServer};
use serde_json::Value;

use crate::harness::{TestDaemon, again, error_of, run, script, session_of, text_of};

const SECRET: &str = "sk-secret-of-the-provider-0815";
const ASK: &str =
    r#"{"model": {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}}"#;

fn provider(server: &TestServer) -> String {
    format!(
        "[providers.anthropic]\napi_key = \"{SECRET}\"\nbase_url = \"{}\"\n\
         prices = [{{ model = \"m1\", input = \"1\", output = \"10\" }}]\n",
        server.url()
    )
}

/// An answer that costs 0.2 by the prices above.
fn answer(text: &str) -> Reply {
    let mut message = Message::new(vec![quintet_models::test_server::Block::Text(text.into())]);
    message.input_tokens = 100_000;
    message.output_tokens = 10_000;
    Reply::Message(message)
}

/// The whole home folder as bytes, but for the configuration file.
fn everything_in(folder: &std::path::Path, found: &mut Vec<(std::path::PathBuf, Vec<u8>)>) {
    for entry in std::fs::read_dir(folder).expect("readable") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            everything_in(&path, found);
        } else if let Ok(bytes) = std::fs::read(&path)
            && path.file_name().is_some_and(|name| name != "config.toml")
        {
            found.push((path, bytes));
        }
    }
}

fn holds(bytes: &[u8], secret: &str) -> bool {
    bytes
        .windows(secret.len())
        .any(|part| part == secret.as_bytes())
}

#[tokio::test]
async fn a_model_call_is_answered_and_booked_once() {
    let server = TestServer::start(vec![answer("hello"), answer("again")]).await;
    let daemon = TestDaemon::start_with(&provider(&server)).await;
    let mut client = daemon.client().await;
    // The agent reports less than the gateway metered: the same call is not counted twice.
    let events = run(&mut client, script(&[ASK, r#"{"usage": "0.05"}"#])).await;
    assert_eq!(text_of(&events), "hello");
    let session = session_of(&events);
    let received = &server.received()[0];
    assert_eq!(received.header("x-api-key"), SECRET);
    assert_eq!(
        received.body["model"], "m1",
        "the agent's model is the default"
    );

    let journal = daemon.journal(Some(session)).await;
    let ended = journal
        .iter()
        .find(|event| event.kind == "turn_ended")
        .expect("ended");
    let ended: Value = serde_json::from_str(&ended.data).expect("JSON");
    assert_eq!(ended["usage"]["cost"], "0.2");
    assert_eq!(ended["usage"]["input_tokens"], 100_000);
    let used = journal
        .iter()
        .find(|event| event.kind == "usage")
        .expect("told while it runs");
    let used: Value = serde_json::from_str(&used.data).expect("JSON");
    assert_eq!(used["call"]["model"], "m1");

    // More than the gateway knows of is the agent's own word.
    run(&mut client, again(session, &[ASK, r#"{"usage": "0.5"}"#])).await;
    let stats = client.get_stats().await.expect("shows");
    assert_eq!(stats.cost, "0.7");
    daemon.stop().await;
}

#[tokio::test]
async fn a_budget_refuses_the_call_that_comes_after_it_is_used_up() {
    let server = TestServer::start(vec![answer("one"), answer("two")]).await;
    let config = format!(
        "budget = {{ turn = \"0.15\", day = \"0.35\" }}\n{}",
        provider(&server)
    );
    let daemon = TestDaemon::start_with(&config).await;
    let mut client = daemon.client().await;
    let events = run(&mut client, script(&[ASK, ASK])).await;
    let text = text_of(&events);
    assert!(
        text.starts_with("one402: the budget of 0.15 for one message is used up (0.2 spent)"),
        "{text}"
    );
    assert!(text.contains("agents.py.budget.turn"), "{text}");
    assert_eq!(server.received().len(), 1);
    let session = session_of(&events);
    run(&mut client, again(session, &[ASK])).await;
    let events = run(&mut client, again(session, &[ASK])).await;
    let error = error_of(&events);
    assert!(error.contains("0.4 of its 0.35 for today"), "{error}");
    assert_eq!(server.received().len(), 2);
    daemon.stop().await;
}

/// A client that calls models itself, as a program of an agent's does.
fn http() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .build()
        .expect("a client")
}

#[tokio::test]
async fn calls_at_the_same_time_share_what_a_budget_has_left() {
    let server = TestServer::answering(|_| answer("one")).await;
    let config = format!("budget = {{ day = \"0.5\" }}\n{}", provider(&server));
    let daemon = TestDaemon::start_with(&config).await;
    let mut client = daemon.client().await;
    let events = run(&mut client, script(&[r#"{"show": "config"}"#])).await;
    let config: Value = serde_json::from_str(&text_of(&events)).expect("JSON");
    let text = |key: &str| config[key].as_str().expect("told").to_owned();
    let url = format!("{}/v1/messages", text("ensemble_url"));
    let (http, key) = (http(), text("ensemble_api_key"));
    // 0.2 at the most, as the answers cost.
    let body = r#"{"model":"m1","max_tokens":20000,"messages":[]}"#;
    let calls = (0..10).map(|_| async {
        let request = http.post(&url).bearer_auth(&key).body(body);
        request.send().await.expect("answered").status().as_u16()
    });
    let statuses = futures_util::future::join_all(calls).await;
    let answered = statuses.iter().filter(|status| **status == 200).count();
    let refused = statuses.iter().filter(|status| **status == 402).count();
    assert_eq!((answered, refused), (3, 7), "{statuses:?}");
    let stats = client.get_stats().await.expect("shows");
    assert_eq!(stats.cost, "0.6", "one call beyond what was left");
    daemon.stop().await;
}

#[tokio::test]
async fn a_key_dies_with_its_instance() {
    let server = TestServer::start(vec![answer("mine"), answer("outside")]).await;
    let daemon = TestDaemon::start_with(&provider(&server)).await;
    let mut client = daemon.client().await;
    let events = run(&mut client, script(&[r#"{"show": "config"}"#])).await;
    let config: Value = serde_json::from_str(&text_of(&events)).expect("JSON");
    let text = |key: &str| config[key].as_str().expect("told").to_owned();
    assert_eq!(text("model"), "m1");
    let url = format!("{}/v1/messages", text("ensemble_url"));
    let http = http();
    let call = async |key: &str| {
        let body = r#"{"model":"m1","max_tokens":1,"messages":[]}"#;
        let request = http.post(&url).bearer_auth(key).body(body);
        request.send().await.expect("answered").status().as_u16()
    };
    let key = text("ensemble_api_key");
    assert_eq!(call(&key).await, 200, "its process runs");
    assert_eq!(
        client.get_stats().await.expect("shows").cost,
        "0.2",
        "booked without a turn"
    );
    let session = session_of(&events);
    let journal = daemon.journal(Some(session)).await;
    let used = journal.iter().find(|event| event.kind == "usage");
    let used = &used.expect("written without a turn").data;
    let used: Value = serde_json::from_str(used).expect("JSON");
    assert_eq!(
        (&used["cost"], &used["call"]["model"]),
        (&"0.2".into(), &"m1".into())
    );
    assert_eq!(call("qk-another").await, 401);
    client.kill(KillMsg { session }).await.expect("there");
    assert_eq!(call(&key).await, 401);
    daemon.stop().await;
}

#[tokio::test]
async fn agents_reach_the_gateway_where_the_one_port_speaks_tls() {
    let server = TestServer::start(vec![answer("over loopback")]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let agent = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/agents/scripted.py");
    let config = format!(
        "[http]\nlisten = \"0.0.0.0:0\"\n[agents.py]\ncommand = [\"python3\", {agent:?}]\n\
         model = \"m1\"\n{}",
        provider(&server)
    );
    std::fs::write(folder.path().join("config.toml"), config).expect("writable");
    let daemon = TestDaemon::on(folder).await;
    let mut client = daemon.client().await;
    let events = run(&mut client, script(&[ASK])).await;
    assert_eq!(text_of(&events), "over loopback");
    daemon.stop().await;
}

#[tokio::test]
async fn no_agent_log_journal_or_listing_holds_a_providers_key() {
    let refused = Reply::Status {
        code: 401,
        headers: Vec::new(),
        body: format!(r#"{{"error":{{"message":"wrong key {SECRET}"}}}}"#),
    };
    let server = TestServer::start(vec![refused, answer("ok")]).await;
    let daemon = TestDaemon::start_with(&provider(&server)).await;
    let mut client = daemon.client().await;
    let shows = [
        ASK,
        ASK,
        r#"{"show": "config"}"#,
        r#"{"state": "k", "value": 1}"#,
    ];
    let events = run(&mut client, script(&shows)).await;
    let said = text_of(&events);
    assert!(
        said.contains("refused the key") && said.contains("ensemble_api_key"),
        "{said}"
    );
    assert!(!said.contains(SECRET), "{said}");

    let agents = client.agents().await.expect("lists");
    let pid = agents
        .agents
        .iter()
        .flat_map(|agent| &agent.instances)
        .find_map(|instance| instance.pid)
        .expect("its process runs");
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("ours");
    assert!(!environment.is_empty() && !holds(&environment, SECRET));

    let shown = client.get_config().await.expect("shows").config;
    assert!(shown.contains(r#""api_key":"***""#), "{shown}");
    assert!(!shown.contains(SECRET));
    for row in daemon.journal(None).await {
        assert!(!row.data.contains(SECRET), "{}", row.data);
    }
    let mut files = Vec::new();
    everything_in(daemon.home().root(), &mut files);
    let folder = daemon.stop().await;
    everything_in(folder.path(), &mut files);
    assert!(files.len() > 4, "database, state and logs are there");
    for (path, bytes) in files {
        assert!(!holds(&bytes, SECRET), "{}", path.display());
    }
}
