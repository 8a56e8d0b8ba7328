//! Files and folders between this machine and workers.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use rustix::fs::{Mode, OFlags};

use crate::harness::{Machine, Running, within};
use crate::workers::{back, online, row, worker};

#[tokio::test]
async fn files_and_folders_go_both_ways_with_mode_and_time() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let tree = machine.path().join("tree");
    std::fs::create_dir_all(tree.join("a/empty")).unwrap();
    let content: Vec<u8> = (0..300_000u32).map(|n| (n * 7 % 251) as u8).collect();
    std::fs::write(tree.join("a/data"), &content).unwrap();
    std::fs::write(tree.join("run.sh"), "#!/bin/sh\n").unwrap();
    let script = std::fs::File::open(tree.join("run.sh")).unwrap();
    script
        .set_permissions(std::fs::Permissions::from_mode(0o750))
        .unwrap();
    let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    script.set_modified(then).unwrap();
    for folder in ["a/empty", "a"] {
        let folder = std::fs::File::open(tree.join(folder)).unwrap();
        let mode = std::fs::Permissions::from_mode(0o700);
        folder.set_permissions(mode).unwrap();
        folder.set_modified(then).unwrap();
    }

    machine
        .runs(&["cp", "tree", "local:there"])
        .await
        .succeeds();
    let root = machine.home().join("workers/local/root");
    assert_eq!(std::fs::read(root.join("there/a/data")).unwrap(), content);
    assert!(root.join("there/a/empty").is_dir());
    let sent = root.join("there/run.sh").metadata().unwrap();
    assert_eq!(sent.permissions().mode() & 0o777, 0o750);
    assert_eq!(sent.modified().unwrap(), then);
    let kept = |folder: &std::path::Path| {
        let folder = folder.metadata().unwrap();
        assert_eq!(folder.permissions().mode() & 0o777, 0o700);
        assert_eq!(folder.modified().unwrap(), then);
    };
    kept(&root.join("there/a"));
    kept(&root.join("there/a/empty"));
    // A file goes into a folder that is there.
    let script = ["cp", "tree/run.sh", "local:there/a"];
    machine.runs(&script).await.succeeds();
    assert!(root.join("there/a/run.sh").is_file());
    std::fs::remove_file(root.join("there/a/run.sh")).unwrap();
    machine
        .runs(&["cp", "tree", "local:there"])
        .await
        .succeeds();
    kept(&root.join("there/a"));

    machine
        .runs(&["cp", "local:there", "back"])
        .await
        .succeeds();
    let back = machine.path().join("back");
    assert_eq!(std::fs::read(back.join("a/data")).unwrap(), content);
    kept(&back.join("a"));
    kept(&back.join("a/empty"));
    assert_eq!(
        back.join("run.sh").metadata().unwrap().modified().unwrap(),
        then
    );

    // The beginning of it is here from an attempt that was cut.
    std::fs::write(
        machine.path().join(".data.quintet-partial"),
        &content[..200_000],
    )
    .unwrap();
    machine
        .runs(&["cp", "local:there/a/data", "."])
        .await
        .succeeds();
    assert_eq!(std::fs::read(machine.path().join("data")).unwrap(), content);
    assert!(!machine.path().join(".data.quintet-partial").exists());
    // Only the rest was sent.
    row(&machine, "transfer_ended", |data| {
        data["path"] == "there/a/data" && data["bytes"] == 100_000
    })
    .await;

    let outside = machine
        .runs(&["cp", "local:../../quintet.db", "stolen"])
        .await;
    outside.fails(1);
    assert!(!machine.path().join("stolen").exists());
    let escaped = ["cp", "tree/a/empty", "local:../escaped"];
    machine.runs(&escaped).await.fails(1);
    assert!(!root.join("../escaped").exists());
}

#[tokio::test]
async fn what_a_worker_can_t_send_is_named_and_the_rest_arrives() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let root = machine.home().join("workers/local/root");
    std::fs::create_dir(root.join("odd")).unwrap();
    std::fs::write(root.join("odd/z"), "z").unwrap();
    std::fs::write(root.join("odd").join(OsStr::from_bytes(b"bad\xff")), "").unwrap();
    let copied = machine.runs(&["cp", "local:odd", "odd"]).await;
    assert!(
        copied.stderr.contains("its name is not UTF-8"),
        "{copied:?}"
    );
    copied.succeeds();
    let names: Vec<_> = std::fs::read_dir(machine.path().join("odd"))
        .unwrap()
        .collect();
    assert_eq!(names.len(), 1);

    machine
        .runs(&["cp", "local:odd/z", "new/"])
        .await
        .succeeds();
    assert!(machine.path().join("new/z").is_file());
    // The worker's root, by its shortest name.
    machine.runs(&["cp", "local:", "whole"]).await.succeeds();
    assert!(machine.path().join("whole/odd/z").is_file());

    let deepest = root.join(format!("deep{}", "/n".repeat(140)));
    std::fs::create_dir_all(&deepest).unwrap();
    machine.runs(&["cp", "local:deep", "deep"]).await.succeeds();
    let deepest = machine.path().join(format!("deep{}", "/n".repeat(140)));
    assert!(deepest.is_dir());

    let name = "n".repeat(200);
    let mut folder = std::fs::File::open(root.join("odd")).unwrap();
    for _ in 0..25 {
        rustix::fs::mkdirat(&folder, &name, Mode::RWXU).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        folder = rustix::fs::openat(&folder, &name, flags, Mode::empty())
            .unwrap()
            .into();
    }
    // Too deep for the worker and, since it begins further in, not for this machine.
    let from = format!("local:odd{}", format!("/{name}").repeat(10));
    let said = machine.runs(&["cp", &from, "far"]).await.fails(1);
    assert!(said.contains("can't be read"), "{said}");
    assert!(said.contains("copy again"), "{said}");
    assert!(machine.path().join("far").join(&name).is_dir());
}

