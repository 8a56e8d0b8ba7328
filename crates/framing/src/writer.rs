//! Frames onto a byte stream.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use crate::proto::codec::{FrameError, FrameFormat, HEADER_LEN};

/// Payloads from this size on are written from where they are; smaller ones are gathered in one buffer.
const GATHER_BELOW: usize = 16 * 1024;

/// Segments offered to one vectored write; the kernel takes no more than 1,024.
const MAX_SEGMENTS: usize = 64;

/// Writes frames to `W`: queue any number, then flush them together.
///
/// The queue is as long as its owner lets it grow: check
/// [`queued_bytes`](Self::queued_bytes) and flush before queueing more.
#[derive(Debug)]
pub struct FrameWriter<W> {
    inner: W,
    format: FrameFormat,
    segments: VecDeque<Bytes>,
    gathered: BytesMut,
    queued: usize,
}

impl<W: AsyncWrite + Unpin> FrameWriter<W> {
    /// Writes frames of `format` to `inner`.
    pub fn new(inner: W, format: FrameFormat) -> Self {
        Self {
            inner,
            format,
            segments: VecDeque::new(),
            gathered: BytesMut::new(),
            queued: 0,
        }
    }

    /// Queues one frame. A payload over the limit changes nothing.
    pub fn queue(&mut self, payload: Bytes) -> Result<(), FrameError> {
        let len = payload.len();
        if len < GATHER_BELOW {
            self.format.encode(&payload, &mut self.gathered)?;
        } else {
            let header = self.format.header(len)?;
            self.gathered.extend_from_slice(&header);
            self.seal();
            self.segments.push_back(payload);
        }
        self.queued += HEADER_LEN + len;
        Ok(())
    }

    /// Queues one frame whose payload comes in parts. A payload over the limit changes nothing.
    pub fn queue_parts(
        &mut self,
        parts: impl IntoIterator<Item = Bytes, IntoIter: Clone>,
    ) -> Result<(), FrameError> {
        let parts = parts.into_iter();
        let len = parts.clone().map(|part| part.len()).sum();
        let header = self.format.header(len)?;
        self.gathered.extend_from_slice(&header);
        for part in parts {
            if part.len() < GATHER_BELOW {
                self.gathered.extend_from_slice(&part);
            } else {
                self.seal();
                self.segments.push_back(part);
            }
        }
        self.queued += HEADER_LEN + len;
        Ok(())
    }

    /// Queues one frame whose payload `encode` appends, without a buffer of its own.
    ///
    /// A payload over the limit changes nothing.
    pub fn queue_with(&mut self, encode: impl FnOnce(&mut BytesMut)) -> Result<(), FrameError> {
        let start = self.gathered.len();
        self.gathered.extend_from_slice(&[0; HEADER_LEN]);
        encode(&mut self.gathered);
        let len = self.gathered.len() - start - HEADER_LEN;
        match self.format.header(len) {
            Ok(header) => {
                self.gathered[start..start + HEADER_LEN].copy_from_slice(&header);
                self.queued += HEADER_LEN + len;
                Ok(())
            }
            Err(error) => {
                self.gathered.truncate(start);
                Err(error)
            }
        }
    }

    /// Bytes that wait for a flush.
    pub fn queued_bytes(&self) -> usize {
        self.queued
    }

    /// Writes everything queued, as few system calls as the transport allows.
    ///
    /// When dropped half way, what was not written stays queued and the next flush goes on with it.
    pub async fn flush(&mut self) -> io::Result<()> {
        while self.queued > 0 {
            let written = if self.segments.is_empty() {
                let written = self.inner.write(&self.gathered).await?;
                self.gathered.advance(written);
                written
            } else {
                self.seal();
                let mut slices = [IoSlice::new(&[]); MAX_SEGMENTS];
                let mut count = 0;
                for (slot, segment) in slices.iter_mut().zip(&self.segments) {
                    *slot = IoSlice::new(segment);
                    count += 1;
                }
                let written = self.inner.write_vectored(&slices[..count]).await?;
                self.drop_written(written);
                written
            };
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.queued -= written;
        }
        self.inner.flush().await
    }

    /// Queues one frame and flushes.
    pub async fn send(&mut self, payload: Bytes) -> io::Result<()> {
        self.queue(payload)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        self.flush().await
    }

    /// Flushes and closes the write side of the transport.
    pub async fn shutdown(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.inner.shutdown().await
    }

