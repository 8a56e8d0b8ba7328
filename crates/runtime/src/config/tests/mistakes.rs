//! Every kind of mistake is named, with its place, and all of them at once.

use super::*;

#[test]
fn three_mistakes_at_once_are_all_named() {
    let home = Home::with_config(
        "[http]\n\
         lisen = \"127.0.0.1:1\"\n\
         \n\
         [sandbox]\n\
         heartbeat = \"soon\"\n\
         \n\
         [channel]\n\
         e2e_required = \"yes\"\n",
    );
    assert_eq!(
        home.complaints(),
        [
            "config.toml:2: http.lisen: unknown key, did you mean http.listen?",
            "config.toml:5: sandbox.heartbeat: \"soon\" does not start with a whole number; write it like \"90s\"",
            "config.toml:8: channel.e2e_required: expected true or false, found a string",
        ]
    );
    let shown = load(&home.inputs()).unwrap_err().to_string();
    assert_eq!(shown.lines().count(), 3);
}

#[test]
fn mistakes_of_all_layers_are_listed_together() {
    let home = Home::with_config("[journal]\nkeep = 5\n")
        .env("QUINTET_LISTEN", "nowhere")
        .env("QUINTET_CONTROL__MAX_CONECTIONS", "5")
        .flag("control.tcp", "6688", "--control-tcp");
    home.write("agents/x.md", "---\nmodle: m\nagent: coder\n---\nHi\n");
    assert_eq!(
        home.complaints(),
        [
            "--control-tcp: control.tcp: \"6688\" is not an address and port such as \"127.0.0.1:7505\"",
            "agents/x.md:2: agents.x.modle: unknown key, did you mean agents.x.model?",
            "config.toml:2: journal.keep: expected a duration such as \"90s\", found a whole number",
            "QUINTET_CONTROL__MAX_CONECTIONS: control.max_conections: unknown key, did you mean control.max_connections?",
            "QUINTET_LISTEN: http.listen: \"nowhere\" is not an address and port such as \"127.0.0.1:7505\"",
        ]
    );
}

