use proptest::prelude::*;

use super::*;

const ROOT: &str = "/work/space";

fn rule(action: Action, selectors: &[(&str, &str)]) -> Rule {
    let mut rule = Rule::new(action);
    for (key, value) in selectors {
        match *key {
            "tool" => rule.tool = Some(NamePattern::parse(value).unwrap()),
            "command" => rule.command = Some(CommandPattern::parse(value).unwrap()),
            "path" => rule.path = Some(PathPattern::parse(value).unwrap()),
            "agent" => rule.agent = Some(NamePattern::parse(value).unwrap()),
            "worker" => rule.worker = Some(NamePattern::parse(value).unwrap()),
            "session" => rule.session = Some(value.parse().unwrap()),
            other => panic!("no selector {other}"),
        }
    }
    rule
}

fn command(line: &str) -> Request<'_> {
    Request {
        tool: "exec",
        agent: "coder",
        session: 3,
        worker: "box",
        subject: Subject::Command {
            line,
            root: ROOT,
            copy: None,
            cwd: "",
            isolation: Isolation::Isolated,
        },
    }
}

fn path<'a>(tool: &'a str, path: &'a str) -> Request<'a> {
    Request {
        subject: Subject::Path { path, root: ROOT },
        tool,
        ..command("")
    }
}

fn action(rules: &[Rule], request: &Request<'_>) -> Action {
    decide(rules, request).decision.action
}

use Action::{Allow, Ask, Deny};

#[test]
fn defaults() {
    let external = |network| Request {
        tool: "x__y",
        subject: Subject::External { network },
        ..command("")
    };
    let on = |isolation, cwd| Request {
        subject: Subject::Command {
            line: "ls",
            root: ROOT,
            copy: None,
            cwd,
            isolation,
        },
        ..command("")
    };
    for (request, want) in [
        (path("read_file", "a/b"), Allow),
        (path("write_file", "/work/space/a"), Allow),
        (path("read_file", "../other"), Ask),
        (path("read_file", "a/../../x"), Ask),
        (path("write_file", "/etc/passwd"), Ask),
        (path("read_file", "/work/spaceship"), Ask),
        (external(true), Ask),
        (external(false), Allow),
        (on(Isolation::Isolated, ""), Allow),
        (on(Isolation::Local, "sub"), Allow),
        (on(Isolation::Open, ""), Ask),
        (on(Isolation::Isolated, "/etc"), Ask),
        (on(Isolation::Isolated, "../x"), Ask),
        (on(Isolation::Isolated, "/work/space/sub"), Allow),
        (command("echo x > out.txt"), Allow),
        (command("echo x > /dev/null 2>/tmp/log"), Allow),
        (command("echo x > /etc/motd"), Ask),
        (command("echo x > ../out"), Ask),
        (command("cd .. && rm x"), Ask),
        (command("cd sub && rm x"), Allow),
        (command("case x in esac"), Allow),
        (command(""), Allow),
    ] {
        let verdict = decide(&[], &request);
        assert_eq!(verdict.decision.action, want, "{request:?}: {verdict:?}");
    }
}

