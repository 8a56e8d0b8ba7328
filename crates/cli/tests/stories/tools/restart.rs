//! What waits for a person when the daemon stops, and goes on waiting.

use serde_json::json;

use super::{asked, machine, send, space};
use crate::harness::{Daemon, Machine, within};
use crate::workers::row;

const RULES: &str = "[daemon]\ndrain = \"100ms\"\n\
    [policy]\nrules = [{ tool = \"write_file\", action = \"ask\" }]\n";

#[derive(Clone, Copy)]
enum End {
    InOrder,
    PowerCut,
}

impl End {
    async fn of(self, daemon: Daemon) {
        match self {
            Self::InOrder => assert!(daemon.stops().await.success()),
            Self::PowerCut => daemon.dies().await,
        }
    }
}

/// A machine whose daemon ended while an agent waited for leave to write; it runs again.
async fn cut_while_asking(end: End) -> (Machine, Daemon, String) {
    let machine = machine(RULES);
    let daemon = machine.up_with(&["--no-worker"]).await;
    let write = json!({"path": "a.md", "content": "x"});
    let waits = send(&machine, &format!("call write_file {write}"));
    let approval = asked(&machine).await;
    end.of(daemon).await;
    let daemon = machine.up_with(&["--no-worker"]).await;
    // A client whose daemon died waits for the next one.
    waits.ends().await.fails(1);
    let ended = machine.sees("turn_ended", 1).await;
    assert_eq!(ended["data"]["retryable"], true);
    let error = ended["data"]["error"].as_str().unwrap();
    assert!(
        error.contains("the daemon stopped") && error.contains("`quintet retry`"),
        "{error}"
    );
    assert_eq!(machine.rows("turn_ended").await.len(), 1, "told once");
    let listed = machine.runs(&["approvals", "--json"]).await.json();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["id"], approval["id"]);
    assert_eq!(listed[0]["command"], "a.md");
    let reason = listed[0]["reason"].as_str().unwrap();
    assert!(reason.contains("`quintet retry 1` goes on"), "{reason}");
    (machine, daemon, approval["id"].to_string())
}

#[tokio::test]
async fn an_approval_is_answered_after_a_restart_and_the_retry_has_it() {
    for end in [End::InOrder, End::PowerCut] {
        let (machine, _daemon, id) = cut_while_asking(end).await;
        machine.runs(&["approve", &id]).await.succeeds();
        assert!(!space(&machine).join("a.md").exists());
        let said = machine.runs(&["retry", "1"]).await.succeeds();
        assert!(said.starts_with("wrote a.md"), "{said}");
        // It was for this once.
        let again = send(
            &machine,
            &format!(
                "call write_file {}",
                json!({"path": "a.md", "content": "x"})
            ),
        );
        let other = asked(&machine).await;
        assert_ne!(other["id"].to_string(), id);
        machine
            .runs(&["deny", &other["id"].to_string()])
            .await
            .succeeds();
        again.ends().await.succeeds();
    }
}

#[tokio::test]
async fn an_approval_that_was_refused_after_a_restart_stays_so() {
    let (machine, _daemon, id) = cut_while_asking(End::InOrder).await;
    let deny = ["deny", &id, "--reason", "not today"];
    machine.runs(&deny).await.succeeds();
    let said = machine.runs(&["retry", "1"]).await.succeeds();
    assert!(said.contains("refused it: not today"), "{said}");
    assert!(!space(&machine).join("a.md").exists());
}

#[tokio::test]
async fn a_retry_waits_for_the_approval_that_was_left() {
    let (machine, _daemon, id) = cut_while_asking(End::InOrder).await;
    let retried = machine.begins(&["retry", "1"]);
    let row = loop {
        let mut requested = machine.rows("approval_requested").await;
        if requested.len() == 2 {
            break requested.remove(1);
        }
    };
    assert_eq!(row["data"]["approval"].to_string(), id);
    machine.runs(&["approve", &id]).await.succeeds();
    let said = retried.ends().await.succeeds();
    assert!(said.starts_with("wrote a.md"), "{said}");
}

#[tokio::test]
async fn an_approval_that_was_left_goes_when_the_conversation_goes_on_without_it() {
    let (machine, _daemon, id) = cut_while_asking(End::InOrder).await;
    send(&machine, "tools").ends().await.succeeds();
    let row = machine.sees("approval_withdrawn", 1).await;
    assert_eq!(row["data"]["approval"].to_string(), id);
    let late = machine.runs(&["approve", &id]).await.fails(1);
    assert!(late.contains("withdrawn"), "{late}");
}

#[tokio::test]
async fn a_question_is_answered_after_a_restart_and_the_retry_has_it() {
    let machine = machine("[daemon]\ndrain = \"100ms\"\n");
    let daemon = machine.up_with(&["--no-worker"]).await;
    let questions = json!({"questions": [{"question": "Which?"}]});
    let waits = send(&machine, &format!("call ask_user {questions}"));
    machine.sees("ask_user", 1).await;
    End::InOrder.of(daemon).await;
    let _daemon = machine.up_with(&["--no-worker"]).await;
    waits.ends().await.fails(1);
    let listed = machine.runs(&["asks", "--json"]).await.json();
    assert_eq!(listed[0]["questions"][0]["question"], "Which?");
    machine.runs(&["reply", "1", "this one"]).await.succeeds();
    let said = machine.runs(&["retry", "1"]).await.succeeds();
    assert_eq!(said.trim(), "Which?: this one");
    assert_eq!(machine.rows("ask_user").await.len(), 1, "asked once");
}

/// The daemon dies as soon as the file is there, wherever it is in what follows.
#[tokio::test]
async fn what_a_tool_wrote_is_taken_back_when_the_daemon_died_right_after_it() {
    let machine = machine("");
    for round in 0..5 {
        let daemon = machine.up_with(&["--no-worker"]).await;
        let path = format!("{round}.txt");
        let file = space(&machine).join(&path);
        let write = json!({"path": path, "content": "x"});
        let writing = send(&machine, &format!("call write_file {write}"));
        within("the file comes", async {
            while !file.exists() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        daemon.dies().await;
        let daemon = machine.up_with(&["--no-worker"]).await;
        writing.ends().await;
        let command = format!("write_file {path}");
        let row = row(&machine, "command", |data| data["command"] == *command).await;
        assert_eq!(row["data"]["changed"][0]["path"], *path, "{row}");
        machine.runs(&["undo", "1"]).await.succeeds();
        assert!(!file.exists(), "{row}");
        daemon.dies().await;
    }
}
