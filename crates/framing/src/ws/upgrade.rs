//! The server's side of a handshake, for a [`WsSocket`].

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Error as WsError;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::machine::TryParse as _;
use tokio_tungstenite::tungstenite::handshake::server::{
    Request, create_response_with_body, write_response,
};
use tokio_tungstenite::tungstenite::http::{self, HeaderValue, StatusCode, header};

use super::{MAX_HANDSHAKE, Refusal};
use crate::socket::{Role, WsSocket};

/// The answer that takes `request` as a WebSocket's, with the subprotocol to echo; a refusal says
/// what is wrong with the request.
pub fn switching<T, B>(
    request: &http::Request<T>,
    protocol: Option<&str>,
    body: B,
) -> Result<http::Response<B>, Refusal> {
    let mut response = create_response_with_body(request, || body).map_err(|error| Refusal {
        status: StatusCode::BAD_REQUEST.as_u16(),
        reason: error.to_string(),
    })?;
    if let Some(value) = protocol.and_then(|name| HeaderValue::from_str(name).ok()) {
        let headers = response.headers_mut();
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, value);
    }
    Ok(response)
}

/// Answers one handshake on `stream`.
///
/// `admit` sees the request and returns the subprotocol to echo, if any, or a refusal. Messages over
/// `limit` bytes are refused later.
pub async fn accept_socket<S>(
    mut stream: S,
    limit: usize,
    admit: impl FnOnce(&Request) -> Result<Option<String>, Refusal>,
) -> Result<WsSocket<S>, Box<WsError>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (request, arrived) = read_request(&mut stream).await?;
    let answer = admit(&request)
        .and_then(|protocol| switching(&request, protocol.as_deref(), String::new()))
        .unwrap_or_else(refused);
    let mut bytes = Vec::new();
    write_response(&mut bytes, &answer)?;
    bytes.extend_from_slice(answer.body().as_bytes());
    stream.write_all(&bytes).await.map_err(WsError::from)?;
    stream.flush().await.map_err(WsError::from)?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Err(Box::new(WsError::Http(Box::new(
            answer.map(|body| Some(body.into_bytes())),
        ))));
    }
    Ok(WsSocket::new(stream, Role::Server, limit, arrived))
}

async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
) -> Result<(Request, BytesMut), WsError> {
    let mut arrived = BytesMut::new();
    while arrived.len() <= MAX_HANDSHAKE {
        if stream.read_buf(&mut arrived).await? == 0 {
            return Err(WsError::Protocol(ProtocolError::HandshakeIncomplete));
        }
        if let Some((len, request)) = Request::try_parse(&arrived)? {
            arrived.advance(len);
            return Ok((request, arrived));
        }
    }
    Err(WsError::AttackAttempt)
}

fn refused(refusal: Refusal) -> http::Response<String> {
    let mut answer = http::Response::new(refusal.reason);
    *answer.status_mut() = StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::BAD_REQUEST);
    let len = HeaderValue::from(answer.body().len());
    answer.headers_mut().insert(header::CONTENT_LENGTH, len);
    answer
}
