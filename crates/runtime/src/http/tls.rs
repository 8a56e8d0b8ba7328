//! How the HTTP port accepts connections, with TLS or without.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use quintet_sandbox::proto::Fingerprint;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::TlsFiles;
use crate::home::write_atomically;

/// Handshakes under way at once; further connections wait in the kernel's queue.
const MAX_HANDSHAKES: usize = 256;

/// How long a client may take for its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long accepting pauses after the system refused, for instance for want of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Why TLS can't be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file can't be used.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Certificate and key do not fit together, or are of an unknown kind.
    #[error("the certificate and its key can't be used: {0}")]
    Unusable(#[from] rustls::Error),
}

/// What the port serves TLS with.
#[derive(Clone)]
pub(crate) struct ServedTls {
    pub(crate) config: Arc<ServerConfig>,
    /// Of the certificate that is shown.
    pub(crate) fingerprint: Fingerprint,
}

/// The certificate and key that the configuration names.
pub(crate) fn configured(files: &TlsFiles) -> Result<ServedTls, TlsError> {
    load(&files.cert, &files.key)
}

/// The daemon's own certificate, made on first use for `listen`.
///
/// Nobody has to trust it by name: a worker's token carries its fingerprint. So it stays the same
/// whatever address is served later.
pub(crate) fn self_signed(folder: &Path, listen: SocketAddr) -> Result<ServedTls, TlsError> {
    let (cert, key) = (folder.join("cert.pem"), folder.join("key.pem"));
    if !cert.exists() || !key.exists() {
        let names = vec!["localhost".to_owned(), listen.ip().to_string()];
        let made = quintet_sandbox::tls::self_signed(names)
            .map_err(|error| unusable(&cert, error.to_string()))?;
        make_private(folder).map_err(|error| unusable(folder, error.to_string()))?;
        for (path, text) in [(&key, &made.key_pem), (&cert, &made.certificate_pem)] {
            write_atomically(path, text.as_bytes(), 0o600)
                .map_err(|error| unusable(path, error.to_string()))?;
        }
    }
    load(&cert, &key)
}

fn load(cert: &Path, key: &Path) -> Result<ServedTls, TlsError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(cert, error.to_string()))?;
    let Some(shown) = chain.first() else {
        return Err(unusable(cert, "holds no certificate".into()));
    };
    let fingerprint = Fingerprint::of_der(shown);
    let key =
        PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error.to_string()))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(ServedTls {
        config: Arc::new(config),
        fingerprint,
    })
}

fn make_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
}

fn unusable(path: &Path, reason: String) -> TlsError {
    TlsError::File {
        path: path.to_owned(),
        reason,
    }
}

/// Small messages must not wait for the acknowledgement of the one before: with the peer's own
/// delay that is 40 ms for every command of a worker.
fn send_at_once(socket: &mut TcpStream) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "a connection stays slow");
    }
}

/// Accepts connections without TLS.
pub(crate) struct PlainListener(TcpListener);

impl PlainListener {
    pub(crate) fn new(tcp: TcpListener) -> Self {
        Self(tcp)
    }
}

impl Listener for PlainListener {
    type Io = TcpStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (mut socket, peer) = Listener::accept(&mut self.0).await;
        send_at_once(&mut socket);
        (socket, peer)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// Accepts connections and finishes their handshakes side by side: a slow client delays nobody.
pub(crate) struct TlsListener {
    tcp: TcpListener,
    acceptor: TlsAcceptor,
    handshakes: JoinSet<Option<(TlsStream<TcpStream>, SocketAddr)>>,
}

impl TlsListener {
    pub(crate) fn new(tcp: TcpListener, config: Arc<ServerConfig>) -> Self {
        Self {
            tcp,
            acceptor: TlsAcceptor::from(config),
            handshakes: JoinSet::new(),
        }
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            tokio::select! {
                accepted = self.tcp.accept(), if self.handshakes.len() < MAX_HANDSHAKES => {
                    match accepted {
                        Ok((mut socket, peer)) => {
                            send_at_once(&mut socket);
                            let handshake = self.acceptor.accept(socket);
                            self.handshakes.spawn(async move {
                                let done = tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await;
                                match done {
                                    Ok(Ok(stream)) => Some((stream, peer)),
                                    Ok(Err(error)) => {
                                        tracing::debug!(%peer, %error, "TLS handshake failed");
                                        None
                                    }
                                    Err(_) => {
                                        tracing::debug!(%peer, "TLS handshake took too long");
                                        None
                                    }
                                }
                            });
                        }
                        Err(error) => {
                            tracing::error!(%error, "the system refuses to accept connections");
                            tokio::time::sleep(ACCEPT_PAUSE).await;
                        }
                    }
                }
                Some(done) = self.handshakes.join_next() => {
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}
