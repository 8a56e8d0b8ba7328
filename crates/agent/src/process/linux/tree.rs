//! Who belongs to a process tree, by `/proc`, and how all of it is ended.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

use super::cgroup::Cgroup;

/// How long a tree may take to vanish after SIGKILL before that is given up.
///
/// A process in an uninterruptible system call does not die sooner, whoever asks.
const KILL_PATIENCE: Duration = Duration::from_secs(5);

/// A process that can't be mistaken for another one: its number and when it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct ProcessMark {
    pub(crate) pid: i32,
    /// In clock ticks since boot.
    pub(crate) start: u64,
}

impl ProcessMark {
    /// The process that has this number now.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let start = Stat::read(pid)?.start;
        Some(Self { pid, start })
    }

    /// Whether it still exists, as a zombie too.
    pub(crate) fn exists(&self) -> bool {
        Self::of(self.pid) == Some(*self)
    }

    /// Sends SIGKILL to this process and never to one that got its number later.
    fn kill(&self) {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return;
        };
        let Ok(pidfd) = rustix::process::pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        // The pidfd holds on to whatever has the number; the start time tells whether it is ours.
        if self.exists()
            && let Err(error) = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL)
        {
            tracing::debug!(pid = self.pid, %error, "SIGKILL was not taken");
        }
    }
}

/// Names the boot of the machine: process numbers of another one mean nothing.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// What may be left of an instance's process.
#[derive(Debug, Clone)]
pub(crate) struct Leftover {
    /// The process itself, where its number is known.
    pub(crate) leader: Option<ProcessMark>,
    /// `NAME=VALUE` in the environment of the whole tree.
    pub(crate) variable: String,
    /// Its cgroup.
    pub(crate) cgroup: Option<PathBuf>,
    /// Members that were seen before and may no longer be recognisable as such.
    pub(crate) seen: BTreeSet<ProcessMark>,
}

impl Leftover {
    /// What has `variable` in its environment, and what `leader` leads.
    pub(crate) fn new(leader: Option<ProcessMark>, variable: String) -> Self {
        Self {
            leader,
            variable,
            cgroup: None,
            seen: BTreeSet::new(),
        }
    }
}

/// The living members of a process's tree. Blocks on `/proc`.
pub(crate) fn census(leader: ProcessMark, variable: String) -> BTreeSet<ProcessMark> {
    members(&Leftover::new(Some(leader), variable))
}

/// Kills all members of a tree until none is found, and says how many were.
pub(crate) async fn kill_leftover(leftover: Leftover) -> usize {
    let cgroup = leftover.cgroup.clone().map(Cgroup::at);
    let deadline = tokio::time::Instant::now() + KILL_PATIENCE;
    let mut killed = BTreeSet::new();
    let mut pause = Duration::from_millis(1);
    let killed = loop {
        if let Some(cgroup) = &cgroup {
            killed.extend(cgroup.members().into_iter().filter_map(ProcessMark::of));
            if let Err(error) = cgroup.kill() {
                tracing::debug!(path = %cgroup.path().display(), %error, "the cgroup can't be killed");
            }
        }
        let scan = leftover.clone();
        // A scan that panicked found nobody.
        let members = tokio::task::spawn_blocking(move || {
            let members = members(&scan);
            for member in &members {
                member.kill();
            }
            members
        })
        .await
        .unwrap_or_default();
        let done = members.is_empty() && !cgroup.as_ref().is_some_and(Cgroup::is_populated);
        killed.extend(members);
        if done {
            break killed.len();
        }
        if tokio::time::Instant::now() >= deadline {
            tracing::warn!(?leftover, "processes outlive SIGKILL");
            break killed.len();
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(50));
    };
    if let Some(cgroup) = cgroup {
        cgroup.remove();
    }
    killed
}

/// The living members of a tree.
///
/// Its number makes a process a session or a group only as long as the leader has not been reaped:
/// after that the number may be another's. So only a leader that still exists vouches for these;
/// the marked environment vouches for itself.
fn members(leftover: &Leftover) -> BTreeSet<ProcessMark> {
    let all = Stat::all();
    let leader = leftover.leader.filter(|mark| {
        all.get(&mark.pid)
            .is_some_and(|stat| stat.start == mark.start)
    });
    let own = i32::try_from(std::process::id()).unwrap_or(0);
    let mut found = BTreeSet::new();
    for (pid, stat) in &all {
        let by_number = leader.is_some_and(|leader| {
            *pid == leader.pid || stat.group == leader.pid || stat.session == leader.pid
        });
        let by_sight = leftover.seen.contains(&ProcessMark {
            pid: *pid,
            start: stat.start,
        });
        if *pid != own && (by_number || by_sight || has_variable(*pid, &leftover.variable)) {
            found.insert(*pid);
        }
    }
    loop {
        let before = found.len();
        for (pid, stat) in &all {
            if *pid != own && found.contains(&stat.parent) {
                found.insert(*pid);
            }
        }
        if found.len() == before {
            break;
        }
    }
    found
        .into_iter()
        .filter_map(|pid| {
            let stat = all.get(&pid)?;
            (!stat.is_dead()).then_some(ProcessMark {
                pid,
                start: stat.start,
            })
        })
        .collect()
}

fn has_variable(pid: i32, variable: &str) -> bool {
    fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environ| {
        environ
            .split(|byte| *byte == 0)
            .any(|entry| entry == variable.as_bytes())
    })
}

struct Stat {
    state: u8,
    parent: i32,
    group: i32,
    session: i32,
    start: u64,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name in parentheses may hold anything, also parentheses: fields count from the last one.
    fn parse(stat: &[u8]) -> Option<Self> {
        let after_name = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(stat.get(after_name + 1..)?).ok()?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(Self {
            state: *fields.first()?.as_bytes().first()?,
            parent: fields.get(1)?.parse().ok()?,
            group: fields.get(2)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }

    fn all() -> BTreeMap<i32, Self> {
        let Ok(entries) = fs::read_dir("/proc") else {
            return BTreeMap::new();
        };
        entries
            .flatten()
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok()?;
                Some((pid, Self::read(pid)?))
            })
            .collect()
    }

    fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat =
            Stat::parse(b"42 (a) b) (c) S 1 40 39 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 777 1 2\n")
                .unwrap();
        assert_eq!(
            (
                stat.state,
                stat.parent,
                stat.group,
                stat.session,
                stat.start
            ),
            (b'S', 1, 40, 39, 777)
        );
    }

    #[test]
    fn a_mark_is_of_this_process_alone() {
        let own = i32::try_from(std::process::id()).unwrap();
        let mark = ProcessMark::of(own).unwrap();
        assert!(mark.exists());
        let reused = ProcessMark {
            start: mark.start - 1,
            ..mark
        };
        assert!(!reused.exists());
        // A number that was reused: nobody is found, and nobody is killed.
        let leftover = Leftover::new(Some(reused), "QUINTET_TEST_NOBODY=1".to_owned());
        assert!(members(&leftover).is_empty());
        reused.kill();
    }
}
