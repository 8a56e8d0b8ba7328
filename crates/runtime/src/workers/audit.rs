//! What the hub tells becomes rows of the journal, in order, before anybody hears of it.

use std::sync::Arc;

use quintet_sandbox::hub::{Direction, HubEvent, HubObserver, NotKept, Receipt};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::known;
use crate::journal::{Entry, Kind};
use crate::metrics::Metrics;
use crate::store::Db;

/// Writes what happens on the hub. The store commits rows that come at once with one sync, so a
/// busy hub pays for few of them.
pub(super) struct AuditObserver {
    db: Db,
    metrics: Arc<Metrics>,
    /// Rows that found the store's queue full. As many as there are commands, shells, transfers and
    /// connections at the most: each of them waits for its row before it makes another.
    waiting: TaskTracker,
}

impl AuditObserver {
    pub(super) fn new(db: Db, metrics: Arc<Metrics>, waiting: TaskTracker) -> Self {
        Self {
            db,
            metrics,
            waiting,
        }
    }
}

impl HubObserver for AuditObserver {
    fn observe(&self, event: HubEvent) -> Receipt {
        self.count(&event);
        let (kind, data) = row(&event);
        let entry = Entry::new(kind, &data);
        let appending = match &event {
            HubEvent::WorkerOnline(info) => {
                let (id, info) = (info.id.clone(), data["info"].to_string());
                self.db.write_in_order(
                    move |tx| {
                        known::keep(tx, &id, &info)?;
                        tx.append(entry)
                    },
                    &self.waiting,
                )
            }
            _ => self.db.append_in_order(entry, &self.waiting),
        };
        let metrics = self.metrics.clone();
        Receipt::when(async move {
            match appending.durable().await {
                Ok(_) => Ok(()),
                Err(error) => {
                    metrics.audit_lost.inc();
                    tracing::error!(%error, ?event, "a row of the workers' audit is lost");
                    Err(NotKept(error.to_string()))
                }
            }
        })
    }
}

impl AuditObserver {
    fn count(&self, event: &HubEvent) {
        match event {
            HubEvent::CommandStarted { .. } => {
                self.metrics.worker_commands.inc();
            }
            HubEvent::ShellStarted { .. } => {
                self.metrics.worker_shells.inc();
            }
            HubEvent::TransferEnded {
                direction, bytes, ..
            } => {
                let counter = match direction {
                    Direction::Upload => &self.metrics.worker_bytes_up,
                    Direction::Download => &self.metrics.worker_bytes_down,
                };
                counter.inc_by(*bytes);
            }
            HubEvent::WorkerRefused { .. } => {
                self.metrics.workers_refused.inc();
            }
            HubEvent::WorkerOnline(_)
            | HubEvent::WorkerStale { .. }
            | HubEvent::WorkerOffline { .. }
            | HubEvent::CommandEnded { .. }
            | HubEvent::ShellEnded { .. }
            | HubEvent::TransferStarted { .. } => {}
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
