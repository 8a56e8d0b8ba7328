//! Talking to agents from the command line.

use quintet_control::wire::SendMsg;
use quintet_control::{Client, UnixClient};
use quintet_models::test_server::{Reply, TestServer};
use serde_json::{Value, json};

use crate::harness::{Finished, Machine, Running, within};

#[tokio::test]
async fn the_shell_agent_answers_without_any_key() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    assert_eq!(
        machine
            .runs(&["send", "shell", "echo hello; pwd >&2"])
            .await
            .succeeds()
            .lines()
            .next(),
        Some("hello")
    );
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions[0]["id"], 1);
    assert_eq!(sessions[0]["agent"], "shell");
    assert_eq!(sessions[0]["created_by"], "user");
    assert_eq!(sessions[0]["messages"], 1);
    assert_eq!(sessions[0]["active"], false);
    assert_eq!(sessions[0]["cost"], "0");
    assert_eq!(sessions[0]["worker"], "local");
    for key in ["title", "alive_secs", "workspace"] {
        assert!(!sessions[0][key].is_null(), "{key}");
    }
}

#[tokio::test]
async fn send_goes_on_with_the_newest_session_unless_told_otherwise() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let session_of = |arguments: &'static [&'static str]| {
        let command = machine.quintet(&[&["send", "test", "say hi", "--json"], arguments].concat());
        async move {
            let stdout = Finished::of(command).await.succeeds();
            let events: Vec<Value> = stdout
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect();
            assert_eq!(events[0]["kind"], "start");
            assert_eq!(events.last().unwrap()["kind"], "end");
            assert!(
                events
                    .windows(2)
                    .all(|pair| pair[0]["seq"].as_u64() < pair[1]["seq"].as_u64())
            );
            events[0]["data"]["session"].as_u64().unwrap()
        }
    };
    assert_eq!(session_of(&[]).await, 1);
    assert_eq!(session_of(&[]).await, 1);
    assert_eq!(session_of(&["--new"]).await, 2);
    assert_eq!(session_of(&[]).await, 2);
    assert_eq!(session_of(&["--session", "1"]).await, 1);
    assert_eq!(session_of(&["--sender", "ada"]).await, 3);
    assert_eq!(
        machine
            .pipes("say from stdin", &["send", "test", "-"])
            .await
            .succeeds(),
        "from stdin\n"
    );

    let stderr = machine
        .runs(&["send", "shell", "rm old", "--session", "1"])
        .await
        .fails(1);
    assert!(
        stderr.contains("session 1 is of agent test, not of shell"),
        "{stderr}"
    );
    let here = machine.path().to_str().unwrap();
    let (there, dotted) = (format!("{here}/there"), format!("{here}/./there/../there/"));
    std::fs::create_dir(&there).unwrap();
    for (folder, session) in [(here, 4), (&there, 5), (here, 4), (&dotted, 5)] {
        let send = ["send", "test", "say hi", "--json", "--cwd", folder];
        let told = machine.runs(&send).await.succeeds();
        let start: Value = serde_json::from_str(told.lines().next().unwrap()).unwrap();
        assert_eq!(start["data"]["session"], session, "{folder}");
    }

    let stderr = machine.runs(&["send", "nobody", "hi"]).await.fails(1);
    assert!(
        stderr.contains("nobody") && stderr.contains("hint: `quintet agents`"),
        "{stderr}"
    );
    let stderr = machine
        .runs(&["send", "test", "hi", "--worker", "nowhere", "--new"])
        .await
        .fails(1);
    assert!(
        stderr.contains("nowhere") && stderr.contains("hint: `quintet workers`"),
        "{stderr}"
    );
    let stderr = machine
        .runs(&["send", "test", "hi", "--session", "99"])
        .await
        .fails(1);
    assert!(
        stderr.contains("session 99") && stderr.contains("hint: `quintet sessions`"),
        "{stderr}"
    );
}

