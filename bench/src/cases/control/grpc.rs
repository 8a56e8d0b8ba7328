//! gRPC over the same Unix socket, with tonic's default settings.

use std::path::Path;

use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::BoxStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

use quintet_control::wire::{PingMsg, Pong, StreamEvent, StreamMsg};

use super::{Protocol, events};
use service::control_client::ControlClient;
use service::control_server::{Control, ControlServer};

#[expect(unreachable_pub, clippy::allow_attributes, reason = "generated")]
mod service {
    tonic::include_proto!("quintet.bench");
}

pub(super) struct Grpc;

struct Answers;

#[tonic::async_trait]
impl Control for Answers {
    async fn ping(&self, _: Request<PingMsg>) -> Result<Response<Pong>, Status> {
        Ok(Response::new(Pong {}))
    }

    type StreamStream = BoxStream<StreamEvent>;

    async fn stream(&self, _: Request<StreamMsg>) -> Result<Response<Self::StreamStream>, Status> {
        let events = tokio_stream::iter(events().map(Ok));
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
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display()))?;
        Ok(ControlClient::new(endpoint.connect().await?))
    }

    async fn ping(client: &mut Self::Client) -> anyhow::Result<()> {
        client.ping(PingMsg {}).await?;
        Ok(())
    }

    async fn stream(client: &mut Self::Client) -> anyhow::Result<u64> {
        let mut events = client.stream(StreamMsg::default()).await?.into_inner();
        let mut seen = 0;
        while events.message().await?.is_some() {
            seen += 1;
        }
        Ok(seen)
    }
}
