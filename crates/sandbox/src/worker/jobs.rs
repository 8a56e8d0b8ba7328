//! The commands and shells of a worker, by id.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::job::JobCommand;
use crate::proto::frame::JobInfo;

/// Commands to a job that may wait. Input is bounded by credit; nothing else comes in numbers.
pub(crate) const COMMANDS: usize = 8192;

/// Results that are kept for somebody who may come back.
const MAX_KEPT: usize = 256;

/// Whether a job is a command or a shell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobKind {
    Exec,
    Shell,
}

/// Limits on how many run at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobLimits {
    pub(crate) commands: usize,
    pub(crate) shells: usize,
}

/// Why a job was not admitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AdmitError {
    #[error("{limit} {what} already run on this worker; wait for one to end")]
    TooMany { limit: usize, what: &'static str },
    #[error("the id {0:?} is in use")]
    Duplicate(String),
}

/// The table. A plain mutex: sections are short and hold no await.
#[derive(Debug)]
pub(crate) struct Jobs {
    limits: JobLimits,
    table: Mutex<HashMap<String, Entry>>,
    /// Changes whenever a job leaves the table.
    departures: watch::Sender<()>,
}

#[derive(Debug)]
struct Entry {
    commands: mpsc::Sender<JobCommand>,
    kind: JobKind,
    line: String,
    started: Instant,
    ended: Option<Instant>,
    attached: bool,
}

/// A job's place in the table, given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    jobs: Arc<Jobs>,
    id: String,
}

impl Jobs {
    pub(crate) fn new(limits: JobLimits) -> Self {
        Self {
            limits,
            table: Mutex::default(),
            departures: watch::Sender::new(()),
        }
    }

    pub(crate) fn admit(
        self: &Arc<Self>,
        id: &str,
        kind: JobKind,
        line: &str,
        commands: mpsc::Sender<JobCommand>,
    ) -> Result<Place, AdmitError> {
        let (limit, what) = match kind {
            JobKind::Exec => (self.limits.commands, "commands"),
            JobKind::Shell => (self.limits.shells, "shells"),
        };
        let mut table = self.lock();
        if table.contains_key(id) {
            return Err(AdmitError::Duplicate(id.to_owned()));
        }
        let running = table
            .values()
            .filter(|entry| entry.kind == kind && entry.ended.is_none())
            .count();
        if running >= limit {
            return Err(AdmitError::TooMany { limit, what });
        }
        let entry = Entry {
            commands,
            kind,
            line: line.to_owned(),
            started: Instant::now(),
            ended: None,
            attached: true,
        };
        table.insert(id.to_owned(), entry);
        Ok(Place {
            jobs: self.clone(),
            id: id.to_owned(),
        })
    }

    /// How many have not ended.
    pub(crate) fn running(&self) -> usize {
        let table = self.lock();
        table.values().filter(|entry| entry.ended.is_none()).count()
    }

    pub(crate) fn find(&self, id: &str) -> Option<mpsc::Sender<JobCommand>> {
        self.lock().get(id).map(|entry| entry.commands.clone())
    }

    pub(crate) fn list(&self) -> Vec<JobInfo> {
        let table = self.lock();
        let mut jobs: Vec<(Instant, JobInfo)> = table
            .iter()
            .map(|(id, entry)| {
                let info = JobInfo {
                    id: id.clone(),
                    kind: match entry.kind {
                        JobKind::Exec => "exec".to_owned(),
                        JobKind::Shell => "shell".to_owned(),
                    },
                    command: entry.line.clone(),
                    age_secs: entry.started.elapsed().as_secs(),
                    running: entry.ended.is_none(),
                    attached: entry.attached,
                };
                (entry.started, info)
            })
            .collect();
        jobs.sort_by_key(|(started, _)| *started);
        jobs.into_iter().map(|(_, info)| info).collect()
    }

    /// Tells every job that a connection is gone, or that the worker stops.
    pub(crate) fn tell_all(&self, command: impl Fn() -> JobCommand) {
        for entry in self.lock().values() {
            // A full lane belongs to a job that is flooded; it sees the closed connection itself.
            let _ = entry.commands.try_send(command());
        }
    }

    /// Makes the oldest result that nobody is reading give up its place. False if there is none.
    pub(crate) fn evict_oldest(&self) -> bool {
        let table = self.lock();
        let oldest = table
            .values()
            .filter(|entry| !entry.attached)
            .filter_map(|entry| entry.ended.map(|ended| (ended, &entry.commands)))
            .min_by_key(|(ended, _)| *ended);
        oldest.is_some_and(|(_, commands)| commands.try_send(JobCommand::Forget(None)).is_ok())
    }

    /// Sees every departure of a job.
    pub(crate) fn departures(&self) -> watch::Receiver<()> {
        self.departures.subscribe()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    pub(crate) fn set_attached(&self, attached: bool) {
        if let Some(entry) = self.jobs.lock().get_mut(&self.id) {
            entry.attached = attached;
        }
    }

    /// The program ended; only its result is left.
    pub(crate) fn set_ended(&self) {
        let kept = {
            let mut table = self.jobs.lock();
            if let Some(entry) = table.get_mut(&self.id) {
                entry.ended = Some(Instant::now());
            }
            table.values().filter(|entry| entry.ended.is_some()).count()
        };
        if kept > MAX_KEPT {
            self.jobs.evict_oldest();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.jobs.lock().remove(&self.id);
        self.jobs.departures.send_replace(());
    }
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_result_that_nobody_reads_makes_room() {
        let limits = JobLimits {
            commands: 1,
            shells: 1,
        };
        let jobs = Arc::new(Jobs::new(limits));
        let mut kept = Vec::new();
        for number in 0..=MAX_KEPT {
            let (sender, commands) = mpsc::channel(1);
            let admitted = jobs.admit(&number.to_string(), JobKind::Exec, "", sender);
            let place = admitted.unwrap();
            // The first has a reader, who is not to lose it.
            place.set_attached(number == 0);
            kept.push((place, commands));
            kept[number].0.set_ended();
        }
        for (number, (_, commands)) in kept.iter_mut().enumerate() {
            let told = commands.try_recv();
            assert_eq!(
                matches!(told, Ok(JobCommand::Forget(None))),
                number == 1,
                "{number}: {told:?}"
            );
        }
    }
}
