//! The client's side of a handshake.

use std::io;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::{IntoClientRequest as _, uri_mode};
use tokio_tungstenite::tungstenite::error::{ProtocolError, SubProtocolError, TlsError, UrlError};
use tokio_tungstenite::tungstenite::handshake::client::{Request, Response, generate_request};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::handshake::machine::TryParse as _;
use tokio_tungstenite::tungstenite::http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode, header,
};
use tokio_tungstenite::tungstenite::{Error as WsError, stream::Mode};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async_with_config};

use super::{MAX_HANDSHAKE, WsLimits};
use crate::socket::{Role, WsSocket};

/// Where and how to dial.
pub struct WsDial<'a> {
    /// `ws://` or `wss://`.
    pub url: &'a str,
    /// Subprotocols to offer, the preferred one first.
    pub protocols: &'a [&'a str],
    /// Sent as `Authorization: Bearer`.
    pub token: Option<&'a str>,
    /// How to check the server's certificate; `None` means the machine's own roots.
    pub tls: Option<Arc<ClientConfig>>,
}

/// A dialled connection.
pub type DialledWs = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A dialled connection without buffers of its own.
pub type DialledSocket = WsSocket<MaybeTlsStream<TcpStream>>;

/// Why a dial failed.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The address, a protocol name or the token can't stand in a request.
    #[error("{url} can't be dialled: {reason}")]
    Invalid {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The server answered with something other than an upgrade.
    #[error("{url} refused the connection: HTTP {status}{}", fmt_reason(.reason))]
    Refused {
        /// The address.
        url: String,
        /// The status of its answer.
        status: u16,
        /// The body of its answer, where it is short text.
        reason: String,
    },
    /// Nobody answered, or TLS or the network failed.
    #[error("{url} can't be reached: {source}")]
    Unreachable {
        /// The address.
        url: String,
        /// What went wrong.
        source: Box<WsError>,
    },
}

fn fmt_reason(reason: &str) -> String {
    match reason.trim() {
        "" => String::new(),
        text => format!(" ({text})"),
    }
}

/// Dials and performs the handshake. Returns the subprotocol that the server chose.
pub async fn dial(
    dial: WsDial<'_>,
    limits: WsLimits,
) -> Result<(DialledWs, Option<String>), DialError> {
    let url = dial.url;
    let (request, stream) = connect(dial).await?;
    let (socket, response) = client_async_with_config(request, stream, Some(limits.config()))
        .await
        .map_err(|error| failed(url, error))?;
    Ok((socket, chosen(response.headers())))
}

/// As [`dial`], for a connection that refuses messages over `limit` bytes.
pub async fn dial_socket(
    dial: WsDial<'_>,
    limit: usize,
) -> Result<(DialledSocket, Option<String>), DialError> {
    let url = dial.url;
    let (request, mut stream) = connect(dial).await?;
    let (response, arrived) = shake_hands(&mut stream, request)
        .await
        .map_err(|error| failed(url, error))?;
    let socket = WsSocket::new(stream, Role::Client, limit, arrived);
    Ok((socket, chosen(response.headers())))
}

async fn connect(dial: WsDial<'_>) -> Result<(Request, MaybeTlsStream<TcpStream>), DialError> {
    let request = request(&dial)?;
    let stream = reach(&request, dial.tls)
        .await
        .map_err(|error| failed(dial.url, error))?;
    Ok((request, stream))
}

fn request(dial: &WsDial<'_>) -> Result<Request, DialError> {
    let invalid = |reason: String| DialError::Invalid {
        url: dial.url.to_owned(),
        reason,
    };
    let mut request = dial
        .url
        .into_client_request()
        .map_err(|error| invalid(error.to_string()))?;
    if !dial.protocols.is_empty() {
        let offered = HeaderValue::from_str(&dial.protocols.join(", "))
            .map_err(|error| invalid(format!("subprotocols: {error}")))?;
        request
            .headers_mut()
            .insert(header::SEC_WEBSOCKET_PROTOCOL, offered);
    }
    if let Some(token) = dial.token {
        let mut bearer = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|error| invalid(format!("token: {error}")))?;
        bearer.set_sensitive(true);
        request.headers_mut().insert(header::AUTHORIZATION, bearer);
    }
    Ok(request)
}

