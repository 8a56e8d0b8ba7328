//! [`WsSocket`] against another implementation, against a peer that breaks off, and in memory.
#![expect(clippy::unwrap_used, reason = "tests fail by panic")]

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, StreamExt};
use quintet_framing::socket::{Role, WsError, WsFault, WsMessage, WsSocket, close};
use quintet_framing::ws::{
    DialError, Refusal, WsDial, WsLimits, accept, accept_socket, dial, dial_socket,
};
use tokio::io::{
    AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex,
};
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, frame::coding::CloseCode};

const LIMIT: usize = 16 << 20;
const LIMITS: WsLimits = WsLimits {
    max_message: LIMIT,
    read_buffer: 16 * 1024,
};

fn dialled(url: &str) -> WsDial<'_> {
    WsDial {
        url,
        protocols: &["b.v2", "b.v1"],
        token: Some("secret"),
        tls: None,
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/ws", listener.local_addr().unwrap());
    (listener, url)
}

fn noise(len: usize) -> Bytes {
    (0..len).map(|at| (at * 31 % 251) as u8).collect()
}

/// Lengths around every way to write one, and around what is read at once.
const LENGTHS: [usize; 12] = [
    0, 1, 125, 126, 4096, 4097, 8191, 8192, 65_535, 65_536, 65_541, 5_000_000,
];

#[tokio::test]
async fn as_a_client_it_talks_to_another_server() {
    let (listener, url) = listen().await;
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = accept(stream, LIMITS, |request| {
            assert_eq!(request.headers()["authorization"], "Bearer secret");
            assert_eq!(request.headers()["sec-websocket-protocol"], "b.v2, b.v1");
            Ok(Some("b.v1".to_owned()))
        })
        .await
        .unwrap();
        // It comes in the packet of the answer, or right behind it.
        socket.send(Message::text("early")).await.unwrap();
        socket.send(Message::Ping(noise(10))).await.unwrap();
        let mut pongs = 0;
        while let Some(message) = socket.next().await {
            match message.unwrap() {
                Message::Pong(bytes) => {
                    assert_eq!(bytes, noise(10));
                    pongs += 1;
                }
                Message::Close(frame) => {
                    let frame = frame.unwrap();
                    assert_eq!((frame.code, frame.reason.as_str()), (1000.into(), "done"));
                    return pongs;
                }
                message => socket.send(message).await.unwrap(),
            }
        }
        panic!("the client never closed");
    };
    let client = async {
        let (mut socket, chosen) = dial_socket(dialled(&url), LIMIT).await.unwrap();
        assert_eq!(chosen.as_deref(), Some("b.v1"));
        let early = WsMessage::Text(Bytes::from_static(b"early"));
        assert_eq!(socket.next().await.unwrap().unwrap(), early);
        for len in LENGTHS {
            let sent = WsMessage::Binary(noise(len));
            socket.send(sent.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), sent, "{len}");
        }
        let text = WsMessage::Text(Bytes::from("grüezi".repeat(20_000)));
        socket.send(text.clone()).await.unwrap();
        assert_eq!(socket.next().await.unwrap().unwrap(), text);
        let close = WsMessage::Close(close::NORMAL, "done".to_owned());
        socket.send(close).await.unwrap();
    };
    let (pongs, ()) = tokio::join!(server, client);
    assert_eq!(pongs, 1);
}

