//! Commands in a session's workspace: what one side writes, the other sees.

use std::path::Path;

use futures_util::StreamExt;
use quintet_control::wire::command_ended::Outcome;
use quintet_control::wire::command_event::Event;
use quintet_control::wire::{CommandChanges, ExecMsg};
use quintet_control::{Client, UnixClient};
use serde_json::{Value, json};

use crate::harness::{Machine, Running, within};
use crate::workers::row;

/// A session whose workspace is `folder`.
async fn session_in(machine: &Machine, folder: &Path, more: &[&str]) -> u64 {
    let folder = folder.to_str().unwrap();
    let arguments = ["send", "shell", "true", "--new", "--json", "--cwd", folder];
    let said = machine.runs(&[&arguments, more].concat()).await.stdout;
    let start: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    start["data"]["session"].as_u64().unwrap()
}

async fn worker(machine: &Machine, id: &str, root: &Path) -> Running {
    let root = root.to_str().unwrap();
    let arguments = ["worker", "--daemon-id", id, "--root", root];
    let running = Running::start_with_talk(machine, &arguments);
    row(machine, "worker_online", |data| data["worker"] == id).await;
    running
}

fn paths(changed: &Value) -> Vec<(&str, &str)> {
    changed
        .as_array()
        .unwrap()
        .iter()
        .map(|it| (it["path"].as_str().unwrap(), it["change"].as_str().unwrap()))
        .collect()
}

#[tokio::test]
async fn a_session_is_listed_with_the_worker_that_its_commands_run_on() {
    let machine = Machine::fresh();
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let roots = ["one", "two"].map(|name| machine.path().join(name));
    for folder in roots.iter().chain([&machine.path().join("project")]) {
        std::fs::create_dir(folder).unwrap();
    }
    let listed = async || {
        let sessions = machine.runs(&["sessions", "--json"]).await.json();
        sessions[0]["worker"].as_str().unwrap().to_owned()
    };
    let _only = worker(&machine, "box", &roots[0]).await;
    session_in(&machine, &machine.path().join("project"), &[]).await;
    assert_eq!(listed().await, "box");

    let another = worker(&machine, "other", &roots[1]).await;
    assert_eq!(listed().await, "local");

    // One that is away is none to choose from.
    another.signal(rustix::process::Signal::TERM);
    assert!(another.ends().await.success());
    row(&machine, "worker_offline", |data| data["worker"] == "other").await;
    assert_eq!(listed().await, "box");
}

#[tokio::test]
async fn a_command_sees_the_hosts_files_and_the_host_has_what_it_wrote() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let project = machine.path().join("project");
    std::fs::create_dir_all(project.join("src")).unwrap();
    std::fs::write(project.join("src/input"), "one\n").unwrap();
    let session = session_in(&machine, &project, &[]).await.to_string();
    let exec = |command: &'static str| {
        let arguments = ["exec", "--session", &session, "--", command];
        let running = machine.quintet(&arguments);
        async move { crate::harness::Finished::of(running).await }
    };

    let made = exec("tr a-z A-Z < src/input > out; rm src/input; mkdir -p d; echo x > d/y").await;
    made.succeeds();
    assert_eq!(
        std::fs::read_to_string(project.join("out")).unwrap(),
        "ONE\n"
    );
    assert!(!project.join("src/input").exists());
    assert_eq!(std::fs::read_to_string(project.join("d/y")).unwrap(), "x\n");

    std::fs::write(project.join("out"), "changed by the host\n").unwrap();
    assert_eq!(exec("cat out").await.succeeds(), "changed by the host\n");
    let inside = [
        "exec",
        "--session",
        &session,
        "--cwd",
        "d",
        "--",
        "cat y; exit 3",
    ];
    let said = machine.runs(&inside).await;
    assert_eq!((said.code, &*said.stdout), (Some(3), "x\n"));
    let outside = ["exec", "--session", &session, "--cwd", "..", "--", "true"];
    let refused = machine.runs(&outside).await.fails(125);
    assert!(refused.contains("not beneath the workspace"), "{refused}");

    let commands = machine.rows("command").await;
    let first = &commands[commands.len() - 3]["data"];
    assert_eq!(first["exit_code"], 0);
    assert_eq!(first["worker"], "local");
    assert!(
        first["after"].as_u64() > first["before"].as_u64(),
        "{first}"
    );
    let changed = paths(&first["changed"]);
    for change in [("out", "write"), ("src/input", "delete"), ("d/y", "write")] {
        assert!(changed.contains(&change), "{changed:?}");
    }
    let read_only = &commands[commands.len() - 2]["data"];
    assert_eq!(read_only["before"], read_only["after"]);
    assert_eq!(read_only["changed"], json!([]));
    assert_eq!(commands[commands.len() - 1]["data"]["exit_code"], 3);
}

