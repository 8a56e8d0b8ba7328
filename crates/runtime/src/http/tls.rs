//! The certificate that the HTTP port shows.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quintet_sandbox::proto::Fingerprint;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsFiles;
use crate::home::write_atomically;

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
