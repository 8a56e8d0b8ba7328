//! The one HTTP port.

mod sandbox;
mod tls;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::extract::connect_info::{ConnectInfo, Connected};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::serve::IncomingStream;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::daemon::Runtime;

pub use tls::TlsError;
pub(crate) use tls::{configured, self_signed};

/// Where a request came from, through TLS or not.
#[derive(Debug, Clone, Copy)]
struct PeerAddress {
    peer: SocketAddr,
    /// Our end, where the system tells.
    local: Option<SocketAddr>,
}

impl Connected<IncomingStream<'_, TcpListener>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, TcpListener>) -> Self {
        Self {
            peer: *stream.remote_addr(),
            local: stream.io().local_addr().ok(),
        }
    }
}

impl Connected<IncomingStream<'_, tls::TlsListener>> for PeerAddress {
    fn connect_info(stream: IncomingStream<'_, tls::TlsListener>) -> Self {
        Self {
            peer: *stream.remote_addr(),
            local: stream.io().get_ref().0.local_addr().ok(),
        }
    }
}

/// Serves the port until `stop`, then lets replies under way end.
pub(crate) async fn serve(
    runtime: Arc<Runtime>,
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    stop: CancellationToken,
) {
    let app = router(runtime).into_make_service_with_connect_info::<PeerAddress>();
    let served = match tls {
        Some(config) => {
            axum::serve(tls::TlsListener::new(listener, config), app)
                .with_graceful_shutdown(stop.cancelled_owned())
                .await
        }
        None => {
            axum::serve(listener, app)
                .with_graceful_shutdown(stop.cancelled_owned())
                .await
        }
    };
    if let Err(error) = served {
        tracing::error!(%error, "the HTTP server failed");
    }
}

fn router(runtime: Arc<Runtime>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route("/ws", any(sandbox::upgrade))
        .fallback(|| async { (StatusCode::NOT_FOUND, "there is nothing at this path\n") })
        .with_state(runtime)
}

/// Lives when the database answers.
async fn healthz(State(runtime): State<Arc<Runtime>>) -> Response {
    match runtime.counts().await {
        Ok(_) => (StatusCode::OK, "ok\n").into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// Open to this machine; another one needs the control token.
async fn metrics(
    State(runtime): State<Arc<Runtime>>,
    ConnectInfo(address): ConnectInfo<PeerAddress>,
    headers: HeaderMap,
) -> Response {
    if !address.peer.ip().is_loopback() && !has_token(&headers, &runtime.control_token) {
        let text = "send the control token as `Authorization: Bearer`\n";
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
