//! Reads as large as the traffic, under a reader whose own buffer is small.
//!
//! A WebSocket's read buffer is taken for as long as its connection lasts, so that thousands of idle
//! ones have to have small ones; a small one makes a transfer pay for a system call every few
//! kilobytes. [`ReadAhead`] stands between the two: as long as reads come back full it reads larger
//! pieces into a buffer of its own, which it gives back with the first read that would have fit
//! without it. What idle connections send each other, heartbeats, is such a read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is read at a time while bulk data flows.
const AHEAD: usize = 128 * 1024;

/// A read below this says nothing of how much there is, even when it is full: its reader asked for
/// little.
const SMALLEST_SIGN: usize = 4 * 1024;

/// A byte stream that is read in pieces as large as the traffic; writes pass through.
#[derive(Debug)]
pub struct ReadAhead<S> {
    inner: S,
    /// Whether the last read was as long as it could be.
    full: bool,
    /// Only while bulk data flows.
    ahead: Option<Box<Ahead>>,
}

#[derive(Debug)]
struct Ahead {
    bytes: Box<[u8]>,
    /// What was read and not yet asked for.
    start: usize,
    end: usize,
}

impl<S> ReadAhead<S> {
    /// Wraps a stream, which nothing else may read any more.
    pub fn new(inner: S) -> Self {
        Self {
            inner,
            full: false,
            ahead: None,
        }
    }

    /// The stream itself.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.full {
            let ahead = this.ahead.get_or_insert_with(Ahead::new);
            if ahead.start == ahead.end {
                let mut space = ReadBuf::new(&mut ahead.bytes);
                ready!(Pin::new(&mut this.inner).poll_read(cx, &mut space))?;
                (ahead.start, ahead.end) = (0, space.filled().len());
            }
            // Before it is taken: how much there was, not how much is left.
            let fits = ahead.start == 0 && ahead.end <= buf.remaining();
            ahead.give(buf);
            if fits {
                this.full = false;
                this.ahead = None;
            }
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        this.full = buf.remaining() == 0 && buf.filled().len() - before >= SMALLEST_SIGN;
        Poll::Ready(Ok(()))
    }
}

impl Ahead {
    fn new() -> Box<Self> {
        Box::new(Self {
            bytes: vec![0; AHEAD].into_boxed_slice(),
            start: 0,
            end: 0,
        })
    }

    fn give(&mut self, buf: &mut ReadBuf<'_>) {
        let len = buf.remaining().min(self.end - self.start);
        buf.put_slice(&self.bytes[self.start..self.start + len]);
        self.start += len;
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Gives what arrived, piece by piece, and remembers how much it was asked for.
    struct Arrivals {
        pieces: VecDeque<Vec<u8>>,
        asked: Vec<usize>,
    }

    impl Arrivals {
        fn new(pieces: impl IntoIterator<Item = Vec<u8>>) -> Self {
            Self {
                pieces: pieces.into_iter().collect(),
                asked: Vec::new(),
            }
        }
    }

    impl AsyncRead for Arrivals {
        fn poll_read(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let this = self.get_mut();
            this.asked.push(buf.remaining());
            let Some(piece) = this.pieces.front_mut() else {
                return Poll::Ready(Ok(()));
            };
            let len = piece.len().min(buf.remaining());
            buf.put_slice(&piece[..len]);
            piece.drain(..len);
            if piece.is_empty() {
                this.pieces.pop_front();
            }
            Poll::Ready(Ok(()))
        }
    }

    const BUFFER: usize = 12 * 1024;

    async fn read(stream: &mut ReadAhead<Arrivals>) -> usize {
        stream.read(&mut [0; BUFFER]).await.expect("readable")
    }

    #[tokio::test]
    async fn the_buffer_is_there_while_bulk_flows_and_goes_with_the_first_short_read() {
        let mut stream = ReadAhead::new(Arrivals::new([
            vec![1; 100],
            vec![2; BUFFER + AHEAD + BUFFER / 2],
            vec![3; 30],
        ]));
        assert_eq!(
            (read(&mut stream).await, stream.ahead.is_some()),
            (100, false)
        );
        assert_eq!(read(&mut stream).await, BUFFER);
        let mut left = AHEAD;
        while left > 0 {
            left -= read(&mut stream).await;
            assert!(stream.ahead.is_some());
        }
        assert_eq!(read(&mut stream).await, BUFFER / 2);
        assert!(stream.ahead.is_none(), "given back with the last of it");
        assert_eq!(
            (read(&mut stream).await, stream.ahead.is_some()),
            (30, false)
        );
        assert_eq!(stream.inner.asked, [BUFFER, BUFFER, AHEAD, AHEAD, BUFFER]);
    }

    #[tokio::test]
    async fn a_reader_that_asks_for_little_is_given_little() {
        let mut stream = ReadAhead::new(Arrivals::new([vec![0; 3 * AHEAD]]));
        for _ in 0..3 {
            stream.read_exact(&mut [0; 14]).await.expect("readable");
        }
        assert_eq!(stream.inner.asked, [14; 3]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_arrives_is_what_is_read(
            lens in prop::collection::vec(1usize..3 * AHEAD, 0..6),
            wants in prop::collection::vec(1usize..3 * BUFFER, 1..8),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            runtime.block_on(async {
                let mut next = 0u32;
                let pieces: Vec<Vec<u8>> = lens
                    .iter()
                    .map(|len| {
                        (0..*len)
                            .map(|_| {
                                next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                                (next >> 24) as u8
                            })
                            .collect()
                    })
                    .collect();
                let sent = pieces.concat();
                let mut stream = ReadAhead::new(Arrivals::new(pieces));
                let mut seen = Vec::new();
                for want in wants.iter().cycle() {
                    let mut part = vec![0; *want];
                    let len = stream.read(&mut part).await.expect("readable");
                    if len == 0 {
                        break;
                    }
                    seen.extend_from_slice(&part[..len]);
                }
                assert!(seen == sent, "{} bytes of {}", seen.len(), sent.len());
            });
        }
    }
}
