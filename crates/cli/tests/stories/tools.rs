//! The tools of the daemon, used by an agent over MCP; the policy and a person in between.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Begun, Machine, Running, within};

/// A machine with the agent that uses tools, and more in its configuration.
fn machine(more: &str) -> Machine {
    let machine = Machine::fresh();
    let peers = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers");
    let agent = peers.join("mcp_agent.py");
    machine.configure(&format!(
        "# kept\n[agents.hands]\ncommand = [\"python3\", {:?}]\n{more}\n",
        agent.to_str().unwrap()
    ));
    machine
}

/// A folder of the person's that the session works in.
fn space(machine: &Machine) -> PathBuf {
    let space = machine.path().join("space");
    std::fs::create_dir_all(&space).unwrap();
    space
}

fn send(machine: &Machine, text: &str) -> Begun {
    let space = space(machine);
    machine.begins(&["send", "hands", text, "--cwd", space.to_str().unwrap()])
}

/// What a tool says.
async fn call(machine: &Machine, tool: &str, arguments: Value) -> String {
    let said = send(machine, &format!("call {tool} {arguments}"))
        .ends()
        .await
        .succeeds();
    said.trim_end().to_owned()
}

async fn data(machine: &Machine, tool: &str, arguments: Value) -> Value {
    let said = send(machine, &format!("data {tool} {arguments}"))
        .ends()
        .await
        .succeeds();
    serde_json::from_str(&said).unwrap()
}

async fn online(machine: &Machine) {
    let mut events =
        Running::start(machine.quintet(&["events", "--json", "--follow", "--after", "0"]));
    loop {
        let row: Value = serde_json::from_str(&events.line().await).unwrap();
        if row["kind"] == "worker_online" {
            return;
        }
    }
}

/// The one approval that waits, once it does.
async fn asked(machine: &Machine) -> Value {
    machine.sees("approval_requested", 1).await;
    loop {
        let mut listed = machine.runs(&["approvals", "--json"]).await.json();
        if let Some(first) = listed.as_array_mut().unwrap().pop() {
            return first;
        }
    }
}

#[tokio::test]
async fn files_are_written_read_edited_found_and_listed() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let wrote = call(
        &machine,
        "write_file",
        json!({"path": "src/a.txt", "content": "one\ntwo\nthree\n"}),
    )
    .await;
    assert_eq!(wrote, "wrote src/a.txt, 14 bytes");
    assert_eq!(
        std::fs::read_to_string(space(&machine).join("src/a.txt")).unwrap(),
        "one\ntwo\nthree\n"
    );
    assert_eq!(
        call(
            &machine,
            "read_file",
            json!({"path": "src/a.txt", "offset": 2, "limit": 1})
        )
        .await,
        "two\n[lines 2 to 2 of 3; read on with offset 3]"
    );
    let edited = call(
        &machine,
        "edit_file",
        json!({"path": "src/a.txt", "old": "two", "new": "2"}),
    )
    .await;
    assert!(
        edited.starts_with("edited src/a.txt at line 2") && edited.contains("+2"),
        "{edited}"
    );
    assert_eq!(
        call(&machine, "list_files", json!({"glob": "*.txt"})).await,
        "src/a.txt"
    );
    assert_eq!(
        call(&machine, "search", json!({"pattern": "^t.*e$"})).await,
        "src/a.txt:3:three"
    );
    let missing = call(&machine, "read_file", json!({"path": "b.txt"})).await;
    assert_eq!(
        missing,
        "failed: b.txt is not there; `list_files` shows what is"
    );
    let twice = call(
        &machine,
        "edit_file",
        json!({"path": "src/a.txt", "old": "e", "new": "x"}),
    )
    .await;
    assert!(twice.contains("occurs 3 times"), "{twice}");
    let wrong = call(&machine, "read_file", json!({"file": "x"})).await;
    assert!(
        wrong.contains("the arguments are wrong: unknown field `file`"),
        "{wrong}"
    );
    let tools = send(&machine, "tools").ends().await.succeeds();
    assert_eq!(
        tools.trim(),
        "exec read_file write_file edit_file list_files search ask_user undo"
    );

    let rows = machine
        .runs(&["events", "--json", "--after", "0"])
        .await
        .succeeds();
    let rows: Vec<Value> = rows
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let count = |kind: &str| rows.iter().filter(|row| row["kind"] == kind).count();
    assert_eq!(
        (count("tool_started"), count("tool_ended")),
        (7, 8),
        "every use, and one that never began"
    );
}

