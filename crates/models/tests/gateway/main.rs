//! The gateway against servers that speak the providers' formats, over real sockets.
#![expect(clippy::unwrap_used, reason = "tests")]

mod booking;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use quintet_models::proto::retry::RetryPolicy;
use quintet_models::test_server::{
    Block, Message, Reply, Step, TestServer, chat_stream, messages_stream,
};
use quintet_models::{
    Access, ApiKey, CallRecord, Caller, Gateway, GatewayOptions, Provider, ProviderKind, Providers,
    Usage,
};
use rust_decimal::Decimal;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

const SECRET: &str = "sk-provider-secret-4711";
const KEY: &str = "instance-key";

struct Books {
    providers: Arc<Providers>,
    fallback: Vec<String>,
    budget: Mutex<Option<String>>,
    records: watch::Sender<Vec<CallRecord>>,
    went_on: Mutex<Vec<String>>,
}

impl Access for Books {
    type Leave = ();

    fn caller(&self, key: &str) -> Option<Caller> {
        (key == KEY).then(|| Caller {
            instance: "coder-1".into(),
            agent: "coder".into(),
            session: 1,
            model: None,
            fallback: self.fallback.clone(),
        })
    }

    fn providers(&self) -> Arc<Providers> {
        Arc::clone(&self.providers)
    }

    async fn admit(&self, _: &Caller, _: Decimal) -> Result<(), String> {
        match self.budget.lock().unwrap().clone() {
            Some(sentence) => Err(sentence),
            None => Ok(()),
        }
    }

    async fn went_on(&self, _: &Caller, failed: &[(String, String)], to: &str) {
        let told = failed.iter().map(|(model, why)| format!("{model}: {why}"));
        let told = told.chain([to.to_owned()]).collect::<Vec<_>>().join(" | ");
        self.went_on.lock().unwrap().push(told);
    }

    async fn record(&self, _: Caller, call: CallRecord) {
        self.records.send_modify(|all| all.push(call));
    }
}

struct Bed {
    url: String,
    books: Arc<Books>,
    client: reqwest::Client,
    _serving: JoinSet<()>,
}

fn provider(name: &str, kind: ProviderKind, server: &TestServer) -> Provider {
    let base_url = match kind {
        ProviderKind::OpenAi => format!("{}/v1", server.url()),
        _ => server.url(),
    };
    Provider {
        name: name.into(),
        kind,
        base_url,
        key: ApiKey::new(SECRET),
        models: Vec::new(),
        prices: BTreeMap::new(),
    }
}

impl Bed {
    async fn new(providers: Vec<Provider>) -> Self {
        Self::with(providers, &[], Duration::from_secs(10)).await
    }

    async fn with(providers: Vec<Provider>, fallback: &[&str], idle: Duration) -> Self {
        let books = Arc::new(Books {
            providers: Arc::new(Providers::new(providers)),
            fallback: fallback.iter().map(|name| (*name).to_owned()).collect(),
            budget: Mutex::default(),
            records: watch::Sender::new(Vec::new()),
            went_on: Mutex::default(),
        });
        let options = GatewayOptions {
            idle,
            retry: RetryPolicy {
                attempts: 3,
                first_pause: Duration::from_millis(2),
                longest_pause: Duration::from_millis(4),
                longest_retry_after: Duration::from_secs(2),
            },
            ..GatewayOptions::default()
        };
        let gateway = Gateway::new(Arc::clone(&books), options);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let mut serving = JoinSet::new();
        let app = gateway.router();
        serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .build()
            .unwrap();
        Self {
            url,
            books,
            client,
            _serving: serving,
        }
    }

    async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> reqwest::Response {
        self.client
            .post(format!("{}{path}", self.url))
            .bearer_auth(KEY)
            .header("anthropic-beta", "prompt-caching-x")
            .body(body)
            .send()
            .await
            .unwrap()
    }

    async fn messages(&self, body: &Value) -> reqwest::Response {
        self.post("/v1/messages", body.to_string()).await
    }

    async fn chat(&self, body: &Value) -> reqwest::Response {
        self.post("/v1/chat/completions", body.to_string()).await
    }

