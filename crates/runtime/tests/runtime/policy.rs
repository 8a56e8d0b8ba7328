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
        // What text becomes when it is computed with.
        "x='a[$(forbidden)]'; : $((x))",
        "x='a[`forbidden`]'; : $((x))",
        "x='a[$'; x+='(forbidden)]'; : $((x))",
        "x='a[$(forbidden)]'; (( x ))",
        "x='a[$(forbidden)]'; : ${!x}",
        "x='$(forbidden)'; : ${x@P}",
        "[[ -v 'a[$(forbidden)]' ]]",
        "test -v 'a[$(forbidden)]'",
        "printf -v 'a[$(forbidden)]' x",
        "read 'a[$(forbidden)]' <<< x",
        "declare -a a; unset 'a[$(forbidden)]'",
        "let 'a[$(forbidden)]=1'",
        "declare 'a[$(forbidden)]=1'",
        "for x in 'a[$(forbidden)]'; do : $((x)); done",
        "set -- 'a[$(forbidden)]'; : $(($1))",
        "bash -c ': $(($1))' _ 'a[$(forbidden)]'",
        "a[1 + 1]=5 forbidden",
        "declare -A a; a[x # y]=1; forbidden",
        // Names that come to mean something else.
        "BASH_CMDS[ls]=$(command -v forbidden); ls",
        "hash -p \"$(command -v forbidden)\" ls; ls",
        "alias ls=forbidden\nls",
        "PATH=$PATH; alias ls=forbidden\nls",
        "shopt -s expand_aliases; BASH_ALIASES[ls]=forbidden\nls",
        "set -o history -o histexpand\n: forbidden\n!!:1",
        // Shells, builtins and what is read as a script.
        "eval -- forbidden",
        "eval -- 'forbidden x'",
        "bash -c -o errexit 'forbidden'",
        "bash -co errexit 'forbidden'",
        "bash -oc errexit 'forbidden'",
        "bash -c -- '-x; forbidden' ls",
        "bash -c - 'forbidden' ls",
        "echo forbidden | sh -es x",
        "echo forbidden | sh /dev/../dev/stdin",
        "echo forbidden | . /dev/./stdin",
        "echo forbidden | sh ../../../../../../../dev/stdin",
        "jobs -x forbidden",
        "x=-exec; find . -maxdepth 0 $x forbidden ';'",
        "x=-exec; find . -maxdepth 0 \"$x\" forbidden ';'",
        "x='-exec forbidden ;'; find . -maxdepth 0 $x",
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

