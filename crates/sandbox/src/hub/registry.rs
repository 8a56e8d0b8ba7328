//! Which workers there are.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::conn::Conn;
use crate::proto::{Load, Metadata};

/// Workers that are gone and still listed; the longest gone is forgotten first.
const MAX_OFFLINE: usize = 1024;

/// Whether a worker can be given work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerStatus {
    /// Connected and heard of.
    Online,
    /// Connected and silent.
    Stale,
    /// Not connected.
    Offline,
}

/// One worker, in the shape that `quintet workers --json` has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerInfo {
    /// Its name.
    pub id: String,
    /// Its machine's name.
    pub hostname: String,
    /// `linux`, ...
    pub platform: String,
    /// `x86_64`, ...
    pub arch: String,
    /// Its program's version.
    pub version: String,
    /// What it is selected by.
    pub labels: BTreeMap<String, String>,
    /// The folder beneath which its copies of workspaces are; empty when it has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub copies: String,
    /// Whether it can be given work.
    pub state: WorkerStatus,
    /// `sandd.v1` or `sandd.v2`.
    pub protocol: String,
    /// Commands and shells that this hub has on it.
    pub running: usize,
    /// How busy its machine is, when it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// The table. Its owner guards it.
#[derive(Debug, Default)]
pub(super) struct Registry {
    workers: HashMap<String, Entry>,
    /// Those of an earlier hub that have not come back.
    remembered: HashMap<String, WorkerInfo>,
    departures: u64,
}

#[derive(Debug)]
struct Entry {
    metadata: Metadata,
    status: WorkerStatus,
    conn: Conn,
    /// Order of departure, to forget the longest gone first.
    departed: u64,
    /// Why it may not come back as it is.
    dismissed: Option<String>,
}

impl Registry {
    /// Puts in what an earlier hub knew, as offline.
    pub(super) fn remember(&mut self, workers: impl IntoIterator<Item = WorkerInfo>) {
        for info in workers.into_iter().take(MAX_OFFLINE) {
            let offline = WorkerInfo {
                state: WorkerStatus::Offline,
                running: 0,
                load: None,
                ..info
            };
            self.remembered.insert(offline.id.clone(), offline);
        }
    }

    /// Puts a connection in. Returns the older one that it replaces, if any.
    pub(super) fn register(&mut self, id: &str, metadata: Metadata, conn: &Conn) -> Option<Conn> {
        let entry = Entry {
            metadata,
            status: WorkerStatus::Online,
            conn: conn.clone(),
            departed: 0,
            dismissed: None,
        };
        self.remembered.remove(id);
        let former = self.workers.insert(id.to_owned(), entry)?;
        (former.status != WorkerStatus::Offline && former.conn.id() != conn.id())
            .then_some(former.conn)
    }

    /// Whether a worker is online on this connection and says of itself what it said before.
    pub(super) fn is_unchanged(&self, id: &str, metadata: &Metadata, conn: &Conn) -> bool {
        self.workers.get(id).is_some_and(|entry| {
            entry.conn.id() == conn.id()
                && entry.status == WorkerStatus::Online
                && entry.metadata == *metadata
        })
    }

    /// Marks a worker; nothing happens if a newer connection has taken its place.
    pub(super) fn mark(&mut self, id: &str, conn: u64, status: WorkerStatus) -> bool {
        let Some(entry) = self.workers.get_mut(id) else {
            return false;
        };
        if entry.conn.id() != conn || entry.status == status {
            return false;
        }
        entry.status = status;
        if status == WorkerStatus::Offline {
            self.departures += 1;
            entry.departed = self.departures;
            self.forget_longest_gone();
        }
        true
    }

    /// Notes that a worker may not come back as it is; nothing happens if a newer connection has taken
    /// its place.
    pub(super) fn dismiss(&mut self, id: &str, conn: u64, reason: &str) {
        if let Some(entry) = self.workers.get_mut(id)
            && entry.conn.id() == conn
        {
            entry.dismissed = Some(reason.to_owned());
        }
    }

    /// Why a worker may not come back as it is.
    pub(super) fn dismissed(&self, id: &str) -> Option<&str> {
        self.workers.get(id)?.dismissed.as_deref()
    }

    fn forget_longest_gone(&mut self) {
        let gone = |entry: &Entry| entry.status == WorkerStatus::Offline;
        if self.workers.values().filter(|entry| gone(entry)).count() <= MAX_OFFLINE {
            return;
        }
        let longest = self
            .workers
            .iter()
            .filter(|(_, entry)| gone(entry))
            .min_by_key(|(_, entry)| entry.departed)
            .map(|(id, _)| id.clone());
        if let Some(id) = longest {
            self.workers.remove(&id);
        }
    }

    pub(super) fn status(&self, id: &str) -> Option<WorkerStatus> {
        let remembered = self.remembered.get(id).map(|info| info.state);
        self.workers
            .get(id)
            .map(|entry| entry.status)
            .or(remembered)
    }

    pub(super) fn conn(&self, id: &str) -> Option<&Conn> {
        self.workers.get(id).map(|entry| &entry.conn)
    }

    /// Whether a worker knows a kind of stream that came later.
    pub(super) fn knows(&self, id: &str, open: &str) -> bool {
        let entry = self.workers.get(id);
        entry.is_some_and(|entry| entry.metadata.opens.iter().any(|known| known == open))
    }

    pub(super) fn info(&self, id: &str) -> Option<WorkerInfo> {
        let now = self.workers.get(id).map(|entry| info(id, entry));
        now.or_else(|| self.remembered.get(id).cloned())
    }

    /// All workers that carry all of `labels`, by name.
    pub(super) fn select(&self, labels: &BTreeMap<String, String>) -> Vec<WorkerInfo> {
        let carries = |carried: &BTreeMap<String, String>| {
            let mut labels = labels.iter();
            labels.all(|(key, value)| carried.get(key) == Some(value))
        };
        let now = self.workers.iter();
        let now = now.filter(|(_, entry)| carries(&entry.metadata.labels));
        let before = self.remembered.values();
        let before = before.filter(|info| carries(&info.labels)).cloned();
        let mut found: Vec<WorkerInfo> = now
            .map(|(id, entry)| info(id, entry))
            .chain(before)
            .collect();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        found
    }
}

fn info(id: &str, entry: &Entry) -> WorkerInfo {
    WorkerInfo {
        state: entry.status,
        ..WorkerInfo::new(id, &entry.metadata, &entry.conn)
    }
}

impl WorkerInfo {
    /// A worker that is about to be online.
    pub(super) fn new(id: &str, metadata: &Metadata, conn: &Conn) -> Self {
        let Metadata {
            hostname,
            platform,
            arch,
            version,
            labels,
            opens: _,
            connection: _,
            former: _,
            copies,
        } = metadata.clone();
        Self {
            id: id.to_owned(),
            hostname,
            platform,
            arch,
            version,
            labels,
            copies,
            state: WorkerStatus::Online,
            protocol: conn.protocol().name().to_owned(),
            running: conn.running(),
            load: conn.load(),
        }
    }
}