    fn records(&self) -> Vec<CallRecord> {
        self.books.records.borrow().clone()
    }

    async fn recorded(&self, count: usize) -> Vec<CallRecord> {
        let mut records = self.books.records.subscribe();
        let all = records.wait_for(|all| all.len() >= count).await.unwrap();
        all.clone()
    }
}

fn ask(stream: bool) -> Value {
    json!({"model": "m", "max_tokens": 50, "stream": stream,
           "messages": [{"role": "user", "content": "hi"}]})
}

fn answer() -> Message {
    let mut message = Message::new(vec![
        Block::Thinking("let me see \u{1F914}".into(), "EqQBCgIYAhIkZ+/=".into()),
        Block::Text("Hello, \u{4e16}\u{754c}".into()),
        Block::Tool {
            id: "toolu_1".into(),
            name: "exec".into(),
            input: json!({"command": "ls"}),
        },
    ]);
    message.cached_tokens = 40;
    message
}

fn message_of(text: &str) -> Value {
    let body: Value = serde_json::from_str(text).unwrap();
    body["error"].clone()
}

#[tokio::test]
async fn a_stream_passes_byte_for_byte_and_is_metered_in_parts_of_every_size() {
    for split in [0, 1, 7, 64, 100_000] {
        let mut message = answer();
        message.split = split;
        let server = TestServer::start(vec![Reply::Message(message.clone())]).await;
        let bed = Bed::new(vec![provider(
            "anthropic",
            ProviderKind::Anthropic,
            &server,
        )])
        .await;
        let body = r#"{"model":"anthropic/m" ,"stream":true,"max_tokens":50,"later":{"a":[1 ,2]},"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":"Eq+/=="}]}]}"#;
        let response = bed.post("/v1/messages", body).await;
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let passed = response.bytes().await.unwrap();
        let expected: Vec<u8> = messages_stream(&message, "m").concat();
        assert_eq!(passed, expected, "in parts of {split}");

        let [received] = &server.received()[..] else {
            panic!("one request");
        };
        assert_eq!(
            received.raw,
            r#"{"stream":true,"max_tokens":50,"later":{"a":[1 ,2]},"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"x","signature":"Eq+/=="}]}],"model":"m"}"#
        );
        assert_eq!(received.path, "/v1/messages");
        assert_eq!(received.header("x-api-key"), SECRET);
        assert_eq!(
            received.header("authorization"),
            "",
            "the instance's key stays here"
        );
        assert_eq!(received.header("anthropic-beta"), "prompt-caching-x");
        assert_eq!(received.header("anthropic-version"), "2023-06-01");
        let [record] = &bed.records()[..] else {
            panic!("booked once, before the end was seen");
        };
        assert_eq!(
            record.usage,
            Usage {
                input: 100,
                cache_read: 40,
                output: 10,
                ..Usage::default()
            }
        );
        // The unknown model `m` costs what the default does: 2, 10 and 0.1 for a million.
        assert_eq!(record.cost, Decimal::new(304, 6));
    }
}

#[tokio::test]
async fn an_answer_that_is_not_streamed_passes_too() {
    let server = TestServer::start(vec![Reply::Message(answer()), Reply::Message(answer())]).await;
    let bed = Bed::new(vec![
        provider("anthropic", ProviderKind::Anthropic, &server),
        provider("openai", ProviderKind::OpenAi, &server),
    ])
    .await;
    let mut request = ask(false);
    request["model"] = "anthropic/m".into();
    let body: Value = bed.messages(&request).await.json().await.unwrap();
    assert_eq!(body["content"][0]["signature"], "EqQBCgIYAhIkZ+/=");
    request["model"] = "openai/m".into();
    let body: Value = bed.chat(&request).await.json().await.unwrap();
    assert_eq!(
        body["choices"][0]["message"]["tool_calls"][0]["id"],
        "toolu_1"
    );
    let received = server.received();
    assert_eq!(received[1].path, "/v1/chat/completions");
    assert_eq!(
        received[1].header("authorization"),
        format!("Bearer {SECRET}")
    );
    assert_eq!(bed.records().len(), 2);
    assert_eq!(bed.records()[1].usage.cache_read, 40);
}

