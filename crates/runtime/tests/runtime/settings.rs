//! Configuration over the control plane.

use quintet_control::Client;
use quintet_control::wire::SetConfigMsg;

use crate::harness::{TestDaemon, again, code, script};

#[tokio::test]
async fn what_get_returns_can_be_set_and_comments_stay() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let before = std::fs::read_to_string(daemon.home().config_file()).expect("there");
    let config = client.get_config().await.expect("shows").config;
    client
        .set_config(SetConfigMsg {
            config: config.clone(),
        })
        .await
        .expect("the same is valid");
    let unchanged = std::fs::read_to_string(daemon.home().config_file()).expect("there");
    assert_eq!(unchanged, before);
    let mut json: serde_json::Value = serde_json::from_str(&config).expect("JSON");
    json["sandbox"]["heartbeat"] = "7s".into();
    let changed = SetConfigMsg {
        config: json.to_string(),
    };
    client.set_config(changed).await.expect("valid");
    let text = std::fs::read_to_string(daemon.home().config_file()).expect("there");
    assert!(text.contains("# a comment of the user's") && text.contains("heartbeat = \"7s\""));
    let journal = daemon.journal(None).await;
    let row = journal
        .iter()
        .find(|event| event.kind == "config_changed")
        .expect("recorded");
    assert!(row.data.contains("sandbox.heartbeat"), "{}", row.data);
    daemon.stop().await;
}

#[tokio::test]
async fn three_mistakes_are_named_at_once_and_the_old_config_stays() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let file = daemon.home().config_file();
    let good = std::fs::read_to_string(&file).expect("there");
    let bad = format!(
        "{good}\n[sandbox]\nheartbeat = \"soon\"\nlisten = 1\n[cron]\ntime_zone = \"Mars/Base\"\n"
    );
    std::fs::write(&file, bad).expect("writable");
    let error = client.reload().await.expect_err("refused").to_string();
    for part in ["sandbox.heartbeat", "sandbox.listen", "cron.time_zone"] {
        assert!(error.contains(part), "{error}");
    }
    let shown = client.get_config().await.expect("shows").config;
    assert!(!shown.contains("Mars"));
    assert_eq!(
        code(
            client
                .set_config(SetConfigMsg {
                    config: "[1]".into()
                })
                .await
        ),
        400
    );
    daemon.stop().await;
}

#[tokio::test]
async fn a_change_reaches_a_running_agent_without_a_restart() {
    let daemon = TestDaemon::start().await;
    let mut client = daemon.client().await;
    let show = r#"{"show": "config"}"#;
    let model = |shown: &str| {
        let config: serde_json::Value = serde_json::from_str(shown).expect("JSON");
        config["model"].as_str().expect("told").to_owned()
    };
    let first = client.send(script(&[show])).await.expect("answers");
    assert_eq!(model(&first.content), "m1");
    let pid = |agents: quintet_control::wire::AgentList| {
        let agent = agents
            .agents
            .into_iter()
            .find(|agent| agent.name == "py")
            .expect("configured");
        assert_eq!(agent.instances[0].session, Some(first.session));
        agent.instances[0].pid.expect("runs")
    };
    let before = pid(client.agents().await.expect("lists"));
    let file = daemon.home().config_file();
    let text = std::fs::read_to_string(&file)
        .expect("there")
        .replace("m1", "m2");
    std::fs::write(&file, text).expect("writable");
    client.reload().await.expect("valid");
    let second = client
        .send(again(first.session, &[show]))
        .await
        .expect("answers");
    assert_eq!(model(&second.content), "m2");
    assert_eq!(pid(client.agents().await.expect("lists")), before);
    daemon.stop().await;
}
