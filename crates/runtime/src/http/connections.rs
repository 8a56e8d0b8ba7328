//! The connections of one listener: how many there may be, how long they may take, and how they end.
//!
//! A connection that has become a WebSocket is none of these any more: whoever serves it bounds it.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::extract::connect_info::ConnectInfo;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::Resource;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{Id, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::PeerAddress;

/// The most connections at once, where the system lets this process have so many: one in four of
/// its descriptors. Further ones wait in the kernel's queue.
const MOST: u64 = 1024;

/// The most of them from one other machine. Its next ones are closed: it can't keep others out.
const MOST_FROM_ONE: usize = 128;

/// How long a client may take for its TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long accepting pauses after the system refused, for instance for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long clients are waited for.
#[derive(Debug, Clone, Copy)]
struct Patience {
    /// With the head of a request, and with the next request.
    head: Duration,
    /// With the replies under way once the server stops.
    grace: Duration,
}

const PATIENCE: Patience = Patience {
    head: Duration::from_secs(30),
    grace: Duration::from_secs(3),
};

/// Serves `app` to whoever connects until `stop`, then lets replies under way end.
pub(super) async fn serve(
    listener: TcpListener,
    tls: Option<Arc<rustls::ServerConfig>>,
    app: Router,
    stop: CancellationToken,
) {
    let acceptor = tls.map(TlsAcceptor::from);
    accept(listener, acceptor, app, PATIENCE, stop).await;
}

async fn accept(
    listener: TcpListener,
    acceptor: Option<TlsAcceptor>,
    app: Router,
    patience: Patience,
    stop: CancellationToken,
) {
    let most = most();
    let mut connections = JoinSet::new();
    let mut sources = Sources::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            Some(ended) = connections.join_next_with_id() => {
                sources.leave(match ended {
                    Ok((id, ())) => id,
                    Err(error) => error.id(),
                });
            }
            accepted = listener.accept(), if connections.len() < most => match accepted {
                Ok((_, peer)) if sources.is_full(peer.ip()) => {
                    tracing::debug!(%peer, "closed: its machine has too many connections");
                }
                Ok((socket, peer)) => {
                    let conversation = Conversation {
                        app: app.clone(),
                        head: patience.head,
                        stop: stop.clone(),
                    };
                    let task = connections.spawn(conversation.begin(socket, peer, acceptor.clone()));
                    sources.enter(task.id(), peer.ip());
                }
                Err(error) => {
                    tracing::error!(%error, "the system refuses to accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    let replies = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(patience.grace, replies).await.is_err() {
        let (left, grace) = (connections.len(), patience.grace);
        tracing::info!("{left} HTTP connections were cut after {grace:?}");
    }
}

fn most() -> usize {
    let descriptors = rustix::process::getrlimit(Resource::Nofile).current;
    let share = descriptors.map_or(MOST, |count| count / 4);
    usize::try_from(share.min(MOST)).unwrap_or(usize::MAX)
}

/// Where the connections come from.
#[derive(Debug, Default)]
struct Sources {
    of: HashMap<Id, IpAddr>,
    counts: HashMap<IpAddr, usize>,
}

impl Sources {
    /// Whether a machine has its share. This one has no other, and is not shut out by itself.
    fn is_full(&self, source: IpAddr) -> bool {
        let source = source.to_canonical();
        !source.is_loopback()
            && self
                .counts
                .get(&source)
                .is_some_and(|n| *n >= MOST_FROM_ONE)
    }

    fn enter(&mut self, id: Id, source: IpAddr) {
        let source = source.to_canonical();
        self.of.insert(id, source);
        *self.counts.entry(source).or_default() += 1;
    }

    fn leave(&mut self, id: Id) {
        let Some(source) = self.of.remove(&id) else {
            return;
        };
        if let Some(count) = self.counts.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&source);
            }
        }
    }
}

/// What one connection is served with.
struct Conversation {
    app: Router,
    head: Duration,
    stop: CancellationToken,
}

impl Conversation {
    async fn begin(self, socket: TcpStream, peer: SocketAddr, acceptor: Option<TlsAcceptor>) {
        // Small messages must not wait for the acknowledgement of the one before: with the peer's
        // own delay that is 40 ms for every command of a worker.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "a connection stays slow");
        }
        let local = socket.local_addr().ok();
        let address = PeerAddress { peer, local };
        let Some(acceptor) = acceptor else {
            return self.run(socket, address).await;
        };
        let handshake = async {
            tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(socket))
                .await
                .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
        };
        match self.stop.run_until_cancelled(handshake).await {
            Some(Ok(stream)) => self.run(stream, address).await,
            Some(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            None => {}
        }
    }

    async fn run(
        self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        address: PeerAddress,
    ) {
        let app = TowerToHyperService::new(self.app);
        let service = service_fn(|mut request: Request<Incoming>| {
            request.extensions_mut().insert(ConnectInfo(address));
            app.call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        tokio::pin!(connection);
        let served = tokio::select! {
            served = &mut connection => served,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(peer = %address.peer, %error, "a connection ended early");
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);
    const LONG: Duration = Duration::from_secs(3600);

    struct Served {
        address: SocketAddr,
        stop: CancellationToken,
        task: JoinSet<()>,
    }

    async fn served(patience: Patience) -> Served {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let app = Router::new().route("/", get(async || "here"));
        let (stop, mut task) = (CancellationToken::new(), JoinSet::new());
        task.spawn(accept(listener, None, app, patience, stop.clone()));
        Served {
            address,
            stop,
            task,
        }
    }

    async fn sent(address: SocketAddr, text: &str) -> TcpStream {
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(text.as_bytes()).await.unwrap();
        socket
    }

    const HALF: &str = "GET / HTTP/1.1\r\nHost: x\r\nX-a: ";

    #[tokio::test]
    async fn a_head_that_never_ends_is_not_waited_for() {
        let served = served(Patience {
            head: SHORT,
            grace: LONG,
        })
        .await;
        let mut slow = sent(served.address, HALF).await;
        let mut answer = Vec::new();
        slow.read_to_end(&mut answer).await.unwrap();
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    }

    #[tokio::test]
    async fn a_client_that_never_ends_its_request_does_not_hold_up_a_stop() {
        let mut served = served(Patience {
            head: LONG,
            grace: SHORT,
        })
        .await;
        let _half = sent(served.address, HALF).await;
        let mut whole = sent(served.address, "GET / HTTP/1.1\r\nHost: x\r\n\r\n").await;
        let mut answer = [0; 15];
        whole.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        served.stop.cancel();
        served.task.join_next().await.unwrap().unwrap();
    }

    #[test]
    fn another_machine_has_no_more_than_its_share() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.unwrap();
        let mut tasks = JoinSet::new();
        let mut sources = Sources::default();
        let [far, here, other] = ["::ffff:192.0.2.1", "127.0.0.1", "192.0.2.2"]
            .map(|address| address.parse::<IpAddr>().unwrap());
        let mut ids = Vec::new();
        for _ in 0..MOST_FROM_ONE {
            for source in [far, here] {
                let id = tasks.spawn_on(async {}, runtime.handle()).id();
                sources.enter(id, source);
                ids.push(id);
            }
        }
        assert!(sources.is_full(far) && sources.is_full("192.0.2.1".parse().unwrap()));
        assert!(!sources.is_full(here) && !sources.is_full(other));
        sources.leave(ids[0]);
        assert!(!sources.is_full(far));
        ids.into_iter().for_each(|id| sources.leave(id));
        assert!(sources.of.is_empty() && sources.counts.is_empty());
    }
}
