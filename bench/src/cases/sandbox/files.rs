//! Files of 1 GiB: ours in both versions, a bare WebSocket, bare TCP, scp.
//!
//! Everybody reads a file and writes a file. The bare ones have their other end in another process
//! too, which dials as a worker does: its bytes are masked, ours to it are not.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use tempfile::TempDir;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

use super::ours::{Ours, Program, Variant, memory_folder};
use super::{Peers, Shared};
use crate::harness::{Contender, Race, rate};

const SIZE: u64 = 1 << 30;

/// One message of a bare WebSocket, and one read of bare TCP.
const PART: usize = 256 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    /// To the other process.
    Upload,
    Download,
}

/// The file that is copied and where copies go.
struct Place {
    folder: TempDir,
    checked: bool,
}

impl Place {
    fn new() -> anyhow::Result<Self> {
        let folder = memory_folder()?;
        let mut file = File::create(folder.path().join("source"))?;
        let mut part = vec![0; 1 << 20];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..SIZE / part.len() as u64 {
            for word in part.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            file.write_all(&part)?;
        }
        Ok(Self {
            folder,
            checked: false,
        })
    }

    fn source(&self) -> PathBuf {
        self.folder.path().join("source")
    }

    fn target(&self) -> PathBuf {
        self.folder.path().join("target")
    }

    /// Removes a copy, after a look at its content in the round that is not measured.
    fn arrived(&mut self, copy: &Path) -> anyhow::Result<()> {
        ensure!(copy.metadata()?.len() == SIZE, "not all of it arrived");
        if !self.checked {
            self.checked = true;
            let mut ends = [File::open(self.source())?, File::open(copy)?];
            let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
            for _ in 0..SIZE >> 20 {
                let [source, copy] = &mut ends;
                source.read_exact(&mut a)?;
                copy.read_exact(&mut b)?;
                ensure!(a == b, "something else arrived");
            }
        }
        std::fs::remove_file(copy)?;
        Ok(())
    }
}

pub(super) fn race(peers: &Peers, direction: Direction) -> Race {
    let place: Shared<Place> = Shared::default();
    let bare = |wire: Wire| {
        let (place, bare) = (place.clone(), Shared::<Bare>::default());
        move || {
            place.with(Place::new, |place| {
                place.checked = false;
                bare.with(|| Bare::start(wire), |bare| bare.copy(place, direction))
            })
        }
    };
    let ours = |peer: &Shared<Ours>, variant: Variant| {
        let (place, peer) = (place.clone(), peer.clone());
        let first = Rc::new(RefCell::new(true));
        move || {
            place.with(Place::new, |place| {
                place.checked = !first.replace(false);
                peer.with(
                    || Ours::start(variant),
                    |ours| copy_by_ours(ours, place, direction),
                )
            })
        }
    };
    let (scp, scp_place) = (peers.ssh.clone(), place.clone());
    Race {
        variant: format!(
            "1 GiB {}",
            match direction {
                Direction::Upload => "up",
                Direction::Download => "down",
            }
        ),
        unit: "bytes/s",
        bytes_each: Some(1),
        contenders: vec![
            Contender::new("quintet, sandd.v2", ours(&peers.plain, Variant::V2)),
            Contender::new("quintet, sandd.v1", ours(&peers.v1, Variant::V1)),
            Contender::new("bare WebSocket", bare(Wire::WebSocket)),
            Contender::new("bare TCP", bare(Wire::Tcp)),
            Contender::new("scp, multiplexed", move || {
                scp_place.with(Place::new, |place| {
                    let (from, to) = (place.source(), place.target());
                    scp.with(super::ssh::Ssh::start, |ssh| {
                        let rate = rate(SIZE, || {
                            ssh.copy(&from, &to, direction == Direction::Upload)
                        })?;
                        place.arrived(&to)?;
                        Ok(rate)
                    })
                })
            }),
        ],
    }
}

