//! A small MCP server: files in memory, and a command that waits until it is let go.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

pub(crate) const TOKEN: &str = "mcp-token";

pub(crate) struct Shared {
    pub(crate) files: Mutex<BTreeMap<String, String>>,
    /// Lets one waiting `exec` go.
    pub(crate) gate: Notify,
    /// Tools that were called, in order.
    pub(crate) calls: watch::Sender<Vec<String>>,
}

pub(crate) struct ToolServer {
    pub(crate) url: String,
    pub(crate) shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

impl ToolServer {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/mcp", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            files: Mutex::default(),
            gate: Notify::new(),
            calls: watch::Sender::new(Vec::new()),
        });
        let app = Router::new()
            .route("/mcp", post(serve))
            .with_state(Arc::clone(&shared));
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self {
            url,
            shared,
            _serving: serving,
        }
    }

    pub(crate) fn file(&self, path: &str, text: &str) {
        self.shared
            .files
            .lock()
            .unwrap()
            .insert(path.to_owned(), text.to_owned());
    }

    /// Waits until so many tools were called by the model.
    pub(crate) async fn called(&self, count: usize) {
        let mut calls = self.shared.calls.subscribe();
        calls.wait_for(|calls| calls.len() >= count).await.unwrap();
    }
}

async fn serve(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: String) -> Response {
    if headers.get(header::AUTHORIZATION).unwrap() != format!("Bearer {TOKEN}").as_str() {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    let message: Value = serde_json::from_str(&body).unwrap();
    let Some(id) = message.get("id").cloned() else {
        return StatusCode::ACCEPTED.into_response();
    };
    let result = match message["method"].as_str().unwrap() {
        "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "test", "version": "1"}}),
        "tools/list" if message["params"]["cursor"].is_null() => json!({
            "tools": [tool("read_file"), tool("write_file")], "nextCursor": "2"}),
        "tools/list" => json!({"tools": [tool("list_files"), tool("exec")]}),
        "tools/call" => call(&shared, &message["params"]).await,
        other => panic!("{other} is not served"),
    };
    let reply = json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string();
    // Both forms of an answer that a server may choose.
    if message["method"] == "tools/call" {
        let talk = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}});
        let stream = format!("data: {talk}\n\nevent: message\ndata: {reply}\n\n");
        ([(header::CONTENT_TYPE, "text/event-stream")], stream).into_response()
    } else {
        ([(header::CONTENT_TYPE, "application/json")], reply).into_response()
    }
}

fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("the tool {name}"), "inputSchema": {"type": "object"}})
}

async fn call(shared: &Shared, params: &Value) -> Value {
    let arguments = &params["arguments"];
    let text = |key: &str| arguments[key].as_str().unwrap_or_default().to_owned();
    let said = |text: String| json!({"content": [{"type": "text", "text": text}]});
    let failed = |text: &str| json!({"content": [{"type": "text", "text": text}], "isError": true});
    match params["name"].as_str().unwrap() {
        "read_file" => match shared.files.lock().unwrap().get(&text("path")) {
            Some(content) => said(content.clone()),
            None => failed("there is no such file"),
        },
        "list_files" => {
            let files = shared.files.lock().unwrap();
            let names: Vec<&str> = files.keys().map(String::as_str).collect();
            said(names.join("\n"))
        }
        "write_file" => {
            let old = shared
                .files
                .lock()
                .unwrap()
                .insert(text("path"), text("content"));
            shared
                .calls
                .send_modify(|calls| calls.push("write_file".into()));
            json!({"content": [{"type": "text", "text": "written"}],
                "structuredContent": {"path": text("path"), "created": old.is_none(), "diff": "+new"}})
        }
        "exec" => {
            shared
                .calls
                .send_modify(|calls| calls.push(text("command")));
            if text("command").starts_with("wait") {
                shared.gate.notified().await;
            }
            if text("command") == "release" {
                shared.gate.notify_one();
            }
            said(format!("ran {}", text("command")))
        }
        other => failed(&format!("no tool {other}")),
    }
}
