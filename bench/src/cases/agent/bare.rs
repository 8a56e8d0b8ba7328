//! The least that could work: length-prefixed JSON on a Unix socket, blocking and under tokio.
//!
//! A thread that blocks in a read is woken on the core of whoever wrote. One that waits in epoll is
//! woken on an idle core, which has to be fetched out of its sleep first: between the two loops lies
//! what any program pays that waits for more than one thing.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};

use anyhow::ensure;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::own_program;
use crate::harness::rate;

fn frame(message: &Value) -> anyhow::Result<Vec<u8>> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

pub(super) fn write(stream: &mut UnixStream, message: &Value) -> anyhow::Result<()> {
    Ok(stream.write_all(&frame(message)?)?)
}

pub(super) fn read(reader: &mut BufReader<UnixStream>) -> anyhow::Result<Value> {
    let mut length = [0; 4];
    reader.read_exact(&mut length)?;
    let mut payload = vec![0; u32::from_le_bytes(length) as usize];
    reader.read_exact(&mut payload)?;
    Ok(serde_json::from_slice(&payload)?)
}

fn start(mode: &str, count: u64) -> anyhow::Result<(Child, UnixStream, TempDir)> {
    let folder = TempDir::new()?;
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket)?;
    let child = Command::new(own_program()?)
        .args(["child", "bare", mode])
        .arg(&socket)
        .arg(count.to_string())
        .spawn()?;
    let (stream, _) = listener.accept()?;
    Ok((child, stream, folder))
}

pub(super) fn flood(count: u64) -> anyhow::Result<f64> {
    let (mut child, stream, _folder) = start("flood", count)?;
    let mut reader = BufReader::with_capacity(64 * 1024, stream);
    let rate = rate(count, || {
        for _ in 0..count {
            let delta = read(&mut reader)?;
            ensure!(delta["element"]["text"].as_str().map(str::len) == Some(200));
        }
        Ok(())
    })?;
    child.wait()?;
    Ok(rate)
}

pub(super) fn echo(count: u64) -> anyhow::Result<f64> {
    let (mut child, mut stream, _folder) = start("echo", count)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let rate = rate(count, || {
        for _ in 0..count {
            write(&mut stream, &message())?;
            ensure!(read(&mut reader)?["type"] == "complete");
        }
        Ok(())
    })?;
    child.wait()?;
    Ok(rate)
}

fn message() -> Value {
    json!({
        "type": "message", "id": "m1",
        "data": { "text": "hi", "role": "user", "attachments": [] },
    })
}

/// One end under tokio.
pub(super) struct Async {
    reader: tokio::io::BufReader<tokio::net::unix::OwnedReadHalf>,
    writer: tokio::net::unix::OwnedWriteHalf,
}

impl Async {
    pub(super) fn new(stream: UnixStream) -> anyhow::Result<Self> {
        stream.set_nonblocking(true)?;
        let (reader, writer) = tokio::net::UnixStream::from_std(stream)?.into_split();
        let reader = tokio::io::BufReader::new(reader);
        Ok(Self { reader, writer })
    }

    pub(super) async fn write(&mut self, message: &Value) -> anyhow::Result<()> {
        Ok(self.writer.write_all(&frame(message)?).await?)
    }

    pub(super) async fn read(&mut self) -> anyhow::Result<Value> {
        let length = self.reader.read_u32_le().await?;
        let mut payload = vec![0; length as usize];
        self.reader.read_exact(&mut payload).await?;
        Ok(serde_json::from_slice(&payload)?)
    }
}

pub(super) fn echo_async(count: u64) -> anyhow::Result<f64> {
    let (mut child, stream, _folder) = start("echo-async", count)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let trips = async move {
        let mut near = Async::new(stream)?;
        let started = std::time::Instant::now();
        for _ in 0..count {
            near.write(&message()).await?;
            ensure!(near.read().await?["type"] == "complete");
        }
        anyhow::Ok(count as f64 / started.elapsed().as_secs_f64())
    };
    let rate = runtime.block_on(runtime.spawn(trips))??;
    child.wait()?;
    Ok(rate)
}
