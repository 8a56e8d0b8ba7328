//! Exit codes and error texts, without a daemon.

use crate::harness::{Finished, Machine};

#[tokio::test]
async fn wrong_usage_is_exit_code_2() {
    let machine = Machine::fresh();
    let stderr = machine.runs(&["sned"]).await.fails(2);
    assert!(
        stderr.contains("similar subcommand") && stderr.contains("send"),
        "{stderr}"
    );
    machine.runs(&[]).await.fails(2);
    machine.runs(&["send", "shell", " "]).await.fails(2);
    machine
        .runs(&["send", "shell", "x", "--new", "--session", "3"])
        .await
        .fails(2);
    machine.runs(&["--home", "", "status"]).await.fails(2);
}

#[tokio::test]
async fn help_and_version_are_data() {
    let machine = Machine::fresh();
    let help = machine.runs(&["--help"]).await.succeeds();
    assert!(help.contains("Exit codes: 0 done, 1 failed, 2 wrong usage, 64 bad configuration"));
    let version = machine.runs(&["--version"]).await.succeeds();
    assert_eq!(
        version.trim(),
        format!("quintet {}", env!("CARGO_PKG_VERSION"))
    );
}

#[tokio::test]
async fn without_a_daemon_every_client_command_says_how_to_start_one() {
    let machine = Machine::fresh();
    for command in [
        &["status"][..],
        &["send", "shell", "hi"],
        &["chat"],
        &["sessions", "--json"],
        &["kill", "1"],
        &["events"],
        &["stats"],
        &["ping"],
        &["reload"],
        &["cron", "ls"],
        &["queue", "ls"],
        &["approvals"],
        &["asks"],
        &["journal", "report"],
        &["agents"],
        &["agent", "logs", "x"],
    ] {
        let finished = machine.runs(command).await;
        assert_eq!(finished.stdout, "", "{command:?}");
        assert_eq!(
            finished.fails(1),
            format!(
                "error: no daemon is running on {}\nhint: start one with `quintet up`\n",
                machine.home().display()
            ),
            "{command:?}"
        );
    }
}

#[tokio::test]
async fn the_home_folder_is_a_flag_a_variable_or_the_default() {
    let machine = Machine::fresh();
    let path = |folder: &str| {
        format!(
            "{}\n",
            machine.path().join(folder).join("config.toml").display()
        )
    };
    assert_eq!(
        machine.runs(&["config", "path"]).await.succeeds(),
        path(".quintet")
    );
    assert_eq!(
        machine
            .runs(&["config", "path", "--home", "flag"])
            .await
            .succeeds(),
        path("flag")
    );
    let mut by_variable = machine.quintet(&["config", "path"]);
    by_variable.env("QUINTET_HOME", machine.path().join("variable"));
    assert_eq!(Finished::of(by_variable).await.succeeds(), path("variable"));
}

#[tokio::test]
async fn configuration_can_be_read_and_set_without_a_daemon() {
    let machine = Machine::fresh();
    assert_eq!(
        machine
            .runs(&["config", "get", "http.listen"])
            .await
            .succeeds(),
        "127.0.0.1:7505\n"
    );
    machine
        .runs(&["config", "set", "http.listen", "127.0.0.1:8080"])
        .await
        .succeeds();
    machine
        .runs(&["config", "set", "providers.anthropic.api_key", "sk-secret"])
        .await
        .succeeds();
    let whole = machine.runs(&["config", "get"]).await.json();
    assert_eq!(whole["http"]["listen"], "127.0.0.1:8080");
    assert_eq!(whole["providers"]["anthropic"]["api_key"], "***");
    let file = std::fs::read_to_string(machine.home().join("config.toml")).unwrap();
    assert!(
        file.contains("# Quintet's settings"),
        "comments are kept: {file}"
    );

    let stderr = machine
        .runs(&["config", "set", "http.lisen", "x"])
        .await
        .fails(64);
    assert!(stderr.contains("did you mean http.listen?"), "{stderr}");
    assert!(stderr.contains("`quintet config get` prints"), "{stderr}");
    machine
        .runs(&["config", "get", "no.such.key"])
        .await
        .fails(1);
}

