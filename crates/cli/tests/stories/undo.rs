//! What an undo takes back when commands were cut, or ran at the same time.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Machine, Running, within};
use crate::workers::{self, worker};

/// A session in a folder in which one command has made `first`.
async fn begun(machine: &Machine, more: &[&str]) -> (PathBuf, String) {
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let folder = project.to_str().unwrap();
    let line = [
        "send",
        "shell",
        "echo one > first",
        "--new",
        "--json",
        "--cwd",
        folder,
    ];
    let said = machine.runs(&[&line, more].concat()).await.stdout;
    let start: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let session = start["data"]["session"].as_u64().unwrap().to_string();
    assert!(project.join("first").exists());
    (project, session)
}

async fn commands(machine: &Machine) -> Vec<Value> {
    let said = machine.runs(&["events", "--json"]).await.succeeds();
    let rows = said.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.filter(|row: &Value| row["kind"] == "command")
        .map(|row| row["data"].clone())
        .collect()
}

/// The row of the command with this text, once it is there.
async fn row(machine: &Machine, text: &str) -> Value {
    let row = workers::row(machine, "command", |data| data["command"] == text).await;
    row["data"].clone()
}

async fn exists(path: &Path) {
    within("the file comes", async {
        while !path.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Runs a command in the session, which says `begun`.
async fn runs(machine: &Machine, session: &str, line: &str) -> Running {
    let exec = ["exec", "--session", session, "--", line];
    let mut client = Running::start(machine.quintet(&exec));
    assert_eq!(client.line().await, "begun");
    client
}

const CUT: &str = "echo two > second; echo begun; sleep 3600";

/// An undo takes back what `CUT` wrote, and not the command before it.
async fn takes_back_the_cut_one(machine: &Machine, project: &Path, session: &str) {
    machine.runs(&["undo", session]).await.succeeds();
    assert!(!project.join("second").exists());
    assert!(project.join("first").exists());
    machine.runs(&["undo", session]).await.succeeds();
    assert!(!project.join("first").exists());
}

#[tokio::test]
async fn a_cancelled_line_of_the_shell_is_taken_back() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let (project, session) = begun(&machine, &[]).await;
    let line = machine.begins(&["send", "shell", CUT, "--session", &session]);
    machine
        .sees("terminal_output", session.parse().unwrap())
        .await;
    machine.runs(&["cancel", &session]).await.succeeds();
    line.ends().await;
    let row = row(&machine, CUT).await;
    assert_eq!(row["ended"], "cancelled", "{row}");
    takes_back_the_cut_one(&machine, &project, &session).await;
}

#[tokio::test]
async fn a_command_whose_client_died_is_taken_back() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let (project, session) = begun(&machine, &[]).await;
    let client = runs(&machine, &session, CUT).await;
    client.signal(Signal::KILL);
    client.ends().await;
    let row = row(&machine, CUT).await;
    assert_eq!(row["ended"], "cancelled", "{row}");
    assert_eq!(row["changed"][0]["path"], "second", "{row}");
    takes_back_the_cut_one(&machine, &project, &session).await;
}

#[tokio::test]
async fn a_command_that_died_with_the_daemon_is_taken_back() {
    for isolate in [true, false] {
        let machine = Machine::fresh();
        machine.configure(&format!("[sandbox]\nisolate = {isolate}\n"));
        let daemon = machine.up().await;
        let (project, session) = begun(&machine, &[]).await;
        let client = runs(&machine, &session, CUT).await;
        daemon.dies_with(client).await;
        let _daemon = machine.up().await;
        let row = row(&machine, CUT).await;
        assert_eq!(row["ended"], "lost", "{row}");
        takes_back_the_cut_one(&machine, &project, &session).await;
    }
}

#[tokio::test]
async fn a_command_that_was_cut_before_it_wrote_is_no_undo() {
    let machine = Machine::fresh();
    let daemon = machine.up().await;
    let (project, session) = begun(&machine, &[]).await;
    let client = runs(&machine, &session, "echo begun; sleep 3600").await;
    daemon.dies_with(client).await;
    let _daemon = machine.up().await;
    machine.runs(&["undo", &session]).await.succeeds();
    assert!(!project.join("first").exists());
}

#[tokio::test]
async fn a_command_that_outlives_the_daemon_keeps_its_text_and_is_taken_back_once() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let address = daemon.http().strip_prefix("http://").unwrap().to_owned();
    let root = machine.path().join("elsewhere");
    std::fs::create_dir(&root).unwrap();
    let _worker = worker(&machine, "box", &["--root", root.to_str().unwrap()]).await;
    let (project, session) = begun(&machine, &["--worker", "box"]).await;
    let go = machine.path().join("go");
    let command = format!(
        "echo two > second; echo begun; while [ ! -e {} ]; do sleep 0.05; done; echo 3 > third",
        go.display()
    );
    let client = runs(&machine, &session, &command).await;
    daemon.dies().await;
    let _daemon = machine
        .up_with(&["--no-worker", "--listen", &address])
        .await;
    std::fs::write(&go, "").unwrap();
    assert!(client.ends().await.success());
    let rows = commands(&machine).await;
    let ended = rows.last().unwrap();
    assert_eq!(ended["command"], command.as_str(), "{ended}");
    assert_eq!(ended["ended"], "exited", "{ended}");
    machine.runs(&["undo", &session]).await.succeeds();
    assert!(!project.join("second").exists() && !project.join("third").exists());
    assert!(project.join("first").exists());
    machine.runs(&["undo", &session]).await.succeeds();
    assert!(!project.join("first").exists());
}

#[tokio::test]
async fn commands_at_the_same_time_have_their_own_files() {
    for isolate in [true, false] {
        let machine = Machine::fresh();
        machine.configure(&format!("[sandbox]\nisolate = {isolate}\n"));
        let _daemon = machine.up().await;
        let (project, session) = begun(&machine, &[]).await;
        let slow = "echo 1 > both; echo begun; while [ ! -e go ]; do sleep 0.05; done; \
                    echo 2 >> both; echo s > slow";
        let slower = runs(&machine, &session, slow).await;
        let fast = [
            "exec",
            "--session",
            &session,
            "--",
            "echo f > fast; echo 2 > first",
        ];
        machine.runs(&fast).await.succeeds();
        std::fs::write(project.join("go"), "").unwrap();
        assert!(slower.ends().await.success());
        exists(&project.join("slow")).await;

        let row = row(&machine, slow).await;
        let changed = row["changed"].as_array().unwrap().iter();
        let changed: Vec<&str> = changed.map(|it| it["path"].as_str().unwrap()).collect();
        assert!(
            changed.contains(&"slow") && changed.contains(&"both"),
            "{row}"
        );
        assert!(
            !changed.contains(&"fast") && !changed.contains(&"first"),
            "{row}"
        );
        machine.runs(&["undo", &session]).await.succeeds();
        assert!(!project.join("slow").exists());
        assert!(!project.join("both").exists(), "nor what it wrote at first");
        assert!(project.join("fast").exists());
        machine.runs(&["undo", &session]).await.succeeds();
        assert!(!project.join("fast").exists());
        let first = std::fs::read_to_string(project.join("first")).unwrap();
        assert_eq!(first, "one\n");
    }
}
