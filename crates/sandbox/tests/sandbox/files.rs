//! Uploads and downloads, over both versions, and everything that is wrong with them.

use std::io::{Cursor, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use quintet_sandbox::hub::{FolderRequest, Have, HubEvent, RequestError, UploadRequest};
use quintet_sandbox::proto::Protocol;
use quintet_sandbox::proto::frame::{
    Body, End, EntryKind, FailureCode, Frame, Open, Opened, Outcome,
};
use quintet_sandbox::socket::WsMessage;
use serde_json::json;

use crate::bed::{Bed, Lone, Program, Raw, soon};
use crate::commands::{command, run};

fn upload(path: &str, size: usize) -> UploadRequest {
    UploadRequest {
        path: path.to_owned(),
        size: size as u64,
        mode: None,
        modified: None,
    }
}

async fn put(bed: &Bed, worker: &str, path: &str, data: &[u8]) -> Result<(), RequestError> {
    let request = upload(path, data.len());
    let mut source = Cursor::new(data.to_vec());
    soon(
        "the upload",
        bed.hub.upload(worker, &request, &mut source, |_| {}),
    )
    .await
}

async fn get(bed: &Bed, worker: &str, path: &str) -> Result<Vec<u8>, RequestError> {
    let mut download = bed.hub.download(worker, path, None).await?;
    let mut data = Vec::new();
    while let Some(bytes) = soon("a chunk", download.next()).await? {
        data.extend_from_slice(&bytes);
    }
    Ok(data)
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

#[tokio::test]
async fn files_of_every_size_arrive_as_they_were() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    for worker in ["v1", "v2"] {
        for size in [0, 1, 65535, 65536, 65537, 1_000_000] {
            let data = pattern(size);
            let path = format!("a/b/file-{size}");
            put(&bed, worker, &path, &data).await.unwrap();
            assert!(std::fs::read(bed.root(worker).join(&path)).unwrap() == data);
            assert!(
                get(&bed, worker, &path).await.unwrap() == data,
                "{worker} {size}"
            );
        }
        let names = crate::bed::names_in(&bed.root(worker).join("a/b"));
        assert!(
            names.iter().all(|name| name.starts_with("file-")),
            "{names:?}"
        );
        let spool = bed.dir.path().join(format!("spool-{worker}"));
        assert!(crate::bed::names_in(&spool).is_empty());
    }
    assert!(bed.events().iter().any(|event| matches!(event,
        HubEvent::TransferEnded { bytes: 1_000_000, result, .. } if result == "complete")));
}

#[tokio::test]
async fn mode_and_time_are_kept() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_600_000_000, 123_456_789);
    for worker in ["v1", "v2"] {
        let request = UploadRequest {
            mode: Some(0o750),
            modified: Some(then),
            ..upload("tool", 2)
        };
        let mut source = Cursor::new(b"hi".to_vec());
        bed.hub
            .upload(worker, &request, &mut source, |_| {})
            .await
            .unwrap();
        let metadata = std::fs::metadata(bed.root(worker).join("tool")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o750);
        if worker == "v2" {
            assert_eq!(metadata.modified().unwrap(), then);
            let download = bed.hub.download(worker, "tool", None).await.unwrap();
            assert_eq!(download.file().mode, Some(0o750));
            assert_eq!(download.file().modified, Some(then));
        }
        // Without a mode, a file that is replaced keeps its own.
        put(&bed, worker, "tool", b"new").await.unwrap();
        let metadata = std::fs::metadata(bed.root(worker).join("tool")).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o7777, 0o750);
    }
}

