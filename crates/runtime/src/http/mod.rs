//! The one HTTP port.

mod connections;
mod exec;
mod sandbox;
mod tls;
mod workspaces;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::connect_info::ConnectInfo;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::{FromRequestParts as _, Query, Request, State};
use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::channel::{self, serve_web};
use crate::daemon::Runtime;
use crate::tools::ToolServer;

pub use tls::TlsError;
pub(crate) use tls::{configured, self_signed};

/// Where a request came from, through TLS or not.
#[derive(Debug, Clone, Copy)]
struct PeerAddress {
    peer: SocketAddr,
    /// Our end, where the system tells.
    local: Option<SocketAddr>,
}

/// Serves the port until `stop`, then lets replies under way end.
pub(crate) async fn serve(
    runtime: Arc<Runtime>,
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    stop: CancellationToken,
) {
    let app = router(runtime, &stop);
    connections::serve(listener, tls, app, stop).await;
}

/// Serves this machine's agents on a port of their own, where the one port speaks TLS.
pub(crate) async fn serve_agents(
    runtime: Arc<Runtime>,
    listener: TcpListener,
    stop: CancellationToken,
) {
    let app = agent_routes(&runtime, &stop);
    connections::serve(listener, None, app, stop).await;
}

/// What agents reach with the keys of their instances.
fn agent_routes(runtime: &Arc<Runtime>, stop: &CancellationToken) -> Router {
    let options = quintet_mcp::ServerOptions {
        allowed_hosts: runtime.coordinator.instances().hosts(),
        stop: stop.clone(),
    };
    let tools = quintet_mcp::router(Arc::new(ToolServer::new(runtime.clone())), options);
    let lines = Router::new()
        .route("/exec", post(exec::exec))
        .with_state(runtime.clone());
    Router::new()
        .merge(runtime.gateway.router())
        .merge(tools)
        .merge(lines)
}

fn router(runtime: Arc<Runtime>, stop: &CancellationToken) -> Router {
    let agents = agent_routes(&runtime, stop);
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route("/ws", any(ws))
        .route("/workspaces/{id}", any(workspaces::upgrade))
        .fallback(serve_web)
        .with_state(runtime)
        .merge(agents)
}

#[derive(Deserialize)]
struct UpgradeQuery {
    token: Option<String>,
}

/// One path for workers and for browsers: what they offer tells them apart.
async fn ws(
    State(runtime): State<Arc<Runtime>>,
    ConnectInfo(address): ConnectInfo<PeerAddress>,
    Query(query): Query<UpgradeQuery>,
    request: Request,
) -> Response {
    let headers = request.headers();
    let token = bearer(headers).map(str::to_owned).or(query.token);
    let offers = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let is_worker = offers
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|offer| offer.trim().starts_with("sandd."));
    if is_worker {
        return sandbox::upgrade(&runtime, address, token, request).await;
    }
    let (mut parts, _) = request.into_parts();
    let upgrade = WebSocketUpgrade::from_request_parts(&mut parts, &()).await;
    channel::upgrade(&runtime, address.peer, token, &parts.headers, upgrade).await
}

/// Lives when the database answers.
async fn healthz(State(runtime): State<Arc<Runtime>>) -> Response {
    match runtime.counts().await {
        Ok(_) => (StatusCode::OK, "ok\n").into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// Open to this machine; another one needs the control token, and so does a page of this machine's
/// browser whose own name was pointed here: it alone asks for a name.
async fn metrics(
    State(runtime): State<Arc<Runtime>>,
    ConnectInfo(address): ConnectInfo<PeerAddress>,
    headers: HeaderMap,
) -> Response {
    let is_here = address.peer.ip().to_canonical().is_loopback()
        && !is_forwarded(&headers)
        && channel::asks_for_address(&headers);
    if !is_here && !has_token(&headers, &runtime.control_token) {
        let text = "send the token in run/control.token of the daemon's home folder as \
                    `Authorization: Bearer`\n";
        return (StatusCode::UNAUTHORIZED, text).into_response();
    }
    if let Err(error) = runtime.refresh_metrics().await {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response();
    }
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    (
        [(header::CONTENT_TYPE, content_type)],
        runtime.metrics.render(),
    )
        .into_response()
}

/// Whether a proxy says that it passes on what somebody else asked. Then an address of this machine is
/// the proxy's own, and says nothing of who asks.
pub(crate) fn is_forwarded(headers: &HeaderMap) -> bool {
    let named = |name: &HeaderName| {
        let name = name.as_str();
        matches!(name, "forwarded" | "via" | "x-real-ip") || name.starts_with("x-forwarded-")
    };
    headers.keys().any(named)
}

fn has_token(headers: &HeaderMap, token: &str) -> bool {
    bearer(headers).is_some_and(|sent| quintet_control::tokens_match(sent, token))
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}
