//! A disk, a master and replicas in memory, for the state machines to run on.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use quintet_workspace::proto::fetch::{Finish, Offer};
use quintet_workspace::proto::manifest::{ChunkRef, Manifest};
use quintet_workspace::proto::master::{MasterEffect, MasterSession, WriteBackOutcome};
use quintet_workspace::proto::replica::{
    ApplyItem, ApplyOutcome, Base, ContentSource, JournalEntry, LocalChange, ReplicaCore,
    ReplicaEffect, ReplicaEvent, Restored, Settlement, bases_after,
};
use quintet_workspace::proto::{
    Author, CheckedEntry, ContentHash, Decision, Ledger, Node, WireMessage, WorkspacePath,
    WriteBackEntry,
};

use super::disk::{Tree, children, differences, is_folder};

const CHUNK: usize = 3_000;
const MANIFEST_FROM: usize = 9_000;
/// How much of a new tree is recorded at once.
const PART: usize = 3;

type Contents = HashMap<ContentHash, Vec<u8>>;

fn offer(contents: &Contents, content_hash: &str) -> Offer {
    let hash = ContentHash::parse(content_hash).unwrap();
    match contents.get(&hash) {
        None if hash == ContentHash::empty() => Offer::Whole(Bytes::new()),
        None => match contents
            .values()
            .flat_map(|whole| whole.chunks(CHUNK))
            .find(|c| ContentHash::of(c) == hash)
        {
            Some(chunk) => Offer::Whole(Bytes::copy_from_slice(chunk)),
            None => Offer::Nothing,
        },
        Some(bytes) if bytes.len() >= MANIFEST_FROM => {
            let mut offset = 0;
            let chunks = bytes
                .chunks(CHUNK)
                .map(|chunk| {
                    let chunk_ref = ChunkRef {
                        hash: ContentHash::of(chunk),
                        offset,
                        size: chunk.len() as u64,
                    };
                    offset += chunk.len() as u64;
                    chunk_ref
                })
                .collect();
            Offer::Chunks(Manifest {
                total_size: offset,
                chunk_size: CHUNK as u64,
                chunks,
            })
        }
        Some(bytes) => Offer::Whole(bytes.clone().into()),
    }
}

fn missing_chunks(contents: &Contents, manifest: &Manifest) -> Vec<usize> {
    let known: HashSet<ContentHash> = contents
        .values()
        .flat_map(|whole| whole.chunks(CHUNK))
        .map(ContentHash::of)
        .collect();
    manifest
        .chunks
        .iter()
        .enumerate()
        .filter(|(_, c)| !known.contains(&c.hash))
        .map(|(index, _)| index)
        .collect()
}

/// Puts chunks together, from what was kept and what is known.
fn assemble(contents: &Contents, kept: &HashMap<u64, Vec<u8>>, manifest: &Manifest) -> Vec<u8> {
    let mut whole = Vec::new();
    for chunk in &manifest.chunks {
        match kept.get(&chunk.offset) {
            Some(bytes) => whole.extend_from_slice(bytes),
            None => {
                let known = contents
                    .values()
                    .flat_map(|whole| whole.chunks(CHUNK))
                    .find(|c| ContentHash::of(c) == chunk.hash);
                whole.extend_from_slice(known.unwrap_or_default());
            }
        }
    }
    whole
}

#[derive(Default)]
struct Assemblies(HashMap<ContentHash, (Manifest, HashMap<u64, Vec<u8>>)>);

pub struct Master {
    pub disk: Tree,
    pub ledger: Ledger,
    pub history: BTreeMap<u64, (WorkspacePath, Option<Node>, Author)>,
    contents: Contents,
    answers: HashMap<(String, u64), Result<u64, String>>,
    /// Whether its tree is still being read for the first time.
    pub opening: bool,
}

impl Master {
    pub fn new() -> Self {
        Self {
            disk: Tree::new(),
            ledger: Ledger::default(),
            history: BTreeMap::new(),
            contents: Contents::new(),
            answers: HashMap::new(),
            opening: false,
        }
    }

