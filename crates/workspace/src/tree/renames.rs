//! Which of the changes that were found are renames.

use std::collections::HashSet;

use super::live::Found;
use crate::proto::WorkspacePath;
use crate::proto::ledger::in_order;

/// Orders changes, and keeps a rename only where its source is really gone; of a
/// guessed folder, only where something in it moved along.
pub(super) fn paired(changes: Vec<Found>, guessed: &HashSet<WorkspacePath>) -> Vec<Found> {
    let gone: HashSet<WorkspacePath> = changes
        .iter()
        .filter(|found| found.new.is_none())
        .map(|found| found.path.clone())
        .collect();
    let mut proven = HashSet::new();
    for found in &changes {
        if let Some(from) = &found.renamed_from
            && !guessed.contains(&found.path)
        {
            prove_parents(&found.path, from, &mut proven);
        }
    }
    let mut changes = in_order(changes, |found| &found.path, |found| found.node().cloned());
    let mut taken = HashSet::new();
    for found in &mut changes {
        let is_guess = guessed.contains(&found.path);
        found.renamed_from = found.renamed_from.take().filter(|from| {
            gone.contains(from)
                && (!is_guess || proven.contains(&(found.path.clone(), from.clone())))
                && taken.insert(from.clone())
        });
    }
    changes
}

/// What kept its name when it moved, moved with its folder.
fn prove_parents(
    to: &WorkspacePath,
    from: &WorkspacePath,
    proven: &mut HashSet<(WorkspacePath, WorkspacePath)>,
) {
    let (mut to, mut from) = (to.clone(), from.clone());
    while to.name() == from.name()
        && let (Some(above), Some(before)) = (to.parent(), from.parent())
        && proven.insert((above.clone(), before.clone()))
    {
        (to, from) = (above, before);
    }
}
