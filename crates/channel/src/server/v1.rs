//! One connection of the original protocol.

use axum::extract::ws::{Message, WebSocket};
use futures_util::StreamExt;
use serde::Deserialize;
use tokio::time::{Instant, interval_at};
use tokio_util::sync::CancellationToken;

use super::socket::{Closed, Incoming, Reader, close, send};
use super::{
    ApprovalAnswer, Backend, Credential, Enlisted, Hub, NewDevice, Peer, UserMessage, V1Session,
    random,
};
use crate::proto::device::{
    AccessToken, Device, DeviceId, Expired, Seconds, TokenHash, clean_name,
};
use crate::proto::keys::{KeyPair, PublicKey, Secret32};
use crate::proto::v1::{
    self, Body, ClientMessage, Code, E2eKey, Envelope, Outer, PairingResult, ServerEvent,
};
use crate::proto::v2::message::OpError;
use crate::proto::{base64url, pairing};

/// The device that the connection has shown to be.
struct Known<'a, B: Backend> {
    device: Device,
    token: TokenHash,
    key: Option<E2eKey>,
    session: B::V1,
    enlisted: Enlisted<'a, B>,
}

/// What is answered to a message, and whether the connection goes on.
enum Reply {
    Nothing,
    Frame(String),
    /// The real UI stays locked unless the connection is closed.
    Last(String, String),
}

pub(super) async fn serve<B: Backend>(
    hub: &Hub<B>,
    mut socket: WebSocket,
    peer: Peer,
    stop: CancellationToken,
) {
    let mut known = None;
    let reason = run(hub, &mut socket, &peer, &stop, &mut known).await;
    let device = known.map(|known| known.device);
    hub.backend.closed(&peer, device.as_ref(), &reason);
    close(socket, &reason).await;
}

async fn run<'a, B: Backend>(
    hub: &'a Hub<B>,
    socket: &mut WebSocket,
    peer: &Peer,
    stop: &CancellationToken,
    known: &mut Option<Known<'a, B>>,
) -> Closed {
    let (mut sink, stream) = socket.split();
    let limits = &hub.limits;
    let mut reader = Reader::new(stream, v1::MAX_MESSAGE, limits.silent);
    let every = limits.silent / 3;
    let mut ping = interval_at(Instant::now() + every, every);
    loop {
        let revoked = known.as_ref().map(|known| known.enlisted.revoked.clone());
        let expires_at = known.as_ref().map(|known| known.device.expires_at);
        let (frame, last) = tokio::select! {
            () = stop.cancelled() => return Closed::Stopping,
            () = cancelled(revoked) => {
                let frame = Code::Unauthorized.encode(&default_outer(), None, "the device was revoked");
                (frame, Some(Closed::Revoked))
            }
            () = lapse(hub, expires_at) => match renewed(hub, known).await {
                Ok(()) => continue,
                Err(error) => {
                    let frame = v1::encode_error(&default_outer(), None, &error.code, &error.message);
                    (frame, Some(Closed::Expired))
                }
            },
            frames = next_event(known.as_mut()) => {
                for frame in frames {
                    let message = Message::Text(frame.into());
                    if let Err(closed) = send(&mut sink, message, limits.not_reading).await {
                        return closed;
                    }
                }
                if let Some(known) = known {
                    known.session.sent().await;
                }
                continue;
            }
            _ = ping.tick() => {
                if let Err(closed) = send(&mut sink, Message::Ping(bytes::Bytes::new()), limits.not_reading).await {
                    return closed;
                }
                continue;
            }
            incoming = reader.next() => {
                let text = match incoming {
                    Ok(Incoming::Text(text)) => text,
                    // Bytes are no envelope: the empty text says so in the one place that decides it.
                    Ok(Incoming::Binary(_)) => String::new(),
                    Err(closed) => return closed,
                };
                match answer(hub, peer, known, &text).await {
                    Reply::Nothing => continue,
                    Reply::Frame(frame) => (frame, None),
                    Reply::Last(frame, why) => (frame, Some(Closed::Refused(why))),
                }
            }
        };
        let message = Message::Text(frame.into());
        if let Err(closed) = send(&mut sink, message, limits.not_reading).await {
            return closed;
        }
        if let Some(closed) = last {
            return closed;
        }
    }
}

fn default_outer() -> Outer {
    Outer {
        session_id: v1::DEFAULT_SESSION.to_owned(),
        agent_id: None,
    }
}

async fn cancelled(token: Option<CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}