#[tokio::test]
async fn a_path_that_escapes_is_refused_both_ways() {
    let bed = Bed::start().await;
    let _v2 = bed.worker("v2").await;
    let _v1 = bed.v1_worker("v1").await;
    let secret = bed.dir.path().join("secret");
    std::fs::write(&secret, b"secret").unwrap();
    for worker in ["v1", "v2"] {
        let root = bed.root(worker);
        symlink(&secret, root.join("link")).unwrap();
        symlink(bed.dir.path(), root.join("folder")).unwrap();
        let inside = root.canonicalize().unwrap().join("inside");
        put(&bed, worker, inside.to_str().unwrap(), b"x")
            .await
            .unwrap();
        for path in [
            "../secret",
            "x/../../secret",
            secret.to_str().unwrap(),
            "link",
            "folder/secret",
            "/proc/self/root/etc/passwd",
        ] {
            assert!(
                get(&bed, worker, path).await.is_err(),
                "{worker} get {path}"
            );
            assert!(
                put(&bed, worker, path, b"evil").await.is_err(),
                "{worker} put {path}"
            );
        }
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
        assert!(
            std::fs::symlink_metadata(root.join("link"))
                .unwrap()
                .is_symlink()
        );
    }
    assert!(matches!(
        get(&bed, "v2", "link").await,
        Err(RequestError::Failed {
            code: Some(FailureCode::Path),
            ..
        })
    ));
}

/// A download that stands still because its reader does, while the file changes.
async fn download_while(bed: &Bed, change: impl FnOnce(&Path)) -> Result<Vec<u8>, RequestError> {
    let path = bed.root("w").join("file");
    std::fs::write(&path, pattern(16_000_000)).unwrap();
    let mut download = bed.hub.download("w", "file", None).await?;
    let mut data = download.next().await?.unwrap().to_vec();
    change(&path);
    while let Some(bytes) = soon("a chunk", download.next()).await? {
        data.extend_from_slice(&bytes);
    }
    Ok(data)
}

#[tokio::test]
async fn a_file_that_changes_while_it_is_read() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let grown = download_while(&bed, |path| {
        let mut file = std::fs::File::options().append(true).open(path).unwrap();
        file.write_all(b"more").unwrap();
    });
    assert!(grown.await.unwrap() == pattern(16_000_000), "it grew");
    let replaced = download_while(&bed, |path| {
        let other = path.with_extension("new");
        std::fs::write(&other, b"other").unwrap();
        std::fs::rename(&other, path).unwrap();
    });
    assert!(
        replaced.await.unwrap() == pattern(16_000_000),
        "it was replaced"
    );
    let shrunk = download_while(&bed, |path| {
        std::fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(100)
            .unwrap();
    });
    let error = shrunk.await.unwrap_err();
    assert!(error.to_string().contains("shorter"), "{error}");
}

#[tokio::test]
async fn an_interrupted_download_continues_and_a_changed_file_starts_again() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let data = pattern(3_000_000);
    std::fs::write(bed.root("w").join("file"), &data).unwrap();
    let have = Have {
        bytes: 1_000_000,
        blake3: blake3::hash(&data[..1_000_000]).to_hex().to_string(),
    };
    let download = bed
        .hub
        .download("w", "file", Some(have.clone()))
        .await
        .unwrap();
    assert_eq!(download.file().offset, 1_000_000);
    assert_eq!(download.file().size, Some(3_000_000));
    drop(download);
    let other = Have {
        blake3: blake3::hash(b"other").to_hex().to_string(),
        ..have
    };
    let download = bed.hub.download("w", "file", Some(other)).await.unwrap();
    assert_eq!(download.file().offset, 0);
    drop(download);

    let local = bed.dir.path().join("local");
    std::fs::write(&local, &data[..1_234_567]).unwrap();
    let mut target = tokio::fs::File::options()
        .read(true)
        .write(true)
        .open(&local)
        .await
        .unwrap();
    let mut first = None;
    bed.hub
        .download_to("w", "file", &mut target, |at| {
            first.get_or_insert(at);
        })
        .await
        .unwrap();
    assert_eq!(first, Some(1_234_567));
    assert!(std::fs::read(&local).unwrap() == data);
}

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

