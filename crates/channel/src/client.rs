//! The device's side of v2, for programs and tests; the browser's is web/src/lib/channel.

use futures_util::{SinkExt, StreamExt};
use quintet_framing::ws::{self, DialError, DialledWs, WsDial, WsLimits};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use crate::proto::device::DeviceId;
use crate::proto::keys::{KeyPair, PublicKey, Secret32};
use crate::proto::pairing;
use crate::proto::v2::message::{BYTES, JSON, OpError};
use crate::proto::v2::noise::{Initiator, prologue};
use crate::proto::v2::pair::DevicePairing;
use crate::proto::v2::record::{RecordError, Transport};
use crate::proto::v2::{HandshakeError, MAX_FRAME, Refused, SUBPROTOCOL, frame, message};

/// What a device keeps of its pairing.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Its own keys.
    pub keys: KeyPair,
    /// The daemon's.
    pub daemon: PublicKey,
    /// Its number.
    pub device: DeviceId,
    /// Shown on both screens.
    pub check_words: [&'static str; 4],
}

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It could not be made.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The daemon did not finish the handshake.
    #[error("refused: {1}")]
    Refused(Refused, String),
    /// What came is not of the daemon.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// A record is not.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// It ended, with this code and reason where there was one.
    #[error("closed: {0:?}")]
    Closed(Option<(u16, String)>),
    /// The daemon answered with an error.
    #[error("{}: {}", .0.code, .0.message)]
    Op(OpError),
}

/// What the daemon sends.
#[derive(Debug, Clone, PartialEq)]
pub enum ServerMessage {
    /// An object of the protocol.
    Json(Value),
    /// A piece of a stream.
    Bytes {
        /// Its number.
        stream: u32,
        /// The piece.
        bytes: Vec<u8>,
    },
}

/// A connection whose handshake is done.
pub struct Client {
    socket: DialledWs,
    transport: Transport,
    next_id: u64,
}

impl Client {
    /// Pairs with a code; returns the connection and what to keep.
    pub async fn pair(url: &str, code: &str, name: &str) -> Result<(Self, Identity), ClientError> {
        let mut socket = dial(url).await?;
        let keys = KeyPair::new(&Secret32::new(random()));
        let password = pairing::verifier(code);
        let (pairing, start) = DevicePairing::start(&password, &keys, random(), random());
        put(&mut socket, start).await?;
        let reply = take_shaking(&mut socket).await?;
        let (proving, prove) = pairing.prove(&reply, name)?;
        put(&mut socket, prove).await?;
        let paired = proving.finish(&take_shaking(&mut socket).await?)?;
        let identity = Identity {
            keys,
            daemon: paired.peer,
            device: paired.device,
            check_words: paired.check_words,
        };
        let client = Self::shake(socket, &identity, Some(&paired.pairing)).await?;
        Ok((client, identity))
    }

    /// Comes back with the keys of a pairing.
    pub async fn resume(url: &str, identity: &Identity) -> Result<Self, ClientError> {
        let socket = dial(url).await?;
        Self::shake(socket, identity, None).await
    }

    async fn shake(
        mut socket: DialledWs,
        identity: &Identity,
        pairing: Option<&[u8; 32]>,
    ) -> Result<Self, ClientError> {
        let (initiator, message) = Initiator::start(
            &prologue(pairing),
            &identity.keys,
            &identity.daemon,
            &Secret32::new(random()),
            b"",
        )?;
        let mut resume = vec![frame::RESUME];
        resume.extend_from_slice(&message);
        put(&mut socket, resume).await?;
        let resumed = take_shaking(&mut socket).await?;
        let Some((&frame::RESUMED, reply)) = resumed.split_first() else {
            return Err(HandshakeError::Malformed.into());
        };
        let (_, transport) = initiator.finish(reply)?;
        Ok(Self {
            socket,
            transport,
            next_id: 1,
        })
    }

    /// Sends a request; returns its number.
    pub async fn ask(&mut self, op: &str, args: Value) -> Result<u64, ClientError> {
        let id = self.next_id;
        self.next_id += 1;
        self.send_json(&json!({ "id": id, "op": op, "args": args }))
            .await?;
        Ok(id)
    }