#[tokio::test]
async fn a_failed_turn_is_exit_code_1_and_can_be_retried() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let finished = machine.runs(&["send", "test", "crash"]).await;
    assert_eq!(finished.stdout, "about to\n");
    let stderr = finished.fails(1);
    assert!(stderr.starts_with("error: "), "{stderr}");
    let retried = machine.runs(&["retry", "1"]).await;
    assert_eq!(retried.stdout, "about to\n");
    retried.fails(1);
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions[0]["messages"], 2, "it is a message like the first");
}

#[tokio::test]
async fn a_running_turn_is_steered_and_another_cancelled() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let send = machine.begins(&["send", "test", "wait"]);
    machine.sees("text_delta", 1).await;
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions[0]["active"], true);
    machine.runs(&["steer", "1", "left"]).await.succeeds();
    assert_eq!(send.ends().await.succeeds(), "waiting, steered by left\n");

    let send = machine.begins(&["send", "test", "wait", "--new"]);
    machine.sees("text_delta", 2).await;
    machine.runs(&["cancel", "2"]).await.succeeds();
    send.ends().await;
    let end = machine.sees("turn_ended", 2).await;
    assert_eq!(end["data"]["finish_reason"], "cancelled");
    machine.runs(&["cancel", "2"]).await.fails(1);
}

#[tokio::test]
async fn a_quiet_turn_is_said_once_on_stderr_and_its_answer_stays_whole() {
    let machine = Machine::with_test_agent();
    let config = std::fs::read_to_string(machine.home().join("config.toml")).unwrap();
    machine.configure(&format!("{config}stall_after = \"100ms\"\n"));
    let _daemon = machine.up().await;
    let mut events =
        Running::start(machine.quintet(&["events", "--json", "--follow", "--after", "0"]));
    // What is said is read here, and the answer goes to a file.
    let mut command = machine.program("sh");
    command.args([
        "-c",
        "exec \"$0\" send test 'wait twice' 2>&1 >answer",
        env!("CARGO_BIN_EXE_quintet"),
    ]);
    let mut send = Running::start(command);
    assert_eq!(
        send.line().await,
        "the agent makes no progress; it waits for output or `complete` from the agent \
         (`quintet cancel 1` stops it)"
    );
    events.prints("agent_stalled").await;
    machine.runs(&["steer", "1", "left"]).await.succeeds();
    events.prints("agent_stalled").await;
    machine.runs(&["steer", "1", "right"]).await.succeeds();
    assert_eq!(send.rest().await, Vec::<String>::new());
    assert_eq!(
        std::fs::read_to_string(machine.path().join("answer")).unwrap(),
        "waiting, steered by left, steered by right\n"
    );
}

#[tokio::test]
async fn waiting_messages_are_listed_changed_and_removed() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let first = machine.begins(&["send", "test", "wait"]);
    machine.sees("text_delta", 1).await;
    let second = machine.begins(&["send", "test", "say two", "--session", "1"]);
    machine.queue_reaches(1).await;
    let third = machine.begins(&["send", "test", "say three", "--session", "1"]);
    let queue = machine.queue_reaches(2).await;
    assert_eq!(queue[0]["text"], "say two");
    assert_eq!(queue[0]["session"], 1);
    assert!(queue[0]["at"].is_string());
    let id = |index: usize| queue[index]["id"].to_string();
    machine
        .runs(&["queue", "edit", &id(0), "say changed"])
        .await
        .succeeds();
    machine.runs(&["queue", "rm", &id(1)]).await.succeeds();
    let stderr = third.ends().await.fails(1);
    assert!(stderr.contains("queue"), "{stderr}");
    machine.runs(&["steer", "1", "go"]).await.succeeds();
    first.ends().await.succeeds();
    assert_eq!(second.ends().await.succeeds(), "changed\n");
    assert_eq!(
        machine.runs(&["queue", "ls", "--json"]).await.json(),
        json!([])
    );
}

