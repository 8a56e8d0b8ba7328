//! The server's transports: accepts connections on a Unix socket or on TCP and serves each.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prost::DecodeError;
use quintet_framing::FrameError;
use quintet_framing::confined::is_confined;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::connection::{Access, Connection};
use crate::server::Server;

/// How long accepting pauses after the system refused, for instance for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What the listener asks of the daemon beside the requests themselves.
pub trait Service: Send + Sync + 'static {
    /// What serves one connection.
    type Server: Server + 'static;

    /// Returns the server of a new connection: one of its own, which may remember the client's
    /// `hello`, or one that all share.
    fn connected(&self, peer: &Peer) -> Arc<Self::Server>;

    /// Says whether `token` opens the daemon to a TCP client. Compare with [`tokens_match`].
    fn authorizes(&self, token: &str) -> bool {
        let _ = token;
        false
    }

    /// Learns that a connection is over, and why. Must not block.
    fn closed(&self, peer: &Peer, reason: Closed) {
        let _ = (peer, reason);
    }

    /// Learns that the system refused to accept. Must not block; accepting goes on after a pause.
    fn accept_failed(&self, error: &io::Error) {
        let _ = error;
    }
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Counts up over all connections of this process.
    pub id: u64,
    /// Where it came from.
    pub origin: Origin,
}

/// Where a connection came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A process of this machine.
    Unix {
        /// Its user.
        uid: u32,
        /// Its process id, where the system tells.
        pid: Option<i32>,
    },
    /// An address.
    Tcp(SocketAddr),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Unix { pid: Some(pid), .. } => write!(f, "client {} (process {pid})", self.id),
            Origin::Unix { pid: None, uid } => write!(f, "client {} (user {uid})", self.id),
            Origin::Tcp(address) => write!(f, "client {} ({address})", self.id),
        }
    }
}

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub enum Closed {
    /// The client went away.
    #[error("the client closed the connection")]
    ByClient,
    /// The daemon stops.
    #[error("the daemon is stopping")]
    Shutdown,
    /// Half a frame arrived, then nothing.
    #[error("half a frame arrived and then nothing for {} s", silent.as_secs_f64())]
    HalfFrame {
        /// How long nothing arrived.
        silent: Duration,
    },
    /// The client does not take its replies.
    #[error("the client took nothing for {} s with {unsent} bytes waiting", waited.as_secs_f64())]
    NotReading {
        /// Bytes that waited for it in the daemon.
        unsent: usize,
        /// How long it took nothing.
        waited: Duration,
    },
    /// The client's bytes are no frames.
    #[error(transparent)]
    BadFrame(#[from] FrameError),
    /// The client's frame holds no message of this protocol.
    #[error("the client's message can't be decoded: {0}")]
    Undecodable(#[from] DecodeError),
    /// A TCP client did not begin with a `hello` that carries a valid token.
    #[error("the client has no valid token")]
    Unauthorized,
    /// A process of another user.
    #[error("the client runs as user {uid}, not as the daemon's own")]
    ForeignUser {
        /// That user.
        uid: u32,
    },
    /// A process in a sandbox, which must not command what it is kept from.
    #[error("the client runs in a sandbox, whose commands may not command the daemon")]
    Confined,
    /// The system failed.
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    /// The server's method panicked, or the daemon stopped before the reply was complete.
    #[error("the connection was aborted before its reply was complete")]
    Aborted,
}

impl Closed {
    /// Whether the client broke a rule or a limit, which is worth a line in the journal.
    pub fn is_clients_fault(&self) -> bool {
        match self {
            Self::HalfFrame { .. }
            | Self::NotReading { .. }
            | Self::BadFrame(_)
            | Self::Undecodable(_)
            | Self::Unauthorized
            | Self::ForeignUser { .. }
            | Self::Confined => true,
            Self::ByClient | Self::Shutdown | Self::Io(_) | Self::Aborted => false,
        }
    }
}

/// What a listener allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time; further ones wait in the kernel's queue, unaccepted.
    pub max_connections: usize,
    /// How long half a frame may be followed by silence, and how long a TCP client may take to say
    /// `hello`. A connection between frames may be silent for ever.
    pub half_frame: Duration,
    /// How long a client may take nothing while replies wait for it.
    pub not_reading: Duration,
    /// How long replies that are under way at shutdown may take to complete.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 1000,
            half_frame: Duration::from_secs(30),
            not_reading: Duration::from_secs(30),
            drain: Duration::from_secs(2),
        }
    }
}

/// Serves clients of this user on a Unix socket until `shutdown`.
///
/// Returns when every connection is over: idle ones at once, the others after their reply or
/// after [`Limits::drain`].
pub async fn serve_unix<S: Service>(
    listener: UnixListener,
    service: Arc<S>,
    limits: Limits,
    shutdown: CancellationToken,
) {
    let own_uid = rustix::process::geteuid().as_raw();
    serve(SameUser { listener, own_uid }, service, limits, shutdown).await;
}

