//! What an instance says beside its output: its `log` messages, its stdout and stderr, and what the
//! supervisor notes about it. One JSON object a line in `logs/agent.log`, rotated by size.

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

/// The size at which a file is rotated.
pub const ROTATE_AT: u64 = 8 * 1024 * 1024;

/// Rotated files that are kept beside the current one.
pub const ROTATED_KEPT: u32 = 3;

/// The longest message that is kept; the rest is cut and said to be.
pub const MAX_MESSAGE: usize = 64 * 1024;

/// Lines that a follower may be behind before it is told that it missed some.
const FOLLOW_BUFFER: usize = 1024;

/// Who says a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogSource {
    /// A `log` message.
    Agent,
    /// The process's standard output.
    Stdout,
    /// The process's standard error.
    Stderr,
    /// The supervisor, about the instance.
    Supervisor,
}

impl LogSource {
    /// Its name, as in the file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Supervisor => "supervisor",
        }
    }
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When it was written, RFC 3339 UTC.
    pub at: String,
    /// Who says it.
    pub source: LogSource,
    /// `debug`, `info`, `warn`, `error`, ..
    pub level: String,
    /// The part of the agent that says it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub module: String,
    /// What it says.
    pub message: String,
    /// The agent's own clock, as it wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub timestamp: String,
}

impl LogLine {
    pub(crate) fn new(source: LogSource, level: &str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE {
            let cut = message.floor_char_boundary(MAX_MESSAGE);
            let rest = message.len() - cut;
            message.truncate(cut);
            message.push_str(&format!(" ... ({rest} bytes cut)"));
        }
        Self {
            at: jiff::Timestamp::now().to_string(),
            source,
            level: level.to_owned(),
            module: String::new(),
            message,
            timestamp: String::new(),
        }
    }
}

/// What a follower gets next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Followed {
    /// A line.
    Line(LogLine),
    /// The follower was too slow and this many lines went by; they are in the files.
    Missed(u64),
}

/// The log of one instance. Clones share it.
#[derive(Debug, Clone)]
pub struct InstanceLog {
    /// Held over a write, so that lines are never mixed and a tail ends where following starts.
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    file: Option<fs::File>,
    size: u64,
    rotate_at: u64,
    live: broadcast::Sender<LogLine>,
}

/// Gets lines as they are written.
#[derive(Debug)]
pub struct LogFollower(broadcast::Receiver<LogLine>);

