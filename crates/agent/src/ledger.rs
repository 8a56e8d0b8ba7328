//! The durable list of processes that the daemon has started and not yet seen end.
//!
//! An entry is on disk before its process starts, so that no crash of the daemon loses one. It names
//! the process by number and start time; a number that the system gave to another process since then
//! is never touched. At its next start the daemon ends whatever the list still holds ([`Ledger::sweep`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use serde::{Deserialize, Serialize};

use crate::process::{Leftover, ProcessMark, boot_id, kill_leftover};
use crate::proto::message::AgentId;

/// Why the ledger can't be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Reading or writing failed.
    #[error("the process ledger {} can't be used: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Entry {
    agent_id: AgentId,
    boot_id: String,
    variable: String,
    #[serde(default)]
    process: Option<ProcessMark>,
    #[serde(default)]
    cgroup: Option<PathBuf>,
}

/// One entry of the ledger, to be completed or struck out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EntryId(u64);

/// What a sweep did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SweepReport {
    /// Instances whose processes were still there.
    pub ended: Vec<AgentId>,
    /// Processes that were killed.
    pub processes: usize,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    open: BTreeMap<EntryId, Entry>,
}

/// The list.
#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    boot_id: String,
    /// Held over the write of the file, so that the file never goes back in time.
    entries: Mutex<Entries>,
}

impl Ledger {
    /// Opens the list; what an earlier daemon left in it waits for [`sweep`](Self::sweep).
    pub(crate) fn open(path: PathBuf) -> Result<Self, LedgerError> {
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(source) => return Err(LedgerError::Io { path, source }),
        };
        let mut entries = Entries::default();
        for line in text.lines() {
            match serde_json::from_str::<Entry>(line) {
                Ok(entry) => {
                    entries.insert(entry);
                }
                Err(error) => {
                    tracing::warn!(%error, line, "a line of the process ledger is unreadable");
                }
            }
        }
        Ok(Self {
            path,
            boot_id: boot_id(),
            entries: Mutex::new(entries),
        })
    }

    /// Notes that a process is about to start; when that is not durable, there is no entry. Blocks on
    /// the disk.
    pub(crate) fn intend(
        &self,
        agent_id: AgentId,
        variable: String,
        cgroup: Option<PathBuf>,
    ) -> Result<EntryId, LedgerError> {
        let mut entries = self.lock();
        let id = entries.insert(Entry {
            agent_id,
            boot_id: self.boot_id.clone(),
            variable,
            process: None,
            cgroup,
        });
        self.write(&entries).inspect_err(|_| {
            entries.open.remove(&id);
        })?;
        Ok(id)
    }

    /// Notes which process it became. Blocks on the disk.
    pub(crate) fn started(&self, id: EntryId, process: ProcessMark) -> Result<(), LedgerError> {
        self.change(|entries| {
            if let Some(entry) = entries.open.get_mut(&id) {
                entry.process = Some(process);
            }
        })
    }

    /// Notes that nothing of it is left. Blocks on the disk.
    pub(crate) fn ended(&self, id: EntryId) -> Result<(), LedgerError> {
        self.change(|entries| {
            entries.open.remove(&id);
        })
    }

    /// Ends everything that the list holds from before, and strikes it out.
    pub(crate) async fn sweep(&self) -> Result<SweepReport, LedgerError> {
        let found: Vec<(EntryId, Entry)> = {
            let entries = self.lock();
            entries
                .open
                .iter()
                .map(|(id, entry)| (*id, entry.clone()))
                .collect()
        };
        let mut report = SweepReport::default();
        for (id, entry) in found {
            if entry.boot_id == self.boot_id {
                let killed = kill_leftover(Leftover {
                    leader: entry.process,
                    variable: entry.variable,
                    cgroup: entry.cgroup,
                    seen: BTreeSet::new(),
                })
                .await;
                report.processes += killed;
                if killed > 0 {
                    report.ended.push(entry.agent_id);
                }
            }
            self.ended(id)?;
        }
        Ok(report)
    }

    fn change(&self, change: impl FnOnce(&mut Entries)) -> Result<(), LedgerError> {
        let mut entries = self.lock();
        change(&mut entries);
        self.write(&entries)
    }

    fn write(&self, entries: &Entries) -> Result<(), LedgerError> {
        let mut text = Vec::new();
        for entry in entries.open.values() {
            // Ids, numbers and paths of ours always encode; a path that is no text is not ours.
            if let Ok(line) = serde_json::to_vec(entry) {
                text.extend_from_slice(&line);
                text.push(b'\n');
            }
        }
        replace_file(&self.path, &text).map_err(|source| LedgerError::Io {
            path: self.path.clone(),
            source,
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Entries> {
        self.entries
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Entries {
    fn insert(&mut self, entry: Entry) -> EntryId {
        let id = EntryId(self.next);
        self.next += 1;
        self.open.insert(id, entry);
        id
    }
}

/// Replaces a file so that a crash leaves the old or the new content.
fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("new");
    let mut file = fs::File::create(&beside)?;
    file.write_all(content)?;
    file.sync_data()?;
    fs::rename(&beside, path)?;
    match path.parent() {
        Some(folder) => fs::File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}
