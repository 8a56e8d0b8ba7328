//! Listings in the shapes of the command line's `--json`.

use quintet_channel::proto::device::Seconds;
use quintet_control::wire::{self, CreateCronMsg, CronInfo};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ops::{Answer, answered, args, done};
use crate::daemon::Runtime;
use crate::refusal::Refusal;

/// Seconds since 1970 as RFC 3339.
pub(super) fn time(at: Seconds) -> String {
    jiff::Timestamp::from_second(at.cast_signed())
        .map(|time| time.to_string())
        .unwrap_or_default()
}

pub(super) async fn agents(runtime: &Runtime) -> Answer {
    let listed = runtime.list_agents().await;
    answered(listed.map(|list| agent_rows(list.agents)))
}

fn agent_rows(agents: Vec<wire::AgentInfo>) -> Value {
    let rows: Vec<Value> = agents
        .into_iter()
        .map(|agent| {
            let instances: Vec<Value> = agent
                .instances
                .into_iter()
                .map(|instance| {
                    json!({
                        "agent_id": instance.agent_id,
                        "session": instance.session,
                        "state": instance.state,
                        "pid": instance.pid,
                    })
                })
                .collect();
            json!({
                "name": agent.name,
                "kind": agent.kind,
                "description": agent.description,
                "instances": instances,
            })
        })
        .collect();
    json!({ "agents": rows })
}

#[derive(Deserialize)]
struct SessionsArgs {
    #[serde(default)]
    include_closed: bool,
}

pub(super) async fn sessions(runtime: &Runtime, given: &Value) -> Answer {
    let SessionsArgs { include_closed } = args(given)?;
    let listed = runtime.list_sessions(include_closed).await;
    answered(listed.map(|list| {
        let rows: Vec<Value> = list
            .sessions
            .into_iter()
            .map(|session| {
                json!({
                    "id": session.id,
                    "agent": session.agent,
                    "created_by": session.created_by,
                    "title": session.title,
                    "messages": session.message_count,
                    "active": session.active,
                    "alive_secs": session.alive_secs,
                    "workspace": session.workspace,
                    "worker": session.worker,
                    "cost": session.cost,
                    "closed": session.closed,
                    "queued": session.queued,
                })
            })
            .collect();
        json!({ "sessions": rows })
    }))
}

#[derive(Deserialize)]
struct QueueArgs {
    session: Option<u64>,
}

pub(super) async fn queue(runtime: &Runtime, given: &Value) -> Answer {
    let QueueArgs { session } = args(given)?;
    let listed = runtime.list_queue(session).await;
    answered(listed.map(|list| {
        let rows: Vec<Value> = list
            .messages
            .into_iter()
            .map(|message| {
                json!({
                    "id": message.id,
                    "session": message.session,
                    "text": message.text,
                    "cut": message.cut,
                    "at": message.at,
                })
            })
            .collect();
        json!({ "queue": rows })
    }))
}

/// Rules as objects, from the text that config.toml would get.
pub(super) fn rules_of(toml: &str) -> Vec<Value> {
    let Ok(document) = format!("rules = [{toml}]").parse::<toml_edit::DocumentMut>() else {
        return Vec::new();
    };
    let Some(rules) = document["rules"].as_array() else {
        return Vec::new();
    };
    let object = |table: &toml_edit::InlineTable| {
        let fields = table.iter().map(|(key, value)| {
            let value = match (value.as_str(), value.as_integer()) {
                (Some(text), _) => Value::from(text),
                (None, Some(number)) => Value::from(number),
                (None, None) => Value::Null,
            };
            (key.to_owned(), value)
        });
        Value::Object(fields.collect())
    };
    let tables = rules.iter().filter_map(toml_edit::Value::as_inline_table);
    tables.map(object).collect()
}

pub(super) async fn approvals(runtime: &Runtime) -> Answer {
    let listed = runtime.list_approvals().await;
    answered(listed.map(|list| {
        let rows: Vec<Value> = list
            .approvals
            .into_iter()
            .map(|approval| {
                json!({
                    "id": approval.id,
                    "session": approval.session,
                    "action": approval.action,
                    "command": approval.command,
                    "cwd": approval.cwd,
                    "worker": approval.worker,
                    "reason": approval.reason,
                    "at": approval.at,
                    "hash": approval.hash,
                    "rules": rules_of(&approval.rule),
                    "place": approval.rule_place,
                })
            })
            .collect();
        json!({ "approvals": rows })
    }))
}

