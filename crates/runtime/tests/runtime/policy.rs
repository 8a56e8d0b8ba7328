//! The policy's reading of shell lines, against shells.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use quintet_runtime::policy::{
    Action, CommandPattern, Isolation, Request, Rule, Subject, Verdict, decide,
};

/// A folder with a program `forbidden` that leaves a mark where it runs.
struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("bin/forbidden");
        for name in ["bin", "work"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        std::fs::write(&program, "#!/bin/sh\n: > \"$MARK\"\n").expect("a program");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
            .expect("its mode");
        Self { folder }
    }

    /// Whether a shell that is given the line runs the program.
    fn runs(&self, shell: &Path, line: &str) -> bool {
        let folder = self.folder.path();
        let mark = folder.join("mark");
        let _ = std::fs::remove_file(&mark);
        let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
        Command::new("timeout")
            .arg("10")
            .arg(shell)
            .args(["-c", line])
            .current_dir(folder.join("work"))
            .env_clear()
            .envs([("PATH", path.as_str()), ("LC_ALL", "C.UTF-8")])
            .env("MARK", &mark)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .expect("a shell");
        mark.exists()
    }
}

/// The shells of this machine whose readings differ.
fn shells() -> Vec<PathBuf> {
    let known = ["/bin/sh", "/bin/dash", "/bin/bash"];
    let known = known.iter().map(PathBuf::from);
    known.filter(|shell| shell.exists()).collect()
}

fn verdict(line: &str) -> Verdict {
    let deny = Rule {
        command: Some(CommandPattern::parse("forbidden").expect("a pattern")),
        ..Rule::new(Action::Deny)
    };
    let request = Request {
        tool: "exec",
        agent: "coder",
        session: 1,
        worker: "box",
        subject: Subject::Command {
            line,
            root: "/work/space",
            copy: None,
            cwd: "",
            isolation: Isolation::Isolated,
        },
    };
    decide(&[deny], &request)
}

