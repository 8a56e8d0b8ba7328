//! A server that speaks the providers' documented streaming formats, for tests.
//!
//! Replies come from a script, one for each request in the order in which they arrive, and are
//! rendered in the format that was asked in: `POST /v1/messages` or `POST .../chat/completions`,
//! streamed or not. Everything that was received is kept.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::proto::sse;

/// One block of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Text.
    Text(String),
    /// A thought and its signature.
    Thinking(String, String),
    /// A call of a tool.
    Tool {
        /// Its id.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Value,
    },
}

/// A piece of a reply that is written byte by byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Sends bytes.
    Bytes(Bytes),
    /// Sends nothing more until the client goes away.
    Stall,
    /// Breaks the connection.
    Cut,
}

/// What the server answers.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// An answer of a model.
    Message(Message),
    /// An error, or whatever else has a status and a body.
    Status {
        /// The status.
        code: u16,
        /// Headers beside the content type.
        headers: Vec<(String, String)>,
        /// The body.
        body: String,
    },
    /// A stream as it is written here.
    Raw(Vec<Step>),
    /// Nothing at all, not even a status.
    Silence,
}

/// An answer of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Its content.
    pub blocks: Vec<Block>,
    /// Tokens read.
    pub input_tokens: u64,
    /// Tokens read from the cache.
    pub cached_tokens: u64,
    /// Tokens written.
    pub output_tokens: u64,
    /// Why it ends, in the words of the Messages format; empty is by its content.
    pub stop_reason: String,
    /// The stream is cut into parts of so many bytes; 0 is one part for each event.
    pub split: usize,
}

impl Message {
    /// An answer with a plain usage.
    pub fn new(blocks: Vec<Block>) -> Self {
        Self {
            blocks,
            input_tokens: 100,
            cached_tokens: 0,
            output_tokens: 10,
            stop_reason: String::new(),
            split: 0,
        }
    }

    fn stop_reason(&self) -> &str {
        let calls = || {
            self.blocks
                .iter()
                .any(|block| matches!(block, Block::Tool { .. }))
        };
        match self.stop_reason.as_str() {
            "" if calls() => "tool_use",
            "" => "end_turn",
            reason => reason,
        }
    }
}

impl Reply {
    /// An answer of one text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::blocks(vec![Block::Text(text.into())])
    }

    /// An answer of some blocks.
    pub fn blocks(blocks: Vec<Block>) -> Self {
        Self::Message(Message::new(blocks))
    }

    /// An answer that calls one tool.
    pub fn tool(id: &str, name: &str, input: Value) -> Self {
        Self::blocks(vec![Block::Tool {
            id: id.to_owned(),
            name: name.to_owned(),
            input,
        }])
    }

    /// An error in the Messages format.
    pub fn error(code: u16, kind: &str, message: &str) -> Self {
        Self::Status {
            code,
            headers: Vec::new(),
            body: json!({"type": "error", "error": {"type": kind, "message": message}}).to_string(),
        }
    }

    /// Reads a reply of a script: `{"text", "thinking", "tools": [{"id", "name", "input"}],
    /// "stop_reason", "input_tokens", "output_tokens"}` or `{"status", "headers", "body"}`.
    pub fn from_json(value: &Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        if let Some(code) = value["status"].as_u64() {
            let headers = value["headers"].as_object().into_iter().flatten();
            return Self::Status {
                code: u16::try_from(code).unwrap_or(500),
                headers: headers
                    .map(|(name, value)| {
                        let value = value.as_str().unwrap_or_default();
                        (name.clone(), value.to_owned())
                    })
                    .collect(),
                body: text("body"),
            };
        }
        let mut blocks = Vec::new();
        if !text("thinking").is_empty() {
            blocks.push(Block::Thinking(text("thinking"), "c2lnbmVk".to_owned()));
        }
        if !text("text").is_empty() {
            blocks.push(Block::Text(text("text")));
        }
        for (at, tool) in value["tools"].as_array().into_iter().flatten().enumerate() {
            blocks.push(Block::Tool {
                id: match tool["id"].as_str() {
                    Some(id) => id.to_owned(),
                    None => format!("toolu_{at}"),
                },
                name: tool["name"].as_str().unwrap_or_default().to_owned(),
                input: tool["input"].clone(),
            });
        }
        let mut message = Message::new(blocks);
        message.stop_reason = text("stop_reason");
        for (key, field) in [
            ("input_tokens", &mut message.input_tokens),
            ("output_tokens", &mut message.output_tokens),
        ] {
            if let Some(number) = value[key].as_u64() {
                *field = number;
            }
        }
        Self::Message(message)
    }
}

