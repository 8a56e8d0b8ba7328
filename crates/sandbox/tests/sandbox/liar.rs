//! A worker that says what is not so, and a hub that does not believe it.

use std::time::Duration;

use quintet_sandbox::hub::{
    ExecEvent, ExecHandle, ExecOutcome, ExecRequest, Have, HubSettings, RequestError, ShellEvent,
    TerminalSize,
};
use quintet_sandbox::proto::frame::{
    Body, End, FailureCode, Frame, INITIAL_CREDIT, Opened, Outcome, cost,
};
use quintet_sandbox::socket::WsMessage;
use tokio::net::TcpStream;
use tokio_tungstenite::MaybeTlsStream;

use serde_json::json;

use crate::bed::{Bed, Raw, raw_worker, soon};
use crate::commands::command;
use crate::files::{get, put};

const SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

struct Liar(Raw<MaybeTlsStream<TcpStream>>);

impl Liar {
    async fn registers(bed: &Bed) -> Self {
        let mut raw = raw_worker(&bed.url(), &["sandd.v2"]).await;
        assert_eq!(raw.register("w").await["success"], true);
        bed.online("w").await;
        Self(raw)
    }

    /// The number of the next stream that the hub opens.
    async fn is_asked(&mut self) -> u32 {
        loop {
            let frame = self.hears().await;
            if let Body::Open(_) = frame.body {
                return frame.stream;
            }
        }
    }

