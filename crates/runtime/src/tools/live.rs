//! Output of a command while it runs, for those who watch its session.
//!
//! A command that ends at once has its output in its result alone. One that goes on shows it in
//! rows of the journal: a few a second, and no more than [`MOST`] of it, because the result holds
//! what counts and the journal is kept for long.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Call, ToolServer};
use crate::journal::Kind;

/// How long output waits for more of it.
const TELL_EVERY: Duration = Duration::from_millis(200);

/// The most text of one row.
const ROW: usize = 16 * 1024;

/// The most that is shown of one command while it runs.
const MOST: usize = 256 * 1024;

/// Where a piece of output came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutputStream {
    Stdout,
    Stderr,
}

impl OutputStream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// What a command prints, on its way to those who watch.
pub(crate) type Shown = mpsc::Sender<(OutputStream, Bytes)>;

impl ToolServer {
    /// Shows what comes until the sender is gone.
    pub(super) async fn show_live(
        &self,
        call: &Call,
        mut output: mpsc::Receiver<(OutputStream, Bytes)>,
    ) {
        let mut live = Live::default();
        let mut due: Option<Instant> = None;
        let mut told = false;
        loop {
            let at = due.unwrap_or_else(Instant::now);
            tokio::select! {
                biased;
                () = tokio::time::sleep_until(at), if due.is_some() => {
                    due = None;
                    told = true;
                    self.tell(call, live.so_far()).await;
                }
                piece = output.recv() => match piece {
                    Some((stream, bytes)) => {
                        live.push(stream, &bytes);
                        due.get_or_insert_with(|| Instant::now() + TELL_EVERY);
                    }
                    None => {
                        // What nobody has begun to watch is in the result.
                        if told {
                            self.tell(call, live.rest()).await;
                        }
                        return;
                    }
                },
            }
        }
    }

    async fn tell(&self, call: &Call, rows: Vec<(OutputStream, String)>) {
        for (stream, text) in rows {
            let mut data = json!({ "stream": stream.name(), "data": text });
            if let Some(id) = &call.agents_id {
                data["call_id"] = json!(id);
            }
            self.note(call, Kind::TerminalOutput, data).await;
        }
    }
}

/// Output that waits to be shown, in the order in which it came.
#[derive(Debug, Default)]
struct Live {
    pieces: Vec<(OutputStream, Vec<u8>)>,
    shown: usize,
    is_cut: bool,
}

impl Live {
    fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        let room = MOST.saturating_sub(self.shown);
        let taken = bytes.get(..room).unwrap_or(bytes);
        self.shown += taken.len();
        if taken.len() < bytes.len() {
            if self.is_cut {
                return;
            }
            self.is_cut = true;
        }
        match self.pieces.last_mut() {
            Some((last, held)) if *last == stream => held.extend_from_slice(taken),
            _ => self.pieces.push((stream, taken.to_vec())),
        }
        if self.is_cut
            && let Some((_, held)) = self.pieces.last_mut()
        {
            held.extend_from_slice(b"\n[more of it is in the result]\n");
        }
    }

    /// Takes what waits, as the texts of rows; a character that is not whole yet waits on.
    fn so_far(&mut self) -> Vec<(OutputStream, String)> {
        let begun = self.pieces.last_mut().and_then(|(stream, bytes)| {
            let whole = match std::str::from_utf8(bytes) {
                Err(error) if error.error_len().is_none() => error.valid_up_to(),
                _ => bytes.len(),
            };
            let begun = bytes.split_off(whole);
            (!begun.is_empty()).then_some((*stream, begun))
        });
        let rows = self.rest();
        self.pieces.extend(begun);
        rows
    }

    /// Takes everything that waits.
    fn rest(&mut self) -> Vec<(OutputStream, String)> {
        let mut rows = Vec::new();
        for (stream, bytes) in std::mem::take(&mut self.pieces) {
            let text = String::from_utf8_lossy(&bytes);
            let mut rest: &str = &text;
            while !rest.is_empty() {
                let (row, more) = rest.split_at(rest.floor_char_boundary(ROW.min(rest.len())));
                rows.push((stream, row.to_owned()));
                rest = more;
            }
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_keeps_its_order_and_its_streams() {
        let mut live = Live::default();
        live.push(OutputStream::Stdout, b"a");
        live.push(OutputStream::Stdout, b"b");
        live.push(OutputStream::Stderr, b"c");
        let (first, second) = "dö".as_bytes().split_at(2);
        live.push(OutputStream::Stdout, first);
        assert_eq!(
            live.so_far(),
            [
                (OutputStream::Stdout, "ab".to_owned()),
                (OutputStream::Stderr, "c".to_owned()),
                (OutputStream::Stdout, "d".to_owned()),
            ]
        );
        live.push(OutputStream::Stdout, second);
        assert_eq!(live.so_far(), [(OutputStream::Stdout, "ö".to_owned())]);
        assert_eq!(live.rest(), []);
    }

    #[test]
    fn a_flood_is_cut_once_and_rows_are_small() {
        let mut live = Live::default();
        let mut texts = Vec::new();
        for _ in 0..20 {
            live.push(OutputStream::Stdout, &vec![b'x'; MOST / 10]);
            texts.extend(live.so_far());
        }
        assert!(texts.iter().all(|(_, text)| text.len() <= ROW));
        let whole: String = texts.into_iter().map(|(_, text)| text).collect();
        assert_eq!(whole.matches('x').count(), MOST);
        assert_eq!(whole.matches("[more of it is in the result]").count(), 1);
        assert!(whole.ends_with("result]\n"));
    }
}
