use std::fs;

use super::*;
use crate::tree::{Applied, Content, Near, New};

struct Folder {
    home: tempfile::TempDir,
    tree: LiveTree,
    cas: Cas,
}

impl Folder {
    /// A folder whose files were seen and are watched.
    fn with(files: &[&str]) -> Self {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("work");
        fs::create_dir(&dir).unwrap();
        for file in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
        let cas = Cas::open(&home.path().join("cas")).unwrap();
        let mut tree = LiveTree::open(Root::open(&dir).unwrap());
        tree.start_watching(None);
        tree.look(Look::Whole, &cas).unwrap();
        assert_eq!(*tree.watch_mode(), WatchMode::Events);
        Self { home, tree, cas }
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.home.path().join("work").join(path)
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.at(from), self.at(to)).unwrap();
    }

    /// What the next look at paths that have settled brings.
    fn next_look(&mut self) -> Vec<String> {
        self.tree.read_events().unwrap();
        let ready = self.tree.next_look().expect("something happened");
        while Instant::now() < ready {
            std::hint::spin_loop();
        }
        self.look(Look::Ready)
    }

    /// What a flush brings.
    fn everything(&mut self) -> Vec<String> {
        self.tree.catch_up_with_events().unwrap();
        self.look(Look::Everything)
    }

    fn look(&mut self, how: Look) -> Vec<String> {
        let sight = self.tree.look(how, &self.cas).unwrap();
        sight.changes.iter().map(told).collect()
    }
}

fn told(found: &Found) -> String {
    let path = &found.path;
    match (&found.new, &found.renamed_from) {
        (None, _) => format!("delete {path}"),
        (Some(_), None) => format!("write {path}"),
        (Some(_), Some(from)) => format!("rename {from} {path}"),
    }
}

#[test]
fn a_renamed_folder_is_renamed_with_all_that_is_in_it() {
    let mut folder = Folder::with(&["d/a", "d/sub/b"]);
    folder.rename("d", "e");
    let expected = [
        "rename d e",
        "rename d/a e/a",
        "rename d/sub e/sub",
        "rename d/sub/b e/sub/b",
        "delete d/sub/b",
        "delete d/sub",
        "delete d/a",
        "delete d",
    ];
    assert_eq!(folder.next_look(), expected);
    // It is watched under its new name.
    fs::write(folder.at("e/sub/b"), "more").unwrap();
    assert_eq!(folder.next_look(), ["write e/sub/b"]);
}

#[test]
fn a_folder_whose_content_changed_and_an_empty_one_are_renamed_too() {
    let mut folder = Folder::with(&["d/a", "d/b"]);
    fs::remove_file(folder.at("d/b")).unwrap();
    fs::create_dir(folder.at("empty")).unwrap();
    folder.everything();
    folder.rename("d", "e");
    folder.rename("empty", "void");
    let expected = [
        "rename d e",
        "rename d/a e/a",
        "rename empty void",
        "delete empty",
        "delete d/a",
        "delete d",
    ];
    assert_eq!(folder.everything(), expected);
}

#[test]
fn an_inode_that_is_used_again_makes_no_rename() {
    let path = |text: &str| WorkspacePath::parse(text).unwrap();
    let seen = Seen {
        node: Node::directory(0o755),
        fingerprint: Fingerprint::UNTRUSTED,
    };
    let change = |at: &str, new: Option<&Seen>, from: Option<&str>| Found {
        path: path(at),
        old: None,
        new: new.cloned(),
        small: None,
        renamed_from: from.map(path),
    };
    let changes = || {
        vec![
            change("d", None, None),
            change("d/f", None, None),
            change("e", Some(&seen), Some("d")),
        ]
    };
    let guessed = HashSet::from([path("e")]);
    let told_of = |changes| -> Vec<String> { paired(changes, &guessed).iter().map(told).collect() };
    assert_eq!(told_of(changes())[0], "write e");
    let mut with_proof = changes();
    with_proof.push(change("e/f", Some(&seen), Some("d/f")));
    assert_eq!(told_of(with_proof)[..2], ["rename d e", "rename d/f e/f"]);
    let mut elsewhere = changes();
    elsewhere.push(change("g", Some(&seen), Some("d/f")));
    assert_eq!(told_of(elsewhere)[..2], ["write e", "rename d/f g"]);
}

