//! The plane itself: its server, its dispatch, its client.

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use quintet_control::wire::{
    AgentEventMsg, CompactMsg, CompactSummary, Config, CreateCronMsg, CronInfo, CronList,
    DeleteCronMsg, GetConfigMsg, GetStatsMsg, KillMsg, ListCronsMsg, PingMsg, Pong, ReloadMsg,
    ReplyToAskMsg, SendMsg, SendResponse, SessionList, SessionsMsg, SetConfigMsg, Stats,
    StreamEvent, StreamMsg, SubscribeEventsMsg,
};
use quintet_control::{
    Answer, Client, Limits, Peer, Server, ServerError, Service, UnixClient, serve_unix,
};
use tokio::net::UnixListener;
use tokio_util::sync::CancellationToken;

use super::{Events, Protocol};

pub(super) struct Ours;

struct Answers;

macro_rules! refuse {
    ($($method:ident($request:ty) -> $reply:ty;)*) => {
        $(async fn $method(&self, _: $request) -> Answer<$reply> {
            Err(unmeasured())
        })*
    };
}

fn unmeasured() -> ServerError {
    ServerError::bad_request("a request that is not measured")
}

impl Server for Answers {
    async fn ping(&self, _: PingMsg) -> Answer<Pong> {
        Ok(Pong::default())
    }

    fn stream(&self, request: StreamMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        Events::of(&request).map(Ok)
    }

    fn subscribe_events(
        &self,
        _: SubscribeEventsMsg,
    ) -> impl Stream<Item = Answer<AgentEventMsg>> + Send {
        stream::iter([Err(unmeasured())])
    }

    refuse! {
        send(SendMsg) -> SendResponse;
        sessions(SessionsMsg) -> SessionList;
        kill(KillMsg) -> Pong;
        get_config(GetConfigMsg) -> Config;
        set_config(SetConfigMsg) -> Pong;
        reload(ReloadMsg) -> Pong;
        reply_to_ask(ReplyToAskMsg) -> Pong;
        get_stats(GetStatsMsg) -> Stats;
        create_cron(CreateCronMsg) -> CronInfo;
        delete_cron(DeleteCronMsg) -> Pong;
        list_crons(ListCronsMsg) -> CronList;
        compact(CompactMsg) -> CompactSummary;
    }
}

impl Service for Answers {
    type Server = Self;

    fn connected(&self, _: &Peer) -> Arc<Self> {
        Arc::new(Self)
    }
}

impl Protocol for Ours {
    type Client = UnixClient;

    async fn serve(listener: UnixListener) -> anyhow::Result<()> {
        let shutdown = CancellationToken::new();
        serve_unix(listener, Arc::new(Answers), Limits::default(), shutdown).await;
        Ok(())
    }

    async fn connect(socket: &Path) -> anyhow::Result<UnixClient> {
        Ok(UnixClient::connect(socket).await?)
    }

    async fn ping(client: &mut UnixClient) -> anyhow::Result<()> {
        Client::ping(client).await?;
        Ok(())
    }

    async fn stream(client: &mut UnixClient, request: StreamMsg) -> anyhow::Result<u64> {
        let mut events = pin!(Client::stream(client, request));
        let mut seen = 0;
        while let Some(event) = events.next().await {
            event?;
            seen += 1;
        }
        Ok(seen)
    }
}