#[tokio::test]
async fn without_isolation_commands_work_in_the_folder_itself_and_keep_the_sequences() {
    let machine = Machine::fresh();
    machine.configure("[sandbox]\nisolate = false\n");
    let _daemon = machine.up().await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("input"), "one\n").unwrap();
    let session = session_in(&machine, &project, &[]).await.to_string();

    let exec = [
        "exec",
        "--session",
        &session,
        "--",
        "pwd -P; cat input > out",
    ];
    // A person's write just before it is not the command's.
    std::fs::write(project.join("theirs"), "of a person").unwrap();
    let said = machine.runs(&exec).await.succeeds();
    assert_eq!(Path::new(said.trim_end()), project.canonicalize().unwrap());
    assert!(project.join("out").exists(), "no copy stands between");

    let commands = machine.rows("command").await;
    let command = &commands.last().unwrap()["data"];
    assert!(command["after"].as_u64() > command["before"].as_u64());
    assert_eq!(paths(&command["changed"]), [("out", "write")]);
    machine.runs(&["undo", &session]).await.succeeds();
    assert!(!project.join("out").exists());
    let outside = ["exec", "--session", &session, "--cwd", "..", "--", "true"];
    let refused = machine.runs(&outside).await.fails(125);
    assert!(refused.contains("not beneath the workspace"), "{refused}");
}

#[tokio::test]
async fn an_undo_takes_back_what_commands_did_and_spares_what_came_later() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    for name in ["kept", "changed", "removed"] {
        std::fs::write(project.join(name), name).unwrap();
    }
    let session = session_in(&machine, &project, &[]).await.to_string();
    let exec = |command: &'static str| {
        let running = machine.quintet(&["exec", "--session", &session, "--", command]);
        async move { crate::harness::Finished::of(running).await.succeeds() }
    };
    exec("echo new > made").await;
    exec("echo other > changed; rm removed; echo more >> made").await;
    exec("cat made").await;
    std::fs::write(project.join("changed"), "by a person").unwrap();

    let undone = machine.runs(&["undo", &session, "--json"]).await.json();
    assert_eq!(
        paths(&undone["changed"]),
        [("made", "write"), ("removed", "write")]
    );
    let skipped = undone["skipped"].as_array().unwrap();
    assert!(
        skipped.len() == 1 && skipped[0].as_str().unwrap().starts_with("changed "),
        "{skipped:?}"
    );
    let read = |name: &str| std::fs::read_to_string(project.join(name)).unwrap();
    assert_eq!(read("made"), "new\n");
    assert_eq!(read("removed"), "removed");
    assert_eq!(read("changed"), "by a person");

    machine.runs(&["undo", &session]).await.succeeds();
    assert!(!project.join("made").exists());
    assert_eq!(read("kept"), "kept");
    let nothing = machine.runs(&["undo", &session]).await.fails(1);
    assert!(nothing.contains("no command"), "{nothing}");
    assert_eq!(machine.rows("commands_undone").await.len(), 2);
}