#[test]
fn a_renamed_file_is_renamed_to_a_new_name_and_over_another() {
    let mut folder = Folder::with(&["a", "c"]);
    folder.rename("a", "b");
    assert_eq!(folder.next_look(), ["rename a b", "delete a"]);
    folder.rename("b", "c");
    assert_eq!(folder.next_look(), ["rename b c", "delete b"]);
}

#[test]
fn a_save_through_a_temporary_file_is_one_change() {
    let mut folder = Folder::with(&["f"]);
    fs::write(folder.at("f.tmp"), "new").unwrap();
    folder.rename("f.tmp", "f");
    assert_eq!(folder.next_look(), ["write f"]);
    assert_eq!(folder.tree.unsettled_len(), 0);
}

#[test]
fn a_queue_that_overflows_loses_no_change() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    let mut folder = Folder::with(&["a", "b", "gone"]);
    let mut files = ["a", "b"].map(|name| fs::File::create(folder.at(name)).unwrap());
    // An event like the one before it is not queued, so they take turns.
    for turn in 0..limit + 2 {
        io::Write::write_all(&mut files[turn % 2], b"x").unwrap();
    }
    drop(files);
    fs::create_dir(folder.at("late")).unwrap();
    fs::write(folder.at("late/f"), "never told").unwrap();
    fs::remove_file(folder.at("gone")).unwrap();
    folder.tree.read_events().unwrap();
    assert!(folder.tree.look_everywhere, "it overflowed");
    let mut found = folder.next_look();
    found.sort_unstable();
    let expected = [
        "delete gone",
        "write a",
        "write b",
        "write late",
        "write late/f",
    ];
    assert_eq!(found, expected);
    fs::write(folder.at("late/f"), "told").unwrap();
    assert_eq!(folder.everything(), ["write late/f"]);
}

impl Folder {
    /// Puts a new file in place, as one of a batch.
    fn create(&mut self, near: &mut Near, path: &str, bytes: &[u8]) -> bool {
        let path = WorkspacePath::parse(path).unwrap();
        let node = Node::file(0o640, bytes);
        let new = New {
            path: &path,
            node: &node,
            bytes,
        };
        self.tree.create(near, &new)
    }

    /// Makes a folder, as the other side says.
    fn make_folder(&mut self, path: &str) {
        let path = WorkspacePath::parse(path).unwrap();
        let node = Node::directory(0o755);
        let applied = self
            .tree
            .apply(&path, Some(&node), Content::Keep, &self.cas);
        assert!(matches!(applied, Ok(Applied::Done)));
    }

    /// How many paths the kernel's events want to be looked at.
    fn told(&mut self) -> usize {
        self.tree.read_events().unwrap();
        self.tree.unsettled_len()
    }
}

#[test]
fn what_is_made_here_is_watched_at_once_and_not_looked_at_again() {
    let mut folder = Folder::with(&[]);
    let mut near = Near::default();
    folder.make_folder("d");
    folder.make_folder("d/sub");
    assert!(folder.create(&mut near, "d/f", b"f"));
    assert!(folder.create(&mut near, "d/sub/g", b"g"));
    assert_eq!(folder.told(), 0);
    fs::write(folder.at("d/sub/h"), "by somebody").unwrap();
    fs::write(folder.at("d/f"), "other").unwrap();
    assert_eq!(folder.everything(), ["write d/f", "write d/sub/h"]);
}

