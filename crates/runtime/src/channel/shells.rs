//! Terminals on workers, for a v2 device.
//!
//! A stream belongs to its connection; the shell behind it lives on when that
//! ends, and can be attached to again. Which shell a stream is of is kept in
//! the connection's [`Link`](quintet_channel::server::Link).

use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::{ByteStream, Request};
use quintet_control::wire::{
    CommandEvent, ShellInputMsg, ShellMsg, ShellResizeMsg, command_ended::Outcome,
    command_event::Event,
};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

use super::op_error;
use super::ops::{Answer, answered, args, done};
use crate::daemon::Runtime;
use crate::workers::CommandEvents;

/// What the terminal in the browser is.
const TERM: &str = "xterm-256color";

#[derive(Deserialize)]
struct OfWorker {
    worker: String,
}

pub(super) async fn list(runtime: &Runtime, given: &Value) -> Answer {
    let OfWorker { worker } = args(given)?;
    let jobs = runtime.list_jobs(&worker).await;
    let now = jiff::Timestamp::now().as_second();
    answered(jobs.map(|list| {
        let rows: Vec<Value> = list
            .jobs
            .into_iter()
            .filter(|job| job.kind == "shell" && job.running)
            .map(|job| {
                let started = now.saturating_sub_unsigned(job.age_secs).max(0);
                json!({
                    "id": job.id,
                    "started_at": super::lists::time(started.cast_unsigned()),
                    "attached": job.attached,
                })
            })
            .collect();
        json!({ "shells": rows })
    }))
}

#[derive(Deserialize)]
struct Open {
    worker: String,
    rows: u32,
    cols: u32,
    shell: Option<String>,
}

/// Opens a shell, or attaches to one; its bytes go through a stream of the connection.
pub(super) async fn open(runtime: &Arc<Runtime>, request: &Request) -> Answer {
    let asked: Open = args(&request.args)?;
    if request.op == "shells.attach" && asked.shell.is_none() {
        return Err(OpError::new("bad_request", "args: missing field `shell`"));
    }
    let message = ShellMsg {
        worker: asked.worker,
        rows: asked.rows,
        cols: asked.cols,
        term: TERM.to_owned(),
        attach: asked.shell.filter(|_| request.op == "shells.attach"),
    };
    let mut events = runtime
        .workers
        .shell(message)
        .await
        .map_err(|refusal| op_error(&refusal))?;
    let job = match events.recv().await {
        Some(Ok(CommandEvent {
            event: Some(Event::Started(started)),
        })) => started.job,
        Some(Err(refusal)) => return Err(op_error(&refusal)),
        _ => return Err(OpError::new("internal", "the shell did not start")),
    };
    let stream = request.link.open_stream(&job)?;
    let id = stream.id();
    request
        .link
        .spawn(pump(runtime.clone(), stream, events, job.clone()));
    Ok(json!({ "shell": job, "stream": id }))
}

/// Carries bytes both ways until either side is done. Dropping `events` leaves the shell to its worker.
async fn pump(
    runtime: Arc<Runtime>,
    mut stream: ByteStream,
    mut events: CommandEvents,
    job: String,
) {
    let sender = stream.sender();
    let code = loop {
        tokio::select! {
            input = stream.receive() => {
                let Some(data) = input else { break None };
                let message = ShellInputMsg { job: job.clone(), data };
                if runtime.workers.shell_input(message).await.is_err() {
                    break None;
                }
            }
            event = events.recv() => match event {
                Some(Ok(CommandEvent { event: Some(Event::Stdout(bytes)) })) => {
                    if sender.send(&bytes).await.is_err() {
                        break None;
                    }
                }
                Some(Ok(CommandEvent { event: Some(Event::Ended(ended)) })) => {
                    break match ended.outcome {
                        Some(Outcome::Exited(code)) => Some(code),
                        Some(Outcome::Signalled(signal)) => Some(128 + signal),
                        _ => None,
                    };
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => break None,
            }
        }
    };
    // A connection that has ended needs to be told nothing.
    let _ = sender.end(code).await;
}

#[derive(Deserialize)]
struct OfStream {
    stream: u32,
    #[serde(default)]
    rows: u32,
    #[serde(default)]
    cols: u32,
}

fn shell_of(request: &Request) -> Result<(String, OfStream), OpError> {
    let asked: OfStream = args(&request.args)?;
    let job = request
        .link
        .label(asked.stream)
        .ok_or_else(|| OpError::new("not_found", format!("no stream {} is open", asked.stream)))?;
    Ok((job, asked))
}

pub(super) async fn resize(runtime: &Runtime, request: &Request) -> Answer {
    let (job, OfStream { rows, cols, .. }) = shell_of(request)?;
    let message = ShellResizeMsg { job, rows, cols };
    done(runtime.workers.shell_resize(message).await)
}

/// Hangs the shell up.
pub(super) fn close(runtime: &Runtime, request: &Request) -> Answer {
    let (job, _) = shell_of(request)?;
    done(runtime.workers.exec_cancel(&job))
}

/// Ends the stream; the shell lives on.
pub(super) fn detach(request: &Request) -> Answer {
    let (_, OfStream { stream, .. }) = shell_of(request)?;
    request.link.end_stream(stream);
    Ok(json!({}))
}