async fn lapse<B: Backend>(hub: &Hub<B>, expires_at: Option<Seconds>) {
    match expires_at {
        Some(expires_at) => hub.lapse(expires_at).await,
        None => std::future::pending().await,
    }
}

/// Looks whether another connection of the device has put its end off.
async fn renewed<B: Backend>(
    hub: &Hub<B>,
    known: &mut Option<Known<'_, B>>,
) -> Result<(), OpError> {
    let Some(known) = known else {
        return Ok(());
    };
    match hub.backend.device_by_token(known.token).await? {
        Some((device, _)) if hub.backend.now() < device.expires_at => known.device = device,
        _ => return Err(refused(Code::Unauthorized, &Expired.to_string())),
    }
    Ok(())
}

async fn next_event<B: Backend>(known: Option<&mut Known<'_, B>>) -> Vec<String> {
    let Some(known) = known else {
        return std::future::pending().await;
    };
    let (outer, event) = known.session.next().await;
    encoded(&event, &outer, known.key.as_ref())
}

fn encoded(event: &ServerEvent, outer: &Outer, key: Option<&E2eKey>) -> Vec<String> {
    v1::encode(event, outer, key, random)
}

async fn answer<'a, B: Backend>(
    hub: &'a Hub<B>,
    peer: &Peer,
    known: &mut Option<Known<'a, B>>,
    text: &str,
) -> Reply {
    let envelope = match v1::parse(text) {
        Ok(envelope) => envelope,
        Err(invalid) => {
            let outer = Outer {
                session_id: invalid.session_id,
                agent_id: None,
            };
            let request = invalid.request_id.as_deref();
            return Reply::Frame(invalid.code.encode(&outer, request, &invalid.message));
        }
    };
    let Envelope {
        session_id,
        agent_id,
        request_id,
        message,
    } = envelope;
    let outer = Outer {
        session_id: session_id.clone(),
        agent_id: None,
    };
    let request = request_id.as_deref();
    match message {
        ClientMessage::PairingRequest {
            pairing_code,
            client_pub,
        } => match pair(hub, peer, &pairing_code, client_pub.as_deref()).await {
            Ok(paired) => {
                *known = None;
                let result = PairingResult {
                    device: paired.device,
                    token: &paired.token,
                    expires_in: hub.backend.settings().token_ttl,
                    e2e_required: hub.backend.settings().e2e_required,
                    agent_pub: paired.agent_pub,
                };
                Reply::Frame(v1::encode_pairing(&outer, request, &result))
            }
            Err(error) => Reply::Last(
                v1::encode_error(&outer, request, &error.code, &error.message),
                error.message,
            ),
        },
        ClientMessage::UserMessage { access_token, body } => {
            if let Err(error) = identify(hub, known, &access_token).await {
                return unauthorized(&outer, request, error);
            }
            let said = match known {
                Some(known) => match body {
                    Ok(body) => say(hub, known, session_id, agent_id, body).await,
                    Err(bad) => Err(refused(bad.code, bad.message)),
                },
                None => Ok(()),
            };
            replied(&outer, request, said)
        }
        ClientMessage::ApprovalResponse {
            access_token,
            approved,
            reason,
        } => {
            if let Err(error) = identify(hub, known, &access_token).await {
                return unauthorized(&outer, request, error);
            }
            let answered = match (known, approved) {
                (Some(known), Ok(approved)) => {
                    let answer = ApprovalAnswer {
                        request_id: request_id.clone().unwrap_or_default(),
                        approved,
                        reason,
                    };
                    known.session.answer(answer).await
                }
                (_, Err(bad)) => Err(refused(bad.code, bad.message)),
                (None, _) => Ok(()),
            };
            replied(&outer, request, answered)
        }
    }
}

fn replied(outer: &Outer, request: Option<&str>, outcome: Result<(), OpError>) -> Reply {
    match outcome {
        Ok(()) => Reply::Nothing,
        Err(error) => Reply::Frame(v1::encode_error(
            outer,
            request,
            &error.code,
            &error.message,
        )),
    }
}

fn unauthorized(outer: &Outer, request: Option<&str>, error: OpError) -> Reply {
    let frame = v1::encode_error(outer, request, &error.code, &error.message);
    if error.code == Code::Unauthorized.as_str() {
        Reply::Last(frame, error.message)
    } else {
        Reply::Frame(frame)
    }
}

struct PairedV1 {
    device: DeviceId,
    token: AccessToken,
    agent_pub: Option<PublicKey>,
}