#[tokio::test]
async fn the_size_of_the_context_is_told_to_the_agent() {
    let machine = machine("context_tokens = 50000");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let said = send(&machine, "config context_tokens").ends().await;
    assert_eq!(said.succeeds().trim(), "50000");
}

#[tokio::test]
async fn an_edit_of_what_changed_since_it_was_read_is_refused_and_says_how() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let file = space(&machine).join("a.txt");
    std::fs::write(&file, "alpha\nbeta\n").unwrap();
    assert_eq!(
        call(&machine, "read_file", json!({"path": "a.txt"})).await,
        "alpha\nbeta"
    );
    std::fs::write(&file, "alpha\ngamma\n").unwrap();
    let refused = call(
        &machine,
        "edit_file",
        json!({"path": "a.txt", "old": "alpha", "new": "A"}),
    )
    .await;
    assert!(
        refused.contains("a.txt was changed since you read it, by "),
        "{refused}"
    );
    assert!(
        refused.contains("-beta") && refused.contains("+gamma"),
        "{refused}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "alpha\ngamma\n");
    call(&machine, "read_file", json!({"path": "a.txt"})).await;
    let edited = call(
        &machine,
        "edit_file",
        json!({"path": "a.txt", "old": "alpha", "new": "A"}),
    )
    .await;
    assert!(edited.starts_with("edited a.txt"), "{edited}");
}

#[tokio::test]
async fn commands_run_in_the_workspace_and_are_taken_back() {
    let machine = machine("");
    let _daemon = machine.up().await;
    online(&machine).await;
    std::fs::write(space(&machine).join("in.txt"), "from the person\n").unwrap();
    let ran = call(
        &machine,
        "exec",
        json!({"command": "cat in.txt; echo made > out.txt; exit 3"}),
    )
    .await;
    assert!(
        ran.starts_with("failed: from the person\n[exit code 3]"),
        "{ran}"
    );
    assert!(ran.contains("out.txt (write)"), "{ran}");
    assert_eq!(
        std::fs::read_to_string(space(&machine).join("out.txt")).unwrap(),
        "made\n"
    );
    let told = data(&machine, "exec", json!({"command": "echo again > out.txt"})).await;
    assert_eq!(told["exit_code"], 0);
    assert!(told["before"].as_u64() < told["after"].as_u64(), "{told}");
    let before = call(
        &machine,
        "read_file",
        json!({"path": "out.txt", "at": told["before"]}),
    )
    .await;
    assert_eq!(before, "made");
    let undone = call(&machine, "undo", json!({"commands": 1})).await;
    assert!(undone.contains("out.txt"), "{undone}");
    assert_eq!(
        std::fs::read_to_string(space(&machine).join("out.txt")).unwrap(),
        "made\n"
    );
    let slow = call(
        &machine,
        "exec",
        json!({"command": "sleep 60", "timeout_secs": 1}),
    )
    .await;
    assert!(slow.contains("killed after 1 s"), "{slow}");
    let away = call(&machine, "exec", json!({"command": "true", "cwd": "/etc"})).await;
    assert!(away.contains("outside of the workspace"), "{away}");
}

#[tokio::test]
async fn output_is_seen_while_the_command_runs() {
    let machine = machine("");
    let _daemon = machine.up().await;
    online(&machine).await;
    let command = "echo first; while [ ! -e go ]; do sleep 0.05; done; echo last >&2";
    let runs = send(
        &machine,
        &format!("call exec {}", json!({ "command": command })),
    );
    let row = machine.sees("terminal_output", 1).await;
    let data = &row["data"];
    assert_eq!(
        (&data["tool"], &data["stream"], &data["data"]),
        (&json!("exec"), &json!("stdout"), &json!("first\n"))
    );
    std::fs::write(space(&machine).join("go"), "").unwrap();
    // The answer has it once: what was shown live is no part of it.
    assert_eq!(
        runs.ends().await.succeeds().trim_end(),
        "first\nlast\n[exit code 0]"
    );
}

