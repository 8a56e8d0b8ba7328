//! The server over real sockets, with a backend that does nothing but answer.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::routing::any;
use futures_util::{SinkExt, StreamExt};
use quintet_channel::client::{Client, ClientError, Identity, ServerMessage};
use quintet_channel::proto::device::{Device, DeviceId, Seconds, Seen, TokenHash};
use quintet_channel::proto::keys::{KeyPair, PublicKey, Secret32};
use quintet_channel::proto::v1::{E2eKey, Outer, ServerEvent};
use quintet_channel::proto::v2::SUBPROTOCOL;
use quintet_channel::proto::v2::message::OpError;
use quintet_channel::server::{
    ApprovalAnswer, Backend, Closed, Credential, Hub, Limits, NewDevice, Peer, Request, Settings,
    UserMessage, V1Session,
};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(20);

struct Answering {
    started: Instant,
    token_ttl: Seconds,
    keys: KeyPair,
    devices: Mutex<HashMap<[u8; 32], Device>>,
    /// What each look for a token finds; nothing when they are used up.
    by_token: Mutex<VecDeque<Device>>,
    locked: mpsc::UnboundedSender<IpAddr>,
    ended: mpsc::UnboundedSender<Closed>,
}

struct Nothing;

impl V1Session for Nothing {
    async fn say(&mut self, _: UserMessage) -> Result<(), OpError> {
        Ok(())
    }
    async fn answer(&mut self, _: ApprovalAnswer) -> Result<(), OpError> {
        Ok(())
    }
    async fn next(&mut self) -> (Outer, ServerEvent) {
        std::future::pending().await
    }
    async fn sent(&mut self) {}
}

impl Backend for Answering {
    type V1 = Nothing;

    fn now(&self) -> Seconds {
        1_000_000 + self.started.elapsed().as_secs()
    }
    fn settings(&self) -> Settings {
        Settings {
            e2e_required: true,
            token_ttl: self.token_ttl,
            code_ttl: 1000,
        }
    }
    fn keys(&self) -> &KeyPair {
        &self.keys
    }
    async fn device_by_token(
        &self,
        _: TokenHash,
    ) -> Result<Option<(Device, Option<E2eKey>)>, OpError> {
        let found = self.by_token.lock().unwrap().pop_front();
        Ok(found.map(|device| (device, None)))
    }
    async fn device_by_key(&self, key: PublicKey) -> Result<Option<Device>, OpError> {
        Ok(self.devices.lock().unwrap().get(&key.0).cloned())
    }
    async fn add_device(&self, new: NewDevice) -> Result<(), OpError> {
        if let Credential::V2 { key, .. } = new.credential {
            self.devices.lock().unwrap().insert(key.0, new.device);
        }
        Ok(())
    }
    async fn seen(&self, id: DeviceId, seen: Seen) {
        let mut devices = self.devices.lock().unwrap();
        if let Some(device) = devices.values_mut().find(|device| device.id == id) {
            device.expires_at = seen.expires_at;
        }
    }
    async fn v1_session(&self, _: &Device) -> Result<Nothing, OpError> {
        Ok(Nothing)
    }
    async fn request(&self, _: Arc<Device>, request: Request) -> Result<Value, OpError> {
        match request.op.as_str() {
            "echo" => Ok(request.args),
            "flood" => loop {
                let mut items = request.items();
                items.push(|out| {
                    out.extend_from_slice(&json!("x".repeat(100_000)).to_string().into_bytes());
                });
                if request.send_items(items).await.is_err() {
                    return Ok(json!({}));
                }
            },
            "long" => Ok(json!("x".repeat(2 << 20))),
            "wait" => std::future::pending().await,
            "stream" => {
                let mut stream = request.link.open_stream("bytes")?;
                let id = stream.id();
                request.link.spawn(async move {
                    let sender = stream.sender();
                    while let Some(bytes) = stream.receive().await {
                        if sender.send(&bytes).await.is_err() {
                            break;
                        }
                    }
                });
                Ok(json!({ "stream": id }))
            }
            _ => Err(OpError::new("unknown_op", "no")),
        }
    }
    fn pairing_locked(&self, peer: &Peer) {
        let _ = self.locked.send(peer.source);
    }
    fn closed(&self, _: &Peer, _: Option<&Device>, reason: &Closed) {
        let _ = self.ended.send(reason.clone());
    }
}