#[tokio::test]
async fn the_journal_is_measured_and_shortened() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    machine
        .runs(&["send", "test", "say hello"])
        .await
        .succeeds();
    let report = machine.runs(&["journal", "report", "--json"]).await.json();
    let (last, events) = (&report["last_seq"], &report["events"]);
    assert_eq!(report["first_seq"], 1);
    assert_eq!(last, events);
    let cut = last.as_u64().unwrap();
    let pruned = machine
        .runs(&["journal", "prune", "--before", &cut.to_string(), "--json"])
        .await
        .json();
    assert_eq!(pruned["events"], cut - 1);
    assert_eq!(pruned["first_seq"], cut);
    let stderr = machine.runs(&["journal", "prune"]).await.fails(2);
    assert!(stderr.contains("--older-than"), "{stderr}");
}

#[tokio::test]
async fn questions_and_approvals_wait_for_a_person() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let send = machine.begins(&["send", "test", "ask"]);
    machine.sees("ask_user", 1).await;
    let asks = machine.runs(&["asks", "--json"]).await.json();
    assert_eq!(asks[0]["session"], 1);
    assert_eq!(asks[0]["questions"][0]["question"], "Which colour?");
    assert_eq!(asks[0]["questions"][0]["options"][0]["label"], "red");
    machine.runs(&["reply", "1", "blue"]).await.succeeds();
    let none = machine.runs(&["asks"]).await;
    assert_eq!(none.stderr, "nobody waits for an answer\n");
    let finished = send.ends().await;
    assert!(
        finished
            .stderr
            .contains("? Which colour?\n  - red: like fire"),
        "{finished:?}"
    );
    let how = "answer it with `quintet reply 1 TEXT`";
    assert!(finished.stderr.contains(how), "{finished:?}");
    assert_eq!(finished.succeeds(), "you said blue\n");
    let stderr = machine.runs(&["reply", "1", "red"]).await.fails(1);
    assert!(stderr.contains("no question is pending"), "{stderr}");

    let mut send = Running::start_with_talk(&machine, &["send", "test", "approve rm -r build"]);
    send.prints("? may it do this: ").await;
    assert_eq!(send.line().await, "  | rm -r build");
    let hint = send.prints("quintet approve").await;
    let approvals = machine.runs(&["approvals", "--json"]).await.json();
    assert_eq!(approvals[0]["command"], "rm -r build");
    assert_eq!(approvals[0]["reason"], "a test");
    for key in ["id", "session", "action", "cwd", "worker", "at"] {
        assert!(!approvals[0][key].is_null(), "{key}");
    }
    let id = approvals[0]["id"].to_string();
    machine
        .runs(&["deny", &id, "--reason", "not today"])
        .await
        .succeeds();
    assert!(hint.contains(&format!("`quintet approve {id}`")), "{hint}");
    send.prints("denied: not today").await;
    assert!(send.ends().await.success());
    machine.runs(&["approve", &id]).await.fails(1);
    assert_eq!(
        machine.runs(&["approvals", "--json"]).await.json(),
        json!([])
    );
}

#[tokio::test]
async fn the_journal_is_read_from_any_place_live_and_later() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let mut live =
        Running::start(machine.quintet(&["events", "--json", "--follow", "--after", "0"]));
    machine.runs(&["send", "test", "tool"]).await.succeeds();
    let later = machine.runs(&["events", "--json"]).await.succeeds();
    let rows: Vec<Value> = later
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    for (index, row) in rows.iter().enumerate() {
        assert_eq!(row["seq"], index as u64 + 1, "numbers have no gap");
        assert!(row["at"].as_str().unwrap().ends_with('Z'));
        assert!(row["kind"].is_string() && row["data"].is_object());
        assert_eq!(
            &live.line().await,
            later.lines().nth(index).unwrap(),
            "live and later are equal"
        );
    }
    let kinds: Vec<&str> = rows
        .iter()
        .map(|row| row["kind"].as_str().unwrap())
        .collect();
    for kind in [
        "message",
        "turn_started",
        "thinking",
        "tool_call",
        "tool_result",
        "tools_complete",
        "turn_ended",
    ] {
        assert!(kinds.contains(&kind), "{kind} in {kinds:?}");
    }
    let after = machine
        .runs(&["events", "--json", "--after", "3", "--session", "1"])
        .await
        .succeeds();
    let first: Value = serde_json::from_str(after.lines().next().unwrap()).unwrap();
    assert!(first["seq"].as_u64().unwrap() > 3 && first["session"] == 1);
}

