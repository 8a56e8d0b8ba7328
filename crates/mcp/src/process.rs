//! A server that is a process: started with a clean environment, ended with its tree.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quintet_framing::descriptors::give_back;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::task::JoinSet;

/// How long a server that was told to end may take before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Lines of what it said on stderr that are kept for an error.
const KEPT_LINES: usize = 5;

/// The longest line of stderr that is kept.
const MAX_LINE: usize = 500;

/// A running server.
pub(crate) struct Process {
    child: Child,
    pid: Option<Pid>,
    said: Arc<Mutex<VecDeque<String>>>,
    /// Owns the task that reads stderr.
    stderr: JoinSet<()>,
}

impl Process {
    /// Starts it in a process group of its own.
    pub(crate) fn start(
        name: &str,
        command: &[String],
        env: &BTreeMap<String, String>,
        base_env: &[(OsString, OsString)],
        cwd: &Path,
    ) -> io::Result<(Self, ChildStdout, ChildStdin)> {
        let (program, arguments) = command
            .split_first()
            .ok_or_else(|| io::Error::other("the command is empty"))?;
        let mut child = Command::new(program)
            .args(arguments)
            .env_clear()
            .envs(base_env.iter().cloned())
            .envs(env)
            .current_dir(cwd)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        give_back(child.id());
        let piped = || io::Error::other("a pipe is missing");
        let stdout = child.stdout.take().ok_or_else(piped)?;
        let stdin = child.stdin.take().ok_or_else(piped)?;
        let stderr = child.stderr.take().ok_or_else(piped)?;
        let pid = child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let said = Arc::new(Mutex::new(VecDeque::new()));
        let mut tasks = JoinSet::new();
        tasks.spawn(keep(name.to_owned(), stderr, said.clone()));
        let process = Self {
            child,
            pid,
            said,
            stderr: tasks,
        };
        Ok((process, stdout, stdin))
    }

    /// How it ended and the last that it said, once it has.
    pub(crate) async fn last_words(&mut self) -> String {
        let ended = match tokio::time::timeout(GRACE, self.child.wait()).await {
            Ok(Ok(status)) => format!("it ended with {status}"),
            Ok(Err(error)) => format!("it can't be waited for: {error}"),
            Err(_) => "it closed its output and still runs".to_owned(),
        };
        // What it said last may still be on its way; a child of its own can hold the pipe longer.
        let _ = tokio::time::timeout(GRACE, self.stderr.join_next()).await;
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        match said.is_empty() {
            true => ended,
            false => {
                let lines: Vec<&str> = said.iter().map(String::as_str).collect();
                format!("{ended}; it said: {}", lines.join(" | "))
            }
        }
    }

    /// Ends it and everything that it started.
    pub(crate) async fn end(mut self) {
        // What left the group is found while its parents still live.
        let tree = self.pid.map(descendants).unwrap_or_default();
        self.signal(Signal::TERM, &tree);
        if tokio::time::timeout(GRACE, self.child.wait())
            .await
            .is_err()
        {
            tracing::debug!("a tool server did not end in time; it is killed");
        }
        self.signal(Signal::KILL, &tree);
        if let Err(error) = self.child.wait().await {
            tracing::warn!(%error, "a tool server can't be waited for");
        }
        // A killed process still runs until the kernel has got round to it.
        match tokio::task::spawn_blocking(move || gone(&tree)).await {
            Ok(true) => {}
            Ok(false) => tracing::warn!("what a tool server started is killed and not gone yet"),
            Err(error) => tracing::warn!(%error, "what a tool server started was not waited for"),
        }
    }

    fn signal(&self, signal: Signal, tree: &[OwnedFd]) {
        // Those that are gone already are no failure.
        if let Some(pid) = self.pid {
            let _ = kill_process_group(pid, signal);
        }
        for process in tree {
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let tree = self.pid.map(descendants).unwrap_or_default();
        if self.child.id().is_some() {
            self.signal(Signal::KILL, &tree);
        }
    }
}

async fn keep(name: String, stderr: ChildStderr, said: Arc<Mutex<VecDeque<String>>>) {
    let mut lines = BufReader::new(stderr).split(b'\n');
    while let Ok(Some(line)) = lines.next_segment().await {
        let line: String = String::from_utf8_lossy(&line)
            .chars()
            .take(MAX_LINE)
            .collect();
        tracing::debug!(server = name, "{line}");
        let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() == KEPT_LINES {
            said.pop_front();
        }
        said.push_back(line);
    }
}

/// Waits until all of them have ended, and says whether they have in time.
fn gone(tree: &[OwnedFd]) -> bool {
    let until = Instant::now() + GRACE;
    tree.iter().all(|process| {
        let left = until.saturating_duration_since(Instant::now());
        let mut ends = [PollFd::new(process, PollFlags::IN)];
        let ended = Timespec::try_from(left)
            .map_err(|_| rustix::io::Errno::INVAL)
            .and_then(|left| rustix::io::retry_on_intr(|| poll(&mut ends, Some(&left))));
        ended.is_ok_and(|ready| ready == 1)
    })
}

/// The processes below one and those of its group, as `/proc` shows them now.
fn descendants(of: Pid) -> Vec<OwnedFd> {
    let of = of.as_raw_nonzero().get();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else {
            continue;
        };
        // The name in brackets may hold anything; what follows the last bracket may not.
        let kin = stat.rsplit_once(')').and_then(|(_, rest)| {
            let mut fields = rest.split_whitespace().skip(1);
            let parent = fields.next()?.parse::<i32>().ok()?;
            Some((parent, fields.next()?.parse::<i32>().ok()?))
        });
        if let Some((parent, group)) = kin {
            // One whose parent ended is still of the group.
            let below = if group == of { of } else { parent };
            children.entry(below).or_default().push(pid);
        }
    }
    let mut found = Vec::new();
    let mut waiting = vec![of];
    while let Some(parent) = waiting.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if child == of {
                continue;
            }
            waiting.push(child);
            // One that has ended meanwhile needs no signal.
            found.extend(
                Pid::from_raw(child).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()),
            );
        }
    }
    found
}
