//! The server over real HTTP, and the client against real processes and the server itself.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quintet_mcp::{
    CallError, Content, Externals, MAX_CALLS, MAX_RESULT, ServerOptions, ServerSpec, ToolCall,
    ToolOutcome, ToolSpec, Tools, router,
};
use serde_json::{Map, Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(30);

/// Tools of a test: `echo`, `wait` (until `go` or cancelled), `large`.
struct Bench {
    dead: Mutex<HashSet<String>>,
    go: Notify,
    cancelled: mpsc::UnboundedSender<()>,
}

impl Tools for Bench {
    type Instance = String;

    fn instance(&self, token: &str) -> Option<String> {
        let name = token.strip_prefix("token-of-")?;
        (!self.dead.lock().unwrap().contains(name)).then(|| name.to_owned())
    }

    fn key(&self, instance: &String) -> String {
        instance.clone()
    }

    async fn list(&self, instance: &String) -> Vec<ToolSpec> {
        let schema = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
        vec![ToolSpec {
            name: "echo".into(),
            description: format!("for {instance}"),
            schema: schema.as_object().unwrap().clone(),
        }]
    }

    async fn call(
        &self,
        instance: &String,
        call: ToolCall,
        cancelled: CancellationToken,
    ) -> ToolOutcome {
        match call.name.as_str() {
            "echo" => ToolOutcome::text(format!("{instance}: {}", call.arguments["text"])),
            "wait" => {
                tokio::select! {
                    () = self.go.notified() => ToolOutcome::text("waited"),
                    () = cancelled.cancelled() => {
                        let _ = self.cancelled.send(());
                        ToolOutcome::failure("cancelled")
                    }
                }
            }
            "large" => ToolOutcome::text("x".repeat(MAX_RESULT + 1)),
            other => ToolOutcome::failure(format!("there is no tool {other:?}")),
        }
    }
}

struct Served {
    url: String,
    bench: Arc<Bench>,
    cancelled: mpsc::UnboundedReceiver<()>,
    client: reqwest::Client,
    stop: CancellationToken,
    _tasks: JoinSet<()>,
}

impl Served {
    async fn start() -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (sender, cancelled) = mpsc::unbounded_channel();
        let bench = Arc::new(Bench {
            dead: Mutex::default(),
            go: Notify::new(),
            cancelled: sender,
        });
        let stop = CancellationToken::new();
        let options = ServerOptions {
            allowed_hosts: vec!["127.0.0.1".into()],
            stop: stop.clone(),
        };
        let app = router(bench.clone(), options);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            url,
            bench,
            cancelled,
            client: reqwest::Client::new(),
            stop,
            _tasks: tasks,
        }
    }

    fn post(&self, token: &str, message: &Value) -> reqwest::RequestBuilder {
        self.client
            .post(&self.url)
            .bearer_auth(token)
            .header("Accept", "application/json, text/event-stream")
            .json(message)
    }

    async fn call(&self, token: &str, id: u64, tool: &str, arguments: Value) -> Value {
        let params = json!({ "name": tool, "arguments": arguments });
        let message =
            json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        answer(self.post(token, &message)).await
    }

    fn external(&self, token: &str) -> ServerSpec {
        let headers = [("Authorization".to_owned(), format!("Bearer {token}"))];
        ServerSpec::Url {
            url: self.url.clone(),
            headers: headers.into(),
        }
    }
}

/// The one message of an answer's stream of events.
async fn answer(request: reqwest::RequestBuilder) -> Value {
    let text = timeout(DEADLINE, async {
        request.send().await.unwrap().text().await.unwrap()
    })
    .await
    .unwrap();
    let data = text
        .lines()
        .filter_map(|line| line.strip_prefix("data:"))
        .find_map(|data| serde_json::from_str::<Value>(data).ok());
    data.unwrap_or_else(|| panic!("no message in {text:?}"))
}

fn said(message: &Value) -> &str {
    message["result"]["content"][0]["text"].as_str().unwrap()
}

async fn status(request: reqwest::RequestBuilder) -> u16 {
    timeout(DEADLINE, request.send())
        .await
        .unwrap()
        .unwrap()
        .status()
        .as_u16()
}

