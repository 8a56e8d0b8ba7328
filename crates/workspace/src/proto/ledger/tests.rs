use super::*;

fn path(p: &str) -> WorkspacePath {
    WorkspacePath::parse(p).unwrap()
}

fn local() -> Author {
    Author::Local("host".into())
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    ledger.record(path("a"), Some(Node::directory(0o755)), local()); // 1
    ledger.record(path("a/f"), Some(Node::file(0o644, b"1")), local()); // 2
    ledger.record(
        path("a/f"),
        Some(Node::file(0o644, b"2")),
        Author::Sandbox("one".into()),
    ); // 3
    ledger.record(path("b"), Some(Node::file(0o644, b"b")), local()); // 4
    ledger
}

fn decide(sandbox: &str, p: &str, operation: Operation, base: u64) -> Decision {
    ledger().decide(
        sandbox,
        &CheckedEntry {
            local_seq: 1,
            path: path(p),
            operation,
            base,
            done_to: None,
        },
    )
}

#[test]
fn a_rename_onto_a_path_that_was_deleted_since_is_refused() {
    let mut ledger = ledger();
    ledger.record(path("b"), None, local()); // 5
    let rename = |base| CheckedEntry {
        local_seq: 1,
        path: path("a/f"),
        operation: Operation::Rename(path("b")),
        base,
        done_to: None,
    };
    let decide = |sandbox, base| ledger.decide(sandbox, &rename(base));
    assert!(matches!(decide("two", 4), Decision::Refuse(_)));
    assert!(matches!(decide("two", 5), Decision::Apply(_)));
}

#[test]
fn the_causal_rule_as_a_table() {
    let new = || Operation::Write(Node::file(0o644, b"new"));
    let taken = |decision| matches!(decision, Decision::Apply(_));
    // Changed by another since the base: refused. By oneself: taken.
    assert!(!taken(decide("two", "a/f", new(), 2)));
    assert!(taken(decide("one", "a/f", new(), 2)));
    assert!(taken(decide("two", "a/f", new(), 3)));
    // Identical: nothing to do, from whatever base. Another mode is not identical.
    let same = Node::file(0o644, b"2");
    assert_eq!(
        decide("two", "a/f", Operation::Write(same.clone()), 0),
        Decision::AlreadySo(3)
    );
    let other_mode = Operation::Write(same.with_mode(0o600));
    assert!(matches!(
        decide("two", "a/f", other_mode, 0),
        Decision::Refuse(_)
    ));
    assert_eq!(
        decide("two", "gone", Operation::Delete, 0),
        Decision::AlreadySo(0)
    );
    // A new file needs no base.
    assert!(taken(decide("two", "new", new(), 0)));
    assert!(!taken(decide("two", "b", Operation::Chmod(0o600), 3)));
    assert!(taken(decide("two", "b", Operation::Chmod(0o600), 4)));
    // A rename looks at both ends.
    assert!(!taken(decide(
        "two",
        "a/f",
        Operation::Rename(path("b")),
        3
    )));
    assert!(taken(decide("two", "a/f", Operation::Rename(path("b")), 4)));
    assert!(!taken(decide(
        "two",
        "a/f",
        Operation::Rename(path("c")),
        2
    )));
}

#[test]
fn what_was_seen_in_a_history_that_is_lost_counts_for_nothing() {
    let refused = |operation| {
        let decision = decide("two", "a/f", operation, 5);
        matches!(decision, Decision::Refuse(_))
    };
    assert!(refused(Operation::Write(Node::file(0o644, b"new"))));
    assert!(refused(Operation::Delete));
    assert!(refused(Operation::Chmod(0o600)));
    assert!(refused(Operation::Rename(path("c"))));
    let same = Operation::Write(Node::file(0o644, b"2"));
    assert_eq!(decide("two", "a/f", same, 5), Decision::AlreadySo(3));
}

#[test]
fn nothing_unseen_is_overwritten_by_a_change_of_kind() {
    let taken = |decision| matches!(decision, Decision::Apply(_));
    assert!(!taken(decide(
        "two",
        "a",
        Operation::Write(Node::file(0o644, b"x")),
        4
    )));
    assert!(!taken(decide(
        "two",
        "b/c",
        Operation::Write(Node::file(0o644, b"x")),
        4
    )));
    assert!(!taken(decide("two", "a", Operation::Delete, 1)));
    let Decision::Apply(steps) = decide("two", "a", Operation::Delete, 3) else {
        panic!()
    };
    assert_eq!(
        steps
            .iter()
            .map(|step| step.path.as_str())
            .collect::<Vec<_>>(),
        ["a/f", "a"]
    );
}

