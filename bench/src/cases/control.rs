//! The control plane's transport against gRPC and against the least that could work.
//!
//! Every contender serves the same messages on a Unix socket. `ping` is one round trip at a time on
//! each connection; `stream` is one reply of many events. The server runs on two threads, as the
//! daemon's, and the clients on one of their own; "one thread" leaves the waking of threads out of
//! the numbers, which otherwise hides what the protocol itself costs.

use std::future::Future;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use quintet_control::wire::{StreamChunk, StreamEnd, StreamEvent, stream_event::Event};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::Case;
use crate::harness::{Contender, Race, rate};

mod bare;
mod grpc;
mod ours;

pub(crate) const CASE: Case = Case {
    name: "control",
    about: "ping round trips/s on 1 and 64 connections, and streamed events/s",
    races,
};

const EVENTS: u64 = 50_000;

/// One protocol's two ends.
trait Protocol: 'static {
    type Client: Send + 'static;

    /// Serves clients until the runtime drops it.
    fn serve(listener: UnixListener) -> impl Future<Output = anyhow::Result<()>> + Send;

    fn connect(socket: &Path) -> impl Future<Output = anyhow::Result<Self::Client>> + Send;

    fn ping(client: &mut Self::Client) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Reads one whole stream; returns how many events it had.
    fn stream(client: &mut Self::Client) -> impl Future<Output = anyhow::Result<u64>> + Send;
}

/// What a stream consists of: pieces of text as a model sends them, then the end.
fn events() -> impl Iterator<Item = StreamEvent> + Send {
    (0..EVENTS).map(|seq| {
        let event = if seq + 1 == EVENTS {
            Event::End(StreamEnd::default())
        } else {
            Event::Chunk(StreamChunk {
                content: "four words of text".to_owned(),
            })
        };
        StreamEvent {
            event: Some(event),
            seq: Some(seq),
            ..StreamEvent::default()
        }
    })
}

#[derive(Clone, Copy)]
enum Threads {
    One,
    ServerAndClients,
}

fn races() -> anyhow::Result<Vec<Race>> {
    use Threads::{One, ServerAndClients};
    Ok(vec![
        pings("ping, 1 connection", 1, 20_000, ServerAndClients),
        pings("ping, 1 connection, one thread", 1, 40_000, One),
        pings("ping, 64 connections", 64, 500, ServerAndClients),
        streams("stream", ServerAndClients),
        streams("stream, one thread", One),
    ])
}

fn pings(variant: &str, connections: usize, each: u64, threads: Threads) -> Race {
    fn contender<P: Protocol>(
        name: &'static str,
        connections: usize,
        each: u64,
        threads: Threads,
    ) -> Contender {
        let mut stage = None;
        Contender::new(name, move || {
            let stage = Stage::<P>::ready(&mut stage, connections, threads)?;
            rate(connections as u64 * each, || stage.ping_all(each))
        })
    }
    Race {
        variant: variant.to_owned(),
        unit: "round trips/s",
        bytes_each: None,
        contenders: vec![
            contender::<ours::Ours>("quintet-control", connections, each, threads),
            contender::<bare::Bare>("bare prost frame echo", connections, each, threads),
            contender::<grpc::Grpc>("tonic", connections, each, threads),
        ],
    }
}

fn streams(variant: &str, threads: Threads) -> Race {
    fn contender<P: Protocol>(name: &'static str, threads: Threads) -> Contender {
        let mut stage = None;
        Contender::new(name, move || {
            let stage = Stage::<P>::ready(&mut stage, 1, threads)?;
            rate(EVENTS, || stage.stream())
        })
    }
    Race {
        variant: variant.to_owned(),
        unit: "events/s",
        bytes_each: None,
        contenders: vec![
            contender::<ours::Ours>("quintet-control", threads),
            contender::<bare::Bare>("bare prost frames, batched", threads),
            contender::<grpc::Grpc>("tonic", threads),
        ],
    }
}

/// A server that listens and clients that are connected, kept over the rounds.
struct Stage<P: Protocol> {
    clients: Vec<P::Client>,
    client_runtime: Runtime,
    _server_runtime: Option<Runtime>,
    _folder: TempDir,
}

impl<P: Protocol> Stage<P> {
    /// Sets the stage in the first round, which is not measured.
    fn ready(
        stage: &mut Option<Self>,
        connections: usize,
        threads: Threads,
    ) -> anyhow::Result<&mut Self> {
        if stage.is_none() {
            *stage = Some(Self::set(connections, threads)?);
        }
        stage.as_mut().context("the stage was set above")
    }

    fn set(connections: usize, threads: Threads) -> anyhow::Result<Self> {
        let folder = TempDir::new()?;
        let socket: PathBuf = folder.path().join("bench.sock");
        let client_runtime = Builder::new_current_thread().enable_all().build()?;
        let server_runtime = match threads {
            Threads::One => None,
            Threads::ServerAndClients => {
                let two = Builder::new_multi_thread()
                    .worker_threads(2)
                    .enable_all()
                    .build()?;
                Some(two)
            }
        };
        let host = server_runtime.as_ref().unwrap_or(&client_runtime);
        let listener = {
            let _entered = host.enter();
            UnixListener::bind(&socket)?
        };
        host.spawn(P::serve(listener));
        let clients = client_runtime.block_on(async {
            let mut clients = Vec::with_capacity(connections);
            for _ in 0..connections {
                clients.push(P::connect(&socket).await?);
            }
            anyhow::Ok(clients)
        })?;
        Ok(Self {
            clients,
            client_runtime,
            _server_runtime: server_runtime,
            _folder: folder,
        })
    }

    fn ping_all(&mut self, each: u64) -> anyhow::Result<()> {
        let clients = std::mem::take(&mut self.clients);
        self.clients = self.client_runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for mut client in clients {
                tasks.spawn(async move {
                    for _ in 0..each {
                        P::ping(&mut client).await?;
                    }
                    anyhow::Ok(client)
                });
            }
            let mut clients = Vec::new();
            while let Some(client) = tasks.join_next().await {
                clients.push(client??);
            }
            anyhow::Ok(clients)
        })?;
        Ok(())
    }

    fn stream(&mut self) -> anyhow::Result<()> {
        let client = self
            .clients
            .first_mut()
            .context("one client is connected")?;
        let seen = self.client_runtime.block_on(P::stream(client))?;
        ensure!(seen == EVENTS, "{seen} of {EVENTS} events arrived");
        Ok(())
    }
}
