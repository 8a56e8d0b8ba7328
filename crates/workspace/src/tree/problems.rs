//! What is not replicated, and why: each is said once, and kept for whoever asks.

use super::live::LiveTree;
use super::root;
use super::{Problem, ProblemReason};
use crate::proto::WorkspacePath;

impl LiveTree {
    /// What is so now. No event tells that a name that is not UTF-8 is gone, and a
    /// path may hold something else by now.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let problems = self.problems.iter();
        let mut all: Vec<_> = problems.filter(|it| self.is_still(it)).cloned().collect();
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all
    }

    fn is_still(&self, problem: &Problem) -> bool {
        // The root has no path, and is there.
        let Ok(path) = WorkspacePath::parse(&problem.path) else {
            return true;
        };
        match problem.reason {
            ProblemReason::NameNotUtf8 => {
                let Ok(folder) = self.root.folder(path.parent().as_ref()) else {
                    return false;
                };
                let mut is_here = false;
                let names = self.root.names(&folder, false, &mut |name| {
                    is_here |= name.to_string_lossy() == path.name();
                });
                is_here || names.is_err()
            }
            ProblemReason::SpecialFile => match self.root.stat(&path) {
                Ok(stat) => stat.is_some_and(|stat| root::kind(&stat).is_none()),
                Err(_) => true,
            },
            ProblemReason::Unreadable(_) => !matches!(self.root.stat(&path), Ok(None)),
        }
    }

    pub(super) fn readable_again(&mut self, path: &str) {
        self.problems.retain(|problem| {
            problem.path != path || !matches!(problem.reason, ProblemReason::Unreadable(_))
        });
    }

    pub(super) fn report(&mut self, path: &str, reason: ProblemReason) {
        let problem = Problem {
            path: path.to_owned(),
            reason,
        };
        if self.problems.insert(problem.clone()) {
            tracing::warn!(path, reason = ?problem.reason, "not replicated");
        }
    }
}