#[tokio::test]
async fn a_chat_stream_passes_without_the_usage_that_only_we_asked_for() {
    let message = answer();
    let server = TestServer::start(vec![
        Reply::Message(message.clone()),
        Reply::Message(message.clone()),
    ])
    .await;
    let bed = Bed::new(vec![provider("openai", ProviderKind::OpenAi, &server)]).await;
    let all = chat_stream(&message, "m");
    let passed = bed.chat(&ask(true)).await.bytes().await.unwrap();
    let without: Vec<Bytes> = all
        .iter()
        .filter(|event| !event.windows(8).any(|part| part == b"\"usage\":"))
        .cloned()
        .collect();
    assert_eq!(passed, without.concat());
    let mut request = ask(true);
    request["stream_options"] = json!({"include_usage": true});
    let passed = bed.chat(&request).await.bytes().await.unwrap();
    assert_eq!(passed, all.concat());
    let usage = Usage {
        input: 100,
        cache_read: 40,
        output: 10,
        ..Usage::default()
    };
    assert!(bed.records().iter().all(|record| record.usage == usage));
    assert!(bed.records().iter().all(|record| record.cost.is_zero()));
}

/// The blocks that a client of the Messages format reads.
fn blocks_of(stream: &str) -> Vec<(String, String)> {
    let mut blocks: Vec<(String, String)> = Vec::new();
    for line in stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
    {
        let event: Value = serde_json::from_str(line).unwrap();
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                let kind = event["content_block"]["type"].as_str().unwrap().to_owned();
                blocks.push((kind, String::new()));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let text = ["text", "thinking", "partial_json"]
                    .iter()
                    .find_map(|key| delta[*key].as_str());
                blocks
                    .last_mut()
                    .unwrap()
                    .1
                    .push_str(text.unwrap_or_default());
            }
            _ => {}
        }
    }
    blocks
}

