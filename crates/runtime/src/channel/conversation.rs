//! Sessions, messages and answers, as a v2 device asks for them.

use quintet_channel::proto::device::Device;
use quintet_channel::proto::v2::message::OpError;
use quintet_control::wire::{AnswerApprovalMsg, ApprovalScope};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::devices::{self, Sent};
use super::lists::rules_of;
use super::ops::{Answer, answered, args, done};
use crate::daemon::Runtime;
use crate::refusal::Refusal;
use crate::sessions::messages::{self, Channel, Purpose};
use crate::sessions::{self, DEFAULT_SENDER, NewSession};

/// The longest key that a device names a message with.
const MAX_KEY: usize = 128;

#[derive(Deserialize)]
struct OfSession {
    session: u64,
}

#[derive(Deserialize)]
struct Create {
    #[serde(default)]
    agent: String,
    cwd: Option<String>,
    worker: Option<String>,
    title: Option<String>,
}

pub(super) async fn create(runtime: &Runtime, given: &Value) -> Answer {
    let asked: Create = args(given)?;
    answered(created(runtime, asked).await)
}

async fn created(runtime: &Runtime, asked: Create) -> Result<Value, Refusal> {
    let instances = runtime.coordinator.instances().clone();
    let agent = match asked.agent.as_str() {
        "" => instances.default_agent().to_owned(),
        name => name.to_owned(),
    };
    runtime.require_agent(&agent)?;
    let worker = asked.worker.unwrap_or_default();
    runtime.require_worker(&worker).await?;
    let folder = asked.cwd.filter(|folder| !folder.is_empty());
    if let Some(folder) = &folder
        && !crate::service::is_readable_folder(folder)
    {
        return Err(Refusal::Bad(format!(
            "{folder:?} is no folder that the daemon can read; name one by its whole path"
        )));
    }
    let new = NewSession {
        agent,
        sender: DEFAULT_SENDER.to_owned(),
        folder,
        worker,
    };
    let title = asked.title.filter(|title| !title.is_empty());
    let session = runtime
        .db
        .write(move |tx| {
            let session = sessions::create(tx, new, |session| {
                instances.own_folder(session).display().to_string()
            })?;
            if let Some(title) = title {
                sessions::set_title(tx, session.id, &title)?;
            }
            Ok::<_, Refusal>(session.id)
        })
        .await?;
    Ok(json!({ "session": session }))
}

#[derive(Deserialize)]
struct Title {
    session: u64,
    title: String,
}

pub(super) async fn title(runtime: &Runtime, given: &Value) -> Answer {
    let Title { session, title } = args(given)?;
    let set = runtime
        .db
        .write(move |tx| sessions::set_title(tx, session, &title));
    done(set.await)
}

pub(super) async fn kill(runtime: &Runtime, device: &Device, given: &Value) -> Answer {
    let OfSession { session } = args(given)?;
    done(runtime.coordinator.kill(session, &device.name).await)
}

pub(super) async fn compact(runtime: &Runtime, given: &Value) -> Answer {
    let OfSession { session } = args(given)?;
    let summary = runtime.compact(session).await;
    answered(summary.map(|summary| json!({ "summary": summary })))
}

pub(super) async fn undo_compaction(runtime: &Runtime, given: &Value) -> Answer {
    let OfSession { session } = args(given)?;
    done(runtime.undo_compaction(session).await)
}

pub(super) async fn cancel(runtime: &Runtime, device: &Device, given: &Value) -> Answer {
    let OfSession { session } = args(given)?;
    let by = device.name.clone();
    done(runtime.coordinator.cancel(session, by).await)
}

pub(super) async fn retry(runtime: &Runtime, given: &Value) -> Answer {
    let OfSession { session } = args(given)?;
    let message = runtime.retry(session).await;
    answered(message.map(|message| json!({ "message_id": message.id })))
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Queue,
    Steer,
}

#[derive(Deserialize)]
struct Send {
    session: u64,
    content: String,
    mode: Mode,
    client_key: Option<String>,
}

pub(super) async fn send(runtime: &Runtime, device: &Device, given: &Value) -> Answer {
    let asked: Send = args(given)?;
    if asked.content.trim().is_empty() {
        return Err(OpError::new("bad_request", "the message is empty"));
    }
    let key = asked.client_key.as_deref().unwrap_or_default();
    if key.len() > MAX_KEY {
        return Err(OpError::new("bad_request", "client_key is over 128 bytes"));
    }
    let sent = match asked.mode {
        Mode::Queue => queued(runtime, device, asked).await,
        Mode::Steer => steered(runtime, device, asked).await,
    };
    answered(sent.map(|sent| json!({ "message_id": sent.message, "queued": sent.queued })))
}

