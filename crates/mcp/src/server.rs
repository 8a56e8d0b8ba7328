//! The server that agents call.

use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData,
    Implementation, JsonObject, ListToolsResult, PaginatedRequestParams, RequestId,
    ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::tool::{Content, MAX_RESULT, ToolCall, ToolOutcome, ToolSpec};

/// The largest request, in bytes.
pub const MAX_REQUEST: usize = 16 << 20;

/// Where a call's `_meta` has the agent's own id of it.
pub const CALL_ID: &str = "quintet/call_id";

/// Calls of one instance that run at once.
pub const MAX_CALLS: usize = 64;

/// The tools that a server offers, and to whom.
///
/// Methods are called concurrently, for one instance and for many.
pub trait Tools: Send + Sync + 'static {
    /// Who calls.
    type Instance: Clone + Send + Sync + 'static;

    /// Whose token it is; `None` for one that is not valid, or no longer.
    fn instance(&self, token: &str) -> Option<Self::Instance>;

    /// A name of the instance that no other has.
    fn key(&self, instance: &Self::Instance) -> String;

    /// What the instance may use.
    fn list(&self, instance: &Self::Instance) -> impl Future<Output = Vec<ToolSpec>> + Send;

    /// Runs a call to its end. Has to end soon once it is cancelled; nobody hears what it says then.
    fn call(
        &self,
        instance: &Self::Instance,
        call: ToolCall,
        cancelled: CancellationToken,
    ) -> impl Future<Output = ToolOutcome> + Send;
}

/// How the server is reached.
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Names and addresses that the `Host` header may have, without or with a port.
    pub allowed_hosts: Vec<String>,
    /// Ends every call and stream.
    pub stop: CancellationToken,
}

/// Serves the tools at `/mcp`.
pub fn router<T: Tools>(tools: Arc<T>, options: ServerOptions) -> Router {
    let door = Arc::new(Door {
        tools,
        running: Mutex::default(),
    });
    let config = StreamableHttpServerConfig::default()
        .with_allowed_hosts(options.allowed_hosts)
        .enforce_origin_validation()
        .with_legacy_session_mode(false)
        .with_max_request_body_bytes(MAX_REQUEST)
        .with_cancellation_token(options.stop);
    let handler = Handler { door: door.clone() };
    let service = StreamableHttpService::new(
        move || Ok(handler.clone()),
        Arc::new(NeverSessionManager::default()),
        config,
    );
    Router::new()
        .route_service("/mcp", service)
        .layer(from_fn_with_state(door, admit::<T>))
}

struct Door<T: Tools> {
    tools: Arc<T>,
    /// Calls by instance and request. Short sections without an await.
    running: Mutex<HashMap<String, Calls>>,
}

/// The calls of one instance, by the number of the call and the id that its client gave it.
#[derive(Default)]
struct Calls {
    next: u64,
    open: HashMap<u64, (RequestId, CancellationToken)>,
}

impl<T: Tools> Door<T> {
    fn running(&self) -> MutexGuard<'_, HashMap<String, Calls>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a call; `None` when there are too many.
    fn enter(
        self: &Arc<Self>,
        key: &str,
        id: RequestId,
        cancel: CancellationToken,
    ) -> Option<Entered<T>> {
        let mut running = self.running();
        let calls = running.entry(key.to_owned()).or_default();
        if calls.open.len() >= MAX_CALLS {
            return None;
        }
        let number = calls.next;
        calls.next += 1;
        calls.open.insert(number, (id, cancel));
        Some(Entered {
            door: self.clone(),
            key: key.to_owned(),
            number,
        })
    }

    fn cancel(&self, key: &str, id: &RequestId) {
        if let Some(calls) = self.running().get(key) {
            let newest = calls
                .open
                .iter()
                .filter(|(_, (open, _))| open == id)
                .max_by_key(|(number, _)| **number);
            if let Some((_, (_, cancel))) = newest {
                cancel.cancel();
            }
        }
    }
}

/// A call's place, left when dropped.
struct Entered<T: Tools> {
    door: Arc<Door<T>>,
    key: String,
    number: u64,
}

impl<T: Tools> Drop for Entered<T> {
    fn drop(&mut self) {
        let mut running = self.door.running();
        if let Some(calls) = running.get_mut(&self.key) {
            calls.open.remove(&self.number);
            if calls.open.is_empty() {
                running.remove(&self.key);
            }
        }
    }
}

/// Who sent a request, for the handler behind the HTTP layer.
#[derive(Clone)]
struct Caller<I>(I);