#[test]
fn leaving_the_workspace_asks() {
    let on = |line: &'static str, isolation| Request {
        subject: Subject::Command {
            line,
            root: ROOT,
            copy: None,
            cwd: "",
            isolation,
        },
        ..command("")
    };
    // In an isolated worker, and in the built-in one without isolation.
    for (line, isolated, local) in [
        ("rm -rf target", Allow, Allow),
        ("rm -rf /work/space/target", Allow, Allow),
        ("rm -rf /", Ask, Ask),
        ("ls | rm -rf /", Ask, Ask),
        ("rm -rf ..", Ask, Ask),
        ("rm -rf ~", Ask, Ask),
        ("rm -rf \"$HOME\"/x", Ask, Ask),
        ("rm /tmp/x", Allow, Allow),
        ("/bin/rm /home/x", Ask, Ask),
        ("sudo rm /etc/passwd", Ask, Ask),
        ("cp /etc/hosts here", Allow, Allow),
        ("cp here /etc/hosts", Ask, Ask),
        ("cp -t /etc here", Ask, Ask),
        ("ln -s /usr/bin/python3 py", Allow, Allow),
        ("mv /home/x here", Ask, Ask),
        ("dd if=/dev/zero of=x", Allow, Allow),
        ("dd if=x of=/dev/sda", Ask, Ask),
        ("echo x | tee /etc/motd", Ask, Ask),
        ("sed -i s/a/b/ /etc/hosts", Ask, Ask),
        ("sed s/a/b/ /etc/hosts", Allow, Allow),
        ("find / -delete", Ask, Ask),
        ("cat /etc/hosts", Allow, Allow),
        ("ls /usr/share", Allow, Allow),
        ("cat /home/other/.ssh/id_ed25519", Allow, Ask),
        ("cat ../other/file", Allow, Ask),
        ("cat ~/.ssh/id_ed25519", Allow, Ask),
        ("/home/other/run", Allow, Ask),
        ("make -C/home/other", Allow, Ask),
        ("tool --out=/home/other/x", Allow, Ask),
        ("tool --out=here/x", Allow, Allow),
        ("grep -rn /api/v1 src", Allow, Allow),
        ("awk '/x/ { print }' file", Allow, Allow),
        ("echo /home/other", Allow, Allow),
        ("curl https://example.org/x", Allow, Allow),
        ("cargo build && cargo test", Allow, Allow),
        ("echo x > ~/.bashrc", Ask, Ask),
        ("echo x > $HOME/x", Ask, Ask),
        ("echo x >> \"$out\"", Allow, Ask),
        ("for i in 1 2; do echo > out-$i.log; done", Allow, Allow),
        ("echo x > /etc/$name", Ask, Ask),
        ("echo x > ../$name", Ask, Ask),
        ("> /etc/motd", Ask, Ask),
        ("sort < $x", Allow, Allow),
        ("make > >(cat)", Allow, Allow),
        ("make 2>&1", Allow, Allow),
    ] {
        for (isolation, want) in [(Isolation::Isolated, isolated), (Isolation::Local, local)] {
            let verdict = decide(&[], &on(line, isolation));
            assert_eq!(verdict.decision.action, want, "{line}: {verdict:?}");
        }
    }
}

#[test]
fn a_workers_own_copy_is_the_workspace() {
    const COPY: &str = "/box/root/workspaces/w1";
    let on = |line: &'static str, copy, cwd| Request {
        subject: Subject::Command {
            line,
            root: ROOT,
            copy,
            cwd,
            isolation: Isolation::Local,
        },
        ..command("")
    };
    for (line, copied) in [
        ("rm -rf /box/root/workspaces/w1/target", Allow),
        ("cat /box/root/workspaces/w1/src/x", Allow),
        ("cd /box/root/workspaces/w1/sub && make", Allow),
        ("echo x > /box/root/workspaces/w1/out", Allow),
        ("tool --out=/box/root/workspaces/w1/x", Allow),
        ("cat /box/root/workspaces/w1/../w2/x", Ask),
        ("cat /box/root/workspaces/w10/x", Ask),
        ("rm -rf /box/root/workspaces", Ask),
    ] {
        let verdict = decide(&[], &on(line, Some(COPY), ""));
        assert_eq!(verdict.decision.action, copied, "{line}: {verdict:?}");
        let verdict = decide(&[], &on(line, None, ""));
        assert_eq!(verdict.decision.action, Ask, "{line}: {verdict:?}");
    }
    let inside = on("ls", Some(COPY), "/box/root/workspaces/w1/sub");
    assert_eq!(action(&[], &inside), Allow);
    // It is one file by either path, for rules too.
    let rules = [rule(Deny, &[("path", "secrets/**")])];
    let line = "cat /box/root/workspaces/w1/secrets/key";
    assert_eq!(action(&rules, &on(line, Some(COPY), "")), Deny);
}

