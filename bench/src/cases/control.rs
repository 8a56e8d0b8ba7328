//! The control plane's transport against gRPC and against the least that could work.
//!
//! Every contender serves the same messages on a Unix socket. `ping` is one round trip at a time on
//! each connection; `stream` is one reply of many events. The server runs on two threads, as the
//! daemon's, and the clients on one of their own; "one thread" leaves the waking of threads out of
//! the numbers, which otherwise hides what the protocol itself costs.

use std::cmp::Ordering;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use anyhow::{Context as _, ensure};
use futures_util::Stream;
use quintet_control::wire::{StreamChunk, StreamEvent, StreamMsg, stream_event::Event};
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

/// One protocol's two ends.
trait Protocol: 'static {
    type Client: Send + 'static;

    /// Serves clients until the runtime drops it.
    fn serve(listener: UnixListener) -> impl Future<Output = anyhow::Result<()>> + Send;

    fn connect(socket: &Path) -> impl Future<Output = anyhow::Result<Self::Client>> + Send;

    fn ping(client: &mut Self::Client) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Reads one whole stream; returns how many events it had.
    fn stream(
        client: &mut Self::Client,
        request: StreamMsg,
    ) -> impl Future<Output = anyhow::Result<u64>> + Send;
}

/// How a stream's events become ready.
#[derive(Clone, Copy)]
enum Pace {
    /// All at once, as a client that catches up reads the journal: what gathering is worth.
    Burst,
    /// Each after the one before was handed out, as a model's words: what one write is worth.
    OneByOne,
}

impl Pace {
    fn events(self) -> u64 {
        match self {
            Self::Burst => 500_000,
            Self::OneByOne => 8_000,
        }
    }

    /// The request that asks for such a stream.
    fn request(self) -> StreamMsg {
        StreamMsg {
            new_chat: matches!(self, Self::OneByOne),
            ..StreamMsg::default()
        }
    }

    fn asked_by(request: &StreamMsg) -> Self {
        match request.new_chat {
            true => Self::OneByOne,
            false => Self::Burst,
        }
    }
}

/// What every server streams: pieces of text as a model sends them, then the end.
struct Events {
    sent: u64,
    pace: Pace,
    waited: bool,
}

impl Events {
    fn of(request: &StreamMsg) -> Self {
        let pace = Pace::asked_by(request);
        Self {
            sent: 0,
            pace,
            waited: false,
        }
    }
}

impl Stream for Events {
    type Item = StreamEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<StreamEvent>> {
        if matches!(self.pace, Pace::OneByOne) {
            self.waited = !self.waited;
            if self.waited {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        let seq = self.sent;
        self.sent += 1;
        let event = match self.pace.events().cmp(&self.sent) {
            Ordering::Less => return Poll::Ready(None),
            Ordering::Equal => Event::End(Box::default()),
            Ordering::Greater => Event::Chunk(StreamChunk {
                content: "four words of text".to_owned(),
            }),
        };
        Poll::Ready(Some(StreamEvent {
            event: Some(event),
            seq: Some(seq),
            ..StreamEvent::default()
        }))
    }
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
        streams("stream, burst", Pace::Burst, ServerAndClients),
        streams("stream, burst, one thread", Pace::Burst, One),
        streams("stream, one by one", Pace::OneByOne, ServerAndClients),
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

fn streams(variant: &str, pace: Pace, threads: Threads) -> Race {
    fn contender<P: Protocol>(name: &'static str, pace: Pace, threads: Threads) -> Contender {
        let mut stage = None;
        Contender::new(name, move || {
            let stage = Stage::<P>::ready(&mut stage, 1, threads)?;
            rate(pace.events(), || stage.stream(pace))
        })
    }
    Race {
        variant: variant.to_owned(),
        unit: "events/s",
        bytes_each: None,
        contenders: vec![
            contender::<ours::Ours>("quintet-control", pace, threads),
            contender::<bare::Bare>("bare prost frames", pace, threads),
            contender::<grpc::Grpc>("tonic", pace, threads),
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

    fn stream(&mut self, pace: Pace) -> anyhow::Result<()> {
        let client = self
            .clients
            .first_mut()
            .context("one client is connected")?;
        let seen = self
            .client_runtime
            .block_on(P::stream(client, pace.request()))?;
        let wanted = pace.events();
        ensure!(seen == wanted, "{seen} of {wanted} events arrived");
        Ok(())
    }
}
