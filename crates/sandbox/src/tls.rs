//! Certificates without an authority: made by the daemon, pinned by the token.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use subtle::ConstantTimeEq as _;

use crate::proto::Fingerprint;

/// A certificate and its key, as PEM.
#[derive(Clone)]
pub struct SelfSigned {
    /// The certificate.
    pub certificate_pem: String,
    /// Its private key. Store it readable by nobody else.
    pub key_pem: String,
}

impl std::fmt::Debug for SelfSigned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SelfSigned")
            .field("certificate_pem", &self.certificate_pem)
            .field("key_pem", &"***")
            .finish()
    }
}

/// Why a certificate can't be made or used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// Making one failed.
    #[error("a certificate can't be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The PEM text holds none.
    #[error("no usable certificate and key: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    /// TLS does not take it.
    #[error("the certificate can't be used: {0}")]
    Tls(#[from] rustls::Error),
}

/// Makes a certificate for `names`, host names or addresses.
pub fn self_signed(names: Vec<String>) -> Result<SelfSigned, CertificateError> {
    let made = rcgen::generate_simple_self_signed(names)?;
    Ok(SelfSigned {
        certificate_pem: made.cert.pem(),
        key_pem: made.signing_key.serialize_pem(),
    })
}

/// The fingerprint of the first certificate in PEM text.
pub fn fingerprint_of_pem(certificate_pem: &str) -> Result<Fingerprint, CertificateError> {
    let der = CertificateDer::from_pem_slice(certificate_pem.as_bytes())?;
    Ok(Fingerprint::of_der(&der))
}

/// A server's side with a certificate chain and key in PEM.
pub fn server(
    certificate_pem: &str,
    key_pem: &str,
) -> Result<Arc<rustls::ServerConfig>, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(certificate_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())?;
    let config = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// A client's side that takes one certificate and no other, whatever name it is for.
pub fn pinned_client(fingerprint: Fingerprint) -> Result<Arc<rustls::ClientConfig>, rustls::Error> {
    let provider = provider();
    let verifier = Pinned {
        fingerprint,
        provider: provider.clone(),
    };
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Why somebody's certificate was refused, where that is what went wrong.
pub(crate) fn refused_certificate<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a rustls::CertificateError> {
    let mut next = Some(error);
    while let Some(error) = next {
        let found = match error.downcast_ref::<std::io::Error>() {
            // Its own cause skips what it holds.
            Some(error) => error.get_ref().and_then(|held| held.downcast_ref()),
            None => error.downcast_ref(),
        };
        if let Some(rustls::Error::InvalidCertificate(why)) = found {
            return Some(why);
        }
        next = error.source();
    }
    None
}

/// Random bytes for a token's secret.
pub fn random_secret() -> Result<[u8; 32], rustls::Error> {
    let mut secret = [0; 32];
    provider()
        .secure_random
        .fill(&mut secret)
        .map_err(|_| rustls::Error::FailedToGetRandomBytes)?;
    Ok(secret)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Knows the certificate itself, so that neither names, nor dates, nor authorities matter. The
/// handshake's signature is checked as always: it proves that the server has the key.
#[derive(Debug)]
struct Pinned {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let shown = Fingerprint::of_der(end_entity);
        if bool::from(shown.0.ct_eq(&self.fingerprint.0)) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(
                rustls::CertificateError::ApplicationVerificationFailure,
            ))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