#[tokio::test]
async fn what_the_file_tools_wrote_is_taken_back_like_what_commands_did() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let file = space(&machine).join("new/a.txt");
    call(
        &machine,
        "write_file",
        json!({"path": "new/a.txt", "content": "one\n"}),
    )
    .await;
    call(
        &machine,
        "edit_file",
        json!({"path": "new/a.txt", "old": "one", "new": "two"}),
    )
    .await;
    std::fs::write(space(&machine).join("theirs.txt"), "of a person\n").unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "two\n");

    let undone = machine.runs(&["undo", "1", "--json"]).await.json();
    assert_eq!(
        undone["changed"],
        json!([{"path": "new/a.txt", "change": "write"}])
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\n");
    machine.runs(&["undo", "1"]).await.succeeds();
    assert!(!file.exists() && !space(&machine).join("new").exists());
    assert_eq!(
        std::fs::read_to_string(space(&machine).join("theirs.txt")).unwrap(),
        "of a person\n"
    );
    let nothing = machine.runs(&["undo", "1"]).await.fails(1);
    assert!(nothing.contains("no command of session 1"), "{nothing}");
    let row = machine.sees("command", 1).await;
    assert_eq!(row["data"]["command"], "write_file new/a.txt");
    assert!(
        row["data"]["after"].as_u64() > row["data"]["before"].as_u64(),
        "{row}"
    );
}

#[tokio::test]
async fn a_rule_settles_everything_that_waits_and_that_it_allows() {
    let rules =
        "[policy]\nrules = [{ tool = \"write_file\", path = \"docs\", action = \"ask\" }]\n";
    let machine = machine(rules);
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let write = |path: &str| json!(["write_file", {"path": path, "content": "x"}]);
    let race = json!([write("docs/a.md"), write("docs/b.md"), write("docs/c/d.md")]);
    let races = send(&machine, &format!("race {race}"));
    let waiting = within("three approvals", async {
        loop {
            let listed = machine.runs(&["approvals", "--json"]).await.json();
            let listed = listed.as_array().unwrap().clone();
            if listed.len() == 3 {
                break listed;
            }
        }
    })
    .await;
    let id_of = |path: &str| {
        let found = waiting.iter().find(|it| it["command"] == path).unwrap();
        found["id"].to_string()
    };
    let rule = "{ tool = \"write_file\", path = \"docs/*.md\", action = \"allow\" }";
    let approve = [
        "approve",
        &id_of("docs/a.md"),
        "--scope",
        "rule",
        "--rule",
        rule,
    ];
    machine.runs(&approve).await.succeeds();
    // The second one is settled by the rule; the third is none of its business.
    within("only the third waits", async {
        loop {
            let listed = machine.runs(&["approvals", "--json"]).await.json();
            let left: Vec<&str> = listed
                .as_array()
                .unwrap()
                .iter()
                .filter_map(|it| it["command"].as_str())
                .collect();
            if left == ["docs/c/d.md"] {
                break;
            }
        }
    })
    .await;
    machine
        .runs(&["deny", &id_of("docs/c/d.md")])
        .await
        .succeeds();
    races.ends().await.succeeds();
    let docs = space(&machine).join("docs");
    assert!(docs.join("a.md").exists() && docs.join("b.md").exists());
    assert!(!docs.join("c").exists());
    let rows = machine.runs(&["events", "--json"]).await.succeeds();
    let mut answers: Vec<(u64, Value)> = rows
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|row| row["kind"] == "approval_answered")
        .map(|row| {
            (
                row["data"]["approval"].as_u64().unwrap(),
                row["data"]["by"].clone(),
            )
        })
        .collect();
    answers.sort_by_key(|(id, _)| *id);
    let mut expected = [
        (id_of("docs/a.md"), "user"),
        (id_of("docs/b.md"), "policy"),
        (id_of("docs/c/d.md"), "user"),
    ]
    .map(|(id, by)| (id.parse::<u64>().unwrap(), json!(by)));
    expected.sort_by_key(|(id, _)| *id);
    assert_eq!(answers, expected);
}