#[test]
fn what_somebody_does_to_a_name_that_was_made_here_is_found() {
    let mut folder = Folder::with(&[]);
    let mut near = Near::default();
    folder.make_folder("d");
    // Before its event was read: a link has no other event than that it was made.
    assert!(folder.create(&mut near, "d/f", b"f"));
    fs::remove_file(folder.at("d/f")).unwrap();
    std::os::unix::fs::symlink("x", folder.at("d/f")).unwrap();
    assert_eq!(folder.everything(), ["write d/f"]);
    // And long after.
    assert!(folder.create(&mut near, "d/g", b"g"));
    assert_eq!(folder.told(), 0);
    fs::remove_file(folder.at("d/g")).unwrap();
    std::os::unix::fs::symlink("x", folder.at("d/g")).unwrap();
    assert_eq!(folder.everything(), ["write d/g"]);
    // Or in another folder of that name, into which nothing was put.
    assert!(folder.create(&mut near, "d/h", b"h"));
    folder.rename("d", "e");
    assert!(folder.create(&mut near, "d/i", b"i"));
    folder.everything();
    fs::create_dir(folder.at("d")).unwrap();
    folder.everything();
    std::os::unix::fs::symlink("x", folder.at("d/i")).unwrap();
    assert_eq!(folder.everything(), ["write d/i"]);
}

#[test]
fn what_was_put_into_a_folder_before_it_was_watched_is_found() {
    let mut folder = Folder::with(&[]);
    fs::create_dir(folder.at("d")).unwrap();
    fs::write(folder.at("d/early"), "by somebody").unwrap();
    // As if it had been made here, and somebody had been faster than the watch.
    let path = WorkspacePath::parse("d").unwrap();
    folder.tree.folder_made(&path);
    assert_eq!(folder.everything(), ["write d", "write d/early"]);
}

#[test]
fn many_new_files_are_made_at_once_and_take_nobodys_place() {
    let mut folder = Folder::with(&["a/0"]);
    folder.make_folder("b");
    let paths: Vec<_> = (0..400)
        .map(|n| format!("{}/{n}", ["a", "b", "none"][n / 160]))
        .map(|path| WorkspacePath::parse(&path).unwrap())
        .collect();
    fs::write(folder.at("b/200"), "mine").unwrap();
    let node = |path: &WorkspacePath| Node::file(0o644, path.as_str().as_bytes());
    let nodes: Vec<_> = paths.iter().map(node).collect();
    let new: Vec<_> = paths
        .iter()
        .zip(&nodes)
        .map(|(path, node)| New {
            path,
            node,
            bytes: path.as_str().as_bytes(),
        })
        .collect();
    let made = folder.tree.create_all(&new);
    assert_eq!(made.len(), 400);
    for (new, made) in new.iter().zip(made) {
        let path = new.path.as_str();
        // What is there already, and what has no folder.
        let expected = path != "a/0" && path != "b/200" && !path.starts_with("none");
        assert_eq!(made, expected, "{path}");
        if made {
            assert_eq!(fs::read(folder.at(path)).unwrap(), path.as_bytes());
            assert_eq!(folder.tree.seen(new.path).unwrap().node, *new.node);
        }
    }
    assert_eq!(fs::read(folder.at("b/200")).unwrap(), b"mine");
    assert_eq!(folder.told(), 1);
    assert_eq!(folder.everything(), ["write b/200"]);
}

#[test]
fn a_new_file_is_there_whole_and_is_no_change_of_this_side() {
    let mut folder = Folder::with(&["a/first"]);
    let mut near = Near::default();
    assert!(folder.create(&mut near, "a/second", b"second"));
    assert!(folder.create(&mut near, "third", b"third"));
    assert_eq!(fs::read(folder.at("a/second")).unwrap(), b"second");
    assert_eq!(fs::read(folder.at("third")).unwrap(), b"third");
    let stat = folder
        .tree
        .root
        .stat(&WorkspacePath::parse("third").unwrap());
    assert_eq!(root::mode(&stat.unwrap().unwrap()), 0o640);
    assert_eq!(folder.everything(), [""; 0]);
    // What somebody does to it is one.
    fs::write(folder.at("third"), "THIRD").unwrap();
    assert_eq!(folder.everything(), ["write third"]);
}

