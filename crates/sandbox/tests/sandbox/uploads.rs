//! Uploads that are interrupted, wrong, or find no room.

use std::io::Cursor;
use std::path::Path;
use std::time::Duration;

use quintet_sandbox::hub::{HubEvent, RequestError, WorkerStatus};
use quintet_sandbox::proto::Protocol;
use quintet_sandbox::proto::frame::{
    Body, End, FailureCode, Frame, INITIAL_CREDIT, MAX_PIECE, Open, Opened, Outcome, cost,
};
use quintet_sandbox::socket::WsMessage;
use serde_json::json;

use crate::bed::{Bed, Lone, Program, Raw, raw_worker, soon};
use crate::commands::{command, run};
use crate::files::{get, pattern, put, upload};

/// Opens a v2 upload by hand; `None` when the worker still writes an earlier one.
async fn try_upload<S>(raw: &mut Raw<S>, stream: u32, data: &[u8]) -> Option<Opened>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    let open = Open::Upload {
        path: "big".to_owned(),
        total_size: data.len() as u64,
        mode: None,
        mtime_ms: None,
        mtime_ns: None,
    };
    raw.send_binary(Frame::new(stream, Body::Open(Box::new(open))).encode())
        .await;
    match frame(raw).await.body {
        Body::Opened(opened) => Some(opened),
        Body::End(_) => None,
        other => panic!("{other:?}"),
    }
}

async fn send_parts<S>(raw: &mut Raw<S>, stream: u32, begin: u64, data: &[u8])
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    raw.send_binary(Frame::new(stream, Body::Begin(begin)).encode())
        .await;
    for part in data.chunks(50_000) {
        let body = Body::In(bytes::Bytes::copy_from_slice(part));
        raw.send_binary(Frame::new(stream, body).encode()).await;
    }
}

async fn frame<S>(raw: &mut Raw<S>) -> Frame
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    match raw.message().await {
        WsMessage::Binary(bytes) => Frame::decode(&bytes).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn end_of<S>(raw: &mut Raw<S>) -> End
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    loop {
        if let Body::End(end) = frame(raw).await.body {
            return *end;
        }
    }
}