#[tokio::test]
async fn each_format_is_served_by_a_provider_of_the_other() {
    let server = TestServer::start(vec![
        Reply::Message(answer()),
        Reply::Message(answer()),
        Reply::Message(answer()),
        Reply::Message(answer()),
    ])
    .await;
    let bed = Bed::new(vec![
        provider("a", ProviderKind::Anthropic, &server),
        provider("o", ProviderKind::OpenAi, &server),
    ])
    .await;
    let mut request = ask(true);
    request["model"] = "o/m".into();
    let text = bed.messages(&request).await.text().await.unwrap();
    let pair = |kind: &str, text: &str| (kind.to_owned(), text.to_owned());
    assert_eq!(
        blocks_of(&text),
        [
            pair("thinking", "let me see \u{1F914}"),
            pair("text", "Hello, \u{4e16}\u{754c}"),
            pair("tool_use", r#"{"command":"ls"}"#),
        ]
    );
    assert!(text.contains(r#""stop_reason":"tool_use""#), "{text}");
    assert!(
        text.ends_with("data: {\"type\":\"message_stop\"}\n\n"),
        "{text}"
    );

    request["model"] = "a/m".into();
    let text = bed.chat(&request).await.text().await.unwrap();
    let mut said = String::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("data: {")) {
        let chunk: Value = serde_json::from_str(&format!("{{{line}")).unwrap();
        said.push_str(
            chunk["choices"][0]["delta"]["content"]
                .as_str()
                .unwrap_or_default(),
        );
    }
    assert_eq!(said, "Hello, \u{4e16}\u{754c}");
    assert!(text.ends_with("data: [DONE]\n\n"), "{text}");

    request["stream"] = false.into();
    let body: Value = bed.chat(&request).await.json().await.unwrap();
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    request["model"] = "o/m".into();
    let body: Value = bed.messages(&request).await.json().await.unwrap();
    assert_eq!(body["content"][1]["text"], "Hello, \u{4e16}\u{754c}");
    assert_eq!(bed.records().len(), 4);
    assert!(bed.records().iter().all(|record| record.usage.output == 10));
}

fn limited(after: &str) -> Reply {
    Reply::Status {
        code: 429,
        headers: vec![("retry-after".into(), after.into())],
        body: r#"{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}"#.into(),
    }
}

fn overloaded_event() -> Reply {
    let event = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    Reply::Raw(vec![Step::Bytes(event.into())])
}

#[tokio::test]
async fn busy_providers_are_asked_again() {
    for first in [
        limited("0.05"),
        Reply::error(529, "overloaded_error", "Overloaded"),
        Reply::error(500, "api_error", "oops"),
        overloaded_event(),
        Reply::Raw(vec![Step::Cut]),
    ] {
        let shown = format!("{first:?}");
        let server = TestServer::start(vec![first, Reply::text("at last")]).await;
        let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
        let text = bed.messages(&ask(true)).await.text().await.unwrap();
        assert_eq!(
            blocks_of(&text),
            [("text".to_owned(), "at last".to_owned())],
            "{shown}"
        );
        assert_eq!(server.received().len(), 2);
        assert_eq!(bed.records().len(), 1, "only the answer is booked");
    }
}

#[tokio::test]
async fn an_empty_account_is_not_waited_for() {
    let empty = || {
        Reply::Status {
        code: 429,
        headers: Vec::new(),
        body: r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","param":null,"code":"insufficient_quota"}}"#.into(),
    }
    };
    let server = TestServer::start(vec![empty(), Reply::text("never")]).await;
    let bed = Bed::new(vec![provider("p", ProviderKind::OpenAi, &server)]).await;
    let response = bed.messages(&ask(false)).await;
    assert_eq!(response.status(), 403);
    let said = response.text().await.unwrap();
    assert!(said.contains("Add credit"), "{said}");
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn retry_after_is_respected() {
    let server = TestServer::start(vec![limited("0.3"), Reply::text("ok")]).await;
    let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
    let begun = std::time::Instant::now();
    assert_eq!(bed.messages(&ask(false)).await.status(), 200);
    assert!(begun.elapsed() >= Duration::from_millis(300));

    // Longer than a provider is waited for, however that is said.
    let date = httpdate::fmt_http_date(std::time::SystemTime::now() + Duration::from_secs(600));
    let server = TestServer::start(vec![limited(&date)]).await;
    let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
    assert_eq!(
        bed.messages(&ask(false)).await.status(),
        429,
        "not waited for"
    );
    assert_eq!(server.received().len(), 1);

    let server = TestServer::start(vec![limited("90")]).await;
    let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
    let response = bed.messages(&ask(false)).await;
    assert_eq!(response.status(), 429, "not waited for");
    assert_eq!(response.headers()["retry-after"], "90");
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn every_model_that_failed_is_named() {
    let first = TestServer::start(vec![Reply::error(401, "authentication_error", "bad key")]);
    let second = TestServer::start(vec![Reply::error(401, "authentication_error", "no money")]);
    let (first, second) = (first.await, second.await);
    let bed = Bed::with(
        vec![
            provider("a", ProviderKind::Anthropic, &first),
            provider("b", ProviderKind::OpenAi, &second),
        ],
        &["b/other"],
        Duration::from_secs(10),
    )
    .await;
    let mut request = ask(true);
    request["model"] = "a/m".into();
    let told = bed.messages(&request).await.text().await.unwrap();
    for part in [
        "no model answered",
        "a/m: ",
        "bad key",
        "b/other: ",
        "no money",
    ] {
        assert!(told.contains(part), "{part} in {told}");
    }
}

#[tokio::test]
async fn the_next_model_of_the_list_answers_when_the_first_does_not() {
    let down = TestServer::start(vec![
        Reply::error(529, "overloaded_error", "Overloaded"),
        Reply::error(529, "overloaded_error", "Overloaded"),
        Reply::error(529, "overloaded_error", "Overloaded"),
        Reply::error(401, "authentication_error", "bad key"),
        Reply::error(400, "invalid_request_error", "messages: too odd"),
    ])
    .await;
    let up = TestServer::start(vec![Reply::text("from b"), Reply::text("again b")]).await;
    let bed = Bed::with(
        vec![
            provider("a", ProviderKind::Anthropic, &down),
            provider("b", ProviderKind::OpenAi, &up),
        ],
        &["b/other"],
        Duration::from_secs(10),
    )
    .await;
    let mut request = ask(true);
    request["model"] = "a/m".into();
    let text = bed.messages(&request).await.text().await.unwrap();
    assert_eq!(blocks_of(&text), [("text".to_owned(), "from b".to_owned())]);
    assert_eq!(down.received().len(), 3);
    assert_eq!(up.received()[0].body["model"], "other");
    let told = bed.books.went_on.lock().unwrap().clone();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("a/m: a is overloaded") && told[0].ends_with("| b/other"),
        "{told:?}"
    );
    let text = bed.messages(&request).await.text().await.unwrap();
    assert_eq!(blocks_of(&text)[0].1, "again b");
    let response = bed.messages(&request).await;
    assert_eq!(
        response.status(),
        400,
        "what nobody would take is not passed around"
    );
    assert_eq!(up.received().len(), 2);
}

#[tokio::test]
async fn errors_are_sentences_without_the_key() {
    let echo = format!(
        r#"{{"type":"error","error":{{"type":"authentication_error","message":"invalid x-api-key {SECRET}"}}}}"#
    );
    let refused = Reply::Status {
        code: 401,
        headers: vec![("request-id".into(), SECRET.into())],
        body: echo,
    };
    let server =
        TestServer::start(vec![refused, Reply::text(format!("your key is {SECRET}"))]).await;
    let bed = Bed::new(vec![provider(
        "anthropic",
        ProviderKind::Anthropic,
        &server,
    )])
    .await;
    let response = bed.messages(&ask(true)).await;
    assert_eq!(response.status(), 403);
    assert!(response.headers().get("request-id").is_none());
    let text = response.text().await.unwrap();
    let error = message_of(&text);
    assert_eq!(error["type"], "permission_error");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("anthropic refused the key"), "{message}");
    assert!(
        message.contains("quintet config set providers.anthropic.api_key"),
        "{message}"
    );
    assert!(!text.contains(SECRET), "{text}");
    let text = bed.messages(&ask(false)).await.text().await.unwrap();
    assert!(
        !text.contains(SECRET) && text.contains("your key is ***"),
        "{text}"
    );
}

#[tokio::test]
async fn a_provider_that_is_not_there_is_named() {
    let server = TestServer::start(Vec::new()).await;
    let mut gone = provider("lab", ProviderKind::OpenAi, &server);
    // A port that nobody listens on: bound here and not served.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    gone.base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    drop(listener);
    let bed = Bed::new(vec![gone]).await;
    let text = bed.chat(&ask(true)).await.text().await.unwrap();
    let message = message_of(&text)["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("lab can't be reached at 127.0.0.1"),
        "{message}"
    );
    assert!(message.contains("providers.lab.base_url"), "{message}");
}

/// The beginning of an answer, then something else.
fn broken(steps: Vec<Step>) -> Reply {
    let begun = messages_stream(&answer(), "m").into_iter().take(5);
    Reply::Raw(begun.map(Step::Bytes).chain(steps).collect())
}

#[tokio::test]
async fn a_stream_that_breaks_ends_with_an_error_and_is_booked() {
    let overloaded: Bytes = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n".into();
    for (steps, part) in [
        (vec![Step::Bytes(overloaded)], "overloaded"),
        (vec![Step::Cut], "in the middle"),
        (Vec::new(), "in the middle"),
        (vec![Step::Stall], "sent nothing for"),
        (vec![Step::Bytes(vec![b'x'; 9 << 20].into())], "larger than"),
    ] {
        let server = TestServer::start(vec![broken(steps)]).await;
        let bed = Bed::with(
            vec![provider("p", ProviderKind::Anthropic, &server)],
            &[],
            Duration::from_millis(300),
        )
        .await;
        let text = bed.messages(&ask(true)).await.text().await.unwrap();
        let last = text
            .lines()
            .rfind(|line| line.starts_with("data: "))
            .unwrap();
        let message = message_of(&last[6..])["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(message.contains(part), "{message}");
        assert_eq!(
            server.received().len(),
            1,
            "nothing is asked twice after a first byte"
        );
        let record = &bed.records()[0];
        assert_eq!(record.usage.input, 100);
        assert!(record.usage.output > 0, "what was written is estimated");
    }
}

#[tokio::test]
async fn garbage_is_no_answer() {
    for reply in [
        Reply::Raw(vec![Step::Bytes("\u{0}garbage\n\n\n".into())]),
        Reply::Status {
            code: 200,
            headers: vec![("content-type".into(), "text/html".into())],
            body: "<html>".into(),
        },
    ] {
        let script = std::iter::repeat_n(reply, 3).collect();
        let server = TestServer::start(script).await;
        let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
        for stream in [true, false] {
            if stream || !matches!(server.received().len(), 3..) {
                let response = bed.messages(&ask(stream)).await;
                assert!(response.status().is_server_error());
                let message = message_of(&response.text().await.unwrap());
                assert!(!message["message"].as_str().unwrap().is_empty());
            }
        }
    }
}

#[tokio::test]
async fn budgets_and_keys_are_checked_before_the_call() {
    let server = TestServer::start(vec![Reply::text("ok")]).await;
    let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
    let wrong = bed
        .client
        .post(format!("{}/v1/messages", bed.url))
        .header("x-api-key", "stolen")
        .body(ask(false).to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(wrong.status(), 401);
    *bed.books.budget.lock().unwrap() = Some("the budget of 1 for the day is used up".into());
    let response = bed.messages(&ask(false)).await;
    assert_eq!(response.status(), 402);
    let error = message_of(&response.text().await.unwrap());
    assert_eq!(error["type"], "budget_error");
    assert_eq!(error["message"], "the budget of 1 for the day is used up");
    assert!(server.received().is_empty());
    *bed.books.budget.lock().unwrap() = None;
    let response = bed
        .client
        .post(format!("{}/v1/messages", bed.url))
        .header("x-api-key", KEY)
        .body(ask(false).to_string())
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_provider_without_a_default_is_asked_what_it_has() {
    let server = TestServer::answering(|received| match received.path.as_str() {
        "/v1/models" => Reply::Status {
            code: 200,
            headers: Vec::new(),
            body: r#"{"object":"list","data":[{"id":"qwen3"},{"id":"other"}]}"#.into(),
        },
        _ => Reply::text(received.body["model"].as_str().unwrap()),
    })
    .await;
    let mut ollama = provider("ollama", ProviderKind::Ollama, &server);
    ollama.key = None;
    let bed = Bed::new(vec![ollama]).await;
    let mut request = ask(false);
    request["model"] = "default".into();
    let body: Value = bed.messages(&request).await.json().await.unwrap();
    assert_eq!(body["content"][0]["text"], "qwen3");
    assert_eq!(server.received()[1].header("authorization"), "");
}

#[tokio::test]
async fn models_are_listed_and_unknown_ones_explained() {
    let server = TestServer::start(Vec::new()).await;
    let mut lab = provider("lab", ProviderKind::OpenAi, &server);
    lab.models = vec!["one".into(), "two".into()];
    let bed = Bed::new(vec![
        provider("anthropic", ProviderKind::Anthropic, &server),
        lab,
    ])
    .await;
    let list: Value = bed
        .client
        .get(format!("{}/v1/models", bed.url))
        .bearer_auth(KEY)
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    let ids: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, ["anthropic/claude-sonnet-5-5", "lab/one", "lab/two"]);
    let mut request = ask(false);
    request["model"] = "mystery".into();
    let response = bed.messages(&request).await;
    assert_eq!(response.status(), 404);
    let text = response.text().await.unwrap();
    assert!(text.contains("PROVIDER/MODEL"), "{text}");
    let odd = bed.post("/v1/messages", "[1]").await;
    assert_eq!(odd.status(), 400);
}

#[tokio::test]
async fn a_header_with_the_key_is_not_passed_back() {
    let headers = [
        ("content-type", "application/json"),
        ("request-id", "req-1"),
        ("x-request-id", SECRET),
    ];
    let answered = Reply::Status {
        code: 200,
        headers: headers
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        body: r#"{"content":[]}"#.into(),
    };
    let server = TestServer::start(vec![answered]).await;
    let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
    let response = bed.messages(&ask(false)).await;
    assert_eq!(response.headers()["request-id"], "req-1");
    assert!(response.headers().get("x-request-id").is_none());
}