#[test]
fn a_new_file_takes_nobodys_place_and_goes_through_no_link() {
    let mut folder = Folder::with(&["a/first"]);
    let mut near = Near::default();
    fs::write(folder.at("a/mine"), "mine").unwrap();
    assert!(!folder.create(&mut near, "a/mine", b"theirs"));
    assert_eq!(fs::read(folder.at("a/mine")).unwrap(), b"mine");
    std::os::unix::fs::symlink(folder.home.path(), folder.at("link")).unwrap();
    assert!(!folder.create(&mut near, "link/outside", b"theirs"));
    assert!(!folder.home.path().join("outside").exists());
    assert!(!folder.create(&mut near, "none/file", b"theirs"));
    assert_eq!(folder.everything(), ["write a/mine", "write link"]);
}

#[test]
fn a_folder_that_holds_something_stays_where_it_is() {
    use std::os::unix::fs::MetadataExt;

    let mut folder = Folder::with(&["empty/x", "full/x"]);
    fs::remove_file(folder.at("empty/x")).unwrap();
    folder.everything();
    let changed = |folder: &Folder| {
        let metadata = fs::metadata(folder.at("full")).unwrap();
        (metadata.ctime(), metadata.ctime_nsec())
    };
    let before = changed(&folder);
    for (name, is_done) in [("empty", true), ("full", false)] {
        let path = WorkspacePath::parse(name).unwrap();
        let node = Node::file(0o644, b"now a file");
        let content = Content::Bytes(b"now a file");
        let applied = folder.tree.apply(&path, Some(&node), content, &folder.cas);
        let applied = applied.unwrap();
        assert_eq!(matches!(applied, Applied::Done), is_done, "{applied:?}");
        assert_eq!(matches!(applied, Applied::InTheWay(_)), !is_done);
    }
    assert_eq!(fs::read(folder.at("empty")).unwrap(), b"now a file");
    assert_eq!(fs::read(folder.at("full/x")).unwrap(), b"full/x");
    // To rename it away and back would have changed this.
    assert_eq!(changed(&folder), before);
}

#[test]
fn what_is_written_at_the_last_moment_is_neither_replaced_nor_removed() {
    let folder = Folder::with(&["f"]);
    let path = WorkspacePath::parse("f").unwrap();
    let seen = folder.tree.seen(&path).unwrap().fingerprint;
    // Behind the check that it is as it was seen.
    fs::write(folder.at("f"), "mine, and longer").unwrap();
    let root = &folder.tree.root;
    let parent = root.folder(None).unwrap();
    let node = Node::file(0o644, b"theirs");
    let mut unsynced = Unsynced::default();
    let source = root::Source::Bytes(b"theirs");
    let put = root.put(&parent, "f", &node, source, Some(seen), &mut unsynced);
    assert!(matches!(put, Ok(root::Replaced::Changed)));
    assert_eq!(fs::read(folder.at("f")).unwrap(), b"mine, and longer");
    let removed = root.remove(&path, seen);
    assert!(matches!(removed, Ok(root::Replaced::Changed)));
    assert_eq!(fs::read(folder.at("f")).unwrap(), b"mine, and longer");
    assert_eq!(fs::read_dir(folder.at(".quintet/tmp")).unwrap().count(), 0);
}

#[test]
fn of_what_a_kill_left_only_what_is_nowhere_else_stays() {
    let folder = Folder::with(&["f"]);
    let left = |name: &str| folder.at(".quintet/tmp").join(name);
    fs::write(left("3"), "half a file").unwrap();
    fs::create_dir(left("4")).unwrap();
    fs::create_dir(left("5")).unwrap();
    fs::write(left("5/mine"), "put there at the last moment").unwrap();
    let root = Root::open(&folder.at("")).unwrap();
    assert!(!left("3").exists() && !left("4").exists());
    assert!(left("5/mine").exists());
    // Nor is its name in the way of anything.
    for _ in 0..8 {
        drop(root.temporary().unwrap());
    }
}

