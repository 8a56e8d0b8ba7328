//! get, set, reload: whole or not at all, comments kept, secrets hidden.

use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

const COMMENTED: &str = r#"# My settings.

[http]
# Not the usual port.
listen = "127.0.0.1:9000" # because of the proxy
# allowed_origins = []

[providers.anthropic]
api_key = "sk-file" # do not share

# The one I wrote.
[agents.mine]
command = ["python3", "agent.py"] # in my folder
env = { TOKEN = "t-1", MODE = "fast" }
# About idling.
idle_timeout = "5m"

# The end.
"#;

#[test]
fn what_get_returns_is_accepted_and_changes_nothing() {
    let home = Home::with_config(COMMENTED).env("QUINTET_CONTROL_TCP", "127.0.0.1:1");
    home.write("agents/x.md", "---\nagent: coder\n---\nHi\n");
    let store = home.store();
    let before = store.current();
    let changes = store.set(&store.to_json().to_string()).unwrap();
    assert_eq!(changes, []);
    assert_eq!(home.text(), COMMENTED);
    assert!(Arc::ptr_eq(&before, &store.current()));
}

#[test]
fn a_change_keeps_every_comment_and_touches_only_its_line() {
    let home = Home::with_config(COMMENTED);
    let store = home.store();
    let mut json = store.to_json();
    json["http"]["listen"] = json!("127.0.0.1:9001");
    json["agents"]["mine"]["env"]["MODE"] = json!("slow");
    json["agents"]["mine"]["budget"]["day"] = json!("5.00");
    json["sandbox"]["heartbeat"] = json!("5s");
    let changes = store.set(&json.to_string()).unwrap();
    assert_eq!(
        changed(&changes),
        [
            "agents.mine.budget.day",
            "agents.mine.env.MODE",
            "http.listen",
            "sandbox.heartbeat",
        ]
    );
    let expected = COMMENTED
        .replace("9000", "9001")
        .replace("MODE = \"fast\"", "MODE = \"slow\"")
        .replace(
            "idle_timeout = \"5m\"\n",
            "idle_timeout = \"5m\"\nbudget = { day = \"5.00\" }\n",
        );
    let (old_part, new_part) = home
        .text()
        .split_once("\n[sandbox]")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert_eq!(new_part, "\nheartbeat = \"5s\"\n\n# The end.\n");
    assert_eq!(
        old_part,
        expected
            .trim_end()
            .strip_suffix("\n\n# The end.")
            .unwrap()
            .to_owned()
            + "\n"
    );
    assert_eq!(store.current().http.listen.port(), 9001);
    assert_eq!(*store.current(), home.load());
}

#[test]
fn changes_say_from_what_to_what_and_when_they_apply() {
    let home = Home::with_config(COMMENTED);
    let store = home.store();
    let changes = store.set_key("http.listen", "127.0.0.1:1").unwrap();
    assert_eq!(
        changes,
        [Change {
            key: key("http.listen"),
            from: Some(json!("127.0.0.1:9000")),
            to: Some(json!("127.0.0.1:1")),
            applies: Applies::AtRestart,
        }]
    );
    let changes = store.set_key("control.tcp", "127.0.0.1:2").unwrap();
    assert_eq!(changes[0].applies, Applies::AtRestart);
    let changes = store.set_key("agents.mine.model", "m").unwrap();
    assert_eq!(changes[0].applies, Applies::Now);
    // The same meaning in other words is no change.
    assert_eq!(
        store.set_key("agents.mine.idle_timeout", "300s"),
        Ok(vec![])
    );
}

#[test]
fn a_changed_file_is_private_and_a_link_stays_a_link() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    home.write("dotfiles/quintet.toml", COMMENTED);
    std::os::unix::fs::symlink(home.path("dotfiles/quintet.toml"), home.path("config.toml"))
        .unwrap();
    home.store().set_key("http.listen", "127.0.0.1:1").unwrap();
    assert!(home.path("config.toml").is_symlink());
    let target = home.path("dotfiles/quintet.toml");
    assert!(
        std::fs::read_to_string(&target)
            .unwrap()
            .contains("127.0.0.1:1\"")
    );
    let mode = std::fs::metadata(&target).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(home.path("dotfiles")).unwrap().count(), 1);
}