fn question(question: wire::Question) -> Value {
    let options: Vec<Value> = question
        .options
        .into_iter()
        .map(|option| json!({ "label": option.label, "description": option.description }))
        .collect();
    json!({
        "question": question.question,
        "header": question.header,
        "options": options,
        "multi_select": question.multi_select,
    })
}

pub(super) async fn asks(runtime: &Runtime) -> Answer {
    let listed = runtime.list_asks().await;
    answered(listed.map(|list| {
        let rows: Vec<Value> = list
            .asks
            .into_iter()
            .map(|ask| {
                let questions: Vec<Value> = ask.questions.into_iter().map(question).collect();
                json!({
                    "id": ask.id,
                    "session": ask.session,
                    "questions": questions,
                    "at": ask.at,
                })
            })
            .collect();
        json!({ "asks": rows })
    }))
}

pub(super) fn workers(runtime: &Runtime) -> Value {
    let rows: Vec<Value> = runtime
        .list_workers()
        .workers
        .into_iter()
        .map(|worker| {
            // Parts of one, as the meters of the UI take them.
            let load = worker.load.map(|load| {
                json!({
                    "cpu": f64::from(load.cpu) / 100.0,
                    "memory": f64::from(load.memory) / 100.0,
                })
            });
            let mut row = json!({
                "id": worker.id,
                "hostname": worker.hostname,
                "platform": worker.platform,
                "arch": worker.arch,
                "version": worker.version,
                "labels": worker.labels,
                "state": worker.state,
                "protocol": worker.protocol,
                "running": worker.running,
            });
            if let Some(load) = load {
                row["load"] = load;
            }
            row
        })
        .collect();
    json!({ "workers": rows })
}

fn cron(info: &CronInfo) -> Value {
    json!({
        "id": info.id,
        "schedule": info.schedule,
        "skill": info.skill,
        "session": info.session,
        "quiet_start": info.quiet_start,
        "quiet_end": info.quiet_end,
        "once": info.once,
        "timezone": info.timezone,
        "next": info.next,
    })
}

pub(super) async fn crons(runtime: &Runtime) -> Answer {
    let listed = runtime.list_crons().await;
    answered(listed.map(|list| {
        let rows: Vec<Value> = list.crons.iter().map(cron).collect();
        json!({ "crons": rows })
    }))
}

#[derive(Deserialize)]
struct RunsArgs {
    cron: Option<u64>,
}

pub(super) async fn cron_runs(runtime: &Runtime, given: &Value) -> Answer {
    let RunsArgs { cron } = args(given)?;
    let listed = runtime.list_cron_runs(cron).await;
    answered(listed.map(|list| {
        let rows: Vec<Value> = list
            .runs
            .into_iter()
            .map(|run| {
                json!({
                    "cron": run.cron,
                    "due": run.due,
                    "started": run.started,
                    "finished": run.finished,
                    "outcome": run.outcome,
                    "detail": run.detail,
                })
            })
            .collect();
        json!({ "runs": rows })
    }))
}

#[derive(Deserialize)]
struct CronArgs {
    schedule: String,
    skill: String,
    session: u64,
    quiet_start: Option<String>,
    quiet_end: Option<String>,
    #[serde(default)]
    once: bool,
    timezone: Option<String>,
}

pub(super) async fn cron_add(runtime: &Runtime, given: &Value) -> Answer {
    let asked: CronArgs = args(given)?;
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    let request = CreateCronMsg {
        schedule: asked.schedule,
        skill: asked.skill,
        session: asked.session,
        quiet_start: filled(asked.quiet_start),
        quiet_end: filled(asked.quiet_end),
        once: asked.once,
        timezone: filled(asked.timezone),
        ..CreateCronMsg::default()
    };
    let made = runtime.create_cron(request).await;
    answered(made.map(|info| json!({ "cron": cron(&info) })))
}

#[derive(Deserialize)]
struct Numbered {
    id: u64,
}

pub(super) async fn cron_remove(runtime: &Runtime, given: &Value) -> Answer {
    let Numbered { id } = args(given)?;
    done(runtime.delete_cron(id).await)
}

pub(super) async fn stats(runtime: &Runtime) -> Answer {
    let stats: Result<wire::Stats, Refusal> = runtime.stats().await;
    answered(stats.map(|stats| {
        json!({
            "uptime_secs": stats.uptime_secs,
            "active_sessions": stats.active_sessions,
            "registered_agents": stats.registered_agents,
            "workers": stats.workers,
            "cost": stats.cost,
        })
    }))
}
