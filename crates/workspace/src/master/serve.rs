//! One replica's connection: the session and what it needs from the disk.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::engine::{Command, CommitRequest};
use super::fresh::Fresh;
use super::own::OwnObjects;
use super::workspace::{Workspace, WorkspaceError, read_content};
use crate::content::{Cas, CasError, Object, SMALL, Trust, WriteGuard};
use crate::history::{HistoryError, HistoryReader};
use crate::link::{Link, LinkError};
use crate::proto::fetch::{Finish, Offer};
use crate::proto::manifest::Manifest;
use crate::proto::master::{
    Announcement, MasterEffect, MasterError, MasterSession, WriteBackOutcome,
};
use crate::proto::{Change, CheckedEntry, ContentHash, Node, WriteBackEntry};
use crate::transport::Connection;

/// Contents that are read before the replica has taken those before them: what
/// is read too early leaves the cores' caches before it is sent.
const UNSENT: usize = 8;
/// Contents that were sent last, and would be verified if they are asked for again.
const SENT: usize = 256;

/// A connection ended, and not because the replica closed it.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection broke, or the replica sent something that is no message.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The replica broke the protocol.
    #[error(transparent)]
    Protocol(#[from] MasterError),
    /// The workspace cannot go on, for instance because its disk is full. The
    /// replica keeps what was not answered, and comes again.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
}

/// An effect that was carried out.
enum Finished {
    Announced(u64, Vec<Announcement>),
    Flushed(u64, u64),
    Loaded(Vec<(String, Offer)>),
    Prepared(Vec<(ContentHash, u64)>),
    Planned(ContentHash, Manifest, Vec<usize>),
    ChunkKept(ContentHash, usize),
    Kept(ContentHash),
    Verified(ContentHash, Finish, Option<Vec<u8>>),
    Committed(WriteBackOutcome),
}

impl Workspace {
    /// Serves one replica, by whatever name it gives itself, until it goes
    /// away, it breaks the protocol, or `shutdown` is cancelled.
    pub async fn serve(
        &self,
        connection: Connection,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let session = MasterSession::new(Duration::ZERO);
        self.serve_session(session, connection, shutdown).await
    }

    /// Serves the replica of one sandbox; under another's name it is cut off.
    pub async fn serve_sandbox(
        &self,
        sandbox: &str,
        connection: Connection,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        let session = MasterSession::with(sandbox, Duration::ZERO);
        self.serve_session(session, connection, shutdown).await
    }

    async fn serve_session(
        &self,
        session: MasterSession,
        connection: Connection,
        shutdown: CancellationToken,
    ) -> Result<(), ServeError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let _following = self.inner.fresh.follow();
        let mut server = Server {
            workspace: self.clone(),
            id,
            started: Instant::now(),
            session,
            effects: JoinSet::new(),
            contents: HashMap::new(),
            manifests: HashMap::new(),
            guard: None,
            wanted: Vec::new(),
            sent: VecDeque::new(),
            unsent: Arc::new(Semaphore::new(UNSENT)),
        };
        let result = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            result = server.run(Link::start(connection)) => result,
        };
        self.inner
            .replicas
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .remove(&id);
        // The replica only sees that the connection ends, and dials again.
        if let Err(ServeError::Workspace(error)) = &result {
            let failure = Command::Failed(error.to_string());
            self.inner.mailbox.send(failure);
        }
        result
    }
}

struct Server {
    workspace: Workspace,
    id: u64,
    started: Instant,
    session: MasterSession,
    effects: JoinSet<Result<Finished, WorkspaceError>>,
    /// Small contents of the batch that is being gathered.
    contents: HashMap<ContentHash, Vec<u8>>,
    manifests: HashMap<ContentHash, Manifest>,
    /// Held from the first object that is stored for a batch to its commit.
    guard: Option<WriteGuard>,
    /// Contents that the replica asked for: those that are asked for at once are
    /// read by one thread.
    wanted: Vec<String>,
    /// What it was sent last, the oldest first.
    sent: VecDeque<ContentHash>,
    /// Room for contents that are read and not sent.
    unsent: Arc<Semaphore>,
}

