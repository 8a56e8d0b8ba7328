//! Files that are written while more of them arrives.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::{JoinHandle, spawn_blocking};

/// What is written at once. Twice as much may be in memory.
const AT_ONCE: usize = 512 * 1024;

/// Pieces that are written at once, however small.
const PIECES: usize = 64;

/// Writes what arrives from the memory that it arrived in, on another thread: many pieces at a time,
/// since each time costs a change of threads, while the next ones arrive.
pub(super) struct WriteBehind {
    file: Arc<File>,
    /// Where the first of `pieces` belongs.
    at: u64,
    pieces: Vec<Bytes>,
    waiting: usize,
    writing: Option<JoinHandle<io::Result<()>>>,
}

impl WriteBehind {
    pub(super) async fn new(file: &tokio::fs::File, at: u64) -> io::Result<Self> {
        let file = file.try_clone().await?.into_std().await;
        Ok(Self {
            file: Arc::new(file),
            at,
            pieces: Vec::new(),
            waiting: 0,
            writing: None,
        })
    }

    pub(super) async fn write(&mut self, piece: Bytes) -> io::Result<()> {
        self.waiting += piece.len();
        self.pieces.push(piece);
        if self.waiting < AT_ONCE && self.pieces.len() < PIECES {
            return Ok(());
        }
        self.written().await?;
        let (file, at) = (self.file.clone(), self.at);
        let pieces = std::mem::take(&mut self.pieces);
        self.at += std::mem::take(&mut self.waiting) as u64;
        self.writing = Some(spawn_blocking(move || write_all(&file, at, &pieces)));
        Ok(())
    }

    pub(super) async fn finish(mut self) -> io::Result<()> {
        self.written().await?;
        spawn_blocking(move || write_all(&self.file, self.at, &self.pieces)).await?
    }

    /// Waits for what was handed over.
    async fn written(&mut self) -> io::Result<()> {
        match self.writing.take() {
            Some(writing) => writing.await?,
            None => Ok(()),
        }
    }
}

fn write_all(file: &File, mut at: u64, pieces: &[Bytes]) -> io::Result<()> {
    for piece in pieces {
        file.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    Ok(())
}
