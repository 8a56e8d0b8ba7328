//! Frames from a byte stream.

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::proto::codec::{Decoder, FrameError, FrameFormat};

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The bytes are not frames of this plane; the peer is at fault and the connection is of no more use.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The transport failed.
    #[error("reading frames failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Reads frames from `R`, many per system call where many have arrived.
#[derive(Debug)]
pub struct FrameReader<R> {
    inner: R,
    decoder: Decoder,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Reads frames of `format` from `inner`.
    pub fn new(inner: R, format: FrameFormat) -> Self {
        Self {
            inner,
            decoder: Decoder::new(format),
        }
    }

    /// The next frame's payload, or `None` when the stream ended between frames.
    ///
    /// Cancel safe: bytes that arrived stay in the reader.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(payload) = self.decoder.next_frame()? {
                return Ok(Some(payload));
            }
            if self.inner.read_buf(self.decoder.spare()).await? == 0 {
                self.decoder.finish()?;
                return Ok(None);
            }
        }
    }

    /// A frame that has already arrived, without touching the transport.
    pub fn buffered(&mut self) -> Result<Option<Bytes>, FrameError> {
        self.decoder.next_frame()
    }

    /// Whether a frame has begun to arrive and is not whole yet.
    pub fn is_mid_frame(&self) -> bool {
        self.decoder.is_mid_frame()
    }

    /// The transport.
    pub fn get_ref(&self) -> &R {
        &self.inner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ByteOrder, FrameWriter};

    const FORMAT: FrameFormat = FrameFormat::new("test", ByteOrder::Little, 1 << 20);

    #[tokio::test]
    async fn frames_of_every_size_cross_a_narrow_pipe() {
        let payloads: Vec<Bytes> = [0usize, 1, 100, 5_000, 70_000, 1 << 20]
            .iter()
            .map(|len| Bytes::from(vec![*len as u8; *len]))
            .collect();
        let (near, far) = tokio::io::duplex(1000);
        let mut writer = FrameWriter::new(near, FORMAT);
        let expected = payloads.clone();
        let write = async move {
            for payload in payloads {
                writer.queue(payload).expect("fits");
            }
            writer.flush().await.expect("open");
        };
        let read = async move {
            let mut reader = FrameReader::new(far, FORMAT);
            let mut seen = Vec::new();
            while let Some(payload) = reader.next().await.expect("valid") {
                seen.push(payload);
            }
            seen
        };
        let ((), seen) = tokio::join!(write, read);
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn an_end_inside_a_frame_is_an_error() {
        let mut reader = FrameReader::new(&b"\x05\0\0\0abc"[..], FORMAT);
        assert!(matches!(
            reader.next().await,
            Err(ReadError::Frame(FrameError::Truncated {
                have: 7,
                want: 9,
                ..
            }))
        ));
    }
}