#[tokio::test]
async fn a_rule_settles_what_an_agent_itself_asked_leave_for() {
    let machine = Machine::with_test_agent();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let waits = machine.begins(&["send", "test", "approve make install"]);
    asked(&machine).await;
    let config = machine.home().join("config.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    let rule = "[policy]\nrules = [{ command = \"make install\", action = \"allow\" }]\n";
    std::fs::write(&config, format!("{text}\n{rule}")).unwrap();
    machine.runs(&["reload"]).await.succeeds();
    assert_eq!(waits.ends().await.succeeds().trim(), "approved");
    let row = machine.sees("approval_answered", 1).await;
    assert_eq!(row["data"]["by"], "policy");
    drop(daemon);
}

#[tokio::test]
async fn what_the_policy_asks_about_waits_for_a_person() {
    let machine = machine(
        "[policy]\nrules = [\n    # look first\n    { tool = \"write_file\", path = \"docs\", action = \"ask\" },\n    { path = \"secret\", action = \"deny\" },\n]\n",
    );
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let denied = call(&machine, "read_file", json!({"path": "secret"})).await;
    assert!(
        denied.contains(
            "denied by the policy: rule 2 { path = \"secret\", action = \"deny\" } matches"
        ),
        "{denied}"
    );

    let write = format!(
        "call write_file {}",
        json!({"path": "docs/a.md", "content": "x"})
    );
    let waits = send(&machine, &write);
    let approval = asked(&machine).await;
    assert_eq!(
        (&approval["action"], &approval["command"]),
        (&json!("write_file"), &json!("docs/a.md"))
    );
    let rule = "{ tool = \"write_file\", path = \"docs/a.md\", action = \"allow\" }";
    assert_eq!(approval["rule"], rule);
    assert!(
        approval["rule_place"]
            .as_str()
            .unwrap()
            .contains("before { tool = \"write_file\""),
        "{approval}"
    );
    let row = machine.sees("approval_requested", 1).await;
    for told in ["rule", "rule_place"] {
        assert_eq!(row["data"][told], approval[told]);
    }
    assert_eq!(approval["hash"].as_str().unwrap().len(), 64);
    let id = approval["id"].to_string();
    machine
        .runs(&["deny", &id, "--reason", "not in docs"])
        .await
        .succeeds();
    assert_eq!(
        waits.ends().await.succeeds().trim(),
        "failed: user refused it: not in docs"
    );
    assert!(!space(&machine).join("docs").exists());

    let waits = send(&machine, &write);
    let id = loop {
        let listed = machine.runs(&["approvals", "--json"]).await.json();
        if let Some(first) = listed.as_array().unwrap().first() {
            break first["id"].to_string();
        }
    };
    let wrong = machine
        .runs(&[
            "approve",
            &id,
            "--scope",
            "rule",
            "--rule",
            "{ tool = \"x\" }",
        ])
        .await
        .fails(1);
    assert!(wrong.contains("action: is missing"), "{wrong}");
    let edited = "{ tool = \"write_file\", path = \"docs/**\", action = \"allow\" }";
    let written = machine
        .runs(&["approve", &id, "--scope", "rule", "--rule", edited])
        .await
        .succeeds();
    assert_eq!(written.trim(), edited);
    assert_eq!(
        waits.ends().await.succeeds().trim(),
        "wrote docs/a.md, 1 bytes"
    );
    let config = std::fs::read_to_string(machine.home().join("config.toml")).unwrap();
    assert!(
        config.contains("# kept") && config.contains("# look first"),
        "{config}"
    );
    let (at, asks) = (
        config.find(edited).unwrap(),
        config.find("action = \"ask\"").unwrap(),
    );
    assert!(at < asks, "{config}");
    // The rule holds at once, for others of its kind too.
    assert_eq!(
        call(
            &machine,
            "write_file",
            json!({"path": "docs/b.md", "content": "xy"})
        )
        .await,
        "wrote docs/b.md, 2 bytes"
    );
    let listed = machine.runs(&["policy", "ls", "--json"]).await.json();
    assert_eq!(listed[0]["path"], "docs/**");
}

#[tokio::test]
async fn leaving_the_workspace_asks() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let outside = machine.path().join("outside.txt");
    std::fs::write(&outside, "theirs\n").unwrap();
    std::os::unix::fs::symlink(&outside, space(&machine).join("way")).unwrap();
    let through = call(&machine, "read_file", json!({"path": "way"})).await;
    assert!(
        through.contains("leads out of the workspace through a link"),
        "{through}"
    );
    let waits = send(
        &machine,
        &format!("call read_file {}", json!({"path": "../outside.txt"})),
    );
    let approval = asked(&machine).await;
    assert_eq!(approval["command"], outside.to_str().unwrap());
    assert!(
        approval["reason"]
            .as_str()
            .unwrap()
            .contains("leaving the workspace asks"),
        "{approval}"
    );
    let id = approval["id"].to_string();
    machine
        .runs(&["approve", &id, "--scope", "session"])
        .await
        .succeeds();
    assert_eq!(waits.ends().await.succeeds().trim(), "theirs");
    assert_eq!(
        call(&machine, "read_file", json!({"path": "../outside.txt"})).await,
        "theirs"
    );
}

#[tokio::test]
async fn a_question_of_the_agent_is_answered() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let questions = json!({"questions": [
        {"question": "Which?", "header": "H", "options": [{"label": "red", "description": "like fire"}]},
        {"question": "Why?"},
    ]});
    let waits = send(&machine, &format!("call ask_user {questions}"));
    let row = machine.sees("ask_user", 1).await;
    assert_eq!(row["data"]["questions"][0]["options"][0]["label"], "red");
    machine
        .runs(&["reply", "1", "[\"red\", \"because\"]"])
        .await
        .succeeds();
    assert_eq!(
        waits.ends().await.succeeds().trim(),
        "Which?: red\nWhy?: because"
    );
}

#[tokio::test]
async fn calls_run_at_once_and_report_as_they_end() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let race = json!([
        ["ask_user", {"questions": [{"question": "Which?"}]}],
        ["write_file", {"path": "a", "content": ""}],
    ]);
    let races = send(&machine, &format!("race {race}"));
    machine.sees("ask_user", 1).await;
    let ended = machine.sees("tool_ended", 1).await;
    assert_eq!(ended["data"]["tool"], "write_file");
    machine.runs(&["reply", "1", "red"]).await.succeeds();
    let order: Vec<String> = serde_json::from_str(&races.ends().await.succeeds()).unwrap();
    assert_eq!(order, ["write_file", "ask_user"]);
}

