//! Requests that are lost with their connection.

use std::time::Duration;

use quintet_sandbox::hub::{
    ExecEvent, ExecHandle, ExecOutcome, ExecRequest, HubSettings, RequestError, WorkerStatus,
};
use quintet_sandbox::proto::frame::{Body, End, FailureCode, Frame, Open, Opened, Outcome};
use quintet_sandbox::proto::{Liveness, Protocol};
use quintet_sandbox::socket::WsMessage;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_tungstenite::MaybeTlsStream;

use crate::bed::{Bed, Lone, Raw, raw_worker, soon};
use crate::commands::command;
use crate::shells::SIZE;

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

async fn accept<S: AsyncRead + AsyncWrite + Unpin>(raw: &mut Raw<S>, stream: u32) {
    let frame = Frame::new(stream, Body::Opened(Opened::default()));
    raw.send_binary(frame.encode()).await;
}

fn unknown() -> Outcome {
    Outcome::Failed {
        code: FailureCode::UnknownJob,
        error: "there is none".to_owned(),
    }
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

/// A connection that came and went while nobody looked is no gap in what is known.
#[tokio::test]
async fn a_command_that_never_arrived_is_sent_again_two_connections_later() {
    let bed = Bed::start().await;
    let mut first = connect(&bed, "run-1", Value::Null).await;
    let mut handle = bed.hub.exec("w", command("true")).await.unwrap();
    let (_, sent) = opened(&mut first).await;
    drop(first);
    bed.status("w", WorkerStatus::Offline).await;
    let former = json!({"connection": "run-1", "last_stream": 0});
    drop(connect(&bed, "run-2", former).await);
    bed.status("w", WorkerStatus::Offline).await;
    let former = json!({"connection": "run-2", "last_stream": 0});
    let mut third = connect(&bed, "run-3", former).await;
    let worker = async {
        let (stream, again) = opened(&mut third).await;
        assert_eq!(again, sent);
        end(&mut third, stream, Outcome::Exited { code: 4 }).await;
    };
    let both = async { tokio::join!(worker, outcome(&mut handle)) };
    let ((), ended) = soon("the end", both).await;
    assert_eq!(ended, Ok(ExecOutcome::Exited(4)));
}

/// It may have run: a second time is for whoever asked to decide.
#[tokio::test]
async fn a_command_that_may_have_arrived_is_not_sent_again_and_the_error_says_why() {
    let restarted = RequestError::Restarted {
        worker: "w".to_owned(),
        what: "command",
    };
    let given_up = RequestError::Failed {
        code: Some(FailureCode::UnknownJob),
        error: "there is none".to_owned(),
    };
    for (former, error) in [
        // It did.
        (json!({"connection": "run-1", "last_stream": 1}), given_up),
        // Nobody knows: this worker had another connection, or was started since.
        (
            json!({"connection": "other-1", "last_stream": 0}),
            restarted.clone(),
        ),
        (Value::Null, restarted),
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
            end(&mut second, stream, unknown()).await;
            second
        };
        let both = async { tokio::join!(worker, outcome(&mut handle)) };
        let (_second, ended) = soon("the end", both).await;
        assert_eq!(ended, Err(error));
    }
}