#[tokio::test]
async fn sessions_are_named_exported_resumed_and_closed() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    machine.runs(&["send", "test", "say hi"]).await.succeeds();
    machine
        .runs(&["session", "title", "1", "Greetings"])
        .await
        .succeeds();
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions[0]["title"], "Greetings");
    assert_eq!(sessions[0]["cost"], "0.01");

    machine
        .runs(&["session", "export", "1", "-o", "talk.json"])
        .await
        .succeeds();
    machine
        .runs(&["send", "test", "say resumed", "--resume-file", "talk.json"])
        .await
        .succeeds();
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions.as_array().unwrap().len(), 2);

    machine.runs(&["kill", "1"]).await.succeeds();
    let open = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(open.as_array().unwrap().len(), 1);
    let all = machine.runs(&["sessions", "--json", "--all"]).await.json();
    assert_eq!(all.as_array().unwrap().len(), 2);
    machine.runs(&["kill", "77"]).await.fails(1);
}

/// What a shell printed must never come back to it as a line to run.
#[tokio::test]
async fn a_shell_runs_what_was_typed_and_nothing_that_came_before() {
    let machine = Machine::fresh();
    machine.has_skill("greet");
    let _daemon = machine.up().await;
    let first = "echo; echo '[The message]'; echo 'touch ran-again'";
    machine.runs(&["send", "shell", first]).await.succeeds();
    let refused = machine.runs(&["compact", "1"]).await.fails(1);
    assert!(refused.contains("keeps no conversation"), "{refused}");
    machine
        .runs(&["session", "export", "1", "-o", "talk.json"])
        .await
        .succeeds();
    let resumed = ["send", "shell", "ls", "--resume-file", "talk.json"];
    assert_eq!(machine.runs(&resumed).await.succeeds(), "");

    machine
        .runs(&["cron", "add", "* * * * * *", "greet", "1", "--once"])
        .await
        .succeeds();
    let follow = ["events", "--json", "--follow", "--after", "0"];
    Running::start(machine.quintet(&follow))
        .prints("\"command\":\"say it is time")
        .await;
}

#[tokio::test]
async fn memory_is_compacted_and_put_back() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    machine.runs(&["send", "test", "say one"]).await.succeeds();
    assert_eq!(
        machine.runs(&["compact", "1"]).await.succeeds(),
        "summary of 2 messages\n"
    );
    machine.runs(&["compact", "1", "--undo"]).await.succeeds();
    machine.runs(&["compact", "1", "--undo"]).await.fails(1);
}

#[tokio::test]
async fn schedules_are_made_listed_and_removed() {
    let machine = Machine::with_test_agent();
    machine.has_skill("clock");
    let _daemon = machine.up().await;
    machine.runs(&["send", "test", "say hi"]).await.succeeds();
    let made = machine
        .runs(&[
            "cron",
            "add",
            "0 9 * * 1-5",
            "clock",
            "1",
            "--quiet-start",
            "22:00",
            "--quiet-end",
            "07:00",
            "--json",
        ])
        .await
        .json();
    assert_eq!(made["schedule"], "0 9 * * 1-5");
    assert_eq!(made["quiet_start"], "22:00");
    assert_eq!(made["once"], false);
    let list = machine.runs(&["cron", "ls", "--json"]).await.json();
    assert_eq!(list[0]["id"], made["id"]);
    assert!(list[0]["next"].is_string());
    let broken = machine.home().join("skills/broken");
    std::fs::create_dir_all(&broken).unwrap();
    std::fs::write(broken.join("SKILL.md"), "no head\n").unwrap();
    for (cron, said) in [
        (
            ["nonsense", "clock", "1"],
            [
                "\"nonsense\" is not a schedule",
                "`quintet cron add '0 9 * * 1-5'",
            ],
        ),
        (
            ["@daily", "no-such-skill", "1"],
            ["there are: broken, clock", "skills/no-such-skill/SKILL.md"],
        ),
        (
            ["@daily", "a/b", "1"],
            ["there are: broken, clock", "its name is its folder's"],
        ),
        (
            ["@daily", "broken", "1"],
            ["skills/broken/SKILL.md", "description"],
        ),
        (
            ["@daily", "clock", "77"],
            ["session 77 not found", "`quintet sessions` lists them"],
        ),
    ] {
        let told = machine.runs(&[&["cron", "add"], &cron[..]].concat()).await;
        let told = told.fails(1);
        assert!(said.iter().all(|part| told.contains(part)), "{told}");
        assert!(
            told.contains("hint: ") && !told.contains("doctor"),
            "{told}"
        );
    }

    let often = machine
        .runs(&[
            "cron",
            "add",
            "* * * * * *",
            "clock",
            "1",
            "--once",
            "--json",
        ])
        .await
        .json();
    let run = machine.sees("cron_run", 1).await;
    assert!(run["data"].is_object());
    let runs = machine
        .runs(&["cron", "runs", &often["id"].to_string(), "--json"])
        .await
        .json();
    assert_eq!(runs[0]["cron"], often["id"]);
    assert!(runs[0]["due"].is_string() && runs[0]["outcome"].is_string());
    machine
        .runs(&["cron", "rm", &made["id"].to_string()])
        .await
        .succeeds();
    machine.runs(&["cron", "rm", "99"]).await.fails(1);
}