    /// The transport.
    pub fn get_ref(&self) -> &W {
        &self.inner
    }

    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            self.segments.push_back(self.gathered.split().freeze());
        }
    }

    fn drop_written(&mut self, mut written: usize) {
        while let Some(front) = self.segments.front_mut() {
            if written < front.len() {
                front.advance(written);
                return;
            }
            written -= front.len();
            self.segments.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ByteOrder;

    const FORMAT: FrameFormat = FrameFormat::new("test", ByteOrder::Big, 20_000);

    /// Counts write calls and takes everything that it is offered.
    #[derive(Default)]
    struct Counting {
        calls: usize,
        bytes: Vec<u8>,
    }

    impl AsyncWrite for Counting {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            buf: &[u8],
        ) -> std::task::Poll<io::Result<usize>> {
            let this = self.get_mut();
            this.calls += 1;
            this.bytes.extend_from_slice(buf);
            std::task::Poll::Ready(Ok(buf.len()))
        }

        fn poll_write_vectored(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            bufs: &[IoSlice<'_>],
        ) -> std::task::Poll<io::Result<usize>> {
            let this = self.get_mut();
            this.calls += 1;
            let before = this.bytes.len();
            for buf in bufs {
                this.bytes.extend_from_slice(buf);
            }
            std::task::Poll::Ready(Ok(this.bytes.len() - before))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn a_thousand_small_frames_and_a_large_one_are_one_write() {
        let mut writer = FrameWriter::new(Counting::default(), FORMAT);
        let mut expected = BytesMut::new();
        for i in 0..1000u32 {
            let payload = i.to_be_bytes();
            writer
                .queue_with(|out| out.extend_from_slice(&payload))
                .expect("fits");
            FORMAT.encode(&payload, &mut expected).expect("fits");
        }
        let large = Bytes::from(vec![9; 20_000]);
        writer.queue(large.clone()).expect("fits");
        FORMAT.encode(&large, &mut expected).expect("fits");
        assert_eq!(writer.queued_bytes(), expected.len());
        writer.flush().await.expect("takes all");
        assert_eq!(writer.inner.calls, 1);
        assert_eq!(writer.inner.bytes, expected);
        assert_eq!(writer.queued_bytes(), 0);
    }

    #[tokio::test]
    async fn a_payload_in_parts_is_one_frame_and_large_parts_are_not_copied() {
        let parts = [&b"head"[..], &[7; 17_000], b"tail", b""].map(Bytes::copy_from_slice);
        let mut writer = FrameWriter::new(Counting::default(), FORMAT);
        writer.queue_parts(parts.clone()).expect("fits");
        assert!(
            writer
                .segments
                .iter()
                .any(|one| one.as_ptr() == parts[1].as_ptr()),
            "it was copied"
        );
        writer
            .queue_parts([Bytes::from_static(b"next")])
            .expect("fits");
        let mut expected = BytesMut::new();
        FORMAT.encode(&parts.concat(), &mut expected).expect("fits");
        FORMAT.encode(b"next", &mut expected).expect("fits");
        assert_eq!(writer.queued_bytes(), expected.len());
        writer.flush().await.expect("takes all");
        assert_eq!(writer.inner.calls, 1);
        assert_eq!(writer.inner.bytes, expected);
        let large = Bytes::from(vec![0; 10_001]);
        let too_large = writer.queue_parts([large.clone(), large]);
        assert!(matches!(
            too_large,
            Err(FrameError::TooLarge {
                declared: 20_002,
                ..
            })
        ));
        assert_eq!(writer.queued_bytes(), 0);
    }

    #[tokio::test]
    async fn a_payload_over_the_limit_changes_nothing() {
        let mut writer = FrameWriter::new(Counting::default(), FORMAT);
        writer.queue(Bytes::from_static(b"a")).expect("fits");
        let too_large = FrameError::TooLarge {
            plane: "test",
            limit: 20_000,
            declared: 20_001,
        };
        assert_eq!(
            writer.queue(Bytes::from(vec![0; 20_001])),
            Err(too_large.clone())
        );
        assert_eq!(
            writer.queue_with(|out| out.extend_from_slice(&[0; 20_001])),
            Err(too_large)
        );
        writer.flush().await.expect("takes all");
        assert_eq!(writer.inner.bytes, b"\0\0\0\x01a");
    }
}