    /// Sends a request and waits for its answer; what else comes is dropped.
    pub async fn request(&mut self, op: &str, args: Value) -> Result<Value, ClientError> {
        let id = self.ask(op, args).await?;
        loop {
            let ServerMessage::Json(mut message) = self.next().await? else {
                continue;
            };
            if message["id"] != id {
                continue;
            }
            if let Some(ok) = message.get_mut("ok") {
                return Ok(ok.take());
            }
            if let Some(error) = message.get_mut("error") {
                let error = serde_json::from_value(error.take());
                let unreadable = || OpError::new("internal", "an error that can't be read");
                return Err(ClientError::Op(error.unwrap_or_else(|_| unreadable())));
            }
        }
    }

    /// Sends an object of the protocol.
    pub async fn send_json(&mut self, value: &Value) -> Result<(), ClientError> {
        self.send(message::json(value)).await
    }

    /// Sends into a stream.
    pub async fn send_bytes(&mut self, stream: u32, bytes: &[u8]) -> Result<(), ClientError> {
        self.send(message::bytes(stream, bytes)).await
    }

    async fn send(&mut self, mut plaintext: Vec<u8>) -> Result<(), ClientError> {
        self.transport.sending.seal(&mut plaintext)?;
        put(&mut self.socket, plaintext).await
    }

    /// Sends bytes as they are, for tests of what must not open.
    pub async fn send_raw(&mut self, frame: Vec<u8>) -> Result<(), ClientError> {
        put(&mut self.socket, frame).await
    }

    /// Seals a plaintext without sending it, for the same tests.
    pub fn seal(&mut self, mut plaintext: Vec<u8>) -> Result<Vec<u8>, ClientError> {
        self.transport.sending.seal(&mut plaintext)?;
        Ok(plaintext)
    }

    /// The next thing that the daemon says.
    pub async fn next(&mut self) -> Result<ServerMessage, ClientError> {
        let mut record = take(&mut self.socket).await?;
        self.transport.receiving.open(&mut record)?;
        let malformed = || ClientError::Handshake(HandshakeError::Malformed);
        match record.split_first() {
            Some((&JSON, json)) => Ok(ServerMessage::Json(
                serde_json::from_slice(json).map_err(|_| malformed())?,
            )),
            Some((&BYTES, rest)) => {
                let (stream, bytes) = rest.split_first_chunk::<4>().ok_or_else(malformed)?;
                Ok(ServerMessage::Bytes {
                    stream: u32::from_be_bytes(*stream),
                    bytes: bytes.to_vec(),
                })
            }
            _ => Err(malformed()),
        }
    }

    /// Leaves.
    pub async fn close(mut self) {
        let _ = self.socket.close(None).await;
    }
}

async fn dial(url: &str) -> Result<DialledWs, ClientError> {
    let dial = WsDial {
        url,
        protocols: &[SUBPROTOCOL],
        token: None,
        tls: None,
    };
    let limits = WsLimits {
        max_message: MAX_FRAME,
        read_buffer: 64 * 1024,
    };
    let (socket, chosen) = ws::dial(dial, limits).await?;
    if chosen.as_deref() != Some(SUBPROTOCOL) {
        return Err(HandshakeError::Malformed.into());
    }
    Ok(socket)
}

async fn put(socket: &mut DialledWs, frame: Vec<u8>) -> Result<(), ClientError> {
    let sent = socket.send(Message::Binary(frame.into())).await;
    sent.map_err(|_| ClientError::Closed(None))
}

/// The next frame of the handshake; a refusal is an error.
async fn take_shaking(socket: &mut DialledWs) -> Result<Vec<u8>, ClientError> {
    let frame = take(socket).await?;
    match Refused::parse(&frame) {
        Some((refused, reason)) => Err(ClientError::Refused(refused, reason)),
        None => Ok(frame),
    }
}

async fn take(socket: &mut DialledWs) -> Result<Vec<u8>, ClientError> {
    loop {
        match socket.next().await {
            Some(Ok(Message::Binary(bytes))) => return Ok(bytes.into()),
            Some(Ok(Message::Close(frame))) => {
                let told = frame.map(|frame| (frame.code.into(), frame.reason.to_string()));
                return Err(ClientError::Closed(told));
            }
            Some(Ok(_)) => {}
            Some(Err(_)) | None => return Err(ClientError::Closed(None)),
        }
    }
}

fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the kernel's generator answers once it is seeded");
    bytes
}
