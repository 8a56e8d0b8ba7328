//! Clients that break the rules are cut with a reason; nobody else notices.

use quintet_control::wire::{ClientHello, EventsMsg, client_message::Msg};
use quintet_control::{Client, FRAME_FORMAT, TcpClient};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::harness::{TestDaemon, run, script, text_of};

const IMPATIENT: &str = "[control]\nidle_timeout = \"500ms\"\n";

/// Waits until a client was cut for a reason with this in it.
async fn cut_for(daemon: &TestDaemon, reason: &str) {
    use futures_util::StreamExt;
    let mut client = daemon.client().await;
    let request = EventsMsg {
        session: None,
        after_seq: Some(0),
        follow: true,
    };
    let events = client.events(request);
    tokio::pin!(events);
    loop {
        let event = events.next().await.expect("follows").expect("readable");
        if event.kind == "client_cut" && event.data.contains(reason) {
            return;
        }
    }
}

async fn connect(daemon: &TestDaemon) -> UnixStream {
    UnixStream::connect(daemon.home().control_socket())
        .await
        .expect("listening")
}

/// Sends bytes and reads until the daemon closes the connection.
async fn is_closed_after(daemon: &TestDaemon, bytes: &[u8]) {
    let mut socket = connect(daemon).await;
    socket.write_all(bytes).await.expect("open");
    let mut rest = Vec::new();
    // A reset is a close too.
    let _ = socket.read_to_end(&mut rest).await;
}

#[tokio::test]
async fn oversize_garbage_and_half_frames_are_cut_with_a_reason_in_the_journal() {
    let daemon = TestDaemon::start_with(IMPATIENT).await;
    let mut bystander = daemon.client().await;
    is_closed_after(&daemon, &(16u32 * 1024 * 1024 + 1).to_be_bytes()).await;
    cut_for(&daemon, "16777217 bytes").await;
    is_closed_after(&daemon, b"\0\0\0\x04\xff\xff\xff\xff").await;
    cut_for(&daemon, "can't be decoded").await;
    is_closed_after(&daemon, b"\0\0\0\x08half").await;
    cut_for(&daemon, "half a frame").await;
    bystander.ping().await.expect("undisturbed");
    daemon.stop().await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_cut_and_slows_nobody() {
    let daemon = TestDaemon::start_with(IMPATIENT).await;
    let text = "x".repeat(4000);
    let flood = format!(r#"{{"repeat": 5000, "say": "{text}"}}"#);
    let message = Msg::Stream(crate::harness::streamed(script(&[&flood])));
    let message = quintet_control::wire::ClientMessage { msg: Some(message) };
    let mut frame = bytes::BytesMut::new();
    FRAME_FORMAT
        .encode(&prost::Message::encode_to_vec(&message), &mut frame)
        .expect("small");
    let mut deaf = connect(&daemon).await;
    deaf.write_all(&frame).await.expect("open");

    let mut other = daemon.client().await;
    let events = run(&mut other, script(&[r#"{"say": "quick"}"#])).await;
    assert_eq!(text_of(&events), "quick");
    cut_for(&daemon, "took nothing").await;
    daemon.wait_for(1, "turn_ended").await;
    let deltas: usize = daemon
        .journal(Some(1))
        .await
        .iter()
        .filter(|event| event.kind == "text_delta")
        .map(|event| {
            let data: serde_json::Value = serde_json::from_str(&event.data).expect("JSON");
            data["text"].as_str().map_or(0, str::len)
        })
        .sum();
    assert_eq!(deltas, 5000 * 4000, "the turn went on without its client");
    drop(deaf);
    daemon.stop().await;
}

#[tokio::test]
async fn a_tcp_client_needs_the_token() {
    let daemon = TestDaemon::start_with("[control]\ntcp = \"127.0.0.1:0\"\n").await;
    let run_dir = daemon.home().run_dir();
    let port: u16 = std::fs::read_to_string(run_dir.join("quintet.port"))
        .expect("written")
        .trim()
        .parse()
        .expect("a port");
    let token = std::fs::read_to_string(run_dir.join("control.token")).expect("written");
    let address = format!("127.0.0.1:{port}");
    let hello = |token: &str| ClientHello {
        token: token.to_owned(),
        ..ClientHello::default()
    };
    let (mut known, _) = TcpClient::connect(&address, hello(&token))
        .await
        .expect("let in");
    known.ping().await.expect("served");
    let wrong = TcpClient::connect(&address, hello("wrong")).await;
    assert!(wrong.is_err(), "a wrong token is refused");
    let answer = known.send(script(&["hi"])).await.expect("served");
    assert_eq!(answer.content, "hi");
    daemon.stop().await;
}
