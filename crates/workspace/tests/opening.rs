//! A new tree is recorded and sent part by part, while it is read.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod harness;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use harness::{Host, Mirror, noise, tree};
use quintet_workspace::Opening;
use quintet_workspace::history::LogQuery;
use tempfile::TempDir;

/// Several parts, with folders in folders, one folder of more than a part, and
/// large files among the small ones.
fn fill(dir: &Path) {
    for folder in 0..30 {
        let folder = dir.join(format!("folder-{folder:02}/inner"));
        fs::create_dir_all(&folder).unwrap();
        for file in 0..40 {
            fs::write(folder.join(format!("{file}")), format!("{folder:?} {file}")).unwrap();
        }
        fs::write(
            folder.join("large"),
            noise(folder.to_str().unwrap(), 90_000),
        )
        .unwrap();
    }
    fs::create_dir(dir.join("many")).unwrap();
    for file in 0..2_500 {
        fs::write(dir.join(format!("many/{file}")), format!("many {file}")).unwrap();
    }
}

fn filled() -> TempDir {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("work");
    fs::create_dir(&dir).unwrap();
    fill(&dir);
    home
}

/// A master that serves its tree while it reads it for the first time.
async fn opening() -> (Host, Opening) {
    Host::start(filled()).await
}

/// Every sequence is there once, and folders are before what is in them.
async fn is_recorded_in_order(host: &Host) {
    let mut log = host.workspace.log(LogQuery::default()).await.unwrap();
    log.sort_by_key(|entry| entry.sequence);
    let mut known = HashSet::new();
    for (entry, sequence) in log.iter().zip(1..) {
        assert_eq!(entry.sequence, sequence);
        if let Some(parent) = entry.path.parent() {
            assert!(known.contains(&parent), "{}", entry.path);
        }
        known.insert(entry.path.clone());
    }
    assert_eq!(log.len() as u64, host.workspace.sequence());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_served_while_the_tree_is_read_and_changes() {
    let (host, opening) = opening().await;
    let dir = host.dir();
    let mirror = host.mirror("one").await;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..2_000 {
                let at = dir.join(format!("many/{}", round * 7 % 2_500));
                match round % 4 {
                    0 => drop(fs::remove_file(&at)),
                    1 => fs::write(&at, format!("changed {round}")).unwrap(),
                    2 => drop(fs::rename(&at, dir.join(format!("moved-{round}")))),
                    _ => fs::write(dir.join(format!("folder-29/inner/new-{round}")), "").unwrap(),
                }
                if done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        tokio::task::block_in_place(|| {
            let opened = tokio::runtime::Handle::current().block_on(opening.done());
            done.store(true, Ordering::Relaxed);
            opened.unwrap();
        });
    });
    mirror.agree().await;
    assert_eq!(tree(&dir), tree(&mirror.dir));
    assert!(host.workspace.verify().await.unwrap().is_clean());
    let late = host.mirror("two").await;
    late.agree().await;
    assert_eq!(tree(&dir), tree(&late.dir));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_recorded_is_the_tree_in_an_order_in_which_it_can_be_made() {
    let (host, opening) = opening().await;
    let dir = host.dir();
    opening.done().await.unwrap();
    is_recorded_in_order(&host).await;
    assert_eq!(
        host.workspace.sequence(),
        tree(&dir).len() as u64,
        "each path once"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_look_that_is_broken_off_is_gone_on_with() {
    let (host, opening) = opening().await;
    let dir = host.dir();
    let mirror = host.mirror("one").await;
    let mut sequence = host.workspace.watch_sequence();
    sequence.changed().await.unwrap();
    let home = host.stop().await;
    // It may have been done just before.
    drop(opening.done().await);
    let host = Host::open(home).await;
    is_recorded_in_order(&host).await;
    mirror.agree().await;
    assert_eq!(tree(&dir), tree(&mirror.dir));
    assert_eq!(host.workspace.sequence(), tree(&dir).len() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_keeps_its_files_while_a_lost_history_is_made_anew() {
    let host = Host::open(filled()).await;
    let dir = host.dir();
    // The new history must not reach where the old one was.
    for round in 0..50 {
        fs::write(dir.join("folder-00/inner/0"), format!("round {round}")).unwrap();
        host.workspace.flush().await.unwrap();
    }
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    mirror.stop().await;
    let home = host.stop().await;
    fs::remove_dir_all(home.path().join("state")).unwrap();
    fs::remove_dir_all(home.path().join("cas")).unwrap();
    let copy = home.path().join("one");
    let inodes = || -> Vec<u64> {
        let files = ["folder-00/inner/1", "folder-29/inner/39", "many/999"];
        let inode = |file| fs::metadata(copy.join(file)).unwrap().ino();
        files.map(inode).to_vec()
    };
    let before = inodes();
    let (host, opening) = Host::start(home).await;
    let mirror = Mirror::start(host.home.path(), "one").await;
    opening.done().await.unwrap();
    mirror.agree().await;
    assert_eq!(tree(&dir), tree(&mirror.dir));
    assert_eq!(inodes(), before, "they were removed and fetched again");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_on_a_lost_history_overwrites_nothing_of_the_new_one() {
    let host = Host::new().await;
    let file = host.dir().join("f");
    for round in 0..20 {
        fs::write(&file, format!("round {round}")).unwrap();
        host.workspace.flush().await.unwrap();
    }
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    mirror.stop().await;
    let home = host.stop().await;
    fs::remove_dir_all(home.path().join("state")).unwrap();
    fs::remove_dir_all(home.path().join("cas")).unwrap();
    fs::write(&file, "theirs").unwrap();
    fs::write(home.path().join("one/f"), "mine").unwrap();
    let host = Host::open(home).await;
    let mirror = Mirror::start(host.home.path(), "one").await;
    mirror.agree().await;
    assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    assert_eq!(tree(&host.dir()), tree(&mirror.dir));
    let id = mirror.replica.conflicts().await.unwrap()[0].id;
    let kept = mirror.replica.conflict_content(id, Vec::new());
    assert_eq!(kept.await.unwrap(), b"mine");
}