#[tokio::test]
async fn agents_are_listed_and_looked_after() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    machine.runs(&["send", "test", "say hi"]).await.succeeds();
    let agents = machine.runs(&["agents", "--json"]).await.json();
    let agent = agents
        .as_array()
        .unwrap()
        .iter()
        .find(|agent| agent["name"] == "test")
        .unwrap();
    assert_eq!(agent["kind"], "process");
    assert_eq!(agent["description"], "does what it is told");
    let instance = &agent["instances"][0];
    assert_eq!(instance["session"], 1);
    assert!(instance["pid"].is_u64() && instance["state"].is_string());
    let id = instance["agent_id"].as_str().unwrap();
    let mut log = Running::start(machine.quintet(&["agent", "logs", id, "--follow"]));
    machine
        .runs(&["send", "test", "log a remark"])
        .await
        .succeeds();
    log.prints("a remark").await;
    let printed = machine.runs(&["agent", "logs", id]).await.succeeds();
    assert!(printed.contains("a remark"), "{printed}");
    let lines = machine
        .runs(&["agent", "logs", id, "--json"])
        .await
        .succeeds();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let remark = lines.iter().find(|line| line["text"] == "a remark");
    let remark = remark.unwrap();
    assert_eq!(remark["source"], "agent");
    assert!(remark["level"].is_string() && remark["time"].is_string());
    machine.runs(&["agent", "restart", id]).await.succeeds();
    assert_eq!(
        machine
            .runs(&["send", "test", "say still here"])
            .await
            .succeeds(),
        "still here\n"
    );
    machine.runs(&["agent", "logs", "nobody"]).await.fails(1);
}

#[tokio::test]
async fn configuration_is_changed_while_the_daemon_runs() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    machine
        .runs(&["config", "set", "providers.anthropic.api_key", "sk-secret"])
        .await
        .succeeds();
    assert_eq!(
        machine
            .runs(&["config", "get", "providers.anthropic.api_key"])
            .await
            .succeeds(),
        "***\n"
    );
    let stderr = machine
        .runs(&["config", "set", "http.lisen", "x"])
        .await
        .fails(64);
    assert!(stderr.contains("http.lisen"), "{stderr}");
    assert!(stderr.contains("`quintet config get` prints"), "{stderr}");
    machine.runs(&["reload"]).await.succeeds();
    let file = machine.home().join("config.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains("sk-secret"));
    std::fs::write(&file, format!("{text}\n[sandbox]\nheartbeat = \"soon\"\n")).unwrap();
    let stderr = machine.runs(&["reload"]).await.fails(64);
    assert!(stderr.contains("sandbox.heartbeat"), "{stderr}");
    let stats = machine.runs(&["stats", "--json"]).await.json();
    for key in [
        "uptime_secs",
        "active_sessions",
        "registered_agents",
        "workers",
        "cost",
    ] {
        assert!(!stats[key].is_null(), "{key}");
    }
}

