//! TLS in front of the HTTP port.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::TlsFiles;

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

/// Reads certificate and key.
pub(crate) fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let unusable = |path: &Path, reason: String| TlsError::File {
        path: path.to_owned(),
        reason,
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(&files.cert, error.to_string()))?;
    if chain.is_empty() {
        return Err(unusable(&files.cert, "holds no certificate".into()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| unusable(&files.key, error.to_string()))?;
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
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
                        Ok((socket, peer)) => {
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