#[test]
fn what_is_put_into_a_folder_that_moves_moves_along() {
    let mut folder = Folder::with(&["a/first"]);
    let mut near = Near::default();
    assert!(folder.create(&mut near, "a/second", b"second"));
    folder.rename("a", "b");
    fs::create_dir(folder.at("a")).unwrap();
    assert!(folder.create(&mut near, "a/third", b"third"));
    let found = folder.everything();
    for file in ["second", "third"] {
        let moved = format!("rename a/{file} b/{file}");
        assert!(found.contains(&moved), "{found:?}");
        assert!(found.contains(&format!("delete a/{file}")), "{found:?}");
    }
    assert_eq!(fs::read(folder.at("b/third")).unwrap(), b"third");
    assert_eq!(folder.everything(), [""; 0]);
}

/// From now on permissions hold for this thread, root's too.
fn obey_permissions() {
    use rustix::thread::CapabilitySet;
    let mut sets = rustix::thread::capabilities(None).unwrap();
    sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    rustix::thread::set_capabilities(None, sets).unwrap();
}

impl Folder {
    fn apply(&mut self, path: &str, node: Option<&Node>, bytes: &[u8]) -> Applied {
        let path = WorkspacePath::parse(path).unwrap();
        let content = Content::Bytes(bytes);
        let applied = self.tree.apply(&path, node, content, &self.cas);
        applied.unwrap()
    }

    fn mode(&self, path: &str) -> u32 {
        use std::os::unix::fs::PermissionsExt;
        let metadata = fs::metadata(self.at(path)).unwrap();
        metadata.permissions().mode() & 0o7777
    }
}

#[test]
fn a_folder_that_nobody_may_write_to_is_followed_like_any_other() {
    obey_permissions();
    let mut folder = Folder::with(&[]);
    let file = |text: &str| Node::file(0o444, text.as_bytes());
    let (closed, shut) = (Node::directory(0o555), Node::directory(0));
    let link = root::link_node(b"a");
    let steps = [
        ("m", Some(&closed), ""),
        ("m/x", Some(&closed), ""),
        ("m/x/a", Some(&file("a")), "a"),
        ("m/x/b", Some(&file("b")), "b"),
        ("m/x/l", Some(&link), "a"),
        ("m/x/a", Some(&file("other")), "other"),
        ("m/x/b", None, ""),
        ("m/x/sub", Some(&closed), ""),
        ("m/x/sub", Some(&file("no folder")), "no folder"),
        ("m/shut", Some(&shut), ""),
        ("m/shut/in", Some(&shut), ""),
        ("m/shut/in/c", Some(&file("c")), "c"),
        ("m/none/d", Some(&file("d")), "d"),
    ];
    for (path, node, text) in steps {
        let applied = folder.apply(path, node, text.as_bytes());
        assert!(matches!(applied, Applied::Done), "{path}: {applied:?}");
    }
    assert_eq!(fs::read(folder.at("m/x/a")).unwrap(), b"other");
    assert!(!folder.at("m/x/b").exists());
    assert_eq!(fs::read(folder.at("m/x/sub")).unwrap(), b"no folder");
    for (path, mode) in [
        ("m", 0o555),
        ("m/x", 0o555),
        ("m/none", 0o755),
        ("m/shut", 0),
    ] {
        assert_eq!(folder.mode(path), mode, "{path}");
    }
    // None of it is a change of this side.
    assert_eq!(folder.everything(), [""; 0]);
    let again = folder.apply("m/shut/in/c", None, b"");
    assert!(matches!(again, Applied::Done), "{again:?}");
    assert_eq!(fs::read_dir(folder.at(".quintet/tmp")).unwrap().count(), 0);
}

