//! Where a reply ends.

use futures_util::{Stream, StreamExt, stream};
use quintet_control::wire::*;
use quintet_control::{Answer, Client, ClientError, ErrorCode, Limits, Server, ServerError};

use crate::daemon::{Daemon, Raw, error_code, stream_of};

/// The kinds of a raw reply, up to what answers the ping that was sent right behind it.
async fn kinds_until_pong(
    raw: &mut Raw<tokio::net::UnixStream>,
    request: impl Into<ClientMessage>,
) -> Vec<String> {
    raw.send(request).await;
    raw.send(PingMsg {}).await;
    let mut kinds = Vec::new();
    loop {
        let message = raw.next().await;
        match &message.msg {
            Some(server_message::Msg::Pong(_)) => return kinds,
            Some(server_message::Msg::Stream(event)) => kinds.push(event.kind().to_owned()),
            Some(server_message::Msg::Error(error)) => kinds.push(format!("error {}", error.code)),
            _ => kinds.push(message.kind().to_owned()),
        }
    }
}

#[tokio::test]
async fn a_turn_ends_once_whatever_its_server_does() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    for (agent, kinds) in [
        ("echo", vec!["start", "chunk", "end"]),
        ("no end", vec!["start", "chunk", "error 500"]),
        ("after end", vec!["start", "end"]),
        ("fails", vec!["start", "error 429"]),
    ] {
        assert_eq!(
            kinds_until_pong(&mut raw, stream_of(agent, "x")).await,
            kinds
        );
    }
}

#[tokio::test]
async fn a_stream_of_the_extension_ends_with_done() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut raw = daemon.raw().await;
    let attach = AttachMsg::default();
    assert_eq!(
        kinds_until_pong(&mut raw, attach).await,
        ["end", "chunk", "end", "done"]
    );
    let events = EventsMsg::default();
    assert_eq!(
        kinds_until_pong(&mut raw, events).await,
        ["event", "event", "done"]
    );
}

#[tokio::test]
async fn a_failed_stream_is_an_error_and_the_connection_stays() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut client = daemon.client().await;
    let items: Vec<_> = client.stream(stream_of("fails", "x")).collect().await;
    assert_eq!(items.len(), 2);
    let error = items[1].as_ref().unwrap_err().refusal().unwrap();
    assert_eq!(error.code, ErrorCode::OverLimit);
    client.ping().await.unwrap();
}

#[tokio::test]
async fn a_connection_whose_stream_was_dropped_refuses_the_next_request() {
    let daemon = Daemon::on_unix(Limits::default());
    let mut client = daemon.client().await;
    let first = Box::pin(client.stream(stream_of("hang", "x"))).next().await;
    assert_eq!(first.unwrap().unwrap().kind(), "start");
    assert!(matches!(client.ping().await, Err(ClientError::Abandoned)));
}

/// A server that has nothing of the extension, and whose subscription runs dry.
struct Old;

impl Server for Old {
    async fn send(&self, _: SendMsg) -> Answer<SendResponse> {
        Err(ServerError::internal("unused"))
    }

    fn stream(&self, _: StreamMsg) -> impl Stream<Item = Answer<StreamEvent>> + Send {
        stream::empty()
    }

    async fn ping(&self, _: PingMsg) -> Answer<Pong> {
        Ok(Pong::default())
    }

    async fn sessions(&self, _: SessionsMsg) -> Answer<SessionList> {
        Ok(SessionList::default())
    }

    async fn kill(&self, _: KillMsg) -> Answer<Pong> {
        Ok(Pong::default())
    }

    async fn get_config(&self, _: GetConfigMsg) -> Answer<Config> {
        Ok(Config::default())
    }

    async fn set_config(&self, _: SetConfigMsg) -> Answer<Pong> {
        Ok(Pong::default())
    }

    async fn reload(&self, _: ReloadMsg) -> Answer<Pong> {
        Ok(Pong::default())
    }

    fn subscribe_events(
        &self,
        _: SubscribeEventsMsg,
    ) -> impl Stream<Item = Answer<AgentEventMsg>> + Send {
        stream::empty()
    }

    async fn reply_to_ask(&self, _: ReplyToAskMsg) -> Answer<Pong> {
        Ok(Pong::default())
    }

    async fn get_stats(&self, _: GetStatsMsg) -> Answer<Stats> {
        Ok(Stats::default())
    }

    async fn create_cron(&self, _: CreateCronMsg) -> Answer<CronInfo> {
        Ok(CronInfo::default())
    }

    async fn delete_cron(&self, _: DeleteCronMsg) -> Answer<Pong> {
        Ok(Pong::default())
    }

    async fn list_crons(&self, _: ListCronsMsg) -> Answer<CronList> {
        Ok(CronList::default())
    }

    async fn compact(&self, _: CompactMsg) -> Answer<CompactSummary> {
        Ok(CompactSummary::default())
    }
}

#[tokio::test]
async fn dispatch_always_answers_also_what_a_server_does_not_serve() {
    let unknown_extension = ClientMessage {
        msg: Some(client_message::Msg::Extension(ClientExtension::default())),
    };
    for (request, code) in [
        (ClientMessage::default(), 400),
        (unknown_extension, 400),
        (SteerMsg::default().into(), 400),
        (RetryMsg::default().into(), 400),
        (EventsMsg::default().into(), 400),
        (StreamMsg::default().into(), 500),
        (SubscribeEventsMsg::default().into(), 500),
    ] {
        let name = request.kind();
        let replies: Vec<_> = Old.dispatch(request).collect().await;
        assert_eq!(replies.len(), 1, "{name}");
        assert_eq!(error_code(&replies[0]), code, "{name}");
    }
    let hello: Vec<_> = Old.dispatch(ClientHello::default().into()).collect().await;
    assert_eq!(hello[0].kind(), "hello");
}