#[tokio::test]
async fn a_question_ends_with_its_turn() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let waits = send(
        &machine,
        "call ask_user {\"questions\": [{\"question\": \"Which?\"}]}",
    );
    machine.sees("ask_user", 1).await;
    machine.runs(&["kill", "1"]).await.succeeds();
    waits.ends().await.fails(1);
    machine.sees("ask_withdrawn", 1).await;
    machine.runs(&["reply", "1", "red"]).await.fails(1);
}

#[tokio::test]
async fn tools_of_another_server_come_through_the_same_door() {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mcp/tests/peers/server.py");
    let machine = machine(&format!(
        "[mcps.peer]\ncommand = [\"python3\", {:?}]\n[policy]\nrules = [{{ tool = \"peer__variable\", action = \"deny\" }}]\n",
        server.to_str().unwrap()
    ));
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let tools = send(&machine, "tools").ends().await.succeeds();
    assert!(tools.contains("peer__echo"), "{tools}");
    assert_eq!(
        call(&machine, "peer__echo", json!({"text": "hi"})).await,
        "hi"
    );
    let denied = call(&machine, "peer__variable", json!({"name": "X"})).await;
    assert!(denied.contains("denied by the policy"), "{denied}");
    let crashed = call(&machine, "peer__crash", json!({})).await;
    assert!(
        crashed.contains("the tool server peer ended during the call")
            && crashed.contains("out of cheese"),
        "{crashed}"
    );
    let unknown = call(&machine, "nobody__echo", json!({})).await;
    assert_eq!(unknown, "failed: there is no tool \"nobody__echo\"");
}