    async fn hears(&mut self) -> Frame {
        match self.0.message().await {
            WsMessage::Binary(bytes) => Frame::decode(&bytes).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    async fn is_told_to_stop(&mut self, stream: u32) {
        let cancel = Frame::new(stream, Body::Cancel);
        while self.hears().await != cancel {}
    }

    async fn says(&mut self, stream: u32, body: Body) {
        self.0.send_binary(Frame::new(stream, body).encode()).await;
    }

    async fn ends(&mut self, stream: u32, outcome: Outcome) {
        let end = End {
            outcome,
            duration_ms: 1,
            mirrored: None,
        };
        self.says(stream, Body::End(Box::new(end))).await;
    }
}

fn is_a_fault(error: &RequestError) -> bool {
    matches!(
        error,
        RequestError::Failed {
            code: Some(FailureCode::Protocol),
            ..
        }
    )
}

async fn next(handle: &mut ExecHandle) -> Result<ExecEvent, RequestError> {
    soon("an event", handle.next()).await
}

/// It costs no credit, so that nothing else would bound how many of them wait for a slow reader.
#[tokio::test]
async fn a_stream_is_opened_once() {
    let bed = Bed::start().await;
    let mut liar = Liar::registers(&bed).await;
    let starting = bed.hub.shell("w", SIZE, "dumb");
    let (mut shell, stream) = tokio::join!(async { starting.await.unwrap() }, async {
        let stream = liar.is_asked().await;
        liar.says(stream, Body::Opened(Opened::default())).await;
        stream
    });
    liar.says(stream, Body::Out("seen".into())).await;
    liar.says(stream, Body::Opened(Opened::default())).await;
    liar.says(stream, Body::Out("unseen".into())).await;
    assert_eq!(
        soon("output", shell.next()).await,
        Ok(ShellEvent::Output("seen".into()))
    );
    let error = soon("the end", shell.next()).await.unwrap_err();
    assert!(is_a_fault(&error), "{error:?}");
    liar.is_told_to_stop(stream).await;
}

#[tokio::test]
async fn numbers_beyond_all_measure_break_nothing() {
    let bed = Bed::start().await;
    let mut liar = Liar::registers(&bed).await;
    let mut handle = bed.hub.exec("w", command("true")).await.unwrap();
    let stream = liar.is_asked().await;
    let opened = Opened {
        lost_stdout: u64::MAX,
        lost_stderr: u64::MAX,
        ..Opened::default()
    };
    liar.says(stream, Body::Opened(opened)).await;
    liar.says(stream, Body::Out("more".into())).await;
    liar.ends(stream, Outcome::Exited { code: i32::MIN }).await;
    let dropped = ExecEvent::Dropped {
        stdout: u64::MAX,
        stderr: u64::MAX,
    };
    assert_eq!(next(&mut handle).await, Ok(dropped));
    assert_eq!(
        next(&mut handle).await,
        Ok(ExecEvent::Stdout("more".into()))
    );
    assert!(matches!(
        next(&mut handle).await,
        Ok(ExecEvent::Ended {
            outcome: ExecOutcome::Exited(i32::MIN),
            ..
        })
    ));

    for signal in [0, -9, 128, i32::MAX] {
        let mut handle = bed.hub.exec("w", command("true")).await.unwrap();
        let stream = liar.is_asked().await;
        liar.ends(stream, Outcome::Signaled { signal }).await;
        let error = next(&mut handle).await.unwrap_err();
        assert!(is_a_fault(&error), "{signal}: {error:?}");
    }
}

/// What is written here is what was announced, to the byte.
#[tokio::test]
async fn a_download_is_as_long_as_its_worker_said() {
    let bed = Bed::start().await;
    let mut liar = Liar::registers(&bed).await;
    let part = || Body::Out("12345678".into());
    let end = || Outcome::Complete;
    let have = Have {
        bytes: 100,
        blake3: blake3::hash(&[0; 100]).to_hex().to_string(),
    };
    // Where it goes on, the pieces that it sends, and whether it says that it has sent all.
    for (offset, pieces, ends, fault) in [
        (0, 2, true, None),
        (100, 0, true, Some("shorter")),
        (0, 1, true, Some("shorter")),
        (0, 3, false, Some("longer")),
        (99, 0, false, Some("goes on where")),
        (u64::MAX, 0, false, Some("goes on where")),
    ] {
        let receiving = async {
            let mut download = bed.hub.download("w", "f", Some(have.clone())).await?;
            let mut data = Vec::new();
            while let Some(bytes) = soon("bytes", download.next()).await? {
                data.extend_from_slice(&bytes);
            }
            Ok::<_, RequestError>(data)
        };
        let sending = async {
            let stream = liar.is_asked().await;
            let opened = Opened {
                offset,
                size: Some(if offset == 0 { 16 } else { 116 }),
                ..Opened::default()
            };
            liar.says(stream, Body::Opened(opened)).await;
            for _ in 0..pieces {
                liar.says(stream, part()).await;
            }
            if ends {
                liar.ends(stream, end()).await;
            } else {
                liar.is_told_to_stop(stream).await;
            }
        };
        let (received, ()) = tokio::join!(receiving, sending);
        match (received, fault) {
            (Ok(data), None) => assert_eq!(data, b"1234567812345678"),
            (Err(error), Some(words)) => {
                assert!(is_a_fault(&error), "{error:?}");
                assert!(error.to_string().contains(words), "{error}");
            }
            (received, _) => panic!("{offset} {pieces}: {received:?}"),
        }
    }
}

#[tokio::test]
async fn a_connection_that_registers_nobody_is_not_kept() {
    let settings = HubSettings {
        registration: Duration::from_secs(2),
        ..HubSettings::default()
    };
    let bed = Bed::with(settings).await;
    let mut silent = raw_worker(&bed.url(), &["sandd.v1"]).await;
    let (code, reason) = silent.closed().await.unwrap();
    assert_eq!((code, &*reason), (1008, "no worker has registered"));
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(raw.register("w").await["success"], true);
    bed.online("w").await;
}

#[tokio::test]
async fn what_comes_before_a_worker_registers_is_short() {
    let bed = Bed::start().await;
    let long =
        || serde_json::json!({ "type": "x", "text": "x".repeat(100_000), "request_id": "i" });
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    raw.send(long()).await;
    let closed = raw.closed().await;
    assert!(matches!(closed, None | Some((1009, _))), "{closed:?}");
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(raw.register("w").await["success"], true);
    raw.send(long()).await;
    assert_eq!(raw.json().await["type"], "error");
}

/// Version 1 has no other way to tell that a worker will not answer any more.
#[tokio::test]
async fn a_worker_that_does_not_answer_is_not_waited_for_for_ever() {
    let settings = HubSettings {
        patience: Duration::from_millis(200),
        ..HubSettings::default()
    };
    let bed = Bed::with(settings).await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(raw.register("w").await["success"], true);
    bed.online("w").await;
    let waited = |error: RequestError| matches!(error, RequestError::NoAnswer { .. });
    let error = put(&bed, "w", "f", b"x").await.unwrap_err();
    assert!(waited(error), "an upload");
    let error = get(&bed, "w", "f").await.unwrap_err();
    assert!(waited(error), "a download");
    // Its dialect shows with its first reply.
    let output = bed.hub.exec("w", command("true")).await.unwrap();
    let id = loop {
        let message = raw.json().await;
        if message["type"] == "execute_command" {
            break message["command_id"].clone();
        }
    };
    raw.send(json!({
        "type": "command_output", "command_id": id, "stdout": "", "stderr": "", "exit_code": 0,
        "duration_ms": 1,
    }))
    .await;
    soon("it ends", output.output(0)).await.unwrap();
    let error = bed.hub.shell("w", SIZE, "dumb").await.err().unwrap();
    assert!(waited(error), "a shell");
}

#[tokio::test]
async fn a_worker_that_stands_still_is_not_waited_for_longer_than_the_command_may_run() {
    let settings = HubSettings {
        silence: Duration::from_millis(100),
        ..HubSettings::default()
    };
    let bed = Bed::with(settings).await;
    let mut liar = Liar::registers(&bed).await;
    let allowed = Duration::from_millis(500);
    let request = ExecRequest {
        timeout: Some(allowed),
        ..command("sleep 9")
    };
    let mut handle = bed.hub.exec("w", request).await.unwrap();
    let stream = liar.is_asked().await;
    match next(&mut handle).await {
        Err(RequestError::Overdue {
            worker,
            allowed: told,
            silent,
        }) => {
            assert_eq!((worker.as_str(), told), ("w", allowed));
            assert!(silent >= settings.silence, "{silent:?}");
        }
        other => panic!("{other:?}"),
    }

    // It can still be ended, whenever that is.
    handle.cancel().await;
    liar.is_told_to_stop(stream).await;
    liar.ends(stream, Outcome::Cancelled).await;
    let ended = ExecEvent::Ended {
        outcome: ExecOutcome::Cancelled,
        duration: Duration::from_millis(1),
    };
    assert_eq!(next(&mut handle).await, Ok(ended));
}

#[tokio::test]
async fn a_worker_that_lives_and_never_answers_is_not_waited_for_for_ever_either() {
    let settings = HubSettings {
        patience: Duration::from_millis(200),
        ..HubSettings::default()
    };
    let bed = Bed::with(settings).await;
    for (id, protocol) in [("old", "sandd.v1"), ("new", "sandd.v2")] {
        let mut raw = raw_worker(&bed.url(), &[protocol]).await;
        assert_eq!(raw.register(id).await["success"], true);
        bed.online(id).await;
        let request = ExecRequest {
            timeout: Some(Duration::from_millis(100)),
            ..command("true")
        };
        let mut handle = bed.hub.exec(id, request).await.unwrap();
        let error = next(&mut handle).await.unwrap_err();
        assert!(matches!(error, RequestError::NoAnswer { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn an_answer_that_lacks_something_is_an_answer() {
    let bed = Bed::start().await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(raw.register("w").await["success"], true);
    bed.online("w").await;
    // Twice: only the first of its kind is worth a line in the log.
    for _ in 0..2 {
        let output = bed.hub.exec("w", command("true")).await.unwrap();
        let id = loop {
            let message = raw.json().await;
            if message["type"] == "execute_command" {
                break message["command_id"].clone();
            }
        };
        // Of a type that a later worker may have, which ends nothing.
        raw.send(json!({ "type": "command_progress", "command_id": id }))
            .await;
        raw.send(json!({
            "type": "command_output", "command_id": id, "stdout": "", "exit_code": 0,
            "duration_ms": 1,
        }))
        .await;
        let error = soon("it ends", output.output(0)).await.unwrap_err();
        assert!(error.to_string().contains("lacks stderr"), "{error}");
    }
}

#[tokio::test]
async fn a_download_that_nobody_wants_any_more_is_given_up() {
    let bed = Bed::start().await;
    let mut liar = Liar::registers(&bed).await;
    let starting = bed.hub.download("w", "f", None);
    let (download, stream) = tokio::join!(async { starting.await.unwrap() }, async {
        let stream = liar.is_asked().await;
        liar.says(stream, Body::Opened(Opened::default())).await;
        stream
    });
    drop(download);
    liar.is_told_to_stop(stream).await;
}

#[tokio::test]
async fn a_chunk_of_version_1_is_the_next_one() {
    let bed = Bed::start().await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v1"]).await;
    assert_eq!(raw.register("w").await["success"], true);
    bed.online("w").await;
    // "xxxxx"
    let chunk = |id: &serde_json::Value, offset: i64, is_last: bool| {
        json!({
            "type": "file_download_chunk", "transfer_id": id, "data": "eHh4eHg=", "offset": offset, "is_last": is_last,
        })
    };
    for second in [0, 3, 6, -5, i64::MAX] {
        let mut download = bed.hub.download("w", "f", None).await.unwrap();
        let id = raw.json().await["transfer_id"].clone();
        raw.send(chunk(&id, 0, false)).await;
        raw.send(chunk(&id, second, true)).await;
        let first = soon("a chunk", download.next()).await;
        assert_eq!(first, Ok(Some("xxxxx".into())));
        let error = soon("the fault", download.next()).await.unwrap_err();
        assert!(is_a_fault(&error), "{second}: {error:?}");
    }
    let mut download = bed.hub.download("w", "f", None).await.unwrap();
    let id = raw.json().await["transfer_id"].clone();
    raw.send(chunk(&id, 0, false)).await;
    raw.send(chunk(&id, 5, true)).await;
    for expected in [Some("xxxxx".into()), Some("xxxxx".into()), None] {
        assert_eq!(soon("a chunk", download.next()).await, Ok(expected));
    }
}

/// Whoever does not read lets its worker send a window and no more.
#[tokio::test]
async fn a_worker_may_send_what_its_reader_takes_and_no_more() {
    let bed = Bed::start().await;
    let mut liar = Liar::registers(&bed).await;
    let mut handle = bed.hub.exec("w", command("true")).await.unwrap();
    let stream = liar.is_asked().await;
    let piece = || Body::Out(vec![1; 60_000].into());
    let fitting = INITIAL_CREDIT / cost(60_000);
    for _ in 0..fitting {
        liar.says(stream, piece()).await;
    }
    // Nobody has read any of it: what the worker hears next is the answer to this.
    liar.0
        .send(json!({"type": "gibberish", "request_id": "g"}))
        .await;
    assert_eq!(liar.0.json().await["request_id"], "g");
    // Read, there is room for more.
    let first = next(&mut handle).await.unwrap();
    assert!(matches!(first, ExecEvent::Stdout(bytes) if bytes.len() == 60_000));
    let heard = liar.hears().await;
    assert!(
        matches!(heard, Frame { stream: it, body: Body::Credit(more) } if it == stream && more > 0),
        "{heard:?}"
    );
    drop(handle);

    // One that takes no notice loses its stream, and no other.
    let mut greedy = bed.hub.exec("w", command("true")).await.unwrap();
    let stream = liar.is_asked().await;
    for _ in 0..=fitting {
        liar.says(stream, piece()).await;
    }
    liar.is_told_to_stop(stream).await;
    for _ in 0..fitting {
        let event = next(&mut greedy).await.unwrap();
        assert!(matches!(event, ExecEvent::Stdout(_)), "{event:?}");
    }
    let error = next(&mut greedy).await.unwrap_err();
    assert!(error.to_string().contains("beyond its credit"), "{error}");
    let mut third = bed.hub.exec("w", command("true")).await.unwrap();
    let stream = liar.is_asked().await;
    liar.ends(stream, Outcome::Exited { code: 0 }).await;
    assert!(next(&mut third).await.is_ok());
}

#[tokio::test]
async fn a_transfer_that_stands_still_ends() {
    let bed = Bed::with(HubSettings {
        patience: Duration::from_secs(1),
        ..HubSettings::default()
    })
    .await;
    let mut liar = Liar::registers(&bed).await;
    // Its end never comes, nor leave to send more than the first pieces.
    for size in [1, 4 * INITIAL_CREDIT as usize] {
        let upload = crate::files::upload("f", size);
        let mut source = std::io::Cursor::new(vec![0; size]);
        let sending = soon(
            "an upload",
            bed.hub.upload("w", &upload, &mut source, |_| {}),
        );
        let (sent, stream) = tokio::join!(sending, async {
            let stream = liar.is_asked().await;
            liar.says(stream, Body::Opened(Opened::default())).await;
            stream
        });
        let is_over = matches!(sent, Err(RequestError::NoAnswer { .. }));
        assert!(is_over, "{size}: {sent:?}");
        liar.is_told_to_stop(stream).await;
    }
    let starting = bed.hub.download("w", "f", None);
    let (download, stream) = tokio::join!(async { starting.await.unwrap() }, async {
        let stream = liar.is_asked().await;
        liar.says(stream, Body::Opened(Opened::default())).await;
        liar.says(stream, Body::Out(vec![1; 10].into())).await;
        stream
    });
    let mut download = download;
    let first = soon("a piece", download.next()).await;
    assert_eq!(first, Ok(Some(vec![1; 10].into())));
    let got = soon("the end", download.next()).await;
    assert!(matches!(got, Err(RequestError::NoAnswer { .. })), "{got:?}");
    liar.is_told_to_stop(stream).await;
}

#[tokio::test]
async fn a_worker_that_answers_nothing_is_waited_for_no_longer_than_was_said() {
    let bed = Bed::with(HubSettings {
        patience: Duration::from_millis(50),
        ..HubSettings::default()
    })
    .await;
    let _silent = Liar::registers(&bed).await;
    let hub = &bed.hub;
    let silent = |result: Result<(), RequestError>| {
        assert!(
            matches!(result, Err(RequestError::NoAnswer { .. })),
            "{result:?}"
        );
    };
    silent(soon("jobs", hub.jobs("w")).await.map(drop));
    silent(soon("a listing", hub.list("w", "d")).await.map(drop));
    silent(
        soon("a download", hub.download("w", "f", None))
            .await
            .map(drop),
    );
    let upload = crate::files::upload("f", 1);
    let mut source = std::io::Cursor::new(b"x".to_vec());
    silent(soon("an upload", hub.upload("w", &upload, &mut source, |_| {})).await);
    silent(
        soon("a shell", hub.shell("w", SIZE, "xterm"))
            .await
            .map(drop),
    );
    silent(
        soon("a shell again", hub.attach_shell("w", "id"))
            .await
            .map(drop),
    );
}
