//! What a process prints, line by line into its log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

use crate::logs::{InstanceLog, LogLine, LogSource};

/// A longer line is kept in pieces of this size.
const MAX_LINE: usize = 8 * 1024;

/// The last lines that a crash report quotes.
const RECENT_LINES: usize = 5;

/// The last lines of a process's standard error. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct RecentLines(Arc<Mutex<VecDeque<String>>>);

impl RecentLines {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == RECENT_LINES {
            lines.pop_front();
        }
        let end = line.floor_char_boundary(300);
        lines.push_back(line.get(..end).unwrap_or_default().to_owned());
    }

    /// The lines as one text; empty where there are none.
    pub(super) fn text(&self) -> String {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join("\n")
    }
}

/// Copies a stream into the log until it ends.
///
/// The process waits when the log is slow: the pipe is the only buffer beside one chunk.
pub(super) async fn capture(
    mut stream: impl AsyncRead + Unpin,
    source: LogSource,
    log: InstanceLog,
    recent: RecentLines,
) {
    let mut chunk = vec![0; 16 * 1024];
    let mut partial = Vec::new();
    loop {
        let count = stream.read(&mut chunk).await.unwrap_or(0);
        let mut lines = Vec::new();
        for byte in chunk.iter().take(count) {
            match byte {
                b'\n' => lines.push(take_line(&mut partial)),
                byte => {
                    partial.push(*byte);
                    if partial.len() >= MAX_LINE {
                        lines.push(take_line(&mut partial));
                    }
                }
            }
        }
        if count == 0 && !partial.is_empty() {
            lines.push(take_line(&mut partial));
        }
        if !lines.is_empty() {
            let level = match source {
                LogSource::Stderr => "warn",
                _ => "info",
            };
            if source == LogSource::Stderr {
                for line in lines.iter().rev().take(RECENT_LINES).rev() {
                    recent.push(line);
                }
            }
            let lines = lines
                .into_iter()
                .map(|line| LogLine::new(source, level, line))
                .collect();
            log.append(lines).await;
        }
        if count == 0 {
            return;
        }
    }
}

fn take_line(partial: &mut Vec<u8>) -> String {
    let line = String::from_utf8_lossy(partial)
        .trim_end_matches('\r')
        .to_owned();
    partial.clear();
    line
}
