//! gRPC over the same Unix socket.
//!
//! Tonic has its default settings but for larger windows: with the default ones its client takes
//! many small events that wait to be read for an attack and closes the connection.

use std::path::Path;

use futures_util::StreamExt;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::BoxStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use quintet_control::wire::{PingMsg, Pong, StreamEvent, StreamMsg};

use super::{Events, Protocol};
use service::control_client::ControlClient;
use service::control_server::{Control, ControlServer};

#[expect(unreachable_pub, clippy::allow_attributes, reason = "generated")]
mod service {
    tonic::include_proto!("quintet.bench");
}

const WINDOW: u32 = 4 << 20;

pub(super) struct Grpc;

struct Answers;

#[tonic::async_trait]
impl Control for Answers {
    async fn ping(&self, _: Request<PingMsg>) -> Result<Response<Pong>, Status> {
        Ok(Response::new(Pong::default()))
    }

    type StreamStream = BoxStream<StreamEvent>;

    async fn stream(
        &self,
        request: Request<StreamMsg>,
    ) -> Result<Response<Self::StreamStream>, Status> {
        let events = Events::of(request.get_ref()).map(Ok);
        Ok(Response::new(Box::pin(events)))
    }
}

impl Protocol for Grpc {
    type Client = ControlClient<Channel>;

    async fn serve(listener: UnixListener) -> anyhow::Result<()> {
        let incoming = UnixListenerStream::new(listener);
        let server = Server::builder().add_service(ControlServer::new(Answers));
        Ok(server.serve_with_incoming(incoming).await?)
    }

    async fn connect(socket: &Path) -> anyhow::Result<Self::Client> {
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?
            .initial_connection_window_size(WINDOW)
            .initial_stream_window_size(WINDOW);
        Ok(ControlClient::new(endpoint.connect().await?))
    }

    async fn ping(client: &mut Self::Client) -> anyhow::Result<()> {
        client.ping(PingMsg {}).await?;
        Ok(())
    }

    async fn stream(client: &mut Self::Client, request: StreamMsg) -> anyhow::Result<u64> {
        let mut events = client.stream(request).await?.into_inner();
        let mut seen = 0;
        while events.message().await?.is_some() {
            seen += 1;
        }
        Ok(seen)
    }
}