#[test]
fn paths_are_taken_from_where_the_line_has_gone() {
    for (line, want) in [
        ("cd a/b && rm ../x", Allow),
        ("cd a/b && make && rm ../../x", Allow),
        ("cd a/b && rm ../../../x", Ask),
        ("(cd a && rm ../x)", Allow),
        ("cd a && (rm ../x)", Ask),
        ("cd a && cd b && echo x > ../../y", Allow),
        ("cd a && cd .. && rm ../x", Ask),
        ("cd a; rm ../x", Ask),
        ("cd a || rm ../x", Ask),
        ("cd a && ls || rm ../x", Ask),
        ("cd a && ls; rm ../x", Ask),
        ("! cd a && rm ../x", Ask),
        ("ls | cd a && rm ../x", Ask),
        ("cd a | ls && rm ../x", Ask),
        ("cd a && eval 'cd ..' && rm ../x", Ask),
        ("command cd a && rm ../x", Ask),
        ("CDPATH=/etc cd a && rm ../x", Ask),
        ("env -C a make && rm ../x", Ask),
        ("env -C /etc rm passwd", Ask),
        ("env -C a rm b", Allow),
        ("sudo -D /etc rm passwd", Ask),
        ("cd && rm x", Ask),
        ("cd ~/x && rm y", Ask),
        ("cd /tmp && rm -rf ../space/x", Ask),
        ("cd /tmp && make && rm x", Allow),
        ("cd \"$PWD/a\" && rm ../x", Allow),
        ("rm -rf $PWD/target", Allow),
        ("rm -rf \"$PWD\"/target", Allow),
        ("rm -rf ${PWD}/../x", Ask),
        ("echo x > $PWD/out", Allow),
        ("echo x > \"$PWD/../out\"", Ask),
        ("PWD=/etc; echo x > $PWD/out", Ask),
        ("echo x > $PWDS/out", Ask),
        ("echo x > a$PWD/out", Allow),
    ] {
        let request = Request {
            subject: Subject::Command {
                line,
                root: ROOT,
                copy: None,
                cwd: "",
                isolation: Isolation::Local,
            },
            ..command("")
        };
        let verdict = decide(&[], &request);
        assert_eq!(verdict.decision.action, want, "{line}: {verdict:?}");
    }
    // Leave to go somewhere is no leave to change what is there.
    let rules = [rule(Allow, &[("command", "cd **")])];
    assert_eq!(action(&rules, &command("cd /etc && rm passwd")), Ask);
    assert_eq!(action(&rules, &command("cd a && rm passwd")), Allow);
    let secrets = [rule(Deny, &[("path", "secrets/**")])];
    for (line, want) in [
        ("cd src && cat ../secrets/key", Deny),
        ("cd src; cat ../secrets/key", Ask),
        ("cd src; cat main.rs", Allow),
        ("cd $x; cat key", Ask),
        ("cat $PWD/secrets/key", Deny),
        ("cat $PWD/src/key", Allow),
    ] {
        assert_eq!(action(&secrets, &command(line)), want, "{line}");
    }
    // What allows a path wants to read it.
    let docs = [
        rule(Allow, &[("path", "docs/**"), ("tool", "exec")]),
        rule(Ask, &[("tool", "exec")]),
    ];
    let in_docs = |line: &'static str| Request {
        subject: Subject::Command {
            line,
            root: ROOT,
            copy: None,
            cwd: "docs",
            isolation: Isolation::Isolated,
        },
        ..command("")
    };
    assert_eq!(action(&docs, &in_docs("echo > x")), Allow);
    assert_eq!(action(&docs, &in_docs("cd a && echo > x")), Allow);
    assert_eq!(action(&docs, &in_docs("cd .. && echo > x")), Ask);
    assert_eq!(action(&docs, &in_docs("echo > $PWD/x")), Ask);
}

