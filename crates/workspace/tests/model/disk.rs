//! A disk in memory: what programs do to it, and what a watcher finds.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use quintet_workspace::proto::ledger::in_order;
use quintet_workspace::proto::replica::LocalChange;
use quintet_workspace::proto::{Kind, Node, WorkspacePath};

pub type Tree = BTreeMap<WorkspacePath, (Node, Vec<u8>)>;

pub fn children(tree: &Tree, path: &WorkspacePath) -> Vec<WorkspacePath> {
    tree.keys()
        .filter(|other| other.is_beneath(path))
        .cloned()
        .collect()
}

pub fn is_folder(tree: &Tree, path: &WorkspacePath) -> bool {
    tree.get(path).is_some_and(|(node, _)| node.is_directory())
}

/// What a program may do to a disk; it refuses what a disk refuses.
#[derive(Clone, Debug)]
pub enum DiskOp {
    Write(WorkspacePath, Vec<u8>),
    Append(WorkspacePath, u8),
    Remove(WorkspacePath),
    Rename(WorkspacePath, WorkspacePath),
    Chmod(WorkspacePath, u32),
    Folder(WorkspacePath),
    Link(WorkspacePath, String),
}

pub fn operate(tree: &mut Tree, op: DiskOp) {
    let has_home = |tree: &Tree, path: &WorkspacePath| {
        path.parent().is_none_or(|parent| is_folder(tree, &parent))
    };
    match op {
        DiskOp::Write(path, bytes) => {
            if has_home(tree, &path) && !is_folder(tree, &path) {
                tree.insert(path, (Node::file(0o644, &bytes), bytes));
            }
        }
        DiskOp::Append(path, byte) => {
            if let Some((node, bytes)) = tree
                .get_mut(&path)
                .filter(|(node, _)| node.kind == Kind::File)
            {
                bytes.push(byte);
                *node = Node::file(node.mode, bytes);
            }
        }
        DiskOp::Remove(path) => {
            for child in children(tree, &path) {
                tree.remove(&child);
            }
            tree.remove(&path);
        }
        DiskOp::Rename(from, to) => {
            let fits = tree.contains_key(&from)
                && from != to
                && !to.is_beneath(&from)
                && !from.is_beneath(&to)
                && has_home(tree, &to)
                && (is_folder(tree, &from) == is_folder(tree, &to) || !tree.contains_key(&to))
                && children(tree, &to).is_empty();
            if fits {
                let mut moved = children(tree, &from);
                moved.push(from.clone());
                for old in moved {
                    let what = tree.remove(&old).unwrap();
                    tree.insert(old.rebased(&from, &to).unwrap(), what);
                }
            }
        }
        DiskOp::Chmod(path, mode) => {
            if let Some((node, _)) = tree.get_mut(&path) {
                *node = node.with_mode(mode);
            }
        }
        DiskOp::Folder(path) => {
            if has_home(tree, &path) && !tree.contains_key(&path) {
                tree.insert(path, (Node::directory(0o755), vec![]));
            }
        }
        DiskOp::Link(path, target) => {
            if has_home(tree, &path) && !tree.contains_key(&path) {
                tree.insert(path, (Node::symlink(&target), target.into_bytes()));
            }
        }
    }
}

/// What a watcher would find, with renames paired where content says so.
pub fn differences(
    tree: &Tree,
    seen: &BTreeMap<WorkspacePath, Node>,
    pair: bool,
) -> Vec<LocalChange> {
    let paths: BTreeSet<&WorkspacePath> = tree.keys().chain(seen.keys()).collect();
    let mut changes = Vec::new();
    let mut taken = HashSet::new();
    for path in paths {
        let node = tree.get(path).map(|(node, _)| node.clone());
        if node.as_ref() == seen.get(path) {
            continue;
        }
        let from = node
            .as_ref()
            .filter(|_| pair && !seen.contains_key(path))
            .and_then(|node| {
                seen.iter()
                    .find(|(old, was)| {
                        *was == node && !tree.contains_key(*old) && !taken.contains(*old)
                    })
                    .map(|(old, _)| old.clone())
            });
        taken.extend(from.clone());
        changes.push(LocalChange {
            path: path.clone(),
            node,
            renamed_from: from,
        });
    }
    in_order(changes, |change| &change.path, |change| change.node.clone())
}