#[test]
fn no_shell_runs_a_denied_command_that_is_not_seen() {
    let place = Place::new();
    let shells = shells();
    for line in [
        "echo a\r#; forbidden",
        "echo \"${x:-'}\"; forbidden; echo \"'}\"",
        "echo ${x:-$'\\''}; forbidden; echo '}'\\'",
        "echo $'\\'; forbidden; echo \"'\" #\"",
        "(( x = 5 # y )); forbidden\n))",
        "(( x = 1 << 2 ))\nforbidden\n2",
        "cat <<EOF\nEO\\\nF\nforbidden\nEOF",
        "cat <<EOF\n\\\nEOF\nforbidden\nEOF",
        "cat <<E\\\nOF\n$(forbidden)\nEOF",
        "cat <<A $(cat <<B\nB\nforbidden\n)\nA",
        "{fd}>/dev/null forbidden",
        "a[0]=1 forbidden",
        "a[x]+=1 forbidden",
        "set -- 1; for x do forbidden; done",
        "echo \"`: \"\\\" ; forbidden; : \\\"\"`\"",
        "{forbidden,\"a b\"}",
        "{forbidden,$(echo a b)}",
        "if :; th\\\nen forbidden; fi",
        "X\\\nY=1 forbidden",
        "echo \"$\\\n(forbidden)\"",
        "echo ${x:-<(forbidden)}; sleep 0.1",
        "time -p forbidden",
        "time -p -- forbidden",
        "time forbidden",
        "trap forbidden EXIT",
        "echo forbidden | sh /dev/stdin",
        "echo forbidden | . /dev/stdin",
        ". <(echo forbidden)",
        "echo x | xargs -I % sh -c forbidden",
        "echo forbidden | xargs -I % sh -c %",
        "echo forbidden | xargs -I% sh -c %",
        "echo forbidden | xargs --replace=% sh -c %",
        "echo forbidden | xargs -0I % sh -c %",
        "echo x | xargs -0n 1 forbidden",
        "echo x | xargs --replace forbidden",
        "echo x | xargs --max-a 1 forbidden",
        "echo x | xargs --process-slot-var X forbidden",
        "env --split 'forbidden'",
        "timeout -vk 5 10 forbidden",
        "timeout --kill 5 10 forbidden",
        "nice -5 forbidden",
        "$(dirname $(command -v forbidden))/f?rbidden",
        "$PWD/../bin/f*",
        "../bin/f*",
        "../bin/forbid[d]en",
        "for PATH in $PATH; do forbidden; done",
        "echo $[ 1 ]; forbidden",
        "\\\nforbidden",
        "for\\\nbidden",
        "f\"or\"'bidden'",
        "mapfile -C forbidden -c 1 <<< x",
        "x=forbidden; $x",
        "x=forbidden; ${x}",
        "coproc forbidden; sleep 0.1",
        "[[ 1 -lt 2 ]] && forbidden",
        "(echo a) && (forbidden)",
        "while forbidden; do break; done",
        "until forbidden; do break; done",
        "case a in a) forbidden;; esac",
        "f() { forbidden; }; f",
        "! forbidden",
        "if ! forbidden; then :; fi",
        "exec forbidden",
        "builtin command forbidden",
        "setsid -w forbidden",
        "stdbuf -oL forbidden",
        "stdbuf -o L forbidden",
        "echo `echo \\`forbidden\\``",
        "echo \"$(echo \"$(forbidden)\")\"",
        "cat <<EOF\n`forbidden`\nEOF",
        "cat <<-EOF\n\t$(forbidden)\n\tEOF",
        "cat <<'EOF'\nx\nEOF\nforbidden",
        "cat <<\\EOF\nx\\\nEOF\nforbidden",
        "env =x forbidden",
        "\"$x\"env forbidden",
        ": &>/dev/null forbidden x",
    ] {
        let ran = shells.iter().any(|shell| place.runs(shell, line));
        assert!(ran, "no shell runs it, so it proves nothing: {line:?}");
        let verdict = verdict(line);
        assert_ne!(
            verdict.decision.action,
            Action::Allow,
            "{line:?}: {verdict:?}"
        );
    }
}

/// Pieces of lines that quote, open, close and end what is around them.
const PIECES: [&str; 62] = [
    "'",
    "\"",
    "`",
    "\\",
    "\n",
    "\\\n",
    " ",
    "\t",
    "\r",
    ";",
    "&",
    "&&",
    "|",
    "||",
    "(",
    ")",
    "((",
    "))",
    "{ ",
    "; }",
    "$",
    "$(",
    "${x",
    "${x:-",
    "$((",
    "#",
    " #",
    "<",
    ">",
    "<<E",
    "<<'E'",
    "\nE\n",
    "<(",
    "<<<",
    "&>",
    "2>",
    "{",
    "}",
    ",",
    "a",
    "x=",
    "a[0]=",
    "=",
    ":",
    "if ",
    "then ",
    "fi",
    "for x in a",
    "do ",
    "done",
    "time ",
    "! ",
    "-p ",
    "eval ",
    "sh -c ",
    "trap ",
    "env ",
    "xargs ",
    "timeout 5 ",
    "set -- 1;",
    "forbidden",
    "\nforbidden\n",
];

#[test]
fn what_is_put_together_from_pieces_hides_nothing() {
    let place = Place::new();
    let shells = shells();
    let mut runner = TestRunner::new(Config {
        cases: 2000,
        rng_seed: RngSeed::Fixed(7),
        failure_persistence: None,
        ..Config::default()
    });
    let pieces = || prop::collection::vec(prop::sample::select(PIECES.to_vec()), 0..6);
    let result = runner.run(&(pieces(), pieces()), |(before, after)| {
        let line = format!("{}forbidden{}", before.concat(), after.concat());
        if verdict(&line).decision.action == Action::Allow {
            for shell in &shells {
                prop_assert!(!place.runs(shell, &line), "{} {line:?}", shell.display());
            }
        }
        Ok(())
    });
    result.unwrap();
}