#[test]
fn secrets_are_never_shown() {
    let home = Home::with_config(
        "[providers.anthropic]\napi_key = \"hush-1\"\n\
         [agents.mine]\ncommand = [\"x\"]\nenv = { T = \"hush-2\" }\n\
         [mcps.a]\nurl = \"https://x.org\"\nheaders = { Authorization = \"hush-3\" }\n",
    )
    .env("OPENAI_API_KEY", "hush-4")
    .env("QUINTET_PROVIDERS__OPENAI__API_KEY", "hush-5")
    .flag("agents.mine.env.F", "hush-6", "--env");
    let store = home.store();
    let (config, effective) = load(&home.inputs()).unwrap();
    let changes = store
        .set_key("providers.anthropic.api_key", "hush-7")
        .unwrap();
    let refused = store
        .set_key("providers.openai.api_key", "hush-8")
        .unwrap_err();
    let shown = format!(
        "{} {config:?} {config:#?} {effective:?} {:?} {changes:?} {refused} {refused:?}",
        store.to_json(),
        home.inputs(),
    );
    assert!(!shown.contains("hush"), "{shown}");
    assert_eq!(
        store.get_key("providers.anthropic.api_key"),
        Ok(json!("***"))
    );
    assert_eq!(
        store.get_key("agents.mine.env"),
        Ok(json!({"T": "***", "F": "***"}))
    );
    assert_eq!(
        home.store().current().providers["anthropic"].api_key,
        Some(Secret::from("hush-7"))
    );
}

#[test]
fn an_unset_secret_is_shown_as_not_set() {
    let store = Home::new().store();
    assert_eq!(store.get_key("providers.anthropic.api_key"), Ok(json!("")));
}

#[test]
fn a_redacted_secret_stays_as_it_is_and_a_new_one_is_written() {
    let home = Home::with_config(COMMENTED);
    let store = home.store();
    let mut json = store.to_json();
    json["agents"]["mine"]["model"] = json!("m");
    store.set(&json.to_string()).unwrap();
    assert_eq!(
        store.current().providers["anthropic"].api_key,
        Some(Secret::from("sk-file"))
    );
    assert_eq!(
        store.current().agents["mine"].env["TOKEN"],
        Secret::from("t-1")
    );

    json["providers"]["anthropic"]["api_key"] = json!("sk-new");
    let changes = store.set(&json.to_string()).unwrap();
    assert_eq!(
        changes,
        [Change {
            key: key("providers.anthropic.api_key"),
            from: Some(json!("***")),
            to: Some(json!("***")),
            applies: Applies::Now,
        }]
    );
    assert!(home.text().contains("api_key = \"sk-new\" # do not share"));

    json["providers"]["anthropic"]["api_key"] = json!("");
    store.set(&json.to_string()).unwrap();
    assert_eq!(store.current().providers["anthropic"].api_key, None);

    json["providers"]["anthropic"]["api_key"] = json!("***");
    let errors = store.set(&json.to_string()).unwrap_err();
    assert_eq!(errors.0[0].key, key("providers.anthropic.api_key"));
    assert_eq!(errors.0[0].kind, ProblemKind::NothingToKeep);
}

#[test]
fn a_request_with_three_mistakes_names_all_three_and_changes_nothing() {
    let home = Home::with_config(COMMENTED);
    let store = home.store();
    let before = (store.to_json(), store.current());
    let mut json = store.to_json();
    json["http"]["lisen"] = json!("x");
    json["sandbox"]["heartbeat"] = json!(5);
    json["agents"]["mine"]["command"] = json!([]);
    let errors = store.set(&json.to_string()).unwrap_err();
    let lines: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    assert_eq!(
        lines,
        [
            "sandbox.heartbeat: expected a duration such as \"90s\", found a whole number",
            "agents.mine.command: is missing: an agent has a command = [\"PROGRAM\", ...], or a program = \"AGENT\" whose program it shares",
            "http.lisen: unknown key, did you mean http.listen?",
        ]
    );
    assert_eq!(home.text(), COMMENTED);
    assert_eq!(before, (store.to_json(), store.current()));
}

#[test]
fn a_request_that_is_not_json_or_not_an_object_is_refused() {
    let home = Home::with_config(COMMENTED);
    let store = home.store();
    for text in ["", "{", "[]", "5", "null", "\"x\""] {
        assert!(store.set(text).is_err(), "{text}");
    }
    assert_eq!(home.text(), COMMENTED);
}

#[test]
fn what_a_request_leaves_out_goes_back_to_its_default() {
    let home = Home::with_config(COMMENTED);
    let store = home.store();
    let mut json = store.to_json();
    json["http"].as_object_mut().unwrap().remove("listen");
    json["agents"].as_object_mut().unwrap().remove("mine");
    json["providers"]["anthropic"]["api_key"] = Json::Null;
    store.set(&json.to_string()).unwrap();
    assert_eq!(*store.current(), Home::new().load());
    assert_eq!(
        home.text(),
        "# My settings.\n\n[http]\n# Not the usual port.\n# allowed_origins = []\n\n\
         [providers.anthropic]\n\n# The one I wrote.\n# About idling.\n\n# The end.\n"
    );
}

