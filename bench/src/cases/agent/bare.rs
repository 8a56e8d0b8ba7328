//! The least that could work: length-prefixed JSON on a blocking Unix socket.

use std::io::{BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};

use anyhow::ensure;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::own_program;
use crate::harness::rate;

pub(super) fn write(stream: &mut UnixStream, message: &Value) -> anyhow::Result<()> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let length = u32::try_from(frame.len() - 4)?;
    frame[..4].copy_from_slice(&length.to_le_bytes());
    Ok(stream.write_all(&frame)?)
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
    let message = json!({
        "type": "message", "id": "m1",
        "data": { "text": "hi", "role": "user", "attachments": [] },
    });
    let rate = rate(count, || {
        for _ in 0..count {
            write(&mut stream, &message)?;
            ensure!(read(&mut reader)?["type"] == "complete");
        }
        Ok(())
    })?;
    child.wait()?;
    Ok(rate)
}