/// Lets nobody in without a living token. A cancellation is taken here, because requests are
/// served apart from each other.
async fn admit<T: Tools>(
    State(door): State<Arc<Door<T>>>,
    mut request: Request,
    next: Next,
) -> Response {
    let token = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.strip_prefix("Bearer "));
    let Some(instance) = token.and_then(|token| door.tools.instance(token)) else {
        let text = "send the mcp_token of a running agent as `Authorization: Bearer`\n";
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, text).into_response();
    };
    let (parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, MAX_REQUEST).await else {
        let text = format!("a request has at most {MAX_REQUEST} bytes\n");
        return (StatusCode::PAYLOAD_TOO_LARGE, text).into_response();
    };
    if let Some(id) = cancelled_request(&body) {
        door.cancel(&door.tools.key(&instance), &id);
    }
    request = Request::from_parts(parts, Body::from(body));
    request.extensions_mut().insert(Caller(instance));
    next.run(request).await
}

/// The request that a `notifications/cancelled` names.
fn cancelled_request(body: &[u8]) -> Option<RequestId> {
    // Long before it is parsed: nearly every request is another.
    const NAME: &[u8] = b"notifications/cancelled";
    const LONGEST: usize = 4096;
    if body.len() > LONGEST || !body.windows(NAME.len()).any(|it| it == NAME) {
        return None;
    }
    let message: Value = serde_json::from_slice(body).ok()?;
    if message["method"].as_str()?.as_bytes() != NAME {
        return None;
    }
    serde_json::from_value(message["params"]["requestId"].clone()).ok()
}

struct Handler<T: Tools> {
    door: Arc<Door<T>>,
}

impl<T: Tools> Clone for Handler<T> {
    fn clone(&self) -> Self {
        Self {
            door: self.door.clone(),
        }
    }
}

impl<T: Tools> Handler<T> {
    fn caller(context: &RequestContext<RoleServer>) -> Result<T::Instance, ErrorData> {
        context
            .extensions
            .get::<axum::http::request::Parts>()
            .and_then(|parts| parts.extensions.get::<Caller<T::Instance>>())
            .map(|caller| caller.0.clone())
            .ok_or_else(|| ErrorData::internal_error("the request has no instance", None))
    }
}

impl<T: Tools> ServerHandler for Handler<T> {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("quintet", env!("CARGO_PKG_VERSION"));
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let instance = Self::caller(&context)?;
        let listing = self.door.tools.list(&instance);
        let tools = answered(listing).await?;
        Ok(ListToolsResult::with_all_items(
            tools.into_iter().map(wire_tool).collect(),
        ))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let instance = Self::caller(&context)?;
        let key = self.door.tools.key(&instance);
        let cancel = context.ct.child_token();
        let Some(_entered) = self.door.enter(&key, context.id.clone(), cancel.clone()) else {
            let text = format!("{MAX_CALLS} calls run already; wait until one of them ends");
            return Ok(wire_result(ToolOutcome::failure(text)).into());
        };
        let call = ToolCall {
            agents_id: agents_id(&request, &context),
            name: request.name.into_owned(),
            arguments: request.arguments.unwrap_or_default(),
        };
        // Ends the call when this future is dropped.
        let _guard = cancel.clone().drop_guard();
        let outcome = answered(self.door.tools.call(&instance, call, cancel)).await?;
        Ok(wire_result(outcome).into())
    }
}

/// What comes of it, also where it panics: a request that is never answered holds up its agent.
async fn answered<R>(work: impl Future<Output = R>) -> Result<R, ErrorData> {
    let caught = AssertUnwindSafe(work).catch_unwind().await;
    caught.map_err(|_| ErrorData::internal_error("the daemon failed; its log says why", None))
}

/// The agent's own id of a call, where it tells one of a sensible length.
fn agents_id(
    request: &CallToolRequestParams,
    context: &RequestContext<RoleServer>,
) -> Option<String> {
    const LONGEST: usize = 256;
    let told = request.meta.as_ref().and_then(|meta| meta.get(CALL_ID));
    let id = told.or_else(|| context.meta.get(CALL_ID))?.as_str()?;
    (id.len() <= LONGEST).then(|| id.to_owned())
}

fn wire_tool(spec: ToolSpec) -> Tool {
    let schema: JsonObject = spec.schema;
    Tool::new(
        Cow::Owned(spec.name),
        Cow::<'static, str>::Owned(spec.description),
        Arc::new(schema),
    )
}

fn wire_result(outcome: ToolOutcome) -> CallToolResult {
    let size = outcome.size();
    if size > MAX_RESULT {
        let text = format!(
            "the result has {size} bytes, more than the {MAX_RESULT} that a result may have; ask for less of it"
        );
        return CallToolResult::error(vec![ContentBlock::text(text)]);
    }
    let content = outcome
        .content
        .into_iter()
        .map(|content| match content {
            Content::Text(text) => ContentBlock::text(text),
            Content::Block(block) => serde_json::from_value(block.clone())
                .unwrap_or_else(|_| ContentBlock::text(block.to_string())),
        })
        .collect();
    let mut result = match outcome.failed {
        true => CallToolResult::error(content),
        false => CallToolResult::success(content),
    };
    result.structured_content = outcome.structured;
    result
}
