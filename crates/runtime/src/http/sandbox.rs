//! `/ws` for workers: the handshake, then the hub.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use quintet_framing::ws::switching;
use quintet_sandbox::hub::{PeerInfo, loopback};
use quintet_sandbox::proto::{MAX_MESSAGE, negotiate};
use quintet_sandbox::socket::{Role, WsSocket};

use super::{PeerAddress, is_forwarded};
use crate::daemon::Runtime;

/// Upgrades a worker's request. Without a `sandd` version that we know the answer is 400.
pub(super) async fn upgrade(
    runtime: &Runtime,
    address: PeerAddress,
    token: Option<String>,
    mut request: Request,
) -> Response {
    let headers = request.headers();
    let offers = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let offers: Vec<&str> = offers.filter_map(|value| value.to_str().ok()).collect();
    let protocol = match negotiate(&offers.join(",")) {
        Ok(protocol) => protocol,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    // A page in the user's browser runs on this machine as this user; a worker sends no origin.
    if headers.contains_key(header::ORIGIN) {
        let text = "a worker does not run in a browser\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let is_forwarded = is_forwarded(headers);
    let answer = match switching(&request, Some(protocol.name()), Body::empty()) {
        Ok(answer) => answer,
        Err(refusal) => {
            let text = format!("{}\n", refusal.reason);
            return (StatusCode::BAD_REQUEST, text).into_response();
        }
    };
    let Some(upgraded) = request.extensions_mut().remove::<OnUpgrade>() else {
        let text = "this connection can't be upgraded\n";
        return (StatusCode::UPGRADE_REQUIRED, text).into_response();
    };
    let peer = PeerInfo {
        address: Some(address.peer),
        // Who shows a token is judged by it, wherever they dial from.
        same_user: token.is_none() && !is_forwarded && is_same_user(address).await,
        token,
    };
    let hub = runtime.workers.hub.clone();
    runtime.workers.tasks.spawn(async move {
        match upgraded.await {
            Ok(stream) => {
                let stream = TokioIo::new(stream);
                let socket = WsSocket::new(stream, Role::Server, MAX_MESSAGE, BytesMut::new());
                hub.serve_connection(socket, peer, protocol).await;
            }
            Err(error) => tracing::debug!(%error, "a worker went away during its handshake"),
        }
    });
    answer
}

async fn is_same_user(address: PeerAddress) -> bool {
    let Some(local) = address.local else {
        return false;
    };
    if !address.peer.ip().to_canonical().is_loopback() {
        return false;
    }
    tokio::task::spawn_blocking(move || loopback::is_same_user(local, address.peer))
        .await
        .unwrap_or(false)
}