impl LogFollower {
    /// The next line; `None` when the instance is closed.
    pub async fn next(&mut self) -> Option<Followed> {
        match self.0.recv().await {
            Ok(line) => Some(Followed::Line(line)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Followed::Missed(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

impl InstanceLog {
    /// The log in `folder`, which is made with the first line.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self::rotating_at(folder, ROTATE_AT)
    }

    fn rotating_at(folder: impl Into<PathBuf>, rotate_at: u64) -> Self {
        Self {
            inner: Arc::new(Mutex::new(Inner {
                folder: folder.into(),
                file: None,
                size: 0,
                rotate_at,
                live: broadcast::Sender::new(FOLLOW_BUFFER),
            })),
        }
    }

    /// Writes lines. Blocks on the disk; a log that can't be written is reported and not fatal.
    pub(crate) fn append_blocking(&self, lines: &[LogLine]) {
        let mut inner = self.lock();
        for line in lines {
            if let Err(error) = inner.append(line) {
                tracing::warn!(folder = %inner.folder.display(), %error, "an agent's log can't be written");
            }
            // Nobody following is fine.
            let _ = inner.live.send(line.clone());
        }
    }

    /// Writes lines from async code.
    pub(crate) async fn append(&self, lines: Vec<LogLine>) {
        let log = self.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || log.append_blocking(&lines)).await {
            tracing::warn!(%error, "writing an agent's log failed");
        }
    }

    /// The last `count` lines, oldest first, and what follows them without a gap.
    pub async fn tail(&self, count: usize) -> io::Result<(Vec<LogLine>, LogFollower)> {
        let log = self.clone();
        tokio::task::spawn_blocking(move || {
            let inner = log.lock();
            let follower = LogFollower(inner.live.subscribe());
            Ok((inner.tail(count)?, follower))
        })
        .await
        .map_err(io::Error::other)?
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn path(&self, age: u32) -> PathBuf {
        match age {
            0 => self.folder.join("agent.log"),
            age => self.folder.join(format!("agent.log.{age}")),
        }
    }

    fn append(&mut self, line: &LogLine) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        if self.file.is_some() && self.size + text.len() as u64 > self.rotate_at {
            self.rotate()?;
        }
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                fs::create_dir_all(&self.folder)?;
                let file = fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(self.path(0))?;
                self.size = file.metadata()?.len();
                file
            }
        };
        file.write_all(&text)?;
        self.size += text.len() as u64;
        self.file = Some(file);
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = None;
        for age in (0..ROTATED_KEPT).rev() {
            match fs::rename(self.path(age), self.path(age + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn tail(&self, count: usize) -> io::Result<Vec<LogLine>> {
        let mut lines = VecDeque::new();
        for age in 0..=ROTATED_KEPT {
            let Some(text) = read_if_there(&self.path(age))? else {
                break;
            };
            for line in text.split(|byte| *byte == b'\n').rev() {
                if lines.len() >= count {
                    return Ok(lines.into());
                }
                // The last line may be cut by a crash; it is skipped.
                if let Ok(line) = serde_json::from_slice(line) {
                    lines.push_front(line);
                }
            }
        }
        Ok(lines.into())
    }
}

fn read_if_there(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(range: std::ops::Range<u32>) -> Vec<LogLine> {
        range
            .map(|n| LogLine::new(LogSource::Agent, "info", format!("line {n}")))
            .collect()
    }

    #[tokio::test]
    async fn a_tail_reaches_over_rotated_files_and_the_disk_stays_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let log = InstanceLog::rotating_at(folder.path(), 2000);
        let all = lines(0..500);
        log.append(all.clone()).await;
        let (tail, _) = log.tail(40).await.unwrap();
        assert_eq!(tail, all[460..]);
        let sizes: u64 = fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum();
        assert!(sizes <= 2000 * u64::from(ROTATED_KEPT + 1), "{sizes} bytes");
        let (everything, _) = InstanceLog::new(folder.path())
            .tail(usize::MAX)
            .await
            .unwrap();
        assert_eq!(everything, all[500 - everything.len()..]);
    }

    #[tokio::test]
    async fn following_starts_where_the_tail_ends() {
        let folder = tempfile::tempdir().unwrap();
        let log = InstanceLog::new(folder.path().join("logs"));
        let all = lines(0..10);
        log.append(all[..4].to_vec()).await;
        let (tail, mut follower) = log.tail(2).await.unwrap();
        assert_eq!(tail, all[2..4]);
        log.append(all[4..].to_vec()).await;
        for line in &all[4..] {
            assert_eq!(follower.next().await, Some(Followed::Line(line.clone())));
        }
        drop(log);
        assert_eq!(follower.next().await, None);
    }

    #[tokio::test]
    async fn a_slow_follower_is_told_what_it_missed() {
        let folder = tempfile::tempdir().unwrap();
        let log = InstanceLog::new(folder.path());
        let (_, mut follower) = log.tail(0).await.unwrap();
        log.append(lines(0..1500)).await;
        assert!(matches!(follower.next().await, Some(Followed::Missed(n)) if n >= 400));
    }

    #[test]
    fn a_message_of_megabytes_is_cut_at_a_character() {
        let line = LogLine::new(LogSource::Agent, "info", "\u{e4}".repeat(100_000));
        assert!(line.message.len() < MAX_MESSAGE + 100);
        assert!(line.message.ends_with("bytes cut)"));
    }
}