#[test]
fn a_folder_of_somebody_else_stays_closed() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut folder = Folder::with(&["theirs/f"]);
    std::os::unix::fs::chown(folder.at("theirs"), Some(65_534), None).unwrap();
    obey_permissions();
    let path = WorkspacePath::parse("theirs/new").unwrap();
    let (node, content) = (Node::file(0o644, b"new"), Content::Bytes(b"new"));
    let applied = folder.tree.apply(&path, Some(&node), content, &folder.cas);
    let error = applied.unwrap_err();
    assert!(!error.may_pass(), "{error}");
    // A replica is not told where the workspace is.
    assert_eq!(error.reason(), "Permission denied (os error 13)");
    assert_eq!(fs::read_dir(folder.at(".quintet/tmp")).unwrap().count(), 0);
}

#[test]
fn a_kill_leaves_no_folder_open() {
    obey_permissions();
    let mut folder = Folder::with(&["touched/f"]);
    let closed = Node::directory(0o500);
    for path in ["m", "m/x", "touched"] {
        assert!(matches!(
            folder.apply(path, Some(&closed), b""),
            Applied::Done
        ));
    }
    let file = |path| WorkspacePath::parse(path).unwrap();
    std::mem::forget(folder.tree.root.lift(&file("m/f")));
    std::mem::forget(folder.tree.root.lift(&file("m/x/f")));
    std::mem::forget(folder.tree.root.lift(&file("touched/g")));
    assert_eq!([folder.mode("m"), folder.mode("m/x")], [0o700; 2]);
    let chosen = std::os::unix::fs::PermissionsExt::from_mode(0o750);
    fs::set_permissions(folder.at("touched"), chosen).unwrap();
    Root::open(&folder.at("")).unwrap();
    assert_eq!([folder.mode("m"), folder.mode("m/x")], [0o500; 2]);
    // What a person said meanwhile stays.
    assert_eq!(folder.mode("touched"), 0o750);
    assert_eq!(fs::read_dir(folder.at(".quintet/tmp")).unwrap().count(), 0);
}

#[test]
fn a_tree_may_be_as_deep_as_it_likes() {
    const DEPTH: usize = 1_900;
    let mut folder = Folder::with(&[]);
    let below = |depth| format!("top/{}", vec!["d"; depth].join("/"));
    fs::create_dir_all(folder.at(&below(DEPTH))).unwrap();
    assert_eq!(folder.everything().len(), DEPTH + 1);
    assert_eq!(folder.look(Look::Whole), [""; 0]);
    let mut again = LiveTree::open(Root::open(&folder.at("")).unwrap());
    assert_eq!(
        again.look(Look::Whole, &folder.cas).unwrap().changes.len(),
        DEPTH + 1
    );
    for depth in (0..=DEPTH).rev() {
        fs::remove_dir(folder.at(&below(depth))).unwrap();
    }
    assert_eq!(folder.everything().len(), DEPTH + 1);
}

#[test]
fn what_is_no_longer_followed_is_removed_here_alone() {
    let mut folder = Folder::with(&["out/x", "out/y", "a.log", "b.log", "f"]);
    fs::write(folder.at(IGNORE_FILE), "out/\n*.log\n").unwrap();
    assert_eq!(folder.everything(), [format!("write {IGNORE_FILE}")]);
    // Told by the kernel, and found by looking.
    fs::remove_file(folder.at("out/x")).unwrap();
    fs::remove_file(folder.at("a.log")).unwrap();
    fs::remove_file(folder.at("f")).unwrap();
    assert_eq!(folder.everything(), ["delete f"]);
    fs::remove_dir_all(folder.at("out")).unwrap();
    assert_eq!(folder.everything(), [""; 0]);
    fs::remove_file(folder.at("b.log")).unwrap();
    assert_eq!(folder.look(Look::Whole), [""; 0]);
}