/// Serves clients with a token on TCP until `shutdown`, as [`serve_unix`] does.
///
/// The first message of a client is a `hello` whose token [`Service::authorizes`]; anything else
/// is answered with 401 and the connection closes. An old client can't say it and is refused.
pub async fn serve_tcp<S: Service>(
    listener: TcpListener,
    service: Arc<S>,
    limits: Limits,
    shutdown: CancellationToken,
) {
    serve(listener, service, limits, shutdown).await;
}

/// Compares two tokens in a time that does not depend on where they differ.
pub fn tokens_match(given: &str, expected: &str) -> bool {
    let difference = given
        .bytes()
        .zip(expected.bytes())
        .fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == expected.len() && !expected.is_empty() && std::hint::black_box(difference) == 0
}

/// A socket that connections come from.
trait Listen: Send + Sync {
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    const ACCESS: Access;

    fn accept(&self) -> impl Future<Output = io::Result<(Self::Io, Origin)>> + Send;

    /// Says whether this peer may speak at all; with [`Closed::Io`] that it could not be found out.
    fn admit(&self, origin: &Origin) -> Result<(), Closed>;
}

struct SameUser {
    listener: UnixListener,
    own_uid: u32,
}

impl Listen for SameUser {
    type Io = UnixStream;
    const ACCESS: Access = Access::Open;

    async fn accept(&self) -> io::Result<(UnixStream, Origin)> {
        let (stream, _) = self.listener.accept().await?;
        let peer = stream.peer_cred()?;
        let origin = Origin::Unix {
            uid: peer.uid(),
            pid: peer.pid(),
        };
        Ok((stream, origin))
    }

    fn admit(&self, origin: &Origin) -> Result<(), Closed> {
        match *origin {
            Origin::Unix { uid, .. } if uid != self.own_uid => Err(Closed::ForeignUser { uid }),
            Origin::Unix { pid, .. } if is_confined(pid)? => Err(Closed::Confined),
            _ => Ok(()),
        }
    }
}

impl Listen for TcpListener {
    type Io = TcpStream;
    const ACCESS: Access = Access::Token;

    async fn accept(&self) -> io::Result<(TcpStream, Origin)> {
        let (stream, address) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok((stream, Origin::Tcp(address)))
    }

    fn admit(&self, _: &Origin) -> Result<(), Closed> {
        Ok(())
    }
}

async fn serve<L: Listen, S: Service>(
    listener: L,
    service: Arc<S>,
    limits: Limits,
    shutdown: CancellationToken,
) {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);

    let permits = Arc::new(Semaphore::new(limits.max_connections));
    let mut connections = JoinSet::new();
    'serving: loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &permits) => accepted,
        };
        let (permit, io, origin) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                service.accept_failed(&error);
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let peer = Peer { id, origin };
        let admitted = loop {
            match listener.admit(&peer.origin) {
                Err(Closed::Io(error)) => service.accept_failed(&error),
                admitted => break admitted,
            }
            tokio::select! {
                () = shutdown.cancelled() => break 'serving,
                () = tokio::time::sleep(ACCEPT_PAUSE) => {}
            }
        };
        if let Err(reason) = admitted {
            service.closed(&peer, reason);
            continue;
        }
        let server = service.connected(&peer);
        let connection = Connection::new(io, limits.clone(), shutdown.clone());
        let mut farewell = Farewell {
            service: service.clone(),
            peer,
            reason: Closed::Aborted,
            _permit: permit,
        };
        connections.spawn(async move {
            let authorizes = |token: &str| farewell.service.authorizes(token);
            let reason = connection.run(&*server, L::ACCESS, authorizes).await;
            farewell.because(reason);
        });
    }
    // From here on nobody new waits for an answer that will not come.
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(limits.drain, drained).await;
    connections.shutdown().await;
}

/// Takes a permit before it accepts, so that whom there is no room for waits in the kernel.
async fn accept<L: Listen>(
    listener: &L,
    permits: &Arc<Semaphore>,
) -> io::Result<(OwnedSemaphorePermit, L::Io, Origin)> {
    let permit = permits
        .clone()
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (io, origin) = listener.accept().await?;
    Ok((permit, io, origin))
}

/// Tells the service that a connection is over, also when its task panicked or was aborted.
struct Farewell<S: Service> {
    service: Arc<S>,
    peer: Peer,
    reason: Closed,
    _permit: OwnedSemaphorePermit,
}

impl<S: Service> Farewell<S> {
    fn because(&mut self, reason: Closed) {
        self.reason = reason;
    }
}

impl<S: Service> Drop for Farewell<S> {
    fn drop(&mut self) {
        let reason = std::mem::replace(&mut self.reason, Closed::Aborted);
        self.service.closed(&self.peer, reason);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_process_of_another_user_is_not_admitted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).expect("free");
        let own_uid = rustix::process::geteuid().as_raw();
        let mut socket = SameUser { listener, own_uid };
        let (_client, accepted) = tokio::join!(UnixStream::connect(&path), socket.accept());
        let (_, origin) = accepted.expect("dialled");
        assert!(socket.admit(&origin).is_ok());

        socket.own_uid = own_uid + 1;
        assert!(matches!(
            socket.admit(&origin),
            Err(Closed::ForeignUser { uid }) if uid == own_uid
        ));
    }
}