#[tokio::test]
async fn an_interrupted_upload_continues_where_it_stopped() {
    let lone = Lone::start(|_| {}).await;
    let data = pattern(400_000);
    let mut raw = lone.hub.accept(Protocol::V2).await;
    let opened = try_upload(&mut raw, 1, &data).await.unwrap();
    assert_eq!(opened.offset, 0);
    send_parts(&mut raw, 1, 0, &data[..150_000]).await;
    soon("it is written", async {
        let part = lone.root().join(part_file(&lone));
        while std::fs::metadata(&part).unwrap().len() < 150_000 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    drop(raw);
    let mut raw = lone.hub.accept(Protocol::V2).await;
    // Until the first attempt has seen the end of its connection, the file is busy.
    let mut stream = 0;
    let opened = loop {
        stream += 1;
        match try_upload(&mut raw, stream, &data).await {
            Some(opened) => break opened,
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!(opened.offset, 150_000);
    assert_eq!(
        opened.blake3.unwrap(),
        blake3::hash(&data[..150_000]).to_hex().to_string()
    );
    lone.assert_root_holds(&[&part_file(&lone)]);
    send_parts(&mut raw, stream, opened.offset, &data[150_000..]).await;
    raw.send_binary(Frame::new(stream, Body::Eof).encode())
        .await;
    assert_eq!(end_of(&mut raw).await.outcome, Outcome::Complete);
    lone.assert_root_holds(&["big"]);
    assert!(std::fs::read(lone.root().join("big")).unwrap() == data);
}

fn part_file(lone: &Lone) -> String {
    crate::bed::names_in(&lone.root())
        .into_iter()
        .find(|name| name.ends_with(".part"))
        .unwrap_or_default()
}

#[tokio::test]
async fn a_changed_source_starts_its_upload_again() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let data = pattern(300_000);
    // What an earlier attempt left, of other bytes.
    let part = bed.root("w").join(format!(
        ".quintet-{}.part",
        &blake3::hash(b"big").to_hex()[..32]
    ));
    std::fs::write(&part, vec![0; 100_000]).unwrap();
    let mut seen = Vec::new();
    let mut source = Cursor::new(data.clone());
    bed.hub
        .upload("w", &upload("big", data.len()), &mut source, |at| {
            seen.push(at);
        })
        .await
        .unwrap();
    assert_eq!(seen[0], 0);
    assert!(std::fs::read(bed.root("w").join("big")).unwrap() == data);
    // The same bytes are not sent again.
    std::fs::write(&part, &data[..100_000]).unwrap();
    let mut seen = Vec::new();
    let mut source = Cursor::new(data.clone());
    bed.hub
        .upload("w", &upload("big", data.len()), &mut source, |at| {
            seen.push(at);
        })
        .await
        .unwrap();
    assert_eq!(seen[0], 100_000);
    assert!(std::fs::read(bed.root("w").join("big")).unwrap() == data);
}

#[tokio::test]
async fn chunks_that_are_wrong_end_their_upload_and_leave_nothing() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V1).await;
    let chunk = |id: &str, offset: i64| json!({"type": "file_upload_chunk", "transfer_id": id, "data": "eHh4eHg=", "offset": offset});
    let wrong: Vec<(&str, i64, Vec<serde_json::Value>)> = vec![
        ("gap", 10, vec![chunk("gap", 1)]),
        (
            "overlap",
            10,
            vec![chunk("overlap", 0), chunk("overlap", 3)],
        ),
        ("repeat", 10, vec![chunk("repeat", 0), chunk("repeat", 0)]),
        ("beyond", 4, vec![chunk("beyond", 0)]),
        ("negative", 10, vec![chunk("negative", -5)]),
        ("size", -1, vec![]),
        (
            "base64",
            10,
            vec![
                json!({"type": "file_upload_chunk", "transfer_id": "base64", "data": "%%%", "offset": 0}),
            ],
        ),
    ];
    for (id, total, chunks) in wrong {
        raw.send(json!({"type": "file_upload_start", "transfer_id": id, "path": "f", "total_size": total})).await;
        for chunk in chunks {
            raw.send(chunk).await;
        }
        let reply = loop {
            let reply = raw.json().await;
            // Bad base64 is also answered as a message that can't be used.
            if reply["type"] != "error" {
                break reply;
            }
        };
        assert_eq!(reply["type"], "file_upload_complete", "{id}");
        assert_eq!(
            (&reply["transfer_id"], &reply["success"]),
            (&json!(id), &json!(false))
        );
        assert!(reply["error"].is_string());
        lone.assert_root_holds(&[]);
    }
    raw.send(chunk("never started", 0)).await;
    let reply = raw.json().await;
    assert_eq!(
        (&reply["type"], &reply["transfer_id"]),
        (&json!("error"), &json!("never started"))
    );
    // The connection is still good.
    raw.send(
        json!({"type": "file_upload_start", "request_id": "ok", "path": "f", "total_size": 0}),
    )
    .await;
    let reply = raw.json().await;
    assert_eq!(
        (&reply["request_id"], &reply["success"]),
        (&json!("ok"), &json!(true))
    );
    lone.assert_root_holds(&["f"]);
}

#[tokio::test]
async fn frames_that_are_wrong_end_their_upload_and_no_file_appears() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V2).await;
    let data = |len: usize| Body::In(vec![1; len].into());
    let wrong: Vec<Vec<Body>> = vec![
        // It begins where nothing is.
        vec![Body::Begin(5)],
        vec![Body::Begin(u64::MAX)],
        // It begins with bytes, or twice, or with its end.
        vec![data(10)],
        vec![Body::Begin(0), data(3), Body::Begin(0)],
        vec![Body::Eof],
        // There is more of it than was said, or less.
        vec![Body::Begin(0), data(11)],
        vec![Body::Begin(0), data(6), data(6)],
        vec![Body::Begin(0), data(9), Body::Eof],
    ];
    for (stream, bodies) in (1..).zip(wrong) {
        let open = Open::Upload {
            path: format!("f{stream}"),
            total_size: 10,
            mode: None,
            mtime_ms: None,
            mtime_ns: None,
        };
        let shown = format!("{bodies:?}");
        for body in [Body::Open(Box::new(open))].into_iter().chain(bodies) {
            raw.send_binary(Frame::new(stream, body).encode()).await;
        }
        let outcome = end_of(&mut raw).await.outcome;
        assert!(
            matches!(
                outcome,
                Outcome::Failed {
                    code: FailureCode::Protocol,
                    ..
                }
            ),
            "{shown}: {outcome:?}"
        );
        assert!(!lone.root().join(format!("f{stream}")).exists(), "{shown}");
    }
}