#[tokio::test]
async fn a_living_token_sees_its_tools_and_uses_them() {
    let served = Served::start().await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let listed = answer(served.post("token-of-a", &list)).await;
    assert_eq!(listed["result"]["tools"][0]["name"], "echo");
    assert_eq!(listed["result"]["tools"][0]["description"], "for a");
    assert_eq!(
        said(
            &served
                .call("token-of-b", 2, "echo", json!({"text": "hi"}))
                .await
        ),
        "b: \"hi\""
    );
    let unknown = served.call("token-of-a", 3, "nothing", json!({})).await;
    assert_eq!(unknown["result"]["isError"], true);
    let large = served.call("token-of-a", 4, "large", json!({})).await;
    assert_eq!(large["result"]["isError"], true);
    assert!(said(&large).contains("ask for less"), "{}", said(&large));
}

#[tokio::test]
async fn nobody_else_is_let_in() {
    let served = Served::start().await;
    let list = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/list" });
    let request = || served.post("token-of-a", &list);
    assert_eq!(status(request()).await, 200);
    assert_eq!(status(served.post("guess", &list)).await, 401);
    assert_eq!(
        status(served.client.post(&served.url).json(&list)).await,
        401
    );
    assert_eq!(
        status(request().header("Host", "evil.example.org")).await,
        403
    );
    assert_eq!(
        status(request().header("Origin", "https://evil.example.org")).await,
        403
    );
    served.bench.dead.lock().unwrap().insert("a".into());
    assert_eq!(status(request()).await, 401, "it died with its instance");
    let huge = served.client.post(&served.url).bearer_auth("token-of-b");
    assert_eq!(
        status(huge.body(vec![b' '; quintet_mcp::MAX_REQUEST + 1])).await,
        413
    );
}

#[tokio::test]
async fn calls_are_answered_in_the_order_in_which_they_end() {
    let served = Served::start().await;
    let order = Mutex::new(Vec::new());
    let slow = async {
        let waited = served.call("token-of-a", 1, "wait", json!({})).await;
        order.lock().unwrap().push(said(&waited).to_owned());
    };
    let quick = async {
        let echoed = served
            .call("token-of-a", 2, "echo", json!({"text": 1}))
            .await;
        order.lock().unwrap().push(said(&echoed).to_owned());
        served.bench.go.notify_one();
    };
    tokio::join!(slow, quick);
    assert_eq!(*order.lock().unwrap(), ["a: 1", "waited"]);
}

#[tokio::test]
async fn a_call_ends_with_its_connection_or_when_it_is_cancelled() {
    let mut served = Served::start().await;
    let params = json!({ "name": "wait", "arguments": {} });
    let wait = json!({ "jsonrpc": "2.0", "id": "w", "method": "tools/call", "params": params });
    let response = served.post("token-of-a", &wait).send().await.unwrap();
    drop(response);
    timeout(DEADLINE, served.cancelled.recv())
        .await
        .unwrap()
        .unwrap();

    let response = served.post("token-of-a", &wait).send().await.unwrap();
    let cancel = |id: &str| json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": id } });
    // Another instance's call of that name, and another call, are left alone.
    assert_eq!(status(served.post("token-of-b", &cancel("w"))).await, 202);
    assert_eq!(status(served.post("token-of-a", &cancel("v"))).await, 202);
    assert!(served.cancelled.try_recv().is_err());
    assert_eq!(status(served.post("token-of-a", &cancel("w"))).await, 202);
    timeout(DEADLINE, served.cancelled.recv())
        .await
        .unwrap()
        .unwrap();
    drop(response);

    let _open = served.post("token-of-a", &wait).send().await.unwrap();
    served.stop.cancel();
    timeout(DEADLINE, served.cancelled.recv())
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn an_instance_has_only_so_many_calls_at_once() {
    let served = Served::start().await;
    let params = json!({ "name": "wait", "arguments": {} });
    let mut open = Vec::new();
    for id in 0..MAX_CALLS {
        let wait = json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params });
        open.push(served.post("token-of-a", &wait).send().await.unwrap());
    }
    // The answers' heads are there before the calls are; the last place is taken when one is refused.
    let refused = loop {
        let next = served
            .call("token-of-a", 999, "echo", json!({"text": 1}))
            .await;
        if next["result"]["isError"] == true {
            break next;
        }
    };
    assert!(said(&refused).contains("wait until one of them ends"));
    assert_eq!(
        said(
            &served
                .call("token-of-b", 1, "echo", json!({"text": 1}))
                .await
        ),
        "b: 1"
    );
}