#[test]
fn an_empty_request_empties_the_file_but_not_other_layers() {
    let home = Home::with_config(COMMENTED).env("QUINTET_LISTEN", "127.0.0.1:5");
    home.write("agents/x.md", "---\nagent: coder\n---\nHi\n");
    let store = home.store();
    store.set("{}").unwrap();
    assert_eq!(store.current().http.listen.port(), 5);
    assert!(store.current().agents.contains_key("x"));
    assert!(!store.current().agents.contains_key("mine"));
}

#[test]
fn a_change_that_a_stronger_layer_hides_is_refused() {
    let home = Home::with_config(COMMENTED)
        .env("QUINTET_CONTROL_TCP", "127.0.0.1:1")
        .flag("http.listen", "127.0.0.1:2", "--listen");
    let store = home.store();
    let errors = store.set_key("http.listen", "127.0.0.1:3").unwrap_err();
    assert_eq!(
        errors.to_string(),
        "http.listen: is set by --listen, which is stronger than config.toml; change it there"
    );
    let errors = store.set_key("control.tcp", "").unwrap_err();
    assert!(matches!(
        &errors.0[0].kind,
        ProblemKind::Overridden { by: ConfigSource::Env { name } } if &**name == "QUINTET_CONTROL_TCP"
    ));
    assert_eq!(home.text(), COMMENTED);
}

#[test]
fn an_agent_of_a_file_is_removed_there() {
    let home = Home::new();
    home.write("agents/x.md", "---\nagent: coder\n---\nHi\n");
    let store = home.store();
    let errors = store.remove_key("agents.x").unwrap_err();
    assert!(matches!(
        errors.0[0].kind,
        ProblemKind::DefinedElsewhere { .. }
    ));
    // Its values can be overridden in config.toml.
    store.set_key("agents.x.model", "m").unwrap();
    assert_eq!(home.text(), "[agents.x]\nmodel = \"m\"\n");
    assert_eq!(store.current().agents["x"].prompt, "Hi");
}

#[test]
fn keys_are_set_and_removed_one_by_one_as_typed() {
    let home = Home::new();
    let store = home.store();
    store
        .set_key("providers.anthropic.base_url", "https://x.org")
        .unwrap();
    store.set_key("channel.e2e_required", "false").unwrap();
    store.set_key("control.max_connections", "5").unwrap();
    store
        .set_key("agents.mine.command", "[\"a b\", \"c\"]")
        .unwrap();
    store.set_key("agents.mine.env.TOKEN", "t").unwrap();
    store.set_key("agents.mine.budget.turn", "0.50").unwrap();
    store
        .set_key("mcps.m", "{ url = \"https://m.org\" }")
        .unwrap();
    store
        .set_key("policy.rules", "[{ action = \"ask\" }]")
        .unwrap();
    assert_eq!(
        home.text(),
        "[providers.anthropic]\nbase_url = \"https://x.org\"\n\n\
         [channel]\ne2e_required = false\n\n\
         [control]\nmax_connections = 5\n\n\
         [agents.mine]\ncommand = [\"a b\", \"c\"]\nenv = { TOKEN = \"t\" }\nbudget = { turn = \"0.50\" }\n\n\
         [mcps.m]\nurl = \"https://m.org\"\n\n\
         [policy]\nrules = [\n    { action = \"ask\" },\n]\n"
    );
    assert_eq!(*store.current(), home.load());
    assert_eq!(
        store.get_key("agents.mine.command"),
        Ok(json!(["a b", "c"]))
    );
    assert_eq!(
        store.get_key("policy.rules"),
        Ok(json!([{"action": "ask"}]))
    );

    store.remove_key("agents.mine").unwrap();
    store.remove_key("mcps.m").unwrap();
    store.remove_key("control.max_connections").unwrap();
    assert_eq!(store.current().control.max_connections, 1000);
    assert_eq!(store.current().agents.len(), 2);
    assert_eq!(store.current().mcps.len(), 0);
    assert_eq!(*store.current(), home.load());

    for (dotted, value) in [
        ("http.lisen", "x"),
        ("nothing", "x"),
        ("", "x"),
        ("http", "x"),
    ] {
        assert!(store.set_key(dotted, value).is_err(), "{dotted}");
    }
    let unknown = store.get_key("http.lisen").unwrap_err();
    assert_eq!(
        unknown.0[0].kind,
        ProblemKind::UnknownKey {
            suggestion: Some(key("http.listen"))
        }
    );
    for dotted in ["http.lisen", "a..b", "agents.nobody"] {
        assert!(store.get_key(dotted).is_err(), "{dotted}");
        assert!(store.remove_key(dotted).is_err(), "{dotted}");
    }
}

