//! Taking what replicas wrote, and putting restored versions in place.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::time::Instant;

use super::engine::{CommitRequest, Done, Engine};
use super::workspace::WorkspaceError;
use crate::content::{Object, SMALL, small};
use crate::history::{self, Answer, Answered, Record};
use crate::proto::master::WriteBackOutcome;
use crate::proto::{
    Author, CheckedEntry, ContentHash, Decision, Kind, Node, Step, WorkspacePath, WriteBackEntry,
};
use crate::tree::{Applied, Content, Found, Look};

/// How often an entry is decided anew because somebody wrote to its path at the
/// same moment.
const ATTEMPTS: usize = 3;

impl Engine {
    /// Decides about entries of a replica, puts accepted ones in place, and
    /// records all of it in one transaction.
    pub(super) fn commit(
        &mut self,
        request: &CommitRequest,
    ) -> Result<WriteBackOutcome, WorkspaceError> {
        // What this side's people did before has its say first.
        self.tree
            .read_events()
            .map_err(|source| WorkspaceError::Watch { source })?;
        self.record_local(Look::Everything)?;
        let numbers: Vec<u64> = request
            .entries
            .iter()
            .map(|entry| entry.local_seq)
            .collect();
        let mut known = self.history.answers(&request.sandbox, &numbers)?;
        let guard = self.cas.writing()?;
        self.announce_intents(request, &known)?;
        let mut contents = request.contents.clone();
        let mut done = Vec::new();
        let mut answers: Vec<(u64, Answered)> = Vec::new();
        let mut failure = None;
        for entry in request.entries.iter() {
            let number = entry.local_seq;
            if let Some(answered) = known.get(&number).filter(|known| known.is_for(entry)) {
                answers.push((number, answered.clone()));
                continue;
            }
            match self.take_entry(request, entry, &mut contents, &mut done) {
                Ok(answer) => {
                    let answered = Answered::to(entry, answer);
                    // The same entry may come once more in this batch.
                    known.insert(number, answered.clone());
                    answers.push((number, answered));
                }
                // A full disk is no verdict: the replica keeps the entry and
                // sends it again. What is in place by now is recorded.
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        self.finish(&request.sandbox, done, &contents, &answers)?;
        drop(guard);
        if let Some(error) = failure {
            return Err(error);
        }
        self.failure = None;
        let mut outcome = WriteBackOutcome::default();
        for (local_seq, answered) in answers {
            match answered.answer {
                Ok(sequence) => outcome.accepted.push((local_seq, sequence)),
                Err(reason) => outcome.rejected.push((local_seq, reason)),
            }
        }
        Ok(outcome)
    }

    /// Names what is about to be put in place. It need not survive a power cut,
    /// only a kill, so it does not wait for the disk.
    fn announce_intents(
        &mut self,
        request: &CommitRequest,
        known: &HashMap<u64, Answered>,
    ) -> Result<(), WorkspaceError> {
        self.history
            .db()
            .pragma_update(None, "synchronous", "NORMAL")
            .map_err(|source| self.history.error(source))?;
        let ledger = &self.ledger;
        let written = self.history.transact(|db| {
            for entry in request.entries.iter().filter(|entry| {
                known
                    .get(&entry.local_seq)
                    .is_none_or(|known| !known.is_for(entry))
            }) {
                let Ok(entry) = CheckedEntry::check(entry) else {
                    continue;
                };
                if let Decision::Apply(steps) = ledger.decide(&request.sandbox, &entry) {
                    for step in steps {
                        history::put_intent(db, &step.path, step.node.as_ref(), &request.sandbox)?;
                    }
                }
            }
            Ok(())
        });
        self.history
            .db()
            .pragma_update(None, "synchronous", "FULL")
            .map_err(|source| self.history.error(source))?;
        Ok(written?)
    }

    fn take_entry(
        &mut self,
        request: &CommitRequest,
        entry: &WriteBackEntry,
        contents: &mut HashMap<ContentHash, Vec<u8>>,
        done: &mut Vec<Done>,
    ) -> Result<Answer, WorkspaceError> {
        let checked = match CheckedEntry::check(entry) {
            Ok(checked) => checked,
            Err(reason) => return Ok(Err(reason)),
        };
        if let Some(node) = checked.content() {
            if request.unavailable.contains(&node.hash) {
                return Ok(Err(format!("the content {} was not available", node.hash)));
            }
            if let Some(reason) = self.wrong_size(node, contents) {
                return Ok(Err(reason));
            }
            // Nobody has to be asked for no bytes.
            if node.hash == ContentHash::empty() {
                contents.insert(node.hash, Vec::new());
            }
            if let Some(bytes) = &entry.content_bytes {
                if bytes.len() as u64 <= SMALL {
                    contents.insert(node.hash, bytes.clone());
                } else {
                    self.cas.ingest(&bytes[..]).map_err(WorkspaceError::from)?;
                }
            }
        }
        let mut reason = String::new();
        for _ in 0..ATTEMPTS {
            let steps = match self.ledger.decide(&request.sandbox, &checked) {
                Decision::AlreadySo(sequence) => return Ok(Ok(sequence)),
                Decision::Refuse(reason) => return Ok(Err(reason)),
                Decision::Apply(steps) => steps,
            };
            let author = Author::Sandbox(request.sandbox.clone());
            match self.apply_steps(steps, &author, contents, done) {
                Ok(None) => return Ok(Ok(self.ledger.current())),
                Ok(Some(in_the_way)) => reason = in_the_way,
                // Waiting does not help: a name too long, a folder that may not
                // be written to.
                Err(WorkspaceError::Tree(error)) if !error.may_pass() => {
                    let reason = error.reason();
                    return Ok(Err(format!("it could not be put in place: {reason}")));
                }
                Err(error) => return Err(error),
            }
            self.notice(done)?;
        }
        Ok(Err(format!("it could not be put in place: {reason}")))
    }

    /// Why a node cannot be what it says: its content is at hand, and has another
    /// size. Replicas would not take it from us.
    fn wrong_size(&self, node: &Node, contents: &HashMap<ContentHash, Vec<u8>>) -> Option<String> {
        let length = |bytes: &Vec<u8>| bytes.len() as u64;
        // What cannot be read is told when it is put in place.
        let size = contents
            .get(&node.hash)
            .map(length)
            .or_else(|| small::size(self.history.db(), &node.hash).ok()?)
            .or_else(|| match self.cas.read(&node.hash).ok()?? {
                Object::Bytes(bytes) => Some(bytes.len() as u64),
                Object::Chunks(manifest) => Some(manifest.total_size),
            })?;
        (size != node.size).then(|| {
            format!(
                "{} bytes were announced, and the content {} has {size}",
                node.size, node.hash
            )
        })
    }

    /// Records what this side's people did in the middle of a commit, behind
    /// what the commit has done so far.
    fn notice(&mut self, done: &mut Vec<Done>) -> Result<(), WorkspaceError> {
        self.tree.catch_up_with_events()?;
        let sight = self.tree.look(Look::Everything, &self.cas)?;
        for found in sight.changes {
            let Found {
                path,
                old,
                new,
                small,
                renamed_from,
            } = found;
            let node = new.map(|seen| seen.node);
            let change = crate::proto::ChangeKind::between(old.as_ref(), node.as_ref());
            let record = Record {
                path,
                node,
                change,
                from: renamed_from,
                author: self.author.clone(),
            };
            self.ledger.record(
                record.path.clone(),
                record.node.clone(),
                record.author.clone(),
            );
            done.push(Done { record, old, small });
        }
        Ok(())
    }

    /// Puts steps in place. `Some` says what was in the way; steps before it are done.
    fn apply_steps(
        &mut self,
        steps: Vec<Step>,
        author: &Author,
        contents: &HashMap<ContentHash, Vec<u8>>,
        done: &mut Vec<Done>,
    ) -> Result<Option<String>, WorkspaceError> {
        for step in steps {
            let old = self.held(&step.path);
            match self.apply_step(&step.path, step.node.as_ref(), contents)? {
                Applied::Done => {}
                Applied::LeftFolder(_) => return Ok(Some("the folder is not empty".to_owned())),
                Applied::NeedContent => return Ok(Some("its content is missing".to_owned())),
                Applied::InTheWay(reason) => return Ok(Some(reason)),
                // To look again would find nothing.
                Applied::Diverged(_) if self.tree.is_left_out(&step.path) => {
                    return Ok(Some(
                        "it was changed where .quintetignore leaves it out; move it away first"
                            .to_owned(),
                    ));
                }
                Applied::Diverged(_) => {
                    self.tree.look_again(step.path, Instant::now());
                    return Ok(Some("it is being changed here".to_owned()));
                }
            }
            let record = Record {
                path: step.path,
                node: step.node,
                change: step.change,
                from: step.from,
                author: author.clone(),
            };
            self.ledger.record(
                record.path.clone(),
                record.node.clone(),
                record.author.clone(),
            );
            done.push(Done {
                record,
                old,
                small: None,
            });
        }
        Ok(None)
    }

    fn apply_step(
        &mut self,
        path: &WorkspacePath,
        node: Option<&Node>,
        contents: &HashMap<ContentHash, Vec<u8>>,
    ) -> Result<Applied, WorkspaceError> {
        let Some(node) = node.filter(|node| !node.is_directory()) else {
            return Ok(self.tree.apply(path, node, Content::Keep, &self.cas)?);
        };
        if self.held(path).is_some_and(|held| held.same_content(node)) {
            return Ok(self
                .tree
                .apply(path, Some(node), Content::Keep, &self.cas)?);
        }
        let given = match contents.get(&node.hash) {
            Some(bytes) => Some(bytes.clone()),
            None => small::get(self.history.db(), &node.hash)
                .map_err(|source| self.history.error(source))?,
        };
        if let Some(bytes) = given {
            return Ok(self
                .tree
                .apply(path, Some(node), Content::Bytes(&bytes), &self.cas)?);
        }
        if node.kind == Kind::Symlink || !self.cas.has(&node.hash) {
            return Ok(Applied::NeedContent);
        }
        let (history, cas) = (&self.history, &self.cas);
        let mut write = |file: &std::fs::File| Self::write_content(history, cas, &node.hash, file);
        Ok(self
            .tree
            .apply(path, Some(node), Content::Write(&mut write), cas)?)
    }

    /// Records what was done; when that fails, forgets it, so that the tree is
    /// looked at anew, and what is found there is still the replica's.
    fn finish(
        &mut self,
        sandbox: &str,
        done: Vec<Done>,
        contents: &HashMap<ContentHash, Vec<u8>>,
        answers: &[(u64, Answered)],
    ) -> Result<(), WorkspaceError> {
        let mut contents: HashMap<ContentHash, Vec<u8>> = contents.clone();
        let mut records = Vec::with_capacity(done.len());
        let mut undo = Vec::with_capacity(done.len());
        for Done { record, old, small } in done {
            if let (Some(small), Some(node)) = (small, &record.node) {
                contents.insert(node.hash, small);
            }
            undo.push(Found {
                path: record.path.clone(),
                old,
                new: None,
                small: None,
                renamed_from: None,
            });
            records.push(record);
        }
        // Contents of refused entries stay with the replica.
        let referred: std::collections::HashSet<ContentHash> = records
            .iter()
            .filter_map(|record| record.node.as_ref().map(|node| node.hash))
            .collect();
        contents.retain(|hash, _| referred.contains(hash));
        let result = self
            .tree
            .sync()
            .map_err(WorkspaceError::from)
            .and_then(|()| {
                self.record(
                    &records,
                    contents,
                    |db| {
                        for (local_seq, answered) in answers {
                            history::put_answer(db, sandbox, *local_seq, answered)?;
                        }
                        history::clear_intents(db)
                    },
                    &[],
                )
            });
        if result.is_ok() {
            self.intents.clear();
        } else {
            self.intents
                .extend(records.into_iter().filter_map(|record| {
                    let Author::Sandbox(sandbox) = record.author else {
                        return None;
                    };
                    Some((record.path, (record.node, sandbox.to_string())))
                }));
            self.ledger = self
                .published
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            undo.reverse();
            self.tree.unsee(undo, Instant::now());
        }
        result
    }

    /// Makes paths hold given versions, as new changes of this side. What cannot be
    /// done is told when all else is.
    pub(super) fn put(
        &mut self,
        changes: Vec<(WorkspacePath, Option<Node>)>,
    ) -> Result<u64, WorkspaceError> {
        let before = self.flush()?;
        let guard = self.cas.writing()?;
        let mut done = Vec::new();
        let mut left = Vec::new();
        let (mut changed, mut failure) = (0, None);
        for (path, node) in changes {
            if self.ledger.node(&path) == node.as_ref() {
                continue;
            }
            match self.put_one(&path, node.as_ref(), &mut done) {
                Ok(None) => changed += 1,
                Ok(Some(reason)) => left.push((path, reason)),
                Err(WorkspaceError::Tree(error)) if !error.may_pass() => {
                    left.push((path, error.reason()));
                }
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        self.finish("", done, &HashMap::new(), &[])?;
        drop(guard);
        match failure {
            Some(error) if changed == 0 => Err(error),
            Some(error) => Err(WorkspaceError::Halfway {
                changed,
                before,
                source: Box::new(error),
            }),
            None if left.is_empty() => Ok(self.ledger.current()),
            None => Err(WorkspaceError::InTheWay {
                left,
                changed,
                before,
            }),
        }
    }

    /// `Some` says what is in the way. What somebody does to the path at the same
    /// moment is recorded before it is replaced.
    fn put_one(
        &mut self,
        path: &WorkspacePath,
        node: Option<&Node>,
        done: &mut Vec<Done>,
    ) -> Result<Option<String>, WorkspaceError> {
        let mut in_the_way = None;
        for _ in 0..ATTEMPTS {
            let step = Step {
                path: path.clone(),
                node: node.cloned(),
                change: crate::proto::ChangeKind::between(self.held(path).as_ref(), node),
                from: None,
            };
            let author = self.author.clone();
            in_the_way = self.apply_steps(vec![step], &author, &HashMap::new(), done)?;
            if in_the_way.is_none() {
                break;
            }
            self.notice(done)?;
        }
        Ok(in_the_way)
    }
}