async fn end_of<S>(raw: &mut Raw<S>) -> End
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
async fn quotas_and_a_full_disk_are_said_before_a_byte_is_sent() {
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

/// The worker in a mount namespace of its own, with a file system of one megabyte as its root.
#[tokio::test]
async fn a_full_disk_ends_the_upload_and_leaves_nothing() {
    let bed = Bed::start().await;
    let settings = bed.settings_of("w", json!({"v1_only": true}));
    let root = bed.root("w");
    let mount = format!(
        "mount -t tmpfs -o size=1m none {} && exec \"$@\"",
        root.display()
    );
    let _program = Program::start(&settings, &["unshare", "-rm", "sh", "-c", &mount, "sh"]);
    bed.online("w").await;
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
        if self.data.position() >= 100_000
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

#[tokio::test]
async fn a_folder_is_listed_without_following_its_links() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let root = bed.root("w");
    std::fs::create_dir_all(root.join("d/e")).unwrap();
    std::fs::write(root.join("d/e/f"), b"123").unwrap();
    symlink("/etc", root.join("d/l")).unwrap();
    let entries = bed.hub.list("w", "d").await.unwrap();
    let seen: Vec<(&str, EntryKind)> = entries
        .iter()
        .map(|entry| (entry.path.as_str(), entry.kind))
        .collect();
    assert_eq!(
        seen,
        [
            ("", EntryKind::Folder),
            ("e", EntryKind::Folder),
            ("e/f", EntryKind::File),
            ("l", EntryKind::Link),
        ]
    );
    assert_eq!(entries[2].size, 3);
    assert!(bed.hub.list("w", "../..").await.is_err());
    assert_eq!(bed.hub.look("w", "d").await.unwrap(), entries[0]);
    assert!(bed.hub.look("w", "none").await.is_err());
    let one = bed.hub.list("w", "d/e/f").await.unwrap();
    assert_eq!((one.len(), one[0].kind), (1, EntryKind::File));
}

#[tokio::test]
async fn a_folder_is_made_beneath_the_root_and_nowhere_else() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let _old = bed.v1_worker("old").await;
    let root = bed.root("w");
    let then = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000, 987_654_321);
    let request = |path: &str| FolderRequest {
        path: path.to_owned(),
        mode: Some(0o710),
        modified: Some(then),
    };
    bed.hub.make_folder("w", &request("a/b")).await.unwrap();
    let made = std::fs::metadata(root.join("a/b")).unwrap();
    assert_eq!(made.permissions().mode() & 0o7777, 0o710);
    assert_eq!(made.modified().unwrap(), then);
    let listed = bed.hub.look("w", "a/b").await.unwrap();
    let told = quintet_sandbox::mtime::join(listed.mtime_ms, Some(listed.mtime_ns));
    assert_eq!(told, Some(then));

    symlink("..", root.join("out")).unwrap();
    for path in ["../escaped", "out/escaped", "/tmp/quintet-escaped"] {
        let refused = bed.hub.make_folder("w", &request(path)).await;
        assert!(
            matches!(
                refused,
                Err(RequestError::Failed {
                    code: Some(FailureCode::Path),
                    ..
                })
            ),
            "{path}: {refused:?}"
        );
    }
    assert!(!bed.dir.path().join("escaped").exists());
    // The root keeps its own mode.
    let before = std::fs::metadata(&root).unwrap().permissions();
    bed.hub.make_folder("w", &request(".")).await.unwrap();
    assert_eq!(std::fs::metadata(&root).unwrap().permissions(), before);
    assert!(matches!(
        bed.hub.make_folder("old", &request("a")).await,
        Err(RequestError::NeedsV2 { .. })
    ));
}

/// A worker that does not name the kind never sees it: it would take it for a broken hub.
#[tokio::test]
async fn a_worker_that_knows_no_folders_is_not_asked_for_one() {
    let bed = Bed::start().await;
    let mut raw = crate::bed::raw_worker(&bed.url(), &["sandd.v2"]).await;
    assert_eq!(raw.register("older").await["success"], true);
    bed.online("older").await;
    let request = FolderRequest::default();
    assert!(matches!(
        bed.hub.make_folder("older", &request).await,
        Err(RequestError::NeedsV2 { .. })
    ));
}