#[tokio::test]
async fn a_wrong_configuration_is_exit_code_64_and_names_every_mistake() {
    let machine = Machine::fresh();
    machine.configure("[http]\nlisten = 5\n[sandbox]\nheartbeat = \"soon\"\n[nonsense]\n");
    let stderr = machine.runs(&["up"]).await.fails(64);
    for part in [
        "config.toml:2: http.listen",
        "config.toml:4: sandbox.heartbeat",
        "nonsense",
        "hint: edit",
    ] {
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
    assert!(!machine.run_file().exists(), "nothing was started");
    let stderr = machine.runs(&["up", "--listen", "here"]).await.fails(64);
    assert!(stderr.contains("--listen"), "the flag is named: {stderr}");
}

#[tokio::test]
async fn doctor_reports_in_the_published_shape() {
    let machine = Machine::fresh();
    machine.configure("[http]\nlisten = \"127.0.0.1:0\"\n");
    let checks = machine.runs(&["doctor", "--json"]).await.json();
    let checks = checks.as_array().unwrap();
    for check in checks {
        assert!(
            check["check"].is_string() && check["ok"].is_boolean(),
            "{check}"
        );
        assert!(
            check["detail"].is_string() && check["fix"].is_string(),
            "{check}"
        );
        assert!(
            check["ok"] == true || check["fix"] != "" || check["check"] == "port",
            "{check}"
        );
    }
    let named = |name: &str| checks.iter().find(|check| check["check"] == name).unwrap();
    assert_eq!(named("home")["ok"], true);
    assert_eq!(named("config")["ok"], true);
    for (name, fix) in [
        ("anthropic", "api_key KEY"),
        ("openai", "api_key KEY"),
        ("openrouter", "api_key KEY"),
        ("ollama", "base_url URL"),
    ] {
        let provider = named(&format!("provider {name}"));
        let fix = format!("quintet config set providers.{name}.{fix}");
        assert_eq!(
            (&provider["ok"], &provider["fix"]),
            (&false.into(), &fix.into())
        );
    }
    let doctor = machine
        .quintet(&["doctor", "--json"])
        .env("OPENAI_API_KEY", "sk-of-doctor")
        .output();
    let said = String::from_utf8(doctor.await.unwrap().stdout).unwrap();
    assert!(
        said.contains("the key of $OPENAI_API_KEY") && !said.contains("sk-of-doctor"),
        "{said}"
    );

    machine.configure("[http]\nlisten = 5\n");
    let finished = machine.runs(&["doctor"]).await;
    assert!(finished.stdout.contains("✗ config"), "{finished:?}");
    // One column for the names, whatever the longest is.
    let kernel = details_at(&finished.stdout, "kernel", "Linux ");
    let isolation = details_at(&finished.stdout, "isolate no_new_privs", "setuid ");
    assert_eq!(kernel, isolation, "{}", finished.stdout);
    assert!(!finished.stdout.contains('\u{1b}'), "no colour in a pipe");
    finished.fails(1);
}

/// The column at which the details of a check begin.
fn details_at(listing: &str, check: &str, details: &str) -> usize {
    let line = listing.lines().find(|line| line.contains(check));
    line.and_then(|line| line.find(details))
        .unwrap_or_else(|| panic!("{check} with {details:?} is in\n{listing}"))
}

#[tokio::test]
async fn completions_name_the_commands() {
    let machine = Machine::fresh();
    for shell in ["bash", "zsh", "fish"] {
        let script = machine.runs(&["completions", shell]).await.succeeds();
        assert!(
            script.contains("quintet") && script.contains("approvals"),
            "{shell}"
        );
    }
}

#[tokio::test]
async fn a_reader_that_goes_away_is_no_error() {
    let machine = Machine::fresh();
    let mut command = machine.program("sh");
    let binary = env!("CARGO_BIN_EXE_quintet");
    command.args(["-c", &format!("{binary} completions bash; echo $? >&2")]);
    command
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    // The script is larger than a pipe's buffer, so that the writer notices.
    drop(child.stdout.take());
    let finished = Finished::from(child.wait_with_output().await.unwrap());
    assert_eq!(finished.stderr, "0\n");
}
