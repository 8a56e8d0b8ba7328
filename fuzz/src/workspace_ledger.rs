//! The rule by which a replica's write is taken or refused, on any sequence of them.

use std::collections::BTreeMap;

use quintet_workspace::proto::ledger::{Author, CheckedEntry, Latest, Ledger};
use quintet_workspace::proto::{Change, Decision, Node, Operation, Step, WorkspacePath};

use crate::choices::Choices;

/// Deep enough for a folder in a folder, few enough to meet often.
const PATHS: [&str; 12] = [
    "a", "a/a", "a/a/a", "a/b", "b", "b/a", "b/a/b", "b/b", "ab", "ab/a", "a/a/b", "c",
];
const WRITERS: [&str; 3] = ["host", "one", "two"];

/// Each step is a change of the master's own, or an entry of one of two replicas.
pub fn workspace_ledger(data: &[u8]) {
    let mut choices = Choices::new(data);
    let mut world = World {
        ledger: Ledger::default(),
        history: Vec::new(),
        trees: vec![Tree::new()],
    };
    // Twelve paths have met each other by then; a longer history is only slower.
    for _ in 0..64 {
        if choices.is_empty() {
            break;
        }
        if choices.below(16) == 0 {
            world.forgets(u64::from(choices.byte()));
        } else {
            world.entry(&mut choices);
        }
        world.check(u64::from(choices.byte()) % (world.ledger.current() + 2));
    }
}

type Tree = BTreeMap<WorkspacePath, Node>;

struct World {
    ledger: Ledger,
    /// Every change ever recorded.
    history: Vec<Change>,
    /// The tree before the first change, and after each.
    trees: Vec<Tree>,
}

impl World {
    fn entry(&mut self, choices: &mut Choices<'_>) {
        let path = path(choices);
        let writer = choices.of(&WRITERS);
        let operation = match choices.below(6) {
            0 | 1 => Operation::Write(Node::file(0o644, &[choices.byte() % 4])),
            2 => Operation::Write(Node::directory(0o755)),
            3 => Operation::Delete,
            4 => {
                let to = self::path(choices);
                if to == path || to.is_beneath(&path) || path.is_beneath(&to) {
                    return;
                }
                Operation::Rename(to)
            }
            _ => Operation::Chmod(if choices.flag() { 0o700 } else { 0o755 }),
        };
        // The master sees everything; a replica may be behind.
        let current = self.ledger.current();
        let base = match writer {
            "host" => current,
            _ => current.saturating_sub(u64::from(choices.byte()) % 8),
        };
        let done_to = match choices.below(3) {
            0 => self.ledger.node(&path).map(|node| (node.kind, node.hash)),
            _ => None,
        };
        let entry = CheckedEntry {
            local_seq: 1,
            path,
            operation,
            base,
            done_to,
        };
        match self.ledger.decide(writer, &entry) {
            Decision::AlreadySo(sequence) => {
                assert!(sequence <= current);
                if let Operation::Write(node) = &entry.operation {
                    assert_eq!(self.ledger.node(&entry.path), Some(node));
                }
            }
            Decision::Refuse(reason) => {
                assert!(!reason.is_empty());
                assert!(writer != "host" || !matches!(entry.operation, Operation::Delete));
            }
            Decision::Apply(steps) => self.apply(writer, &entry, steps),
        }
    }