fn peer(env: &[(&str, &str)]) -> ServerSpec {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/peers/server.py");
    ServerSpec::Command {
        command: vec!["python3".into(), script.display().to_string()],
        env: env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
    }
}

async fn externals(specs: &[(&str, ServerSpec)]) -> Externals {
    let path = std::env::var_os("PATH").unwrap();
    let externals = Externals::new(vec![("PATH".into(), path)], std::env::temp_dir());
    configure(&externals, specs).await;
    externals
}

async fn configure(externals: &Externals, specs: &[(&str, ServerSpec)]) {
    let specs: BTreeMap<_, _> = specs
        .iter()
        .map(|(name, spec)| ((*name).to_owned(), spec.clone()))
        .collect();
    externals.configure(specs).await;
}

async fn call(
    externals: &Externals,
    server: &str,
    tool: &str,
    arguments: Value,
) -> Result<ToolOutcome, CallError> {
    let arguments: Map<String, Value> = arguments.as_object().unwrap().clone();
    let never = CancellationToken::new();
    timeout(DEADLINE, externals.call(server, tool, arguments, &never))
        .await
        .unwrap()
}

#[tokio::test]
async fn tools_of_a_process_are_listed_and_called() {
    let externals = externals(&[("peer", peer(&[("SECRET", "s3")]))]).await;
    let listed = externals.list().await;
    let names: Vec<&str> = listed.iter().map(|tool| tool.spec.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "peer__echo",
            "peer__variable",
            "peer__crash",
            "peer__never",
            "peer__children",
            "peer__picture"
        ]
    );
    let network: Vec<&str> = listed
        .iter()
        .filter(|it| it.network)
        .map(|it| it.tool.as_str())
        .collect();
    assert_eq!(network, ["picture"], "the one that says so");
    let echo = call(&externals, "peer", "echo", json!({"text": "hi"}))
        .await
        .unwrap();
    assert_eq!(
        echo,
        ToolOutcome {
            content: vec![Content::Text("hi".into())],
            ..ToolOutcome::default()
        }
    );
    let own = call(&externals, "peer", "variable", json!({"name": "SECRET"}))
        .await
        .unwrap();
    assert_eq!(own.to_text(), "s3");
    let ours = call(
        &externals,
        "peer",
        "variable",
        json!({"name": "CARGO_MANIFEST_DIR"}),
    )
    .await
    .unwrap();
    assert_eq!(ours.to_text(), "not set", "our environment is not theirs");
    let picture = call(&externals, "peer", "picture", json!({}))
        .await
        .unwrap();
    assert!(matches!(&picture.content[0], Content::Block(block) if block["type"] == "image"));
    let refused = call(&externals, "peer", "nothing", json!({}))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, CallError::Refused { reason, .. } if reason.contains("no tool nothing"))
    );
    assert_eq!(
        call(&externals, "other", "echo", json!({})).await,
        Err(CallError::Unknown("other".into()))
    );
    assert!(externals.find("other__echo").await.is_none());
    assert_eq!(
        externals.find("peer__echo").await.unwrap().unwrap().tool,
        "echo"
    );
    externals.shutdown().await;
}

#[tokio::test]
async fn a_crash_is_told_and_the_server_comes_back() {
    let externals = externals(&[("peer", peer(&[]))]).await;
    let crashed = call(&externals, "peer", "crash", json!({}))
        .await
        .unwrap_err();
    let CallError::Crashed { server, reason } = &crashed else {
        panic!("{crashed:?}");
    };
    assert_eq!(server, "peer");
    assert!(
        reason.contains("exit status: 7") && reason.contains("out of cheese"),
        "{reason}"
    );
    let again = call(&externals, "peer", "echo", json!({"text": "x"}))
        .await
        .unwrap_err();
    assert!(
        matches!(&again, CallError::Unavailable { reason, .. } if reason.contains("started again in"))
    );
    let back = loop {
        match call(&externals, "peer", "echo", json!({"text": "back"})).await {
            Ok(outcome) => break outcome,
            Err(CallError::Unavailable { .. }) => tokio::task::yield_now().await,
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(back.to_text(), "back");
    externals.shutdown().await;
}

#[tokio::test]
async fn a_server_that_does_not_start_says_why() {
    let command = |words: &[&str]| ServerSpec::Command {
        command: words.iter().map(|word| (*word).to_owned()).collect(),
        env: BTreeMap::new(),
    };
    let externals = externals(&[
        ("missing", command(&["/no/such/program"])),
        ("mute", command(&["sh", "-c", "echo no key >&2; exit 3"])),
    ])
    .await;
    assert!(externals.list().await.is_empty());
    let missing = call(&externals, "missing", "x", json!({}))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        missing.contains("/no/such/program") && missing.contains("[mcps.missing]"),
        "{missing}"
    );
    let mute = call(&externals, "mute", "x", json!({}))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        mute.contains("exit status: 3") && mute.contains("no key"),
        "{mute}"
    );
}