fn refused(code: Code, message: &str) -> OpError {
    OpError::new(code.as_str(), message)
}

async fn pair<B: Backend>(
    hub: &Hub<B>,
    peer: &Peer,
    code: &str,
    client_pub: Option<&str>,
) -> Result<PairedV1, OpError> {
    let settings = hub.backend.settings();
    let now = hub.backend.now();
    let wrong = |error: pairing::PairError| OpError::new(error.code(), error.to_string());
    // The code first, so that every guess counts; it is used up when everything else is right too.
    hub.tried(peer, |pairing| pairing.check_code(code, peer.source, now))
        .map_err(wrong)?;
    let keys = match client_pub.map(str::trim).filter(|text| !text.is_empty()) {
        Some(text) => {
            let invalid = || {
                refused(
                    Code::PairingInvalidClientPub,
                    "client_pub is no X25519 key in base64url",
                )
            };
            let theirs = PublicKey(base64url::decode_array(text).ok_or_else(invalid)?);
            let ours = KeyPair::new(&Secret32::new(random()));
            let key = E2eKey::derive(&ours, &theirs).map_err(|_| invalid())?;
            Some((ours.public(), key))
        }
        None if settings.e2e_required => {
            return Err(refused(
                Code::PairingE2eRequired,
                "this daemon talks to clients that encrypt; send client_pub",
            ));
        }
        None => None,
    };
    hub.tried(peer, |pairing| pairing.try_code(code, peer.source, now))
        .map_err(wrong)?;
    let token = AccessToken::new(random());
    let device = Device {
        id: DeviceId(random()),
        name: clean_name(&peer.program),
        last_seen: now,
        expires_at: now.saturating_add(settings.token_ttl),
    };
    let (agent_pub, key) = keys.unzip();
    let id = device.id;
    let credential = Credential::V1 {
        token: token.hash(),
        key,
    };
    hub.backend
        .add_device(NewDevice { device, credential })
        .await?;
    Ok(PairedV1 {
        device: id,
        token,
        agent_pub,
    })
}

/// Finds out whose token it is, and makes the connection that device's.
async fn identify<'a, B: Backend>(
    hub: &'a Hub<B>,
    known: &mut Option<Known<'a, B>>,
    token: &str,
) -> Result<(), OpError> {
    let unknown = || refused(Code::Unauthorized, "the token is not valid; pair again");
    let token = TokenHash::of(token);
    let found = hub
        .backend
        .device_by_token(token)
        .await?
        .ok_or_else(unknown)?;
    let (mut device, key) = found;
    let settings = hub.backend.settings();
    match device.used(hub.backend.now(), settings.token_ttl) {
        Ok(Some(seen)) => hub.backend.seen(device.id, seen).await,
        Ok(None) => {}
        Err(expired) => return Err(refused(Code::Unauthorized, &expired.to_string())),
    }
    match known {
        Some(known) if known.device.id == device.id => known.device = device,
        _ => {
            let enlisted = hub.enlist(device.id);
            // Asked again now that a revocation would reach the connection: one before that is seen here.
            if hub.backend.device_by_token(token).await?.is_none() {
                return Err(unknown());
            }
            let session = hub.backend.v1_session(&device).await?;
            *known = Some(Known {
                device,
                token,
                key,
                session,
                enlisted,
            });
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct Inner {
    content: String,
}

async fn say<B: Backend>(
    hub: &Hub<B>,
    known: &mut Known<'_, B>,
    session_id: String,
    agent_id: Option<String>,
    body: Body,
) -> Result<(), OpError> {
    let (content, nonce) = match body {
        Body::Plain { .. } if hub.backend.settings().e2e_required => {
            return Err(refused(
                Code::E2eRequired,
                "this daemon takes encrypted messages only",
            ));
        }
        Body::Plain { content } => (content, None),
        Body::Sealed(sealed) => {
            let key = known.key.as_ref().ok_or_else(|| {
                refused(
                    Code::E2eNotInitialized,
                    "the device sent no key when it paired",
                )
            })?;
            let plaintext = key
                .open(&sealed)
                .map_err(|error| refused(Code::E2eDecryptFailed, &error.to_string()))?;
            let inner: Inner = serde_json::from_slice(&plaintext).map_err(|_| {
                refused(Code::InvalidE2ePayload, "what was encrypted has no content")
            })?;
            (inner.content, Some(sealed.nonce))
        }
    };
    known
        .session
        .say(UserMessage {
            session_id,
            agent_id,
            content,
            nonce,
        })
        .await
}