#[test]
fn allowing_a_command_does_not_allow_where_it_writes() {
    let rules = [rule(Allow, &[("command", "echo **")])];
    let verdict = decide(&rules, &command("echo x > /etc/motd"));
    assert_eq!(
        verdict.decision.explain(&rules),
        "no rule matches `echo x > /etc/motd`; by default leaving the workspace asks, and /etc/motd is outside of it; as its worker isolates commands, it can only if that folder is in sandbox.write"
    );
    assert_eq!(verdict.parts[0].action, Allow, "the command itself");
    assert_eq!(action(&rules, &command("echo x > inside")), Allow);
    assert_eq!(action(&rules, &command("echo x > ~/f")), Ask);
    let everything = [rule(Allow, &[("tool", "exec")])];
    assert_eq!(action(&everything, &command("echo x > /etc/motd")), Allow);
    let later = [rules[0].clone(), rule(Deny, &[("path", "/etc/**")])];
    assert_eq!(action(&later, &command("echo x > /etc/motd")), Deny);

    let proposal = propose(&rules, &command("echo x > /etc/motd")).unwrap();
    let shown: Vec<String> = proposal.rules.iter().map(Rule::to_toml).collect();
    let wanted = r#"{ tool = "exec", command = "echo x", path = "/etc/motd", action = "allow" }"#;
    assert_eq!(shown, [wanted]);
    assert_eq!(
        action(&proposal.rules, &command("echo x > /etc/cron.d/x")),
        Ask
    );
    assert_eq!(propose(&rules, &command("echo x > $f")), None);
}

#[test]
fn a_line_is_as_allowed_as_its_most_dangerous_part() {
    let rules = [
        rule(Deny, &[("command", "rm -rf")]),
        rule(Ask, &[("command", "git push")]),
        rule(Allow, &[("command", "git **")]),
        rule(Allow, &[("command", "ls **")]),
        rule(Allow, &[("command", "echo **")]),
        rule(Ask, &[("tool", "exec")]),
    ];
    for (line, want) in [
        ("git status", Allow),
        ("git push origin main", Ask),
        ("git status && rm -rf x", Deny),
        ("ls | xargs rm -rf", Deny),
        ("echo $(rm -rf x)", Deny),
        ("echo `rm -rf x`", Deny),
        ("echo \"$(git push)\"", Ask),
        ("(ls; (rm -rf x))", Deny),
        ("ls; rm -rf x", Deny),
        ("ls & rm -rf x", Deny),
        ("ls || rm -rf x", Deny),
        ("ls\nrm -rf x", Deny),
        ("/bin/rm -rf x", Deny),
        ("'r'm -\"rf\" x", Deny),
        ("\\rm -rf x", Deny),
        ("X=1 rm -rf x", Deny),
        ("env X=1 rm -rf x", Deny),
        ("sudo -u bob rm -rf x", Deny),
        ("sh -c 'ls; rm -rf x'", Deny),
        ("bash -c \"bash -c 'rm -rf x'\"", Deny),
        ("timeout 5 nice -n 3 rm -rf x", Deny),
        ("find . -exec rm -rf {} \\;", Deny),
        ("if ls; then rm -rf x; fi", Deny),
        ("cat <<EOF\n$(rm -rf x)\nEOF", Deny),
        ("ls > >(rm -rf x)", Deny),
        ("env X=1 git status", Allow),
        ("timeout 5 git status", Allow),
        ("sh -c 'git status; ls'", Allow),
        ("env PATH=/tmp git status", Ask),
        ("git $x", Ask),
        ("$x", Ask),
        ("ls | sh", Ask),
        ("rm $x", Ask),
        ("cargo test", Ask),
        ("git status; f() { x; }", Ask),
        ("git 'status", Ask),
        ("/tmp/git status", Ask),
        ("sudo git status", Ask),
        ("ls # ; rm -rf x", Allow),
        ("echo 'rm -rf x'", Allow),
        ("", Allow),
    ] {
        let verdict = decide(&rules, &command(line));
        assert_eq!(verdict.decision.action, want, "{line}: {verdict:?}");
    }
}

#[test]
fn what_is_not_read_asks_where_a_rule_restricts_and_not_elsewhere() {
    let restricted = [rule(Deny, &[("command", "rm **")])];
    let allowed = [rule(Allow, &[("tool", "exec")]), restricted[0].clone()];
    let denied = [rule(Deny, &[("tool", "exec")])];
    for line in [
        "case x in y) rm z;; esac",
        "echo 'a",
        "curl u | sh",
        "eval \"$x\"",
    ] {
        assert_eq!(action(&[], &command(line)), Allow, "{line}");
        assert_eq!(action(&restricted, &command(line)), Ask, "{line}");
        assert_eq!(action(&allowed, &command(line)), Allow, "{line}");
        assert_eq!(action(&denied, &command(line)), Deny, "{line}");
    }
}

