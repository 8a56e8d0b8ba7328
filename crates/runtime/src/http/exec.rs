//! `/exec`: a command of the `shell` agent, in its session's workspace.
//!
//! The answer is one JSON object a line: `stdout` and `stderr` with base64, then `ended` or
//! `failed`. It is for the person's own lines; what a model wants to run goes through the tools,
//! where the policy is asked.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quintet_control::wire::{CommandEnded, command_ended::Outcome, command_event::Event};
use serde::Deserialize;
use serde_json::{Value, json};

use super::bearer;
use crate::daemon::Runtime;
use crate::turns::session_of;
use crate::workspaces::SessionExec;

/// A line of the shell may run as long as a person lets it.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

#[derive(Deserialize)]
pub(super) struct Line {
    command: String,
}

pub(super) async fn exec(
    State(runtime): State<Arc<Runtime>>,
    headers: HeaderMap,
    request: Request,
) -> Response {
    let instances = runtime.coordinator.instances();
    let instance = bearer(&headers).and_then(|key| instances.owner_of(key));
    let session = instance
        .filter(|instance| instances.is_shell(instance))
        .and_then(|instance| session_of(&instance));
    let Some(session) = session else {
        let text = "this is for the `shell` agent and needs the key of an instance of it\n";
        return (StatusCode::UNAUTHORIZED, text).into_response();
    };
    // Read for whoever has a key alone.
    let line = match Json::<Line>::from_request(request, &()).await {
        Ok(Json(line)) => line,
        Err(rejection) => return rejection.into_response(),
    };
    let lines = async_stream::stream! {
        let exec = SessionExec {
            command: line.command,
            timeout: Some(LONGEST),
            ..SessionExec::default()
        };
        let (handle, finish) = match runtime.start_in_session(session, exec).await {
            Ok(started) => started,
            Err(refusal) => {
                yield text(&json!({ "failed": refusal.to_string() }));
                return;
            }
        };
        // It has a task of its own: when the turn is cancelled and this stream is gone, what the
        // line wrote still has to be recorded.
        let mut events = runtime.workers.follow_in_session(handle, finish);
        while let Some(event) = events.recv().await {
            let part = match event.map(|event| event.event) {
                Ok(Some(Event::Stdout(bytes))) => json!({ "stdout": STANDARD.encode(bytes) }),
                Ok(Some(Event::Stderr(bytes))) => json!({ "stderr": STANDARD.encode(bytes) }),
                Ok(Some(Event::Ended(end))) => ended(end),
                Ok(Some(Event::Started(_)) | None) => continue,
                Err(refusal) => json!({ "failed": refusal.to_string() }),
            };
            yield text(&part);
        }
    };
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::from_stream(lines)).into_response()
}

fn ended(end: CommandEnded) -> Value {
    let text = match end.outcome {
        Some(Outcome::Exited(0)) | None => None,
        Some(Outcome::Exited(code)) => Some(format!("exit status {code}")),
        Some(Outcome::Signalled(signal)) => Some(format!("killed by signal {signal}")),
        Some(Outcome::TimedOut(secs)) => Some(format!("timed out after {secs} s")),
        Some(Outcome::Cancelled(_)) => Some("cancelled".to_owned()),
    };
    let notes = end.changes.map(|changes| changes.notes).unwrap_or_default();
    json!({ "ended": { "text": text, "notes": notes } })
}

fn text(line: &Value) -> Result<String, Infallible> {
    Ok(format!("{line}\n"))
}
