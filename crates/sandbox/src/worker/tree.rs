//! Killing everything that a command started.
//!
//! A process group is not enough: a program that calls `setsid` or forks twice leaves it and its
//! parent. Each command therefore carries a mark in its environment, which its descendants
//! inherit, and a kill looks for the mark, the group, the session and the line of parents until
//! nothing of it is left.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use rustix::process::{Pid, Signal};

/// The environment variable that marks a command's processes.
pub(crate) const MARK: &str = "QUINTET_JOB";

/// Rounds before a tree that forks faster than it dies is left alone.
const ROUNDS: usize = 16;

/// Kills the processes of a job; its first one is `leader`, where that is known. Blocks on `/proc`.
pub(crate) fn kill(leader: Option<i32>, job: &str) {
    if let Some(pid) = leader.and_then(Pid::from_raw) {
        // The group may already be empty, which is not a failure.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
    let mark = format!("{MARK}={job}");
    let mut known: HashSet<i32> = leader.into_iter().collect();
    for _ in 0..ROUNDS {
        let found = members(leader, mark.as_bytes(), &known);
        if found.is_empty() {
            return;
        }
        for pid in &found {
            if let Some(pid) = Pid::from_raw(*pid) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
        known.extend(found);
    }
}

/// Asks the group to stop by itself.
pub(crate) fn terminate(leader: i32) {
    if let Some(pid) = Pid::from_raw(leader) {
        let _ = rustix::process::kill_process_group(pid, Signal::TERM);
    }
}

struct Process {
    parent: i32,
    group: i32,
    session: i32,
}

fn members(leader: Option<i32>, mark: &[u8], known: &HashSet<i32>) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut processes = HashMap::new();
    for entry in entries.flatten() {
        if let Some(pid) = number(&entry.file_name())
            && let Some(process) = stat(pid)
        {
            processes.insert(pid, process);
        }
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut found: HashSet<i32> = processes
        .iter()
        .filter(|(pid, process)| {
            let leads = |id| leader == Some(id);
            leads(process.group) || leads(process.session) || marked(**pid, mark)
        })
        .map(|(pid, _)| *pid)
        .collect();
    loop {
        let children: Vec<i32> = processes
            .iter()
            .filter(|(pid, process)| {
                !found.contains(pid)
                    && (found.contains(&process.parent) || known.contains(&process.parent))
            })
            .map(|(pid, _)| *pid)
            .collect();
        if children.is_empty() {
            break;
        }
        found.extend(children);
    }
    found.remove(&own);
    found.into_iter().collect()
}

fn number(name: &OsStr) -> Option<i32> {
    std::str::from_utf8(name.as_bytes()).ok()?.parse().ok()
}

/// What `/proc/PID/stat` says, unless the process is already dead.
fn stat(pid: i32) -> Option<Process> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, spaces and brackets included.
    let after_name = text.iter().rposition(|byte| *byte == b')')? + 2;
    let mut fields = std::str::from_utf8(text.get(after_name..)?)
        .ok()?
        .split(' ');
    let state = fields.next()?;
    let process = Process {
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        session: fields.next()?.parse().ok()?,
    };
    (!matches!(state, "Z" | "X")).then_some(process)
}

fn marked(pid: i32, mark: &[u8]) -> bool {
    std::fs::read(format!("/proc/{pid}/environ"))
        .is_ok_and(|environ| environ.split(|byte| *byte == 0).any(|entry| entry == mark))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_tree_is_found_by_its_mark_alone() {
        let (job, other) = ("a-job-of-this-test", "another-job-of-this-test");
        let [mut one, mut two] = [job, other].map(|job| {
            let mut command = Command::new("sleep");
            command.arg("300").env(MARK, job).spawn().unwrap()
        });
        kill(None, job);
        assert_eq!(one.wait().unwrap().signal(), Some(9));
        assert!(two.try_wait().unwrap().is_none(), "of another job");
        kill(None, other);
        assert_eq!(two.wait().unwrap().signal(), Some(9));
    }
}