fn copy_by_ours(ours: &mut Ours, place: &mut Place, direction: Direction) -> anyhow::Result<f64> {
    match direction {
        Direction::Upload => {
            let source = place.source();
            let rate = rate(SIZE, || ours.upload(&source, "copy", SIZE))?;
            place.arrived(&ours.file("copy"))?;
            Ok(rate)
        }
        Direction::Download => {
            let there = ours.file("source");
            if !there.exists() {
                std::fs::hard_link(place.source(), &there)?;
            }
            let target = place.target();
            let rate = rate(SIZE, || ours.download("source", &target))?;
            place.arrived(&target)?;
            std::fs::remove_file(there)?;
            Ok(rate)
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Wire {
    WebSocket,
    Tcp,
}

/// A connection to a process of ours that sends or receives one file at a time.
struct Bare {
    folder: TempDir,
    link: Link,
    _other: Program,
}

enum Link {
    Tcp(TcpStream),
    WebSocket {
        runtime: tokio::runtime::Runtime,
        socket: Box<WebSocketStream<tokio::net::TcpStream>>,
    },
}

impl Bare {
    fn start(wire: Wire) -> anyhow::Result<Self> {
        let folder = memory_folder()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        let word = match wire {
            Wire::WebSocket => "ws",
            Wire::Tcp => "tcp",
        };
        let root = folder.path().to_str().context("UTF-8")?.to_owned();
        let other = Program::start(&["files", word, &address, &root], false)?;
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let link = match wire {
            Wire::Tcp => Link::Tcp(stream),
            Wire::WebSocket => {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                stream.set_nonblocking(true)?;
                let socket = runtime.block_on(async {
                    let stream = tokio::net::TcpStream::from_std(stream)?;
                    anyhow::Ok(tokio_tungstenite::accept_async(stream).await?)
                })?;
                Link::WebSocket {
                    runtime,
                    socket: Box::new(socket),
                }
            }
        };
        Ok(Self {
            folder,
            link,
            _other: other,
        })
    }

    fn copy(&mut self, place: &mut Place, direction: Direction) -> anyhow::Result<f64> {
        let there = self.folder.path().join("file");
        match direction {
            Direction::Upload => {
                let source = place.source();
                let rate = rate(SIZE, || self.link.send(b'u', &source))?;
                place.arrived(&there)?;
                Ok(rate)
            }
            Direction::Download => {
                std::fs::hard_link(place.source(), &there)?;
                let target = place.target();
                let rate = rate(SIZE, || self.link.fetch(&target))?;
                std::fs::remove_file(there)?;
                place.arrived(&target)?;
                Ok(rate)
            }
        }
    }
}

impl Link {
    /// Says what comes, sends it, and waits until the other end has written it.
    fn send(&mut self, order: u8, path: &Path) -> anyhow::Result<()> {
        let mut file = File::open(path)?;
        match self {
            Self::Tcp(stream) => {
                stream.write_all(&[order])?;
                send_tcp(stream, &mut file)?;
                stream.read_exact(&mut [0])?;
                Ok(())
            }
            Self::WebSocket { runtime, socket } => runtime.block_on(async {
                socket.send(Message::Binary(vec![order].into())).await?;
                send_ws(socket, &mut file).await?;
                socket.next().await.context("an answer")??;
                Ok(())
            }),
        }
    }

    fn fetch(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut file = File::create(path)?;
        match self {
            Self::Tcp(stream) => {
                stream.write_all(b"d")?;
                receive_tcp(stream, &mut file)
            }
            Self::WebSocket { runtime, socket } => runtime.block_on(async {
                socket.send(Message::Binary(b"d".as_slice().into())).await?;
                receive_ws(socket, &mut file).await
            }),
        }
    }
}

fn send_tcp(stream: &mut TcpStream, file: &mut File) -> anyhow::Result<()> {
    let mut part = vec![0; PART];
    loop {
        let count = file.read(&mut part)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&part[..count])?;
    }
}

fn receive_tcp(stream: &mut TcpStream, file: &mut File) -> anyhow::Result<()> {
    let mut part = vec![0; PART];
    let mut left = SIZE;
    while left > 0 {
        let count = stream.read(&mut part)?;
        ensure!(count > 0, "the other end is gone");
        file.write_all(&part[..count])?;
        left -= count as u64;
    }
    Ok(())
}

async fn send_ws<S>(socket: &mut WebSocketStream<S>, file: &mut File) -> anyhow::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        let mut part = vec![0; PART];
        let count = file.read(&mut part)?;
        if count == 0 {
            socket.flush().await?;
            return Ok(());
        }
        part.truncate(count);
        socket.feed(Message::Binary(Bytes::from(part))).await?;
    }
}

async fn receive_ws<S>(socket: &mut WebSocketStream<S>, file: &mut File) -> anyhow::Result<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let mut left = SIZE;
    while left > 0 {
        let Message::Binary(part) = socket.next().await.context("more of it")?? else {
            bail!("bytes were expected");
        };
        file.write_all(&part)?;
        left -= part.len() as u64;
    }
    Ok(())
}

/// The other end: dials, then does what it is told for one file in `root`.
pub(super) fn serve_child(wire: &str, address: &str, root: &str) -> anyhow::Result<()> {
    let path = Path::new(root).join("file");
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    if wire == "tcp" {
        let mut order = [0];
        while stream.read(&mut order)? > 0 {
            if order == *b"u" {
                receive_tcp(&mut stream, &mut File::create(&path)?)?;
                stream.write_all(b"k")?;
            } else {
                send_tcp(&mut stream, &mut File::open(&path)?)?;
            }
        }
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        stream.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(stream)?;
        let url = format!("ws://{address}/");
        let (mut socket, _) = tokio_tungstenite::client_async(url, stream).await?;
        while let Some(Ok(Message::Binary(order))) = socket.next().await {
            if order == b"u".as_slice() {
                receive_ws(&mut socket, &mut File::create(&path)?).await?;
                let done = Message::Binary(b"k".as_slice().into());
                socket.send(done).await?;
            } else {
                send_ws(&mut socket, &mut File::open(&path)?).await?;
            }
        }
        Ok(())
    })
}