    fn apply(&mut self, writer: &str, entry: &CheckedEntry, steps: Vec<Step>) {
        assert!(!steps.is_empty());
        let unseen = |latest: &Latest| {
            latest.sequence > entry.base
                && latest.node.is_some()
                && !latest.author.is_sandbox(writer)
        };
        for step in &steps {
            let overwritten = self
                .ledger
                .latest(&step.path)
                .filter(|latest| unseen(latest) && latest.node != step.node);
            // A folder takes along what is in it, seen or not: that is moved and not lost.
            let moved = steps
                .iter()
                .any(|other| other.from.as_ref() == Some(&step.path));
            assert!(moved || overwritten.is_none(), "{} of {entry:?}", step.path);
        }
        let lost = self.lost(entry, &steps);
        assert!(lost.is_none(), "{lost:?} is lost by {entry:?}");
        for Step { path, node, .. } in steps {
            let author = match writer {
                "host" => Author::Local(writer.into()),
                _ => Author::Sandbox(writer.into()),
            };
            let sequence = self.ledger.record(path.clone(), node.clone(), author);
            let change = Change {
                sequence,
                path,
                node,
            };
            let mut tree = self.trees[self.history.len()].clone();
            put(&mut tree, &change);
            self.trees.push(tree);
            self.history.push(change);
            assert_eq!(
                sequence,
                self.history.len() as u64,
                "sequences have no hole"
            );
        }
        let now = self.ledger.node(&entry.path);
        match &entry.operation {
            Operation::Write(node) => assert_eq!(now, Some(node)),
            Operation::Delete => assert_eq!(now, None),
            Operation::Chmod(mode) => assert_eq!(now.map(|node| node.mode), Some(*mode)),
            Operation::Rename(to) => {
                assert_eq!(now, None);
                assert!(self.ledger.node(to).is_some());
            }
        }
        self.is_a_tree();
    }

    /// A rename keeps every file: as many of each content as there were, but for the one that the
    /// new name had.
    fn lost(&self, entry: &CheckedEntry, steps: &[Step]) -> Option<WorkspacePath> {
        let Operation::Rename(to) = &entry.operation else {
            return None;
        };
        let before = &self.trees[self.history.len()];
        let mut tree = before.clone();
        let count =
            |tree: &Tree, of: &Node| tree.values().filter(|node| node.hash == of.hash).count();
        for step in steps {
            match &step.node {
                Some(node) => drop(tree.insert(step.path.clone(), node.clone())),
                None => drop(tree.remove(&step.path)),
            }
        }
        let replaced = before.get(to).filter(|node| !node.is_directory());
        before
            .iter()
            .filter(|(_, node)| !node.is_directory())
            .find(|(_, node)| {
                let excused = usize::from(replaced.is_some_and(|old| old.hash == node.hash));
                count(&tree, node) + excused < count(before, node)
            })
            .map(|(path, _)| path.clone())
    }

    fn is_a_tree(&self) {
        for (path, _) in self.ledger.live() {
            for folder in path.ancestors() {
                let node = self.ledger.node(&folder);
                assert!(
                    node.is_some_and(Node::is_directory),
                    "{path} is in {node:?}"
                );
            }
        }
    }

    fn forgets(&mut self, back: u64) {
        let floor = self.ledger.current().saturating_sub(back);
        let live = self.live();
        self.ledger.forget_through(floor);
        assert!(self.ledger.floor() <= self.ledger.current());
        assert_eq!(self.live(), live, "only deletions are forgotten");
    }

    fn live(&self) -> Vec<(WorkspacePath, Node)> {
        self.ledger
            .live()
            .map(|(path, node)| (path.clone(), node.clone()))
            .collect()
    }

    /// What a replica at `cursor` is told makes its tree the master's.
    fn check(&self, cursor: u64) {
        let files = || self.ledger.live().filter(|(_, node)| !node.is_directory());
        assert_eq!(self.ledger.files(), files().count() as u64);
        assert_eq!(
            self.ledger.bytes(),
            files().map(|(_, node)| node.size).sum::<u64>()
        );
        let seen = usize::try_from(cursor)
            .expect("small")
            .min(self.history.len());
        if let Some(stream) = self.ledger.stream_after(cursor, usize::MAX) {
            assert_eq!(stream, self.history[seen..], "the stream has a hole");
        }
        if cursor < self.ledger.floor() {
            return;
        }
        let mut tree = self.trees[seen].clone();
        let mut last = cursor;
        for change in &self.ledger.newest_after(cursor, 0, usize::MAX) {
            assert!(change.sequence > last, "not in order");
            last = change.sequence;
            put(&mut tree, change);
        }
        assert!(tree.iter().eq(self.ledger.live()), "{tree:?}");
    }
}

fn put(tree: &mut Tree, change: &Change) {
    match &change.node {
        Some(node) => drop(tree.insert(change.path.clone(), node.clone())),
        None => drop(tree.remove(&change.path)),
    }
}

fn path(choices: &mut Choices<'_>) -> WorkspacePath {
    WorkspacePath::parse(choices.of(&PATHS)).expect("a good path")
}