/// A content that is read and not sent, in its place among them.
struct Unsent {
    bytes: Bytes,
    _place: Option<OwnedSemaphorePermit>,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Server {
    async fn run(&mut self, mut link: Link) -> Result<(), ServeError> {
        let mut changed = self.workspace.watch_sequence();
        let mut ended = false;
        loop {
            self.start_effects().await?;
            let mut blocked = false;
            while !ended {
                match link.outgoing.try_reserve() {
                    Ok(permit) => {
                        let ledger = self.workspace.ledger();
                        match self.session.poll_message(self.started.elapsed(), &ledger) {
                            Some(message) => permit.send(message),
                            None => break,
                        }
                    }
                    Err(mpsc::error::TrySendError::Full(())) => {
                        blocked = true;
                        break;
                    }
                    Err(mpsc::error::TrySendError::Closed(())) => ended = true,
                }
            }
            self.start_effects().await?;
            self.publish_position();
            if ended {
                return Ok(link.ended().await?);
            }
            let wake = self.started + self.session.poll_timeout();
            tokio::select! {
                message = link.incoming.recv() => match message {
                    Some(message) => {
                        let ledger = self.workspace.ledger();
                        self.session.handle_message(message, &ledger)?;
                    }
                    // What the reader ran into is told by its task.
                    None => ended = true,
                },
                Some(finished) = self.effects.join_next() => {
                    let finished = finished.map_err(|_| WorkspaceError::Closed)??;
                    self.finish(finished)?;
                }
                result = changed.changed() => {
                    if result.is_err() {
                        return Err(WorkspaceError::Closed.into());
                    }
                }
                permit = link.outgoing.reserve(), if blocked => {
                    ended = permit.is_err();
                }
                () = tokio::time::sleep_until(wake.into()) => {}
            }
        }
    }

    fn publish_position(&self) {
        if let Some(sandbox) = self.session.sandbox_id() {
            let mut replicas = self
                .workspace
                .inner
                .replicas
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            replicas.insert(self.id, (sandbox.to_string(), self.session.acked()));
        }
    }

    async fn start_effects(&mut self) -> Result<(), ServeError> {
        loop {
            let effect = {
                let ledger = self.workspace.ledger();
                self.session.poll_effect(self.started.elapsed(), &ledger)
            };
            let Some(effect) = effect else {
                self.load_wanted();
                return Ok(());
            };
            let stores = matches!(
                effect,
                MasterEffect::Plan { .. }
                    | MasterEffect::KeepContent { .. }
                    | MasterEffect::Commit { .. }
            );
            if stores && self.guard.is_none() {
                let cas = Arc::clone(&self.workspace.inner.cas);
                let guard = tokio::task::spawn_blocking(move || cas.writing()).await;
                self.guard = Some(
                    guard
                        .map_err(|_| WorkspaceError::Closed)?
                        .map_err(WorkspaceError::from)?,
                );
            }
            self.start(effect);
        }
    }

    /// Reads what was asked for, once there is room for it.
    fn load_wanted(&mut self) {
        if self.wanted.is_empty() {
            return;
        }
        let wanted: Vec<_> = std::mem::take(&mut self.wanted)
            .into_iter()
            .map(|name| {
                let hash = ContentHash::parse(&name);
                let trust = hash.map_or(Trust::Verify, |hash| self.trust(hash));
                (name, hash, trust)
            })
            .collect();
        let workspace = self.workspace.clone();
        let unsent = Arc::clone(&self.unsent);
        self.effects.spawn(async move {
            let inner = Arc::clone(&workspace.inner);
            let room = u32::try_from(wanted.len().min(UNSENT)).unwrap_or_default();
            let mut places = unsent.acquire_many_owned(room).await.ok();
            let contents = workspace.read(move |reader, cas| {
                let load = |(name, hash, trust): (String, Option<ContentHash>, Trust)| {
                    let offer = match hash {
                        Some(hash) => read_content(reader, cas, &inner.own, &hash, trust)?,
                        None => None,
                    };
                    let offer = match offer.unwrap_or(Offer::Nothing) {
                        Offer::Whole(bytes) if bytes.len() as u64 > SMALL => {
                            let _place = places.as_mut().and_then(|places| places.split(1));
                            Offer::Whole(Bytes::from_owner(Unsent { bytes, _place }))
                        }
                        other => other,
                    };
                    Ok((name, offer))
                };
                wanted.into_iter().map(load).collect()
            });
            Ok(Finished::Loaded(contents.await?))
        });
    }

    /// The replica verifies what it is sent. If it asks again for what it was sent
    /// a moment ago, it may have been sent something else: then it is verified here,
    /// and damage in the store is named.
    fn trust(&mut self, hash: ContentHash) -> Trust {
        if self.sent.contains(&hash) {
            return Trust::Verify;
        }
        if self.sent.len() == SENT {
            self.sent.pop_front();
        }
        self.sent.push_back(hash);
        Trust::Receiver
    }

    fn start(&mut self, effect: MasterEffect) {
        let workspace = self.workspace.clone();
        match effect {
            MasterEffect::Announce { epoch, changes } => {
                let below = workspace.inner.inline_below;
                let changes = with_fresh(&workspace.inner.fresh, changes, below);
                if changes.iter().all(|(_, inline)| *inline != Inline::Unread) {
                    let changes = changes.into_iter();
                    let all = changes.map(|(change, inline)| (change, inline.bytes()));
                    self.session.announced(epoch, all.collect());
                    return;
                }
                self.effects.spawn(async move {
                    let changes = workspace
                        .read(move |reader, _| Ok(with_contents(reader, changes)?))
                        .await?;
                    Ok(Finished::Announced(epoch, changes))
                });
            }
            MasterEffect::Flush { barrier } => {
                self.effects
                    .spawn(async move { Ok(Finished::Flushed(barrier, workspace.flush().await?)) });
            }
            MasterEffect::LoadContent { content_hash } => self.wanted.push(content_hash),
            MasterEffect::Prepare {
                sandbox_id: _,
                entries,
            } => {
                self.effects.spawn(async move {
                    let inner = Arc::clone(&workspace.inner);
                    let missing = workspace
                        .read(move |reader, cas| {
                            Ok(missing_contents(reader, cas, &inner.own, &entries)?)
                        })
                        .await?;
                    Ok(Finished::Prepared(missing))
                });
            }
            MasterEffect::KeepContent { hash, bytes } if bytes.len() as u64 <= SMALL => {
                self.contents.insert(hash, bytes.into());
                self.session.content_kept(&hash);
            }
            MasterEffect::KeepContent { hash, bytes } => {
                self.effects.spawn(async move {
                    workspace
                        .read(move |_, cas| Ok(cas.ingest(&bytes[..])?))
                        .await?;
                    Ok(Finished::Kept(hash))
                });
            }
            MasterEffect::Plan { hash, manifest } => {
                self.effects.spawn(async move {
                    let inner = Arc::clone(&workspace.inner);
                    let (manifest, missing) = workspace
                        .read(move |reader, cas| {
                            let hashes = manifest.chunks.iter().map(|chunk| &chunk.hash);
                            let own = owned(&inner.own).of(reader, cas, hashes)?;
                            let missing = manifest
                                .chunks
                                .iter()
                                .enumerate()
                                .filter(|(_, chunk)| {
                                    !own.contains(&chunk.hash) || !cas.has(&chunk.hash)
                                })
                                .map(|(index, _)| index)
                                .collect();
                            Ok((manifest, missing))
                        })
                        .await?;
                    Ok(Finished::Planned(hash, manifest, missing))
                });
            }
            MasterEffect::KeepChunk {
                hash,
                chunk,
                bytes,
                offsets,
            } => {
                self.effects.spawn(async move {
                    let inner = Arc::clone(&workspace.inner);
                    workspace
                        .read(move |_, cas| {
                            cas.put_bytes(&chunk, &bytes)?;
                            owned(&inner.own).given(chunk);
                            Ok(())
                        })
                        .await?;
                    Ok(Finished::ChunkKept(hash, offsets.len()))
                });
            }
            MasterEffect::FinishContent { hash } => {
                let Some(manifest) = self.manifests.get(&hash).cloned() else {
                    return;
                };
                self.effects.spawn(async move {
                    let (finish, small) = workspace
                        .read(move |_, cas| verify(cas, &hash, &manifest))
                        .await?;
                    Ok(Finished::Verified(hash, finish, small))
                });
            }
            MasterEffect::Commit {
                sandbox_id,
                entries,
                unavailable,
            } => {
                let contents = std::mem::take(&mut self.contents);
                let request = CommitRequest {
                    sandbox: sandbox_id,
                    entries,
                    unavailable,
                    contents,
                };
                self.effects.spawn(async move {
                    Ok(Finished::Committed(
                        workspace
                            .ask(|reply| Command::Commit(request, reply))
                            .await?,
                    ))
                });
            }
        }
    }

    fn finish(&mut self, finished: Finished) -> Result<(), ServeError> {
        match finished {
            Finished::Announced(epoch, changes) => self.session.announced(epoch, changes),
            Finished::Flushed(barrier, sequence) => self.session.flushed(barrier, sequence),
            Finished::Loaded(contents) => {
                for (hash, offer) in contents {
                    self.session.content_loaded(hash, offer);
                }
            }
            Finished::Prepared(missing) => self.session.prepared(missing),
            Finished::Planned(hash, manifest, missing) => {
                self.manifests.insert(hash, manifest);
                self.session.planned(&hash, &missing);
            }
            Finished::ChunkKept(hash, count) => self.session.chunk_kept(&hash, count),
            Finished::Kept(hash) => self.session.content_kept(&hash),
            Finished::Verified(hash, finish, small) => {
                if let Some(small) = small {
                    self.contents.insert(hash, small);
                }
                self.session.content_finished(&hash, &finish)?;
            }
            Finished::Committed(outcome) => {
                self.guard = None;
                self.manifests.clear();
                self.session.committed(outcome);
            }
        }
        Ok(())
    }
}

/// What goes along with an announcement.
#[derive(PartialEq, Eq)]
enum Inline {
    /// These bytes.
    Bytes(Vec<u8>),
    /// Nothing: the replica asks for it.
    Nothing,
    /// What the history holds.
    Unread,
}

impl Inline {
    fn bytes(self) -> Option<Vec<u8>> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Nothing | Self::Unread => None,
        }
    }
}

