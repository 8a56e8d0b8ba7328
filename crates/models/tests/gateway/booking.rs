//! What is booked of answers that never came to their end.

use super::*;

#[tokio::test]
async fn a_chat_that_is_cut_before_its_count_is_booked() {
    let begun: Bytes =
        "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"half of it\"}}]}\n\n".into();
    let cut = Reply::Raw(vec![Step::Bytes(begun), Step::Cut]);
    let server = TestServer::start(vec![cut]).await;
    let bed = Bed::new(vec![provider("p", ProviderKind::OpenAi, &server)]).await;
    let question = "why? ".repeat(400);
    let mut asked = ask(true);
    asked["messages"] = json!([{"role": "user", "content": question}]);
    bed.chat(&asked).await.text().await.unwrap();
    let usage = bed.records()[0].usage;
    assert!((500..600).contains(&usage.input), "{usage:?}");
    assert_eq!(usage.output, 3);
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_the_call_and_is_booked() {
    let server = TestServer::start(vec![broken(vec![Step::Stall])]).await;
    let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
    let response = bed.messages(&ask(true)).await;
    let mut parts = response.bytes_stream();
    parts.next().await.unwrap().unwrap();
    drop(parts);
    tokio::time::timeout(Duration::from_secs(5), server.wait_for_gone(1))
        .await
        .expect("the provider is hung up on");
    let records = tokio::time::timeout(Duration::from_secs(5), bed.recorded(1))
        .await
        .expect("booked");
    assert_eq!(records[0].usage.input, 100);
}

#[tokio::test]
async fn a_caller_that_goes_away_before_the_answer_begins_is_booked_for_what_it_asked() {
    for (reply, stream) in [
        (Reply::Silence, false),
        (Reply::Silence, true),
        (Reply::Raw(vec![Step::Stall]), true),
        (
            Reply::Raw(vec![Step::Bytes(": wait\n\n".into()), Step::Stall]),
            true,
        ),
    ] {
        let shown = format!("{reply:?}, streamed: {stream}");
        // The attempt before it was refused and costs nothing.
        let server = TestServer::start(vec![Reply::error(500, "api_error", "oops"), reply]).await;
        let bed = Bed::new(vec![provider("p", ProviderKind::Anthropic, &server)]).await;
        let mut asked = ask(stream);
        asked["messages"] = json!([{"role": "user", "content": "why? ".repeat(400)}]);
        tokio::select! {
            answer = bed.messages(&asked) => panic!("{shown}: {answer:?}"),
            () = server.wait_for_received(2) => {}
        }
        let records = tokio::time::timeout(Duration::from_secs(5), bed.recorded(1))
            .await
            .unwrap_or_else(|_| panic!("not booked: {shown}"));
        let [record] = &records[..] else {
            panic!("{shown}: {records:?}");
        };
        assert!(
            (500..600).contains(&record.usage.input),
            "{shown}: {record:?}"
        );
        assert_eq!(record.usage.output, 0, "{shown}");
        assert!(record.cost > Decimal::ZERO, "{shown}: {record:?}");
        assert_eq!(
            server.received()[1].header("content-length"),
            server.received()[1].raw.len().to_string()
        );
    }
}

#[tokio::test]
async fn what_no_provider_took_is_not_booked() {
    let server = TestServer::start(vec![
        Reply::error(401, "authentication_error", "bad key"),
        Reply::text("ok"),
    ])
    .await;
    let mut gone = provider("gone", ProviderKind::Anthropic, &server);
    // A port that nobody listens on: bound here and not served.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    gone.base_url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let bed = Bed::new(vec![gone, provider("p", ProviderKind::Anthropic, &server)]).await;
    for model in ["gone/m", "p/refused", "p/m"] {
        let mut asked = ask(true);
        asked["model"] = model.into();
        bed.messages(&asked).await.text().await.unwrap();
    }
    let models: Vec<String> = bed.records().into_iter().map(|it| it.model).collect();
    assert_eq!(models, ["m"]);
}
