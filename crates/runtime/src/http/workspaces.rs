//! `/workspaces/{id}`: a worker follows a workspace.

use std::io;
use std::sync::Arc;

use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use quintet_workspace::Connection;
use quintet_workspace::replica::ws_limits;

use super::bearer;
use crate::daemon::Runtime;

/// Upgrades a worker that shows the workspace's token. One that is not open looks as one that does
/// not exist: its worker learns of it with the next command.
pub(super) async fn upgrade(
    State(runtime): State<Arc<Runtime>>,
    Path(id): Path<String>,
    headers: HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    if headers.contains_key(header::ORIGIN) {
        let text = "a worker does not run in a browser\n";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let known = bearer(&headers).and_then(|token| runtime.workspaces.followed_with(&id, token));
    let Some(following) = known else {
        let text = "no such workspace is open to this token: only one that the daemon gave a worker \
                    together with the workspace opens it\n";
        return (StatusCode::UNAUTHORIZED, text).into_response();
    };
    let limits = ws_limits();
    upgrade
        .read_buffer_size(limits.read_buffer)
        .max_message_size(limits.max_message)
        .max_frame_size(limits.max_message)
        .on_upgrade(move |socket| async move {
            runtime.workspaces.serve(following, carried(socket)).await;
        })
}

/// The frames of a socket's binary messages.
fn carried(socket: WebSocket) -> Connection {
    let (sink, messages) = socket.split();
    let messages = messages.filter_map(|message| {
        std::future::ready(match message {
            Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(error))),
        })
    });
    let sink = sink
        .with(|bytes: Bytes| std::future::ready(Ok::<_, axum::Error>(Message::Binary(bytes))))
        .sink_map_err(io::Error::other);
    Connection::over_messages(messages, sink)
}
