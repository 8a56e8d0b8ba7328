//! Shells, over both versions.

use std::time::Duration;

use quintet_sandbox::hub::{ExecOutcome, ShellEvent, ShellHandle, ShellInput, TerminalSize};
use quintet_sandbox::proto::Protocol;
use serde_json::json;

use crate::bed::{Bed, Lone, soon};
use crate::commands::{command, run};

pub(crate) const SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// A shell with what it has printed so far.
pub(crate) struct Typist {
    pub(crate) handle: ShellHandle,
    pub(crate) input: ShellInput,
    pub(crate) seen: String,
}

pub(crate) async fn start(bed: &Bed, worker: &str) -> Typist {
    let shell = bed.hub.shell(worker, SIZE, "xterm-256color");
    Typist::new(soon("a shell", shell).await.unwrap())
}

impl Typist {
    pub(crate) fn new(handle: ShellHandle) -> Self {
        let input = handle.input();
        Self {
            handle,
            input,
            seen: String::new(),
        }
    }

    pub(crate) async fn type_line(&self, line: &str) {
        let line = format!("{line}\n");
        self.input.write(line.as_bytes()).await.unwrap();
    }

    /// Reads until `text` was printed.
    pub(crate) async fn until(&mut self, text: &str) {
        while !self.seen.contains(text) {
            match soon(text, self.handle.next()).await.unwrap() {
                ShellEvent::Output(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                ShellEvent::Ended(outcome) => panic!("ended {outcome:?}: {}", self.seen),
            }
        }
    }

    pub(crate) async fn end(&mut self) -> ExecOutcome {
        loop {
            match soon("the end", self.handle.next()).await.unwrap() {
                ShellEvent::Output(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                ShellEvent::Ended(outcome) => return outcome,
            }
        }
    }
}

#[tokio::test]
async fn a_shell_has_its_size_terminal_folder_and_exit_code() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for worker in ["v1", "v2"] {
        let root = bed.root(worker).canonicalize().unwrap();
        let mut shell = start(&bed, worker).await;
        shell.type_line("stty size; echo [$TERM] [$PWD]").await;
        shell.until("24 80").await;
        let place = format!("[xterm-256color] [{}]", root.display());
        shell.until(&place).await;
        let resized = TerminalSize {
            rows: 40,
            cols: 100,
        };
        shell.input.resize(resized).await.unwrap();
        shell.type_line("stty size").await;
        shell.until("40 100").await;
        shell.type_line("exit 7").await;
        assert_eq!(shell.end().await, ExecOutcome::Exited(7), "{worker}");
        assert!(shell.input.write(b"x").await.is_err());
    }
}

#[tokio::test]
async fn a_shell_is_the_users_own_and_a_login_shell() {
    let bed = Bed::start().await;
    let mut config = bed.config("sh");
    config.shell = Some("/bin/sh".into());
    let _sh = bed.worker_with(config).await;
    let _bash = bed.worker("bash").await;
    std::fs::write(bed.dir.path().join(".profile"), "READ=profile\n").unwrap();
    for worker in ["sh", "bash"] {
        let mut shell = start(&bed, worker).await;
        shell.type_line("echo \"[$READ] [${0##*/}]\"").await;
        shell.until(&format!("[profile] [{worker}]")).await;
    }
}

#[tokio::test]
async fn a_window_change_reaches_the_program() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let mut shell = start(&bed, "w").await;
    shell
        .type_line("trap 'echo CHANGED-$(stty size)' WINCH; echo re''ady")
        .await;
    shell.until("ready").await;
    let resized = TerminalSize { rows: 33, cols: 44 };
    shell.input.resize(resized).await.unwrap();
    // bash runs a trap when it is back at its prompt.
    shell.type_line("").await;
    shell.until("CHANGED-33 44").await;
}

#[tokio::test]
async fn a_dropped_shell_is_hung_up() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for (worker, seconds) in [("v1", 93311), ("v2", 93312)] {
        let mut shell = start(&bed, worker).await;
        shell
            .type_line(&format!("echo re''ady; sleep {seconds}"))
            .await;
        shell.until("ready").await;
        soon("the program runs", async {
            while crate::commands::alive(&format!("sleep {seconds}")) == 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        drop(shell);
        soon("the shell dies", async {
            while crate::commands::alive(&format!("sleep {seconds}")) > 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_program_that_never_reads_holds_up_nobody() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let mut shell = start(&bed, "w").await;
    shell
        .type_line("stty raw -echo; echo re''ady; exec sleep 1000")
        .await;
    shell.until("ready").await;
    let input = shell.input.clone();
    let flood = tokio::time::timeout(Duration::from_millis(500), async {
        loop {
            input.write(&[b'x'; 4096]).await.unwrap();
        }
    });
    assert!(flood.await.is_err(), "credit lets everything through");
    let output = run(&bed, "w", command("echo alive")).await;
    assert_eq!(output.stdout, b"alive\n");
}

#[tokio::test]
async fn a_v1_program_that_never_reads_loses_input_and_its_hub_is_told() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    raw.send(json!({"type": "new_session", "session_id": "s", "rows": 24, "cols": 80}))
        .await;
    assert_eq!(
        raw.json().await,
        json!({"type": "session_started", "session_id": "s", "success": true, "error": null})
    );
    // "stty raw -echo; exec sleep 1000\n"
    let line = "c3R0eSByYXcgLWVjaG87IGV4ZWMgc2xlZXAgMTAwMAo=";
    raw.send(json!({"type": "session_input", "session_id": "s", "data": line}))
        .await;
    let chunk = "eHh4".repeat(16 * 1024);
    for _ in 0..40 {
        raw.send(json!({"type": "session_input", "session_id": "s", "data": chunk}))
            .await;
    }
    let complaint = loop {
        let message = raw.json().await;
        if message["type"] == "error" {
            break message;
        }
    };
    assert_eq!(complaint["session_id"], "s");
    raw.send(json!({"type": "execute_command", "request_id": "r", "command": "echo alive"}))
        .await;
    loop {
        let message = raw.json().await;
        if message["type"] == "command_output" {
            assert_eq!(message["stdout"], "alive\n");
            break;
        }
    }
}

#[tokio::test]
async fn input_for_an_unknown_shell_is_answered_with_its_id() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    for kind in ["shell_input", "session_input"] {
        raw.send(json!({"type": kind, "session_id": "nope", "data": "eA=="}))
            .await;
        let reply = raw.json().await;
        assert_eq!(reply["type"], "error");
        assert_eq!(reply["session_id"], "nope");
    }
}

#[tokio::test]
async fn a_shell_speaks_the_dialect_it_was_started_in() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    for (start, prefix) in [("start_shell", "shell"), ("new_session", "session")] {
        raw.send(json!({"type": start, "session_id": prefix, "rows": 24, "cols": 80}))
            .await;
        assert_eq!(raw.json().await["type"], format!("{prefix}_started"));
        let input = format!("{prefix}_input");
        // "exit 5\n"
        raw.send(json!({"type": input, "session_id": prefix, "data": "ZXhpdCA1Cg=="}))
            .await;
        loop {
            let message = raw.json().await;
            if message["type"] == format!("{prefix}_exit") {
                assert_eq!(message["exit_code"], 5);
                break;
            }
            assert_eq!(message["type"], format!("{prefix}_output"));
        }
    }
}