/// One wrong `config.toml` to a line: the text, then what is said of it.
#[test]
fn each_kind_of_mistake_says_what_is_wrong() {
    let table: &[(&str, &[&str])] = &[
        (
            "listen = \"127.0.0.1:1\"",
            &["config.toml:1: listen: unknown key, did you mean http.listen?"],
        ),
        (
            "[agents.coder]\n# model = \"\"\n[http]\n[agents.coder]\nmodel = \"m\"",
            &["config.toml:4: [agents.coder] is in line 1 already; add its keys there"],
        ),
        (
            "[htpp]\nlisten = \"127.0.0.1:1\"",
            &["config.toml:1: htpp: unknown key, did you mean http?"],
        ),
        (
            "[http]\nbananas = 1",
            &["config.toml:2: http.bananas: unknown key"],
        ),
        (
            "http = 5",
            &["config.toml:1: http: expected a table, found a whole number"],
        ),
        (
            "[http]\ntls_cert = \"/c.pem\"",
            &["config.toml:1: http.tls_key: is missing: TLS needs tls_cert and tls_key"],
        ),
        (
            "[http]\nallowed_origins = [\"https://a.org/x\", 5]",
            &[
                "config.toml:2: http.allowed_origins: expected a list of strings, found a whole number",
            ],
        ),
        (
            "[http]\nallowed_origins = [\"https://a.org/x\"]",
            &[
                "config.toml:2: http.allowed_origins: \"https://a.org/x\" is not an origin: leave out what follows the host",
            ],
        ),
        (
            "[control]\nmax_connections = 0",
            &["config.toml:2: control.max_connections: must be more than zero"],
        ),
        (
            "[control]\nmax_connections = -1",
            &["config.toml:2: control.max_connections: must be between 0 and 4294967295"],
        ),
        (
            "[journal]\nkeep = \"0s\"",
            &["config.toml:2: journal.keep: must be more than zero"],
        ),
        (
            "[journal]\nmax_size = \"10GB\"",
            &[
                "config.toml:2: journal.max_size: \"10GB\" has no unit that is known here; use one of B, KiB, MiB, GiB, TiB",
            ],
        ),
        (
            "[cron]\ntime_zone = \"Mars/Olympus\"",
            &[
                "config.toml:2: cron.time_zone: \"Mars/Olympus\" is not in the time zone database; write it like \"Europe/Berlin\"",
            ],
        ),
        (
            "[agents.mine]\ncommand = [\"a\"]\nkind = \"robot\"",
            &["config.toml:3: agents.mine.kind: \"robot\" is not one of \"process\", \"acp\""],
        ),
        (
            "[cron]\nmissed = \"skip\"\n[agents.mine]\ncommand = [\"a\"]\nprocesses_max = 5",
            &[
                "config.toml:2: cron.missed: unknown key",
                "config.toml:5: agents.mine.processes_max: unknown key, did you mean sandbox.processes_max?",
            ],
        ),
        (
            "[sandbox]\nstale_after = \"5s\"",
            &[
                "config.toml:2: sandbox.stale_after: must be longer than heartbeat, or every worker is stale",
            ],
        ),
        (
            "[sandbox]\nisolate = false\nnetwork = false",
            &[
                "config.toml:2: sandbox.isolate: must be true for network, read and write to mean anything",
            ],
        ),
        (
            "[sandbox]\nread = [\"a\"]",
            &["config.toml:2: sandbox.read: a is not an absolute path"],
        ),
        (
            "[sandbox]\n\nheartbeat = \"100s\"",
            &[
                "config.toml:1: sandbox.stale_after: must be longer than heartbeat, or every worker is stale",
            ],
        ),
        (
            "[providers.mine]\nbase_url = \"ftp://x\"",
            &[
                "config.toml:1: providers.mine.kind: is missing: it has no default",
                "config.toml:2: providers.mine.base_url: \"ftp://x\" does not start with http:// or https:// and a host",
            ],
        ),
        (
            "[agents.mine]\nmodel = \"m\"",
            &[
                "config.toml:1: agents.mine.command: is missing: an agent has a command = [\"PROGRAM\", ...], or a program = \"AGENT\" whose program it shares",
            ],
        ),
        (
            "[agents.mine]\ncommand = [\"x\"]\nprogram = \"coder\"",
            &[
                "config.toml:3: agents.mine.program: agent \"mine\" has a command and a program; keep one",
            ],
        ),
        (
            "[agents.mine]\nprogram = \"nobody\"",
            &["config.toml:2: agents.mine.program: there is no agent \"nobody\""],
        ),
        (
            "[agents.a]\nprogram = \"b\"\n[agents.b]\nprogram = \"a\"",
            &[
                "config.toml:2: agents.a.program: goes in a circle",
                "config.toml:4: agents.b.program: goes in a circle",
            ],
        ),
        (
            "[agents.\"my agent\"]\ncommand = [\"x\"]",
            &[
                "config.toml:1: agents.\"my agent\": a name has 1 to 64 letters, digits, dashes and underscores",
            ],
        ),
        (
            "[agents.mine]\ncommand = [\"x\"]\nbudget = { day = 5.0, turn = \"-1\", week = \"1\" }",
            &[
                "config.toml:3: agents.mine.budget.turn: an amount of money is not negative",
                "config.toml:3: agents.mine.budget.day: expected a decimal in a string such as \"0.50\", found a number with a fraction",
                "config.toml:3: agents.mine.budget.week: unknown key",
            ],
        ),
        (
            "[mcps.x]\nenv = {}",
            &["config.toml:1: mcps.x.command: is missing: a tool server has a command or a url"],
        ),
        (
            "[mcps.x]\ncommand = [\"x\"]\nurl = \"http://x\"",
            &["config.toml:3: mcps.x.url: a tool server has a command or a url, not both"],
        ),
        (
            "[policy]\nrules = [\n  { tool = \"exec\" },\n  { acton = \"deny\", action = \"never\" },\n]",
            &[
                "config.toml:3: policy.rules[0].action: is missing: it has no default",
                "config.toml:4: policy.rules[1].action: \"never\" is not one of \"allow\", \"ask\", \"deny\"",
                "config.toml:4: policy.rules[1].acton: unknown key, did you mean policy.rules[1].action?",
            ],
        ),
        (
            "[policy]\nrules = [\n  { command = \"a | b\", action = \"ask\" },\n  { command = \"a ** b\", action = \"ask\" },\n]",
            &[
                "config.toml:3: policy.rules[0].command: is the pattern of one command; a line with |, &&, ; or > is checked part by part",
                "config.toml:4: policy.rules[1].command: has ** or ... before its end; * stands for anything within one word",
            ],
        ),
        (
            "[[policy.rules]]\naction = \"deny\"\n[[policy.rules]]\npath = 5\naction = \"ask\"",
            &["config.toml:4: policy.rules[1].path: expected a string, found a whole number"],
        ),
        (
            "[providers.openai]\napi_key = \"***\"",
            &[
                "config.toml:2: providers.openai.api_key: \"***\" keeps a secret that is set, and none is set here; write the value itself",
            ],
        ),
    ];
    for (text, expected) in table {
        assert_eq!(Home::with_config(text).complaints(), *expected, "{text}");
    }
}