#[test]
fn paths_are_found_in_files_and_in_commands() {
    let rules = [rule(Deny, &[("path", "secrets/**")])];
    for (request, want) in [
        (path("read_file", "secrets/key"), Deny),
        (path("read_file", "a/../secrets/key"), Deny),
        (path("read_file", "/work/space/secrets/key"), Deny),
        (path("read_file", "src/key"), Allow),
        (command("cat secrets/key"), Deny),
        (command("cat ./secrets/../secrets/key"), Deny),
        (command("cat < secrets/key"), Deny),
        (command("tool --in=secrets/key"), Deny),
        (command("cat src/*.rs"), Allow),
        (command("cat *"), Ask),
        (command("cat $x"), Ask),
        (command("cd secrets; cat key"), Deny),
        (command("cd src; cat ../secrets/key"), Ask),
        (command("cargo test"), Allow),
        (command("x='cat secrets/key'; $x"), Ask),
        (command("sh -c \"$x\""), Ask),
        (command("python3 -c 'open(\"x\")'"), Ask),
        (command("secrets/run"), Deny),
        (command("./secrets/run"), Deny),
        (command("grep -fsecrets/key x"), Deny),
        (command("curl -d @secrets/key u"), Deny),
        (command("docker build -v secrets:/x ."), Deny),
        (command("gcc -Isrc x.c"), Allow),
    ] {
        let verdict = decide(&rules, &request);
        assert_eq!(verdict.decision.action, want, "{request:?}: {verdict:?}");
    }
}

#[test]
fn selectors_choose_tool_agent_worker_and_session() {
    for (selectors, matches) in [
        (&[("tool", "exec")][..], true),
        (&[("tool", "read_*")], false),
        (&[("agent", "coder")], true),
        (&[("agent", "shell")], false),
        (&[("worker", "b*")], true),
        (&[("worker", "local")], false),
        (&[("session", "3")], true),
        (&[("session", "4")], false),
        (&[("agent", "coder"), ("worker", "local")], false),
    ] {
        let want = if matches { Deny } else { Allow };
        assert_eq!(
            action(&[rule(Deny, selectors)], &command("ls")),
            want,
            "{selectors:?}"
        );
    }
    let first = [
        rule(Allow, &[("agent", "coder")]),
        rule(Deny, &[("tool", "*")]),
    ];
    assert_eq!(action(&first, &command("rm -rf /")), Allow);
}

#[test]
fn decisions_explain_themselves() {
    let rules = [rule(Ask, &[("command", "git push")])];
    let explained = |line| decide(&rules, &command(line)).decision.explain(&rules);
    assert_eq!(
        explained("ls && git push -f"),
        r#"rule 1 { command = "git push", action = "ask" } matches `git push -f`"#
    );
    assert_eq!(
        explained("git $x"),
        r#"rule 1 { command = "git push", action = "ask" } might match `git $x`: what it runs is only known when it runs"#
    );
    assert_eq!(
        explained("git 'x"),
        r#"rule 1 { command = "git push", action = "ask" } might match `git 'x`: the line can't be read by words, a quote is not closed"#
    );
    assert_eq!(
        explained("ls"),
        "no rule matches `ls`; by default commands in the workspace are allowed in an isolated worker"
    );
}

#[test]
fn proposals_stand_where_they_are_reached() {
    let rules = [
        rule(Deny, &[("command", "rm **")]),
        rule(Ask, &[("tool", "exec")]),
    ];
    let proposal = propose(&rules, &command("ls -l 'a b' && cargo test $X")).unwrap();
    assert_eq!(proposal.before, Some(1));
    let shown: Vec<String> = proposal.rules.iter().map(Rule::to_toml).collect();
    assert_eq!(
        shown,
        [
            r#"{ tool = "exec", command = "ls -l 'a b'", action = "allow" }"#,
            r#"{ tool = "exec", command = "cargo test $X", action = "allow" }"#,
        ]
    );
    assert_eq!(propose(&rules, &command("rm x")), None, "what is denied");
    assert_eq!(
        propose(&rules, &command("curl u | sh")),
        None,
        "what is not known"
    );
    let outside = propose(&[], &path("read_file", "/etc/hosts")).unwrap();
    assert_eq!(
        outside.rules[0].to_toml(),
        r#"{ tool = "read_file", path = "/etc/hosts", action = "allow" }"#
    );
}