#[tokio::test]
async fn tools_of_a_server_elsewhere_come_through_the_same_door() {
    let elsewhere = machine("");
    let _other = elsewhere.up_with(&["--no-worker"]).await;
    let said = send(&elsewhere, "token").ends().await.succeeds();
    let (url, token): (String, String) = serde_json::from_str(&said).unwrap();
    std::fs::write(space(&elsewhere).join("far.txt"), "from far away").unwrap();

    let machine = machine(&format!(
        "[mcps.far]\nurl = {url:?}\nheaders = {{ Authorization = \"Bearer {token}\" }}\n\
         [mcps.nobody]\nurl = \"http://127.0.0.1:1/mcp\"\n\
         [policy]\nrules = [{{ tool = \"far__read_file\", action = \"allow\" }}]\n"
    ));
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let tools = send(&machine, "tools").ends().await.succeeds();
    assert!(
        tools.contains("far__read_file") && !tools.contains("nobody__"),
        "{tools}"
    );
    let read = call(&machine, "far__read_file", json!({"path": "far.txt"})).await;
    assert_eq!(read, "from far away");
    let nobody = call(&machine, "nobody__echo", json!({})).await;
    assert!(nobody.contains("nobody"), "{nobody}");
}

#[tokio::test]
async fn a_token_dies_with_its_instance() {
    let machine = machine("");
    let daemon = machine.up_with(&["--no-worker"]).await;
    let said = send(&machine, "token").ends().await.succeeds();
    let (url, token): (String, String) = serde_json::from_str(&said).unwrap();
    assert_eq!(url, format!("{}/mcp", daemon.http()));
    assert_eq!(status(&url, &token).await, 200);
    assert_eq!(status(&url, "guess").await, 401);
    machine.runs(&["kill", "1"]).await.succeeds();
    within("the token is dead", async {
        while status(&url, &token).await != 401 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// What the server answers to `tools/list` with a token.
async fn status(url: &str, token: &str) -> u16 {
    let address = url
        .strip_prefix("http://")
        .unwrap()
        .strip_suffix("/mcp")
        .unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#;
    let request = format!(
        "POST /mcp HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    within("it answers", stream.read_to_string(&mut answer))
        .await
        .unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_policy_is_explained_with_and_without_a_daemon() {
    let machine = machine("[policy]\nrules = [{ command = \"git push\", action = \"ask\" }]\n");
    let test = ["policy", "test", "--json", "--", "ls | sh -c 'git push -f'"];
    let without = machine.runs(&test).await.json();
    assert_eq!(
        (&without["action"], &without["rule"]),
        (&json!("ask"), &json!(1))
    );
    assert_eq!(
        without["why"],
        "rule 1 { command = \"git push\", action = \"ask\" } matches `git push -f`"
    );
    assert_eq!(
        without["proposed"],
        json!(["{ tool = \"exec\", command = \"git push -f\", action = \"allow\" }"])
    );
    let _daemon = machine.up_with(&["--no-worker"]).await;
    assert_eq!(machine.runs(&test).await.json(), without);
    let words = machine
        .runs(&["policy", "test", "--", "echo", "git push"])
        .await
        .succeeds();
    assert!(
        words.starts_with("allow: no rule matches `echo 'git push'`"),
        "{words}"
    );
    let open = machine
        .runs(&["policy", "test", "--worker", "box", "--", "ls"])
        .await
        .succeeds();
    assert!(
        open.starts_with("ask: ") && open.contains("isolates nothing"),
        "{open}"
    );
    machine
        .runs(&["policy", "test", "--session", "9", "--", "ls"])
        .await
        .fails(1);
}

#[tokio::test]
async fn a_question_comes_after_the_call_that_asks_it() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let questions = json!({"questions": [{"question": "Which?"}]});
    let asking = send(&machine, &format!("late ask_user {questions}"));
    machine.sees("ask_user", 1).await;
    machine.runs(&["reply", "1", "this"]).await.succeeds();
    asking.ends().await.succeeds();
    let said = machine.runs(&["events", "--json"]).await.succeeds();
    let rows = said
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let kinds = rows.map(|row| row["kind"].as_str().unwrap().to_owned());
    let order: Vec<String> = kinds
        .filter(|kind| kind == "ask_user" || kind == "tool_call")
        .collect();
    assert_eq!(order, ["tool_call", "ask_user"]);
}

#[tokio::test]
async fn an_edit_of_what_changed_is_refused_after_a_restart_too() {
    let machine = machine("");
    let daemon = machine.up_with(&["--no-worker"]).await;
    let file = space(&machine).join("a.txt");
    std::fs::write(&file, "one\n").unwrap();
    call(&machine, "read_file", json!({"path": "a.txt"})).await;
    assert!(daemon.stops().await.success());
    std::fs::write(&file, "one\ntwo\n").unwrap();
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let edit = json!({"path": "a.txt", "old": "one", "new": "1"});
    let refused = call(&machine, "edit_file", edit.clone()).await;
    assert!(
        refused.contains("a.txt was changed since you read it"),
        "{refused}"
    );
    call(&machine, "read_file", json!({"path": "a.txt"})).await;
    let edited = call(&machine, "edit_file", edit).await;
    assert!(edited.starts_with("edited a.txt"), "{edited}");
}

#[tokio::test]
async fn what_a_rule_keeps_back_is_neither_listed_nor_found() {
    let machine = machine("[policy]\nrules = [{ path = \"secrets/**\", action = \"deny\" }]");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let secrets = space(&machine).join("secrets");
    std::fs::create_dir(&secrets).unwrap();
    std::fs::write(secrets.join("key"), "TOPSECRET\n").unwrap();
    std::fs::write(space(&machine).join("open"), "not TOPSECRET\n").unwrap();
    let listed = call(&machine, "list_files", json!({})).await;
    assert!(
        listed.contains("open") && !listed.contains("secrets/key"),
        "{listed}"
    );
    assert!(listed.contains("kept back by the policy"), "{listed}");
    let found = call(&machine, "search", json!({"pattern": "TOP"})).await;
    assert!(found.starts_with("open:1:not TOPSECRET\n["), "{found}");
}

#[tokio::test]
async fn a_new_file_is_told_of_as_created() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let write = json!({"path": "a/new.txt", "content": "x"});
    assert_eq!(
        data(&machine, "write_file", write.clone()).await["created"],
        true
    );
    assert_eq!(data(&machine, "write_file", write).await["created"], false);
}

#[tokio::test]
async fn a_test_of_the_policy_takes_the_worker_that_the_daemon_takes() {
    let machine = machine("");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    for id in ["gone", "box"] {
        let worker = Running::start_with_talk(&machine, &["worker", "--daemon-id", id]);
        let mut events =
            Running::start(machine.quintet(&["events", "--json", "--follow", "--after", "0"]));
        loop {
            let row: Value = serde_json::from_str(&events.line().await).unwrap();
            if row["kind"] == "worker_online" && row["data"]["worker"] == id {
                break;
            }
        }
        if id == "gone" {
            worker.signal(rustix::process::Signal::TERM);
            assert!(worker.ends().await.success());
            events.prints("worker_offline").await;
        } else {
            let test = ["policy", "test", "--json", "--", "ls"];
            let tested = machine.runs(&test).await.json();
            assert_eq!(
                (&tested["worker"], &tested["action"]),
                (&json!("box"), &json!("ask"))
            );
        }
    }
}