/// Adds contents that are at hand to what is announced.
fn with_fresh(fresh: &Fresh, changes: Vec<Change>, inline_below: u64) -> Vec<(Change, Inline)> {
    let is_empty = |node: &Node| node.is_directory() || node.size == 0;
    let wanted = |change: &Change| {
        let node = change.node.as_ref()?;
        (!is_empty(node) && node.size < inline_below).then_some(node.hash)
    };
    let wanted: Vec<_> = changes.iter().map(wanted).collect();
    let found = fresh.of(&wanted);
    let inline = |change: &Change, wanted: bool, found: Option<Vec<u8>>| match found {
        Some(bytes) => Inline::Bytes(bytes),
        None if wanted => Inline::Unread,
        None if change.node.as_ref().is_some_and(is_empty) => Inline::Bytes(Vec::new()),
        None => Inline::Nothing,
    };
    let all = changes.into_iter().zip(wanted).zip(found);
    all.map(|((change, wanted), found)| {
        let inline = inline(&change, wanted.is_some(), found);
        (change, inline)
    })
    .collect()
}

/// Adds those that the history holds. One that is missing is left for the
/// replica to ask for.
fn with_contents(
    reader: &HistoryReader,
    changes: Vec<(Change, Inline)>,
) -> Result<Vec<Announcement>, HistoryError> {
    let announce = |(change, inline): (Change, Inline)| {
        let bytes = match (&inline, &change.node) {
            (Inline::Unread, Some(node)) => reader.small_content(&node.hash)?,
            _ => inline.bytes(),
        };
        Ok((change, bytes))
    };
    reader.together(|_| changes.into_iter().map(announce).collect())
}