/// A request that the server got.
#[derive(Debug, Clone)]
pub struct Received {
    /// Its path.
    pub path: String,
    /// Its headers, names in lower case.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Value,
    /// Its body as bytes.
    pub raw: Bytes,
}

impl Received {
    /// Whether it asks for a list of models, which no script has a reply for.
    pub fn lists_models(&self) -> bool {
        self.path.ends_with("/models")
    }

    /// A header as text; empty where it is absent.
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

type Answers = dyn Fn(&Received) -> Reply + Send + Sync;

struct Shared {
    answers: Box<Answers>,
    received: watch::Sender<Vec<Received>>,
    gone: watch::Sender<usize>,
}

/// The server; it ends when it is dropped.
pub struct TestServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

impl TestServer {
    /// Answers with a script on a free port of this machine; a request beyond its end gets 500.
    pub async fn start(script: Vec<Reply>) -> Self {
        let script = Mutex::new(VecDeque::from(script));
        Self::answering(move |received| {
            if received.lists_models() {
                return Reply::error(404, "not_found_error", "no list of models");
            }
            let next = script
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop_front();
            next.unwrap_or_else(|| Reply::error(500, "api_error", "the script is at its end"))
        })
        .await
    }

    /// Answers each request with what `answers` gives for it.
    pub async fn answering(answers: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        Self::on(listener, answers)
    }

    /// The same on a listener of the caller's.
    pub fn on(
        listener: TcpListener,
        answers: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("it listens");
        let shared = Arc::new(Shared {
            answers: Box::new(answers),
            received: watch::Sender::new(Vec::new()),
            gone: watch::Sender::new(0),
        });
        let app = Router::new()
            .fallback(receive)
            .with_state(Arc::clone(&shared));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::error!(%error, "the test server failed");
            }
        });
        Self {
            address,
            shared,
            _serving: serving,
        }
    }

    /// Where it listens: `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that was received so far.
    pub fn received(&self) -> Vec<Received> {
        self.shared.received.borrow().clone()
    }

    /// Waits until so many requests were received.
    pub async fn wait_for_received(&self, count: usize) {
        let mut received = self.shared.received.subscribe();
        // The sender lives as long as the server.
        let _ = received.wait_for(|all| all.len() >= count).await;
    }

    /// Waits until so many clients have gone away before the end of their reply.
    pub async fn wait_for_gone(&self, count: usize) {
        let mut gone = self.shared.gone.subscribe();
        // The sender lives as long as the server.
        let _ = gone.wait_for(|gone| *gone >= count).await;
    }
}

async fn receive(State(shared): State<Arc<Shared>>, request: HttpRequest) -> Response {
    let (parts, body) = request.into_parts();
    let raw = axum::body::to_bytes(body, 64 << 20)
        .await
        .unwrap_or_default();
    let received = Received {
        path: parts.uri.path().to_owned(),
        headers: parts.headers,
        body: serde_json::from_slice(&raw).unwrap_or_default(),
        raw,
    };
    shared
        .received
        .send_modify(|all| all.push(received.clone()));
    match (shared.answers)(&received) {
        Reply::Status {
            code,
            headers,
            body,
        } => {
            let status = StatusCode::from_u16(code).unwrap_or(StatusCode::IM_A_TEAPOT);
            let mut response = (status, body).into_response();
            for (name, value) in headers {
                if let (Ok(name), Ok(value)) =
                    (HeaderName::try_from(name), HeaderValue::try_from(value))
                {
                    response.headers_mut().insert(name, value);
                }
            }
            response
        }
        Reply::Raw(steps) => written(&shared, steps),
        Reply::Silence => std::future::pending().await,
        Reply::Message(message) => {
            let is_chat = received.path.ends_with("/chat/completions");
            let model = received.body["model"].as_str().unwrap_or_default();
            if received.body["stream"] != true {
                let body = match is_chat {
                    true => chat_answer(&message, model),
                    false => messages_answer(&message, model),
                };
                return axum::Json(body).into_response();
            }
            let events = match is_chat {
                true => chat_stream(&message, model),
                false => messages_stream(&message, model),
            };
            let parts = match message.split {
                0 => events,
                size => {
                    let all = events.concat();
                    all.chunks(size).map(Bytes::copy_from_slice).collect()
                }
            };
            written(&shared, parts.into_iter().map(Step::Bytes).collect())
        }
    }
}

/// Tells of a client that goes away before the end.
struct Watched {
    gone: watch::Sender<usize>,
    ended: bool,
}

impl Watched {
    fn end(&mut self) {
        self.ended = true;
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if !self.ended {
            self.gone.send_modify(|count| *count += 1);
        }
    }
}