#[test]
fn a_folder_moves_with_what_is_in_it() {
    let Decision::Apply(steps) = decide("two", "a", Operation::Rename(path("x/y")), 4) else {
        panic!()
    };
    let seen: Vec<_> = steps
        .iter()
        .map(|step| (step.path.as_str(), step.node.is_some()))
        .collect();
    assert_eq!(
        seen,
        [
            ("x", true),
            ("x/y", true),
            ("x/y/f", true),
            ("a/f", false),
            ("a", false)
        ]
    );
    // Neither into itself nor over the folder that it is in.
    for (from, to) in [("a", "a/b"), ("a/b", "a"), ("a", "a")] {
        let entry = WriteBackEntry {
            local_seq: 1,
            filepath: from.into(),
            operation: WriteOperation::Rename {
                new_path: to.into(),
            },
            content_hash: None,
            content_bytes: None,
            size: 0,
            permissions: 0,
            is_deletion: false,
            master_rowid_seen: 1,
        };
        assert!(CheckedEntry::check(&entry).is_err(), "{from} to {to}");
    }
}

#[test]
fn a_folder_never_takes_the_place_of_one_that_is_not_empty() {
    let mut ledger = ledger();
    ledger.record(path("d"), Some(Node::directory(0o755)), local()); // 5
    ledger.record(path("d/f"), Some(Node::file(0o644, b"kept")), local()); // 6
    let renamed = |ledger: &Ledger| {
        let entry = CheckedEntry {
            local_seq: 1,
            path: path("a"),
            operation: Operation::Rename(path("d")),
            base: 5,
            done_to: None,
        };
        ledger.decide("two", &entry)
    };
    assert!(matches!(renamed(&ledger), Decision::Refuse(_)));
    ledger.record(path("d/f"), None, local());
    assert!(matches!(renamed(&ledger), Decision::Apply(_)));
}

#[test]
fn the_live_tree_has_no_deletions_and_the_stream_has_no_holes() {
    let mut ledger = ledger();
    ledger.record(path("b"), None, local()); // 5
    let sequences = |changes: Vec<Change>| changes.iter().map(|c| c.sequence).collect::<Vec<_>>();
    assert_eq!(sequences(ledger.newest_after(0, 5, 10)), [1, 3]);
    assert_eq!(sequences(ledger.newest_after(2, 0, 10)), [3, 5]);
    assert_eq!(sequences(ledger.stream_after(1, 10).unwrap()), [2, 3, 4, 5]);
    ledger.forget_through(5);
    assert_eq!(ledger.stream_after(1, 10), None);
    assert!(ledger.latest(&path("b")).is_none());
    assert_eq!((ledger.files(), ledger.bytes()), (1, 1));
}

#[test]
fn a_tree_changes_in_an_order_that_works() {
    let file = Some(Node::file(0o644, b""));
    let dir = Some(Node::directory(0o755));
    let changes = vec![
        (path("d/x"), None),
        (path("d"), file.clone()),
        (path("n/c"), file),
        (path("n"), dir),
        (path("old"), None),
        (path("old/k"), None),
    ];
    let order: Vec<_> = in_order(changes, |c| &c.0, |c| c.1.clone())
        .into_iter()
        .map(|c| c.0.to_string())
        .collect();
    assert_eq!(order, ["d/x", "d", "n", "n/c", "old/k", "old"]);
}

#[test]
fn a_rename_that_gives_a_file_a_path_too_long_is_refused_as_a_whole() {
    let mut ledger = ledger();
    let deep = format!("a/{}", vec!["d"; 1_500].join("/"));
    ledger.record(path(&deep), Some(Node::directory(0o755)), local());
    let to = |depth| CheckedEntry {
        local_seq: 1,
        path: path("a"),
        operation: Operation::Rename(path(&vec!["e"; depth].join("/"))),
        base: 5,
        done_to: None,
    };
    assert!(matches!(ledger.decide("one", &to(500)), Decision::Apply(_)));
    let refused = ledger.decide("one", &to(1_000));
    assert!(matches!(refused, Decision::Refuse(_)), "{refused:?}");
}
