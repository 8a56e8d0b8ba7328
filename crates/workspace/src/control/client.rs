//! The asking side.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};

use super::{Progress, Request, SOCKET, Said};

/// An answer's line is bounded by what is worth showing: diffs are the longest.
const MAX_LINE: u64 = 1 << 30;

/// Nothing was done, or it failed.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody has the folder open.
    #[error("no program has it open")]
    NotRunning,
    /// The program that has it open said no.
    #[error("{0}")]
    Failed(String),
    /// The connection broke.
    #[error("the program that has it open went away: {0}")]
    Io(#[from] io::Error),
    /// Its content can't be written to where it was asked for.
    #[error(transparent)]
    Output(io::Error),
    /// The answer is not one.
    #[error("the answer was not understood: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Asks whoever has a state folder open. Content goes to `out`.
pub async fn ask<T: DeserializeOwned>(
    state_dir: &Path,
    request: &Request,
    mut progress: impl FnMut(Progress),
    mut out: impl io::Write,
) -> Result<T, AskError> {
    let stream = match quintet_framing::unix::dial(&state_dir.join(SOCKET)).await {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Err(AskError::NotRunning);
        }
        Err(error) => return Err(error.into()),
    };
    let (read, mut write) = stream.into_split();
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    write.write_all(&line).await?;
    let mut read = BufReader::new(read);
    loop {
        line.clear();
        if (&mut read)
            .take(MAX_LINE)
            .read_until(b'\n', &mut line)
            .await?
            == 0
        {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        match serde_json::from_slice(&line)? {
            Said::Progress(told) => progress(told),
            Said::Bytes(mut left) => {
                let mut piece = vec![0; 1 << 16];
                while left > 0 {
                    let most = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
                    let came = read.read(&mut piece[..most]).await?;
                    if came == 0 {
                        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                    }
                    out.write_all(&piece[..came]).map_err(AskError::Output)?;
                    left -= came as u64;
                }
            }
            Said::Done(value) => return Ok(serde_json::from_value(value)?),
            Said::Failed(message) => return Err(AskError::Failed(message)),
        }
    }
}
