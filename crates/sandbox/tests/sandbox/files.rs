//! Uploads and downloads, over both versions, and everything that is wrong with them.

use std::io::{Cursor, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use quintet_sandbox::hub::{FolderRequest, Have, HubEvent, RequestError, UploadRequest};
use quintet_sandbox::proto::frame::{Entry, EntryKind, FailureCode, LeftOut};
use rustix::fs::{Mode, OFlags};

use crate::bed::{Bed, soon};

pub(crate) fn upload(path: &str, size: usize) -> UploadRequest {
    UploadRequest {
        path: path.to_owned(),
        size: size as u64,
        mode: None,
        modified: None,
    }
}

pub(crate) async fn put(
    bed: &Bed,
    worker: &str,
    path: &str,
    data: &[u8],
) -> Result<(), RequestError> {
    let request = upload(path, data.len());
    let mut source = Cursor::new(data.to_vec());
    soon(
        "the upload",
        bed.hub.upload(worker, &request, &mut source, |_| {}),
    )
    .await
}

pub(crate) async fn get(bed: &Bed, worker: &str, path: &str) -> Result<Vec<u8>, RequestError> {
    let mut download = bed.hub.download(worker, path, None).await?;
    let mut data = Vec::new();
    while let Some(bytes) = soon("a chunk", download.next()).await? {
        data.extend_from_slice(&bytes);
    }
    Ok(data)
}

pub(crate) fn pattern(len: usize) -> Vec<u8> {
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
            ("l", EntryKind::Link),
            ("e/f", EntryKind::File),
        ]
    );
    assert_eq!(entries[3].size, 3);
    assert!(bed.hub.list("w", "../..").await.is_err());
    assert_eq!(bed.hub.look("w", "d").await.unwrap(), entries[0]);
    assert!(bed.hub.look("w", "none").await.is_err());
    let one = bed.hub.list("w", "d/e/f").await.unwrap();
    assert_eq!((one.len(), one[0].kind), (1, EntryKind::File));
}

#[tokio::test]
async fn what_can_t_be_sent_is_listed_with_why() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let top = bed.root("w").join("d");
    std::fs::create_dir(&top).unwrap();
    let odd = std::ffi::OsStr::from_bytes(b"bad\xff");
    std::fs::write(top.join(odd), b"").unwrap();
    std::fs::write(top.join("z"), b"").unwrap();
    // Deeper than a path can say, which holds for root as well.
    let name = "n".repeat(200);
    let mut folder = std::fs::File::open(&top).unwrap();
    for _ in 0..25 {
        rustix::fs::mkdirat(&folder, &name, Mode::RWXU).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        folder = rustix::fs::openat(&folder, &name, flags, Mode::empty())
            .unwrap()
            .into();
    }
    let entries = bed.hub.list("w", "d").await.unwrap();
    let odd = entries.iter().find(|it| it.path == "bad\u{fffd}").unwrap();
    assert_eq!(
        (odd.kind, &odd.left_out),
        (EntryKind::Other, &Some(LeftOut::Name))
    );
    assert!(
        entries
            .iter()
            .any(|it| it.path == "z" && it.left_out.is_none())
    );
    let depth = |entry: &Entry| entry.path.split('/').count();
    let (last, unread) = (&entries[entries.len() - 2], &entries[entries.len() - 1]);
    assert_eq!(
        (last.kind, last.path.as_str()),
        (EntryKind::Folder, unread.path.as_str())
    );
    assert!(depth(last) >= 20, "{}", depth(last));
    assert!(
        matches!(unread.left_out, Some(LeftOut::Unreadable(_))),
        "{unread:?}"
    );
}

#[tokio::test]
async fn a_deep_tree_is_listed_whole() {
    let bed = Bed::start().await;
    let _worker = bed.worker("w").await;
    let deepest = format!("d{}", "/n".repeat(600));
    std::fs::create_dir_all(bed.root("w").join(&deepest)).unwrap();
    let entries = bed.hub.list("w", "d").await.unwrap();
    assert_eq!(entries.len(), 601);
    assert_eq!(format!("d/{}", entries[600].path), deepest);
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
