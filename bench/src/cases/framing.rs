//! Frames from one end of a Unix socket pair to the other.
//!
//! Both ends run on one thread, so that the numbers are the cost of the codec and its system calls
//! and not of waking another thread. Every contender hands out each payload as memory of its own,
//! as a plane needs it.

use std::future::Future;
use std::hint::black_box;

use anyhow::ensure;
use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use quintet_framing::{ByteOrder, FrameFormat, FrameReader, FrameWriter};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio_util::codec::{FramedRead, FramedWrite, LengthDelimitedCodec};

use super::Case;
use crate::harness::{Contender, Race, rate};

pub(crate) const CASE: Case = Case {
    name: "framing",
    about: "frames/s and bytes/s through the codec over a Unix socket pair",
    races,
};

const LIMIT: u32 = 16 << 20;
const FORMAT: FrameFormat = FrameFormat::new("bench", ByteOrder::Little, LIMIT);

/// What a writer that may batch gathers before it writes; the same for all of them.
const BATCH: usize = 64 * 1024;

fn races() -> anyhow::Result<Vec<Race>> {
    let sizes = [
        ("64 B", 64, 400_000),
        ("1 KiB", 1 << 10, 300_000),
        ("64 KiB", 64 << 10, 10_000),
        ("1 MiB", 1 << 20, 600),
    ];
    Ok(sizes
        .map(|(name, size, frames)| race(name, size, frames))
        .into())
}

fn race(name: &str, size: usize, frames: u64) -> Race {
    let payload = Bytes::from(vec![0x5a; size]);
    macro_rules! contender {
        ($name:expr, $write:path, $read:path) => {{
            let payload = payload.clone();
            Contender::new($name, move || {
                let payload = payload.clone();
                rate(frames, || {
                    over_a_socket_pair(
                        |socket| $write(socket, payload.clone(), frames),
                        |socket| $read(socket, payload.len(), frames),
                    )
                })
            })
        }};
    }
    Race {
        variant: name.to_owned(),
        unit: "frames/s",
        bytes_each: Some(size as u64),
        contenders: vec![
            contender!("quintet-framing", write_ours, read_ours),
            contender!("tokio-util LengthDelimited", write_codec, read_codec),
            contender!("read_exact", write_bare, read_bare),
            contender!("read_exact, buffered", write_buffered, read_buffered),
        ],
    }
}

fn over_a_socket_pair<W, R>(
    write: impl FnOnce(UnixStream) -> W,
    read: impl FnOnce(UnixStream) -> R,
) -> anyhow::Result<()>
where
    W: Future<Output = anyhow::Result<()>>,
    R: Future<Output = anyhow::Result<()>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    runtime.block_on(async {
        let (near, far) = UnixStream::pair()?;
        tokio::try_join!(write(near), read(far))?;
        Ok(())
    })
}

async fn write_ours(socket: UnixStream, payload: Bytes, frames: u64) -> anyhow::Result<()> {
    let mut writer = FrameWriter::new(socket, FORMAT);
    for _ in 0..frames {
        writer.queue(payload.clone())?;
        if writer.queued_bytes() >= BATCH {
            writer.flush().await?;
        }
    }
    Ok(writer.flush().await?)
}

async fn read_ours(socket: UnixStream, size: usize, frames: u64) -> anyhow::Result<()> {
    let mut reader = FrameReader::new(socket, FORMAT);
    let mut seen = 0;
    while let Some(payload) = reader.next().await? {
        check(&payload, size)?;
        seen += 1;
    }
    ensure!(seen == frames, "{seen} of {frames} frames arrived");
    Ok(())
}

fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .little_endian()
        .max_frame_length(LIMIT as usize)
        .new_codec()
}

async fn write_codec(socket: UnixStream, payload: Bytes, frames: u64) -> anyhow::Result<()> {
    let mut writer = FramedWrite::new(socket, codec());
    writer.set_backpressure_boundary(BATCH);
    for _ in 0..frames {
        writer.feed(payload.clone()).await?;
    }
    SinkExt::<Bytes>::flush(&mut writer).await?;
    Ok(())
}

async fn read_codec(socket: UnixStream, size: usize, frames: u64) -> anyhow::Result<()> {
    let mut reader = FramedRead::with_capacity(socket, codec(), BATCH);
    let mut seen = 0;
    while let Some(payload) = reader.next().await {
        check(&payload?, size)?;
        seen += 1;
    }
    ensure!(seen == frames, "{seen} of {frames} frames arrived");
    Ok(())
}

async fn write_bare(socket: UnixStream, payload: Bytes, frames: u64) -> anyhow::Result<()> {
    write_each(socket, &payload, frames).await
}

async fn read_bare(socket: UnixStream, size: usize, frames: u64) -> anyhow::Result<()> {
    read_each(socket, size, frames).await
}

async fn write_buffered(socket: UnixStream, payload: Bytes, frames: u64) -> anyhow::Result<()> {
    write_each(BufWriter::with_capacity(BATCH, socket), &payload, frames).await
}

async fn read_buffered(socket: UnixStream, size: usize, frames: u64) -> anyhow::Result<()> {
    read_each(BufReader::with_capacity(BATCH, socket), size, frames).await
}

async fn write_each(
    mut socket: impl AsyncWrite + Unpin,
    payload: &[u8],
    frames: u64,
) -> anyhow::Result<()> {
    let length = u32::try_from(payload.len())?.to_le_bytes();
    for _ in 0..frames {
        socket.write_all(&length).await?;
        socket.write_all(payload).await?;
    }
    Ok(socket.flush().await?)
}

async fn read_each(
    mut socket: impl AsyncRead + Unpin,
    size: usize,
    frames: u64,
) -> anyhow::Result<()> {
    for _ in 0..frames {
        let mut length = [0; 4];
        socket.read_exact(&mut length).await?;
        let mut payload = BytesMut::zeroed(u32::from_le_bytes(length) as usize);
        socket.read_exact(&mut payload).await?;
        check(&payload, size)?;
    }
    Ok(())
}

fn check(payload: &[u8], size: usize) -> anyhow::Result<()> {
    let payload = black_box(payload);
    ensure!(
        payload.len() == size,
        "a payload of {} bytes, not {size}",
        payload.len()
    );
    ensure!(
        payload.first() == Some(&0x5a) && payload.last() == Some(&0x5a),
        "a changed payload"
    );
    Ok(())
}
