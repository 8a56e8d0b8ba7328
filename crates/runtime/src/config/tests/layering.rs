//! Defaults, the order of layers, and what each value became.

use std::time::Duration;

use rust_decimal::Decimal;

use super::*;

#[test]
fn defaults_are_those_of_the_contract() {
    let config = Home::new().load();
    assert_eq!(config.http.listen, "127.0.0.1:7505".parse().unwrap());
    assert_eq!(config.http.tls, None);
    assert_eq!(config.control.tcp, None);
    assert_eq!(config.control.max_connections, 1000);
    assert_eq!(config.daemon.drain, Duration::from_secs(10));
    assert_eq!(config.journal.keep, Duration::from_secs(365 * 86_400));
    assert_eq!(config.cron.time_zone, TimeZone::UTC);
    assert_eq!(config.sandbox.heartbeat, Duration::from_secs(10));
    assert_eq!(config.sandbox.stale_after, Duration::from_secs(90));
    assert_eq!(config.sandbox.stale_check, Duration::from_secs(30));
    assert_eq!(config.sandbox.output_quota, ByteSize::from_bytes(1 << 30));
    assert_eq!(
        config.workspace.history_age,
        Duration::from_secs(90 * 86_400)
    );
    assert_eq!(
        config.workspace.history_size,
        ByteSize::from_bytes(10 << 30)
    );
    assert_eq!(config.workspace.inline_below, ByteSize::from_bytes(4096));
    assert!(config.channel.e2e_required);
    assert_eq!(config.channel.token_ttl, Duration::from_secs(30 * 86_400));
    assert_eq!(config.channel.code_ttl, Duration::from_secs(300));
    assert_eq!(
        config.providers.keys().collect::<Vec<_>>(),
        ["anthropic", "ollama", "openai", "openrouter"]
    );
    let anthropic = &config.providers["anthropic"];
    assert_eq!(anthropic.kind, ProviderKind::Anthropic);
    assert_eq!(anthropic.base_url, "https://api.anthropic.com");
    assert_eq!(anthropic.api_key, None);
    assert_eq!(config.agents.keys().collect::<Vec<_>>(), ["coder", "shell"]);
    assert_eq!(
        config.agents["shell"].program,
        AgentProgram::Builtin(BuiltinAgent::Shell)
    );
    assert_eq!(
        config.agents["coder"].idle_timeout,
        Duration::from_secs(600)
    );
    assert_eq!(config.mcps.len(), 0);
    assert_eq!(config.policy.rules, []);
}

#[test]
fn the_first_run_file_changes_nothing_and_shows_every_default() {
    let text = first_run_file();
    assert_eq!(Home::with_config(&text).load(), Home::new().load());
    for line in DEFAULT_TOML.lines().filter(|line| !line.is_empty()) {
        assert!(text.contains(line), "{line}");
    }
    // Every value is a comment.
    let document: toml_edit::DocumentMut = text.parse().unwrap();
    assert!(document.as_table().get_values().is_empty());
}

#[test]
fn the_example_agent_shows_the_defaults_of_agents() {
    let example: String = DEFAULT_TOML
        .lines()
        .skip_while(|line| *line != "# [agents.mine]")
        .take_while(|line| !line.is_empty())
        .map(|line| format!("{}\n", line.strip_prefix("# ").unwrap()))
        .collect();
    let shown = Home::with_config(&example).load();
    let minimal =
        Home::with_config("[agents.mine]\ncommand = [\"python3\", \"agent.py\"]\n").load();
    assert_eq!(shown, minimal);
    // And it leaves no key out.
    let store = Home::with_config(&example).store();
    let known = store.get_key("agents.mine").unwrap();
    for name in known
        .as_object()
        .unwrap()
        .keys()
        .filter(|name| *name != "program")
    {
        assert!(example.contains(&format!("{name} = ")), "{name}");
        assert!(DEFAULT_TOML.contains(&format!("#   {name} ")), "{name}");
    }
}

