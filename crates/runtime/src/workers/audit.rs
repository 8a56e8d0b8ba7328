//! What the hub tells becomes rows of the journal, in order.

use std::sync::Arc;

use quintet_sandbox::hub::{Direction, HubEvent, HubObserver};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::journal::{Entry, Kind};
use crate::metrics::Metrics;
use crate::store::Db;

/// Rows that wait for the disk. The hub can't wait for it, so a row beyond that is lost, counted
/// and logged.
const WAITING: usize = 16 * 1024;

/// Rows in one append.
const BATCH: usize = 256;

pub(super) fn start(db: Db, metrics: Arc<Metrics>) -> (AuditObserver, AuditWriter) {
    let (sender, rows) = mpsc::channel(WAITING);
    let observer = AuditObserver {
        rows: sender,
        metrics,
    };
    (observer, AuditWriter { rows, db })
}

pub(super) struct AuditObserver {
    rows: mpsc::Sender<Entry>,
    metrics: Arc<Metrics>,
}

impl HubObserver for AuditObserver {
    fn observe(&self, event: &HubEvent) {
        if let HubEvent::CommandStarted { .. } = event {
            self.metrics.worker_commands.inc();
        }
        let (kind, data) = row(event);
        if let Err(error) = self.rows.try_send(Entry::new(kind, &data)) {
            self.metrics.audit_lost.inc();
            tracing::error!(%error, ?event, "a row of the workers' audit is lost");
        }
    }
}

pub(super) struct AuditWriter {
    rows: mpsc::Receiver<Entry>,
    db: Db,
}

impl AuditWriter {
    /// Writes until `stop`, then what is left.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            tokio::select! {
                _ = self.rows.recv_many(&mut batch, BATCH) => {}
                () = stop.cancelled() => {
                    self.rows.close();
                    if self.rows.recv_many(&mut batch, BATCH).await == 0 {
                        return;
                    }
                }
            }
            if batch.is_empty() {
                return;
            }
            if let Err(error) = self.db.append(std::mem::take(&mut batch)).await {
                tracing::error!(%error, "the workers' audit can't be written");
            }
        }
    }
}

fn row(event: &HubEvent) -> (Kind, Value) {
    let way = |direction: &Direction| match direction {
        Direction::Upload => "upload",
        Direction::Download => "download",
    };
    let millis =
        |duration: &std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    match event {
        HubEvent::WorkerOnline(info) => (
            Kind::WorkerOnline,
            json!({ "worker": info.id, "info": info }),
        ),
        HubEvent::WorkerStale { worker } => (Kind::WorkerStale, json!({ "worker": worker })),
        HubEvent::WorkerOffline { worker, reason } => (
            Kind::WorkerOffline,
            json!({ "worker": worker, "reason": reason }),
        ),
        HubEvent::WorkerRefused {
            worker,
            address,
            reason,
        } => (
            Kind::WorkerRefused,
            json!({ "worker": worker, "address": address.map(|it| it.to_string()), "reason": reason }),
        ),
        HubEvent::CommandStarted {
            worker,
            job,
            command,
            cwd,
        } => (
            Kind::CommandStarted,
            json!({ "worker": worker, "job": job, "command": command, "cwd": cwd }),
        ),
        HubEvent::CommandEnded {
            worker,
            job,
            result,
            duration,
            output,
        } => (
            Kind::CommandEnded,
            json!({
                "worker": worker, "job": job, "result": result, "exit_code": exit_code(result),
                "duration_ms": millis(duration), "output_bytes": output,
            }),
        ),
        HubEvent::ShellStarted { worker, job } => {
            (Kind::ShellStarted, json!({ "worker": worker, "job": job }))
        }
        HubEvent::ShellEnded {
            worker,
            job,
            result,
            duration,
        } => (
            Kind::ShellEnded,
            json!({
                "worker": worker, "job": job, "result": result, "exit_code": exit_code(result),
                "duration_ms": millis(duration),
            }),
        ),
        HubEvent::TransferStarted {
            worker,
            direction,
            path,
        } => (
            Kind::TransferStarted,
            json!({ "worker": worker, "direction": way(direction), "path": path }),
        ),
        HubEvent::TransferEnded {
            worker,
            direction,
            path,
            bytes,
            result,
            duration,
        } => (
            Kind::TransferEnded,
            json!({
                "worker": worker, "direction": way(direction), "path": path, "bytes": bytes,
                "result": result, "duration_ms": millis(duration),
            }),
        ),
    }
}

/// The exit code in the hub's words, where it was one.
fn exit_code(result: &str) -> Option<i32> {
    result.strip_prefix("exited ")?.parse().ok()
}