#[tokio::test]
async fn a_worker_elsewhere_has_its_own_copy() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let root = machine.path().join("elsewhere");
    std::fs::create_dir(&root).unwrap();
    let box_worker = worker(&machine, "box", &root).await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("a"), "from the host").unwrap();
    let session = session_in(&machine, &project, &["--worker", "box"])
        .await
        .to_string();
    let run = [
        "exec",
        "--session",
        &session,
        "--",
        "pwd; cat a; printf back > b",
    ];
    let said = machine.runs(&run).await.succeeds();
    let real_root = root.canonicalize().unwrap().join("workspaces");
    assert!(said.starts_with(real_root.to_str().unwrap()), "{said}");
    assert!(said.ends_with("from the host"), "{said}");
    assert_eq!(std::fs::read_to_string(project.join("b")).unwrap(), "back");

    // Another worker gets the same folder, with what the first one wrote.
    let other = machine.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let _other = worker(&machine, "other", &other).await;
    let second = session_in(&machine, &project, &["--worker", "other"])
        .await
        .to_string();
    let said = machine
        .runs(&["exec", "--session", &second, "--", "cat a b"])
        .await;
    assert_eq!(said.succeeds(), "from the hostback");
    drop(box_worker);
}

#[tokio::test]
async fn a_command_on_a_lost_worker_says_which_step_failed() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let made = ["token", "create", "--worker", "nowhere"];
    machine.runs(&made).await.succeeds();
    let session = session_in(&machine, &project, &["--worker", "nowhere"])
        .await
        .to_string();
    let refused = machine
        .runs(&["exec", "--session", &session, "--", "true"])
        .await
        .fails(125);
    assert!(refused.contains("nowhere"), "{refused}");
}

#[tokio::test]
async fn a_stop_lets_commands_end_and_says_what_it_waits_for() {
    let machine = Machine::fresh();
    machine.configure("[daemon]\ndrain = \"25s\"\n");
    let mut daemon = Running::start_with_talk(&machine, &["up", "--listen", "127.0.0.1:0"]);
    daemon.prints("is ready at").await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let session = session_in(&machine, &project, &[]).await.to_string();
    let command = "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo made > out";
    let mut runs = Running::start(machine.quintet(&["exec", "--session", &session, "--", command]));
    assert_eq!(runs.line().await, "begun");
    daemon.signal(rustix::process::Signal::TERM);
    let told = daemon.prints("waiting for").await;
    assert!(
        told.contains("waiting for 1 command: `echo begun; while")
            && told.contains(&format!("in session {session} on local, at most 25s")),
        "{told}"
    );
    std::fs::write(project.join("go"), "").unwrap();
    assert!(runs.ends().await.success());
    assert_eq!(
        std::fs::read_to_string(project.join("out")).unwrap(),
        "made\n"
    );
    assert!(daemon.ends().await.success());

    // One that does not end in time does not hold the daemon.
    machine.configure("[daemon]\ndrain = \"200ms\"\n");
    let mut daemon = Running::start_with_talk(&machine, &["up", "--listen", "127.0.0.1:0"]);
    daemon.prints("is ready at").await;
    let notes = machine.rows("note").await;
    let noted = notes[0]["data"]["text"].as_str().unwrap();
    assert!(
        noted.starts_with("waiting for 1 command: `echo begun"),
        "{noted}"
    );
    let command = "echo begun; sleep 3600";
    let mut runs = Running::start(machine.quintet(&["exec", "--session", &session, "--", command]));
    assert_eq!(runs.line().await, "begun");
    daemon.signal(rustix::process::Signal::TERM);
    let told = daemon.prints("not waiting any longer").await;
    assert!(
        told.contains("after 200ms for 1 command: `echo begun; sleep 3600`"),
        "{told}"
    );
    assert!(daemon.ends().await.success());
}

/// Runs one command in the session, and returns what it printed and changed.
async fn run(client: &mut UnixClient, session: u64, command: String) -> (String, CommandChanges) {
    let request = ExecMsg {
        command,
        session: Some(session),
        ..ExecMsg::default()
    };
    let mut events = std::pin::pin!(client.exec(request));
    let (mut stdout, mut end) = (Vec::new(), None);
    while let Some(event) = within("the next event", events.next()).await {
        match event.unwrap().event {
            Some(Event::Stdout(bytes)) => stdout.extend(bytes),
            Some(Event::Ended(ended)) => end = Some(ended),
            _ => {}
        }
    }
    let end = end.unwrap();
    assert_eq!(end.outcome, Some(Outcome::Exited(0)));
    (String::from_utf8(stdout).unwrap(), end.changes.unwrap())
}