#[test]
fn no_program_runs_a_denied_command_that_its_words_tell_it() {
    let place = Place::new();
    let shell = Path::new("/bin/sh");
    for (program, line) in [
        ("awk", "awk 'BEGIN { system(\"forbidden\") }'"),
        ("awk", "awk 'BEGIN { \"forbidden\" | getline }'"),
        ("awk", "awk 'BEGIN { print 1 | \"forbidden\" }'"),
        (
            "awk",
            "echo x | awk -F : -v a=b '{ system(\"forbidden\") }'",
        ),
        ("sed", "echo x | sed '1e forbidden'"),
        ("sed", "echo forbidden | sed 's/x/y/;e'"),
        ("sed", "echo forbidden | sed -n 's/forb/&/e'"),
        ("sed", "echo x | sed -e p -e '1{e forbidden\n}'"),
        ("perl", "perl -e 'system q(forbidden)'"),
        ("perl", "echo x | perl -lne 'system q(forbidden)'"),
        ("perl", "echo 'system q(forbidden)' | perl"),
        ("perl", "perl -w -Mstrict -e 'exec q(forbidden)'"),
        (
            "python3",
            "python3 -c 'import os; os.system(\"forbidden\")'",
        ),
        (
            "python3",
            "echo 'import os; os.system(\"forbidden\")' | python3",
        ),
        (
            "python3",
            "echo 'import os; os.system(\"forbidden\")' | python3 - x",
        ),
        (
            "python3",
            "python3 -Bc 'import os; os.system(\"forbidden\")'",
        ),
        (
            "python3",
            "python3 -m timeit -n 1 -r 1 'import os; os.system(\"forbidden\")'",
        ),
        (
            "node",
            "node -e 'require(\"child_process\").execSync(\"forbidden\")'",
        ),
        (
            "node",
            "node --eval='require(\"child_process\").execSync(\"forbidden\")'",
        ),
        (
            "node",
            "node -r fs -p 'require(\"child_process\").execSync(\"forbidden\")'",
        ),
        ("lua", "lua -e 'os.execute(\"forbidden\")'"),
        ("git", "git -c alias.x='!forbidden' x"),
        (
            "git",
            "git --config-env=alias.x=X x; X='!forbidden' git --config-env=alias.x=X x",
        ),
        ("make", "make SHELL=forbidden -f /dev/null --eval='x:;:' x"),
        ("make", "make --eval='x:;forbidden' x"),
        ("make", "echo 'x:;forbidden' | make -f - x"),
        ("make", "make -f /dev/null --eval='x:;$(Y)' Y='forbidden x'"),
        (
            "tar",
            "tar cf /dev/null --checkpoint=1 --checkpoint-action=exec=forbidden .",
        ),
        (
            "tar",
            "tar cf /dev/null --checkpoint=1 --checkpoint-act=exec=forbidden .",
        ),
        ("tar", "tar cIf forbidden x.tar ."),
        ("tar", "tar -I forbidden -cf x.tar ."),
        (
            "sort",
            "sort -S 1b --compress-prog=forbidden /usr/share/dict/words /etc/services",
        ),
        ("split", "echo x | split --filter=forbidden"),
        ("rsync", "rsync -ae forbidden . x:y"),
        ("zip", "zip -q x.zip /etc/hostname -T -TT forbidden"),
        ("vim", "vim -es -c '!forbidden' -c q"),
        ("ed", "printf '!forbidden\\nq\\n' | ed"),
        ("sqlite3", "sqlite3 :memory: '.shell forbidden'"),
        ("sqlite3", "echo .shell forbidden | sqlite3 :memory:"),
        ("flock", "flock . forbidden"),
        ("script", "script -qc forbidden /dev/null"),
        ("setpriv", "setpriv forbidden"),
        ("chrt", "chrt -o 0 forbidden"),
    ] {
        let verdict = verdict(line);
        assert_ne!(
            verdict.decision.action,
            Action::Allow,
            "{line:?}: {verdict:?}"
        );
        let is_here = ["/usr/bin", "/bin"].map(|folder| Path::new(folder).join(program).exists());
        if is_here.contains(&true) && !place.runs(shell, line) {
            eprintln!("it is refused, and runs nothing here: {line:?}");
        }
    }
}

/// What people run all day is not asked about because of a rule for another command.
#[test]
fn ordinary_lines_are_not_asked_about() {
    for line in [
        "awk '{ print $1 }' file",
        "awk -F, '$2 > 3 || $1 == \"x\" { n++ } END { print n }' file.csv",
        "sed -n '1,20p' file",
        "sed -i 's/a/b/g; s|x|y|' src/*.rs",
        "python3 script.py --flag",
        "python3 -B -W error script.py",
        "python3 -m pytest -q tests",
        "node index.js -e x",
        "perl script.pl",
        "git status",
        "git -C sub log --oneline -5",
        "git commit -m \"$msg\"",
        "git config user.name x",
        "make -j4 test PREFIX=/usr",
        "tar czf out.tgz src",
        "tar xf in.tar -C out",
        "find . -name '*.rs' -newer x",
        "find \"$dir\" -type f",
        "docker ps",
        "npm run build",
        "npx tsc --noEmit",
        "poetry run pytest",
        "cargo test --all",
        "command -v forbidden",
        "sqlite3 x.db 'select * from t'",
        "sort -u file | uniq -c",
        "rsync -av a/ b/",
        "i=0; while [ $i -lt 3 ]; do i=$((i + 1)); done",
        "n=$(wc -l < file); echo $((n - 1))",
        "for f in *.txt; do wc -l \"$f\"; done",
        "X='a b' make",
    ] {
        let verdict = verdict(line);
        assert_eq!(
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