fn owned(own: &Mutex<OwnObjects>) -> MutexGuard<'_, OwnObjects> {
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

fn missing_contents(
    reader: &HistoryReader,
    cas: &Cas,
    own: &Mutex<OwnObjects>,
    entries: &[WriteBackEntry],
) -> Result<Vec<(ContentHash, u64)>, HistoryError> {
    let mut own = owned(own);
    let mut asked = HashSet::new();
    let mut missing = Vec::new();
    for entry in entries.iter().filter(|entry| entry.content_bytes.is_none()) {
        let Ok(checked) = CheckedEntry::check(entry) else {
            continue;
        };
        let Some(node) = checked.content() else {
            continue;
        };
        let at_hand = node.hash == ContentHash::empty()
            || reader.has_small_content(&node.hash)?
            || (own.has_content(reader, &node.hash)? && cas.has(&node.hash));
        if !at_hand && asked.insert(node.hash) {
            missing.push((node.hash, node.size));
        }
    }
    Ok(missing)
}

/// Reads chunks back, and keeps their list when they make the content. A small
/// content is returned instead: it lives in the history, however it came.
fn verify(
    cas: &Cas,
    hash: &ContentHash,
    manifest: &Manifest,
) -> Result<(Finish, Option<Vec<u8>>), WorkspaceError> {
    let mut small = (manifest.total_size <= SMALL).then(Vec::new);
    let mut whole = blake3::Hasher::new();
    let mut missing = Vec::new();
    for (index, chunk) in manifest.chunks.iter().enumerate() {
        match cas.read(&chunk.hash) {
            Ok(Some(Object::Bytes(bytes))) if bytes.len() as u64 == chunk.size => {
                whole.update(&bytes);
                if let Some(small) = &mut small {
                    small.extend_from_slice(&bytes);
                }
            }
            Ok(_) | Err(CasError::Damaged { .. }) => missing.push(index),
            Err(error) => return Err(error.into()),
        }
    }
    if !missing.is_empty() {
        return Ok((Finish::Missing(missing), None));
    }
    if whole.finalize().as_bytes() != hash.as_bytes() {
        return Ok((Finish::Wrong, None));
    }
    if small.is_none() {
        cas.put_manifest(hash, manifest)?;
    }
    Ok((Finish::Right, small))
}
