//! The tools of the daemon, used by an agent over MCP; the policy and a person in between.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{Begun, Machine, within};
use crate::workers::row;

mod policy;
mod restart;

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
    row(machine, "worker_online", |_| true).await;
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
    let other = json!({"path": "docs/b.md", "content": "three\n"});
    call(&machine, "write_file", other).await;
    for narrow in ["glob", "path"] {
        let mut asked = json!({"pattern": "three"});
        asked[narrow] = json!(match narrow {
            "glob" => "*.md",
            _ => "docs",
        });
        let found = call(&machine, "search", asked).await;
        assert_eq!(found, "docs/b.md:1:three", "by its {narrow}");
    }
    let reserved = json!({"path": ".quintet/x", "content": "three\n"});
    let reserved = call(&machine, "write_file", reserved).await;
    assert!(
        reserved.starts_with("failed: .quintet/x is in .quintet/"),
        "{reserved}"
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
    let wrong = call(&machine, "read_file", json!({"path": ["x"]})).await;
    assert!(
        wrong.contains("the arguments are wrong: path: invalid type"),
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
        (11, 13),
        "every use, and two that never began"
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
async fn a_refused_edit_says_who_changed_the_file() {
    let machine = machine("");
    let _daemon = machine.up().await;
    online(&machine).await;
    let file = space(&machine).join("a.txt");
    std::fs::write(&file, "one\n").unwrap();
    let edit = json!({"path": "a.txt", "old": "never", "new": "x"});
    let refused = async || {
        let said = call(&machine, "edit_file", edit.clone()).await;
        assert!(
            said.contains("a.txt was changed since you read it"),
            "{said}"
        );
        call(&machine, "read_file", json!({"path": "a.txt"})).await;
        said
    };

    call(&machine, "read_file", json!({"path": "a.txt"})).await;
    call(&machine, "exec", json!({"command": "echo two >> a.txt"})).await;
    let by_command = refused().await;
    assert!(
        by_command.contains("by the command `echo two >> a.txt` (local, sequence "),
        "{by_command}"
    );

    let space = space(&machine);
    let write = json!({"path": "a.txt", "content": "three\n"});
    let line = format!("call write_file {write}");
    let other = ["send", "hands", &line, "--new", "--sender", "another"];
    let other = [&other[..], &["--cwd", space.to_str().unwrap()]].concat();
    machine.runs(&other).await.succeeds();
    let by_agent = refused().await;
    assert!(
        by_agent.contains("by the agent hands-2, with a tool"),
        "{by_agent}"
    );

    std::fs::write(&file, "four\n").unwrap();
    let by_person = refused().await;
    assert!(
        by_person.contains("(write, sequence ")
            && by_person.contains("not by a command of this session"),
        "{by_person}"
    );

    call(&machine, "exec", json!({"command": "echo five > a.txt"})).await;
    refused().await;
    machine.runs(&["undo", "1"]).await.succeeds();
    let by_undo = refused().await;
    assert!(
        by_undo.contains("by an undo, which put back what was there before"),
        "{by_undo}"
    );
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
    // The history is the workspace's: a path outside names nothing in it.
    let outside = json!({"path": "/out.txt", "at": told["before"]});
    let outside = call(&machine, "read_file", outside).await;
    assert!(outside.contains("outside of the workspace"), "{outside}");
    let undone = call(&machine, "undo", json!({"commands": 1})).await;
    assert!(undone.contains("out.txt"), "{undone}");
    assert_eq!(
        std::fs::read_to_string(space(&machine).join("out.txt")).unwrap(),
        "made\n"
    );
    for command in ["echo 1 > one", "echo 2 > two; rm in.txt"] {
        call(&machine, "exec", json!({ "command": command })).await;
    }
    let undone = call(&machine, "undo", json!({"commands": 2})).await;
    assert!(undone.starts_with("commands taken back: 2;"), "{undone}");
    let there = |name: &str| space(&machine).join(name).exists();
    assert!(!there("one") && !there("two") && there("in.txt"));
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
    // The conversation says so, and once.
    let missing = machine.sees("note", 1).await["data"]["text"].clone();
    let missing = missing.as_str().unwrap();
    assert!(
        missing.contains("the tool server nobody is not there")
            && missing.contains("[mcps.nobody]"),
        "{missing}"
    );
    send(&machine, "tools").ends().await.succeeds();
    let notes = machine.runs(&["events", "--json", "--session", "1"]).await;
    assert_eq!(notes.succeeds().matches("mcps.nobody").count(), 1);
    let read = call(&machine, "far__read_file", json!({"path": "far.txt"})).await;
    assert_eq!(read, "from far away");
    let nobody = call(&machine, "nobody__echo", json!({})).await;
    assert!(nobody.contains("nobody"), "{nobody}");
    // What no rule allows is asked about: it reaches another machine.
    let waits = send(&machine, "call far__list_files {}");
    let approval = asked(&machine).await;
    assert_eq!(approval["action"], "far__list_files");
    let reason = approval["reason"].as_str().unwrap();
    assert!(reason.contains("reaches other machines"), "{reason}");
    let id = approval["id"].to_string();
    machine.runs(&["deny", &id]).await.succeeds();
    assert_eq!(
        waits.ends().await.succeeds().trim(),
        "failed: user refused it"
    );
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
    let daemon = machine.up_with(&["--no-worker"]).await;
    let edit = json!({"path": "a.txt", "old": "one", "new": "1"});
    let refused = call(&machine, "edit_file", edit.clone()).await;
    assert!(
        refused.contains("a.txt was changed since you read it"),
        "{refused}"
    );
    call(&machine, "read_file", json!({"path": "a.txt"})).await;
    let edited = call(&machine, "edit_file", edit).await;
    assert!(edited.starts_with("edited a.txt"), "{edited}");
    // What the agent wrote itself it has seen, too.
    assert!(daemon.stops().await.success());
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let edit = json!({"path": "a.txt", "old": "1", "new": "one"});
    let edited = call(&machine, "edit_file", edit).await;
    assert!(edited.starts_with("edited a.txt"), "{edited}");
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
