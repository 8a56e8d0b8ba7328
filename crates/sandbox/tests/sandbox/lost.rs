//! Requests that are lost with their connection.

use std::time::Duration;

use quintet_sandbox::hub::{
    ExecEvent, ExecHandle, ExecOutcome, ExecRequest, HubSettings, RequestError, WorkerStatus,
};
use quintet_sandbox::proto::frame::{Body, End, FailureCode, Frame, Open, Outcome};
use quintet_sandbox::proto::{Liveness, Protocol};
use quintet_sandbox::socket::WsMessage;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::MaybeTlsStream;

use crate::bed::{Bed, Lone, Raw, raw_worker, soon};
use crate::commands::command;

async fn frame<S: AsyncRead + AsyncWrite + Unpin>(raw: &mut Raw<S>) -> Frame {
    match raw.message().await {
        WsMessage::Binary(bytes) => Frame::decode(&bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The next stream that the hub opens.
async fn opened<S: AsyncRead + AsyncWrite + Unpin>(raw: &mut Raw<S>) -> (u32, Open) {
    loop {
        let Frame { stream, body } = frame(raw).await;
        if let Body::Open(open) = body {
            return (stream, *open);
        }
    }
}

async fn end<S: AsyncRead + AsyncWrite + Unpin>(raw: &mut Raw<S>, stream: u32, outcome: Outcome) {
    let end = End {
        outcome,
        duration_ms: 1,
        mirrored: None,
    };
    let frame = Frame::new(stream, Body::End(Box::new(end)));
    raw.send_binary(frame.encode()).await;
}

/// Registers `w` on a connection of a name, after a former one.
async fn connect(bed: &Bed, name: &str, former: Value) -> Raw<MaybeTlsStream<TcpStream>> {
    let mut raw = raw_worker(&bed.url(), &["sandd.v2"]).await;
    register(&mut raw, name, former).await;
    bed.online("w").await;
    raw
}

async fn register<S: AsyncRead + AsyncWrite + Unpin>(raw: &mut Raw<S>, name: &str, former: Value) {
    raw.send(json!({
        "type": "register", "daemon_id": "w",
        "metadata": {
            "hostname": "h", "platform": "linux", "arch": "x86_64", "version": "t", "labels": {},
            "connection": name, "former": former,
        },
    }))
    .await;
    assert_eq!(raw.json().await["success"], true);
}

async fn outcome(handle: &mut ExecHandle) -> Result<ExecOutcome, RequestError> {
    loop {
        if let ExecEvent::Ended { outcome, .. } = handle.next().await? {
            return Ok(outcome);
        }
    }
}

#[tokio::test]
async fn a_command_that_never_arrived_is_sent_again_with_its_id_and_its_input() {
    let bed = Bed::start().await;
    let mut first = connect(&bed, "run-1", Value::Null).await;
    let request = ExecRequest {
        stdin: true,
        ..command("cat")
    };
    let mut handle = bed.hub.exec("w", request).await.unwrap();
    handle.stdin().write(b"typed").await.unwrap();
    handle.stdin().finish().await.unwrap();
    let (_, sent) = opened(&mut first).await;
    drop(first);

    let worker = async {
        let former = json!({"connection": "run-1", "last_stream": 0});
        let mut second = connect(&bed, "run-2", former).await;
        let (stream, again) = opened(&mut second).await;
        assert_eq!(again, sent);
        let mut input = Vec::new();
        loop {
            match frame(&mut second).await.body {
                Body::In(bytes) => input.extend_from_slice(&bytes),
                Body::Eof => break,
                Body::Credit(_) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(input, b"typed");
        end(&mut second, stream, Outcome::Exited { code: 3 }).await;
        second
    };
    let both = async { tokio::join!(worker, outcome(&mut handle)) };
    let (_second, ended) = soon("the end", both).await;
    assert_eq!(ended, Ok(ExecOutcome::Exited(3)));
}

/// It may have run: a second time is for whoever asked to decide.
#[tokio::test]
async fn a_command_that_may_have_arrived_is_not_sent_again() {
    for former in [
        // It did.
        json!({"connection": "run-1", "last_stream": 1}),
        // Nobody knows: this worker had another connection, or was started since.
        json!({"connection": "other-1", "last_stream": 0}),
        Value::Null,
    ] {
        let bed = Bed::start().await;
        let mut first = connect(&bed, "run-1", Value::Null).await;
        let mut handle = bed.hub.exec("w", command("true")).await.unwrap();
        assert_eq!(opened(&mut first).await.0, 1);
        drop(first);
        let worker = async {
            let mut second = connect(&bed, "run-2", former).await;
            let (stream, open) = opened(&mut second).await;
            assert!(matches!(open, Open::Attach { .. }), "{open:?}");
            let outcome = Outcome::Failed {
                code: FailureCode::UnknownJob,
                error: "there is none".to_owned(),
            };
            end(&mut second, stream, outcome).await;
            second
        };
        let both = async { tokio::join!(worker, outcome(&mut handle)) };
        let (_second, ended) = soon("the end", both).await;
        assert!(
            matches!(
                &ended,
                Err(RequestError::Failed {
                    code: Some(FailureCode::UnknownJob),
                    ..
                })
            ),
            "{ended:?}"
        );
    }
}

#[tokio::test]
async fn what_was_cancelled_meanwhile_does_not_begin_and_is_stopped_where_it_did() {
    let bed = Bed::start().await;
    for arrived in [false, true] {
        let mut first = connect(&bed, "run-1", Value::Null).await;
        let mut handle = bed.hub.exec("w", command("sleep 100")).await.unwrap();
        let (stream, _) = opened(&mut first).await;
        drop(first);
        handle.cancel().await;
        let last_stream = if arrived { stream } else { stream - 1 };
        let worker = async {
            let former = json!({"connection": "run-1", "last_stream": last_stream});
            let mut second = connect(&bed, "run-2", former).await;
            if arrived {
                let (stream, open) = opened(&mut second).await;
                assert!(matches!(open, Open::Attach { .. }), "{open:?}");
                while frame(&mut second).await.body != Body::Cancel {}
                end(&mut second, stream, Outcome::Cancelled).await;
            }
            second
        };
        let both = async { tokio::join!(worker, outcome(&mut handle)) };
        let (mut second, ended) = soon("the end", both).await;
        assert_eq!(ended, Ok(ExecOutcome::Cancelled));
        if !arrived {
            // The next thing that is asked for is the first that this connection hears of.
            let next = bed.hub.exec("w", command("true")).await.unwrap();
            let (_, open) = opened(&mut second).await;
            assert!(matches!(open, Open::Exec { id, .. } if id == next.id()));
        }
    }
}

#[tokio::test]
async fn a_worker_says_what_it_got_on_the_connection_before() {
    let lone = Lone::start(|_| {}).await;
    let mut connections = Vec::new();
    let mut former = Value::Null;
    for last_stream in [7, 0] {
        let (mut raw, register) = lone.hub.accept_silently(Protocol::V2).await;
        assert_eq!(register["metadata"]["former"], former);
        let name = register["metadata"]["connection"].clone();
        assert!(name.is_string() && !connections.contains(&name), "{name}");
        raw.send(json!({"type": "register_ack", "success": true, "message": ""}))
            .await;
        for stream in (1..=last_stream).rev().step_by(3) {
            let frame = Frame::new(stream, Body::Open(Box::new(Open::Jobs)));
            raw.send_binary(frame.encode()).await;
            while !matches!(self::frame(&mut raw).await.body, Body::End(_)) {}
        }
        if last_stream == 0 {
            // Until it answers, it may not know that it is registered.
            raw.send(json!({"type": "gibberish", "request_id": "g"}))
                .await;
            assert_eq!(raw.json().await["type"], "error");
        }
        former = json!({"connection": name, "last_stream": last_stream});
        connections.push(name);
    }
    // A connection that was never registered has nothing to tell.
    let (_, register) = lone.hub.accept_silently(Protocol::V2).await;
    assert_eq!(register["metadata"]["former"], former);
    let (_, register) = lone.hub.accept_silently(Protocol::V2).await;
    assert_eq!(register["metadata"]["former"], former);
}

/// A machine that slept, or a network that stood still, and a connection that outlived it.
#[tokio::test]
async fn a_command_goes_on_when_its_silent_worker_registers_again_on_the_same_connection() {
    let settings = HubSettings {
        liveness: Liveness {
            stale_after: Duration::from_secs(2),
            check_every: Duration::from_millis(200),
        },
        ..HubSettings::default()
    };
    let bed = Bed::with(settings).await;
    let mut raw = connect(&bed, "run-1", Value::Null).await;
    let mut handle = bed.hub.exec("w", command("sleep 100")).await.unwrap();
    assert!(matches!(opened(&mut raw).await, (1, Open::Exec { .. })));
    bed.status("w", WorkerStatus::Stale).await;
    let worker = async {
        register(&mut raw, "run-1", Value::Null).await;
        let (stream, open) = opened(&mut raw).await;
        assert!(matches!(open, Open::Attach { .. }), "{open:?}");
        end(&mut raw, stream, Outcome::Exited { code: 5 }).await;
    };
    let both = async { tokio::join!(worker, outcome(&mut handle)) };
    let ((), ended) = soon("the end", both).await;
    assert_eq!(ended, Ok(ExecOutcome::Exited(5)));
}
