//! What a v2 device asks: the table of requests.

use std::sync::Arc;

use quintet_channel::proto::device::{Device, clean_name};
use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::{Backend, Request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{conversation, devices, events, lists, op_error, shells, usage, workspace};
use crate::daemon::Runtime;
use crate::refusal::Refusal;

/// What this daemon can do beyond the first version of the UI.
const FEATURES: &[&str] = &["client_key", "items", "shells"];

/// An answer, or why there is none.
pub(super) type Answer = Result<Value, OpError>;

/// The arguments of a request.
pub(super) fn args<T: DeserializeOwned>(value: &Value) -> Result<T, OpError> {
    // A request without arguments may leave them out.
    let value = match value {
        Value::Null => json!({}),
        value => value.clone(),
    };
    serde_json::from_value(value)
        .map_err(|error| OpError::new("bad_request", format!("args: {error}")))
}

/// An outcome of the daemon's as an answer.
pub(super) fn answered(outcome: Result<Value, Refusal>) -> Answer {
    outcome.map_err(|refusal| op_error(&refusal))
}

/// The answer of what only has to be done.
pub(super) fn done<T>(outcome: Result<T, Refusal>) -> Answer {
    answered(outcome.map(|_| json!({})))
}

#[derive(Deserialize)]
struct NamedDevice {
    id: String,
    #[serde(default)]
    name: String,
}

pub(super) async fn serve(runtime: Arc<Runtime>, device: &Device, request: Request) -> Answer {
    let given = &request.args;
    match request.op.as_str() {
        "hello" => answered(hello(&runtime, device).await),
        "events.follow" => events::follow(&runtime, &request).await,
        "events.page" => events::page(&runtime, given).await,

        "sessions.create" => conversation::create(&runtime, given).await,
        "sessions.title" => conversation::title(&runtime, given).await,
        "sessions.kill" => conversation::kill(&runtime, device, given).await,
        "sessions.compact" => conversation::compact(&runtime, given).await,
        "compactions.undo" => conversation::undo_compaction(&runtime, given).await,
        "messages.send" => conversation::send(&runtime, device, given).await,
        "messages.cancel" => conversation::cancel(&runtime, device, given).await,
        "messages.retry" => conversation::retry(&runtime, given).await,
        "queue.remove" => conversation::queue_remove(&runtime, device, given).await,
        "queue.edit" => conversation::queue_edit(&runtime, given).await,
        "approvals.answer" => conversation::answer_approval(&runtime, device, given).await,
        "asks.reply" => conversation::reply(&runtime, device, given).await,

        "agents.list" => lists::agents(&runtime).await,
        "sessions.list" => lists::sessions(&runtime, given).await,
        "queue.list" => lists::queue(&runtime, given).await,
        "approvals.list" => lists::approvals(&runtime).await,
        "asks.list" => lists::asks(&runtime).await,
        "workers.list" => Ok(lists::workers(&runtime)),
        "cron.list" => lists::crons(&runtime).await,
        "cron.runs" => lists::cron_runs(&runtime, given).await,
        "cron.add" => lists::cron_add(&runtime, given).await,
        "cron.remove" => lists::cron_remove(&runtime, given).await,
        "config.get" => Ok(json!({ "config": runtime.config.to_json() })),
        "stats" => lists::stats(&runtime).await,
        "usage.report" => usage::report(&runtime, given).await,

        "shells.list" => shells::list(&runtime, given).await,
        "shells.open" => shells::open(&runtime, &request).await,
        "shells.attach" => shells::attach(&runtime, &request).await,
        "shells.resize" => shells::resize(&runtime, &request).await,
        "shells.close" => shells::close(&runtime, &request),
        "shells.detach" => shells::detach(&request),

        "devices.list" => answered(list_devices(&runtime, device).await),
        "devices.rename" => {
            let NamedDevice { id, name } = args(given)?;
            let renamed = runtime
                .db
                .write(move |tx| devices::rename(tx, &id, &clean_name(&name)));
            done(renamed.await)
        }
        "devices.revoke" => {
            let NamedDevice { id, .. } = args(given)?;
            done(runtime.revoke_device(id, device.name.clone()).await)
        }

        op if op.starts_with("workspace.") => workspace::serve(&runtime, &request).await,
        op => Err(OpError::new(
            "unknown_op",
            format!("this daemon does not know {op:?}"),
        )),
    }
}

async fn hello(runtime: &Runtime, device: &Device) -> Result<Value, Refusal> {
    let id = device.id;
    let words = runtime
        .db
        .read(move |db| devices::check_words(db, id))
        .await?;
    let key = runtime.channel.hub.backend().keys().public();
    Ok(json!({
        "daemon_id": quintet_channel::proto::base64url::encode(&key.0),
        "version": runtime.version,
        "device": { "id": device.id.to_string(), "name": device.name },
        "features": FEATURES,
        "default_agent": runtime.coordinator.instances().default_agent(),
        "home": true,
        "check_words": words,
    }))
}

async fn list_devices(runtime: &Runtime, device: &Device) -> Result<Value, Refusal> {
    let listed = runtime.list_devices().await?;
    let rows: Vec<Value> = listed
        .into_iter()
        .map(|listed| {
            json!({
                "id": listed.device.id.to_string(),
                "name": listed.device.name,
                "first_seen": lists::time(listed.first_seen),
                "last_seen": lists::time(listed.device.last_seen),
                "expires_at": lists::time(listed.device.expires_at),
                "check_words": listed.check_words,
            })
        })
        .collect();
    Ok(json!({ "devices": rows, "current": device.id.to_string() }))
}
