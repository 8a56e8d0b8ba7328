//! Lines of a stream, with a limit.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};

/// Why no further line can be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("a line is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What becomes of a line that is longer than the limit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Overflow {
    /// It is an error: half a message is of no use.
    Fail,
    /// It comes in pieces: half a log line is.
    Split,
}

/// Reads lines without their end.
pub(super) struct LineReader<R> {
    inner: BufReader<R>,
    line: Vec<u8>,
    limit: usize,
    overflow: Overflow,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    pub(super) fn new(inner: R, limit: usize, overflow: Overflow) -> Self {
        Self {
            inner: BufReader::with_capacity(64 * 1024, inner),
            line: Vec::new(),
            limit,
            overflow,
        }
    }

    /// The next line, or `None` at the end.
    ///
    /// Cancel safe: what has arrived of a line stays in the reader.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            if self.inner.fill_buf().await?.is_empty() {
                let rest = std::mem::take(&mut self.line);
                return Ok((!rest.is_empty()).then_some(rest));
            }
            if let Some(line) = self.buffered()? {
                return Ok(Some(line));
            }
        }
    }

    /// A line that has already arrived.
    pub(super) fn buffered(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        let room = self.limit.saturating_sub(self.line.len());
        let arrived = self.inner.buffer();
        let end = arrived.iter().position(|byte| *byte == b'\n');
        let (taken, used, whole) = match end {
            Some(end) if end <= room => (end, end + 1, true),
            None if arrived.len() <= room => (arrived.len(), arrived.len(), false),
            _ => match self.overflow {
                Overflow::Fail => return Err(LineError::TooLong { limit: self.limit }),
                Overflow::Split => (room, room, true),
            },
        };
        self.line.extend_from_slice(&arrived[..taken]);
        AsyncBufReadExt::consume(&mut self.inner, used);
        Ok(whole.then(|| std::mem::take(&mut self.line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(bytes: &[u8], limit: usize, overflow: Overflow) -> Result<Vec<String>, LineError> {
        let mut lines = LineReader::new(bytes, limit, overflow);
        let mut all = Vec::new();
        while let Some(line) = lines.next().await? {
            all.push(String::from_utf8(line).unwrap());
        }
        Ok(all)
    }

    #[tokio::test]
    async fn lines_end_at_their_newline_and_the_last_at_the_end() {
        let lines = all(b"a\n\nbc\nd", 3, Overflow::Fail).await.unwrap();
        assert_eq!(lines, ["a", "", "bc", "d"]);
    }

    #[tokio::test]
    async fn a_line_over_the_limit_fails_or_comes_in_pieces() {
        assert_eq!(all(b"abc\n", 3, Overflow::Fail).await.unwrap(), ["abc"]);
        for long in [b"abcd\n".as_slice(), b"abcd"] {
            assert!(matches!(
                all(long, 3, Overflow::Fail).await,
                Err(LineError::TooLong { limit: 3 })
            ));
        }
        let pieces = all(b"abcdefg\nh\n", 3, Overflow::Split).await.unwrap();
        assert_eq!(pieces, ["abc", "def", "g", "h"]);
    }
}