#[test]
fn a_rule_of_another_form_is_replaced_whole() {
    let home = Home::with_config(
        "[[policy.rules]]\naction = \"deny\"\n\n[[policy.rules]]\naction = \"ask\"\n",
    );
    let store = home.store();
    store
        .set_key("policy.rules", "[{ action = \"allow\" }]")
        .unwrap();
    assert_eq!(store.current().policy.rules.len(), 1);
    assert_eq!(*store.current(), home.load());
}

#[test]
fn reload_reports_what_changed_and_keeps_the_old_on_a_mistake() {
    let home = Home::with_config(COMMENTED);
    let store = home.store();
    let follower = store.subscribe();
    assert_eq!(store.reload(), Ok(vec![]));
    assert!(!follower.has_changed().unwrap());

    home.write(
        "config.toml",
        &COMMENTED.replace("t-1", "t-2").replace("9000", "9009"),
    );
    let changes = store.reload().unwrap();
    assert_eq!(changed(&changes), ["agents.mine.env.TOKEN", "http.listen"]);
    assert!(follower.has_changed().unwrap());
    assert_eq!(follower.borrow().http.listen.port(), 9009);

    home.write("config.toml", "[http]\nlisten = 5\n");
    let errors = store.reload().unwrap_err();
    assert_eq!(errors.0[0].origin.line, Some(2));
    assert_eq!(store.current().http.listen.port(), 9009);

    // A broken file is not overwritten by a request either.
    assert!(store.set_key("control.max_connections", "5").is_err());
    assert_eq!(home.text(), "[http]\nlisten = 5\n");
}

#[test]
fn reload_sees_agent_files_come_and_go() {
    let home = Home::new();
    let store = home.store();
    home.write("agents/x.md", "---\nagent: coder\n---\nHi\n");
    assert!(changed(&store.reload().unwrap()).contains(&"agents.x.prompt".to_owned()));
    std::fs::remove_file(home.path("agents/x.md")).unwrap();
    let gone = store.reload().unwrap();
    assert!(gone.iter().all(|change| change.to.is_none()));
    assert!(!store.current().agents.contains_key("x"));
}

#[test]
fn a_request_that_cannot_be_written_changes_nothing() {
    let home = Home::new();
    let missing = ConfigInputs::new(home.path("gone/config.toml"), TimeZone::UTC);
    let store = ConfigStore::open(missing).unwrap();
    let errors = store.set_key("control.max_connections", "5").unwrap_err();
    assert!(matches!(errors.0[0].kind, ProblemKind::Io { .. }));
    assert_eq!(store.current().control.max_connections, 1000);
}

fn text_value() -> impl Strategy<Value = String> {
    "[ -~]{0,12}"
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Any values that are accepted come back by get, from the store and from
    /// the file, and a second set of the same changes nothing.
    #[test]
    fn set_then_get_round_trips(
        heartbeat in 1u64..80_000,
        size in any::<u32>(),
        port in any::<u16>(),
        origins in proptest::collection::vec("https://[a-z]{1,8}\\.org", 0..3),
        env in proptest::collection::btree_map("[A-Z_.]{1,6}", "[!-)+-~]{1,12}", 0..3),
        prompt in text_value(),
        cents in 0u32..100_000,
        from_first_run in any::<bool>(),
    ) {
        let home = if from_first_run { Home::with_config(&first_run_file()) } else { Home::new() };
        let store = home.store();
        let mut json = store.to_json();
        json["sandbox"]["heartbeat"] = json!(format!("{heartbeat}ms"));
        json["journal"]["max_size"] = json!(size);
        json["http"]["listen"] = json!(format!("[::1]:{port}"));
        json["http"]["allowed_origins"] = json!(origins);
        json["agents"]["p"] = json!({
            "command": ["x", prompt],
            "prompt": prompt,
            "env": env,
            "budget": { "day": format!("{}.{:02}", cents / 100, cents % 100) },
        });
        store.set(&json.to_string()).unwrap();
        let config = store.current();
        prop_assert_eq!(&*config, &home.load());
        prop_assert_eq!(config.sandbox.heartbeat.as_millis(), u128::from(heartbeat));
        prop_assert_eq!(config.agents["p"].prompt.as_str(), prompt.as_str());
        prop_assert_eq!(config.agents["p"].env.len(), env.len());
        for (name, value) in &env {
            prop_assert_eq!(config.agents["p"].env[name].expose(), value.as_str());
        }
        let text = home.text();
        prop_assert_eq!(store.set(&store.to_json().to_string()), Ok(vec![]));
        prop_assert_eq!(home.text(), text);
    }
}