#[tokio::test]
async fn an_upload_that_is_never_finished_leaves_nothing() {
    let lone = Lone::start(|config| {
        config.quotas.transfer_idle = Duration::from_millis(200);
    })
    .await;
    let start =
        json!({"type": "file_upload_start", "transfer_id": "u", "path": "f", "total_size": 100});
    let chunk =
        json!({"type": "file_upload_chunk", "transfer_id": "u", "data": "eHh4", "offset": 0});
    let mut raw = lone.hub.accept(Protocol::V1).await;
    raw.send(start.clone()).await;
    raw.send(chunk.clone()).await;
    let reply = raw.json().await;
    assert_eq!(reply["success"], false);
    assert!(reply["error"].as_str().unwrap().contains("nothing came"));
    lone.assert_root_holds(&[]);
    // The same when the connection is lost before that.
    raw.send(start).await;
    raw.send(chunk).await;
    drop(raw);
    // The worker may not have begun with it yet, or not have ended.
    let folders = [lone.root(), lone.dir.path().join("spool")];
    soon("it is cleaned up", async {
        while !folders.iter().all(|it| crate::bed::names_in(it).is_empty()) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_hub_that_sends_beyond_its_credit_loses_its_stream() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V2).await;
    let open = Open::Exec {
        id: "j".to_owned(),
        command: "sleep 1000".to_owned(),
        timeout_ms: None,
        timeout_secs: 1000,
        env: Default::default(),
        cwd: None,
        stdin: true,
        mirror: None,
    };
    raw.send_binary(Frame::new(1, Body::Open(Box::new(open))).encode())
        .await;
    for _ in 0..8 {
        let body = Body::In(vec![0; 60_000].into());
        raw.send_binary(Frame::new(1, body).encode()).await;
    }
    assert_eq!(end_of(&mut raw).await.outcome, Outcome::Cancelled);
    raw.send_binary(Frame::new(2, Body::Open(Box::new(Open::Jobs))).encode())
        .await;
    assert!(matches!(
        end_of(&mut raw).await.outcome,
        Outcome::Jobs { .. }
    ));
}

#[tokio::test]
async fn a_hub_that_sends_more_of_a_file_than_was_allowed_loses_its_upload() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V2).await;
    let data = vec![1; 6 << 20];
    try_upload(&mut raw, 1, &data).await.unwrap();
    for body in [Body::Begin(0), Body::In(data[..5 << 20].to_vec().into())] {
        raw.send_binary(Frame::new(1, body).encode()).await;
    }
    let Outcome::Failed {
        code: FailureCode::Protocol,
        error,
    } = end_of(&mut raw).await.outcome
    else {
        panic!("it was taken");
    };
    assert!(error.contains("beyond its credit"), "{error}");
    assert!(!lone.root().join("big").exists());
}

#[tokio::test]
async fn a_file_that_is_being_uploaded_is_not_uploaded_beside_that() {
    let lone = Lone::start(|_| {}).await;
    let mut raw = lone.hub.accept(Protocol::V2).await;
    let data = pattern(100_000);
    assert_eq!(try_upload(&mut raw, 1, &data).await.unwrap().offset, 0);
    assert_eq!(try_upload(&mut raw, 2, &data).await, None);
    send_parts(&mut raw, 1, 0, &data).await;
    raw.send_binary(Frame::new(1, Body::Eof).encode()).await;
    assert_eq!(end_of(&mut raw).await.outcome, Outcome::Complete);
    assert!(std::fs::read(lone.root().join("big")).unwrap() == data);
}

