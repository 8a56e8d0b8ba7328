//! Over TCP a token comes first.

use quintet_control::wire::*;
use quintet_control::{Client, ClientError, Closed, ErrorCode, Limits, TcpClient, tokens_match};
use tokio::net::TcpStream;

use crate::daemon::{Daemon, Raw, TOKEN, error_code, impatient, send_of};

fn hello(token: &str) -> ClientHello {
    ClientHello {
        version: 1,
        token: token.into(),
        ..ClientHello::default()
    }
}

#[tokio::test]
async fn a_client_with_the_token_is_served() {
    let (mut daemon, address) = Daemon::on_tcp(Limits::default()).await;
    let (mut client, answer) = TcpClient::connect(address, hello(TOKEN)).await.unwrap();
    assert_eq!(answer.server, "test");
    let answer = client.send(send_of("echo", "over tcp")).await.unwrap();
    assert_eq!(answer.content, "over tcp");
    // The server's method never sees the token.
    assert_eq!(daemon.next_request().await, hello("").into());
}

#[tokio::test]
async fn a_wrong_token_is_refused() {
    let (mut daemon, address) = Daemon::on_tcp(Limits::default()).await;
    for token in ["", "wrong horse", "correct hors", "correct horse "] {
        match TcpClient::connect(address, hello(token)).await {
            Err(ClientError::Server(error)) => assert_eq!(error.code, ErrorCode::Unauthorized),
            other => panic!("{other:?}"),
        }
        assert!(matches!(daemon.next_closed().await, Closed::Unauthorized));
    }
}

#[tokio::test]
async fn an_old_client_is_refused_on_tcp_and_served_on_a_unix_socket() {
    let (mut daemon, address) = Daemon::on_tcp(Limits::default()).await;
    let mut raw = Raw::new(TcpStream::connect(address).await.unwrap());
    raw.send(PingMsg {}).await;
    assert_eq!(error_code(&raw.next().await), 401);
    raw.closed().await;
    assert!(matches!(daemon.next_closed().await, Closed::Unauthorized));

    let daemon = Daemon::on_unix(Limits::default());
    daemon.client().await.ping().await.unwrap();
}

#[tokio::test]
async fn a_client_that_says_nothing_is_cut() {
    let (mut daemon, address) = Daemon::on_tcp(impatient()).await;
    let mut raw = Raw::new(TcpStream::connect(address).await.unwrap());
    raw.closed().await;
    assert!(matches!(daemon.next_closed().await, Closed::Unauthorized));
}

#[tokio::test]
async fn a_token_on_a_unix_socket_is_not_passed_on() {
    let mut daemon = Daemon::on_unix(Limits::default());
    daemon.client().await.hello(hello("secret")).await.unwrap();
    assert_eq!(daemon.next_request().await, hello("").into());
}

#[test]
fn tokens_match_only_when_they_are_the_same_and_not_empty() {
    for (given, expected, same) in [
        ("a", "a", true),
        ("a", "b", false),
        ("ab", "a", false),
        ("a", "ab", false),
        ("", "", false),
    ] {
        assert_eq!(
            tokens_match(given, expected),
            same,
            "{given:?} {expected:?}"
        );
    }
}