#[test]
fn the_first_run_file_is_private_and_never_replaces_one() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = Home::new();
    assert_eq!(ConfigStore::write_first_run(&home.inputs()), Ok(true));
    assert_eq!(home.text(), first_run_file());
    let mode = std::fs::metadata(home.path("config.toml"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    home.write("config.toml", "# mine\n");
    assert_eq!(ConfigStore::write_first_run(&home.inputs()), Ok(false));
    assert_eq!(home.text(), "# mine\n");
}

#[test]
fn a_stronger_layer_wins_and_its_name_is_known() {
    let origin = |home: &Home| {
        home.store()
            .origin(&key("http.listen"))
            .unwrap()
            .to_string()
    };
    let port = |home: &Home| home.load().http.listen.port();

    let home = Home::new();
    assert_eq!(
        (port(&home), origin(&home).as_str()),
        (7505, "built-in defaults:16")
    );
    home.write("config.toml", "[http]\nlisten = \"127.0.0.1:1\"\n");
    let file = format!("{}:2", home.path("config.toml").display());
    assert_eq!((port(&home), origin(&home)), (1, file));
    let home = home.env("QUINTET_HTTP__LISTEN", "127.0.0.1:2");
    assert_eq!(
        (port(&home), origin(&home).as_str()),
        (2, "QUINTET_HTTP__LISTEN")
    );
    let home = home.flag("http.listen", "127.0.0.1:3", "--listen");
    assert_eq!((port(&home), origin(&home).as_str()), (3, "--listen"));
}

#[test]
fn variables_take_the_type_of_their_key() {
    let config = Home::with_config("[agents.my-agent]\ncommand = [\"x\"]\n")
        .env("QUINTET_LISTEN", "0.0.0.0:0")
        .env("QUINTET_CONTROL_TCP", "127.0.0.1:6688")
        .env("QUINTET_CHANNEL__E2E_REQUIRED", "false")
        .env("QUINTET_CONTROL__MAX_CONNECTIONS", "5")
        .env(
            "QUINTET_HTTP__ALLOWED_ORIGINS",
            "https://a.org, https://b.org",
        )
        .env("QUINTET_PROVIDERS__OPENAI__API_KEY", "sk-1")
        .env("QUINTET_AGENTS__MY_AGENT__ENV__Path", "/bin")
        .env("QUINTET_AGENTS__OTHER", "{ command = [\"y\", \"z\"] }")
        .env(
            "QUINTET_POLICY__RULES",
            "[{\"tool\": \"exec\", \"action\": \"ask\"}]",
        )
        .env("QUINTET_HOME", "/somewhere")
        .env("QUINTET_IPC_SOCKET", "/somewhere")
        .load();
    assert_eq!(config.http.listen.port(), 0);
    assert_eq!(config.control.tcp, Some("127.0.0.1:6688".parse().unwrap()));
    assert!(!config.channel.e2e_required);
    assert_eq!(config.control.max_connections, 5);
    assert_eq!(
        config.http.allowed_origins,
        ["https://a.org", "https://b.org"]
    );
    assert_eq!(
        config.providers["openai"].api_key,
        Some(Secret::from("sk-1"))
    );
    assert_eq!(config.agents["my-agent"].env["Path"], Secret::from("/bin"));
    assert_eq!(
        config.agents["other"].program,
        AgentProgram::Command(vec!["y".to_owned(), "z".to_owned()])
    );
    assert_eq!(config.policy.rules.len(), 1);
    assert_eq!(config.policy.rules[0].action, Action::Ask);
}

#[test]
fn a_provider_key_comes_from_the_file_or_from_the_variable_it_names() {
    let home = Home::new().env("ANTHROPIC_API_KEY", "sk-env");
    assert_eq!(
        home.load().providers["anthropic"].api_key,
        Some(Secret::from("sk-env"))
    );
    home.write(
        "config.toml",
        "[providers.anthropic]\napi_key = \"sk-file\"\n",
    );
    assert_eq!(
        home.load().providers["anthropic"].api_key,
        Some(Secret::from("sk-file"))
    );
    home.write(
        "config.toml",
        "[providers.anthropic]\napi_key_env = \"OTHER\"\n",
    );
    assert_eq!(home.load().providers["anthropic"].api_key, None);
}

#[test]
fn the_variables_that_providers_are_known_by_set_them() {
    for (variable, name, model) in [
        ("ANTHROPIC_API_KEY", "anthropic", "anthropic/claude-x"),
        ("OPENAI_API_KEY", "openai", "openai/gpt-x"),
        ("OPENROUTER_API_KEY", "openrouter", "openrouter/a/b"),
        ("OLLAMA_HOST", "ollama", "ollama/qwen"),
    ] {
        let providers = crate::providers_of(&Home::new().load());
        assert_eq!(providers.usable().count(), 0, "nothing is set");
        let providers = crate::providers_of(&Home::new().env(variable, "127.0.0.1").load());
        let usable: Vec<&str> = providers.usable().map(|it| it.name.as_str()).collect();
        assert_eq!(usable, [name], "{variable}");
        let routes = providers.routes(Some(model), &[]).unwrap();
        assert_eq!(routes[0].provider.name, name);
    }
}

#[test]
fn a_providers_address_may_come_from_the_variable_of_its_own_client() {
    let address = |home: &Home, name: &str| home.load().providers[name].base_url.clone();
    let home = Home::new()
        .env("OLLAMA_HOST", "0.0.0.0:5000")
        .env("OPENAI_BASE_URL", "http://lab:8000/v1/")
        .env("ANTHROPIC_BASE_URL", "");
    assert_eq!(address(&home, "ollama"), "http://127.0.0.1:5000");
    assert_eq!(address(&home, "openai"), "http://lab:8000/v1");
    assert_eq!(address(&home, "anthropic"), "https://api.anthropic.com");
    home.write(
        "config.toml",
        "[providers.openai]\nbase_url = \"http://mine/v1\"\n",
    );
    assert_eq!(
        address(&home, "openai"),
        "http://mine/v1",
        "the file is stronger"
    );
    assert_eq!(
        address(&Home::new(), "ollama"),
        "",
        "nobody said where it is"
    );
}

#[test]
fn every_kind_of_value_is_read() {
    let config = Home::with_config(
        r#"
        [http]
        tls_cert = "/c.pem"
        tls_key = "/k.pem"
        [cron]
        time_zone = "Europe/Berlin"
        [journal]
        max_size = 5000
        [providers.local]
        kind = "openai"
        base_url = "http://localhost:11434/v1/"
        models = ["a", "b"]
        [agents.mine]
        command = ["python3", "agent.py"]
        kind = "acp"
        cwd = "/srv"
        env = { TOKEN = "t" }
        model = "m"
        idle_timeout = "500ms"
        turn_deadline = "1h"
        memory_max = "64MiB"
        files_max = 50
        cpu_seconds = 60
        file_size = "1GiB"
        stall_after = "5s"
        budget = { turn = "0.50", day = 5 }
        [mcps.a]
        command = ["srv"]
        env = { KEY = "k" }
        [mcps.b]
        url = "https://x.org/mcp"
        headers = { Authorization = "Bearer b" }
        [[policy.rules]]
        tool = "exec"
        command = "rm"
        session = 3
        action = "deny"
        "#,
    )
    .load();
    assert_eq!(
        config.http.tls,
        Some(TlsFiles {
            cert: "/c.pem".into(),
            key: "/k.pem".into()
        })
    );
    assert_eq!(
        config.cron.time_zone,
        TimeZone::get("Europe/Berlin").unwrap()
    );
    assert_eq!(config.journal.max_size, Some(ByteSize::from_bytes(5000)));
    assert_eq!(
        config.providers["local"],
        ProviderConfig {
            kind: ProviderKind::OpenAi,
            api_key: None,
            api_key_env: None,
            base_url: "http://localhost:11434/v1".to_owned(),
            base_url_env: None,
            models: vec!["a".to_owned(), "b".to_owned()],
            prices: Vec::new(),
        }
    );
    assert_eq!(
        config.agents["mine"],
        AgentConfig {
            program: AgentProgram::Command(vec!["python3".to_owned(), "agent.py".to_owned()]),
            kind: AgentKind::Acp,
            description: String::new(),
            prompt: String::new(),
            model: Some("m".to_owned()),
            fallback: Vec::new(),
            context_tokens: None,
            cwd: Some("/srv".into()),
            env: [("TOKEN".to_owned(), Secret::from("t"))].into(),
            idle_timeout: Duration::from_millis(500),
            turn_deadline: Some(Duration::from_secs(3600)),
            memory_max: Some(ByteSize::from_bytes(64 << 20)),
            files_max: Some(50),
            cpu_seconds: Some(60),
            file_size: Some(ByteSize::from_bytes(1 << 30)),
            stall_after: Duration::from_secs(5),
            budget: Budget {
                turn: Some(Decimal::new(50, 2)),
                day: Some(Decimal::from(5)),
            },
        }
    );
    assert_eq!(
        config.mcps["a"],
        McpConfig::Command {
            command: vec!["srv".to_owned()],
            env: [("KEY".to_owned(), Secret::from("k"))].into(),
        }
    );
    assert_eq!(
        config.mcps["b"],
        McpConfig::Url {
            url: "https://x.org/mcp".to_owned(),
            headers: [("Authorization".to_owned(), Secret::from("Bearer b"))].into(),
        }
    );
    assert_eq!(
        config.policy.rules,
        [Rule {
            tool: Some(NamePattern::parse("exec").unwrap()),
            command: Some(CommandPattern::parse("rm").unwrap()),
            session: Some(3),
            ..Rule::new(Action::Deny)
        }]
    );
}
