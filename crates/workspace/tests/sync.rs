//! Two folders are the same folder: one test per way they are kept so.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

mod harness;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use harness::{Host, LONG, Mirror, noise, temporary_files, tree};
use quintet_workspace::history::{LogEntry, LogQuery, PrunePolicy};
use quintet_workspace::master::{UndoRange, WorkspaceError};
use quintet_workspace::proto::{ChangeKind, ContentHash, WorkspacePath};
use quintet_workspace::{Workspace, WorkspaceConfig};

fn path(text: &str) -> WorkspacePath {
    WorkspacePath::parse(text).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_sync_brings_everything_and_what_follows() {
    let host = Host::new().await;
    let dir = host.dir();
    fs::create_dir_all(dir.join("a/b")).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    fs::write(dir.join("a/b/small"), "small").unwrap();
    fs::write(dir.join("nothing"), "").unwrap();
    fs::write(dir.join("middle"), noise("middle", 100_000)).unwrap();
    fs::write(dir.join("large"), noise("large", 5_000_000)).unwrap();
    fs::write(dir.join("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(dir.join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("a/b/small", dir.join("link")).unwrap();
    symlink("loop", dir.join("loop")).unwrap();
    let mirror = host.mirror("one").await;
    mirror.agree().await;
    assert_eq!(tree(&dir), tree(&mirror.dir));

    fs::write(dir.join("a/b/small"), "changed").unwrap();
    fs::remove_file(dir.join("nothing")).unwrap();
    fs::rename(dir.join("a"), dir.join("c")).unwrap();
    fs::set_permissions(dir.join("tool"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut large = noise("large", 5_000_000);
    large.splice(2_000_000..2_000_000, *b"in the middle");
    fs::write(dir.join("large"), large).unwrap();
    mirror.agree().await;
    assert_eq!(tree(&dir), tree(&mirror.dir));

    // A file becomes a folder, and a folder a file.
    fs::remove_dir_all(dir.join("c")).unwrap();
    fs::write(dir.join("c"), "now a file").unwrap();
    fs::remove_file(dir.join("middle")).unwrap();
    fs::create_dir(dir.join("middle")).unwrap();
    fs::write(dir.join("middle/x"), "inside").unwrap();
    fs::rename(dir.join("tool"), dir.join("TOOL")).unwrap();
    mirror.agree().await;
    assert_eq!(tree(&dir), tree(&mirror.dir));
    assert!(temporary_files(&mirror.dir).is_empty() && temporary_files(&dir).is_empty());
    assert!(host.workspace.verify().await.unwrap().is_clean());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_replica_writes_reaches_the_master_and_the_other_replica() {
    let host = Host::new().await;
    let (one, two) = (host.mirror("one").await, host.mirror("two").await);
    one.replica.barrier(LONG).await.unwrap();
    fs::create_dir_all(one.dir.join("src/deep")).unwrap();
    fs::write(one.dir.join("src/deep/main"), "fn main() {}").unwrap();
    fs::write(one.dir.join("src/data"), noise("data", 300_000)).unwrap();
    fs::write(one.dir.join("src/huge"), noise("huge", 4_000_000)).unwrap();
    symlink("deep", one.dir.join("src/link")).unwrap();
    let report = one.replica.write_back_and_wait(LONG).await.unwrap();
    assert_eq!(report.rejected, []);
    assert_eq!(
        tree(&host.dir()),
        tree(&one.dir),
        "the master has every file that was written"
    );
    two.replica.barrier(LONG).await.unwrap();
    assert_eq!(tree(&two.dir), tree(&one.dir));

    fs::rename(one.dir.join("src/huge"), one.dir.join("moved")).unwrap();
    fs::remove_dir_all(one.dir.join("src/deep")).unwrap();
    fs::set_permissions(one.dir.join("src/data"), fs::Permissions::from_mode(0o600)).unwrap();
    one.agree().await;
    two.agree().await;
    assert_eq!(tree(&host.dir()), tree(&one.dir));
    assert_eq!(tree(&two.dir), tree(&one.dir));
    let log = host
        .workspace
        .log(LogQuery {
            path: Some(path("moved")),
            ..LogQuery::default()
        })
        .await
        .unwrap();
    assert_eq!(log.len(), 1);
    assert_eq!(
        (log[0].change, log[0].author.as_str()),
        (ChangeKind::Rename, "one")
    );
    assert_eq!(log[0].renamed_from, Some(path("src/huge")));
}

#[tokio::test(flavor = "multi_thread")]
async fn both_sides_change_one_file_and_neither_is_lost() {
    let host = Host::new().await;
    fs::write(host.dir().join("f"), "base").unwrap();
    let one = host.mirror("one").await;
    one.agree().await;
    one.stop().await;
    let mine = host.home.path().join("one");
    fs::write(mine.join("f"), "mine").unwrap();
    fs::write(mine.join("new"), "only here").unwrap();
    fs::write(host.dir().join("f"), "theirs").unwrap();
    host.workspace.flush().await.unwrap();
    let one = Mirror::start(host.home.path(), "one").await;
    let report = one.replica.write_back_and_wait(LONG).await.unwrap();
    assert_eq!(report.rejected.len(), 1, "{report:?}");
    one.replica.barrier(LONG).await.unwrap();
    assert_eq!(fs::read_to_string(mine.join("f")).unwrap(), "theirs");
    assert_eq!(tree(&host.dir()), tree(&mine));
    let conflicts = one.replica.conflicts().await.unwrap();
    assert_eq!(conflicts.len(), 1);
    assert_eq!(
        one.replica
            .conflict_content(conflicts[0].id, Vec::new())
            .await
            .unwrap(),
        b"mine"
    );
    one.replica.take_conflict(conflicts[0].id).await.unwrap();
    one.agree().await;
    assert_eq!(fs::read_to_string(host.dir().join("f")).unwrap(), "mine");
    assert_eq!(one.replica.conflicts().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_past_can_be_seen_compared_and_restored() {
    let host = Host::new().await;
    let (dir, workspace) = (host.dir(), &host.workspace);
    fs::create_dir(dir.join("d")).unwrap();
    fs::write(dir.join("d/f"), "one\ntwo\n").unwrap();
    fs::write(dir.join("gone"), noise("gone", 200_000)).unwrap();
    let first = workspace.checkpoint("first".into()).await.unwrap();
    let before = tree(&dir);
    fs::write(dir.join("d/f"), "one\n2\n").unwrap();
    fs::remove_file(dir.join("gone")).unwrap();
    fs::write(dir.join("d/extra"), "x").unwrap();
    let second = workspace.flush().await.unwrap();
    let diff = workspace.diff(first, second, None).await.unwrap();
    assert_eq!(
        diff.iter()
            .map(|entry| entry.path.as_str())
            .collect::<Vec<_>>(),
        ["d/extra", "d/f", "gone"]
    );
    assert!(diff[1].unified.as_ref().unwrap().contains("-two\n+2\n"));
    assert_eq!(
        workspace
            .changed_between(first, second)
            .await
            .unwrap()
            .len(),
        3
    );
    assert_eq!(workspace.node_at(path("gone"), second).await.unwrap(), None);

    let preview = workspace.restore(first, None, true).await.unwrap();
    assert_eq!((preview.changes.len(), preview.sequence), (3, second));
    let changed = tree(&dir);
    let one = workspace
        .restore(first, Some(path("d")), false)
        .await
        .unwrap();
    assert_eq!(one.changes.len(), 2);
    assert!(!dir.join("gone").exists());
    let done = workspace.restore(first, None, false).await.unwrap();
    assert_eq!(tree(&dir), before);
    assert!(done.sequence > second);
    workspace.restore(second, None, false).await.unwrap();
    assert_eq!(tree(&dir), changed, "a restore can be undone");

    let (fork, state) = (
        host.home.path().join("fork"),
        host.home.path().join("fork-state"),
    );
    workspace.fork(fork.clone(), state).await.unwrap();
    assert_eq!(tree(&fork), changed);

    let pruned = workspace
        .prune(PrunePolicy {
            larger_than: Some(0),
            ..PrunePolicy::default()
        })
        .await
        .unwrap();
    assert!(pruned.versions > 0);
    workspace.gc().await.unwrap();
    assert!(workspace.verify().await.unwrap().is_clean());
    assert!(
        workspace.diff(first + 1, second, None).await.is_err(),
        "what was pruned is refused"
    );
    workspace.restore(first, None, false).await.unwrap();
    assert_eq!(tree(&dir), before, "a checkpoint is never pruned");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_restore_cannot_change_is_told_when_all_else_is_done() {
    let host = Host::new().await;
    let (dir, workspace) = (host.dir(), &host.workspace);
    fs::create_dir(dir.join("out")).unwrap();
    let write = |text: &str, files: &[&str]| {
        for file in files {
            fs::write(dir.join(file), text).unwrap();
        }
    };
    write("one", &["b", "out/changed", "out/gone", "out/same", "zz"]);
    let first = workspace.flush().await.unwrap();
    write(
        "two, longer",
        &["b", "out/changed", "out/gone", "out/same", "zz"],
    );
    workspace.flush().await.unwrap();
    fs::write(dir.join(".quintetignore"), "out/\n").unwrap();
    let second = workspace.flush().await.unwrap();
    write("precious", &["out/changed"]);
    fs::remove_file(dir.join("out/gone")).unwrap();

    let refused = workspace.restore(first, None, false).await.unwrap_err();
    let told = refused.to_string();
    let WorkspaceError::InTheWay {
        left,
        changed,
        before,
    } = refused
    else {
        panic!("{told}");
    };
    assert_eq!(left.len(), 1, "{told}");
    assert_eq!(
        (left[0].0.as_str(), changed, before),
        ("out/changed", 5, second)
    );
    let read = |file: &str| fs::read_to_string(dir.join(file)).unwrap();
    assert_eq!(read("out/changed"), "precious");
    for file in ["b", "out/gone", "out/same", "zz"] {
        assert_eq!(read(file), "one", "{file}");
    }
    assert!(!dir.join(".quintetignore").exists());
    // Nothing leaves it out any more, so it is recorded before it is replaced.
    workspace.restore(first, None, false).await.unwrap();
    assert_eq!(read("out/changed"), "one");
    let query = LogQuery {
        path: Some(path("out/changed")),
        ..LogQuery::default()
    };
    let log = workspace.log(query).await.unwrap();
    let precious = ContentHash::of(b"precious");
    let is_kept = |entry: &LogEntry| entry.node.as_ref().is_some_and(|it| it.hash == precious);
    assert!(log.iter().any(is_kept), "{log:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_is_restored_with_the_folders_that_it_was_in() {
    let host = Host::new().await;
    let (dir, workspace) = (host.dir(), &host.workspace);
    fs::create_dir_all(dir.join("d/deep")).unwrap();
    fs::write(dir.join("d/deep/f"), "then").unwrap();
    fs::write(dir.join("d/other"), "then").unwrap();
    fs::set_permissions(dir.join("d"), fs::Permissions::from_mode(0o700)).unwrap();
    let then = workspace.flush().await.unwrap();
    fs::remove_dir_all(dir.join("d")).unwrap();
    fs::write(dir.join("d"), "a file is in the way").unwrap();
    workspace.flush().await.unwrap();
    let restored = workspace.restore(then, Some(path("d/deep/f")), false).await;
    assert_eq!(restored.unwrap().changes.len(), 3);
    assert_eq!(fs::read_to_string(dir.join("d/deep/f")).unwrap(), "then");
    assert!(!dir.join("d/other").exists(), "only what was named");
    let mode = fs::metadata(dir.join("d")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_is_its_users_alone_whole_and_keeps_what_it_needs() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let host = Host::new().await;
    let dir = host.dir();
    let bytes = noise("shared", 200_000);
    fs::write(dir.join("shared"), &bytes).unwrap();
    // A target is bytes; only names have to be UTF-8.
    let target = OsStr::from_bytes(b"caf\xe9");
    symlink(target, dir.join("link")).unwrap();
    let (fork, state) = (
        host.home.path().join("fork"),
        host.home.path().join("fork-state"),
    );
    let forked = host.workspace.fork(fork.clone(), state.clone()).await;
    assert_eq!(forked.unwrap().files, 2);
    assert_eq!(fs::read_link(fork.join("link")).unwrap(), target);
    let mode = fs::metadata(&state).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700);

    // The original forgets what the fork still holds, and has something of its own.
    fs::remove_file(dir.join("shared")).unwrap();
    fs::write(dir.join("own"), noise("own", 200_000)).unwrap();
    host.workspace.flush().await.unwrap();
    let policy = PrunePolicy {
        larger_than: Some(0),
        ..PrunePolicy::default()
    };
    assert_eq!(host.workspace.prune(policy).await.unwrap().contents, 1);
    assert_eq!(host.workspace.gc().await.unwrap().removed, 0);
    assert!(host.workspace.verify().await.unwrap().is_clean());
    let config = WorkspaceConfig::new(&fork, &state, host.home.path().join("cas"));
    let forked = tokio::task::spawn_blocking(move || Workspace::open(&config).unwrap());
    let forked = forked.await.unwrap();
    assert!(forked.verify().await.unwrap().is_clean());
    let before = forked.sequence();
    fs::remove_file(fork.join("shared")).unwrap();
    forked.flush().await.unwrap();
    forked.restore(before, None, false).await.unwrap();
    assert!(fs::read(fork.join("shared")).unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_older_than_the_history_compares_everything() {
    let host = Host::new().await;
    let dir = host.dir();
    for name in ["a", "b", "c"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let one = host.mirror("one").await;
    one.agree().await;
    one.stop().await;
    fs::remove_file(dir.join("a")).unwrap();
    fs::write(dir.join("b"), "other").unwrap();
    host.workspace.flush().await.unwrap();
    fs::write(dir.join("d"), "new").unwrap();
    host.workspace.flush().await.unwrap();
    host.workspace
        .prune(PrunePolicy {
            larger_than: Some(0),
            ..PrunePolicy::default()
        })
        .await
        .unwrap();
    fs::write(host.home.path().join("one/local"), "kept").unwrap();
    let one = Mirror::start(host.home.path(), "one").await;
    one.agree().await;
    assert_eq!(tree(&dir), tree(&one.dir));
    assert!(dir.join("local").exists() && !one.dir.join("a").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_folder_goes_with_a_full_comparison_and_does_not_come_back() {
    let host = Host::new().await;
    let dir = host.dir();
    fs::create_dir(dir.join("many")).unwrap();
    for n in 0..1_100 {
        fs::write(dir.join(format!("many/{n}")), n.to_string()).unwrap();
    }
    let one = host.mirror("one").await;
    one.agree().await;
    one.stop().await;
    fs::remove_dir_all(dir.join("many")).unwrap();
    host.workspace.flush().await.unwrap();
    fs::write(dir.join("new"), "new").unwrap();
    host.workspace.flush().await.unwrap();
    host.workspace
        .prune(PrunePolicy {
            larger_than: Some(0),
            ..PrunePolicy::default()
        })
        .await
        .unwrap();
    let current = host.workspace.sequence();
    let one = Mirror::start(host.home.path(), "one").await;
    one.agree().await;
    one.agree().await;
    assert_eq!(tree(&dir), tree(&one.dir));
    assert!(!dir.join("many").exists());
    assert_eq!(host.workspace.sequence(), current);
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_survives_a_restart_of_either_side() {
    let host = Host::new().await;
    let one = host.mirror("one").await;
    fs::write(host.dir().join("x"), "1").unwrap();
    one.agree().await;
    let before = host.workspace.sequence();
    let home = host.stop().await;
    // Both sides change while the master is away.
    fs::write(home.path().join("work/y"), "made while stopped").unwrap();
    fs::write(one.dir.join("z"), "written offline").unwrap();
    let host = Host::open(home).await;
    one.agree().await;
    assert_eq!(tree(&host.dir()), tree(&one.dir));
    assert_eq!(
        host.workspace.sequence(),
        before + 2,
        "nothing is numbered twice"
    );
    let status = host.workspace.status().await.unwrap();
    assert_eq!(
        (status.files, status.replicas.len(), status.failure),
        (3, 1, None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_made_anew_under_its_name_loses_nothing() {
    let host = Host::new().await;
    let one = host.mirror("one").await;
    fs::write(one.dir.join("f"), "first").unwrap();
    one.agree().await;
    let (dir, state_dir) = (one.dir.clone(), one.state_dir.clone());
    one.stop().await;
    fs::remove_dir_all(&dir).unwrap();
    fs::remove_dir_all(&state_dir).unwrap();
    fs::remove_file(host.dir().join("f")).unwrap();
    host.workspace.flush().await.unwrap();
    let one = host.mirror("one").await;
    one.replica.barrier(LONG).await.unwrap();
    // The very entry that its predecessor was told is taken.
    fs::write(one.dir.join("f"), "first").unwrap();
    one.agree().await;
    assert_eq!(fs::read_to_string(host.dir().join("f")).unwrap(), "first");
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_range_only_the_paths_that_are_named_are_taken_back() {
    let host = Host::new().await;
    let (dir, workspace) = (host.dir(), &host.workspace);
    let after = workspace.flush().await.unwrap();
    for name in ["by-a-tool", "by-a-person"] {
        fs::write(dir.join(name), name).unwrap();
    }
    let range = UndoRange {
        after,
        through: workspace.flush().await.unwrap(),
        only: Some([WorkspacePath::parse("by-a-tool").unwrap()].into()),
        ..UndoRange::default()
    };
    let done = workspace.undo(range).await.unwrap();
    assert_eq!(done.changes.len(), 1, "{done:?}");
    assert!(!dir.join("by-a-tool").exists());
    assert!(dir.join("by-a-person").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_author_did_in_a_range_is_taken_back_and_no_more() {
    let host = Host::new().await;
    let (dir, workspace) = (host.dir(), &host.workspace);
    for name in ["changed", "removed", "touched-later"] {
        fs::write(dir.join(name), "before").unwrap();
    }
    let one = host.mirror("one").await;
    let after = one.agree().await;
    fs::write(one.dir.join("changed"), "by the command").unwrap();
    fs::remove_file(one.dir.join("removed")).unwrap();
    fs::create_dir(one.dir.join("made")).unwrap();
    fs::write(one.dir.join("made/file"), noise("made", 70_000)).unwrap();
    fs::write(one.dir.join("touched-later"), "by the command").unwrap();
    let through = one
        .replica
        .write_back_and_wait(LONG)
        .await
        .unwrap()
        .sequence;
    fs::write(dir.join("mine"), "by a person").unwrap();
    fs::write(dir.join("touched-later"), "by a person").unwrap();
    let range = UndoRange {
        after,
        through: workspace.flush().await.unwrap(),
        author: Some("one".into()),
        dry_run: true,
        ..UndoRange::default()
    };
    let preview = workspace
        .undo(UndoRange {
            through,
            ..range.clone()
        })
        .await
        .unwrap();
    assert_eq!(preview.changes.len(), 4, "{preview:?}");
    assert_eq!(preview.skipped.len(), 1);
    assert!(dir.join("made/file").exists());
    let done = workspace
        .undo(UndoRange {
            through,
            dry_run: false,
            ..range
        })
        .await
        .unwrap();
    assert_eq!(done.changes, preview.changes);
    let now = tree(&dir);
    assert_eq!(
        now.keys().map(String::as_str).collect::<Vec<_>>(),
        ["changed", "mine", "removed", "touched-later"]
    );
    assert_eq!(fs::read_to_string(dir.join("changed")).unwrap(), "before");
    assert_eq!(
        fs::read_to_string(dir.join("touched-later")).unwrap(),
        "by a person",
        "what came later stays"
    );
    one.agree().await;
    assert_eq!(tree(&one.dir), now);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_file_that_is_refused_keeps_its_bytes() {
    let host = Host::new().await;
    let bytes = noise("moved", 200_000);
    fs::write(host.dir().join("from"), &bytes).unwrap();
    let one = host.mirror("one").await;
    one.agree().await;
    one.stop().await;
    let mine = host.home.path().join("one");
    fs::rename(mine.join("from"), mine.join("to")).unwrap();
    fs::write(host.dir().join("from"), "changed meanwhile").unwrap();
    fs::write(host.dir().join("to"), "taken meanwhile").unwrap();
    host.workspace.flush().await.unwrap();
    // The master forgets the content that the replica moved.
    host.workspace
        .prune(PrunePolicy {
            larger_than: Some(0),
            ..PrunePolicy::default()
        })
        .await
        .unwrap();
    host.workspace.gc().await.unwrap();
    let one = Mirror::start(host.home.path(), "one").await;
    one.agree().await;
    assert_eq!(tree(&host.dir()), tree(&mine));
    let mut kept = Vec::new();
    for conflict in one.replica.conflicts().await.unwrap() {
        if conflict.node.is_some() {
            let content = one.replica.conflict_content(conflict.id, Vec::new());
            kept.push(content.await.unwrap());
        }
    }
    assert!(kept.contains(&bytes), "the moved bytes are kept");
}

/// Its numbers say nothing about another master's, which may be ahead all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_pointed_at_another_master_is_that_ones_copy() {
    let (first, second) = (Host::new().await, Host::new().await);
    for (host, other, text) in [(&first, "only at the first", "1"), (&second, "b", "2")] {
        fs::write(host.dir().join("same"), "same").unwrap();
        fs::write(host.dir().join("differs"), text).unwrap();
        fs::write(host.dir().join(other), text).unwrap();
        host.workspace.flush().await.unwrap();
    }
    for round in 0..20 {
        fs::write(second.dir().join("ahead"), round.to_string()).unwrap();
        second.workspace.flush().await.unwrap();
    }
    let home = first.home.path();
    let one = first.mirror("one").await;
    one.agree().await;
    let dir = one.dir.clone();
    one.stop().await;
    fs::write(dir.join("late"), "late").unwrap();
    fs::write(dir.join("differs"), "mine").unwrap();
    let one = Mirror::following(home, "one", second.socket()).await;
    one.agree().await;
    assert_eq!(tree(&second.dir()), tree(&dir));
    let read = |name: &str| fs::read_to_string(second.dir().join(name)).unwrap();
    assert_eq!((read("late"), read("differs")), ("late".into(), "2".into()));
    let kept = one.replica.conflicts().await.unwrap();
    let paths: Vec<_> = kept.iter().map(|kept| kept.path.as_str()).collect();
    assert_eq!(paths, ["differs"]);
    assert!(first.dir().join("only at the first").exists());
}

/// Its first version was never read here; the master has it.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_rename_of_a_file_that_was_changed_then_keeps_no_empty_promise() {
    let mut host = Host::new().await;
    fs::write(host.dir().join("a"), "before").unwrap();
    let one = host.mirror("one").await;
    one.agree().await;
    let home = host.stop().await;
    let waits_for = async |count: usize| {
        while one.replica.status().await.unwrap().outgoing < count {
            tokio::task::yield_now().await;
        }
    };
    fs::rename(one.dir.join("a"), one.dir.join("b")).unwrap();
    tokio::time::timeout(LONG, waits_for(1)).await.unwrap();
    fs::write(one.dir.join("b"), "edited").unwrap();
    tokio::time::timeout(LONG, waits_for(2)).await.unwrap();
    fs::write(home.path().join("work/a"), "master").unwrap();
    host = Host::open(home).await;
    one.agree().await;
    assert_eq!(tree(&host.dir()), tree(&one.dir));
    let read = |name: &str| fs::read_to_string(host.dir().join(name)).unwrap();
    assert_eq!((read("a"), read("b")), ("master".into(), "edited".into()));
    for conflict in one.replica.conflicts().await.unwrap() {
        let content = one.replica.conflict_content(conflict.id, Vec::new()).await;
        content.unwrap();
    }
}

/// What the master says that keeps it from going on.
async fn told_failure(host: &Host) -> String {
    let told = async {
        loop {
            if let Some(failure) = host.workspace.status().await.unwrap().failure {
                return failure;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, told).await.unwrap()
}

/// What is sent is verified by the replica. What it asks for again the master
/// verifies too, so that the damage is named where it is.
#[tokio::test(flavor = "multi_thread")]
async fn damage_in_the_masters_store_is_named_there_and_reaches_no_file() {
    let host = Host::new().await;
    let bytes = noise("large", 3 << 20);
    fs::write(host.dir().join("large"), &bytes).unwrap();
    host.workspace.flush().await.unwrap();
    let mut objects: Vec<_> = fs::read_dir(host.home.path().join("cas"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|folder| folder.file_name().unwrap().len() == 2)
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .collect();
    objects.sort_by_key(|object| fs::metadata(object).unwrap().len());
    // Not the list, which is the shortest.
    let object = &objects[1];
    let stored = fs::read(object).unwrap();
    let mut damaged = stored.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(object, damaged).unwrap();
    let one = host.mirror("one").await;
    let failure = told_failure(&host).await;
    let name = object.file_name().unwrap().to_str().unwrap();
    assert!(
        failure.starts_with(&format!("the stored content {name} is damaged")),
        "{failure}"
    );
    assert_eq!(tree(&one.dir).len(), 0);
    fs::write(object, stored).unwrap();
    one.agree().await;
    assert!(fs::read(one.dir.join("large")).unwrap() == bytes);
}

#[tokio::test(flavor = "multi_thread")]
async fn damage_of_a_small_content_is_found_and_shown_to_nobody() {
    let host = Host::new().await;
    fs::write(host.dir().join("f"), "small").unwrap();
    host.workspace.flush().await.unwrap();
    let history = rusqlite::Connection::open(host.home.path().join("state/history.db")).unwrap();
    let damaged = history.execute("UPDATE content SET data = CAST('SMALL' AS BLOB)", []);
    assert_eq!(damaged.unwrap(), 1);
    let report = host.workspace.verify().await.unwrap();
    assert_eq!((report.contents, report.damaged.len()), (0, 1));
    let shown = host.workspace.show(path("f"), 1, std::io::sink()).await;
    assert!(shown.is_err(), "{shown:?}");
    // A file that holds it heals it.
    fs::write(host.dir().join("again"), "small").unwrap();
    host.workspace.flush().await.unwrap();
    let report = host.workspace.verify().await.unwrap();
    assert_eq!((report.contents, report.damaged.len()), (1, 0));
}

/// The replica only sees that its connection ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_nothing_from_a_replica_is_told_by_the_master() {
    let host = Host::new().await;
    let one = host.mirror("one").await;
    one.replica.barrier(LONG).await.unwrap();
    // No folder can be made where a file is.
    let store = host.home.path().join("cas");
    let in_the_way = (0..=u8::MAX).map(|first| store.join(format!("{first:02x}")));
    for file in in_the_way.clone() {
        fs::write(file, "").unwrap();
    }
    fs::write(one.dir.join("large"), noise("large", 200_000)).unwrap();
    assert_eq!(
        told_failure(&host).await,
        format!("{}: Not a directory (os error 20)", store.display())
    );
    for file in in_the_way {
        fs::remove_file(file).unwrap();
    }
    one.agree().await;
    assert_eq!(host.workspace.status().await.unwrap().failure, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_recorded_at_first_is_still_the_replicas() {
    let host = Host::new().await;
    let one = host.mirror("one").await;
    one.replica.barrier(LONG).await.unwrap();
    let history = rusqlite::Connection::open(host.home.path().join("state/history.db")).unwrap();
    // The file is in place by the time that the answer is recorded.
    history
        .execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON answers
             BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END",
        )
        .unwrap();
    fs::write(one.dir.join("f"), "mine").unwrap();
    let mended = async {
        loop {
            let log = host.workspace.log(LogQuery::default()).await.unwrap();
            if let [found] = &log[..] {
                assert_eq!((found.path.as_str(), found.author.as_str()), ("f", "one"));
                break;
            }
            tokio::task::yield_now().await;
        }
        history.execute_batch("DROP TRIGGER full").unwrap();
    };
    let (written, ()) = tokio::join!(one.replica.write_back_and_wait(LONG), mended);
    assert_eq!(written.unwrap().rejected, []);
    assert_eq!(
        host.workspace.log(LogQuery::default()).await.unwrap().len(),
        1
    );
}
