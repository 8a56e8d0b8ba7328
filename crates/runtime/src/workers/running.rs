//! Commands that the daemon should not stop under: those of sessions, whose files have to come
//! back and be recorded, and those of the built-in worker, which ends with the daemon. All others
//! are left to their workers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// The most of a command's text that is told.
const MAX_TEXT: usize = 60;

/// The most commands that are named.
const NAMED: usize = 5;

/// What runs. Clones share it.
#[derive(Clone)]
pub(crate) struct RunningCommands {
    inner: Arc<Inner>,
}

struct Inner {
    /// By the order of their start. Short sections without an await.
    commands: Mutex<BTreeMap<u64, RunningCommand>>,
    /// How many there are.
    count: watch::Sender<usize>,
}

/// A command, as it is told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunningCommand {
    pub(crate) command: String,
    pub(crate) session: Option<u64>,
    pub(crate) worker: String,
}

/// A command's place in the table, left when dropped.
pub(crate) struct Running {
    table: RunningCommands,
    number: u64,
}

impl Default for RunningCommands {
    fn default() -> Self {
        Self {
            inner: Arc::new(Inner {
                commands: Mutex::default(),
                count: watch::Sender::new(0),
            }),
        }
    }
}

impl RunningCommands {
    pub(crate) fn enter(&self, command: RunningCommand) -> Running {
        let mut commands = self.commands();
        let number = commands.last_key_value().map_or(0, |(last, _)| last + 1);
        commands.insert(number, command);
        self.inner.count.send_replace(commands.len());
        Running {
            table: self.clone(),
            number,
        }
    }

    /// Waits until none runs.
    pub(crate) async fn ended(&self) {
        let mut count = self.inner.count.subscribe();
        // The sender is in `self`.
        let _ = count.wait_for(|count| *count == 0).await;
    }

    /// What runs, for a person; `None` when nothing does.
    pub(crate) fn described(&self) -> Option<String> {
        let commands = self.commands();
        let count = match commands.len() {
            0 => return None,
            1 => "1 command".to_owned(),
            many => format!("{many} commands"),
        };
        let mut named: Vec<String> = commands.values().take(NAMED).map(described).collect();
        if commands.len() > NAMED {
            named.push(format!("and {} more", commands.len() - NAMED));
        }
        Some(format!("{count}: {}", named.join(", ")))
    }

    fn commands(&self) -> MutexGuard<'_, BTreeMap<u64, RunningCommand>> {
        self.inner
            .commands
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn described(it: &RunningCommand) -> String {
    let line = it.command.lines().next().unwrap_or_default();
    let mut text: String = line.chars().take(MAX_TEXT).collect();
    if text.len() < it.command.len() {
        text.push('…');
    }
    match it.session {
        Some(session) => format!("`{text}` in session {session} on {}", it.worker),
        None => format!("`{text}` on {}", it.worker),
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut commands = self.table.commands();
        commands.remove(&self.number);
        self.table.inner.count.send_replace(commands.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(command: &str, session: Option<u64>) -> RunningCommand {
        RunningCommand {
            command: command.to_owned(),
            session,
            worker: "local".to_owned(),
        }
    }

    #[tokio::test]
    async fn what_runs_is_named_and_awaited() {
        let table = RunningCommands::default();
        assert_eq!(table.described(), None);
        table.ended().await;
        let first = table.enter(command("sleep 5", Some(3)));
        assert_eq!(
            table.described().as_deref(),
            Some("1 command: `sleep 5` in session 3 on local")
        );
        let second = table.enter(command("make\ntest", None));
        assert_eq!(
            table.described().as_deref(),
            Some("2 commands: `sleep 5` in session 3 on local, `make…` on local")
        );
        drop(first);
        assert_eq!(
            table.described().as_deref(),
            Some("1 command: `make…` on local")
        );
        drop(second);
        table.ended().await;
    }
}