async fn queued(runtime: &Runtime, device: &Device, asked: Send) -> Result<Sent, Refusal> {
    let (id, session) = (device.id, asked.session);
    let sent = runtime
        .db
        .write(move |tx| {
            if let Some(key) = &asked.client_key
                && let Some(sent) = devices::sent(tx.sql(), id, key)?
            {
                return Ok(sent);
            }
            let session = sessions::open(tx.sql(), asked.session)?;
            let busy = messages::running(tx.sql(), session.id)?.is_some()
                || messages::next(tx.sql(), session.id)?.is_some();
            let message = messages::enqueue(
                tx,
                &session,
                DEFAULT_SENDER,
                Channel::Web,
                &asked.content,
                Purpose::Message,
            )?;
            let sent = Sent {
                message: message.id,
                queued: busy,
            };
            if let Some(key) = &asked.client_key {
                devices::remember_sent(tx, id, key, sent)?;
            }
            Ok::<_, Refusal>(sent)
        })
        .await?;
    runtime.coordinator.wake(session);
    Ok(sent)
}

/// Guidance goes to a process: its key is taken first, so that it is given once at the most.
async fn steered(runtime: &Runtime, device: &Device, asked: Send) -> Result<Sent, Refusal> {
    let id = device.id;
    if let Some(key) = asked.client_key {
        let before = runtime
            .db
            .write(move |tx| {
                let before = devices::sent(tx.sql(), id, &key)?;
                if before.is_none() {
                    let sent = Sent {
                        message: 0,
                        queued: false,
                    };
                    devices::remember_sent(tx, id, &key, sent)?;
                }
                Ok::<_, Refusal>(before)
            })
            .await?;
        if let Some(sent) = before {
            return Ok(sent);
        }
    }
    let sender = DEFAULT_SENDER.to_owned();
    let seq = runtime
        .coordinator
        .steer(asked.session, asked.content, sender, Channel::Web)
        .await?;
    Ok(Sent {
        message: seq,
        queued: false,
    })
}

#[derive(Deserialize)]
struct Queued {
    id: u64,
    #[serde(default)]
    text: String,
}

pub(super) async fn queue_remove(runtime: &Runtime, device: &Device, given: &Value) -> Answer {
    let Queued { id, .. } = args(given)?;
    let reason = format!("removed on {}", device.name);
    let removed = runtime
        .db
        .write(move |tx| messages::remove(tx, id, &reason));
    done(removed.await)
}

pub(super) async fn queue_edit(runtime: &Runtime, given: &Value) -> Answer {
    let Queued { id, text } = args(given)?;
    if text.trim().is_empty() {
        return Err(OpError::new("bad_request", "the message is empty"));
    }
    let edited = runtime.db.write(move |tx| messages::edit(tx, id, &text));
    done(edited.await)
}

#[derive(Deserialize)]
struct Reply {
    session: u64,
    text: String,
    ask: Option<u64>,
}

pub(super) async fn reply(runtime: &Runtime, device: &Device, given: &Value) -> Answer {
    let Reply { session, text, ask } = args(given)?;
    let by = device.name.clone();
    done(runtime.coordinator.reply(session, ask, text, by).await)
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScopeName {
    Once,
    Session,
    Rule,
}

#[derive(Deserialize)]
struct ApprovalArgs {
    id: u64,
    approved: bool,
    scope: ScopeName,
    rules: Option<Vec<Map<String, Value>>>,
    #[serde(default)]
    reason: String,
}

pub(super) async fn answer_approval(runtime: &Runtime, device: &Device, given: &Value) -> Answer {
    let asked: ApprovalArgs = args(given)?;
    let rule = match &asked.rules {
        Some(rules) => edited_rules(runtime, asked.id, rules).await?,
        None => String::new(),
    };
    let request = AnswerApprovalMsg {
        id: asked.id,
        approved: asked.approved,
        reason: asked.reason,
        scope: match asked.scope {
            ScopeName::Once => ApprovalScope::Once,
            ScopeName::Session => ApprovalScope::Session,
            ScopeName::Rule => ApprovalScope::Rule,
        }
        .into(),
        rule,
    };
    let by = device.name.clone();
    done(runtime.answer_approval(request, by).await)
}

/// The rules as config.toml has them; empty where they are the proposed ones.
async fn edited_rules(
    runtime: &Runtime,
    approval: u64,
    rules: &[Map<String, Value>],
) -> Result<String, OpError> {
    let listed = runtime
        .list_approvals()
        .await
        .map_err(|refusal| super::op_error(&refusal))?;
    let proposed = listed
        .approvals
        .into_iter()
        .find(|pending| pending.id == approval)
        .map(|pending| rules_of(&pending.rule))
        .unwrap_or_default();
    if proposed.iter().filter_map(Value::as_object).eq(rules) {
        return Ok(String::new());
    }
    let tables: Result<Vec<String>, OpError> = rules.iter().map(as_table).collect();
    Ok(tables?.join(", "))
}

fn as_table(rule: &Map<String, Value>) -> Result<String, OpError> {
    let mut table = toml_edit::InlineTable::new();
    for (key, value) in rule {
        match value {
            Value::String(text) => table.insert(key, text.as_str().into()),
            Value::Null => continue,
            _ => {
                return Err(OpError::new(
                    "bad_request",
                    format!("rule.{key} is not a text"),
                ));
            }
        };
    }
    Ok(table.to_string())
}