async fn reach(
    request: &Request,
    tls: Option<Arc<ClientConfig>>,
) -> Result<MaybeTlsStream<TcpStream>, WsError> {
    let uri = request.uri();
    let mode = uri_mode(uri)?;
    // An IPv6 address stands in brackets in a URL, and without them everywhere else.
    let host = uri.host().ok_or(WsError::Url(UrlError::NoHostName))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = uri.port_u16().unwrap_or(match mode {
        Mode::Plain => 80,
        Mode::Tls => 443,
    });
    let stream = TcpStream::connect((host, port)).await?;
    stream.set_nodelay(true)?;
    if let Mode::Plain = mode {
        return Ok(MaybeTlsStream::Plain(stream));
    }
    let config = match tls {
        Some(config) => config,
        None => machine_roots()?,
    };
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| WsError::Tls(TlsError::InvalidDnsName))?;
    let stream = tokio_rustls::TlsConnector::from(config)
        .connect(name, stream)
        .await?;
    Ok(MaybeTlsStream::Rustls(stream))
}

/// Trusts whom this machine trusts.
fn machine_roots() -> io::Result<Arc<ClientConfig>> {
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(loaded.certs);
    if added == 0 {
        let reason = format!("this machine trusts nobody: {:?}", loaded.errors);
        return Err(io::Error::new(io::ErrorKind::NotFound, reason));
    }
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Sends the request and reads the answer. Returns also what came behind it.
async fn shake_hands(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    request: Request,
) -> Result<(Response, BytesMut), WsError> {
    let offered: Vec<String> = values(request.headers(), &header::SEC_WEBSOCKET_PROTOCOL)
        .map(str::to_owned)
        .collect();
    let (request, key) = generate_request(request)?;
    stream.write_all(&request).await?;
    stream.flush().await?;
    let mut arrived = BytesMut::new();
    let mut response = loop {
        if stream.read_buf(&mut arrived).await? == 0 {
            return Err(WsError::Protocol(ProtocolError::HandshakeIncomplete));
        }
        if let Some((len, response)) = Response::try_parse(&arrived)? {
            arrived.advance(len);
            break response;
        }
        if arrived.len() > MAX_HANDSHAKE {
            return Err(WsError::AttackAttempt);
        }
    };
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        *response.body_mut() = Some(arrived.to_vec());
        return Err(WsError::Http(Box::new(response)));
    }
    let accept = derive_accept_key(key.as_bytes());
    agreed(response.headers(), &accept, &offered).map_err(WsError::Protocol)?;
    Ok((response, arrived))
}

/// Whether the server says what a server says that speaks this protocol (RFC 6455, 4.1).
fn agreed(headers: &HeaderMap, accept: &str, offered: &[String]) -> Result<(), ProtocolError> {
    let says = |name, word: &str| {
        let mut values = values(headers, &name);
        values.any(|value| value.eq_ignore_ascii_case(word))
    };
    let problem = if !says(header::UPGRADE, "websocket") {
        ProtocolError::MissingUpgradeWebSocketHeader
    } else if !says(header::CONNECTION, "upgrade") {
        ProtocolError::MissingConnectionUpgradeHeader
    } else if headers
        .get(header::SEC_WEBSOCKET_ACCEPT)
        .is_none_or(|it| it != accept)
    {
        ProtocolError::SecWebSocketAcceptKeyMismatch
    } else {
        let problem = match (chosen(headers), offered) {
            (None, []) => return Ok(()),
            (None, _) => SubProtocolError::NoSubProtocol,
            (Some(_), []) => SubProtocolError::ServerSentSubProtocolNoneRequested,
            (Some(name), offered) if offered.contains(&name) => return Ok(()),
            (Some(_), _) => SubProtocolError::InvalidSubProtocol,
        };
        ProtocolError::SecWebSocketSubProtocolError(problem)
    };
    Err(problem)
}

fn values<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(name).into_iter();
    let lines = lines.filter_map(|value| value.to_str().ok());
    lines.flat_map(|line| line.split(',')).map(str::trim)
}

fn chosen(headers: &HeaderMap) -> Option<String> {
    headers
        .get(header::SEC_WEBSOCKET_PROTOCOL)
        .and_then(|value| value.to_str().ok())
        .map(str::to_owned)
}

fn failed(url: &str, error: WsError) -> DialError {
    match error {
        WsError::Http(response) => DialError::Refused {
            url: url.to_owned(),
            status: response.status().as_u16(),
            reason: response
                .body()
                .as_deref()
                .filter(|body| body.len() <= 500)
                .and_then(|body| std::str::from_utf8(body).ok())
                .unwrap_or_default()
                .to_owned(),
        },
        source => DialError::Unreachable {
            url: url.to_owned(),
            source: Box::new(source),
        },
    }
}
