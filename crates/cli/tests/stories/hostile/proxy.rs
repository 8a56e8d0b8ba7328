//! Somebody behind a proxy of this machine, whose connections all come from here.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::asks;
use crate::harness::{Machine, Running};
use crate::workers::row;

const PASSED_ON: [&str; 4] = [
    "X-Forwarded-For: 203.0.113.5",
    "Forwarded: for=203.0.113.5",
    "X-Real-IP: 203.0.113.5",
    "Via: 1.1 proxy",
];

#[tokio::test]
async fn who_comes_through_a_proxy_is_nobody_of_this_machine() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let http = daemon.http();
    let here = http.split_once("://").unwrap().1;
    let token = std::fs::read_to_string(machine.home().join("run/control.token")).unwrap();
    for passed_on in PASSED_ON {
        let head = format!("GET /metrics HTTP/1.1\r\nHost: {here}\r\n{passed_on}");
        let answer = asks(http, &head, "").await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{passed_on}: {answer}");
        let head = format!("{head}\r\nAuthorization: Bearer {token}");
        let answer = asks(http, &head, "").await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{passed_on}: {answer}");
        // A browser of the first version, which needs a token from anywhere else.
        let head = format!(
            "GET /ws HTTP/1.1\r\nHost: {here}\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{passed_on}"
        );
        let answer = asks(http, &head, "").await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{passed_on}: {answer}");
    }

    let mut proxies = JoinSet::new();
    let elsewhere = Machine::fresh();
    for (name, passed_on, kind) in [
        ("far", PASSED_ON[0], "worker_refused"),
        ("near", "X-Other: 1", "worker_online"),
    ] {
        let url = proxy(here.to_owned(), passed_on, &mut proxies).await;
        let dial = ["worker", "--server-url", &url, "--daemon-id", name];
        let _worker = Running::start(elsewhere.quintet(&dial));
        row(&machine, kind, |data| data["worker"] == name).await;
    }
}

/// The address of a proxy that adds a line to each request.
async fn proxy(to: String, line: &'static str, tasks: &mut JoinSet<()>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (client, _) = listener.accept().await.unwrap();
            connections.spawn(pass_on(client, to.clone(), line));
        }
    });
    url
}

async fn pass_on(mut client: TcpStream, to: String, line: &'static str) {
    let mut server = TcpStream::connect(to).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    head.truncate(head.len() - 2);
    head.extend_from_slice(format!("{line}\r\n\r\n").as_bytes());
    server.write_all(&head).await.unwrap();
    // Either may leave without a word.
    let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
}