    /// One whose tree was never read.
    pub fn opening(disk: Tree) -> Self {
        let mut master = Self::new();
        master.disk = disk;
        master.opening = true;
        master.ledger.set_partial(true);
        master
    }

    fn record(&mut self, path: WorkspacePath, node: Option<Node>, author: Author) -> u64 {
        let sequence = self
            .ledger
            .record(path.clone(), node.clone(), author.clone());
        assert!(
            self.history
                .insert(sequence, (path, node, author))
                .is_none(),
            "a sequence was used twice"
        );
        sequence
    }

    /// Finds and records what changed on the disk; of a tree that is read for the
    /// first time only the next part.
    pub fn look(&mut self) -> u64 {
        let seen: BTreeMap<WorkspacePath, Node> = self
            .ledger
            .live()
            .map(|(path, node)| (path.clone(), node.clone()))
            .collect();
        let mut changes = differences(&self.disk, &seen, false);
        if self.opening {
            // Each path is read once: what becomes of it meanwhile is found by the next look.
            let is_file =
                |path: WorkspacePath| seen.get(&path).is_some_and(|it| !it.is_directory());
            changes.retain(|change| {
                !seen.contains_key(&change.path)
                    && !change.path.ancestors().into_iter().any(is_file)
            });
            changes.truncate(PART);
            self.opening = !changes.is_empty();
            self.ledger.set_partial(self.opening);
        }
        for change in changes {
            if let Some((node, bytes)) = self.disk.get(&change.path) {
                self.contents.insert(node.hash, bytes.clone());
            }
            self.record(change.path, change.node, Author::Local("host".into()));
        }
        self.ledger.current()
    }

    fn commit(
        &mut self,
        sandbox: &Arc<str>,
        entries: &[WriteBackEntry],
        unavailable: &HashSet<ContentHash>,
    ) -> WriteBackOutcome {
        self.look();
        let mut outcome = WriteBackOutcome::default();
        for entry in entries {
            let key = (sandbox.to_string(), entry.local_seq);
            let answer = match self.answers.get(&key) {
                Some(answer) => answer.clone(),
                None => {
                    let answer = self.take(sandbox, entry, unavailable);
                    self.answers.insert(key, answer.clone());
                    answer
                }
            };
            match answer {
                Ok(sequence) => outcome.accepted.push((entry.local_seq, sequence)),
                Err(reason) => outcome.rejected.push((entry.local_seq, reason)),
            }
        }
        outcome
    }

    fn take(
        &mut self,
        sandbox: &Arc<str>,
        entry: &WriteBackEntry,
        unavailable: &HashSet<ContentHash>,
    ) -> Result<u64, String> {
        let checked = CheckedEntry::check(entry)?;
        if let Some(node) = checked.content() {
            if unavailable.contains(&node.hash) {
                return Err("the content was not available".into());
            }
            if let Some(bytes) = &entry.content_bytes {
                self.contents.insert(node.hash, bytes.clone());
            }
        }
        match self.ledger.decide(sandbox, &checked) {
            Decision::AlreadySo(sequence) => Ok(sequence),
            Decision::Refuse(reason) => Err(reason),
            Decision::Apply(steps) => {
                for step in steps {
                    match &step.node {
                        Some(node) => {
                            let bytes = if node.is_directory() {
                                vec![]
                            } else {
                                self.contents.get(&node.hash).cloned().unwrap_or_else(|| {
                                    assert_eq!(node.size, 0, "content of {} is missing", step.path);
                                    vec![]
                                })
                            };
                            assert!(
                                step.path.parent().is_none_or(|p| is_folder(&self.disk, &p)),
                                "no home for {}",
                                step.path
                            );
                            self.disk.insert(step.path.clone(), (node.clone(), bytes));
                        }
                        None => {
                            assert!(
                                children(&self.disk, &step.path).is_empty(),
                                "{} is not empty",
                                step.path
                            );
                            self.disk.remove(&step.path);
                        }
                    }
                    self.record(step.path, step.node, Author::Sandbox(Arc::clone(sandbox)));
                }
                Ok(self.ledger.current())
            }
        }
    }
}

