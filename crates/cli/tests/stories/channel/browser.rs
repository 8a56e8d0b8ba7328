//! What the real UI of the original protocol does, without a browser.

use futures_util::{SinkExt, StreamExt};
use quintet_channel::proto::keys::{KeyPair, Secret32};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::v1::{Paired, envelope, pairing_request};
use crate::harness::{Daemon, Machine, within};

/// One connection of a v1 client.
pub(crate) struct Browser {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    pub(crate) paired: Option<Paired>,
    nonces: u64,
}

pub(super) fn ws_url(daemon: &Daemon) -> String {
    format!("{}/ws", daemon.http().replacen("http", "ws", 1))
}

impl Browser {
    pub(super) async fn opens(daemon: &Daemon) -> Self {
        Self::opens_at(&ws_url(daemon)).await
    }

    pub(super) async fn opens_at(url: &str) -> Self {
        let request = url.into_client_request().unwrap();
        let connecting = tokio_tungstenite::connect_async(request);
        let (socket, _) = within("the socket opens", connecting).await.unwrap();
        Self {
            socket,
            paired: None,
            nonces: 0,
        }
    }

    /// Opens with what an earlier page kept.
    pub(super) async fn returns(daemon: &Daemon, paired: &Paired) -> Self {
        let mut browser = Self::opens(daemon).await;
        browser.paired = Some(paired.clone());
        browser
    }

    /// Pairs, as the UI does: with a key of its own.
    pub(super) async fn pairs(machine: &Machine, daemon: &Daemon) -> Self {
        Self::pairs_at(machine, &ws_url(daemon)).await
    }

    pub(crate) async fn pairs_at(machine: &Machine, url: &str) -> Self {
        let mut browser = Self::opens_at(url).await;
        let keys = KeyPair::new(&Secret32::new(secret()));
        browser
            .sends(&pairing_request(&machine.pairing_code().await, &keys))
            .await;
        let result = browser.hears("pairing_result").await;
        let paired = Paired::by(&result, &keys);
        assert!(paired.is_some(), "{result}");
        browser.paired = paired;
        browser
    }

    pub(crate) async fn sends(&mut self, envelope: &Value) {
        self.sends_text(envelope.to_string()).await;
    }

    pub(super) async fn sends_text(&mut self, text: String) {
        self.sends_message(Message::Text(text.into())).await;
    }

    pub(super) async fn sends_message(&mut self, message: Message) {
        within("the message is sent", self.socket.send(message))
            .await
            .unwrap();
    }

    /// An encrypted message, not yet sent.
    pub(crate) fn sealed(&mut self, text: &str, agent: Option<&str>) -> Value {
        let paired = self.paired.as_ref().unwrap();
        self.nonces += 1;
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&self.nonces.to_le_bytes());
        nonce[8..].copy_from_slice(&secret()[..4]);
        paired.sealed(nonce, text, agent)
    }

    pub(super) async fn says(&mut self, text: &str) {
        let message = self.sealed(text, Some("test"));
        self.sends(&message).await;
    }

    /// Says something in the session of this name.
    pub(super) async fn says_in(&mut self, session: &str, text: &str) {
        let mut message = self.sealed(text, Some("test"));
        message["session_id"] = session.into();
        self.sends(&message).await;
    }

    /// Leaves, as far as the daemon agrees to it, with what a page keeps.
    pub(super) async fn closes(mut self) -> Paired {
        self.sends_message(Message::Close(None)).await;
        while let Some(Ok(_)) = within("the connection closes", self.socket.next()).await {}
        self.paired.unwrap()
    }

    pub(super) async fn answers(&mut self, request_id: &str, approved: bool, reason: &str) {
        let token = &self.paired.as_ref().unwrap().token;
        let mut answer = envelope(
            "approval_response",
            json!({ "access_token": token, "approved": approved, "reason": reason }),
        );
        answer["request_id"] = request_id.into();
        self.sends(&answer).await;
    }

    /// The next event.
    pub(super) async fn hears_next(&mut self) -> Value {
        loop {
            let message = within("an event comes", self.socket.next()).await;
            match message.unwrap().unwrap() {
                Message::Text(text) => {
                    assert!(text.len() <= 64 * 1024);
                    let event: Value = serde_json::from_str(&text).unwrap();
                    assert_eq!(event["v"], 1);
                    return event;
                }
                Message::Ping(_) | Message::Pong(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next event, which has to be of this type.
    #[track_caller]
    pub(super) fn hears(&mut self, kind: &str) -> impl Future<Output = Value> {
        let kind = kind.to_owned();
        async move {
            let event = self.hears_next().await;
            assert_eq!(event["type"], *kind, "{event}");
            event
        }
    }

    /// An `error` with this code.
    pub(super) async fn is_refused(&mut self, code: &str) -> Value {
        let event = self.hears("error").await;
        assert_eq!(event["payload"]["code"], *code, "{event}");
        event
    }

    /// The chat text of an event, decrypted.
    pub(super) fn text(&self, event: &Value) -> String {
        self.paired.as_ref().unwrap().text(event).unwrap()
    }

    /// Streams to the end of a turn: the joined chunks and the final text.
    pub(crate) async fn hears_answer(&mut self) -> (String, String) {
        let mut streamed = String::new();
        loop {
            let event = self.hears_next().await;
            match event["type"].as_str().unwrap() {
                "assistant_chunk" => streamed.push_str(&self.text(&event)),
                "assistant_final" => return (streamed, self.text(&event)),
                _ => panic!("{event}"),
            }
        }
    }

    /// How the daemon closes the connection.
    pub(super) async fn is_closed(&mut self) -> u16 {
        loop {
            match within("the connection closes", self.socket.next()).await {
                Some(Ok(Message::Close(Some(frame)))) => return frame.code.into(),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Random enough to be new in each test.
pub(super) fn secret() -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut random = std::fs::File::open("/dev/urandom").unwrap();
    std::io::Read::read_exact(&mut random, &mut bytes).unwrap();
    bytes
}

/// Asks for an upgrade by hand; returns the status line's code.
pub(super) async fn upgrade_status(daemon: &Daemon, path: &str, headers: &[(&str, &str)]) -> u16 {
    let address = daemon.http().split("//").nth(1).unwrap().to_owned();
    let port = address.rsplit(':').next().unwrap();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}"))
        .await
        .unwrap();
    let mut request = format!("GET {path} HTTP/1.1\r\n");
    let fixed = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    if !headers.iter().any(|(name, _)| *name == "Host") {
        request.push_str(&format!("Host: 127.0.0.1:{port}\r\n"));
    }
    for (name, value) in fixed.iter().chain(headers) {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    within("an answer comes", stream.read_exact(&mut answer))
        .await
        .unwrap();
    let answer = std::str::from_utf8(&answer).unwrap();
    answer.rsplit(' ').next().unwrap().parse().unwrap()
}

impl Browser {
    /// The next WebSocket message, whatever it is.
    pub(super) async fn next_message(&mut self) -> Message {
        self.socket.next().await.unwrap().unwrap()
    }
}
