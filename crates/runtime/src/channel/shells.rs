//! Terminals on workers, for a v2 device.
//!
//! A stream belongs to its connection; the shell behind it lives on when that
//! ends, and can be attached to again. Which shell a stream is of is kept in
//! the connection's [`Link`](quintet_channel::server::Link).

use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::{ByteStream, Request, StreamEnd};
use quintet_control::wire::{
    CommandEvent, ShellInputMsg, ShellResizeMsg, command_ended::Outcome, command_event::Event,
};
use quintet_sandbox::hub::ShellPlace;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

use super::op_error;
use super::ops::{Answer, answered, args, done};
use crate::daemon::Runtime;
use crate::refusal::Refusal;
use crate::workers::{CommandEvents, terminal_size};

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
    /// The shell starts in this session's workspace; without one, in the worker's root.
    session: Option<u64>,
}

/// Opens a shell; its bytes go through a stream of the connection.
pub(super) async fn open(runtime: &Arc<Runtime>, request: &Request) -> Answer {
    let asked: Open = args(&request.args)?;
    let opened = async {
        let size = terminal_size(asked.rows, asked.cols)?;
        let place = place(runtime, &asked.worker, asked.session).await?;
        let workers = &runtime.workers;
        workers.open_shell(&asked.worker, place, size, TERM).await
    };
    carry(runtime, request, 0, opened.await).await
}

async fn place(
    runtime: &Runtime,
    worker: &str,
    session: Option<u64>,
) -> Result<ShellPlace, Refusal> {
    let Some(session) = session else {
        return Ok(ShellPlace::Root);
    };
    let (_, master) = runtime.workspace_of(session).await?;
    Ok(match runtime.shares_folder(worker) {
        true => ShellPlace::Folder(master.dir.display().to_string()),
        false => ShellPlace::Workspace(runtime.mirror_of(&master, worker)),
    })
}

#[derive(Deserialize)]
struct Attach {
    worker: String,
    shell: String,
    rows: u32,
    cols: u32,
    /// Bytes of its output that the device has.
    #[serde(default)]
    from: u64,
}

/// Attaches to a shell. The answer's `from` is where its bytes begin: later than the device asked
/// where the worker has not kept what lies between.
pub(super) async fn attach(runtime: &Arc<Runtime>, request: &Request) -> Answer {
    let asked: Attach = args(&request.args)?;
    let attached = async {
        let size = terminal_size(asked.rows, asked.cols)?;
        let workers = &runtime.workers;
        workers
            .attach_shell(&asked.worker, &asked.shell, size, asked.from)
            .await
    };
    carry(runtime, request, asked.from, attached.await).await
}

/// Gives a shell's bytes a stream of the connection, once it has started.
async fn carry(
    runtime: &Arc<Runtime>,
    request: &Request,
    from: u64,
    begun: Result<CommandEvents, Refusal>,
) -> Answer {
    let mut events = begun.map_err(|refusal| op_error(&refusal))?;
    let started = match events.recv().await {
        Some(Ok(CommandEvent {
            event: Some(Event::Started(started)),
        })) => started,
        Some(Err(refusal)) => return Err(op_error(&refusal)),
        _ => return Err(OpError::new("internal", "the shell did not start")),
    };
    let job = started.job;
    let stream = request.link.open_stream(&job)?;
    let id = stream.id();
    request
        .link
        .spawn(pump(runtime.clone(), stream, events, job.clone()));
    let from = from.saturating_add(started.dropped_stdout);
    Ok(json!({ "shell": job, "stream": id, "from": from }))
}

/// Carries bytes both ways until either side is done. Dropping `events` leaves the shell to its worker.
async fn pump(
    runtime: Arc<Runtime>,
    mut stream: ByteStream,
    mut events: CommandEvents,
    job: String,
) {
    let sender = stream.sender();
    let end = loop {
        tokio::select! {
            input = stream.receive() => {
                let Some(data) = input else { break StreamEnd::LetGo };
                let message = ShellInputMsg { job: job.clone(), data };
                if let Err(refusal) = runtime.workers.shell_input(message).await {
                    break StreamEnd::Failed(refusal.to_string());
                }
            }
            event = events.recv() => match event {
                Some(Ok(CommandEvent { event: Some(Event::Stdout(bytes)) })) => {
                    if sender.send(&bytes).await.is_err() {
                        break StreamEnd::LetGo;
                    }
                }
                Some(Ok(CommandEvent { event: Some(Event::Ended(ended)) })) => {
                    break match ended.outcome {
                        Some(Outcome::Exited(code)) => StreamEnd::Exited(code),
                        Some(Outcome::Signalled(signal)) => StreamEnd::Exited(128 + signal),
                        _ => StreamEnd::Failed("the shell was ended".to_owned()),
                    };
                }
                Some(Ok(_)) => {}
                // Another device has attached to it, or its worker is gone.
                Some(Err(refusal)) => break StreamEnd::Failed(refusal.to_string()),
                None => break StreamEnd::LetGo,
            }
        }
    };
    // A connection that has ended needs to be told nothing.
    let _ = sender.end(&end).await;
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