struct Bed {
    url: String,
    hub: Arc<Hub<Answering>>,
    locked: mpsc::UnboundedReceiver<IpAddr>,
    ended: mpsc::UnboundedReceiver<Closed>,
    _server: JoinSet<()>,
}

impl Bed {
    async fn new(limits: Limits) -> Self {
        Self::with_ttl(limits, 1000).await
    }

    async fn with_ttl(limits: Limits, token_ttl: Seconds) -> Self {
        let (sender, ended) = mpsc::unbounded_channel();
        let (locks, locked) = mpsc::unbounded_channel();
        let backend = Answering {
            started: Instant::now(),
            token_ttl,
            keys: KeyPair::new(&Secret32::new([7; 32])),
            devices: Mutex::default(),
            by_token: Mutex::default(),
            locked: locks,
            ended: sender,
        };
        let hub = Arc::new(Hub::new(backend, limits));
        let serving = hub.clone();
        let app = Router::new().route(
            "/ws",
            any(move |upgrade: WebSocketUpgrade| {
                let hub = serving.clone();
                async move {
                    let permit = hub.admit();
                    upgrade
                        .protocols([SUBPROTOCOL])
                        .on_upgrade(move |socket| async move {
                            let _permit = permit;
                            let peer = Peer {
                                source: IpAddr::V4(Ipv4Addr::LOCALHOST),
                                program: "test".into(),
                            };
                            let stop = CancellationToken::new();
                            match socket.protocol() {
                                Some(_) => hub.serve_v2(socket, peer, stop).await,
                                None => hub.serve_v1(socket, peer, stop).await,
                            }
                        })
                }
            }),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/ws", listener.local_addr().unwrap());
        let mut server = JoinSet::new();
        server.spawn(async move {
            axum::serve(listener, app).await.unwrap();
        });
        Self {
            url,
            hub,
            locked,
            ended,
            _server: server,
        }
    }

    async fn paired(&self) -> (Client, Identity) {
        let code = self.hub.open_code().unwrap().code;
        Client::pair(&self.url, &code, "test").await.unwrap()
    }

    /// Sends one event of the original protocol: the code that it is refused with, and the close code.
    async fn refuses(&self, kind: &str, payload: Value) -> (String, u16) {
        let (mut socket, _) = tokio_tungstenite::connect_async(self.url.as_str())
            .await
            .unwrap();
        let event = json!({ "v": 1, "type": kind, "session_id": "default", "payload": payload });
        socket.send(event.to_string().into()).await.unwrap();
        let mut next = async || {
            let message = timeout(DEADLINE, socket.next()).await.unwrap();
            message.unwrap().unwrap()
        };
        let told: Value = serde_json::from_str(next().await.to_text().unwrap()).unwrap();
        let code = told["payload"]["code"].as_str().unwrap().to_owned();
        (code, close_code(next().await))
    }

    async fn why_ended(&mut self) -> Closed {
        timeout(DEADLINE, self.ended.recv()).await.unwrap().unwrap()
    }
}

fn close_code(message: tokio_tungstenite::tungstenite::Message) -> u16 {
    let tokio_tungstenite::tungstenite::Message::Close(Some(frame)) = message else {
        panic!("{message:?}")
    };
    frame.code.into()
}

#[tokio::test]
async fn a_client_that_never_reads_is_cut_off() {
    let limits = Limits {
        not_reading: Duration::from_millis(500),
        ..Limits::default()
    };
    let mut bed = Bed::new(limits).await;
    let (mut client, _) = bed.paired().await;
    client.ask("flood", json!({})).await.unwrap();
    assert_eq!(bed.why_ended().await, Closed::NotReading);
    let place_is_free = async {
        while bed.hub.connections() > 0 {
            tokio::task::yield_now().await;
        }
    };
    timeout(DEADLINE, place_is_free).await.unwrap();
    drop(client);
}

/// The original protocol answers every message: whoever asks and never reads fills the socket.
#[tokio::test]
async fn a_client_of_the_original_protocol_that_never_reads_is_cut_off() {
    let limits = Limits {
        not_reading: Duration::from_millis(500),
        ..Limits::default()
    };
    let mut bed = Bed::new(limits).await;
    let (mut socket, _) = tokio_tungstenite::connect_async(bed.url.as_str())
        .await
        .unwrap();
    let asking = async {
        loop {
            let text = tokio_tungstenite::tungstenite::Message::Text("garbage".into());
            if socket.send(text).await.is_err() {
                return;
            }
        }
    };
    let ended = async {
        tokio::select! {
            () = asking => bed.ended.recv().await,
            ended = bed.ended.recv() => ended,
        }
    };
    let ended = timeout(DEADLINE, ended).await.unwrap();
    assert_eq!(ended, Some(Closed::NotReading));
}

#[tokio::test]
async fn a_client_that_closes_is_answered() {
    use tokio_tungstenite::tungstenite::Message;
    use tokio_tungstenite::tungstenite::client::IntoClientRequest;
    let mut bed = Bed::new(Limits::default()).await;
    for subprotocol in [None, Some(SUBPROTOCOL)] {
        let mut request = bed.url.as_str().into_client_request().unwrap();
        if let Some(subprotocol) = subprotocol {
            let value = subprotocol.parse().unwrap();
            request
                .headers_mut()
                .insert("Sec-WebSocket-Protocol", value);
        }
        let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
        socket.send(Message::Close(None)).await.unwrap();
        let answer = timeout(DEADLINE, socket.next()).await.unwrap();
        assert!(matches!(answer, Some(Ok(Message::Close(_)))), "{answer:?}");
        assert_eq!(bed.why_ended().await, Closed::Gone);
    }
}

#[tokio::test]
async fn a_silent_client_is_cut_off_and_one_that_answers_pings_is_not() {
    let limits = Limits {
        silent: Duration::from_millis(600),
        ..Limits::default()
    };
    let mut bed = Bed::new(limits).await;
    let (mut silent, _) = bed.paired().await;
    silent.request("echo", json!(1)).await.unwrap();
    // Pongs are only sent by reading, which this client does not do.
    assert_eq!(bed.why_ended().await, Closed::Silent);
    let (mut reading, _) = bed.paired().await;
    let id = reading.ask("wait", json!({})).await.unwrap();
    let waited = timeout(Duration::from_millis(1500), reading.next()).await;
    assert!(waited.is_err(), "{waited:?}");
    reading.send_json(&json!({ "cancel": id })).await.unwrap();
    let ServerMessage::Json(answer) = reading.next().await.unwrap() else {
        panic!("no JSON")
    };
    assert_eq!(answer["error"]["code"], "cancelled");
}

#[tokio::test]
async fn a_handshake_has_an_end() {
    let limits = Limits {
        handshake: Duration::from_millis(300),
        ..Limits::default()
    };
    let mut bed = Bed::new(limits).await;
    let request = tokio_tungstenite::tungstenite::client::IntoClientRequest::into_client_request(
        bed.url.as_str(),
    );
    let mut request = request.unwrap();
    request
        .headers_mut()
        .insert("sec-websocket-protocol", SUBPROTOCOL.parse().unwrap());
    let (mut socket, _) = tokio_tungstenite::connect_async(request).await.unwrap();
    assert_eq!(bed.why_ended().await, Closed::Unfinished);
    let closed = timeout(DEADLINE, socket.next()).await.unwrap();
    assert_eq!(close_code(closed.unwrap().unwrap()), 1008);
}

#[tokio::test]
async fn answers_requests_and_streams_have_limits() {
    let bed = Bed::new(Limits::default()).await;
    let (mut client, _) = bed.paired().await;
    let code = |outcome: Result<Value, ClientError>| match outcome {
        Err(ClientError::Op(error)) => error.code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(client.request("long", json!({})).await), "over_limit");
    for _ in 0..64 {
        client.ask("wait", json!({})).await.unwrap();
    }
    assert_eq!(code(client.request("echo", json!({})).await), "over_limit");
    for id in 2..=65 {
        client.send_json(&json!({ "cancel": id })).await.unwrap();
    }
    for _ in 0..32 {
        client.request("stream", json!({})).await.unwrap();
    }
    assert_eq!(
        code(client.request("stream", json!({})).await),
        "over_limit"
    );
}

#[tokio::test]
async fn a_stream_waits_for_credit() {
    let bed = Bed::new(Limits::default()).await;
    let (mut client, _) = bed.paired().await;
    let stream = client.request("stream", json!({})).await.unwrap()["stream"]
        .as_u64()
        .unwrap();
    let stream = u32::try_from(stream).unwrap();
    // 256 KiB come back without credit, the rest does not.
    for _ in 0..10 {
        client.send_bytes(stream, &[7; 32 * 1024]).await.unwrap();
    }
    let mut received = 0;
    while received < 256 * 1024 {
        if let ServerMessage::Bytes { bytes, .. } = client.next().await.unwrap() {
            received += bytes.len();
        }
    }
    client.request("echo", json!("between")).await.unwrap();
    assert_eq!(received, 256 * 1024);
    let credit = json!({ "credit": { "stream": stream, "bytes": 65536 } });
    client.send_json(&credit).await.unwrap();
    while received < 320 * 1024 {
        let message = timeout(DEADLINE, client.next()).await.unwrap().unwrap();
        if let ServerMessage::Bytes { bytes, .. } = message {
            received += bytes.len();
        }
    }
}

#[tokio::test]
async fn no_more_connections_than_there_are_places() {
    let limits = Limits {
        connections: 2,
        ..Limits::default()
    };
    let bed = Bed::new(limits).await;
    let places: Vec<_> = (0..3).map(|_| bed.hub.admit()).collect();
    assert!(places[0].is_some() && places[1].is_some() && places[2].is_none());
    assert_eq!(bed.hub.connections(), 2);
    drop(places);
    assert_eq!(bed.hub.connections(), 0);
}

#[tokio::test]
async fn a_revoked_device_ends_on_every_connection() {
    let mut bed = Bed::new(Limits::default()).await;
    let (mut first, identity) = bed.paired().await;
    let mut second = Client::resume(&bed.url, &identity).await.unwrap();
    for client in [&mut first, &mut second] {
        client.request("echo", json!(1)).await.unwrap();
    }
    bed.hub.revoke(identity.device);
    for client in [&mut first, &mut second] {
        let told = timeout(DEADLINE, client.next()).await.unwrap();
        let ServerMessage::Json(told) = told.unwrap() else {
            panic!("no JSON")
        };
        assert_eq!(told["error"]["code"], "unauthorized");
        let closed = client.next().await;
        assert!(matches!(closed, Err(ClientError::Closed(Some((1000, _))))));
    }
    assert_eq!(bed.why_ended().await, Closed::Revoked);
}

/// Nobody who only listens goes on hearing of things after the pairing's end.
#[tokio::test]
async fn a_pairing_ends_on_a_connection_that_only_listens() {
    let mut bed = Bed::with_ttl(Limits::default(), 2).await;
    let (mut listening, identity) = bed.paired().await;
    listening.ask("wait", json!({})).await.unwrap();
    let told = timeout(DEADLINE, listening.next()).await.unwrap().unwrap();
    let ServerMessage::Json(told) = told else {
        panic!("no JSON")
    };
    assert_eq!(told["error"]["code"], "unauthorized");
    let closed = listening.next().await;
    assert!(matches!(closed, Err(ClientError::Closed(Some((1000, _))))));
    assert_eq!(bed.why_ended().await, Closed::Expired);
    let mut late = Client::resume(&bed.url, &identity).await.unwrap();
    let ServerMessage::Json(told) = late.next().await.unwrap() else {
        panic!("no JSON")
    };
    assert_eq!(told["error"]["code"], "unauthorized");
}

#[tokio::test]
async fn a_connection_that_only_listens_lives_on_while_its_device_is_used() {
    let bed = Bed::with_ttl(Limits::default(), 2).await;
    let (mut listening, identity) = bed.paired().await;
    let paired = Instant::now();
    let id = listening.ask("wait", json!({})).await.unwrap();
    let mut used = Client::resume(&bed.url, &identity).await.unwrap();
    while paired.elapsed() < Duration::from_secs(5) {
        used.request("echo", json!(1)).await.unwrap();
    }
    listening.send_json(&json!({ "cancel": id })).await.unwrap();
    let ServerMessage::Json(answer) = listening.next().await.unwrap() else {
        panic!("no JSON")
    };
    assert_eq!(answer["error"]["code"], "cancelled");
}

/// A guess has to cost a try, whatever else is wrong with it.
#[tokio::test]
async fn a_code_is_compared_before_the_key_is_looked_at() {
    let mut bed = Bed::new(Limits::default()).await;
    let code = bed.hub.open_code().unwrap().code;
    let wrong = if code == "000000" { "000001" } else { "000000" };
    let refused = |code: &str| (code.to_owned(), 1000);
    for (payload, expected) in [
        (json!({}), "pairing_missing_code"),
        (json!({ "pairing_code": "" }), "pairing_missing_code"),
        (json!({ "pairing_code": code }), "pairing_e2e_required"),
        (
            json!({ "pairing_code": code, "client_pub": "short" }),
            "pairing_invalid_client_pub",
        ),
    ] {
        let outcome = bed.refuses("pairing_request", payload.clone()).await;
        assert_eq!(outcome, refused(expected), "{payload}");
    }
    for _ in 0..5 {
        assert!(bed.locked.try_recv().is_err());
        let outcome = bed.refuses("pairing_request", json!({ "pairing_code": wrong }));
        assert_eq!(outcome.await, refused("pairing_invalid_code"));
    }
    for _ in 0..3 {
        let outcome = bed.refuses("pairing_request", json!({ "pairing_code": code }));
        assert_eq!(outcome.await, refused("pairing_locked_out"));
    }
    // Who locked it is told once, not with every try.
    let locked_by = bed.locked.try_recv();
    assert_eq!(locked_by, Ok(IpAddr::V4(Ipv4Addr::LOCALHOST)));
    assert!(bed.locked.try_recv().is_err());
}

#[tokio::test]
async fn ten_thousand_tries_at_once_are_all_answered_and_five_are_heard() {
    let mut bed = Bed::new(Limits::default()).await;
    let right: u32 = bed.hub.open_code().unwrap().code.parse().unwrap();
    let tries = futures_util::stream::iter(1..=10_000)
        .map(|n| {
            let wrong = format!("{:06}", (right + n) % 1_000_000);
            bed.refuses("pairing_request", json!({ "pairing_code": wrong }))
        })
        .buffer_unordered(32);
    let mut told = HashMap::new();
    tries
        .for_each(|(code, closed)| {
            assert_eq!(closed, 1000);
            *told.entry(code).or_insert(0) += 1;
            std::future::ready(())
        })
        .await;
    let expected = [("pairing_invalid_code", 5), ("pairing_locked_out", 9995)];
    assert_eq!(
        told,
        expected
            .map(|(code, count)| (code.to_owned(), count))
            .into()
    );
    let outcome = bed.refuses(
        "pairing_request",
        json!({ "pairing_code": format!("{right:06}") }),
    );
    assert_eq!(outcome.await.0, "pairing_locked_out");
    assert!(bed.locked.try_recv().is_ok());
    assert!(bed.locked.try_recv().is_err());
}

/// What is wrong with a message is told to whoever may send one.
#[tokio::test]
async fn a_token_is_looked_at_before_what_it_comes_with() {
    let bed = Bed::new(Limits::default()).await;
    for (kind, payload) in [
        ("user_message", json!({})),
        (
            "user_message",
            json!({ "access_token": "bad", "e2e": { "alg": "none" } }),
        ),
        ("approval_response", json!({ "approved": "perhaps" })),
    ] {
        let outcome = bed.refuses(kind, payload).await;
        assert_eq!(outcome, ("unauthorized".to_owned(), 1000), "{kind}");
    }
}

/// A device that is revoked between its token's check and its place among the connections.
#[tokio::test]
async fn a_revocation_while_a_device_says_who_it_is_is_seen() {
    let bed = Bed::new(Limits::default()).await;
    let device = Device {
        id: DeviceId([1; 16]),
        name: "test".into(),
        last_seen: 1_000_000,
        expires_at: 2_000_000,
    };
    // Found once: the second look, after which a revocation would reach it, finds nothing.
    bed.hub.backend().by_token.lock().unwrap().push_back(device);
    let message = json!({ "access_token": "token", "content": "hello" });
    let outcome = bed.refuses("user_message", message).await;
    assert_eq!(outcome, ("unauthorized".to_owned(), 1000));
}