#[test]
fn a_syntax_error_names_its_line_and_not_its_text() {
    let home = Home::with_config("[providers.openai]\n\napi_key = \"sk-12345\nkind = 1\n");
    let complaints = home.complaints();
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(
        complaints[0].starts_with("config.toml:3: "),
        "{complaints:?}"
    );
    assert!(!complaints[0].contains("sk-12345"), "{complaints:?}");
}

#[test]
fn a_key_given_twice_is_a_mistake() {
    let home = Home::with_config("[http]\nlisten = \"127.0.0.1:1\"\nlisten = \"127.0.0.1:2\"\n");
    let errors = home.errors();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].origin.line, Some(3));
    assert!(matches!(errors[0].kind, ProblemKind::Syntax { .. }));
}

#[test]
fn a_secret_of_the_wrong_type_is_not_shown() {
    let home = Home::with_config("[providers.openai]\napi_key = [\"sk-12345\"]\n");
    let errors = load(&home.inputs()).unwrap_err();
    assert!(!format!("{errors} {errors:?}").contains("sk-12345"));
    let home = Home::with_config("[providers.openai]\nbase_url = \"https://me:sk-12345@x.org\"\n");
    let errors = load(&home.inputs()).unwrap_err();
    assert!(!format!("{errors} {errors:?}").contains("sk-12345"));
}

#[test]
fn a_file_that_is_too_large_or_not_text_is_named() {
    let home = Home::with_config(&"#\n".repeat(3 << 20));
    assert!(matches!(home.errors()[0].kind, ProblemKind::Io { .. }));
    std::fs::write(home.path("config.toml"), [0xff, 0xfe]).unwrap();
    assert!(matches!(home.errors()[0].kind, ProblemKind::Io { .. }));
}

#[test]
fn a_variable_that_is_not_utf8_is_named_when_it_sets_a_key() {
    use std::os::unix::ffi::OsStringExt as _;
    let bytes = || OsString::from_vec(vec![0xff]);
    let mut home = Home::new();
    home.env.push(("SOMETHING_ELSE".into(), bytes()));
    home.load();
    home.env.push(("QUINTET_LISTEN".into(), bytes()));
    assert_eq!(
        home.complaints(),
        ["QUINTET_LISTEN: the value is not UTF-8"]
    );
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]

    #[test]
    fn no_file_panics(text in "[\\[\\]a-z.= \"{}0-9\n#]{0,200}") {
        let home = Home::with_config(&text);
        let _ = load(&home.inputs());
    }
}
