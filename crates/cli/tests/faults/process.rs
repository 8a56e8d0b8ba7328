//! A process that may end at any moment, and what it said until then.

use std::process::{ExitStatus, Stdio};

use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::harness::{DEADLINE, within};

pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    /// A file: what is left of a process's children must not keep a pipe open.
    talk: tempfile::NamedTempFile,
}

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stderr: String,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let talk = tempfile::NamedTempFile::new().unwrap();
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(talk.reopen().unwrap())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, talk }
    }

    /// Waits for a line with this text; false when it ended before.
    pub(crate) async fn says(&mut self, text: &str) -> bool {
        loop {
            let line = async {
                tokio::select! {
                    biased;
                    line = self.lines.next_line() => line.unwrap(),
                    _ = self.child.wait() => None,
                }
            };
            match within("a line is printed", line).await {
                Some(line) if line.contains(text) => return true,
                Some(_) => {}
                None => {
                    within("the process ends", self.dies()).await;
                    return false;
                }
            }
        }
    }

    /// Waits for work that needs this process; tells what it said when that does not end.
    pub(crate) async fn within<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        match tokio::time::timeout(DEADLINE, work).await {
            Ok(done) => done,
            Err(_) => panic!("waited in vain until {what}; it said: {}", self.talk()),
        }
    }

    fn talk(&self) -> String {
        std::fs::read_to_string(self.talk.path()).unwrap()
    }

    /// Waits until it has ended, by itself.
    pub(crate) async fn dies(&mut self) {
        self.child.wait().await.unwrap();
    }

    pub(crate) fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Sends a signal, unless it has ended.
    pub(crate) fn signal(&mut self, signal: rustix::process::Signal) {
        if self.lives() {
            let pid = self.child.id().unwrap().cast_signed();
            let pid = rustix::process::Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, signal).unwrap();
        }
    }

    pub(crate) async fn ends(mut self) -> Ended {
        let waited = tokio::time::timeout(DEADLINE, self.child.wait()).await;
        let stderr = self.talk();
        assert!(!stderr.contains("panicked"), "{stderr}");
        match waited {
            Ok(status) => Ended {
                status: status.unwrap(),
                stderr,
            },
            Err(_) => panic!("it does not end; it said: {stderr}"),
        }
    }
}
