//! `/ws` for browsers: who may upgrade, and to which version.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use quintet_channel::proto::device::TokenHash;
use quintet_channel::proto::v2::SUBPROTOCOL;
use quintet_channel::server::{Backend, Peer, SOCKET_BUFFER, V1_SOCKET_LIMIT, V2_SOCKET_LIMIT};

use crate::daemon::Runtime;
use crate::http::is_forwarded;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// Upgrades a browser's request, or says why not.
pub(crate) async fn upgrade(
    runtime: &Arc<Runtime>,
    peer: SocketAddr,
    token: Option<String>,
    headers: &HeaderMap,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Response {
    let refused = |status: StatusCode, text: &'static str| (status, text).into_response();
    let version = match offered(headers).as_slice() {
        [] => Version::V1,
        offered if offered.contains(&SUBPROTOCOL) => Version::V2,
        _ => {
            return refused(
                StatusCode::BAD_REQUEST,
                "none of the offered subprotocols is known; offer quintet.channel.v2, or none\n",
            );
        }
    };
    let origins = &runtime.config.current().http.allowed_origins;
    if !origin_allowed(headers, origins) {
        return refused(
            StatusCode::FORBIDDEN,
            "this page's origin is not allowed; add it to http.allowed_origins\n",
        );
    }
    let channel = &runtime.channel;
    match token {
        Some(token) if !is_valid(runtime, &token).await => {
            return refused(StatusCode::UNAUTHORIZED, "the token is not valid\n");
        }
        // v2 needs none: its first frames prove more than a token could, or nothing happens.
        None if version == Version::V1
            && (!channel.address.ip().is_loopback() || is_forwarded(headers)) =>
        {
            return refused(
                StatusCode::UNAUTHORIZED,
                "from another machine the address needs ?token=; `quintet pair` shows it\n",
            );
        }
        _ => {}
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade,
        Err(rejection) => return rejection.into_response(),
    };
    let Some(permit) = channel.hub.admit() else {
        return refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "too many browsers are connected\n",
        );
    };
    let peer = Peer {
        source: peer.ip().to_canonical(),
        program: program(headers),
    };
    let (hub, stop) = (channel.hub.clone(), channel.stop.clone());
    let tasks = channel.tasks.clone();
    let (limit, protocols) = match version {
        Version::V1 => (V1_SOCKET_LIMIT, None),
        Version::V2 => (V2_SOCKET_LIMIT, Some(SUBPROTOCOL)),
    };
    upgrade
        .protocols(protocols)
        .read_buffer_size(SOCKET_BUFFER)
        .write_buffer_size(SOCKET_BUFFER)
        .max_message_size(limit)
        .max_frame_size(limit)
        .on_upgrade(move |socket| {
            tasks.track_future(async move {
                let _permit = permit;
                match version {
                    Version::V1 => hub.serve_v1(socket, peer, stop).await,
                    Version::V2 => hub.serve_v2(socket, peer, stop).await,
                }
            })
        })
}

fn offered(headers: &HeaderMap) -> Vec<&str> {
    headers
        .get_all(header::SEC_WEBSOCKET_PROTOCOL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|name| !name.is_empty())
        .collect()
}

/// The channel's own token, or one of a paired device.
async fn is_valid(runtime: &Runtime, token: &str) -> bool {
    if quintet_control::tokens_match(token, &runtime.channel.token) {
        return true;
    }
    let backend = runtime.channel.hub.backend();
    let found = backend.device_by_token(TokenHash::of(token)).await;
    matches!(found, Ok(Some((device, _))) if backend.now() < device.expires_at)
}

/// Whether a page may connect. A program that is no browser sends no origin.
///
/// A page of our own has the host that it asks for as its origin. That alone
/// would let in a page whose name an attacker points at this machine, so the
/// host has to be an address or `localhost`, which nobody else's page has; a
/// name has to be in the configuration.
fn origin_allowed(headers: &HeaderMap, allowed: &[String]) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let Ok(origin) = origin.to_str() else {
        return false;
    };
    if allowed
        .iter()
        .any(|allowed| allowed.trim_end_matches('/') == origin)
    {
        return true;
    }
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    let own = origin
        .strip_prefix("http://")
        .or_else(|| origin.strip_prefix("https://"));
    own.is_some() && own == host && own.is_some_and(is_address)
}

/// Whether a request names its host by an address or `localhost`, which no page of others has.
pub(crate) fn asks_for_address(headers: &HeaderMap) -> bool {
    let host = headers.get(header::HOST);
    host.and_then(|host| host.to_str().ok())
        .is_some_and(is_address)
}

fn is_address(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host
            .rsplit_once(':')
            .map_or(Some(host), |(name, _)| Some(name)),
    };
    name.is_some_and(|name| name == "localhost" || name.parse::<IpAddr>().is_ok())
}

/// A short name for a client that has none, from what its browser says.
fn program(headers: &HeaderMap) -> String {
    let agent = headers
        .get(header::USER_AGENT)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let found = ["Firefox", "Edg", "Chrome", "Safari"]
        .into_iter()
        .find(|name| agent.contains(name));
    found.unwrap_or("browser").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    header::HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect()
    }

    #[test]
    fn only_our_own_pages_and_configured_ones_may_connect() {
        let configured = ["https://ui.example".to_owned()];
        let allowed = |origin, host| {
            origin_allowed(&headers(&[("origin", origin), ("host", host)]), &configured)
        };
        assert!(origin_allowed(&headers(&[("host", "x")]), &[]));
        assert!(allowed("http://127.0.0.1:7505", "127.0.0.1:7505"));
        assert!(allowed("http://localhost:7505", "localhost:7505"));
        assert!(allowed("https://[::1]:7505", "[::1]:7505"));
        assert!(allowed("https://ui.example", "127.0.0.1:7505"));
        assert!(!allowed("http://evil.example", "127.0.0.1:7505"));
        assert!(!allowed("http://127.0.0.1:9999", "127.0.0.1:7505"));
        assert!(!allowed("null", "127.0.0.1:7505"));
        // A name that somebody points at this machine.
        assert!(!allowed("http://evil.example:7505", "evil.example:7505"));
    }

    #[test]
    fn offers_are_read_over_several_headers() {
        let offers = headers(&[("sec-websocket-protocol", "a, quintet.channel.v2")]);
        assert_eq!(offered(&offers), ["a", "quintet.channel.v2"]);
        assert!(offered(&HeaderMap::new()).is_empty());
    }
}