#[tokio::test]
async fn five_hundred_commands_in_a_row_are_never_stale() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let root = machine.path().join("elsewhere");
    std::fs::create_dir(&root).unwrap();
    let _worker = worker(&machine, "box", &root).await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let session = session_in(&machine, &project, &["--worker", "box"]).await;
    let mut client = UnixClient::connect(machine.control_socket()).await.unwrap();
    let mut last = 0;
    for round in 0..500u32 {
        let host = project.join("host");
        std::fs::write(&host, format!("{round}")).unwrap();
        let command = format!("cat host; printf {round} > worker");
        let (said, changes) = run(&mut client, session, command).await;
        assert_eq!(said, round.to_string(), "the worker is behind");
        let written = std::fs::read_to_string(project.join("worker")).unwrap();
        assert_eq!(written, round.to_string(), "the host is behind");
        assert!(
            changes.before > last && changes.after > changes.before,
            "{changes:?}"
        );
        let changed: Vec<&str> = changes.changed.iter().map(|it| it.path.as_str()).collect();
        assert_eq!(changed, ["worker"]);
        last = changes.after;
    }
}

#[tokio::test]
async fn the_shell_agents_lines_are_commands_of_the_session() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    std::fs::write(project.join("a"), "of the host\n").unwrap();
    let session = session_in(&machine, &project, &[]).await.to_string();
    let send = |line: &'static str| {
        let running = machine.quintet(&["send", "shell", line, "--session", &session]);
        async move { crate::harness::Finished::of(running).await.succeeds() }
    };
    assert_eq!(send("cat a; echo made > b").await, "of the host\n");
    assert_eq!(
        std::fs::read_to_string(project.join("b")).unwrap(),
        "made\n"
    );
    assert_eq!(send("exit 7").await.trim_end(), "exit status 7");
    let whole: String = (1..=200_000).map(|n| format!("{n}\n")).collect();
    assert!(send("seq 1 200000").await == whole);
    let commands = machine.rows("command").await;
    let made = commands
        .iter()
        .find(|row| row["data"]["command"] == "cat a; echo made > b");
    assert_eq!(paths(&made.unwrap()["data"]["changed"]), [("b", "write")]);

    let line = "setsid sleep 3600 & echo $$ > pid; sleep 3600";
    let begun = machine.begins(&["send", "shell", line, "--session", &session]);
    machine.sees("turn_started", 1).await;
    let copy = machine.home().join("workers/local/root/workspaces");
    let copy = std::fs::read_dir(copy)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let pid = within("the command to begin", async {
        loop {
            match std::fs::read_to_string(copy.join("pid")) {
                Ok(pid) if pid.ends_with('\n') => break pid.trim().to_owned(),
                _ => tokio::task::yield_now().await,
            }
        }
    });
    let process = Path::new("/proc").join(pid.await);
    machine.runs(&["cancel", &session]).await.succeeds();
    begun.ends().await;
    within("the command to end", async {
        while process.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    machine.runs(&["undo", &session, "2"]).await.succeeds();
    assert!(!project.join("b").exists());
}

#[tokio::test]
async fn guidance_that_a_turn_does_not_take_is_the_next_message() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    let project = machine.path().join("project");
    std::fs::create_dir(&project).unwrap();
    let session = session_in(&machine, &project, &[]).await;
    let number = session.to_string();
    // The shell agent takes no guidance: it runs lines.
    let line = "echo begun; while [ ! -e go ]; do sleep 0.05; done";
    let begun = machine.begins(&["send", "shell", line, "--session", &number]);
    within("the line runs", async {
        while !machine
            .rows("terminal_output")
            .await
            .iter()
            .any(|row| row["data"]["data"] == "begun\n")
        {}
    })
    .await;
    machine
        .runs(&["steer", &number, "echo steered > later"])
        .await
        .succeeds();
    machine.sees("steer", session).await;
    std::fs::write(project.join("go"), "").unwrap();
    begun.ends().await.succeeds();
    within("the guidance is done", async {
        while std::fs::read_to_string(project.join("later"))
            .ok()
            .as_deref()
            != Some("steered\n")
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let messages = machine.rows("message").await;
    let last = &messages[messages.len() - 1]["data"];
    assert_eq!(last["text"], "echo steered > later");
}