#[tokio::test]
async fn a_shell_whose_start_is_lost_is_begun_again_or_attached_to() {
    for (former, arrived, kept) in [
        // It never came.
        (
            json!({"connection": "run-1", "last_stream": 0}),
            false,
            false,
        ),
        // It came, and runs.
        (json!({"connection": "run-1", "last_stream": 1}), true, true),
        // It died with its worker, before anything was typed.
        (Value::Null, true, false),
    ] {
        let bed = Bed::start().await;
        let mut first = connect(&bed, "run-1", Value::Null).await;
        let worker = async {
            let (_, sent) = opened(&mut first).await;
            assert!(matches!(sent, Open::Shell { .. }), "{sent:?}");
            drop(first);
            let mut second = connect(&bed, "run-2", former).await;
            let (mut stream, mut open) = opened(&mut second).await;
            if arrived {
                assert!(matches!(open, Open::Attach { .. }), "{open:?}");
            }
            if arrived && !kept {
                end(&mut second, stream, unknown()).await;
                (stream, open) = opened(&mut second).await;
            }
            if !kept {
                assert_eq!(open, sent);
            }
            accept(&mut second, stream).await;
            (second, stream)
        };
        let both = async { tokio::join!(worker, bed.hub.shell("w", SIZE, "dumb")) };
        let ((mut second, stream), shell) = soon("a shell", both).await;
        let shell = shell.unwrap();
        assert_eq!(bed.hub.worker("w").unwrap().running, 1);
        shell.input().write(b"typed").await.unwrap();
        let typed = Frame::new(stream, Body::In("typed".into()));
        assert_eq!(frame(&mut second).await, typed);
    }
}

#[tokio::test]
async fn a_start_that_nobody_waits_for_any_more_is_taken_back() {
    let bed = Bed::start().await;
    let mut raw = connect(&bed, "run-1", Value::Null).await;
    for (attach, words) in [
        (false, [Body::Cancel, Body::Done].as_slice()),
        (true, &[Body::Detach]),
    ] {
        let asked = async {
            if attach {
                bed.hub.attach_shell("w", "job").await.map(drop)
            } else {
                bed.hub.shell("w", SIZE, "dumb").await.map(drop)
            }
        };
        let stream = tokio::select! {
            asked = asked => panic!("{asked:?}"),
            (stream, _) = opened(&mut raw) => stream,
        };
        for word in words {
            assert_eq!(frame(&mut raw).await, Frame::new(stream, word.clone()));
        }
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

/// Two who read would each get a part.
#[tokio::test]
async fn whoever_attaches_last_reads_and_the_one_before_is_told() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let line = "echo up; while [ ! -e go ]; do sleep 0.05; done; echo done";
    let mut first = bed.hub.exec("w", command(line)).await.unwrap();
    let up = soon("it runs", first.next()).await;
    assert_eq!(up, Ok(ExecEvent::Stdout("up\n".into())));
    let second = bed.hub.attach_exec("w", first.id()).await.unwrap();
    let told = soon("the first is told", outcome(&mut first)).await;
    assert!(
        matches!(
            &told,
            Err(RequestError::Failed {
                code: Some(FailureCode::Replaced),
                ..
            })
        ),
        "{told:?}"
    );
    drop(first);
    std::fs::write(bed.root("w").join("go"), b"").unwrap();
    let output = soon("the end", second.output(100)).await.unwrap();
    assert_eq!(output.stdout, b"up\ndone\n");
}

/// Its end would be lost to whoever reads now, or the command itself.
#[tokio::test]
async fn whoever_lost_a_command_to_another_reader_has_no_say_in_it() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    for (n, hears) in [(0, true), (1, false)] {
        let line = format!(
            "while [ ! -e go-{n} ]; do sleep 0.05; done; head -c 3000000 /dev/zero; exit 6"
        );
        let mut first = bed.hub.exec("w", command(&line)).await.unwrap();
        let mut second = bed.hub.attach_exec("w", first.id()).await.unwrap();
        if hears {
            assert!(soon("it is told", outcome(&mut first)).await.is_err());
        }
        drop(first);
        std::fs::write(bed.root("w").join(format!("go-{n}")), b"").unwrap();
        let event = soon("output", second.next()).await.unwrap();
        let ExecEvent::Stdout(begin) = event else {
            panic!("{event:?}");
        };
        // The command has ended before the rest of it is read.
        soon("it has ended", async {
            let runs = async || {
                let jobs = bed.hub.jobs("w").await.unwrap();
                jobs.iter().any(|job| job.id == second.id() && job.running)
            };
            while runs().await {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let output = soon("the end", second.output(usize::MAX)).await.unwrap();
        assert_eq!(begin.len() + output.stdout.len(), 3_000_000);
        assert_eq!(output.outcome, ExecOutcome::Exited(6));
    }
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