/// What a worker that was killed left: nobody else removes it.
#[tokio::test]
async fn a_worker_tidies_at_its_start_what_an_earlier_run_left() {
    let bed = Bed::start().await;
    let program = bed.program("w", json!({"v1_only": true})).await;
    let mut halted = Interrupted::new(pattern(700_000));
    let half = halted.half.clone();
    let mut source = halted.source();
    let request = upload("f", 700_000);
    tokio::select! {
        result = bed.hub.upload("w", &request, &mut source, |_| {}) => panic!("{result:?}"),
        () = async {
            half.notified().await;
            soon("something arrives", arrives(&bed.root("w"))).await;
            drop(program);
        } => {}
    }
    bed.status("w", WorkerStatus::Offline).await;
    assert_eq!(crate::bed::names_in(&bed.root("w")).len(), 1);
    let spool = bed.dir.path().join("spool-w");
    std::fs::write(spool.join("job-left"), b"output of a job that died").unwrap();
    let _program = bed.program("w", json!({})).await;
    for folder in [bed.root("w"), spool] {
        let left = crate::bed::names_in(&folder);
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test]
async fn a_hub_sends_no_more_of_a_file_than_its_worker_allows() {
    let bed = Bed::start().await;
    let mut raw = raw_worker(&bed.url(), &["sandd.v2"]).await;
    raw.register("w").await;
    bed.online("w").await;
    let hub = bed.hub.clone();
    let mut uploading = tokio::task::JoinSet::new();
    uploading.spawn(async move {
        let data = pattern(2_000_000);
        let request = upload("f", data.len());
        let mut source = Cursor::new(data);
        hub.upload("w", &request, &mut source, |_| {}).await
    });
    let stream = frame(&mut raw).await.stream;
    let opened = Body::Opened(Opened::default());
    raw.send_binary(Frame::new(stream, opened).encode()).await;
    assert_eq!(frame(&mut raw).await.body, Body::Begin(0));
    let mut spent = 0;
    while spent + cost(MAX_PIECE) <= INITIAL_CREDIT {
        let Body::In(bytes) = frame(&mut raw).await.body else {
            panic!("bytes were expected");
        };
        spent += cost(bytes.len());
    }
    uploading.abort_all();
    assert_eq!(frame(&mut raw).await.body, Body::Cancel);
}

#[tokio::test]
async fn quotas_are_said_before_a_byte_is_sent() {
    let bed = Bed::start().await;
    let mut config = bed.config("w");
    config.quotas.upload_bytes = 1000;
    config.quotas.transfers = 0;
    let worker = bed.worker_with(config.clone()).await;
    assert!(matches!(
        put(&bed, "w", "f", b"x").await,
        Err(RequestError::Failed {
            code: Some(FailureCode::Quota),
            ..
        })
    ));
    worker.stop().await;
    config.quotas.transfers = 1;
    let _worker = bed.worker_with(config).await;
    put(&bed, "w", "f", &[0; 1000]).await.unwrap();
    let error = put(&bed, "w", "f", &[0; 1001]).await.unwrap_err();
    assert!(error.to_string().contains("limit of 1000"), "{error}");
}

/// A worker in a mount namespace of its own, with a file system of one megabyte as its root.
async fn worker_on_a_megabyte(bed: &Bed, v1_only: bool) -> Program {
    let settings = bed.settings_of("w", json!({"v1_only": v1_only}));
    let root = bed.root("w");
    let mount = format!(
        "mount -t tmpfs -o size=1m none {} && exec \"$@\"",
        root.display()
    );
    let program = Program::start(&settings, &["unshare", "-rm", "sh", "-c", &mount, "sh"]);
    bed.online("w").await;
    program
}

#[tokio::test]
async fn what_does_not_fit_on_the_disk_is_said_before_a_byte_is_sent() {
    let bed = Bed::start().await;
    let _program = worker_on_a_megabyte(&bed, false).await;
    let error = put(&bed, "w", "f", &pattern(2_000_000)).await.unwrap_err();
    let RequestError::Failed {
        code: Some(FailureCode::Quota),
        error,
    } = error
    else {
        panic!("{error:?}");
    };
    assert!(error.contains("2000000 bytes do not fit"), "{error}");
    let sent = bed.events().into_iter().find_map(|event| match event {
        HubEvent::TransferEnded { bytes, .. } => Some(bytes),
        _ => None,
    });
    assert_eq!(sent, Some(0));
}

#[tokio::test]
async fn a_full_disk_ends_the_upload_and_what_came_is_gone_on_with_when_there_is_room() {
    let bed = Bed::start().await;
    let _program = worker_on_a_megabyte(&bed, false).await;
    let data = pattern(900_000);
    let error = put(&bed, "w", "f", &pattern(2_000_000)).await.unwrap_err();
    assert!(matches!(
        error,
        RequestError::Failed {
            code: Some(FailureCode::Quota),
            ..
        }
    ));
    let mut slow = Interrupted::new(data.clone());
    let (half, go) = (slow.half.clone(), slow.go.clone());
    let filler = async {
        half.notified().await;
        let line =
            "until [ -s .quintet-*.part ]; do :; done; head -c 600000 /dev/zero > filler; sync";
        run(&bed, "w", command(line)).await;
        go.notify_one();
    };
    let (request, mut source) = (upload("f", data.len()), slow.source());
    let (result, ()) = tokio::join!(bed.hub.upload("w", &request, &mut source, |_| {}), filler);
    let error = result.unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    run(&bed, "w", command("rm filler")).await;
    // There is room for what is missing, and for no more than that.
    let mut begun = None;
    let mut source = Cursor::new(data.clone());
    bed.hub
        .upload("w", &request, &mut source, |at| {
            begun.get_or_insert(at);
        })
        .await
        .unwrap();
    assert!(begun.is_some_and(|at| at > 200_000), "{begun:?}");
    assert!(get(&bed, "w", "f").await.unwrap() == data);
}

#[tokio::test]
async fn a_full_disk_ends_a_v1_upload_and_leaves_nothing() {
    let bed = Bed::start().await;
    let _program = worker_on_a_megabyte(&bed, true).await;
    let error = put(&bed, "w", "f", &pattern(2_000_000)).await.unwrap_err();
    assert!(error.to_string().contains("do not fit"), "{error}");
    // There was room when it began and there is none now.
    let mut slow = Interrupted::new(pattern(700_000));
    let request = upload("f", 700_000);
    let hub = bed.hub.clone();
    let (half, go) = (slow.half.clone(), slow.go.clone());
    let filler = async {
        half.notified().await;
        run(
            &bed,
            "w",
            // The worker has accepted the upload when something of it is there.
            command(
                "until [ -n \"$(ls -A)\" ]; do :; done; head -c 600000 /dev/zero > filler; sync",
            ),
        )
        .await;
        go.notify_one();
    };
    let mut source = slow.source();
    let (result, ()) = tokio::join!(hub.upload("w", &request, &mut source, |_| {}), filler);
    let error = result.unwrap_err();
    assert!(error.to_string().contains("No space left"), "{error}");
    let output = run(&bed, "w", command("ls -A")).await;
    assert_eq!(output.stdout, b"filler\n");
}

/// A source that stands still in the middle until it is told to go on.
struct Interrupted {
    data: Vec<u8>,
    half: std::sync::Arc<tokio::sync::Notify>,
    go: std::sync::Arc<tokio::sync::Notify>,
}

impl Interrupted {
    fn new(data: Vec<u8>) -> Self {
        Self {
            data,
            half: Default::default(),
            go: Default::default(),
        }
    }

    fn source(&mut self) -> PausingSource {
        let (half, go) = (self.half.clone(), self.go.clone());
        PausingSource {
            data: Cursor::new(std::mem::take(&mut self.data)),
            pause: Some(Box::pin(async move {
                half.notify_one();
                go.notified().await;
            })),
        }
    }
}

struct PausingSource {
    data: Cursor<Vec<u8>>,
    pause: Option<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>,
}

impl tokio::io::AsyncRead for PausingSource {
    fn poll_read(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buffer: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<std::io::Result<()>> {
        // More than one piece of it has gone by then.
        if self.data.position() >= MAX_PIECE as u64 + 100_000
            && let Some(pause) = &mut self.pause
        {
            std::task::ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let most = buffer.remaining().min(50_000);
        let mut part = buffer.take(most);
        let before = part.filled().len();
        let result = std::pin::Pin::new(&mut self.data).poll_read(cx, &mut part);
        let read = part.filled().len() - before;
        buffer.advance(read);
        result
    }
}

impl tokio::io::AsyncSeek for PausingSource {
    fn start_seek(
        mut self: std::pin::Pin<&mut Self>,
        to: std::io::SeekFrom,
    ) -> std::io::Result<()> {
        std::pin::Pin::new(&mut self.data).start_seek(to)
    }

    fn poll_complete(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::io::Result<u64>> {
        std::pin::Pin::new(&mut self.data).poll_complete(cx)
    }
}

#[tokio::test]
async fn an_upload_that_was_given_up_leaves_its_name_to_the_next() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let data = pattern(700_000);
    let request = upload("f", data.len());
    let mut halted = Interrupted::new(data.clone());
    let half = halted.half.clone();
    let mut source = halted.source();
    tokio::select! {
        result = bed.hub.upload("w", &request, &mut source, |_| {}) => panic!("{result:?}"),
        () = async {
            half.notified().await;
            soon("something arrives", arrives(&bed.root("w"))).await;
        } => {}
    }
    put(&bed, "w", "f", &data).await.unwrap();
    assert!(std::fs::read(bed.root("w").join("f")).unwrap() == data);
    let ends: Vec<(u64, String)> = bed
        .events()
        .into_iter()
        .filter_map(|event| match event {
            HubEvent::TransferEnded { bytes, result, .. } => Some((bytes, result)),
            _ => None,
        })
        .collect();
    let [(before, given_up), (after, complete)] = &ends[..] else {
        panic!("{ends:?}");
    };
    assert_eq!((&**given_up, &**complete), ("given up", "complete"));
    assert!(*before > 0 && *before < 700_000, "{ends:?}");
    assert!(*after < 700_000, "it went on with what was there: {ends:?}");
}

/// Waits until a file in the folder has bytes.
async fn arrives(folder: &Path) {
    let has_bytes = || {
        let mut entries = std::fs::read_dir(folder).unwrap();
        entries.any(|entry| entry.unwrap().metadata().unwrap().len() > 0)
    };
    while !has_bytes() {
        tokio::task::yield_now().await;
    }
}