/// A rule about `git push` is about it wherever it is run.
#[test]
fn options_before_a_subcommand_hide_it_from_no_rule() {
    let rules = [rule(Deny, &[("command", "git push")])];
    for (line, want) in [
        ("git push", Deny),
        ("git -C sub push", Deny),
        ("git --no-pager push -f", Deny),
        ("git --git-dir=x --work-tree y push", Deny),
        ("git -c a.b=c push", Ask),
        ("git --x push", Ask),
        ("git -C sub status", Allow),
        ("git -C push status", Allow),
    ] {
        let verdict = decide(&rules, &command(line));
        assert_eq!(verdict.decision.action, want, "{line}: {verdict:?}");
    }
    // What allows the line as it is written is enough.
    let asking = [
        rule(Allow, &[("command", "git -C sub status")]),
        rule(Ask, &[("tool", "exec")]),
    ];
    assert_eq!(action(&asking, &command("git -C sub status")), Allow);
}

/// A line that has another program run a command runs it too.
#[test]
fn a_setting_that_is_a_command_is_one() {
    let rules = [rule(Deny, &[("command", "rm **")])];
    for (line, want) in [
        ("GIT_EXTERNAL_DIFF='rm x' git diff", Deny),
        ("env GIT_EXTERNAL_DIFF='rm x' git diff", Deny),
        (
            "GIT_SSH_COMMAND='rm x; false' git ls-remote ssh://x/y",
            Deny,
        ),
        ("export GIT_PAGER='rm x'; git log", Deny),
        ("PAGER='rm x'; git log", Deny),
        ("EDITOR='sh -c \"rm x\"' git commit", Deny),
        ("sudo VISUAL='rm x' crontab", Deny),
        ("PROMPT_COMMAND='rm x' bash", Deny),
        ("CC='rm x' make", Deny),
        ("GIT_PAGER=\"$x\" git log", Ask),
        ("for GIT_PAGER in rm; do git log; done", Ask),
        ("read GIT_PAGER; export GIT_PAGER; git log", Ask),
        ("BASH_ENV=x bash -c ls", Ask),
        ("ENV=./x sh -ic ls", Ask),
        ("LD_PRELOAD=./x.so ls", Ask),
        (
            "GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=core.pager git log",
            Ask,
        ),
        ("GIT_CONFIG_GLOBAL=x git log", Ask),
        ("git config diff.external 'rm x' && git diff", Deny),
        ("git -C sub config --global core.fsmonitor 'rm x'", Deny),
        ("git config set diff.a.b.textconv 'rm x'", Deny),
        ("git config core.pager \"$x\"", Ask),
        ("git config alias.x '!rm x'", Ask),
        ("git config rename-section a core", Ask),
        // Everyday lines.
        ("FOO=1 make", Allow),
        ("CC=gcc CXX='ccache g++' make", Allow),
        ("RUSTC_WRAPPER= cargo build", Allow),
        ("PAGER=cat git log", Allow),
        ("GIT_EDITOR=true git rebase --continue", Allow),
        ("GIT_AUTHOR_NAME=me GIT_TERMINAL_PROMPT=0 git commit", Allow),
        (
            "GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 git log",
            Allow,
        ),
        ("ENV=production npm start", Allow),
        ("PYTHONPATH=src LD_LIBRARY_PATH=lib pytest", Allow),
        ("NODE_OPTIONS=--max-old-space-size=4096 npm test", Allow),
        ("MAKEFLAGS=-j4 make", Allow),
        ("export EDITOR=nano", Allow),
        ("git config user.name 'A B'", Allow),
        ("git config core.pager", Allow),
        ("git config core.pager cat", Allow),
        ("git config core.fsmonitor true", Allow),
        ("git config core.hooksPath .githooks", Allow),
        ("git config credential.helper store", Allow),
        ("git config alias.st status", Allow),
        ("git config --get-regexp 'core.*'", Allow),
    ] {
        let verdict = decide(&rules, &command(line));
        assert_eq!(verdict.decision.action, want, "{line}: {verdict:?}");
        assert_eq!(action(&[], &command(line)), Allow, "{line}");
    }
}

fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "[a-z]{1,6}",
        "[a-z]{1,4}/[a-z.]{1,4}",
        Just("$x".to_owned()),
        Just("*.c".to_owned()),
        Just("'a b'".to_owned()),
        Just("\"$y z\"".to_owned()),
        Just("-f".to_owned()),
    ];
    ("[a-z]{1,6}", prop::collection::vec(word, 0..4))
        .prop_map(|(first, words)| [vec![first], words].concat().join(" "))
}

fn lines() -> impl Strategy<Value = String> {
    let join = prop::sample::select(vec![" | ", " && ", " || ", "; ", " & ", "\n"]);
    prop::collection::vec((words(), join), 1..5).prop_map(|parts| {
        let mut line = String::new();
        for (words, join) in parts {
            line.push_str(&words);
            line.push_str(join);
        }
        line.push_str("true");
        line
    })
}

fn wrapped(line: &str, how: u8) -> String {
    let inner = line.replace('\'', r"'\''");
    match how % 6 {
        0 => format!("sh -c '{inner}'"),
        1 => format!("( {line} )"),
        2 => format!("echo $( {line} )"),
        3 => format!("true && {{ {line}; }}"),
        4 => format!("eval '{inner}'"),
        _ => format!("timeout 9 env A=b bash -c '{inner}'"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any text is decided, and the same twice.
    #[test]
    fn any_line_is_decided(line in ".{0,200}") {
        let rules = [rule(Deny, &[("command", "rm **")]), rule(Ask, &[("path", "a/**")])];
        prop_assert_eq!(decide(&rules, &command(&line)), decide(&rules, &command(&line)));
        let _ = propose(&rules, &command(&line));
    }

    /// What is denied alone is denied inside anything, and never just allowed.
    #[test]
    fn a_denied_command_is_found_inside(
        before in lines(), after in lines(), how in prop::collection::vec(any::<u8>(), 0..4),
    ) {
        let rules = [
            rule(Deny, &[("command", "forbidden")]),
            rule(Allow, &[("tool", "exec")]),
        ];
        let mut line = format!("{before}; forbidden x; {after}");
        for how in how {
            line = wrapped(&line, how);
        }
        prop_assert_eq!(action(&rules, &command(&line)), Deny, "{}", line);
    }

    /// More parts never make a line more allowed.
    #[test]
    fn adding_a_part_never_relaxes(first in lines(), second in lines()) {
        let rules = [
            rule(Deny, &[("command", "a* **")]),
            rule(Allow, &[("command", "b* **")]),
            rule(Ask, &[("command", "c* **")]),
            rule(Ask, &[("path", "d*")]),
        ];
        let alone = action(&rules, &command(&first));
        let both = action(&rules, &command(&format!("{first}; {second}")));
        prop_assert!(both >= alone, "{first:?} is {alone}, with {second:?} {both}");
    }

    /// What is proposed for a line allows that line, and its rules are read back.
    #[test]
    fn a_proposal_allows_what_it_was_made_for(line in lines()) {
        let rules = [rule(Deny, &[("command", "zz **")]), rule(Ask, &[("tool", "exec")])];
        if let Some(proposal) = propose(&rules, &command(&line)) {
            let mut changed = rules.to_vec();
            let at = proposal.before.unwrap_or(changed.len());
            for proposed in &proposal.rules {
                let pattern = proposed.command.as_ref().unwrap();
                prop_assert_eq!(&CommandPattern::parse(pattern.source()).unwrap(), pattern);
            }
            changed.splice(at..at, proposal.rules);
            prop_assert_eq!(action(&changed, &command(&line)), Allow, "{}", line);
        }
    }

    /// A literal word is matched by itself and quoted means itself.
    #[test]
    fn a_quoted_word_matches_itself(text in "[^\\x00]{0,20}") {
        let line = format!("say {}", quoted(&text));
        let rules = [rule(Deny, &[("command", &line)])];
        prop_assert_eq!(action(&rules, &command(&line)), Deny);
    }
}
