//! The daemon's tools: a small client of MCP's streamable HTTP.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use quintet_models::proto::sse::Splitter;
use reqwest::{Client, Response, StatusCode, header};
use serde_json::{Value, json};

/// The version of the protocol that this client speaks.
const VERSION: &str = "2025-06-18";

/// Where the daemon finds our own id of a call.
const CALL_ID: &str = "quintet/call_id";

/// The largest message of the server.
const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// Pages of tools at the most.
const MAX_PAGES: usize = 32;

/// How long an answer to anything but a call may take; a call may wait for a person.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why the tools can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum McpError {
    #[error("the daemon's tools can't be reached: {0}")]
    Unreachable(String),
    #[error("the daemon refused the tools ({status}): {reason}")]
    Refused { status: u16, reason: String },
    #[error("the connection broke before the result came, so what the call did is unknown")]
    Broken,
    #[error("the daemon's answer can't be read: {0}")]
    Unreadable(String),
    /// The server's own error.
    #[error("{0}")]
    Told(String),
}

/// The daemon's tool server.
#[derive(Debug)]
pub(crate) struct Mcp {
    http: Client,
    url: String,
    token: String,
    ids: AtomicU64,
}

impl Mcp {
    /// Says hello to the server at `url`.
    pub(crate) async fn connect(http: Client, url: &str, token: &str) -> Result<Self, McpError> {
        let mcp = Self {
            http,
            url: url.to_owned(),
            token: token.to_owned(),
            ids: AtomicU64::new(0),
        };
        let hello = json!({
            "protocolVersion": VERSION,
            "capabilities": {},
            "clientInfo": { "name": "quintet-coder", "version": env!("CARGO_PKG_VERSION") },
        });
        mcp.patiently("initialize", hello).await?;
        let initialized = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
        mcp.post(&initialized).await?;
        Ok(mcp)
    }

    /// Every tool that the server has.
    pub(crate) async fn tools(&self) -> Result<Vec<Value>, McpError> {
        let mut tools = Vec::new();
        let mut params = json!({});
        for _ in 0..MAX_PAGES {
            let mut page = self.patiently("tools/list", params).await?;
            if let Some(listed) = page["tools"].as_array_mut() {
                tools.append(listed);
            }
            match page["nextCursor"].as_str() {
                Some(cursor) => params = json!({ "cursor": cursor }),
                None => break,
            }
        }
        Ok(tools)
    }

    /// Calls a tool. Dropping the future ends the call. What it prints while it runs is shown
    /// under `call_id`.
    pub(crate) async fn call(
        &self,
        name: &str,
        arguments: &Value,
        call_id: Option<&str>,
    ) -> Result<Value, McpError> {
        let mut params = json!({ "name": name, "arguments": arguments });
        if let Some(id) = call_id {
            params["_meta"] = json!({ CALL_ID: id });
        }
        self.request("tools/call", params).await
    }

    async fn patiently(&self, method: &str, params: Value) -> Result<Value, McpError> {
        tokio::time::timeout(PATIENCE, self.request(method, params))
            .await
            .map_err(|_| McpError::Unreachable(format!("no answer to {method} in {PATIENCE:?}")))?
    }

    async fn request(&self, method: &str, params: Value) -> Result<Value, McpError> {
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let message = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let response = self.post(&message).await?;
        let is_stream = response
            .headers()
            .get(header::CONTENT_TYPE)
            .and_then(|kind| kind.to_str().ok())
            .is_some_and(|kind| kind.starts_with("text/event-stream"));
        let mut reply = match is_stream {
            true => stream_reply(response, id).await?,
            false => whole_reply(response).await?,
        };
        if let Some(told) = reply.pointer("/error/message").and_then(Value::as_str) {
            return Err(McpError::Told(told.to_owned()));
        }
        match reply.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(McpError::Unreadable("it has no result".to_owned())),
        }
    }

    async fn post(&self, message: &Value) -> Result<Response, McpError> {
        let sent = self
            .http
            .post(&self.url)
            .bearer_auth(&self.token)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, text/event-stream")
            .header("mcp-protocol-version", VERSION)
            .body(message.to_string())
            .send()
            .await;
        let response = sent.map_err(|error| match error.is_connect() {
            true => McpError::Unreachable(error.without_url().to_string()),
            false => McpError::Broken,
        })?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let reason = match status {
            StatusCode::UNAUTHORIZED => "this instance's token is no longer good".to_owned(),
            _ => response
                .text()
                .await
                .unwrap_or_default()
                .chars()
                .take(300)
                .collect(),
        };
        Err(McpError::Refused {
            status: status.as_u16(),
            reason,
        })
    }
}

async fn whole_reply(response: Response) -> Result<Value, McpError> {
    let mut bytes = Vec::new();
    let mut parts = response.bytes_stream();
    while let Some(part) = parts.next().await {
        bytes.extend_from_slice(&part.map_err(|_| McpError::Broken)?);
        if bytes.len() > MAX_MESSAGE {
            return Err(McpError::Unreadable(format!(
                "it is over {MAX_MESSAGE} bytes"
            )));
        }
    }
    serde_json::from_slice(&bytes).map_err(|error| McpError::Unreadable(error.to_string()))
}

/// The reply among the messages of a stream; what else comes is the server's talk.
async fn stream_reply(response: Response, id: u64) -> Result<Value, McpError> {
    let mut splitter = Splitter::new(MAX_MESSAGE);
    let mut parts = response.bytes_stream();
    loop {
        let event = splitter.next_event();
        match event.map_err(|error| McpError::Unreadable(error.to_string()))? {
            Some(event) => {
                if let Ok(message) = serde_json::from_str::<Value>(&event.data)
                    && message["id"] == id
                    && message.get("method").is_none()
                {
                    return Ok(message);
                }
            }
            None => match parts.next().await {
                Some(Ok(part)) => splitter.push(&part),
                _ => return Err(McpError::Broken),
            },
        }
    }
}