/// What a replica's disk keeps over a crash.
#[derive(Default)]
pub struct Durable {
    applied: u64,
    resyncing: bool,
    bases: BTreeMap<WorkspacePath, Base>,
    seen: BTreeMap<WorkspacePath, Node>,
    journal: BTreeMap<u64, JournalEntry>,
    next_local_seq: u64,
    pub conflicts: Vec<(JournalEntry, String)>,
    contents: Contents,
    intents: Vec<ApplyItem>,
}

pub struct Rep {
    pub name: Arc<str>,
    pub disk: Tree,
    pub durable: Durable,
    pub core: Option<ReplicaCore>,
    seen: BTreeMap<WorkspacePath, Node>,
    pub effects: VecDeque<ReplicaEffect>,
    assemblies: Assemblies,
    pub settled: Vec<Settlement>,
}

impl Rep {
    pub fn new(name: &str) -> Self {
        let mut rep = Self {
            name: name.into(),
            disk: Tree::new(),
            durable: Durable::default(),
            core: None,
            seen: BTreeMap::new(),
            effects: VecDeque::new(),
            assemblies: Assemblies::default(),
            settled: Vec::new(),
        };
        rep.start();
        rep
    }

    pub fn crash(&mut self) {
        self.core = None;
        self.effects.clear();
        self.assemblies = Assemblies::default();
    }

    pub fn start(&mut self) {
        let durable = &mut self.durable;
        for item in std::mem::take(&mut durable.intents) {
            let now = self.disk.get(&item.path).map(|(node, _)| node);
            if now == item.node.as_ref() {
                match item.node {
                    Some(node) => {
                        durable.seen.insert(item.path.clone(), node.clone());
                        durable.bases.insert(
                            item.path,
                            Base {
                                sequence: item.sequence,
                                node,
                            },
                        );
                    }
                    None => {
                        durable.seen.remove(&item.path);
                        durable.bases.remove(&item.path);
                    }
                }
            }
        }
        self.seen = durable.seen.clone();
        let differing = durable
            .seen
            .keys()
            .chain(durable.bases.keys())
            .filter(|path| {
                durable.bases.get(*path).map(|base| &base.node) != durable.seen.get(*path)
            })
            .cloned()
            .collect();
        let restored = Restored {
            applied: durable.applied,
            resyncing: durable.resyncing,
            bases: durable.bases.clone(),
            differing,
            journal: durable.journal.values().cloned().collect(),
            next_local_seq: durable.next_local_seq,
        };
        self.core = Some(ReplicaCore::restore(Arc::clone(&self.name), restored));
        self.look(false);
    }

    /// Finds local changes and hands them to the state machine.
    pub fn look(&mut self, pair: bool) {
        if self.core.is_none() {
            return;
        }
        let changes = differences(&self.disk, &self.seen, pair);
        for change in &changes {
            self.see(&change.path);
        }
        if !changes.is_empty() {
            self.core.as_mut().unwrap().local_changes(changes);
        }
    }

    fn see(&mut self, path: &WorkspacePath) {
        match self.disk.get(path) {
            Some((node, bytes)) => {
                self.durable.contents.insert(node.hash, bytes.clone());
                self.seen.insert(path.clone(), node.clone());
            }
            None => {
                self.seen.remove(path);
            }
        }
    }

    fn persist_seen(&mut self, path: &WorkspacePath) {
        match self.seen.get(path) {
            Some(node) => drop(self.durable.seen.insert(path.clone(), node.clone())),
            None => drop(self.durable.seen.remove(path)),
        }
    }

    fn imply(&mut self, folder: &WorkspacePath) {
        let durable = &mut self.durable;
        let pending = durable.journal.values().any(|entry| entry.path == *folder);
        if !pending && !durable.bases.contains_key(folder) {
            durable.bases.insert(
                folder.clone(),
                Base {
                    sequence: 0,
                    node: Node::directory(0o755),
                },
            );
            self.persist_seen(folder);
        }
    }