#[tokio::test]
async fn a_copy_that_was_cut_goes_on_where_it_was() {
    let machine = Machine::fresh();
    let daemon = machine.up_with(&["--no-worker"]).await;
    let address = daemon.http().strip_prefix("http://").unwrap().to_owned();
    let _worker = worker(&machine, "w", &[]).await;
    let content: Vec<u8> = (0..24_000_000u32).map(|n| (n / 5 % 251) as u8).collect();
    std::fs::write(machine.path().join("big"), &content).unwrap();
    // What an attempt left that was cut in the middle: its first bytes, and the note of it.
    let copying = machine.begins(&["cp", "big", "w:big"]);
    row(&machine, "transfer_started", |data| data["path"] == "big").await;
    daemon.dies().await;
    copying.ends().await;
    let _daemon = machine
        .up_with(&["--no-worker", "--listen", &address])
        .await;
    back(&machine, "w").await;
    machine.runs(&["cp", "big", "w:big"]).await.succeeds();
    let root = machine.home().join("workers/w/root");
    assert!(std::fs::read(root.join("big")).unwrap() == content);
    let left = std::fs::read_dir(&root).unwrap().count();
    assert_eq!(left, 1, "nothing but the file is left");
}

#[tokio::test]
async fn a_copy_whose_client_was_killed_can_be_made_again_at_once() {
    let machine = Machine::fresh();
    let _daemon = machine.up_with(&["--no-worker"]).await;
    let running = worker(&machine, "w", &[]).await;
    let root = machine.home().join("workers/w/root");
    let file = std::fs::File::create(machine.path().join("big")).unwrap();
    file.set_len(1 << 30).unwrap();
    let copying = Running::start(machine.quintet(&["cp", "big", "w:big"]));
    within("the worker begins with it", async {
        while std::fs::read_dir(&root).unwrap().next().is_none() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    // A worker that stands still does not end it.
    running.signal(rustix::process::Signal::STOP);
    copying.signal(rustix::process::Signal::INT);
    copying.ends().await;
    row(&machine, "transfer_ended", |data| {
        data["result"] == "given up"
    })
    .await;
    running.signal(rustix::process::Signal::CONT);
    file.set_len(1 << 20).unwrap();
    machine.runs(&["cp", "big", "w:big"]).await.succeeds();
    assert!(std::fs::read(root.join("big")).unwrap() == vec![0; 1 << 20]);
}

/// Transfers so far, by path, with their bytes.
async fn transfers(machine: &Machine) -> Vec<(String, u64)> {
    let said = machine.runs(&["events", "--json", "--after", "0"]).await;
    let rows = said.stdout.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).unwrap();
        row
    });
    rows.filter(|row| row["kind"] == "transfer_ended")
        .map(|row| {
            let data = &row["data"];
            let path = data["path"].as_str().unwrap().to_owned();
            (path, data["bytes"].as_u64().unwrap())
        })
        .collect()
}

#[tokio::test]
async fn a_folder_that_was_cut_goes_on_under_the_same_name_with_what_is_missing() {
    let machine = Machine::fresh();
    let _daemon = machine.up().await;
    online(&machine, "local").await;
    let tree = machine.path().join("tree");
    std::fs::create_dir_all(tree.join("a")).unwrap();
    let content: Vec<u8> = (0..300_000u32).map(|n| (n * 7 % 251) as u8).collect();
    std::fs::write(tree.join("a/big"), &content).unwrap();
    std::fs::write(tree.join("done"), b"done").unwrap();
    machine.runs(&["cp", "tree", "local:t"]).await.succeeds();

    // Sent again, what is there is left alone, and what has changed is not.
    std::fs::write(tree.join("done"), b"more").unwrap();
    let before = transfers(&machine).await.len();
    let again = ["cp", "-r", "tree", "local:t"];
    machine.runs(&again).await.succeeds();
    let sent = transfers(&machine).await.split_off(before);
    assert_eq!(sent, [("t/done".to_owned(), 4)]);

    // What an attempt left that was cut: a whole file, and the beginning of another.
    let partial = machine.path().join(".back.quintet-partial");
    std::fs::create_dir_all(partial.join("a")).unwrap();
    std::fs::copy(tree.join("done"), partial.join("done")).unwrap();
    let time = tree.join("done").metadata().unwrap().modified().unwrap();
    let done = std::fs::File::options()
        .write(true)
        .open(partial.join("done"))
        .unwrap();
    done.set_modified(time).unwrap();
    std::fs::write(partial.join("a/.big.quintet-partial"), &content[..200_000]).unwrap();
    let before = transfers(&machine).await.len();
    machine.runs(&["cp", "local:t", "back"]).await.succeeds();
    let got = transfers(&machine).await.split_off(before);
    assert_eq!(got, [("t/a/big".to_owned(), 100_000)]);
    assert!(!partial.exists());
    let back = machine.path().join("back");
    assert_eq!(std::fs::read(back.join("a/big")).unwrap(), content);
    assert_eq!(std::fs::read(back.join("done")).unwrap(), b"more");
    // There now, it is a folder to put things in.
    machine.runs(&["cp", "local:t", "back"]).await.succeeds();
    assert_eq!(std::fs::read(back.join("t/done")).unwrap(), b"more");
}