#[tokio::test]
async fn as_a_server_it_talks_to_another_client() {
    let (listener, url) = listen().await;
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        let admit = |_: &_| Ok(Some("b.v2".to_owned()));
        let mut socket = accept_socket(stream, LIMIT, admit).await.unwrap();
        while let Some(message) = socket.next().await {
            match message.unwrap() {
                WsMessage::Close(code, reason) => return (code, reason),
                message => socket.send(message).await.unwrap(),
            }
        }
        panic!("the client never closed");
    };
    let client = async {
        let (mut socket, chosen) = dial(dialled(&url), LIMITS).await.unwrap();
        assert_eq!(chosen.as_deref(), Some("b.v2"));
        for len in LENGTHS {
            let sent = Message::Binary(noise(len));
            socket.send(sent.clone()).await.unwrap();
            assert_eq!(socket.next().await.unwrap().unwrap(), sent, "{len}");
        }
        socket.send(Message::Ping(noise(3))).await.unwrap();
        let pong = socket.next().await.unwrap().unwrap();
        assert_eq!(pong, Message::Pong(noise(3)));
        // Many at once, so that several are in one read and in one write.
        for number in 0..500_u32 {
            let text = Message::text(number.to_string().repeat(1 + number as usize % 40));
            socket.feed(text).await.unwrap();
        }
        socket.flush().await.unwrap();
        for number in 0..500_u32 {
            let text = Message::text(number.to_string().repeat(1 + number as usize % 40));
            assert_eq!(socket.next().await.unwrap().unwrap(), text);
        }
        let close = CloseFrame {
            code: CloseCode::Library(4001),
            reason: "replaced".into(),
        };
        socket.close(Some(close)).await.unwrap();
    };
    let (closed, ()) = tokio::join!(server, client);
    assert_eq!(closed, (4001, "replaced".to_owned()));
}

#[tokio::test]
async fn a_refusal_reaches_the_dialler_with_its_reason() {
    let (listener, url) = listen().await;
    let server = async {
        let (stream, _) = listener.accept().await.unwrap();
        let refuse = |_: &_| {
            Err(Refusal {
                status: 403,
                reason: "not you".to_owned(),
            })
        };
        accept_socket(stream, LIMIT, refuse).await.map(drop)
    };
    let (served, answer) = tokio::join!(server, dial_socket(dialled(&url), LIMIT));
    assert!(served.is_err());
    match answer {
        Err(DialError::Refused { status, reason, .. }) => {
            assert_eq!((status, reason.as_str()), (403, "not you"));
        }
        other => panic!("{other:?}"),
    }
}

/// A server that says something else than one of this protocol would.
#[tokio::test]
async fn an_answer_that_is_none_is_refused() {
    let accept = "Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade";
    for (answer, reason) in [
        (format!("HTTP/1.1 101 x\r\n{accept}\r\n\r\n"), "Upgrade"),
        (
            format!("HTTP/1.1 101 x\r\n{upgrade}\r\n{accept}\r\n\r\n"),
            "Accept",
        ),
        ("HTTP/1.0 200 x\r\n\r\n".to_owned(), "HTTP version"),
        ("hello\r\n\r\n".to_owned(), "httparse"),
        ("HTTP/1.1 101 x\r\n".to_owned(), "not finished"),
        (
            format!("HTTP/1.1 101 x\r\nA: {}\r\n", "a".repeat(70_000)),
            "Attack",
        ),
    ] {
        let (listener, url) = listen().await;
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = BytesMut::new();
            while !request.ends_with(b"\r\n\r\n") {
                assert!(stream.read_buf(&mut request).await.unwrap() > 0);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
        };
        let ((), dialled) = tokio::join!(server, dial_socket(dialled(&url), LIMIT));
        let error = dialled.err().unwrap().to_string();
        assert!(error.contains(reason), "{answer:.40}: {error}");
    }
}

/// The server's end of a connection whose other end says only what a test says.
fn served() -> (WsSocket<DuplexStream>, DuplexStream) {
    let (near, far) = duplex(64 * 1024);
    (
        WsSocket::new(near, Role::Server, LIMIT, BytesMut::new()),
        far,
    )
}

#[tokio::test]
async fn the_memory_of_large_messages_is_used_again_once_they_are_dropped() {
    let (mut reader, far) = served();
    let mut writer = WsSocket::new(far, Role::Client, LIMIT, BytesMut::new());
    let message = |round: u8| Bytes::from(vec![round; 190_000 + usize::from(round)]);
    let writing = async {
        for round in 0..200 {
            let sent = writer.send(WsMessage::Binary(message(round))).await;
            sent.unwrap();
        }
    };
    let reading = async {
        let mut held = std::collections::VecDeque::new();
        let mut places = std::collections::HashSet::new();
        for round in 0..200 {
            let Some(Ok(WsMessage::Binary(bytes))) = reader.next().await else {
                panic!("message {round} did not come");
            };
            places.insert(bytes.as_ptr() as usize >> 18);
            held.push_back(bytes);
            if held.len() > 4 {
                assert_eq!(held.pop_front().unwrap(), message(round - 4), "overwritten");
            }
        }
        places.len()
    };
    let ((), places) = tokio::join!(writing, reading);
    assert!(places < 30, "{places} for 200 messages");
}