#[tokio::test]
async fn a_server_that_hangs_holds_nobody_up_and_comes_when_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/peers/server.py");
    let line = format!(
        "while [ ! -e {} ]; do sleep 0.05; done; exec python3 {}",
        go.display(),
        script.display()
    );
    let hangs = ServerSpec::Command {
        command: vec!["sh".into(), "-c".into(), line],
        env: BTreeMap::new(),
    };
    let externals = externals(&[("hangs", hangs), ("peer", peer(&[]))]).await;
    let of = |tools: &[quintet_mcp::ExternalTool], server: &str| {
        tools.iter().any(|tool| tool.server == server)
    };
    let soon = Duration::from_secs(15);
    for _ in 0..3 {
        let listed = timeout(soon, externals.list()).await.unwrap();
        assert!(of(&listed, "peer") && !of(&listed, "hangs"));
        let missing = externals.missing();
        assert_eq!(missing.len(), 1, "{missing:?}");
        let (server, why) = &missing[0];
        assert!(
            server == "hangs" && why.contains("has not started"),
            "{why}"
        );
    }
    std::fs::write(&go, "").unwrap();
    let come = async {
        while !of(&externals.list().await, "hangs") {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, come).await.unwrap();
    assert_eq!(externals.missing(), []);
    externals.shutdown().await;
}

#[tokio::test]
async fn a_cancelled_call_ends_and_the_server_lives() {
    let externals = externals(&[("peer", peer(&[]))]).await;
    let cancel = CancellationToken::new();
    let never = externals.call("peer", "never", Map::new(), &cancel);
    let echo = async {
        let echo = call(&externals, "peer", "echo", json!({"text": "1"})).await;
        cancel.cancel();
        echo
    };
    let (never, echo) = tokio::join!(never, echo);
    assert_eq!(never, Err(CallError::Cancelled));
    assert_eq!(echo.unwrap().to_text(), "1", "while the other waited");
    externals.shutdown().await;
}

#[tokio::test]
async fn a_changed_server_is_ended_with_what_it_started() {
    let externals = externals(&[("peer", peer(&[])), ("kept", peer(&[]))]).await;
    let child = call(&externals, "peer", "children", json!({}))
        .await
        .unwrap()
        .to_text();
    let kept = call(&externals, "kept", "children", json!({}))
        .await
        .unwrap()
        .to_text();
    let alive = |pid: &str| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // One that nobody has waited for yet is dead all the same.
        !stat.is_empty() && !stat.contains(") Z ")
    };
    assert!(alive(&child) && alive(&kept));
    configure(
        &externals,
        &[("peer", peer(&[("A", "1")])), ("kept", peer(&[]))],
    )
    .await;
    assert!(!alive(&child));
    assert!(alive(&kept));
    externals.shutdown().await;
    assert!(!alive(&kept));
}

