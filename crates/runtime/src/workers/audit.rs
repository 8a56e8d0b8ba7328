//! What the hub tells becomes rows of the journal, in order, before anybody hears of it.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use quintet_sandbox::hub::{Direction, HubEvent, HubObserver, NotKept, Receipt};
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use super::known;
use crate::journal::{Entry, Kind};
use crate::metrics::Metrics;
use crate::refusals::Refusals;
use crate::store::Db;

/// Characters of a worker's words in a row: a reason or a result.
const MAX_WORDS: usize = 4096;

/// Writes what happens on the hub. The store commits rows that come at once with one sync, so a
/// busy hub pays for few of them.
pub(super) struct AuditObserver {
    db: Db,
    metrics: Arc<Metrics>,
    /// Held to count one, never across an await.
    refusals: Mutex<Refusals>,
    /// Rows that found the store's queue full. As many as there are commands, shells, transfers and
    /// connections at the most: each of them waits for its row before it makes another.
    waiting: TaskTracker,
}

impl AuditObserver {
    pub(super) fn new(db: Db, metrics: Arc<Metrics>, waiting: TaskTracker) -> Self {
        Self {
            db,
            metrics,
            refusals: Mutex::default(),
            waiting,
        }
    }
}

impl HubObserver for AuditObserver {
    fn observe(&self, event: HubEvent) -> Receipt {
        self.count(&event);
        let (kind, mut data) = row(&event);
        if let HubEvent::WorkerRefused { address, .. } = &event {
            let source = address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |it| it.ip());
            match self.refused(source) {
                Some(0) => {}
                Some(unwritten) => data["unwritten"] = unwritten.into(),
                None => return Receipt::given(),
            }
        }
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
    /// Whether a refusal gets a row: how many before it got none.
    fn refused(&self, source: IpAddr) -> Option<u64> {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.count(source, now.as_secs())
    }

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
            json!({ "worker": worker, "reason": brief(reason) }),
        ),
        HubEvent::WorkerRefused {
            worker,
            address,
            reason,
        } => (
            Kind::WorkerRefused,
            json!({ "worker": worker, "address": address.map(|it| it.to_string()), "reason": brief(reason) }),
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
                "worker": worker, "job": job, "result": brief(result), "exit_code": exit_code(result),
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
                "worker": worker, "job": job, "result": brief(result), "exit_code": exit_code(result),
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
                "result": brief(result), "duration_ms": millis(duration),
            }),
        ),
    }
}

/// A peer's words, cut where they are too many for a row.
fn brief(words: &str) -> String {
    match words.char_indices().nth(MAX_WORDS) {
        Some((end, _)) => format!("{}...", &words[..end]),
        None => words.to_owned(),
    }
}

/// The exit code in the hub's words, where it was one.
fn exit_code(result: &str) -> Option<i32> {
    result.strip_prefix("exited ")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::journal::{Filter, Reader};

    async fn rows_of(events: impl IntoIterator<Item = HubEvent>) -> Vec<Value> {
        let folder = tempfile::tempdir().expect("a folder");
        let db = Db::open(&folder.path().join("q.db")).expect("new");
        let metrics = Metrics::new("test");
        let audit = AuditObserver::new(db.clone(), metrics, TaskTracker::new());
        for event in events {
            audit.observe(event).come().await.expect("kept");
        }
        let mut reader = Reader::new(&db, Filter::default(), 0);
        let rows = reader.next_batch().await.expect("readable");
        rows.iter().map(|row| row.value()).collect()
    }

    #[tokio::test]
    async fn a_source_that_is_refused_again_and_again_has_one_row() {
        let refused = |port| HubEvent::WorkerRefused {
            worker: "w".to_owned(),
            address: Some(SocketAddr::from(([192, 0, 2, 1], port))),
            reason: "the token is not valid".to_owned(),
        };
        let rows = rows_of((1..100).map(refused)).await;
        let row = json!({
            "worker": "w", "address": "192.0.2.1:1", "reason": "the token is not valid",
        });
        assert_eq!(rows, [row]);
    }

    #[tokio::test]
    async fn a_workers_words_are_cut_in_a_row() {
        let rows = rows_of([HubEvent::CommandEnded {
            worker: "w".to_owned(),
            job: "j".to_owned(),
            result: "\u{1}".repeat(1 << 20),
            duration: std::time::Duration::ZERO,
            output: 0,
        }])
        .await;
        let result = rows[0]["result"].as_str().expect("text");
        assert_eq!(result, format!("{}...", "\u{1}".repeat(MAX_WORDS)));
    }
}
