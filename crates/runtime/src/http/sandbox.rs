//! `/ws` for workers: the handshake, then the hub.

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{SinkExt, StreamExt};
use quintet_sandbox::hub::{PeerInfo, SOCKET_BUFFER, loopback};
use quintet_sandbox::proto::{MAX_MESSAGE, negotiate};
use quintet_sandbox::socket::{WsError, WsMessage, close};

use super::PeerAddress;
use crate::daemon::Runtime;

/// Upgrades a worker's request. Without a `sandd` version that we know the answer is 400.
pub(super) async fn upgrade(
    runtime: &Runtime,
    address: PeerAddress,
    token: Option<String>,
    headers: &HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let offered: Vec<&str> = headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .collect();
    let protocol = match negotiate(&offered.join(",")) {
        Ok(protocol) => protocol,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    // A page in the user's browser runs on this machine as this user; a worker sends no origin.
    if headers.contains_key(header::ORIGIN) {
        let text = "a worker does not run in a browser\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let peer = PeerInfo {
        address: Some(address.peer),
        // Who shows a token is judged by it, wherever they dial from.
        same_user: token.is_none() && is_same_user(address).await,
        token,
    };
    let hub = runtime.workers.hub.clone();
    let tasks = runtime.workers.tasks.clone();
    upgrade
        .protocols([protocol.name()])
        .read_buffer_size(SOCKET_BUFFER)
        .write_buffer_size(SOCKET_BUFFER)
        .max_message_size(MAX_MESSAGE)
        .max_frame_size(MAX_MESSAGE)
        .on_upgrade(move |socket| {
            tasks.track_future(async move {
                hub.serve_connection(mapped(socket), peer, protocol).await;
            })
        })
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

/// An axum socket as the hub sees it.
fn mapped(
    socket: WebSocket,
) -> impl futures_util::Stream<Item = Result<WsMessage, WsError>>
+ futures_util::Sink<WsMessage, Error = WsError>
+ Unpin {
    let mapped = socket
        .filter_map(|message| std::future::ready(incoming(message)))
        .with(|message| std::future::ready(Ok::<_, axum::Error>(outgoing(message))));
    mapped.sink_map_err(|error: axum::Error| WsError::from_boxed(error.into_inner()))
}

fn incoming(message: Result<Message, axum::Error>) -> Option<Result<WsMessage, WsError>> {
    let message = match message {
        Ok(message) => message,
        Err(error) => return Some(Err(WsError::from_boxed(error.into_inner()))),
    };
    Some(Ok(match message {
        Message::Text(text) => WsMessage::Text(text.into()),
        Message::Binary(bytes) => WsMessage::Binary(bytes),
        Message::Close(Some(frame)) => WsMessage::Close(frame.code, frame.reason.to_string()),
        Message::Close(None) => WsMessage::Close(close::NORMAL, String::new()),
        Message::Ping(_) | Message::Pong(_) => return None,
    }))
}

fn outgoing(message: WsMessage) -> Message {
    match message {
        // The hub writes JSON; what is no UTF-8 has no text form.
        WsMessage::Text(bytes) => match Utf8Bytes::try_from(bytes) {
            Ok(text) => Message::Text(text),
            Err(_) => Message::Text(Utf8Bytes::default()),
        },
        WsMessage::Binary(bytes) => Message::Binary(bytes),
        WsMessage::Close(code, reason) => Message::Close(Some(CloseFrame {
            code,
            reason: reason.into(),
        })),
    }
}