    fn apply(&mut self, item: &ApplyItem) -> ApplyOutcome {
        let path = &item.path;
        let now = self.disk.get(path).map(|(node, _)| node.clone());
        if now.as_ref() != self.seen.get(path) {
            if now == item.node {
                self.see(path);
                return ApplyOutcome::Done;
            }
            self.see(path);
            return ApplyOutcome::Diverged(LocalChange {
                path: path.clone(),
                node: now,
                renamed_from: None,
            });
        }
        if now == item.node {
            return ApplyOutcome::Done;
        }
        let Some(node) = &item.node else {
            if !children(&self.disk, path).is_empty() {
                return ApplyOutcome::DoneBut(LocalChange {
                    path: path.clone(),
                    node: now,
                    renamed_from: None,
                });
            }
            self.disk.remove(path);
            self.see(path);
            return ApplyOutcome::Done;
        };
        let same = now.as_ref().is_some_and(|now| now.same_content(node));
        let bytes = match &item.content {
            _ if node.is_directory() => vec![],
            _ if same => self.disk[path].1.clone(),
            ContentSource::Keep => return ApplyOutcome::NeedContent,
            ContentSource::Bytes(bytes) => bytes.clone(),
            ContentSource::Assembled(hash) => match self.assemblies.0.remove(hash) {
                Some((manifest, kept)) => assemble(&self.durable.contents, &kept, &manifest),
                None => return ApplyOutcome::NeedContent,
            },
            ContentSource::CopyOf(other) => match self
                .disk
                .get(other)
                .filter(|(other, _)| other.same_content(node))
            {
                Some((_, bytes)) => bytes.clone(),
                None => return ApplyOutcome::NeedContent,
            },
        };
        if !node.is_directory() {
            assert_eq!(
                ContentHash::of(&bytes),
                node.hash,
                "wrong content at {path}"
            );
            if !children(&self.disk, path).is_empty() {
                return ApplyOutcome::Blocked("a folder with files".into());
            }
        }
        for ancestor in path.ancestors() {
            match self.disk.get(&ancestor) {
                Some((node, _)) if node.is_directory() => {}
                Some(_) => return ApplyOutcome::Blocked("not a folder".into()),
                None if self.seen.contains_key(&ancestor) => {
                    return ApplyOutcome::Blocked("removed here".into());
                }
                None => {
                    self.disk
                        .insert(ancestor.clone(), (Node::directory(0o755), vec![]));
                    self.see(&ancestor);
                }
            }
        }
        self.disk.insert(path.clone(), (node.clone(), bytes));
        self.see(path);
        ApplyOutcome::Done
    }

