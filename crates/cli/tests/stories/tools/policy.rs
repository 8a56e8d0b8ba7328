//! What agents may do, and a person who is asked.

use serde_json::{Value, json};

use super::{asked, call, machine, online, send, space};
use crate::harness::{Machine, Running, within};

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
async fn a_path_that_a_command_printed_is_of_the_workspace() {
    let machine = machine("[policy]\nrules = [{ path = \"secret/**\", action = \"deny\" }]\n");
    let _daemon = machine.up().await;
    online(&machine).await;
    std::fs::create_dir_all(space(&machine).join("sub")).unwrap();
    std::fs::write(space(&machine).join("sub/a.txt"), "here\n").unwrap();
    let said = call(&machine, "exec", json!({"command": "pwd"})).await;
    // Of the worker's copy, where it has one.
    let pwd = said.lines().next().unwrap();
    let path = format!("{pwd}/sub/a.txt");
    let read = call(&machine, "read_file", json!({ "path": path })).await;
    assert_eq!(read, "here");
    let listed = json!({"command": "ls", "cwd": format!("{pwd}/sub")});
    let listed = call(&machine, "exec", listed).await;
    assert_eq!(listed, "a.txt\n[exit code 0]");
    for line in [
        format!("cat {pwd}/secret/key"),
        "cat $PWD/secret/key".to_owned(),
        "cd sub && cat ../secret/key".to_owned(),
    ] {
        let denied = call(&machine, "exec", json!({ "command": line })).await;
        assert!(denied.contains("denied by the policy"), "{line}: {denied}");
        let test = ["policy", "test", "--session", "1", "--json", "--", &line];
        let report = machine.runs(&test).await.json();
        assert_eq!(report["action"], "deny", "{line}: {report}");
    }
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
async fn a_rule_for_a_path_holds_through_links() {
    let machine = machine("[policy]\nrules = [{ path = \"secrets/**\", action = \"deny\" }]");
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let space = space(&machine);
    std::fs::create_dir(space.join("secrets")).unwrap();
    std::fs::write(space.join("secrets/key"), "TOPSECRET\n").unwrap();
    std::os::unix::fs::symlink("secrets/key", space.join("file")).unwrap();
    std::os::unix::fs::symlink("secrets", space.join("folder")).unwrap();
    for (tool, arguments) in [
        ("read_file", json!({"path": "file"})),
        ("read_file", json!({"path": "folder/key"})),
        ("write_file", json!({"path": "folder/new", "content": "x"})),
        (
            "edit_file",
            json!({"path": "folder/key", "old": "TOP", "new": "x"}),
        ),
        ("search", json!({"path": "file", "pattern": "."})),
    ] {
        let denied = call(&machine, tool, arguments).await;
        assert!(denied.contains("denied by the policy"), "{tool}: {denied}");
    }
    assert!(!space.join("secrets/new").exists());
    for path in ["", "folder"] {
        let found = json!({"path": path, "pattern": "TOP"});
        let found = call(&machine, "search", found).await;
        assert!(!found.contains("TOPSECRET"), "{path}: {found}");
    }

    // What is asked about says what it is.
    std::fs::write(machine.path().join("outside.txt"), "theirs\n").unwrap();
    let link = machine.path().join("link");
    std::os::unix::fs::symlink("outside.txt", &link).unwrap();
    let waits = send(
        &machine,
        &format!("call read_file {}", json!({"path": "../link"})),
    );
    let approval = asked(&machine).await;
    let real = machine.path().canonicalize().unwrap().join("outside.txt");
    assert_eq!(
        approval["command"],
        format!("{} -> {}", link.display(), real.display())
    );
    let id = approval["id"].to_string();
    machine.runs(&["approve", &id]).await.succeeds();
    assert_eq!(waits.ends().await.succeeds().trim(), "theirs");
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

#[tokio::test]
async fn a_rule_is_for_its_agent_its_session_and_its_worker() {
    let rules = [
        "{ path = \"a\", agent = \"hands\", action = \"deny\" }",
        "{ path = \"b\", session = 2, action = \"deny\" }",
        "{ path = \"c\", worker = \"box\", action = \"deny\" }",
        "{ path = \"d\", agent = \"coder\", action = \"deny\" }",
        "{ command = \"git push\", agent = \"hands\", action = \"deny\" }",
        "{ command = \"git pull\", session = 2, action = \"deny\" }",
        "{ command = \"git fetch\", worker = \"box\", action = \"deny\" }",
        "{ command = \"git gc\", path = \"deep/**\", action = \"deny\" }",
    ];
    let machine = machine(&format!("[policy]\nrules = [{}]\n", rules.join(", ")));
    let _daemon = machine.up_with(&["--no-worker"]).await;
    machine
        .runs(&["token", "create", "--worker", "box"])
        .await
        .succeeds();
    for (more, denied) in [(&[][..], "a"), (&["--worker", "box"][..], "a b c")] {
        let mut refused = Vec::new();
        for path in ["a", "b", "c", "d"] {
            let write = json!({"path": path, "content": "x"});
            let line = format!("call write_file {write}");
            let mut send = vec!["send", "hands", &line];
            if path == "a" {
                send.push("--new");
                send.extend(more);
            }
            if machine.runs(&send).await.succeeds().contains("denied") {
                refused.push(path);
            }
        }
        assert_eq!(refused.join(" "), denied, "{more:?}");
    }

    let tested = async |more: &[&str], command: &str| {
        let test = [&["policy", "test", "--json"], more, &["--", command]].concat();
        machine.runs(&test).await.json()["action"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    for (more, command, action) in [
        (&["--session", "1"][..], "git push", "deny"),
        (&["--session", "1", "--agent", "coder"], "git push", "allow"),
        (&["--agent", "hands"], "git push", "deny"),
        (&[], "git push", "allow"),
        (&["--session", "1"], "git pull", "allow"),
        (&["--session", "2", "--worker", "local"], "git pull", "deny"),
        (&["--session", "2"], "git fetch", "deny"),
        (&["--worker", "box"], "git fetch", "deny"),
        (&["--cwd", "deep/er"], "git gc", "deny"),
        (&["--cwd", "flat"], "git gc", "allow"),
    ] {
        assert_eq!(tested(more, command).await, action, "{more:?} {command}");
    }
}
