//! The least that could work: a length, a protobuf message, one read and one write a message.

use std::path::Path;

use anyhow::{bail, ensure};
use bytes::{Buf, BufMut, BytesMut};
use futures_util::{FutureExt, StreamExt};
use prost::Message;
use quintet_control::wire::{
    ClientMessage, PingMsg, Pong, ServerMessage, StreamMsg, client_message, server_message,
    stream_event::Event,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use super::{Events, Protocol};

/// What is gathered before a write, as in the plane's own server.
const BATCH: usize = 64 * 1024;

pub(super) struct Bare;

pub(super) struct Frames {
    socket: UnixStream,
    input: BytesMut,
    output: BytesMut,
}

impl Frames {
    fn new(socket: UnixStream) -> Self {
        let (input, output) = (
            BytesMut::with_capacity(BATCH),
            BytesMut::with_capacity(BATCH),
        );
        Self {
            socket,
            input,
            output,
        }
    }

    /// The next message, or `None` at the end of the connection.
    async fn next<M: Message + Default>(&mut self) -> anyhow::Result<Option<M>> {
        loop {
            if let Some(header) = self.input.first_chunk::<4>() {
                let length = u32::from_be_bytes(*header) as usize;
                if self.input.len() >= 4 + length {
                    self.input.advance(4);
                    return Ok(Some(M::decode(self.input.split_to(length))?));
                }
            }
            self.input.reserve(BATCH);
            if self.socket.read_buf(&mut self.input).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn queue(&mut self, message: &impl Message) -> anyhow::Result<()> {
        self.output.put_u32(u32::try_from(message.encoded_len())?);
        Ok(message.encode(&mut self.output)?)
    }

    async fn flush(&mut self) -> anyhow::Result<()> {
        Ok(self.socket.write_all_buf(&mut self.output).await?)
    }

    async fn serve(mut self) -> anyhow::Result<()> {
        while let Some(request) = self.next::<ClientMessage>().await? {
            match request.msg {
                Some(client_message::Msg::Ping(_)) => {
                    self.queue(&reply(server_message::Msg::Pong(Pong::default())))?
                }
                Some(client_message::Msg::Stream(request)) => self.stream(&request).await?,
                _ => bail!("a request that is not measured"),
            }
            self.flush().await?;
        }
        Ok(())
    }

    /// Writes when a batch is full or nothing is ready, as the plane's own server.
    async fn stream(&mut self, request: &StreamMsg) -> anyhow::Result<()> {
        let mut events = Events::of(request);
        loop {
            let event = match events.next().now_or_never() {
                Some(event) => event,
                None => {
                    self.flush().await?;
                    events.next().await
                }
            };
            let Some(event) = event else {
                return Ok(());
            };
            self.queue(&reply(server_message::Msg::Stream(event)))?;
            if self.output.len() >= BATCH {
                self.flush().await?;
            }
        }
    }

    async fn ask(&mut self, request: client_message::Msg) -> anyhow::Result<()> {
        self.queue(&ClientMessage { msg: Some(request) })?;
        self.flush().await
    }
}

fn reply(msg: server_message::Msg) -> ServerMessage {
    ServerMessage { msg: Some(msg) }
}

impl Protocol for Bare {
    type Client = Frames;

    async fn serve(listener: UnixListener) -> anyhow::Result<()> {
        let mut connections = JoinSet::new();
        loop {
            let (socket, _) = listener.accept().await?;
            connections.spawn(Frames::new(socket).serve());
        }
    }

    async fn connect(socket: &Path) -> anyhow::Result<Frames> {
        Ok(Frames::new(UnixStream::connect(socket).await?))
    }

    async fn ping(client: &mut Frames) -> anyhow::Result<()> {
        client.ask(client_message::Msg::Ping(PingMsg {})).await?;
        let answer = client.next::<ServerMessage>().await?.and_then(|m| m.msg);
        ensure!(
            matches!(answer, Some(server_message::Msg::Pong(_))),
            "no pong: {answer:?}"
        );
        Ok(())
    }

    async fn stream(client: &mut Frames, request: StreamMsg) -> anyhow::Result<u64> {
        client.ask(client_message::Msg::Stream(request)).await?;
        let mut seen = 0;
        loop {
            let answer = client.next::<ServerMessage>().await?.and_then(|m| m.msg);
            let Some(server_message::Msg::Stream(event)) = answer else {
                bail!("no event: {answer:?}");
            };
            seen += 1;
            if matches!(event.event, Some(Event::End(_))) {
                return Ok(seen);
            }
        }
    }
}