    /// Carries out one effect. With `die_after`, the program is killed after so
    /// many changes were put in place.
    pub fn run_effect(&mut self, now: Duration, die_after: Option<usize>) {
        let Some(effect) = self.effects.pop_front() else {
            return;
        };
        match effect {
            ReplicaEffect::Apply(items) => {
                self.durable.intents = items.clone();
                let mut outcomes = Vec::new();
                for (index, item) in items.iter().enumerate() {
                    if die_after == Some(index) {
                        self.crash();
                        return;
                    }
                    outcomes.push((item.path.clone(), item.sequence, self.apply(item)));
                }
                for ((path, sequence, outcome), item) in outcomes.iter().zip(&items) {
                    if matches!(outcome, ApplyOutcome::Done | ApplyOutcome::DoneBut(_)) {
                        match &item.node {
                            Some(node) => drop(self.durable.bases.insert(
                                path.clone(),
                                Base {
                                    sequence: *sequence,
                                    node: node.clone(),
                                },
                            )),
                            None => drop(self.durable.bases.remove(path)),
                        }
                        self.persist_seen(path);
                        if item.node.is_some() {
                            for folder in path.ancestors() {
                                self.imply(&folder);
                            }
                        }
                    }
                }
                self.durable.intents.clear();
                self.core.as_mut().unwrap().applied(now, outcomes);
            }
            ReplicaEffect::SaveProgress { applied, resyncing } => {
                self.durable.applied = applied;
                self.durable.resyncing = resyncing;
            }
            ReplicaEffect::ForgetSequences => {
                unreachable!("the master never loses its history")
            }
            ReplicaEffect::DropPlanned => self.assemblies.0.clear(),
            ReplicaEffect::Journal(entries) => {
                for entry in &entries {
                    self.durable.next_local_seq = entry.local_seq + 1;
                    self.durable.journal.insert(entry.local_seq, entry.clone());
                    for (path, node) in bases_after(entry) {
                        match node {
                            Some(node) => drop(self.durable.seen.insert(path, node)),
                            None => drop(self.durable.seen.remove(&path)),
                        }
                    }
                }
                let through = entries.last().unwrap().local_seq;
                self.core.as_mut().unwrap().journalled(through);
            }
            ReplicaEffect::Settle(settlements) => {
                for settlement in settlements {
                    self.durable.journal.remove(&settlement.entry.local_seq);
                    match &settlement.result {
                        Ok(sequence) => {
                            for (path, node) in bases_after(&settlement.entry) {
                                match node {
                                    Some(node) => {
                                        self.durable.bases.insert(
                                            path,
                                            Base {
                                                sequence: *sequence,
                                                node,
                                            },
                                        );
                                    }
                                    None => drop(self.durable.bases.remove(&path)),
                                }
                            }
                        }
                        Err(reason) => {
                            if let Some(node) = settlement
                                .entry
                                .node
                                .as_ref()
                                .filter(|node| !node.is_directory())
                            {
                                assert!(
                                    node.size == 0
                                        || self.durable.contents.contains_key(&node.hash),
                                    "the bytes of a refused write are gone"
                                );
                            }
                            self.durable
                                .conflicts
                                .push((settlement.entry.clone(), reason.clone()));
                        }
                    }
                    self.settled.push(settlement);
                }
            }
            ReplicaEffect::LoadInline(wanted) => {
                let contents = &self.durable.contents;
                let found = wanted
                    .into_iter()
                    .map(|(n, hash)| (n, contents.get(&hash).cloned().unwrap_or_default()))
                    .collect();
                self.core.as_mut().unwrap().inline_loaded(found);
            }
            ReplicaEffect::LoadContent { content_hash } => {
                let offer = offer(&self.durable.contents, &content_hash);
                self.core
                    .as_mut()
                    .unwrap()
                    .content_loaded(content_hash, offer);
            }
            ReplicaEffect::Plan { hash, manifest, .. } => {
                let mut missing = missing_chunks(&self.durable.contents, &manifest);
                // What came over an earlier connection is gone on with.
                let begun = self.assemblies.0.remove(&hash);
                let kept = match begun {
                    Some((begun, kept)) if begun == manifest => kept,
                    _ => HashMap::new(),
                };
                missing.retain(|index| !kept.contains_key(&manifest.chunks[*index].offset));
                self.assemblies.0.insert(hash, (manifest, kept));
                self.core.as_mut().unwrap().planned(&hash, &missing);
            }
            ReplicaEffect::KeepChunk {
                hash,
                bytes,
                offsets,
            } => {
                if let Some((_, kept)) = self.assemblies.0.get_mut(&hash) {
                    for offset in &offsets {
                        kept.insert(*offset, bytes.to_vec());
                    }
                }
                self.core.as_mut().unwrap().chunk_kept(&hash, offsets.len());
            }
            ReplicaEffect::FinishContent { hash } => {
                self.core
                    .as_mut()
                    .unwrap()
                    .content_finished(&hash, &Finish::Right)
                    .unwrap();
            }
        }
    }

    /// Moves new effects and events out of the state machine.
    pub fn drain(&mut self) {
        let Some(core) = &mut self.core else { return };
        while let Some(effect) = core.poll_effect() {
            self.effects.push_back(effect);
        }
        while let Some(event) = core.poll_event() {
            drop::<ReplicaEvent>(event);
        }
    }
}

/// A connection between the master and one replica.
pub struct Conn {
    pub session: MasterSession,
    pub down: VecDeque<WireMessage>,
    pub up: VecDeque<WireMessage>,
    pub effects: VecDeque<MasterEffect>,
    assemblies: Assemblies,
}