#[tokio::test]
async fn ctrl_c_leaves_the_agent_to_its_work() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let mut command = machine.quintet(&["send", "test", "wait"]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    machine.sees("text_delta", 1).await;
    let pid = rustix::process::Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let finished = Finished::from(within("send ends", child.wait_with_output()).await.unwrap());
    assert!(
        finished.stderr.contains("the agent goes on"),
        "{finished:?}"
    );
    finished.fails(130);
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    assert_eq!(sessions[0]["active"], true);
}

#[tokio::test]
async fn chat_in_a_pipe_is_plain_text() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    let said = machine
        .pipes("say one\n\nask\nred\nsay two\n", &["chat", "test"])
        .await;
    assert_eq!(said.succeeds(), "one\nyou said red\ntwo\n");
    assert_eq!(
        machine.runs(&["sessions", "--json"]).await.json()[0]["messages"],
        3
    );
}

#[tokio::test]
async fn chat_works_in_the_folder_that_it_is_given() {
    let machine = Machine::with_test_agent();
    let _daemon = machine.up().await;
    machine
        .pipes("say one\n", &["chat", "test"])
        .await
        .succeeds();
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let project = project.to_str().unwrap();
    let chat = ["chat", "test", "--cwd", project];
    machine.pipes("say two\n", &chat).await.succeeds();
    machine.pipes("say three\n", &chat).await.succeeds();
    let sessions = machine.runs(&["sessions", "--json"]).await.json();
    let there: Vec<_> = sessions
        .as_array()
        .unwrap()
        .iter()
        .filter(|session| session["workspace"] == project)
        .map(|session| session["messages"].as_u64())
        .collect();
    assert_eq!(there, [Some(2)], "{sessions}");

    let mistyped = machine.pipes("say four\n", &["chat", "test", "--cwd", "nowhere"]);
    let told = mistyped.await;
    assert!(told.stderr.contains("nowhere is not a folder"), "{told:?}");
}

#[tokio::test]
async fn an_error_of_a_provider_says_what_to_do_to_every_client() {
    let models = TestServer::start(vec![Reply::error(
        401,
        "authentication_error",
        "no such key",
    )])
    .await;
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let refused = machine.runs(&["send", "coder", "hello"]).await.fails(1);
    assert!(
        refused.contains("needs a model provider's key")
            && refused.contains("quintet config set providers.anthropic.api_key"),
        "{refused}"
    );
    // As it says: nothing has to be started again.
    for (key, value) in [
        ("providers.anthropic.base_url", models.url().as_str()),
        ("providers.anthropic.api_key", "sk-of-nobody"),
    ] {
        machine
            .runs(&["config", "set", key, value])
            .await
            .succeeds();
    }
    let mut client = UnixClient::connect(machine.control_socket()).await.unwrap();
    let request = SendMsg {
        agent: "coder".to_owned(),
        content: "hello".to_owned(),
        ..SendMsg::default()
    };
    let refused = within("an answer", client.send(request)).await.unwrap_err();
    let refused = refused.to_string();
    assert!(
        refused.contains("the agent reported an error: ") && refused.contains("no such key"),
        "{refused}"
    );
    assert!(daemon.stops().await.success());

    let mut up = Running::start(machine.quintet(&["up", "--listen", "127.0.0.1:0"]));
    let ready = up.prints("coder is ready").await;
    assert!(
        ready.contains("(anthropic: the key of the configuration)"),
        "{ready}"
    );
    let checks = machine.runs(&["doctor", "--json"]).await.json();
    let checks = checks.as_array().unwrap();
    let ok = |name: &str| checks.iter().find(|it| it["check"] == name).unwrap()["ok"].clone();
    assert_eq!(ok("provider anthropic"), true);
    assert_eq!(ok("provider openai"), false);
    assert!(!format!("{checks:?}").contains("sk-of-nobody"));
}
