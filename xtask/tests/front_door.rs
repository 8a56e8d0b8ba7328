//! `./test` itself, with every program that it calls replaced by one that notes the call.
//!
//! Each call of a green run is then made to fail, one at a time: the run must fail, name the step,
//! and still go through the other steps.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Notes the call, and fails when it is the one that has to.
const STAND_IN: &str = r#"#!/bin/bash
name=${0##*/}
echo "$STEP $name $*" >>"$CALLS"
[[ $(wc -l <"$CALLS") != "$FAILS" ]] || exit 7
case "$name $*" in
    "cargo nextest run --workspace --locked") echo "Summary [ 1.0s] 40 tests run: 40 passed, 0 skipped" ;;
    "cargo test --doc"*) echo "test result: ok. 2 passed; 0 failed" ;;
    "python3 -m venv "*) mkdir -p "$3/bin" && ln -sf "$STAND_IN" "$3/bin/python" ;;
esac
"#;

/// Calls that only ask whether something is there: a "no" is no failure.
const QUESTIONS: [&str; 2] = ["cargo-deny fetch db", "python3 -c import ensurepip"];

/// A tree with `./test` and nothing that it would really have to build.
struct FrontDoor {
    folder: TempDir,
}

struct Run {
    success: bool,
    output: String,
    /// `STEP PROGRAM ARGUMENTS`
    calls: Vec<String>,
}

impl Run {
    /// The rows of the closing table as `(step, result)`.
    fn rows(&self) -> Vec<(&str, &str)> {
        let rows = self
            .output
            .lines()
            .skip_while(|line| !line.starts_with("step   "))
            .skip(1);
        rows.take_while(|line| !line.contains("tests ran"))
            .map(|line| {
                let (step, rest) = line.split_once(' ').unwrap();
                (step, rest.trim_start().split("  ").next().unwrap())
            })
            .collect()
    }
}

impl FrontDoor {
    fn new() -> Self {
        let door = Self {
            folder: TempDir::new().unwrap(),
        };
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for file in ["test", ".ci/steps.sh"] {
            let target = door.path(file);
            fs::copy(repository.join(file), &target).unwrap();
        }
        for file in [
            "web/package.json",
            "sdk/python/pyproject.toml",
            "sdk/typescript/package.json",
        ] {
            fs::write(door.path(file), "").unwrap();
        }
        let stand_in = door.path("stand-in");
        fs::write(&stand_in, STAND_IN).unwrap();
        fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).unwrap();
        for name in [
            "cargo",
            "cargo-deny",
            "npm",
            "python3",
            "apt-get",
            "sudo",
            "cc",
            "c++",
            "git",
            "chromium",
        ] {
            symlink(&stand_in, door.path(&format!("bin/{name}"))).unwrap();
        }
        for script in [
            "crates/sandbox/tests/install-peers.sh",
            "crates/cli/tests/install-peers.sh",
            "packaging/check",
            "web/check",
        ] {
            symlink(&stand_in, door.path(script)).unwrap();
        }
        door
    }

    fn path(&self, relative: &str) -> PathBuf {
        let path = self.folder.path().join(relative);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    /// Runs `./test` with the call of that number, counted from 1, failing.
    fn run(&self, arguments: &[&str], failing_call: usize) -> Run {
        let calls = self.path("calls");
        fs::write(&calls, "").unwrap();
        let output = Command::new(self.path("test"))
            .args(arguments)
            .env_clear()
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", self.path("bin").display()),
            )
            .env("STAND_IN", self.path("stand-in"))
            .env("CALLS", &calls)
            .env("FAILS", failing_call.to_string())
            .output()
            .unwrap();
        let text = [output.stdout, output.stderr].concat();
        Run {
            success: output.status.success(),
            output: String::from_utf8(text).unwrap(),
            calls: fs::read_to_string(&calls)
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect(),
        }
    }
}

#[test]
fn a_green_run_passes_every_step_and_counts_the_tests() {
    let door = FrontDoor::new();
    let listed = door.run(&["--list"], 0).output;
    let run = door.run(&[], 0);
    let steps: Vec<&str> = run.rows().iter().map(|(step, _)| *step).collect();
    assert_eq!(steps, listed.lines().collect::<Vec<_>>());
    assert!(
        run.rows().iter().all(|(_, result)| *result == "ok"),
        "{}",
        run.output
    );
    assert!(run.output.contains("\n42 tests ran in "), "{}", run.output);
    assert!(
        run.output.ends_with("All steps passed.\n"),
        "{}",
        run.output
    );
    assert!(run.success);
}

#[test]
fn every_failing_command_fails_the_run_and_its_step_alone() {
    let door = FrontDoor::new();
    let green = door.run(&[], 0);
    let steps: Vec<String> = green
        .rows()
        .iter()
        .map(|(step, _)| (*step).to_owned())
        .collect();
    let mut failed = Vec::new();
    for (index, call) in green.calls.iter().enumerate() {
        let (step, command) = call.split_once(' ').unwrap();
        if QUESTIONS
            .iter()
            .any(|question| command.starts_with(question))
        {
            continue;
        }
        let run = FrontDoor::new().run(&[], index + 1);
        assert!(!run.success, "{call}\n{}", run.output);
        assert!(run.output.ends_with("FAILED\n"), "{call}\n{}", run.output);
        let at = steps.iter().position(|s| s == step).unwrap();
        for (i, (name, result)) in run.rows().into_iter().enumerate() {
            let wanted = match i {
                _ if i == at => "FAILED",
                // Without a build there is nothing to test.
                _ if i > at && step == "build" => "not run",
                _ => "ok",
            };
            assert_eq!(
                (name, result),
                (steps[i].as_str(), wanted),
                "{call}\n{}",
                run.output
            );
        }
        failed.push(step);
    }
    failed.dedup();
    assert_eq!(failed, steps, "every step calls something that can fail");
}

#[test]
fn one_step_can_be_run_alone() {
    let door = FrontDoor::new();
    let run = door.run(&["--only", "clippy"], 0);
    assert_eq!(run.rows(), [("clippy", "ok")]);
    assert_eq!(
        run.calls,
        [
            "clippy cargo clippy --workspace --all-targets --locked -- -D warnings",
            "clippy cargo check --locked"
        ]
    );
    assert!(run.success);
    assert!(!door.run(&["--only", "clippy"], 1).success);
}

#[test]
fn an_unknown_step_is_refused() {
    let run = FrontDoor::new().run(&["--only", "clipy"], 0);
    assert!(
        !run.success && run.output.contains("No step is called 'clipy'"),
        "{}",
        run.output
    );
    assert!(run.calls.is_empty());
}