impl Conn {
    pub fn new(now: Duration) -> Self {
        Self {
            session: MasterSession::new(now),
            down: VecDeque::new(),
            up: VecDeque::new(),
            effects: VecDeque::new(),
            assemblies: Assemblies::default(),
        }
    }

    pub fn drain(&mut self, now: Duration, ledger: &Ledger) {
        while let Some(effect) = self.session.poll_effect(now, ledger) {
            self.effects.push_back(effect);
        }
        while self.down.len() < 8 {
            match self.session.poll_message(now, ledger) {
                Some(message) => self.down.push_back(message),
                None => break,
            }
        }
        while let Some(effect) = self.session.poll_effect(now, ledger) {
            self.effects.push_back(effect);
        }
    }

    pub fn run_effect(&mut self, master: &mut Master) {
        // A tree that is read for the first time is not looked at beside that.
        let can_run = |effect: &MasterEffect| {
            let looks = matches!(
                effect,
                MasterEffect::Flush { .. } | MasterEffect::Commit { .. }
            );
            !(looks && master.opening)
        };
        let Some(effect) = self
            .effects
            .iter()
            .position(can_run)
            .and_then(|index| self.effects.remove(index))
        else {
            return;
        };
        match effect {
            MasterEffect::Announce { epoch, changes } => {
                let with = |change: quintet_workspace::proto::Change| {
                    let inline =
                        change
                            .node
                            .as_ref()
                            .filter(|node| node.size < 4_096)
                            .map(|node| {
                                if node.is_directory() {
                                    vec![]
                                } else {
                                    master.contents.get(&node.hash).cloned().unwrap_or_default()
                                }
                            });
                    (change, inline)
                };
                let changes = changes.into_iter().map(with).collect();
                self.session.announced(epoch, changes);
            }
            MasterEffect::Flush { barrier } => {
                let sequence = master.look();
                self.session.flushed(barrier, sequence);
            }
            MasterEffect::LoadContent { content_hash } => {
                let offer = offer(&master.contents, &content_hash);
                self.session.content_loaded(content_hash, offer);
            }
            MasterEffect::Prepare { entries, .. } => {
                let mut missing = Vec::new();
                for entry in entries.iter().filter(|entry| entry.content_bytes.is_none()) {
                    let Ok(checked) = CheckedEntry::check(entry) else {
                        continue;
                    };
                    if let Some(node) = checked
                        .content()
                        .filter(|n| n.size > 0 && !master.contents.contains_key(&n.hash))
                    {
                        missing.push((node.hash, node.size));
                    }
                }
                self.session.prepared(missing);
            }
            MasterEffect::KeepContent { hash, bytes } => {
                master.contents.insert(hash, bytes.to_vec());
                self.session.content_kept(&hash);
            }
            MasterEffect::Plan { hash, manifest } => {
                let missing = missing_chunks(&master.contents, &manifest);
                self.assemblies.0.insert(hash, (manifest, HashMap::new()));
                self.session.planned(&hash, &missing);
            }
            MasterEffect::KeepChunk {
                hash,
                bytes,
                offsets,
                ..
            } => {
                let (_, kept) = self.assemblies.0.get_mut(&hash).unwrap();
                for offset in &offsets {
                    kept.insert(*offset, bytes.to_vec());
                }
                self.session.chunk_kept(&hash, offsets.len());
            }
            MasterEffect::FinishContent { hash } => {
                let (manifest, kept) = self.assemblies.0.remove(&hash).unwrap();
                let whole = assemble(&master.contents, &kept, &manifest);
                assert_eq!(ContentHash::of(&whole), hash);
                master.contents.insert(hash, whole);
                self.session
                    .content_finished(&hash, &Finish::Right)
                    .unwrap();
            }
            MasterEffect::Commit {
                sandbox_id,
                entries,
                unavailable,
            } => {
                let outcome = master.commit(&sandbox_id, &entries, &unavailable);
                self.session.committed(outcome);
            }
        }
    }
}