#[tokio::test]
async fn how_a_connection_ends_is_told_once() {
    // Of bytes that were sent before the other end went away: what came, and why it was the end.
    let whole = [0x82, 0x81, 0, 0, 0, 0, 7];
    for (bytes, messages, error) in [
        (&[][..], 0, None),
        (&whole[..], 1, None),
        (&whole[..4], 0, Some(close::NORMAL)),
        (&[0x02, 0x81, 0, 0, 0, 0, 7], 0, Some(close::NORMAL)),
        (&[0x82, 0x01, 7], 0, Some(close::PROTOCOL)),
        (
            &[0x82, 0xff, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0],
            0,
            Some(close::TOO_BIG),
        ),
    ] {
        let (mut socket, mut peer) = served();
        peer.write_all(bytes).await.unwrap();
        drop(peer);
        let mut seen = 0;
        let mut ended = None;
        while let Some(next) = socket.next().await {
            match next {
                Ok(_) => seen += 1,
                Err(error) => assert_eq!(ended.replace(error.close_code()), None),
            }
        }
        assert_eq!((seen, ended), (messages, error), "{bytes:?}");
        assert!(socket.next().await.is_none());
    }
}

#[tokio::test]
async fn a_message_over_the_limit_is_known_by_its_head() {
    let (mut socket, mut peer) = served();
    let mut head = vec![0x82, 0xff];
    head.extend_from_slice(&(LIMIT as u64 + 1).to_be_bytes());
    head.extend_from_slice(&[0; 4]);
    peer.write_all(&head).await.unwrap();
    let error = socket.next().await.unwrap().unwrap_err();
    assert!(
        matches!(error, WsError::Fault(WsFault::TooLong { limit: LIMIT })),
        "{error}"
    );
}

/// Counts what is offered to each read, and gives one byte.
struct Offered<'a>(&'a mut usize, u8);

impl AsyncRead for Offered<'_> {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        *this.0 = (*this.0).max(buffer.remaining());
        let head = [0x82, 0x7f, 0, 0, 0, 0, 0, 0xff, 0, 0];
        match head.get(usize::from(this.1)) {
            Some(byte) => buffer.put_slice(&[*byte]),
            None if this.1 < 200 => buffer.put_slice(&[0]),
            None => return Poll::Pending,
        }
        this.1 += 1;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Offered<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Pending
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn sixteen_mebibytes_that_never_come_take_little_memory() {
    let mut largest = 0;
    let mut socket = WsSocket::new(
        Offered(&mut largest, 0),
        Role::Client,
        LIMIT,
        BytesMut::new(),
    );
    assert!(futures_util::poll!(socket.next()).is_pending());
    drop(socket);
    assert!((8192..=256 * 1024 + 14).contains(&largest), "{largest}");
}

/// A peer that pings and never reads its answers costs one of them.
#[tokio::test]
async fn pings_that_nobody_reads_the_answers_of_do_not_gather() {
    let (mut socket, mut peer) = served();
    let pings = async {
        for number in 0..20_000_u32 {
            let mut ping = vec![0x89, 0x84, 0, 0, 0, 0];
            ping.extend_from_slice(&number.to_be_bytes());
            peer.write_all(&ping).await.unwrap();
        }
        peer.write_all(&[0x81, 0x80, 0, 0, 0, 0]).await.unwrap();
    };
    let ((), message) = tokio::join!(pings, socket.next());
    assert_eq!(message.unwrap().unwrap(), WsMessage::Text(Bytes::new()));
    // The answers that fitted, and the last one once there is room.
    let (flushed, last) = tokio::join!(socket.flush(), async {
        let mut pong = [0; 6];
        loop {
            peer.read_exact(&mut pong).await.unwrap();
            assert_eq!(pong[..2], [0x8a, 0x04]);
            if pong[2..] == 19_999_u32.to_be_bytes() {
                return true;
            }
        }
    });
    flushed.unwrap();
    assert!(last);
}