fn written(shared: &Shared, steps: Vec<Step>) -> Response {
    let mut watched = Watched {
        gone: shared.gone.clone(),
        ended: false,
    };
    let body = async_stream::stream! {
        for step in steps {
            match step {
                Step::Bytes(bytes) => {
                    yield Ok(bytes);
                    // Each part is a write of its own.
                    tokio::task::yield_now().await;
                }
                Step::Stall => std::future::pending().await,
                Step::Cut => yield Err(std::io::Error::other("cut")),
            }
        }
        watched.end();
    };
    (
        [(header::CONTENT_TYPE, "text/event-stream")],
        Body::from_stream(body),
    )
        .into_response()
}

fn content(message: &Message) -> Vec<Value> {
    message
        .blocks
        .iter()
        .map(|block| match block {
            Block::Text(text) => json!({"type": "text", "text": text}),
            Block::Thinking(text, signature) => {
                json!({"type": "thinking", "thinking": text, "signature": signature})
            }
            Block::Tool { id, name, input } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        })
        .collect()
}

fn messages_answer(message: &Message, model: &str) -> Value {
    json!({
        "id": "msg_test", "type": "message", "role": "assistant", "model": model,
        "content": content(message), "stop_reason": message.stop_reason(), "stop_sequence": null,
        "usage": {"input_tokens": message.input_tokens, "output_tokens": message.output_tokens,
            "cache_read_input_tokens": message.cached_tokens, "cache_creation_input_tokens": 0},
    })
}

/// The events of a Messages stream, each as its bytes.
pub fn messages_stream(message: &Message, model: &str) -> Vec<Bytes> {
    let event = |data: Value| sse::encode(data["type"].as_str(), &data.to_string());
    let mut out = vec![
        event(json!({"type": "message_start", "message": {
            "id": "msg_test", "type": "message", "role": "assistant", "model": model,
            "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": message.input_tokens, "output_tokens": 1,
                "cache_read_input_tokens": message.cached_tokens,
                "cache_creation_input_tokens": 0},
        }})),
        event(json!({"type": "ping"})),
    ];
    for (index, block) in message.blocks.iter().enumerate() {
        let (start, deltas) = match block {
            Block::Text(text) => (
                json!({"type": "text", "text": ""}),
                halves(text)
                    .map(|part| json!({"type": "text_delta", "text": part}))
                    .collect::<Vec<_>>(),
            ),
            Block::Thinking(text, signature) => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                halves(text)
                    .map(|part| json!({"type": "thinking_delta", "thinking": part}))
                    .chain([json!({"type": "signature_delta", "signature": signature})])
                    .collect(),
            ),
            Block::Tool { id, name, input } => (
                json!({"type": "tool_use", "id": id, "name": name, "input": {}}),
                halves(&input.to_string())
                    .map(|part| json!({"type": "input_json_delta", "partial_json": part}))
                    .collect(),
            ),
        };
        out.push(event(
            json!({"type": "content_block_start", "index": index, "content_block": start}),
        ));
        out.extend(deltas.into_iter().map(|delta| {
            event(json!({"type": "content_block_delta", "index": index, "delta": delta}))
        }));
        out.push(event(json!({"type": "content_block_stop", "index": index})));
    }
    out.push(event(json!({"type": "message_delta",
        "delta": {"stop_reason": message.stop_reason(), "stop_sequence": null},
        "usage": {"output_tokens": message.output_tokens}})));
    out.push(event(json!({"type": "message_stop"})));
    out
}

fn chat_answer(message: &Message, model: &str) -> Value {
    crate::proto::translate::messages_to_chat(&messages_answer(message, model), 1)
}

/// The chunks of a Chat Completions stream, each as its bytes.
pub fn chat_stream(message: &Message, model: &str) -> Vec<Bytes> {
    let mut translation = crate::proto::translate::MessagesToChat::new(1, true);
    let mut splitter = sse::Splitter::new(crate::proto::MAX_EVENT);
    let mut out = Vec::new();
    for event in messages_stream(message, model) {
        splitter.push(&event);
        while let Ok(Some(event)) = splitter.next_event() {
            out.extend(translation.event(&event.data));
        }
    }
    out
}

/// A text in two parts, so that nobody gets away with reading one.
fn halves(text: &str) -> impl Iterator<Item = &str> {
    let middle = (text.len() / 2..=text.len())
        .find(|at| text.is_char_boundary(*at))
        .unwrap_or(0);
    let (first, second) = text.split_at(middle);
    [first, second].into_iter().filter(|part| !part.is_empty())
}