#[tokio::test]
async fn tools_of_a_url_are_listed_and_called() {
    let served = Served::start().await;
    let externals = externals(&[("far", served.external("token-of-a"))]).await;
    let listed = externals.list().await;
    assert_eq!(listed[0].spec.name, "far__echo");
    assert!(listed[0].network);
    let echoed = call(&externals, "far", "echo", json!({"text": "hi"}))
        .await
        .unwrap();
    assert_eq!(echoed.to_text(), "a: \"hi\"");
    configure(&externals, &[("far", served.external("guess"))]).await;
    let refused = call(&externals, "far", "echo", json!({}))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, CallError::Unavailable { .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_redirect_is_followed_at_home_and_takes_no_header_elsewhere() {
    let served = Served::start().await;
    let (told, mut asked) = mpsc::unbounded_channel();
    let elsewhere = axum::Router::new().fallback(move |headers: axum::http::HeaderMap| {
        let told = told.clone();
        async move {
            let _ = told.send(headers.contains_key("x-api-key"));
        }
    });
    let mut tasks = JoinSet::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let away = format!("http://{}/mcp", listener.local_addr().unwrap());
    tasks.spawn(async move { axum::serve(listener, elsewhere).await.unwrap() });

    let redirect = |to: String| {
        axum::routing::any(move || async move { axum::response::Redirect::temporary(&to) })
    };
    let options = ServerOptions {
        allowed_hosts: vec!["127.0.0.1".into()],
        stop: served.stop.clone(),
    };
    let app = router(served.bench.clone(), options)
        .route("/slash", redirect("/mcp".to_owned()))
        .route("/away", redirect(away));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tasks.spawn(async move { axum::serve(listener, app).await.unwrap() });
    let at = |path: &str| ServerSpec::Url {
        url: format!("{base}{path}"),
        headers: [
            ("Authorization", "Bearer token-of-a"),
            ("X-Api-Key", "a secret"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into(),
    };
    let externals = externals(&[("home", at("/slash")), ("away", at("/away"))]).await;
    let echoed = call(&externals, "home", "echo", json!({"text": "hi"})).await;
    assert_eq!(echoed.unwrap().to_text(), "a: \"hi\"");
    let refused = call(&externals, "away", "echo", json!({}))
        .await
        .unwrap_err();
    assert!(
        matches!(refused, CallError::Unavailable { .. }),
        "{refused}"
    );
    assert!(asked.try_recv().is_err(), "nobody else was asked");
}

#[tokio::test]
async fn a_server_that_is_down_is_told_in_words() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let down = format!("http://{}/mcp", free.local_addr().unwrap());
    drop(free);
    let served = Served::start().await;
    for (url, why) in [
        (down, "it can't be reached: Connection refused"),
        (served.url.clone(), "it asks for authorization"),
    ] {
        let spec = ServerSpec::Url {
            url: url.clone(),
            headers: BTreeMap::new(),
        };
        let externals = externals(&[("far", spec)]).await;
        let refused = call(&externals, "far", "echo", json!({}))
            .await
            .unwrap_err();
        let refused = refused.to_string();
        assert!(refused.contains(&url) && refused.contains(why), "{refused}");
        assert!(!refused.contains("rmcp"), "{refused}");
    }
}

/// A server that can be killed, as it is started by a shell: it leaves its number in a file.
fn killable(folder: &std::path::Path) -> ServerSpec {
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/peers/server.py");
    let line = format!(
        "[ -e {0}/go ] || {{ echo not yet >&2; exit 3; }}; echo $$ > {0}/pid; exec python3 {1}",
        folder.display(),
        script.display()
    );
    ServerSpec::Command {
        command: vec!["sh".into(), "-c".into(), line],
        env: BTreeMap::new(),
    }
}

async fn until_listed(externals: &Externals, there: bool) {
    let waiting = async {
        while externals.list().await.is_empty() == there {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, waiting).await.unwrap();
}

#[tokio::test]
async fn a_server_that_failed_at_first_comes_when_it_can() {
    let folder = tempfile::tempdir().unwrap();
    let externals = externals(&[("peer", killable(folder.path()))]).await;
    assert!(externals.list().await.is_empty());
    let (_, why) = externals.missing().remove(0);
    assert!(why.contains("not yet"), "{why}");
    std::fs::write(folder.path().join("go"), "").unwrap();
    until_listed(&externals, true).await;
    assert_eq!(externals.missing(), []);
    externals.shutdown().await;
}

#[tokio::test]
async fn a_server_that_dies_unused_is_missed_and_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("go"), "").unwrap();
    let externals = externals(&[("peer", killable(folder.path()))]).await;
    assert!(!externals.list().await.is_empty());
    std::fs::remove_file(folder.path().join("go")).unwrap();
    let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
    let killed = std::process::Command::new("kill")
        .args(["-9", pid.trim()])
        .status();
    assert!(killed.unwrap().success());
    until_listed(&externals, false).await;
    let (_, why) = externals.missing().remove(0);
    assert!(
        why.contains("signal: 9") || why.contains("not yet"),
        "{why}"
    );
    std::fs::write(folder.path().join("go"), "").unwrap();
    until_listed(&externals, true).await;
    let echo = call(&externals, "peer", "echo", json!({"text": "hi"})).await;
    assert_eq!(echo.unwrap().to_text(), "hi");
    externals.shutdown().await;
}
